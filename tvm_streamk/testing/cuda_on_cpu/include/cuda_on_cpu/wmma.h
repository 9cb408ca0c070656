// SPDX-License-Identifier: Apache-2.0
// nvcuda::wmma. CUDA leaves open which lane holds which element of a fragment; here each lane
// holds the same share of consecutive elements, in row-major order.
#pragma once

#include <type_traits>

#include "bfloat16.h"
#include "half.h"
#include "language.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;

enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename Element, typename Layout = void>
struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = rows * columns / static_cast<int>(cuda_on_cpu::warp_size);
  static constexpr int num_storage_elements = num_elements;
  static_assert((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32));
  static_assert(K == 16);

  using element_type = Element;
  using storage_element_type = Element;
  Element x[num_elements];
};

template <typename Fragment, typename Number>
inline void fill_fragment(Fragment& target, Number value) {
  for (auto& element : target.x) element = static_cast<typename Fragment::element_type>(value);
}

// Calls visit(element index in this lane, offset in memory) for all elements of this lane.
template <typename Fragment, typename Visit>
inline void for_each_element(unsigned leading_dimension, bool column_major, Visit visit) {
  const int first = static_cast<int>(cuda_on_cpu::this_thread().lane) * Fragment::num_elements;
  for (int index = 0; index < Fragment::num_elements; ++index) {
    const int row = (first + index) / Fragment::columns;
    const int column = (first + index) % Fragment::columns;
    visit(index, column_major ? column * leading_dimension + row
                              : row * leading_dimension + column);
  }
}

template <typename Use, int M, int N, int K, typename Element, typename Layout>
inline void load_matrix_sync(fragment<Use, M, N, K, Element, Layout>& target,
                             const Element* source, unsigned leading_dimension) {
  static_assert(!std::is_same_v<Use, accumulator>, "an accumulator is loaded with a layout");
  using Fragment = fragment<Use, M, N, K, Element, Layout>;
  for_each_element<Fragment>(
      leading_dimension, std::is_same_v<Layout, col_major>,
      [&](int index, unsigned offset) { target.x[index] = source[offset]; });
}

template <int M, int N, int K, typename Element>
inline void load_matrix_sync(fragment<accumulator, M, N, K, Element>& target,
                             const Element* source, unsigned leading_dimension, layout_t layout) {
  using Fragment = fragment<accumulator, M, N, K, Element>;
  for_each_element<Fragment>(
      leading_dimension, layout == mem_col_major,
      [&](int index, unsigned offset) { target.x[index] = source[offset]; });
}

template <int M, int N, int K, typename Element>
inline void store_matrix_sync(Element* target,
                              const fragment<accumulator, M, N, K, Element>& source,
                              unsigned leading_dimension, layout_t layout) {
  using Fragment = fragment<accumulator, M, N, K, Element>;
  for_each_element<Fragment>(
      leading_dimension, layout == mem_col_major,
      [&](int index, unsigned offset) { target[offset] = source.x[index]; });
}

// Widens the operands, multiplies the warp's tiles and rounds the sums once to the result's type.
template <int M, int N, int K, typename Sum, typename A, typename LayoutA, typename B,
          typename LayoutB, typename Addend>
inline void mma_sync(fragment<accumulator, M, N, K, Sum>& result,
                     const fragment<matrix_a, M, N, K, A, LayoutA>& a,
                     const fragment<matrix_b, M, N, K, B, LayoutB>& b,
                     const fragment<accumulator, M, N, K, Addend>& addend, bool = false,
                     int line = __builtin_LINE()) {
  using Number = std::conditional_t<std::is_integral_v<Sum>, int32_t, float>;
  Number wide_a[a.num_elements];
  Number wide_b[b.num_elements];
  Number wide_addend[addend.num_elements];
  Number sum[result.num_elements];
  for (int i = 0; i < a.num_elements; ++i) wide_a[i] = static_cast<Number>(a.x[i]);
  for (int i = 0; i < b.num_elements; ++i) wide_b[i] = static_cast<Number>(b.x[i]);
  for (int i = 0; i < addend.num_elements; ++i) wide_addend[i] = static_cast<Number>(addend.x[i]);
  const cuda_on_cpu::TileShape shape = {M, N, K, cuda_on_cpu::TileLayout::even, 0};
  multiply_tiles(shape, cuda_on_cpu::LaneTiles<Number>{wide_a, wide_b, wide_addend, sum}, line);
  for (int i = 0; i < result.num_elements; ++i) result.x[i] = static_cast<Sum>(sum[i]);
}

}  // namespace wmma
}  // namespace nvcuda
