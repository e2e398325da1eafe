#include <memory>

#include "../attention.hpp"
#include "../attention_plan.hpp"
#include "digest.hpp"

namespace tenure::check {
namespace {

struct Case {
  const char* name;
  KvType type;
  int page_size;
  AttentionShape shape;
  bool sinks;
};

// Shapes: heads, KV heads, head_dim, window, scale, softcap.
constexpr Case CASES[] = {
    {"f16", KvType::f16, 32, {6, 2, 64, 0, 0.125f, 0.0f}, false},
    {"f16-window-cap-sinks", KvType::f16, 16, {6, 2, 80, 33, 0.125f, 30.0f}, true},
    {"f16-short-pages", KvType::f16, 8, {4, 4, 24, 0, 0.25f, 0.0f}, true},
    {"f32", KvType::f32, 64, {9, 1, 32, 0, 0.25f, 0.0f}, false},
    {"f32-short-pages", KvType::f32, 4, {4, 2, 20, 100, 0.25f, 0.0f}, false},
    {"i8", KvType::i8, 32, {6, 2, 64, 0, 0.125f, 0.0f}, false},
    {"i8-pages-of-one-cap", KvType::i8, 1, {3, 1, 24, 50, 0.25f, 5.0f}, true},
};

// Queries of one sequence: `n` from position `first` on.
struct Queries {
  int first;
  int n;
};
constexpr Queries SEQUENCES[] = {{0, 70}, {19, 5}, {600, 1}, {250, 12}};
constexpr int N_ROWS = 4;

// A batch of the sequences: of their queries, or of every position up to the last query.
struct Batch {
  explicit Batch(bool whole) {
    for (int row = 0; row < N_ROWS; ++row) {
      const Queries& queries = SEQUENCES[row];
      row_start.push_back(int(position.size()));
      first_pos.push_back(whole ? 0 : queries.first);
      for (int x = first_pos.back(); x < queries.first + queries.n; ++x) {
        position.push_back(x);
        row_of.push_back(row);
      }
    }
    row_start.push_back(int(position.size()));
  }
  int n_tokens() const { return int(position.size()); }
  BatchView view() const {
    return {n_tokens(),     N_ROWS, nullptr, row_start.data(), first_pos.data(), row_of.data(),
            position.data()};
  }
  std::vector<std::int32_t> row_start;
  std::vector<std::int32_t> first_pos;
  std::vector<std::int32_t> row_of;
  std::vector<std::int32_t> position;
};

// Pages of every sequence, the last page first in memory.
struct Store {
  explicit Store(const Case& c)
      : layout(kv_layout(c.type, c.page_size, c.shape.n_kv_heads, c.shape.head_dim)) {
    indptr.push_back(0);
    for (const Queries& queries : SEQUENCES) {
      const int n_pages = (queries.first + queries.n + c.page_size - 1) / c.page_size;
      indptr.push_back(indptr.back() + n_pages);
    }
    for (int i = indptr.back(); i > 0; --i) pages.push_back(i - 1);
    memory.resize(pages.size() * layout.page_bytes + 64);
    void* at = memory.data();
    std::size_t space = memory.size();
    std::align(64, memory.size() - 64, at, space);
    kv = {static_cast<std::byte*>(at), layout.page_bytes,    c.type,
          c.page_size,                 c.shape.n_kv_heads, c.shape.head_dim};
  }
  PageTable table() const { return {indptr.data(), pages.data()}; }
  std::size_t bytes() const { return pages.size() * layout.page_bytes; }

  KvLayout layout;
  KvLayer kv;
  std::vector<std::int32_t> indptr;
  std::vector<std::int32_t> pages;
  std::vector<std::byte> memory;
};

// Mostly of order 1; some are subnormal halves, and where `huge` some are beyond the largest one.
std::vector<float> keys(Random& random, std::size_t n, bool huge) {
  std::vector<float> x = random.numbers(n, 2.0f);
  for (float& value : x) {
    const int kind = random.below(64);
    if (kind < 4) value *= 0x1p-18f;
    if (kind == 4 && huge) value *= 0x1p17f;
  }
  return x;
}

void digest_case(const Context& context, const Case& c) {
  Random random(2);
  const AttentionTable& kernels = attention_table(context.isa);
  const Batch whole(true);
  const Batch queries(false);
  Store store(c);
  Digest digest;

  const std::ptrdiff_t kv_width = c.shape.n_kv_heads * c.shape.head_dim;
  const std::size_t n_new = std::size_t(whole.n_tokens() * kv_width);
  const std::vector<float> k = keys(random, n_new, false);
  const std::vector<float> v = keys(random, n_new, true);
  const KvWrite write{store.kv, store.layout, store.table(), k.data(), v.data(), kv_width};
  kernels.write_kv(write, whole.view(), 0, whole.n_tokens());
  digest.add(store.kv.base, store.bytes());

  const std::ptrdiff_t q_width = c.shape.n_heads * c.shape.head_dim;
  const std::vector<float> q = random.numbers(std::size_t(queries.n_tokens() * q_width), 4.0f);
  const std::vector<float> sinks = random.numbers(std::size_t(c.shape.n_heads), 2.0f);
  std::vector<float> out(q.size());
  AttentionPlan plan(context.isa, context.pool.n_threads());
  plan.build(queries.view(), store.table(), c.shape);
  plan.run(context.pool, {c.shape, store.kv, store.layout, q.data(), q_width, out.data(), q_width,
                          c.sinks ? sinks.data() : nullptr});
  digest.add(out);
  context.report(std::string("attention/") + c.name, digest);
}

}  // namespace

void digest_attention(const Context& context) {
  for (const Case& c : CASES) digest_case(context, c);
}

}  // namespace tenure::check
