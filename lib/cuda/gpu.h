/* The host side of the device module: one open card. Several source files work on it. */
#ifndef LK_CUDA_GPU_H
#define LK_CUDA_GPU_H

#include "cuda/runtime.h"
#include "device/module.h"

#include <mutex>

/* Bytes on their way to the card lie in a ring of pinned memory. A section is used again when the
 * copies out of it are done, so the host runs ahead of the card by about RING_SECTION *
 * RING_SECTIONS bytes of commands. */
enum { RING_SECTION = 256 << 10, RING_SECTIONS = 32 };

/* Slabs of caches: whole pages of a card. The emulated card has RAM's (cache/pool.h), so that as
 * many bytes are counted. */
#ifdef __CUDACC__
enum { SLAB_BYTES = 2 << 20 };
#else
enum { SLAB_BYTES = 1 << 14 };
#endif

struct gpu_ring {
    char *memory;                  /* pinned [RING_SECTIONS][RING_SECTION] */
    gpu_event done[RING_SECTIONS]; /* recorded when the host went on to the next section */
    bool recorded[RING_SECTIONS];
    int section;
    size_t used; /* bytes of the section */
};

/* Memory that the module has on the card for itself; grown when it is needed. */
struct gpu_buffer {
    uint64_t at;
    size_t size;
};

struct gpu_device {
    struct lk_device device; /* what the caller has; device.self is this struct */
    int number;
    struct gpu_card card;
    std::mutex lock;        /* one call at a time */
    gpu_stream own, stream; /* the device's stream, and the one that commands are issued to now */
    gpu_event turn;         /* orders commands when the streams take turns */
    struct gpu_ring ring;
    struct gpu_buffer commands; /* of the calls that are being executed, in the stream's order */
    struct gpu_buffer scratch, tickets;
};

/* The card behind a device, in use by the calling thread. */
struct gpu_device *gpu_device_of(const struct lk_device *device);

/* A status with a message; 0 if there was no error. `what`: "copy", "attention", ... */
lk_status gpu_check(int error, const char *what, lk_err *err);

/* Copy bytes of the host to the card. They are no longer needed when it returns. */
lk_status gpu_send(struct gpu_device *gpu, uint64_t to, const void *from, size_t size, lk_err *err);

/* Make a buffer hold at least `size` bytes, zeroed if it grows; contents are lost then. */
lk_status gpu_room(struct gpu_device *gpu, struct gpu_buffer *buffer, size_t size, lk_err *err);

/* Execute commands of device.h (module_commands.cu). The caller holds the lock. */
lk_status gpu_run_moves(struct gpu_device *gpu, const struct lk_device_move *move, size_t n,
                        lk_err *err);
lk_status gpu_run_projections(struct gpu_device *gpu, const struct lk_device_project *project,
                              size_t n, lk_err *err);
lk_status gpu_run_attention(struct gpu_device *gpu, const struct lk_device_attend *call, size_t n,
                            lk_err *err);

/* ---- attention over latents (module_latent.cu): segments that are restored ---- */

bool gpu_call_has_latents(const struct lk_device_attend *call);

/* The calls [n] with their other segments, in out [n]. Returns how many have any. */
size_t gpu_rows_of_calls(const struct lk_device_attend *call, size_t n,
                         struct lk_device_attend *out);

/* Attend to the restored segments of calls [n] of one shape, after the other segments. */
lk_status gpu_restore_some(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                           lk_err *err);

/* Bytes of shared memory that the plain kernel needs at least. */
int gpu_restore_shared(int tile_bytes, int d_head, int v_part);

/* ---- eviction (module_score.cu) ---- */

lk_status gpu_run_scores(struct gpu_device *gpu, const struct lk_device_weigh *weigh, size_t n,
                         lk_err *err);
lk_status gpu_run_sums(struct gpu_device *gpu, const struct lk_device_less *less, size_t n,
                       lk_err *err);

#endif
