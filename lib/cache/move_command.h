/* Moves as commands for a device. */
#ifndef LK_CACHE_MOVE_COMMAND_H
#define LK_CACHE_MOVE_COMMAND_H

#include "cache/move.h"
#include "device/commands.h"

/* Channel statistics of K or V of a layer in the memory of the device: of rows, of latents, as in
 * lk_kv.equalizer. 0: there are none. */
struct lk_sigma_addresses {
    uint64_t of[2];
};

/* Why a device cannot encode the levels of a kv: a static string, or NULL. */
const char *lk_move_refused(const struct lk_kv *kv);

/* Bytes of shared memory that a block of a launch needs to decode any level of a kv, and for any
 * move to one. The levels are not refused. */
struct lk_move_room {
    int32_t tile, move;
};
struct lk_move_room lk_move_room(const struct lk_kv *kv);

/* Must the rows of the move be projected first? Its commands then start from latents. */
bool lk_move_projects(const struct lk_move *move);

/* Must they be decoded before that? Rows in x are floats already, unless they are f16. */
static inline bool lk_move_decodes(const struct lk_move *move) {
    return !move->x || move->half_stride > 0;
}

/* Write the commands that decode the rows of such a move: the heads of its parts, as float
 * [n][n_head][d_head] rows of all heads at `rows`. Returns how many there are, at most one for each
 * head. */
int lk_move_read_commands(const struct lk_move *move, const struct lk_sigma_addresses *sigma,
                          uint64_t rows, struct lk_device_move *out);

/* Write the commands that do what the move does into out, which has room for end_part - first_part
 * of them. Blocks, and move->x, are addresses of the device. Returns how many commands there are:
 * one, or one for each part if parts differ. The levels are not refused, and rows of a move that
 * projects are at `latents`: float [n][n_part][d_part] of the target level. */
int lk_move_commands(const struct lk_move *move, const struct lk_sigma_addresses *sigma,
                     uint64_t latents, struct lk_device_move *out);

#endif
