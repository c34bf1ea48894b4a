#pragma once

#include <set>
#include <vector>

#include "base/expected.h"
#include "frontend/fuse/fuse_choices.h"
#include "frontend/fuse/kernels.h"
#include "frontend/ops/op.h"

namespace kiln {

enum class GroupKind : uint8_t { loops, gemm, attention, scatter, sort };

/// Nodes that share a kernel.
struct Group {
  GroupKind kind = GroupKind::loops;
  NodeId anchor = k_none;              // the product, attention, scatter or sort; of loops, the node it was grown from
  std::vector<NodeId> nodes;           // ascending
  std::vector<LoweredKernel> kernels;  // as of the last change
  bool is_empty() const { return nodes.empty(); }
};

/// Decides what shares a kernel. `state.homes` says where graph outputs go and is not changed otherwise.
/// Errors: unimplemented, naming the op, when a node has no kernel even alone.
class Grouper {
 public:
  Grouper(FusionState& state, const FuseChoices& choices);

  /// Groups all nodes. Afterwards every live node is in one group or virtual, every pinned value has a group, no group
  /// waits for itself, and each group's kernels are those of the final state.
  Status run();
  std::vector<Group> take_groups() { return std::move(m_groups); }
  /// The groups that have nodes: dependencies first, else as in the graph.
  const std::vector<GroupId>& execution_order() const { return m_order; }

 private:
  Status claim_scores();
  Status grow_epilogues();
  Status claim_epilogue(GroupId group);
  Status place_backwards();
  Status place(NodeId node);
  /// Whether the node, whose only user the group is, may be computed there.
  bool is_welcome(NodeId node, GroupId user) const;
  struct Ingredients {
    std::set<NodeId> nodes;
    std::vector<ValueId> heavy;
  };
  /// What the nodes are made of without a kernel of its own, themselves included, down to the heavy values of as many elements.
  Ingredients ingredients_of(const std::vector<NodeId>& nodes, int64_t elements) const;
  /// Whether the node waits for nothing of the product and is made, by cheap nodes, of a heavy value that has as many
  /// elements and would need a buffer for the product to read. Where heavy factors are inside, only what others want needs one.
  bool is_made_beside(NodeId node, GroupId product) const;
  void merge_siblings();
  Status settle_all();
  bool group_pinned_values();
  /// Settles the group, or what remains of it when its nodes have to part.
  Status settle_or_dissolve(GroupId group);
  void dissolve(GroupId group);
  /// The groups each group reads from.
  std::vector<std::vector<GroupId>> sources() const;
  void cut_a_ring();
  bool cut(GroupId group, const std::vector<bool>& waits_for_group);

  GroupId add_group(GroupKind kind, NodeId node);
  /// Lowers the group, giving buffers to the virtual values that stand in the way; to those next to a single node one
  /// after another where none is named.
  Status settle(GroupId group);
  LoweringResult lower(GroupId group) const;
  bool relower(GroupId group);
  /// The virtual value without a buffer that is nearest to the node's operands, or k_none. Constants stay virtual.
  ValueId nearest_inline(NodeId node) const;
  bool try_join(NodeId node, GroupId group);
  /// Whether the operand of a product is read as it lies in memory rather than as the node makes it.
  bool is_read_narrow(const Node& node) const;
  bool try_virtual(NodeId node, const std::vector<GroupId>& groups);
  bool try_merge(GroupId into, GroupId from);
  std::vector<ValueId> roots_of(GroupId group) const;

  struct Uses {
    std::vector<GroupId> groups;  // ascending, that read the value directly or through virtual nodes
    bool is_operand = false;      // some product or attention wants it as a tensor
    bool is_undecided = false;    // some user has no kernel yet
  };
  Uses uses_of(ValueId value) const;
  void collect_uses(ValueId value, Uses& uses) const;

  /// Whether the group, or the producer of the value, needs anything of the other group to run first.
  bool depends_on(GroupId group, GroupId other) const;
  bool value_depends_on(ValueId value, GroupId other) const;
  bool reaches(std::vector<NodeId> pending, GroupId other, NodeId skip) const;

  struct Epilogue {
    std::vector<NodeId> nodes;    // pointwise, ascending
    std::vector<bool> is_inside;  // of each value
  };
  Epilogue followers(GroupId group) const;
  std::vector<NodeId> exit_set(const Epilogue& epilogue, GroupId group, NodeId exit) const;
  bool has_outside_use(ValueId value, const std::vector<NodeId>& inside) const;

  const Graph& graph() const { return *m_state.facts->graph; }
  bool is_stored(ValueId value) const { return !m_state.homes[value].empty() && m_state.facts->is_stored[value]; }

  FusionState& m_state;
  const FuseChoices m_choices;
  std::vector<Group> m_groups;
  std::vector<GroupId> m_order;
  std::vector<uint32_t> m_virtual_depth;  // of each node: virtual nodes between it and a kernel
};

/// Whether the op costs more than a few cycles an element, so that it is not computed twice.
bool is_expensive(const OpDef& op);

}  // namespace kiln
