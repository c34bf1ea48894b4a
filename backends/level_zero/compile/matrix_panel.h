#pragma once

#include "backends/level_zero/compile/matrix_unit.h"
#include "backends/level_zero/compile/scalar_emitter.h"

namespace kiln::level_zero {

/// A piece of an operand of matrix units in local memory: vectors as lanes hold them, in rows and columns, those of
/// neighbouring lanes side by side.
struct MatrixPanel {
  int64_t rows = 0, columns = 0;
  uint32_t run = 0;  // halves in a vector's element
  Id memory = 0;

  /// `rows` of A, a multiple of 8, and `depth` along k, a multiple of 16. A row of vectors has 8 of them, its columns are runs
  /// along k.
  static MatrixPanel of_a(int64_t rows, int64_t depth, uint32_t lanes);
  /// A row of vectors has 16 rows of B, its columns are B's.
  static MatrixPanel of_b(int64_t depth, int64_t columns);

  int64_t vectors() const { return rows * columns; }
  int64_t vector_bytes() const { return int64_t{MatrixUnit::k_vector} * run * 2; }
  int64_t bytes() const { return vectors() * vector_bytes(); }
};

/// Writes and reads panels. Rows and columns have 32 bits.
class MatrixPanels {
 public:
  MatrixPanels(Emitter& emitter, DType dtype, const DeviceFamily& family, int64_t group_size)
      : e(emitter), m_unit(emitter, dtype, family), m_scalars(emitter), m_dtype(dtype), m_group_size(group_size) {}

  MatrixUnit& unit() { return m_unit; }
  /// With memory.
  MatrixPanel local(MatrixPanel panel);

  /// The half, as a number, at (row, column) of vectors: the `neighbour`th of the `element`th element.
  using HalfOf = std::function<Id(Id row, Id column, Id element, uint32_t neighbour)>;
  /// By the whole group: a vector to an item. Neighbouring items take neighbouring columns, or rows.
  void fill(const MatrixPanel& panel, bool by_columns, const HalfOf& half);

  Id vector(const MatrixPanel& panel, Id row, Id column);

 private:
  Id number(int64_t value) { return e.constant(e.integer(32), value); }
  Id pointer(const MatrixPanel& panel, Id row, Id column);
  static uint32_t alignment(const MatrixPanel& panel) { return static_cast<uint32_t>(panel.vector_bytes()); }

  Emitter& e;
  MatrixUnit m_unit;
  ScalarEmitter m_scalars;
  const DType m_dtype;
  const int64_t m_group_size;
};

}  // namespace kiln::level_zero
