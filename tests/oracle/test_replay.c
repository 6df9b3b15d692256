/* `keep N by replay`, judged by the plain account, at the sizes where a replay's chunks begin and
 * end: the rows that each KV head keeps, their scores, the logits and bytes that follow. */
#include "oracle_case.h"
#include "support.h"
#include "test.h"

#include <string.h>

static struct oracle_models models;

static const char *const recipes[] = {
    "sink 2: f16; keep 30% by replay: f16; window 9: f16",
    "sink 4: f16; keep 45% by replay: rot3; window 32: rot8",
    "keep 40 by replay: f16; window 8: f16; layers 0: keep 20 by h2o",
    "keep 60 by tova: f16; window 8: f16; layers last 1: keep 50 by replay",
    "keep 100% by replay: f16; window 16: f16",
    "keep 0 by replay; window 40: f16",
};

static void every_size(void **state) {
    /* chunks have 512 tokens; the later ones repeat 8 */
    static const int sizes[] = {1, 2, 8, 9, 100, 511, 512, 513, 520, 1016, 1017, 1030};
    enum { N_RECIPE = sizeof recipes / sizeof *recipes, N_SIZE = sizeof sizes / sizeof *sizes };
    int n_try = 0, n_run = 0;
    for (int i = 0; i < N_SIZE * N_RECIPE; i++) {
        struct oracle_case c = {.model = &models.model[i % models.n],
                                .seed = (uint64_t)i,
                                .kernels = "reference",
                                .n_ctx = 1100,
                                .op = {{OP_PROMPT, 0, sizes[i / N_RECIPE], 1},
                                       {OP_STEPS, 0, 3, 2},
                                       {OP_EVAL, 0, 40, 3},
                                       {OP_SAVE, 0, 1, 4},
                                       {OP_STEPS, 0, 2, 5}},
                                .n_op = 5};
        for (int s = 0; s < 2; s++) {
            snprintf(c.recipe[s].part[0], MAX_PART, "%s", recipes[i % N_RECIPE]);
            c.recipe[s].n = 1;
        }
        /* The account cannot take over the rows of chunks that need no attention, so codes may
         * differ by a step there. */
        bool lossy = strstr(recipes[i % N_RECIPE], "rot");
        if (!case_runs((size_t)i) || (lossy && sizes[i / N_RECIPE] > 512)) continue;
        struct oracle_result r = run_case(&c, 0, false);
        if (r.verdict == CASE_FAILED)
            fail_msg("%s, %s, %d tokens, operation %d: %s", c.model->spec->name,
                     recipes[i % N_RECIPE], sizes[i / N_RECIPE], r.op, r.reason);
        n_try++;
        n_run += r.verdict == CASE_PASSED;
        free_oracle_result(&r);
    }
    printf("%d of %d cases passed, the others have a combination that does not work\n", n_run,
           n_try);
    assert_true(3 * n_run > n_try);
}

static int set_up(void **state) { return open_oracle_models(&models) ? 0 : -1; }

static int tear_down(void **state) {
    close_oracle_models(&models);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
