// Attention with a mixer f across heads, for CPUs:
//
//     L = S + static + W2 . leaky(Wa . S + pre),     S = q k',     out = softmax2(mask(L)) v
//
// in one pass over tiles that fit a core's own cache, forward and backward. Logits are in base 2: the caller scales q
// by log2(e) / sqrt(d), W2 and static by log2(e), and Wa by 1 / log2(e).
//
// A tile is all heads of a few query rows against BLOCK keys, [head, row, key]. f is computed one row at a time. The position
// terms of a row are then consecutive in memory, both in tables over lags (row stride -1) and in matrices that were computed
// for these rows (row stride = number of keys): a term's address is base + item + channel + row + key strides.
// Terms that are piecewise linear in one number per cell (FIRE) are computed here, row by row: see Ramp.
//
// Only our own headers and the standard library's are included, so that compilation takes seconds. The threads are those of
// torch's OpenMP pool. A thread's number determines its work, so the same number of threads gives the same bits. The caller
// owns the memory.

#include "rows.h"
#include "strips.h"

namespace {

constexpr long MOST_ROWS = 36;   // query rows of a tile
constexpr long CHUNK = 4;        // rows whose hidden units are kept for the products over cells
constexpr long CHUNK_ROW = CHUNK * BLOCK + 16;  // stride of hidden units; + 16 for the reason given at Shape.plane
constexpr long TILE_BYTES = 256 << 10;

}  // namespace

// The interface ------------------------------------------------------------------------------------------------------

extern "C" {

// Static and pre as piecewise linear functions of u = table[lag] * rows[row]. Piece p is kinks[p - 1] < u <= kinks[p].
struct Ramp {
  const float* table;  // the start of row 0; row i starts i numbers before it. Null if the terms are in memory
  const float* rows;   // [item, row]
  long item;           // stride of rows: 0 if the items share them
  const float* kinks;  // ascending, one less than pieces
  long pieces;
  const float *slopes, *levels;  // [pieces, heads + hidden]
};

// Added to static and pre: a number for the row plus one for the key, per channel (heads, then hidden units). Each number is
// a high and a low part, because the two high parts may be 1e4 and cancel. The low parts may be absent (null).
struct Separable {
  const float *rows, *rows_low;  // [item, channel, row]; null if there is none
  long row_item, row_channel;    // strides; that of items is 0 if they share the numbers
  const float *keys, *keys_low;  // [item, channel, key], whole blocks of keys
  long key_item, key_channel;
};

struct Call {
  long batch, heads, kv_heads, queries, keys, width, value_width, hidden, threads;
  long causal, offset;  // row i of a causal call sees the first offset + i + 1 keys
  const float *wa, *w2;  // [hidden, heads], [heads, hidden]; unused if hidden is 0
  View fixed, pre;       // static and pre: "head" is the stride of their channels; absent if `at` is null
  Ramp ramp;             // replaces both
  Separable separable;   // is added to both
  const float* mask;     // [batch, keys padded to BLOCK]: 0 or -inf; or null
  View q;                // packed rows
  View k_panels, v_rows; // packed (see Layout)
  View k, v;             // not packed
  View out;
  View softmax;  // per row the largest logit, and the sum of the weights relative to it (1 if the row sees no key)
  long apart;    // many items: q, k and v are not packed; each thread packs the items that it computes
  long few_rows; // both passes read unpacked k: sums in another order would give other weights where products are huge
  float factor;  // of q if `apart`
  long splits;   // decoding: the number of parts of the keys
  float* parts;  // decoding: [batch, splits, heads, rows of a tile, padded value width + 2]
};

struct Backward {
  View k_rows, v_panels;
  const float *wa_plain, *w2_plain;
  View d_out;          // divided by the sum of the row's weights; packed rows, or not packed if `apart`
  View delta;          // per row the sum of d_out * out; computed here if `apart`
  long parts;          // parts of an item's rows; each has its own sums d_k and d_v
  View d_q;
  float *d_k, *d_v;        // [parts, batch, kv_heads, padded keys, padded width]
  View to_k, to_v;         // replace the two above if `apart`
  long added;              // to_k and to_v already hold gradients of earlier rows; add to them
  float *d_fixed, *d_pre;  // [threads, like the terms]
  long fixed_span, pre_span;  // numbers per thread
  float *d_wa, *d_w2;  // [threads, hidden, heads], [threads, heads, hidden]
  float* d_table;      // [threads, like the ramp's table]
  long table_span;     // numbers per thread
  float* d_rows;                // [batch, queries]: only one thread computes a row
  float *d_slopes, *d_levels;   // [threads, pieces, heads + hidden]
  View d_of_rows;               // separable: [item, channel, row], "head" is the stride of channels
  float* d_of_keys;             // [parts, item, channel, key], with the channel stride of `keys`
};

long dape_lanes() { return LANES; }
long dape_block() { return BLOCK; }
float dape_slope() { return SLOPE; }
long dape_sizes() { return sizeof(Call) * 10000 + sizeof(Backward); }

// How [item, head, row, width] is laid out for the products; padding is 0. ROWS: rows of padded width. BLOCKED_ROWS: the same,
// with rows up to a multiple of BLOCK. PANELS: [block][width][BLOCK], every block of rows transposed. KEY_STRIPS: strips of
// rows, transposed; WIDTH_STRIPS: strips of columns (see strips.h). In all layouts a block of rows that begins with row `key`
// starts `key` rows after the beginning.
enum Layout { ROWS, BLOCKED_ROWS, PANELS, KEY_STRIPS, WIDTH_STRIPS };

long dape_strip() { return STRIP; }

// `factor` applies to the layouts ROWS and BLOCKED_ROWS only.
void dape_pack(long batch, long heads, long rows, long width, View from, float factor, float* to, long layout, long threads) {
  const bool transposed = layout == PANELS || layout == KEY_STRIPS;
  const long row_width = transposed ? width : layout == WIDTH_STRIPS ? whole_strips(width) : padded(width);
  const long all_rows = layout == ROWS ? rows : (rows + BLOCK - 1) / BLOCK * BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (long x = 0; x < batch * heads; x++) {
    const float* source = from.at + x / heads * from.item + x % heads * from.head;
    float* target = to + x * all_rows * row_width;
    if (all_rows > rows || row_width > width) std::memset(target, 0, 4 * all_rows * row_width);
    for (long r = 0; r < rows; r += transposed ? LANES : 1) {
      const float* row = source + r * from.row;
      const long some = least(LANES, rows - r);
      if (layout == PANELS) pack_columns(row, from.row, some, width, target + in_panels(r, width));
      else if (layout == KEY_STRIPS) pack_columns(row, from.row, some, width, target + in_strips(r, width), STRIP);
      else if (layout == WIDTH_STRIPS) pack_row_in_strips(row, width, r, target);
      else pack_row(row, width, factor, target + r * row_width);
    }
  }
}

}  // extern "C"

namespace {

// Tiles --------------------------------------------------------------------------------------------------------------

struct Shape {
  long rows;    // of a tile
  long plane;   // stride of heads in a tile
  explicit Shape(const Call& c) {
    const long bytes = 4 * c.heads * (BLOCK + padded(most(c.width, c.value_width)));
    const long fit = least(MOST_ROWS, TILE_BYTES / bytes);
    rows = least(c.queries, fit >= 12 ? fit / 12 * 12 : 8);  // products take six rows at a time, f's gradients four
    plane = rows * BLOCK + 16;  // with a power of two as stride, heads would compete for the same cache lines
  }
  long blocks(const Call& c) const { return (c.queries + rows - 1) / rows; }
};

inline const float* term(const View& t, long item, long row, long key) { return t.at + item * t.item + row * t.row + key; }

// A thread's memory for the packed rows of one item. Packing never writes to the padding, so setting it to 0 once is enough.
inline View own_space(Scratch& scratch, long heads, long rows, long width) {
  const View found = {scratch.take(heads * rows * width), 0, rows * width, width};
  std::memset(found.at, 0, 4 * heads * rows * width);
  return found;
}

// Rows are the outer loop, because the heads of a row are neighbours in memory.
inline void pack_rows(const View& from, long b, long heads, long rows, long width, float factor, const View& to) {
  for (long r = 0; r < rows; r++)
    for (long h = 0; h < heads; h++) pack_row(number(from, b, h, r), width, factor, number(to, 0, h, r));
}

inline void pack_key_strips(const View& from, long b, long heads, long rows, long width, const View& to) {
  for (long r = 0; r < rows; r += LANES)
    for (long h = 0; h < heads; h++) {
      float* at = number(to, 0, h, 0) + in_strips(r, width);
      pack_columns(number(from, b, h, r), from.row, least(LANES, rows - r), width, at, STRIP);
    }
}

inline void pack_width_strips(const View& from, long b, long heads, long rows, long width, const View& to) {
  for (long r = 0; r < rows; r++)
    for (long h = 0; h < heads; h++) pack_row_in_strips(number(from, b, h, r), width, r, number(to, 0, h, 0));
}

// C = A x' of all heads, [head, row, key]: rows i0... of a tile against `width` keys (padded) of a block. `then` is prefetched
// for the product that follows.
void with_keys(const Call& c, const Shape& s, const View& A, long b, long i0, long rows, const View& x, long x_width, long key,
               long width, const float* then, float* C) {
  for (long h = 0; h < c.heads; h++) {
    const float* next = h + 1 < c.heads ? number(x, b, (h + 1) / groups(c), key) : then;
    strip_product<SET>(rows, width, x_width, number(A, b, h, i0), A.row, 1, number(x, b, h / groups(c), key), x_width * STRIP, next,
                       C + h * s.plane, BLOCK);
  }
}

// The scores of a tile from unpacked keys, for both passes. The rows at `then` are prefetched.
void scores_of_rows(const Call& c, const Shape& s, long b, long i0, long rows, long key, long width, const float* then, float* S) {
  const long count = least(width, c.keys - key);
  for (long h = 0; h < c.heads; h++) {
    float* to = S + h * s.plane;
    scores_of_few(c, b, h, i0, rows, key, count, h + 1 < c.heads ? number(c.k, b, (h + 1) / groups(c), key) : then, to, BLOCK);
    for (long r = 0; r < rows; r++)
      for (long n = count; n < width; n++) to[r * BLOCK + n] = 0.0f;
  }
}

// Ramps --------------------------------------------------------------------------------------------------------------

constexpr long VECTORS = BLOCK / LANES;

// Consecutive keys whose u lies in one piece (low == high), or one vector of keys with several pieces.
struct Stretch {
  long from, to;   // keys
  long low, high;  // pieces
};

// A thread's memory for ramps and separable terms of one row against a block of keys.
struct RampRow {
  float *u, *du;  // [key]
  float* terms;   // [head or hidden unit, key]
  long count;
  Stretch stretches[VECTORS];
  static long channels(const Call& c) { return c.heads + c.hidden; }
  static bool needed(const Call& c) { return c.ramp.table || c.separable.rows; }
  static long numbers(const Call& c) { return needed(c) ? (channels(c) + 2) * BLOCK + 64 : 0; }
  RampRow(const Call& c, Scratch& scratch) : count(0) {
    if (!needed(c)) return;
    u = scratch.take(BLOCK), du = scratch.take(BLOCK), terms = scratch.take(channels(c) * BLOCK);
  }
};

inline const float* ramp_table(const Ramp& ramp, long i, long key) { return ramp.table - i + key; }
inline float ramp_row(const Ramp& ramp, long b, long i) { return ramp.rows[b * ramp.item + i]; }

// The piece of u. The search starts at p, because neighbouring keys mostly share a piece.
inline long piece_of(const Ramp& ramp, float u, long p) {
  while (p > 0 && !(u > ramp.kinks[p - 1])) p--;
  while (p + 1 < ramp.pieces && u > ramp.kinks[p]) p++;
  return p;
}

// u of a row's keys, and their stretches. u may be in any order.
void cut(const Call& c, long b, long i, long key, long width, RampRow& row) {
  const float* table = ramp_table(c.ramp, i, key);
  const float factor = ramp_row(c.ramp, b, i);
  long low = 0, high = 0;
  row.count = 0;
  for (long n = 0; n < width; n += LANES) {
    const Vec u = load(table + n) * factor;
    store(row.u + n, u);
    low = piece_of(c.ramp, -largest(-u), low), high = piece_of(c.ramp, largest(u), high);
    Stretch* last = row.count ? row.stretches + row.count - 1 : nullptr;
    if (last && low == high && last->low == low && last->high == low) last->to = n + LANES;
    else row.stretches[row.count++] = {n, n + LANES, low, high};
  }
}

// The terms of all channels in piece p: with FIRST for the whole stretch, else only where u lies above kinks[p - 1].
template <bool FIRST>
inline void evaluate_piece(const Call& c, const Stretch& at, long p, const RampRow& row) {
  const long channels = RampRow::channels(c);
  const float *slopes = c.ramp.slopes + p * channels, *levels = c.ramp.levels + p * channels;
  for (long channel = 0; channel < channels; channel++) {
    const Vec slope = all(slopes[channel]), level = all(levels[channel]);
    float* to = row.terms + channel * BLOCK;
    for (long n = at.from; n < at.to; n += LANES) {
      const Vec u = load(row.u + n), value = u * slope + level;
      if constexpr (FIRST) store(to + n, value);
      else store(to + n, u > c.ramp.kinks[p - 1] ? value : load(to + n));
    }
  }
}

// The terms of all channels, -inf where the causal mask hides a key.
void evaluate_ramps(const Call& c, long b, long i, long key, long width, RampRow& row) {
  cut(c, b, i, key, width, row);
  for (long x = 0; x < row.count; x++) {
    const Stretch& at = row.stretches[x];
    evaluate_piece<true>(c, at, at.low, row);
    for (long p = at.low + 1; p <= at.high; p++) evaluate_piece<false>(c, at, p, row);
  }
  const long hidden_from = most(0, seen(c, i) - key);
  for (long h = 0; h < c.heads && hidden_from < width; h++)
    for (long n = hidden_from; n < width; n++) row.terms[h * BLOCK + n] = -INFINITY;
}

// to = from + separable terms, for the channels from `first` on.
void add_separable(const Call& c, long b, long i, long key, long width, long first, long channels, float factor, Strided from,
                   float* to) {
  const Separable& s = c.separable;
  for (long channel = first; channel < first + channels; channel++, from.at += from.row, to += BLOCK) {
    const long of_row = b * s.row_item + channel * s.row_channel + i, of_key = b * s.key_item + channel * s.key_channel + key;
    const float row = s.rows[of_row], low = s.rows_low ? s.rows_low[of_row] : 0.0f;
    for (long n = 0; n < width; n += LANES) {
      Vec x = load(s.keys + of_key + n) + row;
      if (s.keys_low) x += load(s.keys_low + of_key + n) + low;
      store(to + n, load(from.at + n) + x * factor);
    }
  }
}

// f of one row of a tile: writes hidden units [hidden, ...] to H, and masked logits to L, which may be S.
void mix(const Call& c, const Shape& s, long b, long i, long key, long width, const float* S, float* H, long h_row, float* L,
         RampRow& ramps) {
  const bool has_fixed = c.fixed.at != nullptr || c.ramp.table != nullptr;
  Strided fixed = {c.fixed.at ? term(c.fixed, b, i, key) : nullptr, c.fixed.head};
  Strided pre = {c.pre.at ? term(c.pre, b, i, key) : nullptr, c.pre.head};
  if (c.ramp.table) {
    evaluate_ramps(c, b, i, key, width, ramps);
    fixed = {ramps.terms, BLOCK}, pre = {ramps.terms + c.heads * BLOCK, BLOCK};
  }
  if (c.separable.rows) {  // calls with separable terms always have other terms too
    float* hidden = ramps.terms + c.heads * BLOCK;
    add_separable(c, b, i, key, width, 0, c.heads, 1.0f / LOG_2, fixed, ramps.terms);
    if (c.hidden) add_separable(c, b, i, key, width, c.heads, c.hidden, 1.0f, pre, hidden);
    fixed = {ramps.terms, BLOCK}, pre = {hidden, BLOCK};
  }
  if (c.hidden) {
    product<LEAKY>(c.hidden, width, c.heads, c.wa, c.heads, 1, S, s.plane, H, h_row, pre);
    product<ONTO_BOTH>(c.heads, width, c.hidden, c.w2, c.hidden, 1, H, h_row, L, s.plane, {S, s.plane}, fixed);
  } else {
    for (long h = 0; h < c.heads; h++)
      for (long n = 0; n < width; n += LANES) {
        const Vec x = load(S + h * s.plane + n);
        store(L + h * s.plane + n, has_fixed ? x + load(fixed.at + h * fixed.row + n) : x);
      }
  }
  if (c.mask != nullptr) {
    const float* mask = c.mask + b * key_blocks(c) * BLOCK + key;
    for (long h = 0; h < c.heads; h++)
      for (long n = 0; n < width; n += LANES) store(L + h * s.plane + n, load(L + h * s.plane + n) + load(mask + n));
  }
  if (key + width <= c.keys) return;
  const long last = width - LANES;  // this vector reaches beyond the last key
  Vec beyond;
  for (long n = 0; n < LANES; n++) beyond[n] = key + last + n < c.keys ? 0.0f : -INFINITY;
  for (long h = 0; h < c.heads; h++) store(L + h * s.plane + last, load(L + h * s.plane + last) + beyond);
}

// Forward ------------------------------------------------------------------------------------------------------------

// A thread's memory in the forward pass.
struct ForwardPlanes {
  float *S, *H, *O;                // [head, row, key], [hidden, key], [head, row, value width]
  float *top, *total, *rescale;    // the running softmax of every row and head of a tile
  RampRow* ramps;
  static long numbers(const Call& c, const Shape& s) {
    return c.heads * s.plane + c.hidden * BLOCK + c.heads * s.rows * (padded(c.value_width) + 3) + 256;
  }
  ForwardPlanes(const Call& c, const Shape& s, Scratch& scratch, RampRow& ramps) : ramps(&ramps) {
    const long cells = c.heads * s.rows;
    S = scratch.take(c.heads * s.plane), H = scratch.take(c.hidden * BLOCK), O = scratch.take(cells * padded(c.value_width));
    top = scratch.take(cells), total = scratch.take(cells), rescale = scratch.take(cells + LANES);
  }
};

// Adds keys first ... last to O and to the running softmax of some rows.
void accumulate(const Call& c, const Shape& s, long b, long i0, long rows, long first, long last, const ForwardPlanes& p) {
  const long e = padded(c.value_width);
  float* S = p.S;
  for (long key = first; key < last; key += BLOCK) {
    const long count = least(BLOCK, last - key), whole = padded(count);
    if (c.few_rows) scores_of_rows(c, s, b, i0, rows, key, whole, number(c.v, b, 0, key), S);
    else with_keys(c, s, c.q, b, i0, rows, c.k_panels, c.width, key, whole, number(c.v_rows, b, 0, key), S);
    for (long r = 0; r < rows; r++) {
      const long width = padded(most(0, least(count, seen(c, i0 + r) - key)));
      if (width) mix(c, s, b, i0 + r, key, width, S + r * BLOCK, p.H, BLOCK, S + r * BLOCK, *p.ramps);
      const long x = r * c.heads;
      weigh(S + r * BLOCK, s.plane, c.heads, width, whole, p.top + x, p.total + x, p.rescale + x);
    }
    for (long h = 0; h < c.heads; h++) {
      float* o = p.O + h * s.rows * e;
      for (long r = 0; key > first && r < rows; r++) {
        const float factor = p.rescale[r * c.heads + h];
        if (factor != 1.0f)
          for (long n = 0; n < e; n += LANES) store(o + r * e + n, load(o + r * e + n) * factor);
      }
      if (c.few_rows) {
        const float* next = h + 1 < c.heads ? number(c.v, b, (h + 1) / groups(c), key) : number(c.k, b, 0, key + BLOCK);
        add_few_values(c, b, h, rows, key, count, next, S + h * s.plane, o);
        continue;
      }
      const float* next = h + 1 < c.heads ? number(c.v_rows, b, (h + 1) / groups(c), key) : number(c.k_panels, b, 0, key + BLOCK);
      strip_product<ADD>(rows, e, whole, S + h * s.plane, BLOCK, 1, number(c.v_rows, b, h / groups(c), key), BLOCK * STRIP, next, o, e);
    }
  }
}

// The call for one item, packed into the thread's own memory, where it stays in the core's cache.
struct OwnItem {
  Call call;
  static long numbers(const Call& c) {
    const long keys = key_blocks(c) * BLOCK;
    return !c.apart ? 0 : c.heads * c.queries * padded(c.width) + c.kv_heads * keys * (c.width + whole_strips(c.value_width)) + 64;
  }
  OwnItem(const Call& c, Scratch& scratch) : call(c) {
    if (!c.apart || !scratch.memory) return;
    const long keys = key_blocks(c) * BLOCK;
    call.q = own_space(scratch, c.heads, c.queries, padded(c.width));
    call.k_panels = own_space(scratch, c.kv_heads, keys, c.width);
    call.v_rows = own_space(scratch, c.kv_heads, keys, whole_strips(c.value_width));
  }
  void pack(const Call& c, long b) {
    pack_rows(c.q, b, c.heads, c.queries, c.width, c.factor, call.q);
    pack_key_strips(c.k, b, c.kv_heads, c.keys, c.width, call.k_panels);
    pack_width_strips(c.v, b, c.kv_heads, c.keys, c.value_width, call.v_rows);
  }
};

// Backward -----------------------------------------------------------------------------------------------------------

struct Sums {  // gradients of one thread, or of one part of an item's rows
  float *fixed, *pre, *wa, *w2;  // wa, w2: [.., .., lane]
  float *k, *v;
  float *table, *slopes, *levels;  // of ramps; slopes, levels: [pieces, channel, lane]
  float* of_keys;                  // separable: [channel, key]
};

struct Planes {
  float *S, *P, *G;       // [head, row, key]: scores, weights, gradients
  float *H, *Z;           // [hidden, row of a chunk, key]: hidden units and their gradients
  float *d_q;             // [head, row, width]
  RampRow* ramps;
};

inline void add_terms(const View& like, float* total, long channels, long b, long i, long key, long width, const float* x, long x_row) {
  float* to = total + (term(like, b, i, key) - like.at);
  for (long c = 0; c < channels; c++)
    for (long n = 0; n < width; n += LANES) {
      float* at = to + c * like.head + n;
      store(at, load(at) + load(x + c * x_row + n));
    }
}

// Adds the gradients of a stretch in piece p to those of slopes and levels of some channels, and to row.du.
template <bool SEVERAL>
inline void add_stretch(const Call& c, const Stretch& at, long p, long channels, const float* x, long x_row, long first, RampRow& row,
                        const Sums& sums) {
  const long all_channels = RampRow::channels(c);
  for (long channel = first; channel < first + channels; channel++) {
    const long where = p * all_channels + channel;
    float *to_slope = sums.slopes + where * LANES, *to_level = sums.levels + where * LANES;
    const float slope = c.ramp.slopes[where], *from = x + (channel - first) * x_row;
    Vec of_slope = load(to_slope), of_level = load(to_level);
    for (long n = at.from; n < at.to; n += LANES) {
      const Vec u = load(row.u + n);
      Vec d = load(from + n);
      if constexpr (SEVERAL) {
        if (p > at.low) d = u > c.ramp.kinks[p - 1] ? d : Vec{};
        if (p < at.high) d = u > c.ramp.kinks[p] ? Vec{} : d;
      }
      of_slope += d * u, of_level += d;
      store(row.du + n, load(row.du + n) + d * slope);
    }
    store(to_slope, of_slope), store(to_level, of_level);
  }
}

// Gradients of a ramp's tables from those of a row's logits, G, and hidden units, Z. Needs the row's stretches: see cut().
void add_ramps(const Call& c, const Backward& g, long b, long i, long key, long width, const float* G, long g_row, const float* Z,
               long z_row, RampRow& row, const Sums& sums) {
  for (long n = 0; n < width; n += LANES) store(row.du + n, Vec{});
  const auto add = [&](long channels, const float* x, long x_row, long first) {
    for (long k = 0; k < row.count; k++) {
      const Stretch& at = row.stretches[k];
      if (at.low == at.high) add_stretch<false>(c, at, at.low, channels, x, x_row, first, row, sums);
      else
        for (long p = at.low; p <= at.high; p++) add_stretch<true>(c, at, p, channels, x, x_row, first, row, sums);
    }
  };
  add(c.heads, G, g_row, 0);
  for (long n = 0; n < width; n += LANES) store(row.du + n, load(row.du + n) * LOG_2);  // slopes of logits are in base 2
  if (c.hidden) add(c.hidden, Z, z_row, c.heads);
  const float *table = ramp_table(c.ramp, i, key), factor = ramp_row(c.ramp, b, i);
  float* to = sums.table - i + key;
  Vec of_row{};
  for (long n = 0; n < width; n += LANES) {
    const Vec d = load(row.du + n);
    store(to + n, load(to + n) + d * factor);
    of_row += d * load(table + n);
  }
  g.d_rows[b * c.queries + i] += sum(of_row);
}

// Gradients of separable terms, from the gradients x of the channels from `first` on.
void add_to_separable(const Call& c, const Backward& g, long b, long i, long key, long width, long first, long channels,
                      const float* x, long x_row, float* of_keys) {
  for (long n = 0; n < channels; n++) {
    float* to = of_keys + (first + n) * c.separable.key_channel + key;
    Vec of_row{};
    for (long k = 0; k < width; k += LANES) {
      const Vec d = load(x + n * x_row + k);
      of_row += d;
      store(to + k, load(to + k) + d);
    }
    *number(g.d_of_rows, b, first + n, i) += sum(of_row);
  }
}

// A thread's sums for slopes and levels, one number for each vector lane.
struct RampSums {
  long count;  // pieces times channels
  float *slopes, *levels;
  static long pairs(const Call& c) { return c.ramp.table ? c.ramp.pieces * RampRow::channels(c) : 0; }
  static long numbers(const Call& c) { return 2 * pairs(c) * LANES + 64; }
  RampSums(const Call& c, Scratch& scratch)
      : count(pairs(c)), slopes(scratch.take(count * LANES)), levels(scratch.take(count * LANES)) {}
  void begin() const { std::memset(slopes, 0, 4 * count * LANES), std::memset(levels, 0, 4 * count * LANES); }
  void give(const Backward& g, long t) const {
    fold_lanes(count, slopes, g.d_slopes + t * count);
    fold_lanes(count, levels, g.d_levels + t * count);
  }
};

// A chunk of rows: writes the weights to P, and replaces the gradient of the weights in G by that of the scores.
void backward_chunk(const Call& c, const Backward& g, const Shape& s, long b, long i, long rows, long key, long width,
                    const Planes& p, const Sums& sums) {
  const long h_row = CHUNK_ROW;
  float *S = p.S, *P = p.P, *G = p.G;
  for (long r = 0; r < rows; r++) {
    const long at = r * BLOCK;
    mix(c, s, b, i + r, key, width, S + at, p.H + at, h_row, P + at, *p.ramps);
    for (long h = 0; h < c.heads; h++) {
      const long x = at + h * s.plane;
      gradients_of_logits(P + x, G + x, width, number(c.softmax, b, h, i + r), *number(g.delta, b, h, i + r));
    }
    if (g.d_fixed) add_terms(c.fixed, sums.fixed, c.heads, b, i + r, key, width, G + at, s.plane);
    if (c.hidden)
      product<LEAKY_SLOPE_OF>(c.hidden, width, c.heads, g.w2_plain, 1, c.hidden, G + at, s.plane, p.Z + at, h_row, {nullptr, 0},
                              {p.H + at, h_row});
    if (c.ramp.table) add_ramps(c, g, b, i + r, key, width, G + at, s.plane, p.Z + at, h_row, *p.ramps, sums);
    if (g.d_pre) add_terms(c.pre, sums.pre, c.hidden, b, i + r, key, width, p.Z + at, h_row);
    if (!c.separable.rows) continue;
    add_to_separable(c, g, b, i + r, key, width, 0, c.heads, G + at, s.plane, sums.of_keys);
    if (c.hidden) add_to_separable(c, g, b, i + r, key, width, c.heads, c.hidden, p.Z + at, h_row, sums.of_keys);
  }
  if (!c.hidden) return;
  cell_products(c.heads, c.hidden, rows, width, G, s.plane, p.H, h_row, sums.w2);
  cell_products(c.hidden, c.heads, rows, width, p.Z, h_row, S, s.plane, sums.wa);
  for (long r = 0; r < rows; r++)
    product<ADD>(c.heads, width, c.hidden, g.wa_plain, 1, c.heads, p.Z + r * BLOCK, h_row, G + r * BLOCK, s.plane);
}

inline void clear(const Shape& s, long heads, long row, long from, long to, float* x) {
  for (long h = 0; h < heads; h++)
    for (long n = from; n < to; n += LANES) store(x + h * s.plane + row * BLOCK + n, Vec{});
}

void backward_tile(const Call& c, const Backward& g, const Shape& s, long b, long i0, const Planes& p, const Sums& sums) {
  const long rows = least(s.rows, c.queries - i0), d = padded(c.width), e = padded(c.value_width);
  const long group = groups(c), keys = seen(c, i0 + rows - 1), all_keys = key_blocks(c) * BLOCK;
  std::memset(p.d_q, 0, 4 * c.heads * s.rows * d);
  for (long key = 0; key < keys; key += BLOCK) {
    const long whole = padded(least(BLOCK, keys - key));
    if (c.few_rows) scores_of_rows(c, s, b, i0, rows, key, whole, number(c.k, b, 0, key + BLOCK), p.S);
    else with_keys(c, s, c.q, b, i0, rows, c.k_panels, c.width, key, whole, number(g.v_panels, b, 0, key), p.S);
    with_keys(c, s, g.d_out, b, i0, rows, g.v_panels, c.value_width, key, whole, number(g.k_rows, b, 0, key), p.G);
    for (long r = 0; r < rows; r += CHUNK) {
      const long some = least(CHUNK, rows - r);
      const long width = padded(most(0, least(BLOCK, seen(c, i0 + r + some - 1) - key)));
      const Planes part = {p.S + r * BLOCK, p.P + r * BLOCK, p.G + r * BLOCK, p.H, p.Z, nullptr, p.ramps};
      if (width) backward_chunk(c, g, s, b, i0 + r, some, key, width, part, sums);
      for (long x = r; x < r + some; x++) clear(s, c.heads, x, width, whole, p.P), clear(s, c.heads, x, width, whole, p.G);
    }
    for (long h = 0; h < c.heads; h++) {
      const long at = h / group * all_keys + key;
      const float *P = p.P + h * s.plane, *G = p.G + h * s.plane;
      const float* next = h + 1 < c.heads ? number(g.k_rows, b, (h + 1) / group, key) : number(c.k_panels, b, 0, key + BLOCK);
      strip_product<ADD>(rows, d, whole, G, BLOCK, 1, number(g.k_rows, b, h / group, key), BLOCK * STRIP, next, p.d_q + h * s.rows * d, d);
      add_far(whole, d, rows, G, 1, BLOCK, number(c.q, b, h, i0), c.q.row, sums.k + at * d, d);
      add_far(whole, e, rows, P, 1, BLOCK, number(g.d_out, b, h, i0), g.d_out.row, sums.v + at * e, e);
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.width));
  for (long h = 0; h < c.heads; h++)
    for (long r = 0; r < rows; r++) {
      float* to = number(g.d_q, b, h, i0 + r);
      for (long n = 0; n < c.width; n++) to[n] = p.d_q[(h * s.rows + r) * d + n] * scale;
    }
}

// Both calls for one item, packed into the thread's own memory, and the sums of its gradients.
struct OwnBackward {
  Call call;
  Backward backward;
  View d_k, d_v;
  static long numbers(const Call& c) {
    const long keys = key_blocks(c) * BLOCK, d = padded(c.width), e = padded(c.value_width);
    return !c.apart ? 0 : c.heads * c.queries * (d + e + 1) + c.kv_heads * keys * (c.width + c.value_width + whole_strips(c.width) + d + e) + 128;
  }
  OwnBackward(const Call& c, const Backward& g, Scratch& scratch) : call(c), backward(g) {
    if (!c.apart || !scratch.memory) return;
    const long keys = key_blocks(c) * BLOCK, d = padded(c.width), e = padded(c.value_width);
    call.q = own_space(scratch, c.heads, c.queries, d);
    call.k_panels = own_space(scratch, c.kv_heads, keys, c.width);
    backward.k_rows = own_space(scratch, c.kv_heads, keys, whole_strips(c.width));
    backward.v_panels = own_space(scratch, c.kv_heads, keys, c.value_width);
    backward.d_out = own_space(scratch, c.heads, c.queries, e);
    backward.delta = own_space(scratch, c.heads, c.queries, 1);
    d_k = own_space(scratch, c.kv_heads, keys, d), d_v = own_space(scratch, c.kv_heads, keys, e);
  }
  void pack(const Call& c, const Backward& g, long b) {
    pack_rows(c.q, b, c.heads, c.queries, c.width, c.factor, call.q);
    pack_key_strips(c.k, b, c.kv_heads, c.keys, c.width, call.k_panels);
    pack_width_strips(c.k, b, c.kv_heads, c.keys, c.width, backward.k_rows);
    pack_key_strips(c.v, b, c.kv_heads, c.keys, c.value_width, backward.v_panels);
    pack_rows(g.d_out, b, c.heads, c.queries, c.value_width, 1.0f, backward.d_out);
    for (long i = 0; i < c.queries; i++)
      for (long h = 0; h < c.heads; h++)
        *number(backward.delta, 0, h, i) = dot(number(g.d_out, b, h, i), number(c.out, b, h, i), c.value_width);
    for (long h = 0; h < c.kv_heads; h++) {
      std::memset(number(d_k, 0, h, 0), 0, 4 * padded(c.keys) * d_k.row);
      std::memset(number(d_v, 0, h, 0), 0, 4 * padded(c.keys) * d_v.row);
    }
  }
  // Rows are the outer loop, as in pack_rows.
  void give(const Call& c, const Backward& g, long b) const {
    for (long j = 0; j < c.keys; j++)
      for (long h = 0; h < c.kv_heads; h++) {
        give_row(number(d_k, 0, h, j), c.width, LOG_2, number(g.to_k, b, h, j), g.added);  // because scores are in base 2
        give_row(number(d_v, 0, h, j), c.value_width, 1.0f, number(g.to_v, b, h, j), g.added);
      }
  }
  static void give_row(const float* from, long width, float factor, float* to, bool added) {
    if (added)
      for (long n = 0; n < width; n++) to[n] += from[n] * factor;
    else
      for (long n = 0; n < width; n++) to[n] = from[n] * factor;
  }
};

void backward_own(const Call& c, const Backward& g, const Shape& s, long b, OwnBackward& own, const Planes& p, Sums sums) {
  sums.k = own.d_k.at, sums.v = own.d_v.at;
  own.pack(c, g, b);
  for (long i0 = 0; i0 < c.queries; i0 += s.rows) backward_tile(own.call, own.backward, s, b, i0, p, sums);
  own.give(c, g, b);
}

void backward_share(const Call& c, const Backward& g, const Shape& s, long share, const Planes& p, Sums sums) {
  const long b = share / g.parts, part = share % g.parts, rows = (part * c.batch + b) * c.kv_heads * key_blocks(c) * BLOCK;
  sums.k = g.d_k + rows * padded(c.width), sums.v = g.d_v + rows * padded(c.value_width);
  // Blocks are dealt out in alternating order, so that every part gets as many long rows as short ones.
  for (long x = 0; x < s.blocks(c); x++) {
    const long turn = x / g.parts, place = x % g.parts;
    if ((turn % 2 ? g.parts - 1 - place : place) == part) backward_tile(c, g, s, b, x * s.rows, p, sums);
  }
}

}  // namespace

extern "C" {

// Each function returns 0, or 1 if there is too little memory for a thread's scratch space.

long dape_forward(const Call* call) {
  const Call& c = *call;
  const Shape s(c);
  const long blocks = s.blocks(c), units = c.apart ? c.batch : blocks * c.batch;
  long next = 0, failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(ForwardPlanes::numbers(c, s) + RampRow::numbers(c) + OwnItem::numbers(c));
    RampRow ramps(c, scratch);
    const ForwardPlanes p(c, s, scratch, ramps);
    OwnItem own(c, scratch);
    for (long t; !scratch.missing(failed) && (t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;)
      if (c.apart) {
        own.pack(c, t);
        for (long i0 = 0; i0 < c.queries; i0 += s.rows) forward_rows(own.call, s, t, i0, p);
      } else {
        // Long rows first, so that no thread starts a long tile when the others have finished.
        forward_rows(c, s, t % c.batch, (blocks - 1 - t / c.batch) * s.rows, p);
      }
  }
  return failed;
}

// Few queries, at most the rows of one tile; reads unpacked k and v.
long dape_decode(const Call* call) {
  const Call& c = *call;
  const Shape s(c);
  long failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(ForwardPlanes::numbers(c, s) + RampRow::numbers(c));
    RampRow ramps(c, scratch);
    const ForwardPlanes p(c, s, scratch, ramps);
    const bool idle = scratch.missing(failed);  // no early return: every thread must reach the loops below
#pragma omp for schedule(static)
    for (long x = 0; x < c.batch * c.splits; x++)
      if (!idle) forward_part(c, s, x / c.splits, x % c.splits, p);
#pragma omp for schedule(static)
    for (long x = 0; x < c.batch * c.heads; x++)
      for (long r = 0; r < c.queries; r++)
        if (!__atomic_load_n(&failed, __ATOMIC_RELAXED)) join_parts(c, s, x / c.heads, x % c.heads, r);
  }
  return failed;
}

long dape_backward(const Call* call, const Backward* backward) {
  const Call& c = *call;
  const Backward& g = *backward;
  const Shape s(c);
  long failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    const long plane = c.heads * s.plane, chunk = c.hidden * CHUNK_ROW, lanes = c.heads * c.hidden * LANES;
    const long d_q = c.heads * s.rows * padded(c.width);
    const long channels = RampRow::channels(c);
    Scratch scratch(3 * plane + 2 * chunk + d_q + 2 * lanes + 512 + RampRow::numbers(c) + RampSums::numbers(c) + OwnBackward::numbers(c));
    RampRow ramps(c, scratch);
    const Planes p = {scratch.take(plane), scratch.take(plane), scratch.take(plane),
                      scratch.take(chunk), scratch.take(chunk), scratch.take(d_q), &ramps};
    float *wa = scratch.take(lanes), *w2 = scratch.take(lanes);
    const RampSums of_ramps(c, scratch);
    const bool idle = scratch.missing(failed);
    OwnBackward own(c, g, scratch);
    // If OpenMP starts fewer threads than requested, they do the work of the missing ones too.
    for (long t = omp_get_thread_num(); t < c.threads && !idle; t += omp_get_num_threads()) {
      std::memset(wa, 0, 4 * lanes), std::memset(w2, 0, 4 * lanes);
      of_ramps.begin();
      Sums sums = {g.d_fixed + t * g.fixed_span, g.d_pre + t * g.pre_span, wa, w2, nullptr, nullptr,
                         g.d_table + t * g.table_span, of_ramps.slopes, of_ramps.levels, nullptr};
      for (long share = t; share < c.batch * g.parts; share += c.threads) {
        const long b = share / g.parts, part = share % g.parts;
        sums.of_keys = g.d_of_keys + (part * c.batch + b) * channels * c.separable.key_channel;
        if (c.apart) backward_own(c, g, s, share, own, p, sums);
        else backward_share(c, g, s, share, p, sums);
      }
      if (c.hidden) {
        fold_lanes(c.hidden * c.heads, wa, g.d_wa + t * c.hidden * c.heads);
        fold_lanes(c.heads * c.hidden, w2, g.d_w2 + t * c.heads * c.hidden);
      }
      if (c.ramp.table) of_ramps.give(g, t);
    }
  }
  return failed;
}

// Ramps that many items share are evaluated once for all of them. Writes the cells of `fixed` and `pre` that a tile reads.
long dape_ramp_cells(const Call* call) {
  const Call& c = *call;
  long failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(RampRow::numbers(c));
    RampRow row(c, scratch);
    const bool idle = scratch.missing(failed);
#pragma omp for schedule(static)
    for (long i = 0; i < c.queries; i++) {
      const long keys = seen(c, least(i + MOST_ROWS, c.queries) - 1);  // of any row of the tile
      for (long key = 0; key < keys && !idle; key += BLOCK) {
        const long width = padded(least(BLOCK, keys - key));
        evaluate_ramps(c, 0, i, key, width, row);
        for (long channel = 0; channel < RampRow::channels(c); channel++) {
          float* to = channel < c.heads ? number(c.fixed, 0, channel, i) : number(c.pre, 0, channel - c.heads, i);
          std::memcpy(to + key, row.terms + channel * BLOCK, 4 * width);
        }
      }
    }
  }
  return failed;
}

// The gradients of the ramps from those of `fixed` and `pre`, which are the sums over the items.
long dape_ramp_backward(const Call* call, const Backward* backward) {
  const Call& c = *call;
  const Backward& g = *backward;
  long failed = 0;
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(RampRow::numbers(c) + RampSums::numbers(c));
    RampRow row(c, scratch);
    const RampSums of_ramps(c, scratch);
    const bool idle = scratch.missing(failed);
    for (long t = omp_get_thread_num(); t < c.threads && !idle; t += omp_get_num_threads()) {
      of_ramps.begin();
      const Sums sums = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, g.d_table + t * g.table_span, of_ramps.slopes,
                         of_ramps.levels, nullptr};
      for (long i = t; i < c.queries; i += c.threads)
        for (long key = 0; key < seen(c, i); key += BLOCK) {
          const long width = padded(least(BLOCK, seen(c, i) - key));
          const float *G = g.d_fixed + i * c.fixed.row + key, *Z = c.hidden ? g.d_pre + i * c.pre.row + key : nullptr;
          cut(c, 0, i, key, width, row);
          add_ramps(c, g, 0, i, key, width, G, c.fixed.head, Z, c.pre.head, row, sums);
        }
      of_ramps.give(g, t);
    }
  }
  return failed;
}

}  // extern "C"
