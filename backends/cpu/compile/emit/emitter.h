#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/cpu/features.h"

namespace kiln::cpu {

using Values = std::vector<llvm::Value*>;

/// Writes IR in its final shape: explicit vectors, values in SSA form (no allocas), loops that no pass will
/// touch. What is emitted is what runs; there is no optimiser behind it.
///
/// Widths: `lanes()` f32 values fill a vector of the target (16, 8 or 4). Nothing forbids vectors of other
/// lengths: code generation splits longer ones. Numerics: plain IEEE; no fast-math flags unless the caller
/// sets them on `ir`.
class Emitter {
 public:
  Emitter(llvm::Module& module, const CpuTarget& target);

  llvm::IRBuilder<> ir;
  llvm::Module& module() const { return m_module; }
  llvm::LLVMContext& context() const { return m_module.getContext(); }
  const CpuTarget& target() const { return m_target; }
  int lanes() const { return m_target.vector_bytes / 4; }

  // Types.
  llvm::Type* i1() { return ir.getInt1Ty(); }
  llvm::Type* i8() { return ir.getInt8Ty(); }
  llvm::Type* i16() { return ir.getInt16Ty(); }
  llvm::Type* i32() { return ir.getInt32Ty(); }
  llvm::Type* i64() { return ir.getInt64Ty(); }
  llvm::Type* f32() { return ir.getFloatTy(); }
  llvm::Type* f64() { return ir.getDoubleTy(); }
  llvm::Type* pointer() { return ir.getPtrTy(); }
  /// `element` itself when lanes is 1.
  static llvm::Type* vector(llvm::Type* element, int lanes);
  /// Lanes of a value's type; 1 for scalars.
  static int lanes_of(const llvm::Value* value);
  /// `shape`'s number of lanes, of another element type.
  static llvm::Type* like(const llvm::Value* shape, llvm::Type* element);

  // Constants. `type` may be a vector: all lanes are the value.
  llvm::Value* index(int64_t value) { return ir.getInt64(static_cast<uint64_t>(value)); }
  /// The quotient of numbers that are not negative, rounded up.
  llvm::Value* ceil_div(llvm::Value* value, llvm::Value* divisor) {
    return ir.CreateUDiv(ir.CreateAdd(value, ir.CreateSub(divisor, index(1))), divisor);
  }
  /// Where piece `number` begins of `total` things that `count` pieces share evenly.
  llvm::Value* even_start(llvm::Value* number, llvm::Value* total, llvm::Value* count) {
    return ir.CreateUDiv(ir.CreateMul(number, total), count);
  }
  static llvm::Constant* real(llvm::Type* type, double value);
  static llvm::Constant* integer(llvm::Type* type, int64_t value);
  /// <0, 1, …, lanes - 1> of an integer element type.
  static llvm::Constant* iota(llvm::Type* element, int lanes);

  // Functions. The insertion point moves into the new function; finish it with ret.
  struct Entry {
    llvm::Function* function;
    llvm::Value* buffers;    // void* const*
    llvm::Value* workspace;  // 64-byte aligned
    llvm::Value* status;     // uint32_t*
    llvm::Value* first_task;
    llvm::Value* last_task;
    llvm::Value* extents;  // const int64_t*
  };
  /// The function an image starts at (runtime/entry.h).
  Entry begin_entry();
  /// A function that only this image calls. Pointer parameters are noalias.
  llvm::Function* begin_function(const std::string& name, llvm::Type* result, llvm::ArrayRef<llvm::Type*> parameters);
  /// The pointer of buffer `number`.
  llvm::Value* buffer(const Entry& entry, uint32_t number);

  // Control. Bodies are emitted once, except where said.
  using LoopBody = std::function<Values(llvm::Value* i, const Values& carried)>;
  /// for (i = begin; i < end; i += step) carried = body(i, carried). Returns what is carried in the end.
  /// Constant bounds give no guard, no loop for a single round and nothing for none.
  Values loop(llvm::Value* begin, llvm::Value* end, int64_t step, const Values& initial, const LoopBody& body);
  void loop(llvm::Value* begin, llvm::Value* end, int64_t step, const std::function<void(llvm::Value* i)>& body);
  /// while (condition(carried)) carried = body(carried). Returns what is carried in the end.
  Values loop_while(const Values& initial, const std::function<llvm::Value*(const Values& carried)>& condition,
                    const std::function<Values(const Values& carried)>& body);
  void if_then(llvm::Value* condition, const std::function<void()>& then);
  Values if_else(llvm::Value* condition, const std::function<Values()>& then, const std::function<Values()>& otherwise);

  // Addresses and memory. Strides and offsets in bytes; alignment in bytes, that of an element unless known
  // better.
  llvm::Value* advance(llvm::Value* pointer, llvm::Value* bytes) { return ir.CreateGEP(i8(), pointer, bytes); }
  llvm::Value* advance(llvm::Value* pointer, int64_t bytes) {
    return bytes == 0 ? pointer : ir.CreateGEP(i8(), pointer, index(bytes));
  }
  llvm::Value* load(llvm::Type* type, llvm::Value* pointer, uint64_t alignment = 0);
  void store(llvm::Value* value, llvm::Value* pointer, uint64_t alignment = 0);
  /// Lanes whose mask is false are zero and touch no memory.
  llvm::Value* masked_load(llvm::Type* type, llvm::Value* pointer, llvm::Value* mask);
  void masked_store(llvm::Value* value, llvm::Value* pointer, llvm::Value* mask);
  /// How to load what the target interleaves() when it is not gathered: lane l is element l * stride from the pointer on, or
  /// zero where the mask (null: all lanes exist) is false. No memory behind the last lane's element is touched.
  llvm::Value* interleaved_load(llvm::Type* type, llvm::Value* pointer, int64_t stride, llvm::Value* mask);
  /// The same way back. What lies between the lanes is not touched.
  void interleaved_store(llvm::Value* value, llvm::Value* pointer, int64_t stride, llvm::Value* mask);
  /// Lane l is true when l < count (i64).
  llvm::Value* prefix_mask(llvm::Value* count, int lanes);

  // Arithmetic.
  llvm::Value* splat(llvm::Value* scalar, int lanes);
  /// a * b + c: one rounding where the target has FMA, two where it has not (a library call is no choice).
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* unary(llvm::Intrinsic::ID intrinsic, llvm::Value* value);
  /// sum + a * b, where each lane of a and b has two bf16 in its 32 bits (AVX512-BF16). Each product is exact and added with
  /// a rounding of its own; denormals count as zeros.
  llvm::Value* fma_of_pairs(llvm::Value* a, llvm::Value* b, llvm::Value* sum);
  /// Two vectors of f32 rounded to bf16, one after the other; denormals become zeros (AVX512-BF16).
  llvm::Value* bf16_of(llvm::Value* low, llvm::Value* high);
  /// The same lane by lane, `low` in the lower bits of 32.
  llvm::Value* pairs_of(llvm::Value* low, llvm::Value* high);
  /// Combines the lanes pairwise, halves first: always in the same order.
  llvm::Value* fold_lanes(llvm::Value* vector, const std::function<llvm::Value*(llvm::Value*, llvm::Value*)>& combine);
  /// One vector whose lane i is the sum of all lanes of vectors[i]; what lies behind the last repeats it.
  llvm::Value* sum_of_each(const Values& vectors);
  /// Transposes n vectors of n 32-bit lanes (n = 4, 8 or 16) in place. Straight-line and long (n * log2 n
  /// shuffles): give it a function of its own where it is needed more than once.
  void transpose(Values& rows);

 private:
  llvm::BasicBlock* block(const char* name);
  llvm::Function* make_function(const std::string& name, llvm::Type* result, llvm::ArrayRef<llvm::Type*> parameters,
                                bool exported);
  llvm::MDNode* keep_loop();
  uint64_t natural_alignment(llvm::Type* type) const;

  llvm::Module& m_module;
  const CpuTarget& m_target;
};

}  // namespace kiln::cpu
