#include "tests/fuzz/graphs/reference.h"

#include <algorithm>
#include <cmath>

#include "frontend/infer/builder.h"

namespace kiln::fuzz {
namespace {

constexpr uint64_t k_roundings = 3;
constexpr uint64_t k_roundings_of_doubt = 20;
constexpr int64_t k_demanded = 400;
constexpr double k_room = 64;  // for what several roundings in a row do beyond the two tries

double step_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    case DType::f32:
      return 0x1p-23;
    case DType::f64:
      return 0x1p-52;
    default:
      return 0;
  }
}

/// One number for all of a kind: finite numbers, each infinity, NaN.
int kind_of(double x) { return std::isnan(x) ? 3 : std::isinf(x) ? (x > 0 ? 1 : 2) : 0; }

}  // namespace

Reference::Reference(const Graph& graph, const Memory& inputs)
    : m_graph(&graph), m_inputs(inputs.begin(), inputs.end()), m_by_use(std::make_unique<Graph>()) {
  m_values.assign(graph.values().size(), k_none);
  for (const ValueId input : graph.inputs()) m_values[input] = m_by_use->add_input(graph.type(input));
  GraphBuilder builder(*m_by_use);
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) {
      ValueId use = operand == k_none ? k_none : m_values[operand];
      if (use != k_none && is_floating(graph.type(operand).dtype)) use = builder.mul(use, 1.0);
      operands.push_back(use);
    }
    std::vector<TensorType> types;
    for (const ValueId result : node.results) types.push_back(graph.type(result));
    const NodeId added = m_by_use->add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) m_values[node.results[i]] = m_by_use->node(added).results[i];
  }
}

Status Reference::add_rounded(uint64_t seed) {
  KILN_ASSIGN_OR_RETURN(ElementEvaluator evaluator, ElementEvaluator::create(*m_by_use, m_inputs));
  evaluator.round_at_random(seed);
  m_rounded.push_back(std::move(evaluator));
  return {};
}

Expected<Reference> Reference::create(const Graph& graph, const Memory& inputs) {
  Reference reference(graph, inputs);
  KILN_ASSIGN_OR_RETURN(reference.m_exact, ElementEvaluator::create(graph, reference.m_inputs));
  for (uint64_t i = 0; i < k_roundings; ++i) KILN_RETURN_IF_ERROR(reference.add_rounded(i));
  return reference;
}

bool Reference::is_possible(ValueId value, int64_t index, double got, const Element& element) {
  double least = element.expected, most = element.expected;
  while (m_rounded.size() < k_roundings_of_doubt) {
    if (!add_rounded(m_rounded.size()).ok()) return false;
  }
  for (ElementEvaluator& rounded : m_rounded) {
    const double other = rounded.at(m_values[value], index);
    if (kind_of(other) != kind_of(element.expected)) return true;
    least = std::min(least, other);
    most = std::max(most, other);
  }
  const double room = k_room * (most - least) + element.allowed;
  return got >= element.expected - room && got <= element.expected + room;
}

std::vector<int64_t> Reference::demanded(ValueId value) const {
  const int64_t count = m_exact->elements(value);
  std::vector<int64_t> indices;
  const int64_t step = std::max<int64_t>(1, count / k_demanded);
  for (int64_t i = 0; i < count; i += step == 1 || i + step >= count ? 1 : step) indices.push_back(i);
  return indices;
}

std::vector<Reference::Element> Reference::elements(ValueId value, std::span<const int64_t> indices) {
  const DType dtype = m_graph->type(value).dtype;
  std::vector<Element> elements;
  double squares = 0;
  for (const int64_t index : indices) {
    Element element{m_exact->at(value, index), 0, true};
    if (std::isfinite(element.expected)) squares += element.expected * element.expected;
    for (ElementEvaluator& rounded : m_rounded) {
      const double other = rounded.at(m_values[value], index);
      if (kind_of(other) != kind_of(element.expected)) element.is_determined = false;
      if (std::isfinite(other)) element.allowed = std::max(element.allowed, std::fabs(other - element.expected));
    }
    elements.push_back(element);
  }
  const double spread = elements.empty() ? 0 : std::sqrt(squares / static_cast<double>(elements.size()));
  for (Element& element : elements) {
    const double scale = std::fabs(element.expected) + spread;
    if (!is_floating(dtype)) {
      element.is_determined = element.is_determined && element.allowed == 0;
      continue;
    }
    element.allowed = k_room * element.allowed + 32 * step_of(dtype) * scale;
    if (std::isfinite(element.expected) && !(element.allowed < 0.5 * scale) && scale > 0) element.is_determined = false;
  }
  return elements;
}

std::vector<bool> sound_values(const Graph& graph, const Memory& inputs) {
  // Elements of everything are asked for, so everything must be live.
  Graph all = graph;
  std::vector<ValueId> values(graph.values().size());
  for (ValueId value = 0; value < values.size(); ++value) values[value] = value;
  all.set_outputs(values);
  std::vector<bool> sound(values.size(), false);
  auto reference = Reference::create(all, inputs);
  if (!reference.ok()) return sound;
  for (const ValueId value : values) {
    std::vector<int64_t> indices = reference->demanded(value);
    if (indices.size() > 8) {
      const size_t step = indices.size() / 8;
      for (size_t i = 0; i < 8; ++i) indices[i] = indices[i * step];
      indices.resize(8);
    }
    const auto elements = reference->elements(value, indices);
    const auto good = std::count_if(elements.begin(), elements.end(), [](const Reference::Element& element) {
      return element.is_determined && std::isfinite(element.expected);
    });
    sound[value] = reference->status().ok() && 2 * static_cast<size_t>(good) >= elements.size();
    if (!reference->status().ok()) break;  // an index outside: what follows is not to be had
  }
  return sound;
}

}  // namespace kiln::fuzz
