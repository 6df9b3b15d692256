/* A session goes back to earlier states for every recipe, and continues from them
 * bit-identically. */
#include "cache/cache.h"
#include "engine/checkpoint.h"
#include "engine/session_save.h"
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "support_session.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 900, N_TURN = 4, PROMPT = 130, ANSWER = 41 };

enum { LONG = 800, N_MARK = 3, LOW = 540, HIGH = 700 }; /* statistics come from rows before LOW */

static const size_t marks[N_MARK] = {HIGH, 20, LOW};

static lk_session *new_session(lk_model *model, const lk_recipe *recipe, int n_checkpoint) {
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = n_checkpoint};
    lk_session *session = NULL;
    lk_err err = {0};
    if (lk_session_new(&session, model, recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(recipe), err.msg);
    return session;
}

static void decode(lk_session *s, const int32_t *tok, int n) {
    for (int i = 0; i < n; i++)
        assert_int_equal(lk_session_eval(s, tok + i, 1, false, NULL), LK_OK);
}

/* A conversation of some turns. at[i] becomes a session that is as `s` was after the prompt of turn
 * i. Returns the number of tokens. */
static size_t converse(lk_session *s, const int32_t *tok, lk_session **at) {
    size_t n = 0;
    for (int turn = 0; turn < N_TURN; turn++) {
        n += PROMPT;
        assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
        if (at[turn]) assert_int_equal(lk_session_copy(at[turn], s, NULL), LK_OK);
        decode(s, tok + n, ANSWER);
        n += ANSWER;
    }
    return n;
}

static size_t prompt_end(int turn) { return (size_t)turn * (PROMPT + ANSWER) + PROMPT; }

static void check_recipe(lk_model *model, const char *text) {
    lk_recipe *recipe = NULL;
    int32_t tok[CTX], edited[CTX];
    lk_session *at[N_TURN];
    size_t reused;
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, 2 * N_TURN);
    for (int i = 0; i < N_TURN; i++) at[i] = new_session(model, recipe, 0);
    converse(s, tok, at);
    for (int turn = N_TURN - 1; turn >= 0; turn--) {
        /* The answer is generated again: nothing is evaluated but it. */
        size_t n = prompt_end(turn);
        assert_int_equal(lk_session_reusable(s, tok, n), n);
        assert_int_equal(lk_session_sync(s, tok, n, &reused, NULL), LK_OK);
        assert_int_equal(reused, n);
        assert_same_logits(s, at[turn], text);
        /* The turn is edited after a part of its answer. */
        memcpy(edited, tok, sizeof edited);
        random_tokens(edited + n + 5, 60, model, 50 + (uint64_t)turn);
        decode(s, tok + n, 9);
        assert_int_equal(lk_session_sync(s, edited, n + 65, &reused, NULL), LK_OK);
        assert_true(reused >= n && reused <= n + 9);
        if (reused > n) continue; /* it was cut back: the rows in between may be encoded by now */
        assert_int_equal(lk_session_sync(at[turn], edited, n + 65, NULL, NULL), LK_OK);
        assert_same_logits(s, at[turn], text);
    }
    /* Another text: there is no state to go back to. */
    edited[0] = tok[0] ? 0 : 1;
    assert_int_equal(lk_session_sync(s, edited, 70, &reused, NULL), LK_OK);
    assert_int_equal(reused, 0);
    assert_int_equal(s->checkpoints.n, 1);
    for (int i = 0; i < N_TURN; i++) lk_session_free(at[i]);
    lk_session_free(s);
    lk_recipe_free(recipe);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

static void sessions_go_back(void **state) {
    static const char *const models[] = {
        "llama",      "gemma3", "qwen2",   "qwen35",        "qwen3next",         "gemma4",
        "gemma4-moe", "lfm2",   "lfm2moe", "granitehybrid", "granitehybrid-moe", NULL};
    for (int m = 0; models[m]; m++) {
        lk_model *model = open_with_sidecar(models[m], CTX, 1, 5);
        lk_preset preset;
        for (int i = m; lk_recipe_preset(i, &preset); i += m ? 9 : 1)
            if (case_runs(i) && (!preset.compress || !model->net->hp.norms_v))
                check_recipe(model, preset.name);
        check_recipe(model, "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16");
        if (!model->net->hp.n_recurrent && !model->net->hp.n_shared)
            check_recipe(model, "sink 4: f16; keep 30% by replay: rot4; window 30: f16");
        if (model->net->hp.n_swa == 0 && case_runs(m))
            check_recipe(model, "sink 4: f16; keep 40 by h2o: rot4; window 30: f16; absorb less");
        lk_model_free(model);
    }
}

/* A state goes with its text, also if one token of it is new: later texts do not find it. */
static void states_of_other_texts_go(void **state) {
    enum { FIRST = 301, COMMON = 300, SECOND = 500, THIRD = 450, SHARED = 400 };
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    size_t reused;
    assert_int_equal(lk_recipe_parse(&recipe, "best-4", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, 5), *plain = new_session(model, recipe, 0);
    assert_int_equal(lk_session_sync(s, tok, FIRST, NULL, NULL), LK_OK);
    tok[COMMON] ^= 1;
    assert_int_equal(lk_session_sync(s, tok, SECOND, NULL, NULL), LK_OK);
    for (int i = 0; i < s->checkpoints.n; i++)
        assert_int_not_equal(s->checkpoints.at[i].n_tok, FIRST);
    tok[SHARED] ^= 1;
    assert_int_equal(lk_session_sync(s, tok, THIRD, &reused, NULL), LK_OK);
    assert_true(reused <= COMMON || reused == SHARED);
    if (reused > 0) assert_int_equal(lk_session_sync(plain, tok, reused, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(plain, tok, THIRD, NULL, NULL), LK_OK);
    size_t n_vocab = (size_t)lk_model_get_info(model).n_vocab;
    assert_true(nmse(lk_session_logits(s, -1), lk_session_logits(plain, -1), n_vocab) < 1e-3);
    lk_session_free(s), lk_session_free(plain);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Of many states, some are kept: the newest, and others over the whole length. */
static void states_get_sparser(void **state) {
    enum { CAP = 5, STEP = 40 };
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, CAP);
    const struct lk_checkpoints *c = &s->checkpoints;
    for (size_t n = STEP; n <= 20 * STEP; n += STEP) {
        assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
        assert_int_equal(c->n, n / STEP < CAP ? n / STEP : CAP);
        assert_int_equal(c->at[c->n - 1].n_tok, n);
        for (int i = 1; i < c->n; i++) assert_true(c->at[i].n_tok > c->at[i - 1].n_tok);
    }
    assert_true(c->at[0].n_tok <= 10 * STEP);       /* one of the first half */
    assert_true(c->at[CAP - 2].n_tok >= 17 * STEP); /* and more near the end */
    /* A little later, no other state is taken. */
    assert_int_equal(lk_session_sync(s, tok, 20 * STEP + 5, NULL, NULL), LK_OK);
    assert_int_equal(c->at[CAP - 1].n_tok, 20 * STEP);
    lk_session_clear(s);
    assert_int_equal(c->n, 0);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The states hold no more bytes than they may, unless they are few; what they hold is what the
 * ledgers count besides the session. */
static void states_fit_their_bytes(void **state) {
    enum { STEP = 40, N = 20 };
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    uint64_t all = 0;
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    for (int part = 1; part <= 4; part++) { /* all of them, a half, a third, a quarter */
        lk_session_opts opts = {
            .n_ctx = CTX, .n_checkpoint = N, .checkpoint_bytes = all / (uint64_t)part};
        lk_session *s = NULL;
        assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
        const struct lk_checkpoints *c = &s->checkpoints;
        for (size_t n = STEP; n <= N * STEP; n += STEP) {
            assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
            assert_int_equal(c->at[c->n - 1].n_tok, n);
            assert_null(c->at[c->n - 1].cache->rows[LK_K]); /* only sessions need scratch memory */
            uint64_t held = lk_checkpoints_held_bytes(s),
                     counted = lk_checkpoints_bytes(s) + lk_model_get_info(model).shared_bytes -
                               atomic_load(&s->ledger.borrowed) -
                               atomic_load(&s->rows.ledger.borrowed);
            assert_true(held <= counted && counted - held <= counted / 50); /* counts of slabs */
            if (part > 1)
                assert_true(c->n == LK_CHECKPOINT_MIN || held <= opts.checkpoint_bytes ||
                            (size_t)c->n == n / STEP);
        }
        if (part == 1) assert_int_equal(c->n, N);
        if (part > 1) assert_true(c->n >= LK_CHECKPOINT_MIN && c->n < N);
        if (part == 1) all = lk_checkpoints_held_bytes(s);
        lk_session_free(s);
    }
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Copies have the states of the original, which is not affected by what happens to them. */
static void copies_go_back(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    size_t reused;
    lk_session *none[N_TURN] = {0};
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, N_TURN), *copy = new_session(model, recipe, 2);
    size_t n = converse(s, tok, none);
    assert_int_equal(lk_session_copy(copy, s, NULL), LK_OK);
    assert_int_equal(copy->checkpoints.n, 2); /* the newest ones */
    assert_int_equal(lk_session_sync(copy, tok, prompt_end(2), &reused, NULL), LK_OK);
    assert_int_equal(reused, prompt_end(2));
    assert_int_equal(lk_session_n_tok(s), n);
    assert_int_equal(lk_session_sync(s, tok, prompt_end(2), &reused, NULL), LK_OK);
    assert_int_equal(reused, prompt_end(2));
    assert_same_logits(s, copy, "best-3");
    lk_session_free(s);
    decode(copy, tok + prompt_end(2), ANSWER);
    lk_session_free(copy);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Without memory there is no state, and no failure; a failed return leaves an empty session. */
static void memory_runs_out(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    bool complete = false;
    int step = case_runs(1) ? 1 : 5; /* from one allocation that fails to the next */
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    for (int nth = 1; !complete; nth += step) {
        lk_session *s = new_session(model, recipe, N_TURN);
        atomic_store(&s->checkpoints.ledger.fail_at, nth);
        assert_int_equal(lk_session_sync(s, tok, PROMPT, NULL, NULL), LK_OK);
        complete = atomic_exchange(&s->checkpoints.ledger.fail_at, 0) > 0;
        assert_int_equal(s->checkpoints.n, complete);
        if (!complete) /* all that is left is the lists */
            assert_true(lk_checkpoints_bytes(s) <=
                        2 * (N_TURN * sizeof(struct lk_checkpoint) + 64));
        decode(s, tok + PROMPT, ANSWER);
        lk_session_free(s);
        assert_true(nth < 10000);
    }
    complete = false;
    lk_session *plain = new_session(model, recipe, 0);
    assert_int_equal(lk_session_sync(plain, tok, LONG, NULL, NULL), LK_OK);
    for (int nth = 1; !complete; nth += nth < 20 ? step : 37) { /* the same within a prompt */
        lk_session *s = new_session(model, recipe, 2 * N_TURN);
        atomic_store(&s->checkpoints.ledger.fail_at, nth);
        assert_int_equal(lk_session_sync_marked(s, tok, LONG, marks, N_MARK, NULL, NULL), LK_OK);
        complete = atomic_exchange(&s->checkpoints.ledger.fail_at, 0) > 0;
        assert_true(complete ? s->checkpoints.n == 4 : s->checkpoints.n < 4);
        assert_int_equal(s->checkpoints.n_planned, 0);
        assert_same_logits(s, plain, "best-3");
        lk_session_free(s);
        assert_true(nth < 100000);
    }
    lk_session_free(plain);
    complete = false;
    for (int nth = 1; !complete; nth += step) {
        lk_session *s = new_session(model, recipe, N_TURN), *none[N_TURN] = {0};
        converse(s, tok, none);
        atomic_store(&s->ledger.fail_at, nth);
        lk_status status = lk_session_sync(s, tok, prompt_end(1), NULL, NULL);
        complete = atomic_exchange(&s->ledger.fail_at, 0) > 0;
        assert_int_equal(status, complete ? LK_OK : LK_E_NOMEM);
        if (!complete) assert_int_equal(lk_session_n_tok(s), 0);
        assert_int_equal(lk_session_sync(s, tok, prompt_end(1), NULL, NULL), LK_OK);
        lk_session_free(s);
        assert_true(nth < 10000);
    }
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- checkpoints within a prompt ---- */

static lk_session *prefill_marked(lk_model *model, const lk_recipe *recipe, const int32_t *tok) {
    lk_session *s = new_session(model, recipe, 2 * N_TURN);
    assert_int_equal(lk_session_sync_marked(s, tok, LONG, marks, N_MARK, NULL, NULL), LK_OK);
    return s;
}

/* A prompt branches after `at` tokens: the session continues there as one that has prefilled only
 * these. Chunks are the same, because both have marks. */
static void check_branch(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t at) {
    int32_t other[CTX];
    size_t reused, n = at + 60;
    const char *text = lk_recipe_text(recipe);
    lk_session *s = prefill_marked(model, recipe, tok),
               *plain = new_session(model, recipe, 2 * N_TURN);
    memcpy(other, tok, sizeof other);
    random_tokens(other + at + 3, 57, model, 70 + at);
    assert_true(lk_session_reusable(s, other, n) >= at);
    assert_int_equal(lk_session_sync(s, other, n, &reused, NULL), LK_OK);
    assert_true(reused == at || reused == at + 3);
    if (reused == at) { /* it was not cut back */
        assert_int_equal(lk_session_sync_marked(plain, other, at, marks, N_MARK, NULL, NULL),
                         LK_OK);
        assert_int_equal(lk_session_sync(plain, other, n, NULL, NULL), LK_OK);
        assert_same_logits(s, plain, text);
        decode(s, tok, ANSWER);
        decode(plain, tok, ANSWER);
        assert_same_logits(s, plain, text);
    }
    lk_session_free(plain);
    lk_session_free(s);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

static void check_marks(lk_model *model, const char *text) {
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session *s = prefill_marked(model, recipe, tok), *plain = new_session(model, recipe, 0);
    const struct lk_checkpoints *c = &s->checkpoints;
    bool evicts = false, exact = !s->recurrent;
    for (int layer = 0; !recipe->eager && layer < s->cache->shape.n_layer; layer++)
        evicts |= s->cache->kv[layer][LK_K].evict != NULL;
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) /* exact rows only, and all of them */
        exact &= lk_cache_kv(s->cache, k)->n_level == 1 && lk_cache_kv(s->cache, k)->n_swa == 0;
    assert_int_equal(lk_session_sync(plain, tok, LONG, NULL, NULL), LK_OK);
    /* The prompt itself is computed as without marks. */
    if (!s->recurrent && !recipe->eager) assert_same_logits(s, plain, text);
    lk_session_free(plain);
    if (evicts || exact) {
        assert_int_equal(c->n, 1);
    } else {
        static const size_t expected[] = {20, LOW, HIGH, LONG};
        assert_int_equal(c->n, 4);
        for (int i = 0; i < 4; i++) assert_int_equal(c->at[i].n_tok, expected[i]);
        assert_null(c->at[2].logits);
        assert_non_null(c->at[3].logits);
        /* A state without logits is not the end of a text: its last token is evaluated again. */
        size_t reused = HIGH;
        assert_int_equal(lk_session_sync(s, tok, HIGH, &reused, NULL), LK_OK);
        assert_true(reused < HIGH);
        assert_non_null(lk_session_logits(s, -1));
        lk_session_clear(s);
        assert_int_equal(lk_session_sync(s, tok, LONG, NULL, NULL), LK_OK);
        assert_int_equal(c->n, 2);
        assert_int_equal(c->at[0].n_tok, 512);
    }
    lk_session_free(s);
    /* Eager sessions attend to the cache, so their parts decide what they compute. */
    if (!evicts && !exact && !recipe->eager) check_branch(model, recipe, tok, LOW);
    lk_recipe_free(recipe);
}

static void prompts_branch(void **state) {
    static const char *const models[] = {"llama", "gemma3", "qwen2", "qwen35", NULL};
    for (int m = 0; models[m]; m++) {
        lk_model *model = open_with_sidecar(models[m], CTX, 1, 5);
        lk_preset preset;
        for (int i = m; lk_recipe_preset(i, &preset); i += 5)
            if (case_runs(i)) check_marks(model, preset.name);
        if (case_runs(m)) check_marks(model, "best-1.9");
        check_marks(model, "sink 4: f16; body: k=kivi2 v=kivi2; recent 64: int8; window 30: f16");
        check_marks(model, "sink 4: f16; keep 40 by h2o: rot4; recent 64: int8; window 30: f16");
        lk_model_free(model);
    }
}

/* ---- checkpoints in saved sessions ---- */

static char path[] = "/tmp/lowkey-checkpoint-XXXXXX";

static void save(const lk_session *s) {
    lk_err err = {0};
    if (lk_session_save(s, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
}

static void load(lk_session *s) {
    lk_err err = {0};
    if (lk_session_load(s, NULL, path, &err) != LK_OK)
        fail_msg("%s: %s", lk_recipe_text(s->recipe), err.msg);
}

/* A loaded session goes back as the one that was saved, and a saved copy of it is the same file.
 * What the session held before is gone. */
static void check_saved(lk_model *model, const char *text) {
    lk_recipe *recipe = NULL;
    int32_t tok[CTX], other[CTX];
    lk_session *none[N_TURN] = {0};
    size_t reused, n_file[2];
    uint8_t *file[2];
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    random_tokens(tok, CTX, model, 3);
    random_tokens(other, CTX, model, 4);
    lk_session *s = new_session(model, recipe, 2 * N_TURN),
               *loaded = new_session(model, recipe, 2 * N_TURN);
    size_t n = converse(s, tok, none);
    assert_int_equal(lk_session_sync(loaded, other, 300, NULL, NULL), LK_OK);
    for (int i = 0; i < 2; i++) {
        save(i ? loaded : s);
        file[i] = read_file(path, &n_file[i]);
        if (i == 0) load(loaded);
    }
    assert_int_equal(n_file[0], n_file[1]);
    assert_memory_equal(file[0], file[1], n_file[0]);
    free(file[0]), free(file[1]);
    assert_int_equal(loaded->checkpoints.n, s->checkpoints.n);
    for (int turn = N_TURN - 1; turn >= 0; turn -= 2) {
        size_t end = prompt_end(turn);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lk_session_sync(i ? s : loaded, tok, end, &reused, NULL), LK_OK);
            assert_int_equal(reused, end);
        }
        assert_same_logits(loaded, s, text);
        decode(loaded, other, 50), decode(s, other, 50); /* rows change their levels */
        assert_same_logits(loaded, s, text);
    }
    assert_true(n > prompt_end(N_TURN - 1));
    lk_session_free(s);
    decode(loaded, other, 20);
    lk_session_free(loaded);
    lk_recipe_free(recipe);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

static void saved_sessions_go_back(void **state) {
    static const char *const models[] = {"llama", "gemma3", "qwen35", "granitehybrid"};
    for (int m = 0; m < 4; m++) {
        lk_model *model = open_with_sidecar(models[m], CTX, 1, 5);
        check_saved(model, "best-4");
        if (m == 0) {
            check_saved(model, "best-1.9");
            check_saved(model, "sink 4: f16; keep 40 by h2o: rot4; window 30: f16; absorb less");
            check_saved(model, "keep 10% by tova: int8; window 16: f16; absorb less");
            check_saved(model, "sink 4: f16; body: none; window 60: f16");
        }
        lk_model_free(model);
    }
}

/* ---- questions about a document that was replayed ---- */

enum { QUESTION = 60 };

/* What progress reports saw. */
struct seen {
    lk_session *s;
    int n_call;
    uint64_t scratch; /* at most */
};

static bool see(void *user, uint64_t done, uint64_t total) {
    struct seen *seen = user;
    uint64_t scratch = lk_ledger_bytes(&seen->s->ledger, LK_FOR_SCRATCH);
    (void)done, (void)total;
    seen->n_call++;
    if (scratch > seen->scratch) seen->scratch = scratch;
    return true;
}

/* The text is `tok`'s first LOW tokens and a question. Returns how many were reused. */
static size_t ask(lk_session *s, const int32_t *tok, uint64_t seed, size_t mark) {
    int32_t text[CTX];
    size_t n;
    memcpy(text, tok, LOW * sizeof *text);
    random_tokens(text + LOW, QUESTION, s->model, seed);
    assert_int_equal(lk_session_sync_marked(s, text, LOW + QUESTION, &mark, 1, &n, NULL), LK_OK);
    return n;
}

/* Questions after the mark are not replayed, and the next one goes back to the document, also in a
 * loaded session: neither reads the document again. */
static void questions_after_a_replay(void **state) {
    lk_model *model = open_preset("llama", CTX, 1);
    lk_recipe *recipe = NULL;
    int32_t tok[CTX];
    struct seen seen = {0};
    lk_plan plan;
    int n_document;
    assert_int_equal(
        lk_recipe_parse(&recipe, "sink 4: f16; keep 30% by replay: rot4; window 30: f16", NULL),
        LK_OK);
    random_tokens(tok, CTX, model, 3);
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4, .progress = see, .user = &seen};
    lk_session *s = NULL, *plain = new_session(model, recipe, 4);
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    seen.s = s;
    assert_int_equal(lk_session_sync(s, tok, LOW, NULL, NULL), LK_OK);
    n_document = seen.n_call;
    lk_session_opts exact = {.n_ctx = LOW};
    assert_int_equal(lk_plan_make(model, recipe, &exact, &plan, NULL), LK_OK);
    /* The plan has what the replay holds: the hidden states of all its tokens, at least. */
    size_t row = (size_t)model->net->hp.n_embd * sizeof(float);
    assert_in_range(seen.scratch, 2 * LOW * row,
                    plan.peak_bytes - plan.weight_bytes - plan.cache_bytes);
    lk_session_clear(s);
    seen.n_call = 0;
    assert_int_equal(ask(s, tok, 1, LOW), 0);
    assert_true(seen.n_call >= n_document && seen.n_call < n_document + 4);
    for (uint64_t question = 2; question < 5; question++) {
        seen.n_call = 0;
        assert_int_equal(ask(s, tok, question, LOW), LOW);
        assert_true(seen.n_call < 4);
        lk_session_clear(plain);
        assert_int_equal(lk_session_sync(plain, tok, LOW, NULL, NULL), LK_OK);
        assert_int_equal(ask(plain, tok, question, LOW), LOW);
        assert_same_logits(s, plain, "a question");
        if (question != 3) continue;
        save(s);
        load(s);
    }
    /* The mark is too early: the whole text is a document. */
    lk_session_clear(s);
    assert_int_equal(ask(s, tok, 1, QUESTION), 0);
    assert_int_equal(s->checkpoints.n, 1);
    /* More new text than there is: all of it is. */
    lk_session_clear(plain);
    assert_int_equal(lk_session_sync(plain, tok, QUESTION, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_reusable(plain, tok, 2 * QUESTION), QUESTION);
    assert_int_equal(lk_session_reusable(plain, tok, 2 * QUESTION + 1), 0);
    /* Only whole prompts are replayed. */
    lk_session_clear(s);
    assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_E_UNSUPPORTED);
    lk_session_free(s), lk_session_free(plain);
    opts.progress = NULL;
    opts.chunked_prefill = true;
    assert_int_equal(lk_session_new(&s, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(s, tok, LOW, NULL, NULL), LK_E_UNSUPPORTED);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* Save a session with N checkpoints of gemma3, whose path has the file then. */
enum { N_SAVED = 12, APART = 40 };

static lk_session *save_many(lk_model *model, const lk_recipe *recipe) {
    int32_t tok[CTX];
    random_tokens(tok, CTX, model, 3);
    lk_session *s = new_session(model, recipe, N_SAVED);
    for (size_t n = APART; n <= N_SAVED * APART; n += APART)
        assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
    assert_int_equal(s->checkpoints.n, N_SAVED);
    save(s);
    return s;
}

/* A session with less room keeps some of the file's checkpoints, over the whole length. Without
 * memory the older ones are missing. */
static void less_room_than_in_the_file(void **state) {
    enum { FEW = 5 };
    lk_model *model = open_preset("gemma3", CTX, 1);
    lk_recipe *recipe = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, "best-4", NULL), LK_OK);
    lk_session *s = save_many(model, recipe), *few = new_session(model, recipe, FEW), *small = NULL;
    load(few);
    const struct lk_checkpoint *at = few->checkpoints.at;
    assert_int_equal(few->checkpoints.n, FEW);
    assert_int_equal(at[FEW - 1].n_tok, N_SAVED * APART);
    assert_true(at[0].n_tok <= N_SAVED * APART / 2);
    for (int i = 1; i < FEW; i++) assert_true(at[i].n_tok > at[i - 1].n_tok);
    for (int i = FEW - 1; i >= 0; i--) {
        size_t reused, n = at[i].n_tok;
        int32_t tok[CTX];
        random_tokens(tok, CTX, model, 3);
        assert_int_equal(lk_session_sync(few, tok, n, &reused, NULL), LK_OK);
        assert_int_equal(lk_session_sync(s, tok, n, NULL, NULL), LK_OK);
        assert_int_equal(reused, n);
        assert_same_logits(few, s, "few");
    }
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = N_SAVED, .checkpoint_bytes = 1};
    assert_int_equal(lk_session_new(&small, model, recipe, &opts, NULL), LK_OK);
    load(small);
    assert_int_equal(small->checkpoints.n, LK_CHECKPOINT_MIN);
    lk_session_free(small);
    lk_session *plain = new_session(model, recipe, 0);
    load(plain);
    assert_int_equal(plain->checkpoints.n, 0);
    lk_session_free(plain);
    for (int nth = 1; nth < 200; nth += 13) {
        lk_session *poor = new_session(model, recipe, N_SAVED);
        atomic_store(&poor->checkpoints.ledger.fail_at, nth);
        load(poor);
        atomic_store(&poor->checkpoints.ledger.fail_at, 0);
        assert_true(poor->checkpoints.n < N_SAVED);
        lk_session_free(poor);
    }
    lk_session_free(few);
    lk_session_free(s);
    lk_recipe_free(recipe);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    lk_model_free(model);
}

/* Wrong checkpoints with correct checksums are refused; other edits do no harm. Files of versions 4
 * and 5 load. */
static void wrong_files_are_refused(void **state) {
    lk_model *model = open_preset("gemma3", CTX, 1);
    lk_recipe *recipe = NULL;
    struct lk_session_header header;
    struct lk_saved_checkpoint first;
    size_t size;
    assert_int_equal(lk_recipe_parse(&recipe, "best-4", NULL), LK_OK);
    lk_session *s = save_many(model, recipe), *loaded = new_session(model, recipe, N_SAVED);
    uint8_t *file = read_file(path, &size), *edited = malloc(size);
    memcpy(&header, file, sizeof header);
    size_t n_part = header.section[LK_SECTION_CHECKPOINTS].size, part = size - n_part;
    memcpy(&first, file + part, sizeof first);
    size_t rows = part + sizeof first + first.logits + first.states + first.counts;
    const struct {
        size_t at;
        int64_t value;
        const char *words;
    } wrong[] = {
        {part, 0, "not in order"},
        {part, N_SAVED * APART + 1, "not in order"},
        {part, INT64_MIN, "not in order"},
        {part + 8, 4, "vocabulary size"},
        {part + 16, 4, "states of a checkpoint"},
        {part + 24, INT64_MAX, "truncated"},
        {part + 32, -1, "truncated"},
        {part + 32, (int64_t)first.rows - 1, "a checkpoint: "},
        {rows - first.counts, 7, "a checkpoint: "},
    };
    struct random r = {5};
    int n_refused = 0;
    for (size_t i = 0; i < 200 + sizeof wrong / sizeof *wrong; i++) {
        bool known = i < sizeof wrong / sizeof *wrong;
        size_t at = known ? wrong[i].at : part + (size_t)random_int(&r, 0, (int)n_part / 4 - 2) * 4;
        int64_t value = known ? wrong[i].value : random_int(&r, -2, 40);
        memcpy(edited, file, size);
        memcpy(edited + at, &value, known ? 8 : 4);
        seal_session(edited, size);
        assert_true(write_file(path, edited, size));
        lk_err err = {0};
        lk_status status = lk_session_load(loaded, NULL, path, &err);
        if (known && (status != LK_E_FORMAT || !strstr(err.msg, wrong[i].words)))
            fail_msg("%zu: status %d, \"%s\"", i, status, err.msg);
        n_refused += status == LK_E_FORMAT;
        if (status == LK_OK) assert_int_equal(loaded->checkpoints.n, N_SAVED);
    }
    assert_true(n_refused > (int)(sizeof wrong / sizeof *wrong));

    /* Without the last sections and their entries in the header. */
    for (uint32_t version = LK_SESSION_VERSION_4; version < LK_SESSION_VERSION; version++) {
        int n_section = lk_session_sections(version);
        size_t entry = offsetof(struct lk_session_header, section[n_section]),
               removed = (size_t)(LK_N_SECTION - n_section) * sizeof *header.section,
               end = version == LK_SESSION_VERSION_4 ? part : size;
        memcpy(edited, file, end);
        header.version = version;
        header.size = end - removed;
        memcpy(edited, &header, entry);
        memmove(edited + sizeof header - removed, edited + sizeof header, end - sizeof header);
        seal_session(edited, end - removed);
        assert_true(write_file(path, edited, end - removed));
        load(loaded);
        assert_int_equal(loaded->checkpoints.n, version == LK_SESSION_VERSION_4 ? 0 : N_SAVED);
        assert_int_equal(lk_session_n_tok(loaded), lk_session_n_tok(s));
        assert_same_logits(loaded, s, "an older version");
    }
    free(file), free(edited);
    lk_session_free(loaded);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    close(mkstemp(path));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_go_back),         cmocka_unit_test(prompts_branch),
        cmocka_unit_test(states_of_other_texts_go), cmocka_unit_test(states_get_sparser),
        cmocka_unit_test(states_fit_their_bytes),   cmocka_unit_test(copies_go_back),
        cmocka_unit_test(memory_runs_out),          cmocka_unit_test(saved_sessions_go_back),
        cmocka_unit_test(questions_after_a_replay), cmocka_unit_test(less_room_than_in_the_file),
        cmocka_unit_test(wrong_files_are_refused),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return n_failed;
}
