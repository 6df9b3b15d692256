/* A call of attention as a device's command: the levels of K and V as segments, and what the
 * kernels read besides blocks (tables of their addresses, channel statistics, rotations) in one
 * packet, which the caller copies to the device. */
#ifndef LK_ATTENTION_DEVICE_CALL_H
#define LK_ATTENTION_DEVICE_CALL_H

#include "attention/attention.h"
#include "device/commands.h"

/* Why such a call cannot be a command; static. NULL: it can. */
const char *lk_attn_device_refuses(const struct lk_attn *attn);

/* Commands share a call's rows if some rotated levels of a side have sigma and some have none: a
 * command has one prepared query and one sum for all rotated levels. Their partials are like those
 * of ranges. Returns how many there are: 1, 2 or 4. */
int lk_attn_device_ranges(const struct lk_attn *attn);

/* Do levels of K shift? The call's queries are followed by the same ones, rotated back
 * (lk_attn_shift_queries). */
bool lk_attn_device_shifts(const struct lk_attn *attn);

/* Write these queries, n_tok * n_head rows of d_head, to `out`. Without latent attention. */
void lk_attn_shift_queries(const struct lk_attn *attn, float *out);

/* What of a call a command does: tokens [token, token + n), n <= LK_DEVICE_TOKENS. */
struct lk_device_piece {
    int range, token, n;
};

/* Describe a piece of a call. It leaves partials of its range: acc, m, l for each token and head,
 * without sinks and extra partials, which lk_attn_combine adds. If the call has attn->out, and one
 * range, it leaves the result there instead. attn->q, attn->out, attn->partial and blocks
 * (lk_kv_block) are addresses of the device.
 *
 * Returns the bytes of the packet, a multiple of 16, which is the same for all pieces. packet: room
 * for them, or NULL: they are only counted. It will be at address `at` of the device, a multiple of
 * 16. */
size_t lk_attn_device_call(const struct lk_attn *attn, const struct lk_device_piece *piece,
                           uint64_t at, char *packet, struct lk_device_attend *call);

/* Describe the weights that tokens [token, token + n) give to the rows, which are added to scores
 * [rows][n_head_kv], after the partials of all ranges are there. The packet is at `at`. Returns how
 * many commands there are. out: room for them, or NULL: they are only counted. */
size_t lk_attn_device_weights(const struct lk_attn *attn, int token, int n, bool last, uint64_t at,
                              uint64_t scores, struct lk_device_weigh *out);

#endif
