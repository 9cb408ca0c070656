// SPDX-License-Identifier: Apache-2.0
// Tells ThreadSanitizer about CUDA threads and about what orders them. Without it: nothing.
//
// The runtime itself is never instrumented. Each CUDA thread is one of the sanitizer's fibres, and
// switches between fibres order nothing; order comes from the tokens below only. While the runtime
// works on its own data on behalf of a CUDA thread, it does so as the scheduler, since the
// sanitizer intercepts malloc and memcpy even in code that is not instrumented.
#pragma once

#ifdef CUDA_ON_CPU_SANITIZER
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
short __tsan_atomic16_load(const volatile short* address, int order);
short __tsan_atomic16_fetch_or(volatile short* address, short bits, int order);
int __tsan_atomic32_load(const volatile int* address, int order);
int __tsan_atomic32_fetch_or(volatile int* address, int bits, int order);
long __tsan_atomic64_load(const volatile long* address, int order);
long __tsan_atomic64_fetch_or(volatile long* address, long bits, int order);
void __tsan_java_move(unsigned long source, unsigned long target, unsigned long bytes);
}
#endif

namespace cuda_on_cpu {
namespace sanitizer {

#ifdef CUDA_ON_CPU_SANITIZER

constexpr bool enabled = true;
constexpr unsigned without_order = 1;

inline void* current_fiber() { return __tsan_get_current_fiber(); }
inline void* create_fiber() { return __tsan_create_fiber(without_order); }
inline void name_fiber(void* fiber, const char* name) { __tsan_set_fiber_name(fiber, name); }
inline void destroy_fiber(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void become(void* fiber) { __tsan_switch_to_fiber(fiber, without_order); }
inline void acquire(const volatile void* token) { __tsan_acquire(const_cast<void*>(token)); }
inline void release(const volatile void* token) { __tsan_release(const_cast<void*>(token)); }

// Lets the sanitizer see an atomic access; or-ing nothing in is a write that changes nothing.
inline void record_atomic(volatile void* address, unsigned bytes, bool is_write) {
  constexpr int relaxed = __ATOMIC_RELAXED;
  if (bytes == sizeof(short)) {
    auto* const word = static_cast<volatile short*>(address);
    is_write ? __tsan_atomic16_fetch_or(word, 0, relaxed) : __tsan_atomic16_load(word, relaxed);
  } else if (bytes == sizeof(int)) {
    auto* const word = static_cast<volatile int*>(address);
    is_write ? __tsan_atomic32_fetch_or(word, 0, relaxed) : __tsan_atomic32_load(word, relaxed);
  } else {
    auto* const word = static_cast<volatile long*>(address);
    is_write ? __tsan_atomic64_fetch_or(word, 0, relaxed) : __tsan_atomic64_load(word, relaxed);
  }
}

// Drops what the sanitizer remembers of accesses to the 8 bytes around an address. Garbage
// collectors tell it in this way that an object has moved: here one that no one has touched.
inline void forget(const volatile void* address) {
  constexpr unsigned long word_bytes = 8;
  alignas(word_bytes) static char untouched[word_bytes];
  const auto target = reinterpret_cast<unsigned long>(address) / word_bytes * word_bytes;
  __tsan_java_move(reinterpret_cast<unsigned long>(untouched), target, word_bytes);
}

#else

constexpr bool enabled = false;

inline void* current_fiber() { return nullptr; }
inline void* create_fiber() { return nullptr; }
inline void name_fiber(void*, const char*) {}
inline void destroy_fiber(void*) {}
inline void become(void*) {}
inline void acquire(const volatile void*) {}
inline void release(const volatile void*) {}
inline void record_atomic(volatile void*, unsigned, bool) {}
inline void forget(const volatile void*) {}

#endif

}  // namespace sanitizer
}  // namespace cuda_on_cpu
