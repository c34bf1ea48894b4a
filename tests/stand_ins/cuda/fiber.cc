#include "tests/stand_ins/cuda/fiber.h"

#include <sys/mman.h>

#include <cassert>
#include <cstring>

// Saves what the System V ABI asks a callee to keep, and goes on with another stack.
extern "C" void kiln_fiber_switch(void** keep, void* next);
extern "C" void kiln_fiber_start();
asm(R"(
.text
.globl kiln_fiber_switch
.hidden kiln_fiber_switch
.type kiln_fiber_switch, @function
kiln_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.globl kiln_fiber_start
.hidden kiln_fiber_start
.type kiln_fiber_start, @function
kiln_fiber_start:
  movq %r12, %rdi
  callq *%rbx
  ud2
)");

namespace kiln::cuda_emulator {

FiberStacks::FiberStacks(size_t count) : m_count(count) {
  void* memory = mmap(nullptr, count * k_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(memory != MAP_FAILED && "no memory for the stacks of the emulated threads");
  m_base = static_cast<uint8_t*>(memory);
}

FiberStacks::~FiberStacks() { munmap(m_base, m_count * k_stack_bytes); }

void Fiber::prepare(uint8_t* stack, Entry entry, void* argument) {
  // What kiln_fiber_switch pops: r15, r14, r13, r12, rbx, rbp, then the address it returns to; there the stack is
  // aligned to 16, as a call wants it.
  auto* top = reinterpret_cast<void**>(stack + FiberStacks::k_stack_bytes) - 9;
  std::memset(top, 0, 9 * sizeof(void*));
  top[3] = argument;
  top[4] = reinterpret_cast<void*>(entry);
  top[6] = reinterpret_cast<void*>(&kiln_fiber_start);
  m_own = top;
}

void Fiber::resume() { kiln_fiber_switch(&m_caller, m_own); }
void Fiber::suspend() { kiln_fiber_switch(&m_own, m_caller); }

}  // namespace kiln::cuda_emulator
