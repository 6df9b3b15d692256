#include "tiny_gguf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct tiny_spec tiny_presets[] = {
    {.name = "llama",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 6,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .seed = 1},
    {.name = "llama-mha",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 4,
     .d_head = 80,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .untied = true,
     .biases = true,
     .seed = 2},
    {.name = "llama3",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 1,
     .d_head = 128,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .rope_factors = true,
     .seed = 3},
    {.name = "llama-96",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 96,
     .n_embd = 256,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .rope_scaling = "linear",
     .rope_factor = 4,
     .fused = true,
     .seed = 4},
    {.name = "llama-yarn",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .rope_scaling = "yarn",
     .rope_factor = 4,
     .seed = 5},
    {.name = "llama-q4_0",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .type = GGML_TYPE_Q4_0,
     .seed = 6},
    {.name = "llama-q8_0",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .type = GGML_TYPE_Q8_0,
     .seed = 7},
    {.name = "llama-q4_K",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .type = GGML_TYPE_Q4_K,
     .seed = 8},
    {.name = "llama-f16",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .type = GGML_TYPE_F16,
     .seed = 9},
    {.name = "qwen2",
     .arch = "qwen2",
     .n_layer = 3,
     .n_head = 6,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .biases = true,
     .seed = 10},
    {.name = "qwen3",
     .arch = "qwen3",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 128,
     .n_embd = 256,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .seed = 11},
    {.name = "gemma3",
     .arch = "gemma3",
     .n_layer = 7,
     .n_head = 4,
     .n_head_kv = 1,
     .d_head = 256,
     .n_embd = 320,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .n_swa = 16,
     .seed = 12},
    {.name = "gemma3-cap",
     .arch = "gemma3",
     .n_layer = 7,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_embd = 256,
     .n_ff = 256,
     .n_vocab = 320,
     .n_ctx = 256,
     .n_swa = 16,
     .softcap = 5,
     .rope_scaling = "linear",
     .rope_factor = 8,
     .seed = 13},
    {.name = "falcon",
     .arch = "falcon",
     .n_layer = 2,
     .n_head = 5,
     .n_head_kv = 1,
     .d_head = 64,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 256,
     .seed = 14},
    {.name = "falcon-40b",
     .arch = "falcon",
     .n_layer = 2,
     .n_head = 8,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 256,
     .norm_2 = true,
     .untied = true,
     .seed = 15},
    {.name = "bloom",
     .arch = "bloom",
     .n_layer = 2,
     .n_head = 6,
     .n_head_kv = 6,
     .d_head = 64,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 256,
     .seed = 16},
    {.name = "bloom-96",
     .arch = "bloom",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 4,
     .d_head = 96,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 256,
     .seed = 17},
    {.name = "gpt2",
     .arch = "gpt2",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 4,
     .d_head = 64,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 128,
     .seed = 18},
    {.name = "gpt2-80",
     .arch = "gpt2",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 4,
     .d_head = 80,
     .n_ff = 512,
     .n_vocab = 320,
     .n_ctx = 128,
     .untied = true,
     .seed = 19},
    {.name = "llama-spm",
     .arch = "llama",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_ctx = 256,
     .tokenizer = TINY_SPM,
     .seed = 20},
    {.name = "qwen2-bpe",
     .arch = "qwen2",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 256,
     .n_ctx = 256,
     .biases = true,
     .tokenizer = TINY_BPE,
     .seed = 21},
    {.name = "qwen2-q4_1",
     .arch = "qwen2",
     .n_layer = 2,
     .n_head = 4,
     .n_head_kv = 2,
     .d_head = 64,
     .n_ff = 2112,
     .n_vocab = 328,
     .n_ctx = 256,
     .untied = true,
     .biases = true,
     .type = GGML_TYPE_Q4_1,
     .seed = 22},
    {0},
};

const struct tiny_spec *tiny_preset(const char *name) {
    for (const struct tiny_spec *s = tiny_presets; s->name; s++) {
        if (strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}

/* ---- random numbers ---- */

static double uniform(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(uint64_t *state) {
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

/* ---- tensors ---- */

struct writer {
    const struct tiny_spec *spec;
    struct gguf_context *gguf;
    struct ggml_context *ctx;
    uint64_t rng;
    int n_embd, n_vocab;
};

static void add(struct writer *w, enum ggml_type type, int64_t ne0, int64_t ne1, double mean,
                double sd, const char *name) {
    struct ggml_tensor *t = ne1 > 0 ? ggml_new_tensor_2d(w->ctx, type, ne0, ne1)
                                    : ggml_new_tensor_1d(w->ctx, type, ne0);
    int64_t n = ggml_nelements(t);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(mean + sd * normal(&w->rng));
    if (type == GGML_TYPE_F32) {
        memcpy(t->data, x, (size_t)n * sizeof *x);
    } else {
        ggml_quantize_chunk(type, x, t->data, 0, n / ne0, ne0, NULL);
    }
    free(x);
    ggml_set_name(t, name);
    gguf_add_tensor(w->gguf, t);
}

static const char *layer_name(char buf[64], int layer, const char *rest) {
    snprintf(buf, 64, "blk.%d.%s", layer, rest);
    return buf;
}

/* A matrix whose products with unit-variance rows have variance about gain squared. */
static void matrix(struct writer *w, int layer, const char *rest, int64_t ne0, int64_t ne1,
                   double gain) {
    char name[64];
    add(w, w->spec->type, ne0, ne1, 0, gain / sqrt((double)ne0), layer_name(name, layer, rest));
}

static void norm(struct writer *w, int layer, const char *rest, int64_t n) {
    char name[64];
    add(w, GGML_TYPE_F32, n, 0, 1, 0.2, layer_name(name, layer, rest));
}

static void bias(struct writer *w, int layer, const char *rest, int64_t n) {
    char name[64];
    add(w, GGML_TYPE_F32, n, 0, 0, 0.2, layer_name(name, layer, rest));
}

static bool is_arch(const struct writer *w, const char *arch) {
    return strcmp(w->spec->arch, arch) == 0;
}

static bool has_layer_norms(const struct writer *w) {
    return is_arch(w, "falcon") || is_arch(w, "bloom") || is_arch(w, "gpt2");
}

static void add_attention(struct writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    int64_t n_q = s->n_head * s->d_head, n_kv = s->n_head_kv * s->d_head;
    bool plain = is_arch(w, "bloom") || is_arch(w, "gpt2");
    if (has_layer_norms(w) || s->fused) {
        matrix(w, i, "attn_qkv.weight", w->n_embd, n_q + 2 * n_kv, 1.5);
        if (plain) bias(w, i, "attn_qkv.bias", n_q + 2 * n_kv);
    } else {
        matrix(w, i, "attn_q.weight", w->n_embd, n_q, 1.5);
        matrix(w, i, "attn_k.weight", w->n_embd, n_kv, 1.5);
        matrix(w, i, "attn_v.weight", w->n_embd, n_kv, 1);
        if (s->biases) {
            bias(w, i, "attn_q.bias", n_q);
            bias(w, i, "attn_k.bias", n_kv);
            bias(w, i, "attn_v.bias", n_kv);
        }
    }
    matrix(w, i, "attn_output.weight", n_q, w->n_embd, 1);
    if (plain) bias(w, i, "attn_output.bias", w->n_embd);
    if (is_arch(w, "qwen3") || is_arch(w, "gemma3")) {
        norm(w, i, "attn_q_norm.weight", s->d_head);
        norm(w, i, "attn_k_norm.weight", s->d_head);
    }
}

static void add_layer(struct writer *w, int i) {
    const struct tiny_spec *s = w->spec;
    bool plain = is_arch(w, "bloom") || is_arch(w, "gpt2");
    norm(w, i, "attn_norm.weight", w->n_embd);
    if (has_layer_norms(w)) bias(w, i, "attn_norm.bias", w->n_embd);
    if (s->norm_2) {
        norm(w, i, "attn_norm_2.weight", w->n_embd);
        bias(w, i, "attn_norm_2.bias", w->n_embd);
    }
    add_attention(w, i);
    if (!is_arch(w, "falcon")) norm(w, i, "ffn_norm.weight", w->n_embd);
    if (plain) bias(w, i, "ffn_norm.bias", w->n_embd);
    if (!has_layer_norms(w)) matrix(w, i, "ffn_gate.weight", w->n_embd, s->n_ff, 1);
    matrix(w, i, "ffn_up.weight", w->n_embd, s->n_ff, 1);
    matrix(w, i, "ffn_down.weight", s->n_ff, w->n_embd, 1);
    if (plain) {
        bias(w, i, "ffn_up.bias", s->n_ff);
        bias(w, i, "ffn_down.bias", w->n_embd);
    }
    if (is_arch(w, "gemma3")) {
        norm(w, i, "post_attention_norm.weight", w->n_embd);
        norm(w, i, "post_ffw_norm.weight", w->n_embd);
    }
}

static void add_tensors(struct writer *w) {
    const struct tiny_spec *s = w->spec;
    double embd_sd = is_arch(w, "gemma3") ? 1 / sqrt(w->n_embd) : 0.5;
    add(w, s->type, w->n_embd, w->n_vocab, 0, embd_sd, "token_embd.weight");
    if (is_arch(w, "gpt2"))
        add(w, GGML_TYPE_F32, w->n_embd, s->n_ctx, 0, 0.3, "position_embd.weight");
    if (is_arch(w, "bloom")) {
        add(w, GGML_TYPE_F32, w->n_embd, 0, 1, 0.2, "token_embd_norm.weight");
        add(w, GGML_TYPE_F32, w->n_embd, 0, 0, 0.2, "token_embd_norm.bias");
    }
    if (s->rope_factors) add(w, GGML_TYPE_F32, s->d_head / 2, 0, 3, 0.5, "rope_freqs.weight");
    add(w, GGML_TYPE_F32, w->n_embd, 0, 1, 0.2, "output_norm.weight");
    if (has_layer_norms(w)) add(w, GGML_TYPE_F32, w->n_embd, 0, 0, 0.2, "output_norm.bias");
    if (s->untied) add(w, s->type, w->n_embd, w->n_vocab, 0, 2 / sqrt(w->n_embd), "output.weight");
    for (int i = 0; i < s->n_layer; i++) add_layer(w, i);
}

/* ---- keys ---- */

static const char *arch_key(char buf[96], const struct writer *w, const char *rest) {
    snprintf(buf, 96, "%s.%s", w->spec->arch, rest);
    return buf;
}

static void key_u32(struct writer *w, const char *rest, uint32_t value) {
    char key[96];
    gguf_set_val_u32(w->gguf, arch_key(key, w, rest), value);
}

static void key_f32(struct writer *w, const char *rest, float value) {
    char key[96];
    gguf_set_val_f32(w->gguf, arch_key(key, w, rest), value);
}

static void add_keys(struct writer *w) {
    const struct tiny_spec *s = w->spec;
    char key[96];
    gguf_set_val_str(w->gguf, "general.architecture", s->arch);
    gguf_set_val_str(w->gguf, "general.name", s->name ? s->name : "tiny");
    key_u32(w, "vocab_size", (uint32_t)w->n_vocab);
    key_u32(w, "context_length", (uint32_t)s->n_ctx);
    key_u32(w, "embedding_length", (uint32_t)w->n_embd);
    key_u32(w, "block_count", (uint32_t)s->n_layer);
    key_u32(w, "feed_forward_length", (uint32_t)s->n_ff);
    key_u32(w, "attention.head_count", (uint32_t)s->n_head);
    key_u32(w, "attention.head_count_kv", (uint32_t)s->n_head_kv);
    key_u32(w, "attention.key_length", (uint32_t)s->d_head);
    key_u32(w, "attention.value_length", (uint32_t)s->d_head);
    key_f32(
        w, has_layer_norms(w) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        1e-5f);
    if (!is_arch(w, "bloom") && !is_arch(w, "gpt2")) {
        key_u32(w, "rope.dimension_count", (uint32_t)s->d_head);
        key_f32(w, "rope.freq_base", 50000.0f);
    }
    if (s->n_swa) key_u32(w, "attention.sliding_window", (uint32_t)s->n_swa);
    if (s->softcap > 0) key_f32(w, "final_logit_softcapping", s->softcap);
    if (s->rope_scaling) {
        gguf_set_val_str(w->gguf, arch_key(key, w, "rope.scaling.type"), s->rope_scaling);
        key_f32(w, "rope.scaling.factor", s->rope_factor);
        key_u32(w, "rope.scaling.original_context_length", (uint32_t)s->n_ctx / 4);
    }
}

/* ---- tokenizers ---- */

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6, MAX_TOKENS = 512 };

struct tokens {
    char store[MAX_TOKENS][16];
    const char *text[MAX_TOKENS];
    float score[MAX_TOKENS];
    int32_t type[MAX_TOKENS];
    int n;
};

static void push(struct tokens *t, int type, float score, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void push(struct tokens *t, int type, float score, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->store[t->n], sizeof t->store[t->n], format, args);
    va_end(args);
    t->text[t->n] = t->store[t->n];
    t->score[t->n] = score;
    t->type[t->n++] = type;
}

static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + "
                             "'\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}";

static void spm_tokens(struct tokens *t) {
    static const char *const words[] = {
        "\xe2\x96\x81",     "e", "h", "l", "o", "w", "r", "d", "he", "ll", "\xe2\x96\x81he",
        "\xe2\x96\x81hell", "or"};
    push(t, UNKNOWN, 0, "<unk>");
    push(t, CONTROL, 0, "<s>");
    push(t, CONTROL, 0, "</s>");
    for (int i = 0; i < 256; i++) push(t, BYTE, 0, "<0x%02X>", (unsigned)i);
    for (int i = 0; i < (int)(sizeof words / sizeof words[0]); i++)
        push(t, NORMAL, (float)-i, "%s", words[i]);
    push(t, CONTROL, 0, "<|im_start|>");
    push(t, CONTROL, 0, "<|im_end|>");
}

/* Byte-level BPE writes bytes that are no printable characters as code points from 256 on. */
static void bpe_tokens(struct tokens *t) {
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int cp = printable ? b : next++;
        if (cp < 128)
            push(t, NORMAL, 0, "%c", cp);
        else
            push(t, NORMAL, 0, "%c%c", 0xC0 | cp >> 6, 0x80 | (cp & 63));
    }
    push(t, NORMAL, 0, "he");
    push(t, NORMAL, 0, "ll");
    push(t, NORMAL, 0, "hell");
    push(t, CONTROL, 0, "<|endoftext|>");
    push(t, CONTROL, 0, "<|im_start|>");
    push(t, CONTROL, 0, "<|im_end|>");
}

static void write_tokenizer(struct writer *w, const struct tokens *t) {
    static const char *merges[] = {"h e", "l l", "he ll"};
    struct gguf_context *g = w->gguf;
    bool spm = w->spec->tokenizer == TINY_SPM;
    gguf_set_val_str(g, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)t->text, (size_t)t->n);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, t->type, (size_t)t->n);
    if (spm) {
        gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, t->score, (size_t)t->n);
        gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
        gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    } else {
        gguf_set_val_str(g, "tokenizer.ggml.pre", "qwen2");
        gguf_set_arr_str(g, "tokenizer.ggml.merges", merges, 3);
        gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", (uint32_t)t->n - 1);
        gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", false);
    }
    gguf_set_val_str(g, "tokenizer.chat_template", chatml);
}

/* ---- files ---- */

int tiny_gguf_write_edited(const char *path, const struct tiny_spec *spec,
                           void (*edit)(struct gguf_context *, void *), void *user) {
    struct writer w = {.spec = spec, .rng = spec->seed * 7919 + 1};
    struct tokens *tokens = calloc(1, sizeof *tokens);
    if (spec->tokenizer == TINY_SPM) spm_tokens(tokens);
    if (spec->tokenizer == TINY_BPE) bpe_tokens(tokens);
    w.n_embd = spec->n_embd ? spec->n_embd : spec->n_head * spec->d_head;
    w.n_vocab = tokens->n ? tokens->n : spec->n_vocab;
    w.gguf = gguf_init_empty();
    w.ctx = ggml_init((struct ggml_init_params){.mem_size = (size_t)128 << 20});
    add_keys(&w);
    if (tokens->n)
        write_tokenizer(&w, tokens);
    else
        gguf_set_val_str(w.gguf, "tokenizer.ggml.model", "no_vocab");
    add_tensors(&w);
    if (edit) edit(w.gguf, user);
    int ok = gguf_write_to_file(w.gguf, path, false);
    ggml_free(w.ctx);
    gguf_free(w.gguf);
    free(tokens);
    return ok;
}

int tiny_gguf_write(const char *path, const struct tiny_spec *spec) {
    return tiny_gguf_write_edited(path, spec, NULL, NULL);
}
