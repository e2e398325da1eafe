#include "pool.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tenure {
namespace {

// How long a thread spins before it sleeps: longer than the serial work between two regions of one
// forward pass, short beside a scheduler's time slice.
constexpr std::chrono::microseconds SPIN{40};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or until SPIN has passed; says whether it became ready.
template <class Ready>
bool spin_until(Ready&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

// A worker gives up its core this often, between chunks: a scheduler that would soon take the core
// for another process then takes it here, and not in the middle of a chunk that others wait for.
constexpr std::chrono::microseconds TURN{200};

// Counts the forks that led to this process, so that a pool sees that its threads are gone.
std::atomic<unsigned> fork_count{0};

void watch_forks() {
  static const int registered = pthread_atfork(
      nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
}

// A ticket holds what a thread needs to take a chunk in one compare-and-swap: the region's number
// in the high half, the chunks not yet taken in the low half.
constexpr std::uint64_t make_ticket(std::uint32_t region, std::uint32_t left) {
  return std::uint64_t(region) << 32 | left;
}
constexpr std::uint32_t region_of(std::uint64_t ticket) { return std::uint32_t(ticket >> 32); }
constexpr std::uint32_t left_of(std::uint64_t ticket) { return std::uint32_t(ticket); }

}  // namespace

// Invariant: `body`, `context` and `n_chunks` belong to the region named by `ticket` whenever that
// region has chunks left; they change only when every chunk of the last region is done.
struct Pool::State {
  explicit State(int n_threads) : forks(fork_count.load(std::memory_order_relaxed)) {
    threads.reserve(std::size_t(n_threads - 1));
    for (int worker = 1; worker < n_threads; ++worker) {
      threads.emplace_back([this, worker] { serve(worker); });
    }
  }

  ~State() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stopping.store(true);
    }
    work_ready.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void run(std::uint32_t n, Erased new_body, void* new_context) {
    body.store(new_body, std::memory_order_relaxed);
    context.store(new_context, std::memory_order_relaxed);
    n_chunks.store(n, std::memory_order_relaxed);
    n_done.store(0, std::memory_order_relaxed);
    const std::uint32_t region = region_of(ticket.load(std::memory_order_relaxed)) + 1;
    ticket.store(make_ticket(region, n));  // sequentially consistent: pairs with n_asleep
    if (n_asleep.load() > 0) {
      { const std::lock_guard<std::mutex> lock(mutex); }
      work_ready.notify_all();
    }
    take_chunks(0);
    if (spin_until([&] { return n_done.load(std::memory_order_acquire) == n; })) return;
    std::unique_lock<std::mutex> lock(mutex);
    caller_asleep.store(true);
    all_done.wait(lock, [&] { return n_done.load() == n; });
    caller_asleep.store(false);
  }

  // Takes and runs chunks of the current region until none is left.
  void take_chunks(int worker) { take_chunks(worker, [] {}); }

  template <class Between>
  void take_chunks(int worker, Between&& between) {
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    while (left_of(seen) > 0) {
      between();
      // Read before the swap: if it succeeds, the region still ran and these are its own.
      const Erased run_body = body.load(std::memory_order_relaxed);
      void* const run_context = context.load(std::memory_order_relaxed);
      const std::uint32_t n = n_chunks.load(std::memory_order_relaxed);
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        continue;
      }
      run_body(run_context, int(n - left_of(seen)), worker);
      if (n_done.fetch_add(1) + 1 == n && caller_asleep.load()) {
        { const std::lock_guard<std::mutex> lock(mutex); }
        all_done.notify_one();
      }
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void serve(int worker) {
    auto turn_ends = std::chrono::steady_clock::now() + TURN;
    const auto offer_core = [&] {
      if (std::chrono::steady_clock::now() < turn_ends) return;
      std::this_thread::yield();
      turn_ends = std::chrono::steady_clock::now() + TURN;
    };
    while (!stopping.load(std::memory_order_relaxed)) {
      take_chunks(worker, offer_core);
      const auto awake = [&] {
        return left_of(ticket.load(std::memory_order_relaxed)) > 0 ||
               stopping.load(std::memory_order_relaxed);
      };
      if (spin_until(awake)) continue;
      std::unique_lock<std::mutex> lock(mutex);
      n_asleep.fetch_add(1);
      work_ready.wait(lock, [&] { return left_of(ticket.load()) > 0 || stopping.load(); });
      n_asleep.fetch_sub(1);
    }
  }

  // What threads write often lies on cache lines of its own.
  alignas(64) std::atomic<std::uint64_t> ticket{0};
  alignas(64) std::atomic<std::uint32_t> n_done{0};
  alignas(64) std::atomic<Erased> body{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<std::uint32_t> n_chunks{0};
  std::atomic<int> n_asleep{0};
  std::atomic<bool> caller_asleep{false};
  std::atomic<bool> stopping{false};
  unsigned forks;
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable all_done;
  std::vector<std::thread> threads;
};

void Pool::StateDeleter::operator()(State* state) const {
  // After a fork the threads exist in the parent only: nothing to join, and the memory is left.
  if (state->forks == fork_count.load(std::memory_order_relaxed)) delete state;
}

Pool::Pool(int n_threads) : n_threads_(n_threads) {
  watch_forks();
  state_.reset(new State(n_threads));
}

Pool::~Pool() = default;

void Pool::run_erased(int n_chunks, Erased body, void* context) {
  if (n_threads_ == 1 || n_chunks <= 1) {
    for (int chunk = 0; chunk < n_chunks; ++chunk) body(context, chunk, 0);
    return;
  }
  if (state_->forks != fork_count.load(std::memory_order_relaxed)) {
    state_.reset(new State(n_threads_));
  }
  state_->run(std::uint32_t(n_chunks), body, context);
}

}  // namespace tenure
