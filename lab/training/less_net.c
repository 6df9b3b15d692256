/* The LESS networks as ggml graphs, forward and backward, and Adam. */
#include "training/less_net.h"

#include "base/cxx_call.h"
#include "base/hash.h"
#include "codec/f16.h"
#include "training/descent.h"

#include <ggml-cpu.h>

#include <math.h>
#include <string.h>

enum { MAX_SET = 256, MAX_HEAD = 1024, NODES_PER_HEAD = 640, NODES_AROUND = 512 };

static const float two_sqrt_2_pi = 1.5957691216057308f; /* 2 sqrt(2/pi) */

/* Inputs of one KV head. */
struct head_inputs {
    struct ggml_tensor *q;                 /* [group][n_query][d_head] */
    struct ggml_tensor *sparse, *residual; /* [n_query][group][d_head] */
    struct ggml_tensor *c; /* [n_query][group][1] e^(level - log_sum); 0 without a query */
    /* [n_query][n_row][d_head] keys of the rows evicted after the query before, up to this query;
     * zero after the last one */
    struct ggml_tensor *k;
    /* [n_query][n_sum][n_row] the same rows: d_head values, a one, and zeros */
    struct ggml_tensor *v;
    struct ggml_tensor *drop_phi; /* [group][n_query][n_hidden] 0 or 1 / (1 - dropout) */
    struct ggml_tensor *drop_psi; /* [n_query][n_row][n_hidden] */
    struct ggml_tensor *wo;       /* [n_embd][group * d_head] */
};

struct lk_less_nodes {
    struct ggml_tensor *param[LK_N_LESS_PARAM][MAX_SET]; /* one per KV head, or one for all */
    struct head_inputs head[MAX_SET];
    struct ggml_tensor *triangle;                 /* [n_query][n_query] 1 at [i][j] for j <= i */
    struct ggml_tensor *floor;                    /* [n_query][1] norm floor; 1 without a query */
    struct ggml_tensor *weight;                   /* [n_query][1] of the queries in the loss */
    struct ggml_tensor *loss;                     /* of the train graph; scalar */
    struct ggml_tensor *eval_loss, *base, *power; /* of the eval graph; scalars */
};

/* ---- parameters and inputs ---- */

static int group_size(const struct lk_less_shape *s) { return s->n_head / s->n_head_kv; }

/* Number of tensors of a parameter, and the shape of each, ne: inputs, outputs, networks. */
static int param_sets(const struct lk_less_shape *s, enum lk_less_param param, int64_t ne[3]) {
    bool phi = param <= LK_PHI_W2;
    int n_net = phi ? s->n_phi : s->n_psi, n_set = n_net == 1 ? 1 : s->n_head_kv;
    const int64_t in[] = {s->d_head,    s->n_hidden,  s->d_head,   s->n_hidden,
                          s->n_feature, s->n_feature, s->n_feature};
    const int64_t out[] = {
        s->n_hidden, s->n_feature, s->n_hidden, s->n_feature, s->n_feature, 1, 1};
    ne[0] = in[param];
    ne[1] = out[param];
    ne[2] = n_net / n_set;
    return n_set;
}

/* Make a tensor at *at, in the net's own memory, and advance *at and *n past it. If `at` is NULL,
 * only count: advance *n. */
static struct ggml_tensor *place_tensor(struct lk_less_net *net, float **at, size_t *n, int64_t ne0,
                                        int64_t ne1, int64_t ne2) {
    *n += (size_t)(ne0 * ne1 * ne2 + 15) / 16 * 16;
    if (!at) return NULL;
    struct ggml_tensor *t = ggml_new_tensor_3d(net->ctx, GGML_TYPE_F32, ne0, ne1, ne2);
    t->data = *at;
    *at += (ne0 * ne1 * ne2 + 15) / 16 * 16;
    return t;
}

/* Make the parameters, or only count their floats. */
static size_t place_params(struct lk_less_net *net, bool count) {
    size_t n = 0;
    float *at = net->weight;
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        int n_set = param_sets(&net->size.shape, p, ne);
        for (int set = 0; set < n_set; set++) {
            struct ggml_tensor *t = place_tensor(net, count ? NULL : &at, &n, ne[0], ne[1], ne[2]);
            if (!count) ggml_set_param(net->node->param[p][set] = t);
        }
    }
    return n;
}

/* n_row and n_sum of the inputs: sizes that ggml multiplies fast, multiples of 16 and of 4. */
static int row_count(const struct lk_less_net *net) { return (net->size.n_between + 15) / 16 * 16; }
static int sum_count(const struct lk_less_net *net) {
    return (net->size.shape.d_head + 1 + 3) / 4 * 4;
}

/* Make the inputs, or only count their floats. */
static size_t place_inputs(struct lk_less_net *net, bool count) {
    const struct lk_less_shape *s = &net->size.shape;
    int64_t d = s->d_head, group = group_size(s), nq = net->size.n_query, n_row = row_count(net);
    bool drops = net->size.dropout > 0;
    size_t n = 0;
    float *at = net->input, **to = count ? NULL : &at;
    for (int head = 0; head < s->n_head_kv; head++) {
        struct head_inputs in = {.q = place_tensor(net, to, &n, d, nq, group)};
        in.sparse = place_tensor(net, to, &n, d, group, nq);
        in.residual = place_tensor(net, to, &n, d, group, nq);
        in.c = place_tensor(net, to, &n, 1, group, nq);
        in.k = place_tensor(net, to, &n, d, n_row * nq, 1);
        in.v = place_tensor(net, to, &n, n_row, sum_count(net), nq);
        if (drops) in.drop_phi = place_tensor(net, to, &n, s->n_hidden, nq, group);
        if (drops) in.drop_psi = place_tensor(net, to, &n, s->n_hidden, n_row * nq, 1);
        in.wo = place_tensor(net, to, &n, d * group, net->size.n_embd, 1);
        if (!count) net->node->head[head] = in;
    }
    struct ggml_tensor *triangle = place_tensor(net, to, &n, nq, nq, 1),
                       *floor = place_tensor(net, to, &n, 1, nq, 1),
                       *weight = place_tensor(net, to, &n, 1, nq, 1);
    if (count) return n;
    net->node->triangle = triangle;
    net->node->floor = floor;
    net->node->weight = weight;
    for (int64_t i = 0; i < nq; i++)
        for (int64_t j = 0; j < nq; j++) ((float *)triangle->data)[i * nq + j] = j <= i;
    return n;
}

/* ---- the graph ---- */

static struct ggml_tensor *gelu(struct ggml_context *ctx, struct ggml_tensor *x) {
    struct ggml_tensor *p =
        ggml_scale_bias(ctx, ggml_sqr(ctx, x), 0.044715f * two_sqrt_2_pi, two_sqrt_2_pi);
    return ggml_div(ctx, ggml_silu(ctx, ggml_mul(ctx, x, p)), p);
}

/* gelu(w2 gelu(w1 x)), hidden units multiplied by `drop` if it is not NULL. */
static struct ggml_tensor *two_layers(struct ggml_context *ctx, struct ggml_tensor *w1,
                                      struct ggml_tensor *w2, struct ggml_tensor *x,
                                      struct ggml_tensor *drop) {
    struct ggml_tensor *h = ggml_mul_mat(ctx, w1, x);
    if (drop) h = ggml_mul(ctx, h, drop);
    return gelu(ctx, ggml_mul_mat(ctx, w2, gelu(ctx, h)));
}

/* The states [n_query][n_sum][n_feature] at each query, from psi [n_query * n_row][n_feature]. */
static struct ggml_tensor *running_states(const struct lk_less_net *net, struct ggml_context *ctx,
                                          const struct head_inputs *in, struct ggml_tensor *psi) {
    int64_t r = net->size.shape.n_feature, n_sum = sum_count(net), nq = net->size.n_query;
    psi = ggml_cont(
        ctx, ggml_permute(ctx, ggml_reshape_3d(ctx, psi, r, row_count(net), nq), 1, 0, 2, 3));
    /* Contribution of the rows evicted since the query before, then its running sum. */
    struct ggml_tensor *added = ggml_reshape_2d(ctx, ggml_mul_mat(ctx, psi, in->v), r * n_sum, nq);
    struct ggml_tensor *added_t = ggml_cont(ctx, ggml_transpose(ctx, added));
    return ggml_reshape_3d(ctx, ggml_mul_mat(ctx, added_t, net->node->triangle), r, n_sum, nq);
}

/* One KV head's contribution to W_O (a' - a): [n_query][n_embd]. */
static struct ggml_tensor *head_error(const struct lk_less_net *net, struct ggml_context *ctx,
                                      int head, bool train) {
    const struct lk_less_shape *s = &net->size.shape;
    const struct head_inputs *in = &net->node->head[head];
    int64_t d = s->d_head, group = group_size(s), nq = net->size.n_query;
    struct ggml_tensor *w[LK_N_LESS_PARAM];
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        w[p] = net->node->param[p][param_sets(s, p, ne) == 1 ? 0 : head];
    }
    struct ggml_tensor *phi = ggml_abs(
        ctx, two_layers(ctx, w[LK_PHI_W1], w[LK_PHI_W2], in->q, train ? in->drop_phi : NULL));
    struct ggml_tensor *u =
        two_layers(ctx, w[LK_PSI_W1], w[LK_PSI_W2], in->k, train ? in->drop_psi : NULL);
    u = ggml_mul(ctx, u, ggml_abs(ctx, w[LK_PSI_S1]));
    struct ggml_tensor *psi = ggml_abs(
        ctx, ggml_add(ctx, u, ggml_mul(ctx, ggml_mul_mat(ctx, w[LK_PSI_W3], u), w[LK_PSI_S2])));

    phi = ggml_cont(ctx, ggml_permute(ctx, phi, 0, 2, 1, 3));
    struct ggml_tensor *sum =
        ggml_mul_mat(ctx, running_states(net, ctx, in, psi), phi); /* [n_query][group][n_sum] */
    struct ggml_tensor *h = ggml_view_3d(ctx, sum, d, group, nq, sum->nb[1], sum->nb[2], 0);
    struct ggml_tensor *z = ggml_cont(
        ctx, ggml_view_3d(ctx, sum, 1, group, nq, sum->nb[1], sum->nb[2], d * sizeof(float)));
    struct ggml_tensor *top = ggml_mul(ctx, ggml_sub(ctx, h, ggml_mul(ctx, in->sparse, z)), in->c);
    struct ggml_tensor *bottom =
        ggml_repeat(ctx, ggml_scale_bias(ctx, ggml_mul(ctx, z, in->c), 1, 1), top);
    struct ggml_tensor *error =
        ggml_add(ctx, ggml_div(ctx, top, bottom), in->residual); /* [n_query][group][d] */
    return ggml_mul_mat(ctx, in->wo, ggml_reshape_2d(ctx, error, d * group, nq));
}

/* The same for the policy alone: W_O residual. */
static struct ggml_tensor *head_base(const struct lk_less_net *net, struct ggml_context *ctx,
                                     int head) {
    const struct head_inputs *in = &net->node->head[head];
    return ggml_mul_mat(ctx, in->wo,
                        ggml_reshape_2d(ctx, in->residual, in->wo->ne[0], net->size.n_query));
}

/* The squared length, for each query, of the sum of all heads' contributions: [n_query][1]. e, or b
 * if `base`. */
static struct ggml_tensor *squared_errors(const struct lk_less_net *net, struct ggml_context *ctx,
                                          bool train, bool base) {
    struct ggml_tensor *sum = NULL;
    for (int head = 0; head < net->size.shape.n_head_kv; head++) {
        struct ggml_tensor *part =
            base ? head_base(net, ctx, head) : head_error(net, ctx, head, train);
        sum = sum ? ggml_add(ctx, sum, part) : part;
    }
    return ggml_sum_rows(ctx, ggml_sqr(ctx, sum));
}

/* The mean over queries of weight e / (norm floor + b (1 - floor)). */
static struct ggml_tensor *weighted_mean(const struct lk_less_net *net, struct ggml_context *ctx,
                                         struct ggml_tensor *errors, struct ggml_tensor *base) {
    const struct lk_less_nodes *node = net->node;
    struct ggml_tensor *scale = ggml_div(
        ctx, node->weight, ggml_add(ctx, ggml_scale(ctx, base, 1 - net->size.floor), node->floor));
    return ggml_scale(ctx, ggml_sum(ctx, ggml_mul(ctx, errors, scale)), 1.0f / net->size.n_query);
}

/* Forward and backward. May throw. */
static void add_train_nodes(void *arg) {
    struct lk_less_net *net = arg;
    struct lk_graph *g = &net->train_graph;
    struct lk_less_nodes *node = net->node;
    node->loss = weighted_mean(net, g->ctx, squared_errors(net, g->ctx, true, false),
                               squared_errors(net, g->ctx, false, true));
    ggml_set_loss(node->loss);
    ggml_set_output(node->loss);
    ggml_build_forward_expand(g->graph, node->loss);
    ggml_build_backward_expand(g->ctx, g->graph, NULL);
    struct ggml_tensor *one = ggml_graph_get_grad_acc(g->graph, node->loss);
    ggml_set_input(one);
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        for (int set = 0, n = param_sets(&net->size.shape, p, ne); set < n; set++)
            ggml_set_output(ggml_graph_get_grad(g->graph, node->param[p][set]));
    }
}

static lk_status build_train_graph(struct lk_less_net *net, lk_err *err) {
    struct lk_graph *g = &net->train_graph;
    g->grads = true;
    lk_status status = lk_graph_begin(g, net->size.shape.n_head_kv * NODES_PER_HEAD + NODES_AROUND,
                                      net->ledger, err);
    if (!status) status = lk_cxx_call(add_train_nodes, net, err);
    return status ? status : lk_graph_finish(g, net->ledger, err);
}

static lk_status build_eval_graph(struct lk_less_net *net, lk_err *err) {
    struct lk_graph *g = &net->eval_graph;
    lk_status status = lk_graph_begin(g, net->size.shape.n_head_kv * NODES_PER_HEAD + NODES_AROUND,
                                      net->ledger, err);
    if (status) return status;
    struct ggml_tensor *base = squared_errors(net, g->ctx, false, true),
                       *errors = squared_errors(net, g->ctx, false, false);
    net->node->eval_loss = weighted_mean(net, g->ctx, errors, base);
    net->node->base = weighted_mean(net, g->ctx, base, base);
    net->node->power = ggml_scale(g->ctx, ggml_sum(g->ctx, base), 1.0f / net->size.n_query);
    struct ggml_tensor *out[] = {net->node->eval_loss, net->node->base, net->node->power};
    for (int i = 0; i < 3; i++) {
        ggml_set_output(out[i]);
        ggml_build_forward_expand(g->graph, out[i]);
    }
    return lk_graph_finish(g, net->ledger, err);
}

/* ---- a net ---- */

/* Parameters and inputs. May throw. */
static void create_tensors(void *arg) {
    struct lk_less_net *net = arg;
    net->ctx = ggml_init((struct ggml_init_params){
        .mem_size = net->mem_size, .mem_buffer = net->mem, .no_alloc = true});
    place_params(net, false);
    place_inputs(net, false);
}

static lk_status net_alloc(struct lk_less_net *net, lk_err *err) {
    struct lk_ledger *ledger = net->ledger;
    const struct lk_less_shape *s = &net->size.shape;
    net->node = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *net->node);
    net->n_weight = place_params(net, true);
    net->n_input = place_inputs(net, true);
    net->weight = lk_alloc(ledger, LK_FOR_SCRATCH, 4 * net->n_weight * sizeof(float));
    net->input = lk_alloc(ledger, LK_FOR_SCRATCH, net->n_input * sizeof(float));
    net->level = lk_alloc(ledger, LK_FOR_SCRATCH, s->n_head * sizeof(float));
    net->mem_size = ggml_tensor_overhead() * (size_t)(s->n_head_kv * (LK_N_LESS_PARAM + 9) + 3);
    net->mem = lk_alloc(ledger, LK_FOR_SCRATCH, net->mem_size);
    if (!net->node || !net->weight || !net->input || !net->level || !net->mem)
        return lk_fail(err, LK_E_NOMEM, "no memory to train (%.0f MiB)",
                       (double)(4 * net->n_weight + net->n_input) * 4 / (1 << 20));
    net->mean = net->weight + net->n_weight;
    net->square = net->mean + net->n_weight;
    net->gradient = net->square + net->n_weight;
    return lk_cxx_call(create_tensors, net, err);
}

lk_status lk_less_net_new(struct lk_less_net **out, const struct lk_less_size *size, uint64_t seed,
                          const float *wo, struct lk_model *model, struct lk_ledger *ledger,
                          lk_err *err) {
    const struct lk_less_shape *s = &size->shape;
    if (s->n_head_kv > MAX_SET)
        return lk_fail(err, LK_E_UNSUPPORTED, "cannot train %d KV heads; the maximum is %d",
                       s->n_head_kv, MAX_SET);
    struct lk_less_net *net = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *net);
    if (!net) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    *net = (struct lk_less_net){.size = *size, .model = model, .ledger = ledger, .norm = 1};
    lk_status status = net_alloc(net, err);
    if (!status) {
        lk_less_net_reset(net, 1e-4f, seed);
        lk_less_net_set_wo(net, wo);
        status = build_train_graph(net, err);
    }
    if (!status) status = build_eval_graph(net, err);
    if (status)
        lk_less_net_free(net);
    else
        *out = net;
    return status;
}

void lk_less_net_free(struct lk_less_net *net) {
    if (!net) return;
    struct lk_ledger *ledger = net->ledger;
    lk_graph_free(&net->train_graph, ledger);
    lk_graph_free(&net->eval_graph, ledger);
    if (net->ctx) ggml_free(net->ctx);
    lk_release(ledger, LK_FOR_SCRATCH, net->mem, net->mem_size);
    lk_release(ledger, LK_FOR_SCRATCH, net->level, net->size.shape.n_head * sizeof(float));
    lk_release(ledger, LK_FOR_SCRATCH, net->input, net->n_input * sizeof(float));
    lk_release(ledger, LK_FOR_SCRATCH, net->weight, 4 * net->n_weight * sizeof(float));
    lk_release(ledger, LK_FOR_SCRATCH, net->node, sizeof *net->node);
    lk_release(ledger, LK_FOR_SCRATCH, net, sizeof *net);
}

/* The nth random number of a seed, uniform in [0, 1). */
static float uniform(uint64_t seed, uint64_t nth) {
    return (float)(lk_splitmix64_nth(seed, nth) >> 40) / (float)(1 << 24);
}

void lk_less_net_reset(struct lk_less_net *net, float s1, uint64_t seed) {
    memset(net->weight, 0, 4 * net->n_weight * sizeof(float));
    net->n_gradient = 0;
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        int n_set = param_sets(&net->size.shape, p, ne);
        float a = sqrtf(6.0f / (float)(ne[0] + ne[1]));
        for (int set = 0; set < n_set; set++) {
            float *w = net->node->param[p][set]->data;
            uint64_t of = lk_splitmix64_nth(seed, (uint64_t)p * MAX_SET + (uint64_t)set);
            for (int64_t i = 0; i < ne[0] * ne[1] * ne[2]; i++)
                w[i] = p == LK_PSI_S1   ? s1
                       : p == LK_PSI_S2 ? 1e-4f
                                        : a * (2 * uniform(of, (uint64_t)i) - 1);
        }
    }
}

void lk_less_net_set_wo(struct lk_less_net *net, const float *wo) {
    const struct lk_less_shape *s = &net->size.shape;
    size_t all = (size_t)s->n_head * s->d_head, part = (size_t)group_size(s) * s->d_head;
    for (int head = 0; head < s->n_head_kv; head++)
        for (int row = 0; row < net->size.n_embd; row++)
            memcpy((float *)net->node->head[head].wo->data + row * part,
                   wo + row * all + head * part, part * sizeof *wo);
}

static void read_halves(float *to, const uint16_t *from, int n) {
    ggml_cpu_fp16_to_fp32(from, to, n);
}

/* Set in->k and in->v of one head. */
static void set_evicted_rows(struct lk_less_net *net, const struct lk_less_example *ex,
                             const int32_t *query, int head) {
    const struct head_inputs *in = &net->node->head[head];
    int d = net->size.shape.d_head, n = ex->n_evicted, n_row = row_count(net),
        n_sum = sum_count(net), row = 0;
    const uint16_t *k = ex->k + (size_t)head * n * d, *v = ex->v + (size_t)head * n * d;
    const int32_t *evicted_at = ex->evicted_at + (size_t)head * n;
    float *key = in->k->data, *values = in->v->data, value[MAX_HEAD];
    memset(key, 0, ggml_nbytes(in->k));
    memset(values, 0, ggml_nbytes(in->v));
    for (int i = 0; i < net->size.n_query;
         i++, key += (size_t)n_row * d, values += (size_t)n_row * n_sum) {
        bool only_rows = query[i] < 0;
        int last = only_rows ? 0 : query[i] * ex->stride;
        for (int at = 0; row < n && evicted_at[row] <= last; row++, at++) {
            if (only_rows && at == net->size.n_between) break;
            if (at >= n_row) continue;
            read_halves(key + (size_t)at * d, k + (size_t)row * d, d);
            read_halves(value, v + (size_t)row * d, d);
            for (int c = 0; c < d; c++) values[(size_t)c * n_row + at] = value[c];
            values[(size_t)d * n_row + at] = 1;
        }
    }
}

/* Set the inputs of query i and query head `q_head`, the hth of its group. */
static void set_query(struct lk_less_net *net, const struct lk_less_example *ex, int i, int query,
                      int q_head, int h) {
    const struct lk_less_shape *s = &net->size.shape;
    int d = s->d_head, group = group_size(s), nq = net->size.n_query;
    const struct head_inputs *in = &net->node->head[q_head / group];
    size_t from = (size_t)q_head * ex->n_query + query, to = (size_t)i * group + h;
    float *q = (float *)in->q->data + ((size_t)h * nq + i) * d,
          *sparse = (float *)in->sparse->data + to * d,
          *residual = (float *)in->residual->data + to * d, *c = (float *)in->c->data + to;
    if (query < 0) { /* an error of 0 */
        memset(q, 0, d * sizeof *q);
        memset(sparse, 0, d * sizeof *sparse);
        memset(residual, 0, d * sizeof *residual);
        *c = 0;
        return;
    }
    read_halves(q, ex->q + from * d, d);
    read_halves(sparse, ex->sparse + from * d, d);
    read_halves(residual, ex->residual + from * d, d);
    *c = expf(fminf(net->level[q_head] - ex->log_sum[from], 60)); /* keeps products finite */
}

void lk_less_net_set_input(struct lk_less_net *net, const struct lk_less_example *ex,
                           const int32_t *query, const float *weight) {
    const struct lk_less_shape *s = &net->size.shape;
    int group = group_size(s);
    for (int head = 0; head < s->n_head_kv; head++) {
        set_evicted_rows(net, ex, query, head);
        for (int h = 0; h < group; h++)
            for (int i = 0; i < net->size.n_query; i++)
                set_query(net, ex, i, query[i], head * group + h, h);
    }
    for (int i = 0; i < net->size.n_query; i++) {
        ((float *)net->node->floor->data)[i] = query[i] < 0 ? 1 : net->norm * net->size.floor;
        ((float *)net->node->weight->data)[i] = weight ? weight[i] : 1;
    }
}

/* ---- steps ---- */

/* Fill a dropout mask, eight values from each random number. */
static void fill_dropout_mask(struct ggml_tensor *t, float dropout, uint64_t seed) {
    float *x = t->data;
    int64_t n = ggml_nelements(t);
    unsigned n_drop = (unsigned)lrintf(dropout * 256);
    float kept_scale = 256.0f / (float)(256 - n_drop);
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t bits = lk_splitmix64_nth(seed, (uint64_t)i);
        for (int64_t j = i; j < n && j < i + 8; j++, bits >>= 8)
            x[j] = (bits & 255) < n_drop ? 0 : kept_scale;
    }
}

/* Add the gradients of the graph. */
static void sum_gradients(struct lk_less_net *net) {
    const struct lk_graph *g = &net->train_graph;
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        for (int set = 0, n = param_sets(&net->size.shape, p, ne); set < n; set++) {
            const struct ggml_tensor *w = net->node->param[p][set];
            const float *from = ggml_graph_get_grad(g->graph, w)->data;
            float *to = net->gradient + ((float *)w->data - net->weight);
            for (int64_t i = 0; i < ggml_nelements(w); i++) to[i] += from[i];
        }
    }
    net->n_gradient++;
}

lk_status lk_less_net_add_gradient(struct lk_less_net *net, uint64_t seed, float *loss,
                                   lk_err *err) {
    for (int head = 0; net->size.dropout > 0 && head < net->size.shape.n_head_kv; head++) {
        fill_dropout_mask(net->node->head[head].drop_phi, net->size.dropout,
                          lk_splitmix64_nth(seed, 2 * (uint64_t)head));
        fill_dropout_mask(net->node->head[head].drop_psi, net->size.dropout,
                          lk_splitmix64_nth(seed, 2 * (uint64_t)head + 1));
    }
    *(float *)ggml_graph_get_grad_acc(net->train_graph.graph, net->node->loss)->data = 1;
    lk_status status = lk_graph_run(&net->train_graph, net->model, err);
    if (status) return status;
    *loss = *(float *)net->node->loss->data;
    sum_gradients(net);
    return LK_OK;
}

void lk_less_net_step(struct lk_less_net *net, float rate, int64_t nth) {
    struct lk_adam adam = {net->weight, net->mean, net->square, net->gradient, net->n_weight};
    lk_adam_step(&adam, rate, nth, net->n_gradient);
    net->n_gradient = 0;
}

lk_status lk_less_net_eval(struct lk_less_net *net, struct lk_less_loss *out, lk_err *err) {
    lk_status status = lk_graph_run(&net->eval_graph, net->model, err);
    if (status) return status;
    *out = (struct lk_less_loss){*(float *)net->node->eval_loss->data,
                                 *(float *)net->node->base->data, *(float *)net->node->power->data};
    return LK_OK;
}

/* ---- import and export ---- */

void lk_less_maps_at(const struct lk_less_shape *s, const void *block, struct lk_less_maps *maps) {
    size_t w1 = (size_t)s->d_head * s->n_hidden, w2 = (size_t)s->n_hidden * s->n_feature,
           n = (size_t)s->n_feature;
    const float *at = block;
    *maps = (struct lk_less_maps){.kernels = &lk_kernels_reference};
    maps->phi_bias = at, at += s->n_head;
    maps->psi_w3 = at, at += s->n_psi * n * n;
    maps->psi_s1 = at, at += s->n_psi * n;
    maps->psi_s2 = at, at += s->n_psi * n;
    maps->phi_w1 = (const uint16_t *)at;
    maps->phi_w2 = maps->phi_w1 + s->n_phi * w1;
    maps->psi_w1 = maps->phi_w2 + s->n_phi * w2;
    maps->psi_w2 = maps->psi_w1 + s->n_psi * w1;
}

/* The parameters in struct lk_less_maps: those before LK_PSI_W3 are halves, the others floats. */
static void list_parts(const struct lk_less_maps *k, const void *part[LK_N_LESS_PARAM]) {
    const void *all[LK_N_LESS_PARAM] = {
        [LK_PHI_W1] = k->phi_w1, [LK_PHI_W2] = k->phi_w2, [LK_PSI_W1] = k->psi_w1,
        [LK_PSI_W2] = k->psi_w2, [LK_PSI_W3] = k->psi_w3, [LK_PSI_S1] = k->psi_s1,
        [LK_PSI_S2] = k->psi_s2};
    memcpy(part, all, sizeof all);
}

/* Index in a tensor, whose rows are outputs, of element i of matrices [inputs][outputs]. */
static size_t transposed_index(size_t i, const int64_t ne[3]) {
    size_t in = (size_t)ne[0], out = (size_t)ne[1], matrix = i / (in * out);
    return matrix * in * out + i % out * in + i / out % in;
}

void lk_less_net_export(const struct lk_less_net *net, const float *weight, void *out,
                        struct lk_less_maps *maps) {
    const struct lk_less_shape *s = &net->size.shape;
    const void *part[LK_N_LESS_PARAM];
    lk_less_maps_at(s, out, maps);
    maps->kernels = net->model->kernels;
    list_parts(maps, part);
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        int n_set = param_sets(s, p, ne);
        size_t n = (size_t)(ne[0] * ne[1] * ne[2]);
        for (size_t i = 0; i < n * n_set; i++) {
            float x = weight[(float *)net->node->param[p][i / n]->data - net->weight +
                             transposed_index(i % n, ne)];
            if (p < LK_PSI_W3)
                ((uint16_t *)part[p])[i] = lk_f32_to_f16(x);
            else
                ((float *)part[p])[i] = x;
        }
    }
    memcpy((float *)maps->phi_bias, net->level, s->n_head * sizeof(float));
}

void lk_less_net_import(struct lk_less_net *net, const struct lk_less_maps *maps) {
    const struct lk_less_shape *s = &net->size.shape;
    const void *part[LK_N_LESS_PARAM];
    list_parts(maps, part);
    for (int p = 0; p < LK_N_LESS_PARAM; p++) {
        int64_t ne[3];
        int n_set = param_sets(s, p, ne);
        size_t n = (size_t)(ne[0] * ne[1] * ne[2]);
        for (size_t i = 0; i < n * n_set; i++)
            ((float *)net->node->param[p][i / n]->data)[transposed_index(i % n, ne)] =
                p < LK_PSI_W3 ? lk_f16_to_f32(((const uint16_t *)part[p])[i])
                              : ((const float *)part[p])[i];
    }
    memcpy(net->level, maps->phi_bias, s->n_head * sizeof(float));
}
