/* Sums of evicted rows on a device. */
#include "engine/absorb_device.h"

#include "device/commands.h"
#include "device/device.h"

#include <string.h>

enum { N_PART = 8, ROOM = 8 /* rows of a layer that wait, at most */ };

static void note(const struct lk_absorb *a, lk_status status) {
    lk_arena_note(&a->there->cache->pool.arena, status);
}

static size_t round_up(size_t bytes) { return (bytes + 15) / 16 * 16; }

/* ---- networks ---- */

/* A part of a layer's networks: where a command names it. */
struct part {
    const void *data;
    size_t bytes;
    uint64_t *at;
};

static void list_parts(const struct lk_less_shape *s, const struct lk_less_maps *m,
                       struct lk_device_less *to, struct part part[N_PART]) {
    size_t in = (size_t)s->d_head * s->n_hidden * sizeof(uint16_t),
           out = (size_t)s->n_hidden * s->n_feature * sizeof(uint16_t),
           n = (size_t)s->n_feature * sizeof(float);
    const struct part all[N_PART] = {{m->phi_w1, s->n_phi * in, &to->phi_w1},
                                     {m->phi_w2, s->n_phi * out, &to->phi_w2},
                                     {m->phi_bias, s->n_head * sizeof(float), &to->phi_bias},
                                     {m->psi_w1, s->n_psi * in, &to->psi_w1},
                                     {m->psi_w2, s->n_psi * out, &to->psi_w2},
                                     {m->psi_w3, (size_t)s->n_psi * s->n_feature * n, &to->psi_w3},
                                     {m->psi_s1, s->n_psi * n, &to->psi_s1},
                                     {m->psi_s2, s->n_psi * n, &to->psi_s2}};
    memcpy(part, all, sizeof all);
}

/* Let the commands of all layers name the networks at `at`. Returns their bytes. upload: bring them
 * there, or NULL. */
static size_t place_networks(struct lk_absorb *a, uint64_t at, struct lk_device *upload,
                             lk_status *status) {
    size_t n = 0;
    for (int layer = 0; layer < a->n_layer; layer++) {
        struct part part[N_PART];
        list_parts(&a->shape, &a->maps[layer], &a->there->command[layer], part);
        for (int i = 0; i < N_PART; i++) {
            *part[i].at = at + n;
            if (upload && !*status)
                *status = upload->call->upload(upload, at + n, part[i].data, part[i].bytes, NULL);
            n += round_up(part[i].bytes);
        }
    }
    return n;
}

static void free_copy(struct lk_model *model, struct lk_less_copy *copy) {
    if (copy->at) copy->device->call->free(copy->device, copy->at, copy->bytes);
    lk_ledger_remove(&model->device_ledger, LK_FOR_OTHER, copy->bytes);
    lk_release(&model->ledger, LK_FOR_OTHER, copy, sizeof *copy);
}

static struct lk_less_copy *new_copy(struct lk_absorb *a) {
    struct lk_absorb_device *t = a->there;
    struct lk_device *device = t->device;
    struct lk_model *model = t->model;
    lk_status status = LK_OK;
    size_t bytes = place_networks(a, 0, NULL, NULL);
    struct lk_less_copy *copy = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *copy);
    if (!copy) return NULL;
    if (!lk_ledger_add(&model->device_ledger, LK_FOR_OTHER, bytes)) {
        lk_release(&model->ledger, LK_FOR_OTHER, copy, sizeof *copy);
        return NULL;
    }
    *copy = (struct lk_less_copy){.device = device, .sidecar = a->sidecar, .bytes = bytes};
    status = device->call->alloc(device, bytes, &copy->at, NULL);
    if (!status) place_networks(a, copy->at, device, &status);
    if (!status) return copy;
    free_copy(model, copy);
    return NULL;
}

static bool take_networks(struct lk_absorb *a) {
    struct lk_absorb_device *t = a->there;
    struct lk_model *model = t->model;
    pthread_mutex_lock(&model->device_lock);
    struct lk_less_copy *copy = model->less_copy;
    while (copy && (copy->device != t->device || copy->sidecar != a->sidecar)) copy = copy->next;
    if (!copy && (copy = new_copy(a))) {
        copy->next = model->less_copy;
        model->less_copy = copy;
    }
    if (copy) copy->n_user++;
    pthread_mutex_unlock(&model->device_lock);
    t->networks = copy;
    if (copy) place_networks(a, copy->at, NULL, NULL);
    return copy;
}

static void drop_networks(struct lk_absorb_device *t) {
    struct lk_model *model = t->model;
    pthread_mutex_lock(&model->device_lock);
    if (t->networks && --t->networks->n_user == 0) {
        struct lk_less_copy **at = &model->less_copy;
        while (*at != t->networks) at = &(*at)->next;
        *at = t->networks->next;
        free_copy(model, t->networks);
    }
    pthread_mutex_unlock(&model->device_lock);
}

/* ---- rows that wait ---- */

static lk_status send(struct lk_absorb *a) {
    struct lk_absorb_device *t = a->there;
    if (t->there) return LK_OK;
    lk_status status = t->device->call->upload(t->device, t->at, a->state, t->state_bytes, NULL);
    if (!status) t->there = true;
    return status;
}

/* Add the rows that wait to the sums. */
static void take_rows(void *user) {
    struct lk_absorb *a = user;
    struct lk_absorb_device *t = a->there;
    bool any = false;
    for (int layer = 0; layer < a->n_layer; layer++) {
        any |= t->room.n[layer] > 0;
        t->command[layer].n_row = t->room.n[layer];
        t->command[layer].n_tok = 0;
        t->room.n[layer] = 0;
    }
    if (!any) return;
    lk_status status = send(a);
    if (!status) status = t->device->call->sum(t->device, t->command, (size_t)a->n_layer, NULL);
    t->here = false;
    note(a, status);
}

/* ---- memory ---- */

/* Bytes of the states, of waiting rows of K or of V, and of all that a session has there. */
struct sizes {
    size_t state, rows, all;
};

static struct sizes sizes_of(const struct lk_less_shape *s, int n_layer) {
    size_t n = (size_t)n_layer * s->n_head_kv;
    struct sizes sizes = {.state = round_up(n * lk_less_state_floats(s) * sizeof(float)),
                          .rows = round_up(n * ROOM * s->d_head * sizeof(float))};
    sizes.all = sizes.state + 2 * sizes.rows + n * ROOM * s->n_feature * sizeof(float);
    return sizes;
}

void lk_absorb_estimate_there(const struct lk_less_shape *shape, int n_layer,
                              struct lk_absorb_bytes *bytes) {
    struct lk_less_maps maps = {0};
    struct lk_device_less command;
    struct part part[N_PART];
    list_parts(shape, &maps, &command, part);
    bytes->networks_there = 0;
    for (int i = 0; i < N_PART; i++)
        bytes->networks_there += (uint64_t)n_layer * round_up(part[i].bytes);
    bytes->there = sizes_of(shape, n_layer).all;
}

/* Where the states and rows of the layers are: one range of memory. */
static bool take_memory(struct lk_absorb *a) {
    struct lk_absorb_device *t = a->there;
    const struct lk_less_shape *s = &a->shape;
    struct sizes sizes = sizes_of(s, a->n_layer);
    size_t head = lk_less_state_floats(s), n_head = (size_t)s->n_head_kv, state = sizes.state,
           row = ROOM * n_head * s->d_head, feature = ROOM * n_head * s->n_feature,
           rows = sizes.rows, bytes = sizes.all;
    if (!lk_ledger_add(t->ledger, LK_FOR_SCRATCH, bytes)) return false;
    t->bytes = bytes;
    t->state_bytes = a->n_layer * n_head * head * sizeof(float);
    if (t->device->call->alloc(t->device, bytes, &t->at, NULL)) return false;
    t->room = (struct lk_evict_room){.at = {t->at + state, t->at + state + rows},
                                     .cap = ROOM,
                                     .n = t->room.n,
                                     .take = take_rows,
                                     .user = a};
    for (int layer = 0; layer < a->n_layer; layer++) {
        struct lk_device_less *c = &t->command[layer];
        c->state = t->at + layer * n_head * head * sizeof(float);
        c->k = t->room.at[0] + layer * row * sizeof(float);
        c->v = t->room.at[1] + layer * row * sizeof(float);
        c->feature = t->at + state + 2 * rows + layer * feature * sizeof(float);
        c->n_head = s->n_head, c->n_head_kv = s->n_head_kv, c->d_head = s->d_head;
        c->n_hidden = s->n_hidden, c->n_feature = s->n_feature;
        c->n_phi = s->n_phi, c->n_psi = s->n_psi;
    }
    return true;
}

lk_status lk_absorb_use_device(struct lk_absorb *a, struct lk_model *model, struct lk_cache *cache,
                               lk_err *err) {
    struct lk_device *device = cache->shape.device;
    if (!device || device->uses_host) return LK_OK;
    struct lk_absorb_device *t = lk_alloc(a->ledger, LK_FOR_OTHER, sizeof *t);
    if (!t) return lk_fail(err, LK_E_NOMEM, "out of memory for the states of absorbed rows");
    a->there = t;
    t->device = device, t->ledger = cache->shape.device_ledger, t->model = model, t->cache = cache;
    t->here = t->there = true;
    t->command = lk_alloc(a->ledger, LK_FOR_OTHER, a->n_layer * sizeof *t->command);
    t->room.n = lk_alloc(a->ledger, LK_FOR_OTHER, a->n_layer * sizeof *t->room.n);
    if (t->command && t->room.n && take_memory(a) && take_networks(a)) {
        cache->evict_room = &t->room;
        return LK_OK;
    }
    return lk_fail(err, LK_E_NOMEM, "out of memory of %s for the states of absorbed rows",
                   device->name);
}

void lk_absorb_leave_device(struct lk_absorb *a) {
    struct lk_absorb_device *t = a->there;
    if (!t) return;
    t->cache->evict_room = NULL;
    drop_networks(t);
    if (t->at) t->device->call->free(t->device, t->at, t->bytes);
    lk_ledger_remove(t->ledger, LK_FOR_SCRATCH, t->bytes);
    lk_release(a->ledger, LK_FOR_OTHER, t->command, a->n_layer * sizeof *t->command);
    lk_release(a->ledger, LK_FOR_OTHER, t->room.n, a->n_layer * sizeof *t->room.n);
    lk_release(a->ledger, LK_FOR_OTHER, t, sizeof *t);
    a->there = NULL;
}

/* ---- the sums ---- */

void lk_absorb_fetch(struct lk_absorb *a, bool changes) {
    struct lk_absorb_device *t = a->there;
    if (!t) return;
    if (!t->here)
        note(a, t->device->call->download(t->device, a->state, t->at, t->state_bytes, NULL));
    t->here = true;
    if (changes) t->there = false;
}

lk_status lk_absorb_attend_there(const struct lk_absorb_call *call, size_t n) {
    struct lk_device_less command[LK_ABSORB_CALLS];
    struct lk_device *device = call[0].absorb->there->device;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n && !status; i++) {
        struct lk_device_less *c = &command[i];
        *c = call[i].absorb->there->command[call[i].layer];
        c->n_row = 0, c->n_tok = call[i].n_tok, c->q = call[i].q, c->partial = call[i].partial;
        status = send(call[i].absorb);
    }
    return status ? status : device->call->sum(device, command, n, NULL);
}
