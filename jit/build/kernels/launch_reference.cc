#include "jit/build/kernels/launch_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "frontend/kernel/affine.h"
#include "jit/build/kernels/output_demand.h"

namespace kiln {

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
    int64_t operator()(const SortSpec& sort) const { return sort.extents.back(); }
  };
  return std::visit(Visitor{}, spec.kernel);
}

Expected<LaunchReference> LaunchReference::create(const Plan& plan, const Launch& launch, const CandidateTrial& trial) {
  const KernelSpec& spec = plan.specs[launch.spec];
  std::vector<std::span<const std::byte>> inputs;
  std::vector<uint32_t> written;  // buffers, in the order of the graph's outputs
  for (uint32_t i = 0; i < spec.buffers.size(); ++i) {
    if (spec.buffers[i].role != BufferRole::output) inputs.push_back(trial.initial(i));
    if (spec.buffers[i].role != BufferRole::input) written.push_back(i);
  }
  LaunchReference reference;
  KILN_ASSIGN_OR_RETURN(reference.m_primitives, FragmentReference::create(primitive_graph(plan, launch), inputs));
  KILN_ASSIGN_OR_RETURN(reference.m_whole, FragmentReference::create(reference_graph(plan, launch), std::move(inputs)));
  FragmentReference* primitives = reference.m_primitives.get();
  FragmentReference* whole = reference.m_whole.get();
  const Graph& graph = whole->graph();
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId value = graph.outputs()[i];
    const std::vector<int64_t> dims = constants(graph.type(value).shape);
    const auto& given = graph.output_strides()[i];
    const std::vector<int64_t> strides = given.empty() ? dense_strides(dims) : constants(given);
    using Flats = std::span<const int64_t>;
    reference.m_outputs.push_back(
        {.buffer = written[i],
         .dims = dims,
         .strides = strides,
         .reduction_length = reduction_length(spec),
         .expected = [=](int64_t flat) { return whole->exact().at(value, flat); },
         .uncertainty = [=](int64_t flat, const IsEnough& is_enough) { return whole->uncertainty(i, flat, is_enough); },
         .many = [=](Flats flats, std::span<double> out) { whole->exact().many(value, flats, out); },
         .within_range = [=](int64_t flat) { return primitives->within_range(i, flat); }});
  }
  reference.m_spec = &spec;
  reference.aim_at({});
  return reference;
}

void LaunchReference::aim_at(std::span<const Schedule> schedules) {
  const std::vector<int64_t> tile = smallest_tile(*m_spec, schedules);
  const size_t nodes = m_whole->graph().nodes().size();
  for (OutputReference& output : m_outputs) {
    output.demand = demand_of(*m_spec, output.buffer, output.dims, output.strides, tile, nodes);
  }
}

void LaunchReference::foresee() {
  for (OutputReference& output : m_outputs) kiln::foresee(output);
}

bool LaunchReference::finds_bad_index(bool thoroughly) const {
  constexpr double k_share = 0x1p-7;
  for (const OutputReference& output : m_outputs) {
    const int64_t width = output.demand.dims.empty() ? 1 : output.demand.dims.back();
    for (const DemandedBlock& block : demanded_blocks(output.demand, thoroughly ? 1 : k_share).blocks) {
      const std::span columns = std::span(block.columns).first(thoroughly ? block.columns.size() : 1);
      for (const int64_t row : block.rows) {
        for (const int64_t column : columns) output.expected(row * width + column);
        if (!m_whole->status().ok()) return true;
      }
    }
  }
  return false;
}

}  // namespace kiln
