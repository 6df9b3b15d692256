/* Cost of a prefix that many sessions share.
 *
 *   build/bench/prefix MODEL TEXT [recipe [tokens [prefix]]]
 *
 * Defaults: best-3 4096 2000.
 *
 * First, 16 sessions continue from one prompt of `tokens`, like 16 answers to it. Prints the bytes
 * of all of them, by their ledgers, compared with 16 times the bytes of one: at the start, and
 * after 64 tokens each.
 *
 * Then, a prompt of `prefix` and 50 more tokens. Prints the time until logits are there if the
 * whole prompt is prefilled at once, and if a session that holds the prefix is copied and only the
 * rest is prefilled. To show what that changes, both predict the text's next 256 tokens, and so
 * does a full cache after one prefill: KL from the full cache's distributions, and between the
 * two. */
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

/* Cache bytes of all sessions; shared bytes count once. */
static uint64_t total_bytes(lk_session *const *session, int n) {
    uint64_t sum = lk_model_get_info(model).shared_bytes;
    for (int i = 0; i < n; i++) {
        lk_session_stats s = lk_session_get_stats(session[i]);
        sum += s.cache_bytes - s.shared_bytes;
    }
    return sum;
}

static void bench_answers(const lk_recipe *recipe, const int32_t *tok, size_t n_tok) {
    lk_session *session[ANSWERS];
    lk_batch *batch;
    lk_err err = {0};
    double seconds[ANSWERS - 1];
    for (int i = 0; i < ANSWERS; i++) session[i] = open_session(recipe, n_tok + ANSWER);
    bench_check(lk_batch_new(&batch, model, &err), &err);
    bench_check(lk_session_sync(session[0], tok, n_tok, NULL, &err), &err);
    uint64_t one = lk_session_get_stats(session[0]).cache_bytes;
    for (int i = 1; i < ANSWERS; i++) {
        double start = lk_now();
        bench_check(lk_session_copy(session[i], session[0], &err), &err);
        seconds[i - 1] = lk_now() - start;
    }
    qsort(seconds, ANSWERS - 1, sizeof *seconds, bench_compare_doubles);
    uint64_t at_start = total_bytes(session, ANSWERS), alone = 0;
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
    printf("%s, %d sessions after %zu tokens: one holds %.2f MiB, all %.2f (unshared %.2f); %d "
           "tokens later all %.2f (unshared %.2f)\n",
           lk_recipe_text(recipe), ANSWERS, n_tok, mib(one), mib(at_start), ANSWERS * mib(one),
           ANSWER, mib(total_bytes(session, ANSWERS)), mib(alone));
    printf("a copy takes %.3f ms (median of %d, slowest %.3f)\n", 1e3 * seconds[(ANSWERS - 1) / 2],
           ANSWERS - 1, 1e3 * seconds[ANSWERS - 2]);
    for (int i = 0; i < ANSWERS; i++) lk_session_free(session[i]);
    lk_batch_free(batch);
}

/* KL(a || b) of next tokens, in nats. */
static double divergence(const float *a, const float *b) {
    double max[2] = {a[0], b[0]}, sum[2] = {0}, kl = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (a[i] > max[0]) max[0] = a[i];
        if (b[i] > max[1]) max[1] = b[i];
    }
    for (int32_t i = 0; i < n_vocab; i++)
        sum[0] += exp(a[i] - max[0]), sum[1] += exp(b[i] - max[1]);
    for (int32_t i = 0; i < n_vocab; i++) {
        double p = a[i] - max[0] - log(sum[0]), q = b[i] - max[1] - log(sum[1]);
        kl += exp(p) * (p - q);
    }
    return kl;
}

static void bench_prefix(const lk_recipe *recipe, const lk_recipe *full, const int32_t *tok,
                         size_t n_prefix) {
    size_t n = n_prefix + REST;
    lk_session *kept = open_session(recipe, n + SCORED), *whole = open_session(recipe, n + SCORED),
               *parts = open_session(recipe, n + SCORED), *exact = open_session(full, n + SCORED);
    lk_err err = {0};
    double seconds[COPIES], start = lk_now(), kl[3] = {0};
    bench_check(lk_session_sync(whole, tok, n, NULL, &err), &err);
    double at_once = lk_now() - start;
    bench_check(lk_session_sync(exact, tok, n, NULL, &err), &err);
    bench_check(lk_session_sync(kept, tok, n_prefix, NULL, &err), &err);
    for (int i = 0; i < COPIES; i++) {
        start = lk_now();
        bench_check(lk_session_copy(parts, kept, &err), &err);
        bench_check(lk_session_sync(parts, tok, n, NULL, &err), &err);
        seconds[i] = lk_now() - start;
    }
    qsort(seconds, COPIES, sizeof *seconds, bench_compare_doubles);
    for (int i = 0; i < SCORED; i++) {
        const float *e = lk_session_logits(exact, -1), *w = lk_session_logits(whole, -1),
                    *p = lk_session_logits(parts, -1);
        kl[0] += divergence(e, w) / SCORED, kl[1] += divergence(e, p) / SCORED,
            kl[2] += divergence(w, p) / SCORED;
        lk_session *all[] = {exact, whole, parts};
        for (int k = 0; k < 3; k++)
            bench_check(lk_session_eval(all[k], tok + n + i, 1, false, &err), &err);
    }
    printf("%zu + %d tokens: full prefill %.2f s, copy and prefill of the rest %.3f s (median of "
           "%d), %.0f times as fast\n",
           n_prefix, REST, at_once, seconds[COPIES / 2], COPIES, at_once / seconds[COPIES / 2]);
    printf("KL from a full cache over %d tokens: full prefill %.5f, in two parts %.5f; between the "
           "two %.5f\n",
           SCORED, kl[0], kl[1], kl[2]);
    lk_session_free(kept), lk_session_free(whole), lk_session_free(parts), lk_session_free(exact);
}

int main(int argc, char **argv) {
    lk_err err = {0};
    lk_recipe *recipe, *full;
    if (argc < 3)
        return fprintf(stderr, "usage: build/bench/prefix MODEL TEXT [recipe [tokens [prefix]]]\n"),
               2;
    size_t n_tok = argc > 4 ? strtoul(argv[4], NULL, 10) : 4096,
           n_prefix = argc > 5 ? strtoul(argv[5], NULL, 10) : 2000, n_text;
    bench_check(lk_model_open(&model, argv[1], NULL, &err), &err);
    n_vocab = lk_model_get_info(model).n_vocab;
    bench_check(lk_recipe_parse(&recipe, argc > 3 ? argv[3] : "best-3", &err), &err);
    bench_check(lk_recipe_parse(&full, "f16", &err), &err);
    int32_t *tok = bench_read_tokens(model, argv[2], 1 << 17, &n_text);
    if (!tok || n_text < n_tok || n_text < n_prefix + REST + SCORED)
        return fprintf(stderr, "bench/prefix: the text is too short; use a longer one\n"), 1;
    if (n_tok) bench_answers(recipe, tok, n_tok);
    if (n_prefix) bench_prefix(recipe, full, tok, n_prefix);
    lk_tokens_free(tok);
    lk_recipe_free(recipe), lk_recipe_free(full);
    lk_model_free(model);
    return 0;
}
