// SPDX-License-Identifier: Apache-2.0
// The state of a launch: threads, warps, blocks, and the scheduler that runs them one at a time.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "../include/cuda_on_cpu/runtime_interface.h"
#include "context.h"

namespace cuda_on_cpu {

struct Block;
struct Warp;

enum class ThreadState { ready, at_barrier, at_warp_operation, finished };

// A token carries order from those who release it to those who acquire it. There are two, used in
// turn, because a fast thread may reach the next barrier before a slow one has left this one.
struct Rendezvous {
  char tokens[2];
  unsigned round = 0;
  int line = 0;
};

struct PendingCopy {
  AsyncCopy copy;
  unsigned group;
};

// What the sanitizer knows of one CUDA thread; the couriers are explained in memory_order.cpp.
struct SanitizerThread {
  void* fiber = nullptr;
  void* publisher = nullptr;
  void* observer = nullptr;
  bool has_fenced = false;
  char fence_token;
  char observed_token;
};

struct CudaThread {
  ThreadPosition position;
  Block* block = nullptr;
  Warp* warp = nullptr;
  ThreadState state = ThreadState::ready;
  int line = 0;
  uint64_t priority = 0;
  Context context;
  void* stack = nullptr;
  std::vector<PendingCopy> copies;
  size_t finished_copies = 0;
  unsigned open_copy_group = 0;
  SanitizerThread sanitizer;
};

// Of a warp's operation, run once by the last lane to arrive: it may read and write what all the
// arguments point to.
using CombineLanes = void (*)(void* const* arguments, unsigned lanes);

struct Warp {
  CudaThread* threads[warp_size] = {};
  void* arguments[warp_size] = {};
  unsigned arrived = 0;
  unsigned expected = 0;
  CombineLanes combine = nullptr;
  Rendezvous rendezvous;
};

struct SharedArray {
  std::string name;
  char* data;
  size_t bytes;
};

// All shared memory of a block in one piece, so that a 32-bit offset can stand for a pointer.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void* array(int declaration, const char* name, size_t bytes, size_t alignment);
  // The name of an array next to which something was overwritten, or null.
  const char* overrun() const;
  uint32_t address(const void* pointer) const;
  void* pointer(uint32_t address) const { return memory_ + address; }
  void describe(unsigned block) const;

 private:
  char* memory_;
  size_t used_;
  size_t array_bytes_ = 0;
  std::vector<std::unique_ptr<SharedArray>> arrays_;
};

struct Block {
  unsigned index = 0;
  std::vector<CudaThread> threads;
  std::vector<Warp> warps;
  SharedMemory shared;
  unsigned running = 0;
  unsigned waiting = 0;
  Rendezvous barrier;
};

// The numbers are the driver's.
enum class Order { forward = 0, reverse = 1, random = 2, priority = 3 };

// Which of the threads that can run is next.
class ReadyThreads {
 public:
  ReadyThreads(Order order, uint64_t seed) : order_(order), random_(seed) {}

  // Adds threads that became ready together, in index order.
  void add(std::vector<CudaThread*> group);
  CudaThread* take();
  bool empty() const { return threads_.empty(); }
  void draw_priority(CudaThread* thread) { thread->priority = random_(); }

 private:
  Order order_;
  std::mt19937_64 random_;
  std::deque<CudaThread*> threads_;
};

struct Launch {
  const KernelEntry* kernel = nullptr;
  const Argument* arguments = nullptr;
  Dim3 grid;
  Dim3 block;
  size_t dynamic_shared_bytes = 0;
  Order order = Order::forward;
  uint64_t seed = 0;
  unsigned resident_blocks = 1;
};

class Scheduler {
 public:
  explicit Scheduler(const Launch& launch);
  ~Scheduler();

  // Runs all blocks, or until something fails.
  void run();

  void suspend(CudaThread* thread, ThreadState state, int line);
  void resume(const std::vector<CudaThread*>& threads, bool redraw_priorities);
  void yield(CudaThread* thread);
  void made_progress() { fruitless_yields_ = 0; }
  void finish(CudaThread* thread);
  void give_up(const char* kind, const std::string& message);

  // What carries order between the atomic accesses to an address; for the sanitizer only.
  const char* token_of(const volatile void* address) { return &tokens_[address]; }

  const Launch& launch() const { return launch_; }
  void* sanitizer_fiber() const { return sanitizer_fiber_; }
  bool failed() const { return !error_kind_.empty(); }
  const std::string& error_kind() const { return error_kind_; }
  const std::string& error_message() const { return error_message_; }

  // Where blocks begin and end, for the sanitizer.
  char start_token;
  char end_token;

 private:
  void start_blocks();
  void start_block(unsigned index);
  void run_thread(CudaThread* thread);
  void retire(Block* block);
  void report_deadlock();

  Launch launch_;
  ReadyThreads ready_;
  std::vector<unsigned> order_of_blocks_;
  size_t next_block_ = 0;
  std::vector<std::unique_ptr<Block>> resident_;
  std::vector<std::unique_ptr<Block>> retired_;
  StackPool stacks_;
  Context context_;
  void* sanitizer_fiber_;
  uint64_t fruitless_yields_ = 0;
  std::unordered_map<const volatile void*, char> tokens_;
  std::string error_kind_;
  std::string error_message_;
};

// Waits until all `lanes` have come with their argument.
enum class MemoryOrder { none, warp };
void warp_collective(void* argument, CombineLanes combine, unsigned lanes, MemoryOrder order,
                     int line);

// One launch at a time; `current` is null while the scheduler itself runs.
extern Scheduler* scheduler;
extern CudaThread* current;

std::string name_of(const Block& block);
std::string name_of(const CudaThread& thread);

}  // namespace cuda_on_cpu
