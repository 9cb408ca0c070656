// SPDX-License-Identifier: Apache-2.0
// CUDA's words that are no C++: qualifiers, built-in variables, barriers.
#pragma once

#include "runtime_interface.h"

// TVM's prelude asks for these; the values mean "recent", so that it defines nothing itself.
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define __CUDA_ARCH__ 900

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (cuda_on_cpu::this_thread().thread)
#define blockIdx (cuda_on_cpu::this_thread().block)
#define blockDim (cuda_on_cpu::this_thread().block_size)
#define gridDim (cuda_on_cpu::this_thread().grid_size)
#define warpSize 32

using dim3 = cuda_on_cpu::Dim3;

// The default argument is evaluated where the kernel calls, and so is the kernel's line.
inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_cpu::wait_at_barrier(line); }

inline void __threadfence() { cuda_on_cpu::device_fence(); }
inline void __threadfence_system() { cuda_on_cpu::device_fence(); }

// Within a block, order comes from barriers; taking this for a device fence would accept
// kernels that are wrong between blocks.
inline void __threadfence_block() {}

inline void __nanosleep(unsigned) {}

template <typename T>
inline T __ldg(const T* pointer) {
  return *pointer;
}

inline size_t __cvta_generic_to_shared(const void* pointer) {
  return cuda_on_cpu::shared_address(pointer);
}

inline size_t __cvta_generic_to_global(const void* pointer) {
  return reinterpret_cast<size_t>(pointer);
}

namespace cuda_on_cpu {

// What the driver makes of "__shared__ T name[N];": the block's one, found by the declaration.
template <typename Object>
inline Object& declare_shared(int declaration, const char* name, size_t alignment) {
  const size_t enough = alignment > alignof(Object) ? alignment : alignof(Object);
  return *static_cast<Object*>(shared_array(declaration, name, sizeof(Object), enough));
}

// And of "extern __shared__ T name[];".
template <typename Element>
inline Element* declare_dynamic_shared(const char* name) {
  return static_cast<Element*>(dynamic_shared_memory(name));
}

}  // namespace cuda_on_cpu
