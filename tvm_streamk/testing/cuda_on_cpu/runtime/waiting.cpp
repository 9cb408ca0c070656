// SPDX-License-Identifier: Apache-2.0
// Block barriers and warp-wide operations.
#include <string>

#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

void check_barrier(const CudaThread& thread, int line) {
  const Block& block = *thread.block;
  const std::string here = std::to_string(line);
  if (block.running != block.threads.size()) {
    scheduler->give_up("divergence", name_of(thread) + " waits at the barrier in line " + here +
                                         " after other threads have ended");
  }
  if (block.waiting > 0 && block.barrier.line != line) {
    scheduler->give_up("divergence",
                       name_of(block) + ": its threads wait at different barriers, in lines " +
                           std::to_string(block.barrier.line) + " and " + here);
  }
}

void release_barrier(Block& block, int line) {
  if (const char* name = block.shared.overrun()) {
    scheduler->give_up("shared_overrun",
                       name_of(block) + ": something was written just outside of the shared " +
                           "array '" + name + "', found at the barrier in line " +
                           std::to_string(line));
  }
  std::vector<CudaThread*> threads;
  for (CudaThread& thread : block.threads) threads.push_back(&thread);
  block.waiting = 0;
  block.barrier.round ^= 1;
  scheduler->resume(threads, true);
}

unsigned existing_lanes(const Warp& warp) {
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if (warp.threads[lane] != nullptr) lanes |= 1u << lane;
  }
  return lanes;
}

void check_warp(const CudaThread& thread, CombineLanes combine, unsigned lanes, int line) {
  const Warp& warp = *thread.warp;
  const unsigned own_lane = 1u << thread.position.lane;
  if ((lanes & own_lane) == 0) {
    scheduler->give_up("divergence", name_of(thread) + " calls a warp operation in line " +
                                         std::to_string(line) + " whose mask leaves it out");
  }
  const bool same = warp.combine == combine && warp.expected == lanes;
  if (warp.arrived != 0 && (warp.rendezvous.line != line || !same)) {
    scheduler->give_up("divergence",
                       name_of(thread) + ": the lanes of its warp wait at different warp " +
                           "operations, in lines " + std::to_string(warp.rendezvous.line) +
                           " and " + std::to_string(line));
  }
}

void release_warp(Warp& warp, const CudaThread* last) {
  std::vector<CudaThread*> others;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    const bool waits = (warp.arrived >> lane & 1u) != 0 && warp.threads[lane] != last;
    if (waits) others.push_back(warp.threads[lane]);
  }
  warp.arrived = 0;
  warp.rendezvous.round ^= 1;
  scheduler->resume(others, false);
}

void deliver_words(void* const* arguments, unsigned lanes) {
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    auto* const reader = static_cast<Exchange*>(arguments[lane]);
    const bool source_takes_part = (lanes >> reader->source_lane & 1u) != 0;
    // Undefined in CUDA; the poison of unwritten memory makes its use visible.
    constexpr uint64_t poison = ~uint64_t{0};
    reader->received = source_takes_part
                           ? static_cast<Exchange*>(arguments[reader->source_lane])->offered
                           : poison;
  }
}

struct Vote {
  bool predicate;
  unsigned ballot;
};

void count_votes(void* const* arguments, unsigned lanes) {
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if ((lanes >> lane & 1u) == 0) continue;
    if (static_cast<Vote*>(arguments[lane])->predicate) ballot |= 1u << lane;
  }
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if ((lanes >> lane & 1u) != 0) static_cast<Vote*>(arguments[lane])->ballot = ballot;
  }
}

void do_nothing(void* const*, unsigned) {}

}  // namespace

void wait_at_barrier(int line) {
  CudaThread* const thread = current;
  Block& block = *thread->block;
  char* const token = &block.barrier.tokens[block.barrier.round];
  sanitizer::release(token);
  sanitizer::become(scheduler->sanitizer_fiber());
  check_barrier(*thread, line);
  block.barrier.line = line;
  ++block.waiting;
  if (block.waiting == block.running) release_barrier(block, line);
  // Also the last one: it waits for its turn among those it has released.
  const bool released = block.waiting == 0;
  scheduler->suspend(thread, released ? ThreadState::ready : ThreadState::at_barrier, line);
  sanitizer::acquire(token);
}

void warp_collective(void* argument, CombineLanes combine, unsigned lanes, MemoryOrder order,
                     int line) {
  CudaThread* const thread = current;
  Warp& warp = *thread->warp;
  char* const token = &warp.rendezvous.tokens[warp.rendezvous.round];
  if (order == MemoryOrder::warp) sanitizer::release(token);
  sanitizer::become(scheduler->sanitizer_fiber());
  lanes &= existing_lanes(warp);
  check_warp(*thread, combine, lanes, line);
  warp.rendezvous.line = line;
  warp.expected = lanes;
  warp.combine = combine;
  warp.arguments[thread->position.lane] = argument;
  warp.arrived |= 1u << thread->position.lane;
  if (scheduler->failed()) scheduler->suspend(thread, ThreadState::at_warp_operation, line);
  if (warp.arrived == lanes) {
    combine(warp.arguments, lanes);
    release_warp(warp, thread);
    sanitizer::become(thread->sanitizer.fiber);
  } else {
    scheduler->suspend(thread, ThreadState::at_warp_operation, line);
  }
  if (order == MemoryOrder::warp) sanitizer::acquire(token);
}

void exchange_words(Exchange* exchange, unsigned lanes, int line) {
  warp_collective(exchange, deliver_words, lanes, MemoryOrder::none, line);
}

unsigned vote(bool predicate, unsigned lanes, int line) {
  Vote ballot = {predicate, 0};
  warp_collective(&ballot, count_votes, lanes, MemoryOrder::none, line);
  return ballot.ballot;
}

void synchronize_warp(unsigned lanes, int line) {
  warp_collective(nullptr, do_nothing, lanes, MemoryOrder::warp, line);
}

}  // namespace cuda_on_cpu
