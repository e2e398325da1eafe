#include "choose.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace tenure {
namespace {

constexpr double NEVER = -std::numeric_limits<double>::infinity();
// Running sums are kept at this many ids, so that a draw rescans one stretch only.
constexpr std::size_t STRETCH = 512;

// Orders ids by falling value, then by rising id.
struct Falling {
  const double* values;
  bool operator()(int a, int b) const {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  }
};

// Bans each id whose bit is 0 or missing.
void keep_allowed(const std::vector<std::uint8_t>& allowed, std::vector<double>& logits) {
  for (std::size_t start = 0; start < logits.size(); start += 8) {
    const unsigned bits = start / 8 < allowed.size() ? allowed[start / 8] : 0;
    if (bits == 0xff) continue;
    const std::size_t n = std::min<std::size_t>(8, logits.size() - start);
    for (std::size_t i = 0; i < n; ++i) {
      if (!(bits >> i & 1)) logits[start + i] = NEVER;
    }
  }
}

// Step 2 and 3 of the sampler.
void adjust(const ChoiceRequest& request, std::vector<double>& logits) {
  std::map<int, int> counts;
  for (const int id : request.output) ++counts[id];
  for (const auto& [id, count] : counts) {
    double value = logits[id] - request.frequency_penalty * count;
    value -= request.presence_penalty;
    const double r = request.repetition_penalty;
    logits[id] = value > 0.0 ? value / r : value * r;
  }
  for (const TokenBias& entry : request.bias) logits[entry.id] += entry.bias;
  for (const int id : request.banned) logits[id] = NEVER;
  if (request.masked) keep_allowed(request.allowed, logits);
}

// log x for x >= 1 to about 1 ulp, without the C library, whose result differs between machines.
// x = 2^e m with m in [0.7, 1.42); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.18.
double log_above_one(double x) {
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752440) {
    m *= 2.0;
    --e;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double y = s * s;
  double p = 0.0;
  for (int k = 21; k >= 3; k -= 2) p = (p + 1.0 / k) * y;
  const double log_m = 2.0 * (s + s * p);
  return e * 6.93147180369123816490e-01 + (log_m + e * 1.90821492927058770002e-10);
}

// A number that falls as a weight in (0, 1] rises: its distance from 1 in units of 2^-8 of the
// leading digit, so that a bucket spans a 256th of a power of two. The last one takes all the rest.
constexpr int N_BUCKETS = 1 << 13;
int bucket_of(double weight) {
  std::uint64_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  constexpr std::uint64_t ONE = std::uint64_t(1023) << 52;
  return int(std::min<std::uint64_t>((ONE - bits) >> 44, N_BUCKETS - 1));
}

// The lowest index whose running sum exceeds u times the total; where u * total rounds up to the
// total, the first index that reaches it.
std::size_t draw(const double* weights, std::size_t n, double u) {
  std::vector<double> before;
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    if (i % STRETCH == 0) before.push_back(total);
    total += weights[i];
  }
  const double bound = u * total;
  std::size_t stretch = before.size() - 1;
  while (stretch > 0 && (before[stretch] > bound || before[stretch] >= total)) --stretch;
  double running = before[stretch];
  for (std::size_t i = stretch * STRETCH; i < n; ++i) {
    running += weights[i];
    if (running > bound || running >= total) return i;
  }
  return n - 1;
}

}  // namespace

double choice_uniform(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1);
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9u;
  z ^= z >> 27;
  z *= 0x94D049BB133111EBu;
  z ^= z >> 31;
  return double(z >> 11) * 0x1p-53;
}

// One row's choice, over the scratch of one thread.
class Chooser::Row {
 public:
  Row(const ChooseTable& kernels, const float* logits, int n, Scratch& scratch)
      : kernels_(kernels),
        raw_(logits),
        n_(n),
        scratch_(scratch),
        largest_(kernels.largest(logits, n)) {}

  Chosen choose(const ChoiceRequest& request) {
    Chosen chosen;
    if (!largest_.finite) {
      chosen.error = ChoiceError::non_finite;
      return chosen;
    }
    chosen.token = request.given != NOT_GIVEN ? request.given : pick(request);
    if (chosen.token == NOT_GIVEN) chosen.error = ChoiceError::all_banned;
    if (chosen.token != NOT_GIVEN && (request.scored || request.given != NOT_GIVEN)) {
      score(request, chosen);
    }
    return chosen;
  }

 private:
  int pick(const ChoiceRequest& request) {
    if (!request.adjusts() && request.temperature == 0.0) return largest_.index;
    widen();
    std::vector<double>& logits = scratch_.logits;
    double top = largest_.value;
    if (request.adjusts()) {
      adjust(request, logits);
      const auto best = std::max_element(logits.begin(), logits.end());
      if (*best == NEVER) return NOT_GIVEN;
      if (request.temperature == 0.0) return int(best - logits.begin());
      top = *best;
    }
    const double u = choice_uniform(request.seed, request.position);
    std::vector<double>& weights = scratch_.weights;
    if (request.top_k > 0 && request.top_k < n_) {
      keep_largest(request.top_k);
      weigh_ids(top, request.temperature);
    } else {
      weights.resize(n_);
      kernels_.weigh(logits.data(), n_, top, request.temperature, weights.data());
      if (request.top_p >= 1.0 && request.min_p <= 0.0) return int(draw(weights.data(), n_, u));
      keep_likely(request);
    }
    if (request.top_p < 1.0) keep_nucleus(request.top_p);
    if (request.min_p > 0.0) {
      drop_if([&](int id) { return weights[id] < request.min_p; });
    }
    std::vector<double>& kept = scratch_.blocks;
    kept.clear();
    for (const int id : scratch_.ids) kept.push_back(weights[id]);
    return scratch_.ids[draw(kept.data(), kept.size(), u)];
  }

  void widen() {
    scratch_.logits.resize(n_);
    kernels_.widen(raw_, n_, scratch_.logits.data());
  }

  template <class Test>
  void drop_if(Test test) {
    std::vector<int>& ids = scratch_.ids;
    ids.erase(std::remove_if(ids.begin(), ids.end(), test), ids.end());
  }

  // ids = the k largest logits above -inf, ties to the lowest ids, rising; 0 < k < n. No id is
  // below the k-th largest of the blocks' maxima, since k blocks hold one at least as large.
  void keep_largest(int k) {
    const double* logits = scratch_.logits.data();
    std::vector<double>& blocks = scratch_.blocks;
    const int n_blocks = (n_ + CHOOSE_BLOCK - 1) / CHOOSE_BLOCK;
    blocks.resize(2 * std::size_t(n_blocks));
    kernels_.block_largest(logits, n_, blocks.data());
    double bound = -std::numeric_limits<double>::max();
    if (k <= n_blocks) {
      const auto order = blocks.begin() + n_blocks;
      std::copy(blocks.begin(), order, order);
      std::nth_element(order, order + (k - 1), blocks.end(), std::greater<>());
      bound = std::max(bound, order[k - 1]);
    }
    std::vector<int>& ids = scratch_.ids;
    ids.clear();
    for (int b = 0; b < n_blocks; ++b) {
      if (blocks[b] < bound) continue;
      const int end = std::min(n_, (b + 1) * CHOOSE_BLOCK);
      for (int id = b * CHOOSE_BLOCK; id < end; ++id) {
        if (logits[id] >= bound) ids.push_back(id);
      }
    }
    if (std::size_t(k) < ids.size()) {
      std::nth_element(ids.begin(), ids.begin() + k, ids.end(), Falling{logits});
      ids.resize(k);
      std::sort(ids.begin(), ids.end());
    }
  }

  // weights[id] for the ids alone.
  void weigh_ids(double top, double temperature) {
    const std::vector<int>& ids = scratch_.ids;
    std::vector<double>& packed = scratch_.blocks;
    packed.resize(ids.size());
    scratch_.weights.resize(n_);
    for (std::size_t i = 0; i < ids.size(); ++i) packed[i] = scratch_.logits[ids[i]];
    kernels_.weigh(packed.data(), int(ids.size()), top, temperature, packed.data());
    for (std::size_t i = 0; i < ids.size(); ++i) scratch_.weights[ids[i]] = packed[i];
  }

  // ids = those that the filters can keep, out of the whole vocabulary: at least min_p; and since
  // all weights below (1 - top_p) total / n together are at most (1 - top_p) total, at least half
  // of that (half, for the rounding of the sums).
  void keep_likely(const ChoiceRequest& request) {
    const std::vector<double>& weights = scratch_.weights;
    total_ = std::accumulate(weights.begin(), weights.end(), 0.0);
    double bound = request.min_p;
    if (request.top_p < 1.0) bound = 0.5 * (1.0 - request.top_p) * total_ / n_;
    std::vector<int>& ids = scratch_.ids;
    ids.resize(n_);
    std::size_t kept = 0;
    for (int id = 0; id < n_; ++id) {
      ids[kept] = id;
      kept += weights[id] >= bound && weights[id] > 0.0;
    }
    ids.resize(kept);
  }

  // ids = the shortest prefix of the ids, by falling weight, whose sum reaches its share. Buckets
  // of falling weight are sorted one by one until then, so that the tail never is.
  void keep_nucleus(double top_p) {
    std::vector<int>& ids = scratch_.ids;
    const double* weights = scratch_.weights.data();
    if (total_ == 0.0) {
      for (const int id : ids) total_ += weights[id];
    }
    const double share = top_p * total_;
    sort_into_buckets();
    double running = 0.0;
    std::size_t kept = 0;
    for (int bucket = 0; kept < ids.size() && running < share; ++bucket) {
      const auto end = ids.begin() + scratch_.bucket_end[bucket];
      std::sort(ids.begin() + std::ptrdiff_t(kept), end, Falling{weights});
      while (ids.begin() + std::ptrdiff_t(kept) != end && running < share) {
        running += weights[ids[kept++]];
      }
    }
    const int last = ids[kept - 1];
    ids.swap(scratch_.sorted);  // rising again
    drop_if([&](int id) { return Falling{weights}(last, id); });
  }

  // Orders the ids by bucket_of their weights, keeping their order inside one; `sorted` gets them
  // as they were.
  void sort_into_buckets() {
    const double* weights = scratch_.weights.data();
    std::vector<int>& ids = scratch_.ids;
    std::vector<int>& end = scratch_.bucket_end;
    end.assign(N_BUCKETS, 0);
    for (const int id : ids) ++end[bucket_of(weights[id])];
    int start = 0;
    for (int& n : end) start += std::exchange(n, start);
    scratch_.sorted.resize(ids.size());
    for (const int id : ids) scratch_.sorted[end[bucket_of(weights[id])]++] = id;
    ids.swap(scratch_.sorted);
  }

  void score(const ChoiceRequest& request, Chosen& chosen) {
    const double top = largest_.value;
    const double log_total = log_above_one(kernels_.sum_exp(raw_, n_, top));
    const auto logprob = [&](int id) { return (double(raw_[id]) - top) - log_total; };
    chosen.scored = true;
    chosen.logprob = logprob(chosen.token);
    for (const int id : request.scored_ids) chosen.ids.push_back({logprob(id), id});
    if (request.n_top <= 0) return;
    widen();
    std::vector<int>& ids = scratch_.ids;
    if (request.n_top < n_) {
      keep_largest(request.n_top);
    } else {
      ids.resize(n_);
      std::iota(ids.begin(), ids.end(), 0);
    }
    std::sort(ids.begin(), ids.end(), Falling{scratch_.logits.data()});
    for (const int id : ids) chosen.top.push_back({logprob(id), id});
  }

  const ChooseTable& kernels_;
  const float* raw_;
  int n_;
  Scratch& scratch_;
  Largest largest_;
  double total_ = 0.0;  // of what top_p takes its share from; 0 until known
};

Chooser::Chooser(Isa isa, int n_threads) : kernels_(choose_table(isa)), scratch_(n_threads) {}

std::vector<Chosen> Chooser::run(Pool& pool, const float* logits, std::ptrdiff_t stride,
                                 int n_vocab, const std::vector<ChoiceRequest>& requests) {
  std::vector<Chosen> chosen(requests.size());
  pool.run(int(requests.size()), [&](int row, int worker) {
    chosen[row] =
        Row(kernels_, logits + row * stride, n_vocab, scratch_[worker]).choose(requests[row]);
  });
  return chosen;
}

}  // namespace tenure
