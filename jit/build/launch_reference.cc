#include "jit/build/launch_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "jit/build/output_demand.h"

namespace kiln {

namespace {

constexpr uint64_t k_perturbations = 2;

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

/// The fragment's values for the inputs as they are and, once asked for, for inputs that are rounded differently, and as
/// a kernel's range would have them.
class LaunchReference::Evaluation {
 public:
  static Expected<std::shared_ptr<Evaluation>> create(Graph graph, std::vector<std::span<const std::byte>> inputs) {
    auto evaluation = std::make_shared<Evaluation>(std::move(graph), std::move(inputs));
    KILN_ASSIGN_OR_RETURN(evaluation->m_evaluator, evaluation->look({}));
    return evaluation;
  }
  Evaluation(Graph graph, std::vector<std::span<const std::byte>> inputs)
      : m_graph(std::move(graph)), m_inputs(std::move(inputs)) {}

  const Graph& graph() const { return m_graph; }
  ElementEvaluator& exact() { return *m_evaluator; }

  /// The largest change of an element under k_perturbations random roundings of all floating inputs.
  double sensitivity(ValueId value, int64_t flat) {
    for (uint64_t seed = m_perturbed.size() + 1; seed <= k_perturbations; ++seed) {
      auto evaluator = look({.rounding_seed = seed});
      if (!evaluator.ok()) break;  // one was created from the same graph before
      m_perturbed.push_back(std::move(evaluator).value());
    }
    double largest = 0;
    for (const auto& perturbed : m_perturbed) {
      const double change = std::abs(perturbed->at(value, flat) - m_evaluator->at(value, flat));
      if (change > largest) largest = change;
    }
    return largest;
  }

  /// The graph's output `output`, its intermediate values kept in range.
  double within_range(size_t output, int64_t flat) {
    if (m_within_range == nullptr) {
      auto evaluator = look({.within_range = true});
      if (!evaluator.ok()) return std::numeric_limits<double>::quiet_NaN();
      m_within_range = std::move(evaluator).value();
    }
    return m_within_range->at(m_graph.outputs()[output], flat);
  }

 private:
  Expected<std::unique_ptr<ElementEvaluator>> look(ElementEvaluator::View view) const {
    KILN_ASSIGN_OR_RETURN(auto evaluator, ElementEvaluator::create(m_graph, m_inputs, view));
    return std::make_unique<ElementEvaluator>(std::move(evaluator));
  }

  const Graph m_graph;
  const std::vector<std::span<const std::byte>> m_inputs;
  std::unique_ptr<ElementEvaluator> m_evaluator, m_within_range;
  std::vector<std::unique_ptr<ElementEvaluator>> m_perturbed;  // made when first asked for
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
  reference.m_primitives = std::make_shared<Evaluation>(primitive_graph(plan, launch), inputs);
  KILN_ASSIGN_OR_RETURN(reference.m_evaluation, Evaluation::create(reference_graph(plan, launch), std::move(inputs)));
  Evaluation* primitives = reference.m_primitives.get();
  Evaluation* evaluation = reference.m_evaluation.get();
  const Graph& graph = evaluation->graph();
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId value = graph.outputs()[i];
    const std::vector<int64_t> dims = constants(graph.type(value).shape);
    const auto& given = graph.output_strides()[i];
    const std::vector<int64_t> strides = given.empty() ? row_major(dims) : constants(given);
    using Flats = std::span<const int64_t>;
    reference.m_outputs.push_back(
        {.buffer = written[i],
         .dims = dims,
         .strides = strides,
         .reduction_length = reduction_length(spec),
         .expected = [=](int64_t flat) { return evaluation->exact().at(value, flat); },
         .sensitivity = [=](int64_t flat) { return evaluation->sensitivity(value, flat); },
         .many = [=](Flats flats, std::span<double> out) { evaluation->exact().many(value, flats, out); },
         .within_range = [=](int64_t flat) { return primitives->within_range(i, flat); }});
  }
  reference.m_spec = &spec;
  reference.aim_at({});
  return reference;
}

void LaunchReference::aim_at(std::span<const Schedule> schedules) {
  const std::vector<int64_t> tile = smallest_tile(*m_spec, schedules);
  const size_t nodes = m_evaluation->graph().nodes().size();
  for (OutputReference& output : m_outputs) {
    output.demand = demand_of(*m_spec, output.buffer, output.dims, output.strides, tile, nodes);
  }
}

bool LaunchReference::finds_bad_index() const {
  constexpr double k_share = 0x1p-7;
  for (const OutputReference& output : m_outputs) {
    for (const DemandedBlock& block : demanded_blocks(output.demand, k_share).blocks) {
      for (const int64_t row : block.rows) {
        const int64_t columns = output.demand.dims.empty() ? 1 : output.demand.dims.back();
        output.expected(row * columns + block.columns.front());
        if (!m_evaluation->exact().status().ok()) return true;
      }
    }
  }
  return false;
}

}  // namespace kiln
