/* LESS: the state against Eq. 3, the training graph against the state, and gradients against finite
 * differences. */
#include "codec/f16.h"
#include "support_model.h"
#include "test.h"
#include "training/less_net.h"

static float *random_floats(struct random *r, size_t n, float scale) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = scale * random_gauss(r);
    return x;
}

/* ---- the state ---- */

static void random_maps(struct random *r, const struct lk_less_shape *s, float **block,
                        struct lk_less_maps *maps) {
    size_t bytes = lk_less_map_bytes(s);
    *block = random_floats(r, bytes / sizeof(float) + 1, 0.3f);
    lk_less_maps_at(s, *block, maps);
    assert_ptr_equal(maps->psi_w2 + (size_t)s->n_psi * s->n_hidden * s->n_feature,
                     (char *)*block + bytes);
    for (uint16_t *w = (uint16_t *)maps->phi_w1; (char *)w < (char *)*block + bytes; w++)
        *w = lk_f32_to_f16(0.3f * random_gauss(r));
}

static double gelu(double x) {
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* gelu(gelu(x W1) W2) by definition. */
static void reference_layers(const struct lk_less_shape *s, const uint16_t *w1, const uint16_t *w2,
                             const float *x, double *out) {
    for (int r = 0; r < s->n_feature; r++) out[r] = 0;
    for (int j = 0; j < s->n_hidden; j++) {
        double h = 0;
        for (int c = 0; c < s->d_head; c++)
            h += (double)x[c] * lk_f16_to_f32(w1[c * s->n_hidden + j]);
        for (int r = 0; r < s->n_feature; r++)
            out[r] += gelu(h) * lk_f16_to_f32(w2[j * s->n_feature + r]);
    }
    for (int r = 0; r < s->n_feature; r++) out[r] = gelu(out[r]);
}

static void reference_psi(const struct lk_less_shape *s, const struct lk_less_maps *maps, int which,
                          const float *k, double *out) {
    int n = s->n_feature;
    double u[LK_LESS_MAX_FEATURE];
    reference_layers(s, maps->psi_w1 + (size_t)which * s->d_head * s->n_hidden,
                     maps->psi_w2 + (size_t)which * s->n_hidden * n, k, u);
    for (int r = 0; r < n; r++) u[r] *= fabs(maps->psi_s1[which * n + r]);
    for (int r = 0; r < n; r++) {
        out[r] = 0;
        for (int i = 0; i < n; i++) out[r] += u[i] * maps->psi_w3[(which * n + i) * n + r];
        out[r] = fabs(u[r] + out[r] * maps->psi_s2[which * n + r]);
    }
}

/* Eq. 3 for one query over n rows, the first n_gone of which are evicted. */
static void reference_attention(const struct lk_less_shape *s, const struct lk_less_maps *maps,
                                int head, float scale, const float *q, const float *k,
                                const float *v, int n, int n_gone, double *out) {
    int d = s->d_head, kv = head * s->n_head_kv / s->n_head, phi_of = head * s->n_phi / s->n_head;
    double phi[LK_LESS_MAX_FEATURE], psi[LK_LESS_MAX_FEATURE], sum = 0, max = -INFINITY;
    reference_layers(s, maps->phi_w1 + (size_t)phi_of * d * s->n_hidden,
                     maps->phi_w2 + (size_t)phi_of * s->n_hidden * s->n_feature, q, phi);
    double *log_weight = malloc((size_t)n * sizeof *log_weight);
    for (int i = 0; i < n; i++) {
        double dot = 0;
        reference_psi(s, maps, kv * s->n_psi / s->n_head_kv, k + (size_t)i * d, psi);
        if (i < n_gone)
            for (int r = 0; r < s->n_feature; r++) dot += fabs(phi[r]) * psi[r];
        else
            for (int c = 0; c < d; c++) dot += (double)q[c] * k[(size_t)i * d + c];
        log_weight[i] = i < n_gone ? log(dot) + maps->phi_bias[head] : dot * scale;
        max = fmax(max, log_weight[i]);
    }
    for (int c = 0; c < d; c++) out[c] = 0;
    for (int i = 0; i < n; i++) {
        double w = exp(log_weight[i] - max);
        sum += w;
        for (int c = 0; c < d; c++) out[c] += w * v[(size_t)i * d + c];
    }
    for (int c = 0; c < d; c++) out[c] /= sum;
    free(log_weight);
}

static void check_state(struct random *r, struct lk_less_shape s, int n, int n_gone, float bias,
                        float size) {
    struct lk_less_maps maps;
    float *block, scale = 1 / sqrtf((float)s.d_head);
    random_maps(r, &s, &block, &maps);
    for (int h = 0; h < s.n_head; h++) block[maps.phi_bias - block + h] = bias + random_gauss(r);
    int d = s.d_head, group = s.n_head / s.n_head_kv;
    float *work = malloc((size_t)s.n_hidden * sizeof *work),
          *mean = malloc((size_t)d * sizeof *mean), *part = malloc((size_t)d * sizeof *part);
    double *expected = malloc((size_t)d * sizeof *expected);
    float feature[LK_LESS_MAX_FEATURE];
    for (int head = 0; head < s.n_head_kv; head++) {
        float *k = random_floats(r, (size_t)n * d, 1), *v = random_floats(r, (size_t)n * d, 1),
              *state = calloc(lk_less_state_floats(&s), sizeof *state);
        for (int i = 0; i < n_gone; i++) {
            lk_less_psi(&s, &maps, head, k + (size_t)i * d, feature, work);
            lk_less_absorb(&s, state, feature, v + (size_t)i * d);
        }
        for (int h = head * group; h < (head + 1) * group; h++) {
            float *q = random_floats(r, (size_t)d, size), log_sum = -INFINITY, state_sum;
            memset(mean, 0, (size_t)d * sizeof *mean);
            for (int i = n_gone; i < n; i++) { /* the remaining rows, joined one by one */
                float dot = 0;
                for (int c = 0; c < d; c++) dot += q[c] * k[(size_t)i * d + c];
                lk_less_mix(d, mean, &log_sum, v + (size_t)i * d, dot * scale);
            }
            lk_less_phi(&s, &maps, h, q, feature, work);
            lk_less_read(&s, state, feature, maps.phi_bias[h], part, &state_sum);
            lk_less_mix(d, mean, &log_sum, part, state_sum);
            reference_attention(&s, &maps, h, scale, q, k, v, n, n_gone, expected);
            double error = 0, power = 0;
            for (int c = 0; c < d; c++)
                error += (mean[c] - expected[c]) * (mean[c] - expected[c]),
                    power += expected[c] * expected[c];
            assert_true(error <= 1e-9 * power);
            free(q);
        }
        free(k), free(v), free(state);
    }
    free(block), free(work), free(mean), free(part), free(expected);
}

static void test_state(void **unused) {
    struct random r = {1};
    check_state(&r, (struct lk_less_shape){1, 1, 8, 16, 8, 1, 1}, 20, 10, 0, 1);
    check_state(&r, (struct lk_less_shape){6, 2, 24, 33, 8, 6, 2}, 50, 49, 0, 1);
    check_state(&r, (struct lk_less_shape){6, 2, 24, 33, 3, 2, 2}, 50, 20, 0, 1);
    check_state(&r, (struct lk_less_shape){6, 2, 64, 64, 8, 1, 1}, 50, 20, 0, 1);
    check_state(&r, (struct lk_less_shape){4, 4, 80, 7, 64, 4, 1}, 9, 0, 0, 1);
    check_state(&r, (struct lk_less_shape){4, 4, 16, 7, 8, 4, 4}, 9, 9, 0,
                1); /* all rows are evicted */
    check_state(&r, (struct lk_less_shape){2, 1, 16, 8, 8, 2, 1}, 30, 15, 120,
                1); /* sums beyond e^88 */
    check_state(&r, (struct lk_less_shape){2, 1, 16, 8, 8, 2, 1}, 30, 15, -120, 1);
    check_state(&r, (struct lk_less_shape){2, 1, 16, 8, 8, 2, 1}, 30, 15, 0,
                100); /* scores beyond 88 */
}

static void test_empty_state(void **unused) {
    struct lk_less_shape s = {1, 1, 4, 8, 2, 1, 1};
    float state[10] = {0}, phi[2] = {1, 2}, out[4], log_sum, mean[4] = {1, 2, 3, 4}, before = 5;
    lk_less_read(&s, state, phi, 0, out, &log_sum);
    assert_true(log_sum == -INFINITY);
    lk_less_mix(4, mean, &before, out, log_sum);
    assert_true(before == 5 && mean[0] == 1 && mean[3] == 4);
    assert_int_equal(lk_less_state_bytes(&s), 40);
    assert_int_equal(lk_less_map_bytes(&s),
                     2 * (4 * 8 + 8 * 2 + 4 * 8 + 8 * 2) + 4 * (1 + 2 * 2 + 2 + 2));
}

/* ---- policies ---- */

enum { N_TOK = 60, D = 8, GROUP = 2, HEADS = 2, ROWS = 12, LATER = 25 };

/* What a simulation works with. */
struct simulated {
    struct lk_less_layer_rows rows;
    struct lk_less_scratch scratch;
    struct lk_less_simulated out;
    float score[HEADS * N_TOK], rank[N_TOK], sparse[HEADS * GROUP * N_TOK * D],
        log_sum[HEADS * GROUP * N_TOK], prompt_score[N_TOK * HEADS];
    int32_t held[HEADS * N_TOK], evicted_at[HEADS * N_TOK];
    struct lk_scored_row order[N_TOK];
};

static void simulate(struct simulated *s, const struct lk_less_policy *policy, const float *q,
                     const float *k, const float *v, int stride) {
    s->rows = (struct lk_less_layer_rows){.n_tok = N_TOK,
                                          .n_head_kv = HEADS,
                                          .group = GROUP,
                                          .d_head = D,
                                          .scale = 0.35f,
                                          .q = q,
                                          .k = k,
                                          .v = v,
                                          .prompt_score = s->prompt_score};
    s->scratch = (struct lk_less_scratch){s->score, s->held, s->rank, s->order};
    s->out = (struct lk_less_simulated){s->evicted_at, s->sparse, s->log_sum, stride};
    memset(s->sparse, 0, sizeof s->sparse);
    lk_less_simulate(policy, &s->rows, &s->scratch, &s->out);
}

/* Attention of query head h at position pos over the rows that its KV head has not evicted. */
static void check_attention(const struct simulated *s, int h, int pos, bool values) {
    const struct lk_less_layer_rows *r = &s->rows;
    const int32_t *evicted_at = s->evicted_at + h / GROUP * N_TOK;
    size_t at = (size_t)h * N_TOK + (size_t)pos;
    double sum = 0, out[D] = {0};
    for (int row = 0; row <= pos; row++) {
        const float *key = r->k + (h / GROUP * N_TOK + row) * D,
                    *value = r->v + (h / GROUP * N_TOK + row) * D;
        double dot = 0;
        for (int c = 0; c < D; c++) dot += (double)r->q[at * D + c] * key[c];
        if (evicted_at[row] <= pos) continue;
        sum += exp(dot * r->scale);
        for (int c = 0; c < D; c++) out[c] += exp(dot * r->scale) * value[c];
    }
    assert_float_equal(s->log_sum[at], log(sum), 1e-4);
    for (int c = 0; c < D; c++)
        assert_float_equal(s->sparse[at * D + c], values ? out[c] / sum : 0, 1e-4);
}

/* Of a prompt, the rows with the highest scores stay, in addition to the sinks and the window. */
static void check_prompt(const struct simulated *s, const struct lk_less_policy *policy) {
    bool joint = lk_policy_is_per_layer(&policy->rule);
    for (int head = 0; head < HEADS; head++)
        for (int a = policy->sink; a < policy->prompt - policy->window; a++)
            for (int b = policy->sink; b < policy->prompt - policy->window; b++) {
                double score[2] = {0};
                for (int h = joint ? 0 : head; h <= (joint ? HEADS - 1 : head); h++) {
                    score[0] += s->prompt_score[a * HEADS + h];
                    score[1] += s->prompt_score[b * HEADS + h];
                }
                if (s->evicted_at[head * N_TOK + a] == policy->prompt &&
                    s->evicted_at[head * N_TOK + b] > policy->prompt && policy->keep)
                    assert_true(score[0] <= score[1]);
            }
}

static void test_policies(void **unused) {
    struct random r = {3};
    float *q = random_floats(&r, HEADS * GROUP * N_TOK * D, 2),
          *k = random_floats(&r, HEADS * N_TOK * D, 1),
          *v = random_floats(&r, HEADS * N_TOK * D, 1);
    static struct simulated s;
    struct lk_less_policy policy;
    const char *names[] = {"lambda", "h2o", "tova"};
    for (int i = 0; i < N_TOK * HEADS; i++) s.prompt_score[i] = fabsf(random_gauss(&r));
    for (int p = 0; p < 9; p++) {
        assert_int_equal(lk_less_policy_named(&policy, names[p / 3], ROWS, NULL), LK_OK);
        policy.prompt = p % 3 == 0 ? 0 : p % 3 == 1 ? LATER : ROWS / 2;
        int stride = p % 2 ? 1 : 3, first = lk_less_policy_first(&policy);
        assert_int_equal(first, p % 3 == 1 ? LATER : ROWS + 1);
        simulate(&s, &policy, q, k, v, stride);
        for (int pos = policy.prompt; pos < N_TOK; pos++)
            for (int head = 0; head < HEADS; head++) {
                const int32_t *evicted_at = s.evicted_at + head * N_TOK;
                int n = 0; /* `budget` rows are held, including the newest */
                for (int row = 0; row < pos; row++) n += evicted_at[row] > pos;
                assert_int_equal(n, pos < ROWS ? pos : ROWS);
                if (pos > 0) assert_true(evicted_at[pos - 1] > pos);
                for (int row = 0; p < 3 && row < pos; row++)
                    assert_int_equal(evicted_at[row] > pos, row < 4 || row >= pos - (ROWS - 4));
                for (int row = 0; p >= 6 && row < pos; row++) /* all heads choose together */
                    assert_int_equal(evicted_at[row], s.evicted_at[row]);
                for (int h = head * GROUP; h < (head + 1) * GROUP; h++)
                    check_attention(&s, h, pos, pos >= first && (pos - first) % stride == 0);
            }
        if (p % 3 == 1) check_prompt(&s, &policy);
    }
    lk_err err;
    assert_int_equal(lk_less_policy_named(&policy, "lambda", 4, &err), LK_E_ARG);
    assert_int_equal(lk_less_policy_named(&policy, "oracle", 40, &err), LK_E_ARG);
    free(q), free(k), free(v);
}

/* ---- the graph ---- */

struct example {
    struct lk_less_example ex;
    uint16_t *q, *sparse, *residual, *k, *v;
    float *log_sum, *wo;
    int32_t *evicted_at;
};

static uint16_t *random_f16(struct random *r, size_t n, float scale) {
    uint16_t *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = lk_f32_to_f16(scale * random_gauss(r));
    return x;
}

enum { STRIDE = 2 };

/* n_first of the rows are evicted before query 0, the others one after the other. */
static struct example make_example(struct random *r, const struct lk_less_size *size, int n_query,
                                   int n_gone, int n_first) {
    const struct lk_less_shape *s = &size->shape;
    size_t nq = (size_t)s->n_head * n_query, nk = (size_t)s->n_head_kv * n_gone,
           d = (size_t)s->d_head;
    struct example m = {.q = random_f16(r, nq * d, 1),
                        .sparse = random_f16(r, nq * d, 1),
                        .residual = random_f16(r, nq * d, 0.5f),
                        .k = random_f16(r, nk * d, 1),
                        .v = random_f16(r, nk * d, 1),
                        .log_sum = random_floats(r, nq, 1),
                        .evicted_at = malloc(nk * sizeof *m.evicted_at),
                        .wo = random_floats(r, (size_t)size->n_embd * s->n_head * d, 0.2f)};
    for (size_t i = 0; i < nk; i++) {
        int row = (int)(i % (size_t)n_gone) - n_first;
        m.evicted_at[i] = row < 0 ? 0 : row * (n_query * STRIDE) / (n_gone - n_first);
    }
    m.ex = (struct lk_less_example){n_query,    n_gone, STRIDE, m.q,       m.sparse,
                                    m.residual, m.k,    m.v,    m.log_sum, m.evicted_at};
    return m;
}

static void free_example(struct example *m) {
    free(m->q), free(m->sparse), free(m->residual), free(m->k), free(m->v), free(m->log_sum),
        free(m->evicted_at), free(m->wo);
}

/* The loss computed with absorb/less.h: states built as in decoding, joined to the sparse
 * attention. */
static struct lk_less_loss reference_loss(const struct lk_less_net *net, const struct example *m,
                                          const int32_t *query, const float *weights) {
    const struct lk_less_size *z = &net->size;
    const struct lk_less_shape *s = &z->shape;
    int d = s->d_head, group = s->n_head / s->n_head_kv, all = s->n_head * d;
    struct lk_less_maps maps;
    void *block = malloc(lk_less_map_bytes(s));
    float *work = malloc((size_t)s->n_hidden * sizeof *work), feature[LK_LESS_MAX_FEATURE];
    float *state = malloc(lk_less_state_floats(s) * sizeof *state),
          *error = malloc((size_t)all * sizeof *error),
          *residual = malloc((size_t)all * sizeof *residual);
    float x[64], part[64];
    lk_less_net_export(net, net->weight, block, &maps);
    struct lk_less_loss expected = {0};
    for (int i = 0; i < z->n_query; i++) {
        if (query[i] < 0) continue;
        for (int head = 0; head < s->n_head; head++) {
            int kv = head / group;
            size_t row = (size_t)head * m->ex.n_query + query[i];
            memset(state, 0, lk_less_state_floats(s) * sizeof *state);
            for (int j = 0; j < m->ex.n_evicted; j++) {
                size_t at = (size_t)kv * m->ex.n_evicted + j;
                if (m->evicted_at[at] > query[i] * STRIDE) continue;
                for (int c = 0; c < d; c++) x[c] = lk_f16_to_f32(m->k[at * d + c]);
                lk_less_psi(s, &maps, kv, x, feature, work);
                for (int c = 0; c < d; c++) x[c] = lk_f16_to_f32(m->v[at * d + c]);
                lk_less_absorb(s, state, feature, x);
            }
            float log_sum = m->log_sum[row], state_sum;
            for (int c = 0; c < d; c++) x[c] = lk_f16_to_f32(m->q[row * d + c]);
            lk_less_phi(s, &maps, head, x, feature, work);
            lk_less_read(s, state, feature, maps.phi_bias[head], part, &state_sum);
            for (int c = 0; c < d; c++) x[c] = lk_f16_to_f32(m->sparse[row * d + c]);
            lk_less_mix(d, x, &log_sum, part, state_sum);
            for (int c = 0; c < d; c++) {
                residual[head * d + c] = lk_f16_to_f32(m->residual[row * d + c]);
                error[head * d + c] =
                    x[c] - lk_f16_to_f32(m->sparse[row * d + c]) + residual[head * d + c];
            }
        }
        double e = 0, b = 0;
        for (int o = 0; o < z->n_embd; o++) {
            double x_e = 0, x_b = 0;
            for (int c = 0; c < all; c++)
                x_e += (double)m->wo[(size_t)o * all + c] * error[c],
                    x_b += (double)m->wo[(size_t)o * all + c] * residual[c];
            e += x_e * x_e;
            b += x_b * x_b;
        }
        double weight = weights[i] / (net->norm * z->floor + b * (1 - z->floor));
        expected.loss += (float)(e * weight / z->n_query);
        expected.base += (float)(b * weight / z->n_query);
        expected.power += (float)(b / z->n_query);
    }
    free(block), free(work), free(state), free(error), free(residual);
    return expected;
}

static double net_loss(struct lk_less_net *net) {
    struct lk_less_loss loss;
    assert_int_equal(lk_less_net_eval(net, &loss, NULL), LK_OK);
    return loss.loss;
}

/* n_gone rows are evicted before the last of 30 queries, n_first of them before the first. A step
 * has 13 places: queries, or the first rows. */
static void check_net(lk_model *model, struct lk_less_shape shape, int n_gone, int n_first,
                      float floor, uint64_t seed) {
    struct random r = {seed};
    struct lk_less_size size = {
        .shape = shape, .n_embd = 40, .n_query = 13, .n_between = n_gone / 10 + 1, .floor = floor};
    struct example m = make_example(&r, &size, 30, n_gone, n_first);
    struct lk_less_net *net;
    struct lk_ledger ledger = {0};
    lk_err err = {0};
    if (lk_less_net_new(&net, &size, 7, m.wo, model, &ledger, &err) != LK_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < net->n_weight; i++)
        net->weight[i] = lk_f16_to_f32(
            lk_f32_to_f16(net->weight[i] + 0.3f * random_gauss(&r))); /* s1 and s2 are not small */
    for (int h = 0; h < shape.n_head; h++) net->level[h] = 0.5f * random_gauss(&r);
    int32_t query[13];
    float of_query[13];
    for (int i = 0; i < 13; i++) of_query[i] = 0.5f + (float)random_int(&r, 0, 30) / 10;
    int n_rows_only = (n_first + size.n_between - 1) / size.n_between;
    for (int i = 0; i < 13; i++)
        query[i] = i < n_rows_only ? -1 : (i - n_rows_only) * 30 / (13 - n_rows_only);
    net->norm = 40;
    lk_less_net_set_input(net, &m.ex, query, of_query);
    struct lk_less_loss found, expected = reference_loss(net, &m, query, of_query);
    assert_int_equal(lk_less_net_eval(net, &found, NULL), LK_OK);
    assert_float_equal(found.loss / expected.loss, 1, 1e-4);
    assert_float_equal(found.base / expected.base, 1, 1e-4);
    assert_float_equal(found.power / expected.power, 1, 1e-4);
    float loss = found.loss, learned;

    /* A step with learning rate 0 leaves the gradient in Adam's first moment. */
    float *weight = malloc(net->n_weight * sizeof *weight);
    memcpy(weight, net->weight, net->n_weight * sizeof *weight);
    assert_int_equal(lk_less_net_add_gradient(net, 3, &learned, NULL), LK_OK);
    lk_less_net_step(net, 0, 1);
    assert_float_equal(learned / loss, 1, 1e-4); /* no dropout */
    assert_memory_equal(weight, net->weight, net->n_weight * sizeof *weight);
    /* A step follows the mean of the gradients since the last one: here twice the same. */
    float *moment = malloc(net->n_weight * sizeof *moment);
    memcpy(moment, net->mean, net->n_weight * sizeof *moment);
    memset(net->mean, 0, 2 * net->n_weight * sizeof *net->mean);
    for (int i = 0; i < 2; i++)
        assert_int_equal(lk_less_net_add_gradient(net, 3, &learned, NULL), LK_OK);
    lk_less_net_step(net, 0, 1);
    assert_memory_equal(moment, net->mean, net->n_weight * sizeof *moment);
    free(moment);

    double worst = 0;
    for (int trial = 0; trial < 12; trial++) {
        float *way = random_floats(&r, net->n_weight, 1);
        const float step[] = {
            /* longer steps may cross a kink of an absolute value; shorter ones are less exact */
            3e-4f, 1e-4f};
        double slope = 0, side[2], error = INFINITY;
        for (size_t i = 0; i < net->n_weight; i++) {
            if (trial > 0 && i * 11 / net->n_weight != (size_t)trial - 1)
                way[i] = 0; /* one part of the weights per trial */
            slope += 10.0 * net->mean[i] * way[i];
        }
        for (int t = 0; t < 2; t++) {
            for (int s = 0; s < 2; s++) {
                for (size_t i = 0; i < net->n_weight; i++)
                    net->weight[i] = weight[i] + (s ? step[t] : -step[t]) * way[i];
                side[s] = net_loss(net);
            }
            error = fmin(error, fabs((side[1] - side[0]) / (2 * step[t]) - slope) /
                                    (fabs(slope) + 0.05 * loss));
        }
        if (error > worst) worst = error;
        free(way);
    }
    print_message("gradient: worst relative difference %.2g\n", worst);
    assert_true(worst < 0.01);
    memcpy(net->weight, weight, net->n_weight * sizeof *weight);
    memset(net->mean, 0, 2 * net->n_weight * sizeof *net->mean);
    for (int i = 1; i <= 60; i++) {
        assert_int_equal(lk_less_net_add_gradient(net, 3, &learned, NULL), LK_OK);
        lk_less_net_step(net, 3e-3f, i);
    }
    double after = net_loss(net);
    print_message("loss %.4g, after 60 steps %.4g\n", loss, after);
    assert_true(after < 0.5 * loss);
    free(weight);
    lk_less_net_free(net);
    free_example(&m);
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(&ledger, i), 0);
}

static void test_net(void **unused) {
    lk_model *model = open_preset("llama", 0, 1);
    check_net(model, (struct lk_less_shape){6, 2, 16, 24, 8, 6, 2}, 21, 0, 1, 11);
    check_net(model, (struct lk_less_shape){6, 2, 16, 24, 8, 2, 2}, 250, 0, 0.2f, 12);
    check_net(model, (struct lk_less_shape){6, 2, 16, 24, 5, 1, 1}, 7, 0, 1, 13);
    check_net(model, (struct lk_less_shape){3, 3, 20, 17, 8, 3, 3}, 21, 0, 0.5f, 14);
    check_net(model, (struct lk_less_shape){6, 2, 16, 24, 8, 6, 2}, 90, 47, 0.3f, 15);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_state),
                                       cmocka_unit_test(test_empty_state),
                                       cmocka_unit_test(test_policies), cmocka_unit_test(test_net)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
