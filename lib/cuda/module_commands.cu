/* Commands of device/device.h as launches: their structs are numbered, sent to the card, and read
 * there by the kernels. */
extern "C" {
#include "device/moves.h"
}
#include "cuda/attend_launch.h"
#include "cuda/gpu.h"
#include "cuda/launch_moves.h"

#include <new>
#include <string.h>

/* What one launch executes. */
enum { MOST_MOVES = 4096, MOST_CALLS = 4096 };

/* Number the items of moves [n], n <= MOST_MOVES, and launch them. */
static lk_status run_some(struct gpu_device *gpu, const struct lk_device_move *move, int n,
                          struct lk_device_move *copy, lk_err *err) {
    size_t bytes = (size_t)n * sizeof *copy;
    memcpy(copy, move, bytes);
    int n_item = lk_device_move_items(copy, n);
    int shared = lk_device_move_shared(copy, n);
    lk_status status = gpu_room(gpu, &gpu->commands, bytes, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, copy, bytes, err);
    if (status) return status;
    return gpu_check(gpu_move_rows(gpu->commands.at, n, n_item, shared, gpu->stream), "moves", err);
}

lk_status gpu_run_moves(struct gpu_device *gpu, const struct lk_device_move *move, size_t n,
                        lk_err *err) {
    if (n == 0) return LK_OK;
    size_t most = n < (size_t)MOST_MOVES ? n : (size_t)MOST_MOVES;
    struct lk_device_move *copy = new (std::nothrow) struct lk_device_move[most];
    if (!copy) return gpu_check(gpu_no_memory(), "moves", err);
    lk_status status = LK_OK;
    for (size_t i = 0; i < n && !status; i += most)
        status = run_some(gpu, move + i, (int)(n - i < most ? n - i : most), copy, err);
    delete[] copy;
    return status;
}

/* The same for projections. */
static lk_status project_some(struct gpu_device *gpu, const struct lk_device_project *project,
                              int n, struct lk_device_project *copy, lk_err *err) {
    size_t bytes = (size_t)n * sizeof *copy;
    int d_head = 0;
    memcpy(copy, project, bytes);
    int n_item = lk_device_project_items(copy, n);
    for (int i = 0; i < n; i++) d_head = copy[i].d_head > d_head ? copy[i].d_head : d_head;
    lk_status status = gpu_room(gpu, &gpu->commands, bytes, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, copy, bytes, err);
    if (status) return status;
    return gpu_check(gpu_project_rows(gpu->commands.at, n, n_item, d_head, gpu->stream),
                     "projection", err);
}

lk_status gpu_run_projections(struct gpu_device *gpu, const struct lk_device_project *project,
                              size_t n, lk_err *err) {
    if (n == 0) return LK_OK;
    size_t most = n < (size_t)MOST_MOVES ? n : (size_t)MOST_MOVES;
    struct lk_device_project *copy = new (std::nothrow) struct lk_device_project[most];
    if (!copy) return gpu_check(gpu_no_memory(), "projection", err);
    lk_status status = LK_OK;
    for (size_t i = 0; i < n && !status; i += most)
        status = project_some(gpu, project + i, (int)(n - i < most ? n - i : most), copy, err);
    delete[] copy;
    return status;
}

/* Plan and launch attention of calls [n], n <= MOST_CALLS, which have one shape. */
static lk_status attend_some(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                             lk_err *err) {
    struct attend_plan plan;
    if (!attend_plan_make(&gpu->card, call, n, &plan))
        return gpu_check(gpu_bad_launch(), "attention", err);
    size_t bytes = (size_t)n * sizeof *call;
    lk_status status = gpu_room(gpu, &gpu->commands, bytes, err);
    if (!status) status = gpu_room(gpu, &gpu->scratch, plan.scratch_bytes, err);
    if (!status) status = gpu_room(gpu, &gpu->tickets, plan.ticket_bytes, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, call, bytes, err);
    if (status) return status;
    plan.launch.call = gpu->commands.at;
    plan.launch.scratch = gpu->scratch.at;
    plan.launch.ticket = gpu->tickets.at;
    return gpu_check(attend_run(&plan, gpu->stream), "attention", err);
}

static bool same_shape(const struct lk_device_attend *a, const struct lk_device_attend *b) {
    return a->n_head == b->n_head && a->n_head_kv == b->n_head_kv && a->d_head == b->d_head &&
           a->d_rope == b->d_rope && !a->q_shifted == !b->q_shifted;
}

typedef lk_status attend_calls(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                               lk_err *err);

/* Runs of calls that have one shape, and if `latents`, segments that are restored. */
static lk_status attend_runs(struct gpu_device *gpu, const struct lk_device_attend *call, size_t n,
                             bool latents, attend_calls *attend, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0, end; i < n && !status; i = end) {
        end = i + 1;
        if (latents && !gpu_call_has_latents(&call[i])) continue;
        while (end < n && end - i < MOST_CALLS && same_shape(&call[i], &call[end]) &&
               (!latents || gpu_call_has_latents(&call[end])))
            end++;
        status = attend(gpu, call + i, (int)(end - i), err);
    }
    return status;
}

lk_status gpu_run_attention(struct gpu_device *gpu, const struct lk_device_attend *call, size_t n,
                            lk_err *err) {
    size_t first = 0;
    while (first < n && !gpu_call_has_latents(&call[first])) first++;
    if (first == n) return attend_runs(gpu, call, n, false, attend_some, err);
    struct lk_device_attend *rows = new (std::nothrow) struct lk_device_attend[n];
    if (!rows) return gpu_check(gpu_no_memory(), "attention", err);
    size_t n_rows = gpu_rows_of_calls(call, n, rows);
    lk_status status = attend_runs(gpu, rows, n_rows, false, attend_some, err);
    delete[] rows;
    return status ? status : attend_runs(gpu, call, n, true, gpu_restore_some, err);
}
