// How one step's attention is cut into tasks for the pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "attention.hpp"
#include "pool.hpp"

namespace tenure {

// The tasks of one batch for layers of one shape that share a page table. Built once a step, run
// once a layer. Results do not depend on the cut (see attention.hpp), so it follows cost alone:
// few large tiles are split over parts until every thread has several tasks.
class AttentionPlan {
 public:
  AttentionPlan(Isa isa, int n_threads);

  // Reads `batch` and `table` now; of both, only table.pages must outlive the runs.
  void build(const BatchView& batch, const PageTable& table, const AttentionShape& shape);

  // `call.shape` must equal the shape of build() in all but scale and softcap.
  void run(Pool& pool, const AttentionCall& call);

 private:
  struct Task {
    AttentionTask work;
    int unit;  // index into units_ where the unit is split, -1 otherwise
  };
  // A tile and KV head whose parts are spread over several tasks.
  struct Unit {
    AttentionTask whole;
    int n_tasks;
    std::size_t partial_at;
  };

  void add_tile(const AttentionTile& tile, const AttentionShape& shape, double target);
  void cut_chunks(const AttentionShape& shape);
  void reserve(const AttentionShape& shape);
  void run_task(const AttentionCall& call, const Task& task, float* scratch);

  const AttentionTable& kernels_;
  int n_threads_;
  std::vector<AttentionTile> tiles_;
  std::vector<Task> tasks_;
  std::vector<int> chunk_end_;  // tasks [chunk_end_[i - 1], chunk_end_[i]) are handed out together
  std::vector<Unit> units_;
  std::unique_ptr<std::atomic<int>[]> left_;  // tasks of each unit still to finish
  std::size_t n_left_ = 0;
  std::vector<float> partials_;
  std::size_t n_partials_ = 0;
  std::unique_ptr<float[]> scratch_;
  std::size_t scratch_floats_ = 0;
};

}  // namespace tenure
