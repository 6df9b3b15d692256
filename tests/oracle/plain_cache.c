/* The account of a cache: rows enter, age, are evicted. */
#include "plain_cache.h"

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows and lists ---- */

static int width_of(const struct plain_cache *c) {
    return c->set->model->n_head_kv * c->set->model->d_head;
}

static struct plain_row *new_row(const struct plain_cache *c, int pos, const double *x) {
    int n_head = c->set->model->n_head_kv, n = width_of(c);
    struct plain_row *row = calloc(1, sizeof *row);
    row->pos = malloc((size_t)n_head * sizeof *row->pos);
    row->score = calloc((size_t)n_head, sizeof *row->score);
    row->x = malloc((size_t)n * sizeof *row->x);
    row->seen = malloc((size_t)n * sizeof *row->seen);
    for (int h = 0; h < n_head; h++) row->pos[h] = pos;
    memcpy(row->x, x, (size_t)n * sizeof *x);
    memcpy(row->seen, x, (size_t)n * sizeof *x);
    return row;
}

void plain_free_row(struct plain_row *row) {
    free(row->pos);
    free(row->score);
    free(row->x);
    free(row->seen);
    free(row);
}

struct plain_row *plain_copy_row(const struct plain_cache *c, const struct plain_row *from) {
    size_t n_head = (size_t)c->set->model->n_head_kv, n = (size_t)width_of(c);
    struct plain_row *row = new_row(c, 0, from->x);
    row->latent = from->latent;
    row->coded = from->coded;
    memcpy(row->pos, from->pos, n_head * sizeof *row->pos);
    memcpy(row->score, from->score, n_head * sizeof *row->score);
    memcpy(row->seen, from->seen, n * sizeof *row->seen);
    return row;
}

static void push(struct plain_level *level, struct plain_row *row) {
    if (level->n == level->cap) {
        level->cap = 2 * level->cap + 16;
        level->row = realloc(level->row, (size_t)level->cap * sizeof *level->row);
    }
    level->row[level->n++] = row;
}

/* Remove the n oldest rows, which stay valid. */
static void remove_front(struct plain_level *level, int n) {
    level->n -= n;
    if (level->n) memmove(level->row, level->row + n, (size_t)level->n * sizeof *level->row);
    level->skip = level->n == 0 ? 0 : (level->skip + n) % level->block_rows;
}

/* ---- caches ---- */

/* The smallest number of heads that whole groups of K's latents and of V's latents make up. */
static int unit_of(const struct plain_layer_cache *l) {
    int unit = 1;
    for (int i = 0; l->evicts && i < l->kv[LK_K].n_level; i++) {
        const struct plain_level *k = &l->kv[LK_K].level[i], *v = &l->kv[LK_V].level[i];
        while (k->policy.kind != LK_POLICY_NONE && (unit % k->n_head || unit % v->n_head)) unit++;
    }
    return unit;
}

struct plain_cache *plain_cache_new(struct plain_setting *set) {
    struct plain_cache *c = calloc(1, sizeof *c);
    c->set = set;
    c->layer = calloc((size_t)set->model->n_layer, sizeof *c->layer);
    for (int i = 0; i < set->model->n_layer; i++) {
        for (int side = 0; side < 2; side++)
            c->layer[i].kv[side].n_level = plain_levels(set, i, side, c->layer[i].kv[side].level);
        c->layer[i].evicts = plain_layer_evicts(set, i);
        c->layer[i].unit = unit_of(&c->layer[i]);
    }
    plain_absorb_init(c);
    plain_sigma_init(c);
    return c;
}

static size_t state_size(const struct plain_cache *c) {
    const struct plain_model *m = c->set->model;
    return (size_t)m->n_head_kv * c->n_feature * (m->d_head + 1);
}

void plain_cache_clear(struct plain_cache *c) {
    for (int i = 0; i < c->set->model->n_layer; i++) {
        for (int side = 0; side < 2; side++) {
            struct plain_kv *kv = &c->layer[i].kv[side];
            for (int l = 0; l < kv->n_level; l++) {
                struct plain_level *level = &kv->level[l];
                for (int r = 0; r < level->n; r++) plain_free_row(level->row[r]);
                for (int b = 0; b < level->n_block * level->n_part; b++) free(level->block[b]);
                level->n = level->skip = level->n_block = 0;
            }
            kv->first = 0;
            plain_sigma_clear(kv);
        }
        if (c->layer[i].state) memset(c->layer[i].state, 0, state_size(c) * sizeof(double));
    }
    c->n_tok = 0;
}

void plain_cache_free(struct plain_cache *c) {
    if (!c) return;
    plain_cache_clear(c);
    for (int i = 0; i < c->set->model->n_layer; i++) {
        for (int side = 0; side < 2; side++)
            for (int l = 0; l < c->layer[i].kv[side].n_level; l++) {
                free(c->layer[i].kv[side].level[l].row);
                free(c->layer[i].kv[side].level[l].block);
            }
        for (int k = 0; k < 4; k++) free(c->layer[i].kv[k / 2].sigma[k % 2].power);
        free(c->layer[i].state);
    }
    free(c->layer);
    free(c);
}

struct plain_cache *plain_cache_copy(const struct plain_cache *from) {
    struct plain_cache *c = plain_cache_new(from->set);
    for (int i = 0; i < c->set->model->n_layer; i++) {
        for (int side = 0; side < 2; side++) {
            const struct plain_kv *a = &from->layer[i].kv[side];
            struct plain_kv *b = &c->layer[i].kv[side];
            b->first = a->first;
            plain_sigma_copy(b, a);
            for (int l = 0; l < a->n_level; l++) {
                const struct plain_level *x = &a->level[l];
                struct plain_level *y = &b->level[l];
                for (int r = 0; r < x->n; r++) push(y, plain_copy_row(c, x->row[r]));
                y->skip = x->skip;
                y->n_block = x->n_block;
                int n_part = x->n_block * x->n_part;
                y->block = n_part ? malloc((size_t)n_part * sizeof *y->block) : NULL;
                for (int p = 0; p < n_part; p++) {
                    size_t bytes =
                        lk_codec_head_bytes(&x->of_part[p % x->n_part], (enum lk_side)side,
                                            x->rank[p % x->n_part], x->block_rows);
                    y->block[p] = aligned_alloc(64, (bytes + 63) / 64 * 64);
                    memcpy(y->block[p], x->block[p], bytes);
                }
            }
        }
        if (c->layer[i].state)
            memcpy(c->layer[i].state, from->layer[i].state, state_size(c) * sizeof(double));
    }
    c->n_tok = from->n_tok;
    return c;
}

static bool can_truncate(const struct plain_cache *c, int n_tok) {
    const struct plain_model *m = c->set->model;
    for (int i = 0; i < m->n_layer; i++)
        for (int side = 0; side < 2; side++) {
            const struct plain_kv *kv = &c->layer[i].kv[side];
            bool swa = plain_is_swa(m, i);
            int oldest = swa ? n_tok - m->n_swa + 1 : 0; /* that the next query sees */
            if (c->n_tok - n_tok > kv->level[kv->n_level - 1].n) return false;
            if (kv->first > 0 && oldest < kv->first) return false;
        }
    return true;
}

bool plain_cache_truncate(struct plain_cache *c, int n_tok) {
    if (!can_truncate(c, n_tok)) return false;
    for (int i = 0; i < c->set->model->n_layer; i++)
        for (int side = 0; side < 2; side++) {
            struct plain_kv *kv = &c->layer[i].kv[side];
            struct plain_level *newest = &kv->level[kv->n_level - 1];
            for (int n = c->n_tok - n_tok; n > 0; n--) plain_free_row(newest->row[--newest->n]);
            if (newest->n == 0) newest->skip = 0;
        }
    c->n_tok = n_tok;
    return true;
}

void plain_cache_append(struct plain_cache *c, int layer, int side, int pos, const double *x) {
    struct plain_kv *kv = &c->layer[layer].kv[side];
    bool sink = kv->n_level > 1 && kv->level[0].is_sink && pos < kv->level[0].keep;
    struct plain_level *level = &kv->level[sink ? 0 : kv->n_level - 1];
    struct plain_row *row = new_row(c, pos, x);
    for (int h = 0; plain_replays(c, layer) && h < c->set->model->n_head_kv; h++) row->score[h] = 2;
    plain_store(c, layer, side, level, &row, 1);
    push(level, row);
}

/* ---- aging without a policy ---- */

static void drop_front(struct plain_kv *kv, struct plain_level *level, int n) {
    for (int i = 0; i < n; i++) plain_free_row(level->row[i]);
    remove_front(level, n);
    kv->first += n;
}

/* Rows that are old enough move to older levels. */
static void move_side(struct plain_cache *c, int layer, int side, int n_tok) {
    struct plain_kv *kv = &c->layer[layer].kv[side];
    int from, n, rows[PLAIN_MAX_LEVEL];
    for (;;) {
        for (int i = 0; i < kv->n_level; i++) rows[i] = kv->level[i].n;
        n = plain_next_move(kv->level, rows, kv->n_level, n_tok, &from);
        if (n == 0) break;
        struct plain_level *a = &kv->level[from], *b = a - 1;
        int n_fit = plain_room(b, b->n, n_tok, n);
        plain_calibrate(c, layer, side, b, a->row, a->n);
        if (n_fit > 0) plain_store(c, layer, side, b, a->row, n_fit);
        for (int i = 0; i < n_fit; i++) push(b, a->row[i]);
        for (int i = n_fit; i < n; i++) plain_free_row(a->row[i]);
        remove_front(a, n);
        kv->first += n - n_fit;
    }
}

static void age_side(struct plain_cache *c, int layer, int side, int n_tok) {
    const struct plain_model *m = c->set->model;
    struct plain_kv *kv = &c->layer[layer].kv[side];
    move_side(c, layer, side, n_tok);
    for (int i = 0; plain_is_swa(m, layer) && i < kv->n_level; i++) {
        struct plain_level *level = &kv->level[i];
        drop_front(kv, level,
                   plain_droppable(level, level->n, level->skip, kv->first, n_tok, m->n_swa));
        if (level->n) break;
    }
}

/* ---- policies ---- */

/* The row's rank for a head and its unit: the lowest is evicted. */
static double rank_of(struct plain_cache *c, int layer, const struct lk_policy *policy,
                      const double *score, int pos, int head, int n_tok) {
    struct plain_setting *set = c->set;
    bool joint = policy->kind == LK_POLICY_TOVA && !policy->per_head;
    int n = joint ? set->model->n_head_kv : c->layer[layer].unit, first = head / n * n;
    double sum = 0;
    if (policy->kind == LK_POLICY_RANDOM) { /* one number per layer, unit and position */
        uint64_t state = ((uint64_t)policy->seed << 40) + ((uint64_t)first << 32) + (uint32_t)pos;
        return (double)(lk_splitmix64_next(&state) >> 40);
    }
    if (policy->kind == LK_POLICY_NEWEST) return 0;
    for (int h = first; h < first + n; h++)
        sum = policy->kind == LK_POLICY_REPLAY ? fmax(sum, score[h]) : sum + score[h];
    if (policy->mean) sum /= n_tok - pos;
    return set->noise > 0 ? sum * (1 + set->noise * random_gauss(&set->random)) : sum;
}

static bool is_scored(const struct lk_policy *policy) {
    return policy->kind == LK_POLICY_H2O || policy->kind == LK_POLICY_TOVA ||
           policy->kind == LK_POLICY_REPLAY;
}

static bool engine_holds(const struct plain_cache *c, int layer, int head, int pos) {
    const struct plain_engine *engine = &c->set->engine;
    return engine->holds && engine->holds(engine->user, layer, head, pos);
}

/* Ranks that differ by less are equal. Weights near the smallest float may also be 0. */
static double tie_of(const struct plain_cache *c, double rank) {
    return c->set->tie * fabs(rank) + 1e-36;
}

/* If several rows rank nearly as low as the victim, the one that the engine evicted. */
static int settle_tie(struct plain_cache *c, int layer, const struct plain_level *level,
                      const struct plain_row *arrival, int head, const double *rank, int victim) {
    const struct plain_engine *engine = &c->set->engine;
    int n = level->n, n_near = 0, d = c->set->model->d_head;
    int *near = malloc((size_t)(n + 1) * sizeof *near);
    const double **k = malloc((size_t)(n + 1) * sizeof *k);
    near[n_near] = victim; /* first: the same token twice may have the same row */
    k[n_near++] = (victim < n ? level->row[victim] : arrival)->seen + head * d;
    for (int i = 0; i <= n; i++) {
        if (i == victim || rank[i] - rank[victim] > tie_of(c, rank[victim])) continue;
        near[n_near] = i;
        k[n_near++] = (i < n ? level->row[i] : arrival)->seen + head * d;
    }
    int chosen =
        n_near > 1 ? near[engine->next_evicted(engine->user, layer, head, k, n_near)] : victim;
    c->set->n_tie += chosen != victim;
    free(near);
    free(k);
    return chosen;
}

/* Which of the level's rows, or the arriving one (index n), is evicted for a head. */
static int find_victim(struct plain_cache *c, int layer, const struct plain_level *level,
                       const struct plain_row *arrival, int head, int n_tok) {
    int n = level->n, victim = n;
    double *rank = malloc((size_t)(n + 1) * sizeof *rank);
    for (int i = 0; i <= n; i++) {
        const struct plain_row *row = i < n ? level->row[i] : arrival;
        rank[i] = rank_of(c, layer, &level->policy, row->score, row->pos[head], head, n_tok);
        int best = victim < n ? level->row[victim]->pos[head] : arrival->pos[head];
        if (i == 0 || rank[i] < rank[victim] || (rank[i] == rank[victim] && row->pos[head] < best))
            victim = i;
    }
    if (is_scored(&level->policy))
        victim = settle_tie(c, layer, level, arrival, head, rank, victim);
    free(rank);
    return victim;
}

static void evict(struct plain_cache *c, int layer, int head, int pos, const double *k,
                  const double *v) {
    const struct plain_engine *engine = &c->set->engine;
    if (engine->evicted) engine->evicted(engine->user, layer, head, pos, k, v);
    if (c->layer[layer].state) plain_absorb_row(c, layer, head, k, v);
}

/* Rows k and v compete with those of a full level, unit by unit. */
static void compete(struct plain_cache *c, int layer, int to, const struct plain_row *k,
                    const struct plain_row *v, int n_tok) {
    struct plain_layer_cache *l = &c->layer[layer];
    struct plain_level *held[2] = {&l->kv[LK_K].level[to], &l->kv[LK_V].level[to]};
    const struct lk_policy *policy = &held[LK_K]->policy;
    int victim = 0, d = c->set->model->d_head, unit = l->unit;
    for (int first = 0; first < c->set->model->n_head_kv; first += unit) {
        if (first == 0 || policy->kind != LK_POLICY_TOVA || policy->per_head)
            victim = find_victim(c, layer, held[LK_K], k, first, n_tok);
        bool itself = victim == held[LK_K]->n;
        const struct plain_row *old_k = itself ? k : held[LK_K]->row[victim],
                               *old_v = itself ? v : held[LK_V]->row[victim];
        for (int h = first; h < first + unit; h++)
            evict(c, layer, h, old_k->pos[h], old_k->seen + h * d, old_v->seen + h * d);
        if (itself) continue;
        plain_replace(c, layer, LK_K, held[LK_K], victim, first, unit, k);
        plain_replace(c, layer, LK_V, held[LK_V], victim, first, unit, v);
    }
}

static void age_both(struct plain_cache *c, int layer, int n_tok) {
    struct plain_kv *kv = c->layer[layer].kv;
    int from, n, rows[PLAIN_MAX_LEVEL];
    for (;;) {
        for (int i = 0; i < kv[LK_K].n_level; i++) rows[i] = kv[LK_K].level[i].n;
        n = plain_next_move(kv[LK_K].level, rows, kv[LK_K].n_level, n_tok, &from);
        if (n == 0) return;
        int to = from - 1, n_fit = plain_room(&kv[LK_K].level[to], rows[to], n_tok, n);
        for (int side = 0; side < 2; side++) {
            struct plain_level *a = &kv[side].level[from], *b = a - 1;
            plain_calibrate(c, layer, side, b, a->row, a->n);
            if (n_fit > 0) plain_store(c, layer, side, b, a->row, n_fit);
            for (int i = 0; i < n_fit; i++) push(b, a->row[i]);
            kv[side].first += n - n_fit;
        }
        for (int i = n_fit; i < n; i++)
            compete(c, layer, to, kv[LK_K].level[from].row[i], kv[LK_V].level[from].row[i], n_tok);
        for (int side = 0; side < 2; side++) {
            for (int i = n_fit; i < n; i++) plain_free_row(kv[side].level[from].row[i]);
            remove_front(&kv[side].level[from], n);
        }
    }
}

void plain_cache_age(struct plain_cache *c, int layer, int n_tok) {
    if (c->layer[layer].evicts) {
        age_both(c, layer, n_tok);
        return;
    }
    for (int side = 0; side < 2; side++) age_side(c, layer, side, n_tok);
}

void plain_cache_encode(struct plain_cache *c, int layer, int n_tok) {
    for (int side = 0; side < 2; side++) {
        const struct plain_kv *kv = &c->layer[layer].kv[side];
        bool limited = false;
        for (int i = 0; i < kv->n_level; i++) limited |= kv->level[i].policy.kind != LK_POLICY_NONE;
        if (!limited) move_side(c, layer, side, n_tok);
    }
}

/* ---- whole prompts ---- */

/* How many rows each level holds after n tokens that arrived at once. */
static void count_prompt(const struct plain_cache *c, int layer, int side, int n, int *rows) {
    const struct plain_model *m = c->set->model;
    struct plain_kv *kv = &c->layer[layer].kv[side];
    int from, n_move, sinks = kv->n_level > 1 && kv->level[0].is_sink ? kv->level[0].keep : 0;
    memset(rows, 0, PLAIN_MAX_LEVEL * sizeof *rows);
    if (sinks > n) sinks = n;
    rows[0] = sinks;
    rows[kv->n_level - 1] += n - sinks;
    while ((n_move = plain_next_move(kv->level, rows, kv->n_level, n, &from)) > 0) {
        struct plain_level *a = &kv->level[from];
        int n_fit = plain_room(a - 1, rows[from - 1], n, n_move);
        rows[from] -= n_move;
        a->skip = rows[from] == 0 ? 0 : (a->skip + n_move) % a->block_rows;
        rows[from - 1] += n_fit;
        kv->first += n_move - n_fit;
    }
    for (int i = 0; plain_is_swa(m, layer) && i < kv->n_level; i++) {
        struct plain_level *level = &kv->level[i];
        int drop = plain_droppable(level, rows[i], level->skip, kv->first, n, m->n_swa);
        rows[i] -= drop;
        level->skip = rows[i] == 0 ? 0 : (level->skip + drop) % level->block_rows;
        kv->first += drop;
        if (rows[i]) break;
    }
}

struct ranked {
    double rank;
    int pos;
};

/* Highest rank first, then the newest. */
static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return y->pos - x->pos;
}

/* kept [n_all] becomes true for the n_keep positions of [from, from + n_all) that stay. */
static void select_rows(struct plain_cache *c, int layer, const struct plain_level *level, int head,
                        int from, int n_all, int n_keep, const double *score, int n, bool *kept) {
    int n_head = c->set->model->n_head_kv;
    struct ranked *order = malloc((size_t)(n_all + 1) * sizeof *order);
    for (int i = 0; i < n_all; i++) {
        int pos = from + i;
        order[i] = (struct ranked){
            rank_of(c, layer, &level->policy, score + (size_t)pos * n_head, pos, head, n), pos};
    }
    qsort(order, (size_t)n_all, sizeof *order, compare_ranked);
    for (int i = 0; i < n_all; i++) kept[order[i].pos - from] = i < n_keep;
    /* The border is between two ranks. If they are nearly equal, the engine may see it elsewhere.
     */
    double border = n_keep > 0 && n_keep < n_all ? order[n_keep].rank : 0;
    int ours = 0, theirs = 0;
    for (int pass = 0; is_scored(&level->policy) && pass < 2; pass++)
        for (int i = 0; i < n_all; i++) {
            bool near = fabs(order[i].rank - border) <= 2 * tie_of(c, border);
            bool held = engine_holds(c, layer, head, order[i].pos), mine = i < n_keep;
            if (!near || held == mine) continue;
            if (pass == 0)
                (mine ? &ours : &theirs)[0]++;
            else if (ours == theirs) {
                kept[order[i].pos - from] = held;
                c->set->n_tie += held;
            }
        }
    free(order);
}

/* The level with the limit: for each head its own positions. */
static void fill_selected(struct plain_cache *c, int layer, int li, int n_keep, int n,
                          const double *x[2], const double *score) {
    const struct plain_model *m = c->set->model;
    struct plain_layer_cache *l = &c->layer[layer];
    int w = width_of(c), d = m->d_head,
        from = l->kv[LK_K].level[0].is_sink && li > 0 ? l->kv[LK_K].level[0].n : 0;
    int n_all = n_keep + l->kv[LK_K].first;
    bool *kept = calloc((size_t)n_all + 1, sizeof *kept);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < n_keep; i++) push(&l->kv[side].level[li], new_row(c, 0, x[side]));
    for (int h = 0; h < m->n_head_kv; h++) {
        select_rows(c, layer, &l->kv[LK_K].level[li], h, from, n_all, n_keep, score, n, kept);
        for (int i = 0, at = 0; i < n_all; i++) {
            int pos = from + i;
            const double *k = x[LK_K] + (size_t)pos * w + h * d,
                         *v = x[LK_V] + (size_t)pos * w + h * d;
            if (!kept[i]) {
                evict(c, layer, h, pos, k, v);
                continue;
            }
            for (int side = 0; side < 2; side++) {
                struct plain_row *row = l->kv[side].level[li].row[at];
                row->pos[h] = pos;
                row->score[h] = score[(size_t)pos * m->n_head_kv + h];
                memcpy(row->x + h * d, side == LK_K ? k : v, (size_t)d * sizeof *k);
            }
            at++;
        }
    }
    for (int side = 0; side < 2; side++) {
        struct plain_level *level = &l->kv[side].level[li];
        plain_store(c, layer, side, level, level->row, level->n);
    }
    free(kept);
}

/* Statistics for the levels that a prompt reaches, from its first rows after the sinks. */
static void calibrate_prompt(struct plain_cache *c, int layer, int side, int n, const double *x,
                             const int *rows) {
    struct plain_kv *kv = &c->layer[layer].kv[side];
    int w = width_of(c), first = kv->n_level > 1 && kv->level[0].is_sink ? kv->level[0].keep : 0,
        n_row = n - first < 512 ? n - first : 512;
    struct plain_row **row = calloc((size_t)n + 1, sizeof *row);
    for (int i = 0; i < n_row; i++) row[i] = new_row(c, first + i, x + (size_t)(first + i) * w);
    for (int i = 0; i < kv->n_level; i++)
        if (rows[i] > 0) plain_calibrate(c, layer, side, &kv->level[i], row, n_row);
    for (int i = 0; i < n_row; i++) plain_free_row(row[i]);
    free(row);
}

/* A level without a limit: rows [from, from + n), packed together with those that have already left
 * their first block. */
static void fill_level(struct plain_cache *c, int layer, int side, int li, int from, int n,
                       const double *x, const double *score) {
    struct plain_level *level = &c->layer[layer].kv[side].level[li];
    int w = width_of(c), n_head = c->set->model->n_head_kv, lead = level->skip;
    struct plain_row **row = malloc((size_t)(lead + n + 1) * sizeof *row);
    for (int i = 0; i < lead + n; i++) {
        int pos = from - lead + i;
        row[i] = new_row(c, pos, x + (size_t)pos * w);
        memcpy(row[i]->score, score + (size_t)pos * n_head, (size_t)n_head * sizeof *score);
    }
    plain_store(c, layer, side, level, row, lead + n);
    for (int i = 0; i < lead; i++) plain_free_row(row[i]);
    for (int i = lead; i < lead + n; i++) push(level, row[i]);
    free(row);
}

void plain_cache_prompt(struct plain_cache *c, int layer, int n, const double *k, const double *v,
                        const double *score) {
    struct plain_layer_cache *l = &c->layer[layer];
    const double *x[2] = {k, v};
    int rows[2][PLAIN_MAX_LEVEL];
    for (int side = 0; side < 2; side++) {
        struct plain_kv *kv = &l->kv[side];
        count_prompt(c, layer, side, n, rows[side]);
        calibrate_prompt(c, layer, side, n, x[side], rows[side]);
        int end = n, oldest = kv->n_level > 1 && kv->level[0].is_sink;
        if (oldest && rows[side][0] > 0)
            fill_level(c, layer, side, 0, 0, rows[side][0], x[side], score);
        for (int i = kv->n_level - 1; i >= oldest; i--) {
            bool selected = l->evicts && kv->level[i].policy.kind != LK_POLICY_NONE;
            end -= rows[side][i];
            if (!selected && rows[side][i] > 0)
                fill_level(c, layer, side, i, end, rows[side][i], x[side], score);
        }
    }
    for (int i = 0; l->evicts && i < l->kv[LK_K].n_level; i++)
        if (l->kv[LK_K].level[i].policy.kind != LK_POLICY_NONE)
            fill_selected(c, layer, i, rows[LK_K][i], n, x, score);
}
