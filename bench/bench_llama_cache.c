/* llama.cpp's own cache types on a text: KL against its own f16 cache, in the format of `lowkey
 * perplexity --json`, on the same tokens and the same scored positions.
 *
 *   build/bench/llama_cache [--f32] MODEL TEXT N_CTX N_CHUNK TYPE...
 *
 * TYPE is f16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl or plain. "plain" is the f16 cache without
 * flash attention: the noise floor of reordered sums. --f32 uses a temporary copy of the model with
 * every matrix in f32 (in TMPDIR), without the noise of rounded activations. */
#include "bench_support.h"
#include "lowkey_lab.h"
#include "support_oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP = 256, MAX_TYPES = 16, THREADS = 2 };

/* One cache of libllama as a predictor. */
struct cache {
    struct oracle oracle;
    const char *name;
    enum ggml_type type;
    int n_tok;           /* evaluated in this chunk */
    const float *logits; /* [n][n_vocab] of the last evaluation */
};

static void cache_clear(void *self) {
    struct cache *c = self;
    oracle_clear(&c->oracle);
    c->n_tok = 0;
}

static lk_status cache_eval(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    struct cache *c = self;
    (void)all;
    c->logits = oracle_eval(&c->oracle, tok, (int)n, c->n_tok);
    c->n_tok += (int)n;
    if (c->logits) return LK_OK;
    *err = (lk_err){.code = LK_E_NOMEM, .msg = "libllama cannot decode"};
    return err->code;
}

static const float *cache_logits(void *self, int32_t i) {
    struct cache *c = self;
    return c->logits + (size_t)i * c->oracle.n_vocab;
}

static enum ggml_type type_of(const char *name) {
    if (!strcmp(name, "plain")) return GGML_TYPE_F16;
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name(t) && !strcmp(name, ggml_type_name(t))) return t;
    return GGML_TYPE_COUNT;
}

/* An f32 copy of the model; its path, or NULL. */
static const char *write_f32_copy(const char *model) {
    static char path[512];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/llama_cache-f32-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
    return oracle_write_f32(model, path) ? path : NULL;
}

struct args {
    const char *model, *text;
    int n_ctx, n_chunk, n_type;
    char **type; /* [n_type] */
};

/* Open the full cache, cache[0], and one for each type; false after a message. */
static bool open_caches(const struct args *a, struct cache *cache) {
    cache[0].name = "f16";
    if (!oracle_open(&cache[0].oracle, a->model, NULL, a->n_ctx, GGML_TYPE_F16, GGML_TYPE_F16, true,
                     THREADS))
        return fputs("cannot open the model\n", stderr), false;
    for (int i = 0; i < a->n_type; i++) {
        struct cache *c = &cache[1 + i];
        c->name = a->type[i];
        c->type = type_of(c->name);
        if (c->type == GGML_TYPE_COUNT ||
            !oracle_open(&c->oracle, NULL, cache[0].oracle.model, a->n_ctx, c->type, c->type,
                         strcmp(c->name, "plain") != 0, THREADS))
            return fprintf(stderr, "cannot use the cache type %s\n", c->name), false;
    }
    return true;
}

static bool show_progress(void *user, uint64_t done, uint64_t total) {
    fprintf(stderr, "\rchunk %d: %llu of %llu ", *(int *)user, (unsigned long long)done,
            (unsigned long long)total);
    return true;
}

static void print_results(const struct args *a, const struct cache *cache,
                          const lk_compare_result *result) {
    printf("{\"n_ctx\": %d, \"n_tok\": %llu, \"ppl_f16\": %.4f, \"results\": [", a->n_ctx,
           (unsigned long long)result[0].n_scored, result[0].ppl);
    for (int i = 1; i <= a->n_type; i++)
        printf("%s\n {\"kv\": \"%s\", \"ppl\": %.4f, \"kl_mean\": %.7f, \"kl_p99\": %.6f, "
               "\"kl_p999\": %.6f, \"top1\": %.5f, \"bits_per_value\": %.3f}",
               i > 1 ? "," : "", cache[i].name, result[i].ppl, result[i].kl_mean, result[i].kl_p99,
               result[i].kl_p999, result[i].top1,
               8.0 * ggml_type_size(cache[i].type) / ggml_blck_size(cache[i].type));
    printf("]}\n");
}

static int compare(const struct args *a) {
    static struct cache cache[1 + MAX_TYPES];
    lk_predictor predictor[1 + MAX_TYPES];
    lk_prediction *score[1 + MAX_TYPES], *chunk_score[1 + MAX_TYPES];
    lk_compare_result result[1 + MAX_TYPES];
    size_t len = 0, n = 1 + (size_t)a->n_type, n_scored = lk_compare_n_scored((size_t)a->n_ctx);
    char *text = bench_read_file(a->text, &len);
    if (!text) return fprintf(stderr, "cannot read %s\n", a->text), 1;
    if (!open_caches(a, cache)) return 1;
    const struct llama_vocab *vocab = llama_model_get_vocab(cache[0].oracle.model);
    int32_t *tok = malloc((len + 16) * sizeof *tok);
    int n_tok = llama_tokenize(vocab, text, (int)len, tok, (int)len + 16, true, true);
    int n_chunk = n_tok / a->n_ctx;
    if (a->n_chunk > 0 && a->n_chunk < n_chunk) n_chunk = a->n_chunk;
    for (size_t i = 0; i < n; i++) {
        score[i] = malloc((size_t)n_chunk * n_scored * sizeof *score[i]);
        predictor[i] = (lk_predictor){
            .self = &cache[i], .clear = cache_clear, .eval = cache_eval, .logits = cache_logits};
    }
    for (int chunk = 0; chunk < n_chunk; chunk++) {
        lk_err err = {0};
        lk_compare_text t = {.tok = tok + (size_t)chunk * a->n_ctx,
                             .n_ctx = (size_t)a->n_ctx,
                             .n_step = STEP,
                             .n_vocab = (size_t)cache[0].oracle.n_vocab,
                             .progress = show_progress,
                             .user = &chunk};
        if (llama_vocab_get_add_bos(vocab)) tok[(size_t)chunk * a->n_ctx] = llama_vocab_bos(vocab);
        for (size_t i = 0; i < n; i++) chunk_score[i] = score[i] + (size_t)chunk * n_scored;
        bench_check(lk_compare_chunk(predictor, n, &t, chunk_score, &err), &err);
    }
    fprintf(stderr, "\n");
    for (size_t i = 0; i < n; i++)
        result[i] = lk_compare_summarize(score[i], (size_t)n_chunk * n_scored, (size_t)n_chunk);
    print_results(a, cache, result);
    return 0;
}

int main(int argc, char **argv) {
    bool f32 = argc > 1 && strcmp(argv[1], "--f32") == 0;
    char **arg = argv + 1 + f32;
    int n_arg = argc - 1 - f32;
    struct args a = {0};
    if (n_arg >= 5)
        a = (struct args){.model = arg[0],
                          .text = arg[1],
                          .n_ctx = atoi(arg[2]),
                          .n_chunk = atoi(arg[3]),
                          .n_type = n_arg - 4,
                          .type = arg + 4};
    if (a.n_type < 1 || a.n_type > MAX_TYPES || a.n_ctx < 4) {
        fputs("usage: build/bench/llama_cache [--f32] MODEL TEXT N_CTX N_CHUNK TYPE...\n", stderr);
        return 1;
    }
    if (!f32) return compare(&a);
    a.model = write_f32_copy(a.model);
    if (!a.model) return fputs("cannot write an f32 copy of the model\n", stderr), 1;
    int status = compare(&a);
    unlink(a.model);
    return status;
}
