/* llama.cpp's own cache types on a text: KL against its own f16 cache, in the form of
 * `lowkey perplexity --json`, over the same tokens and the same scored positions.
 *
 *   llama_cache [--f32] MODEL TEXT N_CTX N_CHUNK TYPE...   TYPE: f16 plain q8_0 q5_1 q5_0 q4_1 q4_0 iq4_nl
 *
 * --f32: on a temporary copy of the model with every matrix in f32 (in TMPDIR), without the noise of
 * rounded activations. "plain" is the f16 cache without flash attention: the noise floor of reordered sums. */
#include "bench_support.h"
#include "support_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 256, MAX_TYPES = 16, THREADS = 2 };

static enum ggml_type type_of(const char *name) {
    if (!strcmp(name, "plain")) return GGML_TYPE_F16;
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name(t) && !strcmp(name, ggml_type_name(t))) return t;
    return GGML_TYPE_COUNT;
}

static void log_softmax(const float *x, int n, float *out) {
    float max = x[0];
    for (int i = 1; i < n; i++) max = fmaxf(max, x[i]);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += expf(x[i] - max);
    float log_sum = max + (float)log(sum);
    for (int i = 0; i < n; i++) out[i] = x[i] - log_sum;
}

static int argmax(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* An f32 copy of the model; its path, or NULL. */
static const char *make_copy(const char *model) {
    static char path[512];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/llama_cache-f32-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
    return oracle_write_f32(model, path) ? path : NULL;
}

static int compare(int argc, char **argv);

int main(int argc, char **argv) {
    if (argc < 3 || strcmp(argv[1], "--f32") != 0) return compare(argc, argv);
    const char *copy = make_copy(argv[2]);
    if (!copy) return fputs("cannot write an f32 copy of the model\n", stderr), 1;
    argv[2] = (char *)copy;
    int status = compare(argc - 1, argv + 1);
    unlink(copy);
    return status;
}

static int compare(int argc, char **argv) {
    int n_type = argc - 5, n_ctx = argc > 4 ? atoi(argv[3]) : 0,
        n_chunk = argc > 4 ? atoi(argv[4]) : 0;
    size_t len = 0;
    char *text = argc > 4 ? bench_read_file(argv[2], &len) : NULL;
    if (n_type < 1 || n_type > MAX_TYPES || !text || n_ctx < 4)
        return fputs("usage: llama_cache MODEL TEXT N_CTX N_CHUNK TYPE...\n", stderr), 1;
    struct oracle full, other[MAX_TYPES];
    if (!oracle_open(&full, argv[1], NULL, n_ctx, GGML_TYPE_F16, GGML_TYPE_F16, true, THREADS))
        return fputs("cannot open the model\n", stderr), 1;
    for (int i = 0; i < n_type; i++) {
        enum ggml_type type = type_of(argv[5 + i]);
        if (type == GGML_TYPE_COUNT || !oracle_open(&other[i], NULL, full.model, n_ctx, type, type,
                                                    strcmp(argv[5 + i], "plain") != 0, THREADS))
            return fprintf(stderr, "cannot use the cache type %s\n", argv[5 + i]), 1;
    }
    const struct llama_vocab *vocab = llama_model_get_vocab(full.model);
    int32_t *tok = malloc((len + 16) * sizeof *tok);
    int n_tok = llama_tokenize(vocab, text, (int)len, tok, (int)len + 16, true, true);
    if (n_chunk <= 0 || n_chunk > n_tok / n_ctx) n_chunk = n_tok / n_ctx;
    size_t n_score = (size_t)n_chunk * (n_ctx - n_ctx / 2 - 1), n_vocab = full.n_vocab, n_done = 0;
    float *p = malloc(STEP * n_vocab * sizeof *p), *q = malloc(n_vocab * sizeof *q),
          *kl = malloc(n_type * n_score * sizeof *kl);
    double nll[MAX_TYPES + 1] = {0}, sum[MAX_TYPES] = {0}, same[MAX_TYPES] = {0};
    for (int chunk = 0; chunk < n_chunk; chunk++) {
        int32_t *t = tok + (size_t)chunk * n_ctx;
        if (llama_vocab_get_add_bos(vocab)) t[0] = llama_vocab_bos(vocab);
        for (int i = -1; i < n_type; i++) oracle_clear(i < 0 ? &full : &other[i]);
        for (int at = 0; at < n_ctx; at += STEP) {
            int n = n_ctx - at < STEP ? n_ctx - at : STEP;
            size_t scored = 0;
            for (int i = -1; i < n_type; i++) {
                const float *logits = oracle_eval(i < 0 ? &full : &other[i], t + at, n, at);
                if (!logits) return fputs("decoding failed\n", stderr), 1;
                scored = 0;
                for (int r = 0; r < n; r++) {
                    if (at + r < n_ctx / 2 || at + r + 1 >= n_ctx) continue;
                    float *full_p = p + r * n_vocab, *log_p = i < 0 ? full_p : q;
                    log_softmax(logits + r * n_vocab, (int)n_vocab, log_p);
                    nll[i + 1] -= log_p[t[at + r + 1]];
                    double d = 0;
                    for (size_t v = 0; i >= 0 && v < n_vocab; v++)
                        if (full_p[v] > -80) d += expf(full_p[v]) * (full_p[v] - q[v]);
                    if (i >= 0) {
                        kl[i * n_score + n_done + scored] = (float)(d > 0 ? d : 0);
                        sum[i] += d > 0 ? d : 0;
                        same[i] += argmax(full_p, (int)n_vocab) == argmax(q, (int)n_vocab);
                    }
                    scored++;
                }
            }
            n_done += scored;
            if (scored) fprintf(stderr, "\r%zu of %zu", n_done, n_score);
        }
    }
    fprintf(stderr, "\n");
    printf("{\"n_ctx\": %d, \"n_tok\": %zu, \"ppl_f16\": %.4f, \"results\": [", n_ctx, n_done,
           exp(nll[0] / n_done));
    for (int i = 0; i < n_type; i++) {
        qsort(kl + i * n_score, n_done, sizeof *kl, by_value);
        const float *k = kl + i * n_score;
        enum ggml_type type = type_of(argv[5 + i]);
        printf("%s\n {\"kv\": \"%s\", \"ppl\": %.4f, \"kl_mean\": %.7f, \"kl_p99\": %.6f, "
               "\"kl_p999\": %.6f, \"top1\": %.5f, \"bits_per_value\": %.3f}",
               i ? "," : "", argv[5 + i], exp(nll[i + 1] / n_done), sum[i] / n_done,
               k[(size_t)(0.99 * (n_done - 1))], k[(size_t)(0.999 * (n_done - 1))],
               same[i] / n_done, 8.0 * ggml_type_size(type) / ggml_blck_size(type));
    }
    printf("]}\n");
    return 0;
}
