/* Rows of a tile to codes, with the bits of lib/codec. One warp encodes a tile; a lane works on a
 * row, so sums over channels are in the CPU's order.
 *
 * Rows are floats in shared memory (cuda/rotate.cuh). `rows` says which of them there are: bit t.
 * Codes take the place of the floats. Scales are put into m.extra: number i of row t is
 * scale_of(m, i, t), as the half that will be stored. */
#ifndef LK_CUDA_ENCODE_CUH
#define LK_CUDA_ENCODE_CUH

#include "codec/codec.h"
#include "cuda/codes.cuh"

WF float &scale_of(const tile_memory &m, int i, int t) { return m.extra[i * TILE_STRIDE + t]; }

/* x = the rows as the codec rotates or quantizes them: divided by sigma, finite, with the signs of
 * the rotation changed. With a mean, column 32 becomes the mean of the rows. sigma: [d] or NULL */
CALLED void prepare_rows(const lk_device_packing &__restrict__ k, const tile_memory &m,
                         const float *sigma, bool mean) {
    lanes([&](int lane) {
        for (int c = lane; c < k.d; c += 32) {
            float *x = m.x + c * TILE_STRIDE, sum = 0, inverse = sigma ? divide(1, sigma[c]) : 0;
            uint64_t signs = k.rotates ? rotation_signs(k.d, c / 64) : 0;
            for (int t = 0; t < TILE_ROWS; t++) {
                float y = clamp_finite(sigma ? mul(x[t], inverse) : x[t]);
                sum = add(sum, y);
                x[t] = flip(y, signs, c);
            }
            if (mean) x[TILE_MEAN] = flip(divide(sum, TILE_ROWS), signs, c);
        }
    });
}

/* Rotate the mean, round it to int8 and store its codes (lk_rot_round_mean). Its scale goes to
 * m.scratch[0]. */
CALLED void store_mean(const lk_device_packing &__restrict__ k, const tile_memory &m,
                       int8_t *code) {
    lanes([&](int lane) {
        if (lane == 0) multiply_hadamard(k, m, TILE_MEAN, false);
    });
    lanes([&](int lane) {
        float max = 0;
        for (int c = 0; c < k.d; c++) max = fmaxf(max, fabsf(m.x[c * TILE_STRIDE + TILE_MEAN]));
        float scale = divide(max, 127);
        if (lane == 0) m.scratch[0] = scale;
        for (int c = lane; c < k.d; c += 32) {
            float step = divide(m.x[c * TILE_STRIDE + TILE_MEAN], scale);
            code[c] = (int8_t)(scale > 0 ? fminf(fmaxf(roundf(step), -127), 127) : 0);
        }
    });
    lanes([&](int lane) {
        for (int c = lane; c < k.d; c += 32)
            m.x[c * TILE_STRIDE + TILE_MEAN] = mul(m.scratch[0], code[c]);
    });
}

/* ---- rot ---- */

/* A codebook of rot in registers: N borders between N + 1 magnitudes, or N = 0: uniform. */
template <int N> struct codebook {
    float magnitude[N + 1], border[N + 1];
    float last; /* uniform: the index of the last magnitude */
};

template <int N> WF codebook<N> load_codebook(const lk_device_packing &__restrict__ k) {
    codebook<N> book;
    book.last = (float)(k.half - 1);
#pragma unroll
    for (int i = 0; i <= N; i++) book.magnitude[i] = k.magnitude[i];
#pragma unroll
    for (int i = 0; i < N; i++)
        book.border[i] = mul(0.5f, add(book.magnitude[i], book.magnitude[i + 1]));
    return book;
}

/* The magnitude nearest to `x` and its index. */
template <int N> WF float nearest_magnitude(const codebook<N> &book, float x, int *index) {
    if (N == 0) {
        *index = (int)fminf(x, book.last);
        return add((float)*index, 0.5f);
    }
    float level = book.magnitude[0];
    *index = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        bool above = x > book.border[i];
        level = above ? book.magnitude[i + 1] : level;
        *index += above;
    }
    return level;
}

/* Quantize the row y of one lane, whose channels are TILE_STRIDE apart: codes take its place. All
 * trials of a step are computed in one pass. Returns the scale. (quantize_row in codec/rot.c) */
template <int N> CALLED float quantize_rot(const lk_device_packing &__restrict__ k, float *y) {
    const codebook<N> book = load_codebook<N>(k);
    float energy = 0, max = 0;
    for (int c = 0; c < k.d; c++) {
        float v = y[c * TILE_STRIDE];
        energy = add(energy, mul(v, v));
        max = fmaxf(max, fabsf(v));
    }
    float rms = root(divide(energy, (float)k.d));
    float guess = rms > 0 ? k.fine ? divide(max, k.reach) : mul(rms, k.unit) : 1;
    float inverse[LK_ROT_MAX_TRIAL], dot[LK_ROT_MAX_TRIAL], norm[LK_ROT_MAX_TRIAL];
#pragma unroll
    for (int i = 0; i < LK_ROT_MAX_TRIAL; i++) {
        inverse[i] = divide(1, mul(guess, i < k.n_trial ? k.trial[i] : 1));
        dot[i] = norm[i] = 0;
    }
    for (int c = 0; c < k.d; c++) {
        float v = fabsf(y[c * TILE_STRIDE]);
#pragma unroll
        for (int i = 0; i < LK_ROT_MAX_TRIAL; i++) {
            int index;
            float level = nearest_magnitude(book, mul(v, inverse[i]), &index);
            dot[i] = add(dot[i], mul(level, v));
            norm[i] = add(norm[i], mul(level, level));
        }
    }
    float best = 0, scale = 0, step = guess;
#pragma unroll
    for (int i = 0; i < LK_ROT_MAX_TRIAL; i++) {
        float score = mul(dot[i], divide(dot[i], norm[i]));
        if (i >= k.n_trial || !(score > best)) continue;
        best = score;
        scale = divide(energy, dot[i]);
        step = mul(guess, k.trial[i]);
    }
    float final = divide(1, step);
    for (int c = 0; c < k.d; c += 4) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++) {
            float v = y[(c + j) * TILE_STRIDE];
            int index;
            nearest_magnitude(book, mul(fabsf(v), final), &index);
            word |= (uint32_t)(v < 0 ? k.half - 1 - index : k.half + index) << (8 * j);
        }
        store_word(y, c / 4, 0, word);
    }
    return rms > 0 ? scale : 0;
}

WF float quantize_row(const lk_device_packing &__restrict__ k, float *y) {
    switch (k.n_border) {
    case 1: return quantize_rot<1>(k, y);
    case 3: return quantize_rot<3>(k, y);
    case 7: return quantize_rot<7>(k, y);
    default: return quantize_rot<0>(k, y);
    }
}

/* Rotate prepared rows and subtract the mean: the tile's, in column 32, or, if `block` is not
 * NULL, the stored mean of the block whose part is at block[t]. */
CALLED void rotate_rows(const lk_device_packing &__restrict__ k, const tile_memory &m,
                        uint32_t rows, const uint64_t *block) {
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        multiply_hadamard(k, m, t, false);
        if (!k.mean) return;
        const uint16_t *scale =
            block ? at<const uint16_t>(block[t] + planes_bytes(k.bits, k.d)) : NULL;
        const int8_t *mean = (const int8_t *)(scale + TILE_ROWS);
        float mean_scale = block ? load_mean_scale(scale) : 0;
        for (int c = 0; c < k.d; c++) {
            float y = block ? mul(mean_scale, mean[c]) : m.x[c * TILE_STRIDE + TILE_MEAN];
            m.x[c * TILE_STRIDE + t] = sub(m.x[c * TILE_STRIDE + t], y);
        }
    });
}

CALLED void encode_rot(const lk_device_packing &__restrict__ k, const tile_memory &m,
                       uint32_t rows) {
    lanes([&](int t) {
        if (rows >> t & 1) scale_of(m, 0, t) = from_bits(to_half(quantize_row(k, m.x + t)));
    });
}

/* ---- rot with a trellis ---- */

/* Symbols, indices and states of codes of 1 to 4 bits (struct lk_trellis). */
struct trellis {
    int bits, n_symbol, n_state, n_index, next_shift;
};

WF trellis trellis_of(int bits) {
    if (bits == 1) return {1, 32, 32, 64, 1};
    if (bits == 2) return {2, 16, 16, 64, 2};
    if (bits == 3) return {3, 16, 4, 32, 2};
    return {4, 8, 4, 64, 4};
}

WF int next_state(const trellis &of, int index) {
    return index >> of.next_shift & (of.n_state - 1);
}
WF int trellis_code(const trellis &of, int index) {
    if (of.bits == 3) return (index & 3) | (index >> 4 & 1) << 2;
    return index & ((1 << of.bits) - 1);
}

/* Row and channel of symbol p of a word of a group (lk_trellis_place). */
struct symbol_place {
    int t, c;
};
WF symbol_place place_symbol(const lk_device_packing &__restrict__ k, const trellis &of, int group,
                             int word, int p) {
    int per_byte = of.n_symbol / 4, cell = group * per_byte + p % per_byte, byte = p / per_byte;
    if (k.side == LK_K) return {cell % 4 * 8 + word, cell / 4 * 4 + byte};
    return {cell % 8 * 4 + byte, cell / 8 * 8 + word};
}

/* The Viterbi algorithm over the symbols of a word from symbol `end` - 1 down to `end`, around the
 * word (find_path in codec/rot.c). value(p): of symbol p; best: [n_symbol][n_state] scratch. */
template <class Value>
WF void find_path(const lk_device_packing &__restrict__ k, const trellis &of, Value value, int end,
                  int state, uint8_t *best, uint8_t *index) {
    float cost[32], next[32];
    int n = of.n_symbol, n_state = of.n_state;
    for (int i = 0; i < n_state; i++) cost[i] = state < 0 || i == state ? 0 : 1e38f;
    for (int s = 1; s <= n; s++) {
        int p = (end + n - s) % n;
        float v = value(p);
        for (int i = 0; i < n_state; i++) next[i] = 3e38f;
        for (int i = 0; i < of.n_index; i++) {
            float error = sub(v, (float)((int)k.level[i] - 63));
            float sum = add(cost[next_state(of, i)], mul(error, error));
            int own = i & (n_state - 1);
            if (!(sum < next[own])) continue;
            next[own] = sum;
            best[p * n_state + own] = (uint8_t)i;
        }
        for (int i = 0; i < n_state; i++) cost[i] = next[i];
    }
    int from = state < 0 ? 0 : state;
    for (int i = 1; state < 0 && i < n_state; i++)
        if (cost[i] < cost[from]) from = i;
    for (int s = 0; s < n; s++) {
        int p = (end + s) % n;
        index[p] = best[p * n_state + from];
        from = next_state(of, index[p]);
    }
}

/* Quantize the rotated rows of a whole tile (quantize_tile in codec/rot.c). Indices of levels are
 * bytes in m.spare, as codes are in m.x. */
WF void encode_trellis(const lk_device_packing &__restrict__ k, const tile_memory &m) {
    const trellis of = trellis_of(k.bits);
    lanes([&](int t) {
        float energy = 0, max = 0;
        for (int c = 0; c < k.d; c++) {
            float y = m.x[c * TILE_STRIDE + t];
            energy = add(energy, mul(y, y));
            max = fmaxf(max, fabsf(y));
        }
        float step =
            k.per_max > 0 ? mul(max, k.per_max) : mul(root(divide(energy, (float)k.d)), k.unit);
        scale_of(m, 1, t) = step > 1e-30f ? divide(1, step) : 0; /* LK_TRELLIS_MIN_STEP */
    });
    lanes([&](int lane) {
        uint8_t best[32 * 32], index[32];
        for (int i = lane; i < k.d * TILE_ROWS / of.n_symbol; i += 32) {
            auto value = [&](int p) {
                symbol_place at = place_symbol(k, of, i / 8, i % 8, p);
                return mul(m.x[at.c * TILE_STRIDE + at.t], scale_of(m, 1, at.t));
            };
            int middle = of.n_symbol / 2;
            find_path(k, of, value, 0, -1, best, index);
            int state = index[middle] & (of.n_state - 1);
            find_path(k, of, value, middle, state, best, index);
            for (int p = 0; p < of.n_symbol; p++) {
                symbol_place at = place_symbol(k, of, i / 8, i % 8, p);
                ((uint8_t *)(m.spare + at.c / 4 * TILE_STRIDE + at.t))[at.c % 4] = index[p];
            }
        }
    });
    lanes([&](int t) {
        float energy = 0, dot = 0;
        for (int c = 0; c < k.d; c += 4) {
            const uint8_t *index = (const uint8_t *)(m.spare + c / 4 * TILE_STRIDE + t);
            uint32_t word = 0;
            for (int j = 0; j < 4; j++) {
                float y = m.x[(c + j) * TILE_STRIDE + t];
                energy = add(energy, mul(y, y));
                dot = add(dot, mul(y, (float)((int)k.level[index[j]] - 63)));
                word |= (uint32_t)trellis_code(of, index[j]) << (8 * j);
            }
            store_word(m.x, c / 4, t, word);
        }
        scale_of(m, 0, t) = from_bits(to_half(dot > 0 ? divide(energy, dot) : 0));
    });
}

/* ---- codecs with a range or a grid ---- */

WF void encode_int8(const lk_device_packing &__restrict__ k, const tile_memory &m, uint32_t rows) {
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        float *x = m.x + t, max = 0;
        for (int c = 0; c < k.d; c++) max = fmaxf(max, fabsf(x[c * TILE_STRIDE]));
        uint16_t half = to_half(add(divide(max, 127), 1e-8f)); /* LK_INT8_EPS */
        float stored = from_half(half), inverse = stored > 0 ? divide(1, stored) : 0;
        scale_of(m, 0, t) = from_bits(half);
        for (int c = 0; c < k.d; c += 4) {
            uint32_t word = 0;
            for (int j = 0; j < 4; j++) {
                float level = mul(x[(c + j) * TILE_STRIDE], inverse);
                level = round_half_away(fminf(fmaxf(level, -127), 127));
                word |= (uint32_t)(uint8_t)((int)level + 128) << (8 * j); /* LK_INT8_MID */
            }
            store_word(x, c / 4, 0, word);
        }
    });
}

/* Scale and minimum of a range [lo, hi], as halves (find_range in codec/kivi.c). */
struct range {
    uint16_t scale, min;
};
WF range range_of(float lo, float hi, int bits) {
    float top = (float)((1 << bits) - 1);
    return {to_half(divide(add(sub(hi, lo), 0.0f), top)), to_half(add(lo, 0.0f))};
}
WF uint32_t quantize_in_range(float x, float min, float inverse, int bits) {
    float level = mul(sub(x, min), inverse), top = (float)((1 << bits) - 1);
    return (uint32_t)round_half_away(fminf(fmaxf(level, 0), top));
}

/* V of kivi: scale 2 i is the scale of group i of a row, 2 i + 1 its minimum. */
WF void encode_kivi_v(const lk_device_packing &__restrict__ k, const tile_memory &m,
                      uint32_t rows) {
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        float *x = m.x + t;
        for (int g = 0; g * k.group < k.d; g++) {
            int first = g * k.group;
            float lo = x[first * TILE_STRIDE], hi = lo;
            for (int c = first + 1; c < first + k.group; c++) {
                lo = fminf(lo, x[c * TILE_STRIDE]);
                hi = fmaxf(hi, x[c * TILE_STRIDE]);
            }
            range r = range_of(lo, hi, k.bits);
            float scale = from_half(r.scale), min = from_half(r.min);
            float inverse = scale > 0 ? divide(1, scale) : 0;
            scale_of(m, 2 * g, t) = from_bits(r.scale);
            scale_of(m, 2 * g + 1, t) = from_bits(r.min);
            for (int c = first; c < first + k.group; c += 4) {
                uint32_t word = 0;
                for (int j = 0; j < 4; j++)
                    word |= quantize_in_range(x[(c + j) * TILE_STRIDE], min, inverse, k.bits)
                            << (8 * j);
                store_word(x, c / 4, 0, word);
            }
        }
    });
}

/* A group of one row of asym: scale and zero point, as halves (find_grid in codec/asym.c). Codes
 * take the place of its channels. */
WF range quantize_asym(const lk_device_packing &__restrict__ k, float *x, int first) {
    const float max_zero = 1024.0f, top = (float)((1 << k.bits) - 1); /* LK_ASYM_MAX_ZERO */
    float lo = x[first * TILE_STRIDE], hi = lo;
    for (int c = first + 1; c < first + k.group; c++) {
        lo = fminf(lo, x[c * TILE_STRIDE]);
        hi = fmaxf(hi, x[c * TILE_STRIDE]);
    }
    float least = divide(fmaxf(fabsf(lo), fabsf(hi)), max_zero);
    range grid;
    grid.scale = to_half(fmaxf(divide(sub(hi, lo), top), least));
    float scale = from_half(grid.scale), inverse = scale > 0 ? divide(1, scale) : 0;
    float zero = fminf(fmaxf(mul(-lo, inverse), -2 * max_zero), 2 * max_zero);
    grid.min = to_half(add(round_half_away(zero), 0.0f));
    zero = from_half(grid.min);
    for (int c = first; c < first + k.group; c += 4) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++) {
            float code = add(round_half_away(mul(x[(c + j) * TILE_STRIDE], inverse)), zero);
            word |= (uint32_t)fminf(fmaxf(code, 0), top) << (8 * j);
        }
        store_word(x, c / 4, 0, word);
    }
    return grid;
}

WF void encode_asym(const lk_device_packing &__restrict__ k, const tile_memory &m, uint32_t rows) {
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        if (k.rotates) multiply_hadamard(k, m, t, false);
        for (int g = 0; g * k.group < k.d; g++) {
            range grid = quantize_asym(k, m.x + t, g * k.group);
            scale_of(m, 2 * g, t) = from_bits(grid.scale);
            scale_of(m, 2 * g + 1, t) = from_bits(grid.min);
        }
    });
}

/* ---- to the block ---- */

/* Store the codes and scales of rows of a tile at `head`, of a codec whose rows have scales of
 * their own. Row t comes from column t if `column` is negative, else from that one. */
CALLED void store_rows(const lk_device_packing &__restrict__ k, const tile_memory &m, char *head,
                       uint32_t rows, int column) {
    int n_group = k.coding == LK_ASYM ? k.d / k.group : 1;
    int d = k.d / n_group;
    size_t bytes = planes_bytes(k.bits, d) + 2 * sizeof(uint16_t) * TILE_ROWS;
    for (int g = 0; g < n_group; g++)
        pack_codes(m.x, g * d / 4, k.side, k.bits, d, head + g * bytes, rows, column);
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        int from = column < 0 ? t : column;
        uint16_t *scale = (uint16_t *)(head + planes_bytes(k.bits, d)) + t;
        if (k.coding == LK_ROT && k.mean) { /* the sign is a bit of the mean's scale */
            uint32_t half = to_bits(scale_of(m, 0, from));
            *scale = (uint16_t)((*scale & 0x8000) | (half & 0x7fff));
        } else if (k.coding == LK_ROT || k.coding == LK_INT8) {
            *scale = (uint16_t)to_bits(scale_of(m, 0, from));
        } else if (k.coding == LK_ASYM) {
            for (int g = 0; g < n_group; g++, scale += bytes / sizeof *scale) {
                scale[0] = (uint16_t)to_bits(scale_of(m, 2 * g, from));
                scale[TILE_ROWS] = (uint16_t)to_bits(scale_of(m, 2 * g + 1, from));
            }
        } else { /* V of kivi */
            int n = k.d / k.group;
            for (int g = 0; g < n; g++, scale += TILE_ROWS) {
                scale[0] = (uint16_t)to_bits(scale_of(m, 2 * g, from));
                scale[n * TILE_ROWS] = (uint16_t)to_bits(scale_of(m, 2 * g + 1, from));
            }
        }
    });
}

/* Quantize rows of a codec whose rows do not depend on each other; they are in m.x as floats.
 * sigma: [d] or NULL; block: as in rotate_rows, if the codec has means */
CALLED void quantize_rows(const lk_device_packing &__restrict__ k, const tile_memory &m,
                          const float *sigma, uint32_t rows, const uint64_t *block) {
    prepare_rotation(k, m);
    prepare_rows(k, m, sigma, false);
    if (k.coding == LK_ROT) {
        rotate_rows(k, m, rows, block);
        encode_rot(k, m, rows);
    }
    if (k.coding == LK_INT8) encode_int8(k, m, rows);
    if (k.coding == LK_KIVI) encode_kivi_v(k, m, rows);
    if (k.coding == LK_ASYM) encode_asym(k, m, rows);
}

/* Encode a whole tile of rot with a mean or a trellis. */
WF void encode_whole_tile(const lk_device_packing &__restrict__ k, const tile_memory &m,
                          const float *sigma, char *head) {
    const uint32_t all = 0xffffffffu;
    size_t codes = planes_bytes(k.bits, k.d);
    int8_t *mean = (int8_t *)(head + codes + sizeof(uint16_t) * TILE_ROWS);
    prepare_rotation(k, m);
    prepare_rows(k, m, sigma, k.mean);
    if (k.mean) store_mean(k, m, mean);
    rotate_rows(k, m, all, NULL);
    if (k.trellis)
        encode_trellis(k, m);
    else
        encode_rot(k, m, all);
    if (k.mean)
        lanes([&](int t) {
            uint16_t *scale = (uint16_t *)(head + codes) + t;
            *scale = (uint16_t)((to_bits(m.scratch[0]) >> t & 1) << 15);
        });
    store_rows(k, m, head, all, -1);
}

#endif
