/// What a valid kernel spec is.
///
/// Backends index memory by a spec without looking back, so the one thing that must hold is that no access
/// leaves its buffer. Addresses are affine in the iteration dims, hence their extremes are found dim by dim:
/// a stride times the dim's lowest or highest value. Two things widen that:
///  - an indirect term adds its stride times [0, bound), since backends check the bound at run time;
///  - a load under a predicate is reached only where the predicate holds. Concatenation and padding live on
///    that, so the predicate's conjuncts that compare a bare `index` with a constant narrow the dims' ranges first.
/// Everything else (operands before uses, dtypes, roles) is a walk over the lists.
#include <algorithm>
#include <optional>

#include "base/limits.h"
#include "frontend/kernel/affine.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {
namespace {

// Far from any element of any buffer, and far from overflow when it is counted in bytes.
constexpr int64_t k_beyond_all = limits::k_tensor_elements << 8;

// Inclusive; empty when low > high.
struct Range {
  int64_t low = 0, high = 0;
};

// What a body may use besides loads and indices.
struct Scope {
  std::vector<int64_t> extents;
  const LoopsSpec* loops = nullptr;  // gives meaning to `reduced`
  std::optional<DType> accumulator;  // dtype of `accumulator`, where there is one
};

std::vector<Range> full_ranges(const std::vector<int64_t>& extents) {
  std::vector<Range> ranges;
  for (const int64_t extent : extents) ranges.push_back({0, extent - 1});
  return ranges;
}

void narrow_by(const Body& body, const ScalarNode& comparison, std::vector<Range>& ranges) {
  const ScalarNode& left = body.exprs[comparison.operands[0]];
  const ScalarNode& right = body.exprs[comparison.operands[1]];
  if (left.op != ScalarOp::index || right.op != ScalarOp::constant || left.slot >= ranges.size()) return;
  Range& range = ranges[left.slot];
  const int64_t bound = right.immediate_int;
  switch (comparison.op) {
    case ScalarOp::eq:
      range = {std::max(range.low, bound), std::min(range.high, bound)};
      break;
    case ScalarOp::lt:
      range.high = std::min(range.high, bound - 1);
      break;
    case ScalarOp::le:
      range.high = std::min(range.high, bound);
      break;
    case ScalarOp::gt:
      range.low = std::max(range.low, bound + 1);
      break;
    case ScalarOp::ge:
      range.low = std::max(range.low, bound);
      break;
    default:
      break;
  }
}

void narrow(const Body& body, ExprId predicate, std::vector<Range>& ranges) {
  const ScalarNode& node = body.exprs[predicate];
  if (node.op == ScalarOp::bitwise_and) {
    narrow(body, node.operands[0], ranges);
    narrow(body, node.operands[1], ranges);
  } else if (arity(node.op) == 2) {
    narrow_by(body, node, ranges);
  }
}

bool is_comparison(ScalarOp op) { return op >= ScalarOp::eq && op <= ScalarOp::ge; }

class Validator {
 public:
  explicit Validator(const KernelSpec& spec) : m_spec(spec) {}

  Status run() {
    if (m_spec.buffers.empty()) return invalid_argument("kernel: no buffers");
    if (m_spec.buffers.size() > limits::k_kernel_buffers) {
      return error(StatusCode::resource_exhausted, "kernel: {} buffers, at most {}", m_spec.buffers.size(),
                   limits::k_kernel_buffers);
    }
    for (const BufferSpec& buffer : m_spec.buffers) {
      if (static_cast<uint8_t>(buffer.dtype) >= k_dtype_count || buffer.role > BufferRole::inout) {
        return invalid_argument("kernel: a buffer has an unknown dtype or role");
      }
      if (buffer.elements < 0 || buffer.elements > limits::k_tensor_elements) {
        return invalid_argument("kernel: a buffer of {} elements", buffer.elements);
      }
    }
    return std::visit([this](const auto& kernel) { return check(kernel); }, m_spec.kernel);
  }

 private:
  Status check_extents(const std::vector<int64_t>& extents) {
    int64_t product = 1;
    for (const int64_t extent : extents) {
      if (extent < 1 || extent > limits::k_tensor_elements || __builtin_mul_overflow(product, extent, &product)) {
        return invalid_argument("kernel: extent {} is not in [1, 2^40], or the product overflows", extent);
      }
    }
    return {};
  }

  // Every address of the access stays in its buffer while the dims stay in `ranges`.
  Status check_bounds(const Access& access, const std::vector<Range>& ranges) {
    __int128 low = access.offset, high = access.offset;
    const auto widen = [&](int64_t stride, Range range) {
      const __int128 first = static_cast<__int128>(stride) * range.low;
      const __int128 last = static_cast<__int128>(stride) * range.high;
      low += std::min(first, last);
      high += std::max(first, last);
    };
    for (size_t d = 0; d < ranges.size(); ++d) {
      if (ranges[d].low > ranges[d].high) return {};  // never reached
      widen(access.strides[d], ranges[d]);
    }
    for (const IndirectTerm& term : access.indirect) {
      if (term.bound < 1) return {};  // every index is out of range and reported
      widen(term.stride, {0, term.bound - 1});
    }
    const int64_t elements = m_spec.buffers[access.buffer].elements;
    if (low < 0 || high >= elements) {
      return invalid_argument("access: elements {} to {} of buffer {}, which has {}", static_cast<int64_t>(low),
                              static_cast<int64_t>(high), access.buffer, elements);
    }
    return {};
  }

  // Whether or not it is ever made: backends compute with its numbers.
  Status check_access_form(const Access& access, const std::vector<int64_t>& extents) {
    if (access.buffer >= m_spec.buffers.size()) return invalid_argument("access: no buffer {}", access.buffer);
    if (access.strides.size() != extents.size()) {
      return invalid_argument("access: {} strides for {} dims", access.strides.size(), extents.size());
    }
    __int128 farthest = 0;
    const auto reach = [&](__int128 elements) {
      farthest = std::min<__int128>(farthest + (elements < 0 ? -elements : elements), k_beyond_all);
    };
    reach(access.offset);
    for (size_t d = 0; d < extents.size(); ++d) reach(__int128{access.strides[d]} * extents[d]);
    for (const IndirectTerm& term : access.indirect) {
      // Backends compare indices with it as numbers without a sign.
      if (term.bound < 0) return invalid_argument("access: an index has {} values", term.bound);
      reach(__int128{term.stride} * term.bound);
    }
    if (farthest < k_beyond_all) return {};
    return invalid_argument("access: elements that no buffer {} can have", access.buffer);
  }

  Status check_indirect(const Body& body, const Access& access, ExprId user) {
    for (const IndirectTerm& term : access.indirect) {
      if (term.index >= user) return invalid_argument("access: index expression {} is not before its use", term.index);
      if (body.exprs[term.index].dtype != DType::i64) return invalid_argument("access: an index must be i64");
    }
    return {};
  }

  Status check_load(const Body& body, const Scope& scope, ExprId id) {
    const ScalarNode& node = body.exprs[id];
    if (node.slot >= body.accesses.size()) return invalid_argument("expression {}: no access {}", id, node.slot);
    const Access& access = body.accesses[node.slot];
    const BufferSpec& buffer = m_spec.buffers[access.buffer];
    if (buffer.role == BufferRole::output) {
      return invalid_argument("expression {}: loads from output buffer {}", id, access.buffer);
    }
    if (buffer.dtype != node.dtype) return invalid_argument("expression {}: load of another dtype", id);
    KILN_RETURN_IF_ERROR(check_indirect(body, access, id));
    std::vector<Range> ranges = full_ranges(scope.extents);
    if (const ExprId predicate = node.operands[0]; predicate != k_no_expr) {
      if (predicate >= id) return invalid_argument("expression {}: predicate {} is not before it", id, predicate);
      if (body.exprs[predicate].dtype != DType::boolean) {
        return invalid_argument("expression {}: predicate is not boolean", id);
      }
      narrow(body, predicate, ranges);
    }
    return check_bounds(access, ranges);
  }

  Status check_leaf(const Body& body, const Scope& scope, ExprId id) {
    const ScalarNode& node = body.exprs[id];
    switch (node.op) {
      case ScalarOp::load:
        return check_load(body, scope, id);
      case ScalarOp::index:
        if (node.slot < scope.extents.size() && node.dtype == DType::i64) return {};
        return invalid_argument("expression {}: index of dim {} of {}", id, node.slot, scope.extents.size());
      case ScalarOp::reduced:
        if (scope.loops != nullptr && node.slot < scope.loops->reductions.size()) {
          const Reduction& reduction = scope.loops->reductions[node.slot];
          if (reduction.value < id && reduced_dtype(*scope.loops, reduction) == node.dtype) return {};
        }
        return invalid_argument("expression {}: reduction {} is absent, later or of another dtype", id, node.slot);
      case ScalarOp::accumulator:
        if (scope.accumulator == node.dtype) return {};
        return invalid_argument("expression {}: no accumulator of that dtype here", id);
      default:
        return {};
    }
  }

  Status check_operator(const Body& body, ExprId id) {
    const ScalarNode& node = body.exprs[id];
    const int count = arity(node.op);
    for (int i = 0; i < 3; ++i) {
      const ExprId operand = node.operands[static_cast<size_t>(i)];
      if (i >= count ? operand != k_no_expr : operand >= id) {
        return invalid_argument("expression {} ({}): operand {} is missing or not before it", id, to_string(node.op),
                                i);
      }
    }
    const auto operand_dtype = [&](size_t i) { return body.exprs[node.operands[i]].dtype; };
    bool fits = true;
    if (node.op == ScalarOp::cast) {
      fits = true;
    } else if (node.op == ScalarOp::select) {
      fits = operand_dtype(0) == DType::boolean && operand_dtype(1) == node.dtype && operand_dtype(2) == node.dtype;
    } else if (is_comparison(node.op)) {
      fits = node.dtype == DType::boolean && operand_dtype(0) == operand_dtype(1);
    } else if (node.op == ScalarOp::is_nan || node.op == ScalarOp::is_inf || node.op == ScalarOp::logical_not) {
      fits = node.dtype == DType::boolean;
    } else {
      for (int i = 0; i < count; ++i) fits = fits && operand_dtype(static_cast<size_t>(i)) == node.dtype;
    }
    if (fits) return {};
    return invalid_argument("expression {} ({}): operands do not fit {}", id, to_string(node.op),
                            to_string(node.dtype));
  }

  Status check_body(const Body& body, const Scope& scope) {
    for (const Access& access : body.accesses) KILN_RETURN_IF_ERROR(check_access_form(access, scope.extents));
    for (ExprId id = 0; id < body.exprs.size(); ++id) {
      const ScalarNode& node = body.exprs[id];
      const int count = arity(node.op);
      if (count < 0 || static_cast<uint8_t>(node.dtype) >= k_dtype_count) {
        return invalid_argument("expression {}: unknown operation or dtype", id);
      }
      KILN_RETURN_IF_ERROR(count == 0 ? check_leaf(body, scope, id) : check_operator(body, id));
    }
    return {};
  }

  Status check_store(const Body& body, const Store& store, const std::vector<int64_t>& extents, bool per_row,
                     size_t parallel_rank) {
    if (store.value >= body.exprs.size() || store.access >= body.accesses.size()) {
      return invalid_argument("store: no expression {} or access {}", store.value, store.access);
    }
    const Access& access = body.accesses[store.access];
    const BufferSpec& buffer = m_spec.buffers[access.buffer];
    const bool role_fits =
        store.mode == StoreMode::add ? buffer.role == BufferRole::inout : buffer.role != BufferRole::input;
    if (!role_fits) return invalid_argument("store: buffer {} has another role", access.buffer);
    if (buffer.dtype != body.exprs[store.value].dtype) return invalid_argument("store: value of another dtype");
    KILN_RETURN_IF_ERROR(check_indirect(body, access, static_cast<ExprId>(body.exprs.size())));
    std::vector<Range> ranges = full_ranges(extents);
    if (per_row) {
      for (size_t d = parallel_rank; d < extents.size(); ++d) {
        if (access.strides[d] != 0) return invalid_argument("store: a per-row store moves along a reduced dim");
      }
    }
    return check_bounds(access, ranges);
  }

  // Expressions of a row use no reduced dim, and none may use a reduction that is not finished before its
  // stage.
  Status check_stage_uses(const LoopsSpec& loops, size_t stage, const std::vector<size_t>& stage_of,
                          const std::vector<ExprId>& roots) {
    std::vector<bool> seen(loops.body.exprs.size(), false);
    std::vector<ExprId> pending = roots;
    while (!pending.empty()) {
      const ExprId id = pending.back();
      pending.pop_back();
      if (seen[id]) continue;
      seen[id] = true;
      const ScalarNode& node = loops.body.exprs[id];
      for (const ExprId operand : node.operands) {
        if (operand != k_no_expr) pending.push_back(operand);
      }
      if (node.op == ScalarOp::reduced && stage_of[node.slot] >= stage) {
        return invalid_argument("stage {}: uses reduction {} of stage {}", stage, node.slot, stage_of[node.slot]);
      }
      if (node.op == ScalarOp::load) {
        for (const IndirectTerm& term : loops.body.accesses[node.slot].indirect) pending.push_back(term.index);
      }
      if (loops.stages[stage].per_row && uses_reduced_dim(loops, node)) {
        return invalid_argument("stage {}: is per row but expression {} runs along a reduced dim", stage, id);
      }
    }
    return {};
  }

  static bool uses_reduced_dim(const LoopsSpec& loops, const ScalarNode& node) {
    if (node.op == ScalarOp::index) return node.slot >= loops.parallel_rank;
    if (node.op != ScalarOp::load) return false;
    const std::vector<int64_t>& strides = loops.body.accesses[node.slot].strides;
    return std::any_of(strides.begin() + loops.parallel_rank, strides.end(), [](int64_t s) { return s != 0; });
  }

  Status check(const LoopsSpec& loops) {
    KILN_RETURN_IF_ERROR(check_extents(loops.extents));
    if (loops.parallel_rank > loops.extents.size()) {
      return invalid_argument("loops: {} parallel dims of {}", loops.parallel_rank, loops.extents.size());
    }
    for (const Reduction& reduction : loops.reductions) {
      if (reduction.combiner > Combiner::logical_or || reduction.value >= loops.body.exprs.size()) {
        return invalid_argument("loops: a reduction has no value or an unknown combiner");
      }
    }
    KILN_RETURN_IF_ERROR(check_body(loops.body, {loops.extents, &loops, std::nullopt}));
    if (loops.stages.empty()) return invalid_argument("loops: no stages");
    std::vector<size_t> stage_of(loops.reductions.size(), SIZE_MAX);
    for (size_t s = 0; s < loops.stages.size(); ++s) {
      if (loops.stages[s].per_row && !loops.stages[s].reductions.empty()) {
        return invalid_argument("stage {}: is per row but reduces", s);
      }
      for (const uint32_t reduction : loops.stages[s].reductions) {
        if (reduction >= stage_of.size() || stage_of[reduction] != SIZE_MAX) {
          return invalid_argument("stage {}: reduction {} is absent or made twice", s, reduction);
        }
        stage_of[reduction] = s;
      }
    }
    if (std::find(stage_of.begin(), stage_of.end(), SIZE_MAX) != stage_of.end()) {
      return invalid_argument("loops: a reduction belongs to no stage");
    }
    for (size_t s = 0; s < loops.stages.size(); ++s) {
      std::vector<ExprId> roots;
      for (const Store& store : loops.stages[s].stores) {
        KILN_RETURN_IF_ERROR(
            check_store(loops.body, store, loops.extents, loops.stages[s].per_row, loops.parallel_rank));
        roots.push_back(store.value);
        for (const IndirectTerm& term : loops.body.accesses[store.access].indirect) roots.push_back(term.index);
      }
      for (const uint32_t reduction : loops.stages[s].reductions) roots.push_back(loops.reductions[reduction].value);
      KILN_RETURN_IF_ERROR(check_stage_uses(loops, s, stage_of, roots));
    }
    return {};
  }

  Status check_operand(const Body& body, ExprId value, const std::vector<int64_t>& extents, DType dtype) {
    // With k = 0 there are no points, and nothing is loaded.
    if (extents.back() == 0 || extents[extents.size() - 2] == 0) return {};
    KILN_RETURN_IF_ERROR(check_body(body, {extents, nullptr, std::nullopt}));
    if (value >= body.exprs.size() || body.exprs[value].dtype != dtype) {
      return invalid_argument("gemm: an operand's expression is absent or not {}", to_string(dtype));
    }
    return {};
  }

  Status check_pieces(const GemmPieces& pieces, int64_t rows, int64_t columns) {
    for (const auto& [whole, cut] : {std::pair(rows, &pieces.rows), std::pair(columns, &pieces.columns)}) {
      if (cut->empty()) continue;
      KILN_RETURN_IF_ERROR(check_extents(*cut));
      if (product(*cut) != whole) return invalid_argument("gemm: pieces of {} elements of {}", product(*cut), whole);
    }
    return {};
  }

  Status check_load_in_pieces(const Body& body, ExprId value, const GemmPieces& pieces) {
    if (pieces.empty()) return {};
    const ScalarNode* load = value < body.exprs.size() ? load_behind_casts(body, value) : nullptr;
    const bool is_plain =
        load != nullptr && load->operands[0] == k_no_expr && body.accesses[load->slot].indirect.empty();
    return is_plain ? Status() : invalid_argument("gemm: an operand in pieces is no plain load");
  }

  /// No access moves along the batch, and no expression asks where in it a point is.
  static bool ignores_batch(const Body& body) {
    return std::ranges::all_of(body.accesses, [](const Access& access) { return access.strides.front() == 0; }) &&
           std::ranges::none_of(body.exprs,
                                [](const ScalarNode& node) { return node.op == ScalarOp::index && node.slot == 0; });
  }

  Status check_groups(const GemmSpec& gemm) {
    if (!gemm.groups) return {};
    if (gemm.batch.size() != 1 || !gemm.a_pieces.empty() || !gemm.b_pieces.empty()) {
      return invalid_argument("gemm: groups of {} batch dims, or an operand in pieces", gemm.batch.size());
    }
    const GemmGroups& groups = *gemm.groups;
    KILN_RETURN_IF_ERROR(check_access_form(groups.ends, gemm.batch));
    const DType dtype = m_spec.buffers[groups.ends.buffer].dtype;
    KILN_RETURN_IF_ERROR(check_tensor(groups.ends, gemm.batch, dtype, false));
    if (dtype != DType::i32 && dtype != DType::i64) return invalid_argument("gemm: ends in {}", to_string(dtype));
    const bool is_along_m = groups.along == GemmGroups::Along::m;
    if (!ignores_batch(gemm.a) || !ignores_batch(is_along_m ? gemm.epilogue : gemm.b)) {
      return invalid_argument("gemm: what is cut into groups has a batch");
    }
    return {};
  }

  Status check(const GemmSpec& gemm) {
    std::vector<int64_t> extents = gemm.batch;
    extents.insert(extents.end(), {gemm.m, gemm.n});
    KILN_RETURN_IF_ERROR(check_extents(extents));
    if (gemm.k < 0 || gemm.k > limits::k_tensor_elements) return invalid_argument("gemm: k is {}", gemm.k);
    if (gemm.window < 1 || gemm.k % gemm.window != 0) {
      return invalid_argument("gemm: windows of {} along k of {}", gemm.window, gemm.k);
    }
    KILN_RETURN_IF_ERROR(check_pieces(gemm.a_pieces, gemm.m, gemm.k));
    KILN_RETURN_IF_ERROR(check_pieces(gemm.b_pieces, gemm.k, gemm.n));
    KILN_RETURN_IF_ERROR(check_operand(gemm.a, gemm.a_value, a_extents(gemm), gemm.dtype));
    KILN_RETURN_IF_ERROR(check_operand(gemm.b, gemm.b_value, b_extents(gemm), gemm.dtype));
    KILN_RETURN_IF_ERROR(check_load_in_pieces(gemm.a, gemm.a_value, gemm.a_pieces));
    KILN_RETURN_IF_ERROR(check_load_in_pieces(gemm.b, gemm.b_value, gemm.b_pieces));
    KILN_RETURN_IF_ERROR(check_body(gemm.epilogue, {extents, nullptr, accumulator_of(gemm.dtype)}));
    KILN_RETURN_IF_ERROR(check_groups(gemm));
    if (gemm.stores.empty()) return invalid_argument("gemm: no stores");
    for (const Store& store : gemm.stores) {
      KILN_RETURN_IF_ERROR(check_store(gemm.epilogue, store, extents, false, extents.size()));
    }
    return {};
  }

  Status check_tensor(const Access& access, const std::vector<int64_t>& extents, DType dtype, bool is_written) {
    KILN_RETURN_IF_ERROR(check_access_form(access, extents));
    const BufferSpec& buffer = m_spec.buffers[access.buffer];
    if (buffer.dtype != dtype || !access.indirect.empty()) {
      return invalid_argument("{}: buffer {} is {}, expected a plain {}", kind_name(m_spec), access.buffer,
                              to_string(buffer.dtype), to_string(dtype));
    }
    if ((buffer.role == BufferRole::input) == is_written) {
      return invalid_argument("{}: buffer {} has another role", kind_name(m_spec), access.buffer);
    }
    return check_bounds(access, full_ranges(extents));
  }

  Status check_attention(const AttentionSpec& a, bool is_backward) {
    KILN_RETURN_IF_ERROR(check_extents({a.batch, a.heads, a.kv_heads, a.q_len, a.k_len, a.head_dim, a.value_dim}));
    if (a.heads % a.kv_heads != 0) {
      return invalid_argument("attention: {} heads, {} of keys and values", a.heads, a.kv_heads);
    }
    if (!is_floating(a.dtype)) return invalid_argument("attention: dtype {}", to_string(a.dtype));
    KILN_RETURN_IF_ERROR(check_tensor(a.q, {a.batch, a.heads, a.q_len, a.head_dim}, a.dtype, false));
    KILN_RETURN_IF_ERROR(check_tensor(a.k, {a.batch, a.kv_heads, a.k_len, a.head_dim}, a.dtype, false));
    KILN_RETURN_IF_ERROR(check_tensor(a.v, {a.batch, a.kv_heads, a.k_len, a.value_dim}, a.dtype, false));
    KILN_RETURN_IF_ERROR(check_tensor(a.out, {a.batch, a.heads, a.q_len, a.value_dim}, a.dtype, !is_backward));
    KILN_RETURN_IF_ERROR(check_tensor(a.lse, {a.batch, a.heads, a.q_len}, accumulator_of(a.dtype), !is_backward));
    if (a.score_value == k_no_expr) return {};
    KILN_RETURN_IF_ERROR(check_body(a.score, {{a.batch, a.heads, a.q_len, a.k_len}, nullptr, accumulator_of(a.dtype)}));
    if (a.score_value >= a.score.exprs.size() || a.score.exprs[a.score_value].dtype != accumulator_of(a.dtype)) {
      return invalid_argument("attention: the score's expression is absent or of another dtype");
    }
    return {};
  }

  Status check(const AttentionSpec& attention) { return check_attention(attention, false); }

  Status check(const AttentionBackwardSpec& backward) {
    const AttentionSpec& a = backward.forward;
    KILN_RETURN_IF_ERROR(check_attention(a, true));
    KILN_RETURN_IF_ERROR(check_tensor(backward.grad_out, {a.batch, a.heads, a.q_len, a.value_dim}, a.dtype, false));
    KILN_RETURN_IF_ERROR(check_tensor(backward.grad_q, {a.batch, a.heads, a.q_len, a.head_dim}, a.dtype, true));
    KILN_RETURN_IF_ERROR(check_tensor(backward.grad_k, {a.batch, a.kv_heads, a.k_len, a.head_dim}, a.dtype, true));
    return check_tensor(backward.grad_v, {a.batch, a.kv_heads, a.k_len, a.value_dim}, a.dtype, true);
  }

  Status check(const SortSpec& sort) {
    if (sort.extents.empty()) return invalid_argument("sort: no dim to sort along");
    KILN_RETURN_IF_ERROR(check_extents(sort.extents));
    if (sort.x.buffer >= m_spec.buffers.size()) return invalid_argument("sort: no buffer {}", sort.x.buffer);
    KILN_RETURN_IF_ERROR(check_tensor(sort.x, sort.extents, m_spec.buffers[sort.x.buffer].dtype, false));
    if (sort.topk && (sort.topk->k < 1 || sort.topk->k > sort.extents.back())) {
      return invalid_argument("sort: the first {} of {}", sort.topk->k, sort.extents.back());
    }
    return check_tensor(sort.order, sort.order_extents(), DType::i64, true);
  }

  const KernelSpec& m_spec;
};

}  // namespace

Status validate(const KernelSpec& spec) { return Validator(spec).run(); }

}  // namespace kiln
