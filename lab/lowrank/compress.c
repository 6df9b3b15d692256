/* From a model and a text to a sidecar with low-rank bases ("Palu", "TALE", "Effectively Compress
 * KV Heads for LLM"). */
#include "lowrank/compress.h"

#include "base/atomic_file.h"
#include "base/hash.h"
#include "engine/model.h"
#include "lowrank/rank.h"
#include "lowrank/statistics.h"
#include "sidecar/sidecar.h"
#include "sidecar/sidecar_write.h"

#include <stdio.h>

/* ---- names ---- */

bool lk_compress_name(lk_compress_choice choice, size_t i, const char **name) {
    static const char *const names[][4] = {
        [LK_COMPRESS_METHOD] = {"palu", "tale", "kvheads", "oscar"},
        [LK_COMPRESS_SVD] = {"whitened", "plain", "output", "mean-pool"},
        [LK_COMPRESS_RANKS] = {"uniform", "energy", "fisher"},
        [LK_COMPRESS_NUMBERS] = {"q8", "f16", "f32"},
    };
    *name = i < 4 ? names[choice][i] : NULL;
    return *name != NULL;
}

/* ---- start and end ---- */

lk_status lk_compress_check(lk_model *model, const lk_compress_opts *opts, size_t n_tok,
                            lk_err *err) {
    struct lk_compress_plan plan;
    return lk_compress_plan_make(&plan, model->net, opts, n_tok, err);
}

lk_status lk_compress_new(lk_compress **out, lk_model *model, const lk_compress_opts *opts,
                          const int32_t *tok, size_t n_tok, lk_err *err) {
    struct lk_ledger temporary = {0}; /* until there is c->ledger */
    struct lk_compress *c = lk_alloc(&temporary, LK_FOR_OTHER, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "no memory to compress");
    c->model = model;
    c->n_tok = n_tok;
    c->text_hash = lk_fnv1a(LK_FNV1A_INIT, tok, n_tok * sizeof *tok);
    lk_status status = lk_model_check_dense(model, err);
    if (!status) status = lk_compress_plan_make(&c->plan, model->net, opts, n_tok, err);
    if (!status && c->plan.needs_text)
        status = lk_statistics_new(&c->statistics, model, &c->plan.statistics, tok, n_tok,
                                   &c->ledger, err);
    if (!status && c->plan.needs_fisher) status = lk_fisher_new(&c->fisher, model, &c->ledger, err);
    if (status)
        lk_compress_free(c);
    else
        *out = c;
    return status;
}

void lk_compress_free(lk_compress *c) {
    if (!c) return;
    int n_layer = c->model->net->hp.n_layer;
    for (int side = 0; side < LK_N_BASIS; side++) {
        for (int i = 0; c->layer[side] && i < n_layer; i++)
            lk_layer_basis_free(&c->layer[side][i], &c->ledger);
        lk_release(&c->ledger, LK_FOR_OTHER, c->layer[side], n_layer * sizeof *c->layer[side]);
    }
    lk_statistics_free(c->statistics);
    if (c->fisher.square) lk_fisher_free(&c->fisher);
    struct lk_ledger last = {0};
    lk_ledger_add(&last, LK_FOR_OTHER, sizeof *c);
    lk_release(&last, LK_FOR_OTHER, c, sizeof *c);
}

/* ---- progress ---- */

/* After the text, differentiating a token counts as so many tokens, and so does fitting a layer's
 * side. */
enum { FISHER_COST = 5, FIT_COST = 8 };

/* Report `done` units; false once the caller cancels. */
static bool report_progress(const struct lk_compress *c, uint64_t done) {
    const lk_compress_opts *opts = &c->plan.opts;
    uint64_t n_side = 0;
    for (int side = 0; side < LK_N_BASIS; side++) n_side += c->plan.group[side] > 0;
    return !opts->progress ||
           opts->progress(opts->user, done,
                          c->n_tok + c->plan.fisher_tokens * FISHER_COST +
                              n_side * (uint64_t)c->model->net->hp.n_layer * FIT_COST);
}

static bool collect_progress(void *user, uint64_t done, uint64_t total) {
    (void)total;
    return report_progress(user, done);
}

static bool fisher_progress(void *user, uint64_t done, uint64_t total) {
    const struct lk_compress *c = user;
    (void)total;
    return report_progress(c, c->n_tok + done * FISHER_COST);
}

static bool layer_fitted(void *user) {
    struct lk_compress *c = user;
    return report_progress(c, c->n_tok + c->plan.fisher_tokens * FISHER_COST +
                                  ++c->n_fitted * FIT_COST);
}

/* ---- work ---- */

lk_status lk_compress_calibrate(lk_compress *c, const int32_t *tok, size_t n_tok, const char *path,
                                lk_err *err) {
    lk_status status = LK_OK;
    if (c->statistics && path) status = lk_statistics_load(c->statistics, path, err);
    if (!status && c->statistics)
        status = lk_statistics_collect(c->statistics, c->model, tok, n_tok, path, collect_progress,
                                       c, err);
    struct lk_fisher_text text = {.tok = tok,
                                  .n_tok = c->plan.fisher_tokens,
                                  .n_ctx = c->plan.opts.fisher_ctx,
                                  .progress = fisher_progress,
                                  .user = c};
    if (!status && c->plan.needs_fisher)
        status = lk_fisher_add(&c->fisher, c->model, &text, NULL, err);
    return status;
}

lk_status lk_compress_fit(lk_compress *c, lk_err *err) {
    int n_layer = c->model->net->hp.n_layer;
    if (c->statistics && c->statistics->n_tok != c->n_tok)
        return lk_fail(err, LK_E_ARG, "the text was not evaluated to its end; calibrate first");
    if (c->plan.needs_fisher && c->fisher.n == 0)
        return lk_fail(err, LK_E_ARG, "no gradients were computed; calibrate first");
    struct lk_basis_source source = {
        .plan = &c->plan, .net = c->model->net, .statistics = c->statistics, .ledger = &c->ledger};
    lk_status status = LK_OK;
    for (int side = 0; !status && side < LK_N_BASIS; side++) {
        if (c->plan.group[side] == 0) continue;
        c->layer[side] = lk_alloc(&c->ledger, LK_FOR_OTHER, n_layer * sizeof *c->layer[side]);
        status = c->layer[side]
                     ? lk_fit_layers(c->layer[side], &source, side, layer_fitted, c, err)
                     : lk_fail(err, LK_E_NOMEM, "no memory for the bases of %d layers", n_layer);
    }
    if (!status) status = lk_assign_ranks(c->layer, &source, &c->fisher, err);
    for (int side = 0; !status && c->plan.opts.truncate && side < LK_N_BASIS; side++)
        for (int i = 0; c->layer[side] && i < n_layer; i++)
            lk_layer_basis_truncate(&c->layer[side][i]);
    return status;
}

bool lk_compress_get_basis(const lk_compress *c, int32_t layer, int32_t i, lk_compress_basis *out) {
    if (i < 0 || i >= LK_N_BASIS) return false;
    const struct lk_basis *b = lk_compress_layer(c, layer, i);
    const lk_compress_opts *opts = &c->plan.opts;
    *out = (lk_compress_basis){.name = lk_basis_side_name(i),
                               .n_group = b->n_group,
                               .width = b->width,
                               .rank = b->rank,
                               .lost = b->n_group ? lk_layer_basis_loss(&c->layer[i][layer]) : 0};
    if (b->n_group && opts->svd == LK_SVD_WHITENED && opts->method != LK_METHOD_OSCAR) {
        const struct lk_layer_basis *layer_basis = &c->layer[i][layer];
        out->singular_quarter = layer_basis->singular_quarter / layer_basis->singular;
        out->singular_half = layer_basis->singular_half / layer_basis->singular;
    }
    return true;
}

/* ---- files ---- */

/* A basis with the sidecar's numbers, until it is written. */
struct packed_basis {
    struct lk_basis basis;
    void *mem;
    size_t bytes;
};

/* Add all bases; packed: [n_layer][LK_N_BASIS], to be freed by the caller. */
static lk_status add_bases(const struct lk_compress *c, struct lk_sidecar_builder *draft,
                           struct packed_basis *packed, struct lk_ledger *ledger, lk_err *err) {
    static const enum lk_basis_type type_of[] = {[LK_NUMBERS_Q8] = LK_BASIS_Q8,
                                                 [LK_NUMBERS_F16] = LK_BASIS_F16,
                                                 [LK_NUMBERS_F32] = LK_BASIS_F32};
    lk_status status = LK_OK;
    for (int layer = 0; layer < c->model->net->hp.n_layer; layer++)
        for (int side = 0; !status && side < LK_N_BASIS; side++, packed++) {
            if (!c->layer[side]) continue;
            status = lk_layer_basis_pack(&c->layer[side][layer], type_of[c->plan.opts.numbers],
                                         ledger, &packed->basis, &packed->mem, &packed->bytes, err);
            if (!status)
                status = lk_sidecar_builder_add_basis(draft, layer, side, &packed->basis, err);
        }
    return status;
}

static lk_status write_sidecar(const struct lk_compress *c, FILE *file, lk_err *err) {
    const struct lk_net *net = c->model->net;
    const lk_compress_opts *opts = &c->plan.opts;
    struct lk_sidecar_info info = {
        .model = {net->fingerprint, net->hp.n_layer, net->hp.n_head_kv, net->hp.d_head},
        .calibration_hash = c->text_hash,
        .calibration_tokens = c->n_tok};
    const char *method, *svd, *ranks, *numbers;
    lk_compress_name(LK_COMPRESS_METHOD, opts->method, &method);
    lk_compress_name(LK_COMPRESS_SVD, opts->svd, &svd);
    lk_compress_name(LK_COMPRESS_RANKS, opts->ranks, &ranks);
    lk_compress_name(LK_COMPRESS_NUMBERS, opts->numbers, &numbers);
    snprintf(info.method, sizeof info.method, "%s", method);
    snprintf(
        info.options, sizeof info.options,
        "svd %s, group %d, rank %.4g%% %s, quantum %d, windows of %d without their first %d%s%s, "
        "%s%s",
        svd, c->plan.group[LK_BASIS_V], 100 * opts->rank, ranks, opts->quantum, opts->n_ctx,
        opts->n_skip, opts->mean ? ", around the mean" : "", opts->truncate ? ", truncated" : "",
        opts->equalize ? "equalized, " : "", numbers);
    struct lk_sidecar_builder *draft = NULL;
    struct lk_ledger ledger = {0};
    size_t n_packed = (size_t)LK_N_BASIS * net->hp.n_layer;
    struct packed_basis *packed = lk_alloc(&ledger, LK_FOR_OTHER, n_packed * sizeof *packed);
    lk_status status = packed ? lk_sidecar_builder_new(&draft, &info, &ledger, err)
                              : lk_fail(err, LK_E_NOMEM, "no memory for a sidecar");
    if (!status) status = add_bases(c, draft, packed, &ledger, err);
    if (!status) status = lk_sidecar_builder_write(draft, file, err);
    lk_sidecar_builder_free(draft);
    for (size_t i = 0; packed && i < n_packed; i++)
        lk_release(&ledger, LK_FOR_OTHER, packed[i].mem, packed[i].bytes);
    lk_release(&ledger, LK_FOR_OTHER, packed, n_packed * sizeof *packed);
    return status;
}

lk_status lk_compress_write(const lk_compress *c, const char *path, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, path, err);
    if (status) return status;
    return lk_atomic_file_close(&f, write_sidecar(c, f.file, err), err);
}
