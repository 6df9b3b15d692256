/* What a beginning that many sessions have in common costs.
 *
 *   bench_prefix MODEL TEXT [recipe [tokens [beginning]]]      defaults: best-3 4096 2000
 *
 * First 16 sessions that go on from one prompt of `tokens`, as 16 answers to it do: bytes of all of them, by their
 * ledgers, beside 16 times what one holds; when they begin, and after 64 tokens each. Then a prompt of `beginning` and
 * 50 more tokens: the time until there are logits when all is read at once, and when a session that stands after
 * the beginning is copied and reads the rest. What that changes: both predict the text's next 256 tokens, and so
 * does a full cache that read all at once; KL from the full cache's distributions, and between the two. */
#include "bench_support.h"
#include "lowkey.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWERS = 16, ANSWER = 64, REST = 50, SCORED = 256, COPIES = 9 };

static lk_model *model;
static int32_t n_vocab;

static lk_session *open_session(const lk_recipe *recipe, size_t n_ctx) {
    lk_session *session;
    lk_err err = {0};
    lk_session_opts opts = {.n_ctx = (int32_t)n_ctx};
    bench_check(lk_session_new(&session, model, recipe, &opts, &err), &err);
    return session;
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

/* Cache bytes of all sessions, those that they share once. */
static uint64_t all_bytes(lk_session *const *session, int n) {
    uint64_t sum = lk_model_get_info(model).shared_bytes;
    for (int i = 0; i < n; i++) {
        lk_session_stats s = lk_session_get_stats(session[i]);
        sum += s.cache_bytes - s.shared_bytes;
    }
    return sum;
}

static void answers(const lk_recipe *recipe, const int32_t *tok, size_t n_tok) {
    lk_session *session[ANSWERS];
    lk_batch *batch;
    lk_err err = {0};
    double took[ANSWERS - 1];
    for (int i = 0; i < ANSWERS; i++) session[i] = open_session(recipe, n_tok + ANSWER);
    bench_check(lk_batch_new(&batch, model, &err), &err);
    bench_check(lk_session_sync(session[0], tok, n_tok, NULL, &err), &err);
    uint64_t one = lk_session_get_stats(session[0]).cache_bytes;
    for (int i = 1; i < ANSWERS; i++) {
        double began = bench_now();
        bench_check(lk_session_copy(session[i], session[0], &err), &err);
        took[i - 1] = bench_now() - began;
    }
    qsort(took, ANSWERS - 1, sizeof *took, bench_by_size);
    uint64_t begun = all_bytes(session, ANSWERS), alone = 0;
    for (int t = 0; t < ANSWER; t++) {
        lk_batch_item item[ANSWERS];
        int32_t next[ANSWERS];
        for (int i = 0; i < ANSWERS; i++) {
            next[i] = tok[(size_t)(i * 97 + t) % n_tok];
            item[i] = (lk_batch_item){.session = session[i], .tok = &next[i], .n_tok = 1};
        }
        bench_check(lk_batch_eval(batch, item, ANSWERS, &err), &err);
    }
    for (int i = 0; i < ANSWERS; i++) alone += lk_session_get_stats(session[i]).cache_bytes;
    printf("%s, %d sessions after %zu tokens: one holds %.2f MiB, all %.2f (alone %.2f); %d tokens "
           "later all %.2f (alone %.2f)\n",
           lk_recipe_text(recipe), ANSWERS, n_tok, mib(one), mib(begun), ANSWERS * mib(one), ANSWER,
           mib(all_bytes(session, ANSWERS)), mib(alone));
    printf("a copy takes %.3f ms (median of %d, slowest %.3f)\n", 1e3 * took[(ANSWERS - 1) / 2],
           ANSWERS - 1, 1e3 * took[ANSWERS - 2]);
    for (int i = 0; i < ANSWERS; i++) lk_session_free(session[i]);
    lk_batch_free(batch);
}

/* KL(a || b) of next tokens, in nats. */
static double divergence(const float *a, const float *b) {
    double most[2] = {a[0], b[0]}, sum[2] = {0}, kl = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (a[i] > most[0]) most[0] = a[i];
        if (b[i] > most[1]) most[1] = b[i];
    }
    for (int32_t i = 0; i < n_vocab; i++)
        sum[0] += exp(a[i] - most[0]), sum[1] += exp(b[i] - most[1]);
    for (int32_t i = 0; i < n_vocab; i++) {
        double p = a[i] - most[0] - log(sum[0]), q = b[i] - most[1] - log(sum[1]);
        kl += exp(p) * (p - q);
    }
    return kl;
}

static void beginning(const lk_recipe *recipe, const lk_recipe *full, const int32_t *tok,
                      size_t n_begin) {
    size_t n = n_begin + REST;
    lk_session *kept = open_session(recipe, n + SCORED), *whole = open_session(recipe, n + SCORED),
               *parts = open_session(recipe, n + SCORED), *exact = open_session(full, n + SCORED);
    lk_err err = {0};
    double took[COPIES], began = bench_now(), kl[3] = {0};
    bench_check(lk_session_sync(whole, tok, n, NULL, &err), &err);
    double at_once = bench_now() - began;
    bench_check(lk_session_sync(exact, tok, n, NULL, &err), &err);
    bench_check(lk_session_sync(kept, tok, n_begin, NULL, &err), &err);
    for (int i = 0; i < COPIES; i++) {
        began = bench_now();
        bench_check(lk_session_copy(parts, kept, &err), &err);
        bench_check(lk_session_sync(parts, tok, n, NULL, &err), &err);
        took[i] = bench_now() - began;
    }
    qsort(took, COPIES, sizeof *took, bench_by_size);
    for (int i = 0; i < SCORED; i++) {
        const float *e = lk_session_logits(exact, -1), *w = lk_session_logits(whole, -1),
                    *p = lk_session_logits(parts, -1);
        kl[0] += divergence(e, w) / SCORED, kl[1] += divergence(e, p) / SCORED,
            kl[2] += divergence(w, p) / SCORED;
        lk_session *all[] = {exact, whole, parts};
        for (int k = 0; k < 3; k++)
            bench_check(lk_session_eval(all[k], tok + n + i, 1, false, &err), &err);
    }
    printf("%zu + %d tokens: read at once in %.2f s, the rest after a copy in %.3f s (median of "
           "%d), %.0f times as fast\n",
           n_begin, REST, at_once, took[COPIES / 2], COPIES, at_once / took[COPIES / 2]);
    printf("KL from a full cache over %d tokens: read at once %.5f, in two parts %.5f; of one from "
           "the other %.5f\n",
           SCORED, kl[0], kl[1], kl[2]);
    lk_session_free(kept), lk_session_free(whole), lk_session_free(parts), lk_session_free(exact);
}

int main(int argc, char **argv) {
    lk_err err = {0};
    lk_recipe *recipe, *full;
    if (argc < 3)
        return fprintf(stderr, "usage: bench_prefix MODEL TEXT [recipe [tokens [beginning]]]\n"), 2;
    size_t n_tok = argc > 4 ? strtoul(argv[4], NULL, 10) : 4096,
           n_begin = argc > 5 ? strtoul(argv[5], NULL, 10) : 2000, n_text;
    bench_check(lk_model_open(&model, argv[1], NULL, &err), &err);
    n_vocab = lk_model_get_info(model).n_vocab;
    bench_check(lk_recipe_parse(&recipe, argc > 3 ? argv[3] : "best-3", &err), &err);
    bench_check(lk_recipe_parse(&full, "f16", &err), &err);
    int32_t *tok = bench_read_tokens(model, argv[2], 1 << 17, &n_text);
    if (!tok || n_text < n_tok || n_text < n_begin + REST + SCORED)
        return fprintf(stderr, "bench_prefix: the text is too short\n"), 1;
    if (n_tok) answers(recipe, tok, n_tok);
    if (n_begin) beginning(recipe, full, tok, n_begin);
    lk_tokens_free(tok);
    lk_recipe_free(recipe), lk_recipe_free(full);
    lk_model_free(model);
    return 0;
}
