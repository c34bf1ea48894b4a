#include "jit/build/kernels/fragment_reference.h"

#include <algorithm>
#include <cmath>

#include "frontend/decompose/decompose.h"
#include "frontend/decompose/uses_apart.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

// So many tries seldom miss that rounding decides a comparison.
constexpr uint64_t k_perturbations = 8;
// How often a rounding error may come back in an element that misses the tolerance. Where a difference nearly cancels
// before a square root or a division, the result is as wrong as its terms are uncertain, in any arithmetic: such an element
// passes when it is the exact result for inputs and intermediate values this many roundings away (mixed stability:
// Higham, "Accuracy and Stability of Numerical Algorithms", 2002, §1.5). A wrong kernel is off by far more.
constexpr double k_sensitivity_factor = 64;
// A kernel keeps a value of f16 or bf16 in f32, or rounds it once; a few tries may miss the worst sum of such errors.
constexpr double k_half_roundings = 2;

// One element of attention taken apart would cost all of its products.
bool stays_whole(const Graph&, const Node& node) { return node.op->kind == OpKind::attention; }

bool has_halves(const Graph& graph) {
  const auto& nodes = graph.nodes();
  return std::ranges::any_of(nodes, [&](const Node& node) {
    return std::ranges::any_of(node.results, [&](ValueId value) { return is_half(graph.type(value).dtype); });
  });
}

bool is_same_kind(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : std::isfinite(a) ? std::isfinite(b) : a == b;
}

}  // namespace

Expected<std::unique_ptr<FragmentReference>> FragmentReference::create(Graph graph,
                                                                       std::vector<std::span<const std::byte>> inputs) {
  std::unique_ptr<FragmentReference> reference(new FragmentReference);
  reference->m_graph = std::make_unique<Graph>(std::move(graph));
  reference->m_inputs = std::move(inputs);
  KILN_ASSIGN_OR_RETURN(reference->m_exact, ElementEvaluator::create(*reference->m_graph, reference->m_inputs));
  return reference;
}

Status FragmentReference::take_apart() {
  if (m_apart) return {};
  KILN_ASSIGN_OR_RETURN(const Graph parts, decompose(*m_graph, stays_whole));
  m_apart = std::make_unique<Graph>(with_uses_apart(parts));
  return {};
}

Status FragmentReference::perturb() {
  KILN_RETURN_IF_ERROR(take_apart());
  for (uint64_t seed = 1; seed <= k_perturbations; ++seed) {
    const auto add = [&](std::vector<ElementEvaluator>& evaluators, bool rounds_halves) -> Status {
      KILN_ASSIGN_OR_RETURN(
          ElementEvaluator evaluator,
          ElementEvaluator::create(*m_apart, m_inputs, {.rounding_seed = seed, .rounds_halves = rounds_halves}));
      evaluators.push_back(std::move(evaluator));
      return {};
    };
    KILN_RETURN_IF_ERROR(add(m_perturbed, false));
    if (has_halves(*m_apart)) KILN_RETURN_IF_ERROR(add(m_rounded, true));
  }
  return {};
}

double FragmentReference::uncertainty(size_t output, int64_t flat, const IsEnough& is_enough) {
  if (m_perturbed.empty() && !perturb().ok()) return 0;
  double known = 0;
  // The cheaper ones first.
  for (const auto& [evaluators, factor] :
       {std::pair(&m_rounded, k_half_roundings), std::pair(&m_perturbed, k_sensitivity_factor)}) {
    double largest = 0;
    for (ElementEvaluator& evaluator : *evaluators) {
      if (is_enough(known + largest)) return known + largest;
      largest = std::max(largest, factor * change(evaluator, output, flat));
    }
    known += largest;
  }
  return known;
}

void FragmentReference::ask_together(size_t output, std::span<const int64_t> flats) {
  m_together.resize(m_graph->outputs().size());
  m_together[output].assign(flats.begin(), flats.end());
}

double FragmentReference::change(ElementEvaluator& perturbed, size_t output, int64_t flat) {
  const ValueId value = m_apart->outputs()[output];
  if (output < m_together.size()) {
    const std::vector<int64_t>& all = m_together[output];
    perturbed.prepare(value, static_cast<int64_t>(all.size()), [&](int64_t i) { return all[static_cast<size_t>(i)]; });
  }
  const double exact = m_exact->at(m_graph->outputs()[output], flat), other = perturbed.at(value, flat);
  if (!is_same_kind(exact, other)) return HUGE_VAL;
  return std::isfinite(exact) ? std::abs(other - exact) : 0;
}

double FragmentReference::within_range(size_t output, int64_t flat) {
  const ValueId value = m_graph->outputs()[output];
  if (!m_within_range) {
    auto evaluator = ElementEvaluator::create(*m_graph, m_inputs, {.within_range = true});
    if (!evaluator.ok()) return m_exact->at(value, flat);  // one was created from the same graph before
    m_within_range = std::move(*evaluator);
  }
  return m_within_range->at(value, flat);
}

}  // namespace kiln
