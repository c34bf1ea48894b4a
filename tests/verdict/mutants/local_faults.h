#pragma once

#include <random>
#include <string>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::mutants {

/// What only shows at real sizes: something in the middle of a large grid, or at its very end, is wrong.
enum class LocalFault {
  one_tile,            // one piece of the schedule, anywhere
  one_column_of_tile,  // a lane of one piece
  one_row_of_tile,
  one_lane_of_all,  // the same lane of every piece
  one_slice,        // a sixteenth of the rows: what one thread did
  tail_column,      // the last one
  tail_row,
  k_panel_of_tile,  // terms that one row of tiles leaves out
  last_k_panel,     // terms that all leave out
  count
};

const char* to_string(LocalFault fault);

struct FaultyKernel {
  std::string what;
  KernelSpec spec;
};

/// `spec` with such a fault, drawn anew each time; `tile`: Schedule::tile. Nothing where the kernel has no such part.
std::vector<FaultyKernel> with_fault(const KernelSpec& spec, const std::vector<int64_t>& tile, LocalFault fault,
                                     std::mt19937_64& random);

}  // namespace kiln::mutants
