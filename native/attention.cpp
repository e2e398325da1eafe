#include "attention.hpp"

#include <climits>

#include "attention_view.hpp"
#include "kv_write.hpp"
#include "vecmath.hpp"

namespace tenure::TENURE_NS {
namespace {

constexpr int PART = ATTENTION_PART;
constexpr float LOG2_E = 1.44269504f;
// The running maximum of a row that has seen nothing. Finite, so that differences are never NaN.
constexpr float NOTHING = -1e30f;
// Up to this many rows the kernels read K and V as stored; above, a block is widened once for all.
// AVX2 has the execution ports to widen beside its multiply-adds, so there it costs nothing.
constexpr int DIRECT_ROWS = TENURE_AVX2 ? INT_MAX : 12;

// Cuts `rows` into blocks of at most ROWS rows, as even as can be: 7 is 4 + 3.
struct RowBlocks {
  explicit RowBlocks(int rows) : n_rows(rows), count((rows + ROWS - 1) / ROWS) {}
  int start(int i) const { return n_rows * i / count; }
  int n_rows;
  int count;
};

template <class T, bool Fetch>
void score_block(const View& view, const Span& span, const BlockKv<T>& kv, const Scratch& scratch) {
  const int head_dim = view.call.shape.head_dim;
  const RowBlocks blocks(view.rows);
  for (int b = 0; b < blocks.count; ++b) {
    const int row = blocks.start(b);
    const int rows = blocks.start(b + 1) - row;
    const T* const* const next = b == 0 ? kv.next_k : kv.k;  // once is enough
    for (int j = span.first_sub(); j < span.last_sub(); j += tile_vecs(rows)) {
      pick_score<T, Fetch>(rows, smaller(tile_vecs(rows), span.last_sub() - j),
                           scratch.q + row * head_dim, head_dim, kv.k + j, next + j, head_dim,
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
        next[i] = (b == 0 ? kv.next_v : kv.v)[i] + j * LANES;
      }
      pick_mix<T, Fetch>(rows, smaller(tile_vecs(rows), n_vecs - j), scratch.scores + row * BLOCK,
                         static_cast<const T* const*>(v), static_cast<const T* const*>(next),
                         kv.v_stride, span.begin, span.end, fresh,
                         scratch.sum + row * scratch.v_stride + j * LANES, scratch.v_stride);
    }
  }
}

// The lanes of vector j of the block that are seen, the others `instead`.
TENURE_INLINE Vec keep_span(Vec s, int j, const Span& seen, Vec instead) {
  const int from = smaller(LANES, larger(0, seen.begin - j * LANES));
  const int to = smaller(LANES, larger(0, seen.end - j * LANES));
  return first_n(instead, first_n(s, instead, to), from);
}

// Finishes one row's scores, and leaves in `risen` the larger of its running maximum and theirs.
// Where Edge, lanes that are not seen count for nothing.
template <bool Scaled, bool Capped, bool Edge>
TENURE_INLINE void raise_row(const AttentionShape& shape, const Span& seen, bool fresh, int row,
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
    for (int j = 0; j < SUBS; ++j) s[j] = keep_span(s[j], j, seen, splat(NOTHING));
  }
  if constexpr (Scaled || Capped || Edge) {
    for (int j = 0; j < SUBS; ++j) store(scores + j * LANES, s[j]);
  }
  const float before = fresh ? NOTHING : scratch.highest[row];
  const float here = max_lanes(max(max(s[0], s[1]), max(s[2], s[3])));
  scratch.risen[row] = here > before ? here : before;
}

// Turns one row's scores into weights relative to `risen`, and rescales what the row has summed so
// far when that is above its running maximum.
template <bool Scaled, bool Edge>
TENURE_INLINE void weigh_row(const Span& seen, bool fresh, int row, const Scratch& scratch) {
  float* scores = scratch.scores + row * BLOCK;
  const float before = scratch.highest[row];
  const float now = scratch.risen[row];
  Vec s[SUBS];
  for (int j = 0; j < SUBS; ++j) s[j] = exp2(load(scores + j * LANES) - splat(now));
  if constexpr (Edge) {
    for (int j = 0; j < SUBS; ++j) s[j] = keep_span(s[j], j, seen, splat(0.0f));
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

template <bool Scaled, bool Capped, bool Edge>
void raise_rows(const View& view, const Span& seen, bool fresh, int begin, int end,
                const Scratch& scratch) {
  for (int row = begin; row < end; ++row) {
    raise_row<Scaled, Capped, Edge>(view.call.shape, seen, fresh, row, scratch);
  }
}

template <bool Scaled, bool Edge>
void weigh_rows(const Span& seen, bool fresh, int begin, int end, const Scratch& scratch) {
  for (int row = begin; row < end; ++row) weigh_row<Scaled, Edge>(seen, fresh, row, scratch);
}

// Calls f(seen, begin, end) for rows [begin, end) that see the same of the span.
template <class F>
TENURE_INLINE void for_rows_alike(const View& view, const Span& span, F f) {
  for (int query = 0; query < view.tile.n_queries;) {
    const Span seen = view.visible(span, query);
    int next = query + 1;
    if (seen.is_whole()) {
      while (next < view.tile.n_queries && view.visible(span, next).is_whole()) ++next;
    }
    f(seen, query * view.group, next * view.group);
    query = next;
  }
}

// Two passes, so that no exponential waits for the maximum of its own row alone.
template <bool Scaled, bool Capped>
void weigh_block(const View& view, const Span& span, bool fresh, const Scratch& scratch) {
  for_rows_alike(view, span, [&](const Span& seen, int begin, int end) {
    const auto raise =
        seen.is_whole() ? raise_rows<Scaled, Capped, false> : raise_rows<Scaled, Capped, true>;
    raise(view, seen, fresh, begin, end, scratch);
  });
  for_rows_alike(view, span, [&](const Span& seen, int begin, int end) {
    const auto weigh = seen.is_whole() ? weigh_rows<Scaled, false> : weigh_rows<Scaled, true>;
    weigh(seen, fresh, begin, end, scratch);
  });
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

}  // namespace

const AttentionTable attention_table = {attend, finish, write_kv};

}  // namespace tenure::TENURE_NS
