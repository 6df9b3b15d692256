/* Estimates losses: replaces rows of a full cache by quantized ones, and looks at what changes. */
#include "tune/estimate.h"

#include "base/err.h"
#include "base/hash.h"
#include "model/blocks.h"
#include "tune/prompts.h"
#include "tune/swap_rows.h"

#include <math.h>
#include <string.h>

/* What is estimated of a side of a group: its loss at e->bits, with each size of the level 'recent'
 * exact, and at more bits without that level. */
enum { MAX_MORE = 2, MAX_LOSS = LK_TUNE_N_RECENT + MAX_MORE };

enum { MAX_ANCHORED = 2 /* layers with one anchor */ };

/* Attention of one layer, of the tokens that are scored. */
struct layer_call {
    struct lk_attn attn; /* its partials and scratch belong to the session's pass */
    size_t q_at;         /* of its queries in estimate.q */
};

/* What the errors of V cost in a layer, or in some, multiplied by a factor. */
struct anchor {
    double kl; /* of predictions */
    float factor;
};

struct estimate {
    struct lk_ledger ledger;
    const struct lk_measure *m;
    const struct lk_tune_model *loss;
    struct lk_prompts *prompts;
    double (*kl)[2][MAX_LOSS];  /* [n_group] */
    uint8_t bits[1 + MAX_MORE]; /* in increasing order */
    int n_loss;                 /* LK_TUNE_N_RECENT, and one for each of the bits but the first */
    size_t chunk;               /* the current one */
    struct lk_swap pair;        /* the chunk's caches, no rows */
    size_t n_q, n_out, n_row, n_move;
    struct layer_call *call;      /* [n_layer] */
    float *q;                     /* [n_q] queries of all layers */
    float *exact;                 /* [MAX_ANCHORED][n_row] rows of a side as they were */
    float *move;                  /* [LK_SWAP_ROWS][widest head] */
    float *before, *after;        /* [n_out] outputs of a layer's attention */
    lk_prediction *score;         /* [n_query] */
    double (*power)[2][MAX_LOSS]; /* [n_group] of the output's change, sum over chunks */
    struct anchor *anchor;        /* [n_layer] of the first chunk */
    double *v_kl; /* [n_layer] KL of the errors of V, as the anchors have it: sum over chunks */
};

/* ---- memory ---- */

/* Floats of queries, of one layer's output and of one side's rows, in the largest layers. */
static void count_floats(struct estimate *e) {
    const struct lk_hparams *hp = &e->m->model->net->hp;
    struct lk_cache_shape shape = lk_model_cache_shape(e->m->model);
    size_t width = lk_cache_width(&shape, LK_K), v = lk_cache_width(&shape, LK_V);
    size_t d = hp->d_head > hp->d_head_swa ? (size_t)hp->d_head : (size_t)hp->d_head_swa;
    size_t n_query = e->prompts->n_query;
    e->n_out = n_query * (size_t)hp->n_head * d;
    e->n_q = (size_t)shape.n_layer * n_query * (size_t)hp->n_head * (d + (size_t)hp->d_rope);
    e->n_row = e->prompts->n_prompt * (width > v ? width : v);
    e->n_move = LK_SWAP_ROWS * d;
}

static lk_status alloc_arrays(struct estimate *e, lk_err *err) {
    size_t n_layer = (size_t)e->loss->n_layer, n_group = (size_t)e->loss->n_group;
    count_floats(e);
    e->call = lk_alloc(&e->ledger, LK_FOR_SCRATCH, n_layer * sizeof *e->call);
    e->q = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->n_q * sizeof *e->q);
    e->exact = lk_alloc(&e->ledger, LK_FOR_SCRATCH, MAX_ANCHORED * e->n_row * sizeof *e->exact);
    e->move = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->n_move * sizeof *e->move);
    e->before = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->n_out * sizeof *e->before);
    e->after = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->n_out * sizeof *e->after);
    e->score = lk_alloc(&e->ledger, LK_FOR_SCRATCH, e->prompts->n_query * sizeof *e->score);
    e->power = lk_alloc(&e->ledger, LK_FOR_SCRATCH, n_group * sizeof *e->power);
    e->anchor = lk_alloc(&e->ledger, LK_FOR_SCRATCH, n_layer * sizeof *e->anchor);
    e->v_kl = lk_alloc(&e->ledger, LK_FOR_SCRATCH, n_layer * sizeof *e->v_kl);
    if (e->call && e->q && e->exact && e->move && e->before && e->after && e->score && e->power &&
        e->anchor && e->v_kl)
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory to estimate losses on %zu tokens",
                   e->prompts->n_prompt);
}

static void free_arrays(struct estimate *e) {
    size_t n_layer = (size_t)e->loss->n_layer, n_group = (size_t)e->loss->n_group;
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->v_kl, n_layer * sizeof *e->v_kl);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->anchor, n_layer * sizeof *e->anchor);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->power, n_group * sizeof *e->power);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->score, e->prompts->n_query * sizeof *e->score);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->after, e->n_out * sizeof *e->after);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->before, e->n_out * sizeof *e->before);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->move, e->n_move * sizeof *e->move);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->exact, MAX_ANCHORED * e->n_row * sizeof *e->exact);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->q, e->n_q * sizeof *e->q);
    lk_release(&e->ledger, LK_FOR_SCRATCH, e->call, n_layer * sizeof *e->call);
}

/* ---- anchors ---- */

static int model_layer(const struct lk_net *net, int layer) {
    int i = 0;
    while (net->hp.is_recurrent[i] || net->hp.index[i] != layer) i++;
    return i;
}

/* The number of layers from `layer` on that have an anchor in common: cost changes slowly with
 * depth. The first two layers and the last one are different. A norm after W_O scales each layer's
 * output, and then neighbors say nothing. */
static int count_layers(const struct estimate *e, int layer) {
    const struct lk_net *net = e->m->model->net;
    bool alone = layer < 2 || layer + 2 >= e->loss->n_layer ||
                 net->layer[model_layer(net, layer)].attn_post_norm;
    return alone ? 1 : MAX_ANCHORED;
}

/* A chunk becomes the current one. */
static void select_chunk(struct estimate *e, size_t chunk) {
    e->chunk = chunk;
    e->pair = (struct lk_swap){.full = e->prompts->chunk[chunk].full,
                               .coded = e->prompts->chunk[chunk].coded,
                               .move = e->move};
}

/* Measure the KL if errors of V in some layers are multiplied by the anchor's factor. */
static lk_status measure_kl(struct estimate *e, int layer, struct anchor *a, lk_err *err) {
    int n_layer = count_layers(e, layer);
    size_t n_query = e->prompts->n_query;
    double sum = 0;
    lk_swap_v(&e->pair, layer, n_layer, a->factor, e->exact, e->n_row);
    lk_status status = lk_session_copy(e->prompts->run, e->pair.full, err);
    if (!status)
        status = lk_prompts_score(e->prompts, e->chunk, e->prompts->run, false, e->score, err);
    lk_swap_v_back(&e->pair, layer, n_layer, e->exact, e->n_row);
    for (size_t i = 0; !status && i < n_query; i++) sum += e->score[i].kl;
    a->kl = sum / (double)n_query;
    return status;
}

/* Find a factor with which the KL is large compared with what rounded activations cause, and still
 * quadratic in errors. `like`: an anchor that may be similar, or NULL. */
static lk_status measure_anchor(struct estimate *e, int layer, const struct anchor *like,
                                struct anchor *a, lk_err *err) {
    const double min_kl = 0.03, max_kl = 0.5, good_kl = 0.1;
    const float first_factor = 16, max_factor = 64;
    bool similar = like && like->kl >= min_kl / 10 && like->kl <= max_kl;
    lk_status status = LK_OK;
    *a = similar ? *like : (struct anchor){0};
    for (int try = 0; !status && try < 2; try++) {
        if (try && a->kl >= min_kl && a->kl <= max_kl) break;
        float factor = a->factor * (float)sqrt(good_kl / fmax(a->kl, 1e-9));
        a->factor = a->factor > 0 ? fminf(fmaxf(factor, 1), max_factor) : first_factor;
        status = measure_kl(e, layer, a, err);
        if (try) e->prompts->done -= e->prompts->n_query; /* counts once */
    }
    return status;
}

/* The bits of loss number i. */
static int bits_of(const struct estimate *e, int i) {
    return e->bits[i < LK_TUNE_N_RECENT ? 0 : i - LK_TUNE_N_RECENT + 1];
}

/* The text of the recipe whose loss is number i of a side of a group. */
static const char *print_recipe(const struct estimate *e, const struct lk_tune_group *group,
                                int side, int i, struct lk_buf *out) {
    int recent = i < LK_TUNE_N_RECENT ? lk_tune_recent_at[i] : 0;
    lk_buf_clear(out);
    lk_buf_append_str(out, "sink 4: f16; body: f16; ");
    lk_tune_print_probe(out, group, side, bits_of(e, i));
    if (recent) lk_buf_printf(out, "; recent %d%%: f16", recent);
    lk_buf_append_str(out, "; window 32: f16");
    return out->failed ? NULL : out->at;
}

/* The factor of an anchor stands in place of the perplexity. */
static lk_status add_to_log(struct estimate *e, uint64_t id, const char *recipe, double kl,
                            float factor, lk_err *err) {
    lk_compare_result result = {.kl_mean = kl, .ppl = factor, .n_scored = e->prompts->n_query};
    return recipe ? lk_tune_log_add(e->m->log, id, recipe, &result, err)
                  : lk_fail(err, LK_E_NOMEM, "no memory for a recipe");
}

/* Of the current chunk's anchors in the log. */
static uint64_t id_of_chunk(const struct estimate *e) {
    size_t n_tok = e->prompts->n_prompt + e->prompts->n_query;
    return lk_fnv1a(LK_FNV1A_INIT, lk_prompts_tok(e->prompts, e->chunk), n_tok * sizeof(int32_t));
}

/* Measure the anchors of a chunk, unless the log has them. The search for a factor starts at the
 * first chunk's, there at the one of the layer before. */
static lk_status measure_anchors(struct estimate *e, size_t chunk, lk_err *err) {
    lk_status status = LK_OK;
    struct lk_buf text = {0};
    const struct anchor *last = NULL;
    select_chunk(e, chunk);
    uint64_t id = id_of_chunk(e);
    for (int layer = 0; !status && layer < e->loss->n_layer; layer += count_layers(e, layer)) {
        const struct lk_tune_group all = {layer, 0};
        const char *recipe = print_recipe(e, &all, LK_V, 0, &text);
        const lk_compare_result *known = recipe ? lk_tune_log_find(e->m->log, id, recipe) : NULL;
        struct anchor a;
        if (known) {
            a = (struct anchor){.kl = known->kl_mean, .factor = (float)known->ppl};
            e->prompts->done += e->prompts->n_query;
        } else {
            status = measure_anchor(e, layer, chunk ? &e->anchor[layer] : last, &a, err);
            if (!status) status = add_to_log(e, id, recipe, a.kl, a.factor, err);
            if (!status) status = lk_tune_log_save(e->m->log, err);
        }
        if (status) break;
        e->v_kl[layer] += a.kl / (a.factor * a.factor);
        if (chunk == 0) e->anchor[layer] = a;
        last = &e->anchor[layer];
    }
    lk_buf_free(&text);
    return status;
}

/* ---- outputs of attention ---- */

/* lk_watch callback: keep a layer's call and its queries. */
static void keep_call(void *user, int layer, const struct lk_attn *attn) {
    struct estimate *e = user;
    size_t n = e->n_q / (size_t)e->loss->n_layer;
    struct layer_call *call = &e->call[layer];
    *call = (struct layer_call){*attn, (size_t)layer * n};
    memcpy(e->q + call->q_at, attn->q,
           (size_t)attn->n_tok * attn->n_head * (attn->d_head + attn->d_rope) * sizeof *e->q);
}

/* The output of a layer's attention over the rows that `run` holds now. */
static void attend(struct estimate *e, int layer, float *out) {
    struct lk_attn attn = e->call[layer].attn;
    attn.q = e->q + e->call[layer].q_at;
    attn.out = out;
    lk_attn_items(&attn, 0, 1);
    lk_attn_combine(&attn, lk_attn_ranges(&attn, attn.k, attn.v), 0, 1);
}

/* The product of one layer's W_O with the changes of each group's heads. */
struct product {
    struct lk_graph g;
    int first, n_group; /* the layer's groups */
};

static lk_status open_product(struct product *p, struct estimate *e, int layer, lk_err *err) {
    const struct lk_net *net = e->m->model->net;
    const struct lk_attn *attn = &e->call[layer].attn;
    *p = (struct product){0};
    while (e->loss->group[p->first].layer != layer) p->first++;
    while (p->first + p->n_group < e->loss->n_group &&
           e->loss->group[p->first + p->n_group].layer == layer)
        p->n_group++;
    lk_status status = lk_graph_begin(&p->g, 16, &e->ledger, err);
    if (status) return status;
    struct ggml_tensor *wo = net->layer[model_layer(net, layer)].wo;
    int64_t n_in = (int64_t)attn->n_head * attn->d_head;
    p->g.x_in = ggml_new_tensor_2d(p->g.ctx, GGML_TYPE_F32, n_in, attn->n_tok * p->n_group);
    ggml_set_input(p->g.x_in);
    bool has_wo = wo && wo->ne[0] == n_in && !lk_net_on_device(net, model_layer(net, layer));
    p->g.x_out = has_wo ? lk_linear(net, p->g.ctx, wo, NULL, NULL, p->g.x_in)
                        : ggml_dup(p->g.ctx, p->g.x_in);
    ggml_set_output(p->g.x_out);
    ggml_build_forward_expand(p->g.graph, p->g.x_out);
    return lk_graph_finish(&p->g, &e->ledger, err);
}

static bool has_head(const struct lk_tune_group *group, int head) {
    return !group->heads || group->heads >> head & 1;
}

/* Add the power of each group's share of the change of the layer's output to power[i * stride], for
 * the layer's i-th group. */
static lk_status add_power(struct estimate *e, struct product *p, int layer, double *power,
                           size_t stride, lk_err *err) {
    const struct lk_attn *attn = &e->call[layer].attn;
    int per_kv = attn->n_head / attn->n_head_kv, d = attn->d_head;
    size_t width = (size_t)attn->n_head * d;
    for (int group = 0; group < p->n_group; group++)
        for (int tok = 0; tok < attn->n_tok; tok++) {
            float *x = (float *)p->g.x_in->data + ((size_t)group * attn->n_tok + tok) * width;
            const float *before = e->before + tok * width, *after = e->after + tok * width;
            for (int head = 0; head < attn->n_head; head++) {
                bool in = has_head(&e->loss->group[p->first + group], head / per_kv);
                for (int c = head * d; c < (head + 1) * d; c++)
                    x[c] = in ? after[c] - before[c] : 0;
            }
        }
    lk_status status = lk_graph_run(&p->g, e->m->model, err);
    size_t n = (size_t)p->g.x_out->ne[0] * attn->n_tok;
    for (int group = 0; !status && group < p->n_group; group++) {
        const float *y = (const float *)p->g.x_out->data + group * n;
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)y[i] * y[i];
        power[group * stride] += sum;
    }
    return status;
}

/* The error of all rows at the bits of loss number i, relative to the one at e->bits[0]. */
static float error_of(const struct estimate *e, int i) {
    return (float)sqrt(lk_tune_distortion(bits_of(e, i), LK_TUNE_TRELLIS) /
                       lk_tune_distortion(e->bits[0], LK_TUNE_TRELLIS));
}

/* Replace the rows of a side from the oldest on, until all are, and see what each step changes.
 * Then do so with the smaller errors of keys with more bits: the output is not linear in K. */
static lk_status measure_side(struct estimate *e, struct product *p, int layer, int side,
                              lk_err *err) {
    struct lk_swap all = lk_swap_find(&e->pair, &e->prompts->run->cache->kv[layer][side], layer);
    struct lk_swap r = all;
    double *power = e->power[p->first][side];
    const size_t stride = sizeof e->power[0] / sizeof *power;
    lk_status status = LK_OK;
    lk_swap_read_exact(&all, e->exact);
    for (int i = LK_TUNE_N_RECENT - 1; !status && i >= 0; i--, r.a = r.b) {
        r.b = (int64_t)(e->prompts->n_prompt * (size_t)(100 - lk_tune_recent_at[i]) / 100);
        if (r.b < r.a) r.b = r.a;
        if (r.b > all.b || i == 0) r.b = all.b;
        lk_swap_write_coded(&r, e->exact, 1);
        attend(e, layer, e->after);
        status = add_power(e, p, layer, power + i, stride, err);
    }
    for (int i = LK_TUNE_N_RECENT; !status && side == LK_K && i < e->n_loss; i++) {
        lk_swap_write_coded(&all, e->exact, error_of(e, i));
        attend(e, layer, e->after);
        status = add_power(e, p, layer, power + i, stride, err);
    }
    lk_swap_write_exact(&all, e->exact);
    return status;
}

static lk_status measure_outputs(struct estimate *e, lk_err *err) {
    lk_status status = LK_OK;
    for (int layer = 0; !status && layer < e->loss->n_layer; layer++) {
        struct product p;
        status = open_product(&p, e, layer, err);
        if (!status) attend(e, layer, e->before);
        for (int side = 0; !status && side < 2; side++)
            status = measure_side(e, &p, layer, side, err);
        lk_graph_free(&p.g, &e->ledger);
    }
    return status;
}

/* ---- the estimate ---- */

/* KL per power of a change of a layer's output; 0 if it has no quantized rows (in a short window).
 * The output is linear in V, so the power grows with the square of the factor. `first`: the first
 * layer of those with the same anchor. */
static double anchor_cost(const struct estimate *e, int first) {
    double power = 0;
    int end = first + count_layers(e, first);
    for (int i = 0; i < e->loss->n_group; i++)
        if (e->loss->group[i].layer >= first && e->loss->group[i].layer < end)
            power += e->power[i][LK_V][0];
    return power > 0 ? e->v_kl[first] / power : 0;
}

/* The cost of a layer: the median of its anchor's and the neighboring ones', since a single anchor
 * may be far off, unless neighbors are different. */
static double layer_cost(const struct estimate *e, int layer) {
    int before = 0, first = 0;
    while (first + count_layers(e, first) <= layer) {
        before = first;
        first += count_layers(e, first);
    }
    int n = count_layers(e, first);
    double x = anchor_cost(e, first);
    if (n == 1) return x;
    double a = anchor_cost(e, before), b = anchor_cost(e, first + n);
    return a > 0 && b > 0 ? fmax(fmin(a, b), fmin(fmax(a, b), x)) : x;
}

static void find_losses(struct estimate *e) {
    const double of_k = 1.4; /* errors of K change the weights of all rows in common */
    for (int group = 0; group < e->loss->n_group; group++)
        for (int side = 0; side < 2; side++) {
            double cost = layer_cost(e, e->loss->group[group].layer) / (double)e->prompts->n_chunk;
            const double *power = e->power[group][side];
            for (int i = 0; i < e->n_loss; i++)
                e->kl[group][side][i] =
                    cost * (side == LK_K           ? of_k * power[i]
                            : i < LK_TUNE_N_RECENT ? power[i]
                                                   : power[0] * error_of(e, i) * error_of(e, i));
        }
}

/* Evaluate with the exact rows, and keep the calls of attention. */
static lk_status evaluate_exact(struct estimate *e, lk_err *err) {
    lk_session *run = e->prompts->run;
    size_t n = e->prompts->n_query;
    lk_status status = lk_session_copy(run, e->pair.full, err);
    run->watch = (struct lk_watch){.on_attention = keep_call, .user = e};
    if (!status)
        status = lk_session_eval(run, lk_prompts_tok(e->prompts, e->chunk) + e->prompts->n_prompt,
                                 n, false, err);
    run->watch = (struct lk_watch){0};
    e->prompts->done += n;
    return status;
}

static lk_status estimate_chunk(struct estimate *e, size_t chunk, lk_err *err) {
    select_chunk(e, chunk);
    lk_status status = evaluate_exact(e, err);
    if (!status) status = measure_outputs(e, err);
    return status ? status : lk_prompts_predict(e->prompts, chunk, err);
}

static lk_status estimate_all(struct estimate *e, lk_err *err) {
    struct lk_prompts *h = e->prompts;
    uint64_t n_anchor = 0;
    for (int layer = 0; layer < e->loss->n_layer; layer += count_layers(e, layer)) n_anchor++;
    h->done = 0;
    h->total = h->n_chunk * (h->n_prompt + (2 + n_anchor) * h->n_query);
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < h->n_chunk; i++)
        status = lk_prompts_compute_prompt(h, i, err);
    /* Only now: prompts need scratch memory of the same size. */
    if (!status) status = alloc_arrays(e, err);
    for (size_t i = 0; !status && i < h->n_chunk; i++) status = estimate_chunk(e, i, err);
    for (size_t i = 0; !status && i < h->n_chunk; i++) status = measure_anchors(e, i, err);
    if (!status) find_losses(e);
    free_arrays(e);
    return status;
}

/* Read e->kl from the log. False if it lacks anything. */
static bool find_estimate(struct estimate *e, uint64_t id) {
    struct lk_buf text = {0};
    bool found = true;
    for (int group = 0; found && group < e->loss->n_group; group++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; found && i < e->n_loss; i++) {
                const char *recipe = print_recipe(e, &e->loss->group[group], side, i, &text);
                const lk_compare_result *r =
                    recipe ? lk_tune_log_find(e->m->log, id, recipe) : NULL;
                found = r != NULL;
                if (found) e->kl[group][side][i] = r->kl_mean;
            }
    lk_buf_free(&text);
    return found;
}

static lk_status log_estimate(struct estimate *e, uint64_t id, lk_err *err) {
    struct lk_buf text = {0};
    lk_status status = LK_OK;
    for (int group = 0; group < e->loss->n_group; group++)
        for (int side = 0; side < 2; side++)
            for (int i = 0; !status && i < e->n_loss; i++)
                status = add_to_log(e, id, print_recipe(e, &e->loss->group[group], side, i, &text),
                                    e->kl[group][side][i], 1, err);
    lk_buf_free(&text);
    return status ? status : lk_tune_log_save(e->m->log, err);
}

lk_status lk_estimate_groups(struct lk_tune *t, lk_err *err) {
    struct lk_tune_model *loss = &t->loss;
    struct lk_measure measure = lk_tune_measure_of(t);
    size_t bytes = (size_t)loss->n_group * sizeof *(struct estimate){0}.kl;
    struct estimate e = {.m = &measure, .loss = loss, .prompts = t->prompts};
    size_t n_bits = 0;
    for (int i = 0; i < LK_TUNE_N_BITS && n_bits < sizeof e.bits; i++)
        if (lk_tune_bits_at[i] >= t->bits[0]) e.bits[n_bits++] = lk_tune_bits_at[i];
    e.n_loss = LK_TUNE_N_RECENT - 1 + (int)n_bits;
    uint64_t id = lk_fnv1a(t->probes.id, e.bits, sizeof e.bits);
    lk_status status = LK_OK;
    e.kl = lk_alloc(&t->ledger, LK_FOR_OTHER, bytes);
    if (!e.kl) return lk_fail(err, LK_E_NOMEM, "no memory for %d head groups", loss->n_group);
    if (!find_estimate(&e, id)) {
        status = estimate_all(&e, err);
        if (!status) status = log_estimate(&e, id, err);
    }
    for (int group = 0; !status && group < loss->n_group; group++) {
        double probe[2][LK_TUNE_MAX_PROBE];
        for (int side = 0; side < 2; side++) {
            const double *kl = e.kl[group][side];
            for (size_t i = 0; i < n_bits; i++)
                probe[side][i] = kl[i ? LK_TUNE_N_RECENT - 1 + i : 0];
            for (int i = 1; i < LK_TUNE_N_RECENT; i++)
                loss->share[group][side][i] = lk_tune_share(kl[0], kl[i], i);
        }
        lk_tune_fill_kl(loss->kl[group], e.bits, n_bits, probe, loss->trellis);
    }
    lk_release(&t->ledger, LK_FOR_OTHER, e.kl, bytes);
    return status;
}
