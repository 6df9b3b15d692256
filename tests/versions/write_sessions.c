/* Write the sessions of fixtures.h, with the version of lowkey that this program is linked with.
 * The files of tests/versions were made by it.
 *
 * usage: write_sessions DIR */
#include "fixtures.h"

static lk_status write_session(const char *dir, const struct fixture *f, lk_err *err) {
    char path[4096];
    lk_recipe *recipe = NULL;
    lk_model *model = NULL;
    lk_session *session = NULL;
    lk_session_opts opts = {.n_ctx = FIXTURE_CTX, .n_checkpoint = f->n_checkpoint};
    snprintf(path, sizeof path, "%s/%s.session", dir, f->name);
    lk_status status = lk_recipe_parse(&recipe, f->recipe, err);
    if (!status) status = fixture_open(&model, dir, f, err);
    if (!status) status = lk_session_new(&session, model, recipe, &opts, err);
    if (!status) status = fixture_fill(session, err);
    if (!status) status = lk_session_save(session, NULL, path, err);
    lk_session_free(session);
    lk_model_free(model);
    lk_recipe_free(recipe);
    return status;
}

int main(int argc, char **argv) {
    int failed = 0;
    if (argc != 2) return fprintf(stderr, "usage: write_sessions DIR\n"), 2;
    for (size_t i = 0; i < N_FIXTURE; i++) {
        lk_err err = {0};
        if (write_session(argv[1], &fixtures[i], &err))
            failed++, fprintf(stderr, "%s: %s\n", fixtures[i].name, err.msg);
    }
    return failed ? 1 : 0;
}
