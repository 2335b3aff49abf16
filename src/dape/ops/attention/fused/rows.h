// The rows of a softmax, for every kernel: how many keys a row sees, its sum over all keys, and sums over parts of the keys
// when there are few rows and many keys (decoding).

#pragma once

#include "products.h"

namespace {

// How many keys row i sees.
template <class Call>
inline long seen(const Call& c, long i) { return c.causal ? most(0, least(c.keys, c.offset + i + 1)) : c.keys; }
template <class Call>
inline long groups(const Call& c) { return c.heads / c.kv_heads; }
template <class Call>
inline long key_blocks(const Call& c) { return (c.keys + BLOCK - 1) / BLOCK; }

// Few rows, as in decoding: keys and values are read unpacked, because packing would cost more than it saves. Memory bandwidth
// limits the speed, and the hardware does not prefetch across heads, whose keys are not consecutive. So these functions
// prefetch the rows from `next` on, which have the same stride as the rows being read.

inline void fetch(const float* next, long width) {
  for (long n = 0; n < width; n += 16) __builtin_prefetch(next + n);
}

// S[row, n] = q k' for `count` keys of a head.
template <class Call>
inline void scores_of_few(const Call& c, long b, long h, long i0, long rows, long key, long count, const float* next, float* S, long s_row) {
  const float* k = number(c.k, b, h / groups(c), key);
  for (long n = 0; n < count; n++, k += c.k.row, next += c.k.row) {
    fetch(next, c.width);
    for (long r = 0; r < rows; r++) S[r * s_row + n] = dot(number(c.q, b, h, i0 + r), k, c.width);
  }
}

// O[V vectors] += P v of one row.
template <int V>
inline void add_vectors(long count, const float* P, const float* v, long v_row, float* O) {
  Vec sums[V];
#pragma GCC unroll 4
  for (int x = 0; x < V; x++) sums[x] = load(O + x * LANES);
  for (long n = 0; n < count; n++)
#pragma GCC unroll 4
    for (int x = 0; x < V; x++) sums[x] += P[n] * load(v + n * v_row + x * LANES);
#pragma GCC unroll 4
  for (int x = 0; x < V; x++) store(O + x * LANES, sums[x]);
}

// O[row, value width] += P v for `count` keys of a head; rows of P have stride BLOCK.
template <class Call>
inline void add_few_values(const Call& c, long b, long h, long rows, long key, long count, const float* next, const float* P, float* O) {
  const float* v = number(c.v, b, h / groups(c), key);
  for (long n = 0; n < count; n++) fetch(next + n * c.v.row, c.value_width);
  for (long r = 0; r < rows; r++, P += BLOCK, O += padded(c.value_width)) {
    long x = 0;
    for (; x + 4 * LANES <= c.value_width; x += 4 * LANES) add_vectors<4>(count, P, v + x, c.v.row, O + x);
    for (; x + LANES <= c.value_width; x += LANES) add_vectors<1>(count, P, v + x, c.v.row, O + x);
    for (; x < c.value_width; x++)
      for (long n = 0; n < count; n++) O[x] += P[n] * v[n * c.v.row + x];
  }
}

// The weights of a row that sees no key sum to 0; its output must be 0 and not 0 / 0.
template <class Call>
void finish_row(const Call& c, long b, long h, long i, const float* O, float top, float total) {
  total = total == 0.0f ? 1.0f : total;
  float *to = number(c.out, b, h, i), *softmax = number(c.softmax, b, h, i);
  for (long n = 0; n < c.value_width; n++) to[n] = O[n] / total;
  softmax[0] = top, softmax[1] = total;
}

// Tiles of all heads -------------------------------------------------------------------------------------------------

// A kernel that includes this file defines `accumulate`, which adds a range of keys to O [head, row, width] and to top and
// total [row, head].

template <class Call, class Shape, class Planes>
void begin_rows(const Call& c, const Shape& s, const Planes& p) {
  std::memset(p.O, 0, 4 * c.heads * s.rows * padded(c.value_width));
  for (long x = 0; x < c.heads * s.rows; x++) p.top[x] = LOWEST, p.total[x] = 0;
}

template <class Call, class Shape, class Planes>
void forward_rows(const Call& c, const Shape& s, long b, long i0, const Planes& p) {
  const long rows = least(s.rows, c.queries - i0), e = padded(c.value_width);
  begin_rows(c, s, p);
  accumulate(c, s, b, i0, rows, 0, seen(c, i0 + rows - 1), p);
  for (long h = 0; h < c.heads; h++)
    for (long r = 0; r < rows; r++) {
      const long x = r * c.heads + h;
      finish_row(c, b, h, i0 + r, p.O + (h * s.rows + r) * e, p.top[x], p.total[x]);
    }
}

// One part of the keys, for all rows, which fit one tile.
template <class Call, class Shape, class Planes>
void forward_part(const Call& c, const Shape& s, long b, long part, const Planes& p) {
  const long e = padded(c.value_width), keys = seen(c, c.queries - 1);
  const long blocks = (keys + BLOCK - 1) / BLOCK, share = (blocks + c.splits - 1) / c.splits * BLOCK;
  begin_rows(c, s, p);
  accumulate(c, s, b, 0, c.queries, least(keys, part * share), least(keys, (part + 1) * share), p);
  float* to = c.parts + (b * c.splits + part) * c.heads * s.rows * (e + 2);
  for (long x = 0; x < c.heads * s.rows; x++, to += e + 2) {
    const long of_row = x % s.rows * c.heads + x / s.rows;
    std::memcpy(to, p.O + x * e, 4 * e);
    to[e] = p.top[of_row], to[e + 1] = p.total[of_row];
  }
}

// Combines the outputs and sums of the parts into the softmax over all keys.
template <class Call, class Shape>
void join_parts(const Call& c, const Shape& s, long b, long h, long r) {
  const long e = padded(c.value_width), step = c.heads * s.rows * (e + 2);
  float* first = c.parts + b * c.splits * step + (h * s.rows + r) * (e + 2);
  float top = LOWEST, total = 0;
  for (long part = 0; part < c.splits; part++) top = first[part * step + e] > top ? first[part * step + e] : top;
  for (long part = 0; part < c.splits; part++) {
    const float* from = first + part * step;
    const float factor = std::exp2(from[e] - top);
    total += from[e + 1] * factor;
    for (long n = 0; n < e; n++) first[n] = (part ? first[n] : 0.0f) + from[n] * factor;
  }
  finish_row(c, b, h, r, first, top, total);
}

}  // namespace
