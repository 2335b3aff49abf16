// Products with keys and values, which do not fit a core's own caches: those of a long sequence are in the third-level cache
// at best, and every tile of query rows reads all of them. They are packed in the order in which they are read, and each
// strip is prefetched during the product with the strip before it.

#pragma once

#include "products.h"

namespace {

constexpr long STRIP = 2 * LANES;  // columns that a product computes at a time
static_assert(BLOCK % STRIP == 0, "blocks are whole strips");

inline long whole_strips(long n) { return (n + STRIP - 1) / STRIP * STRIP; }

// The rows of C for one strip; prefetches `next`.
template <int V, End END>
inline void strip_rows(long M, long K, const float* A, long a_row, long a_col, const float* B, const float* next, float* C, long c_row) {
  const Strided none = {nullptr, 0};
  long m = 0;
  if (M >= 6) block_product<6, V, END, STRIP>(K, A, a_row, a_col, B, STRIP, none, none, C, c_row, next), m = 6;
  for (; m + 6 <= M; m += 6) block_product<6, V, END>(K, A + m * a_row, a_row, a_col, B, STRIP, none, none, C + m * c_row, c_row);
  for (; m + 4 <= M; m += 4) block_product<4, V, END>(K, A + m * a_row, a_row, a_col, B, STRIP, none, none, C + m * c_row, c_row);
  for (; m + 2 <= M; m += 2) block_product<2, V, END>(K, A + m * a_row, a_row, a_col, B, STRIP, none, none, C + m * c_row, c_row);
  for (; m < M; m++) block_product<1, V, END>(K, A + m * a_row, a_row, a_col, B, STRIP, none, none, C + m * c_row, c_row);
}

// C[M, N] from A[M, K] (any strides) and strips [K][STRIP] with stride `apart`; `next` is the strip that is read after them.
template <End END>
void strip_product(long M, long N, long K, const float* A, long a_row, long a_col, const float* B, long apart, const float* next,
                   float* C, long c_row) {
  for (long n = 0; n < N; n += STRIP, B += apart) {
    const float* then = n + STRIP < N ? B + apart : next;
    if (n + STRIP <= N) strip_rows<2, END>(M, K, A, a_row, a_col, B, then, C + n, c_row);
    else strip_rows<1, END>(M, K, A, a_row, a_col, B, then, C + n, c_row);
  }
}

// C += A B where C does not fit a core's own caches: prefetches the rows of C that follow.
inline void add_far(long M, long N, long K, const float* A, long a_row, long a_col, const float* B, long b_row, float* C, long c_row) {
  const Strided none = {nullptr, 0};
  long m = 0;
  for (; m + 6 <= M; m += 6)
    for (long n = 0; n < N; n += STRIP) {
#pragma GCC unroll 6
      for (long r = 6; r < 12; r++)
#pragma GCC unroll 2
        for (long x = 0; x < STRIP; x += 16) __builtin_prefetch(C + (m + r) * c_row + n + x, 1);
      const float* a = A + m * a_row;
      float* c = C + m * c_row + n;
      if (n + STRIP <= N) block_product<6, 2, ADD>(K, a, a_row, a_col, B + n, b_row, none, none, c, c_row);
      else block_product<6, 1, ADD>(K, a, a_row, a_col, B + n, b_row, none, none, c, c_row);
    }
  if (m < M) product<ADD>(M - m, N, K, A + m * a_row, a_row, a_col, B, b_row, C + m * c_row, c_row);
}

// Packing ------------------------------------------------------------------------------------------------------------

// Strips of rows, transposed: [rows / STRIP][width][STRIP]. The strip that begins with row r starts at r * width.
inline long in_strips(long r, long width) { return r / STRIP * STRIP * width + r % STRIP; }

// Strips of columns: [block of rows][width / STRIP][BLOCK][STRIP]. The block that begins with row r starts at
// r * whole_strips(width).
inline void pack_row_in_strips(const float* from, long width, long r, float* to) {
  to += r / BLOCK * BLOCK * whole_strips(width) + r % BLOCK * STRIP;
  for (long n = 0; n < width; n += STRIP) pack_row(from + n, least(STRIP, width - n), 1.0f, to + n * BLOCK);
}

}  // namespace
