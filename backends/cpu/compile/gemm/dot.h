#pragma once

#include <string>
#include <vector>

#include "backends/cpu/compile/gemm/blocking.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for a gemm by dot products: lanes along k, both operands read where they lie, one block of k. In rows and
/// columns of the form that is compiled (`exchanged`).
struct DotSchedule {
  static constexpr std::string_view k_implementation = "dot";
  static constexpr uint32_t k_version = 1;

  bool exchanged = false;  // computed as C^T = B^T A^T
  uint16_t tile_rows = 3;
  uint16_t tile_columns = 8;
  uint32_t slab_columns = 8;
  uint32_t row_parts = 1;

  static constexpr auto types = widened;
  bool operator==(const DotSchedule&) const = default;
  static auto fields(auto& s) {
    return std::tie(s.exchanged, s.tile_rows, s.tile_columns, s.slab_columns, s.row_parts);
  }

  /// Errors: invalid_argument when no kernel for the problem, oriented as the schedule says, can be made so.
  Status validate(const GemmProblem& problem) const;
  GemmBlocking blocking(const GemmProblem& problem) const;
  /// "dot 3x8 k 768 slab 48 parts 1"
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

/// The one that the analytic model takes.
DotSchedule dot_schedule(const GemmProblem& problem);

}  // namespace kiln::cpu
