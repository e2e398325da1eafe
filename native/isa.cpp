#include "common.hpp"

#if TENURE_X86
#include <cpuid.h>
#elif TENURE_ARM64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tenure {
namespace {

#if TENURE_X86

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

// Not every compiler knows the name of this one: leaf 7, subleaf 1, bit 4 of EAX.
bool has_avx_vnni() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return TENURE_AVXVNNI_BUILT && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax >> 4 & 1u) != 0;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

#elif TENURE_ARM64

// Elsewhere than on Linux the question is not asked: dot products are left out.
bool has_neon_dot() {
#if defined(__linux__)
  return TENURE_NEONDOT_BUILT && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avxvnni: return "avxvnni";
    case Isa::avx512: return "avx512";
    case Isa::neon: return "neon";
    case Isa::neondot: return "neondot";
    default: return "portable";
  }
}

bool isa_runs(Isa isa) {
#if TENURE_X86
  __builtin_cpu_init();
  switch (isa) {
    case Isa::avx2: return has_avx2();
    case Isa::avxvnni: return has_avx2() && has_avx_vnni();
    case Isa::avx512: return has_avx2() && has_avx512();
    default: return isa == Isa::portable;
  }
#elif TENURE_ARM64
  switch (isa) {
    case Isa::neon: return true;  // part of the base architecture
    case Isa::neondot: return has_neon_dot();
    default: return isa == Isa::portable;
  }
#else
  return isa == Isa::portable;
#endif
}

Isa detect_isa() {
  Isa best = Isa::portable;
  for (const Isa isa : ALL_ISAS) {
    if (isa_runs(isa)) best = isa;
  }
  return best;
}

}  // namespace tenure
