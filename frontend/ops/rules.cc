#include "frontend/ops/rules.h"

#include <algorithm>

namespace kiln {

Status operand_error(const OpContext& context, size_t operand, std::string_view expected) {
  const TensorType* type = context.operands[operand];
  // A variadic operand stands for all that follow it.
  const OperandDef& def = context.op.operands[std::min(operand, context.op.operands.size() - 1)];
  return invalid_argument("{}: operand {} '{}' is {}, expected {}", context.op.name, operand, def.name,
                          type == nullptr ? "absent" : type->to_string(), expected);
}

Status expect_dtype(const OpContext& context, size_t operand, DType dtype) {
  if (context.operands[operand]->dtype == dtype) return {};
  return operand_error(context, operand, to_string(dtype));
}

Status expect_floating(const OpContext& context, size_t operand) {
  if (is_floating(context.operands[operand]->dtype)) return {};
  return operand_error(context, operand, "a floating dtype");
}

Status expect_index(const OpContext& context, size_t operand) {
  const DType dtype = context.operands[operand]->dtype;
  if (dtype == DType::i32 || dtype == DType::i64) return {};
  return operand_error(context, operand, "i32 or i64");
}

Status expect_rank_at_least(const OpContext& context, size_t operand, size_t rank) {
  if (context.operands[operand]->rank() >= rank) return {};
  return operand_error(context, operand, fmt::format("rank {} or more", rank));
}

Status expect_equal(const OpContext& context, const Dim& a, const Dim& b, size_t operand, std::string_view what) {
  const Dim difference = a - b;
  if (difference == Dim(0)) return {};
  if (difference.is_constant()) {
    return operand_error(context, operand, fmt::format("{} {}, got {}", what, a.to_string(), b.to_string()));
  }
  context.guards.push_back({difference, Guard::Relation::equal, 0});
  return {};
}

Status expect_shape(const OpContext& context, size_t operand, const Shape& shape) {
  const Shape& got = context.operands[operand]->shape;
  if (got == shape) return {};
  const TensorType wanted{context.operands[operand]->dtype, shape, {}};
  if (got.size() != shape.size()) return operand_error(context, operand, wanted.to_string());
  for (size_t d = 0; d < shape.size(); ++d) {
    KILN_RETURN_IF_ERROR(
        expect_equal(context, shape[d], got[d], operand, fmt::format("{} with dim {}", wanted.to_string(), d)));
  }
  return {};
}

Status expect_type(const OpContext& context, size_t operand, const TensorType& type) {
  if (context.operands[operand]->dtype != type.dtype) {
    return operand_error(context, operand, TensorType{type.dtype, type.shape, {}}.to_string());
  }
  return expect_shape(context, operand, type.shape);
}

Expected<Shape> broadcast(const OpContext& context, const Shape& a, const Shape& b, size_t operand) {
  Shape result(std::max(a.size(), b.size()), Dim(1));
  const auto extent_at = [&](const Shape& shape, size_t d) {
    const size_t missing = result.size() - shape.size();
    return d < missing ? Dim(1) : shape[d - missing];
  };
  for (size_t d = 0; d < result.size(); ++d) {
    const Dim x = extent_at(a, d), y = extent_at(b, d);
    if (x == Dim(1)) {
      result[d] = y;
    } else if (y == Dim(1)) {
      result[d] = x;
    } else {
      KILN_RETURN_IF_ERROR(expect_equal(context, x, y, operand, fmt::format("broadcast dim {} of", d)));
      result[d] = x.is_constant() ? x : y;
    }
  }
  return result;
}

Expected<size_t> dim_attribute(const OpContext& context, std::string_view name, size_t rank) {
  const int64_t dim = integer_of(context.attributes, name);
  if (dim >= 0 && dim < static_cast<int64_t>(rank)) return static_cast<size_t>(dim);
  return invalid_argument("{}: attribute '{}' is {}, expected a dim in [0, {})", context.op.name, name, dim, rank);
}

Status check_dims(const OpContext& context, std::string_view name, size_t rank) {
  std::vector<bool> seen(rank, false);
  for (const int64_t dim : integers_of(context.attributes, name)) {
    if (dim < 0 || dim >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(dim)]) {
      return invalid_argument("{}: attribute '{}' has {}, expected distinct dims in [0, {})", context.op.name, name,
                              dim, rank);
    }
    seen[static_cast<size_t>(dim)] = true;
  }
  return {};
}

Shape reduced_shape(const Shape& shape, std::span<const int64_t> dims, bool keep_dims) {
  Shape result;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    if (!reduced) result.push_back(shape[d]);
    if (reduced && keep_dims) result.push_back(Dim(1));
  }
  return result;
}

Dim element_count(const Shape& shape) {
  Dim count(1);
  for (const Dim& dim : shape) count = count * dim;
  return count;
}

std::vector<AttributeDef> slice_attributes() {
  return {required("dim", AttributeType::integer), fallback("start", AttributeType::extent, int64_t{0}),
          required("end", AttributeType::extent), fallback("step", AttributeType::integer, int64_t{1})};
}

Status expect_range(const OpContext& context, const Dim& start, const Dim& end, const Dim& extent) {
  for (const Dim& slack : {start, end - start, extent - end}) {
    if (slack.is_constant() && slack.constant() < 0) {
      return invalid_argument("{}: [{}, {}) is no range of extent {}", context.op.name, start.to_string(),
                              end.to_string(), extent.to_string());
    }
    if (!slack.is_constant() && slack != extent) context.guards.push_back({slack, Guard::Relation::at_least, 0});
  }
  return {};
}

Expected<Dim> slice_length(const OpContext& context, const Dim& extent) {
  const Dim start = extent_of(context.attributes, "start"), end = extent_of(context.attributes, "end");
  const int64_t step = integer_of(context.attributes, "step");
  KILN_RETURN_IF_ERROR(expect_range(context, start, end, extent));
  if (step < 1) return invalid_argument("{}: attribute 'step' is {}, expected 1 or more", context.op.name, step);
  const Dim length = end - start;
  if (step == 1) return length;
  if (length.is_constant()) return Dim((length.constant() + step - 1) / step);
  // Rounded up, which the constant term alone decides where all others are whole steps.
  const Dim::Term& last = length.terms().back();
  const int64_t rest = last.symbols.empty() ? (last.coefficient % step + step) % step : 0;
  const Dim rounded = rest == 0 ? length : length + Dim(step - rest);
  if (const std::optional<Dim> steps = rounded.divided_by(Dim(step))) return *steps;
  return invalid_argument("{}: length {} is not known to be a whole number of steps of {}", context.op.name,
                          length.to_string(), step);
}

Expected<Types> infer_same(const OpContext& context) {
  return Types{{context.operands[0]->dtype, context.operands[0]->shape, {}}};
}

Expected<Types> infer_same_floating(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  for (size_t i = 1; i < context.operands.size(); ++i) {
    KILN_RETURN_IF_ERROR(expect_type(context, i, *context.operands[0]));
  }
  return infer_same(context);
}

}  // namespace kiln
