// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the context switch is written for x86-64 Linux"
#endif

// The System V calling convention leaves six registers to the callee; everything else is saved by
// the compiler around the call. ucontext would do the same with two system calls per switch.
asm(R"(
    .text
    .globl  cuda_on_cpu_switch
    .hidden cuda_on_cpu_switch
    .type   cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    subq    $48, %rsp
    movq    %rbx,   (%rsp)
    movq    %rbp,  8(%rsp)
    movq    %r12, 16(%rsp)
    movq    %r13, 24(%rsp)
    movq    %r14, 32(%rsp)
    movq    %r15, 40(%rsp)
    movq    %rsp, (%rdi)
    movq    (%rsi), %rsp
    movq      (%rsp), %rbx
    movq     8(%rsp), %rbp
    movq    16(%rsp), %r12
    movq    24(%rsp), %r13
    movq    32(%rsp), %r14
    movq    40(%rsp), %r15
    addq    $48, %rsp
    ret
    .size   cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");

extern "C" void cuda_on_cpu_switch(cuda_on_cpu::Context* from, const cuda_on_cpu::Context* to);

namespace cuda_on_cpu {
namespace {

// A frame with a large array must not step over the guard; it takes addresses, no memory.
constexpr size_t guard_bytes = 1024 * 1024;
constexpr size_t stack_bytes = guard_bytes + 256 * 1024;
constexpr size_t saved_registers = 6;

}  // namespace

void switch_context(Context* from, const Context* to) { cuda_on_cpu_switch(from, to); }

StackPool::~StackPool() {
  for (void* stack : all_) munmap(stack, stack_bytes);
}

void* StackPool::take() {
  if (!free_.empty()) {
    void* const stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void* const stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  mprotect(stack, guard_bytes, PROT_NONE);
  all_.push_back(stack);
  return stack;
}

bool StackPool::is_guard(const void* stack, const void* address) {
  const auto start = reinterpret_cast<uintptr_t>(stack);
  const auto where = reinterpret_cast<uintptr_t>(address);
  return where >= start && where < start + guard_bytes;
}

Context make_context(void* stack, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(static_cast<char*>(stack) + stack_bytes);
  // A function expects to start 8 bytes below a multiple of 16, as if a call had pushed its
  // return address there. This one is null: debuggers see the end of the stack.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (size_t i = 0; i < saved_registers; ++i) *--top = nullptr;
  return Context{top};
}

}  // namespace cuda_on_cpu
