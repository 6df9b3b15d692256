/* The layer that predicts further tokens: its logits against libllama's, whatever way the session
 * came to its text; and that drafting with it changes neither a session nor an answer. */
#include "engine/draft_mtp.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "support.h"
#include "support_model.h"
#include "support_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CTX = 640, N_STEP = 4 };

static lk_model *open_mtp(const char *preset, int n_threads) {
    struct tiny_spec spec = *tiny_preset(preset);
    spec.n_ctx = CTX;
    return open_tiny(&spec, &(lk_model_opts){.n_threads = n_threads, .mtp = true});
}

/* ---- libllama ---- */

struct reference {
    struct oracle all, layer; /* the whole model, and a context for the layer alone */
    struct llama_batch_ext *batch;
    int n_embd;
};

static void open_reference(struct reference *r, const char *path) {
    struct llama_model_params params = llama_model_default_params();
    params.load_mtp = true;
    struct llama_model *model = llama_model_load_from_file(path, params);
    assert_non_null(model);
    assert_true(oracle_open(&r->all, NULL, model, CTX, GGML_TYPE_F16, GGML_TYPE_F16, false, 2));
    llama_set_embeddings(r->all.ctx, true);
    struct llama_context_params layer = llama_context_default_params();
    layer.n_ctx = layer.n_batch = layer.n_ubatch = CTX;
    layer.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    layer.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    r->layer = (struct oracle){.model = model, .ctx = llama_init_from_model(model, layer)};
    assert_non_null(r->layer.ctx);
    r->n_embd = llama_model_n_embd(model);
    r->batch = llama_batch_ext_init(r->layer.ctx);
    assert_non_null(r->batch);
}

static void close_reference(struct reference *r) {
    llama_batch_ext_free(r->batch);
    oracle_close(&r->layer, false);
    oracle_close(&r->all, true);
}

/* Evaluate the layer for n tokens from position pos on, h [n][n_embd]: the last one's logits. */
static const float *reference_layer(struct reference *r, const int32_t *tok, const float *h, int n,
                                    int pos) {
    llama_batch_ext_clear(r->batch);
    for (int i = 0; i < n; i++) {
        llama_pos at = pos + i;
        int32_t row = llama_batch_ext_add_token(r->batch, 0, tok[i]);
        struct llama_embd state = {h + (size_t)i * r->n_embd, 1, (size_t)r->n_embd};
        assert_true(row == i && llama_batch_ext_set_embd_token(r->batch, row, state));
        assert_true(llama_batch_ext_set_pos(r->batch, row, &at));
        assert_true(llama_batch_ext_set_output_logits(r->batch, row, i == n - 1));
    }
    assert_int_equal(llama_process(r->layer.ctx, LLAMA_PROCESS_TYPE_DECODE, r->batch), 0);
    return llama_get_logits_ith(r->layer.ctx, n - 1);
}

/* ---- the session ---- */

/* The logits of N_STEP steps after the session's text, for tokens tok: [N_STEP][n_vocab]. hidden
 * [N_STEP][n_embd]: what the layer gets in each step; may be NULL. */
static void run_steps(lk_session *s, const int32_t *tok, float *logits, float *hidden) {
    struct lk_draft_mtp *d = NULL;
    lk_err err = {0};
    size_t n_vocab = (size_t)s->model->net->hp.n_vocab, n_embd = (size_t)s->model->net->hp.n_embd;
    if (lk_draft_mtp_new(&d, s, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(lk_draft_mtp_begin(d, s, N_STEP), N_STEP);
    for (int i = 0; i < N_STEP; i++) {
        if (hidden) memcpy(hidden + i * n_embd, d->hidden, n_embd * sizeof *hidden);
        const float *x = lk_draft_mtp_step(d, s, tok[i]);
        assert_non_null(x);
        memcpy(logits + i * n_vocab, x, n_vocab * sizeof *x);
    }
    lk_draft_mtp_end(s);
    lk_draft_mtp_free(d);
}

/* Bring a session to the first n tokens in one of several ways. */
enum way { PREFILL, CHUNKED, SINGLE_TOKENS, PASSES, BATCH, CHECKPOINT, COPY, SAVED, N_WAY };

/* Evaluate the tokens after the session's, in a batch with another session. */
static void eval_in_batch(lk_session *s, lk_session *other, const int32_t *tok, size_t n) {
    lk_batch *batch = NULL;
    assert_int_equal(lk_batch_new(&batch, s->model, NULL), LK_OK);
    for (size_t part = 1; s->n_tok < n; part = part % 5 + 1) {
        if (part > n - s->n_tok) part = n - s->n_tok;
        lk_batch_item item[] = {
            {.session = other, .tok = tok + s->n_tok / 2, .n_tok = part % 3 + 1},
            {.session = s, .tok = tok + s->n_tok, .n_tok = part, .all = part % 2},
        };
        assert_int_equal(lk_batch_eval(batch, item, 2, NULL), LK_OK);
        assert_int_equal(item[0].err.code, LK_OK);
        assert_int_equal(item[1].err.code, LK_OK);
    }
    lk_batch_free(batch);
}

static lk_session *reach(enum way way, lk_model *model, const lk_recipe *recipe, const int32_t *tok,
                         size_t n) {
    lk_session_opts opts = {.n_ctx = CTX, .chunked_prefill = way == CHUNKED, .n_checkpoint = 4};
    lk_session *s = NULL, *from = NULL;
    lk_err err = {0};
    int32_t pass[8];
    if (lk_session_new(&s, model, recipe, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    if (way == SINGLE_TOKENS || way == PASSES || way == CHECKPOINT) {
        size_t first = way == CHECKPOINT ? n - 5 : 20;
        assert_int_equal(lk_session_sync(s, tok, first, NULL, NULL), LK_OK);
        if (way == CHECKPOINT) /* goes back to it below */
            assert_int_equal(lk_session_eval(s, (int32_t[]){1, 2, 3}, 3, false, NULL), LK_OK);
        if (way == CHECKPOINT) assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
        while (s->n_tok < n) {
            size_t n_pass = way == PASSES ? lk_session_draftable(s, 8, NULL) : 1;
            size_t n_keep = (n_pass + 1) / 2, held = s->n_tok;
            if (n_keep > n - held) n_keep = n - held;
            random_tokens(pass, 8, model, held);
            memcpy(pass, tok + held, n_keep * sizeof *pass);
            assert_int_equal(lk_session_eval(s, pass, n_pass, true, NULL), LK_OK);
            assert_int_equal(lk_session_truncate(s, held + n_keep, NULL), LK_OK);
        }
    } else if (way == BATCH) {
        assert_int_equal(lk_session_sync(s, tok, 20, NULL, NULL), LK_OK);
        from = reach(PREFILL, model, recipe, tok + 3, 30);
        eval_in_batch(s, from, tok, n);
        lk_session_free(from);
    } else if (way == PREFILL || way == CHUNKED) {
        assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
    } else {
        char path[] = "/tmp/lowkey-mtp-XXXXXX";
        from = reach(PREFILL, model, recipe, tok, n);
        if (way == COPY) {
            assert_int_equal(lk_session_copy(s, from, NULL), LK_OK);
        } else {
            close(mkstemp(path));
            assert_int_equal(lk_session_save(from, NULL, path, NULL), LK_OK);
            if (lk_session_load(s, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
            unlink(path);
        }
        lk_session_free(from);
    }
    assert_int_equal(s->n_tok, n);
    return s;
}

/* The layer's logits after texts of several lengths are libllama's. */
static void logits_are_those_of_libllama(void **state) {
    static const int lengths[] = {1, 2, 47, 530};
    struct tiny_spec spec = *tiny_preset(*state);
    char path[] = "/tmp/lowkey-mtp-XXXXXX";
    lk_model *model = NULL;
    lk_err err = {0};
    struct reference r = {0};
    spec.n_ctx = CTX;
    close(mkstemp(path));
    assert_true(tiny_gguf_write(path, &spec));
    lk_model_opts opts = {.n_threads = 2, .mtp = true};
    if (lk_model_open(&model, path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
    open_reference(&r, path);
    unlink(path);
    size_t n_vocab = (size_t)model->net->hp.n_vocab, n_embd = (size_t)r.n_embd;
    float *h = calloc((CTX + 1) * n_embd, sizeof *h);
    float *logits = calloc(N_STEP * n_vocab, sizeof *logits),
          *hidden = calloc(N_STEP * n_embd, sizeof *hidden);
    double worst = 0;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int way = 0; way < N_WAY; way++) {
            lk_recipe *recipe = NULL;
            int32_t tok[CTX];
            int n = lengths[k];
            if (n < 40 && way != PREFILL && way != CHUNKED) continue;
            random_tokens(tok, CTX, model, k);
            oracle_clear(&r.all);
            oracle_clear(&r.layer);
            for (int i = 0, part; i < n; i += part) { /* row i + 1: after token i */
                part = n - i < 512 ? n - i : 512;
                assert_non_null(oracle_eval(&r.all, tok + i, part, i));
                for (int t = 0; t < part; t++)
                    memcpy(h + (size_t)(i + t + 1) * n_embd, llama_get_embeddings_ith(r.all.ctx, t),
                           n_embd * sizeof *h);
            }
            reference_layer(&r, tok, h, n, 0);
            assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
            lk_session *s = reach(way, model, recipe, tok, (size_t)n);
            run_steps(s, tok + n, logits, hidden);
            for (int i = 0; i < N_STEP; i++) {
                const float *from = i ? hidden + i * n_embd : h + (size_t)n * n_embd;
                const float *ref = reference_layer(&r, tok + n + i, from, 1, n + i);
                double e = nmse(logits + i * n_vocab, ref, n_vocab);
                if (e > worst) worst = e;
                if (!(e <= 1e-5)) fail_msg("%d tokens, way %d, step %d: NMSE %g", n, way, i, e);
            }
            lk_session_free(s);
            lk_recipe_free(recipe);
        }
    print_message("%s: NMSE at most %.1e\n", spec.name, worst);
    free(h);
    free(logits);
    free(hidden);
    close_reference(&r);
    lk_model_free(model);
}

/* ---- drafting ---- */

/* Both sessions hold the same, to the bit. */
static void assert_twins(const lk_session *s, const lk_session *twin) {
    assert_same_logits(s, twin, "a session that drafts");
    assert_memory_equal(s->recurrent, twin->recurrent, lk_recurrent_bytes(&s->model->net->hp));
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) {
        const struct lk_kv *a = lk_cache_kv(s->cache, k), *b = lk_cache_kv(twin->cache, k);
        assert_int_equal(a->n_tok, b->n_tok);
        assert_memory_equal(a->count, b->count, sizeof a->count);
        const struct lk_equalizer *x = &a->equalizer[0], *y = &b->equalizer[0];
        if (x->query_power)
            assert_memory_equal(x->query_power, y->query_power,
                                (size_t)x->n_part * x->stride * sizeof(float));
    }
}

static void eval_and_cut(lk_session *s, const int32_t *pass, size_t n, size_t n_keep) {
    lk_err err = {0};
    if (lk_session_eval(s, pass, n, true, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_truncate(s, s->n_tok - (n - n_keep), &err) != LK_OK) fail_msg("%s", err.msg);
}

/* Decode n tokens, with drafts if there is a drafter. Passes take one second each. A twin gets the
 * same passes, but does not draft. */
static lk_draft_stats decode(lk_session *s, lk_session *twin, lk_sampler *sampler,
                             lk_drafter *drafter, size_t n, int32_t *out) {
    int32_t pass[LK_DRAFT_MAX], tok;
    lk_err err = {0};
    assert_int_equal(lk_sampler_next(sampler, s, -1, &pass[0], &err), LK_OK);
    for (size_t n_out = 0; n_out < n;) {
        size_t n_pass = drafter ? lk_drafter_next(drafter, pass, 8, 0) : 1, n_kept = 0;
        if (lk_session_eval(s, pass, n_pass, true, &err) != LK_OK) fail_msg("%s", err.msg);
        do {
            out[n_out++] = pass[n_kept++];
            assert_int_equal(lk_sampler_next(sampler, s, (int32_t)n_kept - 1, &tok, &err), LK_OK);
        } while (n_kept < n_pass && tok == pass[n_kept] && n_out < n);
        assert_int_equal(lk_session_truncate(s, s->n_tok - (n_pass - n_kept), &err), LK_OK);
        if (twin) {
            eval_and_cut(twin, pass, n_pass, n_kept);
            assert_twins(s, twin);
        }
        if (drafter) lk_drafter_report(drafter, n_pass, n_kept, 0, 1);
        pass[0] = tok;
    }
    return drafter ? lk_drafter_get_stats(drafter) : (lk_draft_stats){0};
}

/* Answers are those of the model without the layer, greedy and sampled. */
static void answers_are_the_same(void **state) {
    static const char *const presets[] = {"qwen35-echo", "qwen35-mtp", "qwen35moe-mtp",
                                          "qwen3next-mtp"};
    static const char *const recipes[] = {"f16", "best-4", "best-2", "body: rot4; window 40: f16",
                                          "sink 4: f16; body: rot4; window 8: f16; read 50%"};
    static const lk_sampler_opts samplers[] = {{0}, {.temperature = 1, .seed = 3}};
    enum { N = 120, PROMPT = 40 };
    (void)state;
    for (size_t m = 0; m < sizeof presets / sizeof *presets; m++) {
        lk_model *model[2] = {open_preset(presets[m], CTX, 2), open_mtp(presets[m], 2)};
        lk_draft_stats all = {0};
        for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++)
            for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++) {
                int32_t prompt[PROMPT], out[2][N];
                if (!case_runs(k + i + m)) continue;
                random_tokens(prompt, PROMPT, model[0], k);
                for (int mtp = 0; mtp < 2; mtp++) {
                    lk_recipe *recipe;
                    lk_session *s = open_session(model[mtp], recipes[k], CTX, &recipe);
                    lk_sampler *sampler = NULL;
                    lk_drafter *drafter = NULL;
                    assert_int_equal(lk_sampler_new(&sampler, model[mtp], &samplers[i], NULL),
                                     LK_OK);
                    assert_int_equal(lk_session_sync(s, prompt, PROMPT, NULL, NULL), LK_OK);
                    lk_session *twin = mtp ? reach(COPY, model[1], recipe, prompt, PROMPT) : NULL;
                    if (mtp) assert_int_equal(lk_drafter_new(&drafter, s, NULL), LK_OK);
                    lk_draft_stats stats = decode(s, twin, sampler, drafter, N, out[mtp]);
                    all.n_drafted += stats.n_drafted;
                    all.n_accepted += stats.n_accepted;
                    lk_drafter_free(drafter);
                    lk_sampler_free(sampler);
                    lk_session_free(twin);
                    lk_session_free(s);
                    lk_recipe_free(recipe);
                }
                for (int t = 0; t < N; t++)
                    if (out[0][t] != out[1][t])
                        fail_msg("%s, %s, sampler %zu: token %d differs", presets[m], recipes[k], i,
                                 t);
            }
        print_message("%s: %d drafts, %d right\n", presets[m], (int)all.n_drafted,
                      (int)all.n_accepted);
        uint64_t share = case_runs(1) ? 1 : 5; /* of the cases */
        if (m == 0) assert_true(share * all.n_accepted > 300 && all.n_drafted > all.n_accepted);
        lk_model_free(model[0]);
        lk_model_free(model[1]);
    }
}

/* After lk_session_reserve, drafting and passes allocate nothing; and the reservation is still for
 * all its tokens. What a drafter holds is within its bound. */
static void memory_is_reserved_and_bounded(void **state) {
    (void)state;
    static const char *const recipes[] = {"f16", "best-4", "selective"};
    enum { N = 100 };
    lk_model *model = open_mtp("qwen35-echo", 2);
    for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[k], CTX, &recipe);
        lk_sampler *sampler = NULL;
        lk_drafter *drafter = NULL;
        int32_t tok[300], out[N];
        uint64_t held = 0, now = 0;
        random_tokens(tok, 300, model, 5);
        assert_int_equal(lk_session_sync(s, tok, 300, NULL, NULL), LK_OK);
        for (int i = 0; i < LK_N_PURPOSE; i++) held += lk_ledger_bytes(&model->ledger, i);
        assert_int_equal(lk_drafter_new(&drafter, s, NULL), LK_OK);
        for (int i = 0; i < LK_N_PURPOSE; i++) now += lk_ledger_bytes(&model->ledger, i);
        assert_true(now > held && now - held <= lk_drafter_bytes(model, CTX, 1));
        assert_int_equal(lk_sampler_new(&sampler, model, NULL, NULL), LK_OK);
        decode(s, NULL, sampler, drafter, 80, out); /* scratch memory of each size */
        assert_int_equal(lk_session_reserve(s, N + 20, NULL), LK_OK);
        uint64_t n_alloc = atomic_load(&s->ledger.n_alloc) + atomic_load(&model->ledger.n_alloc);
        decode(s, NULL, sampler, drafter, N, out);
        assert_int_equal(atomic_load(&s->ledger.n_alloc) + atomic_load(&model->ledger.n_alloc),
                         n_alloc);
        assert_true(s->cache->reserved > 0);
        lk_drafter_free(drafter);
        lk_sampler_free(sampler);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* The layer's rows are a part of the plan, and a limit holds with them. */
static void rows_are_planned(void **state) {
    (void)state;
    lk_model *model = open_mtp("qwen35-mtp", 1), *plain = open_preset("qwen35-mtp", CTX, 1);
    lk_recipe *recipe;
    lk_plan plan[2];
    lk_session_opts opts = {.n_ctx = CTX};
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 1);
    lk_session *s = open_session(model, "best-4", CTX, &recipe);
    assert_int_equal(lk_plan_make(plain, recipe, &opts, &plan[0], NULL), LK_OK);
    assert_int_equal(lk_plan_make(model, recipe, &opts, &plan[1], NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, CTX, NULL, NULL), LK_OK);
    uint64_t bytes = lk_session_get_stats(s).cache_bytes;
    assert_true(plan[1].f16_bytes == 2 * plan[0].f16_bytes); /* one layer has attention */
    assert_true(bytes <= plan[1].cache_bytes + plan[1].cache_bytes / 32 &&
                bytes > plan[0].cache_bytes);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
    lk_model_free(plain);
}

/* ---- refusals ---- */

struct refusal {
    const char *preset;
    int n_next; /* -1: as in the preset */
    const char *reason;
};

static void set_layers(struct gguf_context *gguf, void *user) {
    const struct refusal *refusal = user;
    char key[64];
    snprintf(key, sizeof key, "%s.nextn_predict_layers", tiny_preset(refusal->preset)->arch);
    if (refusal->n_next >= 0) gguf_set_val_u32(gguf, key, (uint32_t)refusal->n_next);
}

static void files_without_the_layer_are_refused(void **state) {
    (void)state;
    static const struct refusal refusals[] = {
        {"llama", -1, "no layer that predicts"},
        {"llama", 1, "not supported for llama"},
        {"qwen35", -1, "no layer that predicts"},
        {"qwen35", 1, "blk.4.attn_q.weight"},
        {"qwen35moe-mtp", 0, "no layer that predicts"},
        {"qwen3next-mtp", 2, "one is supported"},
        {"qwen35-mtp", 5, "all 5 layers"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char path[] = "/tmp/lowkey-mtp-XXXXXX";
        struct refusal refusal = refusals[i];
        lk_model *model = NULL;
        lk_model_opts opts = {.n_threads = 1, .mtp = true};
        lk_err err = {0};
        close(mkstemp(path));
        assert_true(
            tiny_gguf_write_edited(path, tiny_preset(refusal.preset), set_layers, &refusal));
        lk_status status = lk_model_open(&model, path, &opts, &err);
        unlink(path);
        if (status == LK_OK || !strstr(err.msg, refusal.reason))
            fail_msg("%s, %d: %s", refusal.preset, refusal.n_next, status ? err.msg : "opened");
    }
}

/* A layer with attention, but without the tensors for predictions. */
static void incomplete_layers_are_refused(void **state) {
    (void)state;
    struct tiny_spec spec = *tiny_preset("qwen35");
    char path[] = "/tmp/lowkey-mtp-XXXXXX";
    struct refusal refusal = {"qwen35", 1, NULL};
    lk_model *model = NULL;
    lk_model_opts opts = {.n_threads = 1, .mtp = true};
    lk_err err = {0};
    spec.n_layer = 8; /* the last one has attention */
    close(mkstemp(path));
    assert_true(tiny_gguf_write_edited(path, &spec, set_layers, &refusal));
    assert_int_equal(lk_model_open(&model, path, &opts, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "blk.7.nextn.eh_proj.weight [640, 320]"));
    unlink(path);
}

/* A saved session says whether it has the layer. */
static void saved_sessions_are_told_apart(void **state) {
    (void)state;
    char path[] = "/tmp/lowkey-mtp-XXXXXX", model_path[] = "/tmp/lowkey-mtp-XXXXXX";
    close(mkstemp(path));
    close(mkstemp(model_path));
    assert_true(tiny_gguf_write(model_path, tiny_preset("qwen35-mtp")));
    for (int saved = 0; saved < 2; saved++) {
        lk_model *model[2] = {0};
        lk_session *s[2];
        lk_recipe *recipe[2];
        lk_err err = {0};
        for (int i = 0; i < 2; i++) {
            lk_model_opts opts = {.n_threads = 1, .mtp = i == saved};
            assert_int_equal(lk_model_open(&model[i], model_path, &opts, NULL), LK_OK);
            s[i] = open_session(model[i], "best-4", 0, &recipe[i]);
        }
        int32_t tok[30];
        random_tokens(tok, 30, model[0], 1);
        assert_int_equal(lk_session_sync(s[0], tok, 30, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_save(s[0], NULL, path, NULL), LK_OK);
        assert_int_equal(lk_session_load(s[1], NULL, path, &err), LK_E_FORMAT);
        assert_non_null(strstr(err.msg, saved ? "without --draft mtp" : "with --draft mtp"));
        for (int i = 0; i < 2; i++) {
            lk_session_free(s[i]);
            lk_recipe_free(recipe[i]);
            lk_model_free(model[i]);
        }
    }
    unlink(path);
    unlink(model_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(logits_are_those_of_libllama, (void *)"qwen35-mtp"),
        cmocka_unit_test_prestate(logits_are_those_of_libllama, (void *)"qwen35-echo"),
        cmocka_unit_test_prestate(logits_are_those_of_libllama, (void *)"qwen35moe-mtp"),
        cmocka_unit_test_prestate(logits_are_those_of_libllama, (void *)"qwen3next-mtp"),
        cmocka_unit_test(answers_are_the_same),
        cmocka_unit_test(memory_is_reserved_and_bounded),
        cmocka_unit_test(rows_are_planned),
        cmocka_unit_test(files_without_the_layer_are_refused),
        cmocka_unit_test(incomplete_layers_are_refused),
        cmocka_unit_test(saved_sessions_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
