#include "tests/fuzz/graphs/reference.h"

#include <algorithm>
#include <cmath>

#include "frontend/decompose/decompose.h"
#include "frontend/decompose/uses_apart.h"
#include "frontend/ops/precision.h"

namespace kiln::fuzz {
namespace {

constexpr uint64_t k_roundings = 3;
constexpr uint64_t k_roundings_of_doubt = 200;
constexpr uint64_t k_roundings_until_equal = 4'000;  // of two numbers that a comparison may find equal, seldom
constexpr int64_t k_demanded = 400;
constexpr double k_room = 64;  // for what several roundings in a row do beyond the two tries

/// One number for all of a kind: finite numbers, each infinity, NaN.
int kind_of(double x) { return std::isnan(x) ? 3 : std::isinf(x) ? (x > 0 ? 1 : 2) : 0; }

}  // namespace

Expected<Reference> Reference::create(const Graph& graph, const Memory& inputs) {
  Reference reference(graph, inputs);
  KILN_ASSIGN_OR_RETURN(reference.m_exact, ElementEvaluator::create(graph, reference.m_inputs));
  KILN_RETURN_IF_ERROR(reference.round(graph, k_roundings, reference.m_rounded));
  return reference;
}

Status Reference::round(const Graph& graph, uint64_t times, std::vector<ElementEvaluator>& rounded) const {
  for (uint64_t seed = 0; seed < times; ++seed) {
    KILN_ASSIGN_OR_RETURN(ElementEvaluator evaluator, ElementEvaluator::create(graph, m_inputs));
    evaluator.round_at_random(seed);
    rounded.push_back(std::move(evaluator));
  }
  return {};
}

Status Reference::take_apart() {
  KILN_ASSIGN_OR_RETURN(const Graph parts, decompose(*m_graph, [](const Graph&, const Node&) { return false; }));
  m_apart = std::make_unique<Graph>(with_uses_apart(parts));
  return round(*m_apart, k_roundings_of_doubt, m_rounded_apart);
}

bool Reference::is_possible(size_t output, int64_t index, double got, const Element& element) {
  if (m_apart == nullptr && !take_apart().ok()) return false;
  double least = element.expected, most = element.expected;
  for (ElementEvaluator& rounded : m_rounded_apart) {
    const double other = rounded.at(m_apart->outputs()[output], index);
    if (kind_of(other) != kind_of(element.expected)) return true;
    least = std::min(least, other);
    most = std::max(most, other);
  }
  const double room = k_room * (most - least) + element.allowed;
  if (got >= element.expected - room && got <= element.expected + room) return true;
  return !is_floating(m_graph->type(m_graph->outputs()[output]).dtype) && becomes(output, index, got);
}

bool Reference::becomes(size_t output, int64_t index, double got) const {
  for (uint64_t seed = 0; seed < k_roundings_until_equal; ++seed) {
    auto evaluator = ElementEvaluator::create(*m_apart, m_inputs);
    if (!evaluator.ok()) return false;
    evaluator->round_at_random(seed);
    if (evaluator->at(m_apart->outputs()[output], index) == got) return true;
  }
  return false;
}

std::vector<int64_t> Reference::demanded(size_t output) const {
  const int64_t count = m_exact->elements(m_graph->outputs()[output]);
  std::vector<int64_t> indices;
  const int64_t step = std::max<int64_t>(1, count / k_demanded);
  for (int64_t i = 0; i < count; i += step == 1 || i + step >= count ? 1 : step) indices.push_back(i);
  return indices;
}

std::vector<Reference::Element> Reference::elements(size_t output, std::span<const int64_t> indices) {
  const ValueId value = m_graph->outputs()[output];
  const DType dtype = m_graph->type(value).dtype;
  std::vector<Element> elements;
  double squares = 0;
  for (const int64_t index : indices) {
    Element element{m_exact->at(value, index), 0, true};
    if (std::isfinite(element.expected)) squares += element.expected * element.expected;
    for (ElementEvaluator& rounded : m_rounded) {
      const double other = rounded.at(value, index);
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
