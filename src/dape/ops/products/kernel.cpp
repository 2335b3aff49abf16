// Products of matrices that are rows of numbers, one row after the other in memory, on the calling thread; see the Python
// files beside this one for what they are for.
//
// A library packs both operands into the order in which it reads them. Here that is done for the right one alone: six rows
// of the left one are read where they lie, and while a band of rows is multiplied, the next one is fetched into the cache.
// With few columns, as a small transformer has, packing is a tenth of a product.
//
// Widths are multiples of PANEL. No headers but the standard library's: it compiles in seconds.

#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

namespace {

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // anywhere in memory

constexpr int ROWS = 6;           // of a tile: its sums are twelve registers
constexpr long PANEL = 2 * LANES; // columns of a tile
constexpr long DEPTH = 256;       // a panel as deep as this takes half of the first cache
constexpr long BAND = 96;         // rows that stay in the second cache while all panels pass
constexpr long LINE = 16;         // numbers of a cache line
constexpr long BLOCK = 2 * BAND;  // rows whose products with others are added to a sum over rows

inline Vec load(const float* p) { return *reinterpret_cast<const Loose*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Loose*>(p) = x; }
inline long least(long a, long b) { return a < b ? a : b; }
inline long most(long a, long b) { return a > b ? a : b; }
inline long tiles_in(long rows) { return (rows + ROWS - 1) / ROWS; }

// Memory for the length of a call.
struct Room {
  float* at;
  explicit Room(long numbers) : at(static_cast<float*>(std::aligned_alloc(64, (numbers * 4 + 127) / 64 * 64))) {}
  ~Room() { std::free(at); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
};

// One tile -------------------------------------------------------------------------------------------------------------

// Sums over k of a[i, k] b[k, j], for M rows and a panel's columns: c is what `take` makes of each vector of them. The left
// operand is packed, [k, ROWS], or rows that are `a_row` apart.
template <int M, bool PACKED, class Take>
__attribute__((noinline)) void tile(long depth, const float* a, long a_row, const float* b, float* c, long c_row, Take take) {
  Vec sums[M][2] = {};
  for (int i = 0; i < M; i++) __builtin_prefetch(c + i * c_row, 1);
  const float* a3 = a + 3 * a_row;  // two pointers: an address has one register and a multiple of another
#pragma GCC unroll 4
  for (long k = 0; k < depth; k++) {
    const Vec left = load(b), right = load(b + LANES);
#pragma GCC unroll 6
    for (int i = 0; i < M; i++) {
      const float x = PACKED ? a[i] : i < 3 ? a[i * a_row] : a3[(i - 3) * a_row];
      sums[i][0] += x * left;
      sums[i][1] += x * right;
    }
    a += PACKED ? ROWS : 1, a3 += 1, b += PANEL;
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; i++) {
    float* place = c + i * c_row;
    store(place, take(i, 0, place, sums[i][0]));
    store(place + LANES, take(i, LANES, place + LANES, sums[i][1]));
  }
}

template <bool PACKED, class Take>
void tile_of(long rows, long depth, const float* a, long a_row, const float* b, float* c, long c_row, Take take) {
  switch (rows) {
    case 1: return tile<1, PACKED>(depth, a, a_row, b, c, c_row, take);
    case 2: return tile<2, PACKED>(depth, a, a_row, b, c, c_row, take);
    case 3: return tile<3, PACKED>(depth, a, a_row, b, c, c_row, take);
    case 4: return tile<4, PACKED>(depth, a, a_row, b, c, c_row, take);
    case 5: return tile<5, PACKED>(depth, a, a_row, b, c, c_row, take);
    default: return tile<ROWS, PACKED>(depth, a, a_row, b, c, c_row, take);
  }
}

// Packing --------------------------------------------------------------------------------------------------------------

// b [depth, width] as panels, [width / PANEL, depth, PANEL].
void pack(long depth, long width, const float* b, long b_row, float* out) {
  for (long k = 0; k < depth; k++)
    for (long j = 0; j < width; j += PANEL)
      std::memcpy(out + j * depth + k * PANEL, b + k * b_row + j, 4 * PANEL);
}

// The same of b's transpose: b is [width, depth].
void pack_turned(long depth, long width, const float* b, long b_row, float* out) {
  for (long first = 0; first < width; first += PANEL)
    for (long k = 0; k < depth; k++)
      for (long j = 0; j < PANEL; j++) out[first * depth + k * PANEL + j] = b[(first + j) * b_row + k];
}

// All of b, DEPTH rows after DEPTH rows.
void pack_all(long depth, long width, const float* b, bool turned, float* out) {
  for (long k = 0; k < depth; k += DEPTH) {
    const long some = least(DEPTH, depth - k);
    if (turned) pack_turned(some, width, b + k, depth, out + k * width);
    else pack(some, width, b + k * width, width, out + k * width);
  }
}

// a [rows, width] as the left operand of a sum over rows, [width / ROWS, rows, ROWS]. The last tile's missing columns are
// never looked at.
void pack_left(long rows, long width, const float* a, float* out) {
  const long whole = width / ROWS * ROWS;
  for (long row = 0; row < rows; row++) {
    const float* from = a + row * width;
    for (long i = 0; i < whole; i += ROWS) std::memcpy(out + i * rows + row * ROWS, from + i, 4 * ROWS);
    for (long i = whole; i < width; i++) out[whole * rows + row * ROWS + i - whole] = from[i];
  }
}

// Products -------------------------------------------------------------------------------------------------------------

// What will be read next, fetched a little at a time.
struct Ahead {
  const float* at;
  long row, rows, lines, each, x = 0, y = 0;  // lines: of a row; each: lines to be fetched at a time
  Ahead(const float* at, long row, long rows, long width, long times)
      : at(at), row(row), rows(rows), lines((width + LINE - 1) / LINE), each((rows * lines + times - 1) / times) {}
  void fetch() {
    for (long i = 0; i < each && y < rows; i++) {
      __builtin_prefetch(at + y * row + x * LINE, 0, 2);
      if (++x == lines) x = 0, y++;
    }
  }
};

// c [rows, width] = finish(row, column, sum) of a [rows, depth] and packed b.
template <class Finish>
void multiply(long rows, long depth, long width, const float* a, const float* b, float* c, Finish finish) {
  for (long top = 0; top < rows; top += BAND)
    for (long k = 0; k < depth; k += DEPTH) {
      const long band = least(BAND, rows - top), some = least(DEPTH, depth - k), tiles = tiles_in(band) * (width / PANEL);
      const bool begins = k == 0, ends = k + some == depth;
      Ahead ahead = ends ? Ahead(a + (top + band) * depth, depth, least(BAND, rows - top - band), least(DEPTH, depth), tiles)
                         : Ahead(a + top * depth + k + some, depth, band, least(DEPTH, depth - k - some), tiles);
      for (long j = 0; j < width; j += PANEL)
        for (long i = top; i < top + band; i += ROWS) {
          ahead.fetch();
          tile_of<false>(
              least(ROWS, top + band - i), some, a + i * depth + k, depth, b + k * width + j * some, c + i * width + j, width,
              [=](long row, long column, const float* place, Vec sum) {
                if (!begins) sum += load(place);
                return ends ? finish(i + row, j + column, sum) : sum;
              });
        }
    }
}

// Room that `across` needs.
inline long room_across(long left, long right) { return DEPTH * (right + ROWS * tiles_in(left)); }

// c [left, right] (+)= the sum over rows, at most DEPTH, of a [rows, left] times b [rows, right].
void across(long rows, long left, long right, const float* a, const float* b, float* c, bool adds, float* room) {
  float *panels = room, *columns = room + DEPTH * right;
  pack(rows, right, b, right, panels);
  pack_left(rows, left, a, columns);
  for (long top = 0; top < left; top += 2 * BAND)
    for (long j = 0; j < right; j += PANEL)
      for (long i = top; i < least(left, top + 2 * BAND); i += ROWS)
        tile_of<true>(
            least(ROWS, left - i), rows, columns + i * rows, 0, panels + j * rows, c + i * right + j, right,
            [=](long, long, const float* place, Vec sum) { return adds ? sum + load(place) : sum; });
}

// total += the sum of rows, which is made first: over many blocks fewer digits are lost.
void add_rows(long rows, long width, const float* x, float* total, float* sum) {
  std::memset(sum, 0, 4 * width);
  for (long row = 0; row < rows; row++)
    for (long i = 0; i < width; i++) sum[i] += x[row * width + i];
  for (long i = 0; i < width; i++) total[i] += sum[i];
}

}  // namespace

// Called from Python ---------------------------------------------------------------------------------------------------
// Each returns 0, or 1 if there is no memory.

extern "C" {

int dape_panel() { return PANEL; }

// c = a b, or a b' of b [width, depth].
int dape_multiply(long rows, long depth, long width, const float* a, const float* b, int turned, float* c) {
  Room packed(depth * width);
  if (!packed.at) return 1;
  pack_all(depth, width, b, turned, packed.at);
  multiply(rows, depth, width, a, packed.at, c, [](long, long, Vec sum) { return sum; });
  return 0;
}

// c = a' b, of at least one row.
int dape_across(long rows, long left, long right, const float* a, const float* b, float* c) {
  Room room(room_across(left, right));
  if (!room.at) return 1;
  for (long row = 0; row < rows; row += DEPTH)
    across(least(DEPTH, rows - row), left, right, a + row * left, b + row * right, c, row > 0, room.at);
  return 0;
}

// hidden = relu(x w1' + b1),  y = hidden w2' + b2. What is not a number stays so.
int dape_feed_forward(
    long rows, long width, long inner, const float* x, const float* w1, const float* b1, const float* w2, const float* b2,
    float* hidden, float* y) {
  Room packed(2 * width * inner);
  if (!packed.at) return 1;
  float *up = packed.at, *down = packed.at + width * inner;
  pack_all(width, inner, w1, true, up);
  pack_all(inner, width, w2, true, down);
  for (long row = 0; row < rows; row += BAND) {
    const long some = least(BAND, rows - row);
    float* h = hidden + row * inner;
    multiply(some, width, inner, x + row * width, up, h, [=](long, long j, Vec sum) {
      const Vec value = sum + load(b1 + j);
      return value < 0 ? Vec{} : value;
    });
    multiply(some, inner, width, h, down, y + row * width, [=](long, long j, Vec sum) { return sum + load(b2 + j); });
  }
  return 0;
}

// Of at least one row. d_b1 and d_b2 are zero before.
int dape_feed_forward_backward(
    long rows, long width, long inner, const float* x, const float* hidden, const float* w1, const float* w2, const float* d_y,
    float* d_x, float* d_w1, float* d_b1, float* d_w2, float* d_b2) {
  const long wider = most(width, inner);
  Room packed(2 * width * inner), block(BLOCK * inner), room(room_across(wider, wider));
  if (!packed.at || !block.at || !room.at) return 1;
  float *up = packed.at, *down = packed.at + width * inner, *d_h = block.at;
  pack_all(inner, width, w1, false, up);
  pack_all(width, inner, w2, false, down);
  for (long row = 0; row < rows; row += BLOCK) {
    const long some = least(BLOCK, rows - row);
    const float *h = hidden + row * inner, *x_here = x + row * width, *d_here = d_y + row * width;
    multiply(some, width, inner, d_here, down, d_h, [=](long i, long j, Vec sum) {
      return load(h + i * inner + j) <= 0 ? Vec{} : sum;
    });
    multiply(some, inner, width, d_h, up, d_x + row * width, [](long, long, Vec sum) { return sum; });
    add_rows(some, inner, d_h, d_b1, room.at), add_rows(some, width, d_here, d_b2, room.at);
    across(some, inner, width, d_h, x_here, d_w1, row > 0, room.at);
    across(some, width, inner, d_here, h, d_w2, row > 0, room.at);
  }
  return 0;
}

}  // extern "C"
