// Attention with relative products (Transformer-XL), one head at a time:
//
//     L = q k' + p r(i - j)',     p a second query per row, r a table of vectors over lags
//
// The table runs from the largest lag downwards, so that row i and key j use entry (j - i) relative to row 0 and key 0.
// A block of keys and six rows use BLOCK + 5 entries. One product multiplies the six rows by all of these. Row r of the
// product then starts one entry before row r - 1, so reading it with a row stride that is one shorter gives p r(i - j)'
// without moving data.

#include "heads.h"

extern "C" {

struct RelativeCall {
  HeadCall head;
  View p;                // packed rows, scaled as q is
  const float* columns;  // [head, width, entry]: the transposed table, at the entry of row 0 and key 0; null if few_rows
  long columns_head, columns_row;
  const float* entries;  // [head, entry, padded width]: the table, at the entry of row 0 and key 0
  long entries_head;
};

struct RelativeBackward {
  HeadBackward head;
  View d_p;
  float* d_entries;  // [parts, batch, head, entry, padded width], at the entry of row 0 and key 0 too
  long entries_span;  // numbers per head
};

long dape_relative_sizes() { return sizeof(RelativeCall) * 10000 + sizeof(RelativeBackward); }

}  // extern "C"

namespace {

constexpr long SIX = 6;      // rows of one product in the forward pass
constexpr long TWELVE = 12;  // and in the backward pass, which sums over rows: short sums would be slow
constexpr long WINDOW = ROWS_OF_TILE + BLOCK + 2 * LANES;  // entries that a tile uses
constexpr long STRIP = BLOCK + TWELVE + 2 * LANES;         // entries that the rows of one product use

// x y' + a b', with one sum over lanes.
inline float two_dots(const float* x, const float* y, const float* a, const float* b, long width) {
  Vec sums{}, others{};
  long n = 0;
  for (; n + LANES <= width; n += LANES) sums += load(x + n) * load(y + n), others += load(a + n) * load(b + n);
  float total = sum(sums + others);
  for (; n < width; n++) total += x[n] * y[n] + a[n] * b[n];
  return total;
}

struct Relative {
  static constexpr bool LEFTWARDS = false;
  const RelativeCall& call;
  const RelativeBackward* backward;
  float *window, *strip, *d_p, *d_entries;
  static long numbers(const RelativeCall& c) {
    return c.head.width * WINDOW + TWELVE * STRIP + ROWS_OF_TILE * padded(c.head.width) + 128;
  }
  Relative(const RelativeCall& c, const RelativeBackward* g, Scratch& scratch) : call(c), backward(g), d_entries(nullptr) {
    window = scratch.take(c.head.width * WINDOW), strip = scratch.take(TWELVE * STRIP);
    d_p = scratch.take(ROWS_OF_TILE * padded(c.head.width));
  }

  void begin(long, long) {}

  void scores(const Tile& t, float* S) {
    if (call.head.few_rows) return scores_of_entries(t, S);
    const long width = call.head.width, touched = padded(t.rows - 1 + t.width);
    const float* from = call.columns + t.h * call.columns_head + t.key - (t.i0 + t.rows - 1);
    for (long x = 0; x < width; x++)
      for (long n = 0; n < touched; n += LANES) store(window + x * WINDOW + n, load(from + x * call.columns_row + n));
    for (long r = 0; r < t.rows; r += SIX) {
      const long some = least(SIX, t.rows - r), first = t.rows - r - some;  // the entries of the last row come first
      product<SET>(some, padded(t.width + some - 1), width, number(call.p, t.b, t.h, t.i0 + r), call.p.row, 1, window + first, WINDOW,
                   strip, STRIP);
      scores_of<ONTO>(call.head, t, r, some, S, {strip + some - 1, STRIP - 1});
    }
  }

  // Few rows, as in decoding: reads keys and entries unpacked.
  void scores_of_entries(const Tile& t, float* S) const {
    const long count = least(t.width, call.head.keys - t.key), d = padded(call.head.width);
    for (long r = 0; r < t.rows; r++) {
      const float* entry = call.entries + t.h * call.entries_head + (t.key - t.i0 - r) * d;
      const float *q = number(call.head.q, t.b, t.h, t.i0 + r), *p = number(call.p, t.b, t.h, t.i0 + r);
      for (long n = 0; n < count; n++) {
        const float* k = number(call.head.k, t.b, t.h / groups(call.head), t.key + n);
        fetch(k + BLOCK * call.head.k.row, d), fetch(entry + (n + BLOCK) * d, d);
        S[r * BLOCK + n] = two_dots(q, k, p, entry + n * d, call.head.width);
      }
      for (long n = count; n < t.width; n++) S[r * BLOCK + n] = 0.0f;
    }
  }

  void logits(const Tile& t, const float* S, float* L) const {
    if (L != S) std::memcpy(L, S, 4 * t.rows * BLOCK);
  }

  void begin_backward(const Tile& t, long, long part, float*) {
    std::memset(d_p, 0, 4 * t.rows * padded(call.head.width));
    const HeadCall& c = call.head;
    d_entries = backward->d_entries + ((part * c.batch + t.b) * c.heads + t.h) * backward->entries_span;
  }

  void gradient(const Tile& t, const float*, const float* G) const {
    const long d = padded(call.head.width);
    for (long r = 0; r < t.rows; r += TWELVE) {
      const long some = least(TWELVE, t.rows - r), touched = t.width + some - 1, first = (t.key - (t.i0 + r + some - 1)) * d;
      std::memset(strip, 0, 4 * some * STRIP);
      for (long x = 0; x < some; x++) std::memcpy(strip + x * STRIP + some - 1 - x, G + (r + x) * BLOCK, 4 * t.width);
      product<ADD>(some, d, touched, strip, STRIP, 1, call.entries + t.h * call.entries_head + first, d, d_p + r * d, d);
      product<ADD>(touched, d, some, strip, 1, STRIP, number(call.p, t.b, t.h, t.i0 + r), call.p.row, d_entries + first, d);
    }
  }

  void end_backward(const Tile& t) const { give_rows(call.head, backward->d_p, t.b, t.h, t.i0, t.rows, d_p); }
};

}  // namespace

extern "C" {

// Both return 0, or 1 if there is too little memory for a thread's scratch space.

long dape_relative_forward(const RelativeCall* c) {
  return forward_heads<Relative>(c->head, Relative::numbers(*c), [&](Scratch& s) { return Relative(*c, nullptr, s); });
}

long dape_relative_backward(const RelativeCall* c, const RelativeBackward* g) {
  return backward_heads<Relative>(c->head, g->head, Relative::numbers(*c), [&](Scratch& s) { return Relative(*c, g, s); });
}

}  // extern "C"
