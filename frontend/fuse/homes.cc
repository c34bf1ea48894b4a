/// Where values lie.
///
/// An output that is all of some value, only renamed (permute, reshape), needs no copy: the value is stored into the
/// output's buffer with the strides that make the renaming come out right. The same helps inside: attention's results
/// are permuted from (batch, head, seq, dim) to (batch, seq, head, dim) and flattened before the next product, so they
/// are stored in the permuted order at once.
#include "frontend/fuse/homes.h"

#include <algorithm>

#include "frontend/fuse/copy_points.h"
#include "frontend/fuse/kernels.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

constexpr uint32_t k_no_buffer = UINT32_MAX;

bool same_layout(const std::vector<int64_t>& a, const std::vector<int64_t>& b, const std::vector<int64_t>& extents) {
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1 && a[d] != b[d]) return false;
  }
  return true;
}

std::vector<int64_t> strides_or_dense(const std::vector<Dim>& strides, const std::vector<int64_t>& extents) {
  return strides.empty() ? dense_strides(extents) : constants_of(strides);
}

class HomeFinder {
 public:
  HomeFinder(const Graph& graph, GraphFacts& facts, FusionState& state, Plan& plan)
      : m_graph(graph), m_facts(facts), m_state(state), m_plan(plan) {}

  void run() {
    m_state.homes.assign(m_graph.values().size(), {});
    m_state.is_pinned.assign(m_graph.values().size(), false);
    for (uint32_t i = 0; i < m_graph.inputs().size(); ++i) {
      const ValueId value = m_graph.inputs()[i];
      add_home(BufferKind::input, i, value, strides_or_dense(m_graph.type(value).strides, m_facts.extents[value]));
    }
    for (uint32_t i = 0; i < m_graph.outputs().size(); ++i) settle_output(i);
    for (std::vector<Home>& homes : m_state.homes) prefer_dense(homes);
    for (NodeId id = 0; id < m_graph.nodes().size(); ++id) {
      if (m_facts.is_live[id] && m_graph.node(id).op->kind == OpKind::attention) arrange_attention(id);
    }
  }

 private:
  void add_home(BufferKind kind, uint32_t index, ValueId value, std::vector<int64_t> strides) {
    const int64_t elements = footprint(m_facts.extents[value], strides);
    m_state.homes[value].push_back({static_cast<uint32_t>(m_plan.buffers.size()), strides});
    m_plan.buffers.push_back({kind, index, m_facts.dtype(value), elements, std::move(strides)});
  }

  // The strides the operand of a renaming view must have for the result to have `strides`.
  std::optional<std::vector<int64_t>> before_view(ValueId value, const std::vector<int64_t>& strides) const {
    const Node& node = m_facts.producer(value);
    const std::vector<int64_t>& extents = m_facts.extents[node.operands[0]];
    if (node.op->name == "reshape" &&
        same_layout(strides, dense_strides(m_facts.extents[value]), m_facts.extents[value])) {
      return dense_strides(extents);
    }
    if (node.op->name != "permute") return std::nullopt;
    std::vector<int64_t> result(extents.size());
    const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
    for (size_t d = 0; d < dims.size(); ++d) result[static_cast<size_t>(dims[d])] = strides[d];
    return result;
  }

  void settle_output(uint32_t output) {
    ValueId value = m_graph.outputs()[output];
    std::vector<int64_t> strides = strides_or_dense(m_graph.output_strides()[output], m_facts.extents[value]);
    while (!m_facts.is_input(value) && m_facts.producer(value).op->kind == OpKind::view) {
      std::optional<std::vector<int64_t>> before = before_view(value, strides);
      if (!before) break;
      strides = std::move(*before);
      value = m_facts.producer(value).operands[0];
    }
    if (!m_facts.is_input(value)) {
      const OpKind kind = m_facts.producer(value).op->kind;
      m_facts.is_stored[value] = true;
      if (kind == OpKind::view || kind == OpKind::creation) m_state.is_pinned[value] = true;
    }
    add_home(BufferKind::output, output, value, std::move(strides));
  }

  // Readers use the first home; dense ones compose best. An input stays where it is.
  void prefer_dense(std::vector<Home>& homes) const {
    if (homes.size() < 2 || m_plan.buffers[homes.front().buffer].kind == BufferKind::input) return;
    std::stable_sort(homes.begin(), homes.end(), [](const Home& a, const Home& b) {
      const auto is_descending = [](const Home& home) {
        return std::is_sorted(home.strides.rbegin(), home.strides.rend());
      };
      return is_descending(a) > is_descending(b);
    });
  }

  void arrange_attention(NodeId id) {
    for (const ValueId result : m_graph.node(id).results) {
      if (!m_state.homes[result].empty()) continue;
      for (const NodeId user : m_facts.users[result]) {
        if (m_graph.node(user).op->name != "permute" || is_copy_point(m_graph.node(user))) continue;
        const ValueId permuted = m_graph.node(user).results[0];
        m_state.homes[result] = {{k_no_buffer, *before_view(permuted, dense_strides(m_facts.extents[permuted]))}};
        break;
      }
    }
  }

  const Graph& m_graph;
  GraphFacts& m_facts;
  FusionState& m_state;
  Plan& m_plan;
};

}  // namespace

void settle_homes(const Graph& graph, GraphFacts& facts, FusionState& state, Plan& plan) {
  HomeFinder(graph, facts, state, plan).run();
}

}  // namespace kiln
