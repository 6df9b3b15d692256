/* Inlining and unrolling, for templates over a number of queries or of bits: a function that takes
 * the number as an argument is inlined wherever it is constant. Inner loops then unroll and arrays
 * of vectors become registers. */
#ifndef LK_KERNELS_INLINE_H
#define LK_KERNELS_INLINE_H

#define LK_ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before a loop: unroll it completely if it has at most 16 (8) iterations. */
#if defined(__clang__)
#define LK_UNROLL _Pragma("clang loop unroll(full)")
#define LK_UNROLL8 _Pragma("clang loop unroll(full)")
#else
#define LK_UNROLL _Pragma("GCC unroll 16")
#define LK_UNROLL8 _Pragma("GCC unroll 8")
#endif

#endif
