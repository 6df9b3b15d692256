/* Sessions that earlier versions saved (tests/versions) load and go on, or are refused by their
 * version. Models come from the tests' generator, whose files are the same bytes as then. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "engine/session_save.h"
#include "fixtures.h"
#include "test.h"

#include <math.h>
#include <unistd.h>

/* Error of logits after loading, from a session that evaluates the same tokens now. Codes at the
 * edge of a step fall to its other side on a CPU that sums in another order. */
static const double max_error = 1e-3;

struct holder {
    lk_recipe *recipe;
    lk_model *model;
    lk_session *session;
};

static struct holder open_fixture(const struct fixture *f) {
    lk_err err = {0};
    struct holder h = {0};
    lk_session_opts opts = {.n_ctx = FIXTURE_CTX, .n_checkpoint = f->n_checkpoint};
    char dir[] = "/tmp/lowkey-versions-XXXXXX";
    assert_non_null(mkdtemp(dir));
    lk_status status = fixture_open(&h.model, dir, f, &err);
    rmdir(dir);
    if (status) fail_msg("%s: %s", f->name, err.msg);
    assert_int_equal(lk_recipe_parse(&h.recipe, f->recipe, &err), LK_OK);
    if (lk_session_new(&h.session, h.model, h.recipe, &opts, &err)) fail_msg("%s", err.msg);
    return h;
}

static void close_fixture(struct holder h) {
    lk_session_free(h.session);
    lk_model_free(h.model);
    lk_recipe_free(h.recipe);
}

static double squared_error(const lk_session *a, const lk_session *b, int n_vocab) {
    const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
    double sum = 0, norm = 0;
    for (int i = 0; i < n_vocab; i++) {
        sum += pow((double)x[i] - y[i], 2);
        norm += pow(y[i], 2);
    }
    return sum / norm;
}

static void load_one(const char *version, const struct fixture *f) {
    char path[4096];
    lk_err err = {0};
    int32_t tok[FIXTURE_TOK], next = 7;
    size_t n_reused = 0;
    lk_recipe *saved = NULL;
    struct holder old = open_fixture(f), new = open_fixture(f);
    snprintf(path, sizeof path, "%s/tests/versions/%s/%s.session", LOWKEY_SOURCE, version, f->name);
    if (lk_session_file_recipe(&saved, path, &err)) fail_msg("%s: %s", f->name, err.msg);
    assert_string_equal(lk_recipe_text(saved), f->recipe);
    lk_recipe_free(saved);
    if (lk_session_load(old.session, NULL, path, &err)) fail_msg("%s: %s", f->name, err.msg);
    fixture_tokens(tok);
    assert_int_equal(lk_session_n_tok(old.session), FIXTURE_TOK);
    assert_memory_equal(lk_session_tokens(old.session), tok, sizeof tok);
    if (fixture_fill(new.session, &err)) fail_msg("%s: %s", f->name, err.msg);
    if (lk_session_eval(old.session, &next, 1, false, &err) ||
        lk_session_eval(new.session, &next, 1, false, &err))
        fail_msg("%s: %s", f->name, err.msg);
    double error = squared_error(old.session, new.session, lk_model_get_info(old.model).n_vocab);
    if (!(error <= max_error)) fail_msg("%s of %s: logits differ by %g", f->name, version, error);
    if (f->n_checkpoint) { /* it goes back to the end of the first part */
        tok[FIXTURE_PART] ^= 1;
        assert_int_equal(lk_session_sync(old.session, tok, FIXTURE_PART + 1, &n_reused, &err),
                         LK_OK);
        assert_int_equal(n_reused, FIXTURE_PART);
    }
    close_fixture(old);
    close_fixture(new);
}

static void sessions_of_earlier_versions_load(void **state) {
    static const char *const version[] = {"papers-2026-11", "session-6"};
    for (size_t v = 0; v < sizeof version / sizeof version[0]; v++)
        for (size_t i = 0; i < N_FIXTURE; i++) load_one(version[v], &fixtures[i]);
}

/* The header's hash covers the version, but the version is looked at first. */
static void other_versions_are_refused(void **state) {
    static const uint32_t refused[] = {1, 2, 3, LK_SESSION_VERSION + 1, UINT32_MAX};
    char from[4096], path[] = "/tmp/lowkey-version-XXXXXX";
    static char data[1 << 17];
    snprintf(from, sizeof from, "%s/tests/versions/session-6/f16.session", LOWKEY_SOURCE);
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    size_t size = fread(data, 1, sizeof data, file);
    assert_true(size > sizeof(struct lk_session_header) && size < sizeof data);
    fclose(file);
    close(mkstemp(path));
    struct holder h = open_fixture(&fixtures[0]);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        lk_err err = {0};
        char version[40];
        memcpy(data + offsetof(struct lk_session_header, version), &refused[i], sizeof *refused);
        file = fopen(path, "wb");
        assert_int_equal(fwrite(data, 1, size, file), size);
        fclose(file);
        assert_int_equal(lk_session_load(h.session, NULL, path, &err), LK_E_FORMAT);
        snprintf(version, sizeof version, "version %u", refused[i]);
        if (!strstr(err.msg, version)) fail_msg("'%s' does not name %s", err.msg, version);
    }
    unlink(path);
    close_fixture(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_of_earlier_versions_load),
        cmocka_unit_test(other_versions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
