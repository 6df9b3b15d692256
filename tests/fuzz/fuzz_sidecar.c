/* Fuzz target: sidecars. The input is the file. What was read must be consistent: every value of a
 * basis can be read and is finite, LESS networks that fit can compute features, and adapters that
 * fit can be added to weights. A rejected file gives one line of error. No bytes remain in the
 * ledger. */
#define _GNU_SOURCE /* memfd_create */
#include "cache/project.h"
#include "engine/absorb.h"
#include "engine/adapters.h"
#include "fuzz_input.h"
#include "sidecar/sidecar.h"

#include <math.h>

static void check_floats(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) abort();
}

static void check_basis(const struct lk_basis *b) {
    size_t n_group = (size_t)b->n_group;
    if (b->n_group == 0) return;
    float row[8];
    size_t n_row = n_group * (size_t)b->n_comp;
    for (size_t i = 0; i < n_row; i++)
        for (int c = 0; c + 8 <= b->width; c += 8)
            for (int factor = 0; factor < 2; factor++)
                check_floats(lk_basis_row(b, factor, (int)(i / (size_t)b->n_comp),
                                          (int)(i % (size_t)b->n_comp), c, 8, row),
                             8);
    if (b->mean) check_floats(b->mean, n_group * (size_t)b->width);
    check_floats(b->error, n_group * (size_t)b->n_comp);
    for (size_t g = 0; g < n_group; g++)
        if (b->rank[g] < 0 || b->rank[g] > b->n_comp) abort();
}

/* Compute the features of a query and a key with the networks of each layer. */
static void compute_features(const struct lk_absorb *a) {
    const struct lk_less_shape *s = &a->shape;
    float *x = calloc((size_t)s->d_head, sizeof *x),
          *work = calloc((size_t)s->n_hidden, sizeof *work), out[LK_LESS_MAX_FEATURE];
    if (!x || !work) abort();
    for (int layer = 0; layer < a->n_layer && layer < 4; layer++) {
        lk_less_phi(s, &a->maps[layer], s->n_head - 1, x, out, work);
        lk_less_psi(s, &a->maps[layer], s->n_head_kv - 1, x, out, work);
    }
    free(x);
    free(work);
}

static void use_networks(const struct lk_sidecar *sidecar, int n_head, struct lk_ledger *ledger) {
    struct lk_absorb *absorb = NULL;
    struct lk_absorb_bytes bytes;
    lk_err err = {0};
    bool fits = lk_absorb_estimate(sidecar, n_head, &bytes, &err) == LK_OK;
    if (!fits) fuzz_check_error(&err);
    if (lk_absorb_new(&absorb, sidecar, n_head, &lk_kernels_reference, ledger, &err) == LK_OK) {
        if (!fits) abort();
        compute_features(absorb);
        lk_absorb_clear(absorb);
        lk_absorb_free(absorb);
    } else {
        fuzz_check_error(&err);
    }
}

/* Add the adapters of the first layers to weights, if all widths equal the KV heads'. */
static void use_adapters(const struct lk_sidecar *sidecar, struct lk_ledger *ledger) {
    const struct lk_sidecar_model *m = &sidecar->info.model;
    struct lk_hparams hp = {.n_layer = m->n_layer,
                            .n_embd = m->n_head_kv * m->d_head,
                            .n_head = m->n_head_kv,
                            .n_head_kv = m->n_head_kv,
                            .d_head = m->d_head};
    struct lk_adapter *adapter = NULL;
    lk_err err = {0};
    if (lk_adapters_new(&adapter, sidecar, &hp, ledger, &err) != LK_OK) fuzz_check_error(&err);
    for (int i = 0; adapter && i < 4 * LK_N_ADAPTED && i < hp.n_layer * LK_N_ADAPTED; i++) {
        if (adapter[i].rank == 0) continue;
        size_t n = lk_adapter_scratch_floats(&adapter[i], hp.n_embd);
        float *w = calloc((size_t)hp.n_embd, sizeof *w), *scratch = calloc(n, sizeof *scratch);
        if (!w || !scratch) abort();
        lk_adapter_add(&adapter[i], 1, hp.n_embd, scratch, w);
        free(scratch);
        free(w);
    }
    lk_adapters_free(adapter, &hp, ledger);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct fuzz_file file = {-1, ""};
    struct lk_ledger ledger = {.limit = (uint64_t)64 << 20};
    struct lk_sidecar *sidecar = NULL;
    lk_err err = {0};
    if (file.fd < 0) file = fuzz_file_new();
    fuzz_file_set(&file, data, size);
    if (lk_sidecar_open(&sidecar, file.path, NULL, &ledger, &err) == LK_OK) {
        int n_layer = sidecar->info.model.n_layer, n_head_kv = sidecar->info.model.n_head_kv;
        for (int side = 0; side < LK_N_BASIS; side++)
            for (int layer = 0; layer < n_layer; layer++) check_basis(&sidecar->basis[side][layer]);
        use_networks(sidecar, n_head_kv, &ledger);
        use_networks(sidecar, 3 * n_head_kv, &ledger);
        use_adapters(sidecar, &ledger);
        lk_sidecar_close(sidecar);
    } else {
        fuzz_check_error(&err);
    }
    for (int i = 0; i < LK_N_PURPOSE; i++)
        if (lk_ledger_bytes(&ledger, i) != 0) abort();
    return 0;
}
