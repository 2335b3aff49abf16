// Calls of the kernel as run.py makes them, in a program of their own, for ASan, UBSan and TSan. KERNEL is the source.
// Every buffer is a block of memory of exactly the size that run.py gives it, so that one number beyond it is seen.

#include KERNEL

#include <algorithm>
#include "sanitized.h"

namespace {

struct Sizes {
  long batch, heads, kv_heads, queries, keys, width, value_width, hidden, causal, masked, apart, threads, ramps, separable;
};

View rows_of(float* at, long heads, long rows, long width) { return {at, heads * rows * width, rows * width, width}; }
View tokens_first(float* at, long heads, long rows, long width) { return {at, rows * heads * width, width, heads * width}; }

long blocked(long keys) { return (keys + BLOCK - 1) / BLOCK * BLOCK; }

Buffer packed(const Sizes& s, Buffer& from, long heads, long rows, long width, Layout layout, float factor, View& view) {
  const long all_rows = layout == ROWS ? rows : blocked(rows);
  const long wide = layout == KEY_STRIPS ? width : layout == WIDTH_STRIPS ? whole_strips(width) : padded(width);
  Buffer to(s.batch * heads * all_rows * wide, NAN);
  dape_pack(s.batch, heads, rows, width, rows_of(from.at(), heads, rows, width), factor, to.at(), layout, s.threads);
  view = rows_of(to.at(), heads, all_rows, wide);
  return to;
}

constexpr long PADDING = 16;  // of the widest vectors, so that the numbers are the same for all processors

// With -DTELL the same program for another processor can be compared: the size of a result, and its direction.
void tell(Buffer& found) {
#ifdef TELL
  double size = 0, along = 0;
  for (long n = 0; n < found.size; n++) size += std::fabs(found.numbers[n]), along += found.numbers[n] * std::sin(n);
  std::printf("%.9g %.9g ", size, along);
#endif
}

void attend(const Sizes& s) {
  const long lags = s.queries + s.keys - 1, few = s.queries <= 8;
  Buffer q = random_numbers(s.batch * s.heads * s.queries * s.width), k = random_numbers(s.batch * s.kv_heads * s.keys * s.width);
  Buffer v = random_numbers(s.batch * s.kv_heads * s.keys * s.value_width);
  Buffer wa = random_numbers(s.hidden * s.heads), w2 = random_numbers(s.hidden * s.heads);
  Buffer fixed = random_numbers(s.heads * (lags + PADDING)), pre = random_numbers(s.hidden * (lags + PADDING));
  if (s.causal)
    for (long h = 0; h < s.heads; h++)
      for (long n = s.keys; n < lags; n++) fixed.numbers[h * (lags + PADDING) + n] = -INFINITY;
  Buffer mask(s.batch * blocked(s.keys));
  for (long n = 0; n < mask.size; n += 3) mask.numbers[n] = -INFINITY;
  Buffer out(s.batch * s.queries * s.heads * s.value_width, NAN), softmax(s.batch * s.heads * s.queries * 2, NAN);

  Call c = {};
  c.batch = s.batch, c.heads = s.heads, c.kv_heads = s.kv_heads, c.queries = s.queries, c.keys = s.keys;
  c.width = s.width, c.value_width = s.value_width, c.hidden = s.hidden, c.threads = s.threads;
  c.causal = s.causal, c.offset = s.causal ? s.keys - s.queries : 0;
  c.wa = wa.at(), c.w2 = w2.at(), c.mask = s.masked ? mask.at() : nullptr;
  const long channels = s.heads + s.hidden, pieces = 6;
  Buffer table = random_numbers(lags + PADDING), rows = random_numbers(s.batch * s.queries), kinks = random_numbers(pieces - 1);
  Buffer slopes = random_numbers(pieces * channels), levels = random_numbers(pieces * channels);
  std::sort(kinks.at(), kinks.at() + kinks.size);
  if (s.ramps) c.ramp = {table.at() + s.queries - 1, rows.at(), s.queries, kinks.at(), pieces, slopes.at(), levels.at()};
  else c.fixed = {fixed.at() + s.queries - 1, 0, lags + PADDING, -1};
  if (s.hidden && !s.ramps) c.pre = {pre.at() + s.queries - 1, 0, lags + PADDING, -1};
  const long all_keys = blocked(s.keys);
  Buffer of_rows = random_numbers(s.batch * channels * s.queries), of_keys = random_numbers(s.batch * channels * all_keys);
  if (s.separable)
    c.separable = {of_rows.at(), of_rows.at(), channels * s.queries, s.queries, of_keys.at(), of_keys.at(), channels * all_keys, all_keys};
  c.k = rows_of(k.at(), s.kv_heads, s.keys, s.width), c.v = rows_of(v.at(), s.kv_heads, s.keys, s.value_width);
  c.out = tokens_first(out.at(), s.heads, s.queries, s.value_width), c.softmax = rows_of(softmax.at(), s.heads, s.queries, 2);
  c.few_rows = few, c.factor = 1.0f;
  View q_rows, k_panels, v_rows;
  Buffer own_q = packed(s, q, s.heads, s.queries, s.width, ROWS, c.factor, q_rows);
  Buffer own_k = packed(s, k, s.kv_heads, s.keys, s.width, KEY_STRIPS, 1.0f, k_panels);
  Buffer own_v = packed(s, v, s.kv_heads, s.keys, s.value_width, WIDTH_STRIPS, 1.0f, v_rows);

  c.apart = s.apart && !few;
  c.q = c.apart ? rows_of(q.at(), s.heads, s.queries, s.width) : q_rows;
  if (!c.apart) c.k_panels = k_panels, c.v_rows = v_rows;
  c.splits = few ? most(1, least(blocked(s.keys) / BLOCK, 2 * s.threads / s.batch + 1)) : 0;
  Buffer parts(s.batch * c.splits * s.heads * s.queries * (padded(s.value_width) + 2), NAN);
  c.parts = parts.at();
  require((few ? dape_decode(&c) : dape_forward(&c)) == 0, "memory");
  for (long n = 0; n < out.size; n++) require(std::fabs(out.numbers[n]) <= 1.0f + 1e-5f, "a mean lies among its values");

  // Backward.
  Buffer grad = random_numbers(out.size), delta(s.batch * s.heads * s.queries, 0.25f);
  const long shares = s.apart ? 1 : least(16, (s.threads + s.batch - 1) / s.batch);
  View d_out, k_rows, v_panels;
  Buffer own_grad = packed(s, grad, s.heads, s.queries, s.value_width, ROWS, 1.0f, d_out);
  Buffer rows_k = packed(s, k, s.kv_heads, s.keys, s.width, WIDTH_STRIPS, 1.0f, k_rows);
  Buffer panels_v = packed(s, v, s.kv_heads, s.keys, s.value_width, KEY_STRIPS, 1.0f, v_panels);
  Buffer d_q(q.size, NAN), d_k(shares * s.batch * s.kv_heads * blocked(s.keys) * padded(s.width));
  Buffer d_v(shares * s.batch * s.kv_heads * blocked(s.keys) * padded(s.value_width)), to_k(k.size, NAN), to_v(v.size, NAN);
  Buffer d_fixed(s.threads * fixed.size), d_pre(s.threads * pre.size);
  Buffer d_wa(s.threads * wa.size), d_w2(s.threads * w2.size);
  Backward g = {};
  g.wa_plain = wa.at(), g.w2_plain = w2.at(), g.parts = shares;
  g.d_q = tokens_first(d_q.at(), s.heads, s.queries, s.width);
  g.d_fixed = s.masked || s.ramps ? nullptr : d_fixed.at() + s.queries - 1, g.fixed_span = g.d_fixed ? fixed.size : 0;
  g.d_pre = s.hidden && !s.ramps ? d_pre.at() + s.queries - 1 : nullptr, g.pre_span = g.d_pre ? pre.size : 0;
  Buffer d_table(s.threads * table.size), d_rows(rows.size), d_slopes(s.threads * slopes.size), d_levels(s.threads * levels.size);
  if (s.ramps) g.d_table = d_table.at() + s.queries - 1, g.table_span = table.size, g.d_rows = d_rows.at();
  if (s.ramps) g.d_slopes = d_slopes.at(), g.d_levels = d_levels.at();
  Buffer d_of_rows(of_rows.size), d_of_keys(shares * of_keys.size);
  if (s.separable) g.d_of_rows = {d_of_rows.at(), channels * s.queries, s.queries, 1}, g.d_of_keys = d_of_keys.at();
  g.d_wa = d_wa.at(), g.d_w2 = d_w2.at();
  c.apart = s.apart;
  c.q = s.apart ? rows_of(q.at(), s.heads, s.queries, s.width) : q_rows;
  if (s.apart) {
    g.d_out = rows_of(grad.at(), s.heads, s.queries, s.value_width);
    g.to_k = tokens_first(to_k.at(), s.kv_heads, s.keys, s.width), g.to_v = tokens_first(to_v.at(), s.kv_heads, s.keys, s.value_width);
    c.k_panels = c.v_rows = {};
  } else {
    c.k_panels = k_panels, g.k_rows = k_rows, g.v_panels = v_panels, g.d_out = d_out;
    g.delta = {delta.at(), s.heads * s.queries, s.queries, 1}, g.d_k = d_k.at(), g.d_v = d_v.at();
  }
  require(dape_backward(&c, &g) == 0, "memory");
  for (long n = 0; n < d_q.size; n++) require(std::isfinite(d_q.numbers[n]), "every gradient of q is written");
  for (Buffer* found : {&out, &d_q, &d_wa, &d_w2}) tell(*found);
  if (!s.ramps) return;

  // The cells that items share, and the ramps' gradients from those of the cells.
  const long row = padded(s.keys), cells = s.queries * row + 16;
  Buffer written(channels * cells, NAN), d_cells = random_numbers(channels * cells);
  c.fixed = {written.at(), 0, cells, row}, c.pre = {s.hidden ? written.at() + s.heads * cells : nullptr, 0, cells, row};
  require(dape_ramp_cells(&c) == 0, "memory");
  g.d_fixed = d_cells.at(), g.d_pre = s.hidden ? d_cells.at() + s.heads * cells : nullptr;
  require(dape_ramp_backward(&c, &g) == 0, "memory");
  for (long h = 0; h < s.heads; h++)
    for (long i = 0; i < s.queries; i++)
      for (long n = 0; n < seen(c, i); n++) require(std::isfinite(written.numbers[h * cells + i * row + n]), "every cell is written");
  for (Buffer* found : {&d_table, &d_rows, &d_slopes, &d_levels}) tell(*found);
}

}  // namespace

int main() {
  long calls = 0;
  // heads, key heads, queries, keys, width, value width, hidden: odd, and around whole tiles, blocks and vectors
  const long shapes[][7] = {{4, 2, 1, 70, 8, 8, 8},  {3, 3, 8, 129, 5, 3, 7},   {3, 1, 9, 9, 7, 17, 1},  {12, 12, 37, 64, 16, 16, 32},
                            {2, 2, 75, 75, 33, 9, 0}, {1, 1, 40, 130, 64, 1, 3}, {6, 3, 13, 65, 1, 8, 33}, {5, 5, 1, 1, 1, 1, 1}};
  for (const auto& x : shapes)
    for (long causal = 0; causal < 2; causal++)
      for (long masked = 0; masked < 2; masked++)
        for (long apart = 0; apart < 2; apart++)
          for (long ramps = 0; ramps < 2; ramps++)
            for (long separable = 0; separable < 2; separable++, calls++)
              attend({apart ? 5 : 2, x[0], x[1], x[2], x[3], x[4], x[5], x[6], causal, masked, apart, 3, ramps, separable});
  std::printf("%ld calls, forward and backward, 3 threads\n", calls);
}
