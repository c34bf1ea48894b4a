#include "jit/build/program_verdict/walk_in_step.h"

#include "base/bytes.h"
#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

bool equal_attributes(const Attributes& a, const Attributes& b) {
  ByteWriter left, right;  // as keys compare them: NaN equals NaN
  append_attributes(left, a);
  append_attributes(right, b);
  return left.bytes() == right.bytes();
}

class Walk {
 public:
  Walk(const Graph& here, const Graph& there, std::span<const ValueId> inputs)
      : m_here(here), m_there(there), m_inputs(inputs), m_same(here.values().size(), k_none) {}

  Status pair(SameValue ends) {
    m_pending.push_back(ends);
    while (!m_pending.empty()) {
      const SameValue next = m_pending.back();
      m_pending.pop_back();
      KILN_RETURN_IF_ERROR(meet(next));
    }
    return {};
  }
  std::vector<ValueId> take() { return std::move(m_same); }

 private:
  Status meet(SameValue pair) {
    if (pair.here == k_none && pair.there == k_none) return {};
    if (pair.here == k_none || pair.there == k_none) return differ("an operand is missing", pair);
    if (m_same[pair.here] != k_none) return {};  // several values there may be one here
    m_same[pair.here] = pair.there;
    const Value &here = m_here.value(pair.here), &there = m_there.value(pair.there);
    if (here.type.dtype != there.type.dtype || here.type.shape != there.type.shape) return differ("types differ", pair);
    if (here.producer == k_none) {
      const ValueId expected = m_inputs[here.result_index];
      return expected == k_none || expected == pair.there ? Status() : differ("another input", pair);
    }
    if (const ValueId behind = behind_identity(pair); behind != k_none) {
      m_pending.push_back({behind, pair.there});
      return {};
    }
    if (there.producer == k_none || here.result_index != there.result_index) return differ("another result", pair);
    const Node &mine = m_here.node(here.producer), &theirs = m_there.node(there.producer);
    if (mine.op != theirs.op || mine.operands.size() != theirs.operands.size()) return differ("another op", pair);
    if (!equal_attributes(mine.attributes, theirs.attributes)) return differ("other attributes", pair);
    for (size_t i = 0; i < mine.operands.size(); ++i) m_pending.push_back({mine.operands[i], theirs.operands[i]});
    for (size_t i = 0; i < mine.results.size(); ++i) m_pending.push_back({mine.results[i], theirs.results[i]});
    return {};
  }

  /// What the identity permutation that makes `here`, and does not make `there`, renames; k_none: there is none.
  ValueId behind_identity(SameValue pair) const {
    const Node& node = m_here.node(m_here.value(pair.here).producer);
    if (node.op->name != "permute") return k_none;
    const auto* dims = std::get_if<std::vector<int64_t>>(find_attribute(node.attributes, "dims"));
    for (size_t d = 0; d < dims->size(); ++d) {
      if ((*dims)[d] != static_cast<int64_t>(d)) return k_none;
    }
    const NodeId theirs = m_there.value(pair.there).producer;
    const bool is_theirs = theirs != k_none && m_there.node(theirs).op == node.op &&
                           equal_attributes(m_there.node(theirs).attributes, node.attributes);
    return is_theirs ? k_none : node.operands[0];
  }

  Status differ(std::string_view how, SameValue pair) const {
    return error(StatusCode::internal, "value {} was rewritten as value {}: {}", pair.there, pair.here, how);
  }

  const Graph& m_here;
  const Graph& m_there;
  const std::span<const ValueId> m_inputs;
  std::vector<ValueId> m_same;
  std::vector<SameValue> m_pending;
};

}  // namespace

Expected<std::vector<ValueId>> walk_in_step(const Graph& here, const Graph& there, std::span<const SameValue> ends,
                                            std::span<const ValueId> inputs) {
  Walk walk(here, there, inputs);
  for (const SameValue& end : ends) KILN_RETURN_IF_ERROR(walk.pair(end));
  return walk.take();
}

}  // namespace kiln
