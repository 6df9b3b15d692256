/* The seam between lowkey and a device: memory that holds the rows of caches, and the commands that
 * work on it.
 *
 *     lib/engine   which session has its rows on which device; attention of a layer, pass by pass
 *     lib/cache    counts, block numbers and lists of moves, on the host
 *     --------------------------------------------------------------------- struct lk_device
 *     lib/cuda     a module: kernels that execute the commands
 *     lib/pretend  executes them on the CPU, in memory that nothing else can read
 *
 * The host decides everything from counts. A command names its operands by addresses in the memory
 * of the device, as 64-bit numbers. The layout of blocks is the CPU's, byte by byte, so saved
 * sessions move between devices.
 *
 * Order. The commands of a device take effect in the order of the calls, as if each call ended
 * before the next one starts. A call may return earlier than that, but it does not use memory of
 * the host after it has returned, except that `download` returns when the bytes are there.
 *
 * Streams. Another library may work on the same device in a stream of its own, as ggml does.
 * Between follow(stream) and follow(NULL) commands are in that stream: they come after what the
 * library has issued there, and before what it issues there afterwards. They keep their order among
 * each other. So neither side waits on the host. The library must not issue to its stream between
 * these two, nor record it for a graph.
 *
 * Errors. A command that cannot be executed returns a status. A fault that the device notices later
 * is the status of a later command or of `sync`. After a fault every `sync` fails, so a caller may
 * leave statuses of commands out and look at the status of the `sync` that ends them. LK_E_NOMEM of
 * `alloc` changes nothing.
 *
 * Threads. All functions may be called by any thread; the device handles one call at a time.
 *
 * Ownership. The caller owns what `alloc` returns and frees it. What a device needs for itself
 * (staging, streams, constants of kernels) it allocates when it is opened. The caller counts its
 * memory in a ledger for devices (lk_ledger_add), whose limit it sets. */
#ifndef LK_DEVICE_DEVICE_H
#define LK_DEVICE_DEVICE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* lib/device/commands.h: plain data with fixed widths, which kernels read. */
struct lk_device_move;
struct lk_device_project;
struct lk_device_attend;
struct lk_device_weigh;
struct lk_device_less;

/* The structures of the host that commands were made from (cache/move.h, attention/attention.h).
 * Only a device that computes on the CPU reads them. */
struct lk_move;
struct lk_attn;

struct lk_device;

/* What a model and a recipe ask of a device, for lk_device_refuses. Bit c of a set of codings: enum
 * lk_coding c. */
struct lk_device_needs {
    uint32_t coding[2];     /* of the levels of K, of V */
    int d_head, d_head_swa; /* channels of V's heads; of sliding-window layers, or 0 */
    int d_rope;             /* latent attention: channels of K, or 0 */
    int group;              /* query heads of a KV head, at most */
    int d_latent;           /* the widest latents of V or of K, or 0 */
    int move_bytes;         /* shared memory for moves to any level (lk_device_move_shared) */
    int restored_bytes;     /* tile (lk_device_tile_bytes) of any level next to latents, or 0 */
    int restored_head;      /* channels of a head there */
    bool latents_pre, latents_post; /* levels of latents: of K before RoPE, others */
    bool mean, sigma, trellis;      /* rot: block means, channel statistics, trellis codes */
    bool evicts, scores;            /* a level has a limit; its policy needs attention scores */
    bool absorbs;                   /* evicted rows go into sums */
    bool shift;                     /* sinks that keep their distance (cache/rope.h) */
    bool reads_share;               /* decoding reads only a share of the tiles */
    bool divided;                   /* several processes share the rows */
    bool alibi, softcap, sinks;     /* of the model's attention */
};

/* Attention over latents with a kernel that is made for their codecs: what levels of K and V need.
 * Ranks are the highest of any part. */
struct lk_device_latent_need {
    int d_head, k_rank, k_bits, v_rank, v_bits;
    int k_heads, v_heads; /* KV heads of a part */
    int queries;          /* query heads of a KV head */
    int n_fast; /* pairs that are too fast for four functions (lk_rope_fold, cache/rope.h) */
    bool post;  /* K's latents are of rotated keys */
};

/* Such a kernel: bytes of a head's packed up-projection, and of the packed tables of RoPE. */
struct lk_device_latent_kernel {
    int number;
    bool post;
    size_t up_bytes, rope_bytes;
};

/* RoPE as packed tables are made of it (struct lk_rope, cache/rope.h). */
struct lk_device_rope {
    const double *speed; /* [d_head / 2] */
    float magnitude;
    int n_pair;
    const float *basis;         /* [4][128] */
    const float *cosine, *sine; /* [4][stride] */
    int stride;
};

struct lk_device_functions {
    /* ---- memory; addresses are multiples of 256, 0 is none ---- */

    /* `size` zeroed bytes. LK_E_NOMEM. */
    lk_status (*alloc)(struct lk_device *device, size_t size, uint64_t *at, lk_err *err);
    void (*free)(struct lk_device *device, uint64_t at, size_t size);
    lk_status (*upload)(struct lk_device *device, uint64_t to, const void *from, size_t size,
                        lk_err *err);
    lk_status (*download)(struct lk_device *device, void *to, uint64_t from, size_t size,
                          lk_err *err);
    /* Source and target do not overlap. */
    lk_status (*copy)(struct lk_device *device, uint64_t to, uint64_t from, size_t size,
                      lk_err *err);
    lk_status (*clear)(struct lk_device *device, uint64_t to, size_t size, lk_err *err);

    /* ---- commands ---- */

    /* Execute moves, in any order and at the same time: none of them writes to a part of a block
     * that another one reads or writes. move, host: [n]. */
    lk_status (*move)(struct lk_device *device, const struct lk_device_move *move,
                      const struct lk_move *host, size_t n, lk_err *err);

    /* Project rows into bases, in any order and at the same time. project: [n]. Not called for a
     * device that `uses_host`, whose moves project. */
    lk_status (*project)(struct lk_device *device, const struct lk_device_project *project,
                         size_t n, lk_err *err);

    /* Attend to the rows of one layer: one call for each sequence of a pass. Queries, and partials
     * in the form of lk_attn (attention/attn_item.h), are in the memory of the device. call: [n];
     * host: [n], whose q and partial are addresses of the device. A call leaves partials of one
     * range, or if the device `uses_host`, of lk_attn_ranges. */
    lk_status (*attend)(struct lk_device *device, const struct lk_device_attend *call,
                        const struct lk_attn *host, size_t n, lk_err *err);

    /* After `attend` of the same rows: add the attention weights of a layer's rows to their
     * scores. weigh: [n], no two of which have the same rows and heads. A device that `uses_host`
     * adds the weights of the call `host` to scores [rows][n_head_kv], in its memory; last: of the
     * newest token's queries only. */
    lk_status (*score)(struct lk_device *device, const struct lk_device_weigh *weigh, size_t n,
                       const struct lk_attn *host, bool last, uint64_t scores, lk_err *err);

    /* Sums that stand for evicted rows: each command adds its rows to the sums of a layer, and then
     * attends to them. less: [n], of networks of one shape and of different layers or sequences.
     * Not called for a device that `uses_host`. */
    lk_status (*sum)(struct lk_device *device, const struct lk_device_less *less, size_t n,
                     lk_err *err);

    /* Wait until all commands have been executed. */
    lk_status (*sync)(struct lk_device *device, lk_err *err);

    /* Issue the following commands to a stream of another library, or again to the device's own one
     * (NULL). CUDA: a cudaStream_t of this card. LK_E_UNSUPPORTED: the device has no streams. */
    lk_status (*follow)(struct lk_device *device, void *stream, lk_err *err);

    /* ---- fast kernels for latents; not of a device that `uses_host` ---- */

    /* Choose one. False: none fits, and the plain one is used. */
    bool (*latent_kernel)(const struct lk_device *device, const struct lk_device_latent_need *need,
                          struct lk_device_latent_kernel *out);
    /* Lay out, in memory of the host, what kernel `number` reads, if K is from before RoPE: the
     * up-projection of a head, up [d_head][rank] in the domain of K's codes and mean [d_head], or
     * NULL, both in the order of pairs: out [up_bytes], k_mean [d_head]; the tables of RoPE: out
     * [rope_bytes]. */
    void (*pack_up)(const struct lk_device *device, int number, const float *up, int rank,
                    const float *mean, char *out, float *k_mean);
    void (*pack_rope)(const struct lk_device *device, int number, const struct lk_device_rope *rope,
                      char *out);

    /* ---- the device itself ---- */

    /* Why sessions with these needs cannot have their rows here; static. NULL: they can. */
    const char *(*refuses)(const struct lk_device *device, const struct lk_device_needs *needs);
    /* Bytes of its memory: all, and those that are free now. */
    void (*memory)(const struct lk_device *device, uint64_t *total, uint64_t *unused);
    void (*close)(struct lk_device *device);
};

/* An open device. */
struct lk_device {
    const struct lk_device_functions *call;
    char name[32];     /* "cuda0" */
    char text[96];     /* for people: "NVIDIA H200, 139.8 GiB" */
    size_t slab_bytes; /* of the slabs that blocks lie in: a power of two */
    bool uses_host;    /* it computes with the host's structures, which it gets instead of commands;
                          partials have the ranges of lk_attn_items */
    void *self;        /* of the functions */
};

/* Why the device cannot hold the rows; static. NULL: it can. */
static inline const char *lk_device_refuses(const struct lk_device *device,
                                            const struct lk_device_needs *needs) {
    return device->call->refuses(device, needs);
}

#endif
