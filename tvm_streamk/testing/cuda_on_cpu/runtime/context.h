// SPDX-License-Identifier: Apache-2.0
// Fibres: stacks and the switch between them. Knows nothing of CUDA.
#pragma once

#include <cstddef>
#include <vector>

namespace cuda_on_cpu {

// A suspended flow of control is its stack pointer; the rest of its state lies on that stack.
struct Context {
  void* stack_pointer = nullptr;
};

// Leaves the running flow in `from` and continues `to`.
void switch_context(Context* from, const Context* to);

class StackPool {
 public:
  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool();

  // The lowest address of a stack whose first page is a guard; throws std::bad_alloc.
  void* take();
  void give_back(void* stack) { free_.push_back(stack); }

  static bool is_guard(const void* stack, const void* address);

 private:
  std::vector<void*> free_;
  std::vector<void*> all_;
};

// A context on `stack` which starts in `entry`. `entry` must never return.
Context make_context(void* stack, void (*entry)());

}  // namespace cuda_on_cpu
