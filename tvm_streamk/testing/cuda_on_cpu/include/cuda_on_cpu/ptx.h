// SPDX-License-Identifier: Apache-2.0
// One function per PTX instruction that the driver finds in inline assembly and turns into a call.
#pragma once

#include "atomics.h"
#include "bfloat16.h"
#include "half.h"
#include "language.h"
#include "warp.h"

namespace cuda_on_cpu {
namespace ptx {

// Registers are 32-bit words whatever C++ type the operand has.
template <typename T>
inline uint32_t word(const T& value) {
  static_assert(sizeof(T) <= sizeof(uint32_t), "the operand does not fit a 32-bit register");
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
inline void set_word(T& target, uint32_t bits) {
  static_assert(sizeof(T) <= sizeof(uint32_t), "the operand does not fit a 32-bit register");
  __builtin_memcpy(&target, &bits, sizeof(T));
}

// ---- addresses ---------------------------------------------------------------------------------

inline uint64_t to_shared(const void* pointer) { return shared_address(pointer); }

// Global addresses come as pointers or as 64-bit integers.
inline void* global_pointer(const volatile void* pointer) { return const_cast<void*>(pointer); }
inline void* global_pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// ---- asynchronous copies -----------------------------------------------------------------------

// Between issue and wait the destination holds anything: here the poison of unwritten memory. So
// a copy that starts before the last reader is done shows, and so does a read before the wait.
template <typename Source>
inline void cp_async(uint32_t destination, Source source, unsigned bytes, unsigned source_bytes) {
  constexpr unsigned char poison = 0xff;
  auto* const target = static_cast<unsigned char*>(shared_pointer(destination));
  for (unsigned i = 0; i < bytes; ++i) target[i] = poison;
  const unsigned copied_bytes = source_bytes < bytes ? source_bytes : bytes;
  queue_async_copy({target, global_pointer(source), bytes, copied_bytes});
}

template <typename Source>
inline void cp_async(uint32_t destination, Source source, unsigned bytes) {
  cp_async(destination, source, bytes, bytes);
}

// In the kernel's own translation unit, where a sanitizer sees the accesses.
inline void finish_copy(const AsyncCopy& copy) {
  auto* const target = static_cast<unsigned char*>(copy.destination);
  auto* const source = static_cast<const unsigned char*>(copy.source);
  for (unsigned i = 0; i < copy.source_bytes; ++i) target[i] = source[i];
  for (unsigned i = copy.source_bytes; i < copy.bytes; ++i) target[i] = 0;
}

inline void cp_async_commit_group() { commit_async_copies(); }

inline void cp_async_wait_group(unsigned groups_in_flight) {
  AsyncCopy copy;
  while (take_due_copy(groups_in_flight, &copy)) finish_copy(copy);
}

inline void cp_async_wait_all() {
  AsyncCopy copy;
  while (take_any_copy(&copy)) finish_copy(copy);
}

// ---- plain shared memory -----------------------------------------------------------------------

template <typename T>
inline void st_shared(uint32_t address, int index, T value) {
  static_cast<T*>(shared_pointer(address))[index] = value;
}

template <typename T>
inline T ld_shared(uint32_t address, int index) {
  return static_cast<T*>(shared_pointer(address))[index];
}

// ---- loads and stores with an order ------------------------------------------------------------

template <typename T, typename Address>
inline T ld_relaxed(Address address) {
  T* const pointer = static_cast<T*>(global_pointer(address));
  before_atomic(pointer);
  T value;
  __atomic_load(pointer, &value, __ATOMIC_RELAXED);
  after_atomic(pointer, sizeof(T), AtomicEffect::read);
  return value;
}

template <typename T, typename Address>
inline T ld_acquire(Address address) {
  const T value = ld_relaxed<T>(address);
  acquire_from(global_pointer(address));
  return value;
}

template <typename T, typename Address>
inline void st_relaxed(Address address, T value) {
  T* const pointer = static_cast<T*>(global_pointer(address));
  before_atomic(pointer);
  __atomic_store(pointer, &value, __ATOMIC_RELAXED);
  after_atomic(pointer, sizeof(T), AtomicEffect::changed);
}

template <typename T, typename Address>
inline void st_release(Address address, T value) {
  release_to(global_pointer(address));
  st_relaxed<T>(address, value);
}

template <typename T, typename Address>
inline T atom_add(Address address, T value) {
  return atomicAdd(static_cast<T*>(global_pointer(address)), value);
}

template <typename T, typename Address>
inline T atom_exch(Address address, T value) {
  return atomicExch(static_cast<T*>(global_pointer(address)), value);
}

template <typename T, typename Address>
inline T atom_cas(Address address, T expected, T desired) {
  return atomicCAS(static_cast<T*>(global_pointer(address)), expected, desired);
}

// ---- tensor cores ------------------------------------------------------------------------------

// Eight lanes give the row addresses of each 8x8 matrix; afterwards every lane has two neighbours
// of each. The lane itself reads the elements, so that a sanitizer sees who reads what.
template <int matrices>
inline void ldmatrix(uint32_t (&destination)[matrices], uint32_t row_address, bool transposed,
                     int line) {
  constexpr int rows = 8;
  const int lane = this_lane();
  for (int matrix = 0; matrix < matrices; ++matrix) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int row = transposed ? 2 * (lane % 4) + i : lane / 4;
      const int column = transposed ? lane / 4 : 2 * (lane % 4) + i;
      const uint32_t address = read_lane(all_lanes, row_address, matrix * rows + row, line);
      pair[i] = ld_shared<uint16_t>(address, column);
    }
    __builtin_memcpy(&destination[matrix], pair, sizeof(pair));
  }
}

template <typename Element, typename Number, int words>
inline void unpack(const uint32_t (&registers)[words], Number* numbers) {
  constexpr int count = words * sizeof(uint32_t) / sizeof(Element);
  Element elements[count];
  __builtin_memcpy(elements, registers, sizeof(elements));
  for (int i = 0; i < count; ++i) numbers[i] = static_cast<Number>(elements[i]);
}

template <typename Element, typename Number, int words>
inline void pack(const Number* numbers, uint32_t (&registers)[words]) {
  constexpr int count = words * sizeof(uint32_t) / sizeof(Element);
  Element elements[count];
  for (int i = 0; i < count; ++i) elements[i] = static_cast<Element>(numbers[i]);
  __builtin_memcpy(registers, elements, sizeof(elements));
}

// mma.sync.aligned.m16n8k<depth>.row.col: d = a b + c.
template <int depth, typename Sum, typename A, typename B, int words_a, int words_b, int words_c>
inline void mma(uint32_t (&d)[words_c], const uint32_t (&a)[words_a], const uint32_t (&b)[words_b],
                const uint32_t (&c)[words_c], int line) {
  using Number = std::conditional_t<std::is_integral_v<Sum>, int32_t, float>;
  constexpr int rows = 16;
  constexpr int columns = 8;
  constexpr int elements_per_register = sizeof(uint32_t) / sizeof(A);
  constexpr int lanes = static_cast<int>(warp_size);
  static_assert(words_a * elements_per_register * lanes == rows * depth);
  static_assert(words_b * elements_per_register * lanes == columns * depth);
  static_assert(words_c * sizeof(uint32_t) * lanes == rows * columns * sizeof(Sum));
  Number wide_a[rows * depth / lanes];
  Number wide_b[columns * depth / lanes];
  Number addend[rows * columns / lanes];
  Number sum[rows * columns / lanes];
  unpack<A>(a, wide_a);
  unpack<B>(b, wide_b);
  unpack<Sum>(c, addend);
  const TileShape shape = {rows, columns, depth, TileLayout::mma, elements_per_register};
  multiply_tiles(shape, LaneTiles<Number>{wide_a, wide_b, addend, sum}, line);
  pack<Sum>(sum, d);
}

// Four products of bytes, added to a 32-bit integer.
template <typename ByteA, typename ByteB>
inline int dp4a(uint32_t a, uint32_t b, int sum) {
  ByteA bytes_a[4];
  ByteB bytes_b[4];
  __builtin_memcpy(bytes_a, &a, sizeof(a));
  __builtin_memcpy(bytes_b, &b, sizeof(b));
  for (int i = 0; i < 4; ++i) sum += bytes_a[i] * bytes_b[i];
  return sum;
}

}  // namespace ptx
}  // namespace cuda_on_cpu

inline int __dp4a(int a, int b, int sum) {
  return cuda_on_cpu::ptx::dp4a<signed char, signed char>(a, b, sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  return cuda_on_cpu::ptx::dp4a<unsigned char, unsigned char>(a, b, sum);
}
