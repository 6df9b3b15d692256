/* A prototype, for one measurement, of policies that score the rows of a prompt by the moments of
 * its queries: LOWKEY_MOMENTS=expected (Expected Attention: mean and covariance of queries before
 * RoPE, rotated to the next 512 positions, times the norm of V) or tri (TriAttention: means, and
 * the norms of channel pairs). `keep N by replay` takes these scores instead of a replay's.
 * docs/papers/kvzip.md has what came of it. */
#include "engine/query_moments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *mom_mean, *mom_cov, *mom_abs; /* [n_head][d], [n_head][d][d], [n_head][d/2] */
static int64_t mom_n;
void lk_query_moments_add(struct lk_prefill *p, const float *q, int n, int n_head, int d) {
    if (!mom_mean) {
        mom_mean = calloc((size_t)n_head * d, 8);
        mom_cov = calloc((size_t)n_head * d * d, 8);
        mom_abs = calloc((size_t)n_head * d, 8);
    }
    if (p->at == 0) {
        memset(mom_mean, 0, (size_t)n_head * d * 8);
        memset(mom_cov, 0, (size_t)n_head * d * d * 8);
        memset(mom_abs, 0, (size_t)n_head * d * 8);
        mom_n = 0;
    }
    double base = p->net->hp.rope[0].base;
    float x[256];
    for (int t = 0; t < n; t++) {
        int64_t pos = (int64_t)p->at + t;
        if (pos < 4) continue;
        mom_n++;
        for (int h = 0; h < n_head; h++) {
            const float *y = q + ((size_t)t * n_head + h) * d;
            for (int j = 0; j < d / 2; j++) {
                double a = (double)pos * pow(base, -2.0 * j / d);
                double c = cos(a), s = sin(a);
                x[j] = (float)(y[j] * c + y[j + d / 2] * s);
                x[j + d / 2] = (float)(-y[j] * s + y[j + d / 2] * c);
                mom_abs[h * d + j] += hypot(x[j], x[j + d / 2]);
            }
            for (int i = 0; i < d; i++) mom_mean[h * d + i] += x[i];
            if (!strcmp(getenv("LOWKEY_MOMENTS"), "expected"))
                for (int i = 0; i < d; i++)
                    for (int j = 0; j <= i; j++)
                        mom_cov[((size_t)h * d + i) * d + j] += (double)x[i] * x[j];
        }
    }
}
void lk_query_moments_score(struct lk_prefill *p) {
    int n_head = p->net->hp.n_head, n_kv = p->job.heads.n_kv, d = p->job.heads.d,
        group = n_head / n_kv;
    int64_t n = (int64_t)p->n_tok;
    double base = p->net->hp.rope[0].base;
    bool expected = !strcmp(getenv("LOWKEY_MOMENTS"), "expected");
    float *k = malloc((size_t)n * d * 4), *v = malloc((size_t)n * d * 4);
    double *log = malloc((size_t)n * 8), *mu = malloc((size_t)d * 8),
           *cov = malloc((size_t)d * d * 8), *tmp = malloc((size_t)d * d * 8),
           *R = malloc((size_t)d * d * 8);
    /* mean rotation over future positions */
    memset(R, 0, (size_t)d * d * 8);
    for (int j = 0; j < d / 2; j++) {
        double c = 0, s = 0, w = pow(base, -2.0 * j / d);
        int m = 0;
        if (expected)
            for (int f = 0; f < 512; f++, m++)
                c += cos((double)(n + f) * w), s += sin((double)(n + f) * w);
        else
            for (int f = 1; f <= 65536; f *= 2, m++)
                c += cos((double)(n + f) * w), s += sin((double)(n + f) * w);
        c /= m, s /= m;
        R[j * d + j] = c, R[j * d + j + d / 2] = -s, R[(j + d / 2) * d + j] = s,
                  R[(j + d / 2) * d + j + d / 2] = c;
    }
    for (int kvh = 0; kvh < n_kv; kvh++) {
        lk_kv_read_positions(&p->exact[LK_K].kv, 0, n, kvh, p->s->model->kernels, k, (size_t)d);
        lk_kv_read_positions(&p->exact[LK_V].kv, 0, n, kvh, p->s->model->kernels, v, (size_t)d);
        float *score = p->attn_scores;
        for (int64_t i = 0; i < n; i++) score[i * n_kv + kvh] = 0;
        for (int g = 0; g < group; g++) {
            int h = kvh * group + g;
            for (int i = 0; i < d; i++) {
                mu[i] = 0;
                for (int j = 0; j < d; j++)
                    mu[i] += R[i * d + j] * mom_mean[h * d + j] / (double)mom_n;
            }
            if (expected) {
                for (int i = 0; i < d; i++)
                    for (int j = 0; j < d; j++) {
                        int a = i > j ? i : j, b = i > j ? j : i;
                        cov[i * d + j] = mom_cov[((size_t)h * d + a) * d + b] / (double)mom_n -
                                         mom_mean[h * d + i] * mom_mean[h * d + j] /
                                             ((double)mom_n * (double)mom_n);
                    }
                for (int i = 0; i < d; i++)
                    for (int j = 0; j < d; j++) {
                        double s = 0;
                        for (int l = 0; l < d; l++) s += R[i * d + l] * cov[l * d + j];
                        tmp[i * d + j] = s;
                    }
                for (int i = 0; i < d; i++)
                    for (int j = 0; j < d; j++) {
                        double s = 0;
                        for (int l = 0; l < d; l++) s += tmp[i * d + l] * R[j * d + l];
                        cov[i * d + j] = s;
                    }
            }
            double max = -1e30, sum = 0;
            for (int64_t r = 0; r < n; r++) {
                double s = 0, quad = 0;
                for (int i = 0; i < d; i++) s += mu[i] * k[r * d + i];
                s /= sqrt(d);
                if (expected) {
                    for (int i = 0; i < d; i++) {
                        double x = 0;
                        for (int j = 0; j < d; j++) x += cov[i * d + j] * k[r * d + j];
                        quad += x * k[r * d + i];
                    }
                    s += quad / (2.0 * d);
                } else {
                    for (int j = 0; j < d / 2; j++) {
                        double eabs = mom_abs[h * d + j] / (double)mom_n,
                               absm = hypot(mom_mean[h * d + j], mom_mean[h * d + j + d / 2]) /
                                      (double)mom_n;
                        s += (eabs - absm) * hypot(k[r * d + j], k[r * d + j + d / 2]) / sqrt(d);
                    }
                }
                log[r] = s;
                if (r >= 4 && s > max) max = s;
            }
            for (int64_t r = 4; r < n; r++) sum += exp(log[r] - max);
            for (int64_t r = 0; r < n; r++) {
                double vn = 0;
                for (int i = 0; i < d; i++) vn += (double)v[r * d + i] * v[r * d + i];
                double w = r < 4 ? 1 : exp(log[r] - max) / sum * (expected ? sqrt(vn) : 1);
                if (r >= 4) w = fmin(w / (1 + w), 1);
                score[r * n_kv + kvh] += (float)(w / group);
            }
        }
    }
    free(k), free(v), free(log), free(mu), free(cov), free(tmp), free(R);
}
