// SPDX-License-Identifier: Apache-2.0
// Device functions of scalars that C's library lacks or names otherwise.
#pragma once

#include <cmath>

#include "language.h"

#define CUDA_ON_CPU_MIN_MAX(type)                                    \
  inline type max(type a, type b) { return a > b ? a : b; }          \
  inline type min(type a, type b) { return a < b ? a : b; }

CUDA_ON_CPU_MIN_MAX(int)
CUDA_ON_CPU_MIN_MAX(unsigned int)
CUDA_ON_CPU_MIN_MAX(long)
CUDA_ON_CPU_MIN_MAX(unsigned long)
CUDA_ON_CPU_MIN_MAX(long long)
CUDA_ON_CPU_MIN_MAX(unsigned long long)

#undef CUDA_ON_CPU_MIN_MAX

// CUDA's maximum of a number and a NaN is the number, as C's fmax has it.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }

// The fast forms. Macros, since glibc keeps some of these names for itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf
#define __fdividef(a, b) ((a) / (b))
#define __frcp_rn(a) (1.0f / (a))
#define __fsqrt_rn sqrtf
#define rsqrtf(a) (1.0f / sqrtf(a))
#define rsqrt(a) (1.0 / sqrt(a))

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(bits); }

template <typename To, typename From>
inline To cuda_on_cpu_reinterpret(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

inline int __float_as_int(float value) { return cuda_on_cpu_reinterpret<int>(value); }
inline unsigned __float_as_uint(float value) { return cuda_on_cpu_reinterpret<unsigned>(value); }
inline float __int_as_float(int value) { return cuda_on_cpu_reinterpret<float>(value); }
inline float __uint_as_float(unsigned value) { return cuda_on_cpu_reinterpret<float>(value); }
inline long long __double_as_longlong(double value) {
  return cuda_on_cpu_reinterpret<long long>(value);
}
inline double __longlong_as_double(long long value) {
  return cuda_on_cpu_reinterpret<double>(value);
}
