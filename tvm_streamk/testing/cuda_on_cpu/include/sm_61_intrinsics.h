// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name: dot products of bytes.
#pragma once

#include "cuda_on_cpu/ptx.h"
