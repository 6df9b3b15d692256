#include "kern/kern.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#include "kern/avx2.h"

static bool has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static const struct lk_kern *fastest(void) {
#if defined(__x86_64__)
    if (has_avx2()) return &lk_kern_avx2;
#endif
    return &lk_kern_reference;
}

const struct lk_kern *lk_kern_choose(const char *name) {
    const struct lk_kern *best = fastest();
    if (!name || strcmp(name, best->name) == 0) return best;
    return strcmp(name, lk_kern_reference.name) == 0 ? &lk_kern_reference : NULL;
}
