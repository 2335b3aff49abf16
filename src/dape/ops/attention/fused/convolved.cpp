// Attention with two convolutions over neighbouring keys (DAPE-v2), for CPUs:
//
//     H = shown * leaky(sum_t Wa_t . S(j + t) + pre),     L = S + static + sum_t W2_t . H(j + t),     S = shown * q k'
//
// with t = -reach ... reach, and out = softmax2(mask(L)) v. `shown` is 0 where a row does not see a key, or there is no key,
// else 1. Logits are in base 2: the caller scales as for kernel.cpp. Static and pre are tables over lags. The first and last
// keys lack neighbours, so their pre does not depend on the lag alone: `edges` has it for every row.
//
// A tile is all heads of a few query rows. It goes through the keys from the first to the last, BLOCK new keys per step. Every
// stage is `reach` keys behind the stage that it reads: H behind S, and L behind H. In the backward pass, the gradient Z of H
// is behind the gradient of L, and the gradient of S is behind Z. Planes keep the last PAST keys of the step before, so that
// nothing is computed twice. Cell n of a stage `behind` by some keys is key j0 - behind + n, in column PAST - behind + n of a
// plane.

#include "rows.h"

extern "C" {

struct ConvolvedCall {
  long batch, heads, kv_heads, queries, keys, width, value_width, hidden, taps, threads;
  long causal, offset;    // row i of a causal call sees the first offset + i + 1 keys
  const float *wa, *w2;   // [hidden, tap, heads], [tap, heads, hidden]
  View fixed, pre;        // static and pre: "head" is the stride of their channels, row that of rows
  const float* edges;     // [2 reach, hidden, queries]: pre of the first `reach` keys, then of the last
  View q;                 // packed rows
  View k_panels, v_rows;  // packed; unused if few_rows and forward
  View k, v;              // not packed
  View out;
  View softmax;   // per row the largest logit, and the sum of the weights relative to it (1 if the row sees no key)
  long few_rows;  // both passes read unpacked k: sums in another order would give other weights where products are huge
  long splits;    // few rows: the number of parts of the keys
  float* parts;   // few rows: [batch, splits, heads, rows, padded value width + 2]
};

struct ConvolvedBackward {
  View k_rows, v_panels;  // packed
  const float *wa_back, *w2_back;  // [tap, heads, hidden], [hidden, tap, heads]: of natural logits
  View d_out;             // divided by the sum of the row's weights; packed rows
  View delta;             // per row the sum of d_out * out
  View d_q;
  long parts;             // parts of an item's rows; each has its own sums d_k and d_v
  float *d_k, *d_v;       // [parts, batch, kv_heads, keys padded to BLOCK, padded width]
  float *d_fixed, *d_pre, *d_edges;  // [threads, like the terms]
  long fixed_span, pre_span, edges_span;  // numbers per thread
  float *d_wa, *d_w2;     // [threads, tap, hidden, heads], [threads, tap, heads, hidden]
};

long dape_convolved_sizes() { return sizeof(ConvolvedCall) * 10000 + sizeof(ConvolvedBackward); }

}  // extern "C"

namespace {

constexpr long PAST = 16;             // keys of earlier steps; the backward pass needs 5 reach of them
constexpr long LINE = PAST + BLOCK;   // keys in a plane
constexpr long FORWARD_BYTES = 384 << 10, BACKWARD_BYTES = 448 << 10;

typedef ConvolvedCall Call;
typedef ConvolvedBackward Backward;

inline long reach(const Call& c) { return c.taps / 2; }
inline const float* term(const View& t, long row, long key) { return t.at + row * t.row + key; }

struct Shape {
  long rows;         // of a tile
  long plane, line;  // strides of heads, of LINE or BLOCK keys; with powers of two, heads would compete for the same cache lines
  Shape(const Call& c, long bytes, long numbers) {
    const long fit = bytes / (4 * c.heads * numbers);
    rows = least(c.queries, fit >= 12 ? least(36, fit / 12 * 12) : 8);
    plane = rows * LINE + 16, line = rows * BLOCK + 16;
  }
  static Shape forward(const Call& c) { return {c, FORWARD_BYTES, LINE + BLOCK + padded(c.value_width)}; }
  static Shape backward(const Call& c) { return {c, BACKWARD_BYTES, 2 * LINE + BLOCK + padded(c.width)}; }
  long blocks(const Call& c) const { return (c.queries + rows - 1) / rows; }
};

// The cells of a stage that a row sees: from <= n < to.
struct Shown {
  long from, to;
  Shown(const Call& c, long i, long j0, long behind) {
    from = most(0, behind - j0), to = most(0, least(BLOCK, seen(c, i) - (j0 - behind)));
  }
  long width() const { return padded(to); }
  // Sets the other cells to 0.
  void only(float* x) const {
    for (long n = 0; n < from; n++) x[n] = 0.0f;
    for (long n = to; n < BLOCK; n++) x[n] = 0.0f;
  }
};

// A thread's memory.
struct Planes {
  float *S, *G;    // [head, row, LINE]: scores; the gradient first of weights, then of logits, then of scores
  float *P;        // [head, row, BLOCK]: logits, then weights
  float *O;        // [head, row, width]: output, or gradient of q
  float *H, *Z;    // [hidden, LINE] of one row: hidden units and their gradients
  float *past_H, *past_Z;  // [row, hidden, 2 reach]: the same of earlier keys
  float *columns;  // [tap, head, BLOCK] of one row: the operand of a convolution
  float *pre;      // [hidden, BLOCK] of one row, for blocks with the first or last keys
  float *top, *total, *rescale;
  static long numbers(const Call& c, const Shape& s, bool backward) {
    const long cells = c.heads * s.rows, width = padded(most(c.width, c.value_width));
    return c.heads * (s.plane * (backward ? 2 : 1) + s.line) + cells * (width + 3) + 2 * c.hidden * (LINE + s.rows * 2 * reach(c)) +
           c.taps * c.heads * BLOCK + c.hidden * BLOCK + 512;
  }
  Planes(const Call& c, const Shape& s, Scratch& scratch, bool backward) {
    const long cells = c.heads * s.rows, past = s.rows * c.hidden * 2 * reach(c);
    S = scratch.take(c.heads * s.plane), P = scratch.take(c.heads * s.line);
    G = backward ? scratch.take(c.heads * s.plane) : nullptr;
    O = scratch.take(cells * padded(most(c.width, c.value_width)));
    H = scratch.take(c.hidden * LINE), Z = scratch.take(c.hidden * LINE);
    past_H = scratch.take(past), past_Z = scratch.take(past);
    columns = scratch.take(c.taps * c.heads * BLOCK), pre = scratch.take(c.hidden * BLOCK);
    top = scratch.take(cells), total = scratch.take(cells), rescale = scratch.take(cells + LANES);
  }
  void begin(const Call& c, const Shape& s, long rows) const {
    for (long h = 0; h < c.heads; h++)
      for (long r = 0; r < rows; r++) {
        std::memset(S + h * s.plane + r * LINE, 0, 4 * PAST);
        if (G) std::memset(G + h * s.plane + r * LINE, 0, 4 * PAST);
      }
    std::memset(past_H, 0, 4 * rows * c.hidden * 2 * reach(c));
    std::memset(past_Z, 0, 4 * rows * c.hidden * 2 * reach(c));
  }
  // Keeps the last keys of a step for the next step.
  static void go_on(const Call& c, const Shape& s, long rows, float* x) {
    for (long h = 0; h < c.heads; h++)
      for (long r = 0; r < rows; r++) {
        float* line = x + h * s.plane + r * LINE;
        std::memcpy(line, line + BLOCK, 4 * PAST);
      }
  }
};

// Hidden units of a row, [hidden, LINE]: recall() restores the 2 reach keys before column `at` from the step before, keep()
// saves the last ones for the next step.
inline void recall(const Call& c, float* units, long at, const float* past) {
  const long kept = 2 * reach(c);
  for (long u = 0; u < c.hidden; u++)
    for (long n = 0; n < kept; n++) units[u * LINE + at - kept + n] = past[u * kept + n];
}
inline void keep(const Call& c, const float* units, long at, float* past) {
  const long kept = 2 * reach(c);
  for (long u = 0; u < c.hidden; u++)
    for (long n = 0; n < kept; n++) past[u * kept + n] = units[u * LINE + at + BLOCK - kept + n];
}

// What is read next: the same rows of the next head, or after the last head the first head's next block of rows.
inline const float* next_head(const Call& c, const View& x, long b, long h, long row) {
  return h + 1 < c.heads ? number(x, b, (h + 1) / groups(c), row) : number(x, b, 0, row + BLOCK);
}

// The scores of all heads and rows for new keys, 0 where they are hidden.
void scores(const Call& c, const Shape& s, long b, long i0, long rows, long j0, float* S) {
  const long most_seen = most(0, least(BLOCK, seen(c, i0 + rows - 1) - j0));
  for (long h = 0; h < c.heads; h++) {
    float* to = S + h * s.plane + PAST;
    if (most_seen && !c.few_rows)
      product<SET>(rows, padded(most_seen), c.width, number(c.q, b, h, i0), c.q.row, 1, number(c.k_panels, b, h / groups(c), j0), BLOCK,
                   to, LINE);
    else if (c.few_rows)
      scores_of_few(c, b, h, i0, rows, j0, most_seen, next_head(c, c.k, b, h, j0), to, LINE);
    for (long r = 0; r < rows; r++) Shown(c, i0 + r, j0, 0).only(to + r * LINE);
  }
}

// Gathers what a convolution reads for a row's cells from column `at` on; `step` is -1 for the transposed convolution.
void gather(const Call& c, const Shape& s, const float* x, long at, long width, int step, float* columns) {
  for (long t = 0; t < c.taps; t++)
    for (long h = 0; h < c.heads; h++)
      for (long n = 0; n < width; n += LANES)
        store(columns + (t * c.heads + h) * BLOCK + n, load(x + h * s.plane + at + step * (t - reach(c)) + n));
}

// The index of a key in `edges`, or -1 if it has all its neighbours.
inline long edge_of(const Call& c, long key) {
  if (key < reach(c)) return key;
  return key >= c.keys - reach(c) ? key - c.keys + 2 * reach(c) : -1;
}

inline const float* edge(const Call& c, const float* edges, long place, long unit, long row) {
  return edges + (place * c.hidden + unit) * c.queries + row;
}

// Calls `each(n, place)` for the edges among cells from ... to, where cell 0 is `key`.
template <class Each>
inline void each_edge(const Call& c, long key, long from, long to, Each each) {
  for (long n = from; n < to; n++) {
    const long place = edge_of(c, key + n);
    if (place >= 0) each(n, place);
  }
}

inline bool has_edges(const Call& c, long key, const Shown& shown) {
  return key + shown.from < reach(c) || key + shown.to > c.keys - reach(c);
}

// Writes the hidden units of a row to p.H, after those of earlier keys.
void hidden_units(const Call& c, const Shape& s, long i, long r, long j0, const Planes& p) {
  const long behind = reach(c), at = PAST - behind, key = j0 - behind;
  const Shown shown(c, i, j0, behind);
  Strided pre = {term(c.pre, i, key), c.pre.head};
  recall(c, p.H, at, p.past_H + r * c.hidden * 2 * reach(c));
  if (has_edges(c, key, shown)) {
    for (long u = 0; u < c.hidden; u++)
      for (long n = 0; n < shown.width(); n += LANES) store(p.pre + u * BLOCK + n, load(pre.at + u * pre.row + n));
    each_edge(c, key, shown.from, shown.to, [&](long n, long place) {
      for (long u = 0; u < c.hidden; u++) p.pre[u * BLOCK + n] = *edge(c, c.edges, place, u, i);
    });
    pre = {p.pre, BLOCK};
  }
  gather(c, s, p.S + r * LINE, at, shown.width(), 1, p.columns);
  product<LEAKY>(c.hidden, shown.width(), c.taps * c.heads, c.wa, c.taps * c.heads, 1, p.columns, BLOCK, p.H + at, LINE, pre);
  for (long u = 0; u < c.hidden; u++) shown.only(p.H + u * LINE + at);
  keep(c, p.H, at, p.past_H + r * c.hidden * 2 * reach(c));
}

// Writes the logits of a row to p.P, -inf at hidden keys. Returns the cells that are seen.
Shown logits(const Call& c, const Shape& s, long i, long r, long j0, const Planes& p) {
  const long behind = 2 * reach(c), at = PAST - behind;
  const Shown shown(c, i, j0, behind);
  float* L = p.P + r * BLOCK;
  const Strided S = {p.S + r * LINE + at, s.plane}, fixed = {term(c.fixed, i, j0 - behind), c.fixed.head};
  for (long t = 0; t < c.taps; t++) {
    const float *w2 = c.w2 + t * c.heads * c.hidden, *H = p.H + at + t - reach(c);
    if (t) product<ADD>(c.heads, shown.width(), c.hidden, w2, c.hidden, 1, H, LINE, L, s.line);
    else product<ONTO_BOTH>(c.heads, shown.width(), c.hidden, w2, c.hidden, 1, H, LINE, L, s.line, S, fixed);
  }
  for (long h = 0; h < c.heads; h++) {
    for (long n = 0; n < least(shown.from, shown.width()); n++) L[h * s.line + n] = -INFINITY;
    for (long n = shown.to; n < shown.width(); n++) L[h * s.line + n] = -INFINITY;
  }
  return shown;
}

// Forward ------------------------------------------------------------------------------------------------------------

void add_values(const Call& c, const Shape& s, long b, long h, long rows, long first, long from, long to, const Planes& p) {
  const long e = padded(c.value_width), count = to - from, key = first + from;
  const float* P = p.P + h * s.line + from;
  float* O = p.O + h * s.rows * e;
  if (c.few_rows) add_few_values(c, b, h, rows, key, count, next_head(c, c.v, b, h, key), P, O);
  else product<ADD>(rows, e, count, P, BLOCK, 1, number(c.v_rows, b, h / groups(c), key), c.v_rows.row, O, e);
}

// Adds keys first ... last to O and to the running softmax of some rows.
void accumulate(const Call& c, const Shape& s, long b, long i0, long rows, long first, long last, const Planes& p) {
  const long behind = 2 * reach(c), e = padded(c.value_width);
  p.begin(c, s, rows);
  // Starts one block before the first key, to fill the past.
  for (long j0 = most(0, first / BLOCK * BLOCK - BLOCK); j0 - behind < last; j0 += BLOCK) {
    const long key = j0 - behind, from = most(0, first - key), to = least(BLOCK, last - key);
    scores(c, s, b, i0, rows, j0, p.S);
    for (long r = 0; r < rows; r++) {
      hidden_units(c, s, i0 + r, r, j0, p);
      if (from >= to) continue;
      const Shown shown = logits(c, s, i0 + r, r, j0, p);
      float *L = p.P + r * BLOCK, *rescale = p.rescale + r * c.heads;
      for (long h = 0; h < c.heads; h++) {
        for (long n = 0; n < least(from, shown.width()); n++) L[h * s.line + n] = -INFINITY;
        for (long n = to; n < shown.width(); n++) L[h * s.line + n] = -INFINITY;
      }
      weigh(L, s.line, c.heads, shown.width(), BLOCK, p.top + r * c.heads, p.total + r * c.heads, rescale);
      for (long h = 0; h < c.heads; h++) {
        float* o = p.O + (h * s.rows + r) * e;
        for (long n = 0; rescale[h] != 1.0f && n < e; n += LANES) store(o + n, load(o + n) * rescale[h]);
      }
    }
    for (long h = 0; h < c.heads && from < to; h++) add_values(c, s, b, h, rows, key, from, to, p);
    Planes::go_on(c, s, rows, p.S);
  }
}

// Backward -----------------------------------------------------------------------------------------------------------

struct Sums {  // gradients of one thread, or of one part of an item's rows
  float *fixed, *pre, *edges;
  float *wa, *w2;  // [tap, .., .., lane]
  float *k, *v;
};

// Writes the weights of a row to p.P, and replaces the gradients of the weights in p.G by those of the logits.
void d_logits(const Call& c, const Backward& g, const Shape& s, long b, long i, long r, long j0, const Planes& p, const Sums& sums) {
  const long behind = 2 * reach(c);
  const Shown shown = logits(c, s, i, r, j0, p);
  float* to_fixed = sums.fixed + (term(c.fixed, i, j0 - behind) - c.fixed.at);
  for (long h = 0; h < c.heads; h++) {
    float *P = p.P + h * s.line + r * BLOCK, *G = p.G + h * s.plane + r * LINE + PAST - behind;
    gradients_of_logits(P, G, shown.width(), number(c.softmax, b, h, i), *number(g.delta, b, h, i));
    shown.only(P), shown.only(G);
    if (!g.d_fixed) continue;
    float* to = to_fixed + h * c.fixed.head;
    for (long n = 0; n < shown.width(); n += LANES) store(to + n, load(to + n) + load(G + n));
  }
  for (long t = 0; t < c.taps; t++)
    cell_products(c.heads, c.hidden, 1, shown.width(), p.G + r * LINE + PAST - behind, s.plane, p.H + PAST - behind + t - reach(c), LINE,
                  sums.w2 + t * c.heads * c.hidden * LANES);
}

// Writes the gradients of a row's hidden units before the activation to p.Z, after those of earlier keys.
void d_hidden(const Call& c, const Backward& g, const Shape& s, long i, long r, long j0, const Planes& p, const Sums& sums) {
  const long behind = 3 * reach(c), at = PAST - behind, key = j0 - behind;
  const Shown shown(c, i, j0, behind);
  float* past = p.past_Z + r * c.hidden * 2 * reach(c);
  recall(c, p.Z, at, past);
  gather(c, s, p.G + r * LINE, at, shown.width(), -1, p.columns);
  product<LEAKY_SLOPE_OF>(c.hidden, shown.width(), c.taps * c.heads, g.w2_back, c.taps * c.heads, 1, p.columns, BLOCK, p.Z + at, LINE,
                          {nullptr, 0}, {p.H + at, LINE});
  for (long u = 0; u < c.hidden; u++) shown.only(p.Z + u * LINE + at);
  keep(c, p.Z, at, past);
  for (long t = 0; t < c.taps; t++)
    cell_products(c.hidden, c.heads, 1, shown.width(), p.Z + at, LINE, p.S + r * LINE + at + t - reach(c), s.plane,
                  sums.wa + t * c.hidden * c.heads * LANES);
  float* to = sums.pre + (term(c.pre, i, key) - c.pre.at);
  const bool edges = has_edges(c, key, shown);
  for (long u = 0; u < c.hidden; u++) {
    const float* Z = p.Z + u * LINE + at;
    for (long n = 0; n < shown.width(); n += LANES) store(to + u * c.pre.head + n, load(to + u * c.pre.head + n) + load(Z + n));
    if (edges)  // their pre is not in the table
      each_edge(c, key, shown.from, shown.to, [&](long n, long place) {
        to[u * c.pre.head + n] -= Z[n];
        sums.edges[(place * c.hidden + u) * c.queries + i] += Z[n];
      });
  }
}

// Replaces the gradients of logits in p.G by those of scores.
void d_scores(const Call& c, const Backward& g, const Shape& s, long i, long r, long j0, const Planes& p) {
  const long behind = 4 * reach(c), at = PAST - behind;
  const Shown shown(c, i, j0, behind);
  float* G = p.G + r * LINE + at;
  for (long t = 0; t < c.taps; t++)
    product<ADD>(c.heads, shown.width(), c.hidden, g.wa_back + t * c.heads * c.hidden, c.hidden, 1, p.Z + at - (t - reach(c)), LINE, G,
                 s.plane);
  for (long h = 0; h < c.heads; h++) shown.only(G + h * s.plane);
}

// The cells of a stage that are keys, for products with them.
struct Keys {
  long from, key, count;
  Keys(const Call& c, long j0, long behind, long last) {
    from = most(0, behind - j0), key = j0 - behind + from, count = most(0, least(BLOCK - from, last - key));
  }
};

void backward_rows(const Call& c, const Backward& g, const Shape& s, long b, long i0, const Planes& p, const Sums& sums) {
  const long rows = least(s.rows, c.queries - i0), d = padded(c.width), e = padded(c.value_width), w = reach(c);
  const long last = seen(c, i0 + rows - 1), all_keys = key_blocks(c) * BLOCK;
  std::memset(p.O, 0, 4 * c.heads * s.rows * d);
  p.begin(c, s, rows);
  for (long j0 = 0; j0 - 4 * w < last; j0 += BLOCK) {
    const long fresh = padded(most(0, least(BLOCK, last - j0)));
    scores(c, s, b, i0, rows, j0, p.S);
    for (long h = 0; h < c.heads; h++) {
      float* G = p.G + h * s.plane + PAST;
      if (fresh)
        product<SET>(rows, fresh, c.value_width, number(g.d_out, b, h, i0), g.d_out.row, 1, number(g.v_panels, b, h / groups(c), j0), BLOCK,
                     G, LINE);
      for (long r = 0; r < rows; r++) std::memset(G + r * LINE + fresh, 0, 4 * (BLOCK - fresh));
    }
    for (long r = 0; r < rows; r++) {
      hidden_units(c, s, i0 + r, r, j0, p);
      d_logits(c, g, s, b, i0 + r, r, j0, p, sums);
      d_hidden(c, g, s, i0 + r, r, j0, p, sums);
      d_scores(c, g, s, i0 + r, r, j0, p);
    }
    const Keys of_v(c, j0, 2 * w, last), of_k(c, j0, 4 * w, last);
    for (long h = 0; h < c.heads; h++) {
      const long kv = h / groups(c) * all_keys;
      const float *P = p.P + h * s.line + of_v.from, *G = p.G + h * s.plane + PAST - 4 * w + of_k.from;
      product<ADD>(of_v.count, e, rows, P, 1, BLOCK, number(g.d_out, b, h, i0), g.d_out.row, sums.v + (kv + of_v.key) * e, e);
      product<ADD>(rows, d, of_k.count, G, LINE, 1, number(g.k_rows, b, h / groups(c), of_k.key), d, p.O + h * s.rows * d, d);
      product<ADD>(of_k.count, d, rows, G, 1, LINE, number(c.q, b, h, i0), c.q.row, sums.k + (kv + of_k.key) * d, d);
    }
    Planes::go_on(c, s, rows, p.S), Planes::go_on(c, s, rows, p.G);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.width));
  for (long h = 0; h < c.heads; h++)
    for (long r = 0; r < rows; r++)
      for (long n = 0; n < c.width; n++) number(g.d_q, b, h, i0 + r)[n] = p.O[(h * s.rows + r) * d + n] * scale;
}

void backward_share(const Call& c, const Backward& g, const Shape& s, long share, const Planes& p, Sums sums) {
  const long b = share / g.parts, part = share % g.parts, rows = (part * c.batch + b) * c.kv_heads * key_blocks(c) * BLOCK;
  sums.k = g.d_k + rows * padded(c.width), sums.v = g.d_v + rows * padded(c.value_width);
  // Blocks are dealt out in alternating order, so that every part gets as many long rows as short ones.
  for (long x = 0; x < s.blocks(c); x++) {
    const long turn = x / g.parts, place = x % g.parts;
    if ((turn % 2 ? g.parts - 1 - place : place) == part) backward_rows(c, g, s, b, x * s.rows, p, sums);
  }
}

}  // namespace

extern "C" {

// Both return 0, or 1 if there is too little memory for a thread's scratch space.

long dape_convolved_forward(const ConvolvedCall* call) {
  const Call& c = *call;
  const Shape s = Shape::forward(c);
  const long blocks = s.blocks(c), units = c.batch * (c.few_rows ? c.splits : blocks);
  long next = 0, failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(Planes::numbers(c, s, false));
    const Planes p(c, s, scratch, false);
    // Long rows first, so that no thread starts a long tile when the others have finished.
    for (long t; !scratch.missing(failed) && (t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;)
      if (c.few_rows) forward_part(c, s, t / c.splits, t % c.splits, p);
      else forward_rows(c, s, t % c.batch, (blocks - 1 - t / c.batch) * s.rows, p);
#pragma omp barrier
#pragma omp for schedule(static)
    for (long x = 0; x < c.batch * c.heads; x++)
      for (long r = 0; c.few_rows && r < c.queries; r++)
        if (!__atomic_load_n(&failed, __ATOMIC_RELAXED)) join_parts(c, s, x / c.heads, x % c.heads, r);
  }
  return failed;
}

long dape_convolved_backward(const ConvolvedCall* call, const ConvolvedBackward* backward) {
  const Call& c = *call;
  const Backward& g = *backward;
  const Shape s = Shape::backward(c);
  long failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    const long weights = c.taps * c.heads * c.hidden, lanes = weights * LANES;
    Scratch scratch(Planes::numbers(c, s, true) + 2 * lanes + 64);
    const Planes p(c, s, scratch, true);
    float *wa = scratch.take(lanes), *w2 = scratch.take(lanes);
    const bool idle = scratch.missing(failed);
    // If OpenMP starts fewer threads than requested, they do the work of the missing ones too.
    for (long t = omp_get_thread_num(); t < c.threads && !idle; t += omp_get_num_threads()) {
      std::memset(wa, 0, 4 * lanes), std::memset(w2, 0, 4 * lanes);
      const Sums sums = {g.d_fixed + t * g.fixed_span, g.d_pre + t * g.pre_span, g.d_edges + t * g.edges_span, wa, w2, nullptr, nullptr};
      for (long share = t; share < c.batch * g.parts; share += c.threads) backward_share(c, g, s, share, p, sums);
      fold_lanes(weights, wa, g.d_wa + t * weights);
      fold_lanes(weights, w2, g.d_w2 + t * weights);
    }
  }
  return failed;
}

}  // extern "C"
