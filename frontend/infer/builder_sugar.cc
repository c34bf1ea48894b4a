#include <numeric>

#include "frontend/infer/builder.h"
#include "frontend/ops/attributes.h"

namespace kiln {

Expected<std::vector<ValueId>> GraphBuilder::finish(std::vector<ValueId> values) const {
  if (!m_status.ok()) return m_status;
  return values;
}

std::vector<ValueId> GraphBuilder::ops(std::string_view name, std::span<const ValueId> operands,
                                       Attributes attributes) {
  if (m_status.ok()) {
    Expected<std::vector<ValueId>> results = add(name, operands, std::move(attributes));
    if (results) return *std::move(results);
    m_status = results.status();
  }
  const OpDef* op = find_op(name);
  return std::vector<ValueId>(op == nullptr ? 1 : op->result_count, k_none);
}

ValueId GraphBuilder::op(std::string_view name, std::initializer_list<ValueId> operands, Attributes attributes) {
  return ops(name, std::vector<ValueId>(operands), std::move(attributes)).front();
}

ValueId GraphBuilder::number(std::string_view name, ValueId a, double b) { return op(name, {a, constant(b, a)}); }

ValueId GraphBuilder::cast(ValueId x, DType to) {
  if (!m_status.ok() || dtype(x) == to) return x;
  return op("cast", {x}, {{"dtype", to}});
}

ValueId GraphBuilder::widen(ValueId x) { return m_status.ok() ? cast(x, accumulator_of(dtype(x))) : k_none; }

ValueId GraphBuilder::full(Shape shape, double value, DType dtype) {
  return op("full", {}, {{"shape", std::move(shape)}, {"value", value}, {"dtype", dtype}});
}

ValueId GraphBuilder::constant(double value, ValueId like) { return m_status.ok() ? full(value, dtype(like)) : k_none; }

ValueId GraphBuilder::iota(Shape shape, size_t dim, DType dtype) {
  return op("iota", {}, {{"shape", std::move(shape)}, {"dim", static_cast<int64_t>(dim)}, {"dtype", dtype}});
}

ValueId GraphBuilder::extent(const Dim& value, DType dtype) {
  if (value.is_constant()) return full(static_cast<double>(value.constant()), dtype);
  return op("extent", {}, {{"value", extent_attribute(value)}, {"dtype", dtype}});
}

ValueId GraphBuilder::reshape(ValueId x, Shape to) {
  if (!m_status.ok() || shape(x) == to) return x;
  return op("reshape", {x}, {{"shape", std::move(to)}});
}

ValueId GraphBuilder::permute(ValueId x, std::vector<int64_t> dims) {
  return op("permute", {x}, {{"dims", std::move(dims)}});
}

ValueId GraphBuilder::transpose(ValueId x) {
  if (!m_status.ok()) return k_none;
  std::vector<int64_t> dims(shape(x).size());
  std::iota(dims.begin(), dims.end(), 0);
  assert(dims.size() >= 2 && "only matrices are transposed");
  std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return permute(x, std::move(dims));
}

ValueId GraphBuilder::expand(ValueId x, Shape to) {
  if (!m_status.ok() || shape(x) == to) return x;
  return op("expand", {x}, {{"shape", std::move(to)}});
}

ValueId GraphBuilder::slice(ValueId x, size_t dim, const Dim& start, const Dim& end, int64_t step) {
  return op("slice", {x},
            {{"dim", static_cast<int64_t>(dim)},
             {"start", extent_attribute(start)},
             {"end", extent_attribute(end)},
             {"step", step}});
}

ValueId GraphBuilder::unsqueeze(ValueId x, size_t dim) {
  if (!m_status.ok()) return k_none;
  Shape to = shape(x);
  to.insert(to.begin() + static_cast<ptrdiff_t>(dim), Dim(1));
  return reshape(x, std::move(to));
}

ValueId GraphBuilder::squeeze(ValueId x, size_t dim) {
  if (!m_status.ok()) return k_none;
  Shape to = shape(x);
  to.erase(to.begin() + static_cast<ptrdiff_t>(dim));
  return reshape(x, std::move(to));
}

ValueId GraphBuilder::index(ValueId x, size_t dim, int64_t at) {
  return squeeze(slice(x, dim, Dim(at), Dim(at + 1)), dim);
}

ValueId GraphBuilder::sum(ValueId x, std::vector<int64_t> dims, bool keep_dims) {
  if (dims.empty()) return x;
  return op("sum", {x}, {{"dims", std::move(dims)}, {"keep_dims", keep_dims}});
}

ValueId GraphBuilder::amax(ValueId x, std::vector<int64_t> dims, bool keep_dims) {
  return op("amax", {x}, {{"dims", std::move(dims)}, {"keep_dims", keep_dims}});
}

ValueId GraphBuilder::mean(ValueId x, std::vector<int64_t> dims, bool keep_dims) {
  return op("mean", {x}, {{"dims", std::move(dims)}, {"keep_dims", keep_dims}});
}

ValueId GraphBuilder::sum_to(ValueId x, const Shape& to) {
  if (!m_status.ok() || shape(x) == to) return x;
  const Shape& from = shape(x);
  const size_t extra = from.size() - to.size();
  std::vector<int64_t> dims;
  for (size_t d = 0; d < from.size(); ++d) {
    if (d < extra || (to[d - extra] == Dim(1) && from[d] != Dim(1))) dims.push_back(static_cast<int64_t>(d));
  }
  return reshape(sum(x, std::move(dims)), to);
}

}  // namespace kiln
