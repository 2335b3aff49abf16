// Attention one head at a time, for logits that depend on one head only; forward and backward:
//
//     out = softmax2(mask(L)) v,     L from a Kind, for a tile of rows and keys
//
// A tile is up to ROWS_OF_TILE query rows against BLOCK keys, [row, key]. A Kind computes the scores and logits of a tile and
// their gradients. The loop over tiles, the softmax and the products with k and v are here. Logits are in base 2: the caller
// scales queries by log2(e) / sqrt(d).
//
// The threads are those of torch's OpenMP pool. One unit of work (an item's key head, or a part of its rows) computes the
// whole sum of a gradient, in an order that no thread changes: the bits depend on the number of parts only.

#pragma once

#include "rows.h"

extern "C" {

struct HeadCall {
  long batch, heads, kv_heads, queries, keys, width, value_width, threads;
  long causal, offset;    // row i of a causal call sees the first offset + i + 1 keys
  const float* mask;      // [batch, keys padded to BLOCK]: 0 or -inf; or null
  View q;                 // packed rows
  View k_panels, v_rows;  // packed; unused if few_rows and forward
  View k, v;              // not packed
  View out;
  View softmax;   // per row the largest logit, and the sum of the weights relative to it (1 if the row sees no key)
  long few_rows;  // both passes read unpacked k: sums in another order would give other weights where products are huge
};

struct HeadBackward {
  View k_rows, v_panels;  // packed
  View d_out;             // divided by the sum of the row's weights; packed rows
  View delta;             // per row the sum of d_out * out
  View d_q;
  long parts;        // parts of the rows of an item and key head; each has its own sums d_k and d_v
  float *d_k, *d_v;  // [parts, batch, kv_heads, keys padded to BLOCK, padded width]
};

}  // extern "C"

namespace {

constexpr long ROWS_OF_TILE = 48;  // products take six rows at a time

struct Tile {
  long b, h, i0, rows;
  long key, width;  // keys, padded to whole vectors
};

inline long row_blocks(const HeadCall& c) { return (c.queries + ROWS_OF_TILE - 1) / ROWS_OF_TILE; }

// How many of a tile's keys row i sees if no key is padding.
inline long visible(const HeadCall& c, const Tile& t, long i) { return most(0, least(t.width, seen(c, i) - t.key)); }

inline const float* mask_of(const HeadCall& c, const Tile& t) {
  return c.mask ? c.mask + t.b * key_blocks(c) * BLOCK + t.key : nullptr;
}

// q k' of a tile's rows from r on; added to I if END is ONTO.
template <End END>
inline void scores_of(const HeadCall& c, const Tile& t, long r, long rows, float* S, Strided I = {nullptr, 0}) {
  const float* panel = number(c.k_panels, t.b, t.h / groups(c), t.key);
  product<END>(rows, t.width, c.width, number(c.q, t.b, t.h, t.i0 + r), c.q.row, 1, panel, BLOCK, S + r * BLOCK, BLOCK, I);
}

// Sets the logits of hidden keys to -inf, up to a whole vector. Returns the number of logits up to there.
inline long hide(const HeadCall& c, const Tile& t, long r, float* L) {
  const long count = visible(c, t, t.i0 + r), width = padded(count);
  for (long n = count; n < width; n++) L[n] = -INFINITY;
  if (const float* mask = mask_of(c, t))
    for (long n = 0; n < width; n += LANES) store(L + n, load(L + n) + load(mask + n));
  return width;
}

struct HeadPlanes {
  float *S, *P, *G;              // [row, key]: scores, weights, gradients; the last two in the backward pass
  float* O;                      // [row, value width], or the gradient of q, [row, width]
  float *top, *total, *rescale;  // the running softmax of every row
  static long numbers(const HeadCall& c) {
    return ROWS_OF_TILE * (3 * BLOCK + padded(most(c.width, c.value_width)) + 3) + 128;
  }
  HeadPlanes(const HeadCall& c, Scratch& scratch) {
    S = scratch.take(ROWS_OF_TILE * BLOCK), P = scratch.take(ROWS_OF_TILE * BLOCK), G = scratch.take(ROWS_OF_TILE * BLOCK);
    O = scratch.take(ROWS_OF_TILE * padded(most(c.width, c.value_width)));
    top = scratch.take(ROWS_OF_TILE), total = scratch.take(ROWS_OF_TILE), rescale = scratch.take(ROWS_OF_TILE);
  }
};

template <class Kind>
void forward_tile(const HeadCall& c, Kind& kind, const Tile& t, const HeadPlanes& p) {
  const long e = padded(c.value_width);
  kind.scores(t, p.S);
  kind.logits(t, p.S, p.S);
  for (long r = 0; r < t.rows; r++)
    for (long n = hide(c, t, r, p.S + r * BLOCK); n < t.width; n += LANES) store(p.S + r * BLOCK + n, all(-INFINITY));
  weigh(p.S, BLOCK, t.rows, t.width, t.width, p.top, p.total, p.rescale);
  for (long r = 0; r < t.rows; r++)
    for (long n = 0; p.rescale[r] != 1.0f && n < e; n += LANES) store(p.O + r * e + n, load(p.O + r * e + n) * p.rescale[r]);
  if (c.few_rows)
    add_few_values(c, t.b, t.h, t.rows, t.key, least(t.width, c.keys - t.key), number(c.v, t.b, t.h / groups(c), t.key + BLOCK), p.S, p.O);
  else product<ADD>(t.rows, e, t.width, p.S, BLOCK, 1, number(c.v_rows, t.b, t.h / groups(c), t.key), e, p.O, e);
}

template <class Kind>
void forward_rows(const HeadCall& c, Kind& kind, long b, long h, long i0, const HeadPlanes& p) {
  const long rows = least(ROWS_OF_TILE, c.queries - i0), e = padded(c.value_width), keys = seen(c, i0 + rows - 1);
  const long blocks = (keys + BLOCK - 1) / BLOCK;
  std::memset(p.O, 0, 4 * rows * e);
  for (long r = 0; r < rows; r++) p.top[r] = LOWEST, p.total[r] = 0;
  kind.begin(i0, rows);
  for (long x = 0; x < blocks; x++) {
    const long key = (Kind::LEFTWARDS ? blocks - 1 - x : x) * BLOCK;
    forward_tile(c, kind, {b, h, i0, rows, key, padded(least(BLOCK, keys - key))}, p);
  }
  for (long r = 0; r < rows; r++) finish_row(c, b, h, i0 + r, p.O + r * e, p.top[r], p.total[r]);
}

template <class Kind>
void backward_tile(const HeadCall& c, const HeadBackward& g, Kind& kind, const Tile& t, const HeadPlanes& p, float* d_k, float* d_v) {
  const long d = padded(c.width), e = padded(c.value_width), kv = t.h / groups(c);
  kind.scores(t, p.S);
  kind.logits(t, p.S, p.P);
  product<SET>(t.rows, t.width, c.value_width, number(g.d_out, t.b, t.h, t.i0), g.d_out.row, 1, number(g.v_panels, t.b, kv, t.key),
               BLOCK, p.G, BLOCK);
  for (long r = 0; r < t.rows; r++) {
    float *P = p.P + r * BLOCK, *G = p.G + r * BLOCK;
    const long width = hide(c, t, r, P);
    gradients_of_logits(P, G, width, number(c.softmax, t.b, t.h, t.i0 + r), *number(g.delta, t.b, t.h, t.i0 + r));
    for (long n = width; n < t.width; n += LANES) store(P + n, Vec{}), store(G + n, Vec{});
  }
  product<ADD>(t.width, e, t.rows, p.P, 1, BLOCK, number(g.d_out, t.b, t.h, t.i0), g.d_out.row, d_v + t.key * e, e);
  kind.gradient(t, p.S, p.G);
  product<ADD>(t.rows, d, t.width, p.G, BLOCK, 1, number(g.k_rows, t.b, kv, t.key), d, p.O, d);
  product<ADD>(t.width, d, t.rows, p.G, 1, BLOCK, number(c.q, t.b, t.h, t.i0), c.q.row, d_k + t.key * d, d);
}

// Writes the gradients of queries from rows of padded width, and applies the factor 1 / sqrt(d) of the scores.
inline void give_rows(const HeadCall& c, const View& to, long b, long h, long i0, long rows, const float* from) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.width));
  for (long r = 0; r < rows; r++)
    for (long n = 0; n < c.width; n++) number(to, b, h, i0 + r)[n] = from[r * padded(c.width) + n] * scale;
}

template <class Kind>
void backward_rows(const HeadCall& c, const HeadBackward& g, Kind& kind, long b, long h, long i0, long part, const HeadPlanes& p,
                   float* d_k, float* d_v) {
  const long rows = least(ROWS_OF_TILE, c.queries - i0), keys = seen(c, i0 + rows - 1);
  std::memset(p.O, 0, 4 * rows * padded(c.width));
  kind.begin_backward({b, h, i0, rows, 0, 0}, keys, part, p.S);
  for (long key = 0; key < keys; key += BLOCK)
    backward_tile(c, g, kind, {b, h, i0, rows, key, padded(least(BLOCK, keys - key))}, p, d_k, d_v);
  give_rows(c, g.d_q, b, h, i0, rows, p.O);
  kind.end_backward({b, h, i0, rows, 0, 0});
}

// Both return 0, or 1 if there is too little memory for a thread's scratch space. `make(scratch)` returns a thread's Kind.

template <class Kind, class Make>
long forward_heads(const HeadCall& c, long kind_numbers, Make make) {
  const long blocks = row_blocks(c), units = blocks * c.batch * c.heads;
  long next = 0, failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(HeadPlanes::numbers(c) + kind_numbers);
    const HeadPlanes p(c, scratch);
    Kind kind = make(scratch);
    // Long rows first, so that no thread starts a long tile when the others have finished.
    for (long t; !scratch.missing(failed) && (t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
      const long x = t % (c.batch * c.heads), block = blocks - 1 - t / (c.batch * c.heads);
      forward_rows(c, kind, x / c.heads, x % c.heads, block * ROWS_OF_TILE, p);
    }
  }
  return failed;
}

template <class Kind, class Make>
long backward_heads(const HeadCall& c, const HeadBackward& g, long kind_numbers, Make make) {
  const long blocks = row_blocks(c), units = c.batch * c.kv_heads * g.parts, all_keys = key_blocks(c) * BLOCK;
  long next = 0, failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(HeadPlanes::numbers(c) + kind_numbers);
    const HeadPlanes p(c, scratch);
    Kind kind = make(scratch);
    for (long unit; !scratch.missing(failed) && (unit = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
      const long part = unit / (c.batch * c.kv_heads), x = unit % (c.batch * c.kv_heads), kv = x % c.kv_heads;
      float *d_k = g.d_k + unit * all_keys * padded(c.width), *d_v = g.d_v + unit * all_keys * padded(c.value_width);
      for (long h = kv * groups(c); h < (kv + 1) * groups(c); h++)
        // Blocks are dealt out in alternating order, so that every part gets as many long rows as short ones.
        for (long block = 0; block < blocks; block++) {
          const long turn = block / g.parts, place = block % g.parts;
          if ((turn % 2 ? g.parts - 1 - place : place) == part)
            backward_rows(c, g, kind, x / c.kv_heads, h, block * ROWS_OF_TILE, part, p, d_k, d_v);
        }
    }
  }
  return failed;
}

}  // namespace
