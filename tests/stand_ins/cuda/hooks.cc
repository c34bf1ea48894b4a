#include "tests/stand_ins/cuda/machine.h"

/// Kernels are compiled with -fsanitize=thread and without its runtime: before each load and store of their own the
/// compiler calls these. Local variables whose address nobody takes are registers, and not told of.
using kiln::cuda_emulator::Machine;

#pragma GCC visibility push(default)
extern "C" {

#define KILN_EMULATED_ACCESS(size)                                                                    \
  void __tsan_read##size(void* address) { Machine::current().touch(address, size, false); }           \
  void __tsan_write##size(void* address) { Machine::current().touch(address, size, true); }           \
  void __tsan_unaligned_read##size(void* address) { Machine::current().touch(address, size, false); } \
  void __tsan_unaligned_write##size(void* address) { Machine::current().touch(address, size, true); }

KILN_EMULATED_ACCESS(1)
KILN_EMULATED_ACCESS(2)
KILN_EMULATED_ACCESS(4)
KILN_EMULATED_ACCESS(8)
KILN_EMULATED_ACCESS(16)

void __tsan_read_range(void* address, size_t size) { Machine::current().touch(address, size, false); }
void __tsan_write_range(void* address, size_t size) { Machine::current().touch(address, size, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
#pragma GCC visibility pop
