/* Attention weights of rows, for eviction policies: the same segments as an attention call, as
 * commands of their own. */
extern "C" {
#include "base/err.h"
#include "codec/codec.h"
#include "device/moves.h"
}
#include "cuda/gpu.h"
#include "cuda/launch_moves.h"

/* The codec that a coding describes. */
static struct lk_codec codec_of(const struct lk_device_coding *coding) {
    struct lk_codec codec = {};
    codec.coding = coding->coding;
    codec.bits = coding->bits;
    codec.group = coding->group;
    codec.mean = coding->mean;
    codec.sigma = coding->sigma;
    codec.lloyd = coding->book == LK_DEVICE_LLOYD;
    codec.trellis = coding->book == LK_DEVICE_TRELLIS;
    codec.hadamard = coding->coding == LK_ASYM && coding->rotated;
    return codec;
}

/* Rows of K of a segment, d channels. Returns why they cannot be read, or NULL. */
static const char *rows_of(const struct lk_device_attend *call, const struct lk_device_rows *k,
                           struct lk_device_move_rows *out) {
    if (k->part) return "not over heads with different codecs";
    struct lk_codec codec = codec_of(&k->coding);
    struct lk_part part = {&codec, LK_K, call->d_head, (int)k->coding.block_rows, NULL};
    *out = {};
    out->at = k->table;
    out->part_bytes = k->coding.next;
    out->offset = k->coding.offset;
    out->first = k->first;
    if (codec.sigma) out->sigma = call->k_sigma;
    out->sigma_stride = call->d_head;
    return lk_device_packing_of(&part, &out->coding);
}

lk_status gpu_run_scores(struct gpu_device *gpu, const struct lk_device_attend *call, bool last,
                         uint64_t scores, lk_err *err) {
    struct lk_device_weigh weigh[LK_DEVICE_SEGMENTS];
    const char *refused = call->d_rope > 0 ? "not with latent attention"
                          : call->partial  ? NULL
                                           : "without partials";
    for (int i = 0; i < call->n_segment && !refused; i++) {
        const struct lk_device_segment *segment = &call->segment[i];
        struct lk_device_weigh *w = &weigh[i];
        *w = {};
        refused = rows_of(call, &segment->k, &w->k);
        w->q = segment->shifted ? call->q_shifted : call->q;
        w->partial = call->partial;
        w->sink = call->sink;
        w->slope = call->slope;
        w->score = scores;
        w->stride = call->d_head + 2;
        w->at = call->d_head;
        w->n_range = 1;
        w->n_row = segment->n_row;
        w->n_tok = call->n_tok;
        w->n_head = call->n_head;
        w->n_head_kv = call->n_head_kv;
        w->before = segment->before;
        w->window = call->window;
        w->distance = segment->distance;
        w->last = last;
        w->scale = call->scale;
        w->softcap = call->softcap;
        scores += (uint64_t)segment->n_row * call->n_head_kv * sizeof(float);
    }
    if (refused)
        return lk_fail(err, LK_E_UNSUPPORTED, "attention scores on %s: %s", gpu->device.name,
                       refused);
    int n = call->n_segment, n_item = lk_device_weigh_items(weigh, n);
    size_t bytes = (size_t)n * sizeof *weigh;
    lk_status status = gpu_room(gpu, &gpu->commands, bytes, err);
    if (!status) status = gpu_send(gpu, gpu->commands.at, weigh, bytes, err);
    if (status || n_item == 0) return status;
    int shared = lk_device_weigh_shared(weigh, n);
    return gpu_check(gpu_weigh_rows(gpu->commands.at, n, n_item, shared, gpu->stream), "scores",
                     err);
}
