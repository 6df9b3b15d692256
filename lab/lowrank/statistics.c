/* Statistics of a text: memory, checks and the file. */
#include "lowrank/statistics.h"

#include "base/atomic_file.h"
#include "base/fnv1a.h"

#include <stdlib.h>
#include <string.h>

/* Empty moments for every layer. */
static lk_status moments_by_layer_new(struct lk_statistics *s, struct lk_moments **out, int n_group,
                                      int width, lk_err *err) {
    *out = lk_alloc(s->ledger, LK_FOR_SCRATCH, s->n_layer * sizeof **out);
    lk_status status = *out ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for statistics");
    for (int layer = 0; status == LK_OK && layer < s->n_layer; layer++)
        status = lk_moments_new(&(*out)[layer], n_group, width, s->ledger, err);
    return status;
}

static void moments_by_layer_free(struct lk_statistics *s, struct lk_moments *side) {
    for (int layer = 0; side && layer < s->n_layer; layer++)
        lk_moments_free(&side[layer], s->ledger);
    lk_release(s->ledger, LK_FOR_SCRATCH, side, s->n_layer * sizeof *side);
}

lk_status lk_statistics_check(const struct lk_hparams *hp, const struct lk_statistics_opts *opts,
                              size_t n_tok, lk_err *err) {
    for (int side = 0; side < LK_N_BASIS; side++) {
        int group = opts->group[side];
        if (group < 0 || (group > 0 && hp->n_head_kv % group != 0))
            return lk_fail(err, LK_E_ARG,
                           "groups of %d heads do not divide the model's %d KV heads", group,
                           hp->n_head_kv);
    }
    if (opts->group[LK_BASIS_KPRE] && hp->rope_mode < 0)
        return lk_fail(err, LK_E_ARG,
                       "this model does not rotate its keys: it has no keys before RoPE");
    if (opts->n_ctx < 2 || opts->n_ctx > hp->n_ctx_train)
        return lk_fail(err, LK_E_ARG,
                       "windows must have between 2 and %d tokens, the trained length, not %d",
                       hp->n_ctx_train, opts->n_ctx);
    if (opts->n_skip < 0 || opts->n_skip >= opts->n_ctx)
        return lk_fail(err, LK_E_ARG, "cannot skip %d tokens of windows of %d", opts->n_skip,
                       opts->n_ctx);
    /* Fewer rows than channels span no space: every basis would look perfect. */
    size_t n_min = 4 * (size_t)hp->n_head_kv * hp->d_head;
    if (n_tok < n_min)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu tokens; calibrating this model needs at least %zu", n_tok,
                       n_min);
    return LK_OK;
}

lk_status lk_statistics_new(struct lk_statistics **out, const struct lk_model *model,
                            const struct lk_statistics_opts *opts, const int32_t *tok, size_t n_tok,
                            struct lk_ledger *ledger, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    lk_status status = lk_statistics_check(hp, opts, n_tok, err);
    if (status != LK_OK) return status;
    struct lk_statistics *s = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for statistics");
    *s = (struct lk_statistics){.ledger = ledger,
                                .opts = *opts,
                                .n_layer = hp->n_layer,
                                .n_head = hp->n_head,
                                .n_head_kv = hp->n_head_kv,
                                .d_head = hp->d_head};
    s->key = lk_fnv1a(LK_FNV1A_INIT, &model->net->fingerprint, sizeof model->net->fingerprint);
    s->key = lk_fnv1a(s->key, opts->group, sizeof opts->group);
    const int32_t numbers[] = {opts->queries, opts->n_ctx, opts->n_skip};
    s->key = lk_fnv1a(lk_fnv1a(s->key, numbers, sizeof numbers), tok, n_tok * sizeof *tok);
    if (opts->scored) s->key = lk_fnv1a(s->key, &opts->scored, sizeof opts->scored);
    for (int side = 0; status == LK_OK && side < LK_N_BASIS; side++) {
        int group = opts->group[side];
        if (group > 0)
            status = moments_by_layer_new(s, &s->side[side], hp->n_head_kv / group,
                                          group * hp->d_head, err);
    }
    if (status == LK_OK && opts->queries)
        status = moments_by_layer_new(s, &s->query, hp->n_head_kv, hp->d_head, err);
    if (status != LK_OK)
        lk_statistics_free(s);
    else
        *out = s;
    return status;
}

void lk_statistics_free(struct lk_statistics *s) {
    if (!s) return;
    for (int side = 0; side < LK_N_BASIS; side++) moments_by_layer_free(s, s->side[side]);
    moments_by_layer_free(s, s->query);
    lk_release(s->ledger, LK_FOR_SCRATCH, s, sizeof *s);
}

/* ---- the file ----
 *
 * Magic, key, n_tok, the moments of all sides and layers, hash of everything after the magic. */

static const char magic[8] = "LKSTAT1";

/* Read or write the moments of all sides and layers, and the queries' last. */
static bool transfer_moments(const struct lk_statistics *s, FILE *file, bool write,
                             uint64_t *hash) {
    for (int side = 0; side <= LK_N_BASIS; side++) {
        struct lk_moments *m = side < LK_N_BASIS ? s->side[side] : s->query;
        for (int layer = 0; m && layer < s->n_layer; layer++)
            if (!(write ? lk_moments_write(&m[layer], file, hash)
                        : lk_moments_read(&m[layer], file, hash)))
                return false;
    }
    return true;
}

static bool write_statistics(const struct lk_statistics *s, FILE *file) {
    const uint64_t head[] = {s->key, s->n_tok};
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, head, sizeof head);
    return fwrite(magic, sizeof magic, 1, file) == 1 && fwrite(head, sizeof head, 1, file) == 1 &&
           transfer_moments(s, file, true, &hash) && fwrite(&hash, sizeof hash, 1, file) == 1;
}

lk_status lk_statistics_save(const struct lk_statistics *s, const char *path, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status != LK_OK) return status;
    if (!write_statistics(s, f.file))
        status =
            lk_fail(err, LK_E_IO, "cannot write the statistics to %s; is the disk full?", path);
    return lk_atomic_file_close(&f, status, err);
}

lk_status lk_statistics_load(struct lk_statistics *s, const char *path, lk_err *err) {
    char start[sizeof magic];
    uint64_t head[2], hash, end;
    FILE *file = fopen(path, "rb");
    if (!file) return LK_OK;
    bool whole = fread(start, sizeof start, 1, file) == 1 &&
                 memcmp(start, magic, sizeof magic) == 0 && fread(head, sizeof head, 1, file) == 1;
    if (whole && head[0] != s->key) {
        fclose(file);
        return lk_fail(err, LK_E_ARG,
                       "%s holds statistics of another model, text or options; delete it or choose "
                       "another output",
                       path);
    }
    hash = lk_fnv1a(LK_FNV1A_INIT, head, sizeof head);
    whole = whole && transfer_moments(s, file, false, &hash) &&
            fread(&end, sizeof end, 1, file) == 1 && end == hash && fgetc(file) == EOF;
    fclose(file);
    if (!whole)
        return lk_fail(err, LK_E_FORMAT,
                       "the statistics in %s are damaged; delete the file and start again", path);
    s->n_tok = head[1];
    return LK_OK;
}
