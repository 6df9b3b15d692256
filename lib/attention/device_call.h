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

/* Does a call with attn->out need room for partials? With several ranges, and with latents. */
bool lk_attn_device_joins(const struct lk_attn *attn);

/* Write these queries, n_tok * n_head rows of d_head, to `out`. Without latent attention. */
void lk_attn_shift_queries(const struct lk_attn *attn, float *out);

/* The packet of a call, and where the things are that commands name. */
struct lk_attn_packet {
    struct lk_device_rows rows[2][LK_MAX_KV_LEVEL];
    uint64_t sigma[2], levels, slope, sink;
    struct lk_device_rotation rotation[2];
    int32_t tile_bytes, v_part; /* as in struct lk_device_attend */
};

/* Write the packet: it will be at address `at` of the device, a multiple of 16. to: room for it, or
 * NULL: its bytes are only counted. Returns them, a multiple of 16. Blocks (lk_kv_block) are
 * addresses of the device. */
size_t lk_attn_device_packet(const struct lk_attn *attn, uint64_t at, char *to,
                             struct lk_attn_packet *packet);

/* Write what a packet follows from and what changes between the calls of a session in one layer:
 * numbers of blocks, counts, channel statistics. Equal bytes: the packet is the same. This is
 * faster than making it. `to` and the result as above. */
size_t lk_attn_device_sources(const struct lk_attn *attn, char *to);

/* What of a call a command does: tokens [token, token + n), n <= LK_DEVICE_TOKENS. */
struct lk_device_piece {
    int range, token, n;
};

/* Describe a piece of a call. It leaves partials of its range: acc, m, l for each token and head,
 * without sinks and extra partials, which lk_attn_combine adds. If the call has attn->out, the
 * piece of the last range, which comes after the others, leaves the result there, and if there is
 * also attn->partial, m and l of its own rows. The result includes attn->extra_partial, if there is
 * one, which then lies right before attn->partial. attn->q, attn->out, attn->partial and
 * attn->extra_partial are addresses of the device. All pieces of a call have one packet. */
void lk_attn_device_call(const struct lk_attn *attn, const struct lk_device_piece *piece,
                         const struct lk_attn_packet *packet, struct lk_device_attend *call);

/* Describe the weights that tokens [token, token + n) give to the rows, which are added to scores
 * [rows][n_head_kv], after the partials of all ranges are there. Returns how many commands there
 * are. out: room for them, or NULL: they are only counted. */
size_t lk_attn_device_weights(const struct lk_attn *attn, const struct lk_attn_packet *packet,
                              int token, int n, bool last, uint64_t scores,
                              struct lk_device_weigh *out);

#endif
