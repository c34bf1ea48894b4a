#pragma once

#include <string>

#include "backends/cpu/compile/emit/scalar_emitter.h"
#include "backends/cpu/compile/gemm/blocking.h"
#include "backends/cpu/compile/gemm/problem.h"

namespace kiln::cpu {

/// A tile of C as a function is written for it. `tail` lanes of the last vector exist; 0 means all.
struct TileShape {
  int64_t rows = 1, vectors = 1, tail = 0;
  auto operator<=>(const TileShape&) const = default;
  std::string suffix() const { return fmt::format("{}x{}{}", rows, vectors, tail ? fmt::format("_{}", tail) : ""); }
};

/// Where a point of a kernel stands: what every function of a gemm is told. Values of the function being written.
struct GemmPlace {
  llvm::Value* buffers = nullptr;
  llvm::Value* status = nullptr;
  llvm::Value* batch = nullptr;  // linear
};

/// What the parts of one gemm's code share.
struct GemmEmission {
  GemmEmission(Emitter& emitter, const GemmProblem& a_problem, const GemmBlocking& a_blocking)
      : e(emitter), problem(a_problem), blocking(a_blocking), grid(blocking, problem) {}

  Emitter& e;
  const GemmProblem& problem;
  const GemmBlocking blocking;
  const GemmGrid grid;

  // See GemmProblem.
  int64_t packed_bytes() const { return problem.packed_bytes(); }
  int64_t packed_vector_bytes() const { return problem.packed_vector_bytes(); }
  int64_t sum_bytes() const { return problem.sum_bytes(); }
  int64_t sum_lanes() const { return problem.sum_lanes(); }
  int64_t sum_vector_bytes() const { return problem.sum_vector_bytes(); }
  int64_t k_group() const { return problem.k_group(); }
  /// Where the loops carry partial sums from block to block of k.
  int64_t partial_row_bytes() const;
  bool has_partial_sums_in_workspace() const { return grid.blocks > 1 && problem.partial_sums == nullptr; }

  /// One step of k of a row or a column. A pair of bf16 is an i32, the first element in its lower half.
  llvm::Type* packed_step() const { return k_group() == 1 ? type_of(problem.types.multiply) : e.i32(); }
  llvm::Type* packed_vector() const { return Emitter::vector(packed_step(), lanes()); }
  llvm::Type* sum_vector() const { return Emitter::vector(type_of(problem.types.accumulator), lanes()); }
  int lanes() const { return static_cast<int>(sum_lanes()); }
  llvm::Value* zero() const { return llvm::Constant::getNullValue(sum_vector()); }
  /// sum + a * b, one step of k in each lane.
  llvm::Value* multiply_add(llvm::Value* a, llvm::Value* b, llvm::Value* sum) const;
  llvm::Value* add(llvm::Value* a, llvm::Value* b) const;
  /// The first `active` of `lanes` lanes, a constant; null for all of them.
  llvm::Value* mask(int64_t active, int64_t lanes) const;
  /// `vector` has sum_lanes() lanes, of which the first `active` exist.
  llvm::Value* load_lanes(llvm::Type* vector, llvm::Value* pointer, int64_t active, uint64_t alignment = 0) const;
  void store_lanes(llvm::Value* value, llvm::Value* pointer, int64_t active, uint64_t alignment = 0) const;
  /// Elements where they lie, as they are multiplied: a vector of columns, or of lanes() steps along k. `mask` has a lane
  /// for each element, null for all; what is masked is zero.
  llvm::Value* load_elements(llvm::Value* pointer, llvm::Value* mask) const;
  /// An element's value in registers, of the type that is multiplied one element at a time.
  llvm::Value* to_multiply(ScalarEmitter& scalars, llvm::Value* value) const;
  /// The first index of a piece.
  llvm::Value* start_of(const Split& split, llvm::Value* piece) const;
  /// The indices of the batch dims.
  Values batch_indices(llvm::Value* linear) const;
  /// The address of an access without indirect terms at (batch, second to last, last).
  llvm::Value* address(const Access& access, const GemmPlace& place, llvm::Value* outer, llvm::Value* inner) const;

 private:
  llvm::Type* type_of(DType dtype) const;
};

}  // namespace kiln::cpu
