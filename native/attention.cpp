#include "attention.hpp"

#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

constexpr int BLOCK = ATTENTION_BLOCK;
constexpr int PART = ATTENTION_PART;
constexpr int SUBS = BLOCK / LANES;  // vectors of positions in a block
constexpr float LOG2_E = 1.44269504f;
// The running maximum of a row that has seen nothing. Finite, so that differences are never NaN.
constexpr float NOTHING = -1e30f;
// Up to this many rows the kernels read K and V as stored; above, a block is widened once for all.
constexpr int DIRECT_ROWS = 12;

// Register tiles of up to ROWS x tile_vecs(rows) accumulators.
constexpr int ROWS = TENURE_AVX512 || TENURE_AVX2 ? 6 : 2;
constexpr int tile_vecs(int rows) {
#if TENURE_AVX512
  return rows > 0 ? 4 : 0;
#elif TENURE_AVX2
  return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
#else
  return rows > 0 ? 1 : 0;
#endif
}

#define TENURE_UNROLL _Pragma("GCC unroll 8")

TENURE_INLINE Vec load_kv(const float* p) { return load(p); }
TENURE_INLINE Vec load_kv(const std::uint16_t* p) { return load_half(p); }
TENURE_INLINE Vec load_kv(const std::int8_t* p) { return load_i8(p); }

// s[i][16 j + lane] = sum over d of q[i][d] * k[j][d][lane], d rising. Where KV comes straight from
// memory, the tile fetches `next`, as large as `k`, meanwhile: pages are too short and too scattered
// for the hardware to guess.
template <class T, bool Fetch, int R, int N>
void score_tile(const float* q, int q_stride, const T* const* k, const T* const* next, int head_dim,
                float* s) {
  Vec sum[R][N];
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = splat(0.0f);
  }
  for (int d = 0; d < head_dim; ++d) {
    Vec column[N];
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) column[j] = load_kv(k[j] + d * LANES);
    if constexpr (Fetch) {
      TENURE_UNROLL
      for (int j = 0; j < N; ++j) __builtin_prefetch(next[j] + d * LANES);
    }
    TENURE_UNROLL
    for (int i = 0; i < R; ++i) {
      const Vec a = splat(q[i * q_stride + d]);
      TENURE_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] = fma(a, column[j], sum[i][j]);
    }
  }
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) store(s + i * BLOCK + j * LANES, sum[i][j]);
  }
}

// o[i][16 j + lane] (+)= sum over x in [begin, end) of p[i][x] * v(x)[16 j + lane], x rising.
template <class T, bool Fetch, int R, int N>
void mix_tile(const float* p, const T* const* v, const T* const* next, int v_stride, int begin,
              int end, bool fresh, float* o, int o_stride) {
  Vec sum[R][N];
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) {
      sum[i][j] = fresh ? splat(0.0f) : load(o + i * o_stride + j * LANES);
    }
  }
  for (int x = begin; x < end;) {
    const T* row = v[x / LANES] + (x % LANES) * v_stride;
    const T* ahead = next[x / LANES] + (x % LANES) * v_stride;
    const int run_end = x / LANES * LANES + LANES;
    const int stop = run_end < end ? run_end : end;
    for (; x < stop; ++x, row += v_stride) {
      Vec value[N];
      TENURE_UNROLL
      for (int j = 0; j < N; ++j) value[j] = load_kv(row + j * LANES);
      if constexpr (Fetch) {
        TENURE_UNROLL
        for (int j = 0; j < N; ++j) __builtin_prefetch(ahead + j * LANES);
        ahead += v_stride;
      }
      TENURE_UNROLL
      for (int i = 0; i < R; ++i) {
        const Vec a = splat(p[i * BLOCK + x]);
        TENURE_UNROLL
        for (int j = 0; j < N; ++j) sum[i][j] = fma(a, value[j], sum[i][j]);
      }
    }
  }
  TENURE_UNROLL
  for (int i = 0; i < R; ++i) {
    TENURE_UNROLL
    for (int j = 0; j < N; ++j) store(o + i * o_stride + j * LANES, sum[i][j]);
  }
}

// Calls the instance for `rows` (1 to ROWS) and `vecs` (1 to tile_vecs(rows)).
template <class T, bool Fetch, int R = ROWS, int N = tile_vecs(R), class... Args>
TENURE_INLINE void pick_score(int rows, int vecs, Args... args) {
  if (rows < R) {
    if constexpr (R > 1) pick_score<T, Fetch, R - 1>(rows, vecs, args...);
  } else if (vecs < N) {
    if constexpr (N > 1) pick_score<T, Fetch, R, N - 1>(rows, vecs, args...);
  } else {
    score_tile<T, Fetch, R, N>(args...);
  }
}
template <class T, bool Fetch, int R = ROWS, int N = tile_vecs(R), class... Args>
TENURE_INLINE void pick_mix(int rows, int vecs, Args... args) {
  if (rows < R) {
    if constexpr (R > 1) pick_mix<T, Fetch, R - 1>(rows, vecs, args...);
  } else if (vecs < N) {
    if constexpr (N > 1) pick_mix<T, Fetch, R, N - 1>(rows, vecs, args...);
  } else {
    mix_tile<T, Fetch, R, N>(args...);
  }
}

TENURE_INLINE int smaller(int a, int b) { return a < b ? a : b; }
TENURE_INLINE int larger(int a, int b) { return a > b ? a : b; }
TENURE_INLINE int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Cuts `rows` into blocks of at most ROWS rows, as even as can be: 7 is 4 + 3.
struct RowBlocks {
  explicit RowBlocks(int rows) : n_rows(rows), count((rows + ROWS - 1) / ROWS) {}
  int start(int i) const { return n_rows * i / count; }
  int n_rows;
  int count;
};

// The scratch of one thread. Sizes as in attention_scratch_floats().
struct Scratch {
  Scratch(float* at, int rows, int head_dim)
      : v_stride(round_up(head_dim, LANES)), padded_rows(round_up(rows, LANES)) {
    q = take(at, rows * head_dim);
    scores = take(at, rows * BLOCK);
    sum = take(at, rows * v_stride);
    lanes = take(at, rows * LANES);
    highest = take(at, padded_rows);
    total = take(at, padded_rows);
    all_sum = take(at, rows * v_stride);
    all_highest = take(at, padded_rows);
    all_total = take(at, padded_rows);
    k_tile = take(at, BLOCK * head_dim);
    v_tile = take(at, BLOCK * v_stride);
    k_scale = take(at, BLOCK);
    v_scale = take(at, BLOCK);
  }
  static float* take(float*& at, int n) {
    float* taken = at;
    at += round_up(n, LANES);
    return taken;
  }

  int v_stride;
  int padded_rows;
  float* q;            // [rows][head_dim] scaled queries
  float* scores;       // [rows][BLOCK] scores, then weights
  float* sum;          // [rows][v_stride] of one part: weighted sum of V
  float* lanes;        // [rows][LANES] of one part: sum of weights, by lane
  float* highest;      // [rows] of one part: the maximum that weights are relative to
  float* total;        // [rows] of one part: sum of weights
  float* all_sum;      // the same of all parts so far
  float* all_highest;
  float* all_total;
  float* k_tile;       // [SUBS][head_dim][LANES] one block of K, widened
  float* v_tile;       // [BLOCK][v_stride] one block of V, widened
  float* k_scale;      // [BLOCK] i8 only
  float* v_scale;
};

// What a tile is and sees. Row i is query i / group; query i sees [low(i), high(i)).
struct View {
  View(const AttentionCall& call_, const AttentionTask& task_)
      : call(call_),
        tile(task_.tile),
        kv_head(task_.kv_head),
        group(call.shape.n_heads / call.shape.n_kv_heads),
        rows(tile.n_queries * group) {}
  int high(int query) const { return tile.first_pos + query + 1; }
  int low(int query) const {
    return call.shape.window > 0 ? larger(0, high(query) - call.shape.window) : 0;
  }
  int begin() const { return low(0); }
  int end() const { return high(tile.n_queries - 1); }
  int head(int row) const { return kv_head * group + row % group; }
  const std::byte* page_of(int x) const {
    return call.kv.base + std::size_t(tile.pages[x / call.layout.page_size]) * call.kv.page_bytes;
  }

  const AttentionCall& call;
  const AttentionTile& tile;
  int kv_head;
  int group;
  int rows;
};

// Positions [begin, end) of the block that starts at `base`, relative to it.
struct Span {
  int base;
  int begin;
  int end;
  int first_sub() const { return begin / LANES; }
  int last_sub() const { return (end + LANES - 1) / LANES; }
};

// Where a block's K and V are, by vector of positions, and those of the block to fetch meanwhile.
template <class T>
struct BlockKv {
  const T* k[SUBS];
  const T* v[SUBS];
  const T* next_k[SUBS];
  const T* next_v[SUBS];
  int v_stride;
};

// Scales go with the arithmetic below: K's into the scores, V's into the weights.
void gather_scales(const View& view, const Span& span, const Scratch& scratch) {
  const KvLayout& layout = view.call.layout;
  for (int x = span.begin / layout.run * layout.run; x < span.end; x += layout.run) {
    const std::byte* page = view.page_of(span.base + x);
    const float* k = reinterpret_cast<const float*>(page + layout.scale_offset) +
                     view.kv_head * 2 * layout.page_size + (span.base + x) % layout.page_size;
    const float* v = k + layout.page_size;
    for (int i = 0; i < layout.run; ++i) {
      scratch.k_scale[x + i] = k[i];
      scratch.v_scale[x + i] = v[i];
    }
  }
}

// Points at the block as stored; needs pages of at least LANES positions.
template <class T>
BlockKv<T> locate(const View& view, const Span& span) {
  const KvLayout& layout = view.call.layout;
  BlockKv<T> block{};
  block.v_stride = layout.v_stride;
  for (int j = span.first_sub(); j < span.last_sub(); ++j) {
    const int x = span.base + j * LANES;
    const std::byte* head = view.page_of(x) + view.kv_head * layout.head_bytes;
    const int at = x % layout.page_size;
    block.k[j] = reinterpret_cast<const T*>(head) + at * layout.head_dim;
    block.v[j] = reinterpret_cast<const T*>(head + layout.v_offset) + at * layout.v_stride;
    // What lies beyond the end is not there to be fetched.
    const bool more = x + BLOCK < view.end();
    const std::byte* next = more ? view.page_of(x + BLOCK) + view.kv_head * layout.head_bytes : head;
    const int next_at = more ? (x + BLOCK) % layout.page_size : at;
    block.next_k[j] = reinterpret_cast<const T*>(next) + next_at * layout.head_dim;
    block.next_v[j] = reinterpret_cast<const T*>(next + layout.v_offset) + next_at * layout.v_stride;
  }
  return block;
}

// Widens the K of a run of fewer than LANES positions. The last vector may reach beyond K, but not
// beyond the V that follows it.
template <int RUN, class T>
void spread_run(const T* k, int head_dim, float* to) {
  constexpr int COLUMNS = LANES / RUN;
  for (int d = 0; d < head_dim; d += COLUMNS) {
    float wide[LANES];
    store(wide, load_kv(k + d * RUN));
    const int n = smaller(COLUMNS, head_dim - d);
    for (int c = 0; c < n; ++c) {
      for (int i = 0; i < RUN; ++i) to[(d + c) * LANES + i] = wide[c * RUN + i];
    }
  }
}

template <class T>
void spread_run(int run, const T* k, int head_dim, float* to) {
  switch (run) {
    case 1: return spread_run<1>(k, head_dim, to);
    case 2: return spread_run<2>(k, head_dim, to);
    case 4: return spread_run<4>(k, head_dim, to);
    default: return spread_run<8>(k, head_dim, to);
  }
}

// Widens run by run, for any page size. Lanes of k_tile outside the span keep what they had.
template <class T>
BlockKv<float> widen_block(const View& view, const Span& span, const Scratch& scratch) {
  const KvLayout& layout = view.call.layout;
  const int run = layout.run;
  for (int x = span.begin / run * run; x < span.end; x += run) {
    const int at = (span.base + x) % layout.page_size;
    const std::byte* head = view.page_of(span.base + x) + view.kv_head * layout.head_bytes;
    const T* k = reinterpret_cast<const T*>(head) + at * layout.head_dim;
    float* k_to = scratch.k_tile + x / LANES * LANES * layout.head_dim + x % LANES;
    if (run == LANES) {
      for (int d = 0; d < layout.head_dim; ++d) store(k_to + d * LANES, load_kv(k + d * LANES));
    } else {
      spread_run(run, k, layout.head_dim, k_to);
    }
    const T* v = reinterpret_cast<const T*>(head + layout.v_offset) + at * layout.v_stride;
    float* v_to = scratch.v_tile + x * layout.v_stride;
    for (int i = 0; i < run * layout.v_stride; i += LANES) store(v_to + i, load_kv(v + i));
  }
  BlockKv<float> block{};
  block.v_stride = layout.v_stride;
  for (int j = 0; j < SUBS; ++j) {
    block.k[j] = scratch.k_tile + j * LANES * layout.head_dim;
    block.v[j] = scratch.v_tile + j * LANES * layout.v_stride;
    block.next_k[j] = block.k[j];
    block.next_v[j] = block.v[j];
  }
  return block;
}

template <class T, bool Fetch>
void score_block(const View& view, const Span& span, const BlockKv<T>& kv, const Scratch& scratch) {
  const int head_dim = view.call.shape.head_dim;
  const RowBlocks blocks(view.rows);
  for (int b = 0; b < blocks.count; ++b) {
    const int row = blocks.start(b);
    const int rows = blocks.start(b + 1) - row;
    for (int j = span.first_sub(); j < span.last_sub(); j += tile_vecs(rows)) {
      pick_score<T, Fetch>(rows, smaller(tile_vecs(rows), span.last_sub() - j),
                           scratch.q + row * head_dim, head_dim, kv.k + j, kv.next_k + j, head_dim,
                           scratch.scores + row * BLOCK + j * LANES);
    }
  }
}

template <class T, bool Fetch>
void mix_block(const View& view, const Span& span, const BlockKv<T>& kv, bool fresh,
               const Scratch& scratch) {
  const RowBlocks blocks(view.rows);
  const int n_vecs = scratch.v_stride / LANES;
  for (int b = 0; b < blocks.count; ++b) {
    const int row = blocks.start(b);
    const int rows = blocks.start(b + 1) - row;
    for (int j = 0; j < n_vecs; j += tile_vecs(rows)) {
      const T* v[SUBS];
      const T* next[SUBS];
      for (int i = span.first_sub(); i < span.last_sub(); ++i) {
        v[i] = kv.v[i] + j * LANES;
        next[i] = kv.next_v[i] + j * LANES;
      }
      pick_mix<T, Fetch>(rows, smaller(tile_vecs(rows), n_vecs - j), scratch.scores + row * BLOCK,
                         static_cast<const T* const*>(v), static_cast<const T* const*>(next),
                         kv.v_stride, span.begin, span.end, fresh,
                         scratch.sum + row * scratch.v_stride + j * LANES, scratch.v_stride);
    }
  }
}

// The lanes of vector j that lie in [begin, end) of the block, the others `instead`.
TENURE_INLINE Vec keep_span(Vec s, int j, int begin, int end, Vec instead) {
  const int from = smaller(LANES, larger(0, begin - j * LANES));
  const int to = smaller(LANES, larger(0, end - j * LANES));
  return first_n(instead, first_n(s, instead, to), from);
}

// Turns one row's scores into weights relative to its running maximum, and rescales what the row
// has summed so far when that maximum rose. Where Edge, lanes outside [begin, end) get weight 0.
template <bool Scaled, bool Capped, bool Edge>
void weigh_row(const AttentionShape& shape, int begin, int end, bool fresh, int row,
               const Scratch& scratch) {
  float* scores = scratch.scores + row * BLOCK;
  Vec s[SUBS];
  for (int j = 0; j < SUBS; ++j) s[j] = load(scores + j * LANES);
  if constexpr (Scaled) {
    for (int j = 0; j < SUBS; ++j) s[j] = s[j] * load(scratch.k_scale + j * LANES);
  }
  if constexpr (Capped) {
    const Vec cap = splat(shape.softcap * LOG2_E);
    for (int j = 0; j < SUBS; ++j) s[j] = tanh(s[j]) * cap;
  }
  if constexpr (Edge) {
    for (int j = 0; j < SUBS; ++j) s[j] = keep_span(s[j], j, begin, end, splat(NOTHING));
  }
  const float before = fresh ? NOTHING : scratch.highest[row];
  const float here = max_lanes(max(max(s[0], s[1]), max(s[2], s[3])));
  const float now = here > before ? here : before;
  for (int j = 0; j < SUBS; ++j) s[j] = exp2(s[j] - splat(now));
  if constexpr (Edge) {
    for (int j = 0; j < SUBS; ++j) s[j] = keep_span(s[j], j, begin, end, splat(0.0f));
  }
  Vec lanes = (s[0] + s[1]) + (s[2] + s[3]);
  float* lanes_at = scratch.lanes + row * LANES;
  if (!fresh && now == before) {
    lanes = load(lanes_at) + lanes;
  } else if (!fresh) {
    const Vec shrink = exp2(splat(before - now));
    lanes = load(lanes_at) * shrink + lanes;
    float* sum = scratch.sum + row * scratch.v_stride;
    for (int i = 0; i < scratch.v_stride; i += LANES) store(sum + i, load(sum + i) * shrink);
  }
  store(lanes_at, lanes);
  scratch.highest[row] = now;
  for (int j = 0; j < SUBS; ++j) {
    if constexpr (Scaled) s[j] = s[j] * load(scratch.v_scale + j * LANES);
    store(scores + j * LANES, s[j]);
  }
}

template <bool Scaled, bool Capped>
void weigh_block(const View& view, const Span& span, bool fresh, const Scratch& scratch) {
  for (int query = 0; query < view.tile.n_queries; ++query) {
    const int begin = larger(span.begin, view.low(query) - span.base);
    const int end = smaller(span.end, view.high(query) - span.base);
    const auto weigh = begin > 0 || end < BLOCK ? weigh_row<Scaled, Capped, true>
                                                : weigh_row<Scaled, Capped, false>;
    for (int i = 0; i < view.group; ++i) {
      weigh(view.call.shape, begin, end, fresh, query * view.group + i, scratch);
    }
  }
}

template <class T, bool Fetch>
void run_block(const View& view, const Span& span, const BlockKv<T>& kv, bool fresh,
               const Scratch& scratch) {
  score_block<T, Fetch>(view, span, kv, scratch);
  const bool scaled = view.call.kv.type == KvType::i8;
  const bool capped = view.call.shape.softcap > 0.0f;
  if (scaled) gather_scales(view, span, scratch);
  if (scaled && capped) {
    weigh_block<true, true>(view, span, fresh, scratch);
  } else if (scaled) {
    weigh_block<true, false>(view, span, fresh, scratch);
  } else if (capped) {
    weigh_block<false, true>(view, span, fresh, scratch);
  } else {
    weigh_block<false, false>(view, span, fresh, scratch);
  }
  mix_block<T, Fetch>(view, span, kv, fresh, scratch);
}

// Leaves one part's sum, highest and total in the scratch.
template <class T>
void run_part(const View& view, int part, const Scratch& scratch) {
  const bool direct = view.call.layout.run == LANES && view.rows <= DIRECT_ROWS;
  const int begin = larger(view.begin(), part * PART);
  const int end = smaller(view.end(), part * PART + PART);
  bool fresh = true;
  for (int base = begin / BLOCK * BLOCK; base < end; base += BLOCK) {
    const Span span{base, larger(begin - base, 0), smaller(end - base, BLOCK)};
    if (direct) {
      run_block<T, true>(view, span, locate<T>(view, span), fresh, scratch);
    } else {
      run_block<float, false>(view, span, widen_block<T>(view, span, scratch), fresh, scratch);
    }
    fresh = false;
  }
  for (int row = 0; row < view.rows; ++row) {
    scratch.total[row] = sum_lanes(load(scratch.lanes + row * LANES));
  }
}

void run_part(const View& view, int part, const Scratch& scratch) {
  switch (view.call.kv.type) {
    case KvType::f16: return run_part<std::uint16_t>(view, part, scratch);
    case KvType::f32: return run_part<float>(view, part, scratch);
    case KvType::i8: return run_part<std::int8_t>(view, part, scratch);
  }
}

// Scores are computed in base 2: the factor log2 e is in the queries, or with a cap in the cap.
void load_queries(const View& view, const Scratch& scratch) {
  const AttentionShape& shape = view.call.shape;
  const float factor =
      shape.softcap > 0.0f ? shape.scale / shape.softcap : shape.scale * LOG2_E;
  for (int row = 0; row < view.rows; ++row) {
    const float* from = view.call.q +
                        (view.tile.first_token + row / view.group) * view.call.q_stride +
                        view.head(row) * shape.head_dim;
    float* to = scratch.q + row * shape.head_dim;
    for (int d = 0; d < shape.head_dim; ++d) to[d] = from[d] * factor;
  }
}

void clear_all(const View& view, const Scratch& scratch) {
  for (int i = 0; i < scratch.padded_rows; ++i) {
    scratch.all_highest[i] = NOTHING;
    scratch.all_total[i] = 0.0f;
    scratch.highest[i] = NOTHING;
    scratch.total[i] = 0.0f;
  }
  for (int i = 0; i < view.rows * scratch.v_stride; ++i) scratch.all_sum[i] = 0.0f;
}

// Adds one part's (sum, highest, total) to all_*; overwrites highest and total with the factors.
void fold_part(const View& view, const float* part_sum, const Scratch& scratch) {
  for (int row = 0; row < view.rows; row += LANES) {
    const Vec all = load(scratch.all_highest + row);
    const Vec part = load(scratch.highest + row);
    const Vec highest = max(all, part);
    const Vec keep = exp2(all - highest);
    const Vec add = exp2(part - highest);
    const Vec total = fma(load(scratch.all_total + row), keep, load(scratch.total + row) * add);
    store(scratch.all_highest + row, highest);
    store(scratch.all_total + row, total);
    store(scratch.highest + row, keep);
    store(scratch.total + row, add);
  }
  for (int row = 0; row < view.rows; ++row) {
    const Vec keep = splat(scratch.highest[row]);
    const Vec add = splat(scratch.total[row]);
    float* to = scratch.all_sum + row * scratch.v_stride;
    const float* from = part_sum + row * scratch.v_stride;
    for (int i = 0; i < scratch.v_stride; i += LANES) {
      store(to + i, fma(load(to + i), keep, load(from + i) * add));
    }
  }
}

void write_output(const View& view, const Scratch& scratch) {
  const AttentionShape& shape = view.call.shape;
  for (int row = 0; row < view.rows; ++row) {
    Vec factor = splat(1.0f) / splat(scratch.all_total[row]);
    if (view.call.sinks != nullptr) {
      const Vec sink = splat(view.call.sinks[view.head(row)] * LOG2_E);
      const Vec highest = max(sink, splat(scratch.all_highest[row]));
      const Vec keep = exp2(splat(scratch.all_highest[row]) - highest);
      factor = keep / fma(splat(scratch.all_total[row]), keep, exp2(sink - highest));
    }
    const float* from = scratch.all_sum + row * scratch.v_stride;
    float* to = view.call.out + (view.tile.first_token + row / view.group) * view.call.out_stride +
                view.head(row) * shape.head_dim;
    for (int i = 0; i < shape.head_dim; i += LANES) {
      // Adding 0 makes -0 into +0: a masked position may or may not have done so before.
      const Vec value = load(from + i) * factor + splat(0.0f);
      store_n(to + i, value, smaller(LANES, shape.head_dim - i));
    }
  }
}

void copy(float* to, const float* from, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}

void attend(const AttentionCall& call, const AttentionTask& task, float* memory) {
  const View view(call, task);
  const Scratch scratch(memory, view.rows, call.shape.head_dim);
  load_queries(view, scratch);
  clear_all(view, scratch);
  const std::size_t state = attention_partial_floats(view.rows, call.shape.head_dim);
  for (int part = task.part_begin; part < task.part_end; ++part) {
    run_part(view, part, scratch);
    if (task.partial == nullptr) {
      fold_part(view, scratch.sum, scratch);
      continue;
    }
    float* to = task.partial + (part - task.part_begin) * state;
    copy(to, scratch.highest, scratch.padded_rows);
    copy(to + scratch.padded_rows, scratch.total, scratch.padded_rows);
    copy(to + 2 * scratch.padded_rows, scratch.sum, view.rows * scratch.v_stride);
  }
  if (task.partial == nullptr) write_output(view, scratch);
}

void finish(const AttentionCall& call, const AttentionTask& task, float* memory) {
  const View view(call, task);
  const Scratch scratch(memory, view.rows, call.shape.head_dim);
  clear_all(view, scratch);
  const std::size_t state = attention_partial_floats(view.rows, call.shape.head_dim);
  for (int part = task.part_begin; part < task.part_end; ++part) {
    const float* from = task.partial + (part - task.part_begin) * state;
    copy(scratch.highest, from, scratch.padded_rows);
    copy(scratch.total, from + scratch.padded_rows, scratch.padded_rows);
    fold_part(view, from + 2 * scratch.padded_rows, scratch);
  }
  write_output(view, scratch);
}

// ---- Writing new K and V ----

// Sixteen elements as stored; `inverse` is 1 / scale, for i8 only.
TENURE_INLINE void store_kv(float* to, Vec x, Vec) { store(to, x); }
TENURE_INLINE void store_kv(std::uint16_t* to, Vec x, Vec) {
  store_half(to, min(splat(65504.0f), max(splat(-65504.0f), x)));  // in this order a NaN stays
}
TENURE_INLINE void store_kv(std::int8_t* to, Vec x, Vec inverse) {
  store_i8(to, round(x * inverse));
}

// Stores the scale of x[0, n) and returns its inverse (0 for a row of zeros).
float write_scale(const float* x, int n, float* scale) {
  Vec most = splat(0.0f);
  for (int d = 0; d < n; d += LANES) most = max(most, abs(load_n(x + d, smaller(LANES, n - d))));
  const float largest = max_lanes(most);
  *scale = largest / 127.0f;
  return largest > 0.0f ? 127.0f / largest : 0.0f;
}

template <class T>
void write_head(const KvWrite& call, std::byte* page, int at, int head, const float* k,
                const float* v) {
  const KvLayout& layout = call.layout;
  const int n = layout.head_dim;
  Vec k_inverse = splat(1.0f);
  Vec v_inverse = splat(1.0f);
  if constexpr (sizeof(T) == 1) {
    float* scales = reinterpret_cast<float*>(page + layout.scale_offset) +
                    head * 2 * layout.page_size + at;
    k_inverse = splat(write_scale(k, n, scales));
    v_inverse = splat(write_scale(v, n, scales + layout.page_size));
  }
  std::byte* base = page + head * layout.head_bytes;
  T* k_to = reinterpret_cast<T*>(base) + at / layout.run * layout.run * n + at % layout.run;
  T* v_to = reinterpret_cast<T*>(base + layout.v_offset) + at * layout.v_stride;
  for (int d = 0; d < n; d += LANES) {
    const int count = smaller(LANES, n - d);
    T narrow[LANES];
    store_kv(narrow, load_n(k + d, count), k_inverse);
    for (int i = 0; i < count; ++i) k_to[(d + i) * layout.run] = narrow[i];
    store_kv(v_to + d, load_n(v + d, count), v_inverse);
  }
}

template <class T>
void write_tokens(const KvWrite& call, const BatchView& batch, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    const int x = batch.position[t];
    const std::int32_t* pages = call.table.pages + call.table.indptr[batch.row_of[t]];
    std::byte* page =
        call.kv.base + std::size_t(pages[x / call.layout.page_size]) * call.kv.page_bytes;
    for (int head = 0; head < call.kv.n_kv_heads; ++head) {
      const std::ptrdiff_t from = t * call.stride + head * call.layout.head_dim;
      write_head<T>(call, page, x % call.layout.page_size, head, call.k + from, call.v + from);
    }
  }
}

void write_kv(const KvWrite& call, const BatchView& batch, int begin, int end) {
  switch (call.kv.type) {
    case KvType::f16: return write_tokens<std::uint16_t>(call, batch, begin, end);
    case KvType::f32: return write_tokens<float>(call, batch, begin, end);
    case KvType::i8: return write_tokens<std::int8_t>(call, batch, begin, end);
  }
}

}  // namespace

const AttentionTable attention_table = {attend, finish, write_kv};

}  // namespace tenure::TENURE_NS
