/* Finds out which kernels this CPU can run. */
#define _DEFAULT_SOURCE /* syscall */
#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(_WIN32)

/* zig's runtime library does not fill what __builtin_cpu_supports reads. Bits of CPUID, and whether
 * the system saves the vector registers. */
static bool has_bits(unsigned saved, unsigned ecx_1, unsigned ebx_7, unsigned ecx_7) {
    enum { OSXSAVE = 1 << 27 };
    unsigned a, b, c, d, xcr0, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) || (c & ecx_1) != ecx_1) return false;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if ((xcr0 & saved) != saved || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (b & ebx_7) == ebx_7 && (c & ecx_7) == ecx_7;
}

enum { SAVES_YMM = 0x6, SAVES_ZMM = 0xe6 };
enum { FMA_F16C = 1 << 12 | 1 << 29, AVX2 = 1 << 5 };
enum { F = 1 << 16, DQ = 1 << 17, BW = 1 << 30, VBMI = 1 << 1, VNNI = 1 << 11 };
static const unsigned avx512_ebx = AVX2 | F | DQ | BW | 1u << 31; /* VL */

static bool has_avx2(void) { return has_bits(SAVES_YMM, FMA_F16C, AVX2, 0); }

static bool has_avx512(void) { return has_bits(SAVES_ZMM, FMA_F16C, avx512_ebx, VNNI); }

static bool has_avx512vbmi(void) { return has_bits(SAVES_ZMM, FMA_F16C, avx512_ebx, VNNI | VBMI); }

#else

static bool has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init(); /* also checks that the system saves the vector registers */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

static bool has_avx512vbmi(void) { return has_avx512() && __builtin_cpu_supports("avx512vbmi"); }

#endif

static bool has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 4);
}

/* AMX's tile registers are large, so Linux makes a process ask for them before it uses them. */
static bool has_amx(void) {
#if defined(__linux__)
    enum {
        ARCH_REQ_XCOMP_PERM = 0x1023,
        XFEATURE_XTILEDATA = 18,
        AMX_TILE_AND_INT8 = 1 << 24 | 1 << 25 /* bits of EDX */
    };
    unsigned a, b, c, d;
    return has_avx512vbmi() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & AMX_TILE_AND_INT8) == AMX_TILE_AND_INT8 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}
#endif

#if defined(__aarch64__) && defined(__APPLE__)
#include "kernels/neon.h"

#include <sys/sysctl.h>

static bool has_dot_products(void) { return true; } /* every Mac with this processor */

static bool has_i8mm(void) {
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
}
#endif

#if defined(__aarch64__) && defined(__linux__)
#include "kernels/neon.h"

#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool has_dot_products(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }

static bool has_i8mm(void) { return has_dot_products() && getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif

enum { MAX_TABLES = 6 };

/* Tables that this CPU can run, the fastest first. Returns their number. */
static int find_tables(const struct lk_kernels *table[MAX_TABLES]) {
    int n = 0;
#if defined(__x86_64__)
    if (has_amx()) table[n++] = &lk_kernels_amx;
    if (has_avx512vbmi()) table[n++] = &lk_kernels_avx512vbmi;
    if (has_avx512()) table[n++] = &lk_kernels_avx512;
    if (has_avxvnni()) table[n++] = &lk_kernels_avxvnni;
    if (has_avx2()) table[n++] = &lk_kernels_avx2;
#endif
#if defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
    if (has_i8mm()) table[n++] = &lk_kernels_neon_i8mm;
    if (has_dot_products()) table[n++] = &lk_kernels_neon;
#endif
    table[n++] = &lk_kernels_reference;
    return n;
}

const struct lk_kernels *lk_kernels_choose(const char *name) {
    const struct lk_kernels *table[MAX_TABLES];
    int n = find_tables(table);
    for (int i = 0; i < n; i++)
        if (!name || strcmp(name, table[i]->name) == 0) return table[i];
    return NULL;
}

void lk_kernels_names(char *buf, size_t cap) {
    const struct lk_kernels *table[MAX_TABLES];
    int n = find_tables(table);
    size_t len = 0;
    for (int i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%s%s", i ? ", " : "", table[i]->name);
}

const char *lk_kernels_slow_reason(void) {
    if (lk_kernels_choose(NULL) != &lk_kernels_reference) return NULL;
#if defined(__x86_64__)
    return "this CPU lacks AVX2, FMA or F16C: attention uses the reference kernels, which are "
           "many times slower";
#elif defined(__aarch64__)
    return "this CPU lacks the dot product instructions of Armv8.2: attention uses the reference "
           "kernels, which are many times slower";
#else
    return "no optimized kernels exist for this type of CPU: attention uses the reference "
           "kernels, which are many times slower";
#endif
}
