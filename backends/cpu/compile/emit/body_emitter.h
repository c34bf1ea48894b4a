#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "backends/cpu/compile/emit/launch_numbers.h"
#include "backends/cpu/compile/emit/scalar_emitter.h"
#include "frontend/kernel/body_dims.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// A place in a loop nest where expressions can be evaluated: which iteration dims have an index there, and
/// what was evaluated there already. Scopes nest; an inner one names all the scopes around it, so that each
/// expression is evaluated in the outermost place that knows the dims it depends on.
struct Scope {
  std::vector<Scope*> around;    // all of them, outermost first
  uint64_t bound = 0;            // bit d: iteration dim d has an index
  int depth = 0;                 // loops around; scopes of equal depth are emitted side by side
  int dim = -1;                  // the dim bound last, -1 for none
  llvm::Value* index = nullptr;  // of `dim`, less `offset`; i64
  int64_t offset = 0;            // constant part, so that neighbours share their address
  // When the lanes of vectors run along one of the bound dims:
  int lane_dim = -1;
  int lanes = 1;
  llvm::Value* lane_index = nullptr;  // index of lane 0, less lane_offset
  int64_t lane_offset = 0;            // constant part, so that unrolled copies share their address
  llvm::Value* mask = nullptr;        // lanes that exist; null for all

  std::vector<llvm::Value*> values;   // by ExprId, null when not evaluated here
  std::vector<llvm::Value*> reduced;  // by reduction, null when not finished here
  struct Place {
    llvm::Value* pointer = nullptr;
    int64_t offset = 0;            // from there on, in bytes: what is constant
    llvm::Value* valid = nullptr;  // i1, every indirect index in range; null for always
  };
  std::vector<std::optional<Place>> places;  // by access: the part that is the same for all lanes
};

/// Evaluates a body's expressions and makes its stores.
///
/// A value that depends on the lane dim is a vector, any other a scalar; they are brought together where they
/// meet. Emission order is the caller's duty: prepare() a scope before emitting loops inside it, or what it
/// could share is evaluated again inside.
class BodyEmitter {
 public:
  /// `buffers`: a pointer per buffer. `status`: where a bad index is reported (runtime/entry.h).
  BodyEmitter(Emitter& emitter, const KernelSpec& spec, const Body& body, Values buffers, llvm::Value* status);

  /// A scope with no dim bound.
  std::unique_ptr<Scope> root();
  /// Inside `scope`, with a loop or block around what follows: `dim` has index `index`.
  std::unique_ptr<Scope> bind(Scope& scope, int dim, llvm::Value* index);
  /// Inside `scope`, with a loop around what follows that binds no scalar index.
  std::unique_ptr<Scope> nest(Scope& scope);
  /// Beside `scope`, in the same block: lanes run along `dim` from index + offset on.
  std::unique_ptr<Scope> spread(Scope& scope, int dim, llvm::Value* index, int64_t offset, int lanes,
                                llvm::Value* mask);
  /// Gives all lanes of a scope that was spread, and not used yet, an index of one more dim: index + offset.
  static void place(Scope& lane_scope, int dim, llvm::Value* index, int64_t offset);
  /// `inner`'s dims with `lane_scope`'s lanes; `inner` was bound inside the scope that lane_scope was spread
  /// beside.
  std::unique_ptr<Scope> join(Scope& inner, Scope& lane_scope);

  /// Evaluates now what `roots` need and `scope` can know: values, and the addresses of their loads and of
  /// `stores`.
  void prepare(Scope& scope, const std::vector<ExprId>& roots, const std::vector<Store>& stores = {});
  llvm::Value* evaluate(Scope& scope, ExprId id);
  /// As evaluate, but always with the scope's lanes.
  llvm::Value* evaluate_lanes(Scope& scope, ExprId id);
  /// Evaluate the values of all stores of a stage before making the first.
  void store(Scope& scope, const Store& store);

  /// The dim that lanes run along in every scope of this body; -1 for none. To be said before prepare().
  void set_lane_dim(int dim) { m_lane_dim = dim; }
  /// Numbers of the body that are the launch's; they must outlive this. To be said before prepare().
  void set_numbers(const BodyNumbers& numbers) { m_numbers = &numbers; }
  /// Loads of these buffers see the body's own stores: evaluated where they stand, forgotten between stages.
  void set_changing_buffers(const std::vector<bool>& changing);
  void forget_changing(Scope& scope);
  /// The value of `accumulator` leaves evaluated in `scope`.
  void set_accumulator(Scope& scope, llvm::Value* value);
  /// Dims (bits) that give `reduced` and `accumulator` leaves their value: the parallel ones.
  void set_result_dims(uint64_t dims) { m_dims = BodyDims(m_body, dims); }

  /// Bit d: the expression's value changes with iteration dim d. Results depend on the result dims.
  uint64_t dims_of(ExprId id) const { return m_dims.of(id); }
  uint64_t dims_of(const Access& access) const { return m_dims.of(access); }
  /// roots_of, transitively, ascending.
  ScalarEmitter& scalars() { return m_scalars; }

 private:
  struct Address;
  uint64_t lane_bit() const { return m_lane_dim < 0 ? 0 : uint64_t{1} << m_lane_dim; }
  uint64_t common_dims(const Access& access) const;
  Scope* owner(Scope& scope, uint64_t dims) const;
  llvm::Value* compute(Scope& scope, ExprId id);
  llvm::Value* load(Scope& scope, const ScalarNode& node);
  llvm::Value* load_lanes(Scope& scope, const ScalarNode& node, const Address& address, llvm::Value* active);
  llvm::Value* load_scalar(const ScalarNode& node, llvm::Value* pointer, llvm::Value* active);
  void store_lanes(Scope& scope, const Store& store, const Address& address);
  /// What the store writes: `value`, its value or that added to what was there.
  llvm::Value* stored_pattern(const Store& store, llvm::Value* value);
  void add_lane_by_lane(Scope& scope, const Store& store, const Address& address, llvm::Value* active);
  Scope::Place common_place(Scope& scope, uint32_t access);
  Address address_of(Scope& scope, uint32_t access);
  static const Scope& binder_of(Scope& scope, int dim);
  llvm::Value* index_of(Scope& scope, int dim);
  llvm::Value* lanes_like(llvm::Value* value, int lanes) {
    return Emitter::lanes_of(value) == lanes ? value : e.splat(value, lanes);
  }
  llvm::Value* both(llvm::Value* a, llvm::Value* b);
  void report(llvm::Value* valid, llvm::Value* active);

  llvm::Value* number(LaunchNumbers::Place place, int64_t constant);
  llvm::Value* offset_of(uint32_t access);
  llvm::Value* stride_of(uint32_t access, size_t dim);
  bool is_launched(uint32_t access, size_t dim) const;  // the stride

  Emitter& e;
  const KernelSpec& m_spec;
  const Body& m_body;
  const BodyNumbers* m_numbers = nullptr;
  Values m_buffers;
  llvm::Value* m_status;
  ScalarEmitter m_scalars;
  BodyDims m_dims;
  std::vector<bool> m_uses_results;
  std::vector<bool> m_changing;
  int m_lane_dim = -1;
};

}  // namespace kiln::cpu
