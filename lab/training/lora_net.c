/* Adapters in training. */
#include "training/lora_net.h"

#include "base/cxx_call.h"
#include "engine/adapters.h"
#include "model/net.h"
#include "training/adam.h"
#include "training/less_net.h"
#include "training/lora_layer.h"
#include "training/random.h"

#include <math.h>
#include <string.h>

enum {
    GRAPH_NODES = 512,
    VOCAB_SLICE = 8192, /* rows of the output matrix that are transposed at a time */
    HEAD_TOKENS = 256,  /* tokens whose logits exist at a time */
};

lk_status lk_lora_check(const struct lk_net *net, lk_err *err) {
    static const char *const supported[] = {"llama", "qwen2", "qwen3"};
    bool found = false;
    for (size_t i = 0; i < sizeof supported / sizeof *supported; i++)
        found |= strcmp(net->arch, supported[i]) == 0;
    if (!found || net->hp.n_expert > 0 || net->hp.logit_softcap != 0 || net->hp.rope_mode < 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "adapters can be trained for llama, qwen2 and qwen3 models, not for %s",
                       net->arch);
    for (int i = 0; i < net->hp.n_layer; i++) {
        const struct lk_layer *l = &net->layer[i];
        const struct ggml_tensor *matrix[] = {
            l->wq, l->wk, l->wv, l->wqkv, l->wo, l->ffn_gate, l->ffn_up, l->ffn_down, net->output};
        bool f32 = !l->ffn_gate_up;
        for (size_t m = 0; m < sizeof matrix / sizeof *matrix; m++)
            f32 = f32 && (!matrix[m] || matrix[m]->type == GGML_TYPE_F32);
        if (!f32)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "adapters are trained with weights in f32; open the model with "
                           "LK_WEIGHTS_F32 and no_repack");
    }
    return LK_OK;
}

/* ---- memory ---- */

/* One allocation. */
struct buffer {
    void **at;
    size_t bytes;
};

enum { N_BUFFER = 7 };

static void list_buffers(struct lk_lora_net *net, struct buffer buffer[N_BUFFER]) {
    const struct lk_hparams *hp = &net->model->net->hp;
    size_t n = (size_t)net->n_tok, n_row = (size_t)hp->n_head_kv * hp->d_head,
           n_query = (size_t)hp->n_head * hp->d_head, n_layer = (size_t)hp->n_layer;
    bool coded = net->cache->coded;
    const struct buffer all[N_BUFFER] = {
        {(void **)&net->param, n_layer * sizeof *net->param},
        {(void **)&net->weight, 5 * net->n_weight * sizeof(float)},
        {(void **)&net->mask, 2 * n * n * sizeof(float)},
        {(void **)&net->causal, n * n * sizeof(float)},
        {(void **)&net->pos, n * sizeof *net->pos},
        {(void **)&net->delta, coded ? 2 * n_layer * n * n_row * sizeof(float) : 0},
        {(void **)&net->rows, coded ? n * (n_query + 4 * n_row) * sizeof(float) : 0}};
    memcpy(buffer, all, sizeof all);
}

/* Lay out the adapters, and return the number of their weights. `param` may be NULL. */
static size_t place_params(const struct lk_hparams *hp, int rank,
                           struct lk_lora_param (*param)[LK_N_ADAPTED]) {
    size_t at = 0;
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (int i = 0; i < LK_N_ADAPTED; i++) {
            struct lk_lora_param p = {.n_in = lk_adapter_inputs(hp, (enum lk_adapted)i),
                                      .n_out = lk_adapter_outputs(hp, (enum lk_adapted)i),
                                      .a = at};
            p.b = p.a + (size_t)rank * p.n_in;
            at = p.b + (size_t)rank * p.n_out;
            if (param) param[layer][i] = p;
        }
    return at;
}

static lk_status alloc_net(struct lk_lora_net *net, lk_err *err) {
    struct buffer buffer[N_BUFFER];
    net->n_weight = place_params(&net->model->net->hp, net->rank, NULL);
    list_buffers(net, buffer);
    size_t bytes = 0;
    for (int i = 0; i < N_BUFFER; i++) {
        bytes += buffer[i].bytes;
        if (buffer[i].bytes) *buffer[i].at = lk_alloc(net->ledger, LK_FOR_SCRATCH, buffer[i].bytes);
        if (buffer[i].bytes && !*buffer[i].at)
            return lk_fail(err, LK_E_NOMEM, "no memory to train (%.0f MiB)",
                           (double)bytes / (1 << 20));
    }
    net->mean = net->weight + net->n_weight;
    net->square = net->mean + net->n_weight;
    net->best = net->square + net->n_weight; /* lora_state.c saves all up to here */
    net->gradient = net->best + net->n_weight;
    return LK_OK;
}

static void init_weights(struct lk_lora_net *net, uint64_t seed) {
    const struct lk_hparams *hp = &net->model->net->hp;
    for (int i = 0; i < hp->n_layer * LK_N_ADAPTED; i++) {
        const struct lk_lora_param *p = &net->param[i / LK_N_ADAPTED][i % LK_N_ADAPTED];
        float range = 1 / sqrtf((float)p->n_in);
        uint64_t of = lk_random_nth(seed, (uint64_t)i);
        for (size_t j = 0; j < (size_t)net->rank * p->n_in; j++) {
            float uniform = (float)(lk_random_nth(of, j) >> 40) / (float)(1 << 24);
            net->weight[p->a + j] = range * (2 * uniform - 1);
        }
    }
}

lk_status lk_lora_net_new(struct lk_lora_net **out, struct lk_model *model,
                          struct lk_lora_cache *cache, int n_tok, int rank, float alpha,
                          uint64_t seed, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_lora_check(model->net, err);
    if (status) return status;
    const struct lk_hparams *hp = &model->net->hp;
    int max_rank = hp->n_head_kv * hp->d_head;
    if (max_rank > hp->n_embd) max_rank = hp->n_embd;
    if (rank < 1 || rank > max_rank || rank > LK_MAX_ADAPTER_RANK)
        return lk_fail(err, LK_E_ARG, "the rank of an adapter of this model is 1 to %d, not %d",
                       max_rank < LK_MAX_ADAPTER_RANK ? max_rank : LK_MAX_ADAPTER_RANK, rank);
    struct lk_lora_net *net = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *net);
    if (!net) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    *net = (struct lk_lora_net){.model = model,
                                .cache = cache,
                                .ledger = ledger,
                                .n_tok = n_tok,
                                .rank = rank,
                                .scale = alpha / (float)rank};
    status = alloc_net(net, err);
    if (status) {
        lk_lora_net_free(net);
        return status;
    }
    place_params(hp, rank, net->param);
    init_weights(net, seed);
    lk_lora_cache_mask(cache, n_tok, net->mask);
    for (int i = 0; i < n_tok; i++) {
        net->pos[i] = i;
        for (int j = 0; j < n_tok; j++) net->causal[(size_t)i * n_tok + j] = j <= i ? 0 : -INFINITY;
    }
    *out = net;
    return LK_OK;
}

void lk_lora_net_free(struct lk_lora_net *net) {
    if (!net) return;
    struct lk_ledger *ledger = net->ledger;
    struct buffer buffer[N_BUFFER];
    lk_graph_free(&net->graph, ledger);
    list_buffers(net, buffer);
    for (int i = 0; i < N_BUFFER; i++)
        lk_release(ledger, LK_FOR_SCRATCH, *buffer[i].at, buffer[i].bytes);
    lk_release(ledger, LK_FOR_SCRATCH, net, sizeof *net);
}

/* ---- graphs ---- */

/* A graph to build and compute. */
struct job {
    struct lk_lora_net *net;
    struct lk_lora_layer layer; /* of layers */
    void (*build)(struct job *);
    const int32_t *tok; /* of embeddings */
    struct ggml_tensor *out;
    /* of the head: tokens, and the last layer's outputs */
    int n;
    const float *teacher, *student;
    bool with_gradient;
    struct ggml_tensor *kl[2], *dx;
};

/* May throw. */
static void build_job(void *arg) {
    struct job *job = arg;
    job->build(job);
}

static lk_status run_job(struct job *job, lk_err *err) {
    struct lk_lora_net *net = job->net;
    lk_status status = lk_graph_begin(&net->graph, GRAPH_NODES, net->ledger, err);
    if (!status) status = lk_cxx_call(build_job, job, err);
    if (!status) status = lk_graph_finish(&net->graph, net->ledger, err);
    return status ? status : lk_graph_run(&net->graph, net->model, err);
}

/* A tensor whose memory is the caller's. */
static struct ggml_tensor *external(struct lk_graph *g, const void *data, enum ggml_type type,
                                    int64_t ne0, int64_t ne1) {
    struct ggml_tensor *t = ggml_new_tensor_2d(g->ctx, type, ne0, ne1);
    t->data = (void *)data;
    return t;
}

static struct ggml_tensor *output(struct lk_graph *g, struct ggml_tensor *t) {
    ggml_set_output(t);
    ggml_build_forward_expand(g->graph, t);
    return t;
}

static size_t stream_bytes(const struct lk_lora_net *net) {
    return (size_t)net->n_tok * net->model->net->hp.n_embd * sizeof(float);
}

static void build_embed(struct job *job) {
    struct lk_lora_net *net = job->net;
    struct lk_graph *g = &net->graph;
    struct ggml_tensor *tok = external(g, job->tok, GGML_TYPE_I32, net->n_tok, 1),
                       *pos = external(g, net->pos, GGML_TYPE_I32, net->n_tok, 1);
    job->out = output(g, net->model->net->family->embed(net->model->net, g->ctx, tok, pos));
}

lk_status lk_lora_embed(struct lk_lora_net *net, const int32_t *tok, float *x, lk_err *err) {
    struct job job = {.net = net, .build = build_embed, .tok = tok};
    lk_status status = run_job(&job, err);
    if (!status) memcpy(x, job.out->data, stream_bytes(net));
    return status;
}

static void build_layer(struct job *job) { lk_lora_layer_build(&job->layer, &job->net->graph); }

static struct job layer_job(struct lk_lora_net *net, enum lk_lora_pass pass, int layer,
                            const float *x) {
    return (struct job){.net = net,
                        .build = build_layer,
                        .layer = {.net = net, .pass = pass, .layer = layer, .x = x}};
}

lk_status lk_lora_teach(struct lk_lora_net *net, int layer, const float *x, float *attn, float *out,
                        lk_err *err) {
    struct job job = layer_job(net, LK_LORA_TEACH, layer, x);
    lk_status status = run_job(&job, err);
    if (status) return status;
    if (attn) memcpy(attn, job.layer.attn->data, stream_bytes(net));
    memcpy(out, job.layer.out->data, stream_bytes(net));
    return LK_OK;
}

/* What quantization adds to the rows of the body. */
static lk_status measure_delta(struct lk_lora_net *net, int layer, const float *x, lk_err *err) {
    if (!net->delta) return LK_OK;
    const struct lk_hparams *hp = &net->model->net->hp;
    size_t n = (size_t)net->n_tok, n_row = (size_t)hp->n_head_kv * hp->d_head,
           n_query = (size_t)hp->n_head * hp->d_head;
    float *q = net->rows, *k = q + n * n_query, *v = k + n * n_row,
          *delta = net->delta + (size_t)layer * 2 * n * n_row;
    struct job job = layer_job(net, LK_LORA_ROWS, layer, x);
    lk_status status = run_job(&job, err);
    if (status) return status;
    memcpy(q, job.layer.q->data, n * n_query * sizeof *q);
    for (int side = 0; side < 2; side++)
        memcpy(side ? v : k, job.layer.exact[side]->data, n * n_row * sizeof *k);
    status = lk_lora_cache_read(net->cache, layer, q, k, v, net->n_tok, delta, err);
    for (int side = 0; !status && side < 2; side++) {
        const float *body = job.layer.body[side]->data;
        for (size_t i = 0; i < n * n_row; i++) delta[side * n * n_row + i] -= body[i];
    }
    return status;
}

lk_status lk_lora_forward(struct lk_lora_net *net, int layer, const float *x, float *out,
                          lk_err *err) {
    struct job job = layer_job(net, LK_LORA_FORWARD, layer, x);
    lk_status status = measure_delta(net, layer, x, err);
    if (!status) status = run_job(&job, err);
    if (!status) memcpy(out, job.layer.out->data, stream_bytes(net));
    return status;
}

/* Add the gradients of a graph to the net's. */
static void sum_gradients(struct lk_lora_net *net, const struct lk_lora_layer *l, float weight) {
    for (int i = 0; i < LK_N_ADAPTED; i++) {
        const struct lk_lora_param *p = &net->param[l->layer][i];
        const float *da = l->da[i]->data, *db = l->db[i]->data;
        for (size_t j = 0; j < (size_t)net->rank * p->n_in; j++)
            net->gradient[p->a + j] += weight * da[j];
        for (size_t j = 0; j < (size_t)net->rank * p->n_out; j++)
            net->gradient[p->b + j] += weight * db[j];
    }
}

lk_status lk_lora_backward(struct lk_lora_net *net, int layer, const float *x, const float *dy,
                           float *dx, lk_err *err) {
    struct job job = layer_job(net, LK_LORA_BACKWARD, layer, x);
    job.layer.dy = dy;
    lk_status status = run_job(&job, err);
    if (status) return status;
    sum_gradients(net, &job.layer, 1);
    memcpy(dx, job.layer.dx->data, stream_bytes(net));
    return LK_OK;
}

lk_status lk_lora_match(struct lk_lora_net *net, int layer, const float *x, const float *target,
                        float weight, float *loss, lk_err *err) {
    struct job job = layer_job(net, LK_LORA_MATCH, layer, x);
    double power = 0;
    for (size_t i = 0; i < stream_bytes(net) / sizeof(float); i++)
        power += (double)target[i] * target[i];
    job.layer.dy = target;
    job.layer.norm = (float)(1 / (power > 0 ? power : 1));
    lk_status status = measure_delta(net, layer, x, err);
    if (!status) status = run_job(&job, err);
    if (status) return status;
    sum_gradients(net, &job.layer, weight);
    *loss = *(const float *)job.layer.loss->data * job.layer.norm;
    return LK_OK;
}

/* ---- the head ---- */

/* dl [n][n_vocab] times the output matrix: the sum over slices of the vocabulary. */
static struct ggml_tensor *through_output(struct ggml_context *ctx, struct ggml_tensor *w,
                                          struct ggml_tensor *dl) {
    struct ggml_tensor *sum = NULL;
    for (int64_t at = 0; at < w->ne[1]; at += VOCAB_SLICE) {
        int64_t n = w->ne[1] - at < VOCAB_SLICE ? w->ne[1] - at : VOCAB_SLICE;
        struct ggml_tensor *rows =
                               ggml_view_2d(ctx, w, w->ne[0], n, w->nb[1], (size_t)at * w->nb[1]),
                           *part = ggml_view_2d(ctx, dl, n, dl->ne[1], dl->nb[1],
                                                (size_t)at * dl->nb[0]);
        struct ggml_tensor *product =
            ggml_mul_mat(ctx, ggml_cont(ctx, ggml_transpose(ctx, rows)), ggml_cont(ctx, part));
        sum = sum ? ggml_add(ctx, sum, product) : product;
    }
    return sum;
}

static void build_head(struct job *job) {
    struct lk_lora_net *net = job->net;
    const struct lk_net *m = net->model->net;
    struct lk_graph *g = &net->graph;
    int64_t n = job->n, n_embd = m->hp.n_embd;
    struct ggml_tensor *xt = external(g, job->teacher, GGML_TYPE_F32, n_embd, n),
                       *xs = external(g, job->student, GGML_TYPE_F32, n_embd, n);
    struct ggml_tensor *lt = m->family->head(m, g->ctx, xt), *ls = m->family->head(m, g->ctx, xs);
    struct ggml_tensor *p = ggml_soft_max(g->ctx, lt);
    job->kl[0] = output(g, ggml_cross_entropy_loss(g->ctx, ls, p));
    job->kl[1] = output(g, ggml_cross_entropy_loss(g->ctx, lt, p));
    if (!job->with_gradient) return;
    struct ggml_tensor *dl = ggml_scale(g->ctx, ggml_sub(g->ctx, ggml_soft_max(g->ctx, ls), p),
                                        1.0f / (float)net->n_tok);
    struct ggml_tensor *dn =
        ggml_mul(g->ctx, through_output(g->ctx, m->output, dl), m->output_norm);
    job->dx = output(g, ggml_rms_norm_back(g->ctx, dn, xs, m->hp.norm_eps));
}

lk_status lk_lora_divergence(struct lk_lora_net *net, const float *teacher, const float *student,
                             double *kl, float *dx, lk_err *err) {
    size_t n_embd = (size_t)net->model->net->hp.n_embd;
    lk_status status = LK_OK;
    *kl = 0;
    for (int at = 0; !status && at < net->n_tok; at += HEAD_TOKENS) {
        struct job job = {.net = net,
                          .build = build_head,
                          .n = net->n_tok - at < HEAD_TOKENS ? net->n_tok - at : HEAD_TOKENS,
                          .teacher = teacher + at * n_embd,
                          .student = student + at * n_embd,
                          .with_gradient = dx != NULL};
        status = run_job(&job, err);
        if (status) break;
        *kl += (double)job.n / net->n_tok *
               ((double)*(float *)job.kl[0]->data - *(float *)job.kl[1]->data);
        if (dx) memcpy(dx + at * n_embd, job.dx->data, job.n * n_embd * sizeof *dx);
    }
    return status;
}

/* ---- steps ---- */

void lk_lora_step(struct lk_lora_net *net, float rate, int64_t nth, int n_window) {
    struct lk_adam adam = {net->weight, net->mean, net->square, net->gradient, net->n_weight};
    lk_adam_step(&adam, rate, nth, n_window);
}
