#include "jit/build/launch_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "autotune/sample_data.h"

namespace kiln {

namespace {

constexpr uint64_t k_perturbations = 2;

/// Terms that are summed into one element, at most.
int64_t reduction_length(const KernelSpec& spec) {
  struct Visitor {
    int64_t operator()(const LoopsSpec& loops) const {
      return std::accumulate(loops.extents.begin() + loops.parallel_rank, loops.extents.end(), int64_t{1},
                             std::multiplies<>());
    }
    int64_t operator()(const GemmSpec& gemm) const { return gemm.k; }
    int64_t operator()(const AttentionSpec& attention) const { return attention.k_len + attention.head_dim; }
    int64_t operator()(const AttentionBackwardSpec& backward) const {
      return std::max(backward.forward.k_len, backward.forward.q_len) + backward.forward.head_dim;
    }
  };
  return std::visit(Visitor{}, spec.kernel);
}

std::vector<int64_t> constants(const std::vector<Dim>& dims) {
  std::vector<int64_t> values;
  values.reserve(dims.size());
  for (const Dim& dim : dims) values.push_back(dim.constant());
  return values;
}

std::vector<int64_t> row_major(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

}  // namespace

/// The fragment's values for the inputs as they are and, once asked for, for inputs that are rounded differently.
class LaunchReference::Evaluation {
 public:
  static Expected<std::shared_ptr<Evaluation>> create(Graph graph, std::vector<std::span<const std::byte>> inputs) {
    auto evaluation = std::make_shared<Evaluation>(std::move(graph), std::move(inputs));
    KILN_ASSIGN_OR_RETURN(auto evaluator, ElementEvaluator::create(evaluation->m_graph, evaluation->m_inputs));
    evaluation->m_evaluator = std::make_unique<ElementEvaluator>(std::move(evaluator));
    return evaluation;
  }
  Evaluation(Graph graph, std::vector<std::span<const std::byte>> inputs)
      : m_graph(std::move(graph)), m_inputs(std::move(inputs)) {}

  const Graph& graph() const { return m_graph; }
  double at(ValueId value, int64_t flat) { return m_evaluator->at(value, flat); }

  /// The largest change of an element under k_perturbations random roundings of all floating inputs.
  double sensitivity(ValueId value, int64_t flat) {
    if (m_perturbed.empty()) perturb();
    double largest = 0;
    for (const auto& perturbed : m_perturbed) {
      const double change = std::abs(perturbed.evaluator->at(value, flat) - at(value, flat));
      if (change > largest) largest = change;
    }
    return largest;
  }

 private:
  struct Perturbed {
    std::vector<std::vector<std::byte>> inputs;
    std::unique_ptr<ElementEvaluator> evaluator;
  };

  void perturb() {
    for (uint64_t seed = 1; seed <= k_perturbations; ++seed) {
      Perturbed perturbed;
      std::vector<std::span<const std::byte>> views;
      for (size_t i = 0; i < m_inputs.size(); ++i) {
        auto& copy = perturbed.inputs.emplace_back(m_inputs[i].begin(), m_inputs[i].end());
        perturb_by_rounding(m_graph.type(m_graph.inputs()[i]).dtype, copy, seed);
        views.emplace_back(copy);
      }
      auto evaluator = ElementEvaluator::create(m_graph, views);
      if (!evaluator.ok()) continue;  // it was created from the same graph before
      perturbed.evaluator = std::make_unique<ElementEvaluator>(std::move(evaluator).value());
      m_perturbed.push_back(std::move(perturbed));
    }
  }

  const Graph m_graph;
  const std::vector<std::span<const std::byte>> m_inputs;
  std::unique_ptr<ElementEvaluator> m_evaluator;
  std::vector<Perturbed> m_perturbed;  // made when first asked for
};

Expected<LaunchReference> LaunchReference::create(const Plan& plan, const Launch& launch, const CandidateTrial& trial) {
  const KernelSpec& spec = plan.specs[launch.spec];
  std::vector<std::span<const std::byte>> inputs;
  std::vector<uint32_t> written;  // buffers, in the order of the graph's outputs
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    if (spec.buffers[i].role != BufferRole::output) inputs.push_back(trial.initial(i));
    if (spec.buffers[i].role != BufferRole::input) written.push_back(i);
  }
  LaunchReference reference;
  KILN_ASSIGN_OR_RETURN(reference.m_evaluation, Evaluation::create(reference_graph(plan, launch), std::move(inputs)));
  Evaluation* evaluation = reference.m_evaluation.get();
  const Graph& graph = evaluation->graph();
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId value = graph.outputs()[i];
    const std::vector<int64_t> dims = constants(graph.type(value).shape);
    const auto& strides = graph.output_strides()[i];
    reference.m_outputs.push_back({written[i], dims, strides.empty() ? row_major(dims) : constants(strides),
                                   reduction_length(spec), [=](int64_t flat) { return evaluation->at(value, flat); },
                                   [=](int64_t flat) { return evaluation->sensitivity(value, flat); }});
  }
  return reference;
}

}  // namespace kiln
