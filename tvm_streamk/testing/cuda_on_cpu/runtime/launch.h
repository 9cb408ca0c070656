// SPDX-License-Identifier: Apache-2.0
// The runtime's door to the outside; Python's ctypes structures repeat these.
#pragma once

#include "../include/cuda_on_cpu/runtime_interface.h"

extern "C" {

struct CudaOnCpuRequest {
  const char* kernel;
  const cuda_on_cpu::Argument* arguments;
  uint32_t argument_count;
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t dynamic_shared_bytes;
  uint32_t order;
  uint64_t seed;
  uint32_t resident_blocks;
};

struct CudaOnCpuFault {
  char kind[32];
  char message[1024];
};

// Runs a kernel to its end. False after a fault, which is then described.
[[gnu::visibility("default")]] bool cuda_on_cpu_launch(const CudaOnCpuRequest* request,
                                                       CudaOnCpuFault* fault);
}
