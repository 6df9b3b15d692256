/* Kernels that write rows, and their launches. */
#include "cuda/launch_moves.h"
#include "cuda/move.cuh"

int gpu_move_rows(uint64_t move, int n, int n_item, int shared, gpu_stream stream) {
    if (n_item == 0) return 0;
    return gpu_launch<move_kernel>({n_item, 1, 1}, shared, stream, {move, n});
}
