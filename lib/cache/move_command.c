/* Moves as commands for a device. */
#include "cache/move_command.h"

#include "device/moves.h"

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }
static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

const char *lk_move_refused(const struct lk_kv *kv) {
    for (int i = 0; i < kv->n_level; i++)
        for (int part = 0; part < kv->level[i].n_part; part++) {
            struct lk_part p = lk_kv_part(kv, i, part);
            struct lk_device_packing packing;
            const char *reason = lk_device_packing_of(&p, &packing);
            if (reason) return reason;
            if (!kv->level[i].part && !kv->rule[i].n_other) break; /* parts are equal */
        }
    return NULL;
}

struct lk_move_room lk_move_room(const struct lk_kv *kv) {
    struct lk_move_room room = {0};
    struct lk_device_packing widest = lk_device_plain(LK_ROWS_F32, kv->d_head);
    for (int last = 0; last < 2;
         last++) /* any level may be the source: first look for the widest */
        for (int i = 0; i < kv->n_level; i++)
            for (int part = 0; part < kv->level[i].n_part; part++) {
                struct lk_part p = lk_kv_part(kv, i, part);
                struct lk_device_move move = {.from.coding = widest};
                (void)lk_device_packing_of(&p, &move.to.coding);
                room.tile = larger(room.tile, lk_device_tile_bytes(&move.to.coding));
                if (last) room.move = larger(room.move, lk_device_move_shared(&move, 1));
                widest.d = larger(widest.d, move.to.coding.d);
                widest.q = larger(widest.q, move.to.coding.q);
            }
    return room;
}

bool lk_move_projects(const struct lk_move *move) {
    const struct lk_kv *kv = move->kv;
    return kv->level[move->to].basis && (move->x || !kv->level[move->from].basis);
}

/* Rows of a level from part `part` on, in blocks that start with row `row` of the first. */
static struct lk_device_move_rows level_rows(const struct lk_move *move, int level, int part,
                                             const lk_block *block, int row,
                                             const struct lk_sigma_addresses *sigma) {
    const struct lk_kv *kv = move->kv;
    const struct lk_level *of = &kv->level[level];
    struct lk_part p = lk_kv_part(kv, level, part);
    struct lk_device_move_rows rows = {
        .part_bytes = of->head_bytes, .offset = lk_level_part_offset(of, part), .first = row};
    (void)lk_device_packing_of(&p, &rows.coding);
    for (int b = 0; b < LK_MOVE_BLOCKS && b < LK_DEVICE_MOVE_BLOCKS; b++)
        rows.block[b] = address(lk_block_address(kv->arena, block[b]));
    if (p.codec->sigma) {
        const struct lk_equalizer *equalizer = lk_kv_equalizer(kv, level);
        rows.sigma = sigma->of[of->basis != NULL] +
                     (uint64_t)part * equalizer->stride * sizeof *equalizer->sigma;
        rows.sigma_stride = equalizer->stride;
    }
    return rows;
}

/* Plain float rows at `at`, from part `part` on: parts are `apart` floats apart, rows `stride`. */
static struct lk_device_move_rows float_rows(uint64_t at, int d, int part, size_t apart,
                                             size_t stride) {
    return (struct lk_device_move_rows){.at = at,
                                        .row_bytes = stride * sizeof(float),
                                        .part_bytes = apart * sizeof(float),
                                        .offset = part * apart * sizeof(float),
                                        .coding = lk_device_plain(LK_ROWS_F32, d)};
}

/* The f16 rows of a move from part `part` on, which has d channels. apart: numbers from part to
 * part. */
static struct lk_device_move_rows half_rows(const struct lk_move *move, int d, int part,
                                            size_t apart) {
    return (struct lk_device_move_rows){.at = address(move->x),
                                        .row_bytes = move->half_stride * sizeof(uint16_t),
                                        .part_bytes = apart * sizeof(uint16_t),
                                        .offset = part * apart * sizeof(uint16_t),
                                        .coding = lk_device_plain(LK_ROWS_F16, d)};
}

/* Where the rows come from. */
static struct lk_device_move_rows source_rows(const struct lk_move *move, int part,
                                              const struct lk_sigma_addresses *sigma,
                                              uint64_t latents) {
    const struct lk_kv *kv = move->kv;
    const struct lk_level *to = &kv->level[move->to];
    int d = lk_level_part_channels(to, part);
    if (lk_move_projects(move))
        return float_rows(latents, d, part, (size_t)to->d_part, (size_t)to->n_part * to->d_part);
    if (move->half_stride) return half_rows(move, d, part, lk_move_offset(kv, to, 1));
    if (move->x)
        return float_rows(address(move->x), d, part, lk_move_offset(kv, to, 1), lk_kv_width(kv));
    return level_rows(move, move->from, part, move->from_block, move->from_row, sigma);
}

/* Do the parts of a level differ? */
static bool parts_differ(const struct lk_kv *kv, int level) {
    return kv->level[level].part || kv->rule[level].n_other;
}

/* Where the rows go. */
static struct lk_device_move_rows target_rows(const struct lk_move *move, int part,
                                              const struct lk_sigma_addresses *sigma) {
    int d = move->kv->d_head;
    if (move->out) return float_rows(move->out, d, part, (size_t)d, lk_kv_width(move->kv));
    return level_rows(move, move->to, part, move->to_block, move->to_row, sigma);
}

int lk_move_commands(const struct lk_move *move, const struct lk_sigma_addresses *sigma,
                     uint64_t latents, struct lk_device_move *out) {
    const struct lk_kv *kv = move->kv;
    bool differ =
        (!move->out && parts_differ(kv, move->to)) || (!move->x && parts_differ(kv, move->from));
    int n = 0, step = differ ? 1 : move->end_part - move->first_part;
    for (int part = move->first_part; part < move->end_part; part += step)
        out[n++] =
            (struct lk_device_move){.from = source_rows(move, part, sigma, latents),
                                    .to = target_rows(move, part, sigma),
                                    .kind = move->replaces ? LK_MOVE_REPLACE : LK_MOVE_APPEND,
                                    .n_row = move->n,
                                    .n_part = step};
    return n;
}

int lk_move_read_commands(const struct lk_move *move, const struct lk_sigma_addresses *sigma,
                          uint64_t at, struct lk_device_move *out) {
    const struct lk_kv *kv = move->kv;
    int per_part = kv->level[move->to].n_head, first = move->first_part * per_part,
        end = move->end_part * per_part, n = 0;
    bool half = move->half_stride > 0;
    int step = !half && parts_differ(kv, move->from) ? 1 : end - first;
    for (int head = first; head < end; head += step)
        out[n++] = (struct lk_device_move){
            .from =
                half ? half_rows(move, kv->d_head, head, (size_t)kv->d_head)
                     : level_rows(move, move->from, head, move->from_block, move->from_row, sigma),
            .to = float_rows(at, kv->d_head, head, (size_t)kv->d_head, lk_kv_width(kv)),
            .kind = LK_MOVE_APPEND,
            .n_row = move->n,
            .n_part = step};
    return n;
}
