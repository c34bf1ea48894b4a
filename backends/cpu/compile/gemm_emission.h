#pragma once

#include <string>

#include "backends/cpu/compile/emitter.h"
#include "backends/cpu/compile/gemm_problem.h"
#include "backends/cpu/compile/gemm_schedule.h"
#include "backends/cpu/compile/split.h"

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
  Emitter& e;
  const GemmProblem& problem;
  const GemmSchedule& schedule;

  int lanes() const { return static_cast<int>(problem.lanes); }
  int64_t vector_bytes() const { return problem.lanes * problem.element_bytes; }
  llvm::Type* element() const;
  llvm::Type* vector() const { return Emitter::vector(element(), lanes()); }
  llvm::Value* zero() const { return llvm::Constant::getNullValue(vector()); }
  llvm::Value* multiply_add(llvm::Value* a, llvm::Value* b, llvm::Value* sum) const;
  llvm::Value* add(llvm::Value* a, llvm::Value* b) const;
  /// The first `lanes` lanes, a constant.
  llvm::Value* mask(int64_t active) const;
  llvm::Value* load_lanes(llvm::Value* pointer, int64_t active, uint64_t alignment = 0) const;
  void store_lanes(llvm::Value* value, llvm::Value* pointer, int64_t active, uint64_t alignment = 0) const;
  /// First index of a piece.
  llvm::Value* start_of(const Split& split, llvm::Value* piece) const;
  /// The indices of the batch dims.
  Values batch_indices(llvm::Value* linear) const;
  /// The address of an access without indirect terms at (batch, second to last, last).
  llvm::Value* address(const Access& access, const GemmPlace& place, llvm::Value* outer, llvm::Value* inner) const;
};

}  // namespace kiln::cpu
