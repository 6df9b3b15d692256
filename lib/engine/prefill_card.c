/* Memory of an exact prefill on a card, and attention there by ggml's operator. */
#include "engine/prefill_card.h"

#include "base/cxx_call.h"
#include "engine/on_card.h"
#include "engine/prefill_state.h"
#include "model/exact_attention.h"

#include <math.h>
#include <string.h>

/* ggml's operator is faster with a multiple of so many rows. Those after the newest one are
 * masked. */
enum { PAD = 256, MAX_TENSORS = 8, LINE = 256 };

static size_t padded(size_t n) { return (n + PAD - 1) / PAD * PAD; }

static size_t chunk_of(size_t n_tok) { return n_tok < LK_PREFILL_CHUNK ? n_tok : LK_PREFILL_CHUNK; }

/* ---- which layers ---- */

/* The layer whose K and V a layer attends to. */
static int source_of(const struct lk_hparams *hp, int layer) {
    int source = layer;
    while (lk_hparams_shares(hp, source) || hp->is_recurrent[source] ||
           hp->index[source] != hp->index[layer])
        source--;
    return source;
}

bool lk_prefill_card_has(const struct lk_net *net, int layer) {
    if (net->hp.is_recurrent[layer]) return lk_net_recurs_there(net, layer);
    return lk_card_has_layer(net, layer) && lk_card_has_layer(net, source_of(&net->hp, layer));
}

bool lk_prefill_card_lacks(const struct lk_net *net, bool exact) {
    for (int layer = 0; layer < net->hp.n_layer; layer++)
        if (!lk_prefill_card_has(net, layer) && !(exact && net->hp.is_recurrent[layer]))
            return true;
    return false;
}

/* Does a policy select rows of the session, or something watch its attention? */
static bool is_read_here(const struct lk_session *s) {
    if (s->watch.on_attention || s->watch.on_partials) return true;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        if (s->cache->kv[layer][LK_K].evict) return true;
    return false;
}

bool lk_prefill_card_fits(const struct lk_prefill *p) {
    const struct lk_model *model = p->s->model;
    if (!p->net->device || model->prompt_lack || !lk_net_has_all(p->net)) return false;
    for (size_t i = 0; i < p->n_session; i++)
        if (!lk_model_is_card(model, p->session[i]->rows.device) || is_read_here(p->session[i]))
            return false;
    for (int layer = 0; layer < p->net->hp.n_layer; layer++)
        if (lk_prefill_card_has(p->net, layer)) return true;
    return false;
}

/* ---- memory ---- */

/* Sizes of a prefill's tensors, in numbers; 0: there is none. */
struct sizes {
    size_t x, exact[LK_EXACT_KINDS][2], sinks;
    size_t column[2], base[2], row; /* of the strips of masks */
};

static struct sizes measure(const struct lk_net *net, size_t n_tok) {
    const struct lk_hparams *hp = &net->hp;
    struct sizes m = {.x = n_tok * (size_t)hp->n_embd, .row = chunk_of(n_tok)};
    for (int layer = 0; layer < hp->n_layer; layer++) {
        if (!lk_prefill_card_has(net, layer) || hp->is_recurrent[layer]) continue;
        bool swa = hp->n_swa > 0 && hp->is_swa[layer];
        struct lk_layer_heads heads = lk_hparams_heads(hp, layer);
        size_t *exact = m.exact[hp->n_shared > 0 && hp->is_swa[layer]], window = (size_t)hp->n_swa;
        for (int side = 0; side < 2; side++) {
            size_t n = padded(n_tok) * lk_exact_width(hp, heads, side == LK_K);
            if (n > exact[side]) exact[side] = n;
        }
        m.base[swa] = swa && window + PAD < padded(n_tok) ? window + PAD : padded(n_tok);
        m.column[swa] = m.base[swa] + m.row + PAD;
        if (net->layer[layer].attn_sinks) m.sinks = (size_t)hp->n_head;
    }
    return m;
}

uint64_t lk_prefill_card_bytes(const struct lk_net *net, size_t n_tok) {
    struct sizes m = measure(net, n_tok);
    uint64_t n_float = m.x + m.sinks, n_half = (m.column[0] + m.column[1]) * m.row;
    for (int kind = 0; kind < LK_EXACT_KINDS; kind++) n_half += m.exact[kind][0] + m.exact[kind][1];
    return n_float * sizeof(float) + n_half * sizeof(uint16_t) + (uint64_t)MAX_TENSORS * LINE;
}

/* An allocation, in calls of ggml that may throw. */
struct allocation {
    struct lk_prefill_card *card;
    ggml_backend_buffer_type_t buft;
    struct sizes sizes;
    int n_embd;
};

static struct ggml_tensor *new_halfs(struct ggml_context *ctx, size_t n, size_t n_row) {
    return n > 0 ? ggml_new_tensor_2d(ctx, GGML_TYPE_F16, (int64_t)n, (int64_t)n_row) : NULL;
}

static void create(void *arg) {
    struct allocation *a = arg;
    struct lk_prefill_card *card = a->card;
    const struct sizes *m = &a->sizes;
    struct ggml_context *ctx = card->ctx = ggml_init((struct ggml_init_params){
        .mem_size = card->headers_size, .mem_buffer = card->headers, .no_alloc = true});
    card->x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, a->n_embd, (int64_t)m->x / a->n_embd);
    for (int kind = 0; kind < LK_EXACT_KINDS; kind++)
        for (int side = 0; side < 2; side++)
            card->exact[kind][side] = new_halfs(ctx, m->exact[kind][side], 1);
    for (int swa = 0; swa < 2; swa++) card->mask[swa] = new_halfs(ctx, m->column[swa], m->row);
    if (m->sinks) card->sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, (int64_t)m->sinks);
    card->size = ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, a->buft);
}

static void allocate(void *arg) {
    struct allocation *a = arg;
    a->card->buffer = ggml_backend_alloc_ctx_tensors_from_buft(a->card->ctx, a->buft);
    /* A NaN in a masked row would count. */
    if (a->card->buffer) ggml_backend_buffer_clear(a->card->buffer, 0);
}

/* Write a strip: the token of row i sees what is at most i columns after the base, and within its
 * window. With ALiBi the mask has the distance, which ggml multiplies. */
static void write_strip(struct ggml_tensor *mask, size_t base, size_t window, bool alibi,
                        ggml_fp16_t *row) {
    ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
    size_t n_column = (size_t)mask->ne[0];
    for (size_t i = 0; i < (size_t)mask->ne[1]; i++) {
        for (size_t c = 0; c < n_column; c++) {
            bool seen = c <= base + i && (window == 0 || base + i < c + window);
            float distance = alibi && seen ? (float)(base + i - c) : 0;
            row[c] = seen ? ggml_fp32_to_fp16(-distance) : hidden;
        }
        lk_graph_set(mask, i * mask->nb[1], row, n_column * sizeof *row);
    }
}

static lk_status write_masks(struct lk_prefill *p, const struct sizes *m, lk_err *err) {
    const struct lk_hparams *hp = &p->net->hp;
    for (int swa = 0; swa < 2; swa++) {
        struct ggml_tensor *mask = p->card.mask[swa];
        size_t size = m->column[swa] * sizeof(ggml_fp16_t);
        if (!mask) continue;
        ggml_fp16_t *row = lk_alloc(&p->s->ledger, LK_FOR_SCRATCH, size);
        if (!row) return lk_fail(err, LK_E_NOMEM, "out of memory for a mask of %zu bytes", size);
        write_strip(mask, m->base[swa], swa ? (size_t)hp->n_swa : 0, hp->alibi_max_bias > 0, row);
        lk_release(&p->s->ledger, LK_FOR_SCRATCH, row, size);
    }
    return LK_OK;
}

lk_status lk_prefill_card_alloc(struct lk_prefill *p, lk_err *err) {
    struct lk_prefill_card *card = &p->card;
    struct lk_ledger *ledger = &p->s->ledger, *there = &p->s->rows.ledger;
    struct allocation a = {.card = card,
                           .buft = p->net->device->buft,
                           .sizes = measure(p->net, p->n_tok),
                           .n_embd = p->net->hp.n_embd};
    card->headers_size = ggml_tensor_overhead() * MAX_TENSORS;
    card->headers = lk_alloc(ledger, LK_FOR_SCRATCH, card->headers_size);
    if (!card->headers) return lk_fail(err, LK_E_NOMEM, "out of memory for a prefill");
    lk_status status = lk_cxx_call(create, &a, err);
    if (status) return status;
    bool counted = lk_ledger_add(there, LK_FOR_SCRATCH, card->size);
    if (counted) status = lk_cxx_call(allocate, &a, err);
    if (counted && !card->buffer) lk_ledger_remove(there, LK_FOR_SCRATCH, card->size);
    if (status) return status;
    if (card->buffer) return write_masks(p, &a.sizes, err);
    return lk_fail(
        err, LK_E_NOMEM,
        "out of memory of %s for the exact prefill of %zu tokens (%.1f MiB); use chunked "
        "prefill instead",
        p->net->device->name, p->n_tok, (double)card->size / (1 << 20));
}

/* May throw. */
static void free_buffer(void *arg) { ggml_backend_buffer_free(arg); }

void lk_prefill_card_free(struct lk_prefill *p) {
    struct lk_prefill_card *card = &p->card;
    struct lk_ledger *ledger = &p->s->ledger;
    if (card->buffer) {
        lk_cxx_call(free_buffer, card->buffer, NULL);
        lk_ledger_remove(&p->s->rows.ledger, LK_FOR_SCRATCH, card->size);
    }
    if (card->ctx) ggml_free(card->ctx);
    lk_release(ledger, LK_FOR_SCRATCH, card->headers, card->headers_size);
    lk_release(ledger, LK_FOR_SCRATCH, card->q, card->q_size);
    lk_release(ledger, LK_FOR_SCRATCH, card->first, card->first_size);
    lk_release(ledger, LK_FOR_SCRATCH, card->by_head, card->by_head_size);
    *card = (struct lk_prefill_card){0};
}

/* ---- a layer ---- */

void lk_prefill_card_enter(struct lk_prefill *p, int layer) {
    const struct lk_hparams *hp = &p->net->hp;
    const struct ggml_tensor *sinks = p->net->layer[layer].attn_sinks;
    p->card.kind = hp->n_shared > 0 && hp->is_swa[layer];
    if (sinks) lk_graph_set(p->card.sinks, 0, sinks->data, ggml_nbytes(sinks));
}

struct lk_rows_there lk_prefill_card_rows(const struct lk_prefill *p, int side) {
    const struct lk_hparams *hp = &p->net->hp;
    struct ggml_tensor *const *exact = p->card.exact[p->card.kind];
    size_t width = lk_exact_width(hp, p->job.heads, true);
    if (hp->d_rope == 0)
        return (struct lk_rows_there){(uint64_t)(uintptr_t)exact[side]->data, width};
    const char *at = exact[LK_K]->data;
    if (side == LK_K) at += hp->d_head * sizeof(uint16_t);
    return (struct lk_rows_there){(uint64_t)(uintptr_t)at, width};
}

/* Store rows of x [n][n_head][d] from token `at` on, `offset` numbers after the start of a row. */
static void store(struct lk_prefill *p, struct ggml_tensor *exact, struct ggml_tensor *x, size_t at,
                  size_t offset) {
    struct lk_graph *g = &p->graph;
    size_t width = lk_exact_width(&p->net->hp, p->job.heads, true), half = sizeof(uint16_t);
    struct ggml_tensor *to =
        ggml_view_3d(g->ctx, exact, x->ne[0], x->ne[1], x->ne[2], (size_t)x->ne[0] * half,
                     width * half, (at * width + offset) * half);
    ggml_build_forward_expand(g->graph, ggml_cpy(g->ctx, x, to));
}

static struct ggml_tensor *x_of(struct lk_prefill *p, size_t at, size_t n) {
    struct ggml_tensor *x = p->card.x;
    return ggml_view_2d(p->graph.ctx, x, x->ne[0], (int64_t)n, x->nb[1], at * x->nb[1]);
}

struct ggml_tensor *lk_prefill_card_attention(struct lk_prefill *p, int layer, size_t at, size_t n,
                                              struct lk_qkv *pre) {
    struct lk_graph *g = &p->graph;
    const struct lk_net *net = p->net;
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer_heads heads = p->job.heads;
    struct ggml_tensor *const *exact = p->card.exact[p->card.kind];
    bool swa = hp->n_swa > 0 && hp->is_swa[layer];
    struct ggml_tensor *tok =
        net->family->token_input ? net->family->token_input(net, g->ctx, layer, g->tok) : NULL;
    lk_graph_enter(g, LK_ON_DEVICE);
    *pre = lk_pre_nodes(g, net, layer, x_of(p, at, n), g->pos);
    pre->tok = tok;
    if (hp->is_recurrent[layer])
        return lk_recurrent_there_nodes(g, p->s, layer, pre, 0, (int)n, false);
    if (p->job.stores) {
        store(p, exact[LK_K], pre->k, at, hp->d_rope > 0 ? (size_t)hp->d_head : 0);
        store(p, exact[hp->d_rope > 0 ? LK_K : LK_V], pre->v, at, 0);
    }
    size_t first = swa && at >= (size_t)hp->n_swa ? (at + 1 - (size_t)hp->n_swa) / PAD * PAD : 0,
           end = padded(at + n);
    struct ggml_tensor *mask = p->card.mask[swa];
    size_t base = (size_t)mask->ne[0] - chunk_of(p->n_tok) - PAD;
    mask = ggml_view_2d(g->ctx, mask, (int64_t)(end - first), (int64_t)n, mask->nb[1],
                        (base + first - at) * sizeof(ggml_fp16_t));
    return lk_exact_attention(
        hp, g->ctx, heads, pre->q, exact[LK_K], exact[hp->d_rope > 0 ? LK_K : LK_V], first, end,
        ggml_cont(g->ctx, mask), net->layer[layer].attn_sinks ? p->card.sinks : NULL);
}

void lk_prefill_card_keep(struct lk_prefill *p, struct ggml_tensor *x, size_t at, size_t n) {
    struct lk_graph *g = &p->graph;
    ggml_build_forward_expand(g->graph, ggml_cpy(g->ctx, x, x_of(p, at, n)));
}

void lk_prefill_card_set_x(struct lk_prefill *p, const float *x, size_t at, size_t n) {
    lk_graph_set(p->card.x, at * p->card.x->nb[1], x, n * p->card.x->nb[1]);
}

void lk_prefill_card_get_x(const struct lk_prefill *p, float *x, size_t at, size_t n) {
    lk_graph_get(p->card.x, at * p->card.x->nb[1], x, n * p->card.x->nb[1]);
}
