// SPDX-License-Identifier: Apache-2.0
// Warp-wide exchange: shuffles, votes, __syncwarp.
#pragma once

#include <type_traits>

#include "language.h"

namespace cuda_on_cpu {

template <typename T>
inline T read_lane(unsigned lanes, T value, unsigned source_lane, int line) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Exchange exchange = {0, 0, source_lane};
  __builtin_memcpy(&exchange.offered, &value, sizeof(T));
  exchange_words(&exchange, lanes, line);
  __builtin_memcpy(&value, &exchange.received, sizeof(T));
  return value;
}

inline int this_lane() { return static_cast<int>(this_thread().lane); }
inline int first_lane_of_segment(int width) { return this_lane() & ~(width - 1); }

}  // namespace cuda_on_cpu

// "width" cuts the warp in segments; a lane outside its segment is never read.
template <typename T>
inline T __shfl_sync(unsigned lanes, T value, int source, int width = 32,
                     int line = __builtin_LINE()) {
  const int lane = cuda_on_cpu::first_lane_of_segment(width) + (source & (width - 1));
  return cuda_on_cpu::read_lane(lanes, value, lane, line);
}

template <typename T>
inline T __shfl_up_sync(unsigned lanes, T value, unsigned delta, int width = 32,
                        int line = __builtin_LINE()) {
  const int lane = cuda_on_cpu::this_lane() - static_cast<int>(delta);
  const bool inside = lane >= cuda_on_cpu::first_lane_of_segment(width);
  return cuda_on_cpu::read_lane(lanes, value, inside ? lane : cuda_on_cpu::this_lane(), line);
}

template <typename T>
inline T __shfl_down_sync(unsigned lanes, T value, unsigned delta, int width = 32,
                          int line = __builtin_LINE()) {
  const int lane = cuda_on_cpu::this_lane() + static_cast<int>(delta);
  const bool inside = lane < cuda_on_cpu::first_lane_of_segment(width) + width;
  return cuda_on_cpu::read_lane(lanes, value, inside ? lane : cuda_on_cpu::this_lane(), line);
}

template <typename T>
inline T __shfl_xor_sync(unsigned lanes, T value, int lane_mask, int width = 32,
                         int line = __builtin_LINE()) {
  const int lane = cuda_on_cpu::this_lane() ^ lane_mask;
  // Earlier segments may be read by the butterfly, later ones not: so CUDA defines it.
  const bool inside = lane < cuda_on_cpu::first_lane_of_segment(width) + width;
  return cuda_on_cpu::read_lane(lanes, value, inside ? lane : cuda_on_cpu::this_lane(), line);
}

inline void __syncwarp(unsigned lanes = cuda_on_cpu::all_lanes, int line = __builtin_LINE()) {
  cuda_on_cpu::synchronize_warp(lanes, line);
}

inline unsigned __ballot_sync(unsigned lanes, int predicate, int line = __builtin_LINE()) {
  return cuda_on_cpu::vote(predicate != 0, lanes, line);
}
inline int __any_sync(unsigned lanes, int predicate, int line = __builtin_LINE()) {
  return cuda_on_cpu::vote(predicate != 0, lanes, line) != 0;
}
inline int __all_sync(unsigned lanes, int predicate, int line = __builtin_LINE()) {
  return cuda_on_cpu::vote(predicate == 0, lanes, line) == 0;
}

// Fibres run one at a time, so what is "active" together is a matter of taste: the whole warp.
inline unsigned __activemask() { return cuda_on_cpu::all_lanes; }
