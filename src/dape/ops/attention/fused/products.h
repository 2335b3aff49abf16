// Shared by the kernels: vectors, matrix products whose sums stay in registers, scratch space, packing, and the running
// softmax of a row.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <omp.h>
#include <utility>
#ifdef __AVX__
#include <immintrin.h>
#endif
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

// Strides count numbers, not bytes; the last dimension is consecutive.
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

// The larger of two in every lane; y if one of them is NaN.
inline Vec larger(Vec x, Vec y) {
#if defined(__AVX512F__)  // g++ turns a comparison into this instruction only if neither operand is a constant
  return (Vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX__)
  return (Vec)_mm256_max_ps((__m256)x, (__m256)y);
#else
  return x > y ? x : y;
#endif
}

// 2^x of N vectors, for x up to 127; 0 below -127, NaN stays NaN. The polynomial approximates 2^f on [-1/2, 1/2] to one unit in
// the last place. Each step is done for all vectors before the next step, because steps of one vector depend on each other.
template <int N>
inline void __attribute__((always_inline)) powers_of_2(Vec (&x)[N]) {
  constexpr float FACTORS[] = {1.3333558146428443423e-3f, 9.6181291076284771619e-3f, 5.5504108664821579953e-2f,
                               2.4022650695910071233e-1f, 6.9314718055994530942e-1f, 1.0f};
  Vec shifted[N], p[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) {
    x[i] = larger(all(-127.0f), x[i]);
    shifted[i] = x[i] + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the rounded x
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) x[i] -= shifted[i] - 12582912.0f;
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) p[i] = all(1.5403530393381609954e-4f);
#pragma GCC unroll 6
  for (const float factor : FACTORS)
#pragma GCC unroll 4
    for (int i = 0; i < N; i++) p[i] = p[i] * x[i] + factor;
#pragma GCC unroll 4
  for (int i = 0; i < N; i++) x[i] = p[i] * (Vec)(((Ints)shifted[i] + (127 - 0x4B400000)) << 23);  // casts of vectors keep the bits
}

inline Vec power_of_2(Vec x) {
  Vec one[] = {x};
  powers_of_2(one);
  return one[0];
}

// The vector f(0), f(1), ... as a constant expression. With a loop, g++ would set one lane after the other at run time.
template <class F, int... I>
constexpr Ints lanes_of(F f, std::integer_sequence<int, I...>) { return Ints{f(I)...}; }
template <class F>
constexpr Ints each_lane(F f) { return lanes_of(f, std::make_integer_sequence<int, LANES>()); }

// Lane i of the result is lane i ^ BY of x. With BY = LANES / 2, ..., 2, 1 a sum over all lanes takes log2(LANES) steps.
template <int BY>
inline Vec turned(Vec x) {
  constexpr Ints from = each_lane([](int i) { return i ^ BY; });
  return __builtin_shuffle(x, from);
}

template <int BY = LANES / 2>
inline float sum(Vec x) {
  x += turned<BY>(x);
  if constexpr (BY > 1) return sum<BY / 2>(x);
  return x[0];
}

template <int BY = LANES / 2>
inline float largest(Vec x) {
  x = larger(x, turned<BY>(x));
  if constexpr (BY > 1) return largest<BY / 2>(x);
  return x[0];
}

// Matrix products ----------------------------------------------------------------------------------------------------

// How a product P is stored: C = P, C += P, C = I + P, C = I + X + P, C = leaky(I + P), C = leaky'(X) * P.
enum End { SET, ADD, ONTO, ONTO_BOTH, LEAKY, LEAKY_SLOPE_OF };

struct Strided {
  const float* at;
  long row;
};

// C[M, V vectors] from A[M, K] (any strides) and B[K, ...] (consecutive columns), accumulated in registers. Every step
// prefetches FETCH numbers from `next` on, for a later product.
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

// N is a multiple of LANES. Six rows fill the registers of AVX2; AVX-512 has registers for eight. At least four are needed to
// hide the latency, so with AVX2 eight rows are computed as four and four, not six and two.
template <End END>
void product(long M, long N, long K, const float* A, long a_row, long a_col, const float* B, long b_row, float* C, long c_row,
             Strided I = {nullptr, 0}, Strided X = {nullptr, 0}) {
  for (long m = 0; m < M;) {
    const long left = M - m;
    const float* a = A + m * a_row;
    float* c = C + m * c_row;
    const Strided i = {I.at + m * I.row, I.row}, x = {X.at + m * X.row, X.row};
    if (LANES == 16 && left % 8 == 0) row_product<8, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 8;
    else if (left >= 6 && left != 8) row_product<6, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 6;
    else if (left >= 4) row_product<4, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 4;
    else if (left >= 2) row_product<2, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 2;
    else row_product<1, END>(N, K, a, a_row, a_col, B, b_row, i, x, c, c_row), m += 1;
  }
}

// total[m, n, lane] += x[m, cell] y[n, cell] over the cells of some rows; a row has `width` cells, rows have stride BLOCK.
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

#ifdef __SANITIZE_ADDRESS__  // for tests: gaps between buffers, so that an overrun into the next buffer is found too
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
#ifdef DAPE_NAN_SCRATCH  // for tests: reading memory before it is written gives NaN
    for (long n = 0; memory && n < numbers; n++) memory[n] = NAN;
#endif
  }
  ~Scratch() {
    if (memory) allow(memory, size);
    std::free(memory);
  }
  // Sets `failed` if the allocation failed, because an exception must not leave a parallel region.
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

// Transposes LANES rows of LANES numbers.
inline void transpose(const float* from, long from_row, float* to, long to_row) {
  // interleave the first halves of two vectors (x0 y0 x1 y1 ...), and their second halves
  constexpr Ints low = each_lane([](int i) { return i / 2 + i % 2 * LANES; });
  constexpr Ints high = each_lane([](int i) { return (i + LANES) / 2 + i % 2 * LANES; });
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

// Packs up to LANES rows into a panel whose columns have stride `to_row`; `to` is the position of the first row.
inline void pack_columns(const float* from, long from_row, long rows, long width, float* to, long to_row = BLOCK) {
  long n = 0;
  if (rows == LANES)
    for (; n + LANES <= width; n += LANES) transpose(from + n, from_row, to + n * to_row, to_row);
  for (; n < width; n++)
    for (long r = 0; r < rows; r++) to[n * to_row + r] = from[r * from_row + n];
}

// The position of row r in panels.
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

// Calls `each(vectors, first)`: four vectors at a time as long as four are left, then one at a time.
template <class Each>
inline void __attribute__((always_inline)) each_vectors(long width, Each each) {
  long n = 0;
  for (; n + 4 * LANES <= width; n += 4 * LANES) each(std::integral_constant<int, 4>(), n);
  for (; n < width; n += LANES) each(std::integral_constant<int, 1>(), n);
}

// Replaces logits by weights relative to the logit `top`, and calls `each` with every vector of weights and its index.
template <class Each>
inline void __attribute__((always_inline)) to_weights(float* L, long width, float top, Each each) {
  each_vectors(width, [&](auto vectors, long n) {
    Vec x[vectors];
    for (int i = 0; i < vectors; i++) x[i] = load(L + n + i * LANES) - top;
    powers_of_2(x);
    for (int i = 0; i < vectors; i++) store(L + n + i * LANES, x[i]), each(x[i], n + i * LANES);
  });
}

// Replaces the logits of `rows` rows with stride `apart` by weights relative to the row's largest logit so far. Each step is
// done for all rows before the next step, because the steps of one row depend on each other. `rescale` is written up to a
// whole vector.
inline void weigh(float* L, long apart, long rows, long width, long whole, float* top, float* total, float* rescale) {
  for (long r = 0; r < rows; r++) {
    Vec high = all(top[r]);
    for (long n = 0; n < width; n += LANES) {
      const Vec x = load(L + r * apart + n);
      high = x > high ? x : high;
    }
    const float now = largest(high);
    rescale[r] = top[r] - now, top[r] = now;
  }
  for (long r = 0; r < rows; r += LANES) store(rescale + r, power_of_2(load(rescale + r)));
  for (long r = 0; r < rows; r++) {
    float* to = L + r * apart;
    Vec added{};
    to_weights(to, width, top[r], [&](Vec w, long) { added += w; });
    for (long n = width; n < whole; n += LANES) store(to + n, Vec{});
    total[r] = total[r] * rescale[r] + sum(added);
  }
}

// For the backward pass: replaces logits P by weights, and gradients G of the weights by those of the logits. `softmax`: the
// row's largest logit and the sum of its weights. `delta`: the sum of d_out * out of the row.
inline void gradients_of_logits(float* P, float* G, long width, const float* softmax, float delta) {
  // If the sum is 1, one key has all the weight, and its gradient is 0. Rounding would leave about 1e-7 of dO v - delta,
  // which is later multiplied by a bias that may be 1e7.
  const float most_weight = softmax[1] == 1.0f ? 1.0f : INFINITY;
  to_weights(P, width, softmax[0], [&](Vec w, long n) {
    const Vec d = load(G + n) - delta;
    store(G + n, w == most_weight ? d - d : w * d);  // NaN stays NaN
  });
}

inline void fold_lanes(long count, const float* from, float* to) {
  for (long x = 0; x < count; x++) to[x] += sum(load(from + x * LANES));
}

}  // namespace
