// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sanitizer_hooks.h"
#include "state.h"

namespace cuda_on_cpu {
namespace {

// The most that any device up to sm_90 gives to one block.
constexpr size_t most_shared_bytes = 227 * 1024;
constexpr size_t red_zone_bytes = 64;
constexpr size_t arena_bytes = 256 * 1024;
constexpr size_t arena_alignment = 4096;
constexpr size_t dynamic_alignment = 128;
constexpr int dynamic_declaration = -1;

// All bits set is NaN in every float type. The red zones differ from it, so that unwritten data
// copied over them is noticed too.
constexpr int poison = 0xff;
constexpr int red_zone = 0xfd;

bool is_untouched(const char* zone) {
  for (size_t i = 0; i < red_zone_bytes; ++i) {
    if (static_cast<unsigned char>(zone[i]) != red_zone) return false;
  }
  return true;
}

size_t rounded_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Entering the runtime as the scheduler keeps its bookkeeping out of the sanitizer's sight.
template <typename Action>
auto as_scheduler(Action action) {
  CudaThread* const thread = current;
  sanitizer::become(scheduler->sanitizer_fiber());
  auto result = action(*thread);
  sanitizer::become(thread->sanitizer.fiber);
  return result;
}

}  // namespace

SharedMemory::SharedMemory()
    : memory_(static_cast<char*>(std::aligned_alloc(arena_alignment, arena_bytes))),
      used_(red_zone_bytes) {
  if (memory_ == nullptr) throw std::bad_alloc();
  // Before the block's threads begin: a sanitizer would take a later write for a race with them.
  std::memset(memory_, poison, arena_bytes);
  std::memset(memory_, red_zone, red_zone_bytes);
}

SharedMemory::~SharedMemory() { std::free(memory_); }

void* SharedMemory::array(int declaration, const char* name, size_t bytes, size_t alignment) {
  const size_t index = static_cast<size_t>(declaration + 1);
  if (index >= arrays_.size()) arrays_.resize(index + 1);
  if (arrays_[index] != nullptr) return arrays_[index]->data;
  const size_t start = rounded_up(used_, alignment);
  const size_t end = start + bytes;
  if (array_bytes_ + bytes > most_shared_bytes) return nullptr;
  if (end + red_zone_bytes > arena_bytes) return nullptr;
  // What alignment skips belongs to the red zone before the array.
  std::memset(memory_ + used_, red_zone, start - used_);
  std::memset(memory_ + end, red_zone, red_zone_bytes);
  used_ = end + red_zone_bytes;
  array_bytes_ += bytes;
  arrays_[index] = std::make_unique<SharedArray>(SharedArray{name, memory_ + start, bytes});
  return memory_ + start;
}

const char* SharedMemory::overrun() const {
  for (const auto& array : arrays_) {
    if (array == nullptr) continue;
    const char* const before = array->data - red_zone_bytes;
    const char* const after = array->data + array->bytes;
    if (!is_untouched(after) || !is_untouched(before)) return array->name.c_str();
  }
  return nullptr;
}

uint32_t SharedMemory::address(const void* pointer) const {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - memory_);
}

void SharedMemory::describe(unsigned block) const {
  for (const auto& array : arrays_) {
    if (array == nullptr) continue;
    std::fprintf(stdout, "memory %p %zu shared array '%s' of block %u\n",
                 static_cast<void*>(array->data), array->bytes, array->name.c_str(), block);
  }
}

void* shared_array(int declaration, const char* name, size_t bytes, size_t alignment) {
  void* const data = as_scheduler([=](CudaThread& thread) {
    return thread.block->shared.array(declaration, name, bytes, alignment);
  });
  if (data == nullptr) {
    char message[256];
    std::snprintf(message, sizeof(message),
                  "the %zu bytes of shared array '%s' don't fit: a block has at most %zu bytes",
                  bytes, name, most_shared_bytes);
    fail("limit", message);
  }
  return data;
}

void* dynamic_shared_memory(const char* name) {
  return shared_array(dynamic_declaration, name, scheduler->launch().dynamic_shared_bytes,
                      dynamic_alignment);
}

uint32_t shared_address(const void* pointer) { return current->block->shared.address(pointer); }

void* shared_pointer(uint32_t address) { return current->block->shared.pointer(address); }

}  // namespace cuda_on_cpu
