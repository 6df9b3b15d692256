/* Opens tiny models and sessions, and fails the test with the reason if it cannot. */
#include "support_model.h"

#include "engine/session_state.h"
#include "support_sidecar.h"
#include "test.h"

#include <errno.h>
#include <unistd.h>

lk_model *open_tiny_cluster(const struct tiny_spec *spec, const lk_model_opts *opts,
                            lk_cluster *cluster) {
    char path[512];
    const char *folder = getenv("TMPDIR");
    lk_model *model = NULL;
    lk_err err = {0};
    snprintf(path, sizeof path, "%.400s/lowkey-tiny-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) fail_msg("%s: %s", path, strerror(errno));
    close(fd);
    bool written = tiny_gguf_write(path, spec);
    lk_status status = LK_E_IO;
    if (written)
        status = cluster ? lk_model_open_cluster(&model, path, opts, cluster, &err)
                         : lk_model_open(&model, path, opts, &err);
    unlink(path);
    if (status != LK_OK)
        fail_msg("%s: %s", spec->name, written ? err.msg : "cannot write the model");
    return model;
}

lk_model *open_tiny(const struct tiny_spec *spec, const lk_model_opts *opts) {
    return open_tiny_cluster(spec, opts, NULL);
}

lk_model *open_preset(const char *preset, int n_ctx, int n_threads) {
    const struct tiny_spec *found = tiny_preset(preset);
    if (!found) fail_msg("no preset is named %s", preset);
    struct tiny_spec spec = *found;
    lk_model_opts opts = {.n_threads = n_threads};
    if (spec.n_ctx < n_ctx) spec.n_ctx = n_ctx;
    return open_tiny(&spec, &opts);
}

lk_model *open_with_sidecar(const char *preset, int n_ctx, int n_threads, uint64_t seed) {
    lk_model_opts opts = {.n_threads = n_threads};
    return open_with_sidecar_by(preset, n_ctx, opts, seed);
}

lk_model *open_with_sidecar_by(const char *preset, int n_ctx, lk_model_opts opts, uint64_t seed) {
    char model_path[512], path[512];
    const char *folder = getenv("TMPDIR");
    const struct tiny_spec *found = tiny_preset(preset);
    if (!found) fail_msg("no preset is named %s", preset);
    struct tiny_spec spec = *found;
    if (spec.n_ctx < n_ctx) spec.n_ctx = n_ctx;
    snprintf(model_path, sizeof model_path, "%.400s/lowkey-tiny-XXXXXX", folder ? folder : "/tmp");
    snprintf(path, sizeof path, "%.400s/lowkey-sidecar-XXXXXX", folder ? folder : "/tmp");
    int fd[2] = {mkstemp(model_path), mkstemp(path)};
    for (int i = 0; i < 2; i++) {
        if (fd[i] < 0) fail_msg("cannot create %s", i ? path : model_path);
        close(fd[i]);
    }
    lk_model *model = NULL;
    lk_err err = {0};
    opts.sidecar = path;
    bool written = tiny_gguf_write(model_path, &spec) && write_sidecar_for(path, model_path, seed);
    lk_status status = written ? lk_model_open(&model, model_path, &opts, &err) : LK_E_IO;
    unlink(model_path);
    unlink(path);
    if (status != LK_OK)
        fail_msg("%s: %s", preset, written ? err.msg : "cannot write the model or its sidecar");
    return model;
}

lk_session *open_session(lk_model *model, const char *text, int n_ctx, lk_recipe **recipe) {
    lk_err err = {0};
    lk_session *session = NULL;
    lk_session_opts opts = {.n_ctx = n_ctx};
    if (lk_recipe_parse(recipe, text, &err) != LK_OK ||
        lk_session_new(&session, model, *recipe, &opts, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    return session;
}

void assert_same_logits(const lk_session *a, const lk_session *b, const char *what) {
    size_t n = (size_t)a->model->net->hp.n_vocab * sizeof(float);
    const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
    assert_int_equal(lk_session_n_tok(a), lk_session_n_tok(b));
    if (!x || !y || memcmp(x, y, n) != 0)
        fail_msg("%s, %s: logits differ at token %zu", lk_recipe_text(a->recipe), what,
                 lk_session_n_tok(a));
}

void random_tokens(int32_t *tok, int n, const lk_model *model, uint64_t seed) {
    struct random r = {seed};
    int n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < n; i++) tok[i] = random_int(&r, 0, n_vocab - 1);
}

struct edit {
    const char *arch;
    const struct metadata_change *change;
};

static void change_key(struct gguf_context *gguf, void *user) {
    const struct edit *edit = user;
    char key[96];
    snprintf(key, sizeof key, "%s.%s", edit->arch, edit->change->key);
    gguf_remove_key(gguf, key);
    if (edit->change->value >= 0) gguf_set_val_u32(gguf, key, (uint32_t)edit->change->value);
}

void expect_refused(const char *preset, const struct metadata_change *change, size_t n) {
    const struct tiny_spec *spec = tiny_preset(preset);
    for (size_t i = 0; i < n; i++) {
        char path[] = "/tmp/lowkey-refused-XXXXXX";
        struct edit edit = {spec->arch, &change[i]};
        lk_model *model = NULL;
        lk_err err = {0};
        close(mkstemp(path));
        assert_true(tiny_gguf_write_edited(path, spec, change_key, &edit));
        lk_status status = lk_model_open(&model, path, NULL, &err);
        unlink(path);
        if (status == LK_OK || !strstr(err.msg, change[i].reason))
            fail_msg("%s.%s = %d: %s", spec->arch, change[i].key, change[i].value,
                     status ? err.msg : "opened");
    }
}
