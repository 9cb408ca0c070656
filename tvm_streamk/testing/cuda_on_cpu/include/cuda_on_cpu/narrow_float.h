// SPDX-License-Identifier: Apache-2.0
// What half and bfloat16 have in common: every operation is done in float and rounded once.
#pragma once

#include <cmath>
#include <type_traits>

#include "language.h"
#include "math.h"

#define CUDA_ON_CPU_NARROW_BINARY(type, symbol)                                      \
  inline type operator symbol(type a, type b) {                                      \
    return type(static_cast<float>(a) symbol static_cast<float>(b));                 \
  }                                                                                  \
  inline type& operator symbol##=(type& a, type b) { return a = a symbol b; }

#define CUDA_ON_CPU_NARROW_COMPARE(type, symbol, name)                               \
  inline bool operator symbol(type a, type b) {                                      \
    return static_cast<float>(a) symbol static_cast<float>(b);                       \
  }                                                                                  \
  inline bool name(type a, type b) { return a symbol b; }

#define CUDA_ON_CPU_NARROW_FUNCTION(type, name, float_function)                      \
  inline type name(type a) { return type(float_function(static_cast<float>(a))); }

#define CUDA_ON_CPU_NARROW_FLOAT(type)                                               \
  CUDA_ON_CPU_NARROW_BINARY(type, +)                                                 \
  CUDA_ON_CPU_NARROW_BINARY(type, -)                                                 \
  CUDA_ON_CPU_NARROW_BINARY(type, *)                                                 \
  CUDA_ON_CPU_NARROW_BINARY(type, /)                                                 \
  CUDA_ON_CPU_NARROW_COMPARE(type, ==, __heq)                                        \
  CUDA_ON_CPU_NARROW_COMPARE(type, !=, __hne)                                        \
  CUDA_ON_CPU_NARROW_COMPARE(type, <, __hlt)                                         \
  CUDA_ON_CPU_NARROW_COMPARE(type, <=, __hle)                                        \
  CUDA_ON_CPU_NARROW_COMPARE(type, >, __hgt)                                         \
  CUDA_ON_CPU_NARROW_COMPARE(type, >=, __hge)                                        \
  inline type operator-(type a) { return type(-static_cast<float>(a)); }             \
  inline type __hadd(type a, type b) { return a + b; }                               \
  inline type __hsub(type a, type b) { return a - b; }                               \
  inline type __hmul(type a, type b) { return a * b; }                               \
  inline type __hdiv(type a, type b) { return a / b; }                               \
  inline type __hneg(type a) { return -a; }                                          \
  inline type __hmax(type a, type b) { return type(max(float(a), float(b))); }       \
  inline type __hmin(type a, type b) { return type(min(float(a), float(b))); }       \
  inline type __hfma(type a, type b, type c) {                                       \
    return type(fmaf(float(a), float(b), float(c)));                                 \
  }                                                                                  \
  inline bool __hisnan(type a) { return std::isnan(static_cast<float>(a)); }         \
  CUDA_ON_CPU_NARROW_FUNCTION(type, __habs, fabsf)                                   \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hexp, expf)                                      \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hexp2, exp2f)                                    \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hexp10, exp10f)                                  \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hlog, logf)                                      \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hlog2, log2f)                                    \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hlog10, log10f)                                  \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hsqrt, sqrtf)                                    \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hrsqrt, 1.0f / sqrtf)                            \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hsin, sinf)                                      \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hcos, cosf)                                      \
  CUDA_ON_CPU_NARROW_FUNCTION(type, htanh, tanhf)                                    \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hfloor, floorf)                                  \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hceil, ceilf)                                    \
  CUDA_ON_CPU_NARROW_FUNCTION(type, htrunc, truncf)                                  \
  CUDA_ON_CPU_NARROW_FUNCTION(type, hrint, rintf)

// Two of them in one 32-bit word.
#define CUDA_ON_CPU_NARROW_PAIR(pair, type)                                          \
  struct alignas(4) pair {                                                           \
    type x, y;                                                                       \
    pair() = default;                                                                \
    pair(type first, type second) : x(first), y(second) {}                           \
  };                                                                                 \
  inline pair operator+(pair a, pair b) { return pair(a.x + b.x, a.y + b.y); }       \
  inline pair operator-(pair a, pair b) { return pair(a.x - b.x, a.y - b.y); }       \
  inline pair operator*(pair a, pair b) { return pair(a.x * b.x, a.y * b.y); }       \
  inline pair operator/(pair a, pair b) { return pair(a.x / b.x, a.y / b.y); }       \
  inline pair __hadd2(pair a, pair b) { return a + b; }                              \
  inline pair __hsub2(pair a, pair b) { return a - b; }                              \
  inline pair __hmul2(pair a, pair b) { return a * b; }                              \
  inline pair __hmax2(pair a, pair b) {                                              \
    return pair(__hmax(a.x, b.x), __hmax(a.y, b.y));                                 \
  }                                                                                  \
  inline pair __hmin2(pair a, pair b) {                                              \
    return pair(__hmin(a.x, b.x), __hmin(a.y, b.y));                                 \
  }                                                                                  \
  inline pair __hfma2(pair a, pair b, pair c) {                                      \
    return pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                       \
  }
