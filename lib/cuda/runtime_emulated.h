/* Launches on the emulated card, for launch.h, and the card for another library in the process. */
#ifndef LK_CUDA_RUNTIME_EMULATED_H
#define LK_CUDA_RUNTIME_EMULATED_H

#include "cuda/runtime.h"

/* What a program that has loaded the module finds at the symbol lk_emulated_card: memory and
 * streams, as in runtime.h. `command` runs when the host waits for the stream, after the stream's
 * earlier commands, and only then the card's memory can be touched. */
struct gpu_emulated_card {
    int (*alloc)(void **memory, size_t bytes);
    int (*free)(void *memory);
    int (*stream_create)(gpu_stream *stream);
    void (*stream_destroy)(gpu_stream stream);
    int (*stream_sync)(gpu_stream stream);
    int (*issue)(gpu_stream stream, void (*command)(void *user), void *user);
};

#ifdef __cplusplus
#include <functional>

/* Run `command` when the stream's earlier commands have run. Its captures are copies, as the
 * arguments of a launch are. */
int gpu_emulated_issue(gpu_stream stream, std::function<void()> command);
#endif

enum { GPU_EMULATED_SM = 16 }; /* multiprocessors */

/* Its compute capability, from the environment's LOWKEY_EMULATED_SM: 80, 86, 90 or 120 (default
 * 90). What a block may have of shared memory, and whether blocks form clusters, follow from it. */
struct gpu_capability {
    int major, minor, max_shared;
    bool clusters; /* as the module uses them */
};
struct gpu_capability gpu_emulated_capability(void);

/* Numbers of errors, as CUDA has them. */
enum {
    GPU_INVALID = 1,
    GPU_NO_MEMORY = 2,
    GPU_BAD_LAUNCH = 9,
    GPU_NO_DEVICE = 100,
    GPU_CAPTURE = 900
};

#endif
