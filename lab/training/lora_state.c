/* The file of an unfinished training. */
#include "training/lora_state.h"

#include "base/atomic_file.h"

#include <errno.h>
#include <string.h>

static const uint64_t state_magic = 0x3130746661726f6cull; /* "loraft01" */

lk_status lk_lora_state_path(char *out, const char *path, lk_err *err) {
    size_t len = strlen(path);
    if (len + 32 > LK_MAX_PATH)
        return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    memcpy(out, path, len);
    memcpy(out + len, ".lora", sizeof ".lora");
    return LK_OK;
}

lk_status lk_lora_state_save(const char *path, uint64_t identity, int64_t n_step,
                             const struct lk_lora_net *net, lk_err *err) {
    struct lk_lora_state state = {state_magic, identity, n_step};
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status != LK_OK) return status;
    if (fwrite(&state, sizeof state, 1, f.file) != 1 ||
        fwrite(net->weight, sizeof(float), 3 * net->n_weight, f.file) != 3 * net->n_weight)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

lk_status lk_lora_state_load(const char *path, uint64_t identity, struct lk_lora_net *net,
                             int64_t *n_step, lk_err *err) {
    struct lk_lora_state state;
    *n_step = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return LK_OK;
    lk_status status = LK_OK;
    bool same = fread(&state, sizeof state, 1, file) == 1 && state.magic == state_magic &&
                state.identity == identity && state.n_step > 0;
    if (same && fread(net->weight, sizeof(float), 3 * net->n_weight, file) == 3 * net->n_weight)
        *n_step = state.n_step;
    else if (same)
        status = lk_fail(err, LK_E_FORMAT, "%s is damaged; delete it to start again", path);
    fclose(file);
    return status;
}
