// What the kernels share: vectors, matrix products whose sums stay in registers, scratch space, packing, and the running
// softmax of a row.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <omp.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

// Strides in numbers, not bytes; the last dimension is consecutive.
struct View {
  float* at;
  long item, head, row;
};

namespace {

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

constexpr long BLOCK = 64;       // keys of a tile
constexpr float SLOPE = 0.01f;
constexpr float LOWEST = -3.0e38f;
constexpr float LOG_2 = 0.69314718056f;

inline Vec load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Loose*>(p) = x; }
inline Vec all(float x) { return x - Vec{}; }  // x + 0 would not be free: it changes -0
inline long padded(long n) { return (n + LANES - 1) / LANES * LANES; }
inline long least(long a, long b) { return a < b ? a : b; }
inline long most(long a, long b) { return a > b ? a : b; }

// 2^x for x up to 127, 0 below -127, NaN stays NaN. The polynomial is 2^f on [-1/2, 1/2] to one unit in the last place.
inline Vec power_of_2(Vec x) {
  const Vec low = all(-127.0f);
  x = low > x ? low : x;
  const Vec shifted = x + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the rounded x
  const Vec f = x - (shifted - 12582912.0f);
  Vec p = all(1.5403530393381609954e-4f);
  p = p * f + 1.3333558146428443423e-3f;
  p = p * f + 9.6181291076284771619e-3f;
  p = p * f + 5.5504108664821579953e-2f;
  p = p * f + 2.4022650695910071233e-1f;
  p = p * f + 6.9314718055994530942e-1f;
  p = p * f + 1.0f;
  return p * (Vec)(((Ints)shifted + (127 - 0x4B400000)) << 23);  // casts of vectors keep the bits
}

// The other half of the lanes beside each lane: halves meet in as few steps as there are.
inline Vec turned(Vec x, int by) {
  Ints from;
  for (int i = 0; i < LANES; i++) from[i] = i ^ by;
  return __builtin_shuffle(x, from);
}

inline float sum(Vec x) {
#pragma GCC unroll 4
  for (int by = LANES / 2; by; by /= 2) x += turned(x, by);
  return x[0];
}

inline float largest(Vec x) {
#pragma GCC unroll 4
  for (int by = LANES / 2; by; by /= 2) {
    const Vec y = turned(x, by);
    x = y > x ? y : x;
  }
  return x[0];
}

// Matrix products ----------------------------------------------------------------------------------------------------

// What becomes of a product: C = P, C += P, C = I + P, C = I + X + P, C = leaky(I + P), C = leaky'(X) * P.
enum End { SET, ADD, ONTO, ONTO_BOTH, LEAKY, LEAKY_SLOPE_OF };

struct Strided {
  const float* at;
  long row;
};

// C[M, V vectors] from A[M, K] (any strides) and B[K, ...] (consecutive columns), accumulated in registers. FETCH: so many
// numbers from `next` on are brought near in every step, for a later product.
template <int M, int V, End END, int FETCH = 0>
inline void __attribute__((always_inline)) block_product(long K, const float* A, long a_row, long a_col, const float* B, long b_row,
                                                         Strided I, Strided X, float* C, long c_row, const float* next = nullptr) {
  Vec sums[M][V];
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      if constexpr (END == SET || END == LEAKY_SLOPE_OF) sums[m][v] = Vec{};
      else if constexpr (END == ADD) sums[m][v] = load(C + m * c_row + v * LANES);
      else sums[m][v] = load(I.at + m * I.row + v * LANES);
      if constexpr (END == ONTO_BOTH) sums[m][v] += load(X.at + m * X.row + v * LANES);
    }
  for (long k = 0; k < K; k++) {
    Vec b[V];
#pragma GCC unroll 2
    for (int n = 0; n < FETCH; n += 16) __builtin_prefetch(next + k * FETCH + n);
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) b[v] = load(B + k * b_row + v * LANES);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
      const Vec a = all(A[m * a_row + k * a_col]);
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) sums[m][v] += a * b[v];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      Vec s = sums[m][v];
      if constexpr (END == LEAKY) s = s > s * SLOPE ? s : s * SLOPE;
      if constexpr (END == LEAKY_SLOPE_OF) s = load(X.at + m * X.row + v * LANES) > 0.0f ? s : s * SLOPE;
      store(C + m * c_row + v * LANES, s);
    }
}

template <int M, End END>
void row_product(long N, long K, const float* A, long a_row, long a_col, const float* B, long b_row, Strided I, Strided X,
                 float* C, long c_row) {
  long n = 0;
  for (; n + 2 * LANES <= N; n += 2 * LANES)
    block_product<M, 2, END>(K, A, a_row, a_col, B + n, b_row, {I.at + n, I.row}, {X.at + n, X.row}, C + n, c_row);
  if (n < N)
    block_product<M, 1, END>(K, A, a_row, a_col, B + n, b_row, {I.at + n, I.row}, {X.at + n, X.row}, C + n, c_row);
}

// N is a multiple of LANES. Six rows fill the registers of AVX2; four are the least that hide the latency, so eight are two
// times four.
template <End END>
void product(long M, long N, long K, const float* A, long a_row, long a_col, const float* B, long b_row, float* C, long c_row,
             Strided I = {nullptr, 0}, Strided X = {nullptr, 0}) {
  for (long m = 0; m < M;) {
    const long left = M - m;
    const float* a = A + m * a_row;
    float* c = C + m * c_row;
    const Strided i = {I.at + m * I.row, I.row}, x = {X.at + m * X.row, X.row};
    if (left >= 6 && left != 8) row_product<6, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 6;
    else if (left >= 4) row_product<4, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 4;
    else if (left >= 2) row_product<2, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 2;
    else row_product<1, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 1;
  }
}

// total[m, n, lane] += x[m, cell] y[n, cell] over the cells of some rows, each of `width` cells, BLOCK apart.
template <int M, int N>
inline void cell_block(long rows, long width, const float* x, long x_row, const float* y, long y_row, float* total, long t_row) {
  Vec sums[M][N];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) sums[m][n] = load(total + m * t_row + n * LANES);
  for (long r = 0; r < rows; r++)
    for (long c = r * BLOCK; c < r * BLOCK + width; c += LANES) {
      Vec b[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) b[n] = load(y + n * y_row + c);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        const Vec a = load(x + m * x_row + c);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] += a * b[n];
      }
    }
#pragma GCC unroll 4
  for (int m = 0; m < M; m++)
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) store(total + m * t_row + n * LANES, sums[m][n]);
}

template <int M>
void cell_rows(long N, long rows, long width, const float* x, long x_row, const float* y, long y_row, float* total) {
  const long t_row = N * LANES;
  for (long n = 0; n < N;) {
    const float* from = y + n * y_row;
    float* to = total + n * LANES;
    const long left = N - n;
    if (left == 3 || left >= 5) cell_block<M, 3>(rows, width, x, x_row, from, y_row, to, t_row), n += 3;
    else if (left >= 2) cell_block<M, 2>(rows, width, x, x_row, from, y_row, to, t_row), n += 2;
    else cell_block<M, 1>(rows, width, x, x_row, from, y_row, to, t_row), n += 1;
  }
}

void cell_products(long M, long N, long rows, long width, const float* x, long x_row, const float* y, long y_row, float* total) {
  long m = 0;
  for (; m + 4 <= M; m += 4) cell_rows<4>(N, rows, width, x + m * x_row, x_row, y, y_row, total + m * N * LANES);
  for (; m < M; m++) cell_rows<1>(N, rows, width, x + m * x_row, x_row, y, y_row, total + m * N * LANES);
}

// Memory -------------------------------------------------------------------------------------------------------------

inline float* number(const View& x, long item, long head, long row) { return x.at + item * x.item + head * x.head + row * x.row; }

#ifdef __SANITIZE_ADDRESS__  // for tests: whoever goes beyond a buffer is found, though another one follows
constexpr long GAP = 1 << 10, GAPS = 4 * 32 * GAP;
inline void forbid(float* from, long numbers) { ASAN_POISON_MEMORY_REGION(from, 4 * numbers); }
inline void allow(float* from, long bytes) { ASAN_UNPOISON_MEMORY_REGION(from, bytes); }
#else
constexpr long GAP = 0, GAPS = 0;
inline void forbid(float*, long) {}
inline void allow(float*, long) {}
#endif

struct Scratch {
  float* memory;
  float* next;
  long size;  // in bytes
  explicit Scratch(long numbers) {
    size = (numbers * 4 + 4096 + GAPS) / 64 * 64;
    memory = static_cast<float*>(std::aligned_alloc(64, size));
    next = memory;
#ifdef DAPE_NAN_SCRATCH  // for tests: whatever is read before it was written shows
    for (long n = 0; memory && n < numbers; n++) memory[n] = NAN;
#endif
  }
  ~Scratch() {
    if (memory) allow(memory, size);
    std::free(memory);
  }
  // Says so if there was no memory: nothing can be thrown out of a parallel region.
  bool missing(long& failed) const {
    if (!memory) __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    return !memory;
  }
  float* take(long numbers) {
    float* found = next;
    next += (numbers + 15) / 16 * 16;
    forbid(next, GAP);
    next += GAP;
    return found;
  }
};

// Columns become rows: LANES rows of LANES numbers each.
inline void transpose(const float* from, long from_row, float* to, long to_row) {
  Ints low, high;  // x0 y0 x1 y1 ... of the first halves of two vectors, and of their second halves
  for (int i = 0; i < LANES; i++) low[i] = i / 2 + i % 2 * LANES, high[i] = low[i] + LANES / 2;
  Vec x[LANES], y[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) x[i] = load(from + i * from_row);
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) {
      y[2 * i] = __builtin_shuffle(x[i], x[i + LANES / 2], low);
      y[2 * i + 1] = __builtin_shuffle(x[i], x[i + LANES / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) store(to + i * to_row, x[i]);
}

inline void pack_row(const float* from, long width, float factor, float* to) {
  for (long n = 0; n < width; n++) to[n] = from[n] * factor;
}

// Up to LANES rows of a panel, whose columns are `to_row` apart; `to` is the place of the first in it.
inline void pack_columns(const float* from, long from_row, long rows, long width, float* to, long to_row = BLOCK) {
  long n = 0;
  if (rows == LANES)
    for (; n + LANES <= width; n += LANES) transpose(from + n, from_row, to + n * to_row, to_row);
  for (; n < width; n++)
    for (long r = 0; r < rows; r++) to[n * to_row + r] = from[r * from_row + n];
}

// The place of row r in panels.
inline long in_panels(long r, long width) { return r / BLOCK * BLOCK * width + r % BLOCK; }

// Rows ---------------------------------------------------------------------------------------------------------------

inline float dot(const float* x, const float* y, long width) {
  Vec sums{};
  long n = 0;
  for (; n + LANES <= width; n += LANES) sums += load(x + n) * load(y + n);
  float total = sum(sums);
  for (; n < width; n++) total += x[n] * y[n];
  return total;
}

// Logits of one head's row become weights under the largest logit so far.
inline void weigh(float* L, long width, long whole, float& top, float& total, float& rescale) {
  Vec high = all(top);
  for (long n = 0; n < width; n += LANES) {
    const Vec x = load(L + n);
    high = x > high ? x : high;
  }
  const float now = largest(high);
  rescale = top == now ? 1.0f : top == LOWEST ? 0.0f : std::exp2(top - now);
  Vec added{};
  for (long n = 0; n < width; n += LANES) {
    const Vec w = power_of_2(load(L + n) - now);
    store(L + n, w);
    added += w;
  }
  for (long n = width; n < whole; n += LANES) store(L + n, Vec{});
  total = total * rescale + sum(added);
  top = now;
}

inline void fold_lanes(long rows, long columns, const float* from, float* to, float factor) {
  for (long x = 0; x < rows * columns; x++) to[x] += sum(load(from + x * LANES)) * factor;
}

}  // namespace
