#include <algorithm>
#include <vector>

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

// How one call is cut: blocks of rows by chunks of panels, counted through all parts.
struct Cut {
  int first_chunk;  // of the call, among all
  int block;        // rows
  int per_chunk;    // panels
  int n_panels;
  int n_chunks;  // of a block

  int n_blocks(int n_rows) const { return (n_rows + block - 1) / block; }
};

int count_panels(const LinearCall& call) {
  int n_panels = 0;
  for (int i = 0; i < call.n_parts; ++i) n_panels += call.parts[i].weights.n_panels();
  return n_panels;
}

// As many rows as fit, fewer where panels alone would not make the chunks wanted.
int rows_per_block(const LinearCall& call, int n_panels, int wanted) {
  const Packed& w = call.parts[0].weights;
  const std::size_t row_bytes = std::max(std::size_t(act_blocks(w.n_in)) * sizeof(ActBlock),
                                         is_float(w.format) ? w.n_in * sizeof(float) : 0);
  const int fit = std::max(int(ROW_BLOCK_BYTES / row_bytes) / ROW_STEP, 2);
  const int n_shares = (wanted + n_panels - 1) / n_panels;
  const int share = (call.n_rows / n_shares + ROW_STEP - 1) / ROW_STEP;
  return std::min(std::clamp(share, 1, fit) * ROW_STEP, call.n_rows);
}

int panels_per_chunk(const LinearCall& call, int n_panels, int n_blocks, int wanted) {
  const int each = std::max(1, wanted / n_blocks);
  const int even = (n_panels + each - 1) / each;
  if (call.n_rows > FEW_ROWS) return even;
  const Packed& w = call.parts[0].weights;
  const std::size_t panel_bytes = w.quant_bytes() + w.scale_bytes();
  return std::max(even, int((CHUNK_BYTES + panel_bytes - 1) / panel_bytes));
}

// `wanted` chunks, about.
Cut cut_call(const LinearCall& call, int first_chunk, int wanted) {
  Cut cut{first_chunk, 0, 0, count_panels(call), 0};
  cut.block = rows_per_block(call, cut.n_panels, wanted);
  cut.per_chunk = panels_per_chunk(call, cut.n_panels, cut.n_blocks(call.n_rows), wanted);
  cut.n_chunks = (cut.n_panels + cut.per_chunk - 1) / cut.per_chunk;
  return cut;
}

void run_chunk(const LinearTable& kernels, const LinearCall& call, const Cut& cut, int chunk) {
  const int row_begin = chunk / cut.n_chunks * cut.block;
  const int row_end = std::min(row_begin + cut.block, call.n_rows);
  // A chunk may span two parts.
  int begin = chunk % cut.n_chunks * cut.per_chunk;
  int end = std::min(begin + cut.per_chunk, cut.n_panels);
  for (int i = 0; i < call.n_parts && end > 0; ++i) {
    const int n_here = call.parts[i].weights.n_panels();
    if (begin < n_here) {
      kernels.panels(call, call.parts[i], begin, std::min(end, n_here), row_begin, row_end);
    }
    begin = std::max(0, begin - n_here);
    end -= n_here;
  }
}

}  // namespace

void run_linears(Pool& pool, const LinearTable& kernels, const LinearCall* calls, int n_calls) {
  double n_all = 0.0;
  for (int i = 0; i < n_calls; ++i) n_all += double(count_panels(calls[i])) * calls[i].n_rows;
  const double per_row = pool.n_threads() * CHUNKS_PER_THREAD / n_all;
  std::vector<Cut> cuts;
  cuts.reserve(std::size_t(n_calls));
  int n_chunks = 0;
  for (int i = 0; i < n_calls; ++i) {
    const double share = per_row * count_panels(calls[i]) * calls[i].n_rows;
    cuts.push_back(cut_call(calls[i], n_chunks, std::max(1, int(share + 0.5))));
    n_chunks += cuts.back().n_chunks * cuts.back().n_blocks(calls[i].n_rows);
  }
  pool.run(n_chunks, [&](int chunk, int) {
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), chunk,
                                        [](int c, const Cut& cut) { return c < cut.first_chunk; });
    const std::ptrdiff_t i = after - cuts.begin() - 1;
    run_chunk(kernels, calls[i], cuts[std::size_t(i)], chunk - cuts[std::size_t(i)].first_chunk);
  });
}

}  // namespace tenure
