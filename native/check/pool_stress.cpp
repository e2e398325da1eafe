// Exercises the pool for the thread sanitizer: every chunk runs once, its writes are seen by the
// caller, and workers that sleep, spin or arrive late disturb nothing. Exits with 0 when all held.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../pool.hpp"

namespace {

void fail(const char* what) {
  std::fprintf(stderr, "pool_stress: %s\n", what);
  std::exit(1);
}

// Regions of changing size in quick succession; plain ints, so that a missed hand-over is a race.
void run_regions(tenure::Pool& pool, int n_regions) {
  std::vector<int> hits(64);
  for (int region = 0; region < n_regions; ++region) {
    const int n = 1 + region * 7 % 64;
    std::vector<int> busy(std::size_t(pool.n_threads()));
    pool.run(n, [&](int chunk, int worker) {
      hits[std::size_t(chunk)] += 1;
      busy[std::size_t(worker)] += 1;
    });
    int total = 0;
    for (int n_run : busy) total += n_run;
    if (total != n) fail("a chunk was lost or ran twice");
    for (int chunk = 0; chunk < n; ++chunk) {
      if (hits[std::size_t(chunk)] != 1) fail("a chunk ran not once");
      hits[std::size_t(chunk)] = 0;
    }
  }
}

void check_ranges(tenure::Pool& pool) {
  for (int n : {1, 5, 8, 100, 1000}) {
    std::vector<int> seen(std::size_t(n), 0);
    pool.run_ranges(n, 8, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) seen[std::size_t(i)] += 1;
    });
    for (int count : seen) {
      if (count != 1) fail("ranges do not cover once");
    }
  }
}

}  // namespace

int main() {
  for (int n_threads : {1, 2, 3, 8}) {
    tenure::Pool pool(n_threads);
    run_regions(pool, 3000);
    check_ranges(pool);
    // Long enough for the workers to fall asleep, then work again.
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      run_regions(pool, 5);
    }
  }
  // Pools that are dropped while their workers spin, sleep or have not started.
  for (int i = 0; i < 50; ++i) {
    tenure::Pool pool(3);
    if (i % 2 == 0) run_regions(pool, 1 + i % 5);
  }
  return 0;
}
