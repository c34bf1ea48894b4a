#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/level_zero/compile/scalar_emitter.h"
#include "backends/level_zero/target.h"
#include "frontend/kernel/body_dims.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::level_zero {

/// The kernel's parameters: one pointer per buffer of the spec, then the launch's status.
struct KernelArguments {
  Ids buffers;
  Id status = 0;
};

/// Begins a kernel with those parameters.
KernelArguments begin_kernel(Emitter& emitter, const KernelSpec& spec, uint32_t group_size,
                             uint32_t sub_group_size = k_sub_group_size);

/// Where in its iteration space a body is evaluated, and what is known there.
///
/// A scope inside a loop or a branch starts as a copy of the one around it: it knows all that is computed there, and
/// what is computed inside stays inside.
struct Scope {
  Ids index;    // per iteration dim, 64 bits; 0 while its loop is not open
  Ids values;   // per expression; 0 while not computed
  Ids reduced;  // per reduction, of register type
  Id accumulator = 0;
};

/// Computes the expressions of one body, a point at a time.
class BodyEmitter {
 public:
  /// `changing`: buffers whose contents the kernel itself may change while it runs; loads of them are made anew at
  /// every point and stage.
  BodyEmitter(Emitter& emitter, const KernelSpec& spec, const Body& body, const KernelArguments& arguments,
              const std::vector<bool>& changing = {});

  ScalarEmitter& scalars() { return m_scalars; }
  /// A scope in which no dim is open yet.
  Scope root(size_t dims) const;

  /// Computes what of `roots` can be computed already: all dims open, nothing that changes. For before a loop.
  void prepare(Scope& scope, std::span<const ExprId> roots);
  /// Computes one expression and all it needs; every dim it uses is open.
  Id evaluate(Scope& scope, ExprId id);
  /// Into memory, where all indirect indices are in range.
  void store(Scope& scope, const Store& store);

 private:
  Id compute(Scope& scope, ExprId id);
  Id load(Scope& scope, const ScalarNode& node);
  /// The element of an access: its number, and whether its indirect indices are in range (0: nothing to ask).
  struct Address {
    Id element = 0, valid = 0;
  };
  Address address(Scope& scope, const Access& access);
  void report(Id valid, Id wanted);

  Emitter& e;
  const KernelSpec& m_spec;
  const Body& m_body;
  const KernelArguments& m_arguments;
  ScalarEmitter m_scalars;
  BodyDims m_dims;
  std::vector<bool> m_changing;  // per expression
};

}  // namespace kiln::level_zero
