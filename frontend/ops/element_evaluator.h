#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "frontend/ops/loop_nest.h"
#include "frontend/ops/tensor.h"

namespace kiln {

/// The reference: elements of any value of a graph, in f64, computed when demanded and remembered.
///
/// Nothing is rounded to a dtype except by casts and integer arithmetic, so what it gives is what a kernel of any
/// precision approximates. One element costs what it depends on: a row for softmax, a dot product for matmul.
/// Ownership: refers to the graph and the input bytes, which must outlive it. Threading: one thread.
/// Errors: data that no kernel accepts either (an index out of range) gives NaN and sets `status`.
class ElementEvaluator {
 public:
  /// How the values are looked at.
  struct View {
    /// Not 0: elements are taken one rounding higher or lower, at random, and an extreme that is zero is either zero.
    uint64_t rounding_seed = 0;
    /// Which: every floating element of an input or a result, in the dtype that it is computed in, and an integer that f64
    /// does not hold is any large one; or the results in f16 and bf16 alone, in their dtype, as some kernels keep them.
    bool rounds_halves = false;
    /// What exceeds the range of the accumulator of its dtype is infinite, what is below it 0: as in a kernel.
    bool within_range = false;
  };

  /// `inputs[i]` holds graph input i in its own dtype and strides. Errors: wrong count or size, symbols not bound.
  static Expected<ElementEvaluator> create(const Graph& graph, std::span<const std::span<const std::byte>> inputs,
                                           View view);
  static Expected<ElementEvaluator> create(const Graph& graph, std::span<const std::span<const std::byte>> inputs) {
    return create(graph, inputs, View{});
  }

  /// Element `index` (flat, row-major over the value's shape).
  double at(ValueId value, int64_t index) {
    State& state = m_states[value];
    if (state.data != nullptr) return load(state, index);
    if (const Page* page = state.page_of(static_cast<size_t>(index))) {
      const size_t slot = static_cast<size_t>(index) % k_page_elements;
      if (page->known[slot]) return page->values[slot];
    }
    return compute(value, index);
  }

  /// Many elements of one value: each node once for all of them, products in the tight loops of row_products.h where
  /// rows and columns come again. What is asked together is best a few rows by many columns, at most 2^18 elements.
  void many(ValueId value, std::span<const int64_t> indices, std::span<double> out);

  /// Computes together what at() will be asked for: elements `index_of(i)`, one for each i below `count`. Those of an input
  /// and those that are known cost nothing.
  template <typename IndexOf>
  void prepare(ValueId value, int64_t count, IndexOf&& index_of) {
    if (is_input(value)) return;
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < count; ++i) {
      if (!is_known(value, index_of(i))) wanted.push_back(index_of(i));
      if (wanted.size() < k_most_together && i + 1 < count) continue;
      compute_together(value, wanted);
      wanted.clear();
    }
  }

  const Status& status() const { return m_status; }

  /// From now on what is computed is rounded as a kernel may round: floating elements to their dtype, after a random step
  /// of up to two roundings either way (seed 0: no step), beyond its range to infinity; integers that their dtype does
  /// not hold become NaN. Elements on which evaluations of several seeds differ are not determined by the graph in its
  /// dtypes' arithmetic.
  void round_at_random(uint64_t seed) { m_rounding_seed = seed; }

  // --- for rows ----------------------------------------------------------------------------------------------------

  const std::vector<int64_t>& extents(ValueId value) const { return m_states[value].extents; }
  /// How far neighbours along each dim are apart in the flat row-major index.
  const std::vector<int64_t>& strides(ValueId value) const { return m_states[value].strides; }
  int64_t elements(ValueId value) const { return m_states[value].elements; }

  /// The index in `operand` that numpy's broadcasting pairs with element `index` of `result`.
  int64_t broadcast_index(ValueId operand, ValueId result, int64_t index) const;
  double at_broadcast(ValueId operand, ValueId result, int64_t index) {
    return at(operand, broadcast_index(operand, result, index));
  }

  /// `count` elements of a value, `step` apart in its flat index.
  struct Line {
    ValueId value;
    int64_t first, step, count;
    bool operator==(const Line&) const = default;
  };
  /// The line's elements, at memory speed where they come from an input, through views too. Valid until the next call
  /// with this `slot` (0 or 1); asking for the same line again costs nothing.
  std::span<const double> line(size_t slot, const Line& line);
  /// The sum of products of two lines of equal count.
  double dot(const Line& a, const Line& b);
  /// The elements of lines of equal count and step, one line after another.
  void read_lines(std::span<const Line> lines, double* out);
  /// `rows` lines of `width` neighbouring elements, from `first` on one after another; remembered until the next call
  /// with this `slot` (0 to 3) and other arguments.
  std::shared_ptr<const std::vector<double>> matrix(size_t slot, ValueId value, int64_t first, int64_t rows,
                                                    int64_t width);

  /// What a kernel holds of a computed element: within its accumulator's range and rounded at random where these were asked
  /// for, an integer where the value's dtype holds integers.
  double as_held(ValueId value, int64_t index, double element) const;
  /// Whether that is the element itself, whichever it is.
  bool holds_as_computed(ValueId value) const {
    return is_floating(m_states[value].dtype) && !m_view.within_range && m_view.rounding_seed == 0 && !m_rounding_seed;
  }
  /// Keeps what is known of elements of a computed value.
  void remember(ValueId value, std::span<const int64_t> indices, std::span<const double> elements);
  bool is_input(ValueId value) const { return m_states[value].data != nullptr; }

  /// `size` numbers that belong to row `row` of a node, made by `fill` when first asked for.
  template <typename Fill>
  std::span<const double> scratch(NodeId node, int64_t row, size_t size, Fill&& fill) {
    auto& rows = m_scratch[node];
    if (const auto found = rows.find(row); found != rows.end()) return found->second;
    std::vector<double> values(size);
    fill(std::span<double>(values));
    return rows.emplace(row, std::move(values)).first->second;
  }

  /// `value` as an index into [0, extent), or nothing and an error for the caller to see; of NaN, an index that is not known,
  /// nothing alone.
  std::optional<int64_t> checked_index(NodeId node, double value, int64_t extent);

 private:
  bool perturbs_inputs() const { return m_view.rounding_seed != 0 && !m_view.rounds_halves; }

  // Few elements are demanded of large values: most pages hold one, and most chapters of pages are not there.
  static constexpr size_t k_page_elements = 16;
  static constexpr size_t k_chapter_elements = 256 * k_page_elements;
  static constexpr size_t k_most_together = size_t{1} << 18;
  struct Page {
    bool known[k_page_elements] = {};
    double values[k_page_elements];
  };
  struct Chapter {
    std::unique_ptr<Page> pages[k_chapter_elements / k_page_elements];
  };
  struct State {
    DType dtype = DType::f32;
    const std::byte* data = nullptr;  // graph inputs
    bool dense = true;
    std::vector<int64_t> extents, strides;
    std::vector<int64_t> memory_strides;  // graph inputs that are not dense
    int64_t elements = 0;
    std::vector<std::unique_ptr<Chapter>> chapters;  // computed values
    const Page* page_of(size_t index) const {
      const Chapter* chapter = chapters[index / k_chapter_elements].get();
      return chapter ? chapter->pages[index % k_chapter_elements / k_page_elements].get() : nullptr;
    }
  };

  explicit ElementEvaluator(const Graph& graph) : m_graph(&graph), m_scratch(graph.nodes().size()) {}
  Status bind_values(std::span<const std::span<const std::byte>> inputs);
  static int64_t address_of(const State& state, int64_t index);
  double load(const State& state, int64_t index) const { return load_at(state, address_of(state, index)); }
  double load_at(const State& state, int64_t address) const;
  double compute(ValueId value, int64_t index);
  void compute_together(ValueId value, std::span<const int64_t> indices);
  bool is_known(ValueId value, int64_t index) const {
    const Page* page = m_states[value].page_of(static_cast<size_t>(index));
    return page != nullptr && page->known[static_cast<size_t>(index) % k_page_elements];
  }
  /// Elements of one value, or of an input by their addresses.
  struct Elements {
    ValueId value;
    LoopNest nest;
  };
  Elements behind_views(const Line& line) const;
  /// Makes addresses of indices of an input. False, and nothing done: it is none, or there are no loops of addresses.
  bool to_addresses(Elements& elements) const;
  void read_line(const Line& line, std::span<double> out);
  bool gather_lines(std::span<const Line> lines, double* out) const;
  void keep(ValueId value, int64_t index, double element);

  struct KeptMatrix {
    ValueId value = k_none;
    int64_t first = 0, rows = 0, width = 0;
    std::shared_ptr<const std::vector<double>> elements;
  };
  struct KeptLine {
    Line line{k_none, 0, 0, 0};
    std::vector<double> elements;
  };

  const Graph* m_graph;
  View m_view;
  std::vector<State> m_states;
  std::vector<std::unordered_map<int64_t, std::vector<double>>> m_scratch;
  KeptLine m_lines[2];
  KeptMatrix m_matrices[4];
  Status m_status;
  std::optional<uint64_t> m_rounding_seed;
};

/// All outputs of the graph, rounded to their dtypes, dense. Inputs must have their graph inputs' dtype and dims.
Expected<std::vector<Tensor>> evaluate_dense(const Graph& graph, std::span<const Tensor> inputs);
/// The same without rounding: for comparing with what a kernel computed.
Expected<std::vector<std::vector<double>>> evaluate_exact(const Graph& graph, std::span<const Tensor> inputs);

}  // namespace kiln
