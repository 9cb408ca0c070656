// SPDX-License-Identifier: Apache-2.0
// cp.async: copies wait here until the kernel may no longer assume them unfinished.
#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

bool take_if(CudaThread& thread, unsigned open_group_limit, AsyncCopy* copy) {
  if (thread.finished_copies == thread.copies.size()) {
    thread.copies.clear();
    thread.finished_copies = 0;
    return false;
  }
  const PendingCopy& oldest = thread.copies[thread.finished_copies];
  if (oldest.group >= open_group_limit) return false;
  *copy = oldest.copy;
  ++thread.finished_copies;
  return true;
}

}  // namespace

void queue_async_copy(const AsyncCopy& copy) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  thread->copies.push_back({copy, thread->open_copy_group});
  sanitizer::become(thread->sanitizer.fiber);
}

void commit_async_copies() { ++current->open_copy_group; }

bool take_due_copy(unsigned groups_in_flight, AsyncCopy* copy) {
  CudaThread& thread = *current;
  if (thread.open_copy_group < groups_in_flight) return false;
  return take_if(thread, thread.open_copy_group - groups_in_flight, copy);
}

bool take_any_copy(AsyncCopy* copy) {
  CudaThread& thread = *current;
  return take_if(thread, thread.open_copy_group + 1, copy);
}

}  // namespace cuda_on_cpu
