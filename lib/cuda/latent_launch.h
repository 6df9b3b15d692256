/* Which latent kernel serves the layers of a model, and its launch. A kernel has its own layout of
 * the up-projection and of RoPE's tables, so it is chosen once, when a session is opened. */
#ifndef LK_CUDA_LATENT_LAUNCH_H
#define LK_CUDA_LATENT_LAUNCH_H

#include "cuda/runtime.h"
#include "device/commands.h"
#include "device/device.h"

#include <stddef.h>

struct latent_rope; /* cuda/latent_pack.h */

/* A kernel: heads of d_head channels; codes of k_bits and v_bits (rot with a Lloyd-Max codebook,
 * without means and trellis) of up to k_rank and v_rank components; KV heads of a block and queries
 * of each. n_fast: pairs that are not folded. */
struct latent_entry {
    int d_head, k_rank, k_bits, v_rank, v_bits, heads, queries, n_fast, cluster;
    bool post;                   /* K's latents are of rotated keys: nothing is packed */
    int shared;                  /* bytes of shared memory of a block */
    size_t up_bytes, rope_bytes; /* of a head's packed up-projection, and of the tables */
    void (*pack_up)(const float *up, int rank, const float *mean, char *out, float *k_mean,
                    float *up8);
    void (*pack_rope)(const struct latent_rope *rope, char *out);
    int (*launch)(int n_split, int n_y, int n_call, gpu_stream stream,
                  const struct lk_device_latent_launch *args);
    int (*front)(int n_head_kv, int n_call, gpu_stream stream,
                 const struct lk_device_latent_launch *args); /* NULL unless `post` */
    int (*back)(int n_head_kv, int n_call, gpu_stream stream,
                const struct lk_device_latent_launch *args);
};

/* The kernel for what a recipe and a model need, or NULL: none fits. Kernels have numbers. */
const struct latent_entry *latent_choose(const struct gpu_card *card,
                                         const struct lk_device_latent_need *need);
const struct latent_entry *latent_entry_at(int number);
int latent_entry_number(const struct latent_entry *entry);

/* Memory that a launch of n_call calls needs, whose longest has n_row rows: sets n_tile and
 * n_split. The other fields are the caller's. */
struct latent_room {
    size_t sum_bytes, scratch_bytes, ticket_bytes;
};
struct latent_room latent_plan(const struct gpu_card *card, const struct latent_entry *entry,
                               int n_row, int queries, struct lk_device_latent_launch *launch);

/* Launch it, and then the product with V's up-projection. Returns an error of the runtime. */
int latent_run(const struct latent_entry *entry, const struct lk_device_latent_launch *launch,
               gpu_stream stream);

#endif
