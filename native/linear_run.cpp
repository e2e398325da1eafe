#include <algorithm>

#include "linear.hpp"

namespace tenure {
namespace {

// Rows whose activations stay in a core's second-level cache while panels pass over them.
constexpr std::size_t ROW_BLOCK_BYTES = std::size_t(384) * 1024;
// Weights of one chunk: enough to make taking a chunk cheap.
constexpr std::size_t CHUNK_BYTES = std::size_t(24) * 1024;
constexpr int CHUNKS_PER_THREAD = 6;

int rows_per_block(const LinearCall& call) {
  const Packed& w = call.parts[0].weights;
  const std::size_t row_bytes = call.quantized != nullptr
                                    ? std::size_t(w.n_groups()) * sizeof(ActBlock)
                                    : std::size_t(w.n_in) * sizeof(float);
  const std::size_t fit = std::max<std::size_t>(ROW_BLOCK_BYTES / row_bytes, 24);
  return int(std::min<std::size_t>(fit / 12 * 12, std::size_t(call.n_rows)));
}

}  // namespace

void run_linear(Pool& pool, const LinearTable& kernels, const LinearCall& call) {
  int n_pairs = 0;
  for (int i = 0; i < call.n_parts; ++i) n_pairs += (call.parts[i].weights.n_panels() + 1) / 2;
  const int block = rows_per_block(call);
  const int n_blocks = (call.n_rows + block - 1) / block;
  const Packed& first = call.parts[0].weights;
  const std::size_t pair_bytes = 2 * (first.quant_bytes() + first.scale_bytes());
  const int smallest = call.n_rows > 8 ? 1 : int(std::max<std::size_t>(1, CHUNK_BYTES / pair_bytes));
  const int wanted = std::max(1, pool.n_threads() * CHUNKS_PER_THREAD / n_blocks);
  const int per_chunk = std::max(smallest, (n_pairs + wanted - 1) / wanted);
  const int n_chunks = (n_pairs + per_chunk - 1) / per_chunk;
  pool.run(n_blocks * n_chunks, [&](int chunk, int) {
    const int row_begin = chunk / n_chunks * block;
    const int row_end = std::min(row_begin + block, call.n_rows);
    int begin = chunk % n_chunks * per_chunk;
    int end = std::min(begin + per_chunk, n_pairs);
    for (int i = 0; i < call.n_parts && end > 0; ++i) {
      const LinearPart& part = call.parts[i];
      const int n_panels = part.weights.n_panels();
      const int n_here = (n_panels + 1) / 2;
      if (begin < n_here) {
        kernels.panels(call, part, 2 * begin, std::min(2 * std::min(end, n_here), n_panels),
                       row_begin, row_end);
      }
      begin = std::max(0, begin - n_here);
      end -= n_here;
    }
  });
}

}  // namespace tenure
