// A small thread pool that runs one parallel region at a time.
//
// Work is cut into chunks that threads take from one atomic counter, so a thread that loses its
// core delays a region by at most the one chunk it holds; the caller works too and never waits for
// a thread that has taken nothing. Idle threads spin for a bounded time, then sleep.
//
// Chunk boundaries must not change results: a chunk writes outputs of its own, and every output
// element is computed whole by one chunk, in an order that its position alone fixes.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace tenure {

class Pool {
 public:
  // `n_threads` counts the caller's thread; 1 starts no other thread. Must be at least 1.
  explicit Pool(int n_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int n_threads() const { return n_threads_; }

  // Calls body(chunk, worker) once for every chunk in [0, n_chunks), and returns when all are done.
  // `worker` in [0, n_threads) is unique among the calls that run at the same time: use it to index
  // scratch. `body` must not throw and must not call run() on the same pool. One chunk, or one
  // thread, runs inline on the caller (worker 0). Chunks start in rising order.
  template <class Body>
  void run(int n_chunks, Body&& body) {
    static_assert(std::is_invocable_v<Body&, int, int>);
    auto call = [](void* context, int chunk, int worker) {
      (*static_cast<std::remove_reference_t<Body>*>(context))(chunk, worker);
    };
    run_erased(n_chunks, call, const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Splits [0, n) into ranges of at least `grain` items, at most `per_thread` ranges a thread, and
  // calls body(begin, end, worker) for each. Range bounds are multiples of `grain` (except n).
  template <class Body>
  void run_ranges(int n, int grain, Body&& body, int per_thread = 4) {
    const int n_grains = (n + grain - 1) / grain;
    const int wanted = n_threads_ == 1 ? 1 : n_threads_ * per_thread;
    const int n_chunks = n_grains < wanted ? n_grains : wanted;
    run(n_chunks, [&](int chunk, int worker) {
      const int begin = int(std::ptrdiff_t(n_grains) * chunk / n_chunks) * grain;
      const int stop = int(std::ptrdiff_t(n_grains) * (chunk + 1) / n_chunks) * grain;
      body(begin, stop < n ? stop : n, worker);
    });
  }

 private:
  using Erased = void (*)(void* context, int chunk, int worker);
  struct State;
  struct StateDeleter {
    void operator()(State* state) const;
  };

  void run_erased(int n_chunks, Erased body, void* context);

  int n_threads_;
  std::unique_ptr<State, StateDeleter> state_;
};

}  // namespace tenure
