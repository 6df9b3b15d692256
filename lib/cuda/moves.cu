/* Kernels that write rows, weigh them, and LESS: their launches. */
#include "cuda/launch_moves.h"
#include "cuda/less.cuh"
#include "cuda/move.cuh"
#include "cuda/project.cuh"
#include "cuda/weigh.cuh"

int gpu_move_rows(uint64_t move, int n, int n_item, int shared, gpu_stream stream) {
    if (n_item == 0) return 0;
    return gpu_launch<move_kernel>({n_item, 1, 1}, shared, stream, {move, n});
}

int gpu_weigh_rows(uint64_t weigh, int n, int n_item, int shared, gpu_stream stream) {
    if (n_item == 0) return 0;
    return gpu_launch<weigh_kernel>({n_item, 1, 1}, shared, stream, {weigh, n});
}

int gpu_project_rows(uint64_t project, int n, int n_item, int d_head, gpu_stream stream) {
    if (n_item == 0) return 0;
    return gpu_launch<project_kernel>({n_item, 1, 1}, project_shared(d_head), stream, {project, n});
}

int gpu_less_absorb(uint64_t less, int n, const struct lk_device_less *shape, gpu_stream stream) {
    if (n == 0 || shape->n_row == 0) return 0;
    int error = gpu_launch<less_key_kernel>({n, shape->n_row, shape->n_head_kv},
                                            less_shared(shape->n_hidden), stream, {less});
    if (error) return error;
    return gpu_launch<less_absorb_kernel>({n, shape->n_head_kv, shape->n_feature}, 0, stream,
                                          {less});
}

int gpu_less_attend(uint64_t less, int n, const struct lk_device_less *shape, gpu_stream stream) {
    if (n == 0 || shape->n_tok == 0) return 0;
    return gpu_launch<less_attend_kernel>({n, shape->n_tok, shape->n_head},
                                          less_shared(shape->n_hidden), stream, {less});
}
