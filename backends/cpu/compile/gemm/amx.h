#pragma once

#include <string>
#include <vector>

#include "backends/cpu/compile/gemm/blocking.h"
#include "backends/machine.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for a gemm by AMX's tiles. In vectors and rows of the form that is compiled (`exchanged`).
struct AmxSchedule {
  static constexpr std::string_view k_implementation = "amx_bf16";
  static constexpr uint32_t k_version = 2;
  static constexpr auto types = bf16_tiles;
  static constexpr int64_t k_registers = 8, k_register_rows = 16;

  bool exchanged = false;  // computed as C^T = B^T A^T
  ReadA read_a = ReadA::rows;
  ReadB read_b = ReadB::panels;
  bool prefetch_a =
      false;  // while a tile is multiplied, what the next tile of rows reads of A comes to the second level
  uint16_t tile_rows = 32;
  uint16_t tile_vectors = 2;
  uint32_t group_rows = 128;
  uint32_t k_block = 512;  // steps of k
  uint32_t slab_vectors = 40;
  uint32_t row_parts = 8;

  bool operator==(const AmxSchedule&) const = default;
  static auto fields(auto& s) {
    return std::tie(s.exchanged, s.read_a, s.read_b, s.prefetch_a, s.tile_rows, s.tile_vectors, s.group_rows, s.k_block,
                    s.slab_vectors, s.row_parts);
  }

  /// Errors: invalid_argument when no kernel for the problem, oriented as the schedule says, can be made so.
  Status validate(const GemmProblem& problem) const;
  GemmBlocking blocking(const GemmProblem& problem) const;
  /// "amx 32x32 k 768 slab 320 parts 8 a-rows b-panels"
  std::string describe(const GemmProblem& problem) const;
};

/// The same choices for signed bytes.
struct I8AmxSchedule : AmxSchedule {
  static constexpr std::string_view k_implementation = "amx_int8";
  static constexpr auto types = i8_tiles;
  bool operator==(const I8AmxSchedule&) const = default;
};

/// Best first by the analytic model, at least one.
std::vector<AmxSchedule> ranked_amx_schedules(const GemmProblem& problem, const Machine& machine);

}  // namespace kiln::cpu
