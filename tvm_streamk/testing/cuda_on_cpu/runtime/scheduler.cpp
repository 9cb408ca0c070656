// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {

Scheduler* scheduler = nullptr;
CudaThread* current = nullptr;

namespace {

// A thread that polls an atomic yields each time. After so many polls in a row, with nothing else
// happening, no one is left who could end the wait.
constexpr uint64_t most_fruitless_yields = 4'000'000;

Dim3 position_of(unsigned index, const Dim3& extents) {
  return {index % extents.x, index / extents.x % extents.y, index / extents.x / extents.y};
}

std::string text_of(const Dim3& position) {
  return "(" + std::to_string(position.x) + "," + std::to_string(position.y) + "," +
         std::to_string(position.z) + ")";
}

bool lower_priority(const CudaThread* a, const CudaThread* b) { return a->priority < b->priority; }

void run_current_thread() {
  sanitizer::acquire(&scheduler->start_token);
  scheduler->launch().kernel->invoke(scheduler->launch().arguments);
  sanitizer::release(&scheduler->end_token);
  scheduler->finish(current);
}

}  // namespace

std::string name_of(const Block& block) {
  return "block " + text_of(block.threads.front().position.block);
}

std::string name_of(const CudaThread& thread) {
  return name_of(*thread.block) + " thread " + text_of(thread.position.thread);
}

const ThreadPosition& this_thread() { return current->position; }

void fail(const char* kind, const char* message) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  scheduler->give_up(kind, name_of(*thread) + ": " + message);
  scheduler->suspend(thread, ThreadState::finished, thread->line);
  __builtin_unreachable();
}

void ReadyThreads::add(std::vector<CudaThread*> group) {
  if (order_ == Order::reverse) std::reverse(group.begin(), group.end());
  for (CudaThread* thread : group) {
    threads_.push_back(thread);
    if (order_ == Order::priority) std::push_heap(threads_.begin(), threads_.end(), lower_priority);
  }
}

CudaThread* ReadyThreads::take() {
  if (order_ == Order::forward || order_ == Order::reverse) {
    CudaThread* const thread = threads_.front();
    threads_.pop_front();
    return thread;
  }
  if (order_ == Order::priority) {
    std::pop_heap(threads_.begin(), threads_.end(), lower_priority);
  } else {
    std::swap(threads_[random_() % threads_.size()], threads_.back());
  }
  CudaThread* const thread = threads_.back();
  threads_.pop_back();
  return thread;
}

Scheduler::Scheduler(const Launch& launch)
    : launch_(launch),
      ready_(launch.order, launch.seed),
      order_of_blocks_(launch.grid.x * launch.grid.y * launch.grid.z),
      sanitizer_fiber_(sanitizer::current_fiber()) {
  std::iota(order_of_blocks_.begin(), order_of_blocks_.end(), 0u);
  if (launch.order == Order::reverse) {
    std::reverse(order_of_blocks_.begin(), order_of_blocks_.end());
  } else if (launch.order != Order::forward) {
    std::shuffle(order_of_blocks_.begin(), order_of_blocks_.end(), std::mt19937_64(launch.seed));
  }
}

Scheduler::~Scheduler() {
  // Threads that never ended, after a failure, are dropped with their stacks: kernels own nothing.
  if (!sanitizer::enabled) return;
  for (auto* blocks : {&resident_, &retired_}) {
    for (auto& block : *blocks) {
      for (CudaThread& thread : block->threads) {
        const SanitizerThread& known = thread.sanitizer;
        for (void* fiber : {known.fiber, known.publisher, known.observer}) {
          if (fiber != nullptr) sanitizer::destroy_fiber(fiber);
        }
      }
    }
  }
}

void Scheduler::run() {
  while (!failed()) {
    start_blocks();
    if (resident_.empty()) break;
    if (ready_.empty()) {
      report_deadlock();
      break;
    }
    run_thread(ready_.take());
  }
  sanitizer::acquire(&end_token);
}

void Scheduler::start_blocks() {
  while (resident_.size() < launch_.resident_blocks && next_block_ < order_of_blocks_.size()) {
    start_block(order_of_blocks_[next_block_++]);
  }
}

void Scheduler::start_block(unsigned index) {
  auto block = std::make_unique<Block>();
  const Dim3& extents = launch_.block;
  const unsigned thread_count = extents.x * extents.y * extents.z;
  block->index = index;
  block->threads = std::vector<CudaThread>(thread_count);
  block->warps.resize((thread_count + warp_size - 1) / warp_size);
  block->running = thread_count;
  std::vector<CudaThread*> started;
  for (unsigned i = 0; i < thread_count; ++i) {
    CudaThread& thread = block->threads[i];
    thread.position = {position_of(i, extents), position_of(index, launch_.grid), extents,
                       launch_.grid, i % warp_size};
    thread.block = block.get();
    thread.warp = &block->warps[i / warp_size];
    thread.warp->threads[i % warp_size] = &thread;
    thread.stack = stacks_.take();
    thread.context = make_context(thread.stack, run_current_thread);
    thread.sanitizer.fiber = sanitizer::create_fiber();
    ready_.draw_priority(&thread);
    started.push_back(&thread);
  }
  if (sanitizer::enabled) {
    for (CudaThread* thread : started) {
      sanitizer::name_fiber(thread->sanitizer.fiber, name_of(*thread).c_str());
    }
  }
  resident_.push_back(std::move(block));
  ready_.add(std::move(started));
  sanitizer::release(&start_token);
  made_progress();
}

void Scheduler::run_thread(CudaThread* thread) {
  current = thread;
  sanitizer::become(thread->sanitizer.fiber);
  switch_context(&context_, &thread->context);
  current = nullptr;
  if (thread->state == ThreadState::finished && thread->block->running == 0) {
    retire(thread->block);
  }
}

void Scheduler::retire(Block* block) {
  if (const char* name = block->shared.overrun()) {
    give_up("shared_overrun", name_of(*block) + ": something was written just outside of the " +
                                  "shared array '" + name + "', found when the block ended");
  }
  for (CudaThread& thread : block->threads) {
    // The sanitizer remembers the stacks of blocks that ended: giving one to another block would
    // look like a race between the two.
    if (!sanitizer::enabled) stacks_.give_back(thread.stack);
  }
  const auto position =
      std::find_if(resident_.begin(), resident_.end(),
                   [block](const std::unique_ptr<Block>& other) { return other.get() == block; });
  if (sanitizer::enabled) {
    block->shared.describe(block->index);
    retired_.push_back(std::move(*position));
  }
  resident_.erase(position);
  made_progress();
}

void Scheduler::suspend(CudaThread* thread, ThreadState state, int line) {
  thread->state = state;
  thread->line = line;
  switch_context(&thread->context, &context_);
}

void Scheduler::resume(const std::vector<CudaThread*>& threads, bool redraw_priorities) {
  for (CudaThread* thread : threads) {
    thread->state = ThreadState::ready;
    if (redraw_priorities) ready_.draw_priority(thread);
  }
  ready_.add(threads);
  made_progress();
}

void Scheduler::yield(CudaThread* thread) {
  if (++fruitless_yields_ > most_fruitless_yields) {
    give_up("deadlock",
            name_of(*thread) + " polls an atomic that no running thread changes; what it waits " +
                "for may be a block that isn't resident (more resident_blocks), or never come");
  }
  ready_.draw_priority(thread);
  ready_.add({thread});
  suspend(thread, ThreadState::ready, thread->line);
}

void Scheduler::finish(CudaThread* thread) {
  sanitizer::become(sanitizer_fiber_);
  Block& block = *thread->block;
  --block.running;
  if (block.waiting > 0) {
    give_up("divergence", name_of(*thread) + " ends while others wait at the barrier in line " +
                              std::to_string(block.barrier.line));
  }
  made_progress();
  suspend(thread, ThreadState::finished, thread->line);
}

void Scheduler::give_up(const char* kind, const std::string& message) {
  if (failed()) return;
  error_kind_ = kind;
  error_message_ = message;
}

void Scheduler::report_deadlock() {
  const Block& block = *resident_.front();
  unsigned counts[4] = {};
  int line = 0;
  for (const CudaThread& thread : block.threads) {
    ++counts[static_cast<int>(thread.state)];
    if (thread.state != ThreadState::finished) line = thread.line;
  }
  give_up("deadlock",
          name_of(block) + ": " +
              std::to_string(counts[static_cast<int>(ThreadState::at_barrier)]) +
              " threads wait at a barrier, " +
              std::to_string(counts[static_cast<int>(ThreadState::at_warp_operation)]) +
              " at a warp operation, " +
              std::to_string(counts[static_cast<int>(ThreadState::finished)]) +
              " have ended; one waits in line " + std::to_string(line));
}

}  // namespace cuda_on_cpu
