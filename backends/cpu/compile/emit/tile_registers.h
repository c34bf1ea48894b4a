#pragma once

#include <llvm/IR/IntrinsicsX86.h>

#include <array>

#include "backends/cpu/compile/emit/emitter.h"

namespace kiln::cpu {

/// AMX's registers (Intel, "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 1, chapter 18): eight, of
/// up to 16 rows of 64 bytes. What their shapes are is state of the thread, which others set too: oneDNN runs on the same
/// threads. So an entry saves it and puts it back.
class TileRegisters {
 public:
  static constexpr int64_t k_count = 8, k_rows = 16, k_row_bytes = 64, k_configuration_bytes = 64;

  explicit TileRegisters(Emitter& emitter) : e(emitter) {}

  /// The address of shapes: so many rows of each register, none of one that is not used.
  llvm::Value* shapes(const std::array<int64_t, k_count>& rows);
  void configure(llvm::Value* from) { write(llvm::Intrinsic::x86_ldtilecfg, {from}); }
  void save_configuration(llvm::Value* to) { write(llvm::Intrinsic::x86_sttilecfg, {to}); }

  void zero(int64_t tile) { write(llvm::Intrinsic::x86_tilezero, {number(tile)}); }
  void load(int64_t tile, llvm::Value* from, int64_t row_bytes) {
    write(llvm::Intrinsic::x86_tileloadd64, {number(tile), from, e.index(row_bytes)});
  }
  void store(int64_t tile, llvm::Value* to, int64_t row_bytes) {
    write(llvm::Intrinsic::x86_tilestored64, {number(tile), to, e.index(row_bytes)});
  }
  /// c += a * b by an instruction that takes three registers: rows of 16 steps of A, 16 steps of rows of B.
  void multiply(llvm::Intrinsic::ID instruction, int64_t c, int64_t a, int64_t b) {
    write(instruction, {number(c), number(a), number(b)});
  }

 private:
  void write(llvm::Intrinsic::ID id, llvm::ArrayRef<llvm::Value*> arguments) {
    e.ir.CreateIntrinsic(id, {}, arguments);
  }
  llvm::Value* number(int64_t tile) { return e.ir.getInt8(static_cast<uint8_t>(tile)); }

  Emitter& e;
};

}  // namespace kiln::cpu
