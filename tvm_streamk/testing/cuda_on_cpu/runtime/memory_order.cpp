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
//
// Besides, an atomic access comes before all that follows, in its own thread, an access which has
// observed it: the last arriver may reset its counter by a plain store. To the sanitizer, the
// accesses of the others would be in conflict with that store, so each atomic access takes the
// place of the earlier ones.
#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

const char* token_of(const volatile void* address) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  const char* const token = scheduler->token_of(address);
  sanitizer::become(thread->sanitizer.fiber);
  return token;
}

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
    carry(&known.publisher, &known.fence_token, token_of(address));
  }
}

void after_atomic(volatile void* address, unsigned bytes, AtomicEffect effect) {
  if (effect == AtomicEffect::changed) scheduler->made_progress();
  if (!sanitizer::enabled) return;
  SanitizerThread& known = current->sanitizer;
  carry(&known.observer, token_of(address), &known.observed_token);
  const bool is_write = effect != AtomicEffect::read;
  sanitizer::record_atomic(address, bytes, is_write);
  sanitizer::forget(address);
  sanitizer::record_atomic(address, bytes, is_write);
}

void device_fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  SanitizerThread& known = current->sanitizer;
  sanitizer::acquire(&known.observed_token);
  sanitizer::release(&known.fence_token);
  known.has_fenced = true;
}

void release_to(const volatile void* address) {
  if (sanitizer::enabled) sanitizer::release(token_of(address));
}

void acquire_from(const volatile void* address) {
  if (sanitizer::enabled) sanitizer::acquire(token_of(address));
}

}  // namespace cuda_on_cpu
