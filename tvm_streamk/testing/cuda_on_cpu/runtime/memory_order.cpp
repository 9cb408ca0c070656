// SPDX-License-Identifier: Apache-2.0
// Atomics and fences: scheduling points, and the order they make between threads.
//
// CUDA's atomics are relaxed. A thread publishes by a fence followed by an atomic write, and sees
// what was published by an atomic read followed by a fence, both in its own program order. What
// other threads of the block did counts if a barrier brought it to this thread before its fence.
//
// The sanitizer knows clocks: of threads, and of tokens in between. What an atomic publishes is the
// thread's clock at its last fence, not now, and what it reads must not count before the next
// fence. So two more fibres carry clocks for a thread, the publisher from fence to atomic and the
// observer from atomic to fence, each without mixing in the thread's own present clock.
#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

void carry(void** courier, const volatile void* from, const volatile void* to) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  if (*courier == nullptr) *courier = sanitizer::create_fiber();
  sanitizer::become(*courier);
  sanitizer::acquire(from);
  sanitizer::release(to);
  sanitizer::become(thread->sanitizer.fiber);
}

}  // namespace

void before_atomic(const volatile void* address) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  scheduler->yield(thread);
  SanitizerThread& known = thread->sanitizer;
  if (sanitizer::enabled && known.has_fenced) {
    carry(&known.publisher, &known.fence_token, address);
  }
}

void after_atomic(const volatile void* address, bool changed_memory) {
  SanitizerThread& known = current->sanitizer;
  if (changed_memory) scheduler->made_progress();
  if (sanitizer::enabled) carry(&known.observer, address, &known.observed_token);
}

void device_fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  SanitizerThread& known = current->sanitizer;
  sanitizer::acquire(&known.observed_token);
  sanitizer::release(&known.fence_token);
  known.has_fenced = true;
}

void release_to(const volatile void* address) { sanitizer::release(address); }

void acquire_from(const volatile void* address) { sanitizer::acquire(address); }

}  // namespace cuda_on_cpu

#ifdef CUDA_ON_CPU_SANITIZER

// The compiler calls these before accesses to volatile objects. In CUDA such an access is relaxed
// and atomic, and so may be half of a publication.
extern "C" {

int __tsan_atomic32_load(const volatile int* address, int order);
int __tsan_atomic32_fetch_or(volatile int* address, int bits, int order);
long __tsan_atomic64_load(const volatile long* address, int order);
long __tsan_atomic64_fetch_or(volatile long* address, long bits, int order);

void __tsan_volatile_read4(void* address) {
  cuda_on_cpu::before_atomic(address);
  __tsan_atomic32_load(static_cast<int*>(address), __ATOMIC_RELAXED);
  cuda_on_cpu::after_atomic(address, false);
}

void __tsan_volatile_write4(void* address) {
  cuda_on_cpu::before_atomic(address);
  __tsan_atomic32_fetch_or(static_cast<int*>(address), 0, __ATOMIC_RELAXED);
  cuda_on_cpu::after_atomic(address, true);
}

void __tsan_volatile_read8(void* address) {
  cuda_on_cpu::before_atomic(address);
  __tsan_atomic64_load(static_cast<long*>(address), __ATOMIC_RELAXED);
  cuda_on_cpu::after_atomic(address, false);
}

void __tsan_volatile_write8(void* address) {
  cuda_on_cpu::before_atomic(address);
  __tsan_atomic64_fetch_or(static_cast<long*>(address), 0, __ATOMIC_RELAXED);
  cuda_on_cpu::after_atomic(address, true);
}

// Narrower and wider ones cannot carry a flag in CUDA's memory model: ordinary accesses.
void __tsan_read1(void* address);
void __tsan_read2(void* address);
void __tsan_read16(void* address);
void __tsan_write1(void* address);
void __tsan_write2(void* address);
void __tsan_write16(void* address);
void __tsan_volatile_read1(void* address) { __tsan_read1(address); }
void __tsan_volatile_read2(void* address) { __tsan_read2(address); }
void __tsan_volatile_read16(void* address) { __tsan_read16(address); }
void __tsan_volatile_write1(void* address) { __tsan_write1(address); }
void __tsan_volatile_write2(void* address) { __tsan_write2(address); }
void __tsan_volatile_write16(void* address) { __tsan_write16(address); }

}  // extern "C"

#endif
