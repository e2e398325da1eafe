// What every kernel file agrees on: instruction sets, shapes of a batch, and the KV store.
//
// Instruction sets. A kernel file X.cpp is compiled once for each instruction set (CMakeLists.txt,
// KERNEL_SOURCES), with TENURE_NS set to `portable`, `avx2`, `avx512` or `neon`. All its code lives
// in `namespace tenure::TENURE_NS`, uses no inline function of the standard library that could be
// merged across files built with different flags, and exports exactly one table of function
// pointers:
//
//     // X.hpp
//     namespace tenure {
//     struct XTable { void (*work)(Pool&, const WorkCall&); };
//     TENURE_DECLARE_TABLE(XTable, x_table)
//     }
//     // X.cpp
//     namespace tenure::TENURE_NS { const XTable x_table = {work}; }
//
// `x_table(isa)` then selects at run time. Vector code is written once over `simd.hpp` (16 virtual
// lanes on every instruction set), so that all paths give the same bits; where an instruction set
// needs code of its own, `#if TENURE_AVX512`, `TENURE_AVX2` or `TENURE_NEON` select it, under the
// same rule. The NEON code is held to the same bits (native/check/kernel_digest.cpp), but its speed
// has not been measured on any machine.
//
// Exactness. Files are compiled with -ffp-contract=off; a fused multiply-add is written as such.
// Each output element is reduced in an order fixed by its position. Integer sums are exact and may
// be taken in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tenure {

// `avxvnni` is AVX2 with 8-bit dot products in 256 bits, `neondot` NEON with those in 128 bits:
// linear layers have code of their own for them, other kernels take avx2's and neon's.
enum class Isa { portable, avx2, avxvnni, avx512, neon, neondot };
constexpr Isa ALL_ISAS[] = {Isa::portable, Isa::avx2, Isa::avxvnni,
                            Isa::avx512,   Isa::neon, Isa::neondot};

const char* isa_name(Isa isa);

// Whether this CPU can run it and this build has code for it.
bool isa_runs(Isa isa);

// The last of ALL_ISAS that runs.
Isa detect_isa();

#if defined(__x86_64__)
#define TENURE_X86 1
#define TENURE_ARM64 0
#define TENURE_DECLARE_TABLE(Type, name)                       \
  namespace portable { extern const Type name; }               \
  namespace avx2 { extern const Type name; }                   \
  namespace avx512 { extern const Type name; }                 \
  inline const Type& name(Isa isa) {                           \
    switch (isa) {                                             \
      case Isa::avx2:                                          \
      case Isa::avxvnni: return avx2::name;                    \
      case Isa::avx512: return avx512::name;                   \
      default: return portable::name;                          \
    }                                                          \
  }
#elif defined(__aarch64__)
#define TENURE_X86 0
#define TENURE_ARM64 1
#define TENURE_DECLARE_TABLE(Type, name)                       \
  namespace portable { extern const Type name; }               \
  namespace neon { extern const Type name; }                   \
  inline const Type& name(Isa isa) {                           \
    return isa == Isa::portable ? portable::name : neon::name; \
  }
#else
#define TENURE_X86 0
#define TENURE_ARM64 0
#define TENURE_DECLARE_TABLE(Type, name)         \
  namespace portable { extern const Type name; } \
  inline const Type& name(Isa) { return portable::name; }
#endif

// One ragged batch, as in tenure.backend.base.Batch: sequence r owns the tokens
// [row_start[r], row_start[r + 1]) at absolute positions from first_pos[r].
struct BatchView {
  int n_tokens;
  int n_rows;
  const std::int32_t* tokens;     // [n_tokens]
  const std::int32_t* row_start;  // [n_rows + 1]
  const std::int32_t* first_pos;  // [n_rows]
  const std::int32_t* row_of;     // [n_tokens] the sequence that each token belongs to
  const std::int32_t* position;   // [n_tokens] the absolute position of each token
};

// Position p of sequence r lies in page pages[indptr[r] + p / page_size].
struct PageTable {
  const std::int32_t* indptr;  // [n_rows + 1]
  const std::int32_t* pages;
};

enum class KvType { f16, f32, i8 };

// The KV of one layer: page p starts at base + p * page_bytes, aligned to 64 bytes. What lies
// inside a page is known to attention.cpp alone (K and V of all KV heads, and scales for i8).
struct KvLayer {
  std::byte* base;
  std::size_t page_bytes;  // kv_page_bytes() of attention.hpp
  KvType type;
  int page_size;  // positions, a power of two from 1 to 256
  int n_kv_heads;
  int head_dim;
};

}  // namespace tenure
