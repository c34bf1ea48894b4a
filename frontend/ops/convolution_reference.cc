#include "frontend/ops/convolution_reference.h"

#include <map>

#include "frontend/kernel/affine.h"
#include "frontend/ops/asked_product.h"
#include "frontend/ops/index_math.h"

namespace kiln {

namespace {

constexpr int64_t k_outside = -1;

/// A convolution's tensors and extents, whichever of them the node computes.
class Convolution {
 public:
  Convolution(ConvolutionResult which, ElementEvaluator& e, const Node& node) : m_which(which), e(e) {
    switch (which) {
      case ConvolutionResult::out:
        m_x = node.operands[0], m_weight = node.operands[1], m_out = node.results[0];
        break;
      case ConvolutionResult::input_gradient:
        m_out = node.operands[0], m_weight = node.operands[1], m_x = node.results[0];
        break;
      case ConvolutionResult::weight_gradient:
        m_out = node.operands[0], m_x = node.operands[1], m_weight = node.results[0];
        break;
    }
    const std::vector<int64_t>&x = e.extents(m_x), &weight = e.extents(m_weight), &out = e.extents(m_out);
    m_batch = x[0], m_groups = integer_of(node.attributes, "groups");
    m_filters = weight[0] / m_groups, m_channels = weight[1];
    m_extents.assign(x.begin() + 2, x.end());
    m_kernel.assign(weight.begin() + 2, weight.end());
    m_positions.assign(out.begin() + 2, out.end());
    m_stride = integers_of(node.attributes, "stride");
    m_padding = integers_of(node.attributes, "padding");
    m_dilation = integers_of(node.attributes, "dilation");
  }

  /// Where element `index` of the result stands in the product of matrices of its group.
  struct Place {
    int64_t group, row, column;
  };
  Place place_of(int64_t index) const {
    switch (m_which) {
      case ConvolutionResult::out:
        return place_in_image(index, m_filters, product(m_positions));
      case ConvolutionResult::input_gradient:
        return place_in_image(index, m_channels, product(m_extents));
      case ConvolutionResult::weight_gradient:
        break;
    }
    const int64_t columns = m_channels * product(m_kernel), filter = index / columns;
    return {filter / m_filters, filter % m_filters, index % columns};
  }

  int64_t length() const {
    switch (m_which) {
      case ConvolutionResult::out:
        return m_channels * product(m_kernel);
      case ConvolutionResult::input_gradient:
        return m_filters * product(m_kernel);
      case ConvolutionResult::weight_gradient:
        break;
    }
    return m_batch * product(m_positions);
  }

  void read_row(int64_t group, int64_t row, double* out) const {
    const int64_t kernel = product(m_kernel), positions = product(m_positions);
    switch (m_which) {
      case ConvolutionResult::out:
        for (int64_t i = 0; i < length(); ++i) out[i] = e.at(m_weight, (group * m_filters + row) * length() + i);
        return;
      case ConvolutionResult::input_gradient:
        for (int64_t i = 0; i < length(); ++i) {
          const int64_t filter = group * m_filters + i / kernel;
          out[i] = e.at(m_weight, (filter * m_channels + row) * kernel + i % kernel);
        }
        return;
      case ConvolutionResult::weight_gradient:
        for (int64_t i = 0; i < length(); ++i) {
          out[i] = e.at(m_out, ((i / positions * m_groups + group) * m_filters + row) * positions + i % positions);
        }
    }
  }

  void read_column(int64_t group, int64_t column, double* out) const {
    const int64_t kernel = product(m_kernel), positions = product(m_positions), extents = product(m_extents);
    switch (m_which) {
      case ConvolutionResult::out:
        return read_seen(
            m_x, (column / positions * m_groups + group) * m_channels, m_channels, extents,
            [&](int64_t k) { return source_of(column % positions, k); }, out);
      case ConvolutionResult::input_gradient:
        return read_seen(
            m_out, (column / extents * m_groups + group) * m_filters, m_filters, positions,
            [&](int64_t k) { return position_of(column % extents, k); }, out);
      case ConvolutionResult::weight_gradient:
        for (int64_t o = 0; o < positions; ++o) {
          const int64_t at = source_of(o, column % kernel);
          for (int64_t n = 0; n < m_batch; ++n) {
            const int64_t plane = (n * m_groups + group) * m_channels + column / kernel;
            out[n * positions + o] = at == k_outside ? 0 : e.at(m_x, plane * extents + at);
          }
        }
    }
  }

 private:
  Place place_in_image(int64_t index, int64_t rows_of_group, int64_t pixels) const {
    const int64_t row = index / pixels % (rows_of_group * m_groups);
    const int64_t image = index / (pixels * rows_of_group * m_groups);
    return {row / rows_of_group, row % rows_of_group, image * pixels + index % pixels};
  }

  /// What lies under the elements of the kernel in `count` planes of a tensor, from plane `first` on: `place_of` says where
  /// in a plane.
  template <typename PlaceOf>
  void read_seen(ValueId value, int64_t first, int64_t count, int64_t plane, const PlaceOf& place_of,
                 double* out) const {
    const int64_t kernel = product(m_kernel);
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t at = place_of(k);
      for (int64_t c = 0; c < count; ++c) {
        out[c * kernel + k] = at == k_outside ? 0 : e.at(value, (first + c) * plane + at);
      }
    }
  }

  /// The pixel of x that a position sees under an element of the kernel.
  int64_t source_of(int64_t position, int64_t element) const {
    int64_t pixel = 0, inner = 1;
    for (size_t d = m_extents.size(); d-- > 0;) {
      const int64_t at = position % m_positions[d] * m_stride[d] + element % m_kernel[d] * m_dilation[d] - m_padding[d];
      if (at < 0 || at >= m_extents[d]) return k_outside;
      pixel += at * inner;
      inner *= m_extents[d];
      position /= m_positions[d], element /= m_kernel[d];
    }
    return pixel;
  }

  /// The position that sees a pixel of x under an element of the kernel.
  int64_t position_of(int64_t pixel, int64_t element) const {
    int64_t position = 0, inner = 1;
    for (size_t d = m_extents.size(); d-- > 0;) {
      const int64_t from = pixel % m_extents[d] + m_padding[d] - element % m_kernel[d] * m_dilation[d];
      if (from < 0 || from % m_stride[d] != 0 || from / m_stride[d] >= m_positions[d]) return k_outside;
      position += from / m_stride[d] * inner;
      inner *= m_positions[d];
      pixel /= m_extents[d], element /= m_kernel[d];
    }
    return position;
  }

  ConvolutionResult m_which;
  ElementEvaluator& e;
  ValueId m_x = k_none, m_weight = k_none, m_out = k_none;
  int64_t m_batch = 0, m_groups = 1;
  int64_t m_filters = 0, m_channels = 0;  // of a group
  std::vector<int64_t> m_extents, m_kernel, m_positions, m_stride, m_padding, m_dilation;
};

}  // namespace

double convolution_element(ConvolutionResult which, ElementEvaluator& e, const Graph& graph, NodeId id, int64_t index) {
  double element = 0;
  convolution_elements(which, e, graph, id, std::span(&index, 1), std::span(&element, 1));
  return element;
}

void convolution_elements(ConvolutionResult which, ElementEvaluator& e, const Graph& graph, NodeId id,
                          std::span<const int64_t> indices, std::span<double> out) {
  const Convolution convolution(which, e, graph.node(id));
  std::map<int64_t, AskedProduct> groups;
  for (size_t i = 0; i < indices.size(); ++i) {
    const Convolution::Place place = convolution.place_of(indices[i]);
    groups[place.group].add(place.row, place.column, i);
  }
  const auto length = static_cast<size_t>(convolution.length());
  for (const auto& [group, asked] : groups) {
    const auto reads = [&, group = group](void (Convolution::*read)(int64_t, int64_t, double*) const) {
      return [&, group, read](std::span<const int64_t> numbers, double* lines) {
        for (size_t i = 0; i < numbers.size(); ++i) (convolution.*read)(group, numbers[i], lines + i * length);
      };
    };
    multiply_blocks(asked, length, reads(&Convolution::read_row), reads(&Convolution::read_column), out);
  }
}

}  // namespace kiln
