/* Encoders and decoders in eight lanes. Shapes that would not gain fall back to codec/codec.h.
 * Compiled without contraction of a * b + c, so that all CPUs write the same bits as the codecs. */
#include "kernels/vec8_encode.h"

#include "codec/asym.h"
#include "codec/f16.h"
#include "codec/hadamard.h"
#include "codec/int8.h"
#include "codec/kivi.h"
#include "codec/ops.h"
#include "codec/rot.h"
#include "kernels/vec8.h"

#include <math.h>

/* ---- codes of a tile as bytes, packed into and unpacked from the planes of codec/bitplanes.h ----
 *
 * Bytes are in one of two orders. Both have d_head cells of 8 words of 4 bytes. Lanes are tokens in
 * K's order and channels in V's order:
 *
 *   K's order: cell[(c / 4) * 4 + t / 8][t % 8], byte c % 4
 *   V's order: cell[(c / 8) * 8 + t / 4][c % 8], byte t % 4 */

/* Convert to the order of `side` from the other one, by transposing blocks of 4 tokens x 4
 * channels. */
LK_ALWAYS_INLINE void reorder_cells(int d_head, const lk_u32x8 *from, lk_u32x8 *to,
                                    enum lk_side side) {
    for (int cq = 0; cq < d_head / 4; cq++)
        for (int tq = 0; tq < LK_TILE / 4; tq++) {
            size_t k = (size_t)(cq * 4 + tq / 2) * 32 + tq % 2 * 16,
                   v = (size_t)(cq / 2 * 8 + tq) * 32 + cq % 2 * 16;
            lk_u8x16 block;
            memcpy(&block, (const char *)from + (side == LK_V ? k : v), sizeof block);
            block = __builtin_shufflevector(block, block, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3,
                                            7, 11, 15);
            memcpy((char *)to + (side == LK_V ? v : k), &block, sizeof block);
        }
}

/* The lowest `width` bits of every byte. */
LK_ALWAYS_INLINE uint32_t field_mask(int width) { return 0x01010101u * ((1u << width) - 1); }

LK_ALWAYS_INLINE void pack_cells(int bits, int d_head, const lk_u32x8 *cell, void *tile) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    char *out = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], per_byte = 8 / w;
        for (int j = 0; j < d_head / per_byte; j++, out += 32) {
            lk_u32x8 all = {0};
            for (int k = 0; k < per_byte; k++)
                all |= ((cell[j * per_byte + k] >> low) & field_mask(w)) << (k * w);
            memcpy(out, &all, sizeof all);
        }
        low += w;
    }
}

LK_ALWAYS_INLINE void unpack_cells(int bits, int d_head, const void *tile, lk_u32x8 *cell) {
    int width[LK_MAX_PLANES], n_plane = lk_bitplanes_widths(bits, width), low = 0;
    const char *in = tile;
    for (int p = 0; p < n_plane; p++) {
        int w = width[p], per_byte = 8 / w;
        for (int j = 0; j < d_head / per_byte; j++, in += 32) {
            lk_u32x8 all;
            memcpy(&all, in, sizeof all);
            for (int k = 0; k < per_byte; k++) {
                lk_u32x8 code = ((all >> (k * w)) & field_mask(w)) << low;
                cell[j * per_byte + k] = p ? cell[j * per_byte + k] | code : code;
            }
        }
        low += w;
    }
}

/* ---- tiles with a trellis, eight words at a time ----
 *
 * Lanes are words: tokens of an octet for K, channels of an octet for V. Same bits as
 * codec/rot.c. */

/* Eight words of a group. */
struct words {
    lk_f32x8 value[LK_TRELLIS_MAX_SYMBOLS];
    lk_i32x8 index[LK_TRELLIS_MAX_SYMBOLS];
};

/* See find_path in codec/rot.c. state: NULL if it is free. *t is constant after inlining. */
LK_ALWAYS_INLINE void find_path(const struct lk_trellis *t, struct words *w, int end,
                                const lk_i32x8 *state) {
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

LK_ALWAYS_INLINE void encode_words_of(int bits, struct words *w) {
    const struct lk_trellis t = lk_trellis(bits);
    int middle = t.n_symbol / 2;
    lk_i32x8 state;
    for (int pass = 0; pass < 2; pass++) { /* a loop, so that the search is inlined once */
        find_path(&t, w, pass ? middle : 0, pass ? &state : NULL);
        state = w->index[middle] & (t.n_state - 1);
    }
}

static void encode_words(int bits, struct words *w) {
    switch (bits) {
    case 1: encode_words_of(1, w); break;
    case 2: encode_words_of(2, w); break;
    case 3: encode_words_of(3, w); break;
    default: encode_words_of(4, w);
    }
}

/* ---- tiles ---- */

/* A tile in the codec's domain. */
struct tile {
    lk_f32x8 row[LK_TILE / LK_LANES][LK_MAX_D_HEAD]; /* [octet of rows][d], lanes are rows */
    lk_f32x8 word[4 * LK_MAX_D_HEAD]; /* [cell][4] in units of levels, lanes are words */
};

/* Fill in `word`. */
LK_ALWAYS_INLINE void arrange_words(const struct lk_trellis *t, enum lk_side side, int d,
                                    struct tile *tile) {
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
LK_ALWAYS_INLINE void code_words(const struct lk_trellis *t, int d, const struct tile *tile,
                                 uint8_t *level, lk_u32x8 *cell) {
    int n = t->n_symbol, per_byte = n / 4;
    for (int group = 0; group < d / per_byte; group++) {
        struct words w;
        for (int p = 0; p < n; p++) {
            int at = group * per_byte + p % per_byte, byte = p / per_byte;
            w.value[p] = tile->word[4 * at + byte];
        }
        encode_words(t->bits, &w);
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
LK_ALWAYS_INLINE void quantize_tile(const struct lk_part *part, struct tile *tile, void *head,
                                    uint16_t *scale) {
    const struct lk_trellis t = lk_trellis(part->codec->bits);
    int d = part->d_head;
    uint8_t level[LK_TILE * LK_MAX_D_HEAD];
    lk_u32x8 cell[LK_MAX_D_HEAD];
    arrange_words(&t, part->side, d, tile);
    code_words(&t, d, tile, level, cell);
    pack_cells(t.bits, d, cell, head);
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

/* ---- rotated codes, eight rows at a time ----
 *
 * Lanes are rows. Sums over channels are then sums of vectors, and a Hadamard transform needs no
 * shuffles. Same bits as codec/rot.c. */

/* Maps rows of one head to the codec's domain and back. If d_head is not a power of two, lk_rotate
 * rotates rows one by one and all signs here are 1. */
struct domain {
    int d;
    bool sylvester;
    float sigma[LK_MAX_D_HEAD], inverse[LK_MAX_D_HEAD], sign[LK_MAX_D_HEAD];
};

LK_ALWAYS_INLINE void domain_init(const struct lk_part *part, struct domain *out) {
    int d = part->d_head;
    out->d = d;
    out->sylvester = (d & (d - 1)) == 0;
    for (int c = 0; c < d; c++) {
        out->sigma[c] = part->sigma ? part->sigma[c] : 1;
        out->inverse[c] = 1 / out->sigma[c];
        out->sign[c] = 1;
    }
    if (out->sylvester) lk_rotation_signs(out->sign, d);
}

LK_ALWAYS_INLINE void hadamard(int n, lk_f32x8 *y) {
    int half = 1;
    for (; 4 * half <= n; half *= 4)
        for (int i = 0; i < n; i += 4 * half)
            for (int j = i; j < i + half; j++) {
                lk_f32x8 a = y[j] + y[j + half], b = y[j] - y[j + half];
                lk_f32x8 c = y[j + 2 * half] + y[j + 3 * half],
                         d = y[j + 2 * half] - y[j + 3 * half];
                y[j] = a + c;
                y[j + half] = b + d;
                y[j + 2 * half] = a - c;
                y[j + 3 * half] = b - d;
            }
    for (int j = 0; half < n && j < half; j++) {
        lk_f32x8 a = y[j], b = y[j + half];
        y[j] = a + b;
        y[j + half] = a - b;
    }
    float scale = 1 / sqrtf((float)n);
    for (int i = 0; i < n; i++) y[i] *= scale;
}

/* Channels [c, c + 8) of a row, divided by sigma. */
LK_ALWAYS_INLINE lk_f32x8 equalize(const struct domain *domain, const float *x, int c) {
    return lk_clamp_f32x8(lk_load_f32x8(x + c) * lk_load_f32x8(domain->inverse + c));
}

/* Transform n <= 8 rows x, `stride` floats apart, into the codec's domain: y [d]. The mean is not
 * subtracted. Lanes without a row are 0. */
LK_ALWAYS_INLINE void rotate_rows(const struct domain *domain, int n, const float *x, size_t stride,
                                  lk_f32x8 *y) {
    int d = domain->d;
    float row[LK_LANES][LK_MAX_D_HEAD];
    for (int j = 0; !domain->sylvester && j < n; j++) {
        for (int c = 0; c < d; c += LK_LANES)
            lk_store_f32x8(row[j] + c, equalize(domain, x + j * stride, c));
        lk_rotate(row[j], d);
    }
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 sign = lk_load_f32x8(domain->sign + c);
        for (int j = 0; j < LK_LANES; j++) {
            if (j >= n)
                y[c + j] = (lk_f32x8){0};
            else if (domain->sylvester)
                y[c + j] = equalize(domain, x + j * stride, c) * sign;
            else
                y[c + j] = lk_load_f32x8(row[j] + c);
        }
        lk_transpose_f32x8(y + c);
    }
    if (domain->sylvester) hadamard(d, y);
}

/* The inverse: n rows of y [d] in the original domain. Overwrites y. */
LK_ALWAYS_INLINE void unrotate_rows(const struct domain *domain, int n, lk_f32x8 *y, float *x,
                                    size_t stride) {
    int d = domain->d;
    if (domain->sylvester) hadamard(d, y);
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 sign = lk_load_f32x8(domain->sign + c);
        lk_transpose_f32x8(y + c);
        for (int j = 0; j < n; j++) lk_store_f32x8(x + j * stride + c, y[c + j] * sign);
    }
    for (int j = 0; j < n; j++) {
        if (!domain->sylvester) lk_unrotate(x + j * stride, d);
        for (int c = 0; c < d; c += LK_LANES)
            lk_store_f32x8(x + j * stride + c,
                           lk_load_f32x8(x + j * stride + c) * lk_load_f32x8(domain->sigma + c));
    }
}

/* ---- one group of eight rows ---- */

/* Index of the level nearest to a magnitude, in units of the step. n_border: coder->n_border, a
 * constant after inlining. */
LK_ALWAYS_INLINE lk_i32x8 nearest_level(const struct lk_rot_quantizer *coder, int n_border,
                                        lk_f32x8 at) {
    if (n_border == 0)
        return lk_f32x8_to_i32x8(lk_min_f32x8(at, lk_set1_f32x8((float)(coder->half - 1))));
    lk_i32x8 k = {0};
    LK_UNROLL8
    for (int i = 0; i < n_border; i++) k -= at > coder->border[i];
    return k;
}

/* That level itself. */
LK_ALWAYS_INLINE lk_f32x8 level_of(const struct lk_rot_quantizer *coder, int n_border,
                                   lk_f32x8 at) {
    if (n_border == 0) return lk_i32x8_to_f32x8(nearest_level(coder, 0, at)) + 0.5f;
    lk_f32x8 level = lk_set1_f32x8(coder->magnitude[0]);
    LK_UNROLL8
    for (int i = 0; i < n_border; i++)
        level += lk_mask_f32x8(at > coder->border[i],
                               lk_set1_f32x8(coder->magnitude[i + 1] - coder->magnitude[i]));
    return level;
}

/* Quantize eight rows y [d]. Codes go to words of K's order: word c / 4 * 4 has channels c .. c +
 * 3. Returns the rows' scales. */
LK_ALWAYS_INLINE lk_f32x8 quantize_rows(const struct lk_rot_quantizer *coder, int n_border, int d,
                                        const lk_f32x8 *y, lk_u32x8 *cell) {
    lk_f32x8 energy = {0}, max = {0}, best = {0}, scale = {0};
    for (int c = 0; c < d; c++) {
        energy += y[c] * y[c];
        max = lk_max_f32x8(max, lk_abs_f32x8(y[c]));
    }
    lk_f32x8 rms = lk_sqrt_f32x8(energy / (float)d);
    lk_i32x8 nonzero = rms > 0.0f;
    lk_f32x8 guess = lk_select_f32x8(nonzero, coder->fine ? max / coder->reach : rms * coder->unit,
                                     lk_set1_f32x8(1)),
             step = guess;
    for (int i = 0; i < coder->n_trial; i++) {
        lk_f32x8 trial = guess * coder->trial[i], inverse = 1.0f / trial, dot = {0}, norm = {0};
        for (int c = 0; c < d; c++) {
            lk_f32x8 magnitude = lk_abs_f32x8(y[c]),
                     level = level_of(coder, n_border, magnitude * inverse);
            dot += level * magnitude;
            norm += level * level;
        }
        lk_f32x8 gain = dot * (dot / norm);
        lk_i32x8 better = gain > best;
        best = lk_select_f32x8(better, gain, best);
        scale = lk_select_f32x8(better, energy / dot, scale);
        step = lk_select_f32x8(better, trial, step);
    }
    lk_f32x8 inverse = 1.0f / step;
    for (int c = 0; c < d; c += 4) {
        lk_u32x8 word = {0};
        LK_UNROLL8
        for (int j = 0; j < 4; j++) {
            lk_i32x8 k = nearest_level(coder, n_border, lk_abs_f32x8(y[c + j]) * inverse);
            lk_i32x8 code = (k ^ (y[c + j] < 0.0f)) + coder->half;
            word |= (lk_u32x8)code << (8 * j);
        }
        cell[c] = word;
    }
    return lk_mask_f32x8(nonzero, scale);
}

/* ---- tiles ---- */

/* Mean of a tile's rows in the codec's domain, rounded to codes [d] and back. Returns its scale. */
LK_ALWAYS_INLINE float tile_mean(const struct domain *domain, const float *x, size_t stride,
                                 float *mean, int8_t *code) {
    for (int c = 0; c < domain->d; c += LK_LANES) {
        lk_f32x8 sum = {0};
        for (int t = 0; t < LK_TILE; t++) sum += equalize(domain, x + t * stride, c);
        lk_store_f32x8(mean + c, sum / (float)LK_TILE);
    }
    lk_rotate(mean, domain->d);
    return lk_rot_round_mean(mean, domain->d, code);
}

LK_ALWAYS_INLINE void encode_rot(const struct lk_part *part, void *head, int row0, int n,
                                 const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_quantizer coder = lk_rot_quantizer(codec);
    int d = part->d_head;
    uint16_t *half = (uint16_t *)lk_rot_scales(codec, head, d);
    struct domain domain;
    domain_init(part, &domain);
    float mean[LK_MAX_D_HEAD], mean_scale = 0;
    if (codec->mean)
        mean_scale = tile_mean(&domain, x, stride, mean, (int8_t *)lk_rot_mean(codec, head, d));
    if (codec->trellis) {
        struct tile tile;
        for (int t = 0; t < LK_TILE; t += LK_LANES) {
            lk_f32x8 *row = tile.row[t / LK_LANES];
            rotate_rows(&domain, LK_LANES, x + t * stride, stride, row);
            for (int c = 0; codec->mean && c < d; c++) row[c] -= mean[c];
        }
        quantize_tile(part, &tile, head, half);
        if (codec->mean) lk_rot_store_mean_scale(half, mean_scale);
        return;
    }
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    for (int t = 0; t < n; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD], scale;
        rotate_rows(&domain, n - t < LK_LANES ? n - t : LK_LANES, x + t * stride, stride, y);
        for (int c = 0; codec->mean && c < d; c++) y[c] -= mean[c];
        lk_u32x8 *words = cell + t / LK_LANES;
        switch (coder.n_border) { /* constant numbers of borders unroll the loops */
        case 1: scale = quantize_rows(&coder, 1, d, y, words); break;
        case 3: scale = quantize_rows(&coder, 3, d, y, words); break;
        case 7: scale = quantize_rows(&coder, 7, d, y, words); break;
        default: scale = quantize_rows(&coder, 0, d, y, words);
        }
        for (int j = 0; j < LK_LANES && t + j < n; j++)
            half[row0 + t + j] = lk_f32_to_f16(scale[j]);
    }
    if (codec->mean) lk_rot_store_mean_scale(half, mean_scale);
    if (n == LK_TILE) {
        if (part->side == LK_V) reorder_cells(d, cell, swapped, LK_V);
        pack_cells(codec->bits, d, part->side == LK_V ? swapped : cell, head);
        return;
    }
    for (int t = 0; t < n; t++) {
        uint8_t code[LK_MAX_D_HEAD];
        for (int c = 0; c < d; c += 4)
            memcpy(code + c, (const char *)(cell + c + t / 8) + t % 8 * 4, 4);
        lk_bitplanes_pack_row(part->side, codec->bits, d, head, row0 + t, code);
    }
}

/* Reconstruct the LK_TILE rows of a tile. */
LK_ALWAYS_INLINE void decode_rot(const struct lk_part *part, const void *head, float *x,
                                 size_t stride) {
    const struct lk_codec *codec = part->codec;
    if (codec->trellis) {
        lk_codec_decode(part, head, 0, LK_TILE, x, stride);
        return;
    }
    struct lk_rot_quantizer coder = lk_rot_quantizer(codec);
    int d = part->d_head;
    const uint16_t *half = lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mean_scale = codec->mean ? lk_rot_load_mean_scale(half) : 0;
    struct domain domain;
    domain_init(part, &domain);
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    unpack_cells(codec->bits, d, head, cell);
    if (part->side == LK_V) reorder_cells(d, cell, swapped, LK_K);
    const lk_u32x8 *words = part->side == LK_V ? swapped : cell;
    for (int t = 0; t < LK_TILE; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD], scale;
        for (int j = 0; j < LK_LANES; j++) scale[j] = lk_f16_to_f32(half[t + j] & 0x7fff);
        for (int c = 0; c < d; c++) {
            lk_i32x8 code = (lk_i32x8)((words[c / 4 * 4 + t / LK_LANES] >> (8 * (c % 4))) & 255);
            lk_i32x8 negative = code < coder.half, k = (code - coder.half) ^ negative;
            lk_f32x8 level = lk_i32x8_to_f32x8(k) + 0.5f;
            if (coder.n_border) level = lk_set1_f32x8(coder.magnitude[0]);
            for (int i = 0; i < coder.n_border; i++)
                level += lk_mask_f32x8(k > i,
                                       lk_set1_f32x8(coder.magnitude[i + 1] - coder.magnitude[i]));
            level = (lk_f32x8)((lk_i32x8)level | (negative & INT32_MIN));
            y[c] = scale * level;
            if (codec->mean) y[c] += mean_scale * mean[c];
        }
        unrotate_rows(&domain, LK_LANES, y, x + t * stride, stride);
    }
}

/* ---- f16 ---- */

static void encode_f16(int d, uint16_t *out, int n, const float *x, size_t stride) {
    const lk_f32x8 max = lk_set1_f32x8(LK_F16_MAX), min = lk_set1_f32x8(-LK_F16_MAX);
    for (int t = 0; t < n; t++, x += stride, out += d)
        for (int c = 0; c < d; c += LK_LANES) /* keeps NaN */
            lk_store_f16x8(out + c, lk_max_f32x8(min, lk_min_f32x8(max, lk_load_f32x8(x + c))));
}

static void decode_f16(int d, const uint16_t *in, int n, float *x, size_t stride) {
    for (int t = 0; t < n; t++, x += stride, in += d)
        for (int c = 0; c < d; c += LK_LANES) lk_store_f32x8(x + c, lk_load_f16x8(in + c));
}

/* ---- int8 and KIVI: lanes are channels; same bits as codec/int8.c and codec/kivi.c ---- */

/* Pack codes in V's order into a tile of either side. */
LK_ALWAYS_INLINE void pack_v_order(enum lk_side side, int bits, int d_head, const lk_u32x8 *cell,
                                   void *tile) {
    lk_u32x8 swapped[LK_MAX_D_HEAD];
    if (side == LK_K) reorder_cells(d_head, cell, swapped, LK_K);
    pack_cells(bits, d_head, side == LK_K ? swapped : cell, tile);
}

/* (x - min) * inverse, rounded and clamped to [lo, hi]. */
LK_ALWAYS_INLINE lk_i32x8 quantize(lk_f32x8 x, lk_f32x8 min, lk_f32x8 inverse, float lo, float hi) {
    lk_f32x8 level = (lk_clamp_f32x8(x) - min) * inverse;
    return lk_round_f32x8(lk_min_f32x8(lk_max_f32x8(level, lk_set1_f32x8(lo)), lk_set1_f32x8(hi)));
}

/* One tile of LK_TILE rows x, `stride` floats apart. */
LK_ALWAYS_INLINE void encode_int8(const struct lk_part *part, void *head, const float *x,
                                  size_t stride) {
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_int8_scales(head, d);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride) {
        lk_f32x8 max = {0};
        for (int c = 0; c < d; c += LK_LANES)
            max = lk_max_f32x8(max, lk_abs_f32x8(lk_clamp_f32x8(lk_load_f32x8(x + c))));
        scale[t] = lk_f32_to_f16(lk_hmax_f32x8(max) / 127 + LK_INT8_EPS);
        float stored = lk_f16_to_f32(scale[t]);
        lk_f32x8 inverse = lk_set1_f32x8(stored > 0 ? 1 / stored : 0);
        for (int c = 0; c < d; c += LK_LANES) {
            lk_i32x8 code =
                quantize(lk_load_f32x8(x + c), lk_set1_f32x8(0), inverse, -127, 127) + LK_INT8_MID;
            cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
        }
    }
    pack_v_order(part->side, 8, d, cell, head);
}

/* Store the scale and the minimum of a group of values in [lo, hi] as f16. Returns 1 / scale, or 0
 * if the stored scale is 0. */
LK_ALWAYS_INLINE float store_range(float lo, float hi, int bits, uint16_t *scale, uint16_t *min) {
    *scale = lk_f32_to_f16((hi - lo + 0.0f) / (float)((1 << bits) - 1)); /* + 0: never -0 */
    *min = lk_f32_to_f16(lo + 0.0f);
    float stored = lk_f16_to_f32(*scale);
    return stored > 0 ? 1 / stored : 0;
}

/* One block of part->block_rows rows: each channel has a scale and a minimum. */
LK_ALWAYS_INLINE void encode_kivi_k(const struct lk_part *part, void *head, const float *x,
                                    size_t stride) {
    int d = part->d_head, bits = part->codec->bits;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_K, head, d), *min = scale + d;
    float inverse[LK_MAX_D_HEAD], stored_min[LK_MAX_D_HEAD], top = (float)((1 << bits) - 1);
    for (int c = 0; c < d; c += LK_LANES) {
        lk_f32x8 lo = lk_clamp_f32x8(lk_load_f32x8(x + c)), hi = lo;
        for (int t = 1; t < part->block_rows; t++) {
            lk_f32x8 v = lk_clamp_f32x8(lk_load_f32x8(x + t * stride + c));
            lo = lk_min_f32x8(lo, v);
            hi = lk_max_f32x8(hi, v);
        }
        for (int j = 0; j < LK_LANES; j++) {
            inverse[c + j] = store_range(lo[j], hi[j], bits, &scale[c + j], &min[c + j]);
            stored_min[c + j] = lk_f16_to_f32(min[c + j]);
        }
    }
    for (int row0 = 0; row0 < part->block_rows; row0 += LK_TILE) {
        lk_u32x8 cell[LK_MAX_D_HEAD];
        memset(cell, 0, d * sizeof *cell);
        for (int t = 0; t < LK_TILE; t++, x += stride)
            for (int c = 0; c < d; c += LK_LANES) {
                lk_i32x8 code = quantize(lk_load_f32x8(x + c), lk_load_f32x8(stored_min + c),
                                         lk_load_f32x8(inverse + c), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        pack_v_order(LK_K, bits, d, cell, (void *)lk_kivi_tile(part->codec, head, d, row0));
    }
}

/* One tile of LK_TILE rows: each token has a scale and a minimum per group of channels. */
LK_ALWAYS_INLINE void encode_kivi_v(const struct lk_part *part, void *head, const float *x,
                                    size_t stride) {
    int d = part->d_head, bits = part->codec->bits, group = part->codec->group;
    uint16_t *scale = (uint16_t *)lk_kivi_scales(part->codec, LK_V, head, d);
    uint16_t *min = scale + lk_kivi_groups(part->codec, LK_V, d);
    float top = (float)((1 << bits) - 1);
    lk_u32x8 cell[LK_MAX_D_HEAD];
    memset(cell, 0, d * sizeof *cell);
    for (int t = 0; t < LK_TILE; t++, x += stride)
        for (int g = 0; g < d; g += group) {
            lk_f32x8 lo = lk_clamp_f32x8(lk_load_f32x8(x + g)), hi = lo;
            for (int c = g + LK_LANES; c < g + group; c += LK_LANES) {
                lk_f32x8 v = lk_clamp_f32x8(lk_load_f32x8(x + c));
                lo = lk_min_f32x8(lo, v);
                hi = lk_max_f32x8(hi, v);
            }
            int at = g / group * LK_TILE + t;
            float inverse = store_range(-lk_hmax_f32x8(-lo), lk_hmax_f32x8(hi), bits, &scale[at],
                                        &min[at]),
                  stored_min = lk_f16_to_f32(min[at]);
            for (int c = g; c < g + group; c += LK_LANES) {
                lk_i32x8 code = quantize(lk_load_f32x8(x + c), lk_set1_f32x8(stored_min),
                                         lk_set1_f32x8(inverse), 0, top);
                cell[c + t / 4] |= (lk_u32x8)code << (t % 4 * 8);
            }
        }
    pack_v_order(LK_V, bits, d, cell, head);
}

/* ---- asym: lanes are rows ---- */

/* Channels of n <= 8 rows as vectors y [d]. Lanes without a row are 0. */
LK_ALWAYS_INLINE void load_rows(int d, int n, const float *x, size_t stride, lk_f32x8 *y) {
    for (int c = 0; c < d; c += LK_LANES) {
        for (int j = 0; j < LK_LANES; j++)
            y[c + j] = j < n ? lk_clamp_f32x8(lk_load_f32x8(x + j * stride + c)) : (lk_f32x8){0};
        lk_transpose_f32x8(y + c);
    }
}

/* Quantize a group of eight rows y [width]. Codes go to words of K's order. scale, zero: of the
 * rows, as stored */
LK_ALWAYS_INLINE void quantize_asym(int bits, int width, const lk_f32x8 *y, lk_u32x8 *cell,
                                    uint16_t scale[LK_LANES], uint16_t zero[LK_LANES]) {
    const float max_zero = 2 * LK_ASYM_MAX_ZERO, top = (float)((1 << bits) - 1);
    lk_f32x8 lo = y[0], hi = y[0], stored, from;
    for (int c = 1; c < width; c++) {
        lo = lk_min_f32x8(lo, y[c]);
        hi = lk_max_f32x8(hi, y[c]);
    }
    lk_f32x8 least = lk_max_f32x8(lk_abs_f32x8(lo), lk_abs_f32x8(hi)) / LK_ASYM_MAX_ZERO,
             step = lk_max_f32x8((hi - lo) / top, least);
    for (int j = 0; j < LK_LANES; j++) {
        scale[j] = lk_f32_to_f16(step[j]);
        stored[j] = lk_f16_to_f32(scale[j]);
    }
    lk_f32x8 inverse = lk_mask_f32x8(stored > 0.0f, 1.0f / stored);
    from = lk_min_f32x8(lk_max_f32x8(-lo * inverse, lk_set1_f32x8(-max_zero)),
                        lk_set1_f32x8(max_zero));
    lk_i32x8 offset = lk_round_f32x8(from);
    for (int j = 0; j < LK_LANES; j++) zero[j] = lk_f32_to_f16((float)offset[j]);
    from = lk_i32x8_to_f32x8(offset);
    for (int c = 0; c < width; c += 4) {
        lk_u32x8 word = {0};
        LK_UNROLL8
        for (int j = 0; j < 4; j++) {
            lk_f32x8 code = lk_i32x8_to_f32x8(lk_round_f32x8(y[c + j] * inverse)) + from;
            code = lk_min_f32x8(lk_max_f32x8(code, lk_set1_f32x8(0)), lk_set1_f32x8(top));
            word |= (lk_u32x8)lk_f32x8_to_i32x8(code) << (8 * j);
        }
        cell[c] = word;
    }
}

LK_ALWAYS_INLINE void encode_asym(const struct lk_part *part, void *head, int row0, int n,
                                  const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    int d = part->d_head, width = lk_asym_width(codec, d);
    size_t bytes = lk_asym_group_bytes(codec, width);
    struct domain domain;
    lk_u32x8 cell[LK_MAX_D_HEAD], swapped[LK_MAX_D_HEAD];
    if (codec->hadamard) domain_init(part, &domain);
    for (int t = 0; t < n; t += LK_LANES) {
        lk_f32x8 y[LK_MAX_D_HEAD];
        int rows = n - t < LK_LANES ? n - t : LK_LANES;
        if (codec->hadamard)
            rotate_rows(&domain, rows, x + t * stride, stride, y);
        else
            load_rows(d, rows, x + t * stride, stride, y);
        for (int c = 0; c < d; c += width) {
            char *group = (char *)head + c / width * bytes;
            uint16_t scale[LK_LANES], zero[LK_LANES];
            uint16_t *out = (uint16_t *)lk_asym_scales(codec, group, width) + row0 + t;
            quantize_asym(codec->bits, width, y + c, cell + c + t / LK_LANES, scale, zero);
            memcpy(out, scale, rows * sizeof *out);
            memcpy(out + LK_TILE, zero, rows * sizeof *out);
        }
    }
    for (int c = 0; c < d; c += width) {
        char *group = (char *)head + c / width * bytes;
        const lk_u32x8 *words = cell + c;
        if (n == LK_TILE) {
            if (part->side == LK_V) reorder_cells(width, words, swapped, LK_V);
            pack_cells(codec->bits, width, part->side == LK_V ? swapped : words, group);
            continue;
        }
        for (int t = 0; t < n; t++) {
            uint8_t code[LK_MAX_D_HEAD];
            for (int i = 0; i < width; i += 4)
                memcpy(code + i, (const char *)(words + i + t / 8) + t % 8 * 4, 4);
            lk_bitplanes_pack_row(part->side, codec->bits, width, group, row0 + t, code);
        }
    }
}

/* ---- dispatch ---- */

void lk_vec8_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                    size_t stride) {
    const struct lk_codec *codec = part->codec;
    bool whole_tile = n == LK_TILE;
    if (codec->coding == LK_F16) {
        encode_f16(part->d_head, (uint16_t *)head + (size_t)row0 * part->d_head, n, x, stride);
    } else if (codec->coding == LK_ROT)
        encode_rot(part, head, row0, n, x, stride);
    else if (codec->coding == LK_ASYM)
        encode_asym(part, head, row0, n, x, stride);
    else if (codec->coding == LK_KIVI && part->side == LK_K)
        encode_kivi_k(part, head, x, stride);
    else if (codec->coding == LK_KIVI && whole_tile)
        encode_kivi_v(part, head, x, stride);
    else if (codec->coding == LK_INT8 && whole_tile)
        encode_int8(part, head, x, stride);
    else
        lk_codec_encode(part, head, row0, n, x, stride);
}

void lk_vec8_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                    size_t stride) {
    if (part->codec->coding == LK_F16)
        decode_f16(part->d_head, lk_f16_row(head, part->d_head, row0), n, x, stride);
    else if (part->codec->coding == LK_ROT && n == LK_TILE)
        decode_rot(part, head, x, stride);
    else
        lk_codec_decode(part, head, row0, n, x, stride);
}
