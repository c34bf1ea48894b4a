#include "backends/loops_stages.h"

#include <algorithm>
#include <set>

namespace kiln {
namespace {

/// Buffers.
struct Uses {
  std::set<uint32_t> loaded, stored;
};

Uses uses_of(const LoopsSpec& loops, const Stage& stage) {
  Uses uses;
  for (const ExprId id : needed_by(loops.body, roots_of(loops, stage))) {
    const ScalarNode& node = loops.body.exprs[id];
    if (node.op == ScalarOp::load) uses.loaded.insert(loops.body.accesses[node.slot].buffer);
  }
  for (const Store& store : stage.stores) uses.stored.insert(loops.body.accesses[store.access].buffer);
  return uses;
}

bool have_common(const std::set<uint32_t>& a, const std::set<uint32_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](uint32_t buffer) { return b.contains(buffer); });
}

}  // namespace

std::vector<ExprId> roots_of(const LoopsSpec& loops, const Stage& stage) {
  std::vector<ExprId> roots;
  for (const uint32_t reduction : stage.reductions) roots.push_back(loops.reductions[reduction].value);
  for (const Store& store : stage.stores) {
    roots.push_back(store.value);
    for (const IndirectTerm& term : loops.body.accesses[store.access].indirect) roots.push_back(term.index);
  }
  return roots;
}

bool is_ordered(const LoopsSpec& loops, const Stage& stage) {
  return !stage.per_row && std::any_of(stage.stores.begin(), stage.stores.end(), [&](const Store& store) {
    return store.mode == StoreMode::add || !loops.body.accesses[store.access].indirect.empty();
  });
}

bool conflicts_later(const LoopsSpec& loops, size_t stage) {
  const Uses now = uses_of(loops, loops.stages[stage]);
  return std::any_of(loops.stages.begin() + static_cast<long>(stage) + 1, loops.stages.end(), [&](const Stage& other) {
    const Uses later = uses_of(loops, other);
    return have_common(now.stored, later.loaded) || have_common(now.stored, later.stored) ||
           have_common(now.loaded, later.stored);
  });
}

}  // namespace kiln
