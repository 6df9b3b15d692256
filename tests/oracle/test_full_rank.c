/* A basis of full rank loses nothing: latents in it give the logits of `f16`, through sessions of
 * every family: prompt, single tokens, several tokens, a batch, a copy. */
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "oracle_case.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { PROMPT = 75, STEPS = 40, AT_ONCE = 21, ALL = PROMPT + STEPS + AT_ONCE + 20, CTX = 200 };

static struct oracle_models models;

static const char *const recipes[] = {
    "all: k=latent100% v=f16",
    "all: k=latent100%(pre) v=f16",
    "all: k=f16 v=latent100%",
    "sink 4: k=latent100%(pre) v=latent100%; body: k=latent100%(pre) v=latent100%; window 16: f16",
    "sink 3: f16; body: k=latent v=latent; recent 20%: k=latent100% v=latent100%; window 8: f16",
};

/* Logits of `x` are those of `exact`, up to the rounding of coordinates to f16. */
static void assert_close(const lk_session *x, const lk_session *exact, int i, const char *model,
                         const char *recipe, const char *when) {
    const float *a = lk_session_logits(x, i), *b = lk_session_logits(exact, i);
    double e = nmse(a, b, (size_t)x->model->net->hp.n_vocab);
    if (!(e <= 1e-5)) fail_msg("%s, %s, %s: NMSE %g", model, recipe, when, e);
}

/* One recipe on one model. tok: [ALL] */
static void compare(const struct oracle_model *m, lk_model *model, const char *text,
                    const int32_t *tok) {
    const char *name = m->spec->name;
    lk_recipe *recipe[2];
    lk_session *s = open_session(model, text, CTX, &recipe[0]),
               *exact = open_session(model, "f16", CTX, &recipe[1]), *copy = NULL;
    lk_session *both[2] = {s, exact};
    lk_batch *batch = NULL;
    lk_err err = {0};
    int n = PROMPT;
    for (int i = 0; i < 2; i++)
        assert_int_equal(lk_session_sync(both[i], tok, PROMPT, NULL, &err), LK_OK);
    assert_close(s, exact, -1, name, text, "prompt");
    for (int step = 0; step < STEPS; step++, n++) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(lk_session_eval(both[i], tok + n, 1, false, &err), LK_OK);
        assert_close(s, exact, -1, name, text, "single tokens");
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(lk_session_eval(both[i], tok + n, AT_ONCE, true, &err), LK_OK);
    for (int i = 0; i < AT_ONCE; i++) assert_close(s, exact, i, name, text, "several tokens");
    n += AT_ONCE;

    lk_session_opts opts = {.n_ctx = CTX};
    assert_int_equal(lk_session_new(&copy, model, recipe[0], &opts, &err), LK_OK);
    assert_int_equal(lk_session_copy(copy, s, &err), LK_OK);
    assert_int_equal(lk_batch_new(&batch, model, &err), LK_OK);
    for (; n < ALL; n++) {
        lk_batch_entry item[3] = {{.session = s, .tok = tok + n, .n_tok = 1},
                                  {.session = exact, .tok = tok + n, .n_tok = 1},
                                  {.session = copy, .tok = tok + n, .n_tok = 1}};
        assert_int_equal(lk_batch_eval(batch, item, 3, &err), LK_OK);
        assert_close(s, exact, -1, name, text, "batch");
        assert_close(copy, exact, -1, name, text, "copy");
    }
    lk_batch_free(batch);
    lk_session_free(copy);
    for (int i = 0; i < 2; i++) {
        lk_session_free(both[i]);
        lk_recipe_free(recipe[i]);
    }
}

static void test_full_rank_is_f16(void **state) {
    for (int i = 0; i < models.n; i++) {
        const struct oracle_model *m = &models.model[i];
        struct random r = {(uint64_t)i};
        struct random_sidecar sidecar = random_sidecar(&r, &m->plain, true);
        char path[] = "/tmp/lowkey-full-rank-XXXXXX";
        int32_t tok[ALL];
        lk_model *model = NULL;
        lk_err err = {0};
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        assert_true(write_random_sidecar(&sidecar, &m->plain, m->fingerprint, path));
        lk_model_opts opts = {.n_threads = 1, .sidecar = path};
        if (lk_model_open(&model, m->path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
        random_tokens(tok, ALL, model, (uint64_t)i);
        for (size_t k = 0; k < sizeof recipes / sizeof *recipes; k++)
            compare(m, model, recipes[k], tok);
        lk_model_free(model);
        free_random_sidecar(&sidecar);
        unlink(path);
    }
}

static int set_up(void **state) { return open_oracle_models(&models) ? 0 : -1; }

static int tear_down(void **state) {
    close_oracle_models(&models);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_rank_is_f16)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
