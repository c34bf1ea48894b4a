#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/cpu/features.h"
#include "base/expected.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// What one multiply instruction takes of each operand, which is what packed operands hold: a step of k.
enum class GemmStep : uint8_t {
  element,    // one element in the accumulator's dtype
  bf16_pair,  // two neighbours along k
  i16_pair,   // two neighbours along k, widened bytes
  i8_quad,    // four neighbours along k
};

/// For descriptions of schedules: "" or " in pairs".
std::string_view how_multiplied(GemmStep step);

/// The dtypes of a product, on one way to make it.
struct GemmTypes {
  DType element = DType::f32;      // of the operands' values
  DType accumulator = DType::f32;  // of sums
  GemmStep step = GemmStep::element;
  int64_t steps_at_once = 1;  // that one multiply instruction takes
  bool offsets_a = false;  // A's bytes are packed as unsigned ones, 128 more than they were, which the sums lose again

  /// Elements of a step.
  int64_t k_group() const { return step == GemmStep::element ? 1 : step == GemmStep::i8_quad ? 4 : 2; }
  int64_t step_bytes() const { return step == GemmStep::element ? static_cast<int64_t>(size_of(accumulator)) : 4; }
  bool converts() const { return step == GemmStep::element ? element != accumulator : step == GemmStep::i16_pair; }
};

/// Operands are converted to the accumulator's dtype, then multiplied one element of k at a time. Of any gemm.
Expected<GemmTypes> widened(const KernelSpec& spec, const CpuTarget& target);
/// Operands in bf16 are multiplied as they are, two neighbours along k at once (AVX512-BF16).
/// Errors, as of those below: unimplemented where the target lacks that, or the operands are no such.
Expected<GemmTypes> bf16_pairs(const KernelSpec& spec, const CpuTarget& target);
/// Signed bytes are widened to i16 and multiplied two neighbours along k at once (pmaddwd), which is exact in i32.
Expected<GemmTypes> i16_pairs(const KernelSpec& spec, const CpuTarget& target);
/// Signed bytes are multiplied four neighbours along k at once (AVX512-VNNI). vpdpbusd multiplies unsigned by signed bytes:
/// A + 128 stands for A, and 128 times the sums of B's columns are taken off again. (AVX-VNNI-INT8 multiplies signed bytes;
/// no target on the ladder has it.)
Expected<GemmTypes> i8_quads(const KernelSpec& spec, const CpuTarget& target);

/// The same by AMX's tiles: 16 rows by 16 steps times 16 steps by 16 columns in one instruction. Bytes are both signed.
Expected<GemmTypes> bf16_tiles(const KernelSpec& spec, const CpuTarget& target);
Expected<GemmTypes> i8_tiles(const KernelSpec& spec, const CpuTarget& target);

/// A dim in pieces: extents, and strides in elements, outermost first; at least one.
struct Pieces {
  std::vector<int64_t> extents, strides;

  int64_t elements() const;
  /// How many neighbours lie side by side in memory; fewer where each of them takes several loads.
  int64_t run() const;
};

/// Where the elements of an operand in pieces lie.
struct PiecedAccess {
  const Access* access = nullptr;
  Pieces tile, k;
};

/// How one operand of a gemm can be read. Its "tile dim" is m for A and n for B.
struct GemmOperand {
  const Body* body = nullptr;
  ExprId value = k_no_expr;
  /// The load, when the operand is nothing but one load and casts of it: elements can be read where they lie.
  const Access* plain = nullptr;
  int64_t tile_stride = 0, k_stride = 0;  // of the plain load, in elements
  /// The load of an operand in pieces, which is not plain.
  std::optional<PiecedAccess> pieced;
  DType loaded = DType::f32;  // what the plain or pieced load reads; else what is evaluated
  std::vector<DType> casts;   // from there to the dtype of elements, in order
  /// Vectors along k are better than vectors along the tile dim: more of the loads are contiguous that way.
  bool k_lanes = false;

  /// Of an element where it lies.
  int64_t element_bytes() const { return static_cast<int64_t>(size_of(loaded)); }
};

struct SizedGemm;

inline constexpr int64_t k_page_bytes = 4096;  // lines that lie so far apart share a set of the first-level cache

/// The order in which steps of k are summed.
struct SumOrder {
  int64_t run = 1;     // how many are summed from zero before they are added to the sums of those before
  int64_t window = 1;  // how many lie one after another for a channel; a run goes through its channels first
};

/// A gemm spec as the generator sees it: derived facts, no choices. Borrows the spec.
struct GemmProblem {
  const KernelSpec* spec = nullptr;
  const GemmSpec* gemm = nullptr;
  const CpuTarget* target = nullptr;
  const SizedGemm* sized = nullptr;  // which numbers of the spec are the launch's; null: none
  GemmTypes types;
  int registers = 32;   // vector registers of the target
  int64_t batches = 1;  // products of m by n by k: one, where groups share these
  GemmOperand a, b;
  /// A store whose memory may hold partial sums between two blocks of k: written once, of the accumulator's type, along n
  /// contiguous, and not read by the epilogue. Without one, partial sums lie in the workspace.
  const Access* partial_sums = nullptr;

  /// Whether packing an operand converts its elements: they lie in memory as something else than what is multiplied.
  bool converts(const GemmOperand& operand) const { return types.converts() || !operand.casts.empty(); }
  /// Whether no operand is cast to the dtype of what is multiplied.
  bool lies_as_element() const { return a.casts.empty() && b.casts.empty(); }
  /// Of one step of k of a row of A or a column of B, as it is multiplied.
  int64_t packed_bytes() const { return types.step_bytes(); }
  int64_t sum_bytes() const { return static_cast<int64_t>(size_of(types.accumulator)); }
  /// Sums that a vector holds.
  int64_t sum_lanes() const { return target->vector_bytes / sum_bytes(); }
  int64_t k_group() const { return types.k_group(); }
  /// Steps of k, a whole number of instructions; zeros are packed for what the last are short of.
  int64_t steps() const {
    const int64_t at_once = k_group() * types.steps_at_once;
    return (gemm->k + at_once - 1) / at_once * types.steps_at_once;
  }
  /// One run where sums are exact.
  SumOrder sum_order() const;
  /// Where k is cut into blocks of so many steps: the same order where these are whole runs, else even runs of each.
  SumOrder sum_order_of_blocks(int64_t block) const;
  /// The fewest steps, `most` or more, that are whole runs; all of k where that is less.
  int64_t in_whole_runs(int64_t most) const;
  /// Whether the kernel of a tile can read A where it lies: each step is one element of what is multiplied, in memory.
  bool reads_a_directly() const;
  /// Whether it can read B where it lies: a vector of columns is one step.
  bool reads_b_directly() const { return b.plain != nullptr && b.tile_stride == 1 && k_group() == 1; }
  /// B may lie in memory as it would be packed: in panels, each a vector of columns wide, whose steps of k lie side by side.
  /// How many steps a panel has, after which the next block of k begins elsewhere; 0 where B does not lie so.
  int64_t panel_steps() const;
  /// A vector of sums.
  int64_t sum_vector_bytes() const { return sum_lanes() * sum_bytes(); }
  /// What is multiplied into a vector of sums at once, of the operand whose tile dim the lanes run along.
  int64_t packed_vector_bytes() const { return sum_lanes() * packed_bytes(); }

 private:
  /// Whether sums round; those of integers are exact, however long.
  bool rounds() const { return is_floating(types.accumulator); }
};

GemmProblem analyse_gemm(const KernelSpec& spec, const CpuTarget& target, const GemmTypes& types);

/// The same numbers computed as C^T = B^T A^T: m and n, A and B exchange their roles. Vectors then run along what was
/// m: better when n is small or the output lies m-contiguous.
KernelSpec exchanged(const KernelSpec& spec);

/// The spec in the form that is compiled, `exchanged` or as it is.
KernelSpec oriented(const KernelSpec& spec, bool is_exchanged);

/// Whether lanes, and stores, lie better along m, however large the problem is otherwise.
bool lies_along_m(const GemmProblem& problem);

/// Whether the target multiplies pairs of bf16 as operands have them in memory: to widen these first is slower.
bool multiplies_pairs_in_memory(const KernelSpec& spec, const CpuTarget& target);

/// Whether the model takes `exchanged` for the better form of the problem.
bool prefers_exchange(const GemmProblem& problem);

}  // namespace kiln::cpu
