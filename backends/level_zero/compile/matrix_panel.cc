#include "backends/level_zero/compile/matrix_panel.h"

namespace kiln::level_zero {

using spv::Op;

MatrixPanel MatrixPanel::of_a(int64_t rows, int64_t depth, uint32_t lanes) {
  const uint32_t run = MatrixUnit::k_depth / lanes;
  return {rows / MatrixUnit::k_rows, depth / run, run};
}

MatrixPanel MatrixPanel::of_b(int64_t depth, int64_t columns) {
  return {depth / MatrixUnit::k_depth, columns, MatrixUnit::b_run()};
}

MatrixPanel MatrixPanels::local(MatrixPanel panel) {
  panel.memory = e.local_array(m_unit.operand_type(panel.run), static_cast<uint32_t>(panel.vectors()));
  return panel;
}

Id MatrixPanels::pointer(const MatrixPanel& panel, Id row, Id column) {
  return e.array_pointer(panel.memory, e.add(e.mul(row, number(panel.columns)), column));
}

void MatrixPanels::fill(const MatrixPanel& panel, bool by_columns, const HalfOf& half) {
  const Id type = e.integer(32), inner = number(by_columns ? panel.columns : panel.rows);
  const Id first = e.op(Op::OpUConvert, type, {e.local_id()});
  const auto element_at = [&](Id row, Id column, Id place) {
    Ids halves;
    for (uint32_t i = 0; i < panel.run; ++i)
      halves.push_back(m_scalars.to_memory(m_dtype, half(row, column, place, i)));
    return m_unit.pack(halves);
  };
  e.loop(
      first, number(panel.vectors()), number(m_group_size),
      [&](Id item) {
        const Id fast = e.op(Op::OpUMod, type, {item, inner}), slow = e.op(Op::OpUDiv, type, {item, inner});
        const Id row = by_columns ? slow : fast, column = by_columns ? fast : slow;
        const Id vector = pointer(panel, row, column);
        e.loop(
            number(0), number(MatrixUnit::k_vector), number(1),
            [&](Id place) { e.store(e.array_pointer(vector, place), element_at(row, column, place), panel.run * 2); },
            spv::LoopControlMask::DontUnroll);
      },
      spv::LoopControlMask::DontUnroll);
}

Id MatrixPanels::vector(const MatrixPanel& panel, Id row, Id column) {
  return e.load(pointer(panel, row, column), alignment(panel));
}

}  // namespace kiln::level_zero
