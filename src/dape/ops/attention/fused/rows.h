// What every kernel does with the rows of a softmax, whatever its logits are: how many keys a row sees, its sum over all keys,
// and over parts of the keys where there are few rows and many keys (decoding).

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

// A row that sees nothing sums to 0; its output must be 0 and not 0 / 0.
template <class Call>
void finish_row(const Call& c, long b, long h, long i, const float* O, float top, float total) {
  total = total == 0.0f ? 1.0f : total;
  float *to = number(c.out, b, h, i), *softmax = number(c.softmax, b, h, i);
  for (long n = 0; n < c.value_width; n++) to[n] = O[n] / total;
  softmax[0] = top, softmax[1] = total;
}

// Tiles of all heads: `accumulate` of the kernel adds the keys from one to another to O [head, row, width],
// and to top and total [row, head]. ---------------------------------------------------------------------------------

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

// One part of the keys, for all rows: there are few.
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

// The softmax over all keys from those over the parts.
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
