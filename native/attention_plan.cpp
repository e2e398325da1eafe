#include "attention_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace tenure {
namespace {

constexpr std::size_t LINE = 64;
constexpr int VECTOR = 16;
// Rows to which the cost of loading K and V is equal, in the cost model of a tile.
constexpr int LOAD_ROWS = 4;
// Tasks a thread should get in one layer, so that a thread which loses its core costs little.
constexpr int TASKS_PER_THREAD = 6;

// Tasks are handed out in chunks of at least this cost, about a microsecond's work: below that, a
// thread spends more on taking a chunk than it saves.
constexpr double CHUNK_COST = 1500.0;

int round_up(int n, int to) { return (n + to - 1) / to * to; }
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

std::size_t element_bytes(KvType type) {
  switch (type) {
    case KvType::f32: return 4;
    case KvType::f16: return 2;
    default: return 1;
  }
}

int group_of(const AttentionShape& shape) { return shape.n_heads / shape.n_kv_heads; }

int queries_per_tile(const AttentionShape& shape) {
  return std::max(1, ATTENTION_TILE_ROWS / group_of(shape));
}

int first_visible(const AttentionTile& tile, const AttentionShape& shape) {
  return shape.window > 0 ? std::max(0, tile.first_pos + 1 - shape.window) : 0;
}

// In rows x positions; the rows of a tile share each load.
double cost_of(const AttentionTile& tile, const AttentionShape& shape, int n_positions) {
  return double(n_positions) * (tile.n_queries * group_of(shape) + LOAD_ROWS);
}

double cost_of(const AttentionTile& tile, const AttentionShape& shape) {
  const int end = tile.first_pos + tile.n_queries;
  return cost_of(tile, shape, end - first_visible(tile, shape));
}

double cost_of(const AttentionTask& task, const AttentionShape& shape) {
  const int begin = std::max(task.part_begin * ATTENTION_PART, first_visible(task.tile, shape));
  const int last = task.tile.first_pos + task.tile.n_queries;
  const int end = std::min(task.part_end * ATTENTION_PART, last);
  return cost_of(task.tile, shape, end - begin);
}

float* aligned(float* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  return reinterpret_cast<float*>(round_up(at, LINE));
}

}  // namespace

KvLayout kv_layout(KvType type, int page_size, int n_kv_heads, int head_dim) {
  KvLayout layout{};
  layout.page_size = page_size;
  layout.run = std::min(page_size, VECTOR);
  layout.head_dim = head_dim;
  layout.v_stride = round_up(head_dim, VECTOR);
  const std::size_t element = element_bytes(type);
  layout.v_offset = std::size_t(page_size) * head_dim * element;
  layout.head_bytes = layout.v_offset + std::size_t(page_size) * layout.v_stride * element;
  layout.scale_offset = round_up(n_kv_heads * layout.head_bytes, sizeof(float));
  const std::size_t scales =
      type == KvType::i8 ? std::size_t(n_kv_heads) * 2 * page_size * sizeof(float) : 0;
  layout.page_bytes = round_up(layout.scale_offset + scales, LINE);
  return layout;
}

std::size_t kv_page_bytes(KvType type, int page_size, int n_kv_heads, int head_dim) {
  return kv_layout(type, page_size, n_kv_heads, head_dim).page_bytes;
}

std::size_t attention_partial_floats(int rows, int head_dim) {
  return 2 * round_up(rows, VECTOR) + std::size_t(rows) * round_up(head_dim, VECTOR);
}

std::size_t attention_scratch_floats(int max_rows, int head_dim) {
  const std::size_t rows = round_up(max_rows, VECTOR);
  const std::size_t wide = round_up(head_dim, VECTOR);
  const std::size_t block = ATTENTION_BLOCK;
  return rows * (3 * wide + block + VECTOR + 5) + block * (2 * wide + 2);
}

AttentionPlan::AttentionPlan(Isa isa, int n_threads)
    : kernels_(attention_table(isa)), n_threads_(n_threads) {}

void AttentionPlan::build(const BatchView& batch, const PageTable& table,
                          const AttentionShape& shape) {
  tiles_.clear();
  tasks_.clear();
  units_.clear();
  n_partials_ = 0;
  const int step = queries_per_tile(shape);
  double cost = 0.0;
  for (int row = 0; row < batch.n_rows; ++row) {
    const int n = batch.row_start[row + 1] - batch.row_start[row];
    for (int i = (n - 1) / step * step; i >= 0 && n > 0; i -= step) {
      tiles_.push_back({table.pages + table.indptr[row], batch.row_start[row] + i,
                        batch.first_pos[row] + i, std::min(step, n - i)});
      cost += cost_of(tiles_.back(), shape) * shape.n_kv_heads;
    }
  }
  const double target = n_threads_ == 1 ? cost : cost / (n_threads_ * TASKS_PER_THREAD);
  for (const AttentionTile& tile : tiles_) add_tile(tile, shape, target);
  // One head's tasks are neighbours, so that they find its pages in cache: tiles of a prefill, and
  // single queries of branches that share a prefix. Small tasks come last, to end together.
  std::stable_sort(tasks_.begin(), tasks_.end(), [](const Task& a, const Task& b) {
    const auto key = [](const AttentionTask& task) {
      const bool single = task.tile.n_queries == 1;
      return std::make_tuple(single, task.kv_head, single ? task.part_begin : 0);
    };
    return key(a.work) < key(b.work);
  });
  cut_chunks(shape);
  reserve(shape);
}

void AttentionPlan::cut_chunks(const AttentionShape& shape) {
  chunk_end_.clear();
  double cost = 0.0;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    cost += cost_of(tasks_[i].work, shape);
    if (cost < CHUNK_COST && i + 1 < tasks_.size()) continue;
    chunk_end_.push_back(int(i) + 1);
    cost = 0.0;
  }
}

void AttentionPlan::add_tile(const AttentionTile& tile, const AttentionShape& shape,
                             double target) {
  const int begin = first_visible(tile, shape) / ATTENTION_PART;
  const int end = (tile.first_pos + tile.n_queries + ATTENTION_PART - 1) / ATTENTION_PART;
  const int wanted = int(std::min(double(end - begin), cost_of(tile, shape) / target + 0.5));
  const int n_tasks = std::max(1, wanted);
  for (int head = 0; head < shape.n_kv_heads; ++head) {
    const AttentionTask whole{tile, head, begin, end, nullptr};
    if (n_tasks == 1) {
      tasks_.push_back({whole, -1});
      continue;
    }
    const int unit = int(units_.size());
    units_.push_back({whole, n_tasks, n_partials_});
    n_partials_ += (end - begin) *
                   attention_partial_floats(tile.n_queries * group_of(shape), shape.head_dim);
    for (int i = 0; i < n_tasks; ++i) {
      AttentionTask part = whole;
      part.part_begin = begin + (end - begin) * i / n_tasks;
      part.part_end = begin + (end - begin) * (i + 1) / n_tasks;
      tasks_.push_back({part, unit});
    }
  }
}

void AttentionPlan::reserve(const AttentionShape& shape) {
  if (partials_.size() < n_partials_) partials_.resize(n_partials_);
  if (n_left_ < units_.size()) {
    n_left_ = 2 * units_.size();
    left_ = std::make_unique<std::atomic<int>[]>(n_left_);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = units_[i];
    unit.whole.partial = partials_.data() + unit.partial_at;
    left_[i].store(unit.n_tasks, std::memory_order_relaxed);
  }
  for (Task& task : tasks_) {
    if (task.unit < 0) continue;
    const AttentionTask& whole = units_[task.unit].whole;
    task.work.partial =
        whole.partial + (task.work.part_begin - whole.part_begin) *
                            attention_partial_floats(whole.tile.n_queries * group_of(shape),
                                                     shape.head_dim);
  }
  const int rows = queries_per_tile(shape) * group_of(shape);
  const std::size_t each =
      round_up(attention_scratch_floats(rows, shape.head_dim), LINE / sizeof(float));
  if (each > scratch_floats_) {
    scratch_floats_ = each;
    scratch_ = std::make_unique<float[]>(each * n_threads_ + LINE / sizeof(float));
  }
}

void AttentionPlan::run(Pool& pool, const AttentionCall& call) {
  float* scratch = aligned(scratch_.get());
  pool.run(int(chunk_end_.size()), [&](int chunk, int worker) {
    for (int i = chunk == 0 ? 0 : chunk_end_[chunk - 1]; i < chunk_end_[chunk]; ++i) {
      run_task(call, tasks_[i], scratch + worker * scratch_floats_);
    }
  });
}

void AttentionPlan::run_task(const AttentionCall& call, const Task& task, float* scratch) {
  kernels_.attend(call, task.work, scratch);
  if (task.unit < 0) return;
  // The last task of a unit folds it, and sets its count for the next layer.
  const Unit& unit = units_[task.unit];
  std::atomic<int>& left = left_[task.unit];
  if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  left.store(unit.n_tasks, std::memory_order_relaxed);
  kernels_.finish(call, unit.whole, scratch);
}

}  // namespace tenure
