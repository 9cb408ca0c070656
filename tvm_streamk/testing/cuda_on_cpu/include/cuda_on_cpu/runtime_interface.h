// SPDX-License-Identifier: Apache-2.0
// What compiled kernels ask of the runtime: who am I, barriers, warp operations, shared memory,
// atomics and fences, asynchronous copies. The runtime is compiled once and linked to each kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_on_cpu {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct ThreadPosition {
  Dim3 thread;
  Dim3 block;
  Dim3 block_size;
  Dim3 grid_size;
  unsigned lane;
};

constexpr unsigned warp_size = 32;
constexpr unsigned all_lanes = 0xffffffffu;

// "const" is true from a CUDA thread's point of view: it never turns into another one. It lets
// the compiler keep the position in a register across barriers.
[[gnu::const]] const ThreadPosition& this_thread();

// Stops the launch with an error. `kind` selects the Python exception.
[[noreturn]] void fail(const char* kind, const char* message);

// ---- waiting for others ------------------------------------------------------------------------

void wait_at_barrier(int line);

// Warp operations end when all `lanes` have called the same one in the same line. Shuffles and
// votes order no memory.
struct Exchange {
  uint64_t offered;
  uint64_t received;
  unsigned source_lane;
};

void exchange_words(Exchange* exchange, unsigned lanes, int line);
unsigned vote(bool predicate, unsigned lanes, int line);
void synchronize_warp(unsigned lanes, int line);

// ---- tensor cores ------------------------------------------------------------------------------

// Where the elements of a tile live in the lanes of a warp: spread evenly in row-major order
// (wmma leaves this open), or as PTX prescribes for mma.m16n8, whose registers are 32 bits wide.
enum class TileLayout { even, mma };

struct TileShape {
  int rows;
  int columns;
  int depth;
  TileLayout layout;
  int elements_per_register;
};

// A lane's elements of d = a b + c.
template <typename Number>
struct LaneTiles {
  const Number* a;
  const Number* b;
  const Number* c;
  Number* d;
};

void multiply_tiles(const TileShape& shape, const LaneTiles<float>& tiles, int line);
void multiply_tiles(const TileShape& shape, const LaneTiles<int32_t>& tiles, int line);

// ---- shared memory -----------------------------------------------------------------------------

void* shared_array(int declaration, const char* name, size_t bytes, size_t alignment);
void* dynamic_shared_memory(const char* name);
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);

// ---- atomics and fences ------------------------------------------------------------------------

// Both sides of an atomic access. A relaxed one publishes what came before the thread's last
// fence, and what it read counts from its next fence on.
enum class AtomicEffect { read, wrote_the_same, changed };
void before_atomic(const volatile void* address);
void after_atomic(volatile void* address, unsigned bytes, AtomicEffect effect);
void release_to(const volatile void* address);
void acquire_from(const volatile void* address);
void device_fence();

// ---- asynchronous copies -----------------------------------------------------------------------

struct AsyncCopy {
  void* destination;
  const void* source;
  unsigned bytes;
  unsigned source_bytes;
};

void queue_async_copy(const AsyncCopy& copy);
void commit_async_copies();
// Takes the oldest copy that must be finished when `groups_in_flight` groups may be pending.
bool take_due_copy(unsigned groups_in_flight, AsyncCopy* copy);
bool take_any_copy(AsyncCopy* copy);

// ---- kernels -----------------------------------------------------------------------------------

// A kernel argument in all forms; the parameter's C++ type says which one counts.
struct Argument {
  void* pointer;
  int64_t integer;
  double real;
};

struct KernelEntry {
  const char* name;
  void (*invoke)(const Argument* arguments);
  unsigned parameter_count;
  KernelEntry* next;
};

void register_kernel(KernelEntry* entry);

}  // namespace cuda_on_cpu
