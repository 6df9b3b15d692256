/* Moves of rows between plain rows and the levels of caches: the commands of device/commands.h.
 *
 * One warp executes an item: up to 32 rows of one part. It reads them as floats into shared memory
 * and encodes them there. Rows that are plain or f16 on both sides are copied directly. */
#ifndef LK_CUDA_MOVE_CUH
#define LK_CUDA_MOVE_CUH

#include "cuda/decode.cuh"
#include "cuda/encode.cuh"

/* ---- where rows are ---- */

WF bool is_plain(const lk_device_packing &__restrict__ k) { return k.coding >= LK_ROWS_F32; }
WF bool is_exact(const lk_device_packing &__restrict__ k) {
    return is_plain(k) || k.coding == LK_F16;
}
WF bool is_kivi_k(const lk_device_packing &__restrict__ k) {
    return k.coding == LK_KIVI && k.side == LK_K;
}

/* Number of row i of the move in its table or array, for one part; -1: it is left out. */
WF int64_t row_number(const lk_device_move_rows &r, int part, int i) {
    if (!r.index) return r.first + i;
    int32_t entry =
        at<const int32_t>(r.index)[(int64_t)i * r.index_stride + (int64_t)part * r.index_step];
    return entry < 0 ? -1 : r.first + entry;
}

/* The part of the block that holds row `number` of a level; *row: the row in the block. */
WF char *block_part(const lk_device_move_rows &r, int part, int64_t number, int *row) {
    int64_t block = number / r.coding.block_rows;
    *row = (int)(number % r.coding.block_rows);
    uint64_t address = r.at ? at<const uint64_t>(r.at)[block] : r.block[block];
    return at<char>(address + r.offset + (uint64_t)part * r.part_bytes);
}

/* The row itself, if it is plain or f16. */
WF char *exact_row(const lk_device_move_rows &r, int part, int64_t number) {
    if (is_plain(r.coding))
        return at<char>(r.at + r.offset + (uint64_t)number * r.row_bytes +
                        (uint64_t)part * r.part_bytes);
    int row;
    char *head = block_part(r, part, number, &row);
    return head + (size_t)row * r.coding.d * sizeof(uint16_t);
}

WF float load_exact(const lk_device_packing &__restrict__ k, const char *row, int c) {
    return k.coding == LK_ROWS_F32 ? ((const float *)row)[c]
                                   : from_half(((const uint16_t *)row)[c]);
}
WF void store_exact(const lk_device_packing &__restrict__ k, char *row, int c, float x) {
    if (k.coding == LK_ROWS_F32)
        ((float *)row)[c] = x;
    else
        ((uint16_t *)row)[c] = to_half(x);
}

WF const float *sigma_of(const lk_device_move_rows &r, int part) {
    return r.sigma ? at<const float>(r.sigma) + (int64_t)part * r.sigma_stride : NULL;
}

/* ---- reading and writing ---- */

/* A tile that rows are only read into: lk_device_tile_bytes. */
WF tile_memory tile_to_read(const lk_device_packing &__restrict__ k, char *shared) {
    return tile_at(shared, k.d, rotation_rows(k));
}

/* Read rows i0 + t of the move into columns t of the tile, for the bits t of `rows`. Rows that the
 * source leaves out are dropped from the result. */
CALLED uint32_t read_rows(const lk_device_move_rows &r, const tile_memory &m, int part, int i0,
                          uint32_t rows) {
    for (int t = 0; r.index && t < TILE_ROWS; t++)
        if ((rows >> t & 1) && row_number(r, part, i0 + t) < 0) rows &= ~(1u << t);
    if (is_exact(r.coding)) {
        lanes([&](int lane) {
            for (int t = 0; t < TILE_ROWS; t++) {
                if (!(rows >> t & 1)) continue;
                const char *row = exact_row(r, part, row_number(r, part, i0 + t));
                for (int c = lane; c < r.coding.d; c += 32)
                    m.x[c * TILE_STRIDE + t] = load_exact(r.coding, row, c);
            }
        });
        return rows;
    }
    prepare_rotation(r.coding, m);
    lanes([&](int t) {
        if (!(rows >> t & 1)) return;
        int row;
        const char *head = block_part(r, part, row_number(r, part, i0 + t), &row);
        decode_row(r.coding, m, head, row, sigma_of(r, part), t);
    });
    return rows;
}

/* Write the tile's rows as plain or f16 rows. */
WF void write_exact(const lk_device_move_rows &r, const tile_memory &m, int part, int i0,
                    uint32_t rows) {
    lanes([&](int lane) {
        for (int t = 0; t < TILE_ROWS; t++) {
            int64_t number = rows >> t & 1 ? row_number(r, part, i0 + t) : -1;
            if (number < 0) continue;
            char *row = exact_row(r, part, number);
            for (int c = lane; c < r.coding.d; c += 32)
                store_exact(r.coding, row, c, m.x[c * TILE_STRIDE + t]);
        }
    });
}

/* Rows that are plain or f16 on both sides. */
WF void copy_rows(const lk_device_move &move, int part, int i0, int n) {
    lanes([&](int lane) {
        for (int t = 0; t < n; t++) {
            int64_t from = row_number(move.from, part, i0 + t),
                    to = row_number(move.to, part, i0 + t);
            if (from < 0 || to < 0) continue;
            const char *source = exact_row(move.from, part, from);
            char *target = exact_row(move.to, part, to);
            for (int c = lane; c < move.to.coding.d; c += 32)
                store_exact(move.to.coding, target, c, load_exact(move.from.coding, source, c));
        }
    });
}

/* ---- kivi's K: ranges of channels ---- */

/* The lowest number of each channel is in the column of the mean, the highest one, and later the
 * inverse of the scale, in m.extra. */
WF float &channel_min(const tile_memory &m, int c) { return m.x[c * TILE_STRIDE + TILE_MEAN]; }
WF float &channel_max(const tile_memory &m, int c) { return m.extra[c]; }

WF uint16_t *kivi_k_scales(const lk_device_packing &__restrict__ k, char *head) {
    return (uint16_t *)(head + k.block_rows / TILE_ROWS * planes_bytes(k.bits, k.d));
}

/* Encode a block of rows from row i0 of the move on. */
WF void encode_kivi_k(const lk_device_move &move, const tile_memory &m, int part, int i0,
                      char *head) {
    const lk_device_packing &__restrict__ k = move.to.coding;
    const uint32_t all = 0xffffffffu;
    int n_tile = k.block_rows / TILE_ROWS;
    for (int i = 0; i < n_tile; i++) {
        read_rows(move.from, m, part, i0 + i * TILE_ROWS, all);
        prepare_rows(k, m, NULL, false);
        lanes([&](int lane) {
            for (int c = lane; c < k.d; c += 32) {
                const float *x = m.x + c * TILE_STRIDE;
                float lo = i ? channel_min(m, c) : x[0], hi = i ? channel_max(m, c) : x[0];
                for (int t = 0; t < TILE_ROWS; t++) {
                    lo = fminf(lo, x[t]);
                    hi = fmaxf(hi, x[t]);
                }
                channel_min(m, c) = lo;
                channel_max(m, c) = hi;
            }
        });
    }
    uint16_t *stored = kivi_k_scales(k, head);
    lanes([&](int lane) {
        for (int c = lane; c < k.d; c += 32) {
            range r = range_of(channel_min(m, c), channel_max(m, c), k.bits);
            stored[c] = r.scale;
            stored[k.d + c] = r.min;
            float scale = from_half(r.scale);
            channel_min(m, c) = from_half(r.min);
            channel_max(m, c) = scale > 0 ? divide(1, scale) : 0;
        }
    });
    for (int i = 0; i < n_tile; i++) {
        if (n_tile > 1) {
            read_rows(move.from, m, part, i0 + i * TILE_ROWS, all);
            prepare_rows(k, m, NULL, false);
        }
        lanes([&](int t) {
            for (int c = 0; c < k.d; c += 4) {
                uint32_t word = 0;
                for (int j = 0; j < 4; j++)
                    word |= quantize_in_range(m.x[(c + j) * TILE_STRIDE + t], channel_min(m, c + j),
                                              channel_max(m, c + j), k.bits)
                            << (8 * j);
                store_word(m.x, c / 4, t, word);
            }
        });
        pack_codes(m.x, 0, k.side, k.bits, k.d, head + i * planes_bytes(k.bits, k.d), all, -1);
    }
}

/* Put the prepared row of column t into row `row` of a block, in the ranges that the block has
 * (kivi_replace). The column of the mean gets its codes. */
WF void replace_kivi_k(const lk_device_packing &__restrict__ k, const tile_memory &m, int t,
                       char *head, int row) {
    uint16_t *scale = kivi_k_scales(k, head);
    lanes([&](int lane) {
        for (int c = lane; c < k.d; c += 32) {
            float min = from_half(scale[k.d + c]), top = (float)((1 << k.bits) - 1);
            float distance = sub(m.x[c * TILE_STRIDE + t], min);
            if (from_half(scale[c]) == 0) scale[c] = to_half(add(divide(distance, top), 0.0f));
            float step = from_half(scale[c]), inverse = step != 0 ? divide(1, step) : 0;
            uint32_t code = quantize_in_range(m.x[c * TILE_STRIDE + t], min, inverse, k.bits);
            ((uint8_t *)(m.x + c / 4 * TILE_STRIDE + TILE_MEAN))[c % 4] = (uint8_t)code;
        }
    });
    char *tile = head + row / TILE_ROWS * planes_bytes(k.bits, k.d);
    pack_codes(m.x, 0, k.side, k.bits, k.d, tile, 1u << row % TILE_ROWS, TILE_MEAN);
}

/* ---- items ---- */

/* Append rows [i0, i0 + n) of the move, which lie in one tile or block of the target. */
WF void append_rows(const lk_device_move &move, const tile_memory &m, int part, int i0, int n) {
    const lk_device_packing &__restrict__ k = move.to.coding;
    if (is_exact(k) && is_exact(move.from.coding)) {
        copy_rows(move, part, i0, n);
        return;
    }
    if (is_exact(k)) {
        uint32_t rows = read_rows(move.from, m, part, i0, 0xffffffffu >> (32 - n));
        write_exact(move.to, m, part, i0, rows);
        return;
    }
    int row;
    char *head = block_part(move.to, part, move.to.first + i0, &row);
    if (is_kivi_k(k)) {
        encode_kivi_k(move, m, part, i0, head);
        return;
    }
    /* columns are rows of the target's tile */
    int skip = row % TILE_ROWS;
    uint32_t rows = 0xffffffffu >> (32 - n) << skip;
    rows = read_rows(move.from, m, part, i0 - skip, rows);
    if (k.mean || k.trellis) {
        encode_whole_tile(k, m, sigma_of(move.to, part), head);
        return;
    }
    quantize_rows(k, m, sigma_of(move.to, part), rows, NULL);
    store_rows(k, m, head, rows, -1);
}

/* Put all rows of the move into the places that to.index names, one after another. */
WF void replace_rows(const lk_device_move &move, const tile_memory &m, int part) {
    const lk_device_packing &__restrict__ k = move.to.coding;
    for (int i0 = 0; i0 < move.n_row; i0 += TILE_ROWS) {
        int n = move.n_row - i0 < TILE_ROWS ? move.n_row - i0 : TILE_ROWS;
        uint32_t rows = 0xffffffffu >> (32 - n);
        for (int t = 0; t < n; t++)
            if (row_number(move.to, part, i0 + t) < 0) rows &= ~(1u << t);
        rows = read_rows(move.from, m, part, i0, rows);
        uint64_t *block = (uint64_t *)(m.scratch + 4);
        lanes([&](int t) {
            int row;
            if (!is_exact(k) && (rows >> t & 1))
                block[t] = (uint64_t)(uintptr_t)block_part(move.to, part,
                                                           row_number(move.to, part, i0 + t), &row);
        });
        if (is_kivi_k(k))
            prepare_rows(k, m, NULL, false);
        else if (!is_exact(k))
            quantize_rows(k, m, sigma_of(move.to, part), rows, block);
        for (uint32_t left = rows; left; left &= left - 1) {
            int t = lowest_bit(left), row;
            if (is_exact(k)) {
                write_exact(move.to, m, part, i0, 1u << t);
                continue;
            }
            char *head = at<char>(block[t]);
            row = (int)(row_number(move.to, part, i0 + t) % k.block_rows);
            if (is_kivi_k(k))
                replace_kivi_k(k, m, t, head, row);
            else
                store_rows(k, m, head, 1u << row % TILE_ROWS, t);
        }
    }
}

/* The tile of both ends of a move. */
WF tile_memory tile_of_move(char *shared, const lk_device_move &move) {
    const lk_device_packing &__restrict__ from = move.from.coding, &__restrict__ to =
                                                                       move.to.coding;
    int spare = rotation_rows(from) > rotation_rows(to) ? rotation_rows(from) : rotation_rows(to);
    if (to.trellis && to.d / 4 > spare) spare = to.d / 4;
    return tile_at(shared, from.d > to.d ? from.d : to.d, spare);
}

/* Execute item `item` of a list. */
WF void execute_move(const lk_device_move *list, int n_move, int item, char *shared) {
    const lk_device_move &move = list[item_of(list, n_move, item)];
    const lk_device_packing &__restrict__ k = move.to.coding;
    tile_memory m = tile_of_move(shared, move);
    int part = (item - move.first_item) % move.n_part,
        group = (item - move.first_item) / move.n_part;
    if (move.kind == LK_MOVE_REPLACE) {
        replace_rows(move, m, part);
        return;
    }
    int size = is_kivi_k(k) ? k.block_rows : TILE_ROWS;
    int skip = is_exact(k) ? 0 : (int)(move.to.first % size);
    int from = group * size - skip, to = from + size;
    if (from < 0) from = 0;
    if (to > move.n_row) to = move.n_row;
    if (is_kivi_k(k)) to = from + TILE_ROWS; /* it takes the whole block */
    append_rows(move, m, part, from, to - from);
}

/* A list of moves: grid.x = n_item, shared = lk_device_move_shared. */
struct move_kernel {
    struct args {
        uint64_t move; /* struct lk_device_move [n_move] */
        int32_t n_move;
    };
    enum { WARPS = 1, CLUSTER = 1, PER_SM = 1 };
    WF void warp(const args &a, S shared, const gpu_place &place) {
        execute_move(at<const lk_device_move>(a.move), a.n_move, place.x, shared_memory(shared));
    }
};

#endif
