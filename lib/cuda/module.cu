/* The device module: opens a card and executes the functions of device/device.h on one stream at a
 * time.
 *
 * Commands of a device are issued to its own stream or to another library's, which wait for each
 * other when they take turns. So they take effect in the order of the calls.
 * Structs of a command reach the card through a ring of pinned memory, and lie in one buffer there
 * that later commands overwrite: the stream's order makes that safe. */
#include "codec/codec.h"
#include "cuda/attend_launch.h"
#include "cuda/gpu.h"
#include "cuda/latent_launch.h"
#include "cuda/latent_pack.h"
#include "device/commands.h"

#include <new>
#include <stdio.h>
#include <string.h>

namespace {

lk_status failed(lk_err *err, lk_status status, const char *what, const char *why) {
    if (err) snprintf(err->msg, sizeof err->msg, "%s: %s", what, why);
    return status;
}

void *address(uint64_t at) { return (void *)(uintptr_t)at; }

/* ---- the ring ---- */

/* Go on to the next section when its copies are done. */
int next_section(struct gpu_device *gpu) {
    struct gpu_ring *ring = &gpu->ring;
    int error = gpu_event_record(ring->done[ring->section], gpu->stream);
    if (error) return error;
    ring->recorded[ring->section] = true;
    ring->section = (ring->section + 1) % RING_SECTIONS;
    ring->used = 0;
    return ring->recorded[ring->section] ? gpu_event_sync(ring->done[ring->section]) : 0;
}

int open_ring(struct gpu_device *gpu) {
    struct gpu_ring *ring = &gpu->ring;
    int error = gpu_alloc_pinned((void **)&ring->memory, (size_t)RING_SECTION * RING_SECTIONS);
    for (int i = 0; i < RING_SECTIONS && !error; i++) error = gpu_event_create(&ring->done[i]);
    return error;
}

void close_ring(struct gpu_ring *ring) {
    for (int i = 0; i < RING_SECTIONS; i++) gpu_event_destroy(ring->done[i]);
    gpu_free_pinned(ring->memory);
}

} // namespace

struct gpu_device *gpu_device_of(const struct lk_device *device) {
    struct gpu_device *gpu = (struct gpu_device *)device->self;
    gpu_select(gpu->number); /* a number that was opened */
    return gpu;
}

lk_status gpu_check(int error, const char *what, lk_err *err) {
    if (!error) return LK_OK;
    lk_status status = LK_E_IO;
    if (gpu_is_out_of_memory(error)) status = LK_E_NOMEM;
    return failed(err, status, what, gpu_error_text(error));
}

lk_status gpu_send(struct gpu_device *gpu, uint64_t to, const void *from, size_t size,
                   lk_err *err) {
    struct gpu_ring *ring = &gpu->ring;
    const char *bytes = (const char *)from;
    while (size > 0) {
        int error = ring->used == RING_SECTION ? next_section(gpu) : 0;
        if (error) return gpu_check(error, "upload", err);
        size_t room = RING_SECTION - ring->used, n = size < room ? size : room;
        char *piece = ring->memory + (size_t)ring->section * RING_SECTION + ring->used;
        memcpy(piece, bytes, n);
        error = gpu_copy(address(to), piece, n, gpu->stream);
        if (error) return gpu_check(error, "upload", err);
        ring->used += n, to += n, bytes += n, size -= n;
    }
    return LK_OK;
}

lk_status gpu_room(struct gpu_device *gpu, struct gpu_buffer *buffer, size_t size, lk_err *err) {
    if (size <= buffer->size) return LK_OK;
    size_t grown = (size_t)1 << 16;
    while (grown < size) grown *= 2;
    void *memory;
    int error = gpu_stream_sync(gpu->stream); /* commands may use the old one */
    if (!error) error = gpu_alloc(&memory, grown);
    if (error) return gpu_check(error, "memory for commands", err);
    gpu_free(address(buffer->at));
    buffer->at = (uint64_t)(uintptr_t)memory, buffer->size = grown;
    return gpu_check(gpu_fill(memory, 0, grown, gpu->stream), "memory for commands", err);
}

namespace {

typedef std::lock_guard<std::mutex> guard;

/* ---- memory ---- */

lk_status device_alloc(struct lk_device *device, size_t size, uint64_t *at, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    void *memory;
    *at = 0;
    int error = gpu_alloc(&memory, size);
    if (error) return gpu_check(error, "device memory", err);
    error = gpu_fill(memory, 0, size, gpu->stream);
    if (error) {
        gpu_free(memory);
        return gpu_check(error, "device memory", err);
    }
    *at = (uint64_t)(uintptr_t)memory;
    return LK_OK;
}

void device_free(struct lk_device *device, uint64_t at, size_t) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    gpu_stream_sync(gpu->stream); /* a fault is reported by the next command */
    gpu_free(address(at));
}

lk_status device_upload(struct lk_device *device, uint64_t to, const void *from, size_t size,
                        lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    return gpu_send(gpu, to, from, size, err);
}

/* Through the ring's memory, section by section. */
lk_status device_download(struct lk_device *device, void *to, uint64_t from, size_t size,
                          lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    char *bytes = (char *)to;
    while (size > 0) {
        int error = next_section(gpu);
        size_t n = size < (size_t)RING_SECTION ? size : (size_t)RING_SECTION;
        char *piece = gpu->ring.memory + (size_t)gpu->ring.section * RING_SECTION;
        if (!error) error = gpu_copy(piece, address(from), n, gpu->stream);
        if (!error) error = gpu_stream_sync(gpu->stream);
        if (error) return gpu_check(error, "download", err);
        memcpy(bytes, piece, n);
        from += n, bytes += n, size -= n;
    }
    return LK_OK;
}

lk_status device_copy(struct lk_device *device, uint64_t to, uint64_t from, size_t size,
                      lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    if (size == 0) return LK_OK;
    return gpu_check(gpu_copy(address(to), address(from), size, gpu->stream), "copy", err);
}

lk_status device_clear(struct lk_device *device, uint64_t to, size_t size, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    if (size == 0) return LK_OK;
    return gpu_check(gpu_fill(address(to), 0, size, gpu->stream), "clear", err);
}

lk_status device_sync(struct lk_device *device, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    return gpu_check(gpu_stream_sync(gpu->stream), "sync", err);
}

lk_status device_follow(struct lk_device *device, void *stream, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    gpu_stream next = stream ? (gpu_stream)stream : gpu->own;
    if (next == gpu->stream) return LK_OK;
    int error = gpu_event_record(gpu->turn, gpu->stream);
    if (!error) error = gpu_stream_wait(next, gpu->turn);
    if (!error || !stream) gpu->stream = next; /* back in any case */
    return gpu_check(error, "stream", err);
}

/* ---- the device itself ---- */

void device_memory(const struct lk_device *device, uint64_t *total, uint64_t *unused) {
    struct gpu_device *gpu = gpu_device_of(device);
    *total = gpu->card.memory_bytes;
    if (gpu_free_bytes(unused)) *unused = 0;
}

void device_close(struct lk_device *device) {
    struct gpu_device *gpu = gpu_device_of(device);
    if (gpu->own) gpu_stream_sync(gpu->own);
    for (struct gpu_buffer *buffer : {&gpu->commands, &gpu->scratch, &gpu->tickets})
        gpu_free(address(buffer->at));
    close_ring(&gpu->ring);
    gpu_event_destroy(gpu->turn);
    gpu_stream_destroy(gpu->own);
    delete gpu;
}

void print_card(const struct gpu_card *card, char *text, size_t size) {
    snprintf(text, size, "%.48s, sm_%d%d, %.1f GiB", card->name, card->major, card->minor,
             (double)card->memory_bytes / (1 << 30));
}

/* ---- the module ---- */

int module_count(void) {
    int n = 0;
    return gpu_count(&n) || n < 0 ? 0 : n;
}

lk_status module_describe(int number, lk_device_info *info, lk_err *err) {
    struct gpu_card card;
    int error = gpu_properties(number, &card);
    if (error) return gpu_check(error, "properties", err);
    print_card(&card, info->text, sizeof info->text);
    info->memory_bytes = card.memory_bytes;
    error = gpu_select(number);
    if (!error) error = gpu_free_bytes(&info->free_bytes);
    return gpu_check(error, "memory", err);
}

/* ---- commands ---- */

lk_status device_move(struct lk_device *device, const struct lk_device_move *move,
                      const struct lk_move *, size_t n, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    if (!move && n > 0) return failed(err, LK_E_ARG, "moves", "no commands");
    return gpu_run_moves(gpu, move, n, err);
}

lk_status device_project(struct lk_device *device, const struct lk_device_project *project,
                         size_t n, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    return gpu_run_projections(gpu, project, n, err);
}

lk_status device_attend(struct lk_device *device, const struct lk_device_attend *call,
                        const struct lk_attn *, size_t n, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    if (!call && n > 0) return failed(err, LK_E_ARG, "attention", "no commands");
    return gpu_run_attention(gpu, call, n, err);
}

lk_status device_score(struct lk_device *device, const struct lk_device_weigh *weigh, size_t n,
                       const struct lk_attn *, bool, uint64_t, lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    if (!weigh && n > 0) return failed(err, LK_E_ARG, "attention scores", "no commands");
    return gpu_run_scores(gpu, weigh, n, err);
}

bool device_latent_kernel(const struct lk_device *device, const struct lk_device_latent_need *need,
                          struct lk_device_latent_kernel *out) {
    const struct latent_entry *entry = latent_choose(&gpu_device_of(device)->card, need);
    if (!entry) return false;
    *out = {latent_entry_number(entry), entry->post, entry->up_bytes, entry->rope_bytes};
    return true;
}

void device_pack_up(const struct lk_device *, int number, const float *up, int rank,
                    const float *mean, char *out, float *k_mean) {
    latent_entry_at(number)->pack_up(up, rank, mean, out, k_mean, NULL);
}

void device_pack_rope(const struct lk_device *, int number, const struct lk_device_rope *rope,
                      char *out) {
    struct latent_rope tables = {rope->speed,  rope->magnitude, rope->n_pair, rope->basis,
                                 rope->cosine, rope->sine,      rope->stride};
    latent_entry_at(number)->pack_rope(&tables, out);
}

/* Do all launches fit the shared memory of a block? */
bool fits_shared(const struct gpu_card *card, const struct lk_device_needs *needs) {
    struct attend_plan plan;
    struct lk_device_attend call = {};
    call.n_tok = call.n_head_kv = 1, call.n_head = needs->group;
    call.d_head = needs->d_head, call.d_rope = needs->d_rope, call.q_shifted = needs->shift;
    bool attends = attend_plan_make(card, &call, 1, &plan);
    call.d_head = needs->d_head_swa;
    attends = attends && (call.d_head == 0 || attend_plan_make(card, &call, 1, &plan));
    return attends && needs->move_bytes <= card->max_shared &&
           gpu_restore_shared(needs->restored_bytes, needs->restored_head, needs->d_latent) <=
               card->max_shared;
}

lk_status device_sum(struct lk_device *device, const struct lk_device_less *less, size_t n,
                     lk_err *err) {
    struct gpu_device *gpu = gpu_device_of(device);
    guard locked(gpu->lock);
    return gpu_run_sums(gpu, less, n, err);
}

/* What commands cannot say, by name. */
const char *device_refuses(const struct lk_device *device, const struct lk_device_needs *needs) {
    uint32_t coded = needs->coding[0] | needs->coding[1];
    if (needs->divided) return "several processes share the rows, which lie in their own memory";
    if (coded >> LK_ADDED & 1) return "a codec is the program's own";
    if (needs->d_head > LK_DEVICE_MAX_HEAD || needs->d_head_swa > LK_DEVICE_MAX_HEAD)
        return "heads have too many channels";
    if (needs->reads_share) return "a share of the tiles is read (read N%)";
    if (!fits_shared(&gpu_device_of(device)->card, needs))
        return "rows are too wide for the shared memory of the card's blocks";
    return NULL;
}

const struct lk_device_functions the_functions = {
    device_alloc,     device_free,    device_upload,  device_download,      device_copy,
    device_clear,     device_move,    device_project, device_attend,        device_score,
    device_sum,       device_sync,    device_follow,  device_latent_kernel, device_pack_up,
    device_pack_rope, device_refuses, device_memory,  device_close,
};

lk_status module_open(int number, struct lk_device **device, lk_err *err) {
    struct gpu_device *gpu = new (std::nothrow) gpu_device();
    if (!gpu) return failed(err, LK_E_NOMEM, "open", "out of memory");
    int error = gpu_properties(number, &gpu->card);
    if (!error && gpu->card.major < 8) {
        delete gpu;
        return failed(err, LK_E_UNSUPPORTED, "open", "cards before sm_80 are not supported");
    }
    if (!error) error = gpu_select(number);
    if (!error) error = gpu_stream_create(&gpu->own);
    gpu->stream = gpu->own;
    if (!error) error = gpu_event_create(&gpu->turn);
    if (!error) error = open_ring(gpu);
    gpu->number = number;
    gpu->device.self = gpu;
    gpu->device.call = &the_functions;
    gpu->device.slab_bytes = SLAB_BYTES;
    print_card(&gpu->card, gpu->device.text, sizeof gpu->device.text);
    if (error) {
        device_close(&gpu->device);
        return gpu_check(error, "open", err);
    }
    *device = &gpu->device;
    return LK_OK;
}

const struct lk_module the_module = {LOWKEY_VERSION, module_count, module_describe, module_open};

} // namespace

extern "C" __attribute__((visibility("default"))) const struct lk_module *lk_cuda_module(int abi) {
    return abi == LK_MODULE_ABI ? &the_module : NULL;
}
