/* Included before ggml's sources if GCC compiles them (scripts/deps). GCC 12's intrinsics for AMX
 * do not declare the memory they read: 8 of the 64 bytes of a tile configuration, nothing of a
 * tile. Stores to the rest count as dead and are dropped, and products end in an illegal
 * instruction. The same instructions, with their operands. */
#ifndef LK_GCC_AMX_H
#define LK_GCC_AMX_H

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline void lk_tile_loadconfig(const void *config) {
    __asm__ volatile("ldtilecfg\t%0" : : "m"(*(const char(*)[64])config));
}
#define _tile_loadconfig(config) lk_tile_loadconfig(config)

#undef _tile_loadd_internal
#define _tile_loadd_internal(dst, base, stride)                                                    \
    __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #dst                                            \
                     :                                                                             \
                     : "r"((const void *)(base)), "r"((long)(stride))                              \
                     : "memory")

#undef _tile_stream_loadd_internal
#define _tile_stream_loadd_internal(dst, base, stride)                                             \
    __asm__ volatile("tileloaddt1\t(%0,%1,1), %%tmm" #dst                                          \
                     :                                                                             \
                     : "r"((const void *)(base)), "r"((long)(stride))                              \
                     : "memory")
#endif

#endif
