/* Sessions that let rows go: equal to the full cache while nothing went, and flat in memory after. */
#include "engine/engine.h"
#include "model/blocks.h"
#include "support.h"
#include "support_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* limit: ggml reads gelu from a table at a half's precision, where another order of sums moves an activation
 * by as much as 2^-11 of itself. */
static const struct {
    const char *name;
    double limit;
} families[] = {{"llama", 1e-8}, {"qwen2", 1e-8}, {"gemma3", 0x1p-22}, {"bloom", 0x1p-22}};

/* While a recipe has room for all, it is the full cache but for the order of sums, over a prompt and steps. */
static void test_everything_kept(void **state) {
    (void)state;
    enum { N = 300, PROMPT = 200 };
    static const char *recipes[] = {"sink 4: f16; body: none; window 600: f16",
                                    "body: none; window 300: f16",
                                    "sink 4: f16; keep 600 by h2o; window 20: f16",
                                    "keep 100% by tova",
                                    "keep 300 by random",
                                    NULL};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        lk_model *model = open_preset(families[f].name, 1024, 1);
        int n_vocab = lk_model_get_info(model).n_vocab;
        int32_t tok[N];
        random_tokens(tok, N, model, 3);
        for (int i = 0; recipes[i]; i++) {
            lk_recipe *f16, *kept;
            lk_session *a = open_session(model, "f16", N, &f16),
                       *b = open_session(model, recipes[i], N, &kept);
            assert_int_equal(lk_session_sync(a, tok, PROMPT, NULL, NULL), LK_OK);
            assert_int_equal(lk_session_sync(b, tok, PROMPT, NULL, NULL), LK_OK);
            for (int at = PROMPT; at < N; at += 4) {
                assert_int_equal(lk_session_eval(a, tok + at, 4, false, NULL), LK_OK);
                assert_int_equal(lk_session_eval(b, tok + at, 4, false, NULL), LK_OK);
                double e = nmse(lk_session_logits(b, -1), lk_session_logits(a, -1), n_vocab);
                if (!(e < families[f].limit))
                    fail_msg("%s, %s: token %d: nmse %g", families[f].name, recipes[i], at, e);
            }
            lk_session_free(a), lk_session_free(b);
            lk_recipe_free(f16), lk_recipe_free(kept);
        }
        lk_model_free(model);
    }
}

/* Thousands of tokens through a small cache: memory is what it was, and the ledger knows. */
static void test_memory_is_flat(void **state) {
    (void)state;
    enum { N = 4000, SETTLED = 700 };
    static const char *recipes[] = {
        "lambda", "sink 4: f16; body: none; recent 128: rot4; window 64: f16",
        "sink 4: f16; keep 128 by h2o: rot4; window 64: f16", "keep 100 by tova", NULL};
    lk_model *model = open_preset("llama", 1024, 1);
    int32_t tok[N];
    random_tokens(tok, N, model, 4);
    for (int i = 0; recipes[i]; i++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[i], N, &recipe);
        assert_int_equal(lk_session_sync(s, tok, 400, NULL, NULL), LK_OK);
        uint64_t most = 0;
        for (int at = 400; at < N; at++) {
            assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
            uint64_t bytes = lk_session_get_stats(s).cache_bytes;
            assert_int_equal(bytes, lk_ledger_bytes(&s->ledger, LK_FOR_CACHE));
            if (at < SETTLED && most < bytes) most = bytes;
            if (at >= SETTLED && bytes > most)
                fail_msg("%s: %d tokens: %d bytes, not %d", recipes[i], at, (int)bytes, (int)most);
        }
        assert_int_equal(lk_session_n_tok(s), N);
        /* What was let go cannot be had back: another text is read anew. */
        size_t reused = 1;
        assert_int_equal(lk_session_sync(s, tok, 300, &reused, NULL), LK_OK);
        assert_int_equal(reused, 0);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* Once memory is reserved, steps ask the ledger for nothing. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    enum { PROMPT = 300, N = 500 };
    static const char *recipes[] = {"h2o", "tova", "streaming",
                                    "keep 20% by h2o: rot4; window 32: f16", NULL};
    lk_model *model = open_preset("llama", 1024, 1);
    int32_t tok[N];
    random_tokens(tok, N, model, 6);
    for (int i = 0; recipes[i]; i++) {
        lk_recipe *recipe;
        lk_session *s = open_session(model, recipes[i], N, &recipe);
        assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
        assert_int_equal(lk_session_eval(s, tok + PROMPT, 1, false, NULL),
                         LK_OK); /* builds the graph */
        assert_int_equal(lk_session_reserve(s, N - PROMPT - 1, NULL), LK_OK);
        uint64_t n_alloc = s->ledger.n_alloc;
        for (int at = PROMPT + 1; at < N; at++)
            assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
        if (s->ledger.n_alloc != n_alloc)
            fail_msg("%s: %d allocations", recipes[i], (int)(s->ledger.n_alloc - n_alloc));
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* ---- which rows stay, from real attention ---- */

/* In a model of one layer rows do not depend on what the cache kept, so a full cache beside it has them all,
 * and each policy can be followed over exact softmaxes of what should be held. */
struct account {
    lk_session *full;
    int n_head, n_head_kv, d, n_tok, keep, window;
    double *score; /* [n_head_kv][n_ctx] */
    bool *held;    /* [n_head_kv][n_ctx] */
    int n_ctx;
    float *q;  /* [512][n_head][d] of the call under way */
    bool last; /* tova: the last query decides, for all heads together */
};

static void see(void *user, int layer, const struct lk_attn *attn) {
    struct account *a = user;
    assert_int_equal(layer, 0);
    memcpy(a->q, attn->q, (size_t)attn->n_tok * attn->n_head * attn->d_head * sizeof *a->q);
}

/* K row of the full cache. */
static void key(const struct account *a, int head, int pos, float *x) {
    const struct lk_kv *k = &a->full->cache->kv[0][LK_K];
    int row;
    int64_t n;
    const char *block = lk_cache_locate(k, 0, pos, &row, &n);
    lk_codec_decode(&k->rule[0].codec, LK_K, a->d, k->rule[0].block_rows, NULL,
                    block + head * k->level[0].head_bytes, row, 1, x, a->d);
}

/* The newest n tokens attend, the prompt's each to all before it and later ones to what is held. */
static void attend(struct account *a, int n, float scale) {
    int group = a->n_head / a->n_head_kv;
    double *w = malloc(a->n_ctx * sizeof *w);
    float x[LK_MAX_D_HEAD];
    for (int t = a->last ? n - 1 : 0; t < n; t++)
        for (int h = 0; h < a->n_head; h++) {
            int head = h / group, own = a->n_tok - n + t;
            const bool *held = a->held + head * a->n_ctx;
            double max = -1e30, sum = 0, *score = a->score + head * a->n_ctx;
            if (a->last && h % group == 0) memset(score, 0, a->n_ctx * sizeof *score);
            for (int pos = 0; pos <= own; pos++) {
                if (!held[pos]) continue;
                key(a, head, pos, x);
                w[pos] = 0;
                for (int c = 0; c < a->d; c++)
                    w[pos] += (double)a->q[((size_t)t * a->n_head + h) * a->d + c] * x[c];
                w[pos] *= scale;
                if (w[pos] > max) max = w[pos];
            }
            for (int pos = 0; pos <= own; pos++)
                if (held[pos]) sum += exp(w[pos] - max);
            for (int pos = 0; pos <= own; pos++)
                if (held[pos]) score[pos] += exp(w[pos] - max) / sum;
        }
    free(w);
}

static double worth(const struct account *a, int head, int pos) {
    double sum = 0;
    if (!a->last) return a->score[head * a->n_ctx + pos];
    for (int h = 0; h < a->n_head_kv; h++) sum += a->score[h * a->n_ctx + pos];
    return sum;
}

/* Those that stay: the window, and of the others the `keep` worthiest. */
static void reduce(struct account *a) {
    for (int head = 0; head < a->n_head_kv; head++) {
        bool *held = a->held + head * a->n_ctx;
        for (;;) {
            int n = 0, least = -1;
            for (int pos = 0; pos < a->n_tok - a->window; pos++) {
                if (!held[pos]) continue;
                n++;
                if (least < 0 || worth(a, head, pos) < worth(a, head, least)) least = pos;
            }
            if (n <= a->keep) break;
            held[least] = false;
        }
    }
}

static void compare(const struct account *a, const lk_session *s, const char *text) {
    const struct lk_evict *evict = &s->cache->evict[0];
    assert_int_equal(evict->n, a->n_tok < a->keep + a->window ? a->n_tok : a->keep + a->window);
    for (int64_t i = 0; i < evict->n * evict->n_head; i++)
        if (!a->held[i % evict->n_head * a->n_ctx + evict->pos[i]])
            fail_msg("%s: %d tokens: head %d holds %d", text, a->n_tok, (int)(i % evict->n_head),
                     evict->pos[i]);
}

static void test_real_attention_decides(void **state) {
    (void)state;
    enum { PROMPT = 90, N = 260, KEEP = 30, WINDOW = 12 };
    static const char *recipes[] = {"keep 30 by h2o; window 12: f16",
                                    "keep 30 by tova; window 12: f16", NULL};
    struct tiny_spec spec = *tiny_preset("llama");
    lk_model_opts opts = {.n_threads = 1};
    spec.n_layer = 1;
    spec.n_ctx = 512;
    lk_model *model = open_tiny(&spec, &opts);
    int32_t tok[N];
    random_tokens(tok, N, model, 9);
    for (int i = 0; recipes[i]; i++) {
        lk_recipe *f16, *recipe;
        struct account a = {.full = open_session(model, "f16", N, &f16),
                            .n_ctx = N,
                            .keep = KEEP,
                            .window = WINDOW,
                            .last = i == 1};
        lk_session *s = open_session(model, recipes[i], N, &recipe);
        a.n_head = s->pass.attn.n_head, a.n_head_kv = s->pass.attn.n_head_kv,
        a.d = s->pass.attn.d_head;
        a.score = calloc((size_t)a.n_head_kv * N, sizeof *a.score);
        a.held = calloc((size_t)a.n_head_kv * N, sizeof *a.held);
        a.q = malloc((size_t)512 * a.n_head * a.d * sizeof *a.q);
        s->watch = (struct lk_watch){see, &a};
        while (a.n_tok < N) {
            int n = a.n_tok ? 1 : PROMPT;
            if (a.n_tok)
                assert_int_equal(lk_session_eval(s, tok + a.n_tok, 1, false, NULL), LK_OK);
            else
                assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
            assert_int_equal(lk_session_eval(a.full, tok + a.n_tok, n, false, NULL), LK_OK);
            for (int j = 0; j < n * a.n_head_kv; j++) a.held[j / n * N + a.n_tok + j % n] = true;
            a.n_tok += n;
            attend(&a, n, s->pass.attn.scale);
            reduce(&a);
            compare(&a, s, recipes[i]);
        }
        free(a.score), free(a.held), free(a.q);
        lk_session_free(s), lk_session_free(a.full);
        lk_recipe_free(f16), lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* ---- positions counted within the cache ---- */

/* A query that ggml turned for one position, turned back, is what ggml makes for the earlier one. */
static void test_turning_back(void **state) {
    (void)state;
    enum { HEADS = 3 };
    struct random r = {12};
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        if (spec->type != GGML_TYPE_F32) continue;
        lk_model *model = open_tiny(spec, NULL);
        const struct lk_hparams *hp = &model->net->hp;
        if (hp->rope_mode < 0) {
            lk_model_free(model);
            continue;
        }
        struct lk_rope_view view = {.set = false};
        lk_rope_view_move(&model->rope[0], &view, 900 - 313);
        float q[HEADS * LK_MAX_D_HEAD];
        for (int i = 0; i < HEADS * hp->d_head; i++) q[i] = random_gauss(&r);
        static const int32_t pos[2] = {900, 313};
        float out[2][HEADS * LK_MAX_D_HEAD];
        for (int i = 0; i < 2; i++) {
            struct lk_graph g = {0};
            struct lk_ledger ledger = {0};
            assert_int_equal(lk_graph_begin(&g, 16, &ledger, NULL), LK_OK);
            struct ggml_tensor *x = ggml_new_tensor_3d(g.ctx, GGML_TYPE_F32, hp->d_head, HEADS, 1);
            g.pos = ggml_new_tensor_1d(g.ctx, GGML_TYPE_I32, 1);
            ggml_set_input(x);
            ggml_set_input(g.pos);
            g.x_out =
                ggml_rope_ext(g.ctx, x, g.pos, model->net->rope_factors, hp->n_rot, hp->rope_mode,
                              hp->n_ctx_orig, hp->rope_base, hp->rope_scale, hp->yarn_ext_factor,
                              hp->yarn_attn_factor, hp->yarn_beta_fast, hp->yarn_beta_slow);
            ggml_set_output(g.x_out);
            ggml_build_forward_expand(g.graph, g.x_out);
            assert_int_equal(lk_graph_finish(&g, &ledger, NULL), LK_OK);
            memcpy(x->data, q, ggml_nbytes(x));
            lk_graph_set_positions(&g, 0, (size_t)pos[i], 1);
            assert_int_equal(lk_graph_run(&g, model, NULL), LK_OK);
            memcpy(out[i], g.x_out->data, ggml_nbytes(g.x_out));
            lk_graph_free(&g, &ledger);
        }
        float back[HEADS * LK_MAX_D_HEAD];
        for (int h = 0; h < HEADS; h++)
            lk_rope_view_apply(&model->rope[0], &view, out[0] + h * hp->d_head, hp->d_head,
                               back + h * hp->d_head);
        double e = nmse(back, out[1], (size_t)HEADS * hp->d_head);
        if (!(e < 1e-8)) fail_msg("%s: nmse %g", spec->name, e);
        lk_model_free(model);
    }
}

/* In a model of one layer, sinks that shift and a window are what a full cache makes of these tokens alone. */
static void test_shifted_sinks(void **state) {
    (void)state;
    enum { N = 400, SINKS = 4, WINDOW = 60 };
    static const char *kinds[] = {"llama", "qwen2", "bloom", NULL};
    for (int i = 0; kinds[i]; i++) {
        struct tiny_spec spec = *tiny_preset(kinds[i]);
        lk_model_opts opts = {.n_threads = 1};
        spec.n_layer = 1;
        spec.n_ctx = 512;
        lk_model *model = open_tiny(&spec, &opts);
        int n_vocab = lk_model_get_info(model).n_vocab;
        int32_t tok[N], alone[SINKS + WINDOW + 1];
        random_tokens(tok, N, model, 9);
        lk_recipe *shifted, *fixed, *f16;
        lk_session *s =
            open_session(model, "sink 4(shift): f16; body: none; window 60: f16", N, &shifted);
        lk_session *t = open_session(model, "sink 4: f16; body: none; window 60: f16", N, &fixed);
        lk_session *full = open_session(model, "f16", N, &f16);
        for (int at = 0; at < N; at++) {
            assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
            assert_int_equal(lk_session_eval(t, tok + at, 1, false, NULL), LK_OK);
        }
        memcpy(alone, tok, SINKS * sizeof *tok);
        memcpy(alone + SINKS, tok + N - WINDOW - 1, (WINDOW + 1) * sizeof *tok);
        assert_int_equal(lk_session_eval(full, alone, SINKS + WINDOW + 1, false, NULL), LK_OK);
        double e = nmse(lk_session_logits(s, -1), lk_session_logits(full, -1), n_vocab);
        double other = nmse(lk_session_logits(t, -1), lk_session_logits(full, -1), n_vocab);
        print_message("%s: nmse %.2g shifted, %.2g not\n", kinds[i], e, other);
        if (!(e < 1e-6 && e * 100 < other))
            fail_msg("%s: nmse %g, without the shift %g", kinds[i], e, other);
        lk_session_free(s), lk_session_free(t), lk_session_free(full);
        lk_recipe_free(shifted), lk_recipe_free(fixed), lk_recipe_free(f16);
        lk_model_free(model);
    }
    lk_err err = {0};
    lk_recipe *recipe;
    lk_session *s;
    lk_model *model = open_preset("gpt2", 0, 1);
    assert_int_equal(lk_recipe_parse(&recipe, "streaming", NULL), LK_OK);
    assert_int_equal(lk_session_new(&s, model, recipe, NULL, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "learned positions"));
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_kept),
        cmocka_unit_test(test_memory_is_flat),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_real_attention_decides),
        cmocka_unit_test(test_turning_back),
        cmocka_unit_test(test_shifted_sinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
