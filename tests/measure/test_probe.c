/* Probes on tiny random models: the distance is symmetric and bounded, shares of attention add up
 * to 1, errors grow as bits shrink. */
#include "measure/probe.h"
#include "support_model.h"
#include "test.h"

enum { PROMPT = 700, STEPS = 20 };

struct reader {
    lk_recipe *recipe;
    lk_session *session;
    struct lk_probe *probe;
};

static struct reader open_reader(lk_model *model, const char *text) {
    struct reader r;
    lk_err err = {0};
    r.session = open_session(model, text, PROMPT + STEPS, &r.recipe);
    if (lk_probe_new(&r.probe, r.session, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    return r;
}

static void close_reader(struct reader *r) {
    lk_probe_free(r->probe);
    assert_null(r->session->watch.on_attention);
    lk_session_free(r->session);
    lk_recipe_free(r->recipe);
}

/* A prompt, then single steps; the probe has recorded the last one. */
static void read_tokens(struct reader *r, const int32_t *tok) {
    assert_int_equal(lk_session_sync(r->session, tok, PROMPT, NULL, NULL), LK_OK);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(lk_session_eval(r->session, tok + PROMPT + i, 1, false, NULL), LK_OK);
    assert_int_equal(r->probe->n_pos, PROMPT + STEPS);
}

/* Attention adds up to 1 and lies on rows that are held; rows are those of a full cache, up to the
 * error of their codec. Head 1 is a query head of KV head 0. */
static void rows_can_be_read(void **state) {
    static const char *const text[] = {"f16", "best-3",
                                       "sink 4: f16; keep 64 by h2o: rot4; window 32: f16"};
    lk_model *model = open_preset("qwen2", PROMPT + STEPS, 1);
    int32_t tok[PROMPT + STEPS], pos[PROMPT + STEPS];
    random_tokens(tok, PROMPT + STEPS, model, 8);
    struct reader exact = open_reader(model, "f16");
    size_t n_row, n_pos, d, n_exact;
    float weight[PROMPT + STEPS], x[LK_MAX_D_HEAD], ref[LK_MAX_D_HEAD];
    assert_int_equal(lk_probe_read(exact.probe, 0, 0, weight, 1, &n_pos, NULL), LK_E_ARG);
    read_tokens(&exact, tok);
    for (int i = 0; i < 3; i++) {
        struct reader r = open_reader(model, text[i]);
        read_tokens(&r, tok);
        for (int layer = 0; layer < r.probe->n_layer; layer++) {
            double sum = 0, held = 0, error = 0, power = 0;
            assert_int_equal(lk_probe_read(r.probe, layer, 1, weight, PROMPT + STEPS, &n_pos, NULL),
                             LK_OK);
            assert_int_equal(n_pos, PROMPT + STEPS);
            for (size_t k = 0; k < n_pos; k++) sum += weight[k];
            assert_float_equal(sum, 1, 1e-4);
            assert_int_equal(lk_session_read_rows(r.session, layer, 0, 0, 0, PROMPT + STEPS, pos,
                                                  NULL, &n_row, &d, NULL),
                             LK_OK);
            assert_true(n_row <= n_pos && (i != 0 || n_row == n_pos) && (i != 2 || n_row < 200));
            for (size_t k = 0; k < n_row; k++) {
                int32_t one, same;
                held += weight[pos[k]];
                assert_true(k == 0 || pos[k] > pos[k - 1]);
                assert_int_equal(
                    lk_session_read_rows(r.session, layer, 0, 0, k, 1, &one, x, &n_row, &d, NULL),
                    LK_OK);
                assert_int_equal(one, pos[k]);
                assert_int_equal(lk_session_read_rows(exact.session, layer, 0, 0, (size_t)one, 1,
                                                      &same, ref, &n_exact, &d, NULL),
                                 LK_OK);
                assert_int_equal(same, one);
                for (size_t c = 0; c < d; c++) {
                    error += (x[c] - ref[c]) * (double)(x[c] - ref[c]);
                    power += ref[c] * (double)ref[c];
                }
            }
            assert_float_equal(held, 1, 1e-4); /* evicted rows have no weight */
            if (i == 0) assert_true(error == 0);
            if (i > 0 && layer == 0) assert_true(error > 0 && error < 0.1 * power);
        }
        close_reader(&r);
    }
    int32_t n_layer = exact.probe->n_layer;
    assert_int_equal(
        lk_session_read_rows(exact.session, n_layer, 0, 0, 0, 1, pos, x, &n_row, &d, NULL),
        LK_E_ARG);
    assert_int_equal(lk_session_read_rows(exact.session, 0, 99, 0, 0, 1, pos, x, &n_row, &d, NULL),
                     LK_E_ARG);
    assert_int_equal(lk_session_read_rows(exact.session, 0, 0, 2, 0, 1, pos, x, &n_row, &d, NULL),
                     LK_E_ARG);
    assert_int_equal(lk_probe_read(exact.probe, 0, -1, weight, 1, &n_pos, NULL), LK_E_ARG);
    close_reader(&exact);
    lk_model_free(model);
}

static double mean_distance(const struct reader *a, const struct reader *b) {
    double sum = 0;
    for (int layer = 0; layer < a->probe->n_layer; layer++) {
        double d = lk_probe_hellinger(a->probe, b->probe, layer);
        assert_true(d >= 0 && d <= 1);
        assert_float_equal(d, lk_probe_hellinger(b->probe, a->probe, layer), 1e-12);
        sum += d;
    }
    return sum / a->probe->n_layer;
}

/* Mean over layers and sides of the relative error of the rows in level `level`. */
static double body_error(const struct reader *exact, const struct reader *r, int level) {
    double sum = 0;
    int n_layer = r->probe->n_layer;
    for (int layer = 0; layer < n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            struct lk_row_error e =
                lk_probe_row_error(exact->session, r->session, layer, side, level);
            assert_int_equal(e.n, r->session->cache->kv[layer][side].count[level].rows);
            sum += e.error / e.power;
        }
    return sum / n_layer / 2;
}

static void test_probes(void **state) {
    lk_model *model = open_preset("llama", 1024, 2);
    int32_t tok[PROMPT + STEPS];
    random_tokens(tok, PROMPT + STEPS, model, 5);
    struct reader full = open_reader(model, "f16"), same = open_reader(model, "f16");
    struct reader fine = open_reader(model, "sink 4: f16; body: rot8; window 64: f16");
    struct reader coarse = open_reader(model, "sink 4: f16; body: rot2; window 64: f16");
    struct reader none = open_reader(model, "sink 4: f16; body: none; window 64: f16");
    read_tokens(&full, tok), read_tokens(&same, tok), read_tokens(&fine, tok),
        read_tokens(&coarse, tok), read_tokens(&none, tok);

    assert_true(mean_distance(&full, &same) == 0);
    double near = mean_distance(&full, &fine), far = mean_distance(&full, &coarse);
    double small = body_error(&full, &fine, 1), large = body_error(&full, &coarse, 1);
    print_message("distance %.4f with 8 bits, %.4f with 2; error %.2g and %.2g\n", near, far, small,
                  large);
    assert_true(near > 0 && near < far && far < 0.5);
    /* 2 bits: 0.12 of the power of a normal variable. */
    assert_true(small < 1e-3 && large > 0.02 && large < 0.3);
    /* Sinks are exact; only errors of earlier layers change them. */
    assert_true(body_error(&full, &fine, 0) < 1e-3);

    for (int layer = 0; layer < full.probe->n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            double sum = 0;
            for (int level = 0; level < coarse.session->cache->kv[layer][side].n_level; level++)
                sum += coarse.probe->mass[layer][side][level];
            assert_float_equal(sum, 1, 1e-4);
            const double *mass = none.probe->mass[layer][side];
            assert_float_equal(mass[0] + mass[2], 1, 1e-4);
            assert_true(mass[1] == 0 && mass[0] > 0);
        }
    assert_true(mean_distance(&full, &none) > far);
    assert_true(body_error(&full, &none, 2) < 1);
    assert_true(isnan(body_error(&full, &none, 1))); /* no rows */
    lk_probe_set(full.probe, false);
    assert_int_equal(lk_session_sync(full.session, tok, 10, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_eval(full.session, tok, 1, false, NULL), LK_OK);
    assert_int_equal(full.probe->n_pos, PROMPT + STEPS); /* unchanged */
    close_reader(&full), close_reader(&same), close_reader(&fine), close_reader(&coarse),
        close_reader(&none);
    lk_model_free(model);
}

/* Distance in layer 0, whose keys do not depend on attention, from the definition: a state's weight
 * of an evicted row is phi(q) psi(k), all of them sum to the state's share. */
static double distance_with_state(const struct reader *full, const struct reader *r, bool counted) {
    const struct lk_absorb *a = r->session->absorb;
    const struct lk_probe *p = r->probe;
    int group = p->n_head / a->shape.n_head_kv, d = a->shape.d_head;
    int64_t n = p->n_pos;
    float *k = malloc((size_t)(n * d) * sizeof *k), psi[LK_LESS_MAX_FEATURE],
          work[LK_LESS_MAX_HIDDEN];
    double *weight = malloc((size_t)n * sizeof *weight), distance = 0;
    for (int head = 0; head < p->n_head; head++) {
        const float *phi = p->phi + head * LK_LESS_MAX_FEATURE;
        double sum = 0, held = 0, square = 0;
        lk_kv_read_positions(&full->session->cache->kv[0][LK_K], 0, n, head / group,
                             full->session->cache->kernels, k, (size_t)d);
        for (int64_t i = 0; i < n; i++) {
            weight[i] = 0;
            held += p->weight[head * n + i];
            if (p->weight[head * n + i] > 0) continue;
            lk_less_psi(&a->shape, &a->maps[0], head / group, k + i * d, psi, work);
            for (int f = 0; f < a->shape.n_feature; f++) weight[i] += (double)phi[f] * psi[f];
            sum += weight[i];
        }
        assert_float_equal(held + p->state_share[head], 1, 1e-4);
        assert_true(p->state_share[head] > 0 && p->state_share[head] < 1);
        for (int64_t i = 0; i < n; i++) {
            double w = p->weight[head * n + i];
            if (counted) w += weight[i] / sum * p->state_share[head];
            square += pow(sqrt(w) - sqrt(full->probe->weight[head * n + i]), 2);
        }
        distance += sqrt(square / 2) / p->n_head;
    }
    free(k), free(weight);
    return distance;
}

static void test_state(void **state) {
    lk_model *model = open_with_sidecar("llama", 1024, 2, 5);
    int32_t tok[PROMPT + STEPS];
    random_tokens(tok, PROMPT + STEPS, model, 6);
    struct reader full = open_reader(model, "f16");
    struct reader r = open_reader(model, "keep 16 by h2o; window 64: f16; absorb less"),
                  other = open_reader(model, "keep 16 by h2o; window 64: f16");
    read_tokens(&full, tok), read_tokens(&r, tok), read_tokens(&other, tok);
    assert_true(lk_probe_state_share(full.probe, 0) == 0);
    assert_true(lk_probe_state_share(r.probe, 0) > 0);
    double found = lk_probe_hellinger(full.probe, r.probe, 0);
    assert_float_equal(found, distance_with_state(&full, &r, true), 1e-4);
    assert_float_equal(lk_probe_hellinger(r.probe, full.probe, 0), found, 1e-12);
    /* Without the keys of evicted rows, the state counts as nothing. */
    assert_true(lk_probe_hellinger(other.probe, r.probe, 0) > 0);
    assert_true(found < distance_with_state(&full, &r, false));
    close_reader(&full), close_reader(&r), close_reader(&other);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_can_be_read),
                                       cmocka_unit_test(test_probes), cmocka_unit_test(test_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
