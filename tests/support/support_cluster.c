/* Sessions of a cluster next to one process's. */
#include "support_cluster.h"

#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "support_session.h"
#include "support_sidecar.h"
#include "test.h"
#include "tiny_presets.h"

#include <unistd.h>

enum { N_STEP = 36 };

void open_both(struct both *b, const char *path, const lk_model_opts *opts, int n_rank,
               int n_stage) {
    lk_err err = {0};
    if (lk_model_open(&b->single, path, opts, &err) != LK_OK) fail_msg("%s", err.msg);
    b->ranks = ranks_start(n_rank, &b->cluster);
    if (lk_cluster_set_stages(b->cluster, n_stage, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_model_open_cluster(&b->divided, path, opts, b->cluster, &err) != LK_OK)
        fail_msg("%s", err.msg);
}

void open_tiny_stages(struct both *b, const char *preset, int n_rank, int n_stage, bool sidecar,
                      const char *kernels) {
    char path[] = "/tmp/lowkey-ranks-XXXXXX", side[] = "/tmp/lowkey-ranks-side-XXXXXX";
    struct tiny_spec spec = *tiny_preset(preset);
    if (spec.n_ctx < BOTH_MAX_CTX) spec.n_ctx = BOTH_MAX_CTX;
    close(mkstemp(path));
    close(mkstemp(side));
    assert_true(tiny_gguf_write(path, &spec));
    if (sidecar) assert_true(write_sidecar_for(side, path, 3));
    const lk_model_opts opts = {
        .n_threads = 1, .kernels = kernels, .sidecar = sidecar ? side : NULL};
    open_both(b, path, &opts, n_rank, n_stage);
    unlink(path);
    unlink(side);
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

struct worst compare_recipe(struct both *b, const char *text, int n_prompt) {
    lk_recipe *r1, *r2;
    lk_session *one = open_session(b->single, text, BOTH_CTX, &r1),
               *many = open_session(b->divided, text, BOTH_CTX, &r2);
    struct worst worst = compare_both(one, many, n_prompt);
    lk_session_free(many);
    lk_session_free(one);
    lk_recipe_free(r1);
    lk_recipe_free(r2);
    return worst;
}

void check_recipe(struct both *b, const char *model, const char *recipe, int n_prompt) {
    struct worst worst = compare_recipe(b, recipe, n_prompt);
    bool exact = strcmp(recipe, "f16") == 0;
    print_message("%s, %d ranks, %4d tokens, %-12s nmse %.2g over the same codes, %.2g apart\n",
                  model, lk_cluster_n_peer(lk_cluster_of(b->divided->peers)), n_prompt, recipe,
                  worst.moved, worst.apart);
    if (!(worst.moved <= 1e-6 && worst.apart <= (exact ? 1e-6 : 1e-2)))
        fail_msg("%s: NMSE %g over the same codes, %g apart", recipe, worst.moved, worst.apart);
}

struct pair open_pair(struct both *b, const char *recipe, const lk_session_opts *opts) {
    struct pair p;
    lk_err err = {0};
    assert_int_equal(lk_recipe_parse(&p.r1, recipe, NULL), LK_OK);
    assert_int_equal(lk_recipe_parse(&p.r2, recipe, NULL), LK_OK);
    if (lk_session_new(&p.one, b->single, p.r1, opts, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_new(&p.many, b->divided, p.r2, opts, &err) != LK_OK) fail_msg("%s", err.msg);
    return p;
}

void close_pair(struct pair *p) {
    lk_session_free(p->many);
    lk_session_free(p->one);
    lk_recipe_free(p->r1);
    lk_recipe_free(p->r2);
}

/* ---- operations ---- */

void sync_pair(struct pair *p, const int32_t *tok, size_t n, size_t reused, double max) {
    size_t n1 = 0, n2 = 0;
    lk_err err = {0};
    if (lk_session_sync(p->one, tok, n, &n1, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_session_sync(p->many, tok, n, &n2, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_int_equal(n1, n2);
    if (reused != SIZE_MAX) assert_int_equal(n2, reused);
    double e = distance(p->one, p->many);
    if (!(e <= max)) fail_msg("%zu tokens: NMSE %g", n, e);
}

/* Going back to checkpoints, prompts through the cache, copies, drafts and batches do on several
 * ranks what they do in one process. */
void compare_operations(const char *preset, int n_rank, int n_stage, double max) {
    static int32_t tok[BOTH_CTX], other[BOTH_CTX];
    struct both b;
    lk_err err = {0};
    open_tiny_stages(&b, preset, n_rank, n_stage, false, NULL);
    random_tokens(tok, BOTH_CTX, b.single, 1);
    memcpy(other, tok, sizeof other);
    random_tokens(other + 1300, BOTH_CTX - 1300, b.single, 2);
    for (int chunked = 0; chunked < 2; chunked++) {
        const lk_session_opts opts = {
            .n_ctx = BOTH_CTX, .n_checkpoint = 6, .chunked_prefill = chunked};
        struct pair p = open_pair(&b, "best-4", &opts), q = open_pair(&b, "best-4", &opts);
        sync_pair(&p, tok, 1800, 0, max);
        sync_pair(&p, other, 2000, SIZE_MAX, max); /* back to a checkpoint */
        assert_int_equal(lk_session_reserve(p.one, 100, &err), LK_OK);
        assert_int_equal(lk_session_reserve(p.many, 100, &err), LK_OK);
        assert_int_equal(lk_session_copy(q.one, p.one, &err), LK_OK);
        assert_int_equal(lk_session_copy(q.many, p.many, &err), LK_OK);
        for (int i = 0; i < 40; i++) {
            size_t n = lk_session_draftable(p.many, 4, NULL), at = lk_session_n_tok(p.many);
            assert_int_equal(n, lk_session_draftable(p.one, 4, NULL));
            eval_both(p.one, p.many, tok + at, n, true);
            if (n < 2) continue;
            assert_int_equal(lk_session_truncate(p.one, at + n - 1, &err), LK_OK);
            assert_int_equal(lk_session_truncate(p.many, at + n - 1, &err), LK_OK);
        }
        assert_true(distance(p.one, p.many) <= max);
        lk_batch *batch[2];
        assert_int_equal(lk_batch_new(&batch[0], b.single, &err), LK_OK);
        assert_int_equal(lk_batch_new(&batch[1], b.divided, &err), LK_OK);
        for (int i = 0; i < 20; i++) {
            lk_batch_entry one[] = {{.session = p.one, .tok = tok + i, .n_tok = 1},
                                    {.session = q.one, .tok = tok + i, .n_tok = 3, .all = true}},
                           many[] = {{.session = p.many, .tok = tok + i, .n_tok = 1},
                                     {.session = q.many, .tok = tok + i, .n_tok = 3, .all = true}};
            assert_int_equal(lk_batch_eval(batch[0], one, 2, &err), LK_OK);
            if (lk_batch_eval(batch[1], many, 2, &err) != LK_OK) fail_msg("%s", err.msg);
            assert_int_equal(many[0].err.code, LK_OK);
            assert_int_equal(many[1].err.code, LK_OK);
        }
        assert_true(distance(p.one, p.many) <= max && distance(q.one, q.many) <= max);
        lk_batch_free(batch[0]), lk_batch_free(batch[1]);
        lk_session_clear(p.many), lk_session_clear(p.one);
        sync_pair(&p, other, 700, 0, max);
        close_pair(&p), close_pair(&q);
    }
    close_both(&b);
}

/* ---- checkpoints in saved sessions ---- */

/* Evaluate a text in some calls, the first of which have fewer tokens than channel statistics need.
 * exact: the first one has most tokens, with checkpoints in it. */
static void evaluate_texts(lk_session *s, const int32_t *tok, bool exact) {
    static const size_t end[2][5] = {{120, 285, 330, 1100, 1500}, {1100, 1500}},
                        mark[] = {700, 150, 290};
    lk_err err = {0};
    for (int i = 0; i < 5 && end[exact][i]; i++)
        if (lk_session_sync_marked(s, tok, end[exact][i], mark, 3, NULL, &err) != LK_OK)
            fail_msg("%s", err.msg);
}

/* Save `from`, load the file in `to`, and save it there again. */
static void load_checkpoints(lk_session *to, lk_session *from) {
    char path[] = "/tmp/lowkey-ranks-XXXXXX";
    uint8_t *file[2];
    size_t n[2];
    lk_err err = {0};
    close(mkstemp(path));
    for (int i = 0; i < 2; i++) {
        if (lk_session_save(i ? to : from, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
        file[i] = read_file(path, &n[i]);
        if (i == 0 && lk_session_load(to, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(file[0], file[1], n[0]);
    assert_true(from->checkpoints.n > 1);
    assert_int_equal(to->checkpoints.n, from->checkpoints.n);
    free(file[0]), free(file[1]);
    unlink(path);
}

static void check_distance(const lk_session *one, const lk_session *many, double max, size_t n) {
    double e = distance(one, many);
    if (!(e <= max)) fail_msg("%s, %zu tokens: NMSE %g", lk_recipe_text(one->recipe), n, e);
}

/* Both go back to the last of their first n checkpoints, and on from there. */
static void go_back_both(lk_session *one, lk_session *many, const int32_t *tok,
                         const int32_t *other, int n, double max) {
    const struct lk_checkpoint at = many->checkpoints.at[n - 1];
    size_t n_tok = at.logits ? at.n_tok : at.n_tok + 1, reused[2];
    lk_err err = {0};
    for (int i = 0; i < 2; i++)
        if (lk_session_sync(i ? many : one, tok, n_tok, &reused[i], &err) != LK_OK)
            fail_msg("%s", err.msg);
    assert_true(reused[0] == reused[1] && reused[1] >= at.n_tok);
    check_distance(one, many, at.logits ? 0 : max, n_tok);
    eval_both(one, many, other, 1, false);
    check_distance(one, many, max, n_tok + 1);
    eval_both(one, many, other + 1, 100, false); /* rows change their levels */
    check_distance(one, many, max > 0 ? 1e-2 : 0, n_tok + 101);
}

void compare_saved_checkpoints(struct both *b, const char *recipe, int turn, double max) {
    static int32_t tok[BOTH_CTX], other[BOTH_CTX];
    const lk_session_opts opts = {.n_ctx = BOTH_CTX, .n_checkpoint = 8};
    random_tokens(tok, BOTH_CTX, b->single, 1);
    random_tokens(other, BOTH_CTX, b->single, 2);
    for (int exact = 0; exact < 2; exact++)
        for (int divided = 0; divided < 2; divided++) { /* who evaluates and saves */
            if (!case_runs((size_t)(2 * exact + divided + turn))) continue;
            struct pair p = open_pair(b, recipe, &opts);
            lk_session *from = divided ? p.many : p.one, *to = divided ? p.one : p.many;
            evaluate_texts(from, tok, exact);
            load_checkpoints(to, from);
            for (int n = from->checkpoints.n; n > 0; n--)
                go_back_both(p.one, p.many, tok, other, n, max);
            close_pair(&p);
        }
}
