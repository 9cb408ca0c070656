// SPDX-License-Identifier: Apache-2.0
// Atomic functions. All are relaxed, as in CUDA: order comes from fences alone.
#pragma once

#include <type_traits>

#include "bfloat16.h"
#include "half.h"
#include "language.h"

namespace cuda_on_cpu {

template <size_t bytes>
using Word = std::conditional_t<bytes == 2, uint16_t,
                                std::conditional_t<bytes == 4, uint32_t, uint64_t>>;

// Plain arithmetic on the value inside a compare-and-swap, so that one function serves all types.
template <typename T, typename Update>
inline T update_atomically(T* address, Update update) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = Word<sizeof(T)>;
  Bits* const word = reinterpret_cast<Bits*>(address);
  before_atomic(address);
  // A guess that the loop corrects. A load would be right more often, but a sanitizer would see
  // two accesses where the kernel has one.
  Bits old_bits = 0;
  Bits new_bits;
  T old_value;
  do {
    __builtin_memcpy(&old_value, &old_bits, sizeof(T));
    const T new_value = update(old_value);
    __builtin_memcpy(&new_bits, &new_value, sizeof(T));
  } while (!__atomic_compare_exchange_n(word, &old_bits, new_bits, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  after_atomic(address, sizeof(T),
               new_bits != old_bits ? AtomicEffect::changed : AtomicEffect::wrote_the_same);
  return old_value;
}

// Keeps a parameter out of template deduction: atomicAdd(unsigned*, 1) is legal CUDA.
template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using NotDeduced = typename Identity<T>::Type;

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMIC(name, expression)                                              \
  template <typename T>                                                                   \
  inline T name(T* address, cuda_on_cpu::NotDeduced<T> value) {                           \
    return cuda_on_cpu::update_atomically(address, [=](T old) -> T { return expression; }); \
  }

CUDA_ON_CPU_ATOMIC(atomicAdd, old + value)
CUDA_ON_CPU_ATOMIC(atomicSub, old - value)
CUDA_ON_CPU_ATOMIC(atomicMax, old > value ? old : value)
CUDA_ON_CPU_ATOMIC(atomicMin, old < value ? old : value)
CUDA_ON_CPU_ATOMIC(atomicExch, (static_cast<void>(old), value))
CUDA_ON_CPU_ATOMIC(atomicAnd, old & value)
CUDA_ON_CPU_ATOMIC(atomicOr, old | value)
CUDA_ON_CPU_ATOMIC(atomicXor, old ^ value)
CUDA_ON_CPU_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
CUDA_ON_CPU_ATOMIC(atomicDec, old == 0 || old > value ? value : T(old - 1))

#undef CUDA_ON_CPU_ATOMIC

template <typename T>
inline T atomicCAS(T* address, cuda_on_cpu::NotDeduced<T> expected,
                   cuda_on_cpu::NotDeduced<T> desired) {
  return cuda_on_cpu::update_atomically(
      address, [=](T old) -> T { return old == expected ? desired : old; });
}
