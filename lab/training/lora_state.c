/* The file of an unfinished training. */
#include "training/lora_state.h"

#include "base/atomic_file.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const uint64_t state_magic = 0x3230746661726f6cull; /* "loraft02" */

lk_status lk_lora_state_path(char *out, const char *path, lk_err *err) {
    size_t len = strlen(path);
    if (len + 32 > LK_MAX_PATH)
        return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    memcpy(out, path, len);
    memcpy(out + len, ".lora", sizeof ".lora");
    return LK_OK;
}

lk_status lk_lora_state_save(const char *path, const struct lk_lora_state *state,
                             const struct lk_lora_net *net, lk_err *err) {
    struct lk_lora_state sealed = *state;
    struct lk_atomic_file f;
    size_t n = 4 * net->n_weight;
    sealed.magic = state_magic;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status != LK_OK) return status;
    if (fwrite(&sealed, sizeof sealed, 1, f.file) != 1 ||
        fwrite(net->weight, sizeof(float), n, f.file) != n)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

lk_status lk_lora_state_load(const char *path, struct lk_lora_state *state, struct lk_lora_net *net,
                             lk_err *err) {
    struct lk_lora_state found;
    FILE *file = fopen(path, "rb");
    if (!file) return LK_OK;
    lk_status status = LK_OK;
    size_t n = 4 * net->n_weight;
    bool same = fread(&found, sizeof found, 1, file) == 1 && found.magic == state_magic &&
                found.identity == state->identity;
    if (same && found.n_step > 0 && found.best_step >= 0 && found.best_step <= found.n_step &&
        isfinite(found.best_kl) && fread(net->weight, sizeof(float), n, file) == n)
        *state = found;
    else if (same)
        status = lk_fail(err, LK_E_FORMAT, "%s is damaged; delete it to start again", path);
    fclose(file);
    return status;
}
