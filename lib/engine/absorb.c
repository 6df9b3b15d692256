/* States of evicted rows. Their networks come from the sidecar. */
#include "engine/absorb.h"

#include "engine/absorb_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The tensor "blk.LAYER.less.PART", or NULL. */
static const struct lk_sidecar_tensor *find_tensor(const struct lk_sidecar *sidecar, int layer,
                                                   const char *part) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.less.%s", layer, part);
    for (size_t i = 0; i < sidecar->n_tensor; i++)
        if (strcmp(sidecar->tensor[i].name, name) == 0) return &sidecar->tensor[i];
    return NULL;
}

/* The first layer's networks give the sizes; bind_layer checks the others. */
static lk_status read_shape(struct lk_less_shape *out, const struct lk_sidecar *sidecar, int n_head,
                            lk_err *err) {
    const struct lk_sidecar_tensor *phi = find_tensor(sidecar, 0, "phi.w2"),
                                   *psi = find_tensor(sidecar, 0, "psi.w2");
    if (!phi || !psi)
        return lk_fail(
            err, LK_E_ARG,
            "the sidecar was made by '%s' and has no LESS networks; `lowkey train less` makes one",
            sidecar->info.method);
    struct lk_less_shape s = {.n_head = n_head,
                              .n_head_kv = sidecar->info.model.n_head_kv,
                              .d_head = sidecar->info.model.d_head,
                              .n_feature = phi->ne[0],
                              .n_hidden = phi->ne[1],
                              .n_phi = phi->ne[2],
                              .n_psi = psi->ne[2]};
    bool phi_fits = s.n_phi == s.n_head || s.n_phi == s.n_head_kv || s.n_phi == 1;
    if (s.n_feature > LK_LESS_MAX_FEATURE || s.n_hidden > LK_LESS_MAX_HIDDEN || !phi_fits ||
        (s.n_psi != s.n_head_kv && s.n_psi != 1)) {
        return lk_fail(err, LK_E_FORMAT,
                       "the sidecar's networks (R %" PRId32 ", R' %" PRId32 ", %" PRId32
                       " phi, %" PRId32 " psi) do not fit a model with %d heads",
                       phi->ne[0], phi->ne[1], phi->ne[2], psi->ne[2], n_head);
    }
    *out = s;
    return LK_OK;
}

/* Point the maps of a layer to the sidecar's tensors. */
static lk_status bind_layer(struct lk_absorb *a, const struct lk_sidecar *sidecar,
                            const struct lk_kernels *kernels, int layer, lk_err *err) {
    const struct lk_less_shape *s = &a->shape;
    struct lk_less_maps *maps = &a->maps[layer];
    *maps = (struct lk_less_maps){.kernels = kernels};
    const struct {
        const char *part;
        const uint16_t **halves;
        const float **floats;
        int ne[3];
    } all[] = {{"phi.w1", &maps->phi_w1, NULL, {s->n_hidden, s->d_head, s->n_phi}},
               {"phi.w2", &maps->phi_w2, NULL, {s->n_feature, s->n_hidden, s->n_phi}},
               {"psi.w1", &maps->psi_w1, NULL, {s->n_hidden, s->d_head, s->n_psi}},
               {"psi.w2", &maps->psi_w2, NULL, {s->n_feature, s->n_hidden, s->n_psi}},
               {"phi.level", NULL, &maps->phi_bias, {s->n_head, 1, 1}},
               {"psi.w3", NULL, &maps->psi_w3, {s->n_feature, s->n_feature, s->n_psi}},
               {"psi.s1", NULL, &maps->psi_s1, {s->n_feature, s->n_psi, 1}},
               {"psi.s2", NULL, &maps->psi_s2, {s->n_feature, s->n_psi, 1}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.less.%s", layer, all[i].part);
        enum lk_sidecar_type type = all[i].halves ? LK_SIDECAR_F16 : LK_SIDECAR_F32;
        const void *data;
        lk_status status = lk_sidecar_find(sidecar, name, type, all[i].ne[0], all[i].ne[1],
                                           all[i].ne[2], &data, err);
        if (status) return status;
        if (all[i].halves)
            *all[i].halves = data;
        else
            *all[i].floats = data;
        if (!data)
            return lk_fail(err, LK_E_FORMAT,
                           "the sidecar lacks %s; train it again with `lowkey train less`", name);
    }
    return LK_OK;
}

static size_t state_floats(const struct lk_less_shape *shape, int n_layer) {
    return (size_t)n_layer * shape->n_head_kv * lk_less_state_floats(shape);
}

/* Rounded up to whole cache lines, as the ledger counts them. */
static size_t total_state_floats(const struct lk_less_shape *shape, int n_layer) {
    return (state_floats(shape, n_layer) + 15) / 16 * 16;
}

size_t lk_absorb_state_bytes(const struct lk_absorb *a) {
    return total_state_floats(&a->shape, a->n_layer) * sizeof(float);
}

static size_t partial_bytes(const struct lk_absorb *a, int n_tok) {
    return (size_t)n_tok * a->shape.n_head * (a->shape.d_head + 2) * sizeof(float);
}

/* Empty states, and room for the maps. NULL if memory runs out. */
static struct lk_absorb *alloc_states(const struct lk_less_shape *shape, int n_layer,
                                      struct lk_ledger *ledger) {
    struct lk_absorb *a = lk_alloc(ledger, LK_FOR_OTHER, sizeof *a);
    if (!a) return NULL;
    *a = (struct lk_absorb){.ledger = ledger, .n_layer = n_layer, .shape = *shape};
    a->maps = lk_alloc(ledger, LK_FOR_OTHER, a->n_layer * sizeof *a->maps);
    a->state = lk_alloc(ledger, LK_FOR_CACHE, lk_absorb_state_bytes(a));
    if (a->maps && a->state) return a;
    lk_absorb_free(a);
    return NULL;
}

static lk_status fail_nomem(lk_err *err) {
    return lk_fail(err, LK_E_NOMEM, "out of memory for the states of absorbed rows");
}

lk_status lk_absorb_new(struct lk_absorb **out, const struct lk_sidecar *sidecar, int n_head,
                        const struct lk_kernels *kernels, struct lk_ledger *ledger, lk_err *err) {
    struct lk_less_shape shape;
    lk_status status = read_shape(&shape, sidecar, n_head, err);
    if (status) return status;
    struct lk_absorb *a = alloc_states(&shape, sidecar->info.model.n_layer, ledger);
    if (!a) return fail_nomem(err);
    a->sidecar = sidecar->fingerprint;
    for (int layer = 0; !status && layer < a->n_layer; layer++)
        status = bind_layer(a, sidecar, kernels, layer, err);
    if (!status) status = lk_absorb_reserve(a, 1, err); /* single steps allocate nothing */
    if (status)
        lk_absorb_free(a);
    else
        *out = a;
    return status;
}

lk_status lk_absorb_estimate(const struct lk_sidecar *sidecar, int n_head,
                             struct lk_absorb_bytes *bytes, lk_err *err) {
    struct lk_less_shape shape;
    int n_layer = sidecar->info.model.n_layer;
    lk_status status = read_shape(&shape, sidecar, n_head, err);
    if (status) return status;
    bytes->states = total_state_floats(&shape, n_layer) * sizeof(float);
    lk_absorb_estimate_there(&shape, n_layer, bytes);
    return LK_OK;
}

void lk_absorb_free(struct lk_absorb *a) {
    if (!a) return;
    lk_absorb_leave_device(a);
    lk_release(a->ledger, LK_FOR_SCRATCH, a->partial, partial_bytes(a, a->cap));
    lk_release(a->ledger, LK_FOR_CACHE, a->state, lk_absorb_state_bytes(a));
    lk_release(a->ledger, LK_FOR_OTHER, a->maps, a->n_layer * sizeof *a->maps);
    lk_release(a->ledger, LK_FOR_OTHER, a, sizeof *a);
}

/* The states in RAM are replaced. */
static void replaced(struct lk_absorb *a) {
    if (!a->there) return;
    a->there->here = true;
    a->there->there = false;
    memset(a->there->room.n, 0, a->n_layer * sizeof *a->there->room.n);
}

void lk_absorb_clear(struct lk_absorb *a) {
    memset(a->state, 0, lk_absorb_state_bytes(a));
    replaced(a);
}

void lk_absorb_get(struct lk_absorb *a, void *to) {
    lk_absorb_fetch(a, false);
    memcpy(to, a->state, lk_absorb_state_bytes(a));
}

void lk_absorb_set(struct lk_absorb *a, const void *from) {
    memcpy(a->state, from, lk_absorb_state_bytes(a));
    replaced(a);
}

void lk_absorb_copy(struct lk_absorb *to, struct lk_absorb *from) {
    lk_absorb_fetch(from, false);
    lk_absorb_set(to, from->state);
}

size_t lk_absorb_saved_bytes(const struct lk_absorb *a) {
    return state_floats(&a->shape, a->n_layer) * sizeof(float);
}

bool lk_absorb_write(struct lk_absorb *a, const struct lk_writer *writer) {
    lk_absorb_fetch(a, false);
    return writer->put(writer->user, a->state, lk_absorb_saved_bytes(a));
}

bool lk_absorb_check(const struct lk_absorb *a, const void *states) {
    size_t n = state_floats(&a->shape, a->n_layer), row = (size_t)a->shape.d_head + 1;
    for (size_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, (const char *)states + i * sizeof value, sizeof value);
        if (!isfinite(value) || (i % row == row - 1 && value < 0)) return false;
    }
    return true;
}

void lk_absorb_restore(struct lk_absorb *a, const void *states) {
    memcpy(a->state, states, lk_absorb_saved_bytes(a));
    replaced(a);
}

lk_status lk_absorb_reserve(struct lk_absorb *a, int n_tok, lk_err *err) {
    if (n_tok <= a->cap) return LK_OK;
    float *partial = lk_alloc(a->ledger, LK_FOR_SCRATCH, partial_bytes(a, n_tok));
    if (!partial)
        return lk_fail(err, LK_E_NOMEM, "out of memory for attention of %d tokens to absorbed rows",
                       n_tok);
    lk_release(a->ledger, LK_FOR_SCRATCH, a->partial, partial_bytes(a, a->cap));
    a->partial = partial;
    a->cap = n_tok;
    return LK_OK;
}

static float *state_of(const struct lk_absorb *a, int layer, int head) {
    return a->state + ((size_t)layer * a->shape.n_head_kv + head) * lk_less_state_floats(&a->shape);
}

void lk_absorb_key_features(const struct lk_absorb *a, int layer, int head, const float *k,
                            float *psi) {
    float work[LK_LESS_MAX_HIDDEN];
    lk_less_psi(&a->shape, &a->maps[layer], head, k, psi, work);
}

void lk_absorb_row(void *user, int layer, int head, const float *k, const float *v) {
    struct lk_absorb *a = user;
    float psi[LK_LESS_MAX_FEATURE];
    lk_absorb_fetch(a, true);
    lk_absorb_key_features(a, layer, head, k, psi);
    lk_less_absorb(&a->shape, state_of(a, layer, head), psi, v);
}

void lk_absorb_query(const struct lk_absorb *a, int layer, int head, const float *q, float *phi,
                     float *mean, float *log_sum) {
    const struct lk_less_shape *s = &a->shape;
    const struct lk_less_maps *maps = &a->maps[layer];
    float work[LK_LESS_MAX_HIDDEN];
    lk_less_phi(s, maps, head, q, phi, work);
    lk_less_read(s, state_of(a, layer, head * s->n_head_kv / s->n_head), phi, maps->phi_bias[head],
                 mean, log_sum);
}

void lk_absorb_attend(struct lk_absorb *a, int layer, const float *q, int n_tok, int ith, int nth) {
    const struct lk_less_shape *s = &a->shape;
    float phi[LK_LESS_MAX_FEATURE];
    for (int row = ith; row < n_tok * s->n_head; row += nth) {
        float *acc = a->partial + (size_t)row * (s->d_head + 2), *log_sum = acc + s->d_head;
        lk_absorb_query(a, layer, row % s->n_head, q + (size_t)row * s->d_head, phi, acc, log_sum);
        log_sum[1] = *log_sum == -INFINITY ? 0 : 1; /* the partial softmax has maximum log_sum */
    }
}

size_t lk_absorb_map_bytes(const struct lk_absorb *a) {
    return (size_t)a->n_layer * lk_less_map_bytes(&a->shape);
}
