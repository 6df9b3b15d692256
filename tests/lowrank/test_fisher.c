/* Gradients of tiny random models by ggml compared with finite differences of the loss, and the
 * loss with a session's logits. */
#include "lowrank/fisher.h"
#include "support_model.h"
#include "test.h"

enum { TOKENS = 100 };
static int32_t text[TOKENS];

/* Weights are in memory, not mapped, so that they can be changed. */
static lk_model *open_model(const char *preset) {
    lk_model_opts opts = {.n_threads = 1, .no_mmap = true, .no_repack = true};
    lk_model *model = open_tiny(tiny_preset(preset), &opts);
    random_tokens(text, TOKENS, model, 99);
    return model;
}

static void assert_empty(const struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(ledger, i), 0);
}

static double loss_of(lk_model *model, const int32_t *tok, int n) {
    struct lk_ledger ledger = {0};
    struct lk_fisher f;
    lk_err err = {0};
    double loss = 0;
    assert_int_equal(lk_fisher_new(&f, model, &ledger, &err), LK_OK);
    struct lk_fisher_text t = {.tok = tok, .n_tok = (size_t)n + 1, .n_ctx = n};
    if (lk_fisher_add(&f, model, &t, &loss, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_fisher_free(&f);
    assert_empty(&ledger);
    return loss;
}

/* The largest squared gradient of each head compared with a finite difference. */
static void check_gradients(lk_model *model, const struct lk_fisher *f, int n) {
    const struct lk_hparams *hp = &model->net->hp;
    size_t each = (size_t)hp->d_head * hp->n_embd;
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            float *w =
                (side == LK_K ? model->net->layer[layer].wk : model->net->layer[layer].wv)->data;
            for (int head = 0; head < hp->n_head_kv; head++) {
                const float *square = f->square + ((size_t)layer * 2 + side) * hp->n_head_kv * each;
                size_t at = head * each;
                for (size_t i = head * each; i < (head + 1) * each; i++)
                    at = square[i] > square[at] ? i : at;
                const float was = w[at], h = 0.02f;
                w[at] = was + h;
                double up = loss_of(model, text, n);
                w[at] = was - h;
                double down = loss_of(model, text, n), slope = (up - down) / (2 * h);
                w[at] = was;
                if (!(fabs(fabs(slope) - sqrt(square[at])) < 0.03 * sqrt(square[at])))
                    fail_msg("layer %d side %d head %d: %g by differences, %g by ggml", layer, side,
                             head, fabs(slope), sqrt(square[at]));
            }
        }
}

/* Mean loss of a window from a session's logits. */
static double session_loss(lk_model *model, int n) {
    lk_recipe *recipe;
    lk_session *session = open_session(model, "f16", 0, &recipe);
    double sum = 0;
    int n_vocab = lk_model_get_info(model).n_vocab;
    assert_int_equal(lk_session_eval(session, text, (size_t)n, true, NULL), LK_OK);
    for (int i = 0; i < n; i++) {
        const float *logit = lk_session_logits(session, i);
        double whole = 0;
        for (int v = 0; v < n_vocab; v++) whole += exp(logit[v]);
        sum += log(whole) - logit[text[i + 1]];
    }
    lk_session_free(session);
    lk_recipe_free(recipe);
    return sum / n;
}

static void test_fisher(void **state) {
    enum { N = 24 };
    const char *const presets[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        lk_model *model = open_model(presets[i]);
        struct lk_ledger ledger = {0};
        struct lk_fisher one, two;
        lk_err err = {0};
        double loss = 0;
        assert_int_equal(lk_fisher_new(&one, model, &ledger, &err), LK_OK);
        assert_int_equal(lk_fisher_new(&two, model, &ledger, &err), LK_OK);
        struct lk_fisher_text window = {.tok = text, .n_tok = N + 1, .n_ctx = N};
        assert_int_equal(lk_fisher_add(&one, model, &window, &loss, &err), LK_OK);
        assert_true(fabs(loss - session_loss(model, N)) < 1e-3 * loss);
        check_gradients(model, &one, N);
        /* Two windows give the sum of both; scores are means. */
        struct lk_fisher_text both = window, second = window, too_short = window;
        both.n_tok = 2 * N + 1, second.tok = text + N, too_short.n_tok = N;
        assert_int_equal(lk_fisher_add(&two, model, &both, NULL, &err), LK_OK);
        assert_int_equal(lk_fisher_add(&one, model, &second, NULL, &err), LK_OK);
        assert_int_equal(one.n, 2);
        assert_int_equal(two.n, 2);
        size_t each = (size_t)one.n_row * one.n_in, head = each / one.n_head_kv;
        assert_true(nmse(one.square, two.square, each * 2 * one.n_layer) < 1e-8);
        double mean = 0;
        const float *v = two.square + 3 * each + head; /* layer 1, V, head 1 */
        for (size_t k = 0; k < head; k++) mean += v[k] / 2;
        assert_true(fabs(lk_fisher_score(&two, 1, LK_V, 1, 1) - mean) < 1e-9 * mean);
        assert_int_equal(lk_fisher_add(&one, model, &too_short, NULL, &err), LK_E_ARG);
        lk_fisher_free(&one);
        lk_fisher_free(&two);
        lk_model_free(model);
        assert_empty(&ledger);
    }
}

static void test_refused(void **state) {
    const struct {
        const char *preset, *words;
    } refused[] = {{"bloom", "cannot be differentiated"},
                   {"gemma3", "cannot be differentiated"},
                   {"llama-q4_0", "weights in f32"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        lk_model *model = open_model(refused[i].preset);
        struct lk_ledger ledger = {0};
        struct lk_fisher f;
        lk_err err = {0};
        assert_int_equal(lk_fisher_new(&f, model, &ledger, &err), LK_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, refused[i].words));
        lk_model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fisher),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
