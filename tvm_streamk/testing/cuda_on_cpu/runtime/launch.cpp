// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "crash_guard.h"
#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

constexpr uint64_t most_threads_per_block = 1024;

std::mutex one_launch_at_a_time;

// Filled by static constructors of the kernel's file, in any order with this one.
KernelEntry*& first_kernel() {
  static KernelEntry* first = nullptr;
  return first;
}

void describe(CudaOnCpuFault* fault, const char* kind, const std::string& message) {
  std::snprintf(fault->kind, sizeof(fault->kind), "%s", kind);
  std::snprintf(fault->message, sizeof(fault->message), "%s", message.c_str());
}

const KernelEntry* find_kernel(const CudaOnCpuRequest& request, CudaOnCpuFault* fault) {
  for (const KernelEntry* entry = first_kernel(); entry != nullptr; entry = entry->next) {
    if (std::strcmp(entry->name, request.kernel) != 0) continue;
    if (entry->parameter_count == request.argument_count) return entry;
    describe(fault, "request",
             std::string("kernel '") + request.kernel + "' has " +
                 std::to_string(entry->parameter_count) + " parameters, the launch gives " +
                 std::to_string(request.argument_count) + " arguments");
    return nullptr;
  }
  describe(fault, "request", std::string("the source has no kernel '") + request.kernel + "'");
  return nullptr;
}

Dim3 extents_of(const uint32_t (&extents)[3]) { return {extents[0], extents[1], extents[2]}; }

bool check_extents(const CudaOnCpuRequest& request, CudaOnCpuFault* fault) {
  const uint64_t threads = uint64_t{request.block[0]} * request.block[1] * request.block[2];
  if (threads >= 1 && threads <= most_threads_per_block) return true;
  describe(fault, "request", "a block of " + std::to_string(threads) +
                                 " threads; CUDA allows 1 to " +
                                 std::to_string(most_threads_per_block));
  return false;
}

void run_scheduler() { scheduler->run(); }

bool run(const Launch& launch, CudaOnCpuFault* fault) {
  const auto owner = std::make_unique<Scheduler>(launch);
  scheduler = owner.get();
  bool survived = true;
  if (sanitizer::enabled) {
    scheduler->run();
  } else {
    survived = run_guarded(run_scheduler, fault->message, sizeof(fault->message));
  }
  if (!survived) std::snprintf(fault->kind, sizeof(fault->kind), "memory");
  if (survived && owner->failed()) {
    describe(fault, owner->error_kind().c_str(), owner->error_message());
  }
  scheduler = nullptr;
  current = nullptr;
  return survived && !owner->failed();
}

}  // namespace

void register_kernel(KernelEntry* entry) {
  entry->next = first_kernel();
  first_kernel() = entry;
}

}  // namespace cuda_on_cpu

bool cuda_on_cpu_launch(const CudaOnCpuRequest* request, CudaOnCpuFault* fault) {
  using namespace cuda_on_cpu;
  const std::lock_guard<std::mutex> lock(one_launch_at_a_time);
  Launch launch;
  launch.kernel = find_kernel(*request, fault);
  if (launch.kernel == nullptr || !check_extents(*request, fault)) return false;
  launch.arguments = request->arguments;
  launch.grid = extents_of(request->grid);
  launch.block = extents_of(request->block);
  launch.dynamic_shared_bytes = request->dynamic_shared_bytes;
  launch.order = static_cast<Order>(request->order);
  launch.seed = request->seed;
  launch.resident_blocks = request->resident_blocks;
  try {
    return run(launch, fault);
  } catch (const std::bad_alloc&) {
    describe(fault, "limit", "no memory for the threads' stacks; use fewer resident_blocks");
    return false;
  }
}
