#include "base/cpu.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/flags.h"
#include "base/log.h"

static const char *const names[PD_ISA_COUNT] = {"portable", "avx2", "avx512"};

#if defined(__x86_64__)
/* __builtin_cpu_supports("f16c") is unknown to clang before 16. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static pd_isa detect(void) {
    pd_isa best = PD_ISA_PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        best = PD_ISA_AVX2;
    if (best == PD_ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        best = PD_ISA_AVX512;
#endif
    const char *want = pd_flags_get()->ISA;
    if (!*want) return best;
    for (int isa = 0; isa < PD_ISA_COUNT; isa++)
        if (!strcmp(want, names[isa])) return (int)best < isa ? best : (pd_isa)isa;
    pd_log(PD_LOG_WARN, "PYDIST_ISA=%s is ignored (expected portable, avx2 or avx512)", want);
    return best;
}

pd_isa pd_cpu_isa(void) {
    static _Atomic int isa = -1; /* detect() gives the same answer in every thread */
    if (isa < 0) isa = (int)detect();
    return (pd_isa)isa;
}

static bool ask_for_bf16(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d, bf16 = 1u << 5;
    return pd_cpu_isa() == PD_ISA_AVX512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bf16);
#else
    return false;
#endif
}

bool pd_cpu_has_bf16(void) { /* asked once: a virtual machine's answer takes microseconds */
    static _Atomic int has = -1;
    if (has < 0) has = ask_for_bf16();
    return has > 0;
}

/* Tiles add 8 KiB to the state of a thread, so Linux wants each process to ask once before it uses them. */
static bool ask_for_tiles(void) {
#if defined(__x86_64__) && defined(__linux__)
    enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d, bf16 = 1u << 22, tile = 1u << 24;
    return pd_cpu_isa() == PD_ISA_AVX512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bf16) && (d & tile) &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}

bool pd_cpu_has_tiles(void) {
    static _Atomic int has = -1;
    if (has < 0) has = ask_for_tiles();
    return has > 0;
}

const char *pd_isa_name(pd_isa isa) { return names[isa]; }
