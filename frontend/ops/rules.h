#pragma once

#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/ops/attributes.h"
#include "frontend/ops/op.h"

namespace kiln {

/// What shape and dtype rules are made of. Every error names the op, the operand, what was expected and got:
/// "matmul: operand 1 'b' is f32[4, 5], expected 3 rows". Internal to frontend/ops.

using Types = std::vector<TensorType>;

/// "add: operand 1 'b' is i64[3], expected {expected}"
Status operand_error(const OpContext& context, size_t operand, std::string_view expected);

Status expect_dtype(const OpContext& context, size_t operand, DType dtype);
Status expect_floating(const OpContext& context, size_t operand);
/// i32 or i64.
Status expect_index(const OpContext& context, size_t operand);
Status expect_rank_at_least(const OpContext& context, size_t operand, size_t rank);
Status expect_shape(const OpContext& context, size_t operand, const Shape& shape);
/// Same dtype and shape.
Status expect_type(const OpContext& context, size_t operand, const TensorType& type);

/// a == b now, or by a guard; `operand` and `what` are for the message.
Status expect_equal(const OpContext& context, const Dim& a, const Dim& b, size_t operand, std::string_view what);

/// Numpy's rule. An extent 1 stretches; two extents that may differ get a guard.
Expected<Shape> broadcast(const OpContext& context, const Shape& a, const Shape& b, size_t operand);

/// The attribute as an index in [0, rank), or why not.
Expected<size_t> dim_attribute(const OpContext& context, std::string_view name, size_t rank);
/// The attribute as distinct indices in [0, rank), or why not.
Status check_dims(const OpContext& context, std::string_view name, size_t rank);

/// The shape with `dims` removed, or made 1.
Shape reduced_shape(const Shape& shape, std::span<const int64_t> dims, bool keep_dims);
Dim element_count(const Shape& shape);

/// 0 <= start <= end <= extent, now or by guards.
Status expect_range(const OpContext& context, const Dim& start, const Dim& end, const Dim& extent);

/// slice and slice_scatter: dim, start, end, step; and how long the slice of an extent is.
std::vector<AttributeDef> slice_attributes();
Expected<Dim> slice_length(const OpContext& context, const Dim& extent);

/// Rules shared by many rows: results like operand 0; all operands and the result of one floating type.
Expected<Types> infer_same(const OpContext& context);
Expected<Types> infer_same_floating(const OpContext& context);

}  // namespace kiln
