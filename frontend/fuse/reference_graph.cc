// What a launch's kernel must compute, as a graph of its own.
//
// A fragment is taken from one of two graphs. From the region as it was given, composites and all, when the values the
// launch stores are values of the region and every way back from them ends at what the launch reads: then the verdict
// judges fusion, code generation and the decomposition together. Else (a kernel that holds half of a composite) from the
// decomposed graph, whose nodes the launch lists.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "frontend/fuse/plan.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

/// A launch's buffers as a fragment's inputs and outputs.
class Fragment {
 public:
  Fragment(const Plan& plan, const Launch& launch) : m_plan(plan), m_launch(launch), m_spec(plan.specs[launch.spec]) {
    for (size_t i = 0; i < launch.buffers.size(); ++i) {
      if (m_spec.buffers[i].role == BufferRole::output) continue;
      const ValueId value = m_spec.buffers[i].role == BufferRole::inout ? launch.initial[i] : launch.values[i];
      TensorType type = plan.graph.type(value);
      const auto& strides = plan.buffers[launch.buffers[i]].strides;
      type.strides.assign(strides.begin(), strides.end());
      m_read[value] = m_graph.add_input(std::move(type), plan.graph.value(value).name);
    }
  }

  /// The input of the fragment that holds each value of Plan::graph, for those that are read.
  const std::map<ValueId, ValueId>& read() const { return m_read; }

  /// A copy of `node` over values of the fragment; its results.
  std::vector<ValueId> add(const Graph& from, const Node& node, std::vector<ValueId> operands) {
    std::vector<TensorType> types;
    for (const ValueId result : node.results) types.push_back(from.type(result));
    return m_graph.node(m_graph.add_node(node.op, std::move(operands), node.attributes, std::move(types))).results;
  }

  /// An operand of which the kernel reads nothing (a part of a concatenation that is sliced away): zeros do.
  ValueId unread(const TensorType& type) {
    const NodeId node =
        m_graph.add_node(find_op("full"), {}, {{"dtype", type.dtype}, {"shape", type.shape}, {"value", 0.0}},
                         {{type.dtype, type.shape, {}}});
    return m_graph.node(node).results[0];
  }

  /// `computed` gives the fragment's value for a value of Plan::graph.
  template <typename Computed>
  Graph finish(Computed computed) {
    std::vector<ValueId> outputs;
    std::vector<std::vector<Dim>> strides;
    for (size_t i = 0; i < m_launch.buffers.size(); ++i) {
      if (m_spec.buffers[i].role == BufferRole::input) continue;
      outputs.push_back(computed(m_launch.values[i]));
      const std::vector<int64_t>& numbers = m_plan.buffers[m_launch.buffers[i]].strides;
      strides.emplace_back(numbers.begin(), numbers.end());
    }
    m_graph.set_outputs(std::move(outputs));
    for (size_t i = 0; i < strides.size(); ++i) m_graph.set_output_strides(i, std::move(strides[i]));
    return std::move(m_graph);
  }

 private:
  const Plan& m_plan;
  const Launch& m_launch;
  const KernelSpec& m_spec;
  Graph m_graph;
  std::map<ValueId, ValueId> m_read;
};

/// Makes the fragment of ops of the region as it was given.
class WholeOps {
 public:
  WholeOps(const Plan& plan, const Launch& launch) : m_plan(plan), m_launch(launch), m_fragment(plan, launch) {
    for (ValueId value = 0; value < plan.values.size(); ++value) {
      const ValueId now = plan.values[value];
      if (now == k_none) continue;
      m_region_value.try_emplace(now, value);
      if (const auto it = m_fragment.read().find(now); it != m_fragment.read().end()) m_mapped[value] = it->second;
    }
  }

  std::optional<Graph> take() {
    const KernelSpec& spec = m_plan.specs[m_launch.spec];
    std::vector<bool> needed(m_plan.region.nodes().size(), false);
    for (size_t i = 0; i < m_launch.values.size(); ++i) {
      if (spec.buffers[i].role == BufferRole::input) continue;
      const auto it = m_region_value.find(m_launch.values[i]);
      if (it == m_region_value.end() || !reach(it->second, needed)) return std::nullopt;
    }
    if (!uses_all_that_is_read(needed)) return std::nullopt;
    for (NodeId id = 0; id < needed.size(); ++id) {
      if (needed[id]) add(m_plan.region.node(id));
    }
    return m_fragment.finish([&](ValueId value) { return m_mapped.at(m_region_value.at(value)); });
  }

 private:
  /// Marks what computes `value`; false when a way back ends at something the launch does not read.
  bool reach(ValueId value, std::vector<bool>& needed) const {
    std::vector<ValueId> pending{value};
    while (!pending.empty()) {
      const ValueId now = pending.back();
      pending.pop_back();
      if (m_mapped.contains(now)) continue;
      const NodeId producer = m_plan.region.value(now).producer;
      if (producer == k_none) return false;
      if (needed[producer]) continue;
      needed[producer] = true;
      for (const ValueId operand : m_plan.region.node(producer).operands) {
        if (operand != k_none) pending.push_back(operand);
      }
    }
    return true;
  }

  /// A launch that reads something else computes from the middle of a composite: on random data, where what it reads
  /// does not fit together, only the primitives say what it must give.
  bool uses_all_that_is_read(const std::vector<bool>& needed) const {
    std::set<ValueId> used;
    for (NodeId id = 0; id < needed.size(); ++id) {
      if (!needed[id]) continue;
      for (const ValueId operand : m_plan.region.node(id).operands) {
        if (operand != k_none) used.insert(m_plan.values[operand]);
      }
    }
    const KernelSpec& spec = m_plan.specs[m_launch.spec];
    for (size_t i = 0; i < m_launch.values.size(); ++i) {
      if (spec.buffers[i].role != BufferRole::input) used.insert(m_launch.values[i]);  // copied as it is
    }
    return std::all_of(m_fragment.read().begin(), m_fragment.read().end(),
                       [&](const auto& read) { return used.contains(read.first); });
  }

  void add(const Node& node) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : m_mapped.at(operand));
    const std::vector<ValueId> results = m_fragment.add(m_plan.region, node, std::move(operands));
    for (size_t r = 0; r < results.size(); ++r) m_mapped.try_emplace(node.results[r], results[r]);
  }

  const Plan& m_plan;
  const Launch& m_launch;
  Fragment m_fragment;
  std::map<ValueId, ValueId> m_region_value;  // of Plan::graph
  std::map<ValueId, ValueId> m_mapped;        // of Plan::region, in the fragment
};

}  // namespace

Graph primitive_graph(const Plan& plan, const Launch& launch) {
  Fragment fragment(plan, launch);
  std::map<ValueId, ValueId> mapped = fragment.read();
  const auto here = [&](ValueId value) {
    if (!mapped.contains(value)) mapped[value] = fragment.unread(plan.graph.type(value));
    return mapped[value];
  };
  for (const NodeId id : launch.nodes) {
    const Node& node = plan.graph.node(id);
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : here(operand));
    const std::vector<ValueId> results = fragment.add(plan.graph, node, std::move(operands));
    for (size_t r = 0; r < results.size(); ++r) mapped.try_emplace(node.results[r], results[r]);
  }
  return fragment.finish(here);
}

Graph reference_graph(const Plan& plan, const Launch& launch) {
  if (auto whole = WholeOps(plan, launch).take()) return std::move(*whole);
  return primitive_graph(plan, launch);
}

}  // namespace kiln
