// SPDX-License-Identifier: Apache-2.0
// __half and __half2 on top of the compiler's _Float16.
#pragma once

#include "narrow_float.h"
#include "vector_types.h"

struct alignas(2) __half {
  _Float16 value;

  __half() = default;
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  __half(Number number) : value(static_cast<_Float16>(number)) {}
  operator float() const { return static_cast<float>(value); }
};

using half = __half;

CUDA_ON_CPU_NARROW_FLOAT(__half)
CUDA_ON_CPU_NARROW_PAIR(__half2, __half)

using half2 = __half2;

inline float __half2float(half number) { return number; }
inline half __float2half(float number) { return half(number); }
inline half __float2half_rn(float number) { return half(number); }
inline half __int2half_rn(int number) { return half(number); }
inline half2 make_half2(half x, half y) { return half2(x, y); }
inline half2 __halves2half2(half x, half y) { return half2(x, y); }
inline half2 __float2half2_rn(float number) { return half2(half(number), half(number)); }
inline half2 __floats2half2_rn(float x, float y) { return half2(half(x), half(y)); }
inline half2 __float22half2_rn(float2 pair) { return half2(half(pair.x), half(pair.y)); }
inline float2 __half22float2(half2 pair) { return make_float2(pair.x, pair.y); }
inline half __low2half(half2 pair) { return pair.x; }
inline half __high2half(half2 pair) { return pair.y; }

inline unsigned short __half_as_ushort(half number) {
  return cuda_on_cpu_reinterpret<unsigned short>(number);
}
inline half __ushort_as_half(unsigned short bits) { return cuda_on_cpu_reinterpret<half>(bits); }
