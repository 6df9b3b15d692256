/* Memory and execution of ggml graphs. */
#include "engine/graph.h"

#include "base/cxx_call.h"
#include "model/recurrence_nodes.h"

#include <stdint.h>

enum { LINE_BYTES = 64 };

/* An empty graph in graph->mem, of graph->n_node nodes. May throw. */
static void create_graph(void *arg) {
    struct lk_graph *graph = arg;
    graph->ctx = ggml_init((struct ggml_init_params){
        .mem_size = graph->mem_size, .mem_buffer = graph->mem, .no_alloc = true});
    graph->graph = ggml_new_graph_custom(graph->ctx, graph->n_node, graph->grads);
}

static size_t pieces_size(const struct lk_graph *graph) {
    return (1 + (size_t)graph->max_piece) * sizeof *graph->piece +
           (size_t)graph->max_piece * LK_PIECE_LINKS * sizeof *graph->link;
}

/* Replace memory of `size` bytes if it is smaller than `need`. */
static bool make_room(struct lk_ledger *ledger, void **mem, size_t *size, size_t need) {
    if (*size >= need) return true;
    lk_release(ledger, LK_FOR_SCRATCH, *mem, *size);
    *mem = lk_alloc(ledger, LK_FOR_SCRATCH, need);
    *size = *mem ? need : 0;
    return *mem;
}

/* Capacity of a piece after the first one. */
static size_t piece_nodes(const struct lk_graph *graph) {
    return graph->piece_node ? (size_t)graph->piece_node : LK_PIECE_NODES;
}

lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger,
                         lk_err *err) {
    size_t n_piece = (size_t)graph->max_piece,
           size = ggml_tensor_overhead() * ((size_t)n_node + n_piece * LK_PIECE_LINKS) +
                  ggml_graph_overhead_custom(n_node, graph->grads) +
                  ggml_graph_overhead_custom(piece_nodes(graph), false) * n_piece;
    if (graph->ctx) ggml_free(graph->ctx);
    graph->ctx = NULL;
    graph->tok = graph->pos = graph->x_in = graph->x_out = graph->logits = graph->out = NULL;
    graph->n_tok = graph->n_out = 0;
    graph->n_node = (size_t)n_node;
    if (!make_room(ledger, &graph->mem, &graph->mem_size, size) ||
        !make_room(ledger, (void **)&graph->piece, &graph->pieces_size, pieces_size(graph)))
        return lk_fail(err, LK_E_NOMEM, "out of memory for a graph of %d nodes", n_node);
    graph->link = (struct lk_link *)(graph->piece + 1 + n_piece);
    graph->n_piece = 1;
    graph->n_link = 0;
    lk_status status = lk_cxx_call(create_graph, graph, err);
    graph->piece[0] = (struct lk_piece){.graph = graph->graph, .place = LK_ON_CPU};
    return status;
}

/* ---- pieces ---- */

void lk_graph_set_device(struct lk_graph *graph, const struct lk_model *model, int n_layer) {
    graph->device = model->net->device;
    /* CPU, device, [commands, CPU, device] ..., commands, CPU */
    int n_there = graph->device && n_layer > 1 ? lk_recurrence_count_there(model->net) : 0;
    graph->max_piece = graph->device ? 3 * (n_layer - n_there) + 3 : 0;
}

static struct lk_piece *add_piece(struct lk_graph *graph, enum lk_graph_place place) {
    struct lk_piece *piece = &graph->piece[graph->n_piece++];
    graph->graph = ggml_new_graph_custom(graph->ctx, piece_nodes(graph), false);
    *piece = (struct lk_piece){.graph = graph->graph, .place = place};
    return piece;
}

void lk_graph_enter(struct lk_graph *graph, enum lk_graph_place place) {
    const struct lk_piece *current = &graph->piece[graph->n_piece - 1];
    if (graph->device && (current->place != place || current->issue)) add_piece(graph, place);
}

void lk_graph_command(struct lk_graph *graph, lk_graph_commands issue, void *user) {
    struct lk_piece *piece = add_piece(graph, LK_ON_DEVICE);
    piece->issue = issue;
    piece->user = user;
}

/* The piece that a tensor was created in. A graph's header precedes its tensors' in memory. -1: it
 * is not of the graph, like weights. */
static int piece_of(const struct lk_graph *graph, const struct ggml_tensor *t) {
    uintptr_t at = (uintptr_t)t, mem = (uintptr_t)graph->mem;
    int piece = graph->n_piece - 1;
    if (at < mem || at >= mem + graph->mem_size) return -1;
    while (piece > 0 && at < (uintptr_t)graph->piece[piece].graph) piece--;
    return piece;
}

struct ggml_tensor *lk_graph_use(struct lk_graph *graph, struct ggml_tensor *t) {
    int current = graph->n_piece - 1, own = t ? piece_of(graph, t) : -1;
    if (own < 0 || own == current) return t;
    enum lk_graph_place place = graph->piece[current].place;
    for (int i = 0; i < graph->n_link; i++) /* both have the same memory */
        if (graph->link[i].to == t && !graph->link[i].copied) t = graph->link[i].from;
    for (int i = 0; i < graph->n_link; i++) {
        struct lk_link *link = &graph->link[i];
        if (link->from != t || graph->piece[link->to_piece].place != place) continue;
        link->last = current;
        return link->to;
    }
    own = piece_of(graph, t);
    struct ggml_tensor *to = ggml_new_tensor(graph->ctx, t->type, GGML_MAX_DIMS, t->ne);
    for (int i = 0; i < GGML_MAX_DIMS; i++) to->nb[i] = t->nb[i];
    ggml_build_forward_expand(graph->piece[own].graph, t);
    graph->link[graph->n_link++] = (struct lk_link){.from = t,
                                                    .to = to,
                                                    .from_piece = own,
                                                    .to_piece = current,
                                                    .last = current,
                                                    .copied = graph->piece[own].place != place};
    return to;
}

/* ---- memory of tensors ---- */

static ggml_backend_buffer_type_t buffer_type(const struct lk_graph *graph,
                                              enum lk_graph_place place) {
    return place == LK_ON_DEVICE ? graph->device->buft : ggml_backend_cpu_buffer_type();
}

static struct lk_ledger *ledger_of(const struct lk_graph *graph, enum lk_graph_place place,
                                   struct lk_ledger *ledger) {
    return place == LK_ON_DEVICE ? &graph->device->ledger : ledger;
}

/* A part of the shared memory of a place, which tensors have one after the other. */
struct slot {
    size_t at, size;
    int last; /* the last piece that uses it */
};

/* A tensor in shared memory, used from piece `first` to piece `last`. */
struct resident {
    struct ggml_tensor *t;
    int first, last, slot;
};

/* The residents of a place in the order of their first use. Returns their number. */
static int find_residents(const struct lk_graph *graph, enum lk_graph_place place,
                          struct resident *out) {
    int n = 0;
    for (int piece = 0; piece < graph->n_piece; piece++) {
        if (graph->piece[piece].place != place) continue;
        for (int i = 0; i < graph->n_link; i++) {
            const struct lk_link *link = &graph->link[i];
            struct ggml_tensor *root = link->from->view_src ? link->from->view_src : link->from;
            int last = link->copied ? link->to_piece : link->last, k = 0;
            if (link->copied && link->to_piece == piece)
                out[n++] = (struct resident){link->to, piece, link->last, 0};
            if (link->from_piece != piece) continue;
            while (k < n && out[k].t != root) k++;
            if (k == n) out[n++] = (struct resident){root, piece, last, 0};
            if (out[k].last < last) out[k].last = last;
        }
    }
    return n;
}

/* Divide shared memory into slots. A slot is used again after the last piece that uses it. Returns
 * the bytes of all. */
static size_t divide_slots(struct resident *resident, int n, ggml_backend_buffer_type_t buft,
                           struct slot *slot) {
    size_t align = ggml_backend_buft_get_alignment(buft), at = 0;
    int n_slot = 0;
    if (align < LINE_BYTES) align = LINE_BYTES;
    for (int i = 0; i < n; i++) {
        size_t size = ggml_backend_buft_get_alloc_size(buft, resident[i].t);
        int k = 0;
        while (k < n_slot && slot[k].last >= resident[i].first) k++;
        if (k == n_slot) slot[n_slot++] = (struct slot){0};
        if (slot[k].size < size) slot[k].size = (size + align - 1) / align * align;
        slot[k].last = resident[i].last;
        resident[i].slot = k;
    }
    for (int k = 0; k < n_slot; k++) {
        slot[k].at = at;
        at += slot[k].size;
    }
    return at;
}

/* Make shared memory at least `size` bytes. */
static bool reserve_shared(struct lk_graph_memory *m, ggml_backend_buffer_type_t buft, size_t size,
                           struct lk_ledger *ledger) {
    if (size <= m->shared_size) return true;
    ggml_backend_buffer_t old = m->shared;
    m->shared = NULL; /* freeing may throw */
    lk_ledger_remove(ledger, LK_FOR_SCRATCH, m->shared_size);
    m->shared_size = 0;
    if (old) ggml_backend_buffer_free(old);
    if (!lk_ledger_add(ledger, LK_FOR_SCRATCH, size)) return false;
    m->shared = ggml_backend_buft_alloc_buffer(buft, size);
    if (m->shared)
        m->shared_size = size;
    else
        lk_ledger_remove(ledger, LK_FOR_SCRATCH, size);
    return m->shared;
}

/* Give the tensors that several pieces use their memory in a place. resident, slot: room for two
 * per link. May throw. */
static bool place_shared(struct lk_graph *graph, enum lk_graph_place place,
                         struct lk_ledger *ledger, struct resident *resident, struct slot *slot) {
    struct lk_graph_memory *m = &graph->memory[place];
    ggml_backend_buffer_type_t buft = buffer_type(graph, place);
    int n = find_residents(graph, place, resident);
    size_t size = divide_slots(resident, n, buft, slot);
    if (!reserve_shared(m, buft, size, ledger_of(graph, place, ledger))) return false;
    for (int i = 0; i < n; i++) {
        char *at = (char *)ggml_backend_buffer_get_base(m->shared) + slot[resident[i].slot].at;
        ggml_backend_tensor_alloc(m->shared, resident[i].t, at);
    }
    for (int i = 0; i < graph->n_link; i++) {
        const struct lk_link *link = &graph->link[i];
        const struct ggml_tensor *from = link->from, *root = from->view_src ? from->view_src : from;
        if (!link->copied && graph->piece[link->from_piece].place == place)
            ggml_backend_tensor_alloc(m->shared, link->to, (char *)root->data + from->view_offs);
    }
    return true;
}

/* Allocate the other tensors of a place. The pieces use the same memory. May throw, and m->alloc is
 * NULL then: ggml cannot free an allocator that was being changed. NULL also if the buffer could
 * not be allocated. */
static void alloc_tensors(struct lk_graph *graph, enum lk_graph_place place) {
    struct lk_graph_memory *m = &graph->memory[place];
    ggml_gallocr_t alloc = m->alloc;
    m->alloc = NULL;
    if (!alloc) alloc = ggml_gallocr_new(buffer_type(graph, place));
    bool ok = true;
    /* First the size of the largest piece: the memory of tensors that are placed cannot move. */
    for (int reserve = graph->n_piece > 1; ok && reserve >= 0; reserve--)
        for (int i = 0; ok && i < graph->n_piece; i++) {
            const struct lk_piece *piece = &graph->piece[i];
            if (piece->place != place) continue;
            if (i > 0 && ggml_graph_n_nodes(piece->graph) == 0) continue;
            ok = reserve ? ggml_gallocr_reserve(alloc, piece->graph)
                         : ggml_gallocr_alloc_graph(alloc, piece->graph);
        }
    if (ok)
        m->alloc = alloc;
    else
        ggml_gallocr_free(alloc);
}

/* An allocation of a graph's tensors. */
struct allocation {
    struct lk_graph *graph;
    struct lk_ledger *ledger;
    struct resident *resident;
    struct slot *slot;
    bool ok;
};

/* May throw. */
static void alloc_graph(void *arg) {
    struct allocation *a = arg;
    a->ok = true;
    for (int place = 0; a->ok && place < (a->graph->device ? LK_GRAPH_PLACES : 1); place++) {
        if (a->graph->n_link > 0)
            a->ok = place_shared(a->graph, place, a->ledger, a->resident, a->slot);
        if (a->ok) alloc_tensors(a->graph, place);
        a->ok = a->ok && a->graph->memory[place].alloc;
    }
}

/* Enter the bytes of the allocators' buffers in the ledgers. False if a limit is exceeded. */
static bool count_tensors(struct lk_graph *graph, struct lk_ledger *ledger) {
    bool ok = true;
    for (int place = 0; place < LK_GRAPH_PLACES; place++) {
        struct lk_graph_memory *m = &graph->memory[place];
        struct lk_ledger *of = place == LK_ON_CPU ? ledger : NULL;
        if (graph->device) of = ledger_of(graph, place, ledger);
        size_t size = m->alloc ? ggml_gallocr_get_buffer_size(m->alloc, 0) : 0;
        if (size == m->alloc_size) continue;
        lk_ledger_remove(of, LK_FOR_SCRATCH, m->alloc_size);
        m->alloc_size = 0;
        if (ok && lk_ledger_add(of, LK_FOR_SCRATCH, size)) {
            m->alloc_size = size;
            continue;
        }
        ok = false;
        ggml_gallocr_free(m->alloc);
        m->alloc = NULL;
    }
    return ok;
}

/* The error of a failed call into ggml: of the CPU, memory, or of the device, anything. */
static lk_status fail_call(const struct lk_graph *graph, lk_status status, const lk_err *why,
                           lk_err *err) {
    if (!graph->device || status == LK_E_NOMEM) return lk_fail(err, status, "%s", why->msg);
    return lk_fail(err, LK_E_IO, "the device %s failed: %.200s", graph->device->name, why->msg);
}

lk_status lk_graph_finish(struct lk_graph *graph, struct lk_ledger *ledger, lk_err *err) {
    struct allocation a = {.graph = graph, .ledger = ledger};
    size_t n = 2 * (size_t)graph->n_link, size = n * (sizeof *a.resident + sizeof *a.slot);
    if (n > 0) a.resident = lk_alloc(ledger, LK_FOR_SCRATCH, size);
    a.slot = (struct slot *)(a.resident ? a.resident + n : NULL);
    lk_err why = {0};
    lk_status status = LK_OK;
    if (a.resident || n == 0) status = lk_cxx_call(alloc_graph, &a, &why);
    lk_release(ledger, LK_FOR_SCRATCH, a.resident, a.resident ? size : 0);
    bool counted = count_tensors(graph, ledger);
    if (status) return fail_call(graph, status, &why, err);
    if (a.ok && counted) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for the activations%s%s",
                   graph->device ? " of the CPU or of " : "",
                   graph->device ? graph->device->name : "");
}

/* ggml's allocator aligns tensors to 32 bytes, and its matrix products take up to 1.4 times as long
 * if the rows they write start in the middle of a cache line (docs/performance.md). If all tensors
 * fill whole lines, every one starts at the beginning of a line. */
enum { LINE = LINE_BYTES / sizeof(float) };

struct ggml_tensor *lk_graph_input(struct lk_graph *graph, size_t n) {
    struct ggml_tensor *lines =
        ggml_new_tensor_1d(graph->ctx, GGML_TYPE_I32, (int64_t)(n + LINE - 1) / LINE * LINE);
    ggml_set_input(lines);
    return ggml_view_1d(graph->ctx, lines, (int64_t)n, 0);
}

struct ggml_tensor *lk_graph_effect(struct ggml_context *ctx, ggml_custom_op_t op,
                                    struct ggml_tensor **after, int n_after, void *user) {
    return ggml_custom_4d(ctx, GGML_TYPE_F32, LINE, 1, 1, 1, after, n_after, op, GGML_N_TASKS_MAX,
                          user);
}

/* Give the model `size` bytes of work memory. The caller holds the lock. */
static bool replace_work(struct lk_model *model, size_t size) {
    uint8_t *work = lk_alloc(&model->ledger, LK_FOR_SCRATCH, size);
    if (!work) return false;
    lk_release(&model->ledger, LK_FOR_SCRATCH, model->work, model->work_size);
    model->work = work;
    model->work_size = size;
    return true;
}

/* ggml's plan for a piece. */
static struct ggml_cplan plan_piece(const struct lk_graph *graph, int piece,
                                    const struct lk_model *model) {
    return ggml_graph_plan(graph->piece[piece].graph, model->n_thread, model->pool);
}

/* Scratch memory that the pieces on the CPU need. */
static size_t work_size(const struct lk_graph *graph, const struct lk_model *model) {
    size_t max = 0;
    for (int i = 0; i < graph->n_piece; i++) {
        if (graph->piece[i].place != LK_ON_CPU) continue;
        size_t size = plan_piece(graph, i, model).work_size;
        if (size > max) max = size;
    }
    return max;
}

lk_status lk_graph_reserve_work(struct lk_graph *graph, struct lk_model *model, lk_err *err) {
    pthread_mutex_lock(&model->lock);
    size_t size = work_size(graph, model);
    bool ok = size <= model->work_size || replace_work(model, size);
    pthread_mutex_unlock(&model->lock);
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for %.1f MiB of ggml's scratch memory",
                   (double)size / (1 << 20));
}

/* A graph to compute. */
struct computation {
    const struct lk_graph *graph;
    struct lk_model *model;
    enum ggml_status status;
};

/* Copy what a piece uses of the other place. The device works in the order of these calls. Returns
 * whether it has done all of them. */
static bool copy_links(const struct lk_graph *graph, int piece) {
    bool waits = false;
    for (int i = 0; i < graph->n_link; i++) {
        const struct lk_link *link = &graph->link[i];
        ggml_backend_t backend = graph->device->backend;
        if (!link->copied || link->to_piece != piece) continue;
        if (graph->piece[piece].place == LK_ON_DEVICE) {
            ggml_backend_tensor_set_async(backend, link->to, link->from->data, 0,
                                          ggml_nbytes(link->to));
            continue;
        }
        ggml_backend_tensor_get_async(backend, link->from, link->to->data, 0,
                                      ggml_nbytes(link->to));
        waits = true;
    }
    if (waits) ggml_backend_synchronize(graph->device->backend);
    return waits;
}

/* May throw: on the CPU before the first node, since ggml allocates a little at each call; if a
 * device is lost, at any piece. */
static void compute_graph(void *arg) {
    struct computation *c = arg;
    bool works = false; /* the device, on something */
    c->status = GGML_STATUS_SUCCESS;
    for (int i = 0; c->status == GGML_STATUS_SUCCESS && i < c->graph->n_piece; i++) {
        struct ggml_cgraph *nodes = c->graph->piece[i].graph;
        if (copy_links(c->graph, i)) works = false;
        if (c->graph->piece[i].place == LK_ON_DEVICE) works = true;
        if (c->graph->piece[i].issue) {
            c->graph->piece[i].issue(c->graph->piece[i].user);
            continue;
        }
        if (i > 0 && ggml_graph_n_nodes(nodes) == 0) continue;
        if (c->graph->piece[i].place == LK_ON_DEVICE) {
            c->status = ggml_backend_graph_compute_async(c->graph->device->backend, nodes);
            continue;
        }
        struct ggml_cplan plan = plan_piece(c->graph, i, c->model);
        if (plan.work_size > c->model->work_size && !replace_work(c->model, plan.work_size)) {
            c->status = GGML_STATUS_ALLOC_FAILED;
            return;
        }
        plan.work_data = c->model->work;
        c->status = ggml_graph_compute(nodes, &plan);
    }
    if (works) ggml_backend_synchronize(c->graph->device->backend);
}

lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err) {
    pthread_mutex_lock(&model->lock);
    struct computation c = {.graph = graph, .model = model, .status = GGML_STATUS_ALLOC_FAILED};
    lk_err why = {0};
    lk_status status = lk_cxx_compute(compute_graph, &c, &why);
    pthread_mutex_unlock(&model->lock);
    if (status) return fail_call(graph, status, &why, err);
    if (c.status == GGML_STATUS_SUCCESS) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "the graph could not be computed: %s",
                   ggml_status_to_string(c.status));
}

void lk_graph_set(struct ggml_tensor *t, size_t at, const void *data, size_t size) {
    bool has_memory = t->buffer || (t->view_src && t->view_src->buffer);
    if (has_memory) ggml_backend_tensor_set(t, data, at, size);
}

void lk_graph_get(const struct ggml_tensor *t, size_t at, void *data, size_t size) {
    ggml_backend_tensor_get(t, data, at, size);
}

void lk_graph_set_positions(struct lk_graph *graph, size_t row, size_t first, size_t n) {
    int32_t pos[LK_EVAL_MAX];
    for (size_t i = 0; i < n; i += LK_EVAL_MAX) {
        size_t part = n - i < LK_EVAL_MAX ? n - i : LK_EVAL_MAX;
        for (size_t k = 0; k < part; k++) pos[k] = (int32_t)(first + i + k);
        lk_graph_set(graph->pos, (row + i) * sizeof *pos, pos, part * sizeof *pos);
    }
}

/* May throw. */
static void free_shared(void *arg) { ggml_backend_buffer_free(arg); }
static void free_alloc(void *arg) { ggml_gallocr_free(arg); }

void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger) {
    for (int place = 0; place < (graph->device ? LK_GRAPH_PLACES : 1); place++) {
        struct lk_graph_memory *m = &graph->memory[place];
        if (m->alloc) lk_cxx_call(free_alloc, m->alloc, NULL);
        if (m->shared) lk_cxx_call(free_shared, m->shared, NULL);
        lk_ledger_remove(ledger_of(graph, place, ledger), LK_FOR_SCRATCH,
                         m->alloc_size + m->shared_size);
    }
    if (graph->ctx) ggml_free(graph->ctx);
    lk_release(ledger, LK_FOR_SCRATCH, graph->mem, graph->mem_size);
    lk_release(ledger, LK_FOR_SCRATCH, graph->piece, graph->pieces_size);
    *graph = (struct lk_graph){
        .device = graph->device, .max_piece = graph->max_piece, .piece_node = graph->piece_node};
}
