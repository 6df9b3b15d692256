/* Calls of attention as commands for a device (device/commands.h). */
#ifndef LK_ATTENTION_ATTN_COMMAND_H
#define LK_ATTENTION_ATTN_COMMAND_H

#include "attention/attention.h"
#include "device/commands.h"

/* What a call reads in the memory of the device, besides rows; 0 if it is not there.
 *
 *   table     of each level: the addresses of its blocks, uint64_t [n_block]
 *   part      of levels whose heads have different codecs: struct lk_device_coding [n_head_kv]
 *             (lk_attn_codings)
 *   sigma     of rows of K and of V (struct lk_equalizer), as they are on the host
 *   matrix    the rotation of an order that is not a power of two, f32 [d][d] (lk_attn_rotation)
 *   levels    lk_trellis_table
 *   slope     lk_alibi_slope of each head */
struct lk_attn_addresses {
    uint64_t table[2][LK_MAX_KV_LEVEL], part[2][LK_MAX_KV_LEVEL], sigma[2], matrix[2];
    uint64_t levels, sink, slope;
    uint64_t q, q_shifted, out, partial, extra;
    int n_extra;
};

/* Why a device cannot attend to K and V of a layer: static. NULL: it can. Latents have kernels of
 * their own. */
const char *lk_attn_refused(const struct lk_attn *attn);

/* The command for a call that is not refused, of at most LK_DEVICE_TOKENS tokens. Numbers are read
 * from `attn`, its rows are not. */
void lk_attn_command(const struct lk_attn *attn, const struct lk_attn_addresses *at,
                     struct lk_device_attend *out);

/* Do heads of a level have different codecs? Their codings, to be copied to the device: out
 * [n_part]. */
bool lk_attn_mixes_codecs(const struct lk_kv *kv, int level);
void lk_attn_codings(const struct lk_kv *kv, int level, struct lk_device_coding *out);

/* The rotation of vectors of d channels as a matrix, f32 [d][d]. */
void lk_attn_rotation(int d, float *matrix);

/* Does K have sinks that shift? Queries for them: q rotated back by the number of rows that are
 * gone. out: like attn->q. */
bool lk_attn_shifts(const struct lk_attn *attn);
void lk_attn_shift_queries(const struct lk_attn *attn, const float *q, float *out);

#endif
