/* The memory of an exact prefill, and what a prefill that was cut short is worth. */
#include "engine/prefill_state.h"

#include "cache/cache_check.h"
#include "engine/absorb_device.h"
#include "engine/pass_attn.h"

void lk_prefill_free(struct lk_prefill *p) {
    struct lk_ledger *ledger = &p->s->ledger;
    lk_graph_free(&p->graph, ledger);
    lk_prefill_card_free(p);
    for (int kind = 0; kind < LK_EXACT_KINDS; kind++)
        for (int side = 0; side < 2; side++)
            lk_release(ledger, LK_FOR_SCRATCH, p->exact_kv[kind][side].rows,
                       p->exact_kv[kind][side].size);
    lk_release(ledger, LK_FOR_SCRATCH, p->x, p->x_size);
    lk_release(ledger, LK_FOR_SCRATCH, p->attn_scores, p->scratch.attn_scores);
    lk_release(ledger, LK_FOR_SCRATCH, p->order, p->scratch.ranked);
    lk_release(ledger, LK_FOR_SCRATCH, p->replay, p->n_replay * sizeof *p->replay);
}

lk_status lk_prefill_set_replay(struct lk_prefill *p, lk_err *err) {
    size_t n = 0;
    if (p->embedding) return LK_OK;
    lk_status status = lk_replay_count(p->s->model, p->s->recipe, p->n_tok, &n, err);
    if (status || n == 0) return status;
    p->replay = lk_alloc(&p->s->ledger, LK_FOR_SCRATCH, n * sizeof *p->replay);
    if (!p->replay) return lk_fail(err, LK_E_NOMEM, "out of memory for %zu tokens of a replay", n);
    p->n_replay = n;
    return lk_replay_write(p->s->model, p->tok, p->n_tok, p->replay, err);
}

/* Bytes of K, or of V, of one token in the layers of a kind. */
static size_t exact_bytes(const struct lk_hparams *hp, int kind, int side) {
    if (hp->d_rope > 0)
        return kind ? 0 : (side == LK_K ? hp->d_rope : hp->d_head) * sizeof(uint16_t);
    int32_t width = hp->n_shared == 0 ? lk_hparams_max_width(hp)
                    : kind            ? hp->n_head_kv_swa * hp->d_head_swa
                                      : hp->n_head_kv * hp->d_head;
    return kind && hp->n_shared == 0 ? 0 : (size_t)width * sizeof(uint16_t);
}

/* Does any layer go through RAM? exact: and attends there. */
static bool is_here(const struct lk_net *net, bool card, bool exact) {
    return !card || lk_prefill_card_lacks(net, exact);
}

uint64_t lk_prefill_exact_bytes(const struct lk_net *net, bool card) {
    uint64_t sum = 0;
    for (int kind = 0; kind < LK_EXACT_KINDS && is_here(net, card, true); kind++)
        for (int side = 0; side < 2; side++) sum += exact_bytes(&net->hp, kind, side);
    return sum;
}

uint64_t lk_prefill_bytes(const struct lk_net *net, bool card, size_t n_tok, size_t n_replay) {
    uint64_t hidden = is_here(net, card, false) ? net->hp.n_embd * sizeof(float) : 0;
    return (n_tok + n_replay) * hidden +
           lk_prefill_rows(n_tok, n_replay) * lk_prefill_exact_bytes(net, card) +
           n_replay * sizeof(int32_t);
}

static lk_status fail_alloc(const struct lk_prefill *p, lk_err *err) {
    return lk_fail(err, LK_E_NOMEM,
                   "out of memory for the exact prefill of %zu tokens (%.1f MiB); use chunked "
                   "prefill instead",
                   p->n_tok,
                   (double)lk_prefill_bytes(p->net, p->card.used, p->n_tok, p->n_replay) /
                       (1 << 20));
}

lk_status lk_prefill_alloc_rows(struct lk_prefill *p, lk_err *err) {
    struct lk_ledger *ledger = &p->s->ledger;
    bool ok = true, exact_here = is_here(p->net, p->card.used, true);
    p->scratch = lk_evict_scratch(p->s->cache, (int64_t)p->n_tok);
    for (int kind = 0; kind < LK_EXACT_KINDS; kind++)
        for (int side = 0; side < 2; side++) {
            struct lk_exact_rows *exact = &p->exact_kv[kind][side];
            if (exact_here)
                exact->size =
                    lk_prefill_rows(p->n_tok, p->n_replay) * exact_bytes(&p->net->hp, kind, side);
            if (exact->size > 0) exact->rows = lk_alloc(ledger, LK_FOR_SCRATCH, exact->size);
            ok = ok && (exact->rows || exact->size == 0);
        }
    if (p->scratch.attn_scores)
        p->attn_scores = lk_alloc(ledger, LK_FOR_SCRATCH, p->scratch.attn_scores);
    if (p->scratch.ranked) p->order = lk_alloc(ledger, LK_FOR_SCRATCH, p->scratch.ranked);
    ok = ok && (p->attn_scores || !p->scratch.attn_scores) && (p->order || !p->scratch.ranked);
    return ok ? LK_OK : fail_alloc(p, err);
}

lk_status lk_prefill_alloc(struct lk_prefill *p, lk_err *err) {
    if (p->embedding || is_here(p->net, p->card.used, false)) {
        p->x_size = lk_prefill_end(p) * p->net->hp.n_embd * sizeof(float);
        p->x = lk_alloc(&p->s->ledger, LK_FOR_SCRATCH, p->x_size);
        if (!p->x) return fail_alloc(p, err);
    }
    lk_status status = lk_prefill_alloc_rows(p, err);
    return !status && p->card.used ? lk_prefill_card_alloc(p, err) : status;
}

lk_status lk_prefill_check_limit(const struct lk_prefill *p, const struct lk_session *s,
                                 lk_err *err) {
    bool card = p->card.used;
    uint64_t limit = s->ledger.limit, device_limit = s->rows.ledger.limit;
    const struct lk_device *rows = s->rows.device; /* NULL: states of recurrences are elsewhere */
    bool on_card = card && s == p->s;
    uint64_t there = s->recurrent_there.now.size;
    if (on_card) there += lk_prefill_card_bytes(p->net, p->n_tok);
    if (!limit && !device_limit) return LK_OK;
    struct lk_cache_needs needs;
    uint64_t held =
        lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH) + lk_ledger_bytes(&s->ledger, LK_FOR_OTHER);
    lk_status status =
        lk_cache_estimate(s->recipe, &s->cache->shape, (int64_t)p->n_tok, &needs, err);
    if (status) return status;
    uint64_t sums = s->absorb && s->absorb->there ? s->absorb->there->bytes : 0;
    there += needs.device + needs.device_shared +
             lk_pass_device_bytes(s->model, &s->cache->shape, &needs, sums, 1);
    if (device_limit && there > device_limit)
        return lk_fail(err, LK_E_NOMEM,
                       "%zu tokens need %.0f MiB of the memory of %s, but the limit is %.0f MiB; "
                       "use a smaller recipe%s",
                       p->n_tok, (double)there / (1 << 20),
                       rows ? rows->name : p->net->device->name, (double)device_limit / (1 << 20),
                       on_card ? " or chunked prefill" : "");
    uint64_t cache = needs.cache - needs.device;
    uint64_t exact = lk_prefill_bytes(p->net, card, p->n_tok, p->n_replay) +
                     needs.evict_scratch.attn_scores + needs.evict_scratch.ranked;
    if (!limit || held + cache + exact <= limit) return LK_OK;
    return lk_fail(
        err, LK_E_NOMEM,
        "%zu tokens need %.0f MiB (%.0f MiB of it cache), but the limit is %.0f MiB; use "
        "a smaller recipe or chunked prefill",
        p->n_tok, (double)(held + cache + exact) / (1 << 20), (double)cache / (1 << 20),
        (double)limit / (1 << 20));
}

/* ---- a prefill that was cut short ---- */

lk_status lk_prefill_suspend_new(struct lk_session *s, size_t n_tok, lk_err *err) {
    struct lk_prefill *p = lk_alloc(&s->ledger, LK_FOR_OTHER, sizeof *p);
    if (!p) return lk_fail(err, LK_E_NOMEM, "out of memory for a prefill");
    p->s = s;
    p->session = &p->s;
    p->n_session = 1;
    p->net = s->model->net;
    p->n_tok = n_tok;
    p->tok = s->tok;
    s->suspended = p;
    return LK_OK;
}

void lk_prefill_drop(struct lk_session *s) {
    struct lk_prefill *p = s->suspended;
    if (!p) return;
    s->suspended = NULL;
    lk_prefill_free(p);
    lk_release(&s->ledger, LK_FOR_OTHER, p, sizeof *p);
    while (s->checkpoints.n_planned > 0)
        lk_checkpoints_drop_planned(s, s->checkpoints.n_planned - 1);
}

/* Tokens through layers. A replay is a part of the work for each token. */
static uint64_t done_steps(const struct lk_prefill *p) {
    uint64_t n_all = lk_prefill_end(p), at = p->is_prepared ? p->at : 0;
    return p->layer * p->n_tok + at * p->n_tok / n_all;
}

size_t lk_prefill_done(const struct lk_prefill *p) {
    return (size_t)(done_steps(p) / (uint64_t)p->net->hp.n_layer);
}

size_t lk_prefill_saved(const struct lk_session *s, const int32_t *tok, size_t n_tok) {
    const struct lk_prefill *p = s->suspended;
    if (!p) return 0;
    const struct lk_checkpoints *c = &s->checkpoints;
    uint64_t n_layer = (uint64_t)p->net->hp.n_layer, left = n_layer * p->n_tok - done_steps(p);
    size_t n_common = 0, n_kept = 0;
    while (n_common < n_tok && n_common < p->n_tok && tok[n_common] == p->tok[n_common]) n_common++;
    if (n_common == p->n_tok || lk_checkpoints_unneeded(s)) {
        n_kept = n_common;
    } else {
        for (int i = 0; i < c->n_planned; i++)
            if (c->planned[i].n_tok <= n_common && c->planned[i].n_tok < n_tok)
                n_kept = c->planned[i].n_tok;
    }
    return n_kept * n_layer > left ? (size_t)((n_kept * n_layer - left) / n_layer) : 0;
}
