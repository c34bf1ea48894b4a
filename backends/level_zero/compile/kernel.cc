#include "backends/level_zero/compile/kernel.h"

namespace kiln::level_zero {
namespace {

using spv::Op;

constexpr size_t k_max_dims = 60;  // dependences on dims are bits of a word

Status claims_dtype(DType dtype, const DeviceFamily& family) {
  if (dtype != DType::f64 || (family.features & bit(Feature::fp64)) != 0) return {};
  return error(StatusCode::unimplemented, "level zero: {} has no f64", family.name);
}

/// Whether an operation means something for its operands' dtype.
bool is_defined(ScalarOp op, DType dtype) {
  using enum ScalarOp;
  const bool is_analytic = (op >= exp && op <= trunc) || op == div || op == pow || op == atan2;
  const bool is_bitwise = op == bitwise_not || (op >= bitwise_and && op <= bitwise_xor);
  const bool is_signed = op == neg || op == abs || op == sign || op == sub || (op >= floor_div && op <= fmod);
  if (op == philox) return dtype == DType::i64;
  if (is_analytic) return is_floating(dtype);
  if (is_bitwise) return !is_floating(dtype);
  return !is_signed || dtype != DType::boolean;
}

}  // namespace

Status claims_body(const Body& body, const DeviceFamily& family) {
  for (const Access& access : body.accesses) {
    if (access.strides.size() > k_max_dims) {
      return error(StatusCode::unimplemented, "level zero: a kernel of {} dims, at most {}", access.strides.size(),
                   k_max_dims);
    }
  }
  for (const ScalarNode& node : body.exprs) {
    KILN_RETURN_IF_ERROR(claims_dtype(node.dtype, family));
    const ExprId operand = node.operands[node.op == ScalarOp::select ? 1 : 0];
    const DType dtype = operand == k_no_expr ? node.dtype : body.exprs[operand].dtype;
    if (node.op != ScalarOp::load && !is_defined(node.op, dtype)) {
      return error(StatusCode::unimplemented, "level zero: {} of {}", to_string(node.op), to_string(dtype));
    }
  }
  return {};
}

Status claims_buffers(const KernelSpec& spec, const DeviceFamily& family) {
  for (const BufferSpec& buffer : spec.buffers) KILN_RETURN_IF_ERROR(claims_dtype(buffer.dtype, family));
  return {};
}

int64_t points_of(const std::vector<int64_t>& extents, const std::vector<size_t>& dims) {
  int64_t points = 1;
  for (const size_t dim : dims) points *= extents[dim];
  return points;
}

Id counter_type(Emitter& emitter, int64_t count) { return emitter.integer(count <= INT32_MAX ? 32 : 64); }

Id combine_lanes(Emitter& emitter, Id value, const std::function<Id(Id, Id)>& combine, uint32_t lanes) {
  for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) {
    value = combine(value, emitter.shuffle_xor(value, mask));
  }
  return value;
}

void open_dims(Emitter& emitter, Ids& index, const std::vector<size_t>& dims, const std::vector<int64_t>& extents,
               Id number) {
  const Id type = emitter.type_of(number);
  for (size_t position = dims.size(); position-- > 0;) {
    const size_t dim = dims[position];
    if (position == 0) {
      index[dim] = emitter.widen(number);
      return;
    }
    const Id extent = emitter.constant(type, extents[dim]);
    index[dim] = emitter.widen(emitter.op(Op::OpUMod, type, {number, extent}));
    number = emitter.op(Op::OpUDiv, type, {number, extent});
  }
}

}  // namespace kiln::level_zero
