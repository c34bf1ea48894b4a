#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "backends/cpu/compile/gemm/tile_kernel.h"

namespace kiln::cpu {

/// Writes a gemm's entry: the grid, the blocks, the packing, with `kernel` for each tile.
LaunchShape emit_gemm_loops(GemmEmission& emission, GemmTileKernel& kernel);

}  // namespace kiln::cpu
