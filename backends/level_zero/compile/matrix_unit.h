#pragma once

#include "backends/level_zero/compile/emitter.h"
#include "backends/level_zero/target.h"
#include "frontend/ir/dtype.h"

namespace kiln::level_zero {

/// A family's matrix units as its compilers offer them (OpenCL's cl_intel_subgroup_matrix_multiply_accumulate): a sub-group
/// adds A, 8 x 16 halves, times B, 16 x lanes, to C, 8 x lanes, in f32. Each operand is a vector of 8 in every lane:
///
///   A   element r: of row r, the 16 / lanes neighbours along k that begin at lane * 16 / lanes
///   B   element p: of the lane's column, rows 2p and 2p + 1
///   C   element r: of the lane's column, row r
///
/// Neighbours lie in one integer, the first in its low bits.
class MatrixUnit {
 public:
  static constexpr uint32_t k_rows = 8, k_depth = 16;
  static constexpr uint32_t k_vector = 8;  // elements of each operand in a lane

  /// Whether the family's units multiply such operands.
  static bool multiplies(DType dtype, const DeviceFamily& family) { return is_half(dtype) && family.matrix_lanes != 0; }
  MatrixUnit(Emitter& emitter, DType dtype, const DeviceFamily& family);

  /// Halves in an element of A and of B.
  uint32_t a_run() const { return k_depth / m_lanes; }
  static constexpr uint32_t b_run() { return 2; }
  /// The type of as many neighbours.
  Id word_type(uint32_t run) { return e.integer(static_cast<int>(16 * run)); }
  /// Neighbours, as ScalarEmitter::to_memory gives them.
  Id pack(std::span<const Id> halves);

  /// Operands of as many neighbours to an element, and of such elements.
  Id operand_type(uint32_t run) { return e.vector(word_type(run), k_vector); }
  Id operand(std::span<const Id> words) { return e.compose(e.vector(e.type_of(words[0]), k_vector), words); }
  Id sums_type() { return e.vector(e.real(32), k_vector); }
  /// a * b + sums. All of the sub-group takes part.
  Id multiply_add(Id a, Id b, Id sums);

 private:
  Emitter& e;
  DType m_dtype;
  uint32_t m_lanes;
};

}  // namespace kiln::level_zero
