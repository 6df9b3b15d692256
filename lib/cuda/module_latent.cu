/* Attention over latents: launches of the plain kernel (restore.cuh), after the other segments of
 * the same calls. */
#include "cuda/gpu.h"
#include "cuda/restore.cuh"

#include <new>
#include <string.h>

static bool is_restored(const struct lk_device_segment &segment) { return segment.k.restore != 0; }

/* Tiles of a call's restored segments. */
static int count_tiles(const struct lk_device_attend *call) {
    int n = 0;
    for (int i = 0; i < call->n_segment; i++)
        if (is_restored(call->segment[i]))
            n += (call->segment[i].n_row + TILE_ROWS - 1) / TILE_ROWS;
    return n;
}

bool gpu_call_has_latents(const struct lk_device_attend *call) { return count_tiles(call) > 0; }

size_t gpu_rows_of_calls(const struct lk_device_attend *call, size_t n,
                         struct lk_device_attend *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        struct lk_device_attend *to = &out[n_out];
        *to = call[i];
        to->n_segment = 0;
        for (int s = 0; s < call[i].n_segment; s++)
            if (!is_restored(call[i].segment[s])) to->segment[to->n_segment++] = call[i].segment[s];
        n_out += to->n_segment > 0 || !gpu_call_has_latents(&call[i]);
    }
    return n_out;
}

/* Calls [n] of one shape. */
lk_status gpu_restore_some(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                           lk_err *err) {
    struct restore_launch a = {};
    int tiles = 0, v_part = 0, group = call->n_head / call->n_head_kv;
    for (int i = 0; i < n; i++) {
        int n_tile = count_tiles(&call[i]);
        tiles = n_tile > tiles ? n_tile : tiles;
        a.n_tok = call[i].n_tok > a.n_tok ? call[i].n_tok : a.n_tok;
        a.tile_bytes = call[i].tile_bytes > a.tile_bytes ? call[i].tile_bytes : a.tile_bytes;
        v_part = call[i].v_part > v_part ? call[i].v_part : v_part;
    }
    a.n_call = n;
    a.n_tile = (group * a.n_tok + RESTORE_QUERIES - 1) / RESTORE_QUERIES;
    int n_block = n * call->n_head_kv * a.n_tile,
        shared = restore_shared(a.tile_bytes, call->d_head, v_part);
    a.n_split = 2 * gpu->card.n_sm / n_block;
    a.n_split = a.n_split < tiles ? a.n_split : tiles;
    a.n_split = a.n_split > 1 ? a.n_split : 1;
    size_t row = (size_t)call->n_head * (size_t)(call->d_head + 2) * sizeof(float);
    lk_status status = gpu_room(gpu, &gpu->commands, (size_t)n * sizeof *call, err);
    if (!status) status = gpu_room(gpu, &gpu->scratch, (size_t)n * a.n_split * a.n_tok * row, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, call, (size_t)n * sizeof *call, err);
    if (status) return status;
    a.call = gpu->commands.at, a.out = gpu->scratch.at;
    int error = gpu_launch<restore_kernel>({a.n_split, call->n_head_kv * a.n_tile, n}, shared,
                                           gpu->stream, a);
    if (!error) error = gpu_launch<restore_join>({a.n_tok * call->n_head, n, 1}, 0, gpu->stream, a);
    return gpu_check(error, "attention over latents", err);
}
