/* Encode tiles with a trellis, eight words at a time. Lanes are words: tokens of an octet for K,
 * channels of an octet for V. Same bits as codec/trellis.c and codec/rot.c. */
#ifndef LK_KERNELS_VEC8_TRELLIS_H
#define LK_KERNELS_VEC8_TRELLIS_H

#include "codec/half.h"
#include "codec/rot.h"
#include "codec/trellis.h"
#include "kernels/vec8_cells.h"

/* Eight words of a group. */
struct lk_vec8_words {
    lk_f32x8 value[LK_TRELLIS_MAX_SYMBOLS];
    lk_i32x8 index[LK_TRELLIS_MAX_SYMBOLS];
};

/* See find_path in codec/trellis.c. state: NULL if it is free. *t is constant after inlining. */
LK_ALWAYS_INLINE void lk_vec8_find_path(const struct lk_trellis *t, struct lk_vec8_words *w,
                                        int end, const lk_i32x8 *state) {
    int32_t best[LK_TRELLIS_MAX_SYMBOLS][LK_TRELLIS_MAX_STATES][LK_LANES];
    lk_f32x8 cost[LK_TRELLIS_MAX_STATES], next[LK_TRELLIS_MAX_STATES];
    int n = t->n_symbol, n_state = t->n_state;
    for (int i = 0; i < n_state; i++)
        cost[i] = state ? lk_mask_f32x8(*state != i, lk_set1_f32x8(1e38f)) : (lk_f32x8){0};
    for (int k = 1; k <= n; k++) {
        int p = (end + n - k) % n;
        lk_f32x8 value = w->value[p];
        for (int own = 0; own < n_state; own++) {
            lk_f32x8 least = lk_set1_f32x8(3e38f);
            lk_i32x8 from = {0};
            LK_UNROLL8
            for (int i = own; i < t->n_index; i += n_state) {
                lk_f32x8 error = value - (float)(t->table[i] - LK_TRELLIS_TOP / 2);
                lk_f32x8 sum = cost[lk_trellis_next_state(t, i)] + error * error;
                lk_i32x8 better = sum < least;
                least = lk_select_f32x8(better, sum, least);
                from = (better & i) | (~better & from);
            }
            next[own] = least;
            memcpy(best[p][own], &from, sizeof from);
        }
        memcpy(cost, next, n_state * sizeof *cost);
    }
    lk_i32x8 at = {0};
    lk_f32x8 least = cost[0];
    for (int i = 1; !state && i < n_state; i++) {
        lk_i32x8 better = cost[i] < least;
        least = lk_select_f32x8(better, cost[i], least);
        at = (better & i) | (~better & at);
    }
    if (state) at = *state;
    for (int k = 0; k < n; k++) {
        int p = (end + k) % n;
        lk_i32x8 index;
        for (int lane = 0; lane < LK_LANES; lane++) index[lane] = best[p][at[lane]][lane];
        w->index[p] = index;
        at = index >> t->next_shift & (n_state - 1);
    }
}

LK_ALWAYS_INLINE void lk_vec8_encode_words_of(int bits, struct lk_vec8_words *w) {
    const struct lk_trellis t = lk_trellis(bits);
    int middle = t.n_symbol / 2;
    lk_i32x8 state;
    for (int pass = 0; pass < 2; pass++) { /* a loop, so that the search is inlined once */
        lk_vec8_find_path(&t, w, pass ? middle : 0, pass ? &state : NULL);
        state = w->index[middle] & (t.n_state - 1);
    }
}

static void lk_vec8_encode_words(int bits, struct lk_vec8_words *w) {
    switch (bits) {
    case 1: lk_vec8_encode_words_of(1, w); break;
    case 2: lk_vec8_encode_words_of(2, w); break;
    case 3: lk_vec8_encode_words_of(3, w); break;
    default: lk_vec8_encode_words_of(4, w);
    }
}

/* ---- tiles ---- */

/* A tile in the codec's domain. */
struct lk_vec8_tile {
    lk_f32x8 row[LK_TILE / LK_LANES][LK_MAX_D_HEAD]; /* [octet of rows][d], lanes are rows */
    lk_f32x8 word[4 * LK_MAX_D_HEAD]; /* [cell][4] in units of levels, lanes are words */
};

/* Fill in `word`. */
LK_ALWAYS_INLINE void lk_vec8_arrange_words(const struct lk_trellis *t, enum lk_side side, int d,
                                            struct lk_vec8_tile *tile) {
    for (int octet = 0; octet < LK_TILE / LK_LANES; octet++) {
        const lk_f32x8 *row = tile->row[octet];
        lk_f32x8 energy = {0}, max = {0};
        for (int c = 0; c < d; c++) {
            energy += row[c] * row[c];
            max = lk_max_f32x8(max, lk_abs_f32x8(row[c]));
        }
        lk_f32x8 step =
            t->per_max > 0 ? max * t->per_max : lk_sqrt_f32x8(energy / (float)d) * t->unit;
        lk_f32x8 inverse = lk_mask_f32x8(step > LK_TRELLIS_MIN_STEP, 1.0f / step);
        for (int c = 0; side == LK_K && c < d; c++)
            tile->word[c / 4 * 16 + octet * 4 + c % 4] = row[c] * inverse;
        for (int c = 0; side == LK_V && c < d; c += LK_LANES) {
            lk_f32x8 *word = tile->word + c * 4 + octet * LK_LANES;
            for (int i = 0; i < LK_LANES; i++) word[i] = row[c + i] * inverse;
            lk_transpose_f32x8(word);
        }
    }
}

/* Levels [d][32] as bytes, and codes cell [d], of all words. */
LK_ALWAYS_INLINE void lk_vec8_code_words(const struct lk_trellis *t, int d,
                                         const struct lk_vec8_tile *tile, uint8_t *level,
                                         lk_u32x8 *cell) {
    int n = t->n_symbol, per_byte = n / 4;
    for (int group = 0; group < d / per_byte; group++) {
        struct lk_vec8_words w;
        for (int p = 0; p < n; p++) {
            int at = group * per_byte + p % per_byte, byte = p / per_byte;
            w.value[p] = tile->word[4 * at + byte];
        }
        lk_vec8_encode_words(t->bits, &w);
        for (int p = 0; p < n; p++) {
            int at = group * per_byte + p % per_byte, byte = p / per_byte;
            for (int lane = 0; lane < LK_LANES; lane++) {
                int index = w.index[p][lane];
                level[at * 32 + lane * 4 + byte] = t->table[index];
                w.index[p][lane] = lk_trellis_code(t, index);
            }
            lk_u32x8 code = (lk_u32x8)w.index[p] << (8 * byte);
            cell[at] = byte ? cell[at] | code : code;
        }
    }
}

/* Quantize a tile's rows: codes into `head`, scales into scale [LK_TILE]. */
LK_ALWAYS_INLINE void lk_vec8_quantize_tile(const struct lk_part *part, struct lk_vec8_tile *tile,
                                            void *head, uint16_t *scale) {
    const struct lk_trellis t = lk_trellis(part->codec->bits);
    int d = part->d_head;
    uint8_t level[LK_TILE * LK_MAX_D_HEAD];
    lk_u32x8 cell[LK_MAX_D_HEAD];
    lk_vec8_arrange_words(&t, part->side, d, tile);
    lk_vec8_code_words(&t, d, tile, level, cell);
    lk_vec8_pack_cells(t.bits, d, cell, head);
    for (int octet = 0; octet < LK_TILE / LK_LANES; octet++) {
        lk_f32x8 energy = {0}, dot = {0};
        for (int c = 0; c < d; c++) {
            lk_f32x8 y = tile->row[octet][c], entry;
            for (int lane = 0; lane < LK_LANES; lane++)
                entry[lane] = level[lk_bitplanes_index(part->side, octet * LK_LANES + lane, c)];
            energy += y * y;
            dot += y * (entry - (float)(LK_TRELLIS_TOP / 2));
        }
        for (int lane = 0; lane < LK_LANES; lane++)
            scale[octet * LK_LANES + lane] =
                lk_f32_to_f16(dot[lane] > 0 ? energy[lane] / dot[lane] : 0);
    }
}

#endif
