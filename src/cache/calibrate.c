#include "cache/calibrate.h"

#include "cache/project.h"
#include "cache/unfold.h"

#include <math.h>
#include <string.h>

enum { OBSERVE_LATENTS = 32 }; /* tokens of one call, about, whose queries are projected to be observed */

static size_t floats(const struct lk_equaliser *equaliser) { return (size_t)equaliser->n_part * equaliser->stride; }

lk_status lk_equaliser_add(struct lk_stream *stream, int i, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_level *level = &stream->level[i];
    struct lk_equaliser *equaliser = lk_equaliser_of(stream, i);
    if (level->d_part <= equaliser->stride) return LK_OK;
    lk_equaliser_free(equaliser, ledger);
    *equaliser = (struct lk_equaliser){.n_part = level->n_part, .stride = level->d_part};
    equaliser->sigma = lk_alloc(ledger, LK_FOR_CACHE, floats(equaliser) * sizeof(float));
    if (stream->side == LK_K) equaliser->query = lk_alloc(ledger, LK_FOR_CACHE, floats(equaliser) * sizeof(float));
    if (equaliser->sigma && (stream->side == LK_V || equaliser->query)) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache's channel statistics");
}

void lk_equaliser_free(struct lk_equaliser *equaliser, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_CACHE, equaliser->sigma, floats(equaliser) * sizeof(float));
    lk_release(ledger, LK_FOR_CACHE, equaliser->query, floats(equaliser) * sizeof(float));
    *equaliser = (struct lk_equaliser){0};
}

void lk_equaliser_clear(struct lk_equaliser *equaliser) {
    equaliser->calibrated = false;
    if (equaliser->query) memset(equaliser->query, 0, floats(equaliser) * sizeof(float));
}

void lk_equaliser_copy(struct lk_equaliser *to, const struct lk_equaliser *from) {
    if (from->sigma) memcpy(to->sigma, from->sigma, floats(from) * sizeof(float));
    if (from->query) memcpy(to->query, from->query, floats(from) * sizeof(float));
    to->calibrated = from->calibrated;
}

uint64_t lk_equaliser_bytes(const struct lk_equaliser *equaliser) {
    return (!!equaliser->sigma + !!equaliser->query) * floats(equaliser) * sizeof(float);
}

void lk_read_rows(const struct lk_stream *stream, int level, int64_t at, int64_t n, int part,
                  const struct lk_kern *kern, float *x, size_t stride) {
    const struct lk_level_rule *rule = &stream->rule[level];
    const struct lk_level *of = &stream->level[level];
    for (int64_t done = 0; done < n;) {
        int row;
        int64_t here;
        const char *block = lk_cache_locate(stream, level, at + done, &row, &here);
        int take = (int)(here < n - done ? here : n - done);
        kern->decode(&rule->codec, stream->side, of->d_part, rule->block_rows, lk_sigma_of(stream, level, part),
                     block + part * of->head_bytes, row, take, x + done * stride, stride);
        done += take;
    }
}

/* ---- queries ------------------------------------------------------------------------------------ */

static void observe_latents(struct lk_equaliser *equaliser, const struct lk_level *level, const float *q, int head_kv, int d_head) {
    float z[LK_MAX_D_HEAD];
    int part = head_kv / level->n_head;
    float *sum = equaliser->query + (size_t)part * equaliser->stride;
    lk_project_query(level->basis, part, head_kv % level->n_head, d_head, equaliser->stride, q, z);
    for (int c = 0; c < equaliser->stride; c++) sum[c] += z[c] * z[c];
}

/* Some level of latents that are equalised: all of these have the same basis, which sinks need not have. */
static const struct lk_level *latent_level(const struct lk_stream *stream) {
    for (int i = 0; i < stream->n_level; i++)
        if (stream->level[i].basis && stream->rule[i].codec.sigma) return &stream->level[i];
    return NULL;
}

void lk_equaliser_observe(struct lk_stream *stream, const float *q, int n_tok, int n_head, int n_head_kv, int d_head) {
    struct lk_equaliser *rows = &stream->equaliser[0], *latents = &stream->equaliser[1];
    int group = n_head / n_head_kv, apart = n_tok / OBSERVE_LATENTS + 1;
    for (int t = 0; t < n_tok; t++)
        for (int h = 0; h < n_head; h++, q += d_head) {
            if (rows->query && !rows->calibrated)
                for (int c = 0; c < d_head; c++) rows->query[h / group * d_head + c] += q[c] * q[c];
            if (latents->query && !latents->calibrated && t % apart == 0)
                observe_latents(latents, latent_level(stream), q, h / group, d_head);
        }
}

/* ---- sigma -------------------------------------------------------------------------------------- */

/* out[c] = max(x[c], a small part of the largest): a channel that stood still so far may yet move, and
 * must not be blown up without limit. x, out: [n]; may be the same. */
static void bound_below(const float *x, float *out, int n) {
    float most = 0;
    for (int c = 0; c < n; c++) most = fmaxf(most, x[c]);
    float least = most > 0 ? most * 1e-6f : 1.0f;
    for (int c = 0; c < n; c++) out[c] = fmaxf(x[c], least);
}

void lk_calibrate(struct lk_stream *stream, int to, int part, int d_head, const struct lk_kern *kern,
                  const struct lk_stream *from, int level, int64_t at, int64_t n_tile, float *room, float *rows, size_t stride) {
    struct lk_equaliser *equaliser = lk_equaliser_of(stream, to);
    struct lk_level widest = stream->level[to]; /* statistics serve all levels of the same basis */
    int d = widest.d_part = equaliser->stride;
    float *sigma = equaliser->sigma + (size_t)part * d, *query = equaliser->query ? equaliser->query + (size_t)part * d : NULL;
    memset(sigma, 0, d * sizeof *sigma);
    for (int64_t tile = 0; tile < n_tile; tile++) {
        lk_read_part(from, level, at + tile * LK_TILE, LK_TILE, &widest, part, d_head, kern, room, rows, stride);
        for (int c = 0; c < d; c++) {
            float mean = 0, sum = 0;
            for (int t = 0; t < LK_TILE; t++) mean += rows[t * stride + c];
            mean /= LK_TILE;
            for (int t = 0; t < LK_TILE; t++) sum += (rows[t * stride + c] - mean) * (rows[t * stride + c] - mean);
            sigma[c] += sum / (LK_TILE * (float)n_tile);
        }
    }
    bound_below(sigma, sigma, d);
    if (query) bound_below(query, query, d);
    for (int c = 0; c < d; c++) sigma[c] = powf(query ? sigma[c] / query[c] : sigma[c], 0.25f);
    for (int i = 0; i < stream->n_level; i++)
        if (stream->rule[i].codec.sigma && lk_equaliser_of(stream, i) == equaliser) lk_unfold_prepare(stream, i, part, d_head);
}
