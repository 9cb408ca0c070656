// SPDX-License-Identifier: Apache-2.0
// A warp's tile product: the last lane to come collects the operands of all, and multiplies.
#include "state.h"

namespace cuda_on_cpu {
namespace {

constexpr int lanes_in_warp = static_cast<int>(warp_size);
constexpr int most_tile_elements = 32 * 16;

struct Position {
  int row;
  int column;
};

// PTX's figures for mma.m16n8, as formulas: four lanes share a row of A and of the accumulator and
// a column of B, and each register holds neighbours along k (along n in the accumulator).
Position position_in_a(const TileShape& shape, int lane, int index) {
  const int packed = shape.elements_per_register;
  const int reg = index / packed;
  return {lane / 4 + 8 * (reg % 2), lane % 4 * packed + index % packed + 4 * packed * (reg / 2)};
}

Position position_in_b(const TileShape& shape, int lane, int index) {
  const int packed = shape.elements_per_register;
  const int reg = index / packed;
  return {lane % 4 * packed + index % packed + 4 * packed * reg, lane / 4};
}

Position position_in_sum(const TileShape&, int lane, int index) {
  return {lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2};
}

using LanePosition = Position (*)(const TileShape&, int lane, int index);

// Calls visit(lane, index in the lane, offset in the row-major tile) for all elements of a tile.
template <typename Visit>
void for_each_element(const TileShape& shape, int rows, int columns, LanePosition mma_position,
                      Visit visit) {
  const int per_lane = rows * columns / lanes_in_warp;
  for (int lane = 0; lane < lanes_in_warp; ++lane) {
    for (int index = 0; index < per_lane; ++index) {
      int offset = lane * per_lane + index;
      if (shape.layout == TileLayout::mma) {
        const Position position = mma_position(shape, lane, index);
        offset = position.row * columns + position.column;
      }
      visit(lane, index, offset);
    }
  }
}

template <typename Number>
struct Operation {
  const TileShape* shape;
  const LaneTiles<Number>* tiles;
};

// One element of k after the other, each product and sum rounded to Number: a valid order, though
// tensor cores have one of their own.
template <typename Number>
void multiply(const TileShape& shape, const Number* a, const Number* b, Number* sum) {
  for (int row = 0; row < shape.rows; ++row) {
    for (int k = 0; k < shape.depth; ++k) {
      const Number factor = a[row * shape.depth + k];
      for (int column = 0; column < shape.columns; ++column) {
        sum[row * shape.columns + column] += factor * b[k * shape.columns + column];
      }
    }
  }
}

template <typename Number>
void multiply_for_warp(void* const* arguments, unsigned) {
  auto tiles_of = [arguments](int lane) -> const LaneTiles<Number>& {
    return *static_cast<const Operation<Number>*>(arguments[lane])->tiles;
  };
  const TileShape& shape = *static_cast<const Operation<Number>*>(arguments[0])->shape;
  Number a[most_tile_elements];
  Number b[most_tile_elements];
  Number sum[most_tile_elements];
  for_each_element(shape, shape.rows, shape.depth, position_in_a,
                   [&](int lane, int index, int offset) { a[offset] = tiles_of(lane).a[index]; });
  for_each_element(shape, shape.depth, shape.columns, position_in_b,
                   [&](int lane, int index, int offset) { b[offset] = tiles_of(lane).b[index]; });
  for_each_element(shape, shape.rows, shape.columns, position_in_sum,
                   [&](int lane, int index, int offset) { sum[offset] = tiles_of(lane).c[index]; });
  multiply(shape, a, b, sum);
  for_each_element(shape, shape.rows, shape.columns, position_in_sum,
                   [&](int lane, int index, int offset) { tiles_of(lane).d[index] = sum[offset]; });
}

template <typename Number>
void multiply_with_warp(const TileShape& shape, const LaneTiles<Number>& tiles, int line) {
  CudaThread* const thread = current;
  for (const CudaThread* other : thread->warp->threads) {
    if (other == nullptr) {
      thread->line = line;
      fail("divergence", "a tensor core operation needs a warp of 32 threads");
    }
  }
  Operation<Number> operation = {&shape, &tiles};
  warp_collective(&operation, multiply_for_warp<Number>, all_lanes, MemoryOrder::none, line);
}

}  // namespace

void multiply_tiles(const TileShape& shape, const LaneTiles<float>& tiles, int line) {
  multiply_with_warp(shape, tiles, line);
}

void multiply_tiles(const TileShape& shape, const LaneTiles<int32_t>& tiles, int line) {
  multiply_with_warp(shape, tiles, line);
}

}  // namespace cuda_on_cpu
