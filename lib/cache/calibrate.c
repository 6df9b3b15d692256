#include "cache/calibrate.h"

#include "cache/k_up.h"
#include "cache/project.h"

#include <math.h>
#include <string.h>

enum {
    OBSERVE_LATENTS = 32
}; /* tokens of one call, about, whose queries are projected to be observed */

static size_t floats(const struct lk_equalizer *equalizer) {
    return (size_t)equalizer->n_part * equalizer->stride;
}

lk_status lk_equalizer_add(struct lk_kv *kv, int i, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_level *level = &kv->level[i];
    struct lk_equalizer *equalizer = lk_equalizer_of(kv, i);
    if (level->d_part <= equalizer->stride) return LK_OK;
    lk_equalizer_free(equalizer, ledger);
    *equalizer = (struct lk_equalizer){.n_part = level->n_part, .stride = level->d_part};
    equalizer->sigma = lk_alloc(ledger, LK_FOR_CACHE, floats(equalizer) * sizeof(float));
    if (kv->side == LK_K)
        equalizer->query = lk_alloc(ledger, LK_FOR_CACHE, floats(equalizer) * sizeof(float));
    if (equalizer->sigma && (kv->side == LK_V || equalizer->query)) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache's channel statistics");
}

void lk_equalizer_free(struct lk_equalizer *equalizer, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_CACHE, equalizer->sigma, floats(equalizer) * sizeof(float));
    lk_release(ledger, LK_FOR_CACHE, equalizer->query, floats(equalizer) * sizeof(float));
    *equalizer = (struct lk_equalizer){0};
}

void lk_equalizer_clear(struct lk_equalizer *equalizer) {
    equalizer->calibrated = false;
    if (equalizer->query) memset(equalizer->query, 0, floats(equalizer) * sizeof(float));
}

void lk_equalizer_copy(struct lk_equalizer *to, const struct lk_equalizer *from) {
    if (from->sigma) memcpy(to->sigma, from->sigma, floats(from) * sizeof(float));
    if (from->query) memcpy(to->query, from->query, floats(from) * sizeof(float));
    to->calibrated = from->calibrated;
}

uint64_t lk_equalizer_bytes(const struct lk_equalizer *equalizer) {
    return (!!equalizer->sigma + !!equalizer->query) * floats(equalizer) * sizeof(float);
}

void lk_read_rows(const struct lk_kv *kv, int level, int64_t at, int64_t n, int part,
                  const struct lk_kernels *kernels, float *x, size_t stride) {
    const struct lk_level_rule *rule = &kv->rule[level];
    const struct lk_level *of = &kv->level[level];
    for (int64_t done = 0; done < n;) {
        int row;
        int64_t here;
        const char *block = lk_cache_locate(kv, level, at + done, &row, &here);
        int take = (int)(here < n - done ? here : n - done);
        kernels->decode(&rule->codec, kv->side, of->d_part, rule->block_rows,
                        lk_sigma_of(kv, level, part), block + part * of->head_bytes, row, take,
                        x + done * stride, stride);
        done += take;
    }
}

/* ---- queries ---- */

static void observe_latents(struct lk_equalizer *equalizer, const struct lk_level *level,
                            const float *q, int head_kv, int d_head) {
    float z[LK_MAX_D_HEAD];
    int part = head_kv / level->n_head;
    float *sum = equalizer->query + (size_t)part * equalizer->stride;
    lk_project_query(level->basis, part, head_kv % level->n_head, d_head, equalizer->stride, q, z);
    for (int c = 0; c < equalizer->stride; c++) sum[c] += z[c] * z[c];
}

/* Some level of latents that are equalised: all of these have the same basis, which sinks need not have. */
static const struct lk_level *latent_level(const struct lk_kv *kv) {
    for (int i = 0; i < kv->n_level; i++)
        if (kv->level[i].basis && kv->rule[i].codec.sigma) return &kv->level[i];
    return NULL;
}

void lk_equalizer_observe(struct lk_kv *kv, const float *q, int n_tok, int n_head, int n_head_kv,
                          int d_head) {
    struct lk_equalizer *rows = &kv->equalizer[0], *latents = &kv->equalizer[1];
    int group = n_head / n_head_kv, apart = n_tok / OBSERVE_LATENTS + 1;
    for (int t = 0; t < n_tok; t++)
        for (int h = 0; h < n_head; h++, q += d_head) {
            if (rows->query && !rows->calibrated)
                for (int c = 0; c < d_head; c++) rows->query[h / group * d_head + c] += q[c] * q[c];
            if (latents->query && !latents->calibrated && t % apart == 0)
                observe_latents(latents, latent_level(kv), q, h / group, d_head);
        }
}

/* ---- sigma ---- */

/* out[c] = max(x[c], a small part of the largest): a channel that stood still so far may yet move, and
 * must not be blown up without limit. x, out: [n]; may be the same. */
static void bound_below(const float *x, float *out, int n) {
    float most = 0;
    for (int c = 0; c < n; c++) most = fmaxf(most, x[c]);
    float least = most > 0 ? most * 1e-6f : 1.0f;
    for (int c = 0; c < n; c++) out[c] = fmaxf(x[c], least);
}

void lk_calibrate(struct lk_kv *kv, int to, int part, int d_head, const struct lk_kernels *kernels,
                  const struct lk_kv *from, int level, int64_t at, int64_t n_tile, float *room,
                  float *rows, size_t stride) {
    struct lk_equalizer *equalizer = lk_equalizer_of(kv, to);
    struct lk_level widest = kv->level[to]; /* statistics serve all levels of the same basis */
    int d = widest.d_part = equalizer->stride;
    float *sigma = equalizer->sigma + (size_t)part * d,
          *query = equalizer->query ? equalizer->query + (size_t)part * d : NULL;
    memset(sigma, 0, d * sizeof *sigma);
    for (int64_t tile = 0; tile < n_tile; tile++) {
        lk_read_part(from, level, at + tile * LK_TILE, LK_TILE, &widest, part, d_head, kernels,
                     room, rows, stride);
        for (int c = 0; c < d; c++) {
            float mean = 0, sum = 0;
            for (int t = 0; t < LK_TILE; t++) mean += rows[t * stride + c];
            mean /= LK_TILE;
            for (int t = 0; t < LK_TILE; t++)
                sum += (rows[t * stride + c] - mean) * (rows[t * stride + c] - mean);
            sigma[c] += sum / (LK_TILE * (float)n_tile);
        }
    }
    bound_below(sigma, sigma, d);
    if (query) bound_below(query, query, d);
    for (int c = 0; c < d; c++) sigma[c] = powf(query ? sigma[c] / query[c] : sigma[c], 0.25f);
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].codec.sigma && lk_equalizer_of(kv, i) == equalizer)
            lk_k_up_prepare(kv, i, part, d_head);
}
