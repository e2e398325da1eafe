#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tenure {
namespace {

constexpr std::size_t HUGE_PAGE = std::size_t(2) << 20;
constexpr std::size_t ARENA_SLAB = std::size_t(64) << 20;

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

// Maps more than asked and trims it, so that a large slab starts on a huge page.
Slab::Slab(std::size_t n_bytes) {
  if (n_bytes == 0) return;
  const bool huge = n_bytes >= HUGE_PAGE;
  size_ = round_up(n_bytes, huge ? HUGE_PAGE : 4096);
  const std::size_t mapped = size_ + (huge ? HUGE_PAGE : 0);
  void* const base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<std::byte*>(base);
  data_ = first;
  if (!huge) return;
  const std::size_t skip = round_up(reinterpret_cast<std::size_t>(first), HUGE_PAGE) -
                           reinterpret_cast<std::size_t>(first);
  data_ = first + skip;
  if (skip > 0) munmap(first, skip);
  if (skip < HUGE_PAGE) munmap(data_ + size_, HUGE_PAGE - skip);
#ifdef MADV_HUGEPAGE
  madvise(data_, size_, MADV_HUGEPAGE);
#endif
}

Slab::~Slab() {
  if (data_ != nullptr) munmap(data_, size_);
}

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::byte* Arena::take(std::size_t n_bytes) {
  const std::size_t wanted = round_up(n_bytes, 64);
  if (wanted > left_) {
    slabs_.emplace_back(std::max(wanted, ARENA_SLAB));
    next_ = slabs_.back().data();
    left_ = slabs_.back().size();
  }
  std::byte* const piece = next_;
  next_ += wanted;
  left_ -= wanted;
  used_ += wanted;
  return piece;
}

}  // namespace tenure
