#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/compile/gemm_problem.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for one gemm on one target. Tiles are maxima: the generator cuts m and n into tiles that differ by at
/// most one row and one vector.
struct GemmSchedule {
  enum class Form : uint8_t {
    outer_product = 0,  // lanes along n: broadcast A, load vectors of B
    dot = 1,            // lanes along k: both operands k-contiguous, m small, nothing packed
  };
  /// How the kernel reads A.
  enum class ReadA : uint8_t {
    direct = 0,  // where it lies
    rows = 1,    // packed, k-contiguous: evaluated with lanes along k
    panels = 2,  // packed [k][rows of the tile]: evaluated with lanes along m
  };
  /// How the kernel reads B.
  enum class ReadB : uint8_t {
    direct = 0,      // where it lies, n-contiguous
    panels = 1,      // packed [k][columns of the tile]: evaluated with lanes along n
    transposed = 2,  // packed the same way from k-contiguous columns, by transposing blocks in registers
  };

  Form form = Form::outer_product;
  ReadA read_a = ReadA::direct;
  ReadB read_b = ReadB::direct;
  bool rolled_epilogue = false;  // a loop over the finished tile instead of straight-line code
  bool prefetch_output = false;
  uint8_t unroll = 2;  // k steps per iteration
  uint16_t tile_rows = 6;
  uint16_t tile_vectors = 4;   // dot: columns of the tile
  uint32_t group_rows = 96;    // rows of A packed at a time
  uint32_t k_block = 384;      // k steps between two visits to memory
  uint32_t slab_vectors = 40;  // width of the part of B kept in the second-level cache; the grid's outer dim
  uint32_t row_parts = 8;      // the grid's inner dim: parts of m, merged again within one call

  bool operator==(const GemmSchedule&) const = default;
};

std::vector<uint8_t> encode(const GemmSchedule& schedule);
/// Errors: invalid_argument for bytes that encode() did not make.
Expected<GemmSchedule> decode_gemm_schedule(std::span<const uint8_t> bytes);
/// "tile 6x64 k 768 slab 320 parts 8 pack b"
std::string describe(const GemmSchedule& schedule, const GemmProblem& problem);

/// Best first by the analytic model; 1 to 16. The first is within a few per cent of the best for nearly all shapes.
std::vector<GemmSchedule> ranked_schedules(const GemmProblem& problem);

}  // namespace kiln::cpu
