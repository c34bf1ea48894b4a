// Windows that slide over the last dims of a tensor: each position sees a kernel's worth of elements.

#include "frontend/ops/windows.h"

#include <cstdint>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"

namespace kiln {

Status check_per_dim(const OpContext& context, std::string_view name, size_t rank, int64_t least) {
  const std::vector<int64_t>& numbers = integers_of(context.attributes, name);
  if (numbers.size() != rank) {
    return invalid_argument("{}: attribute '{}' has {} numbers, expected {}", context.op.name, name, numbers.size(),
                            rank);
  }
  for (const int64_t number : numbers) {
    if (number >= least && number <= INT32_MAX) continue;
    return invalid_argument("{}: attribute '{}' has {}, expected {} or more", context.op.name, name, number, least);
  }
  return {};
}

Expected<Dim> window_positions(const OpContext& context, size_t operand, const Dim& extent, int64_t kernel,
                               int64_t stride, int64_t dilation, const Dim* said) {
  const Dim slack = extent - Dim(dilation) * Dim(kernel - 1) - Dim(1);
  if (slack.overflowed() || (slack.is_constant() && slack.constant() < 0)) {
    return operand_error(context, operand, fmt::format("room for windows of {} elements, {} apart", kernel, dilation));
  }
  if (slack.is_constant()) return Dim(slack.constant() / stride + 1);
  context.guards.push_back({slack, Guard::Relation::at_least, 0});
  if (const std::optional<Dim> steps = slack.divided_by(Dim(stride))) return *steps + Dim(1);
  if (said != nullptr) {
    const Dim rest = slack - (*said - Dim(1)) * Dim(stride);
    context.guards.push_back({rest, Guard::Relation::at_least, 0});
    context.guards.push_back({Dim(stride - 1) - rest, Guard::Relation::at_least, 0});
    return *said;
  }
  return invalid_argument("{}: {} elements are not known to be a whole number of steps of {}", context.op.name,
                          slack.to_string(), stride);
}

Expected<const Dim*> said_positions(const OpContext& context, size_t rank, size_t dim) {
  const Attribute* attribute = find_attribute(context.attributes, "positions");
  if (attribute == nullptr) return nullptr;
  const Shape& positions = std::get<Shape>(*attribute);
  if (positions.size() == rank) return &positions[dim];
  return invalid_argument("{}: attribute 'positions' has {} dims, expected {}", context.op.name, positions.size(),
                          rank);
}

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

Expected<Types> infer_window(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  const std::vector<int64_t>& kernel = integers_of(context.attributes, "kernel");
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, kernel.size()));
  KILN_RETURN_IF_ERROR(check_per_dim(context, "kernel", kernel.size(), 1));
  for (const std::string_view name : {"stride", "dilation"}) {
    KILN_RETURN_IF_ERROR(check_per_dim(context, name, kernel.size(), 1));
  }
  const size_t outer = x.rank() - kernel.size();
  Shape shape(x.shape.begin(), x.shape.begin() + static_cast<ptrdiff_t>(outer));
  for (const int64_t extent : kernel) shape.emplace_back(extent);
  for (size_t d = 0; d < kernel.size(); ++d) {
    KILN_ASSIGN_OR_RETURN(const Dim* said, said_positions(context, kernel.size(), d));
    KILN_ASSIGN_OR_RETURN(Dim positions, window_positions(context, 0, x.shape[outer + d], kernel[d],
                                                          integers_of(context.attributes, "stride")[d],
                                                          integers_of(context.attributes, "dilation")[d], said));
    shape.push_back(std::move(positions));
  }
  return Types{{x.dtype, std::move(shape), {}}};
}

int64_t window_source(const ElementEvaluator& e, const Node& node, int64_t index) {
  const std::vector<int64_t>& stride = integers_of(node.attributes, "stride");
  const std::vector<int64_t>& dilation = integers_of(node.attributes, "dilation");
  const std::vector<int64_t>& extents = e.extents(node.results[0]);
  const std::vector<int64_t>& steps = e.strides(node.results[0]);
  const size_t rank = stride.size(), outer = extents.size() - 2 * rank;
  int64_t address = 0, inner = 1;
  for (size_t d = rank; d-- > 0;) {
    const int64_t of_kernel = index / steps[outer + d] % extents[outer + d];
    const int64_t position = index / steps[outer + rank + d] % extents[outer + rank + d];
    address += (position * stride[d] + of_kernel * dilation[d]) * inner;
    inner *= e.extents(node.operands[0])[outer + d];
  }
  int64_t windows = 1;
  for (size_t d = outer; d < extents.size(); ++d) windows *= extents[d];
  return index / windows * inner + address;
}

double window_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return e.at(node.operands[0], window_source(e, node, index));
}

/// Each element of the kernel was read from every stride-th element: there its gradients are added.
Gradients window_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const std::vector<int64_t> kernel = integers_of(node.attributes, "kernel");
  const std::vector<int64_t> stride = integers_of(node.attributes, "stride");
  const std::vector<int64_t> dilation = integers_of(node.attributes, "dilation");
  const size_t rank = kernel.size(), outer = b.shape(in[0]).size() - rank;
  int64_t elements = 1;
  for (const int64_t extent : kernel) elements *= extent;
  ValueId total = k_none;
  for (int64_t element = 0; element < elements; ++element) {
    ValueId part = g[0];
    std::vector<int64_t> at(rank);
    for (int64_t d = static_cast<int64_t>(rank) - 1, rest = element; d >= 0; --d) {
      const auto dim = static_cast<size_t>(d);
      at[dim] = rest % kernel[dim];
      rest /= kernel[dim];
      part = b.index(part, outer + dim, at[dim]);
    }
    for (size_t d = 0; d < rank && b.status().ok(); ++d) {
      Shape shape = b.shape(part);
      const Dim start(at[d] * dilation[d]);
      const Dim end = start + (shape[outer + d] - Dim(1)) * Dim(stride[d]) + Dim(1);
      shape[outer + d] = b.shape(in[0])[outer + d];
      const ValueId zeros = b.full(shape, 0, b.dtype(in[0]));
      part = b.op("slice_scatter", {zeros, part},
                  {{"dim", static_cast<int64_t>(outer + d)},
                   {"start", extent_attribute(start)},
                   {"end", extent_attribute(end)},
                   {"step", stride[d]}});
    }
    total = total == k_none ? part : b.add(total, part);
  }
  return b.finish({total});
}

}  // namespace

std::span<const OpDef> window_ops() {
  static const std::vector<OpDef> rows = {
      {.name = "window",
       .kind = OpKind::view,
       .operands = {{"x"}},
       .attributes = {required("kernel", AttributeType::integers), required("stride", AttributeType::integers),
                      required("dilation", AttributeType::integers), optional("positions", AttributeType::shape)},
       .infer = infer_window,
       .element = window_element,
       .source = window_source,
       .gradient = window_gradient},
  };
  return rows;
}

}  // namespace kiln
