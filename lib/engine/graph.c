/* Memory and execution of ggml graphs. */
#include "engine/graph.h"

#include "base/cxx_call.h"

/* An empty graph in graph->mem, of graph->n_node nodes. May throw. */
static void create_graph(void *arg) {
    struct lk_graph *graph = arg;
    graph->ctx = ggml_init((struct ggml_init_params){
        .mem_size = graph->mem_size, .mem_buffer = graph->mem, .no_alloc = true});
    graph->graph = ggml_new_graph_custom(graph->ctx, graph->n_node, graph->grads);
}

lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger,
                         lk_err *err) {
    size_t size =
        ggml_tensor_overhead() * (size_t)n_node + ggml_graph_overhead_custom(n_node, graph->grads);
    if (graph->ctx) ggml_free(graph->ctx);
    graph->ctx = NULL;
    graph->tok = graph->pos = graph->x_in = graph->x_out = graph->logits = graph->out = NULL;
    graph->n_tok = graph->n_out = 0;
    graph->n_node = (size_t)n_node;
    if (graph->mem_size < size) {
        lk_release(ledger, LK_FOR_SCRATCH, graph->mem, graph->mem_size);
        graph->mem_size = 0;
        graph->mem = lk_alloc(ledger, LK_FOR_SCRATCH, size);
        if (!graph->mem)
            return lk_fail(err, LK_E_NOMEM, "out of memory for a graph of %d nodes", n_node);
        graph->mem_size = size;
    }
    return lk_cxx_call(create_graph, graph, err);
}

/* Allocate the tensors. May throw, and graph->alloc is NULL then: ggml cannot free an allocator
 * that was being changed. NULL also if the buffer could not be allocated. */
static void alloc_tensors(void *arg) {
    struct lk_graph *graph = arg;
    ggml_gallocr_t alloc = graph->alloc;
    graph->alloc = NULL;
    if (!alloc) alloc = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    if (ggml_gallocr_alloc_graph(alloc, graph->graph))
        graph->alloc = alloc;
    else
        ggml_gallocr_free(alloc);
}

lk_status lk_graph_finish(struct lk_graph *graph, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_cxx_call(alloc_tensors, graph, err);
    size_t size = graph->alloc ? ggml_gallocr_get_buffer_size(graph->alloc, 0) : 0;
    if (!status && graph->alloc && size == graph->alloc_size) return LK_OK;
    lk_ledger_remove(ledger, LK_FOR_SCRATCH, graph->alloc_size);
    graph->alloc_size = 0;
    if (status) return status;
    if (graph->alloc && lk_ledger_add(ledger, LK_FOR_SCRATCH, size)) {
        graph->alloc_size = size;
        return LK_OK;
    }
    if (!graph->alloc) return lk_fail(err, LK_E_NOMEM, "out of memory for the activations");
    ggml_gallocr_free(graph->alloc);
    graph->alloc = NULL;
    return lk_fail(err, LK_E_NOMEM, "out of memory for %.1f MiB of activations",
                   (double)size / (1 << 20));
}

/* ggml's allocator aligns tensors to 32 bytes, and its matrix products take up to 1.4 times as long
 * if the rows they write start in the middle of a cache line (docs/performance.md). If all tensors
 * fill whole lines, every one starts at the beginning of a line. */
enum { LINE = 64 / sizeof(float) };

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

lk_status lk_graph_reserve_work(struct lk_graph *graph, struct lk_model *model, lk_err *err) {
    pthread_mutex_lock(&model->lock);
    size_t size = ggml_graph_plan(graph->graph, model->n_thread, model->pool).work_size;
    bool ok = size <= model->work_size || replace_work(model, size);
    pthread_mutex_unlock(&model->lock);
    if (ok) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for %.1f MiB of ggml's scratch memory",
                   (double)size / (1 << 20));
}

/* A graph to compute. */
struct computation {
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    enum ggml_status status;
};

/* May throw, before the first node: ggml allocates a little at each call. */
static void compute_graph(void *arg) {
    struct computation *c = arg;
    c->status = ggml_graph_compute(c->graph, &c->plan);
}

lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err) {
    pthread_mutex_lock(&model->lock);
    struct computation c = {.graph = graph->graph,
                            .plan = ggml_graph_plan(graph->graph, model->n_thread, model->pool),
                            .status = GGML_STATUS_ALLOC_FAILED};
    bool ok = c.plan.work_size <= model->work_size || replace_work(model, c.plan.work_size);
    c.plan.work_data = model->work;
    lk_status status = ok ? lk_cxx_compute(compute_graph, &c, err) : LK_OK;
    pthread_mutex_unlock(&model->lock);
    if (status || c.status == GGML_STATUS_SUCCESS) return status;
    return lk_fail(err, LK_E_NOMEM, "the graph could not be computed: %s",
                   ggml_status_to_string(c.status));
}

void lk_graph_set_positions(struct lk_graph *graph, size_t row, size_t first, size_t n) {
    int32_t *pos = graph->pos->data; /* NULL if no node reads it */
    for (size_t i = 0; pos && i < n; i++) pos[row + i] = (int32_t)(first + i);
}

void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger) {
    if (graph->alloc) ggml_gallocr_free(graph->alloc);
    lk_ledger_remove(ledger, LK_FOR_SCRATCH, graph->alloc_size);
    if (graph->ctx) ggml_free(graph->ctx);
    lk_release(ledger, LK_FOR_SCRATCH, graph->mem, graph->mem_size);
    *graph = (struct lk_graph){0};
}
