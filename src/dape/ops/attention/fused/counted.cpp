// Attention with positions that count gates of the content (CoPE), one head at a time:
//
//     L = S + z_i at p_ij, linear between whole numbers,     p_ij = min(sum of sigmoid(S / log2(e)) from key j to the last
//                                                                      that row i sees, places - 1)
//
// S = q k' and z are in base 2. The forward pass goes through the tiles from the last key to the first and keeps the count of
// each row. When the count has reached places - 1, all earlier keys of the row get the same number, z of the last place; that
// is most of a long row. In the backward pass the gate of a key affects the counts of that key and of all earlier keys, so
// the gradients of counts are summed from the first key on. The counts at the edges of the tiles are computed before that,
// one number per row and tile.

#include "heads.h"

extern "C" {

struct CountedCall {
  HeadCall head;  // causal
  View z;         // [item, head, row, place]
  long places;
};

struct CountedBackward {
  HeadBackward head;
  View d_z;  // zeros
};

long dape_counted_sizes() { return sizeof(CountedCall) * 10000 + sizeof(CountedBackward); }

}  // extern "C"

namespace {

// The sum of each lane and all lanes after it.
template <int BY = 1>
inline Vec sum_from_here(Vec x) {
  constexpr Ints from = each_lane([](int i) { return i + BY < LANES ? i + BY : LANES; });
  x += __builtin_shuffle(x, Vec{}, from);
  if constexpr (2 * BY < LANES) return sum_from_here<2 * BY>(x);
  return x;
}

inline Vec gate(Vec score) {
  const Vec x = -score > 126.0f ? all(126.0f) : -score;  // NaN stays NaN
  return 1.0f / (1.0f + power_of_2(x));
}

// The two places around a count, and the weight of the higher one. NaN gives weight NaN, at any place.
struct Between {
  int low, high;
  float weight;
  explicit Between(float count) {
    low = count >= 0.0f ? static_cast<int>(count) : 0;
    weight = count - low;
    high = low + (weight > 0.0f);
  }
};

struct Counted {
  static constexpr bool LEFTWARDS = true;
  const CountedCall& call;
  const CountedBackward* backward;
  const float end;
  float *gates, *counts;  // [row, key] of the tile whose logits were computed last
  float* after;           // [row]: the count at the end of the tile: the sum over all later keys
  float* edges;           // [tile, row]: `after` of every tile, for the backward pass
  float* d_count;         // [row]: the sum of the gradients of the counts of all earlier keys
  static long numbers(const CountedCall& c, bool backward) {
    return ROWS_OF_TILE * (2 * BLOCK + 2 + (backward ? key_blocks(c.head) : 0)) + 128;
  }
  Counted(const CountedCall& c, const CountedBackward* g, Scratch& scratch) : call(c), backward(g), end(c.places - 1) {
    gates = scratch.take(ROWS_OF_TILE * BLOCK), counts = scratch.take(ROWS_OF_TILE * BLOCK);
    after = scratch.take(ROWS_OF_TILE), d_count = scratch.take(ROWS_OF_TILE);
    edges = g ? scratch.take(ROWS_OF_TILE * key_blocks(c.head)) : nullptr;
  }

  void begin(long, long rows) {
    for (long r = 0; r < rows; r++) after[r] = 0.0f;
  }

  void scores(const Tile& t, float* S) const {
    if (!call.head.few_rows) return scores_of<SET>(call.head, t, 0, t.rows, S);
    const HeadCall& c = call.head;
    const long count = least(t.width, c.keys - t.key);
    scores_of_few(c, t.b, t.h, t.i0, t.rows, t.key, count, number(c.k, t.b, t.h / groups(c), t.key - BLOCK), S, BLOCK);
    for (long r = 0; r < t.rows; r++)
      for (long n = count; n < t.width; n++) S[r * BLOCK + n] = 0.0f;
  }

  // Gates and counts of a row of a tile. Adds the sum of the gates to `after`.
  void count(const Tile& t, long r, const float* S) {
    const long seen_here = visible(call.head, t, t.i0 + r);
    const float* mask = mask_of(call.head, t);
    float *own_gates = gates + r * BLOCK, *own_counts = counts + r * BLOCK;
    for (long n = padded(seen_here) - LANES; n >= 0; n -= LANES) {
      Vec g = gate(load(S + r * BLOCK + n));
      if (n + LANES > seen_here)
        for (long x = most(0, seen_here - n); x < LANES; x++) g[x] = 0.0f;
      if (mask) g = load(mask + n) == 0.0f ? g : Vec{};
      const Vec reached = sum_from_here(g) + after[r];
      store(own_gates + n, g);
      store(own_counts + n, reached > end ? all(end) : reached);
      after[r] = reached[0];
    }
  }

  void logits(const Tile& t, const float* S, float* L) {
    if (backward) std::memcpy(after, edges + t.key / BLOCK * ROWS_OF_TILE, 4 * t.rows);
    for (long r = 0; r < t.rows; r++) {
      const float *z = number(call.z, t.b, t.h, t.i0 + r), *from = S + r * BLOCK;
      float* to = L + r * BLOCK;
      const long width = padded(visible(call.head, t, t.i0 + r));
      if (after[r] >= end) {
        for (long n = 0; n < width; n += LANES) store(to + n, load(from + n) + z[call.places - 1]);
        continue;
      }
      count(t, r, S);
      for (long n = 0; n < width; n++) {
        const Between at(counts[r * BLOCK + n]);
        to[n] = from[n] + (z[at.low] + at.weight * (z[at.high] - z[at.low]));
      }
    }
  }

  // The counts at the edges of the tiles, until all rows have reached the last place.
  void begin_backward(const Tile& rows, long keys, long, float* S) {
    begin(0, rows.rows);
    for (long r = 0; r < rows.rows; r++) d_count[r] = 0.0f;
    for (long key = (keys - 1) / BLOCK * BLOCK; key >= 0 && keys; key -= BLOCK) {
      const Tile t = {rows.b, rows.h, rows.i0, rows.rows, key, padded(least(BLOCK, keys - key))};
      std::memcpy(edges + key / BLOCK * ROWS_OF_TILE, after, 4 * rows.rows);
      bool counting = false;
      for (long r = 0; r < rows.rows; r++) counting |= !(after[r] >= end);
      if (!counting || !key) continue;
      scores(t, S);
      for (long r = 0; r < rows.rows; r++)
        if (!(after[r] >= end)) count(t, r, S);
    }
  }

  void gradient(const Tile& t, const float*, float* G) {
    const float* edge = edges + t.key / BLOCK * ROWS_OF_TILE;
    for (long r = 0; r < t.rows; r++) {
      const long width = visible(call.head, t, t.i0 + r);
      if (edge[r] >= end) gradient_at_end(t, r, padded(width), G + r * BLOCK);
      else gradient_of_row(t, r, width, G + r * BLOCK);
    }
  }

  void gradient_at_end(const Tile& t, long r, long width, const float* G) const {
    Vec total{};
    for (long n = 0; n < width; n += LANES) total += load(G + n);
    number(backward->d_z, t.b, t.h, t.i0 + r)[call.places - 1] += sum(total);
  }

  void gradient_of_row(const Tile& t, long r, long width, float* G) {
    const float *z = number(call.z, t.b, t.h, t.i0 + r), *own_gates = gates + r * BLOCK, *own_counts = counts + r * BLOCK;
    float *d_z = number(backward->d_z, t.b, t.h, t.i0 + r), so_far = d_count[r];
    for (long n = 0; n < width; n++) {
      const Between at(own_counts[n]);
      const float d = G[n];
      d_z[at.low] += (1.0f - at.weight) * d;
      d_z[at.high] += at.weight * d;
      so_far += d * (z[at.high] - z[at.low]) * LOG_2;  // 0 at the last place, where low and high are the same
      G[n] = d + so_far * own_gates[n] * (1.0f - own_gates[n]);
    }
    d_count[r] = so_far;
  }

  void end_backward(const Tile&) const {}
};

}  // namespace

extern "C" {

// Both return 0, or 1 if there is too little memory for a thread's scratch space.

long dape_counted_forward(const CountedCall* c) {
  return forward_heads<Counted>(c->head, Counted::numbers(*c, false), [&](Scratch& s) { return Counted(*c, nullptr, s); });
}

long dape_counted_backward(const CountedCall* c, const CountedBackward* g) {
  return backward_heads<Counted>(c->head, g->head, Counted::numbers(*c, true), [&](Scratch& s) { return Counted(*c, g, s); });
}

}  // extern "C"
