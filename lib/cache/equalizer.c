/* Channel statistics: from rows and queries to sigma. */
#include "cache/equalizer.h"

#include "cache/latent_levels.h"
#include "cache/project.h"

#include <math.h>
#include <string.h>

/* About how many tokens of one call have their queries projected and observed. */
enum { OBSERVED_LATENTS = 32 };

static size_t n_floats(const struct lk_equalizer *equalizer) {
    return (size_t)equalizer->n_part * equalizer->stride;
}

lk_status lk_equalizer_add(struct lk_kv *kv, int i, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_level *level = &kv->level[i];
    struct lk_equalizer *equalizer = &kv->equalizer[level->basis != NULL];
    if (level->d_part <= equalizer->stride) return LK_OK;
    lk_equalizer_free(equalizer, ledger);
    *equalizer = (struct lk_equalizer){.n_part = level->n_part, .stride = level->d_part};
    equalizer->sigma = lk_alloc(ledger, LK_FOR_CACHE, n_floats(equalizer) * sizeof(float));
    if (kv->side == LK_K)
        equalizer->query_power =
            lk_alloc(ledger, LK_FOR_CACHE, n_floats(equalizer) * sizeof(float));
    if (equalizer->sigma && (kv->side == LK_V || equalizer->query_power)) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for the cache's channel statistics");
}

static void free_record(struct lk_equalizer *equalizer, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_SCRATCH, equalizer->recorded,
               equalizer->n_recorded * n_floats(equalizer) * sizeof(float));
    equalizer->recorded = NULL;
    equalizer->n_recorded = 0;
}

void lk_equalizer_free(struct lk_equalizer *equalizer, struct lk_ledger *ledger) {
    free_record(equalizer, ledger);
    lk_release(ledger, LK_FOR_CACHE, equalizer->sigma, n_floats(equalizer) * sizeof(float));
    lk_release(ledger, LK_FOR_CACHE, equalizer->query_power, n_floats(equalizer) * sizeof(float));
    *equalizer = (struct lk_equalizer){0};
}

void lk_equalizer_clear(struct lk_equalizer *equalizer) {
    equalizer->calibrated = false;
    if (equalizer->query_power)
        memset(equalizer->query_power, 0, n_floats(equalizer) * sizeof(float));
}

void lk_equalizer_copy(struct lk_equalizer *to, const struct lk_equalizer *from) {
    if (from->sigma) memcpy(to->sigma, from->sigma, n_floats(from) * sizeof(float));
    if (from->query_power)
        memcpy(to->query_power, from->query_power, n_floats(from) * sizeof(float));
    to->calibrated = from->calibrated;
}

size_t lk_equalizer_array_bytes(const struct lk_equalizer *equalizer) {
    return n_floats(equalizer) * sizeof(float);
}

uint64_t lk_equalizer_bytes(const struct lk_equalizer *equalizer) {
    return (!!equalizer->sigma + !!equalizer->query_power) * lk_equalizer_array_bytes(equalizer);
}

/* ---- queries ---- */

bool lk_equalizer_record(struct lk_equalizer *equalizer, int n_tok, struct lk_ledger *ledger) {
    bool needed = equalizer->query_power && !equalizer->calibrated;
    if (needed && equalizer->n_recorded >= n_tok) return true;
    free_record(equalizer, ledger);
    if (!needed) return true;
    equalizer->recorded =
        lk_alloc(ledger, LK_FOR_SCRATCH, n_tok * n_floats(equalizer) * sizeof(float));
    if (equalizer->recorded) equalizer->n_recorded = n_tok;
    return equalizer->recorded != NULL;
}

/* Record the power after token t of a call of n_tok tokens. */
static void record_power(struct lk_equalizer *equalizer, int t, int n_tok) {
    size_t n = n_floats(equalizer);
    if (equalizer->query_power && n_tok <= equalizer->n_recorded && !equalizer->calibrated)
        memcpy(equalizer->recorded + t * n, equalizer->query_power, n * sizeof(float));
}

void lk_equalizer_go_back(struct lk_equalizer *equalizer, int tok) {
    size_t n = n_floats(equalizer);
    if (tok < equalizer->n_recorded && !equalizer->calibrated)
        memcpy(equalizer->query_power, equalizer->recorded + tok * n, n * sizeof(float));
}

static void observe_latents(struct lk_equalizer *equalizer, const struct lk_level *level,
                            const float *q, int head_kv) {
    float z[LK_MAX_D_HEAD];
    struct lk_basis_head head = lk_level_basis_head(level, head_kv);
    float *sum = equalizer->query_power + (size_t)head.group * equalizer->stride;
    lk_project_query(&head, q, z);
    for (int c = 0; c < head.rank; c++) sum[c] += z[c] * z[c];
}

/* The level of equalized latents with the highest ranks: the newest. All of them have the same
 * basis. There is one. */
static const struct lk_level *widest_latent_level(const struct lk_kv *kv) {
    int i = kv->n_level - 1;
    while (i > 0 && !(kv->level[i].basis && kv->rule[i].codec.sigma)) i--;
    return &kv->level[i];
}

void lk_equalizer_observe(struct lk_kv *kv, const float *q, int n_tok, int n_head) {
    struct lk_equalizer *rows = &kv->equalizer[0], *latents = &kv->equalizer[1];
    int d_head = kv->d_head, group = n_head / kv->n_head, step = n_tok / OBSERVED_LATENTS + 1;
    for (int t = 0; t < n_tok; t++) {
        for (int h = 0; h < n_head; h++, q += d_head) {
            if (rows->query_power && !rows->calibrated)
                for (int c = 0; c < d_head; c++)
                    rows->query_power[h / group * d_head + c] += q[c] * q[c];
            if (latents->query_power && !latents->calibrated && t % step == 0)
                observe_latents(latents, widest_latent_level(kv), q, h / group);
        }
        record_power(rows, t, n_tok);
        record_power(latents, t, n_tok);
    }
}

/* ---- sigma ---- */

/* x[c] = max(x[c], a small part of the largest), x [n]. A channel that has not varied so far may
 * vary later, and must not be scaled up without limit. */
static void clamp_below(float *x, int n) {
    float max = 0;
    for (int c = 0; c < n; c++) max = fmaxf(max, x[c]);
    float min = max > 0 ? max * 1e-6f : 1.0f;
    for (int c = 0; c < n; c++) x[c] = fmaxf(x[c], min);
}

void lk_equalizer_calibrate(struct lk_kv *kv, int to, int part, const struct lk_row_range *range,
                            const struct lk_kernels *kernels, float *scratch, float *x,
                            size_t stride) {
    /* Statistics serve all levels of the same basis. */
    const struct lk_level *widest = kv->level[to].basis ? widest_latent_level(kv) : &kv->level[to];
    struct lk_equalizer *equalizer = &kv->equalizer[widest->basis != NULL];
    int d = lk_level_part_channels(widest, part), stride_part = equalizer->stride;
    int64_t n_tile = range->n / LK_TILE;
    float *sigma = equalizer->sigma + (size_t)part * stride_part,
          *query =
              equalizer->query_power ? equalizer->query_power + (size_t)part * stride_part : NULL;
    memset(sigma, 0, d * sizeof *sigma);
    for (int64_t i = 0; i < n_tile; i++) {
        struct lk_row_range tile = {range->kv, range->level, range->at + i * LK_TILE, LK_TILE};
        lk_rows_read_for(&tile, widest, part, d, kernels, scratch, x, stride);
        for (int c = 0; c < d; c++) {
            float mean = 0, sum = 0;
            for (int t = 0; t < LK_TILE; t++) mean += x[t * stride + c];
            mean /= LK_TILE;
            for (int t = 0; t < LK_TILE; t++)
                sum += (x[t * stride + c] - mean) * (x[t * stride + c] - mean);
            sigma[c] += sum / (LK_TILE * (float)n_tile);
        }
    }
    clamp_below(sigma, d);
    if (query) clamp_below(query, d);
    for (int c = 0; c < d; c++) sigma[c] = powf(query ? sigma[c] / query[c] : sigma[c], 0.25f);
    for (int c = d; c < stride_part; c++) sigma[c] = 1; /* parts of lower rank do not read these */
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].codec.sigma && lk_kv_equalizer(kv, i) == equalizer)
            lk_latent_level_prepare(kv, i, part);
}
