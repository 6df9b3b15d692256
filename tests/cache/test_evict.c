/* Sessions that evict rows: equal to the full cache while nothing is evicted, constant memory
 * afterwards. */
#include "engine/session_state.h"
#include "model/blocks.h"
#include "support_model.h"
#include "test.h"

/* limit: ggml reads gelu from an f16 table. There another order of sums changes an activation by up
 * to 2^-11 of itself. */
static const struct {
    const char *name;
    double limit;
} families[] = {{"llama", 1e-8}, {"qwen2", 1e-8}, {"gemma3", 0x1p-22}, {"bloom", 0x1p-22}};

/* While a recipe has room for all rows, it equals the full cache up to the order of sums, over a
 * prompt and decoding steps. */
static void test_equals_full_cache(void **state) {
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

/* Thousands of tokens in a small cache: memory stays constant and matches the ledger. */
static void test_memory_is_constant(void **state) {
    enum { N = 4000, STEADY = 700 };
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
        uint64_t max = 0;
        for (int at = 400; at < N; at++) {
            assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
            uint64_t bytes = lk_session_get_stats(s).cache_bytes;
            assert_int_equal(bytes, lk_ledger_bytes(&s->ledger, LK_FOR_CACHE));
            if (at < STEADY && max < bytes) max = bytes;
            if (at >= STEADY && bytes > max)
                fail_msg("%s: %d tokens: %d bytes, not %d", recipes[i], at, (int)bytes, (int)max);
        }
        assert_int_equal(lk_session_n_tok(s), N);
        /* Evicted rows cannot be restored, so another text is prefilled from the start. */
        size_t reused = 1;
        assert_int_equal(lk_session_sync(s, tok, 300, &reused, NULL), LK_OK);
        assert_int_equal(reused, 0);
        lk_session_free(s);
        lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* After a reservation, steps allocate nothing. */
static void test_steps_allocate_nothing(void **state) {
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

/* ---- which rows stay, by real attention ---- */

/* The expected eviction. In a model with one layer, rows do not depend on what the cache holds. A
 * full cache therefore has the same rows, and each policy can be simulated by exact softmaxes over
 * the rows that should be held. */
struct simulation {
    lk_session *full;
    int n_head, n_head_kv, d, n_tok, keep, window;
    double *score; /* [n_head_kv][n_ctx] */
    bool *held;    /* [n_head_kv][n_ctx] */
    int n_ctx;
    float *q;  /* [512][n_head][d] of the current call */
    bool last; /* tova: the last query decides, for all heads jointly */
};

static void save_queries(void *user, int layer, const struct lk_attn *attn) {
    struct simulation *a = user;
    assert_int_equal(layer, 0);
    memcpy(a->q, attn->q, (size_t)attn->n_tok * attn->n_head * attn->d_head * sizeof *a->q);
}

/* Decode a row of K from the full cache. */
static void read_key(const struct simulation *a, int head, int pos, float *x) {
    const struct lk_kv *k = &a->full->cache->kv[0][LK_K];
    int row;
    int64_t n;
    const char *block = lk_kv_locate(k, 0, pos, &row, &n);
    lk_codec_decode(&(struct lk_part){&k->rule[0].codec, LK_K, a->d, k->rule[0].block_rows, NULL},
                    block + head * k->level[0].head_bytes, row, 1, x, a->d);
}

/* Add the attention of the newest n tokens: a prompt's token attends to all before it, later ones
 * to the rows that are held. */
static void simulate_attention(struct simulation *a, int n, float scale) {
    int group = a->n_head / a->n_head_kv;
    double *w = malloc(a->n_ctx * sizeof *w);
    float x[LK_MAX_D_HEAD];
    for (int t = a->last ? n - 1 : 0; t < n; t++)
        for (int h = 0; h < a->n_head; h++) {
            int head = h / group, query_pos = a->n_tok - n + t;
            const bool *held = a->held + head * a->n_ctx;
            double max = -1e30, sum = 0, *score = a->score + head * a->n_ctx;
            if (a->last && h % group == 0) memset(score, 0, a->n_ctx * sizeof *score);
            for (int pos = 0; pos <= query_pos; pos++) {
                if (!held[pos]) continue;
                read_key(a, head, pos, x);
                w[pos] = 0;
                for (int c = 0; c < a->d; c++)
                    w[pos] += (double)a->q[((size_t)t * a->n_head + h) * a->d + c] * x[c];
                w[pos] *= scale;
                if (w[pos] > max) max = w[pos];
            }
            for (int pos = 0; pos <= query_pos; pos++)
                if (held[pos]) sum += exp(w[pos] - max);
            for (int pos = 0; pos <= query_pos; pos++)
                if (held[pos]) score[pos] += exp(w[pos] - max) / sum;
        }
    free(w);
}

static double policy_score(const struct simulation *a, int head, int pos) {
    double sum = 0;
    if (!a->last) return a->score[head * a->n_ctx + pos];
    for (int h = 0; h < a->n_head_kv; h++) sum += a->score[h * a->n_ctx + pos];
    return sum;
}

/* Evict: the window stays, and of the other rows the `keep` with the highest scores. */
static void simulate_eviction(struct simulation *a) {
    for (int head = 0; head < a->n_head_kv; head++) {
        bool *held = a->held + head * a->n_ctx;
        for (;;) {
            int n = 0, argmin = -1;
            for (int pos = 0; pos < a->n_tok - a->window; pos++) {
                if (!held[pos]) continue;
                n++;
                if (argmin < 0 || policy_score(a, head, pos) < policy_score(a, head, argmin))
                    argmin = pos;
            }
            if (n <= a->keep) break;
            held[argmin] = false;
        }
    }
}

static void compare_rows(const struct simulation *a, const lk_session *s, const char *text) {
    const struct lk_evict *evict = &s->cache->evict[0];
    assert_int_equal(evict->n, a->n_tok < a->keep + a->window ? a->n_tok : a->keep + a->window);
    for (int64_t i = 0; i < evict->n * evict->n_head; i++)
        if (!a->held[i % evict->n_head * a->n_ctx + evict->pos[i]])
            fail_msg("%s: %d tokens: head %d holds position %d", text, a->n_tok,
                     (int)(i % evict->n_head), evict->pos[i]);
}

static void test_real_attention_decides(void **state) {
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
        struct simulation a = {.full = open_session(model, "f16", N, &f16),
                               .n_ctx = N,
                               .keep = KEEP,
                               .window = WINDOW,
                               .last = i == 1};
        lk_session *s = open_session(model, recipes[i], N, &recipe);
        a.n_head = model->net->hp.n_head, a.n_head_kv = model->net->hp.n_head_kv,
        a.d = model->net->hp.d_head;
        a.score = calloc((size_t)a.n_head_kv * N, sizeof *a.score);
        a.held = calloc((size_t)a.n_head_kv * N, sizeof *a.held);
        a.q = malloc((size_t)512 * a.n_head * a.d * sizeof *a.q);
        s->watch = (struct lk_watch){.on_attention = save_queries, .user = &a};
        while (a.n_tok < N) {
            int n = a.n_tok ? 1 : PROMPT;
            if (a.n_tok)
                assert_int_equal(lk_session_eval(s, tok + a.n_tok, 1, false, NULL), LK_OK);
            else
                assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
            assert_int_equal(lk_session_eval(a.full, tok + a.n_tok, n, false, NULL), LK_OK);
            for (int j = 0; j < n * a.n_head_kv; j++) a.held[j / n * N + a.n_tok + j % n] = true;
            a.n_tok += n;
            simulate_attention(&a, n, s->pass.attn.scale);
            simulate_eviction(&a);
            compare_rows(&a, s, recipes[i]);
        }
        free(a.score), free(a.held), free(a.q);
        lk_session_free(s), lk_session_free(a.full);
        lk_recipe_free(f16), lk_recipe_free(recipe);
    }
    lk_model_free(model);
}

/* ---- shifted sinks: positions counted within the cache ---- */

/* A query that ggml rotated for one position and that is rotated back equals what ggml computes for
 * the earlier position. */
static void test_unrotate_query(void **state) {
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
        struct lk_rope_phase phase = {.set = false};
        lk_rope_phase_set(&model->rope[0], &phase, 900 - 313);
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
            g.x_out = ggml_rope_ext(
                g.ctx, x, g.pos, model->net->rope_factors, hp->n_rot, hp->rope_mode, hp->n_ctx_orig,
                hp->rope[0].base, hp->rope[0].scale, hp->rope[0].ext_factor,
                hp->rope[0].attn_factor, hp->yarn_beta_fast, hp->yarn_beta_slow);
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
            lk_rope_unrotate_query(&model->rope[0], &phase, out[0] + h * hp->d_head, hp->d_head,
                                   back + h * hp->d_head);
        double e = nmse(back, out[1], (size_t)HEADS * hp->d_head);
        if (!(e < 1e-8)) fail_msg("%s: nmse %g", spec->name, e);
        lk_model_free(model);
    }
}

/* In a model with one layer, shifted sinks and a window equal a full cache of only these tokens. */
static void test_shifted_sinks(void **state) {
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
        cmocka_unit_test(test_equals_full_cache),
        cmocka_unit_test(test_memory_is_constant),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_real_attention_decides),
        cmocka_unit_test(test_unrotate_query),
        cmocka_unit_test(test_shifted_sinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
