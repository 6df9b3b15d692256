/* Launches on the emulated card, for launch.h. */
#ifndef LK_CUDA_RUNTIME_EMULATED_H
#define LK_CUDA_RUNTIME_EMULATED_H

#include "cuda/runtime.h"

#include <functional>

/* Run `command` when the stream's earlier commands have run. Its captures are copies, as the
 * arguments of a launch are. */
int gpu_emulated_issue(gpu_stream stream, std::function<void()> command);

enum { GPU_EMULATED_SHARED = 227 << 10, GPU_EMULATED_SM = 16 };

/* Numbers of errors, as CUDA has them. */
enum {
    GPU_INVALID = 1,
    GPU_NO_MEMORY = 2,
    GPU_BAD_LAUNCH = 9,
    GPU_NO_DEVICE = 100,
    GPU_CAPTURE = 900
};

#endif
