// What one attention task works on: its queries, what they see, its scratch, and the K and V of a
// block. Part of attention.cpp.
#pragma once

#include "attention_tiles.hpp"
#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

constexpr int SUBS = BLOCK / LANES;  // vectors of positions in a block

// The scratch of one thread. Sizes as in attention_scratch_floats().
struct Scratch {
  Scratch(float* at, int rows, int head_dim)
      : v_stride(round_up(head_dim, LANES)), padded_rows(round_up(rows, LANES)) {
    q = take(at, rows * head_dim);
    scores = take(at, rows * BLOCK);
    sum = take(at, rows * v_stride);
    lanes = take(at, rows * LANES);
    highest = take(at, padded_rows);
    risen = take(at, padded_rows);
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
  float* risen;        // [rows] the maximum once the current block is in
  float* total;        // [rows] of one part: sum of weights
  float* all_sum;      // the same of all parts so far
  float* all_highest;
  float* all_total;
  float* k_tile;       // [SUBS][head_dim][LANES] one block of K, widened
  float* v_tile;       // [BLOCK][v_stride] one block of V, widened
  float* k_scale;      // [BLOCK] i8 only
  float* v_scale;
};

// Positions [begin, end) of the block that starts at `base`, relative to it.
struct Span {
  int base;
  int begin;
  int end;
  int first_sub() const { return begin / LANES; }
  int last_sub() const { return (end + LANES - 1) / LANES; }
  bool is_whole() const { return begin <= 0 && end >= BLOCK; }
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
  // Of the positions of `span`, those that a query sees; may be empty.
  Span visible(const Span& span, int query) const {
    return {span.base, larger(span.begin, low(query) - span.base),
            smaller(span.end, high(query) - span.base)};
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

// The stored K and V from position x on, to the end of its run (K) and page (V).
template <class T>
struct StoredKv {
  StoredKv(const View& view, int x) {
    const KvLayout& layout = view.call.layout;
    const std::byte* head = view.page_of(x) + view.kv_head * layout.head_bytes;
    const int at = x % layout.page_size;
    k = reinterpret_cast<const T*>(head) + at * layout.head_dim;
    v = reinterpret_cast<const T*>(head + layout.v_offset) + at * layout.v_stride;
  }
  const T* k;
  const T* v;
};

// Points at the block as stored; needs pages of at least LANES positions.
template <class T>
BlockKv<T> locate(const View& view, const Span& span) {
  BlockKv<T> block{};
  block.v_stride = view.call.layout.v_stride;
  for (int j = span.first_sub(); j < span.last_sub(); ++j) {
    const int x = span.base + j * LANES;
    const StoredKv<T> here(view, x);
    // What lies beyond the end is not there to be fetched.
    const StoredKv<T> next(view, x + BLOCK < view.end() ? x + BLOCK : x);
    block.k[j] = here.k;
    block.v[j] = here.v;
    block.next_k[j] = next.k;
    block.next_v[j] = next.v;
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
    const StoredKv<T> from(view, span.base + x);
    float* k_to = scratch.k_tile + x / LANES * LANES * layout.head_dim + x % LANES;
    if (run == LANES) {
      for (int i = 0; i < layout.head_dim * LANES; i += LANES) store(k_to + i, load_kv(from.k + i));
    } else {
      spread_run(run, from.k, layout.head_dim, k_to);
    }
    float* v_to = scratch.v_tile + x * layout.v_stride;
    for (int i = 0; i < run * layout.v_stride; i += LANES) store(v_to + i, load_kv(from.v + i));
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

}  // namespace
}  // namespace tenure::TENURE_NS
