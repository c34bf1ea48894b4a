/// From a group of nodes to one loops kernel.
///
/// The value stored last in the graph gives the iteration space; its expression is written out, cutting dims and
/// appending reduced ones as asked, starting over each time (a handful of times at most). The other stored values are
/// found among what was emitted, or are laid over the same points. Then reductions are dealt to stages by how deep
/// they depend on one another, dims are ordered (parallel by the store's strides, then reduced) and merged wherever
/// every access allows.
#include <algorithm>
#include <functional>

#include "frontend/fuse/iteration.h"
#include "frontend/fuse/kernels.h"

namespace kiln {

namespace {

// No node's group: everything is loaded.
constexpr GroupId k_copy_group = k_no_group - 1;
// Rows that keep a processor's cores busy, and points for which one core is enough.
constexpr int64_t k_least_rows = 8, k_small_space = 16'384;

class LoopsLowering {
 public:
  LoopsLowering(const FusionState& state, GroupId group, std::span<const ValueId> roots)
      : m_state(state), m_group(group), m_roots(roots), m_space(state.facts->extents[roots.front()]), m_rows({}) {}

  /// Copies the root to one of its homes instead of computing it.
  LoweringResult run_copy(uint32_t home) {
    std::vector<int64_t> extents = m_space.extents();
    BodyLowering body(m_state, m_group, m_buffers, extents);
    const ExprId value = body.emit(m_roots.front(), m_space.index());
    m_stores = {body.store_expr(value, m_roots.front(), home, m_space.index(), StoreMode::assign, BufferRole::output)};
    return finish(body, std::move(extents));
  }

  LoweringResult run() {
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      m_buffers = {};
      m_scope = {};
      std::vector<int64_t> extents = m_space.extents();
      const std::vector<int64_t> rows = m_rows.extents();
      m_first_row = static_cast<uint32_t>(extents.size());
      extents.insert(extents.end(), rows.begin(), rows.end());
      if (m_has_rows) {
        m_scope.is_decided = true;
        m_scope.is_reduced.assign(extents.size(), false);
        std::fill(m_scope.is_reduced.begin() + m_first_row, m_scope.is_reduced.end(), true);
      }
      BodyLowering body(m_state, m_group, m_buffers, extents, &m_scope);
      if (store_roots(body)) return finish(body, std::move(extents));
      if (!body.failed()) return lowering_failed(k_none, m_why);
      if (!refine(body.failure())) return lowering_failed(body.failure());
    }
    return lowering_failed(k_none, "the iteration space is cut too often");
  }

 private:
  bool refine(const LoweringFailure& failure) {
    if (failure.split) return m_space.split(*failure.split) || m_rows.split(*failure.split, m_first_row);
    if (!failure.reduced_extents || m_has_rows) return false;
    m_rows = IterationSpace(*failure.reduced_extents);
    m_has_rows = true;
    return true;
  }

  bool store_roots(BodyLowering& body) {
    m_stores.clear();
    for (const ValueId root : m_roots) {
      const std::optional<Index> index = root == m_roots.front() ? m_space.index() : index_of(body, root);
      if (!index) return false;
      const std::vector<Store> stores = body.store(root, *index);
      if (stores.empty()) return false;
      m_stores.insert(m_stores.end(), stores.begin(), stores.end());
    }
    return true;
  }

  // Where to store a value that does not give the iteration space.
  std::optional<Index> index_of(BodyLowering& body, ValueId root) {
    if (std::optional<Index> index = body.emitted_index(root)) return index;
    const int64_t elements = m_state.facts->elements[root];
    const std::vector<int64_t>& extents = body.dims().iteration;
    int64_t all = 1, parallel = 1;
    Affine all_flat, parallel_flat;
    for (size_t d = extents.size(); d-- > 0;) {
      const auto dim = static_cast<uint32_t>(d);
      all_flat = all_flat + Affine::of_dim(dim, all);
      all *= extents[d];
      if (m_scope.is_decided && m_scope.is_reduced[d]) continue;
      parallel_flat = parallel_flat + Affine::of_dim(dim, parallel);
      parallel *= extents[d];
    }
    m_why = "stored values have different numbers of elements";
    if (elements != all && elements != parallel) return std::nullopt;
    Unflattened result =
        unflatten(elements == all ? all_flat : parallel_flat, m_state.facts->extents[root], body.dims());
    m_why = "stored values are cut differently";
    return result.index;
  }

  // The stage whose reductions an expression needs, counted from 1; 0 for none.
  std::vector<size_t> reduction_levels(const Body& body) const {
    std::vector<size_t> levels(body.exprs.size(), 0);
    for (size_t id = 0; id < body.exprs.size(); ++id) {
      const ScalarNode& node = body.exprs[id];
      const auto raise = [&](ExprId operand) {
        if (operand != k_no_expr) levels[id] = std::max(levels[id], levels[operand]);
      };
      for (const ExprId operand : node.operands) raise(operand);
      if (node.op == ScalarOp::load) {
        for (const IndirectTerm& term : body.accesses[node.slot].indirect) raise(term.index);
      }
      if (node.op == ScalarOp::reduced) levels[id] = levels[m_scope.reductions[node.slot].value] + 1;
    }
    return levels;
  }

  std::vector<bool> row_dependence(const Body& body) const {
    std::vector<bool> depends(body.exprs.size(), false);
    for (size_t id = 0; id < body.exprs.size(); ++id) {
      const ScalarNode& node = body.exprs[id];
      for (const ExprId operand : node.operands) {
        if (operand != k_no_expr && depends[operand]) depends[id] = true;
      }
      if (node.op == ScalarOp::index) depends[id] = is_reduced(node.slot);
      if (node.op == ScalarOp::load) {
        const Access& access = body.accesses[node.slot];
        if (moves_along_row(access)) depends[id] = true;
        for (const IndirectTerm& term : access.indirect) {
          if (depends[term.index]) depends[id] = true;
        }
      }
    }
    return depends;
  }

  bool is_reduced(size_t d) const { return m_scope.is_decided && m_scope.is_reduced[d]; }
  bool moves_along_row(const Access& access) const {
    for (size_t d = 0; d < access.strides.size(); ++d) {
      if (is_reduced(d) && access.strides[d] != 0) return true;
    }
    return false;
  }

  /// Dims over which some store repeats itself become rows, whose values are stored once. False where that leaves next to
  /// nothing to run side by side.
  bool store_once(const Body& body, const std::vector<int64_t>& extents) {
    if (m_scope.is_decided) return true;
    std::vector<bool> repeats(extents.size(), false);
    for (const Store& store : m_stores) {
      const Access& access = body.accesses[store.access];
      for (size_t d = 0; d < extents.size(); ++d) {
        if (extents[d] > 1 && access.strides[d] == 0 && access.indirect.empty()) repeats[d] = true;
      }
    }
    if (std::ranges::none_of(repeats, std::identity())) return true;
    int64_t rows = 1;
    for (size_t d = 0; d < extents.size(); ++d) rows *= repeats[d] ? 1 : extents[d];
    m_scope.is_decided = true;
    m_scope.is_reduced = std::move(repeats);
    return rows >= k_least_rows || product(extents) < k_small_space;
  }

  LoweringResult finish(BodyLowering& lowering, std::vector<int64_t> extents) {
    LoopsSpec loops;
    loops.reductions = m_scope.reductions;
    Body& body = lowering.body();
    if (!store_once(body, extents)) return lowering_failed(k_none, "a value is stored again at all points");
    const std::vector<size_t> levels = reduction_levels(body);
    const std::vector<bool> on_row = row_dependence(body);
    for (uint32_t r = 0; r < loops.reductions.size(); ++r) {
      const size_t level = levels[loops.reductions[r].value];
      if (loops.stages.size() <= level) loops.stages.resize(level + 1);
      loops.stages[level].reductions.push_back(r);
    }
    const bool has_rows = std::count(m_scope.is_reduced.begin(), m_scope.is_reduced.end(), true) > 0;
    Stage per_row{has_rows, {}, {}};
    for (const Store& store : m_stores) {
      const bool along_row = moves_along_row(body.accesses[store.access]);
      if (on_row[store.value] && !along_row) return lowering_failed(k_none, "a row is stored to one place");
      if (!along_row) {
        per_row.stores.push_back(store);
        continue;
      }
      const size_t level = levels[store.value];
      if (loops.stages.size() <= level) loops.stages.resize(level + 1);
      loops.stages[level].stores.push_back(store);
    }
    if (!per_row.stores.empty()) loops.stages.push_back(std::move(per_row));
    order_dims(body, extents, loops);
    loops.body = std::move(body);
    loops.extents = std::move(extents);
    KernelSpec spec{buffer_specs(m_state, m_buffers), std::move(loops)};
    if (const Status status = validate(spec); !status.ok()) return lowering_failed(k_none, status.message());
    return {{{std::move(spec), m_buffers.entries}}, std::nullopt};
  }

  // Parallel dims as the first store walks memory, then reduced dims; adjacent ones merged.
  void order_dims(Body& body, std::vector<int64_t>& extents, LoopsSpec& loops) const {
    std::vector<uint32_t> order;
    for (const bool reduced : {false, true}) {
      const size_t first = order.size();
      for (uint32_t d = 0; d < extents.size(); ++d) {
        if (is_reduced(d) == reduced) order.push_back(d);
      }
      const std::vector<int64_t> strides = body.accesses[m_stores.front().access].strides;
      if (!reduced) {
        std::stable_sort(order.begin() + static_cast<ptrdiff_t>(first), order.end(),
                         [&](uint32_t a, uint32_t b) { return std::abs(strides[a]) > std::abs(strides[b]); });
        loops.parallel_rank = static_cast<uint32_t>(order.size());
      }
    }
    permute_dims(body, order);
    std::vector<int64_t> ordered;
    for (const uint32_t d : order) ordered.push_back(extents[d]);
    for (size_t d = ordered.size(); d-- > 1;) {
      if (d == loops.parallel_rank || !can_merge(body, d - 1, ordered[d])) continue;
      merge_dims(body, d - 1);
      ordered[d - 1] *= ordered[d];
      ordered.erase(ordered.begin() + static_cast<ptrdiff_t>(d));
      if (d < loops.parallel_rank) --loops.parallel_rank;
    }
    extents = std::move(ordered);
  }

  const FusionState& m_state;
  GroupId m_group;
  std::span<const ValueId> m_roots;
  IterationSpace m_space;  // of the first root
  IterationSpace m_rows;   // appended reduced dims
  bool m_has_rows = false;
  uint32_t m_first_row = 0;
  KernelBuffers m_buffers;
  ReductionScope m_scope;
  std::vector<Store> m_stores;
  std::string m_why;
};

}  // namespace

int64_t footprint(std::span<const int64_t> extents, std::span<const int64_t> strides) {
  int64_t elements = 1;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 0) return 0;
    elements += (extents[d] - 1) * strides[d];
  }
  return elements;
}

std::vector<BufferSpec> buffer_specs(const FusionState& state, const KernelBuffers& buffers) {
  std::vector<BufferSpec> specs;
  for (const KernelBuffers::Entry& entry : buffers.entries) {
    const std::vector<int64_t>& extents = state.facts->extents[entry.value];
    const std::vector<Home>& homes = state.homes[entry.value];
    const std::vector<int64_t> strides = homes.empty() ? dense_strides(extents) : homes[entry.home].strides;
    specs.push_back({state.facts->dtype(entry.value), footprint(extents, strides), entry.role});
  }
  return specs;
}

LoweringResult lower_copy(const FusionState& state, ValueId value, uint32_t home) {
  return LoopsLowering(state, k_copy_group, std::span(&value, 1)).run_copy(home);
}

LoweringResult lower_loops(const FusionState& state, GroupId group, std::span<const ValueId> roots) {
  return LoopsLowering(state, group, roots).run();
}

}  // namespace kiln
