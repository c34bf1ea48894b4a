#pragma once

#include <functional>
#include <map>
#include <string>

#include "backends/cpu/compile/gemm/emission.h"

namespace kiln::cpu {

class GemmBody;
class PieceCounter;
struct Scope;

/// Bytes from one packed row of k to the next (ReadA::rows). Not a power of two, or rows would share cache sets.
int64_t packed_row_bytes(const GemmEmission& emission);

/// The functions that evaluate an operand into the workspace, converted to the type that is multiplied. Each writes a call:
///
/// panels: `count` tiles of one shape, each [k_count][width], from tile index `first` on; lanes along the tile dim.
///   The width is rounded up to whole vectors for B, whose missing lanes become zero, and extra_steps() follow each tile.
/// rows: `count` rows [packed_row_bytes], lanes along k; of an operand that is contiguous along the tile dim, as many rows
///   as there are lanes at a time, by way of registers.
/// transposed: one tile [k_count][width] of B from k-contiguous columns, by way of registers. Writes up to sum_lanes() - 1
///   steps past its end, so tiles are packed in ascending order and the last has slack behind it.
///
/// Of what does not exist in an edge tile, panels have zeros, `transposed` has the last column that does.
class GemmPacking {
 public:
  struct Call {
    GemmPlace place;
    llvm::Value* source = nullptr;  // address of (first, k), when the operand is plain
    llvm::Value* target = nullptr;
    llvm::Value* k_count = nullptr;  // steps of k
    llvm::Value* count = nullptr;
    llvm::Value* first = nullptr;  // index along the tile dim
    llvm::Value* k = nullptr;      // the first element along k
    llvm::Value* exist = nullptr;  // rows or columns of the one tile that is packed; null for all
  };

  GemmPacking(GemmEmission& emission, bool is_a) : m_g(emission), m_is_a(is_a) {}

  void panels(int64_t width, const Call& call);
  void rows(const Call& call);
  void transposed(const TileShape& shape, llvm::Value* scratch, const Call& call);
  /// Behind each of `count` panels of B that were packed, `vectors` wide: what the sums of its columns begin with.
  void offset_sums(int64_t vectors, const Call& call);

  /// Whether `transposed` evaluates into scratch first: packed_row_bytes per column of the tile.
  bool transposes_from_scratch() const {
    return operand().plain == nullptr || operand().k_stride != 1 || m_g.problem.converts(operand());
  }

 private:
  const GemmOperand& operand() const { return m_is_a ? m_g.problem.a : m_g.problem.b; }
  llvm::Function* begin(const std::string& name, bool is_edge, Call& call);
  /// Writes a call of the function of that name, which `emit` writes before the first.
  void invoke(const std::string& name, const Call& call, const std::function<void(const Call&)>& emit);
  void emit_panels(int64_t width, const Call& call);
  void emit_pieced_panels(int64_t width, const Call& call);
  void emit_pieced_rows(const Call& call);
  void emit_missing_steps(const Call& call, llvm::Value* count);
  Values next_element(const PieceCounter& along_k, const Values& at, llvm::Value* k) const;
  void emit_offset_sums(int64_t vectors, const Call& call);
  /// From one tile to the next.
  llvm::Value* panel_bytes_of(const Call& call, int64_t step_bytes) const;
  void copy_plain(const Call& call, int64_t width, const Values& rows, llvm::Value* offset, llvm::Value* k,
                  llvm::Value* target);
  void emit_rows(const Call& call);
  void emit_row_blocks(const Call& call);
  bool has_row_blocks() const;
  llvm::Function* transpose_block(int64_t columns, int64_t vectors, llvm::Value* row_bytes, bool whole, bool is_edge);
  llvm::Value* pieced_base(const Call& call) const;
  int tile_dim(const GemmBody& body) const;
  int k_dim(const GemmBody& body) const;
  /// The operand's elements as they are packed, with the scope's lanes.
  llvm::Value* evaluate(GemmBody& body, Scope& scope) const;
  /// Bytes as they are packed.
  llvm::Value* with_offset(llvm::Value* bytes) const;
  /// The type of `lanes` elements where the operand lies.
  llvm::Type* loaded_vector(int64_t lanes) const;
  /// How many elements along k the call packs.
  llvm::Value* element_count(const Call& call) const;
  /// Whether every block of k but the last is whole vectors: then each begins at a multiple of its lanes.
  bool has_whole_vectors() const;
  /// Whether some block's elements do not fill the last vector along k.
  bool has_short_vector() const;
  bool takes_k_from_call() const;
  /// Of the whole steps of k, how many elements there are not, at most, and whether the element `i` of some step is such a one.
  int64_t missing_elements() const;
  /// Whether the last instruction along k also takes steps that there are not: zeros stand for them.
  bool pads_steps() const { return missing_elements() >= m_g.k_group(); }
  bool may_be_missing(int64_t i) const { return missing_elements() >= m_g.k_group() - i; }
  /// Where the elements of the step that begins at k are along k. The last one stands for those behind it.
  Values elements_of_step(const GemmPlace& place, llvm::Value* k) const;
  /// Where these lie, in the first row or column of a plain operand.
  Values rows_of_step(const Call& call, llvm::Value* k) const;
  /// What an element is in registers before it is packed.
  llvm::Type* element_type() const { return m_g.k_group() == 1 ? m_g.packed_step() : m_g.packed_element(); }
  /// One step of its elements. Behind the last element along k there is a zero.
  llvm::Value* join(const GemmPlace& place, const Values& elements, llvm::Value* k) const;

  GemmEmission& m_g;
  bool m_is_a;
  std::map<std::string, llvm::Function*> m_functions;
  std::map<std::tuple<int64_t, int64_t, bool, bool>, llvm::Function*> m_transposes;
};

}  // namespace kiln::cpu
