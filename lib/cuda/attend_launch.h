/* Which attention kernel is launched for the calls of a step, and how. */
#ifndef LK_CUDA_ATTEND_LAUNCH_H
#define LK_CUDA_ATTEND_LAUNCH_H

#include "cuda/runtime.h"
#include "device/commands.h"

/* A kernel (attend_kernel.h): the channels of a head that it has room for, or that its chunks need
 * exactly; columns of a block; the pairs of codecs that it has chunks for. */
struct attend_entry {
    int channels, columns, warps, cluster;
    uint32_t pairs;
    int (*shared)(int d_head, int d_rope, bool shifted);
    int (*launch)(int n_split, int n_y, int n_z, int shared, gpu_stream stream,
                  const struct lk_device_attend_launch *args);
};

/* Each source file's kernels. */
extern const struct attend_entry attend_entries_128[], attend_entries_64[], attend_entries_any[];
extern const int attend_n_entry_128, attend_n_entry_64, attend_n_entry_any;

/* A launch. The caller provides scratch and tickets, and fills in the launch's addresses. */
struct attend_plan {
    const struct attend_entry *entry;
    struct lk_device_attend_launch launch;
    size_t scratch_bytes, ticket_bytes;
    int shared;
};

/* Plan a launch of calls of one layer, which have the same shape and may have different numbers of
 * query tokens and of rows. False if no kernel takes them (heads of more than LK_DEVICE_MAX_HEAD
 * channels, or a card with too little shared memory). */
bool attend_plan_make(const struct gpu_card *card, const struct lk_device_attend *call, int n,
                      struct attend_plan *plan);

/* Launch it. Returns an error of the runtime. */
int attend_run(const struct attend_plan *plan, gpu_stream stream);

#endif
