/* Writes a model with fewer KV heads as a plain GGUF file ("Effectively Compress KV Heads for LLM",
 * section 3.3).
 *
 * Without RoPE between projections and scores, bases of rank d_head turn a group of KV heads into
 * one head: `down` is multiplied into W_K and W_V and their biases, `up` into W_Q and W_O
 * (equations 11 to 14). Decoding needs nothing else. Any program that knows the architecture runs
 * the file as a model with grouped queries. */
#ifndef LK_LOWRANK_EXPORT_H
#define LK_LOWRANK_EXPORT_H

#include "lowrank/layer_basis.h"

#include <stdio.h>

struct lk_export {
    const struct lk_net *net;
    const struct lk_layer_basis *k, *v; /* [n_layer] fitted bases; NULL if there are none */
    const char *model_path;             /* the file that `net` was loaded from */
};

/* Can a model's projections be fused at all? LK_E_UNSUPPORTED if it rotates its keys, or if q, k
 * and v are separate matrices. */
lk_status lk_export_check(const struct lk_net *net, lk_err *err);

/* Also check the bases: LK_E_ARG unless they have the same groups for K and V, rank d_head and no
 * mean. */
lk_status lk_export_check_bases(const struct lk_export *export, lk_err *err);

/* Write a checked export. Fused weights become f32, all others stay as they are. Memory: the
 * attention weights of one layer. */
lk_status lk_export_kv_heads(const struct lk_export *export, FILE *file, lk_err *err);

#endif
