#pragma once

#include <string>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::mutants {

enum class Kind {
  tail_dropped,
  last_k_step_dropped,
  tile_shifted,
  wrong_operand,
  wrong_stride,
  missing_pass,
  mask_off_by_one,
  wrong_combiner,
  wrong_constant,
  swapped_operands,
  store_dropped,
  store_to_neighbour,
  wrong_store_mode,
  transposed_strides,
  count
};

const char* to_string(Kind kind);

/// A kernel with one fault that code generators have: valid, so that real code is made of it, and wrong, unless the
/// change happens to compute the same.
struct Mutant {
  Kind kind;
  std::string what;
  KernelSpec spec;
};

/// All that the operators of mutate.cc make of `spec`, in a fixed order.
std::vector<Mutant> mutants_of(const KernelSpec& spec);

}  // namespace kiln::mutants
