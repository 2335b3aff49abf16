// Calls of the kernels of other forms as heads.py and convolved.py make them, for ASan, UBSan and TSan. KERNEL is one of the
// three sources, and OF_RELATIVE, OF_COUNTED or OF_CONVOLVED says which. Every buffer is a block of memory of exactly the size that
// Python gives it.

#include KERNEL

#include "sanitized.h"

namespace {

struct Sizes {
  long batch, heads, kv_heads, queries, keys, width, value_width, extra, causal, masked, threads;
};

long blocked(long keys) { return (keys + BLOCK - 1) / BLOCK * BLOCK; }
View rows_of(Buffer& x, long heads, long rows, long width) { return {x.at(), heads * rows * width, rows * width, width}; }
View tokens_first(Buffer& x, long heads, long rows, long width) { return {x.at(), rows * heads * width, width, heads * width}; }

// As dape_pack of kernel.cpp does it: rows of padded width; or, of whole blocks, every block transposed.
Buffer packed(const Sizes& s, Buffer& from, long heads, long rows, long width, bool whole_blocks, bool panels, View& view) {
  const long all_rows = whole_blocks ? blocked(rows) : rows, wide = panels ? width : padded(width);
  Buffer to(s.batch * heads * all_rows * wide);
  for (long x = 0; x < s.batch * heads; x++)
    for (long r = 0; r < rows; r++)
      for (long n = 0; n < width; n++)
        to.numbers[x * all_rows * wide + (panels ? in_panels(r, width) + n * BLOCK : r * wide + n)] = from.numbers[(x * rows + r) * width + n];
  view = rows_of(to, heads, all_rows, wide);
  return to;
}

struct Inputs {
  Buffer q, k, v, out, softmax, mask, grad, delta, d_q, d_k, d_v;
  View q_rows, k_panels, v_rows, k_rows, v_panels, d_out;
  Buffer own_q, own_k, own_v, rows_k, panels_v, own_grad;
  long parts;
  Inputs(const Sizes& s, long shares)
      : q(random_numbers(s.batch * s.heads * s.queries * s.width)), k(random_numbers(s.batch * s.kv_heads * s.keys * s.width)),
        v(random_numbers(s.batch * s.kv_heads * s.keys * s.value_width)), out(s.batch * s.queries * s.heads * s.value_width, NAN),
        softmax(s.batch * s.heads * s.queries * 2, NAN), mask(s.batch * blocked(s.keys)), grad(random_numbers(out.size)),
        delta(s.batch * s.heads * s.queries, 0.25f), d_q(q.size, NAN), d_k(0), d_v(0),
        own_q(packed(s, q, s.heads, s.queries, s.width, false, false, q_rows)),
        own_k(packed(s, k, s.kv_heads, s.keys, s.width, true, true, k_panels)),
        own_v(packed(s, v, s.kv_heads, s.keys, s.value_width, true, false, v_rows)),
        rows_k(packed(s, k, s.kv_heads, s.keys, s.width, true, false, k_rows)),
        panels_v(packed(s, v, s.kv_heads, s.keys, s.value_width, true, true, v_panels)),
        own_grad(packed(s, grad, s.heads, s.queries, s.value_width, false, false, d_out)) {
    for (long n = 0; n < mask.size; n += 3) mask.numbers[n] = -INFINITY;
    parts = least(16, (s.threads + s.batch * shares - 1) / (s.batch * shares));
    const long rows = parts * s.batch * s.kv_heads * blocked(s.keys);
    d_k = Buffer(rows * padded(s.width)), d_v = Buffer(rows * padded(s.value_width));
  }
  template <class Call>
  void enter(const Sizes& s, Call& c) {
    c.batch = s.batch, c.heads = s.heads, c.kv_heads = s.kv_heads, c.queries = s.queries, c.keys = s.keys, c.width = s.width;
    c.value_width = s.value_width, c.threads = s.threads, c.causal = s.causal, c.offset = s.causal ? s.keys - s.queries : 0;
    c.few_rows = s.queries <= 8, c.q = q_rows;
    if (!c.few_rows) c.k_panels = k_panels, c.v_rows = v_rows;
    c.k = rows_of(k, s.kv_heads, s.keys, s.width), c.v = rows_of(v, s.kv_heads, s.keys, s.value_width);
    c.out = tokens_first(out, s.heads, s.queries, s.value_width), c.softmax = rows_of(softmax, s.heads, s.queries, 2);
  }
  template <class Backward>
  void enter_backward(const Sizes& s, Backward& g) {
    g.k_rows = k_rows, g.v_panels = v_panels, g.d_out = d_out, g.delta = rows_of(delta, s.heads, s.queries, 1);
    g.d_q = tokens_first(d_q, s.heads, s.queries, s.width), g.parts = parts, g.d_k = d_k.at(), g.d_v = d_v.at();
  }
  void check() const {
    for (long n = 0; n < out.size; n++) require(std::fabs(out.numbers[n]) <= 1.0f + 1e-5f, "a mean lies among its values");
    for (long n = 0; n < d_q.size; n++) require(std::isfinite(d_q.numbers[n]), "every gradient of q is written");
  }
};

#if defined(OF_RELATIVE)
void attend(const Sizes& s) {
  Inputs x(s, s.kv_heads);
  const long lags = s.queries + s.keys - 1 + LANES, d = padded(s.width), room = ((lags + LANES - 1) / LANES | 1) * LANES + 2 * LANES;
  Buffer second = random_numbers(x.q.size), entries = random_numbers(s.heads * lags * d), columns = random_numbers(s.heads * s.width * room);
  Buffer d_p(x.q.size, NAN), d_entries(x.parts * s.batch * entries.size);
  RelativeCall c = {};
  x.enter(s, c.head);
  c.head.mask = s.masked ? x.mask.at() : nullptr;
  Buffer own_p = packed(s, second, s.heads, s.queries, s.width, false, false, c.p);
  c.entries = entries.at() + (s.queries - 1) * d, c.entries_head = lags * d;
  c.columns = columns.at() + s.queries - 1, c.columns_head = s.width * room, c.columns_row = room;
  require(dape_relative_forward(&c) == 0, "memory");
  RelativeBackward g = {};
  x.enter_backward(s, g.head);
  g.d_p = tokens_first(d_p, s.heads, s.queries, s.width);
  g.d_entries = d_entries.at() + (s.queries - 1) * d, g.entries_span = lags * d;
  require(dape_relative_backward(&c, &g) == 0, "memory");
  x.check();
}
#elif defined(OF_COUNTED)
void attend(const Sizes& s) {
  if (!s.causal) return;
  Inputs x(s, s.kv_heads);
  const long places = 2 + s.extra % 9;
  Buffer z = random_numbers(s.batch * s.heads * s.queries * places), d_z(z.size);
  CountedCall c = {};
  x.enter(s, c.head);
  c.head.mask = s.masked ? x.mask.at() : nullptr;
  c.z = rows_of(z, s.heads, s.queries, places), c.places = places;
  require(dape_counted_forward(&c) == 0, "memory");
  CountedBackward g = {};
  x.enter_backward(s, g.head);
  g.d_z = rows_of(d_z, s.heads, s.queries, places);
  require(dape_counted_backward(&c, &g) == 0, "memory");
  x.check();
}
#else
void attend(const Sizes& s) {
  if (s.masked) return;
  Inputs x(s, 1);
  const long taps = 1 + 2 * (s.extra % 4), edges = taps / 2 * 2, row = PAST + s.queries + s.keys - 1 + BLOCK + LANES;
  Buffer wa = random_numbers(s.extra * taps * s.heads), w2 = random_numbers(wa.size);
  Buffer fixed = random_numbers(s.heads * row), pre = random_numbers(s.extra * row), own_edges = random_numbers(edges * s.extra * s.queries);
  Buffer d_fixed(s.threads * fixed.size), d_pre(s.threads * pre.size), d_edges(s.threads * own_edges.size);
  Buffer d_wa(s.threads * wa.size), d_w2(s.threads * w2.size);
  ConvolvedCall c = {};
  x.enter(s, c);
  c.hidden = s.extra, c.taps = taps, c.wa = wa.at(), c.w2 = w2.at(), c.edges = own_edges.at();
  c.fixed = {fixed.at() + PAST + s.queries - 1, 0, row, -1}, c.pre = {pre.at() + PAST + s.queries - 1, 0, row, -1};
  c.splits = most(1, least(blocked(s.keys) / BLOCK, 2 * s.threads / s.batch + 1));
  Buffer parts(c.few_rows ? s.batch * c.splits * s.heads * s.queries * (padded(s.value_width) + 2) : 0, NAN);
  c.parts = parts.at();
  require(dape_convolved_forward(&c) == 0, "memory");
  ConvolvedBackward g = {};
  x.enter_backward(s, g);
  g.wa_back = wa.at(), g.w2_back = w2.at(), g.d_wa = d_wa.at(), g.d_w2 = d_w2.at();
  g.d_fixed = d_fixed.at() + PAST + s.queries - 1, g.d_pre = d_pre.at() + PAST + s.queries - 1, g.d_edges = d_edges.at();
  g.fixed_span = fixed.size, g.pre_span = pre.size, g.edges_span = own_edges.size;
  require(dape_convolved_backward(&c, &g) == 0, "memory");
  x.check();
}
#endif

}  // namespace

int main() {
  long calls = 0;
  // heads, key heads, queries, keys, width, value width, hidden units or places: odd, and around whole tiles, blocks and vectors
  const long shapes[][7] = {{4, 2, 1, 70, 8, 8, 8},   {3, 3, 8, 129, 5, 3, 7},   {3, 1, 9, 9, 7, 17, 1},   {12, 12, 49, 64, 16, 16, 32},
                            {2, 2, 75, 75, 33, 9, 2}, {1, 1, 50, 130, 64, 1, 3}, {6, 3, 13, 65, 1, 8, 33}, {5, 5, 1, 1, 1, 1, 1}};
  for (const auto& x : shapes)
    for (long causal = 0; causal < 2; causal++)
      for (long masked = 0; masked < 2; masked++, calls++) attend({2, x[0], x[1], x[2], x[3], x[4], x[5], x[6], causal, masked, 3});
  std::printf("%ld calls, forward and backward, 3 threads\n", calls);
}
