/* A model with fewer KV heads as a plain GGUF file ("Effectively Compress KV Heads for LLM", section 3.3).
 *
 * Where no RoPE stands between projections and scores, bases of rank d_head turn a group of KV heads into one head:
 * down goes into W_K and W_V and their biases, up into W_Q and W_O (equations 11 to 14). Nothing is left to do
 * while decoding: any program that knows the architecture runs the file as a model with grouped queries. */
#ifndef LK_LOWRANK_EXPORT_H
#define LK_LOWRANK_EXPORT_H

#include "lowrank/compress.h"

struct lk_net;

/* Can a model's projections be fused at all? LK_E_UNSUPPORTED where it rotates its keys, for one. */
lk_status lk_export_check(const struct lk_net *net, lk_err *err);

/* Write the model of `path`, which is the one that `c` was made for and fitted with LK_KVHEADS, to `file`. Fused weights
 * become f32, all others stay as they are. Memory: one layer's attention weights.
 * LK_E_UNSUPPORTED for a model that rotates its keys, LK_E_ARG for bases that are not of one head's width. */
lk_status lk_export_kv_heads(const struct lk_compress *c, const char *path, FILE *file,
                             lk_err *err);

#endif
