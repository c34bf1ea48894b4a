#pragma once

#include <deque>
#include <string>

#include "backends/cpu/compile/emit/scalar_emitter.h"
#include "backends/cpu/compile/gemm/blocking.h"
#include "backends/cpu/compile/gemm/problem.h"
#include "backends/cpu/compile/gemm/sized.h"

namespace kiln::cpu {

/// A tile of C as a function is written for it. `tail` lanes of the last vector exist; 0 means all. Of an edge the call says how
/// many rows and columns exist, at least one of each.
struct TileShape {
  int64_t rows = 1, vectors = 1, tail = 0;
  bool is_edge = false;
  auto operator<=>(const TileShape&) const = default;
  std::string suffix() const {
    return fmt::format("{}x{}{}{}", rows, vectors, tail ? fmt::format("_{}", tail) : "", is_edge ? "_edge" : "");
  }
};

/// Where a point of a kernel stands: what every function of a gemm is told. Values of the function being written.
struct GemmPlace {
  llvm::Value* buffers = nullptr;
  llvm::Value* status = nullptr;
  llvm::Value* batch = nullptr;           // linear
  llvm::Value* begin = nullptr;           // the first row of the group, or element along k; null without groups
  llvm::Value* end = nullptr;             // behind the last one
  llvm::Value* extents = nullptr;         // what the launch carries
  const LaunchNumbers* launch = nullptr;  // the same as numbers, loaded in this function; null where none were opened
};

/// What the parts of one gemm's code share.
struct GemmEmission {
  GemmEmission(Emitter& emitter, const GemmProblem& a_problem, const GemmBlocking& a_blocking)
      : e(emitter),
        problem(a_problem),
        blocking(a_blocking),
        grid(problem.sized == nullptr ? GemmGrid(blocking, problem) : GemmGrid::of_any_size(blocking)) {}

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
  llvm::Value* partial_row_bytes(const GemmPlace& place) const;
  bool has_partial_sums_in_workspace() const { return grid.blocks > 1 && problem.partial_sums == nullptr; }

  /// One step of k of a row or a column. Several elements are an i32, the first in its lowest bits.
  llvm::Type* packed_step() const { return k_group() == 1 ? type_of(problem.types.accumulator) : e.i32(); }
  /// One of several elements of a step: its bits.
  llvm::Type* packed_element() const { return e.ir.getIntNTy(static_cast<unsigned>(32 / k_group())); }
  /// From one panel of a B that lies in panels to the next, and where its block of k begins (an element), of the batch.
  int64_t panel_bytes() const { return problem.b.pieced->tile.strides.front() * problem.b.element_bytes(); }
  llvm::Value* panels_address(const GemmPlace& place, llvm::Value* k) const;
  llvm::Type* packed_vector() const { return Emitter::vector(packed_step(), lanes()); }
  llvm::Type* sum_vector() const { return Emitter::vector(type_of(problem.types.accumulator), lanes()); }
  int lanes() const { return static_cast<int>(sum_lanes()); }
  /// Steps behind the last one of a packed panel of B: one, which holds what its columns' sums begin with, where A is packed
  /// with an offset.
  int64_t extra_steps() const { return problem.types.offsets_a ? 1 : 0; }
  /// Columns of a tile, and those of them that one of its vectors holds.
  int64_t columns(const TileShape& shape) const {
    return (shape.vectors - 1) * sum_lanes() + columns(shape, shape.vectors - 1);
  }
  int64_t columns(const TileShape& shape, int64_t vector) const {
    return shape.tail != 0 && vector == shape.vectors - 1 ? shape.tail : sum_lanes();
  }
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
  llvm::Value* load_elements(const GemmOperand& operand, llvm::Value* pointer, llvm::Value* mask) const;
  /// What was loaded of an operand, element by element, as it is multiplied.
  llvm::Value* as_multiplied(const GemmOperand& operand, llvm::Value* pattern) const;
  /// An element's value in registers as it is multiplied; bits where several are multiplied at once.
  llvm::Value* to_multiply(ScalarEmitter& scalars, llvm::Value* value) const;
  /// Of a function that begins, which is told all of the place but `launch`: loads that.
  void load_numbers(GemmPlace& place);
  /// What a function is told of its group: types of parameters, arguments, and the parameters from `first` on.
  void add_group(std::vector<llvm::Type*>& types) const;
  void add_group(const GemmPlace& place, Values& arguments) const;
  void take_group(GemmPlace& place, llvm::Argument* first) const;
  bool has_groups(GemmGroups::Along along) const {
    return problem.gemm->groups && problem.gemm->groups->along == along;
  }
  /// Rows, or elements along k, begin there: 0 but for groups. `m` and `k` are where they end.
  llvm::Value* first_m(const GemmPlace& place) const;
  llvm::Value* first_k(const GemmPlace& place) const;
  /// Extents, and from an element of an access to the next along the last dim but `inner`, in bytes: constants, or the launch's.
  llvm::Value* m(const GemmPlace& place) const;
  llvm::Value* n(const GemmPlace& place) const;
  /// Of all groups.
  llvm::Value* whole_m(const GemmPlace& place) const;
  llvm::Value* whole_k(const GemmPlace& place) const;
  llvm::Value* k(const GemmPlace& place) const;
  llvm::Value* steps(const GemmPlace& place) const;
  llvm::Value* tasks(const GemmPlace& place) const;  // of the launch's
  llvm::Value* batch_extent(const GemmPlace& place, size_t dim) const;
  llvm::Value* stride_bytes(const GemmPlace& place, const Access& access, size_t dim) const;
  /// From an operand's row or column to the next, and from one step of k to the next: of a plain one.
  llvm::Value* tile_bytes(const GemmPlace& place, const GemmOperand& operand) const;
  llvm::Value* k_bytes(const GemmPlace& place, const GemmOperand& operand) const;
  /// The first index of a piece.
  llvm::Value* start_of(const Split& split, llvm::Value* piece) const;
  /// The indices of the batch dims.
  Values batch_indices(const GemmPlace& place) const;
  /// The address of an access without indirect terms at (batch, second to last, last).
  llvm::Value* address(const Access& access, const GemmPlace& place, llvm::Value* outer, llvm::Value* inner) const;

 private:
  llvm::Type* type_of(DType dtype) const;
  llvm::Value* number(const GemmPlace& place, LaunchNumbers::Place opened, int64_t constant) const;

  std::deque<LaunchNumbers> m_loaded;  // of each function that takes numbers from its launch
};

}  // namespace kiln::cpu
