/* Trial: scores of K by table lookups, compared with the products that the kernels use.
 *
 *   build/bench/table_scores [queries]
 *
 * A tile has 32 rows of 64 channels in 2-bit codes, the plane of two bits of codec/bitplanes.h. A
 * table has the 16 sums of two channels' products, so one byte shuffle looks up 16 rows or more:
 *
 *     sum_t = sum over pairs j of table[j][h_2j + 4 h_2j+1]
 *
 * Entries are 0 to 63, so that four fit into a byte. The first line is the sums alone, from tiles
 * in the first-level cache. The second adds scale, offset, a rough exponential and the sum over the
 * tile, as an estimate of a tile's attention needs. Compare them with `score` of rot2 and rot3 and
 * with the exponential (build/bench/kern, docs/performance.md). The minimum of many runs counts. */
#define _DEFAULT_SOURCE /* clock_gettime */
#include "kernels/inline.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { D = 64, TILE = 32, TILES = 8, MAX_Q = 4, PAIRS = D / 2, SUMS = 4 };

static _Alignas(64) uint8_t plane[TILES][TILE * D / 4];
static _Alignas(64) uint8_t table[MAX_Q][PAIRS][16];
static _Alignas(64) float scale[TILES][TILE];
static _Alignas(64) uint16_t sum[MAX_Q][TILES][TILE];
static float weight[MAX_Q][TILES];
static const float factor = 1e-3f, middle = 1000;

/* Code of a row and a channel: see codec/bitplanes.h. */
static int code_of(int tile, int t, int c) {
    return plane[tile][c / 4 * 32 + t % 8 * 4 + c % 4] >> (t / 8 * 2) & 3;
}

/* ---- AVX-512 ---- */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))

struct nibbles_512 {
    __m512i low, high;
};

/* Four pairs of channels, a lane each. A byte of the plane has one channel of four rows, and the
 * next byte the other channel of the pair: their even and odd fields are exchanged. */
LK_ALWAYS_INLINE AVX512 struct nibbles_512 load_512(const uint8_t *p) {
    const __m512i by_pair =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 30, 28, 26, 24, 22, 20, 18, 16, 15, 13, 11,
                         9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i v = _mm512_loadu_si512(p);
    __m512i other = _mm512_ternarylogic_epi32(
        _mm512_set1_epi16((short)0xff00), _mm512_slli_epi16(v, 6), _mm512_srli_epi16(v, 6), 0xca);
    v = _mm512_ternarylogic_epi32(_mm512_set1_epi16((short)0xcc33), v, other, 0xca);
    v = _mm512_permutexvar_epi16(by_pair, v);
    return (struct nibbles_512){_mm512_and_si512(v, nibble),
                                _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble)};
}

/* Sums over the four lanes of a, b, c and d, each in a lane. */
LK_ALWAYS_INLINE AVX512 __m512i sum_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab =
        _mm512_add_epi16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
    __m512i cd =
        _mm512_add_epi16(_mm512_shuffle_i64x2(c, d, 0x88), _mm512_shuffle_i64x2(c, d, 0xdd));
    return _mm512_add_epi16(_mm512_shuffle_i64x2(ab, cd, 0x88), _mm512_shuffle_i64x2(ab, cd, 0xdd));
}

LK_ALWAYS_INLINE AVX512 void run_512(int n, int estimate) {
    for (int tile = 0; tile < TILES; tile++) {
        __m512i all[MAX_Q][2], odd[MAX_Q][2];
        LK_UNROLL
        for (int i = 0; i < n; i++)
            all[i][0] = all[i][1] = odd[i][0] = odd[i][1] = _mm512_setzero_si512();
        for (int c = 0; c < D; c += 8 * SUMS) {
            __m512i a[MAX_Q], b[MAX_Q];
            LK_UNROLL
            for (int i = 0; i < n; i++) a[i] = b[i] = _mm512_setzero_si512();
            LK_UNROLL
            for (int k = 0; k < SUMS; k++) {
                struct nibbles_512 of = load_512(plane[tile] + (c + 8 * k) * 8);
                LK_UNROLL
                for (int i = 0; i < n; i++) {
                    __m512i entry = _mm512_load_si512(table[i][(c + 8 * k) / 2]);
                    a[i] = _mm512_add_epi8(a[i], _mm512_shuffle_epi8(entry, of.low));
                    b[i] = _mm512_add_epi8(b[i], _mm512_shuffle_epi8(entry, of.high));
                }
            }
            LK_UNROLL
            for (int i = 0; i < n; i++) {
                all[i][0] = _mm512_add_epi16(all[i][0], a[i]);
                all[i][1] = _mm512_add_epi16(all[i][1], b[i]);
                odd[i][0] = _mm512_add_epi16(odd[i][0], _mm512_srli_epi16(a[i], 8));
                odd[i][1] = _mm512_add_epi16(odd[i][1], _mm512_srli_epi16(b[i], 8));
            }
        }
        LK_UNROLL
        for (int i = 0; i < n; i++) {
            __m512i x =
                sum_lanes(_mm512_sub_epi16(all[i][0], _mm512_slli_epi16(odd[i][0], 8)), odd[i][0],
                          _mm512_sub_epi16(all[i][1], _mm512_slli_epi16(odd[i][1], 8)), odd[i][1]);
            if (!estimate) {
                _mm512_store_si512(sum[i][tile], x);
                continue;
            }
            __m512 total = _mm512_setzero_ps();
            LK_UNROLL
            for (int k = 0; k < 2; k++) {
                __m512 dot = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(
                    k ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x)));
                __m512 y = _mm512_mul_ps(
                    _mm512_load_ps(scale[tile] + 16 * k),
                    _mm512_fmadd_ps(_mm512_set1_ps(factor), dot, _mm512_set1_ps(-factor * middle)));
                y = _mm512_min_ps(_mm512_max_ps(y, _mm512_set1_ps(-126)), _mm512_set1_ps(126));
                y = _mm512_mul_ps(_mm512_add_ps(y, _mm512_set1_ps(126.957f)),
                                  _mm512_set1_ps(1 << 23));
                total = _mm512_add_ps(total, _mm512_castsi512_ps(_mm512_cvttps_epi32(y)));
            }
            weight[i][tile] = _mm512_reduce_add_ps(total);
        }
    }
}

/* ---- AVX2 ---- */

#define AVX2 __attribute__((target("avx2,f16c,fma")))

LK_ALWAYS_INLINE AVX2 void run_256(int n, int estimate) {
    const __m256i by_pair = _mm256_broadcastsi128_si256(
                      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)),
                  nibble = _mm256_set1_epi8(15);
    for (int tile = 0; tile < TILES; tile++) {
        __m256i low[D / 4], high[D / 4];
        LK_UNROLL
        for (int z = 0; z < D / 4; z++) {
            __m256i v = _mm256_load_si256((const __m256i *)(plane[tile] + z * 32));
            __m256i a = _mm256_and_si256(v, _mm256_set1_epi16((short)0xcc33));
            __m256i b = _mm256_and_si256(_mm256_srli_epi16(v, 6), _mm256_set1_epi16(0x00cc));
            __m256i c = _mm256_and_si256(_mm256_slli_epi16(v, 6), _mm256_set1_epi16(0x3300));
            v = _mm256_shuffle_epi8(_mm256_or_si256(_mm256_or_si256(a, b), c), by_pair);
            v = _mm256_permute4x64_epi64(v, 0xd8);
            low[z] = _mm256_and_si256(v, nibble);
            high[z] = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
        }
        for (int i = 0; i < n; i++) {
            __m256i all[2], odd[2];
            all[0] = all[1] = odd[0] = odd[1] = _mm256_setzero_si256();
            LK_UNROLL
            for (int z = 0; z < D / 4; z += SUMS) {
                __m256i a = _mm256_setzero_si256(), b = a;
                LK_UNROLL
                for (int k = z; k < z + SUMS; k++) {
                    __m256i entry = _mm256_load_si256((const __m256i *)table[i][2 * k]);
                    a = _mm256_add_epi8(a, _mm256_shuffle_epi8(entry, low[k]));
                    b = _mm256_add_epi8(b, _mm256_shuffle_epi8(entry, high[k]));
                }
                all[0] = _mm256_add_epi16(all[0], a);
                all[1] = _mm256_add_epi16(all[1], b);
                odd[0] = _mm256_add_epi16(odd[0], _mm256_srli_epi16(a, 8));
                odd[1] = _mm256_add_epi16(odd[1], _mm256_srli_epi16(b, 8));
            }
            __m256 total = _mm256_setzero_ps();
            LK_UNROLL
            for (int k = 0; k < 4; k++) {
                __m256i x = k % 2 ? odd[k / 2]
                                  : _mm256_sub_epi16(all[k / 2], _mm256_slli_epi16(odd[k / 2], 8));
                __m128i rows =
                    _mm_add_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
                if (!estimate) {
                    _mm_store_si128((__m128i *)(sum[i][tile] + 8 * k), rows);
                    continue;
                }
                __m256 dot = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(rows));
                __m256 y = _mm256_mul_ps(
                    _mm256_load_ps(scale[tile] + 8 * k),
                    _mm256_fmadd_ps(_mm256_set1_ps(factor), dot, _mm256_set1_ps(-factor * middle)));
                y = _mm256_min_ps(_mm256_max_ps(y, _mm256_set1_ps(-126)), _mm256_set1_ps(126));
                y = _mm256_mul_ps(_mm256_add_ps(y, _mm256_set1_ps(126.957f)),
                                  _mm256_set1_ps(1 << 23));
                total = _mm256_add_ps(total, _mm256_castsi256_ps(_mm256_cvttps_epi32(y)));
            }
            __m128 four =
                _mm_add_ps(_mm256_castps256_ps128(total), _mm256_extractf128_ps(total, 1));
            four = _mm_add_ps(four, _mm_movehl_ps(four, four));
            if (estimate) weight[i][tile] = _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
        }
    }
}

/* ---- timing ---- */

AVX512 static void sums_512(int n) { n == 3 ? run_512(3, 0) : run_512(1, 0); }
AVX512 static void estimate_512(int n) { n == 3 ? run_512(3, 1) : run_512(1, 1); }
AVX2 static void sums_256(int n) { n == 3 ? run_256(3, 0) : run_256(1, 0); }
AVX2 static void estimate_256(int n) { n == 3 ? run_256(3, 1) : run_256(1, 1); }

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(int n) {
    for (int i = 0; i < n; i++)
        for (int tile = 0; tile < TILES; tile++)
            for (int t = 0; t < TILE; t++) {
                int expect = 0;
                for (int j = 0; j < PAIRS; j++)
                    expect +=
                        table[i][j][code_of(tile, t, 2 * j) + 4 * code_of(tile, t, 2 * j + 1)];
                if (sum[i][tile][t] != expect) {
                    fprintf(stderr, "query %d, row %d: %d instead of %d\n", i, tile * TILE + t,
                            sum[i][tile][t], expect);
                    exit(1);
                }
            }
}

static void measure(const char *name, void (*run)(int), int n, int sums) {
    enum { ROUNDS = 300, REPEAT = 40 };
    double best = 1;
    for (int r = 0; r < ROUNDS; r++) {
        double start = seconds();
        for (int k = 0; k < REPEAT; k++) {
            run(n);
            __asm__ volatile("" ::"r"(sum), "r"(weight) : "memory");
        }
        double took = (seconds() - start) / REPEAT;
        if (took < best) best = took;
    }
    if (sums) check(n);
    printf("%-20s %6.2f ns per row of %d channels and %d queries\n", name,
           1e9 * best / (TILES * TILE), D, n);
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 3;
    if (n != 1 && n != 3) {
        fprintf(stderr, "usage: table_scores [1|3]\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof plane; i++) ((uint8_t *)plane)[i] = (uint8_t)rand();
    for (size_t i = 0; i < sizeof table; i++) ((uint8_t *)table)[i] = (uint8_t)(rand() % 64);
    for (size_t i = 0; i < sizeof scale / sizeof(float); i++)
        ((float *)scale)[i] = (float)rand() / (float)RAND_MAX;
    if (__builtin_cpu_supports("avx2")) {
        measure("AVX2, sums", sums_256, n, 1);
        measure("AVX2, estimate", estimate_256, n, 0);
    }
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        measure("AVX-512, sums", sums_512, n, 1);
        measure("AVX-512, estimate", estimate_512, n, 0);
    }
    return 0;
}
#else
int main(void) {
    fprintf(stderr, "table_scores: for x86 only\n");
    return 0;
}
#endif
