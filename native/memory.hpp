// Large, aligned memory: slabs for weights and KV, and scratch that grows.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tenure {

// Anonymous memory of the operating system: zero, and not resident until it is touched. Asks for
// huge pages, which spare address translations when weights are streamed.
class Slab {
 public:
  Slab() = default;
  explicit Slab(std::size_t n_bytes);  // throws std::bad_alloc
  ~Slab();
  Slab(Slab&& other) noexcept { *this = std::move(other); }
  Slab& operator=(Slab&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Hands out pieces that live as long as the arena, aligned to 64 bytes.
class Arena {
 public:
  std::byte* take(std::size_t n_bytes);
  std::size_t used() const { return used_; }

 private:
  std::vector<Slab> slabs_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
  std::size_t used_ = 0;
};

// Scratch for n elements of T, aligned to 64 bytes; its contents are lost when it grows.
template <class T>
class Buffer {
 public:
  T* reserve(std::size_t n) {
    const std::size_t wanted = n * sizeof(T);
    if (slab_.size() < wanted) {
      slab_ = Slab();
      slab_ = Slab(wanted + wanted / 4);
    }
    return data();
  }
  T* data() const { return reinterpret_cast<T*>(slab_.data()); }

 private:
  Slab slab_;
};

}  // namespace tenure
