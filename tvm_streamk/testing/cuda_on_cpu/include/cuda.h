// SPDX-License-Identifier: Apache-2.0
// Stands in for CUDA's header of this name: what every TVM kernel uses.
#pragma once

#include "cuda_on_cpu/language.h"
#include "cuda_on_cpu/vector_types.h"
#include "cuda_on_cpu/math.h"
#include "cuda_on_cpu/atomics.h"
#include "cuda_on_cpu/warp.h"
#include "cuda_on_cpu/ptx.h"
