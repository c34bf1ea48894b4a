#include "frontend/reduce/reduce.h"

#include <algorithm>
#include <optional>

#include "frontend/ops/op.h"

namespace kiln {
namespace {

/// A graph with changes, to be written out anew.
struct Edit {
  const Graph& from;
  std::vector<ValueId> outputs = from.outputs();
  std::vector<std::vector<Dim>> output_strides = from.output_strides();
  std::vector<bool> cut = std::vector<bool>(from.values().size(), false);              // values that become inputs
  std::vector<ValueId> replaced = std::vector<ValueId>(from.values().size(), k_none);  // values that another stands for
  std::vector<bool> dense = std::vector<bool>(from.values().size(), false);            // inputs without strides
};

/// Follows replacements; a value is only ever replaced by one before it.
ValueId behind(const Edit& edit, ValueId value) {
  while (edit.replaced[value] != k_none) value = edit.replaced[value];
  return value;
}

std::vector<bool> needed_values(const Edit& edit) {
  std::vector<bool> needed(edit.from.values().size(), false);
  for (const ValueId output : edit.outputs) needed[behind(edit, output)] = true;
  for (size_t id = edit.from.nodes().size(); id-- > 0;) {
    const Node& node = edit.from.nodes()[id];
    const bool runs = std::ranges::any_of(node.results, [&](ValueId r) { return needed[r] && !edit.cut[r]; });
    if (!runs) continue;
    for (const ValueId operand : node.operands) {
      if (operand != k_none) needed[behind(edit, operand)] = true;
    }
  }
  return needed;
}

Graph written(const Edit& edit) {
  const Graph& from = edit.from;
  const std::vector<bool> needed = needed_values(edit);
  Graph graph;
  for (const std::string& symbol : from.symbols()) graph.add_symbol(symbol);
  for (const Guard& guard : from.guards()) graph.add_guard(guard);
  std::vector<ValueId> mapped(from.values().size(), k_none);
  for (ValueId value = 0; value < from.values().size(); ++value) {
    const bool is_input = from.value(value).producer == k_none;
    if (!needed[value] || (!is_input && !edit.cut[value])) continue;
    TensorType type = from.type(value);
    if (edit.dense[value]) type.strides.clear();
    mapped[value] = graph.add_input(std::move(type), from.value(value).name);
  }
  for (const Node& node : from.nodes()) {
    if (std::ranges::none_of(node.results, [&](ValueId r) { return needed[r] && !edit.cut[r]; })) continue;
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) {
      operands.push_back(operand == k_none ? k_none : mapped[behind(edit, operand)]);
    }
    std::vector<TensorType> types;
    for (const ValueId result : node.results) types.push_back(from.type(result));
    const NodeId added = graph.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) {
      const ValueId result = node.results[i];
      if (!edit.cut[result]) mapped[result] = graph.node(added).results[i];
      graph.set_name(graph.node(added).results[i], from.value(result).name);
    }
  }
  std::vector<ValueId> outputs;
  for (const ValueId output : edit.outputs) outputs.push_back(mapped[behind(edit, output)]);
  graph.set_outputs(std::move(outputs));
  for (size_t i = 0; i < edit.output_strides.size(); ++i) graph.set_output_strides(i, edit.output_strides[i]);
  return graph;
}

class Reducer {
 public:
  Reducer(const Graph& graph, const std::function<bool(const Graph&)>& is_wrong)
      : m_graph(written(Edit{graph})), m_is_wrong(is_wrong) {}

  Graph run() {
    for (bool shrinks = true; shrinks;) {
      shrinks = drop_outputs();
      shrinks = move_outputs_forward() || shrinks;
      shrinks = cut_nodes() || shrinks;
      shrinks = drop_strides() || shrinks;
    }
    return std::move(m_graph);
  }

 private:
  bool take(const Edit& edit) {
    Graph smaller = written(edit);
    if (!m_is_wrong(smaller)) return false;
    m_graph = std::move(smaller);
    return true;
  }

  /// Halves first, then one by one.
  bool drop_outputs() {
    bool any = false;
    for (size_t step = m_graph.outputs().size() / 2; step >= 1; step /= 2) {
      for (size_t at = 0; at < m_graph.outputs().size() && m_graph.outputs().size() > step;) {
        Edit edit{m_graph};
        const auto first = static_cast<ptrdiff_t>(at);
        const auto last = static_cast<ptrdiff_t>(std::min(at + step, edit.outputs.size()));
        edit.outputs.erase(edit.outputs.begin() + first, edit.outputs.begin() + last);
        edit.output_strides.erase(edit.output_strides.begin() + first, edit.output_strides.begin() + last);
        const bool taken = !edit.outputs.empty() && take(edit);
        if (!taken) at += step;
        any = any || taken;
      }
    }
    return any;
  }

  /// The only output becomes the first value that is wrong.
  bool move_outputs_forward() {
    if (m_graph.outputs().size() != 1) return false;
    for (const Node& node : m_graph.nodes()) {
      for (const ValueId result : node.results) {
        if (result == m_graph.outputs()[0]) return false;
        Edit edit{m_graph};
        edit.outputs = {result};
        edit.output_strides = {{}};
        if (take(edit)) return true;
      }
    }
    return false;
  }

  bool cut_nodes() {
    bool any = false;
    for (size_t id = m_graph.nodes().size(); id-- > 0;) {
      if (id >= m_graph.nodes().size()) continue;
      any = cut_node(static_cast<NodeId>(id)) || any;
    }
    return any;
  }

  bool cut_node(NodeId id) {
    const Node& node = m_graph.node(id);
    if (node.results.size() == 1) {
      const TensorType& type = m_graph.type(node.results[0]);
      for (const ValueId operand : node.operands) {
        if (operand == k_none || m_graph.type(operand).dtype != type.dtype) continue;
        if (m_graph.type(operand).shape != type.shape) continue;
        Edit edit{m_graph};
        edit.replaced[node.results[0]] = operand;
        if (take(edit)) return true;
      }
    }
    Edit edit{m_graph};
    for (const ValueId result : m_graph.node(id).results) {
      if (std::ranges::find(edit.outputs, result) != edit.outputs.end()) return false;
      edit.cut[result] = true;
    }
    return take(edit);
  }

  bool drop_strides() {
    bool any = false;
    for (size_t i = 0; i < m_graph.outputs().size(); ++i) {
      if (m_graph.output_strides()[i].empty()) continue;
      Edit edit{m_graph};
      edit.output_strides[i].clear();
      any = take(edit) || any;
    }
    for (size_t i = 0; i < m_graph.inputs().size(); ++i) {
      if (m_graph.type(m_graph.inputs()[i]).strides.empty()) continue;
      Edit edit{m_graph};
      edit.dense[m_graph.inputs()[i]] = true;
      any = take(edit) || any;
    }
    return any;
  }

  Graph m_graph;
  const std::function<bool(const Graph&)>& m_is_wrong;
};

}  // namespace

Graph reduce(const Graph& graph, const std::function<bool(const Graph&)>& is_wrong) {
  return Reducer(graph, is_wrong).run();
}

}  // namespace kiln
