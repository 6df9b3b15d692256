/* Eviction: attention weights of rows, and sums that stand for evicted rows. */
extern "C" {
#include "device/moves.h"
}
#include "cuda/gpu.h"
#include "cuda/launch_moves.h"

#include <new>
#include <string.h>

lk_status gpu_run_scores(struct gpu_device *gpu, const struct lk_device_weigh *weigh, size_t n,
                         lk_err *err) {
    if (n == 0) return LK_OK;
    struct lk_device_weigh *copy = new (std::nothrow) struct lk_device_weigh[n];
    if (!copy) return gpu_check(gpu_no_memory(), "scores", err);
    size_t bytes = n * sizeof *copy;
    memcpy(copy, weigh, bytes);
    int n_item = lk_device_weigh_items(copy, (int)n), shared = lk_device_weigh_shared(copy, (int)n);
    lk_status status = gpu_room(gpu, &gpu->commands, bytes, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, copy, bytes, err);
    delete[] copy;
    if (status || n_item == 0) return status;
    return gpu_check(gpu_weigh_rows(gpu->commands.at, (int)n, n_item, shared, gpu->stream),
                     "scores", err);
}

lk_status gpu_run_sums(struct gpu_device *gpu, const struct lk_device_less *less, size_t n,
                       lk_err *err) {
    if (n == 0) return LK_OK;
    struct lk_device_less shape = less[0]; /* of the launches: the most rows and tokens */
    for (size_t i = 1; i < n; i++) {
        if (less[i].n_row > shape.n_row) shape.n_row = less[i].n_row;
        if (less[i].n_tok > shape.n_tok) shape.n_tok = less[i].n_tok;
    }
    lk_status status = gpu_room(gpu, &gpu->commands, n * sizeof *less, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, less, n * sizeof *less, err);
    if (status) return status;
    int error = gpu_less_absorb(gpu->commands.at, (int)n, &shape, gpu->stream);
    if (!error) error = gpu_less_attend(gpu->commands.at, (int)n, &shape, gpu->stream);
    return gpu_check(error, "sums of evicted rows", err);
}
