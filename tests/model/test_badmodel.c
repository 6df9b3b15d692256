/* Damaged, malicious and unsupported model files. Each gives an error that says what is wrong; none
 * crashes. */
#include "base/log.h"
#include "model/gguf_read.h"
#include "model/net.h"
#include "test.h"
#include "tiny_gguf.h"
#include "token/tokenize.h"

#include <unistd.h>

static const struct tiny_spec small = {.name = "small",
                                       .arch = "llama",
                                       .n_layer = 2,
                                       .n_head = 2,
                                       .n_head_kv = 1,
                                       .d_head = 16,
                                       .n_ff = 32,
                                       .n_vocab = 64,
                                       .n_ctx = 64,
                                       .seed = 1};
static const struct tiny_spec small_spm = {.name = "small",
                                           .arch = "llama",
                                           .n_layer = 1,
                                           .n_head = 2,
                                           .n_head_kv = 1,
                                           .d_head = 16,
                                           .n_ff = 32,
                                           .n_ctx = 64,
                                           .tokenizer = TINY_SPM,
                                           .seed = 2};
static const struct tiny_spec small_bpe = {.name = "small",
                                           .arch = "qwen2",
                                           .n_layer = 1,
                                           .n_head = 2,
                                           .n_head_kv = 1,
                                           .d_head = 16,
                                           .n_ff = 32,
                                           .n_ctx = 64,
                                           .tokenizer = TINY_BPE,
                                           .seed = 3};

/* Small models of other families, with the least that these need. */
#define SMALL(family, ...)                                                                         \
    {                                                                                              \
        .name = "small", .arch = family, .n_layer = 1, .n_head = 2, .n_head_kv = 1, .d_head = 16,  \
        .n_ff = 32, .n_vocab = 64, .n_ctx = 64, .seed = 5, __VA_ARGS__                             \
    }
static const struct tiny_spec small_moe = SMALL("qwen3moe", .n_expert = 4, .n_expert_used = 2);
static const struct tiny_spec small_phi =
    SMALL("phi3", .rope_scaling = "longrope", .rope_factor = 1);
static const struct tiny_spec small_granite = SMALL("granite", .scaled = true);
static const struct tiny_spec small_gemma = SMALL("gemma2", .n_swa = 16);
static const struct tiny_spec small_oss =
    SMALL("gpt-oss", .n_expert = 4, .n_expert_used = 2, .n_swa = 16, .untied = true);

static char scratch[256]; /* path of the file that all tests use */

static void assert_ledger_empty(const struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(ledger, i), 0);
}

/* Open and close a model. All memory is freed, whatever the result. */
static lk_status try_open(const char *path, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_net *net = NULL;
    lk_status status = lk_net_open(&net, path, NULL, &ledger, err);
    if (status == LK_OK)
        lk_net_free(net, &ledger);
    else
        assert_null(net);
    assert_ledger_empty(&ledger);
    return status;
}

static void write_bytes(const void *data, size_t size) {
    FILE *f = fopen(scratch, "wb");
    assert_non_null(f);
    if (size) assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static uint8_t *read_bytes(size_t *size) {
    FILE *f = fopen(scratch, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*size);
    assert_int_equal(fread(data, 1, *size, f), *size);
    fclose(f);
    return data;
}

static void expect(lk_status expected, const char *words, const char *what) {
    lk_err err = {0};
    lk_status status = try_open(scratch, &err);
    if (status != expected || !strstr(err.msg, words)) {
        fail_msg("%s: %s \"%s\", expected %s with \"%s\"", what, lk_status_name(status), err.msg,
                 lk_status_name(expected), words);
    }
    assert_null(strchr(err.msg, '\n'));
}

/* ---- wrong keys ---- */

enum edit_kind { U32, F32, STR, BOOL, REMOVE, ARRAY };

struct edit {
    const struct tiny_spec *spec;
    const char *key;
    enum edit_kind kind;
    double number;
    const char *text;
    lk_status expected;
    const char *words; /* expected in the message */
};

static const struct edit edits[] = {
    {&small, "general.architecture", STR, 0, "mamba", LK_E_UNSUPPORTED,
     "architecture \"mamba\" is not supported; supported: llama"},
    {&small, "general.architecture", STR, 0, "", LK_E_UNSUPPORTED, "architecture"},
    {&small, "general.architecture", STR, 0, "llama4", LK_E_UNSUPPORTED,
     "\"llama4\" is not supported; of the supported ones, llama is nearest: the file has no key "
     "llama4.block_count"},
    {&small, "general.architecture", STR, 0, "an architecture with a name of 40 letters",
     LK_E_UNSUPPORTED, "supported: llama"},
    {&small_phi, "phi3.rope.scaling.type", STR, 0, "su", LK_E_UNSUPPORTED, "\"su\""},
    {&small_phi, "phi3.rope.dimension_count", U32, 8, 0, LK_E_FORMAT,
     "rope_factors_long.weight has shape [8, 1, 1, 1], expected [4, 1]"},
    {&small_granite, "granite.logit_scale", REMOVE, 0, 0, LK_E_FORMAT, "granite.logit_scale"},
    {&small_granite, "granite.logit_scale", F32, 0, 0, LK_E_FORMAT, "granite.logit_scale"},
    {&small_granite, "granite.residual_scale", F32, -1, 0, LK_E_FORMAT, "expected a positive"},
    {&small_granite, "granite.attention.scale", F32, NAN, 0, LK_E_FORMAT, "not a finite"},
    {&small_gemma, "gemma2.attn_logit_softcapping", F32, -1, 0, LK_E_FORMAT, "softcapping is -1"},
    {&small_gemma, "gemma2.attention.sliding_window_pattern", ARRAY, 0, 0, LK_E_FORMAT,
     "not a list of 1 flags"},
    {&small_gemma, "gemma2.rope.freq_base_swa", F32, -1, 0, LK_E_FORMAT, "sliding-window"},
    {&small_oss, "gpt-oss.expert_count", REMOVE, 0, 0, LK_E_FORMAT, "gpt-oss.expert_count"},
    {&small_oss, "gpt-oss.attention.head_count", U32, 4, 0, LK_E_FORMAT, "attn_sinks.weight"},
    {&small, "general.architecture", U32, 3, 0, LK_E_FORMAT, "expected a string"},
    {&small, "general.architecture", REMOVE, 0, 0, LK_E_FORMAT, "has no key general.architecture"},
    {&small, "general.type", STR, 0, "adapter", LK_E_UNSUPPORTED, "adapter"},
    {&small, "general.name", U32, 3, 0, LK_E_FORMAT, "general.name"},
    {&small, "split.count", U32, 3, 0, LK_E_UNSUPPORTED, "split into 3"},
    {&small, "llama.expert_count", U32, 8, 0, LK_E_FORMAT, "has no key llama.expert_used_count"},
    {&small_bpe, "qwen2.expert_count", U32, 8, 0, LK_E_FORMAT, "qwen2.expert_used_count"},
    {&small_moe, "qwen3moe.expert_count", REMOVE, 0, 0, LK_E_FORMAT, "key qwen3moe.expert_count"},
    {&small_moe, "qwen3moe.expert_count", U32, 5, 0, LK_E_FORMAT,
     "blk.0.ffn_gate_inp.weight has shape [32, 4, 1, 1], expected [32, 5]"},
    {&small_moe, "qwen3moe.expert_count", U32, 4e9, 0, LK_E_FORMAT, "expected 0 to 1024"},
    {&small_moe, "qwen3moe.expert_used_count", U32, 5, 0, LK_E_FORMAT, "expected 1 to 4"},
    {&small_moe, "qwen3moe.expert_used_count", U32, 0, 0, LK_E_FORMAT, "expected 1 to 4"},
    {&small_moe, "qwen3moe.expert_group_count", U32, 2, 0, LK_E_FORMAT,
     "has no key qwen3moe.expert_group_used_count"},
    {&small_moe, "qwen3moe.feed_forward_length", STR, 0, "none", LK_E_FORMAT, "an integer"},
    {&small_moe, "qwen3moe.expert_feed_forward_length", U32, 48, 0, LK_E_FORMAT,
     "blk.0.ffn_down_exps.weight has shape [32, 32, 4, 1], expected [48, 32, 4]"},
    {&small, "llama.attention.causal", BOOL, 0, 0, LK_E_UNSUPPORTED, "not causal"},
    {&small, "llama.block_count", REMOVE, 0, 0, LK_E_FORMAT, "has no key llama.block_count"},
    {&small, "llama.block_count", U32, 0, 0, LK_E_FORMAT, "llama.block_count is 0"},
    {&small, "llama.block_count", U32, 1e6, 0, LK_E_FORMAT, "expected 1 to 512"},
    {&small, "llama.block_count", U32, 3, 0, LK_E_FORMAT, "has no tensor blk.2.attn_norm.weight"},
    {&small, "llama.block_count", U32, 1, 0, LK_E_UNSUPPORTED, "blk.1."},
    {&small, "llama.block_count", STR, 0, "two", LK_E_FORMAT, "expected an integer"},
    {&small, "llama.block_count", F32, 2, 0, LK_E_FORMAT, "expected an integer"},
    {&small, "llama.embedding_length", U32, 64, 0, LK_E_FORMAT,
     "token_embd.weight has shape [32, 64, 1, 1], expected [64, 64]"},
    {&small, "llama.embedding_length", U32, 4e9, 0, LK_E_FORMAT, "llama.embedding_length"},
    {&small, "llama.feed_forward_length", U32, 48, 0, LK_E_FORMAT, "expected [32, 48]"},
    {&small, "llama.context_length", U32, 0, 0, LK_E_FORMAT, "llama.context_length"},
    {&small, "llama.context_length", U32, 4294967295.0, 0, LK_E_FORMAT, "llama.context_length"},
    {&small, "llama.attention.head_count", U32, 0, 0, LK_E_FORMAT, "head_count is 0"},
    {&small, "llama.attention.head_count", U32, 3, 0, LK_E_FORMAT, "expected [48, 32]"},
    {&small, "llama.attention.head_count", ARRAY, 0, 0, LK_E_UNSUPPORTED, "differs between layers"},
    {&small, "llama.attention.head_count_kv", U32, 4, 0, LK_E_FORMAT,
     "multiple of 4 key-value heads"},
    {&small, "llama.attention.key_length", U32, 15, 0, LK_E_UNSUPPORTED, "key heads have 15"},
    {&small, "llama.attention.key_length", U32, 512, 0, LK_E_UNSUPPORTED, "512"},
    {&small, "llama.attention.value_length", U32, 32, 0, LK_E_UNSUPPORTED, "value heads 32"},
    {&small, "llama.attention.layer_norm_rms_epsilon", REMOVE, 0, 0, LK_E_FORMAT, "has no key"},
    {&small, "llama.attention.layer_norm_rms_epsilon", F32, -1, 0, LK_E_FORMAT, "negative"},
    {&small, "llama.attention.layer_norm_rms_epsilon", F32, NAN, 0, LK_E_FORMAT,
     "not a finite number"},
    {&small, "llama.attention.layer_norm_rms_epsilon", U32, 1, 0, LK_E_FORMAT, "floating-point"},
    {&small, "llama.rope.dimension_count", U32, 15, 0, LK_E_FORMAT, "15 of 16 channels"},
    {&small, "llama.rope.dimension_count", U32, 64, 0, LK_E_FORMAT, "64 of 16 channels"},
    {&small, "llama.rope.freq_base", F32, 0, 0, LK_E_FORMAT, "rope base is 0"},
    {&small, "llama.rope.freq_base", F32, INFINITY, 0, LK_E_FORMAT, "finite"},
    {&small, "llama.rope.scaling.type", STR, 0, "su", LK_E_UNSUPPORTED, "\"su\""},
    {&small, "llama.rope.scaling.factor", F32, -2, 0, LK_E_FORMAT, "factor is -2"},
    {&small, "llama.vocab_size", U32, 100, 0, LK_E_FORMAT,
     "token_embd.weight has shape [32, 64, 1, 1], expected [32, 100]"},
    {&small, "llama.vocab_size", U32, 0, 0, LK_E_FORMAT, "vocab_size"},
    {&small, "tokenizer.ggml.model", U32, 0, 0, LK_E_FORMAT, "tokenizer.ggml.model"},
    {&small, "tokenizer.ggml.model", STR, 0, "llama", LK_E_FORMAT,
     "has no key tokenizer.ggml.tokens"},
    {&small_spm, "tokenizer.ggml.model", STR, 0, "bert", LK_E_UNSUPPORTED, "tokenizer \"bert\""},
    {&small_spm, "tokenizer.ggml.bos_token_id", U32, 5000, 0, LK_E_FORMAT, "bos_token_id is 5000"},
    {&small_spm, "tokenizer.ggml.bos_token_id", STR, 0, "<s>", LK_E_FORMAT, "bos_token_id"},
    {&small_spm, "tokenizer.ggml.tokens", ARRAY, 0, 0, LK_E_FORMAT, "not an array of strings"},
    {&small_spm, "tokenizer.ggml.tokens", U32, 3, 0, LK_E_FORMAT, "not an array of strings"},
    {&small_spm, "tokenizer.ggml.scores", ARRAY, 0, 0, LK_E_FORMAT, "expected f32"},
    {&small_spm, "tokenizer.ggml.token_type", ARRAY, 0, 0, LK_E_FORMAT, "expected i32"},
    {&small_spm, "tokenizer.ggml.token_type", STR, 0, "x", LK_E_FORMAT, "not an array"},
    {&small_bpe, "tokenizer.ggml.merges", REMOVE, 0, 0, LK_E_FORMAT,
     "has no key tokenizer.ggml.merges"},
    {&small_bpe, "tokenizer.ggml.merges", U32, 1, 0, LK_E_FORMAT, "not an array of strings"},
    {&small_bpe, "tokenizer.ggml.model", STR, 0, "llama", LK_E_UNSUPPORTED,
     "no token for the byte"},
};

static void apply_edit(struct gguf_context *g, void *user) {
    const struct edit *e = user;
    const uint32_t uneven[] = {2, 4};
    gguf_remove_key(g, e->key);
    if (e->kind == U32) gguf_set_val_u32(g, e->key, (uint32_t)e->number);
    if (e->kind == F32) gguf_set_val_f32(g, e->key, (float)e->number);
    if (e->kind == STR) gguf_set_val_str(g, e->key, e->text);
    if (e->kind == BOOL) gguf_set_val_bool(g, e->key, e->number != 0);
    if (e->kind == ARRAY) gguf_set_arr_data(g, e->key, GGUF_TYPE_UINT32, uneven, 2);
}

static void wrong_keys(void **state) {
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        assert_true(tiny_gguf_write_edited(scratch, edits[i].spec, apply_edit, (void *)&edits[i]));
        char what[128];
        snprintf(what, sizeof what, "edit %zu, %s", i, edits[i].key);
        expect(edits[i].expected, edits[i].words, what);
    }
}

/* Keys that may be absent, because others tell what they say. */
static void absent_keys(void **state) {
    static const char *const keys[] = {"llama.vocab_size", "llama.attention.key_length",
                                       "llama.attention.value_length",
                                       "llama.rope.dimension_count"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct edit edit = {.key = keys[i], .kind = REMOVE};
        struct lk_ledger ledger = {0};
        struct lk_net *net = NULL;
        lk_err err = {0};
        assert_true(tiny_gguf_write_edited(scratch, &small, apply_edit, &edit));
        if (lk_net_open(&net, scratch, NULL, &ledger, &err)) fail_msg("%s: %s", keys[i], err.msg);
        assert_int_equal(net->hp.n_vocab, small.n_vocab);
        assert_int_equal(net->hp.d_head, small.d_head);
        assert_int_equal(net->hp.n_rot, small.d_head);
        lk_net_free(net, &ledger);
    }
}

static void set_tokens(struct gguf_context *g, const char *replaced, const char *by, size_t keep) {
    int64_t id = gguf_find_key(g, "tokenizer.ggml.tokens");
    size_t n = gguf_get_arr_n(g, id);
    if (keep && keep < n) n = keep;
    char(*store)[16] = calloc(n, sizeof *store);
    const char **text = calloc(n, sizeof *text);
    for (size_t i = 0; i < n; i++) {
        const char *old = gguf_get_arr_str(g, id, i);
        snprintf(store[i], sizeof store[i], "%s", strcmp(old, replaced) == 0 ? by : old);
        text[i] = store[i];
    }
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", text, n);
    free(text);
    free(store);
}

static void make_tokens_equal(struct gguf_context *g, void *user) {
    set_tokens(g, "he", "hell", 0);
}
static void remove_byte_token(struct gguf_context *g, void *user) {
    set_tokens(g, "<0x80>", "eighty", 0);
}
static void remove_tokens(struct gguf_context *g, void *user) { set_tokens(g, "", "", 200); }
static void make_token_empty(struct gguf_context *g, void *user) { set_tokens(g, "or", "", 0); }

static void wrong_vocabularies(void **state) {
    assert_true(tiny_gguf_write_edited(scratch, &small_bpe, make_tokens_equal, NULL));
    expect(LK_E_FORMAT, "same text \"hell\"", "equal tokens");
    assert_true(tiny_gguf_write_edited(scratch, &small_spm, remove_byte_token, NULL));
    expect(LK_E_UNSUPPORTED, "byte 0x80", "a missing byte");
    assert_true(tiny_gguf_write_edited(scratch, &small_spm, remove_tokens, NULL));
    expect(LK_E_FORMAT, "entries for 200 tokens", "arrays of different lengths");
    assert_true(tiny_gguf_write_edited(scratch, &small_spm, make_token_empty, NULL));
    assert_int_equal(try_open(scratch, NULL), LK_OK); /* libllama names empty tokens itself */
    struct lk_vocab *v = NULL;
    assert_int_equal(lk_vocab_open(&v, scratch, NULL), LK_OK);
    lk_vocab_free(v);
}

/* ---- files that are not models ---- */

static void not_files(void **state) {
    lk_err err;
    assert_int_equal(try_open("/nonexistent/model.gguf", &err), LK_E_IO);
    assert_int_equal(try_open("/", &err), LK_E_IO);
    write_bytes("", 0);
    expect(LK_E_FORMAT, "empty", "an empty file");
    write_bytes("GGU", 3);
    expect(LK_E_FORMAT, "not a GGUF file", "three bytes");
    write_bytes("ELF? this is not a model at all", 31);
    expect(LK_E_FORMAT, "not a GGUF file", "text");
    write_bytes("GGUF", 4);
    expect(LK_E_FORMAT, "ends at byte 4", "only magic");
}

static void truncated_files(void **state) {
    size_t size;
    assert_true(tiny_gguf_write(scratch, &small_spm));
    uint8_t *data = read_bytes(&size);
    size_t n = 0;
    for (size_t cut = 1; cut < size; cut += cut < 2000 ? 7 : 997, n++) {
        write_bytes(data, cut);
        assert_int_equal(try_open(scratch, NULL), LK_E_FORMAT);
    }
    write_bytes(data, size - 1);
    assert_int_equal(try_open(scratch, NULL), LK_E_FORMAT);
    print_message("%zu lengths\n", n + 1);
    free(data);
}

/* A flipped bit gives an error or a model. If it gives a model, its tokenizer must not crash. */
static void open_with_flipped_bits(const struct tiny_spec *spec, size_t n_flips) {
    size_t size, n_ok = 0, n_vocab = 0;
    assert_true(tiny_gguf_write(scratch, spec));
    uint8_t *data = read_bytes(&size);
    struct gguf_context *g =
        gguf_init_from_buffer(data, size, (struct gguf_init_params){.no_alloc = true});
    size_t header = gguf_get_data_offset(g);
    gguf_free(g);
    uint32_t rng = 99;
    for (size_t i = 0; i < n_flips; i++) {
        size_t at = ((rng = rng * 1664525 + 1013904223) >> 4) % header;
        int bit = (int)((rng = rng * 1664525 + 1013904223) >> 16 & 7);
        data[at] ^= (uint8_t)(1 << bit);
        write_bytes(data, size);
        data[at] ^= (uint8_t)(1 << bit);
        if (try_open(scratch, NULL) != LK_OK) continue;
        n_ok++;
        struct lk_vocab *v = NULL;
        int32_t *tok = NULL;
        size_t n_tok;
        if (lk_vocab_open(&v, scratch, NULL) != LK_OK) continue;
        n_vocab++;
        if (lk_vocab_tokenize(v, "<s>hello w\xc3\xb6rld\n", 15,
                              LK_TOKENIZE_BEGIN | LK_TOKENIZE_CONTROL, 0, &tok, &n_tok,
                              NULL) == LK_OK) {
            for (size_t t = 0; t < n_tok; t++) lk_vocab_token_text(v, tok[t], &(size_t){0});
            free(tok);
        }
        lk_vocab_free(v);
    }
    print_message("%s, %zu flips in %zu bytes: %zu open, %zu with a tokenizer\n", spec->arch,
                  n_flips, header, n_ok, n_vocab);
    free(data);
}

static void flipped_bits(void **state) {
    open_with_flipped_bits(&small, 400);
    open_with_flipped_bits(&small_spm, 400);
    open_with_flipped_bits(&small_bpe, 400);
    open_with_flipped_bits(&small_moe, 400);
    open_with_flipped_bits(&small_oss, 400);
}

/* ---- headers byte by byte ---- */

struct byte_buffer {
    uint8_t data[4096];
    size_t n;
};

static void append(struct byte_buffer *b, const void *data, size_t n) {
    assert_true(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
}
static void u32(struct byte_buffer *b, uint32_t x) { append(b, &x, 4); }
static void u64(struct byte_buffer *b, uint64_t x) { append(b, &x, 8); }
static void str(struct byte_buffer *b, const char *s) {
    u64(b, strlen(s));
    append(b, s, strlen(s));
}
static void header(struct byte_buffer *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    b->n = 0;
    append(b, "GGUF", 4);
    u32(b, version);
    u64(b, n_tensors);
    u64(b, n_keys);
}

static void expect_rejected(const struct byte_buffer *b, lk_status expected, const char *words) {
    struct lk_ledger ledger = {0};
    lk_err err = {0};
    uint8_t *copy = malloc(b->n); /* exact size, so that a sanitizer detects reads past the end */
    memcpy(copy, b->data, b->n);
    lk_status status = lk_gguf_check(copy, b->n, &ledger, &err);
    free(copy);
    assert_ledger_empty(&ledger);
    if (status != expected || !strstr(err.msg, words))
        fail_msg("%s \"%s\", expected \"%s\"", lk_status_name(status), err.msg, words);
}

static void bad_headers(void **state) {
    struct byte_buffer b;
    const uint32_t versions[] = {0, 1, 4, 0x03000000};
    for (int i = 0; i < 4; i++) {
        header(&b, versions[i], 0, 0);
        expect_rejected(&b, LK_E_UNSUPPORTED, "version");
    }
    header(&b, 3, UINT64_MAX, 0);
    expect_rejected(&b, LK_E_FORMAT, "damaged");
    header(&b, 3, 0, 1u << 30);
    expect_rejected(&b, LK_E_FORMAT, "damaged");
    header(&b, 3, 5, 0);
    expect_rejected(&b, LK_E_FORMAT, "description of tensor 0");
}

static void bad_keys(void **state) {
    struct byte_buffer b;
    const uint64_t lengths[] = {UINT64_MAX, 1ull << 40, 0, 2000};
    for (int i = 0; i < 4; i++) {
        header(&b, 3, 0, 1);
        u64(&b, lengths[i]);
        for (int j = 0; j < 3000; j += 4) u32(&b, 0x41414141);
        expect_rejected(&b, LK_E_FORMAT, "key 0");
    }
    header(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        str(&b, "twice");
        u32(&b, GGUF_TYPE_UINT8);
        append(&b, "x", 1);
    }
    expect_rejected(&b, LK_E_FORMAT, "twice occurs twice");
    const uint32_t types[] = {13, 1000, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        header(&b, 3, 0, 1);
        str(&b, "k");
        u32(&b, types[i]);
        u64(&b, 0);
        expect_rejected(&b, LK_E_FORMAT, "unknown value type");
    }
    header(&b, 3, 0, 1);
    str(&b, "nested");
    u32(&b, GGUF_TYPE_ARRAY);
    u32(&b, GGUF_TYPE_ARRAY);
    u64(&b, 1);
    expect_rejected(&b, LK_E_FORMAT, "unknown value type 9");
    const uint64_t counts[] = {UINT64_MAX, 1ull << 61, 1000};
    for (int i = 0; i < 3; i++) {
        for (uint32_t type = GGUF_TYPE_STRING; type <= GGUF_TYPE_FLOAT64; type += 2) {
            header(&b, 3, 0, 1);
            str(&b, "array");
            u32(&b, GGUF_TYPE_ARRAY);
            u32(&b, type);
            u64(&b, counts[i]);
            expect_rejected(&b, LK_E_FORMAT, "inside array");
        }
    }
    header(&b, 3, 0, 1);
    str(&b, "flag");
    u32(&b, GGUF_TYPE_BOOL);
    append(&b, "\x02", 1);
    expect_rejected(&b, LK_E_FORMAT, "expected 0 or 1");
    const uint32_t alignments[] = {0, 3, 8, 1u << 31};
    for (int i = 0; i < 4; i++) {
        header(&b, 3, 0, 1);
        str(&b, "general.alignment");
        u32(&b, GGUF_TYPE_UINT32);
        u32(&b, alignments[i]);
        expect_rejected(&b, i < 2 ? LK_E_FORMAT : LK_E_UNSUPPORTED, "general.alignment");
    }
    header(&b, 3, 0, 1);
    str(&b, "general.alignment");
    u32(&b, GGUF_TYPE_UINT8);
    append(&b, "\x20", 1);
    expect_rejected(&b, LK_E_FORMAT, "general.alignment");
}

static void tensor(struct byte_buffer *b, const char *name, uint32_t n_dims, uint64_t ne0,
                   uint64_t ne1, uint32_t type, uint64_t offset) {
    const uint64_t ne[] = {ne0, ne1, 1, 1, 1, 1};
    str(b, name);
    u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 6; i++) u64(b, ne[i]);
    u32(b, type);
    u64(b, offset);
}

static void bad_tensors(void **state) {
    struct byte_buffer b;
    const struct {
        uint32_t n_dims;
        uint64_t ne0, ne1;
        uint32_t type;
        uint64_t offset;
        const char *words;
    } bad[] = {
        {0, 8, 1, GGML_TYPE_F32, 0, "0 dimensions"},
        {5, 8, 1, GGML_TYPE_F32, 0, "5 dimensions"},
        {UINT32_MAX, 8, 1, GGML_TYPE_F32, 0, "dimensions"},
        {2, 0, 1, GGML_TYPE_F32, 0, "invalid shape"},
        {2, UINT64_MAX, 1, GGML_TYPE_F32, 0, "invalid shape"},
        {2, 1ull << 33, 1ull << 33, GGML_TYPE_F32, 0, "invalid shape"},
        {2, 1ull << 62, 2, GGML_TYPE_I8, 0, "invalid shape"},
        {2, 8, 1, 4, 0, "invalid shape"},
        {2, 8, 1, 31, 0, "invalid shape"},
        {2, 8, 1, 999, 0, "invalid shape"},
        {2, 33, 1, GGML_TYPE_Q4_0, 0, "invalid shape"},
        {2, 8, 1, GGML_TYPE_F32, 32, "offset 32, expected 0"},
        {2, 8, 1, GGML_TYPE_F32, UINT64_MAX, "expected 0"},
        {2, 1 << 20, 1 << 10, GGML_TYPE_F32, 0, "cut off"},
        {2, 8, 100, GGML_TYPE_F32, 0, "cut off"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        header(&b, 3, 1, 0);
        tensor(&b, "t", bad[i].n_dims, bad[i].ne0, bad[i].ne1, bad[i].type, bad[i].offset);
        for (int j = 0; j < 500; j++) u32(&b, 0);
        expect_rejected(&b, LK_E_FORMAT, bad[i].words);
    }
    header(&b, 3, 2, 0);
    tensor(&b, "same", 1, 8, 1, GGML_TYPE_F32, 0);
    tensor(&b, "same", 1, 8, 1, GGML_TYPE_F32, 32);
    expect_rejected(&b, LK_E_FORMAT, "tensor same occurs twice");
    header(&b, 3, 2, 0);
    tensor(&b, "one", 1, 16, 1, GGML_TYPE_F32, 0);
    tensor(&b, "overlapping", 1, 8, 1, GGML_TYPE_F32, 32);
    expect_rejected(&b, LK_E_FORMAT, "overlapping starts at offset 32, expected 64");
    header(&b, 3, 1, 0);
    tensor(&b, "a name that is far too long for any tensor that ggml could ever hold", 1, 8, 1,
           GGML_TYPE_F32, 0);
    expect_rejected(&b, LK_E_FORMAT, "invalid name");
    header(&b, 3, 1, 0);
    tensor(&b, "", 1, 8, 1, GGML_TYPE_F32, 0);
    expect_rejected(&b, LK_E_FORMAT, "invalid name");
}

static void unusable_types(void **state) {
    struct tiny_spec s = small;
    s.type = GGML_TYPE_F16; /* changed below in the tensor table */
    assert_true(tiny_gguf_write(scratch, &s));
    size_t size;
    uint8_t *data = read_bytes(&size);
    static const char name[] = "blk.0.attn_output.weight";
    for (size_t i = 0; i + sizeof name < size; i++) {
        if (memcmp(data + i, name, sizeof name - 1) != 0) continue;
        uint32_t type = GGML_TYPE_I16; /* same size as f16 */
        memcpy(data + i + sizeof name - 1 + 4 + 16, &type, 4);
        break;
    }
    write_bytes(data, size);
    expect(LK_E_UNSUPPORTED, "blk.0.attn_output.weight has type i16", "integer weights");
    free(data);
}

/* ---- out of memory, cancellation ---- */

static void out_of_memory(void **state) {
    const struct lk_net_opts opts = {.f32 = true, .no_mmap = true};
    struct tiny_spec s = small_spm;
    s.type = GGML_TYPE_Q8_0;
    s.d_head = 32;
    assert_true(tiny_gguf_write(scratch, &s));
    int n = 0;
    for (;; n++) {
        struct lk_ledger ledger = {.fail_at = n + 1};
        struct lk_net *net = NULL;
        lk_err err = {0};
        lk_status status = lk_net_open(&net, scratch, &opts, &ledger, &err);
        if (status == LK_OK) lk_net_free(net, &ledger);
        assert_ledger_empty(&ledger);
        if (status == LK_OK) break;
        assert_int_equal(status, LK_E_NOMEM);
        assert_true(err.msg[0]);
    }
    assert_true(n >= 8);
    print_message("%d failed allocations\n", n);
}

static bool stop_at(void *user, uint64_t done, uint64_t total) {
    int *left = user;
    assert_true(done <= total);
    return (*left)-- > 0;
}

static void cancelled(void **state) {
    assert_true(tiny_gguf_write(scratch, &small));
    for (int calls = 0; calls < 8; calls++) {
        int left = calls;
        struct lk_ledger ledger = {0};
        struct lk_net *net = NULL;
        const struct lk_net_opts opts = {.progress = stop_at, .user = &left, .no_mmap = true};
        assert_int_equal(lk_net_open(&net, scratch, &opts, &ledger, NULL), LK_E_CANCELLED);
        assert_ledger_empty(&ledger);
    }
}

int main(void) {
    lk_redirect_logs();
    const char *dir = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/lowkey-bad-%d.gguf", dir ? dir : "/tmp", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_keys),         cmocka_unit_test(absent_keys),
        cmocka_unit_test(wrong_vocabularies), cmocka_unit_test(not_files),
        cmocka_unit_test(truncated_files),    cmocka_unit_test(flipped_bits),
        cmocka_unit_test(bad_headers),        cmocka_unit_test(bad_keys),
        cmocka_unit_test(bad_tensors),        cmocka_unit_test(unusable_types),
        cmocka_unit_test(out_of_memory),      cmocka_unit_test(cancelled),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(scratch);
    return failed;
}
