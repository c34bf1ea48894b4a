#include "backends/cpu/compile/gemm/tile_kernel.h"

namespace kiln::cpu {

llvm::Function* begin_tile_function(Emitter& e, const std::string& name, GemmTileCall& call) {
  llvm::Type* p = e.pointer();
  llvm::Function* function =
      e.begin_function(name, e.ir.getVoidTy(), {p, p, p, p, p, p, e.i64(), e.i64(), e.i64(), e.i64(), e.i64()});
  llvm::Argument* argument = function->arg_begin();
  call.place.buffers = argument;
  call.place.status = argument + 1;
  call.scratch = argument + 2;
  call.a = argument + 3;
  call.b = argument + 4;
  call.partial = argument + 5;
  call.k_count = argument + 6;
  call.flags = argument + 7;
  call.m = argument + 8;
  call.n = argument + 9;
  call.place.batch = argument + 10;
  return function;
}

void call_tile_function(Emitter& e, llvm::Function* function, const GemmTileCall& call) {
  e.ir.CreateCall(function, {call.place.buffers, call.place.status, call.scratch, call.a, call.b, call.partial,
                             call.k_count, call.flags, call.m, call.n, call.place.batch});
}

void GemmTileKernel::run(const TileShape& shape, const GemmTileCall& call) {
  call_tile_function(m_g.e, function(shape), call);
}

llvm::Function* GemmTileKernel::function(const TileShape& shape) {
  auto [found, is_new] = m_functions.try_emplace(shape, nullptr);
  if (!is_new) return found->second;
  emit_callees();
  const auto resume = m_g.e.ir.saveIP();
  GemmTileCall call;
  found->second = begin_tile_function(m_g.e, "tile_" + shape.suffix(), call);
  const int64_t steps = m_g.problem.steps();
  if (steps % m_g.blocking.k_block == 0) call.k_count = m_g.e.index(std::min(steps, m_g.blocking.k_block));
  emit(shape, call);
  m_g.e.ir.CreateRetVoid();
  m_g.e.ir.restoreIP(resume);
  return found->second;
}

}  // namespace kiln::cpu
