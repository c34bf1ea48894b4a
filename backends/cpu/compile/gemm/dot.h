#pragma once

#include <string>
#include <vector>

#include "backends/cpu/compile/gemm/blocking.h"
#include "backends/machine.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for a gemm by dot products: lanes along k, both operands read where they lie. In rows and columns of the form
/// that is compiled (`exchanged`).
struct DotSchedule {
  static constexpr std::string_view k_implementation = "dot";
  static constexpr uint32_t k_version = 2;

  bool exchanged = false;  // computed as C^T = B^T A^T
  uint16_t tile_rows = 3;
  uint16_t tile_columns = 8;
  uint16_t register_rows = 3;  // of a tile: their sums are in registers at a time
  uint32_t k_block =
      512;  // elements of k that all rows of a tile pass over before the next, where registers do not hold all
  uint32_t slab_columns = 8;
  uint32_t row_parts = 1;

  static constexpr auto types = widened;
  bool operator==(const DotSchedule&) const = default;
  static auto fields(auto& s) {
    return std::tie(s.exchanged, s.tile_rows, s.tile_columns, s.register_rows, s.k_block, s.slab_columns, s.row_parts);
  }

  /// Errors: invalid_argument when no kernel for the problem, oriented as the schedule says, can be made so.
  Status validate(const GemmProblem& problem) const;
  GemmBlocking blocking(const GemmProblem& problem) const;
  /// "dot 16x8 by 3 k 512 slab 48 parts 1"
  std::string describe(const GemmProblem& problem) const;
};

/// The same choices for operands that are multiplied by pairs of bf16.
struct Bf16DotSchedule : DotSchedule {
  static constexpr std::string_view k_implementation = "dot_bf16";
  static constexpr auto types = bf16_pairs;
  bool operator==(const Bf16DotSchedule&) const = default;
};

/// The same choices for bytes that are multiplied by pairs of i16.
struct I16DotSchedule : DotSchedule {
  static constexpr std::string_view k_implementation = "dot_i16";
  static constexpr auto types = i16_pairs;
  bool operator==(const I16DotSchedule&) const = default;
};

/// Why dot products are no way to compute the problem, or ok: both operands must be contiguous along k.
Status fits_dot(const GemmProblem& problem);

/// Best first by the analytic model, at least one.
std::vector<DotSchedule> ranked_dot_schedules(const GemmProblem& problem, const Machine& machine);

}  // namespace kiln::cpu
