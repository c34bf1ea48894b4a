#pragma once

#include <vector>

#include "backends/cuda/compile/gemm_problem.h"

namespace kiln::cuda {

/// A gemm whose operands that no tensor map describes are packed ahead of it: loops kernels leave them in the launch's
/// workspace, in rows that begin at whole cache lines, and compute what is no plain load once and not for each tile. Costs
/// two passes over the packed operands at the speed of memory.
struct GemmPacking {
  KernelSpec gemm;                // over the spec's buffers, then the packed operands
  std::vector<KernelSpec> loops;  // over the same; one for each packed operand
  std::vector<uint64_t> workspace_parts;
};

GemmPacking packing_of(const GemmProblem& problem);

/// Whether some operand has to be packed for tensor maps, and there may be so much workspace.
bool is_packable(const GemmProblem& problem);

/// Whether packing is sooner done than computing the operands element by element for every tile.
bool packing_pays(const GemmProblem& problem);

}  // namespace kiln::cuda
