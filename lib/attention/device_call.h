/* A call of attention as a device's command: the levels of K and V as segments, and what the
 * kernels read besides blocks (tables of their addresses, channel statistics, rotations) in one
 * packet, which the caller copies to the device. */
#ifndef LK_ATTENTION_DEVICE_CALL_H
#define LK_ATTENTION_DEVICE_CALL_H

#include "attention/attention.h"
#include "device/commands.h"

/* Why such a call cannot be a command; static. NULL: it can. */
const char *lk_attn_device_refuses(const struct lk_attn *attn);

/* Describe the attention of tokens [token, token + n) of the call, n <= LK_DEVICE_TOKENS. It leaves
 * partials of one range: acc, m, l for each token and head, without sinks and extra partials, which
 * lk_attn_combine adds. attn->q, attn->partial and blocks (lk_kv_block) are addresses of the
 * device.
 *
 * Returns the bytes of the packet, a multiple of 16. packet: room for them, or NULL: they are only
 * counted. It will be at address `at` of the device, a multiple of 16. */
size_t lk_attn_device_call(const struct lk_attn *attn, int token, int n, uint64_t at, char *packet,
                           struct lk_device_attend *call);

#endif
