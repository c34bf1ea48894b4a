#include "backends/level_zero/compile/matrix_unit.h"

#include <fmt/format.h>

namespace kiln::level_zero {

using spv::Op;

MatrixUnit::MatrixUnit(Emitter& emitter, DType dtype, const DeviceFamily& family)
    : e(emitter), m_dtype(dtype), m_lanes(family.matrix_lanes) {}

Id MatrixUnit::pack(std::span<const Id> halves) {
  const Id type = word_type(static_cast<uint32_t>(halves.size()));
  Id word = halves[0];
  if (halves.size() == 1) return word;
  word = e.op(Op::OpUConvert, type, {word});
  for (size_t i = 1; i < halves.size(); ++i) {
    const Id wide = e.op(Op::OpUConvert, type, {halves[i]});
    const Id moved = e.op(Op::OpShiftLeftLogical, type, {wide, e.constant(type, static_cast<int64_t>(16 * i))});
    word = e.op(Op::OpBitwiseOr, type, {word, moved});
  }
  return word;
}

Id MatrixUnit::multiply_add(Id a, Id b, Id sums) {
  const std::string half(to_string(m_dtype));
  const std::string name = fmt::format("intel_sub_group_{0}_{0}_matrix_mad_k{1}", half, k_depth);
  // The types of a, b and sums, as C++ mangles them: short8 or int8, int8, float8.
  const std::string types = a_run() == 1 ? "Dv8_sDv8_iDv8_f" : "Dv8_iS_Dv8_f";
  const Id arguments[] = {a, b, sums};
  return e.call(fmt::format("_Z{}{}{}", name.size(), name, types), sums_type(), arguments);
}

}  // namespace kiln::level_zero
