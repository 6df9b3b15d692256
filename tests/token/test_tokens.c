/* Tokenizing and detokenizing, chat templates, sampling, and grammars from JSON schemas. */
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/net.h"
#include "test.h"
#include "tiny_gguf.h"
#include "token/chat_format.h"
#include "token/sampling.h"
#include "token/tokenize.h"

#include "llama.h"

#include <unistd.h>

/* Control tokens of the template in marked text. */
#define START "\xFF<|im_start|>\xFE"
#define END "\xFF<|im_end|>\xFE"

enum { ALL = LK_TOKENIZE_BEGIN | LK_TOKENIZE_CONTROL };

static void set_splitter(struct gguf_context *g, void *name) {
    if (name) gguf_set_val_str(g, "tokenizer.ggml.pre", name);
}

static struct lk_vocab *open_split_vocab(const char *preset, char *splitter) {
    char path[256];
    const char *dir = getenv("TMPDIR");
    struct lk_vocab *v = NULL;
    lk_err err = {0};
    snprintf(path, sizeof path, "%s/lowkey-tokens-%s-%d.gguf", dir ? dir : "/tmp", preset,
             (int)getpid());
    assert_true(tiny_gguf_write_edited(path, tiny_preset(preset), set_splitter, splitter));
    struct lk_ledger ledger = {0};
    struct lk_net *net = NULL; /* callers check the file before they load its vocabulary */
    if (lk_net_open(&net, path, NULL, &ledger, &err) != LK_OK ||
        lk_vocab_open(&v, path, &err) != LK_OK)
        fail_msg("%s: %s", preset, err.msg);
    lk_net_free(net, &ledger);
    unlink(path);
    return v;
}

static struct lk_vocab *open_vocab(const char *preset) { return open_split_vocab(preset, NULL); }

/* Append the text of a token to out[len..cap). Returns the new length. */
static size_t append_text(const struct lk_vocab *v, int32_t tok, char *out, size_t len,
                          size_t cap) {
    size_t n;
    const char *text = lk_vocab_token_text(v, tok, &n);
    assert_true(len + n < cap);
    memcpy(out + len, text, n + 1);
    return len + n;
}

static void assert_round_trip(const struct lk_vocab *v, const char *text, bool leading_space) {
    int32_t *tok = NULL;
    size_t n = 0, len = 0;
    char back[1024] = "";
    lk_err err = {0};
    if (lk_vocab_tokenize(v, text, strlen(text), 0, 0, &tok, &n, &err) != LK_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < n; i++) len = append_text(v, tok[i], back, len, sizeof back);
    free(tok);
    assert_string_equal(back + (leading_space ? 1 : 0), text);
}

static void round_trips(void **state) {
    struct lk_vocab *spm = open_vocab("llama-spm"), *bpe = open_vocab("qwen2-bpe");
    static const char *const texts[] = {"hello world",
                                        "a\nb\tc",
                                        "na\xc3\xafve caf\xc3\xa9",
                                        "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e",
                                        "\xf0\x9f\x98\x80!",
                                        "  two  spaces "};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_round_trip(spm, texts[i], true); /* SentencePiece adds a leading space */
        assert_round_trip(bpe, texts[i], false);
    }
    lk_vocab_free(spm);
    lk_vocab_free(bpe);
}

static void special_tokens(void **state) {
    struct lk_vocab *v = open_vocab("llama-spm");
    static const char text[] = "<|im_end|>";
    int32_t *tok = NULL;
    size_t n = 0;
    assert_int_equal(lk_vocab_tokenize(v, text, strlen(text), ALL, 0, &tok, &n, NULL), LK_OK);
    assert_int_equal(n, 2);
    assert_int_equal(tok[0], 1); /* <s> */
    assert_true(lk_vocab_is_eog(v, tok[1]));
    assert_false(lk_vocab_is_eog(v, 40));
    assert_string_equal(lk_vocab_token_text(v, tok[1], &n), text);
    assert_int_equal(n, strlen(text));
    free(tok);
    assert_int_equal(lk_vocab_tokenize(v, text, strlen(text), 0, 0, &tok, &n, NULL), LK_OK);
    assert_true(n > 2); /* plain text now */
    free(tok);
    assert_int_equal(lk_vocab_tokenize(v, "", 0, 0, 0, &tok, &n, NULL), LK_OK);
    assert_int_equal(n, 0);
    free(tok);
    assert_string_equal(lk_vocab_token_text(v, -1, &n), "");
    assert_string_equal(lk_vocab_token_text(v, 1 << 20, &n), "");
    assert_false(lk_vocab_is_eog(v, -5));
    assert_false(lk_vocab_is_eog(v, INT32_MAX));
    lk_vocab_free(v);
}

static void invalid_utf8_is_rejected(void **state) {
    static const struct {
        const char *text;
        size_t at;
    } bad[] = {
        {"ab\x80", 2},           {"\xc0\xaf", 0}, {"\xe0\x80\xaf", 0}, {"x\xed\xa0\x80", 1},
        {"\xf4\x90\x80\x80", 0}, {"\xf8", 0},     {"abc\xe6\x97", 3},  {"\xff", 0},
    };
    struct lk_vocab *v = open_vocab("qwen2-bpe");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int32_t *tok = NULL;
        size_t n = 0;
        lk_err err = {0};
        char position[32];
        assert_int_equal(lk_utf8_valid_prefix(bad[i].text, strlen(bad[i].text)), bad[i].at);
        assert_int_equal(
            lk_vocab_tokenize(v, bad[i].text, strlen(bad[i].text), ALL, 0, &tok, &n, &err),
            LK_E_FORMAT);
        snprintf(position, sizeof position, "byte %zu ", bad[i].at);
        assert_non_null(strstr(err.msg, position));
    }
    lk_vocab_free(v);
}

/* Pre-tokenizers that use regular expressions recurse once per character of a word. */
static void long_words(void **state) {
    enum { N = 60000 };
    char bloom[] = "bloom", standard[] = "default";
    struct lk_vocab *vocab[] = {open_split_vocab("qwen2-bpe", bloom),
                                open_split_vocab("qwen2-bpe", standard), open_vocab("llama-spm")};
    static const char runs[] = "a1! ";
    char *text = malloc(5 << 20);
    int32_t *tok = NULL;
    size_t n = 0;
    for (int v = 0; v < 3; v++) {
        for (const char *c = runs; *c; c++) {
            memset(text, *c, N);
            assert_int_equal(lk_vocab_tokenize(vocab[v], text, N, 0, 0, &tok, &n, NULL), LK_OK);
            assert_true(n > 0 && n <= N + 1);
            free(tok);
        }
        lk_vocab_free(vocab[v]);
    }
    free(text);
}

/* Runs of more than 64 KiB, such as base64, are cut at fixed places: a text with more after it has
 * the same tokens first. */
static void long_runs_are_cut(void **state) {
    enum { CUT = 64 << 10, LONG = 150000, MORE = 160000 };
    struct lk_vocab *v = open_vocab("qwen2-bpe");
    char *text = malloc(MORE);
    int32_t *tok[3] = {NULL};
    size_t n[3] = {0};
    for (size_t i = 0; i < MORE; i++) text[i] = i % 3 ? 'b' : 'a';
    memcpy(text + CUT - 1, "\xC3\xA9", 2); /* a character across the first place */
    const size_t len[3] = {CUT - 1, LONG, MORE};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(lk_vocab_tokenize(v, text, len[i], 0, MORE, &tok[i], &n[i], NULL), LK_OK);
    assert_memory_equal(tok[1], tok[0], n[0] * sizeof **tok);
    size_t same = 0;
    while (same < n[1] && tok[1][same] == tok[2][same]) same++;
    assert_true(same + 64 > n[1]);
    for (size_t i = 0; i < 3; i++) free(tok[i]);
    free(text);
    lk_vocab_free(v);
}

/* A tokenizer that splits digits in groups from the right in quadratic time: its long runs are cut
 * between groups, so the tokens are the same. */
static void long_numbers_are_cut(void **state) {
    enum { SHORT = 2000, LONG = 32000 };
    char name[] = "superbpe";
    struct lk_vocab *v = open_split_vocab("qwen2-bpe", name);
    char *text = malloc(LONG + 1);
    int32_t *tok = NULL, direct[SHORT];
    size_t n = 0;
    for (size_t i = 0; i < LONG; i++) text[i] = (char)('0' + i * 7 % 10);
    for (int32_t len = SHORT - 3; len < SHORT; len++) {
        assert_int_equal(lk_vocab_tokenize(v, text, (size_t)len, 0, 0, &tok, &n, NULL), LK_OK);
        int32_t n_direct =
            llama_tokenize(lk_vocab_llama(v), text, len, direct, SHORT, false, false);
        assert_int_equal(n, n_direct);
        assert_memory_equal(tok, direct, n * sizeof *tok);
        free(tok);
    }
    double start = lk_now();
    assert_int_equal(lk_vocab_tokenize(v, text, LONG, 0, 0, &tok, &n, NULL), LK_OK);
    assert_true(lk_now() - start < 30); /* whole it takes minutes */
    free(tok);
    free(text);
    lk_vocab_free(v);
}

/* The default model's tokenizer, if the model is present. */
static void smollm2_tokens(void **state) {
    char path[512];
    const char *dir = getenv("LOWKEY_MODELS"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/SmolLM2-135M-Instruct.Q4_1.gguf",
             dir    ? dir
             : home ? home
                    : "",
             dir ? "" : "/.cache/lowkey/models");
    if (access(path, R_OK) != 0) skip();
    struct lk_vocab *v = NULL;
    assert_int_equal(lk_vocab_open(&v, path, NULL), LK_OK);
    assert_round_trip(
        v, "The capital of France is Paris; 3.14159 \xe2\x82\xac.\n\n\tint main(void)", false);
    char *text = NULL;
    const lk_message msg[] = {{"system", "Be brief."}, {"user", "Hello"}};
    assert_int_equal(lk_vocab_chat_format(v, msg, 2, true, &text, NULL), LK_OK);
    assert_string_equal(text, START "system\nBe brief." END "\n" START "user\nHello" END "\n" START
                                    "assistant\n");
    int32_t *tok = NULL;
    size_t n = 0;
    assert_int_equal(
        lk_vocab_tokenize(v, text, strlen(text), LK_TOKENIZE_MARKED, 0, &tok, &n, NULL), LK_OK);
    assert_int_equal(tok[0], 1); /* <|im_start|> */
    free(tok);
    free(text);
    lk_vocab_free(v);
}

static void chat_template(void **state) {
    struct lk_vocab *v = open_vocab("llama-spm"), *none = open_vocab("llama");
    const lk_message msg[] = {{"system", "be brief"}, {"user", "hello"}};
    char *text = NULL;
    assert_int_equal(lk_vocab_chat_format(v, msg, 2, true, &text, NULL), LK_OK);
    assert_string_equal(text, START "system\nbe brief" END "\n" START "user\nhello" END "\n" START
                                    "assistant\n");
    free(text);
    assert_int_equal(lk_vocab_chat_format(v, msg, 0, true, &text, NULL), LK_E_ARG);
    assert_int_equal(lk_vocab_chat_format(v, &(lk_message){"user", NULL}, 1, true, &text, NULL),
                     LK_E_ARG);
    assert_int_equal(lk_vocab_chat_format(none, msg, 2, true, &text, NULL), LK_E_UNSUPPORTED);
    int32_t *tok;
    size_t n;
    assert_int_equal(lk_vocab_tokenize(none, "a", 1, ALL, 0, &tok, &n, NULL), LK_E_UNSUPPORTED);
    assert_int_equal(lk_vocab_token_text(none, 3, &n)[0], 0);
    lk_vocab_free(v);
    lk_vocab_free(none);
}

/* ---- sampling ---- */

static const lk_sampler_opts plain = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};

static int32_t sample_next(struct lk_sampling *s, const float *logits, int n) {
    int32_t tok = -1;
    lk_err err = {0};
    if (lk_sampling_next(s, logits, n, &tok, &err) != LK_OK) fail_msg("%s", err.msg);
    assert_in_range(tok, 0, n - 1);
    return tok;
}

static struct lk_sampling *new_sampler(const lk_sampler_opts *opts) {
    struct lk_sampling *s = NULL;
    assert_int_equal(lk_sampling_new(&s, NULL, opts, NULL), LK_OK);
    return s;
}

static void greedy_and_penalty(void **state) {
    const float logits[] = {0, 2, 5, 4.9f, -INFINITY};
    lk_sampler_opts o = plain;
    o.temperature = 0;
    struct lk_sampling *s = new_sampler(&o);
    for (int i = 0; i < 3; i++) assert_int_equal(sample_next(s, logits, 5), 2);
    lk_sampling_free(s);
    o.repeat_penalty = 1.5f;
    o.repeat_last_n = 1;
    s = new_sampler(&o);
    assert_int_equal(sample_next(s, logits, 5), 2);
    assert_int_equal(sample_next(s, logits, 5), 3); /* 5 / 1.5 < 4.9 */
    assert_int_equal(sample_next(s, logits, 5), 2);
    lk_sampling_free(s);
}

/* Biases are added before all other steps. */
static void biases_are_added(void **state) {
    const float logits[] = {0, 2, 5, 4.9f, -INFINITY};
    const lk_logit_bias bias[] = {{2, -INFINITY}, {1, 2}, {1, 0.95f}, {4, 100}};
    lk_sampler_opts o = plain;
    o.temperature = 0;
    o.bias = bias;
    for (o.n_bias = 0; o.n_bias <= 4; o.n_bias++) {
        static const int32_t best[] = {2, 3, 3, 1, 1};
        struct lk_sampling *s = new_sampler(&o);
        assert_int_equal(sample_next(s, logits, 5), best[o.n_bias]);
        lk_sampling_free(s);
    }
    const lk_logit_bias all[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    struct lk_sampling *s;
    int32_t tok;
    o.n_bias = 4;
    o.bias = all;
    for (o.temperature = 0; o.temperature <= 1; o.temperature++) {
        s = new_sampler(&o);
        assert_int_equal(lk_sampling_next(s, logits, 5, &tok, NULL), LK_E_FORMAT);
        assert_int_equal(lk_sampling_next(s, logits, 3, &tok, NULL),
                         LK_E_ARG); /* token 3 does not exist */
        lk_sampling_free(s);
    }
    o.n_bias = 1;
    for (int i = 0; i < 3; i++) {
        o.bias = &(lk_logit_bias){0, (float[]){NAN, INFINITY, -1e7f}[i]};
        assert_int_equal(lk_sampling_new(&s, NULL, &o, NULL), LK_E_ARG);
    }
}

static void ignore_eos_prevents_the_end(void **state) {
    struct lk_vocab *v = open_vocab("llama-spm");
    int n = 3 + 256 + 13 + 2, n_end = 0;
    float *logits = calloc((size_t)n, sizeof *logits);
    lk_sampler_opts o = plain;
    struct lk_sampling *s = NULL;
    for (int i = 0; i < n; i++) {
        logits[i] = lk_vocab_is_eog(v, i) ? 9 : 0;
        n_end += lk_vocab_is_eog(v, i);
    }
    assert_true(n_end > 0);
    for (int ignore = 0; ignore < 2; ignore++) {
        int ended = 0;
        o.ignore_eos = ignore;
        assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
        for (int i = 0; i < 100; i++) ended += lk_vocab_is_eog(v, sample_next(s, logits, n));
        if (ignore)
            assert_int_equal(ended, 0);
        else
            assert_true(ended > 50);
        lk_sampling_free(s);
    }
    free(logits);
    lk_vocab_free(v);
}

static void samples_follow_the_distribution(void **state) {
    enum { N = 20000 };
    const float logits[] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    const double expected[] = {0.5, 0.3, 0.15, 0.05};
    int count[4] = {0};
    lk_sampler_opts o = plain;
    o.seed = 7;
    struct lk_sampling *s = new_sampler(&o), *again = new_sampler(&o);
    for (int i = 0; i < N; i++) {
        int32_t tok = sample_next(s, logits, 4);
        assert_int_equal(sample_next(again, logits, 4),
                         tok); /* the same seed gives the same choices */
        count[tok]++;
    }
    for (int i = 0; i < 4; i++) assert_true(fabs((double)count[i] / N - expected[i]) < 0.02);
    lk_sampling_free(s);
    lk_sampling_free(again);
    const struct {
        int top_k;
        float top_p, min_p;
        int allowed;
    } cut[] = {{2, 1, 0, 2}, {0, 0.7f, 0, 2}, {0, 1, 0.25f, 3}, {1, 1, 0, 1}};
    for (size_t c = 0; c < sizeof cut / sizeof cut[0]; c++) {
        o.top_k = cut[c].top_k;
        o.top_p = cut[c].top_p;
        o.min_p = cut[c].min_p;
        s = new_sampler(&o);
        int seen = 0;
        for (int i = 0; i < 2000; i++) {
            int32_t tok = sample_next(s, logits, 4);
            if (tok + 1 > seen) seen = tok + 1;
        }
        assert_int_equal(seen, cut[c].allowed);
        lk_sampling_free(s);
    }
}

/* Every seed is deterministic. */
static void every_seed_is_deterministic(void **state) {
    float logits[100] = {0};
    const uint32_t seed[] = {0, UINT32_MAX, UINT32_MAX - 1};
    for (int i = 0; i < 3; i++) {
        lk_sampler_opts o = plain;
        o.seed = seed[i];
        struct lk_sampling *s = new_sampler(&o), *again = new_sampler(&o);
        for (int t = 0; t < 20; t++)
            assert_int_equal(sample_next(s, logits, 100), sample_next(again, logits, 100));
        lk_sampling_free(s);
        lk_sampling_free(again);
    }
}

struct saved_state {
    char at[1024];
    size_t n;
};

static bool append_saved(void *user, const void *data, size_t n) {
    struct saved_state *saved = user;
    assert_true(n <= sizeof saved->at - saved->n);
    memcpy(saved->at + saved->n, data, n);
    saved->n += n;
    return true;
}

static bool can_restore(const struct saved_state *saved, const lk_sampler_opts *opts) {
    struct lk_sampling *s = new_sampler(opts);
    bool restored;
    assert_int_equal(lk_sampling_restore(s, saved->at, saved->n, 4, &restored, NULL), LK_OK);
    lk_sampling_free(s);
    return restored;
}

/* A saved state can be restored only by samplers with the same options. */
static void restoring_needs_equal_options(void **state) {
    const float logits[] = {0, 1, 2, 3};
    struct lk_sampling *s = new_sampler(&plain);
    for (int i = 0; i < 10; i++) sample_next(s, logits, 4);
    struct saved_state saved = {.n = 0};
    assert_true(lk_sampling_save(s, &(struct lk_writer){append_saved, &saved}));
    lk_sampling_free(s);
    assert_true(can_restore(&saved, &plain));
    lk_sampler_opts other[11];
    for (int i = 0; i < 11; i++) other[i] = plain;
    other[0].temperature = 0.5f, other[1].top_k = 2, other[2].top_p = 0.5f, other[3].min_p = 0.1f,
    other[4].repeat_penalty = 2;
    other[5].repeat_last_n = 7, other[6].seed = 3, other[7].frequency_penalty = 1,
    other[8].presence_penalty = 1;
    other[9].bias = &(lk_logit_bias){0, 1}, other[9].n_bias = 1, other[10].ignore_eos = true;
    for (int i = 0; i < 11; i++)
        if (can_restore(&saved, &other[i]))
            fail_msg("options %d: a state saved with other options was restored", i);
    struct lk_sampling_state older; /* with fewer options in its text */
    memcpy(&older, saved.at, sizeof older);
    snprintf(older.options, sizeof older.options, "temperature 0x1p+0 top-k 0");
    memcpy(saved.at, &older, sizeof older);
    assert_false(can_restore(&saved, &plain));
}

static void bad_logits_and_options(void **state) {
    struct lk_sampling *s = new_sampler(&plain);
    int32_t tok;
    float logits[] = {1, NAN, 0}, dead[] = {-INFINITY, -INFINITY, -INFINITY};
    assert_int_equal(lk_sampling_next(s, logits, 3, &tok, NULL), LK_E_ARG);
    logits[1] = INFINITY;
    assert_int_equal(lk_sampling_next(s, logits, 3, &tok, NULL), LK_E_ARG);
    assert_int_equal(lk_sampling_next(s, dead, 3, &tok, NULL), LK_E_ARG);
    logits[1] = 0;
    sample_next(s, logits, 3);
    assert_int_equal(lk_sampling_next(s, logits, 2, &tok, NULL), LK_E_ARG);
    assert_int_equal(lk_sampling_next(s, logits, 0, &tok, NULL), LK_E_ARG);
    lk_sampling_free(s);
    lk_sampler_opts bad[7];
    for (int i = 0; i < 7; i++) bad[i] = plain;
    bad[0].temperature = NAN;
    bad[1].top_p = 1.5f;
    bad[2].top_p = NAN;
    bad[3].min_p = -1;
    bad[4].repeat_penalty = 0;
    bad[5].repeat_last_n = -1;
    bad[6].repeat_last_n = INT32_MAX;
    for (int i = 0; i < 7; i++)
        assert_int_equal(lk_sampling_new(&s, NULL, &bad[i], NULL), LK_E_ARG);
}

/* Sample n tokens, and return their text. */
static void sample_text(const struct lk_vocab *v, struct lk_sampling *s, const float *logits, int n,
                        int count, char *text, size_t cap) {
    for (int i = 0; i < count; i++)
        append_text(v, sample_next(s, logits, n), text, strlen(text), cap);
}

/* A grammar with a trigger is free until the trigger, holds until it is complete, and is free
 * again, also after its state was restored. */
static void trigger_starts_the_grammar(void **state) {
    struct lk_vocab *v = open_vocab("llama-spm");
    int n = 3 + 256 + 13 + 2;
    float *logits = calloc((size_t)n, sizeof *logits);
    lk_sampler_opts o = plain;
    struct lk_sampling *s = NULL, *copy = NULL;
    char text[64] = "";
    o.grammar = "root ::= \"yz\"";
    o.trigger = "ab";
    o.temperature = 0;
    assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
    assert_int_equal(lk_sampling_copy(&copy, s, 1, NULL), LK_OK);
    for (int k = 0; k < 2; k++) {
        static const char script[] = "aab??ab??"; /* the grammar replaces what it does not allow */
        struct lk_sampling *one = k ? copy : s;
        text[0] = 0;
        for (const char *c = script; *c; c++) {
            for (int i = 0; i < n; i++) logits[i] = i == *c + 3 ? 9 : 0;
            sample_text(v, one, logits, n, 1, text, sizeof text);
        }
        assert_string_equal(text, "aabyzabyz");
    }
    /* A grammar that allows no token there is given up, not an error. */
    lk_sampling_free(s);
    assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
    text[0] = 0;
    for (const char *c = "ab?b"; *c; c++) {
        for (int i = 0; i < n; i++) logits[i] = i == *c + 3 ? 9 : -INFINITY;
        sample_text(v, s, logits, n, 1, text, sizeof text);
    }
    assert_string_equal(text, "ab?b");
    char long_trigger[65];
    memset(long_trigger, 'a', 64);
    long_trigger[64] = 0;
    o.trigger = long_trigger;
    lk_sampling_free(s);
    assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_E_ARG);
    lk_sampling_free(copy);
    free(logits);
    lk_vocab_free(v);
}

/* A trigger that may come first only, after white space; and a control token that the grammar
 * accepts by its text after a trigger, but not one that ends an answer. */
static void triggers_at_the_start_and_control_tokens(void **state) {
    static const struct {
        const char *script, *want;
    } cases[] = {{" ab??ab?", " abyzab?"}, {"xab?", "xab?"}, {"aab?", "aab?"}};
    struct lk_vocab *v = open_vocab("llama-spm");
    int n = 3 + 256 + 13 + 2;
    float *logits = calloc((size_t)n, sizeof *logits);
    lk_sampler_opts o = plain;
    o.grammar = "root ::= \"yz\"";
    o.trigger = "ab";
    o.trigger_first = true;
    o.temperature = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct lk_sampling *s = NULL;
        char text[64] = "";
        assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
        for (const char *c = cases[k].script; *c; c++) {
            for (int i = 0; i < n; i++) logits[i] = i == *c + 3 ? 9 : 0;
            sample_text(v, s, logits, n, 1, text, sizeof text);
        }
        assert_string_equal(text, cases[k].want);
        lk_sampling_free(s);
    }
    int32_t control = -1;
    size_t n_text = 0;
    for (int32_t i = 0; i < n && control < 0; i++)
        if (lk_vocab_is_control(v, i) && !lk_vocab_is_eog(v, i) &&
            strcmp(lk_vocab_token_text(v, i, &n_text), "<s>") == 0)
            control = i;
    assert_true(control >= 0);
    o.grammar = "root ::= \"<s>\" \"y\"";
    o.trigger_first = false;
    for (int k = 0; k < 2; k++) { /* the model's choice, and among what is left */
        struct lk_sampling *s = NULL;
        char text[64] = "";
        assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
        for (const char *c = "ab"; *c; c++) {
            for (int i = 0; i < n; i++) logits[i] = i == *c + 3 ? 9 : 0;
            sample_text(v, s, logits, n, 1, text, sizeof text);
        }
        for (int i = 0; i < n; i++) logits[i] = i == control ? 8 : k && i == 'q' + 3 ? 9 : 0;
        assert_int_equal(sample_next(s, logits, n), control);
        sample_text(v, s, logits, n, 1, text, sizeof text);
        assert_string_equal(text, "aby");
        lk_sampling_free(s);
    }
    free(logits);
    lk_vocab_free(v);
}

static void grammar_constrains(void **state) {
    struct lk_vocab *v = open_vocab("llama-spm"), *none = open_vocab("llama");
    int n = 3 + 256 + 13 + 2;
    float *logits = calloc((size_t)n, sizeof *logits);
    lk_sampler_opts o = plain;
    struct lk_sampling *s = NULL;
    o.grammar = "root ::= \"yes\" | \"no\"";
    o.top_k = 5;
    for (uint32_t seed = 0; seed < 20; seed++) {
        char text[32] = "";
        int32_t tok = 0;
        o.seed = seed;
        assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
        for (int i = 0; i < 8; i++) {
            tok = sample_next(s, logits, n);
            if (lk_vocab_is_eog(v, tok)) break;
            size_t len = strlen(text);
            append_text(v, tok, text, len, sizeof text);
        }
        assert_true(lk_vocab_is_eog(v, tok));
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        lk_sampling_free(s);
    }
    assert_int_equal(lk_sampling_new(&s, v, &o, NULL), LK_OK);
    int32_t tok;
    for (int i = 0; i < n; i++) logits[i] = -INFINITY;
    logits['a' + 3] = 1; /* <0x61>, which is in neither word */
    assert_int_equal(lk_sampling_next(s, logits, n, &tok, NULL), LK_E_FORMAT);
    assert_int_equal(lk_sampling_next(s, logits, n - 1, &tok, NULL), LK_E_ARG);
    lk_sampling_free(s);
    char *deep = malloc(5000);
    memset(deep, '(', 4999);
    memcpy(deep, "root ::= ", 9);
    deep[4999] = 0;
    const char *const bad[] = {"root ::= \"a",
                               "root ::= missing",
                               "other ::= \"a\"",
                               "root ::= root \"a\"",
                               "root ::= [a-",
                               "root",
                               "root ::= \"a\"{99999999}",
                               "root ::= (\"a\"",
                               "root ::= *",
                               "\x01\x02",
                               deep};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o.grammar = bad[i];
        if (lk_sampling_new(&s, v, &o, NULL) != LK_E_FORMAT) fail_msg("accepted: %.40s", bad[i]);
    }
    o.grammar = "root ::= \"a\"";
    assert_int_equal(lk_sampling_new(&s, none, &o, NULL), LK_E_UNSUPPORTED);
    free(deep);
    free(logits);
    lk_vocab_free(v);
    lk_vocab_free(none);
}

int main(void) {
    lk_redirect_logs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(invalid_utf8_is_rejected),
        cmocka_unit_test(long_words),
        cmocka_unit_test(long_runs_are_cut),
        cmocka_unit_test(long_numbers_are_cut),
        cmocka_unit_test(smollm2_tokens),
        cmocka_unit_test(chat_template),
        cmocka_unit_test(greedy_and_penalty),
        cmocka_unit_test(biases_are_added),
        cmocka_unit_test(ignore_eos_prevents_the_end),
        cmocka_unit_test(samples_follow_the_distribution),
        cmocka_unit_test(every_seed_is_deterministic),
        cmocka_unit_test(restoring_needs_equal_options),
        cmocka_unit_test(bad_logits_and_options),
        cmocka_unit_test(grammar_constrains),
        cmocka_unit_test(trigger_starts_the_grammar),
        cmocka_unit_test(triggers_at_the_start_and_control_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
