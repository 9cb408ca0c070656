// SPDX-License-Identifier: Apache-2.0
// __nv_bfloat16 and __nv_bfloat162: the upper half of a float, rounded to nearest even.
#pragma once

#include "narrow_float.h"
#include "vector_types.h"

struct alignas(2) __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  __nv_bfloat16(Number number) : bits(rounded(static_cast<float>(number))) {}
  operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

 private:
  static uint16_t rounded(float number) {
    constexpr uint16_t quiet_nan = 0x7fff;
    if (std::isnan(number)) return quiet_nan;
    const unsigned wide = __float_as_uint(number);
    const unsigned lowest_kept_bit = (wide >> 16) & 1u;
    return static_cast<uint16_t>((wide + 0x7fffu + lowest_kept_bit) >> 16);
  }
};

using nv_bfloat16 = __nv_bfloat16;

CUDA_ON_CPU_NARROW_FLOAT(__nv_bfloat16)
CUDA_ON_CPU_NARROW_PAIR(__nv_bfloat162, __nv_bfloat16)

using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(nv_bfloat16 number) { return number; }
inline nv_bfloat16 __float2bfloat16(float number) { return nv_bfloat16(number); }
inline nv_bfloat16 __float2bfloat16_rn(float number) { return nv_bfloat16(number); }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return nv_bfloat162(x, y); }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return nv_bfloat162(nv_bfloat16(x), nv_bfloat16(y));
}
inline nv_bfloat162 __float22bfloat162_rn(float2 pair) {
  return __floats2bfloat162_rn(pair.x, pair.y);
}
inline float2 __bfloat1622float2(nv_bfloat162 pair) { return make_float2(pair.x, pair.y); }
