// Attention over paged KV: one kernel for prefill, append and decode.
//
// What is computed, for the query at absolute position p of head h (KV head h / group):
//
//     score(x) = scale * q . k[x]          for the visible x: max(0, p - window + 1) <= x <= p
//     score(x) = cap * tanh(score(x) / cap)                                   where softcap is set
//     out      = sum_x e^score(x) v[x] / (sum_x e^score(x) + e^sink[h])       (the sink where set)
//
// Order of arithmetic, a function of p alone. Positions form blocks of ATTENTION_BLOCK and parts of
// ATTENTION_PART, both counted from position 0. A part runs through its blocks in rising order with
// the online softmax (Milakov and Gimelshein, arXiv:1805.02867) in base 2 from an empty state; part
// results are folded in rising order. Within a block q . k runs over the head's elements in order,
// sum p v over positions in order, the denominator over 16 lanes (lane x % 16). A position that a
// query does not see contributes an exact no-op, so queries may share loads in any grouping, and a
// part may be computed anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common.hpp"

namespace tenure {

constexpr int ATTENTION_BLOCK = 64;
constexpr int ATTENTION_PART = 256;
constexpr int ATTENTION_TILE_ROWS = 48;  // query heads that share one pass over the KV, about

struct AttentionShape {
  int n_heads;
  int n_kv_heads;  // divides n_heads
  int head_dim;
  int window;     // 0: every earlier position is visible
  float scale;    // multiplies q . k
  float softcap;  // 0: none
};

// Where K and V of one layer lie inside a page.
//
// KV head h starts at h * head_bytes: first K, in runs of `run` positions with the positions of a
// run side by side, then V, one row a position, rows padded to whole vectors. Elements:
//
//     K(x, d) at k[((x / run) * head_dim + d) * run + x % run]     V(x, d) at v[x * v_stride + d]
//
// i8 adds float32 scales, behind the elements of all heads: of head h, K's for each position, then
// V's, from scale_offset + h * 2 * page_size * 4.
//
// Example, f16, page_size 32, head_dim 64: run 16, K(17, 5) is element (1 * 64 + 5) * 16 + 1; K
// takes 4,096 bytes, V starts at byte 4,096 of the head and takes 4,096; head_bytes is 8,192.
struct KvLayout {
  int page_size;
  int run;
  int head_dim;
  int v_stride;
  std::size_t v_offset;  // bytes from the start of a head to its V
  std::size_t head_bytes;
  std::size_t scale_offset;
  std::size_t page_bytes;  // of all KV heads, rounded up to 64
};

KvLayout kv_layout(KvType type, int page_size, int n_kv_heads, int head_dim);

// Bytes that one page of one layer takes.
std::size_t kv_page_bytes(KvType type, int page_size, int n_kv_heads, int head_dim);

// One layer's attention. Rows of q and out are tokens: head h of token t is at
// q + t * q_stride + h * head_dim; strides in floats.
struct AttentionCall {
  AttentionShape shape;
  KvLayer kv;
  KvLayout layout;
  const float* q;
  std::ptrdiff_t q_stride;
  float* out;
  std::ptrdiff_t out_stride;
  const float* sinks;  // [n_heads], or null
};

// Consecutive queries of one sequence; with the heads of a KV group they are the rows of a tile:
// row i is head i % group of query i / group.
struct AttentionTile {
  const std::int32_t* pages;  // of the sequence
  int first_token;            // in the batch
  int first_pos;              // absolute
  int n_queries;
};

// Parts [part_begin, part_end) of one tile and KV head. `partial` is null when these are all the
// parts that the tile sees: then the task writes the output. Otherwise the task leaves the state of
// each of its parts there, and `finish` folds them.
struct AttentionTask {
  AttentionTile tile;
  int kv_head;
  int part_begin;
  int part_end;
  float* partial;
};

// Floats of one part's state for `rows` rows, and of the scratch that one thread needs.
std::size_t attention_partial_floats(int rows, int head_dim);
std::size_t attention_scratch_floats(int max_rows, int head_dim);

// New K and V, token t's head h at k + t * stride + h * head_dim (and v likewise), rope applied.
struct KvWrite {
  KvLayer kv;
  KvLayout layout;
  PageTable table;
  const float* k;
  const float* v;
  std::ptrdiff_t stride;
};

struct AttentionTable {
  // `scratch` is aligned to 64 bytes and belongs to the calling thread.
  void (*attend)(const AttentionCall& call, const AttentionTask& task, float* scratch);
  // Folds the parts [part_begin, part_end) that `task.partial` holds, and writes the output.
  void (*finish)(const AttentionCall& call, const AttentionTask& task, float* scratch);
  // Stores the K and V of tokens [begin, end). f16 saturates at +-65504; i8 is rounded to nearest
  // with scale max |x| / 127 for each token and head.
  void (*write_kv)(const KvWrite& call, const BatchView& batch, int begin, int end);
};
TENURE_DECLARE_TABLE(AttentionTable, attention_table)

}  // namespace tenure
