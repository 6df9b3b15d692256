/* A fixed course of calls, and comparing what two models compute in it. */
#include "support_compute.h"

#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"

enum { PROMPT = 580, N_TOK = 600 }; /* a prefill of two chunks, of 512 and 68 tokens */

static void keep(struct results *r, const lk_session *s, int n_row, int n_vocab) {
    for (int i = 0; i < n_row; i++)
        memcpy(r->logits + (size_t)r->n++ * n_vocab, lk_session_logits(s, i),
               (size_t)n_vocab * sizeof *r->logits);
}

void compute(lk_model *model, const char *recipe_text, const int32_t *tok, int n_ctx,
             struct results *r) {
    int n_vocab = lk_model_get_info(model).n_vocab, at = n_ctx > N_TOK ? PROMPT : n_ctx / 2;
    lk_recipe *recipe[2];
    lk_session *s = open_session(model, recipe_text, n_ctx, &recipe[0]),
               *t = open_session(model, recipe_text, n_ctx, &recipe[1]);
    lk_batch *batch = NULL;
    lk_err err = {0};
    r->n = 0;
    r->logits = malloc(16 * (size_t)n_vocab * sizeof *r->logits);
    if (lk_session_sync(s, tok, (size_t)at, NULL, &err)) fail_msg("%s", err.msg);
    keep(r, s, 1, n_vocab);
    for (int i = 0; i < 2; i++, at++) {
        assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
        keep(r, s, 1, n_vocab);
    }
    assert_int_equal(lk_session_eval(s, tok + at, 3, true, NULL), LK_OK);
    keep(r, s, 3, n_vocab);
    lk_status cut = lk_session_truncate(s, (size_t)at + 1, NULL);
    at += cut ? 3 : 1;
    assert_int_equal(lk_session_sync(t, tok, 9, NULL, NULL), LK_OK);
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    lk_batch_entry entry[] = {{.session = s, .tok = tok + at, .n_tok = 1},
                              {.session = t, .tok = tok + 9, .n_tok = 2, .all = true}};
    if (lk_batch_eval(batch, entry, 2, &err)) fail_msg("%s", err.msg);
    keep(r, s, 1, n_vocab);
    keep(r, t, 2, n_vocab);
    assert_true(lk_model_get_info(model).n_embd <= 4096);
    size_t n_embed = n_ctx >= 70 ? 70 : 33;
    if (lk_session_embed(s, tok, n_embed, LK_POOLING_MEAN, r->embedding, &err))
        fail_msg("%s", err.msg);
    lk_batch_free(batch);
    lk_session_free(s), lk_session_free(t);
    lk_recipe_free(recipe[0]), lk_recipe_free(recipe[1]);
}

int first_difference(const struct results *a, const struct results *b, int n_vocab,
                     double max_nmse) {
    size_t n = (size_t)n_vocab;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        const float *x = a->logits + (size_t)i * n, *y = b->logits + (size_t)i * n;
        bool equal = max_nmse > 0 ? nmse(x, y, n) <= max_nmse : memcmp(x, y, n * sizeof *x) == 0;
        if (!equal) return i;
    }
    return -1;
}
