/* Random recipes and models on several ranks, against one process.
 *
 * usage: test_random_ranks [SEED [COUNT]]     (default: 1 5) */
#include "engine/session_state.h"
#include "oracle_case.h"
#include "support_baselines.h"
#include "support_cluster.h"
#include "support_model.h"
#include "test.h"

#include <unistd.h>

static uint64_t first_seed = 1;
static int n_case = 5;
static struct oracle_models models;

/* The reference kernels do not round queries, so over the same codes only sums are rounded. */
static void check(const char *model, const char *recipe, int n_rank, struct worst worst) {
    if (!(worst.moved <= 1e-7 && worst.apart <= 1e-2))
        fail_msg("%s, %d ranks, %s: NMSE %g over the same codes, %g apart", model, n_rank, recipe,
                 worst.moved, worst.apart);
}

/* Compare a recipe. False if it is not possible with the model, or not on several ranks. */
static bool run_recipe(struct both *b, const char *model, int n_rank, const char *text,
                       bool chunked, double *worst) {
    int n_share = n_rank / lk_cluster_n_stage(b->divided);
    const lk_session_opts opts = {.n_ctx = BOTH_CTX, .chunked_prefill = chunked};
    lk_recipe *recipe;
    lk_session *one = NULL, *many = NULL;
    lk_err err = {0};
    if (lk_recipe_parse(&recipe, text, NULL) != LK_OK) return false;
    lk_status status = lk_session_new(&one, b->single, recipe, &opts, NULL),
              divided = lk_session_new(&many, b->divided, recipe, &opts, &err);
    if (status != divided && !strstr(err.msg, "several ranks") && !strstr(err.msg, "stages"))
        fail_msg("%s: %s", text, err.msg);
    bool possible = status == LK_OK && divided == LK_OK;
    if (possible) {
        struct worst found = compare_both(one, many, (n_share - 1) * LK_STRIPE + 200);
        check(model, text, n_rank, found);
        if (found.moved > *worst) *worst = found.moved;
    }
    lk_session_free(many);
    lk_session_free(one);
    lk_recipe_free(recipe);
    return possible;
}

/* Every other case has two stages, if the model can be divided. */
static int choose_stages(const char *path, uint64_t seed) {
    const lk_model_opts opts = {.header_only = true};
    lk_model *model;
    if (seed % 2 || lk_model_open_stage(&model, path, &opts, 0, 2, NULL) != LK_OK) return 1;
    lk_model_free(model);
    return 2;
}

/* One model, and a recipe that is possible with it on several ranks. Returns the NMSE over the same
 * codes. */
static double compare_case(uint64_t seed) {
    struct random r = {seed};
    const struct oracle_model *m = &models.model[random_int(&r, 0, models.n - 1)];
    if (strcmp(m->spec->arch, "gpt2") == 0) m = &models.model[0]; /* it has no longer contexts */
    struct random_sidecar sidecar = random_sidecar(&r, &m->plain, false);
    char path[] = "/tmp/lowkey-ranks-XXXXXX", text[MAX_RECIPE_PARTS * MAX_PART];
    struct both b;
    int n_rank = random_int(&r, 0, 2) ? 2 : 3, n_stage = choose_stages(m->path, seed);
    if (n_stage > 1) n_rank = seed % 4 ? 2 : 4;
    bool chunked = random_int(&r, 0, 2) == 0, ran = false;
    double worst = 0;
    close(mkstemp(path));
    assert_true(write_random_sidecar(&sidecar, &m->plain, m->fingerprint, path));
    const lk_model_opts opts = {
        .n_threads = 1, .sidecar = path, .kernels = "reference", .n_ctx = BOTH_CTX};
    open_both(&b, m->path, &opts, n_rank, n_stage);
    while (!ran) {
        struct random_recipe recipe;
        random_recipe(&r, &m->plain, &recipe);
        join_recipe(&recipe, text, sizeof text);
        ran = run_recipe(&b, m->spec->name, n_rank, text, chunked, &worst);
    }
    print_message("seed %llu: %s, %d ranks, %d stages, %s%s: NMSE %.1e\n", (unsigned long long)seed,
                  m->spec->name, n_rank, n_stage, text, chunked ? ", chunked" : "", worst);
    close_both(&b);
    unlink(path);
    free_random_sidecar(&sidecar);
    return worst;
}

static void test_random_recipes(void **state) {
    double worst = 0;
    for (int i = 0; i < n_case; i++) {
        double found = compare_case(first_seed + (uint64_t)i);
        if (found > worst) worst = found;
    }
    print_message("%d recipes, largest NMSE over the same codes %.1e\n", n_case, worst);
}

static int set_up(void **state) { return open_oracle_models(&models) ? 0 : -1; }

static int tear_down(void **state) {
    close_oracle_models(&models);
    return 0;
}

int main(int argc, char **argv) {
    register_baselines();
    if (argc > 1) first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2) n_case = (int)strtol(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_recipes)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
