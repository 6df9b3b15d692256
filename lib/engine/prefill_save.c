/* A prefill that was cut short, to a file and back. */
#include "engine/prefill_save.h"

#include "engine/prefill_layer.h"
#include "engine/prefill_state.h"

#include <math.h>
#include <string.h>

/* Layers of the cache that have all rows before layer `layer` of the model. */
static int count_stored(const struct lk_hparams *hp, int layer) {
    int n = 0;
    for (int i = 0; i < layer; i++)
        if (!hp->is_recurrent[i] && !lk_hparams_shares(hp, i)) n = hp->index[i] + 1;
    return n;
}

/* The next step: after the last chunk of a layer, that is the next layer. */
static struct lk_saved_prefill head_of(const struct lk_session *s) {
    const struct lk_prefill *p = s->suspended;
    bool layer_done = p->is_prepared && p->at == lk_prefill_end(p);
    bool in_layer = p->is_prepared && !layer_done;
    return (struct lk_saved_prefill){.n_tok = p->n_tok,
                                     .at = in_layer ? p->at : 0,
                                     .n_done = lk_prefill_done(p),
                                     .layer = p->layer + layer_done,
                                     .is_prepared = in_layer,
                                     .n_planned = s->checkpoints.n_planned,
                                     .n_replay = (int32_t)p->n_replay};
}

/* Bytes of the parts after the head. */
static uint64_t x_bytes(const struct lk_hparams *hp, const struct lk_saved_prefill *head) {
    return (head->n_tok + (uint64_t)head->n_replay) * (uint64_t)hp->n_embd * sizeof(float);
}
static uint64_t exact_bytes(const struct lk_net *net, const struct lk_saved_prefill *head) {
    bool has = head->is_prepared || net->hp.n_shared > 0;
    size_t n = lk_prefill_rows(head->n_tok, (size_t)head->n_replay);
    return has ? n * lk_prefill_exact_bytes(net, false) : 0;
}
static uint64_t score_bytes(const struct lk_session *s, const struct lk_saved_prefill *head) {
    if (!head->is_prepared) return 0;
    return lk_evict_scratch(s->cache, (int64_t)head->n_tok).attn_scores;
}
static uint64_t plan_states_bytes(const struct lk_session *s) {
    return lk_recurrent_bytes(&s->model->net->hp);
}

/* ---- saving ---- */

static lk_status check_place(const struct lk_session *s, lk_err *err) {
    if (!s->model->peers && !s->rows.device) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "a prefill that was cut short can be saved only in one process, with rows in "
                   "RAM; complete it first");
}

lk_status lk_prefill_check_save(const struct lk_session *s, lk_err *err) {
    return s->suspended ? check_place(s, err) : LK_OK;
}

/* The logits are there: of all layers, or of the last one, whose replay is left. */
static bool has_predicted(const struct lk_saved_prefill *head, const struct lk_hparams *hp) {
    return head->layer + (head->at >= head->n_tok) == hp->n_layer;
}

bool lk_prefill_has_logits(const struct lk_session *s) {
    struct lk_saved_prefill head = s->suspended ? head_of(s) : (struct lk_saved_prefill){0};
    return s->suspended && has_predicted(&head, &s->model->net->hp);
}

void lk_prefill_view(const struct lk_session *s, struct lk_cache *view, struct lk_kv (*kv)[2]) {
    int n_layer = s->cache->shape.n_layer,
        n_done = count_stored(&s->model->net->hp, head_of(s).layer);
    *view = *s->cache;
    view->kv = kv;
    memcpy(kv, s->cache->kv, (size_t)n_layer * sizeof *kv);
    for (int k = 2 * n_done; k < 2 * n_layer; k++) {
        struct lk_kv *empty = &kv[k / 2][k % 2];
        empty->first = empty->n_tok = 0;
        memset(empty->count, 0, sizeof empty->count);
        for (int i = 0; i < empty->n_level; i++) empty->level[i].n_block = 0;
    }
}

struct writing {
    const struct lk_writer *writer;
    bool ok;
    uint64_t n; /* bytes; without a writer they are only counted */
};

static void write_block(void *user, void *block, size_t n) {
    struct writing *w = user;
    w->n += n;
    if (w->writer) w->ok = w->ok && w->writer->put(w->writer->user, block, n);
}

/* Write a planned checkpoint, whose first n_done layers are complete. */
static bool write_plan(const struct lk_session *s, const struct lk_checkpoint *at, int n_done,
                       const struct lk_writer *writer) {
    struct writing counting = {0}, w = {.writer = writer, .ok = true};
    lk_cache_part_blocks(at->cache, n_done, write_block, &counting);
    struct lk_saved_plan plan = {.n_tok = at->n_tok, .blocks = counting.n};
    write_block(&w, &plan, sizeof plan);
    if (plan_states_bytes(s)) write_block(&w, at->states, plan_states_bytes(s));
    lk_cache_part_blocks(at->cache, n_done, write_block, &w);
    return w.ok;
}

bool lk_prefill_write(const struct lk_session *s, const struct lk_writer *writer) {
    const struct lk_prefill *p = s->suspended;
    const struct lk_hparams *hp = &p->net->hp;
    struct lk_saved_prefill head = head_of(s);
    struct writing w = {.writer = writer, .ok = true};
    write_block(&w, &head, sizeof head);
    write_block(&w, p->x, x_bytes(hp, &head));
    for (int kind = 0; exact_bytes(s->model->net, &head) && kind < LK_EXACT_KINDS; kind++)
        for (int side = 0; side < 2; side++)
            if (p->exact_kv[kind][side].size)
                write_block(&w, p->exact_kv[kind][side].rows, p->exact_kv[kind][side].size);
    if (score_bytes(s, &head)) write_block(&w, p->attn_scores, score_bytes(s, &head));
    for (int i = 0; w.ok && i < head.n_planned; i++)
        w.ok = write_plan(s, &s->checkpoints.planned[i], count_stored(hp, head.layer), writer);
    return w.ok;
}

/* ---- checking ---- */

/* Are all of x [n bytes] finite? */
static bool are_finite(const uint8_t *x, uint64_t n) {
    for (uint64_t i = 0; i < n; i += sizeof(float)) {
        float value;
        memcpy(&value, x + i, sizeof value);
        if (!isfinite(value)) return false;
    }
    return true;
}

/* The same for f16: an exponent of ones is infinite or no number. */
static bool are_finite_f16(const uint8_t *x, uint64_t n) {
    const uint16_t exponent = 0x7c00;
    for (uint64_t i = 0; i < n; i += sizeof(uint16_t)) {
        uint16_t value;
        memcpy(&value, x + i, sizeof value);
        if ((value & exponent) == exponent) return false;
    }
    return true;
}

/* Check the planned checkpoints in data [size], which are the rest of the section. */
static const char *check_plans(const struct lk_session *s, const uint8_t *data, uint64_t size,
                               const struct lk_saved_prefill *head) {
    uint64_t states = plan_states_bytes(s), before = 0;
    for (int i = 0; i < head->n_planned; i++) {
        struct lk_saved_plan plan;
        if (size < sizeof plan + states) return "its planned checkpoints are truncated";
        memcpy(&plan, data, sizeof plan);
        if (plan.n_tok <= before || plan.n_tok >= head->n_tok)
            return "its planned checkpoints are not in order";
        if (!are_finite(data + sizeof plan, states)) return "its states are invalid";
        size -= sizeof plan + states;
        data += sizeof plan + states;
        if (plan.blocks > size) return "its planned checkpoints are truncated";
        size -= plan.blocks;
        data += plan.blocks;
        before = plan.n_tok;
    }
    return size ? "its prefill has another size" : NULL;
}

static const char *check_section(const struct lk_session *s, const uint8_t *data, uint64_t size,
                                 const struct lk_saved_prefill *head, size_t n_replay,
                                 bool has_logits) {
    const struct lk_hparams *hp = &s->model->net->hp;
    bool all_done = head->layer == hp->n_layer;
    if (s->recipe->eager || head->layer < 0 || head->layer > hp->n_layer || head->n_planned < 0 ||
        head->is_prepared < 0 || head->is_prepared > 1 || head->n_tok == 0 ||
        head->n_done > head->n_tok ||
        (head->is_prepared ? head->at >= head->n_tok + n_replay || all_done : head->at > 0) ||
        (size_t)head->n_replay != n_replay || has_logits != has_predicted(head, hp))
        return "its prefill is at an impossible step";
    uint64_t x = x_bytes(hp, head), exact = exact_bytes(s->model->net, head),
             scores = score_bytes(s, head);
    if (size < x || size - x < exact || size - x - exact < scores)
        return "its prefill has another size";
    if (!are_finite(data, x) || !are_finite_f16(data + x, exact) ||
        !are_finite(data + x + exact, scores))
        return "its prefill has numbers that are not finite";
    uint64_t n = x + exact + scores;
    return check_plans(s, data + n, size - n, head);
}

lk_status lk_prefill_check(const struct lk_session *s, const uint8_t *data, uint64_t size,
                           uint64_t n_tok, bool has_logits, int *n_layer, lk_err *err) {
    struct lk_saved_prefill head;
    lk_status status = check_place(s, err);
    if (status) return status;
    const char *reason = NULL;
    size_t n_replay = 0;
    if (size < sizeof head) return lk_fail(err, LK_E_FORMAT, "its prefill is truncated");
    memcpy(&head, data, sizeof head);
    if (head.n_tok != n_tok) reason = "its prefill has another number of tokens";
    if (!reason) status = lk_replay_count(s->model, s->recipe, n_tok, &n_replay, err);
    if (status) return status;
    if (!reason)
        reason =
            check_section(s, data + sizeof head, size - sizeof head, &head, n_replay, has_logits);
    if (reason) return lk_fail(err, LK_E_FORMAT, "%s", reason);
    *n_layer = count_stored(&s->model->net->hp, head.layer);
    return LK_OK;
}

uint64_t lk_prefill_saved_done(const uint8_t *data, uint64_t size) {
    struct lk_saved_prefill head;
    if (size < sizeof head) return 0;
    memcpy(&head, data, sizeof head);
    return head.n_done;
}

/* ---- loading ---- */

/* Plan the n checkpoints in data, as far as there is room. */
static void plan(struct lk_session *s, const uint8_t *data, int n) {
    struct lk_checkpoints *c = &s->checkpoints;
    for (int i = 0; i < n; i++) {
        struct lk_saved_plan plan;
        memcpy(&plan, data, sizeof plan);
        if (c->n_planned < c->cap)
            c->planned[c->n_planned++] = (struct lk_checkpoint){.n_tok = plan.n_tok};
        data += sizeof plan + plan_states_bytes(s) + plan.blocks;
    }
    lk_checkpoints_open_planned(s);
}

static void read_block(void *user, void *block, size_t n) {
    const uint8_t **from = user;
    memcpy(block, *from, n);
    *from += n;
}

/* Load the contents of a planned checkpoint. False if the file has other blocks of it. */
static bool load_plan(struct lk_session *s, struct lk_checkpoint *at, int n_done,
                      const uint8_t *data, const struct lk_saved_plan *plan) {
    struct writing counting = {0};
    lk_cache_part_blocks(at->cache, n_done, write_block, &counting);
    if (counting.n != plan->blocks) return false;
    if (plan_states_bytes(s)) memcpy(at->states, data, plan_states_bytes(s));
    data += plan_states_bytes(s);
    lk_cache_part_blocks(at->cache, n_done, read_block, &data);
    return true;
}

/* Memory of the planned checkpoints in the n_done first layers of the cache, and their contents. */
static void load_plans(struct lk_session *s, const uint8_t *data, int n, int n_done) {
    struct lk_checkpoints *c = &s->checkpoints;
    for (int k = c->n_planned - 1; k >= 0; k--) {
        bool ok = true;
        for (int layer = 0; ok && layer < n_done; layer++)
            ok = lk_cache_alloc_part(c->planned[k].cache, s->cache, layer,
                                     (int64_t)c->planned[k].n_tok);
        if (!ok) lk_checkpoints_drop_planned(s, k);
    }
    for (int i = 0; i < n; i++) {
        struct lk_saved_plan plan;
        memcpy(&plan, data, sizeof plan);
        data += sizeof plan;
        for (int k = c->n_planned - 1; k >= 0; k--)
            if (c->planned[k].n_tok == plan.n_tok &&
                !load_plan(s, &c->planned[k], n_done, data, &plan))
                lk_checkpoints_drop_planned(s, k);
        data += plan_states_bytes(s) + plan.blocks;
    }
}

lk_status lk_prefill_load(struct lk_session *s, const uint8_t *data, lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    struct lk_saved_prefill head;
    memcpy(&head, data, sizeof head);
    data += sizeof head;
    const uint8_t *plans =
        data + x_bytes(hp, &head) + exact_bytes(s->model->net, &head) + score_bytes(s, &head);
    int n_done = count_stored(hp, head.layer);
    lk_status status = lk_session_reserve_logits(s, 1, err);
    if (!status) status = lk_session_reserve_absorb(s, 1, err);
    if (!status) status = lk_prefill_suspend_new(s, head.n_tok, err);
    if (status) return status;
    struct lk_prefill *p = s->suspended;
    status = lk_prefill_set_replay(p, err);
    if (!status) status = lk_prefill_check_limit(p, s, err);
    if (!status) status = lk_prefill_alloc(p, err);
    if (status) return status;
    plan(s, plans, head.n_planned);
    load_plans(s, plans, head.n_planned, n_done);
    p->layer = head.layer;
    lk_prefill_choose_layers(p);
    if (head.is_prepared) status = lk_prefill_prepare_layer(p, p->layer, err);
    if (status) return status;
    p->is_prepared = head.is_prepared;
    p->at = head.at;
    p->has_begun = true;
    read_block(&data, p->x, x_bytes(hp, &head));
    for (int kind = 0; exact_bytes(s->model->net, &head) && kind < LK_EXACT_KINDS; kind++)
        for (int side = 0; side < 2; side++)
            if (p->exact_kv[kind][side].size)
                read_block(&data, p->exact_kv[kind][side].rows, p->exact_kv[kind][side].size);
    if (score_bytes(s, &head)) read_block(&data, p->attn_scores, score_bytes(s, &head));
    return LK_OK;
}
