#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "frontend/kernel/scalar.h"

namespace kiln {

enum class BufferRole : uint8_t { input = 0, output = 1, inout = 2 };

/// A parameter of a kernel: `elements` elements of `dtype`, all that any access can reach. Never aliases another
/// parameter of the same launch. Aligned to the dtype only, unless the plan allocated it (64 bytes).
struct BufferSpec {
  DType dtype = DType::f32;
  int64_t elements = 0;
  BufferRole role = BufferRole::input;
  uint64_t bytes() const { return static_cast<uint64_t>(elements) * size_of(dtype); }
  bool operator==(const BufferSpec&) const = default;
};

/// Combines `value` over all reduced dims. Accumulates in accumulator_of(dtype of value); maximum and minimum of
/// nothing are -inf and +inf; NaN wins. The order of a floating sum is the schedule's, and fixed by it.
struct Reduction {
  Combiner combiner = Combiner::sum;
  ExprId value = k_no_expr;
  bool operator==(const Reduction&) const = default;
};

/// One pass. Per element: runs over every point of the reduced dims, combining `reductions` (indices into
/// LoopsSpec::reductions) and making `stores`. Per row: makes `stores` once for each point of the parallel dims;
/// its expressions use no load or index of a reduced dim.
struct Stage {
  bool per_row = false;
  std::vector<uint32_t> reductions;
  std::vector<Store> stores;
  bool operator==(const Stage&) const = default;
};

/// Pointwise ops, reductions, normalisations, gathers, scatters: for each point of extents[0, parallel_rank) (in any
/// order, on any thread) the stages run one after another; each passes over extents[parallel_rank, …) (the reduced
/// dims, in row-major order wherever a store has mode add or an indirect address: so scatters are deterministic). An
/// expression may use the results of reductions of earlier stages only; `reduced` leaves have reduced_dtype(). Softmax is three stages: maximum; sum of exp; store.
/// No store of one parallel point may be read at another.
struct LoopsSpec {
  std::vector<int64_t> extents;  // ≥ 1 each; outermost first
  uint32_t parallel_rank = 0;
  Body body;
  std::vector<Reduction> reductions;
  std::vector<Stage> stages;
  bool operator==(const LoopsSpec&) const = default;
};

/// The dtype of the `reduced` leaf: boolean for the logical combiners, else accumulator_of the combined value.
DType reduced_dtype(const LoopsSpec& loops, const Reduction& reduction);

/// The extents that the rows and columns of a gemm's operand are cut into, outermost first, where they do not lie at one
/// stride: windows of an image, whose columns are (y, x) and whose rows are (channel, kernel y, kernel x). Empty: not cut.
struct GemmPieces {
  std::vector<int64_t> rows, columns;
  bool empty() const { return rows.empty() && columns.empty(); }
  bool operator==(const GemmPieces&) const = default;
};

/// Which matrix of the batch each row of a gemm, or each of its elements along k, belongs to, where data say so: the first
/// one whose end is larger than the row's number. Matrices may be of no rows, and rows of no matrix.
struct GemmGroups {
  enum class Along : uint8_t { m, k };
  Along along = Along::m;
  Access ends;  // over (batch), plain; i32 or i64
  bool operator==(const GemmGroups&) const = default;
};

std::string_view to_string(GemmGroups::Along along);

/// C[b…, m, n] = Σ_k A[b…, m, k] * B[b…, k, n], then `stores` of expressions over (b…, m, n).
///
/// A and B are expressions too (`a`, `b`): bodies over (b…, m, k) and (b…, k, n) with one result each; the common
/// case is a single load. f16 and bf16 multiply exactly and accumulate in f32, integers in i64.
/// K may be 0: the accumulator is then 0.
/// `window`: k counts channels, and of each as many elements as a convolution's window has; 1 for other products. It says in
/// which order sums are best made, not what they are.
/// An operand in pieces has an iteration dim for each: (batch…, m…, k…) or (batch…, k…, n…), row-major. It is one load
/// without a predicate or an index from data, or casts of that.
/// With `groups` there is one batch dim, and nothing is in pieces. Along m: of each row there is C[b, m, n] of the matrix that
/// it belongs to alone, or with a sum of 0 where it belongs to none; A and the epilogue know of no b. Along k: the sum of each
/// C[b, m, n] is of the elements that belong to b; A and B know of no b.
struct GemmSpec {
  std::vector<int64_t> batch;  // extents, may be empty
  int64_t m = 0, n = 0, k = 0, window = 1;
  DType dtype = DType::f32;  // of the operands' expressions
  Body a, b;                 // iteration dims: (batch…, m, k) and (batch…, k, n)
  ExprId a_value = k_no_expr, b_value = k_no_expr;
  GemmPieces a_pieces, b_pieces;
  std::optional<GemmGroups> groups;
  Body epilogue;  // iteration dims: (batch…, m, n); `accumulator` has accumulator_of(dtype)
  std::vector<Store> stores;
  bool operator==(const GemmSpec&) const = default;
};

/// The iteration of each operand's body.
std::vector<int64_t> a_extents(const GemmSpec& gemm);
std::vector<int64_t> b_extents(const GemmSpec& gemm);

/// The load that an expression is, or casts of it; null for any other.
const ScalarNode* load_behind_casts(const Body& body, ExprId value);

/// out[b, h, q, :] = Σ_k softmax_k(score[b, h, q, k]) * V[b, h / group, k, :], where
/// score = `score` expression over (b, h, q, k), its accumulator leaf being scale * (Q[b,h,q,:] · K[b,h/group,k,:]).
/// `causal` keeps k ≤ q + causal_offset only (the offset lets a block of queries stand at the end of the keys).
/// A row with no key gives zeros and logsumexp -inf. lse[b, h, q] = log Σ exp(score), natural log, in accumulator_of(dtype).
/// Accesses have strides over (b, h, q, d) for q/out, (b, kv head, k, d) for k/v, (b, h, q) for lse.
struct AttentionSpec {
  int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, k_len = 0, head_dim = 0, value_dim = 0;
  DType dtype = DType::f32;
  double scale = 1;
  bool causal = false;
  int64_t causal_offset = 0;
  Access q, k, v, out, lse;
  Body score;                      // iteration dims (b, h, q, k)
  ExprId score_value = k_no_expr;  // k_no_expr: the accumulator itself
  bool operator==(const AttentionSpec&) const = default;
};

/// dq, dk, dv of the same attention from the gradient of `out`, the saved out and lse. The score expression must be
/// linear in the accumulator with slope 1 (bias, mask). dq, dk, dv have q's, k's and v's index order.
/// Source: FlashAttention-2 (Dao, arXiv 2307.08691), algorithm 2; recomputes probabilities from lse.
struct AttentionBackwardSpec {
  AttentionSpec forward;
  Access grad_out, grad_q, grad_k, grad_v;
  bool operator==(const AttentionBackwardSpec&) const = default;
};

/// The first k places of a sort, 1 at least, as topk_places() (base/topk.h) has them.
struct TopK {
  int64_t k = 1;
  bool sorted = true;
  bool operator==(const TopK&) const = default;
};

/// order[r…, p] = the place, along the last dim, of the element of x[r…, :] that p others come before. Equal elements come as
/// they stand, where nothing else is said; NaN is above all numbers.
struct SortSpec {
  std::vector<int64_t> extents;  // of x, outermost first; at least one
  bool descending = false;
  Access x, order;           // plain; order's buffer is i64
  std::optional<TopK> topk;  // nothing: all places

  /// Of order: x's, but for the last dim where not all places are told.
  std::vector<int64_t> order_extents() const;
  bool operator==(const SortSpec&) const = default;
};

/// One device-independent kernel: what is tuned, compiled and cached. Equal specs have equal canonical bytes.
struct KernelSpec {
  std::vector<BufferSpec> buffers;
  std::variant<LoopsSpec, GemmSpec, AttentionSpec, AttentionBackwardSpec, SortSpec> kernel;

  bool operator==(const KernelSpec&) const = default;
};

/// The spec's canonical bytes (base/bytes.h); what the code key hashes.
std::vector<uint8_t> canonical_bytes(const KernelSpec& spec);

/// Whether some address comes from data, so that the kernel may find an index outside its tensor.
bool has_indirect_access(const KernelSpec& spec);

/// "loops", "gemm", "attention", "attention_backward", "sort": attention's are the names of the ops they are made of.
std::string_view kind_name(const KernelSpec& spec);

/// The kernel's name in profiles, never in keys; docs/kernels.md has the grammar. "gemm_f32_512x3072x768_nt",
/// "loops_f32_512x768_r1", "attention_f32_1x12x512x512x64_causal".
std::string kernel_name(const KernelSpec& spec);

/// Whether nothing is out of bounds, operands come before uses, dtypes are consistent and limits are kept: what every
/// backend may rely on, since fuse() checks each kernel that it makes. Bounds of a load under a predicate are judged
/// where the predicate holds; its conjuncts (bitwise_and) that compare an `index` with a constant are understood, so a
/// backend may evaluate such a predicate before forming the address, but must not touch memory where it is false.
/// Errors: invalid_argument, resource_exhausted for what is beyond base/limits.h.
Status validate(const KernelSpec& spec);

}  // namespace kiln
