/* Sessions of a cluster next to those of one process. */
#include "support_cluster.h"

#include "engine/session_state.h"
#include "support.h"
#include "support_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_STEP = 36 };

void open_both(struct both *b, const char *path, const lk_model_opts *opts, int n_rank) {
    lk_err err = {0};
    if (lk_model_open(&b->single, path, opts, &err) != LK_OK) fail_msg("%s", err.msg);
    b->ranks = ranks_start(n_rank, &b->cluster);
    if (lk_model_open_cluster(&b->divided, path, opts, b->cluster, &err) != LK_OK)
        fail_msg("%s", err.msg);
}

void close_both(struct both *b) {
    lk_err err = {0};
    lk_model_free(b->divided);
    lk_model_free(b->single);
    if (ranks_end(b->ranks, &err) != LK_OK) fail_msg("a rank: %s", err.msg);
}

void eval_both(lk_session *one, lk_session *many, const int32_t *tok, size_t n, bool all) {
    lk_err err = {0};
    if (lk_session_eval(one, tok, n, all, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_eval(many, tok, n, all, &err) != LK_OK) fail_msg("several ranks: %s", err.msg);
}

double distance(const lk_session *one, const lk_session *many) {
    int n_vocab = lk_model_get_info(one->model).n_vocab;
    assert_int_equal(lk_session_n_tok(one), lk_session_n_tok(many));
    assert_int_equal(one->n_logits, many->n_logits);
    return nmse(lk_session_logits(many, 0), lk_session_logits(one, 0),
                (size_t)one->n_logits * n_vocab);
}

static void add_worst(double *worst, double value) {
    if (!(value <= *worst)) *worst = value;
}

/* Move a session through a file. */
static void move_session(lk_session *to, lk_session *from) {
    char path[] = "/tmp/lowkey-ranks-XXXXXX";
    lk_err err = {0};
    close(mkstemp(path));
    if (lk_session_save(from, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_load(to, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    unlink(path);
    assert_same_logits(from, to, "moved");
}

struct worst compare_both(lk_session *one, lk_session *many, int n_prompt) {
    static int32_t tok[BOTH_CTX];
    struct worst worst = {0, 0};
    lk_err err = {0};
    random_tokens(tok, BOTH_CTX, one->model, 7);
    if (lk_session_sync(one, tok, (size_t)n_prompt, NULL, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_sync(many, tok, (size_t)n_prompt, NULL, &err) != LK_OK)
        fail_msg("several ranks: %s", err.msg);
    add_worst(&worst.apart, distance(one, many));
    for (int at = n_prompt, n, step = 0; step < N_STEP; at += n, step++) {
        bool moves = step % 5 == 0;
        n = step == 0 ? 70 : 1;
        if (moves && step % 10) move_session(many, one);
        if (moves && step % 10 == 0) move_session(one, many);
        eval_both(one, many, tok + at, (size_t)n, n > 1);
        add_worst(moves ? &worst.moved : &worst.apart, distance(one, many));
    }
    return worst;
}
