// Convolutions and their gradients: windows of the image as the columns of a matrix, times filters as its rows.
//
// A gradient of one of the three ops is made of the other two, so that they can be differentiated again and again. A
// transposed convolution is convolution_backward_input.

#include <numeric>

#include "frontend/infer/builder.h"
#include "frontend/ops/convolution_reference.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/windows.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;
using Integers = std::vector<int64_t>;

// Fewer filters of a group than this do not repay laying windows out for them: each is multiplied and summed by itself.
constexpr int64_t k_filters_of_product = 4;

// Images of fewer pixels than this are columns of one product together, or many a vector of columns would not be full and
// the filters would be read again for each image. Their results are put in order by what reads them.
constexpr int64_t k_pixels_of_product = 256;

// --- types -------------------------------------------------------------------------------------------------------------

Shape inner_dims(const Shape& shape) { return {shape.begin() + 2, shape.end()}; }

/// Of an image or its gradient at operand `first`, and of what comes next: numbers of one dtype and rank.
Status check_operands(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, 2));
  const TensorType& first = *context.operands[0];
  if (first.dtype == DType::boolean) return operand_error(context, 0, "a number dtype");
  KILN_RETURN_IF_ERROR(expect_dtype(context, 1, first.dtype));
  if (context.operands[1]->rank() != first.rank()) {
    return operand_error(context, 1, fmt::format("{} dims", first.rank()));
  }
  const size_t rank = first.rank() - 2;
  KILN_RETURN_IF_ERROR(check_per_dim(context, "stride", rank, 1));
  KILN_RETURN_IF_ERROR(check_per_dim(context, "padding", rank, 0));
  KILN_RETURN_IF_ERROR(check_per_dim(context, "dilation", rank, 1));
  if (integer_of(context.attributes, "groups") >= 1) return {};
  return invalid_argument("{}: attribute 'groups' is {}, expected 1 or more", context.op.name,
                          integer_of(context.attributes, "groups"));
}

/// A group's part of a dim.
Expected<Dim> part_of_group(const OpContext& context, size_t operand, size_t dim) {
  const Dim groups(integer_of(context.attributes, "groups"));
  if (const auto part = context.operands[operand]->shape[dim].divided_by(groups)) return *part;
  return operand_error(context, operand, fmt::format("dim {} divisible by {} groups", dim, groups.to_string()));
}

/// How often a kernel of `kernel` finds room in an image of `extents`. Of a gradient at operand 0 its extents say so, else an
/// attribute may.
Expected<Shape> positions_of(const OpContext& context, size_t operand, const Shape& extents, const Shape& kernel,
                             bool is_gradient) {
  Shape positions;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (!kernel[d].is_constant() || kernel[d].constant() < 1) {
      return operand_error(context, operand, "a kernel of constant extents, 1 or more");
    }
    const Dim padded = extents[d] + Dim(2 * integers_of(context.attributes, "padding")[d]);
    const Dim* said = &context.operands[0]->shape[2 + d];
    if (!is_gradient) {
      KILN_ASSIGN_OR_RETURN(said, said_positions(context, extents.size(), d));
    }
    KILN_ASSIGN_OR_RETURN(Dim count, window_positions(context, operand, padded, kernel[d].constant(),
                                                      integers_of(context.attributes, "stride")[d],
                                                      integers_of(context.attributes, "dilation")[d], said));
    positions.push_back(std::move(count));
  }
  return positions;
}

/// The gradient at operand 0 has the positions that its convolution has.
Status expect_positions(const OpContext& context, const Shape& positions) {
  const Shape& grad = context.operands[0]->shape;
  for (size_t d = 0; d < positions.size(); ++d) {
    KILN_RETURN_IF_ERROR(expect_equal(context, grad[2 + d], positions[d], 0, fmt::format("dim {} of extent", 2 + d)));
  }
  return {};
}

Expected<Types> infer_convolution(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_operands(context));
  const TensorType &x = *context.operands[0], &weight = *context.operands[1];
  KILN_ASSIGN_OR_RETURN(const Dim channels, part_of_group(context, 0, 1));
  KILN_RETURN_IF_ERROR(part_of_group(context, 1, 0).status());
  KILN_RETURN_IF_ERROR(expect_equal(context, weight.shape[1], channels, 1, "a number of channels of"));
  KILN_ASSIGN_OR_RETURN(const Shape positions,
                        positions_of(context, 1, inner_dims(x.shape), inner_dims(weight.shape), false));
  TensorType out{x.dtype, {x.shape[0], weight.shape[0]}, {}};
  out.shape.insert(out.shape.end(), positions.begin(), positions.end());
  return Types{std::move(out)};
}

Expected<Types> infer_backward_input(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_operands(context));
  const TensorType &grad = *context.operands[0], &weight = *context.operands[1];
  const Shape& extents = shape_of(context.attributes, "extents");
  if (extents.size() != grad.rank() - 2) {
    return invalid_argument("{}: attribute 'extents' has {} dims, expected {}", context.op.name, extents.size(),
                            grad.rank() - 2);
  }
  KILN_RETURN_IF_ERROR(part_of_group(context, 1, 0).status());
  KILN_RETURN_IF_ERROR(expect_equal(context, grad.shape[1], weight.shape[0], 0, "a number of channels of"));
  KILN_ASSIGN_OR_RETURN(const Shape positions, positions_of(context, 1, extents, inner_dims(weight.shape), true));
  KILN_RETURN_IF_ERROR(expect_positions(context, positions));
  const Dim channels = weight.shape[1] * Dim(integer_of(context.attributes, "groups"));
  TensorType x{grad.dtype, {grad.shape[0], channels}, {}};
  x.shape.insert(x.shape.end(), extents.begin(), extents.end());
  return Types{std::move(x)};
}

Expected<Types> infer_backward_weight(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_operands(context));
  const TensorType &grad = *context.operands[0], &x = *context.operands[1];
  KILN_RETURN_IF_ERROR(check_per_dim(context, "kernel", x.rank() - 2, 1));
  KILN_RETURN_IF_ERROR(part_of_group(context, 0, 1).status());
  KILN_ASSIGN_OR_RETURN(Dim channels, part_of_group(context, 1, 1));
  KILN_RETURN_IF_ERROR(expect_equal(context, grad.shape[0], x.shape[0], 0, "a batch of"));
  TensorType weight{x.dtype, {grad.shape[1], std::move(channels)}, {}};
  for (const int64_t extent : integers_of(context.attributes, "kernel")) weight.shape.emplace_back(extent);
  KILN_ASSIGN_OR_RETURN(const Shape positions,
                        positions_of(context, 1, inner_dims(x.shape), inner_dims(weight.shape), true));
  KILN_RETURN_IF_ERROR(expect_positions(context, positions));
  return Types{std::move(weight)};
}

// --- the reference -----------------------------------------------------------------------------------------------------

template <ConvolutionResult which>
double element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  return convolution_element(which, e, graph, id, index);
}

template <ConvolutionResult which>
void elements(ElementEvaluator& e, const Graph& graph, NodeId id, std::span<const int64_t> indices,
              std::span<double> out) {
  convolution_elements(which, e, graph, id, indices, out);
}

// --- decompositions ----------------------------------------------------------------------------------------------------

/// What a decomposition reads of its node.
struct Geometry {
  explicit Geometry(const Node& node)
      : stride(integers_of(node.attributes, "stride")),
        padding(integers_of(node.attributes, "padding")),
        dilation(integers_of(node.attributes, "dilation")),
        groups(integer_of(node.attributes, "groups")) {}

  size_t rank() const { return stride.size(); }
  Attributes attributes() const {
    return {{"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", groups}};
  }

  Integers stride, padding, dilation;
  int64_t groups;
};

Shape joined(std::initializer_list<Shape> shapes) {
  Shape all;
  for (const Shape& shape : shapes) all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

Dim part_of(const Dim& dim, int64_t groups) { return *dim.divided_by(Dim(groups)); }

/// Zeros around the last dims, or fewer elements where a width is negative.
ValueId with_margins(GraphBuilder& b, ValueId x, const std::vector<Dim>& low, const std::vector<Dim>& high) {
  const size_t outer = b.shape(x).size() - low.size();
  Integers before(outer, 0), after(outer, 0);
  for (size_t d = 0; d < low.size() && b.status().ok(); ++d) {
    const int64_t first = low[d].constant(), last = high[d].constant();
    before.push_back(std::max<int64_t>(first, 0));
    after.push_back(std::max<int64_t>(last, 0));
    const Dim extent = b.shape(x)[outer + d];
    if (first < 0 || last < 0) {
      x = b.slice(x, outer + d, Dim(std::max<int64_t>(-first, 0)), extent + Dim(std::min<int64_t>(last, 0)));
    }
  }
  const auto is_none = [](const Integers& widths) { return widths == Integers(widths.size(), 0); };
  return is_none(before) && is_none(after) ? x : b.op("pad", {x}, {{"low", before}, {"high", after}});
}

ValueId padded(GraphBuilder& b, ValueId x, const Geometry& geometry) {
  const std::vector<Dim> widths(geometry.padding.begin(), geometry.padding.end());
  return with_margins(b, x, widths, widths);
}

/// [outer…, S…] as [outer…, K…, O…]: what each position sees.
ValueId windows(GraphBuilder& b, ValueId x, const Integers& kernel, const Geometry& geometry) {
  return b.op("window", {x}, {{"kernel", kernel}, {"stride", geometry.stride}, {"dilation", geometry.dilation}});
}

/// Whether each filter sees so little that a matrix of its group's windows is not worth laying out.
bool is_depthwise(const Dim& channels, const Dim& filters, int64_t groups) {
  return groups > 1 && channels == Dim(1) && filters.is_constant() && filters.constant() < k_filters_of_product;
}

bool is_small(const Dim& batch, const Dim& pixels) {
  return batch.is_constant() && batch.constant() > 1 && pixels.is_constant() && pixels.constant() < k_pixels_of_product;
}

Integers numbers_from(size_t first, size_t count) {
  Integers numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<int64_t>(first));
  return numbers;
}

Gradients decompose_convolution(GraphBuilder& b, const Node& node, Values in) {
  const Geometry geometry(node);
  const Shape weight = b.shape(in[1]), extents = inner_dims(weight);
  const size_t rank = geometry.rank();
  const Dim groups(geometry.groups), filters = part_of(weight[0], geometry.groups);
  const ValueId seen = windows(b, padded(b, in[0], geometry), constants(extents), geometry);  // [N, G Cg, K…, O…]
  if (!b.status().ok()) return b.status();
  const Dim batch = b.shape(seen)[0];
  const Shape positions(b.shape(seen).end() - static_cast<ptrdiff_t>(rank), b.shape(seen).end());
  const Shape out = joined({{batch, weight[0]}, positions});
  if (is_depthwise(weight[1], filters, geometry.groups)) {
    const ValueId columns = b.reshape(b.widen(seen), joined({{batch, groups, Dim(1)}, extents, positions}));
    const Shape ones(rank, Dim(1));
    const ValueId rows = b.reshape(b.widen(in[1]), joined({{groups, filters}, extents, ones}));
    const ValueId sums = b.sum(b.mul(columns, rows), numbers_from(3, rank));
    return b.finish({b.reshape(b.cast(sums, b.dtype(in[0])), out)});
  }
  const Dim window = element_count(extents), length = weight[1] * window, pixels = element_count(positions);
  const auto product_of = [&](const Shape& filters_by_length, ValueId columns) {
    Attributes attributes;
    if (window != Dim(1)) attributes.emplace_back("window", window.constant());
    return b.op("matmul", {b.reshape(in[1], filters_by_length), columns}, attributes);
  };
  if (is_small(batch, pixels)) {
    Integers images_last = numbers_from(1, 1 + rank);
    images_last.push_back(0);
    for (const int64_t dim : numbers_from(2 + rank, rank)) images_last.push_back(dim);
    const ValueId columns = b.reshape(b.permute(seen, images_last), {groups, length, batch * pixels});
    const ValueId product = product_of({groups, filters, length}, columns);
    const ValueId images = b.permute(b.reshape(product, {groups, filters, batch, pixels}), {2, 0, 1, 3});
    return b.finish({b.reshape(images, out)});
  }
  if (geometry.groups == 1) {
    const ValueId columns = b.reshape(seen, {batch, length, pixels});
    return b.finish({b.reshape(product_of({filters, length}, columns), out)});
  }
  const ValueId columns = b.reshape(seen, {batch, groups, length, pixels});
  return b.finish({b.reshape(product_of({groups, filters, length}, columns), out)});
}

/// With the filters' channels and images exchanged, and every kernel mirrored.
ValueId exchanged_weight(GraphBuilder& b, ValueId weight, int64_t groups) {
  const Shape shape = b.shape(weight), kernel = inner_dims(shape);
  const size_t rank = kernel.size();
  const Dim filters = part_of(shape[0], groups);
  const ValueId flipped = b.op("flip", {weight}, {{"dims", numbers_from(2, rank)}});
  const ValueId grouped = b.reshape(flipped, joined({{Dim(groups), filters, shape[1]}, kernel}));
  Integers order{0, 2, 1};
  for (const int64_t dim : numbers_from(3, rank)) order.push_back(dim);
  return b.reshape(b.permute(grouped, order), joined({{Dim(groups) * shape[1], filters}, kernel}));
}

/// The last dims with zeros between their elements.
ValueId spread(GraphBuilder& b, ValueId x, const Integers& stride) {
  const size_t outer = b.shape(x).size() - stride.size();
  for (size_t d = 0; d < stride.size() && b.status().ok(); ++d) {
    if (stride[d] == 1) continue;
    Shape shape = b.shape(x);
    shape[outer + d] = (shape[outer + d] - Dim(1)) * Dim(stride[d]) + Dim(1);
    const Dim end = shape[outer + d];
    x = b.op("slice_scatter", {b.full(shape, 0, b.dtype(x)), x},
             {{"dim", static_cast<int64_t>(outer + d)}, {"end", extent_attribute(end)}, {"step", stride[d]}});
  }
  return x;
}

/// The gradient with respect to the image, as convolutions of stride 1 with the filters exchanged and mirrored.
///
/// A pixel s takes from position o through element k of the kernel where s + padding = o * stride + k * dilation. With a
/// stride, the pixels of one phase s % stride see every stride-th element of the kernel only: each phase is a convolution
/// with these, and the phases are put together. Where there is a dilation too, or an extent is a symbol, zeros
/// between the positions do it.
class BackwardInput {
 public:
  BackwardInput(GraphBuilder& builder, const Node& node, ValueId grad, ValueId weight)
      : m_builder(builder),
        m_geometry(node),
        m_dense(node),
        m_extents(shape_of(node.attributes, "extents")),
        m_grad(grad),
        m_weight(weight) {
    m_dense.stride = Integers(m_geometry.rank(), 1);
    m_dense.padding = Integers(m_geometry.rank(), 0);
  }

  ValueId run() {
    Integers spacing = m_geometry.stride;
    for (size_t d = 0; d < spacing.size(); ++d) {
      if (has_phases(d)) spacing[d] = 1;
    }
    m_grad = spread(m_builder, m_grad, spacing);
    if (!m_builder.status().ok()) return k_none;
    std::vector<Dim> low(m_geometry.rank(), Dim(0)), high = low;
    for (size_t d = 0; d < m_geometry.rank(); ++d) {
      for (int64_t phase = 0; phase < phases(d); ++phase) {
        const Margins margins = margins_of(d, phase);
        low[d] = larger(low[d], margins.low);
        high[d] = larger(high[d], margins.high);
      }
    }
    m_padded = with_margins(m_builder, m_grad, low, high);
    m_low = low;
    return from_dim(0, {});
  }

 private:
  /// What must lie around the gradient for a phase; negative: what is not seen.
  struct Margins {
    Dim low, high;
  };

  bool has_phases(size_t d) const {
    return m_geometry.stride[d] > 1 && m_geometry.dilation[d] == 1 && m_extents[d].is_constant();
  }
  int64_t phases(size_t d) const { return has_phases(d) ? m_geometry.stride[d] : 1; }
  int64_t kernel(size_t d) const { return m_builder.shape(m_weight)[2 + d].constant(); }
  static Dim larger(const Dim& a, const Dim& b) { return Dim(std::max(a.constant(), b.constant())); }

  /// The first element of the kernel that pixels of the phase see, and of how many.
  int64_t first_element(size_t d, int64_t phase) const { return (phase + m_geometry.padding[d]) % phases(d); }
  int64_t elements(size_t d, int64_t phase) const {
    return std::max<int64_t>(kernel(d) - first_element(d, phase) + phases(d) - 1, 0) / phases(d);
  }

  /// How many pixels of each phase there are: of the last phases one may be too many.
  Dim pixels(size_t d) const {
    if (!has_phases(d)) return m_extents[d];
    return Dim((m_extents[d].constant() + phases(d) - 1) / phases(d));
  }

  Margins margins_of(size_t d, int64_t phase) const {
    const Dim reach(m_geometry.dilation[d] * (elements(d, phase) - 1));
    const Dim low = reach - Dim((phase + m_geometry.padding[d]) / phases(d));
    return {low, pixels(d) + reach - low - m_builder.shape(m_grad)[2 + d]};
  }

  /// All pixels along the dims from d on, of one phase each of those before.
  ValueId from_dim(size_t d, const Integers& before) {
    if (!m_builder.status().ok()) return k_none;
    if (d == m_geometry.rank()) return of_phase(before);
    std::vector<ValueId> parts;
    for (int64_t phase = 0; phase < phases(d); ++phase) {
      Integers chosen = before;
      chosen.push_back(phase);
      parts.push_back(from_dim(d + 1, chosen));
    }
    if (!has_phases(d) || !m_builder.status().ok()) return parts.front();
    const std::vector<ValueId> stacked = m_builder.ops("stack", parts, {{"dim", static_cast<int64_t>(3 + d)}});
    if (!m_builder.status().ok()) return k_none;
    Shape shape = m_builder.shape(parts.front());
    shape[2 + d] = shape[2 + d] * Dim(phases(d));
    const ValueId all = m_builder.reshape(stacked.front(), shape);
    return shape[2 + d] == m_extents[d] ? all : m_builder.slice(all, 2 + d, Dim(0), m_extents[d]);
  }

  ValueId of_phase(const Integers& phase) {
    const Shape grad = m_builder.shape(m_grad);
    Shape shape{grad[0], m_builder.shape(m_weight)[1] * Dim(m_geometry.groups)};
    ValueId weight = m_weight, image = m_padded;
    bool sees_nothing = false;
    for (size_t d = 0; d < phase.size(); ++d) {
      shape.push_back(pixels(d));
      sees_nothing = sees_nothing || elements(d, phase[d]) == 0;
      if (sees_nothing) continue;
      if (has_phases(d))
        weight = m_builder.slice(weight, 2 + d, Dim(first_element(d, phase[d])), Dim(kernel(d)), phases(d));
      const Margins margins = margins_of(d, phase[d]);
      const Dim start = m_low[d] - margins.low;
      const Dim end = start + margins.low + grad[2 + d] + margins.high;
      if (!(start == Dim(0) && end == m_builder.shape(image)[2 + d])) image = m_builder.slice(image, 2 + d, start, end);
    }
    if (sees_nothing) return m_builder.full(shape, 0, m_builder.dtype(m_grad));
    return m_builder.op("convolution", {image, exchanged_weight(m_builder, weight, m_geometry.groups)},
                        m_dense.attributes());
  }

  GraphBuilder& m_builder;
  const Geometry m_geometry;
  Geometry m_dense;  // the same with stride 1 and without padding
  const Shape m_extents;
  ValueId m_grad, m_weight;
  ValueId m_padded = k_none;
  std::vector<Dim> m_low;
};

Gradients decompose_backward_input(GraphBuilder& b, const Node& node, Values in) {
  return b.finish({BackwardInput(b, node, in[0], in[1]).run()});
}

Gradients decompose_backward_weight(GraphBuilder& b, const Node& node, Values in) {
  const Geometry geometry(node);
  const Integers& kernel = integers_of(node.attributes, "kernel");
  const size_t rank = geometry.rank();
  const Dim groups(geometry.groups);
  const Shape grad = b.shape(in[0]), positions = inner_dims(grad);
  const Dim& batch = grad[0];
  const Dim filters = part_of(grad[1], geometry.groups);
  const Dim channels = part_of(b.shape(in[1])[1], geometry.groups);
  const Shape extents(kernel.begin(), kernel.end());
  const Shape weight = joined({{grad[1], channels}, extents});
  const ValueId seen = windows(b, padded(b, in[1], geometry), kernel, geometry);  // [N, G Cg, K…, O…]
  if (!b.status().ok()) return b.status();
  if (is_depthwise(channels, filters, geometry.groups)) {
    const Shape ones(rank, Dim(1));
    const ValueId columns = b.reshape(b.widen(seen), joined({{batch, groups, Dim(1)}, extents, positions}));
    const ValueId rows = b.reshape(b.widen(in[0]), joined({{batch, groups, filters}, ones, positions}));
    Integers dims{0};
    for (const int64_t dim : numbers_from(3 + rank, rank)) dims.push_back(dim);
    return b.finish({b.reshape(b.cast(b.sum(b.mul(columns, rows), dims), b.dtype(in[0])), weight)});
  }
  const Dim pixels = batch * element_count(positions), length = channels * element_count(extents);
  Integers by_image = numbers_from(1, 1 + rank);
  by_image.push_back(0);
  for (const int64_t dim : numbers_from(2 + rank, rank)) by_image.push_back(dim);
  const ValueId columns = b.reshape(b.permute(seen, by_image), {groups, length, pixels});
  Integers by_filter{1, 0};
  for (const int64_t dim : numbers_from(2, rank)) by_filter.push_back(dim);
  const ValueId rows = b.reshape(b.permute(in[0], by_filter), {groups, filters, pixels});
  return b.finish({b.reshape(b.matmul(rows, b.transpose(columns)), weight)});
}

// --- gradients ---------------------------------------------------------------------------------------------------------

ValueId backward_input(GraphBuilder& b, const Node& node, ValueId grad, ValueId weight, const Shape& x) {
  Attributes attributes = Geometry(node).attributes();
  attributes.emplace_back("extents", inner_dims(x));
  return b.op("convolution_backward_input", {grad, weight}, std::move(attributes));
}

ValueId backward_weight(GraphBuilder& b, const Node& node, ValueId grad, ValueId x, const Shape& weight) {
  Attributes attributes = Geometry(node).attributes();
  attributes.emplace_back("kernel", constants(inner_dims(weight)));
  return b.op("convolution_backward_weight", {grad, x}, std::move(attributes));
}

ValueId forward(GraphBuilder& b, const Node& node, ValueId x, ValueId weight) {
  return b.op("convolution", {x, weight}, Geometry(node).attributes());
}

Gradients convolution_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const Shape x = b.shape(in[0]), weight = b.shape(in[1]);
  return b.finish({backward_input(b, node, g[0], in[1], x), backward_weight(b, node, g[0], in[0], weight)});
}

Gradients backward_input_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const Shape weight = b.shape(in[1]);
  return b.finish({forward(b, node, g[0], in[1]), backward_weight(b, node, in[0], g[0], weight)});
}

Gradients backward_weight_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const Shape x = b.shape(in[1]);
  return b.finish({forward(b, node, in[1], g[0]), backward_input(b, node, in[0], g[0], x)});
}

template <ConvolutionResult which>
OpDef convolution_op(std::string_view name, const std::vector<OperandDef>& operands,
                     const std::vector<AttributeDef>& more, decltype(OpDef::infer) infer,
                     decltype(OpDef::decompose) decompose, decltype(OpDef::gradient) gradient) {
  std::vector<AttributeDef> attributes = {
      required("stride", AttributeType::integers), required("padding", AttributeType::integers),
      required("dilation", AttributeType::integers), fallback("groups", AttributeType::integer, int64_t{1})};
  attributes.insert(attributes.end(), more.begin(), more.end());
  return {.name = name,
          .kind = OpKind::composite,
          .operands = operands,
          .attributes = std::move(attributes),
          .infer = infer,
          .element = element<which>,
          .elements = elements<which>,
          .decompose = decompose,
          .gradient = gradient};
}

}  // namespace

std::span<const OpDef> convolution_ops() {
  static const std::vector<OpDef> rows = {
      convolution_op<ConvolutionResult::out>("convolution", {{"x"}, {"weight"}},
                                             {optional("positions", AttributeType::shape)}, infer_convolution,
                                             decompose_convolution, convolution_gradient),
      convolution_op<ConvolutionResult::input_gradient>(
          "convolution_backward_input", {{"grad"}, {"weight"}}, {required("extents", AttributeType::shape)},
          infer_backward_input, decompose_backward_input, backward_input_gradient),
      convolution_op<ConvolutionResult::weight_gradient>(
          "convolution_backward_weight", {{"grad"}, {"x"}}, {required("kernel", AttributeType::integers)},
          infer_backward_weight, decompose_backward_weight, backward_weight_gradient)};
  return rows;
}

}  // namespace kiln
