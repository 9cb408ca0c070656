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

#else

constexpr bool enabled = false;

inline void* current_fiber() { return nullptr; }
inline void* create_fiber() { return nullptr; }
inline void name_fiber(void*, const char*) {}
inline void destroy_fiber(void*) {}
inline void become(void*) {}
inline void acquire(const volatile void*) {}
inline void release(const volatile void*) {}

#endif

}  // namespace sanitizer
}  // namespace cuda_on_cpu
