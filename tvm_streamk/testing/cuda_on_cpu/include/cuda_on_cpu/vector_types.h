// SPDX-License-Identifier: Apache-2.0
// float2, int4, uchar3 … and their make_ functions.
#pragma once

#include "language.h"

// Alignments are CUDA's: the vector's size for 2 and 4 elements up to 16 bytes, else the element's.
#define CUDA_ON_CPU_VECTOR(scalar, name, align_of_2, align_of_4)                         \
  struct name##1 {                                                                      \
    scalar x;                                                                           \
  };                                                                                    \
  struct alignas(align_of_2) name##2 {                                                   \
    scalar x, y;                                                                        \
  };                                                                                    \
  struct name##3 {                                                                      \
    scalar x, y, z;                                                                     \
  };                                                                                    \
  struct alignas(align_of_4) name##4 {                                                   \
    scalar x, y, z, w;                                                                  \
  };                                                                                    \
  inline name##1 make_##name##1(scalar x) { return {x}; }                               \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                  \
  inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }     \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) {               \
    return {x, y, z, w};                                                                \
  }

CUDA_ON_CPU_VECTOR(signed char, char, 2, 4)
CUDA_ON_CPU_VECTOR(unsigned char, uchar, 2, 4)
CUDA_ON_CPU_VECTOR(short, short, 4, 8)
CUDA_ON_CPU_VECTOR(unsigned short, ushort, 4, 8)
CUDA_ON_CPU_VECTOR(int, int, 8, 16)
CUDA_ON_CPU_VECTOR(unsigned int, uint, 8, 16)
CUDA_ON_CPU_VECTOR(long long, longlong, 16, 16)
CUDA_ON_CPU_VECTOR(unsigned long long, ulonglong, 16, 16)
CUDA_ON_CPU_VECTOR(float, float, 8, 16)
CUDA_ON_CPU_VECTOR(double, double, 16, 16)

#undef CUDA_ON_CPU_VECTOR
