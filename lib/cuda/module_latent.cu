/* Attention over latents, after the other segments of the same calls: launches of fast kernels
 * (latent_launch.h) for the segments that have one, and of the plain kernel (restore.cuh). */
#include "cuda/gpu.h"
#include "cuda/latent_launch.h"
#include "cuda/restore.cuh"

#include <new>
#include <string.h>

static bool is_restored(const struct lk_device_segment &segment) { return segment.k.restore != 0; }

/* Tiles of a call's restored segments; if not `all`, without the fast kernel's. */
static int count_tiles(const struct lk_device_attend *call, bool all) {
    int n = 0;
    for (int i = 0; i < call->n_segment; i++)
        if (is_restored(call->segment[i]) && (all || !call->segment[i].fast))
            n += (call->segment[i].n_row + TILE_ROWS - 1) / TILE_ROWS;
    return n;
}

bool gpu_call_has_latents(const struct lk_device_attend *call) {
    return count_tiles(call, true) > 0;
}

size_t gpu_rows_of_calls(const struct lk_device_attend *call, size_t n,
                         struct lk_device_attend *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        struct lk_device_attend *to = &out[n_out];
        *to = call[i];
        to->n_segment = 0;
        if (gpu_call_has_latents(&call[i])) /* restore_join makes the result */
            to->out = to->extra = to->sink = 0, to->n_extra = 0;
        for (int s = 0; s < call[i].n_segment; s++)
            if (!is_restored(call[i].segment[s])) to->segment[to->n_segment++] = call[i].segment[s];
        n_out += to->n_segment > 0 || !gpu_call_has_latents(&call[i]);
    }
    return n_out;
}

int gpu_restore_shared(int tile_bytes, int d_head, int v_part) {
    return tile_bytes > 0 ? restore_shared(tile_bytes, d_head, v_part, 1) : 0;
}

/* ---- segments for a fast kernel ---- */

/* Successive segments for one launch, and the launch. */
struct fast_run {
    const struct latent_entry *entry;
    struct lk_device_latent_launch launch;
    struct latent_room room;
    int first;
};

/* What calls [n] of one shape leave: restored segments as commands for fast kernels, and the launch
 * of the plain kernel for the others. */
struct latent_work_list {
    struct restore_launch plain;
    int n, n_run, most;                     /* fast segments; runs of them; of a call at most */
    struct lk_device_latent *latent;        /* [n] */
    struct fast_run *run;                   /* [n_run] */
    size_t sums, scratch, queries, tickets; /* bytes of the largest launch */
};

static bool is_fast(const struct lk_device_segment &segment) {
    return is_restored(segment) && segment.fast;
}

static bool same_launch(const struct lk_device_fast_latents *a,
                        const struct lk_device_fast_latents *b) {
    return a->kernel == b->kernel && a->rope == b->rope && a->fine == b->fine &&
           a->k_heads == b->k_heads && a->v_heads == b->v_heads && a->k_rank == b->k_rank &&
           a->v_rank == b->v_rank && a->n_pair == b->n_pair && a->halves == b->halves;
}

/* The command of a fast segment; place_fast sets where its partial and queries are. */
static struct lk_device_latent latent_of(const struct lk_device_attend *call,
                                         const struct lk_device_segment *segment) {
    const struct lk_device_fast_latents *fast = &call->fast;
    struct lk_device_latent out = {};
    out.q = call->q;
    out.k_up = fast->k_up, out.k_mean = fast->k_mean;
    out.v_up = fast->v_up, out.v_mean = fast->v_mean;
    out.k_part = fast->k_part, out.v_part = fast->v_part;
    out.segment = *segment;
    out.position = fast->position - segment->before;
    out.n_tok = call->n_tok, out.window = call->window;
    return out;
}

/* The launch of a run that starts with a call. */
static struct fast_run run_of(const struct lk_device_attend *call, int first) {
    const struct lk_device_fast_latents *fast = &call->fast;
    struct fast_run run = {};
    run.entry = latent_entry_at(fast->kernel - 1);
    run.first = first;
    struct lk_device_latent_launch *a = &run.launch;
    a->rope = fast->rope, a->fine = fast->fine, a->coarse = fast->coarse;
    a->n_head_kv = call->n_head_kv, a->group = call->n_head / call->n_head_kv;
    a->k_heads = fast->k_heads, a->v_heads = fast->v_heads;
    a->k_rank = fast->k_rank, a->v_rank = fast->v_rank;
    a->n_pair = fast->n_pair, a->halves = fast->halves, a->scale = call->scale;
    return run;
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* The fast segments of calls [n], in order, and their runs; w->latent and w->run have room. */
static void collect_fast(const struct gpu_card *card, const struct lk_device_attend *call, int n,
                         struct latent_work_list *w) {
    const struct lk_device_fast_latents *last = NULL;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < call[i].n_segment; s++) {
            const struct lk_device_segment *segment = &call[i].segment[s];
            if (!is_fast(*segment)) continue;
            if (!last || !same_launch(last, &call[i].fast))
                w->run[w->n_run++] = run_of(&call[i], w->n);
            last = &call[i].fast;
            w->run[w->n_run - 1].launch.n_call++;
            w->latent[w->n++] = latent_of(&call[i], segment);
        }
    for (int r = 0; r < w->n_run; r++) {
        struct fast_run *run = &w->run[r];
        struct lk_device_latent_launch *a = &run->launch;
        int n_row = 0;
        for (int i = run->first; i < run->first + a->n_call; i++)
            if (w->latent[i].segment.n_row > n_row) n_row = w->latent[i].segment.n_row;
        run->room = latent_plan(card, run->entry, n_row, a->group * w->plain.n_tok, a);
        w->sums = larger(w->sums, run->room.sum_bytes);
        w->scratch = larger(w->scratch, run->room.scratch_bytes);
        w->tickets = larger(w->tickets, run->room.ticket_bytes);
        if (run->entry->post)
            w->queries = larger(w->queries, (size_t)w->plain.n_tok * call->n_head *
                                                (size_t)a->k_rank * sizeof(float));
    }
}

/* Where partials and the queries of rotated keys are, in memory that starts at `at`. */
static void place_fast(const struct lk_device_attend *call, int n, uint64_t partials,
                       uint64_t queries, struct latent_work_list *w) {
    size_t row = (size_t)call->n_head * (size_t)(call->d_head + 2) * sizeof(float);
    for (int i = 0, k = 0; i < n; i++) {
        size_t place = (size_t)i * w->plain.n_part + w->plain.n_split;
        for (int s = 0; s < call[i].n_segment; s++) {
            if (!is_fast(call[i].segment[s])) continue;
            w->latent[k].partial = partials + place++ * (size_t)w->plain.n_tok * row;
            if (call[i].fast.post) w->latent[k].k_query = queries + (size_t)k * w->queries;
            k++;
        }
    }
}

/* ---- launches ---- */

/* How the plain kernel works on its segments of calls [n] of one shape. */
static void plan_plain(const struct gpu_card *card, const struct lk_device_attend *call, int n,
                       struct restore_launch *a, int *v_part) {
    int tiles = 0, group = call->n_head / call->n_head_kv;
    for (int i = 0; i < n; i++) {
        int n_tile = count_tiles(&call[i], false);
        tiles = n_tile > tiles ? n_tile : tiles;
        a->n_tok = call[i].n_tok > a->n_tok ? call[i].n_tok : a->n_tok;
        a->tile_bytes = call[i].tile_bytes > a->tile_bytes ? call[i].tile_bytes : a->tile_bytes;
        *v_part = call[i].v_part > *v_part ? call[i].v_part : *v_part;
    }
    a->n_call = n;
    a->n_query = group * a->n_tok < RESTORE_QUERIES ? group * a->n_tok : RESTORE_QUERIES;
    while (a->n_query > 1 &&
           restore_shared(a->tile_bytes, call->d_head, *v_part, a->n_query) > card->max_shared)
        a->n_query--;
    a->n_tile = (group * a->n_tok + a->n_query - 1) / a->n_query;
    a->n_split = 2 * card->n_sm / (n * call->n_head_kv * a->n_tile);
    if (a->n_split < 1) a->n_split = 1;
    if (a->n_split > tiles) a->n_split = tiles; /* 0: there is nothing to do */
}

/* Memory of the card: commands are calls and latents; scratch is partials, sums, what clusters
 * leave, and queries. */
static lk_status run_work(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                          struct latent_work_list *w, int v_part, lk_err *err) {
    struct restore_launch *a = &w->plain;
    size_t row = (size_t)call->n_head * (size_t)(call->d_head + 2) * sizeof(float),
           calls = (size_t)n * sizeof *call, latents = (size_t)w->n * sizeof *w->latent,
           partials = ((size_t)n * a->n_part * a->n_tok * row + 255) / 256 * 256;
    w->sums = (w->sums + 255) / 256 * 256, w->scratch = (w->scratch + 255) / 256 * 256;
    lk_status status = gpu_room(gpu, &gpu->commands, calls + latents, err);
    if (!status)
        status = gpu_room(gpu, &gpu->scratch,
                          partials + w->sums + w->scratch + (size_t)w->n * w->queries, err);
    if (!status) status = gpu_room(gpu, &gpu->tickets, w->tickets, err);
    if (status) return status;
    a->call = gpu->commands.at, a->out = gpu->scratch.at;
    uint64_t sums = a->out + partials, scratch = sums + w->sums;
    place_fast(call, n, a->out, scratch + w->scratch, w);
    status = gpu_send(gpu, a->call, call, calls, err);
    if (!status && w->n > 0) status = gpu_send(gpu, a->call + calls, w->latent, latents, err);
    if (status) return status;
    int error = 0, shared = restore_shared(a->tile_bytes, call->d_head, v_part, a->n_query);
    if (a->n_split > 0)
        error = gpu_launch<restore_kernel>({a->n_split, call->n_head_kv * a->n_tile, n}, shared,
                                           gpu->stream, *a);
    for (int r = 0; r < w->n_run && !error; r++) {
        struct lk_device_latent_launch *launch = &w->run[r].launch;
        launch->call = a->call + calls + (size_t)w->run[r].first * sizeof *w->latent;
        launch->sum = sums, launch->scratch = scratch, launch->ticket = gpu->tickets.at;
        error = latent_run(w->run[r].entry, launch, gpu->stream);
    }
    if (!error)
        error = gpu_launch<restore_join>({a->n_tok * call->n_head, n, 1}, 0, gpu->stream, *a);
    return gpu_check(error, "attention over latents", err);
}

/* Calls [n] of one shape. */
lk_status gpu_restore_some(struct gpu_device *gpu, const struct lk_device_attend *call, int n,
                           lk_err *err) {
    struct latent_work_list w = {};
    int v_part = 0, n_fast = 0;
    for (int i = 0; i < n; i++) {
        int own = 0;
        for (int s = 0; s < call[i].n_segment; s++) own += is_fast(call[i].segment[s]);
        n_fast += own, w.most = own > w.most ? own : w.most;
    }
    plan_plain(&gpu->card, call, n, &w.plain, &v_part);
    w.plain.n_part = w.plain.n_split + w.most;
    w.latent = new (std::nothrow) struct lk_device_latent[n_fast + 1];
    w.run = new (std::nothrow) struct fast_run[n_fast + 1];
    lk_status status = LK_OK;
    if (!w.latent || !w.run) {
        status = gpu_check(gpu_no_memory(), "attention over latents", err);
    } else {
        collect_fast(&gpu->card, call, n, &w);
        status = run_work(gpu, call, n, &w, v_part, err);
    }
    delete[] w.latent;
    delete[] w.run;
    return status;
}
