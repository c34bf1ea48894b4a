#include "frontend/ops/element_evaluator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "frontend/kernel/affine.h"
#include "frontend/ops/batch_evaluation.h"
#include "frontend/ops/op.h"
#include "frontend/ops/precision.h"
#include "frontend/ops/row_products.h"

namespace kiln {

namespace {

Expected<std::vector<int64_t>> constants_of(const std::vector<Dim>& dims, std::string_view what, ValueId value) {
  std::vector<int64_t> constants;
  for (const Dim& dim : dims) {
    if (!dim.is_constant()) {
      return invalid_argument("value {}: {} has symbolic {}, bind symbols first", value, what, dim.to_string());
    }
    constants.push_back(dim.constant());
  }
  return constants;
}

/// Elements from the first to past the last that the strides reach.
int64_t reach_of(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 0) return 0;
    last += (extents[d] - 1) * strides[d];
  }
  return last + 1;
}

/// The nodes that outputs depend on, ascending.
std::vector<NodeId> live_nodes(const Graph& graph) {
  std::vector<bool> needed(graph.values().size(), false);
  for (const ValueId output : graph.outputs()) needed[output] = true;
  std::vector<NodeId> live;
  for (NodeId id = static_cast<NodeId>(graph.nodes().size()); id-- > 0;) {
    const Node& node = graph.node(id);
    if (std::none_of(node.results.begin(), node.results.end(), [&](ValueId r) { return needed[r]; })) continue;
    live.push_back(id);
    for (const ValueId operand : node.operands) {
      if (operand != k_none) needed[operand] = true;
    }
  }
  std::reverse(live.begin(), live.end());
  return live;
}

double rounded_at_random(DType dtype, double element, uint64_t seed, uint64_t place) {
  if (!is_floating(dtype)) {
    const double largest = dtype == DType::i64 ? 0x1p53 : std::ldexp(1.0, static_cast<int>(8 * size_of(dtype)));
    const bool is_least = element == -0x1p63;  // what a cast makes of what no integer holds: exact
    return is_least || std::fabs(element) <= largest ? element : std::numeric_limits<double>::quiet_NaN();
  }
  if (seed == 0) return round_to(dtype, element);
  uint64_t random = seed * 0x9e3779b97f4a7c15ull + place;
  random = (random ^ (random >> 30)) * 0xbf58476d1ce4e5b9ull;
  random = (random ^ (random >> 27)) * 0x94d049bb133111ebull;
  const double share = static_cast<double>(static_cast<int64_t>(random)) * 0x1p-62;  // in [-2, 2)
  const double least = least_normal(dtype) * step_of(dtype);                         // above 0
  const double moved = element * (1 + share * step_of(dtype)) + share * least;
  return round_to(dtype, moved);
}

/// What holds a value of the dtype while it is computed: its accumulator; integers are what they are.
double within_range(DType dtype, double value) {
  if (!is_floating(dtype) || accumulator_of(dtype) == DType::f64) return value;
  return static_cast<double>(static_cast<float>(value));
}

/// The integer, or a large one of either sign where f64 does not hold it and arithmetic in it is wrong.
double known_integer(double element, bool up) {
  if (std::fabs(element) <= 0x1p53 || element == -0x1p63) return element;  // the least is exact: casts make it
  return up ? 0x1p62 : -0x1p62;
}

bool coin(uint64_t seed, uint64_t place) {
  uint64_t mixed = (place + seed * 0x10001) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 29)) * 0x94d049bb133111ebU;
  return (mixed >> 40 & 1) != 0;
}

/// The number of the dtype above or below.
double next_in(DType dtype, double value, bool up) {
  if (!std::isfinite(value)) return value;
  if (dtype == DType::f32) {
    const auto next = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(value)) + (up ? 1 : -1));
    return std::isfinite(next) ? next : value;
  }
  std::byte bytes[sizeof(double)] = {};
  store_element(dtype, bytes, 0, value);
  uint64_t bits = 0;
  std::memcpy(&bits, bytes, size_of(dtype));
  bits += up ? 1 : uint64_t{0} - 1;  // read as integers, neighbours are neighbours
  std::memcpy(bytes, &bits, size_of(dtype));
  const double next = load_element(dtype, bytes, 0);
  return std::isfinite(next) ? next : value;  // below zero is no number of that kind
}

/// Whether of numbers that are equal but for their signs, as both zeros, either may be the result.
bool gives_an_extreme(const OpDef& op) {
  return op.name == "maximum" || op.name == "minimum" || op.name == "amax" || op.name == "amin";
}

// The address of an empty input: it has no elements to load, but must not look like a computed value.
constexpr std::byte k_nothing{};

}  // namespace

Expected<ElementEvaluator> ElementEvaluator::create(const Graph& graph,
                                                    std::span<const std::span<const std::byte>> inputs, View view) {
  ElementEvaluator evaluator(graph);
  evaluator.m_view = view;
  KILN_RETURN_IF_ERROR(evaluator.bind_values(inputs));
  return evaluator;
}

Status ElementEvaluator::bind_values(std::span<const std::span<const std::byte>> inputs) {
  if (inputs.size() != m_graph->inputs().size()) {
    return invalid_argument("got {} inputs, the graph has {}", inputs.size(), m_graph->inputs().size());
  }
  m_states.resize(m_graph->values().size());
  for (ValueId id = 0; id < m_states.size(); ++id) {
    const Value& value = m_graph->value(id);
    State& state = m_states[id];
    state.dtype = value.type.dtype;
    KILN_ASSIGN_OR_RETURN(state.extents, constants_of(value.type.shape, "shape", id));
    state.strides = dense_strides(state.extents);
    state.elements = 1;
    for (const int64_t extent : state.extents) state.elements *= extent;
    if (value.producer != k_none) {
      state.chapters.resize((static_cast<size_t>(state.elements) + k_chapter_elements - 1) / k_chapter_elements);
      continue;
    }
    KILN_ASSIGN_OR_RETURN(state.memory_strides, constants_of(value.type.strides, "strides", id));
    if (state.memory_strides.empty()) state.memory_strides = state.strides;
    state.dense = state.memory_strides == state.strides;
    const std::span<const std::byte> bytes = inputs[value.result_index];
    const int64_t needed = reach_of(state.extents, state.memory_strides) * static_cast<int64_t>(size_of(state.dtype));
    if (static_cast<int64_t>(bytes.size()) < needed) {
      return invalid_argument("input {} is {} and needs {} bytes, got {}", value.result_index, value.type.to_string(),
                              needed, bytes.size());
    }
    state.data = bytes.empty() ? &k_nothing : bytes.data();
  }
  return {};
}

int64_t ElementEvaluator::address_of(const State& state, int64_t index) {
  return state.dense ? index : place_of(index, state.extents, state.memory_strides);
}

double ElementEvaluator::load_at(const State& state, int64_t address) const {
  const double element = load_element(state.dtype, state.data, address);
  if (!perturbs_inputs()) return element;
  const bool up = coin(m_view.rounding_seed, static_cast<uint64_t>(address));
  return is_floating(state.dtype) ? next_in(accumulator_of(state.dtype), element, up) : known_integer(element, up);
}

double ElementEvaluator::compute(ValueId value, int64_t index) {
  const Value& described = m_graph->value(value);
  const OpDef* op = m_graph->node(described.producer).op;
  const double element = op->element(*this, *m_graph, described.producer, described.result_index, index);
  // A view only renames indices: what it renames is remembered.
  if (op->kind == OpKind::view) return element;
  const double held = as_held(value, index, element);
  keep(value, index, held);
  return held;
}

double ElementEvaluator::as_held(ValueId value, int64_t index, double element) const {
  const DType dtype = m_graph->value(value).type.dtype;
  if (m_view.within_range) element = within_range(dtype, element);
  if (m_view.rounding_seed != 0) {
    const bool up = coin(m_view.rounding_seed, value * 0x94d049bb133111ebU + static_cast<uint64_t>(index));
    const DType rounded = m_view.rounds_halves ? dtype : accumulator_of(dtype);
    if (element == 0 && is_floating(dtype) && gives_an_extreme(*m_graph->node(m_graph->value(value).producer).op)) {
      element = up ? 0.0 : -0.0;
    } else if (is_floating(dtype)) {
      if (!m_view.rounds_halves || is_half(dtype)) element = next_in(rounded, round_to(rounded, element), up);
    } else if (!m_view.rounds_halves) {
      element = known_integer(element, up);
    }
  }
  if (m_rounding_seed) {
    const uint64_t place = value * 0x94d049bb133111ebull + static_cast<uint64_t>(index) * 0x2545f4914f6cdd1dull;
    element = rounded_at_random(dtype, element, *m_rounding_seed, place);
  }
  // What a row's arithmetic in f64 gives between two integers (clamp's bounds) is what a kernel's constants hold of it.
  if (!is_floating(dtype) && std::isfinite(element)) element = round_to(dtype, element);
  return element;
}

void ElementEvaluator::keep(ValueId value, int64_t index, double element) {
  std::unique_ptr<Chapter>& chapter = m_states[value].chapters[static_cast<size_t>(index) / k_chapter_elements];
  if (chapter == nullptr) chapter = std::make_unique<Chapter>();
  std::unique_ptr<Page>& page = chapter->pages[static_cast<size_t>(index) % k_chapter_elements / k_page_elements];
  if (page == nullptr) page.reset(new Page);  // leaves the values as they are, make_unique would clear them
  const size_t slot = static_cast<size_t>(index) % k_page_elements;
  page->values[slot] = element;
  page->known[slot] = true;
}

void ElementEvaluator::remember(ValueId value, std::span<const int64_t> indices, std::span<const double> elements) {
  for (size_t i = 0; i < indices.size(); ++i) keep(value, indices[i], elements[i]);
}

void ElementEvaluator::many(ValueId value, std::span<const int64_t> indices, std::span<double> out) {
  BatchEvaluation(*this, *m_graph).evaluate(value, indices, out);
}

void ElementEvaluator::compute_together(ValueId value, std::span<const int64_t> indices) {
  if (indices.size() < 2) return;  // nothing is gained
  std::vector<double> elements(indices.size());
  many(value, indices, elements);
  remember(value, indices, elements);
}

int64_t ElementEvaluator::broadcast_index(ValueId operand, ValueId result, int64_t index) const {
  const State& from = m_states[operand];
  const State& to = m_states[result];
  if (from.extents == to.extents) return index;
  const size_t extra = to.extents.size() - from.extents.size();
  int64_t address = 0;
  for (size_t d = 0; d < from.extents.size(); ++d) {
    if (from.extents[d] == 1) continue;
    address += index / to.strides[d + extra] % to.extents[d + extra] * from.strides[d];
  }
  return address;
}

ElementEvaluator::Elements ElementEvaluator::behind_views(const Line& line) const {
  Elements elements{line.value, LoopNest::of_line(line.first, line.step, line.count)};
  for (;;) {
    const State& state = m_states[elements.value];
    const Value& value = m_graph->value(elements.value);
    if (value.producer == k_none) return elements;
    const Node& node = m_graph->node(value.producer);
    if (node.op->kind != OpKind::view) return elements;
    if (node.op->source != nullptr) {
      LoopNest nest = elements.nest;
      if (!nest.split_by_dims(state.extents)) return elements;
      nest.rename([&](int64_t index) { return node.op->source(*this, node, index); });
      elements.nest = std::move(nest);
    }
    elements.value = node.operands[0];
  }
}

bool ElementEvaluator::to_addresses(Elements& elements) const {
  const State& state = m_states[elements.value];
  if (state.data == nullptr) return false;
  if (state.dense) return true;
  if (!elements.nest.split_by_dims(state.extents)) return false;
  elements.nest.rename([&](int64_t index) { return address_of(state, index); });
  return true;
}

void ElementEvaluator::read_line(const Line& wanted, std::span<double> out) {
  if (out.empty()) return;  // of a value without elements there is no address
  Elements elements = behind_views(wanted);
  const State& state = m_states[elements.value];
  const bool addressed = to_addresses(elements);
  double* next = out.data();
  elements.nest.for_each_run([&](int64_t first, int64_t step, int64_t count) {
    const std::span<double> run(next, static_cast<size_t>(count));
    next += count;
    if (addressed && !perturbs_inputs()) return load_elements(state.dtype, state.data, first, step, run);
    for (double& element : run) {
      element = addressed ? load_at(state, first) : at(elements.value, first);
      first += step;
    }
  });
}

std::span<const double> ElementEvaluator::line(size_t slot, const Line& line) {
  KeptLine& kept = m_lines[slot];
  if (kept.line == line) return kept.elements;
  // What is computed for this line may ask for lines of its own: it is complete before it is kept.
  std::vector<double> elements(static_cast<size_t>(line.count));
  read_line(line, elements);
  m_lines[slot] = {line, std::move(elements)};
  return m_lines[slot].elements;
}

double ElementEvaluator::dot(const Line& a, const Line& b) {
  line(0, a);
  line(1, b);  // may replace what slot 0 held
  const std::span<const double> left = line(0, a), right = m_lines[1].elements;
  double sum = 0;
  row_products(left.data(), 1, right.data(), 1, left.size(), &sum);
  return sum;
}

/// Lines of an input whose elements lie equally far apart, read side by side: neighbouring columns share cache lines.
bool ElementEvaluator::gather_lines(std::span<const Line> lines, double* out) const {
  constexpr size_t k_most = 16;
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  int64_t addresses[k_most], common_step = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    Elements elements = behind_views(lines[i]);
    if (!to_addresses(elements) || elements.nest.loops.size() > 1) return false;
    const State& state = m_states[elements.value];
    addresses[i] = elements.nest.first;
    const int64_t step = elements.nest.loops.empty() ? 0 : elements.nest.loops.front().step;
    if (i > 0 && (step != common_step || state.data != data)) return false;
    common_step = step, data = state.data, dtype = state.dtype;
  }
  if (common_step == 1 || perturbs_inputs()) return false;  // each by itself is as good
  const int64_t count = lines.front().count;
  const bool is_f32 = dtype == DType::f32;  // the dtype of most, without the switch
  for (int64_t k = 0; k < count; ++k) {
    for (size_t i = 0; i < lines.size(); ++i) {
      const int64_t address = addresses[i] + k * common_step;
      float element = 0;
      if (is_f32) std::memcpy(&element, data + address * int64_t{sizeof element}, sizeof element);
      out[static_cast<int64_t>(i) * count + k] = is_f32 ? element : load_element(dtype, data, address);
    }
  }
  return true;
}

void ElementEvaluator::read_lines(std::span<const Line> lines, double* out) {
  constexpr size_t k_together = 16;
  if (lines.empty() || lines.front().count == 0) return;  // of values without elements there is no address
  for (size_t begin = 0; begin < lines.size(); begin += k_together) {
    const auto group = lines.subspan(begin, std::min(k_together, lines.size() - begin));
    const auto count = static_cast<size_t>(group.front().count);
    if (!gather_lines(group, out)) {
      for (size_t i = 0; i < group.size(); ++i) read_line(group[i], {out + i * count, count});
    }
    out += group.size() * count;
  }
}

std::shared_ptr<const std::vector<double>> ElementEvaluator::matrix(size_t slot, ValueId value, int64_t first,
                                                                    int64_t rows, int64_t width) {
  const KeptMatrix& kept = m_matrices[slot];
  if (kept.value == value && kept.first == first && kept.rows == rows && kept.width == width) return kept.elements;
  // What is computed for this matrix may ask for matrices of its own: it is complete before it is kept.
  std::vector<Line> lines;
  for (int64_t row = 0; row < rows; ++row) lines.push_back({value, first + row * width, 1, width});
  auto elements = std::make_shared<std::vector<double>>(static_cast<size_t>(rows * width));
  read_lines(lines, elements->data());
  m_matrices[slot] = {value, first, rows, width, elements};
  return elements;
}

std::optional<int64_t> ElementEvaluator::checked_index(NodeId node, double value, int64_t extent) {
  if (value >= 0 && value < static_cast<double>(extent)) return static_cast<int64_t>(value);
  if (m_status.ok() && !std::isnan(value)) {
    m_status = error(StatusCode::out_of_range, "{}: index {} is outside [0, {})", m_graph->node(node).op->name,
                     static_cast<int64_t>(value), extent);
  }
  return std::nullopt;
}

Expected<std::vector<std::vector<double>>> evaluate_exact(const Graph& graph, std::span<const Tensor> inputs) {
  std::vector<std::span<const std::byte>> bytes;
  for (const Tensor& input : inputs) bytes.emplace_back(input.bytes);
  KILN_ASSIGN_OR_RETURN(ElementEvaluator evaluator, ElementEvaluator::create(graph, bytes));
  // Whole values in topological order, so that the depth of the graph is not the depth of the stack.
  for (const NodeId id : live_nodes(graph)) {
    for (const ValueId result : graph.node(id).results) {
      for (int64_t i = 0; i < evaluator.elements(result); ++i) evaluator.at(result, i);
    }
  }
  std::vector<std::vector<double>> outputs;
  for (const ValueId output : graph.outputs()) {
    std::vector<double>& values = outputs.emplace_back(static_cast<size_t>(evaluator.elements(output)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = evaluator.at(output, static_cast<int64_t>(i));
  }
  if (!evaluator.status().ok()) return evaluator.status();
  return outputs;
}

Expected<std::vector<Tensor>> evaluate_dense(const Graph& graph, std::span<const Tensor> inputs) {
  KILN_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> exact, evaluate_exact(graph, inputs));
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < exact.size(); ++i) {
    const TensorType& type = graph.type(graph.outputs()[i]);
    std::vector<int64_t> dims;
    for (const Dim& dim : type.shape) dims.push_back(dim.constant());
    outputs.push_back(Tensor::from_values(type.dtype, std::move(dims), exact[i]));
  }
  return outputs;
}

}  // namespace kiln
