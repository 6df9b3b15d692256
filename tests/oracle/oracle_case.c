/* Runs one case: the engine's sessions and the plain account get the same operations. */
#include "oracle_case.h"

#include "engine/batch.h"
#include "engine/session_state.h"
#include "lowkey_serve.h"
#include "oracle_bytes.h"
#include "plain_session.h"
#include "recipe/recipe_levels.h"
#include "support_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SLOT = 4, CTX = 1100, ROWS = 2 * CTX + 64 /* with a replay */ };

/* Rows of one layer and head, in the order in which they were evicted. */
struct evicted_rows {
    float *k, *v; /* [n][d_head] */
    int *pos;     /* of the account's */
    int n, cap;
};

/* A session of the engine and its account. */
struct slot {
    lk_session *session, *twin; /* twin: loaded from a file; must continue bit for bit */
    int recipe;
    struct plain_cache *plain;
    int32_t tok[CTX];
    bool alone;                   /* shares no blocks: its bytes are what a plan says */
    bool fresh;                   /* no block was ever freed */
    bool cut;                     /* went back by some tokens */
    float *row[2];                /* [n_layer][ROWS][width] rows that the engine stored */
    float *held[2];               /* [n_layer][CTX][width] by position: what it held, if eager, */
    int8_t *level[2];             /* [n_layer][CTX] and in which level; -1: nowhere */
    int *n_row[2];                /* [n_layer] rows of the current evaluation */
    struct evicted_rows *gone[2]; /* [n_layer][n_head_kv] by the engine, by the account */
    struct lk_evict_hook hook;    /* of the session itself */
    struct lk_evict_room room;    /* likewise */
    struct run *run;
};

struct run {
    const struct oracle_case *c;
    const struct plain_model *m;
    lk_model *model;
    lk_batch *batch;
    struct random_sidecar sidecar;
    lk_recipe *recipe[2];
    bool lossy[2], ranked[2];
    int32_t *request; /* [n_request] */
    size_t n_request;
    struct plain_setting set[2];
    struct slot slot[MAX_SLOT];
    bool keep;
    struct oracle_result result;
};

__attribute__((format(printf, 2, 3))) static bool fail(struct run *run, const char *format, ...) {
    va_list args;
    if (run->result.verdict != CASE_PASSED) return false;
    run->result.verdict = CASE_FAILED;
    va_start(args, format);
    vsnprintf(run->result.reason, sizeof run->result.reason, format, args);
    va_end(args);
    return false;
}

static int width_of(const struct run *run) { return run->m->n_head_kv * run->m->d_head; }

/* ---- what the engine did ---- */

/* Note what the levels hold; of a layer that evicts only the newest, where heads hold the same. */
static void note_levels(struct slot *s, int layer, const struct lk_attn *attn) {
    int width = attn->n_head_kv * attn->d_head;
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = side == LK_K ? attn->k : attn->v;
        int8_t *in = s->level[side] + (size_t)layer * CTX;
        memset(in, -1, CTX);
        for (int i = kv->evict ? kv->n_level - 1 : 0; i < kv->n_level; i++)
            for (int64_t at = 0; at < kv->count[i].rows; at++) {
                const struct lk_level *level = &kv->level[i];
                int64_t pos = lk_kv_position(kv, i, at, 0);
                float *x = s->held[side] + ((size_t)layer * CTX + pos) * width;
                in[pos] = (int8_t)i;
                for (int part = 0; part < level->n_part; part++)
                    lk_kv_read(&(struct lk_row_range){kv, i, at, 1}, part, attn->kernels,
                               x + part * level->n_head * attn->d_head, (size_t)width);
            }
    }
}

/* Note the newest rows of K and V, which are f16: those in the newest level. Sinks are left out,
 * and what an eager recipe has already projected or encoded. */
static void note_rows(void *user, int layer, const struct lk_attn *attn) {
    struct slot *s = user;
    int d = attn->d_head, width = attn->n_head_kv * d;
    if (s->session->recipe->eager) note_levels(s, layer, attn);
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = side == LK_K ? attn->k : attn->v;
        int newest = kv->n_level - 1, *n = &s->n_row[side][layer];
        int64_t held = kv->count[newest].rows;
        bool exact = kv != &s->session->cache->kv[layer][side];
        for (; exact && *n < held - attn->n_tok; ++*n) /* chunks whose attention is not needed */
            s->row[side][((size_t)layer * ROWS + *n) * width] = NAN;
        for (int i = 0; i < attn->n_tok; i++, ++*n) {
            float *row = s->row[side] + ((size_t)layer * ROWS + *n) * width;
            int64_t at = held - attn->n_tok + i;
            row[0] = NAN;
            if (kv->level[newest].basis) continue;
            for (int h = 0; at >= 0 && h < attn->n_head_kv; h++)
                lk_kv_read(&(struct lk_row_range){kv, newest, at, 1}, h, attn->kernels, row + h * d,
                           (size_t)d);
        }
    }
}

static const float *engine_stored(void *user, int layer, int side, int level, int pos) {
    const struct slot *s = user;
    size_t at = (size_t)layer * CTX + pos;
    return s->level[side][at] == level ? s->held[side] + at * width_of(s->run) : NULL;
}

static const float *engine_row(void *user, int layer, int side, int i) {
    const struct slot *s = user;
    const float *row = s->row[side] + ((size_t)layer * ROWS + i) * width_of(s->run);
    return i < s->n_row[side][layer] && !isnan(row[0]) ? row : NULL;
}

static const float *engine_sigma(void *user, int layer, int side, bool latents, int part) {
    const struct slot *s = user;
    const struct lk_equalizer *e = &s->session->cache->kv[layer][side].equalizer[latents];
    return e->sigma + (size_t)part * e->stride;
}

static bool engine_holds(void *user, int layer, int head, int pos) {
    const struct slot *s = user;
    const struct lk_evict *evict = &s->session->cache->evict[layer];
    for (int64_t i = 0; i < evict->n; i++)
        if (evict->pos[i * evict->n_head + head] == pos) return true;
    return false;
}

static void add_evicted(struct evicted_rows *rows, int d, int pos, const float *k, const float *v) {
    if (rows->n == rows->cap) {
        rows->cap = 2 * rows->cap + 8;
        rows->k = realloc(rows->k, (size_t)rows->cap * d * sizeof *rows->k);
        rows->v = realloc(rows->v, (size_t)rows->cap * d * sizeof *rows->v);
        rows->pos = realloc(rows->pos, (size_t)rows->cap * sizeof *rows->pos);
    }
    memcpy(rows->k + (size_t)rows->n * d, k, (size_t)d * sizeof *k);
    memcpy(rows->v + (size_t)rows->n * d, v, (size_t)d * sizeof *v);
    rows->pos[rows->n++] = pos;
}

static void engine_evicts(void *user, int layer, int head, const float *k, const float *v) {
    struct slot *s = user;
    const struct plain_model *m = s->run->m;
    add_evicted(&s->gone[0][layer * m->n_head_kv + head], m->d_head, -1, k, v);
    if (s->hook.on_evict) s->hook.on_evict(s->hook.user, layer, head, k, v);
}

static int engine_evicted_next(void *user, int layer, int head, const double *const *k, int n) {
    const struct slot *s = user;
    const struct plain_model *m = s->run->m;
    const struct evicted_rows *a = &s->gone[0][layer * m->n_head_kv + head],
                              *b = &s->gone[1][layer * m->n_head_kv + head];
    int best = 0;
    double least = INFINITY;
    for (int i = 0; b->n < a->n && i < n; i++) {
        double distance = 0;
        for (int c = 0; c < m->d_head; c++) {
            double x = k[i][c] - a->k[(size_t)b->n * m->d_head + c];
            distance += x * x;
        }
        if (distance < 0.5 * least) least = distance, best = i;
    }
    return best;
}

static void account_evicts(void *user, int layer, int head, int pos, const double *k,
                           const double *v) {
    struct slot *s = user;
    const struct plain_model *m = s->run->m;
    float x[2][LK_MAX_D_HEAD];
    for (int i = 0; i < m->d_head; i++) {
        x[LK_K][i] = (float)k[i];
        x[LK_V][i] = (float)v[i];
    }
    add_evicted(&s->gone[1][layer * m->n_head_kv + head], m->d_head, pos, x[LK_K], x[LK_V]);
}

static void forget_rows(struct slot *s) {
    const struct plain_model *m = s->run->m;
    for (int side = 0; side < 2; side++) {
        memset(s->level[side], -1, (size_t)m->n_layer * CTX);
        memset(s->n_row[side], 0, (size_t)m->n_layer * sizeof *s->n_row[side]);
        for (int i = 0; i < m->n_layer * m->n_head_kv; i++) s->gone[side][i].n = 0;
    }
}

/* ---- slots ---- */

static int ctx_of(const struct run *run) { return run->c->n_ctx ? run->c->n_ctx : 512; }

static lk_session *new_session(struct run *run, int recipe, lk_err *err) {
    lk_session_opts opts = {.n_ctx = ctx_of(run), .chunked_prefill = run->c->chunked};
    lk_session *s = NULL;
    return lk_session_new(&s, run->model, run->recipe[recipe], &opts, err) == LK_OK ? s : NULL;
}

/* In every other case evicted rows stay on the device, if it has a room for them. */
static bool uses_room(const struct slot *s) {
    return s->session->cache->evict_room && s->run->c->seed % 2 == 0;
}

/* Note the rows that are in the room, before the session takes them. */
static void take_room(void *user) {
    struct slot *s = user;
    struct lk_device *device = s->session->rows.device;
    int n_head = s->run->m->n_head_kv, d = s->run->m->d_head;
    size_t n = (size_t)s->room.cap * width_of(s->run), bytes = n * sizeof(float);
    float *k = malloc(bytes), *v = malloc(bytes);
    for (int layer = 0; layer < s->session->cache->shape.n_layer; layer++) {
        uint64_t at = layer * bytes;
        if (s->room.n[layer] == 0) continue;
        device->call->download(device, k, s->room.at[LK_K] + at, bytes, NULL);
        device->call->download(device, v, s->room.at[LK_V] + at, bytes, NULL);
        for (int i = 0; i < s->room.n[layer] * n_head; i++)
            add_evicted(&s->gone[0][layer * n_head + i % n_head], d, -1, k + (size_t)i * d,
                        v + (size_t)i * d);
    }
    free(k), free(v);
    s->room.take(s->room.user);
}

static void watch(struct slot *s, lk_session *session) {
    session->watch = (struct lk_watch){.on_attention = note_rows, .user = s};
    s->hook = session->cache->evict_hook;
    session->cache->evict_hook = (struct lk_evict_hook){engine_evicts, s};
    if (!uses_room(s)) return;
    struct lk_evict_room *room = session->cache->evict_room;
    s->room = *room;
    room->take = take_room;
    room->user = s;
}

static bool open_slot(struct run *run, int i, int recipe, lk_err *err) {
    struct slot *s = &run->slot[i];
    const struct plain_model *m = run->m;
    lk_session *session = new_session(run, recipe, err);
    if (!session) return false;
    *s = (struct slot){.session = session, .recipe = recipe, .alone = true, .run = run};
    for (int side = 0; side < 2; side++) {
        s->row[side] = malloc((size_t)m->n_layer * ROWS * width_of(run) * sizeof *s->row[side]);
        s->held[side] = malloc((size_t)m->n_layer * CTX * width_of(run) * sizeof *s->held[side]);
        s->level[side] = malloc((size_t)m->n_layer * CTX);
        s->n_row[side] = calloc((size_t)m->n_layer, sizeof *s->n_row[side]);
        s->gone[side] = calloc((size_t)m->n_layer * m->n_head_kv, sizeof *s->gone[side]);
    }
    watch(s, session);
    s->plain = plain_cache_new(&run->set[recipe]);
    return true;
}

static void close_slot(struct slot *s) {
    if (!s->session) return;
    const struct plain_model *m = s->run->m;
    lk_session_free(s->session);
    lk_session_free(s->twin);
    plain_cache_free(s->plain);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < m->n_layer * m->n_head_kv; i++) {
            free(s->gone[side][i].k);
            free(s->gone[side][i].v);
            free(s->gone[side][i].pos);
        }
        free(s->row[side]);
        free(s->held[side]);
        free(s->level[side]);
        free(s->n_row[side]);
        free(s->gone[side]);
    }
    *s = (struct slot){0};
}

static void drop_twin(struct slot *s) {
    lk_session_free(s->twin);
    s->twin = NULL;
}

/* The account of this slot asks this slot's session. */
static struct plain_setting *bind_account(struct slot *s) {
    struct plain_setting *set = &s->run->set[s->recipe];
    set->engine.user = s;
    s->plain->set = set;
    return set;
}

/* ---- judgement ---- */

static double error_of(const float *x, const double *ref, int n) {
    double error = 0, power = 1e-30;
    for (int i = 0; i < n; i++) {
        error += (x[i] - ref[i]) * (x[i] - ref[i]);
        power += ref[i] * ref[i];
    }
    return error / power;
}

static void keep_logits(struct run *run, const double *logits, int n) {
    struct oracle_result *r = &run->result;
    size_t row = (size_t)run->m->n_vocab;
    if (!run->keep) return;
    r->logits = realloc(r->logits, (r->n_logits + n) * row * sizeof *logits);
    memcpy(r->logits + r->n_logits * row, logits, n * row * sizeof *logits);
    r->n_logits += n;
}

/* Rows that were handed to the eviction hook, against the account's. One code on the other side of
 * a border is some 1e-2 of a row's power; another row is 1 or 2. */
static bool check_evicted(struct slot *s) {
    const struct plain_model *m = s->run->m;
    int d = m->d_head;
    double allowed = s->run->lossy[s->recipe] ? 0.1 : s->run->result.bound;
    for (int i = 0; i < m->n_layer * m->n_head_kv; i++) {
        const struct evicted_rows *a = &s->gone[0][i], *b = &s->gone[1][i];
        if (!s->session->cache->kv[i / m->n_head_kv][LK_K].evict) continue;
        s->run->result.n_evicted += a->n;
        if (a->n != b->n)
            return fail(s->run, "layer %d head %d: %d rows were evicted instead of %d",
                        i / m->n_head_kv, i % m->n_head_kv, a->n, b->n);
        for (int r = 0; r < a->n; r++)
            for (int side = 0; side < 2; side++) {
                const float *x = (side == LK_K ? a->k : a->v) + (size_t)r * d,
                            *y = (side == LK_K ? b->k : b->v) + (size_t)r * d;
                double e = nmse(x, y, (size_t)d);
                if (!(e <= allowed))
                    return fail(s->run,
                                "layer %d head %d: %c of evicted row %d (position %d): NMSE %.1e",
                                i / m->n_head_kv, i % m->n_head_kv, side == LK_K ? 'K' : 'V', r,
                                b->pos[r], e);
            }
    }
    return true;
}

double oracle_score_error(double score, double expected) {
    double e = fabs(score - expected) / (fabs(expected) + 1e-3);
    return isnan(e) ? INFINITY : e;
}

void free_oracle_result(struct oracle_result *result) {
    free(result->logits);
    free(result->score);
    result->logits = result->score = NULL;
}

static double account_score(const struct plain_kv *kv, int at, int head) {
    int level = 0;
    while (at >= kv->level[level].n) at -= kv->level[level++].n;
    return kv->level[level].row[at]->score[head];
}

/* Keep the scores of all rows of the slot's account. */
static void keep_scores(const struct slot *s) {
    struct oracle_result *r = &s->run->result;
    const struct plain_model *m = s->run->m;
    if (!s->run->keep) return;
    r->n_score = 0;
    for (int layer = 0; layer < m->n_layer; layer++) {
        const struct plain_kv *kv = &s->plain->layer[layer].kv[LK_K];
        for (int l = 0; l < kv->n_level; l++) {
            size_t n = (size_t)kv->level[l].n * m->n_head_kv;
            r->score = realloc(r->score, (r->n_score + n + 1) * sizeof *r->score);
            for (int i = 0; i < kv->level[l].n; i++)
                for (int h = 0; h < m->n_head_kv; h++)
                    r->score[r->n_score++] = kv->level[l].row[i]->score[h];
        }
    }
}

/* The positions that each head holds and their scores, in the engine's order, against the
 * account's. */
static bool check_positions(struct slot *s) {
    const struct plain_model *m = s->run->m;
    for (int layer = 0; layer < m->n_layer; layer++) {
        const struct lk_evict *evict = &s->session->cache->evict[layer];
        const struct plain_kv *kv = &s->plain->layer[layer].kv[LK_K];
        if (!s->session->cache->kv[layer][LK_K].evict) continue;
        int64_t at = 0;
        for (int l = 0; l < kv->n_level; l++)
            for (int r = 0; r < kv->level[l].n; r++, at++)
                for (int h = 0; h < m->n_head_kv; h++) {
                    int pos = kv->level[l].row[r]->pos[h];
                    if (at >= evict->n || evict->pos[at * evict->n_head + h] != pos)
                        return fail(s->run,
                                    "layer %d head %d: the engine does not hold position %d"
                                    " as row %d",
                                    layer, h, pos, (int)at);
                }
        int64_t n_held = at;
        for (at = 0; s->run->result.bound <= TIGHT && evict->needs_scores && at < evict->n; at++)
            for (int h = 0; h < m->n_head_kv; h++) {
                double ours = account_score(kv, (int)at, h),
                       theirs = evict->score[at * evict->n_head + h];
                double e = oracle_score_error(theirs, ours);
                if (e <= 1e-2) continue;
                s->run->result.score_error = e;
                return fail(s->run, "layer %d head %d: score %g instead of %g", layer, h, theirs,
                            ours);
            }
        if (n_held != evict->n)
            return fail(s->run, "layer %d: %d rows instead of %d", layer, (int)evict->n,
                        (int)n_held);
    }
    return true;
}

/* Each level holds as many blocks as the account's rows need. */
static bool check_levels(struct slot *s) {
    for (int i = 0; i < 2 * s->run->m->n_layer; i++) {
        const struct lk_kv *kv = lk_cache_kv(s->session->cache, i);
        const struct plain_kv *plain = &s->plain->layer[i / 2].kv[i % 2];
        if (kv->n_level != plain->n_level)
            return fail(s->run, "layer %d has %d levels instead of %d", i / 2, kv->n_level,
                        plain->n_level);
        for (int l = 0; l < kv->n_level; l++) {
            const struct plain_level *level = &plain->level[l];
            int rows = kv->rule[l].block_rows, n = level->n ? level->skip + level->n : 0;
            if (kv->count[l].rows != level->n || kv->level[l].n_block != (n + rows - 1) / rows)
                return fail(s->run,
                            "layer %d, %c, level %d: %d rows in %d blocks instead of %d "
                            "rows after %d in blocks of %d",
                            i / 2, i % 2 ? 'V' : 'K', l, (int)kv->count[l].rows,
                            (int)kv->level[l].n_block, level->n, level->skip, rows);
        }
    }
    return true;
}

/* Bytes: the counters agree with each other and with a plan for as many tokens. A plan counts the
 * blocks. It does not know what tables grew to, nor over how many slabs the blocks are spread that
 * were not freed; a prompt frees none. */
static bool check_bytes(struct slot *s) {
    lk_session_stats stats = lk_session_get_stats(s->session);
    lk_plan plan;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = (int32_t)stats.n_tok, .chunked_prefill = s->run->c->chunked};
    uint64_t held = lk_ledger_bytes(&s->session->ledger, LK_FOR_CACHE) +
                    lk_ledger_bytes(&s->session->rows.ledger, LK_FOR_CACHE);
    if (stats.cache_bytes != stats.code_bytes + stats.scale_bytes + stats.exact_bytes +
                                 stats.padding_bytes + stats.state_bytes ||
        stats.cache_bytes - stats.shared_bytes != held)
        return fail(s->run, "the ledger holds %llu bytes, the statistics %llu",
                    (unsigned long long)held, (unsigned long long)stats.cache_bytes);
    if (!s->alone || s->cut || stats.n_tok == 0) return true;
    if (lk_plan_make(s->run->model, s->run->recipe[s->recipe], &opts, &plan, &err) != LK_OK)
        return fail(s->run, "plan: %s", err.msg);
    uint64_t spread = oracle_free_slabs(s->session->cache);
    held -= oracle_table_slack(s->session->cache);
    if (s->run->result.spread < spread) s->run->result.spread = spread;
    const struct lk_recipe *recipe = s->run->recipe[s->recipe];
    if (!s->fresh &&
        (s->run->m->n_swa > 0 || has_percentages(recipe) || has_equalized_residual(recipe)))
        return true; /* how many rows are left depends on how the tokens came */
    if (held - spread == plan.cache_bytes && (spread == 0 || !s->fresh)) return true;
    return fail(s->run,
                "%llu tokens: a plan says %llu bytes, the ledger %llu and %llu in free slabs",
                (unsigned long long)stats.n_tok, (unsigned long long)plan.cache_bytes,
                (unsigned long long)(held - spread), (unsigned long long)spread);
}

/* The last n_out tokens' logits, and all else, after an evaluation of the slot. */
static bool judge(struct slot *s, const double *logits, int n_out, int n_tie) {
    struct run *run = s->run;
    struct oracle_result *r = &run->result;
    struct plain_setting *set = &run->set[s->recipe];
    int n_vocab = run->m->n_vocab;
    keep_logits(run, logits, n_out);
    keep_scores(s);
    r->n_eval++;
    r->n_tie += set->n_tie - n_tie;
    r->sigma_error = fmax(r->sigma_error, set->worst_sigma);
    if (set->noise > 0) return true;
    for (int i = 0; i < n_out; i++) {
        const float *x = lk_session_logits(s->session, i - n_out);
        if (!x) return fail(run, "there are no logits");
        double e = error_of(x, logits + (size_t)i * n_vocab, n_vocab);
        if (!(e <= r->worst)) r->worst = e;
        if (!(e <= r->bound))
            return fail(run,
                        "logits of token %d of %d: NMSE %.1e, allowed %.1e (rows of layer %d: "
                        "%.1e)",
                        i, n_out, e, r->bound, set->worst_layer, set->worst_row);
    }
    if (!(set->worst_row <= r->bound))
        return fail(run, "rows of K or V of layer %d: NMSE %.1e, allowed %.1e", set->worst_layer,
                    set->worst_row, r->bound);
    if (!(set->worst_sigma <= (r->bound > TIGHT ? 3e-2 : 1e-3)))
        return fail(run, "channel statistics: relative error %.1e", set->worst_sigma);
    if (lk_session_n_tok(s->session) != (size_t)s->plain->n_tok)
        return fail(run, "%zu tokens instead of %d", lk_session_n_tok(s->session), s->plain->n_tok);
    return check_levels(s) && check_positions(s) && check_evicted(s) && check_bytes(s);
}

static bool same_as_twin(struct slot *s) {
    const float *a = lk_session_logits(s->session, -1), *b = lk_session_logits(s->twin, -1);
    if (a && b && memcmp(a, b, (size_t)s->run->m->n_vocab * sizeof *a) == 0) return true;
    return fail(s->run, "a loaded session continues differently");
}

/* ---- operations ---- */

static void random_text(const struct run *run, uint64_t seed, int32_t *tok, int n) {
    struct random r = {seed ^ run->c->seed << 20};
    random_u32(&r);
    for (int i = 0; i < n; i++) tok[i] = random_int(&r, 0, run->m->n_vocab - 1);
}

/* Evaluate n tokens that the slot's text already has after the account's. */
static bool eval_tokens(struct slot *s, int n, bool all) {
    lk_err err = {0};
    struct plain_setting *set = bind_account(s);
    const int32_t *tok = s->tok + s->plain->n_tok;
    int n_tie = set->n_tie;
    double *logits = malloc((size_t)n * s->run->m->n_vocab * sizeof *logits);
    forget_rows(s);
    bool ok = lk_session_eval(s->session, tok, (size_t)n, all, &err) == LK_OK;
    if (!ok) fail(s->run, "eval: %s", err.msg);
    if (ok && s->twin) {
        ok = lk_session_eval(s->twin, tok, (size_t)n, all, &err) == LK_OK;
        ok = ok ? same_as_twin(s) : fail(s->run, "eval of the loaded session: %s", err.msg);
    }
    if (ok) {
        plain_eval(s->plain, tok, n, logits);
        int n_out = all ? n : 1;
        ok = judge(s, logits + (size_t)(n - n_out) * s->run->m->n_vocab, n_out, n_tie);
    }
    free(logits);
    return ok;
}

/* The slot shall hold its text's first n tokens. The account has the first n_same of them. */
static bool sync_tokens(struct slot *s, int n, int n_same) {
    lk_err err = {0};
    struct run *run = s->run;
    struct plain_setting *set = bind_account(s);
    int n_tie = set->n_tie;
    size_t have = (size_t)s->plain->n_tok, reused = 0, reused_by_twin = 0;
    double *logits = malloc((size_t)n * run->m->n_vocab * sizeof *logits);
    forget_rows(s);
    bool ok = lk_session_sync(s->session, s->tok, (size_t)n, &reused, &err) == LK_OK;
    if (!ok) fail(run, "sync: %s", err.msg);
    if (ok && s->twin) {
        ok = lk_session_sync(s->twin, s->tok, (size_t)n, &reused_by_twin, &err) == LK_OK;
        ok = ok && reused == reused_by_twin ? same_as_twin(s) : fail(run, "the twin cannot follow");
    }
    if (ok && reused > (size_t)n_same) ok = fail(run, "tokens are reused that differ");
    if (ok && reused > 0 && reused < have && !plain_cache_truncate(s->plain, (int)reused))
        ok = fail(run, "%zu tokens are reused, but the account cannot go back to them", reused);
    if (ok && reused == 0) plain_cache_clear(s->plain);
    s->cut = reused > 0 && (s->cut || reused < have);
    if (ok && reused == (size_t)n) { /* the last logits are kept */
        free(logits);
        return true;
    }
    bool chunked = run->c->chunked || run->recipe[s->recipe]->eager;
    if (ok && reused == 0 && !chunked)
        plain_prompt(s->plain, s->tok, n, logits);
    else if (ok) {
        plain_eval(s->plain, s->tok + reused, n - (int)reused, logits);
        memmove(logits, logits + (size_t)(n - (int)reused - 1) * run->m->n_vocab,
                (size_t)run->m->n_vocab * sizeof *logits);
    }
    s->fresh = reused == 0 && !chunked;
    if (ok) ok = judge(s, logits, 1, n_tie);
    s->fresh = false;
    free(logits);
    return ok;
}

static bool eval_batch(struct run *run, const struct op *op) {
    lk_batch_entry item[MAX_SLOT];
    struct slot *of[MAX_SLOT];
    lk_err err = {0};
    size_t n = 0;
    for (int i = 0; i < MAX_SLOT; i++) {
        struct slot *s = &run->slot[i];
        int n_tok = 1 + (op->n - 1) / (i + 1);
        if (!s->session || s->plain->n_tok == 0 || s->plain->n_tok + n_tok > ctx_of(run)) continue;
        drop_twin(s);
        random_text(run, op->seed + (uint64_t)i, s->tok + s->plain->n_tok, n_tok);
        forget_rows(s);
        item[n] = (lk_batch_entry){.session = s->session,
                                   .tok = s->tok + s->plain->n_tok,
                                   .n_tok = (size_t)n_tok,
                                   .all = op->seed >> i & 1};
        of[n++] = s;
    }
    if (n == 0) return true;
    if (lk_batch_eval(run->batch, item, n, &err) != LK_OK) return fail(run, "batch: %s", err.msg);
    for (size_t i = 0; i < n; i++) {
        if (item[i].err.code != LK_OK) return fail(run, "batch: %s", item[i].err.msg);
        struct plain_setting *set = bind_account(of[i]);
        int n_tie = set->n_tie, n_tok = (int)item[i].n_tok, n_out = item[i].all ? n_tok : 1;
        double *logits = malloc(item[i].n_tok * run->m->n_vocab * sizeof *logits);
        plain_eval(of[i]->plain, item[i].tok, n_tok, logits);
        bool ok = judge(of[i], logits + (size_t)(n_tok - n_out) * run->m->n_vocab, n_out, n_tie);
        free(logits);
        if (!ok) return false;
    }
    return true;
}

static bool fork_slot(struct run *run, struct slot *s) {
    lk_err err = {0};
    struct slot *to = NULL;
    for (int i = 0; i < MAX_SLOT && !to; i++)
        if (!run->slot[i].session) to = &run->slot[i];
    if (!to) {
        close_slot(&run->slot[MAX_SLOT - 1]);
        to = &run->slot[MAX_SLOT - 1];
    }
    if (s == to || s->plain->n_tok == 0) return true;
    if (!open_slot(run, (int)(to - run->slot), s->recipe, &err) ||
        lk_session_copy(to->session, s->session, &err) != LK_OK)
        return fail(run, "fork: %s", err.msg);
    plain_cache_free(to->plain);
    to->plain = plain_cache_copy(s->plain);
    memcpy(to->tok, s->tok, sizeof to->tok);
    to->alone = s->alone = false;
    run->result.n_forked++;
    return true;
}

static bool save_slot(struct run *run, struct slot *s) {
    lk_err err = {0};
    char path[] = "/tmp/lowkey-oracle-XXXXXX";
    if (s->plain->n_tok == 0) return true;
    int fd = mkstemp(path);
    if (fd < 0) return fail(run, "no temporary file");
    close(fd);
    lk_status status = lk_session_save(s->session, NULL, path, &err);
    if (status == LK_OK) {
        drop_twin(s);
        s->twin = new_session(run, s->recipe, &err);
        if (s->twin && !uses_room(s)) s->twin->cache->evict_room = NULL; /* the same way */
        status = s->twin ? lk_session_load(s->twin, NULL, path, &err) : LK_E_NOMEM;
        run->result.n_saved++;
        if (status == LK_OK) same_as_twin(s);
    } else if (status == LK_E_UNSUPPORTED) {
        run->result.n_unsaved++;
        status = LK_OK;
    }
    unlink(path);
    return status == LK_OK ? run->result.verdict == CASE_PASSED : fail(run, "save: %s", err.msg);
}

static bool run_op(struct run *run, const struct op *op) {
    struct slot *s = &run->slot[op->a];
    if (!s->session) s = &run->slot[0];
    int have = s->plain->n_tok, n = op->n;
    bool fits = s->plain->n_tok + n <= ctx_of(run) &&
                (have > 0 || !lk_recipe_replays(run->recipe[s->recipe])); /* only prompts are */
    switch (op->kind) {
    case OP_PROMPT: {
        int32_t text[CTX];
        int n_same = 0;
        if (n > ctx_of(run)) return true;
        random_text(run, op->seed, text, n);
        while (n_same < n && n_same < have && text[n_same] == s->tok[n_same]) n_same++;
        memcpy(s->tok, text, (size_t)n * sizeof *text);
        return sync_tokens(s, n, n_same);
    }
    case OP_STEPS:
        if (!fits) return true;
        random_text(run, op->seed, s->tok + have, n);
        for (int i = 0; i < n; i++)
            if (!eval_tokens(s, 1, false)) return false;
        return true;
    case OP_EVAL:
        if (!fits) return true;
        random_text(run, op->seed, s->tok + have, n);
        return eval_tokens(s, n, op->seed & 1);
    case OP_CUT:
        if (have < n + 2) return true;
        random_text(run, op->seed, s->tok + have - n, 1);
        return sync_tokens(s, have - n + 1, have - n + 1);
    case OP_CLEAR:
        lk_session_clear(s->session);
        drop_twin(s);
        plain_cache_clear(s->plain);
        return true;
    case OP_BATCH: return eval_batch(run, op);
    case OP_FORK: return fork_slot(run, s);
    case OP_SAVE: return save_slot(run, s);
    default: return true;
    }
}

/* ---- a case ---- */

static bool reject(struct run *run, const lk_err *err) {
    run->result.verdict = CASE_REJECTED;
    snprintf(run->result.reason, sizeof run->result.reason, "%s", err->msg);
    return false;
}

/* ggml rounds GELU's argument to f16. Rounding decides which way, by 5e-4, and scores of later
 * layers differ by a few times that. */
static bool has_gelu(const struct plain_model *m) { return !m->layer[0].gate.w || m->n_swa > 0; }

static bool prepare(struct run *run, double noise, char *sidecar_path) {
    const struct oracle_case *c = run->c;
    struct random r = {c->seed};
    lk_err err = {0};
    bool sidecar = false;
    for (int i = 0; i < 2; i++) {
        char text[MAX_RECIPE_PARTS * MAX_PART];
        join_recipe(&c->recipe[i], text, sizeof text);
        if (lk_recipe_parse(&run->recipe[i], text, &err) != LK_OK ||
            (c->chunked && lk_recipe_replays(run->recipe[i]) &&
             lk_fail(&err, LK_E_UNSUPPORTED, "a prompt in chunks is not replayed")))
            return reject(run, &err);
        sidecar |= needs_sidecar(run->recipe[i]);
        run->lossy[i] = is_lossy(run->recipe[i]);
        run->ranked[i] = is_ranked(run->recipe[i]);
    }
    run->sidecar = random_sidecar(&r, run->m, c->full_rank);
    lk_model_opts opts = {.n_threads = 1, .kernels = c->kernels};
    if (sidecar) {
        int fd = mkstemp(sidecar_path);
        if (fd >= 0) close(fd);
        if (fd < 0 ||
            !write_random_sidecar(&run->sidecar, run->m, c->model->fingerprint, sidecar_path))
            return fail(run, "the sidecar cannot be written");
        opts.sidecar = sidecar_path;
    }
    if (lk_model_open(&run->model, c->model->path, &opts, &err) != LK_OK)
        return fail(run, "%s", err.msg);
    static const char request[] = "\n\nRepeat the text above word for word:\n\n";
    lk_status status = lk_tokenize(run->model, request, strlen(request), 0, 0, &run->request,
                                   &run->n_request, &err);
    if (status != LK_OK && status != LK_E_UNSUPPORTED) return fail(run, "%s", err.msg);
    bool tight = strcmp(c->kernels, "reference") == 0 || !(run->lossy[0] || run->lossy[1]);
    run->result.bound = tight ? TIGHT : LOOSE;
    for (int i = 0; i < 2; i++) {
        run->set[i] = (struct plain_setting){.model = run->m,
                                             .recipe = run->recipe[i],
                                             .less = sidecar ? run->sidecar.less : NULL,
                                             .request = run->request,
                                             .n_request = (int)run->n_request,
                                             .engine = {.row = engine_row,
                                                        .stored = engine_stored,
                                                        .sigma = engine_sigma,
                                                        .holds = engine_holds,
                                                        .next_evicted = engine_evicted_next,
                                                        .evicted = account_evicts},
                                             .adopts = run->lossy[i] || run->ranked[i],
                                             .tie = !tight             ? 0.2
                                                    : has_gelu(run->m) ? 3e-3
                                                                       : 1e-4,
                                             .noise = noise,
                                             .query_noise = noise > 0 && !tight,
                                             .random = {c->seed + c->noise_seed}};
        for (int side = 0; side < N_PLAIN_BASIS; side++)
            run->set[i].basis[side] = run->sidecar.basis[side];
    }
    for (int i = 0; i < 2; i++)
        if (!open_slot(run, i, i, &err)) return reject(run, &err);
    return lk_batch_new(&run->batch, run->model, &err) == LK_OK || fail(run, "%s", err.msg);
}

struct oracle_result run_case(const struct oracle_case *c, double noise, bool keep) {
    struct run *run = calloc(1, sizeof *run);
    char sidecar_path[] = "/tmp/lowkey-oracle-XXXXXX";
    run->c = c;
    run->m = &c->model->plain;
    run->keep = keep;
    bool ok = prepare(run, noise, sidecar_path);
    for (int i = 0; ok && i < c->n_op; i++) {
        run->result.op = i;
        ok = run_op(run, &c->op[i]);
    }
    for (int i = 0; i < MAX_SLOT; i++) close_slot(&run->slot[i]);
    lk_batch_free(run->batch);
    lk_tokens_free(run->request);
    lk_model_free(run->model);
    unlink(sidecar_path);
    for (int i = 0; i < 2; i++) lk_recipe_free(run->recipe[i]);
    if (run->sidecar.n_layer) free_random_sidecar(&run->sidecar);
    struct oracle_result result = run->result;
    free(run);
    return result;
}
