#include "engine/engine.h"

lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger, lk_err *err) {
    size_t size = ggml_tensor_overhead() * (size_t)n_node + ggml_graph_overhead_custom(n_node, false);
    if (graph->ctx) ggml_free(graph->ctx);
    graph->ctx = NULL;
    if (graph->mem_size < size) {
        lk_release(ledger, LK_FOR_SCRATCH, graph->mem, graph->mem_size);
        graph->mem_size = 0;
        graph->mem = lk_alloc(ledger, LK_FOR_SCRATCH, size);
        if (!graph->mem) return lk_fail(err, LK_E_NOMEM, "no memory for a graph of %d nodes", n_node);
        graph->mem_size = size;
    }
    graph->ctx = ggml_init((struct ggml_init_params){.mem_size = graph->mem_size, .mem_buffer = graph->mem, .no_alloc = true});
    if (!graph->ctx) return lk_fail(err, LK_E_NOMEM, "no memory for a graph");
    graph->graph = ggml_new_graph_custom(graph->ctx, n_node, false);
    graph->tok = graph->pos = graph->mask = graph->x_in = graph->x_out = graph->logits = NULL;
    graph->n_tok = 0;
    return LK_OK;
}

lk_status lk_graph_finish(struct lk_graph *graph, struct lk_model *model, struct lk_ledger *ledger, lk_err *err) {
    if (!graph->alloc) graph->alloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(model->backend));
    if (!graph->alloc) return lk_fail(err, LK_E_NOMEM, "no memory for a graph");
    bool ok = ggml_gallocr_alloc_graph(graph->alloc, graph->graph);
    size_t size = ok ? ggml_gallocr_get_buffer_size(graph->alloc, 0) : 0;
    lk_ledger_remove(ledger, LK_FOR_SCRATCH, graph->alloc_size);
    graph->alloc_size = 0;
    if (ok && lk_ledger_enter(ledger, LK_FOR_SCRATCH, size)) {
        graph->alloc_size = size;
        return LK_OK;
    }
    ggml_gallocr_free(graph->alloc);
    graph->alloc = NULL;
    return lk_fail(err, LK_E_NOMEM, "no memory for %.1f MiB of activations", (double)size / (1 << 20));
}

lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err) {
    pthread_mutex_lock(&model->lock);
    enum ggml_status status = ggml_backend_graph_compute(model->backend, graph->graph);
    pthread_mutex_unlock(&model->lock);
    if (status == GGML_STATUS_SUCCESS) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "the graph could not be computed: %s", ggml_status_to_string(status));
}

void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger) {
    if (graph->alloc) ggml_gallocr_free(graph->alloc);
    lk_ledger_remove(ledger, LK_FOR_SCRATCH, graph->alloc_size);
    if (graph->ctx) ggml_free(graph->ctx);
    lk_release(ledger, LK_FOR_SCRATCH, graph->mem, graph->mem_size);
    *graph = (struct lk_graph){0};
}
