/* Times the test of a whole vocabulary against a grammar: lowkey's recognizer and libllama's.
 *
 * usage: bench/grammar MODEL.gguf [N]    with N, the vocabulary is extended to N tokens by joining
 *                                        pairs; libllama is timed without N only */
#include "base/clock.h"
#include "grammar/grammar_state.h"
#include "token/tokenize.h"
#include "token/vocab.h"

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"short\":{\"type\":"
    "\"string\",\"maxLength\":40},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\","
    "\"green\",\"blue\"]}},\"n\":{\"type\":\"number\"},\"more\":{}}}";

static const struct {
    const char *name, *text;
} place[] = {
    {"start", ""},
    {"before a name", "{"},
    {"in a name", "{\"na"},
    {"in a string", "{\"name\": \"It was"},
    {"in a string of at most 40", "{\"short\": \"It was"},
    {"in an enum", "{\"tags\": [\""},
    {"in a number", "{\"n\": 12"},
    {"before any value", "{\"more\": "},
};

/* The first n tokens of a vocabulary that is extended by pairs of its tokens. */
static struct lk_token_bytes *extend(const struct lk_token_bytes *t, uint32_t n) {
    const char **text = calloc(n, sizeof *text);
    size_t *len = calloc(n, sizeof *len);
    char *store = malloc((size_t)n * 64), *at = store;
    struct lk_token_bytes *out = NULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pair[2] = {i % t->n, i < t->n ? t->n : (i * 7919u) % t->n};
        text[i] = at;
        for (int k = 0; k < 2; k++) {
            if (pair[k] >= t->n) continue;
            uint32_t bytes = t->start[pair[k] + 1] - t->start[pair[k]];
            if (bytes > 32) bytes = 32;
            memcpy(at, t->bytes + t->start[pair[k]], bytes);
            at += bytes;
        }
        len[i] = (size_t)(at - text[i]);
    }
    lk_token_bytes_new(&out, text, len, n, NULL);
    free(text), free(len), free(store);
    return out;
}

static void time_ours(struct lk_grammar *g, const struct lk_token_bytes *t, const char *text) {
    uint64_t *allowed = calloc((t->n_vocab + 63) / 64, sizeof *allowed);
    struct lk_grammar_state *s = NULL;
    bool accepted;
    double first = 0, again = 0;
    int n = 0, n_run = 20;
    lk_err err = {0};
    for (int i = 0; i < 5; i++) { /* the first time, without anything remembered */
        if (lk_grammar_state_new(&s, g, &err) ||
            lk_grammar_accept(s, text, strlen(text), &accepted, &err))
            printf("%s\n", err.msg);
        double begin = lk_thread_cpu_seconds();
        lk_grammar_mask(s, t, allowed, &err);
        first += (lk_thread_cpu_seconds() - begin) / 5;
        if (i < 4) lk_grammar_state_free(s);
    }
    uint64_t steps = lk_grammar_state_steps(s);
    double begin = lk_thread_cpu_seconds();
    for (int i = 0; i < n_run; i++) lk_grammar_mask(s, t, allowed, &err);
    again = (lk_thread_cpu_seconds() - begin) / n_run;
    for (uint32_t i = 0; i < (t->n_vocab + 63) / 64; i++) n += __builtin_popcountll(allowed[i]);
    printf("%6.2f ms first %6.2f ms again  %7llu steps %6zu bytes %6d allowed", first * 1e3,
           again * 1e3, (unsigned long long)steps, lk_grammar_state_bytes(s), n);
    lk_grammar_state_free(s);
    free(allowed);
}

static void time_theirs(const struct lk_vocab *vocab, const char *grammar, const char *text) {
    const struct llama_vocab *v = lk_vocab_llama(vocab);
    int32_t n_vocab = llama_vocab_n_tokens(v), *tok = NULL, n_allowed = 0;
    size_t n = 0;
    llama_token_data *data = calloc((size_t)n_vocab, sizeof *data);
    struct llama_sampler *s = llama_sampler_init_grammar(v, grammar, "root");
    if (!s || (*text && lk_vocab_tokenize(vocab, text, strlen(text), 0, 0, &tok, &n, NULL))) return;
    for (size_t i = 0; i < n; i++) llama_sampler_accept(s, tok[i]);
    double seconds = 0;
    for (int i = 0; i < 5; i++) {
        for (int32_t k = 0; k < n_vocab; k++) data[k] = (llama_token_data){k, 1, 0};
        llama_token_data_array list = {data, (size_t)n_vocab, -1, false};
        double begin = lk_thread_cpu_seconds();
        llama_sampler_apply(s, &list);
        seconds += (lk_thread_cpu_seconds() - begin) / 5;
    }
    for (int32_t k = 0; k < n_vocab; k++) n_allowed += data[k].logit == 1;
    printf(" | libllama %6.2f ms %6d allowed", seconds * 1e3, n_allowed);
    llama_sampler_free(s);
    free(tok), free(data);
}

int main(int argc, char **argv) {
    struct lk_vocab *vocab = NULL;
    const struct lk_token_bytes *t = NULL;
    struct lk_token_bytes *larger = NULL;
    struct lk_grammar *g = NULL;
    char *grammar = NULL;
    lk_err err = {0};
    double begin = lk_thread_cpu_seconds();
    if (argc < 2 || lk_vocab_open(&vocab, argv[1], &err)) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: bench/grammar MODEL.gguf [N]" : err.msg);
        return 1;
    }
    begin = lk_thread_cpu_seconds();
    if (lk_vocab_token_bytes(vocab, &t, &err) ||
        lk_schema_to_grammar(schema, sizeof schema - 1, &grammar, &err) ||
        lk_grammar_new(&g, grammar, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("bytes of %u tokens, and the grammar: %.1f ms, %zu bytes of grammar\n", t->n,
           (lk_thread_cpu_seconds() - begin) * 1e3, lk_grammar_bytes(g));
    if (argc > 2) larger = extend(t, (uint32_t)strtoul(argv[2], NULL, 10));
    for (size_t i = 0; i < sizeof place / sizeof place[0]; i++) {
        printf("%-26s", place[i].name);
        time_ours(g, larger ? larger : t, place[i].text);
        if (!larger) time_theirs(vocab, grammar, place[i].text);
        printf("\n");
    }
    lk_token_bytes_free(larger);
    lk_grammar_free(g);
    lk_text_free(grammar);
    lk_vocab_free(vocab);
    return 0;
}
