/* Files of layers in training. */
#include "training/less_checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t state_magic = 0x3430657461746b6cull; /* "lktate04" */

lk_status lk_less_file_name(char out[LK_MAX_PATH], const char *path, const char *format, int n,
                            lk_err *err) {
    size_t len = strlen(path);
    if (len + 32 > LK_MAX_PATH)
        return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    memcpy(out, path, len);
    snprintf(out + len, LK_MAX_PATH - len, format, n);
    return LK_OK;
}

static lk_status layer_file_name(char out[LK_MAX_PATH], const struct lk_less_checkpoint *c,
                                 int layer, lk_err *err) {
    return lk_less_file_name(out, c->path, ".layer-%d", layer, err);
}

/* Floats of the file after the state. */
struct span {
    float *at;
    size_t n;
};

enum { N_SPAN = 3 };

static void list_spans(const struct lk_less_checkpoint *c, struct span span[N_SPAN]) {
    const struct span all[N_SPAN] = {{c->net->weight, 3 * c->net->n_weight},
                                     {c->best_weight, c->net->n_weight},
                                     {c->net->level, (size_t)c->net->size.shape.n_head}};
    memcpy(span, all, sizeof all);
}

void lk_less_checkpoint_start(struct lk_less_checkpoint *c, int layer) {
    c->state = (struct lk_less_state){
        .magic = state_magic, .identity = c->identity, .layer = layer, .best = INFINITY};
}

lk_status lk_less_checkpoint_save(const struct lk_less_checkpoint *c, lk_err *err) {
    char path[LK_MAX_PATH];
    struct span span[N_SPAN];
    struct lk_atomic_file f;
    lk_status status = layer_file_name(path, c, c->state.layer, err);
    if (status == LK_OK) status = lk_atomic_file_open_public(&f, path, err);
    if (status != LK_OK) return status;
    list_spans(c, span);
    bool ok = fwrite(&c->state, sizeof c->state, 1, f.file) == 1;
    for (int i = 0; ok && i < N_SPAN; i++)
        ok = fwrite(span[i].at, sizeof(float), span[i].n, f.file) == span[i].n;
    if (!ok) status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

bool lk_less_checkpoint_load(struct lk_less_checkpoint *c, int layer) {
    char path[LK_MAX_PATH];
    struct span span[N_SPAN];
    if (layer_file_name(path, c, layer, NULL) != LK_OK) return false;
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    list_spans(c, span);
    bool ok = fread(&c->state, sizeof c->state, 1, file) == 1 && c->state.magic == state_magic &&
              c->state.identity == c->identity && c->state.layer == layer;
    for (int i = 0; ok && i < N_SPAN; i++)
        ok = fread(span[i].at, sizeof(float), span[i].n, file) == span[i].n;
    fclose(file);
    return ok;
}

void lk_less_checkpoint_remove(const struct lk_less_checkpoint *c, int n_layer) {
    char path[LK_MAX_PATH];
    for (int layer = 0; layer < n_layer; layer++)
        if (layer_file_name(path, c, layer, NULL) == LK_OK) unlink(path);
}
