#include <algorithm>

#include "linear.hpp"

namespace tenure {
namespace {

// Rows whose activations stay in a core's second-level cache while panels pass over them.
constexpr std::size_t ROW_BLOCK_BYTES = std::size_t(384) * 1024;
// Weights of one chunk: enough to make taking a chunk cheap, where they are read for few rows.
constexpr std::size_t CHUNK_BYTES = std::size_t(24) * 1024;
constexpr int FEW_ROWS = 8;
constexpr int CHUNKS_PER_THREAD = 6;
// A multiple of the rows of every tile.
constexpr int ROW_STEP = 12;

// As many rows as fit, fewer where panels alone would not keep every thread busy.
int rows_per_block(const LinearCall& call, int n_panels, int n_threads) {
  const Packed& w = call.parts[0].weights;
  const std::size_t row_bytes = std::max(std::size_t(act_blocks(w.n_in)) * sizeof(ActBlock),
                                         is_float(w.format) ? w.n_in * sizeof(float) : 0);
  const int fit = std::max(int(ROW_BLOCK_BYTES / row_bytes) / ROW_STEP, 2);
  const int n_shares = (n_threads * CHUNKS_PER_THREAD + n_panels - 1) / n_panels;
  const int share = (call.n_rows / n_shares + ROW_STEP - 1) / ROW_STEP;
  return std::min(std::clamp(share, 1, fit) * ROW_STEP, call.n_rows);
}

int panels_per_chunk(const LinearCall& call, int n_panels, int n_blocks, int n_threads) {
  const int wanted = std::max(1, n_threads * CHUNKS_PER_THREAD / n_blocks);
  const int even = (n_panels + wanted - 1) / wanted;
  if (call.n_rows > FEW_ROWS) return even;
  const Packed& w = call.parts[0].weights;
  const std::size_t panel_bytes = w.quant_bytes() + w.scale_bytes();
  return std::max(even, int((CHUNK_BYTES + panel_bytes - 1) / panel_bytes));
}

}  // namespace

void run_linear(Pool& pool, const LinearTable& kernels, const LinearCall& call) {
  int n_panels = 0;
  for (int i = 0; i < call.n_parts; ++i) n_panels += call.parts[i].weights.n_panels();
  const int block = rows_per_block(call, n_panels, pool.n_threads());
  const int n_blocks = (call.n_rows + block - 1) / block;
  const int per_chunk = panels_per_chunk(call, n_panels, n_blocks, pool.n_threads());
  const int n_chunks = (n_panels + per_chunk - 1) / per_chunk;
  pool.run(n_blocks * n_chunks, [&](int chunk, int) {
    const int row_begin = chunk / n_chunks * block;
    const int row_end = std::min(row_begin + block, call.n_rows);
    // Panels are counted through all parts; a chunk may span two.
    int begin = chunk % n_chunks * per_chunk;
    int end = std::min(begin + per_chunk, n_panels);
    for (int i = 0; i < call.n_parts && end > 0; ++i) {
      const int n_here = call.parts[i].weights.n_panels();
      if (begin < n_here) {
        kernels.panels(call, call.parts[i], begin, std::min(end, n_here), row_begin, row_end);
      }
      begin = std::max(0, begin - n_here);
      end -= n_here;
    }
  });
}

}  // namespace tenure
