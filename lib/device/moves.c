/* How parts are packed, and the work items of moves, for devices. */
#include "device/moves.h"

#include "codec/hadamard.h"
#include "codec/rot.h"

#include <string.h>

static void set_rotation(struct lk_device_packing *out) {
    struct lk_rotation rotation = lk_rotation_of(out->d);
    out->paley = rotation.kind == LK_PALEY_1 ? 1 : rotation.kind == LK_PALEY_2 ? 2 : 0;
    out->width = rotation.width;
    out->q = rotation.q;
}

static void set_quantizer(const struct lk_codec *codec, struct lk_device_packing *out) {
    if (codec->trellis) {
        struct lk_trellis trellis = lk_trellis(codec->bits);
        out->unit = trellis.unit;
        out->per_max = trellis.per_max;
        memcpy(out->level, trellis.table, sizeof out->level);
        return;
    }
    struct lk_rot_quantizer quantizer = lk_rot_quantizer(codec);
    out->fine = quantizer.fine;
    out->half = quantizer.half;
    out->n_border = quantizer.n_border;
    out->n_trial = (uint8_t)quantizer.n_trial;
    out->reach = quantizer.reach;
    out->unit = quantizer.unit;
    memcpy(out->trial, quantizer.trial, quantizer.n_trial * sizeof *out->trial);
    memcpy(out->magnitude, quantizer.magnitude, sizeof out->magnitude);
}

const char *lk_device_packing_of(const struct lk_part *part, struct lk_device_packing *out) {
    const struct lk_codec *codec = part->codec;
    *out = (struct lk_device_packing){.coding = codec->coding,
                                      .side = (uint8_t)part->side,
                                      .bits = codec->bits,
                                      .mean = codec->coding == LK_ROT && codec->mean,
                                      .trellis = codec->coding == LK_ROT && codec->trellis,
                                      .rotates = lk_codec_rotates(codec),
                                      .d = part->d_head,
                                      .group = codec->group,
                                      .block_rows = part->block_rows};
    if (codec->coding == LK_ADDED) return "devices do not run codecs that a program has added";
    if (codec->coding == LK_ASYM && out->group == 0) out->group = out->d;
    if (out->d > LK_DEVICE_MAX_D) return "devices do not hold rows of more than 1024 channels";
    if (!out->rotates) return NULL;
    set_rotation(out);
    if (lk_rotation_of(out->d).kind == LK_COSINE)
        return "devices have no rotation for this number of channels";
    if (out->paley && out->d > LK_DEVICE_MAX_D_PALEY)
        return "devices do not rotate rows of more than 768 channels that are not a power of two";
    if (codec->coding == LK_ROT) set_quantizer(codec, out);
    return NULL;
}

struct lk_device_packing lk_device_plain(int coding, int d) {
    return (struct lk_device_packing){.coding = (uint8_t)coding, .d = d, .block_rows = 1};
}

/* Rows of a target that are encoded together: blocks of kivi's K, otherwise tiles. Plain rows
 * and f16 have no tiles; 32 rows are taken at a time. */
static int32_t count_groups(const struct lk_device_move *move) {
    const struct lk_device_packing *to = &move->to.coding;
    bool tiles = to->coding != LK_F16 && to->coding != LK_ROWS_F16 && to->coding != LK_ROWS_F32;
    bool blocks = to->coding == LK_KIVI && to->side == LK_K;
    int32_t rows = blocks ? to->block_rows : LK_TILE, skip = (int32_t)(move->to.first % rows);
    return ((tiles ? skip : 0) + move->n_row + rows - 1) / rows;
}

int32_t lk_device_move_items(struct lk_device_move *move, int n) {
    int32_t n_item = 0;
    for (int i = 0; i < n; i++) {
        move[i].first_item = n_item;
        n_item += move[i].n_part * (move[i].kind == LK_MOVE_REPLACE ? 1 : count_groups(&move[i]));
    }
    return n_item;
}

int32_t lk_device_project_items(struct lk_device_project *project, int n) {
    int32_t n_item = 0;
    for (int i = 0; i < n; i++) {
        project[i].first_item = n_item;
        n_item += project[i].n_part * ((project[i].n_row + LK_TILE - 1) / LK_TILE) *
                  ((project[i].rank + LK_TILE - 1) / LK_TILE);
    }
    return n_item;
}

/* Bytes for rows of d channels. The layout is tile_at's in lib/cuda/rotate.cuh. */
static int32_t tile_bytes(int32_t d, int32_t n_spare, int32_t q) {
    int32_t n_float = 68 + (d + d / 16 + 2 + n_spare) * (LK_TILE + 1);
    return n_float * (int32_t)sizeof(float) + (q + 15) / 16 * 16;
}

/* Spare rows for the rotation: the order of its Paley matrix. */
static int32_t rotation_rows(const struct lk_device_packing *of) {
    return of->paley ? of->d / of->width : 0;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

int32_t lk_device_tile_bytes(const struct lk_device_packing *of) {
    return of->d > 0 ? (tile_bytes(of->d, rotation_rows(of), of->q) + 15) / 16 * 16 : 0;
}

/* Bytes of the tile that K is decoded in. */
static int32_t weigh_tile(const struct lk_device_weigh *weigh) {
    return weigh->restore ? weigh->tile_bytes : lk_device_tile_bytes(&weigh->k.coding);
}

int32_t lk_device_weigh_items(struct lk_device_weigh *weigh, int n) {
    int32_t n_item = 0;
    for (int i = 0; i < n; i++) {
        weigh[i].first_item = n_item;
        weigh[i].v_at = weigh_tile(&weigh[i]);
        n_item += weigh[i].n_part * ((weigh[i].n_row + LK_TILE - 1) / LK_TILE);
    }
    return n_item;
}

int32_t lk_device_move_shared(const struct lk_device_move *move, int n) {
    int32_t max = 0;
    for (int i = 0; i < n; i++) {
        const struct lk_device_packing *from = &move[i].from.coding, *to = &move[i].to.coding;
        int32_t n_spare = larger(rotation_rows(from), rotation_rows(to));
        if (to->trellis) n_spare = larger(n_spare, to->d / 4);
        max = larger(max, tile_bytes(larger(from->d, to->d), n_spare, larger(from->q, to->q)));
    }
    return max;
}

int32_t lk_device_weigh_shared(const struct lk_device_weigh *weigh, int n) {
    int32_t max = 0;
    for (int i = 0; i < n; i++) {
        int32_t key = weigh[i].k.coding.d * (LK_TILE + 1) * (int32_t)sizeof(float);
        int32_t bytes = weigh_tile(&weigh[i]) +
                        (weigh[i].restore ? key : lk_device_tile_bytes(&weigh[i].v.coding));
        max = larger(max, bytes);
    }
    return max;
}
