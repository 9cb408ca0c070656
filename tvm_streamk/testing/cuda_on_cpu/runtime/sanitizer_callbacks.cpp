// SPDX-License-Identifier: Apache-2.0
// Accesses to volatile objects, as the sanitizer's instrumentation announces them.
#include "../include/cuda_on_cpu/runtime_interface.h"

#ifdef CUDA_ON_CPU_SANITIZER

extern "C" {

// The compiler calls these before accesses to volatile objects. In CUDA such an access is relaxed
// and atomic, and so may be half of a publication.
void __tsan_volatile_read4(void* address) {
  cuda_on_cpu::before_atomic(address);
  cuda_on_cpu::after_atomic(address, 4, cuda_on_cpu::AtomicEffect::read);
}

void __tsan_volatile_write4(void* address) {
  cuda_on_cpu::before_atomic(address);
  cuda_on_cpu::after_atomic(address, 4, cuda_on_cpu::AtomicEffect::changed);
}

void __tsan_volatile_read8(void* address) {
  cuda_on_cpu::before_atomic(address);
  cuda_on_cpu::after_atomic(address, 8, cuda_on_cpu::AtomicEffect::read);
}

void __tsan_volatile_write8(void* address) {
  cuda_on_cpu::before_atomic(address);
  cuda_on_cpu::after_atomic(address, 8, cuda_on_cpu::AtomicEffect::changed);
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
