/* Adapters: gradients against finite differences, rows against the cache, training that is
 * cancelled and continued, and merging at load. */
#include "codec/f16.h"
#include "engine/adapters.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "sidecar/sidecar_write.h"
#include "support_model.h"
#include "support_session.h"
#include "support_sidecar.h"
#include "test.h"
#include "training/lora_net.h"
#include "training/lora_state.h"

#include <unistd.h>

static char path[] = "/tmp/lowkey-lora-XXXXXX";

enum { N_TOK = 24, RANK = 3 };

/* ---- gradients ---- */

/* A model with adapters that are not 0, and a window. */
struct lab {
    lk_model *model;
    lk_recipe *recipe;
    struct lk_ledger ledger;
    struct lk_lora_cache *cache;
    struct lk_lora_net *net;
    int32_t tok[N_TOK];
    float *x, *teacher, *target, *grad;
    size_t stream;
};

static void lab_open(struct lab *lab, const char *preset, const char *recipe) {
    lk_err err = {0};
    struct random r = {5};
    *lab = (struct lab){.model = open_with_sidecar(preset, 0, 1, 3)};
    assert_int_equal(lk_recipe_parse(&lab->recipe, recipe, &err), LK_OK);
    if (lk_lora_cache_new(&lab->cache, lab->model, lab->recipe, N_TOK, &lab->ledger, &err) ||
        lk_lora_net_new(&lab->net, lab->model, lab->cache, N_TOK, RANK, 2 * RANK, 1, &lab->ledger,
                        &err))
        fail_msg("%s, %s: %s", preset, recipe, err.msg);
    const struct lk_hparams *hp = &lab->model->net->hp;
    for (int i = 0; i < hp->n_layer * LK_N_ADAPTED; i++) {
        const struct lk_lora_param *p = &lab->net->param[i / LK_N_ADAPTED][i % LK_N_ADAPTED];
        for (int j = 0; j < RANK * p->n_out; j++)
            lab->net->weight[p->b + (size_t)j] = 0.03f * random_gauss(&r);
    }
    random_tokens(lab->tok, N_TOK, lab->model, 9);
    lab->stream = (size_t)N_TOK * hp->n_embd;
    lab->x = malloc(((size_t)hp->n_layer + 1) * lab->stream * sizeof *lab->x);
    lab->teacher = malloc(3 * lab->stream * sizeof *lab->teacher);
    lab->target = lab->teacher + lab->stream;
    lab->grad = lab->target + lab->stream;
}

static void lab_close(struct lab *lab) {
    lk_lora_net_free(lab->net);
    lk_lora_cache_free(lab->cache);
    for (int i = 0; i < LK_N_PURPOSE; i++)
        assert_int_equal(lk_ledger_bytes(&lab->ledger, (enum lk_purpose)i), 0);
    lk_recipe_free(lab->recipe);
    lk_model_free(lab->model);
    free(lab->x);
    free(lab->teacher);
}

/* The divergence of the predictions; with_gradient: also its gradient. */
static double divergence(struct lab *lab, bool with_gradient) {
    int n_layer = lab->model->net->hp.n_layer;
    lk_err err = {0};
    double kl;
    lk_lora_cache_start(lab->cache);
    lk_status status = lk_lora_embed(lab->net, lab->tok, lab->x, &err);
    memcpy(lab->teacher, lab->x, lab->stream * sizeof *lab->x);
    for (int i = 0; status == LK_OK && i < n_layer; i++)
        status = lk_lora_teach(lab->net, i, lab->teacher, NULL, lab->teacher, &err);
    for (int i = 0; status == LK_OK && i < n_layer; i++)
        status = lk_lora_forward(lab->net, i, lab->x + (size_t)i * lab->stream,
                                 lab->x + (size_t)(i + 1) * lab->stream, &err);
    if (status == LK_OK)
        status = lk_lora_divergence(lab->net, lab->teacher, lab->x + (size_t)n_layer * lab->stream,
                                    &kl, with_gradient ? lab->grad : NULL, &err);
    for (int i = n_layer - 1; with_gradient && status == LK_OK && i >= 0; i--)
        status = lk_lora_backward(lab->net, i, lab->x + (size_t)i * lab->stream, lab->grad,
                                  lab->grad, &err);
    if (status != LK_OK) fail_msg("%s", err.msg);
    return kl;
}

/* The loss of layer 1's attention alone. */
static double mismatch(struct lab *lab, bool with_gradient) {
    lk_err err = {0};
    float loss, *x = lab->x, *next = lab->x + lab->stream, *keep = NULL;
    size_t bytes = lab->net->n_weight * sizeof *keep;
    if (!with_gradient) keep = memcpy(malloc(bytes), lab->net->gradient, bytes);
    lk_lora_cache_start(lab->cache);
    lk_status status = lk_lora_embed(lab->net, lab->tok, x, &err);
    if (status == LK_OK) status = lk_lora_teach(lab->net, 0, x, NULL, next, &err);
    if (status == LK_OK) status = lk_lora_teach(lab->net, 1, next, lab->target, x, &err);
    if (status == LK_OK) status = lk_lora_match(lab->net, 1, next, lab->target, 1, &loss, &err);
    if (status != LK_OK) fail_msg("%s", err.msg);
    if (keep) memcpy(lab->net->gradient, keep, bytes);
    free(keep);
    return loss;
}

/* The derivative of the loss along the gradient of n weights is the gradient's length. */
static void check_direction(struct lab *lab, double (*loss)(struct lab *, bool), size_t first,
                            size_t n, double step, const char *what) {
    float *w = lab->net->weight + first, *kept = malloc(n * sizeof *w);
    const float *g = lab->net->gradient + first;
    double length = 0, at[2];
    for (size_t i = 0; i < n; i++) length += (double)g[i] * g[i];
    length = sqrt(length);
    memcpy(kept, w, n * sizeof *w);
    for (int side = 0; length > 0 && side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            w[i] = (float)(kept[i] + (side ? -step : step) * g[i] / length);
        at[side] = loss(lab, false);
    }
    memcpy(w, kept, n * sizeof *w);
    free(kept);
    if (length == 0) fail_msg("%s: the gradient is 0", what);
    double found = (at[0] - at[1]) / (2 * step);
    if (fabs(found - length) > 0.03 * length + 2e-5)
        fail_msg("%s: difference quotient %g, gradient %g", what, found, length);
}

static void check_gradients(const char *preset, const char *recipe) {
    struct lab lab;
    lab_open(&lab, preset, recipe);
    const struct lk_hparams *hp = &lab.model->net->hp;
    for (int kind = 0; kind < 2; kind++) {
        double (*loss)(struct lab *, bool) = kind ? mismatch : divergence;
        memset(lab.net->gradient, 0, lab.net->n_weight * sizeof(float));
        loss(&lab, true);
        for (int layer = kind; layer < (kind ? 2 : hp->n_layer); layer++)
            for (int i = 0; i < LK_N_ADAPTED; i++) {
                const struct lk_lora_param *p = &lab.net->param[layer][i];
                char what[200];
                snprintf(what, sizeof what, "%s, %s, %s, layer %d, %s", preset, recipe,
                         kind ? "attention" : "divergence", layer,
                         lk_adapted_name((enum lk_adapted)i));
                check_direction(&lab, loss, p->a, (size_t)RANK * p->n_in, 0.01, what);
                check_direction(&lab, loss, p->b, (size_t)RANK * p->n_out, 0.01, what);
            }
    }
    lab_close(&lab);
}

static void test_gradients(void **unused) {
    check_gradients("llama", "all: k=latent50% v=latent25%");
    check_gradients("llama",
                    "sink 2: f16; body: k=latent25%(pre) v=latent50%; window 4: f16; eager");
    check_gradients("llama-96", "all: k=latent25%(pre) v=f16; eager");
    check_gradients("llama-yarn", "all: k=latent25%(pre) v=latent50%; eager");
    check_gradients("llama3", "all: k=latent25% v=latent50%");
    check_gradients("qwen2", "all: k=latent25%(pre) v=latent50%; eager");
    check_gradients("qwen3", "all: k=latent25%(pre) v=latent50%; eager");
    check_gradients("refact", "all: k=latent25% v=latent50%; eager");
    check_gradients("refact",
                    "sink 2: f16; body: k=latent25%(pre) v=latent50%; window 4: f16; eager");
}

/* ---- rows ---- */

/* The projection is what the cache stores, and quantized rows are what it reads back. */
static void test_rows(void **unused) {
    for (int coded = 0; coded < 2; coded++) {
        struct lab lab;
        lab_open(&lab, "llama",
                 coded ? "sink 2: f16; body: k=rot4(nosigma) v=latent50%+rot4; window 4: f16"
                       : "sink 2: f16; body: k=latent50% v=latent25%; window 4: f16");
        struct random r = {3};
        const struct lk_hparams *hp = &lab.model->net->hp;
        size_t n_row = (size_t)hp->n_head_kv * hp->d_head, n = N_TOK * n_row;
        float *q = malloc(N_TOK * (size_t)hp->n_head * hp->d_head * sizeof *q),
              *kv = malloc(2 * n * sizeof *kv), *out = malloc(2 * n * sizeof *out),
              *x = malloc(n * sizeof *x);
        lk_err err = {0};
        for (size_t i = 0; i < N_TOK * (size_t)hp->n_head * hp->d_head; i++)
            q[i] = random_gauss(&r);
        for (size_t i = 0; i < 2 * n; i++) kv[i] = random_gauss(&r);
        assert_true(lab.cache->coded == coded);
        assert_int_equal(lab.cache->n_sink, 2);
        lk_lora_cache_start(lab.cache);
        if (lk_lora_cache_read(lab.cache, 1, q, kv, kv + n, N_TOK, out, &err) != LK_OK)
            fail_msg("%s", err.msg);
        for (int side = 0; side < 2; side++) {
            const struct lk_lora_side *s = &lab.cache->side[1][side];
            memcpy(x, kv + side * n, n * sizeof *x);
            for (size_t t = 2; s->p && t < N_TOK; t++)
                for (size_t o = 0; o < n_row; o++) {
                    double sum = s->c[o];
                    for (size_t i = 0; i < n_row; i++)
                        sum += (double)s->p[o * n_row + i] * kv[side * n + t * n_row + i];
                    x[t * n_row + o] = (float)sum;
                }
            double error = nmse(out + side * n, x, n);
            if (coded ? error < 1e-4 || error > 0.1 : error > 1e-6)
                fail_msg("side %d, quantized %d: the cache differs by %g", side, coded, error);
        }
        free(q), free(kv), free(out), free(x);
        lab_close(&lab);
    }
}

/* ---- training ---- */

/* Steps of Adam lower the divergence and the error of attention. */
static void test_steps(void **unused) {
    for (int kind = 0; kind < 2; kind++) {
        double (*loss)(struct lab *, bool) = kind ? mismatch : divergence, first = 0, last = 0;
        struct lab lab;
        lab_open(&lab, "llama", "all: k=latent13%(pre)+rot3(nosigma) v=latent25%+rot4; eager");
        for (int step = 1; step <= 30; step++) {
            last = loss(&lab, true);
            if (step == 1) first = last;
            lk_lora_step(lab.net, 2e-3f, step, 1);
        }
        if (!(last < 0.7 * first)) fail_msg("loss %d: %g, after 30 steps %g", kind, first, last);
        lab_close(&lab);
    }
}

enum { SEQUENCES = 5 };

struct watch {
    uint64_t after, n; /* progress calls until cancelled; 0: never */
    int reports;
    int64_t best_step;
    double best_kl, last_kl;
};

static bool stop_after(void *user, uint64_t done, uint64_t total) {
    struct watch *watch = user;
    assert_true(done <= total);
    return watch->after == 0 || ++watch->n < watch->after;
}

static void keep_report(void *user, const lk_lora_report *report) {
    struct watch *watch = user;
    assert_true(isfinite(report->kl) && report->step <= report->n_step);
    if (report->best_step == report->step) {
        watch->best_kl = report->kl;
    } else {
        assert_true(report->best_step < report->step);
        assert_true(watch->after > 0 || report->kl >= watch->best_kl);
    }
    watch->best_step = report->best_step;
    watch->last_kl = report->kl;
    watch->reports++;
}

static lk_status train_at(lk_model *model, const char *recipe_text, const char *to, uint64_t after,
                          float end_rate, struct watch *watch, lk_err *err) {
    int32_t tok[N_TOK * SEQUENCES];
    lk_recipe *recipe;
    random_tokens(tok, N_TOK * SEQUENCES, model, 2);
    assert_int_equal(lk_recipe_parse(&recipe, recipe_text, err), LK_OK);
    *watch = (struct watch){.after = after};
    lk_lora_opts opts = {.n_ctx = N_TOK,
                         .valid = 0.2f,
                         .rank = RANK,
                         .alpha = 2 * RANK,
                         .rate = 2e-3f,
                         .end_rate = end_rate,
                         .batch = 2,
                         .n_layer_epoch = 2,
                         .n_epoch = 3,
                         .progress = stop_after,
                         .report = keep_report,
                         .user = watch};
    lk_status status = lk_train_lora(model, recipe, tok, N_TOK * SEQUENCES, &opts, to, err);
    lk_recipe_free(recipe);
    return status;
}

static lk_status train(lk_model *model, const char *recipe_text, const char *to, uint64_t after,
                       struct watch *watch, lk_err *err) {
    return train_at(model, recipe_text, to, after, 2e-3f, watch, err);
}

/* A run that is cancelled after every few sequences ends with the same bytes as one that is not. */
static void test_resume(void **unused) {
    const char *recipe = "all: k=latent13%(pre)+rot3(nosigma) v=latent13%+rot2; eager";
    lk_model *model = open_with_sidecar("llama", 0, 1, 3);
    char whole[100], parts[100], state[100];
    snprintf(whole, sizeof whole, "%s.whole", path);
    snprintf(parts, sizeof parts, "%s.parts", path);
    snprintf(state, sizeof state, "%s.parts.lora", path);
    lk_err err = {0};
    struct watch watch;
    if (train(model, recipe, whole, 0, &watch, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(watch.reports, 11); /* of 10 steps */
    lk_status status = LK_E_CANCELLED;
    for (int i = 0; status == LK_E_CANCELLED && i < 100; i++) {
        status = train(model, recipe, parts, i == 0 ? 17 : 29, &watch, &err);
        if (status == LK_E_CANCELLED) assert_int_equal(access(parts, F_OK), -1);
    }
    if (status != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(access(state, F_OK), -1);
    size_t size[2];
    uint8_t *a = read_file(whole, &size[0]), *b = read_file(parts, &size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(a, b, size[0]);
    free(a), free(b);
    unlink(whole), unlink(parts);
    lk_model_free(model);
}

/* The adapters of a sidecar as weights of the net. */
static void read_weights(struct lk_lora_net *net, const struct lk_sidecar *s) {
    const struct lk_hparams *hp = &net->model->net->hp;
    for (int i = 0; i < 2 * hp->n_layer * LK_N_ADAPTED; i++) {
        int layer = i / 2 / LK_N_ADAPTED, which = i / 2 % LK_N_ADAPTED;
        const struct lk_lora_param *p = &net->param[layer][which];
        float *to = net->weight + (i % 2 ? p->b : p->a), scale = i % 2 ? 1 / net->scale : 1;
        char name[64];
        const void *half;
        int64_t ne0 = i % 2 ? RANK : p->n_in, ne1 = i % 2 ? p->n_out : RANK;
        lk_adapter_tensor_name(name, layer, (enum lk_adapted)which, i % 2 ? 'b' : 'a');
        assert_int_equal(lk_sidecar_find(s, name, LK_SIDECAR_F16, ne0, ne1, 1, &half, NULL), LK_OK);
        for (int64_t j = 0; j < ne0 * ne1; j++)
            to[j] = scale * lk_f16_to_f32(((const uint16_t *)half)[j]);
    }
}

/* A rate that is too high ruins the weights. Those that did best are written, also if the training
 * was interrupted. */
static void test_best(void **unused) {
    const char *recipe = "all: k=latent13% v=latent13%; eager";
    struct lab lab;
    struct watch watch;
    struct lk_sidecar *s;
    lk_err err = {0};
    int32_t tok[N_TOK * SEQUENCES];
    uint8_t *data[2];
    size_t size[2];
    lab_open(&lab, "llama-yarn", recipe);
    random_tokens(tok, N_TOK * SEQUENCES, lab.model, 2);
    for (int parts = 0; parts < 2; parts++) {
        double error = INFINITY;
        lk_status status = LK_E_CANCELLED;
        for (int n = 0; status == LK_E_CANCELLED && n < 100; n++)
            status = train_at(lab.model, recipe, path, parts ? 37 : 0, 1.0f, &watch, &err);
        if (status != LK_OK) fail_msg("%s", err.msg);
        assert_true(watch.best_step > 0 && watch.best_step < 10);
        if (!parts) assert_true(watch.last_kl > 3 * watch.best_kl);
        assert_int_equal(lk_sidecar_open(&s, path, NULL, &lab.ledger, &err), LK_OK);
        read_weights(lab.net, s);
        for (int i = 0; i < SEQUENCES; i++) { /* one of them is for validation */
            memcpy(lab.tok, tok + i * N_TOK, sizeof lab.tok);
            lk_compare_set_bos(lab.model, lab.tok);
            error = fmin(error, fabs(divergence(&lab, false) / watch.best_kl - 1));
        }
        if (!parts && error > 1e-3) fail_msg("best %g, off by %g", watch.best_kl, error);
        lk_sidecar_close(s);
        data[parts] = read_file(path, &size[parts]);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0], data[1], size[0]);
    free(data[0]), free(data[1]);
    lab_close(&lab);
}

static void test_rejected(void **unused) {
    struct watch watch;
    lk_err err = {0};
    lk_model *model = open_preset("gemma3", 0, 1);
    assert_int_equal(train(model, "rot4", path, 0, &watch, &err), LK_E_UNSUPPORTED);
    lk_model_free(model);
    model = open_preset("llama-q4_0", 0, 1);
    assert_int_equal(train(model, "rot4", path, 0, &watch, &err), LK_E_UNSUPPORTED);
    lk_model_free(model);
    model = open_preset("llama", 0, 1);
    assert_int_equal(train(model, "keep 8 by h2o; window 8: f16", path, 0, &watch, &err),
                     LK_E_UNSUPPORTED);
    assert_int_equal(train(model, "all: k=latent v=latent", path, 0, &watch, &err), LK_E_ARG);
    lk_model_free(model);
}

/* ---- merging ---- */

enum { MERGE_RANK = 3 };

/* How a sidecar is wrong. */
enum damage {
    NONE,
    WRONG_SHAPE,
    WRONG_TYPE,
    NO_B,
    HIGH_RANK,
    NO_SUCH_LAYER,
    NO_SUCH_WEIGHT,
    TOO_LARGE,
    N_DAMAGE
};

struct adapter_data {
    uint16_t a[MERGE_RANK * 1024], b[MERGE_RANK * 1024];
};

static void add_part(struct lk_sidecar_builder *builder, int layer, enum lk_adapted which,
                     char part, int32_t ne0, int32_t ne1, const uint16_t *data,
                     enum damage damage) {
    struct lk_sidecar_tensor t = {.ne = {ne0, ne1, 1}, .type = LK_SIDECAR_F16, .data = data};
    static const float zeros[1 << 16];
    static const uint16_t half_zeros[1 << 20];
    bool first = layer == 0 && which == LK_ADAPT_V;
    lk_adapter_tensor_name(t.name, layer, which, part);
    if (first && damage == NO_B && part == 'b') return;
    if (first && damage == WRONG_SHAPE && part == 'b') t.ne[1]--;
    if (first && damage == WRONG_TYPE && part == 'a') t.type = LK_SIDECAR_F32, t.data = zeros;
    if (first && damage == HIGH_RANK) t.ne[part == 'a'] = 1000, t.data = half_zeros;
    if (first && damage == NO_SUCH_LAYER)
        snprintf(t.name, sizeof t.name, "blk.9.attn_v.weight.lora_%c", part);
    if (first && damage == NO_SUCH_WEIGHT)
        snprintf(t.name, sizeof t.name, "blk.0.ffn_up.weight.lora_%c", part);
    assert_int_equal(lk_sidecar_builder_add(builder, &t, NULL), LK_OK);
}

/* Write random adapters for the model to `to`. data: [n_layer][LK_N_ADAPTED] */
static void write_damaged(const lk_model *model, const char *to, struct adapter_data *data,
                          enum damage damage) {
    const struct lk_hparams *hp = &model->net->hp;
    struct random r = {8};
    struct lk_ledger ledger = {0};
    struct lk_sidecar_info info = {
        .method = "lora",
        .options = "test",
        .model = {model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head}};
    struct lk_sidecar_builder *builder;
    assert_int_equal(lk_sidecar_builder_new(&builder, &info, &ledger, NULL), LK_OK);
    for (int i = 0; i < hp->n_layer * LK_N_ADAPTED; i++) {
        enum lk_adapted which = (enum lk_adapted)(i % LK_N_ADAPTED);
        int32_t n_in = lk_adapter_inputs(hp, which), n_out = lk_adapter_outputs(hp, which);
        float size = damage == TOO_LARGE ? 60000 : 0.1f;
        for (int j = 0; j < MERGE_RANK * n_in; j++)
            data[i].a[j] = lk_f32_to_f16(size * (random_uniform(&r) - 0.5f));
        for (int j = 0; j < MERGE_RANK * n_out; j++)
            data[i].b[j] = lk_f32_to_f16(size * (random_uniform(&r) - 0.5f));
        add_part(builder, i / LK_N_ADAPTED, which, 'a', n_in, MERGE_RANK, data[i].a, damage);
        add_part(builder, i / LK_N_ADAPTED, which, 'b', MERGE_RANK, n_out, data[i].b, damage);
    }
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(lk_sidecar_builder_write(builder, file, NULL), LK_OK);
    assert_int_equal(fclose(file), 0);
    lk_sidecar_builder_free(builder);
}

/* Add the adapters to the weights of a model in f32, which are in memory. */
static void merge(lk_model *model, const struct adapter_data *data) {
    const struct lk_hparams *hp = &model->net->hp;
    for (int i = 0; i < hp->n_layer * LK_N_ADAPTED; i++) {
        enum lk_adapted which = (enum lk_adapted)(i % LK_N_ADAPTED);
        const struct lk_layer *l = &model->net->layer[i / LK_N_ADAPTED];
        struct ggml_tensor *const own[] = {l->wq, l->wk, l->wv, l->wo};
        int64_t n_in = lk_adapter_inputs(hp, which), n_out = lk_adapter_outputs(hp, which),
                n_q = (int64_t)hp->n_head * hp->d_head, n_kv = (int64_t)hp->n_head_kv * hp->d_head;
        float *w = own[which]
                       ? own[which]->data
                       : (float *)l->wqkv->data + n_in * (which == LK_ADAPT_Q   ? 0
                                                          : which == LK_ADAPT_K ? n_q
                                                                                : n_q + n_kv);
        for (int64_t o = 0; o < n_out; o++)
            for (int64_t c = 0; c < n_in; c++) {
                float sum = 0;
                for (int r = 0; r < MERGE_RANK; r++)
                    sum += lk_f16_to_f32(data[i].b[o * MERGE_RANK + r]) *
                           lk_f16_to_f32(data[i].a[r * n_in + c]);
                w[o * n_in + c] += sum;
            }
    }
}

/* Logits [N_TOK][n_vocab] with a full cache: free them. */
static float *logits_of(lk_model *model, size_t *n) {
    int32_t tok[N_TOK], n_vocab = lk_model_get_info(model).n_vocab;
    lk_recipe *recipe;
    lk_err err = {0};
    lk_session *session = open_session(model, "f16", N_TOK, &recipe);
    random_tokens(tok, N_TOK, model, 4);
    if (lk_session_eval(session, tok, N_TOK, true, &err) != LK_OK) fail_msg("%s", err.msg);
    *n = (size_t)N_TOK * n_vocab;
    float *out = malloc(*n * sizeof *out);
    for (int i = 0; i < N_TOK; i++)
        memcpy(out + (size_t)i * n_vocab, lk_session_logits(session, i), n_vocab * sizeof *out);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return out;
}

static lk_model *open_files(const char *model_path, const char *sidecar, bool f32) {
    lk_model *model = NULL;
    lk_err err = {0};
    lk_model_opts opts = {.n_threads = 1,
                          .sidecar = sidecar,
                          .no_mmap = true,
                          .no_repack = f32,
                          .weights = f32 ? LK_WEIGHTS_F32 : LK_WEIGHTS_AS_SHIPPED};
    if (lk_model_open(&model, model_path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    return model;
}

/* max_error: NMSE of the logits of a model opened with the adapters; 0: equal bits */
static void check_merge(const char *preset, bool f32, double max_error) {
    char model_path[100], sidecar[100];
    snprintf(model_path, sizeof model_path, "%s.model", path);
    snprintf(sidecar, sizeof sidecar, "%s.sidecar", path);
    assert_true(tiny_gguf_write(model_path, tiny_preset(preset)));
    lk_model *plain = open_files(model_path, NULL, true);
    struct adapter_data *data =
        malloc((size_t)plain->net->hp.n_layer * LK_N_ADAPTED * sizeof *data);
    write_damaged(plain, sidecar, data, NONE);
    lk_model *adapted = open_files(model_path, sidecar, f32);
    size_t n;
    float *before = logits_of(plain, &n);
    merge(plain, data);
    float *expected = logits_of(plain, &n), *found = logits_of(adapted, &n);
    double change = nmse(before, expected, n), error = nmse(found, expected, n);
    if (change < 1e-3 || error > max_error)
        fail_msg("%s: adapters change logits by %g, merged at load they differ by %g", preset,
                 change, error);
    lk_model_info info = lk_model_get_info(adapted);
    assert_int_equal(info.weight_bytes + adapted->net->adapter_bytes, adapted->net->weight_bytes);
    if (!f32 && ggml_is_quantized(tiny_preset(preset)->type))
        assert_true(info.sidecar_bytes > 0 && info.sidecar_bytes == adapted->net->adapter_bytes);
    else
        assert_int_equal(info.sidecar_bytes, 0);
    free(before), free(expected), free(found), free(data);
    lk_model_free(adapted);
    lk_model_free(plain);
    unlink(model_path), unlink(sidecar);
}

static void test_merge(void **unused) {
    check_merge("llama", false, 0);
    check_merge("llama-96", false, 0);
    check_merge("qwen2", true, 0);
    check_merge("llama-q4_0", true, 0);
    check_merge("llama-q4_0", false, 0.02);
    check_merge("llama-f16", false, 1e-4);
    check_merge("qwen2-q4_1", false, 0.02);
}

/* An adapted model is compared with the original. */
static void test_reference(void **unused) {
    char model_path[100], sidecar[100];
    snprintf(model_path, sizeof model_path, "%s.model", path);
    snprintf(sidecar, sizeof sidecar, "%s.sidecar", path);
    assert_true(tiny_gguf_write(model_path, tiny_preset("llama")));
    lk_model *plain = open_files(model_path, NULL, false), *other = open_preset("qwen2-q4_1", 0, 1);
    assert_true(write_adapters(sidecar, plain, NULL, 0.3f, 5));
    lk_model *adapted = open_files(model_path, sidecar, false);
    assert_true(lk_model_get_info(adapted).is_adapted && !lk_model_get_info(plain).is_adapted);
    size_t n, n_vocab = (size_t)plain->net->hp.n_vocab;
    float *p = logits_of(plain, &n), *q = logits_of(adapted, &n),
          *log_p = malloc(2 * n_vocab * sizeof *log_p);
    double expected = 0;
    for (int i = N_TOK / 2; i + 1 < N_TOK; i++) {
        lk_compare_score(p + i * n_vocab, n_vocab, 0, log_p, log_p);
        expected += lk_compare_score(q + i * n_vocab, n_vocab, 0, log_p, log_p + n_vocab).kl /
                    (double)lk_compare_n_scored(N_TOK);
    }
    int32_t tok[N_TOK];
    lk_recipe *recipe;
    lk_compare_result r;
    lk_err err = {0};
    random_tokens(tok, N_TOK, plain, 4);
    assert_int_equal(lk_vocab_bos(plain->vocab), -1); /* no token is replaced */
    assert_int_equal(lk_recipe_parse(&recipe, "f16", &err), LK_OK);
    for (int i = 0; i < 4; i++) {
        lk_compare_opts opts = {.n_ctx = N_TOK, .prompt = i % 2, .reference = i < 2 ? plain : NULL};
        if (lk_compare(adapted, (const lk_recipe *const *)&recipe, 1, tok, N_TOK, &opts, &r, &err))
            fail_msg("%s", err.msg);
        if (fabs(r.kl_mean - (i < 2 ? expected : 0)) > 1e-3 * expected)
            fail_msg("%d: %g, expected %g", i, r.kl_mean, i < 2 ? expected : 0);
    }
    lk_compare_opts opts = {.n_ctx = N_TOK, .reference = other};
    assert_int_equal(
        lk_compare(adapted, (const lk_recipe *const *)&recipe, 1, tok, N_TOK, &opts, &r, &err),
        LK_E_ARG);
    free(p), free(q), free(log_p);
    lk_recipe_free(recipe);
    lk_model_free(adapted), lk_model_free(plain), lk_model_free(other);
    unlink(model_path), unlink(sidecar);
}

static void test_damaged(void **unused) {
    static const char *const says[N_DAMAGE] = {[WRONG_SHAPE] = "blk.0.attn_v.weight.lora_b",
                                               [WRONG_TYPE] = "blk.0.attn_v.weight.lora_a",
                                               [NO_B] = "blk.0.attn_v.weight.lora_a",
                                               [HIGH_RANK] = "rank 1000",
                                               [NO_SUCH_LAYER] = "blk.9.attn_v",
                                               [NO_SUCH_WEIGHT] = "blk.0.ffn_up",
                                               [TOO_LARGE] = "too large"};
    char model_path[100], sidecar[100];
    snprintf(model_path, sizeof model_path, "%s.model", path);
    snprintf(sidecar, sizeof sidecar, "%s.sidecar", path);
    assert_true(tiny_gguf_write(model_path, tiny_preset("llama")));
    lk_model *plain = open_files(model_path, NULL, false), *model = NULL;
    struct adapter_data *data =
        malloc((size_t)plain->net->hp.n_layer * LK_N_ADAPTED * sizeof *data);
    for (int damage = NONE + 1; damage < N_DAMAGE; damage++) {
        lk_err err = {0};
        lk_model_opts opts = {.n_threads = 1, .sidecar = sidecar};
        write_damaged(plain, sidecar, data, (enum damage)damage);
        assert_int_equal(lk_model_open(&model, model_path, &opts, &err), LK_E_FORMAT);
        if (!strstr(err.msg, says[damage]) || strchr(err.msg, '\n'))
            fail_msg("damage %d: %s", damage, err.msg);
    }
    free(data);
    lk_model_free(plain);
    unlink(model_path), unlink(sidecar);
}

/* A session that was saved with adapters is not loaded without them, and the reverse. */
static void test_saved_sessions(void **unused) {
    char file[3][100];
    static const char *const ending[] = {"model", "sidecar", "session"};
    for (int i = 0; i < 3; i++) snprintf(file[i], sizeof file[i], "%s.%s", path, ending[i]);
    assert_true(tiny_gguf_write(file[0], tiny_preset("llama")));
    lk_model *model[2] = {open_files(file[0], NULL, false)};
    struct adapter_data *data =
        malloc((size_t)model[0]->net->hp.n_layer * LK_N_ADAPTED * sizeof *data);
    write_damaged(model[0], file[1], data, NONE);
    model[1] = open_files(file[0], file[1], false);
    int32_t tok[N_TOK];
    random_tokens(tok, N_TOK, model[0], 4);
    for (int saver = 0; saver < 2; saver++) {
        lk_recipe *recipe[3];
        lk_session *from = open_session(model[saver], "f16", N_TOK, &recipe[2]), *to[2];
        lk_err err = {0};
        assert_int_equal(lk_session_eval(from, tok, N_TOK, false, &err), LK_OK);
        assert_int_equal(lk_session_save(from, NULL, file[2], &err), LK_OK);
        for (int i = 0; i < 2; i++) {
            to[i] = open_session(model[i], "f16", N_TOK, &recipe[i]);
            assert_int_equal(lk_session_load(to[i], NULL, file[2], &err),
                             i == saver ? LK_OK : LK_E_FORMAT);
            lk_session_free(to[i]);
        }
        lk_session_free(from);
        for (int i = 0; i < 3; i++) lk_recipe_free(recipe[i]);
    }
    free(data);
    for (int i = 0; i < 2; i++) lk_model_free(model[i]);
    for (int i = 0; i < 3; i++) unlink(file[i]);
}

int main(void) {
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_steps),     cmocka_unit_test(test_resume),
        cmocka_unit_test(test_best),      cmocka_unit_test(test_rejected),
        cmocka_unit_test(test_merge),     cmocka_unit_test(test_reference),
        cmocka_unit_test(test_damaged),   cmocka_unit_test(test_saved_sessions),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
