/* Passes of drafts with random recipes: the logits of drafts equal decoding one by one, and
 * dropped drafts leave no trace, to the bit. */
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "oracle_case.h"
#include "support_baselines.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

enum { CTX = 440, CASES = 3 }; /* cases per model */

static struct oracle_models models;

/* Two sessions that get the same tokens, but different wrong drafts. The first one is also forked
 * and reserves memory. */
struct pair {
    struct random r;
    const char *model_name;
    char text[MAX_RECIPE_PARTS * MAX_PART];
    lk_model *model;
    lk_recipe *recipe;
    lk_session *a, *b, *plain;
    double bound;
    int n_pass, n_dropped;
    double worst;
};

static lk_session *new_session(struct pair *p, lk_err *err) {
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = strlen(p->text) % 2 ? 2 : 0};
    lk_session *s = NULL;
    return lk_session_new(&s, p->model, p->recipe, &opts, err) == LK_OK ? s : NULL;
}

static void check(const struct pair *p, lk_status status, const lk_err *err) {
    if (status != LK_OK) fail_msg("%s, %s: %s", p->model_name, p->text, err->msg);
}

/* Rounding may decide whether a tile is left out. */
static double choose_bound(const struct lk_model *model, const struct lk_recipe *recipe) {
    bool lossy = false;
    if (recipe->read > 0) return 5e-2;
    for (int i = 0; i < recipe->n_level; i++)
        lossy |= recipe->level[i].k.coding != LK_F16 || recipe->level[i].v.coding != LK_F16;
    return strcmp(model->kernels->name, "reference") == 0 || !lossy ? TIGHT : LOOSE;
}

/* One token of a pass, or a step, after the same history: what the pass computed at i. */
static void compare_with_plain(struct pair *p, const int32_t *tok, int n) {
    size_t n_vocab = (size_t)p->model->net->hp.n_vocab;
    lk_err err = {0};
    for (int i = 0; i < n; i++) {
        check(p, lk_session_eval(p->plain, tok + i, 1, false, &err), &err);
        double e = nmse(lk_session_logits(p->a, i), lk_session_logits(p->plain, -1), n_vocab);
        if (e > p->worst) p->worst = e;
        if (!(e <= p->bound))
            fail_msg("%s, %s: token %d of a pass after %zu: NMSE %g", p->model_name, p->text, i,
                     p->a->n_tok - (size_t)n, e);
    }
}

static void assert_same_bits(const struct pair *p, const float *x, const float *y, size_t n,
                             const char *what) {
    if (memcmp(x, y, n * sizeof *x) != 0)
        fail_msg("%s, %s, after %zu tokens: %s depend on dropped drafts", p->model_name, p->text,
                 p->a->n_tok, what);
}

static void compare_power(const struct pair *p) {
    for (int layer = 0; layer < p->a->cache->shape.n_layer; layer++)
        for (int i = 0; i < 2; i++) {
            const struct lk_equalizer *x = &p->a->cache->kv[layer][LK_K].equalizer[i],
                                      *y = &p->b->cache->kv[layer][LK_K].equalizer[i];
            size_t n = (size_t)x->n_part * x->stride;
            assert_int_equal(x->calibrated, y->calibrated);
            if (x->query_power && !x->calibrated)
                assert_same_bits(p, x->query_power, y->query_power, n, "powers of queries");
        }
}

/* A pass of up to `max` tokens. Some are dropped again. */
static void run_pass(struct pair *p, int max) {
    int32_t tok[2][LK_DRAFT_MAX];
    lk_err err = {0};
    size_t n_vocab = (size_t)p->model->net->hp.n_vocab, n_tok = p->a->n_tok;
    int n = (int)lk_session_draftable(p->a, (size_t)max, NULL);
    assert_true(n >= 1 && n <= max);
    assert_int_equal(lk_session_draftable(p->b, (size_t)max, NULL), n);
    int n_kept = random_int(&p->r, 1, n);
    random_tokens(tok[0], n, p->model, random_u32(&p->r));
    random_tokens(tok[1], n, p->model, random_u32(&p->r));
    memcpy(tok[1], tok[0], (size_t)n_kept * sizeof(int32_t));
    bool with_plain = random_int(&p->r, 0, 2) == 0;
    if (with_plain) check(p, lk_session_copy(p->plain, p->a, &err), &err);
    if (random_int(&p->r, 0, 4) == 0) check(p, lk_session_reserve(p->a, 20, &err), &err);
    check(p, lk_session_eval(p->a, tok[0], (size_t)n, true, &err), &err);
    check(p, lk_session_eval(p->b, tok[1], (size_t)n, true, &err), &err);
    assert_same_bits(p, lk_session_logits(p->a, 0), lk_session_logits(p->b, 0), n_kept * n_vocab,
                     "logits of kept tokens");
    if (with_plain) compare_with_plain(p, tok[0], n_kept);
    for (int i = 0; i < 2; i++) {
        lk_session *s = i ? p->b : p->a;
        check(p, lk_session_truncate(s, n_tok + (size_t)n_kept, &err), &err);
        assert_int_equal(s->n_tok, n_tok + (size_t)n_kept);
        assert_ptr_equal(lk_session_logits(s, -1), lk_session_logits(s, n_kept - 1));
        assert_null(lk_session_logits(s, n_kept));
    }
    compare_power(p);
    p->n_pass += n > 1;
    p->n_dropped += n - n_kept;
}

static void run_pair(struct pair *p) {
    lk_err err = {0};
    int32_t tok[CTX];
    int n = random_int(&p->r, 1, 150);
    random_tokens(tok, n, p->model, random_u32(&p->r));
    for (int i = 0; i < 2; i++)
        check(p, lk_session_sync(i ? p->b : p->a, tok, (size_t)n, NULL, &err), &err);
    while (p->a->n_tok + LK_DRAFT_MAX < CTX) {
        run_pass(p, random_int(&p->r, 1, LK_DRAFT_MAX));
        if (random_int(&p->r, 0, 15)) continue;
        lk_session *copy = new_session(p, &err); /* and the copied session is freed */
        assert_non_null(copy);
        check(p, lk_session_copy(copy, p->a, &err), &err);
        lk_session_free(p->a);
        p->a = copy;
    }
}

static void test_random_recipes(void **state) {
    int n_pass = 0, n_dropped = 0, n_run = 0;
    double worst = 0;
    for (int i = 0; i < models.n; i++) {
        const struct oracle_model *m = &models.model[i];
        struct pair p = {.r = {(uint64_t)i + 1}, .model_name = m->spec->name};
        struct random_sidecar sidecar = random_sidecar(&p.r, &m->plain, false);
        char path[] = "/tmp/lowkey-drafts-XXXXXX";
        int fd = mkstemp(path);
        lk_err err = {0};
        assert_true(fd >= 0);
        close(fd);
        assert_true(write_random_sidecar(&sidecar, &m->plain, m->fingerprint, path));
        for (int n = 0; n < CASES;) {
            struct random_recipe recipe;
            const char *kernels = random_int(&p.r, 0, 1) ? "reference" : NULL;
            random_recipe(&p.r, &m->plain, &recipe);
            join_recipe(&recipe, p.text, sizeof p.text);
            if (lk_recipe_parse(&p.recipe, p.text, NULL) != LK_OK) continue;
            lk_model_opts opts = {.n_threads = 1, .sidecar = path, .kernels = kernels};
            if (lk_model_open(&p.model, m->path, &opts, &err) != LK_OK) fail_msg("%s", err.msg);
            p.a = new_session(&p, &err);
            p.b = new_session(&p, &err);
            p.plain = new_session(&p, &err);
            p.bound = choose_bound(p.model, p.recipe);
            if (p.a && p.b && p.plain) {
                run_pair(&p);
                n++, n_run++;
            }
            lk_session_free(p.a);
            lk_session_free(p.b);
            lk_session_free(p.plain);
            lk_model_free(p.model);
            lk_recipe_free(p.recipe);
        }
        n_pass += p.n_pass;
        n_dropped += p.n_dropped;
        if (p.worst > worst) worst = p.worst;
        free_random_sidecar(&sidecar);
        unlink(path);
    }
    print_message("%d recipes, %d passes with drafts, %d drafts dropped, largest NMSE %.1e\n",
                  n_run, n_pass, n_dropped, worst);
    assert_true(n_pass > 1000 && n_dropped > 3000);
}

static int set_up(void **state) { return open_oracle_models(&models) ? 0 : -1; }

static int tear_down(void **state) {
    close_oracle_models(&models);
    return 0;
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_recipes)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
