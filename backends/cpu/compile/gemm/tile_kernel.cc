#include "backends/cpu/compile/gemm/tile_kernel.h"

namespace kiln::cpu {

namespace {

/// Where sizes are the launch's, a function is told them, and how much of its tile exists.
bool is_told_sizes(const GemmEmission& emission) { return emission.problem.sized != nullptr; }

}  // namespace

llvm::Function* begin_tile_function(GemmEmission& emission, const std::string& name, GemmTileCall& call) {
  Emitter& e = emission.e;
  llvm::Type* p = e.pointer();
  std::vector<llvm::Type*> types{p, p, p, p, p, p, e.i64(), e.i64(), e.i64(), e.i64(), e.i64()};
  if (is_told_sizes(emission)) types.insert(types.end(), {p, e.i64(), e.i64()});
  emission.add_group(types);
  llvm::Function* function = e.begin_function(name, e.ir.getVoidTy(), types);
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
  if (!is_told_sizes(emission)) return function;
  call.place.extents = argument + 11;
  call.rows = argument + 12;
  call.columns = argument + 13;
  emission.take_group(call.place, argument + 14);
  emission.load_numbers(call.place);
  return function;
}

void call_tile_function(GemmEmission& emission, llvm::Function* function, const GemmTileCall& call) {
  Values arguments{call.place.buffers, call.place.status, call.scratch, call.a, call.b,          call.partial,
                   call.k_count,       call.flags,        call.m,       call.n, call.place.batch};
  if (is_told_sizes(emission)) {
    const auto or_none = [&](llvm::Value* count) { return count == nullptr ? emission.e.index(0) : count; };
    arguments.insert(arguments.end(), {call.place.extents, or_none(call.rows), or_none(call.columns)});
  }
  emission.add_group(call.place, arguments);
  emission.e.ir.CreateCall(function, arguments);
}

void GemmTileKernel::run(const TileShape& shape, const GemmTileCall& call) {
  call_tile_function(m_g, function(shape), call);
}

llvm::Function* GemmTileKernel::function(const TileShape& shape) {
  auto [found, is_new] = m_functions.try_emplace(shape, nullptr);
  if (!is_new) return found->second;
  emit_callees();
  const auto resume = m_g.e.ir.saveIP();
  GemmTileCall call;
  found->second = begin_tile_function(m_g, "tile_" + shape.suffix(), call);
  const int64_t steps = m_g.problem.steps();
  if (m_g.problem.sized == nullptr && steps % m_g.blocking.k_block == 0) {
    call.k_count = m_g.e.index(std::min(steps, m_g.blocking.k_block));
  }
  emit(shape, call);
  m_g.e.ir.CreateRetVoid();
  m_g.e.ir.restoreIP(resume);
  return found->second;
}

}  // namespace kiln::cpu
