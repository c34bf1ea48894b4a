#pragma once

#include <memory>
#include <vector>

#include "backends/cpu/compile/emit/body_emitter.h"
#include "backends/cpu/compile/gemm/emission.h"

namespace kiln::cpu {

/// A body of a gemm inside one function: its batch dims bound, buffers at hand. Its last two iteration dims are
/// called outer and inner.
class GemmBody {
 public:
  GemmBody(GemmEmission& emission, const Body& body, const GemmPlace& place);

  int outer_dim() const { return m_rank - 2; }
  int inner_dim() const { return m_rank - 1; }
  BodyEmitter& emitter() { return m_emitter; }
  Scope& scope() { return *m_scopes.back(); }

  /// The lanes index, index + 1, … of `dim`, all other dims unbound; `offset` is the constant part of the index.
  /// All lanes of one body run along the same dim. The scope lives as long as the body.
  Scope& lanes(int dim, llvm::Value* index, int64_t offset, llvm::Value* mask);
  /// The same lanes where the other dim has an index: inside a loop that began after `lanes`, or beside it.
  Scope& at(Scope& lanes, int dim, llvm::Value* index);

 private:
  GemmEmission& m_g;
  int m_rank;
  BodyNumbers m_numbers;
  BodyEmitter m_emitter;
  std::vector<std::unique_ptr<Scope>> m_scopes;  // with the batch dims bound one after another
  std::vector<std::unique_ptr<Scope>> m_made;
};

}  // namespace kiln::cpu
