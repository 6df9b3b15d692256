/* Loads libllama's vocabulary, and answers questions about its tokens without allocating. */
#include "token/vocab.h"

#include "base/cxx_call.h"
#include "base/log.h"
#include "grammar/token_bytes.h"
#include "lowkey_serve.h"
#include "template/chat_template.h"

#include "gguf.h"
#include "llama.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct lk_vocab {
    struct llama_model *model; /* NULL if the file has no tokenizer */
    const struct llama_vocab *vocab;
    int32_t n_tok; /* 0 without a tokenizer */
    /* The texts of all tokens, each zero-terminated: token i has text[text_at[i]..text_at[i + 1]),
     * the zero included. A copy, because libllama only copies into buffers of the caller. */
    char *text;
    uint32_t *text_at; /* [n_tok + 1] */
    int32_t byte_tok[256];
    struct lk_control_tokens control;
    _Atomic(struct lk_token_bytes *) bytes;  /* sorted; NULL until they are needed */
    _Atomic(struct lk_chat_template *) chat; /* NULL until it is needed */
    char *given_template;                    /* instead of the file's; or NULL */
};

struct load_call {
    const char *path;
    struct llama_model *model;
    bool has_tokenizer; /* the file names one; libllama fails to load files that do not */
    char pre[40];       /* its pre-tokenizer; empty: not named */
};

static void load_model(void *arg) {
    struct load_call *c = arg;
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    c->model = llama_model_load_from_file(c->path, params);
}

static void look_for_tokenizer(void *arg) {
    struct load_call *c = arg;
    struct gguf_context *gguf =
        gguf_init_from_file(c->path, (struct gguf_init_params){.no_alloc = true});
    c->has_tokenizer = gguf && gguf_find_key(gguf, "tokenizer.ggml.model") >= 0;
    int64_t pre = gguf ? gguf_find_key(gguf, "tokenizer.ggml.pre") : -1;
    if (pre >= 0 && gguf_get_kv_type(gguf, pre) == GGUF_TYPE_STRING)
        snprintf(c->pre, sizeof c->pre, "%s", gguf_get_val_str(gguf, pre));
    if (gguf) gguf_free(gguf);
}

/* Bytes of a token's text. libllama keeps all texts in memory, so this does not allocate. */
static size_t piece_len(const struct llama_vocab *vocab, int32_t tok) {
    int32_t n = llama_token_to_piece(vocab, tok, NULL, 0, 0, true);
    return n < 0 ? (size_t) - (int64_t)n : 0;
}

static lk_status copy_texts(struct lk_vocab *v, lk_err *err) {
    size_t n_byte = 0, n_tok = (size_t)v->n_tok;
    for (int32_t i = 0; i < v->n_tok; i++) n_byte += piece_len(v->vocab, i) + 1;
    if (n_byte > UINT32_MAX)
        return lk_fail(err, LK_E_UNSUPPORTED, "the texts of the vocabulary exceed 4 GiB");
    v->text = calloc(n_byte + 1, 1);
    v->text_at = calloc(n_tok + 1, sizeof *v->text_at);
    if (!v->text || !v->text_at)
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot load a vocabulary of %zu bytes",
                       n_byte);
    for (int32_t i = 0; i < v->n_tok; i++) {
        size_t n = piece_len(v->vocab, i);
        char *to = v->text + v->text_at[i];
        if (n) llama_token_to_piece(v->vocab, i, to, (int32_t)n, 0, true);
        v->text_at[i + 1] = v->text_at[i] + (uint32_t)n + 1;
    }
    return LK_OK;
}

/* Normal tokens before byte tokens, and smaller ids first. */
static void find_byte_tokens(struct lk_vocab *v) {
    static const unsigned attr[] = {LLAMA_TOKEN_ATTR_BYTE, LLAMA_TOKEN_ATTR_NORMAL};
    memset(v->byte_tok, -1, sizeof v->byte_tok);
    for (size_t k = 0; k < 2; k++)
        for (int32_t i = v->n_tok - 1; i >= 0; i--) {
            size_t len;
            const char *text = lk_vocab_token_text(v, i, &len);
            if (len == 1 && ((unsigned)llama_vocab_get_attr(v->vocab, i) & attr[k]))
                v->byte_tok[(unsigned char)*text] = i;
        }
}

bool lk_vocab_groups_digits(const struct lk_vocab *vocab) {
    char name[32];
    return vocab->model &&
           llama_model_meta_val_str(vocab->model, "tokenizer.ggml.pre", name, sizeof name) > 0 &&
           (strcmp(name, "superbpe") == 0 || strcmp(name, "tiny_aya") == 0);
}

lk_status lk_vocab_open(struct lk_vocab **out, const char *path, lk_err *err) {
    struct load_call call = {.path = path};
    lk_redirect_logs();
    struct lk_vocab *v = calloc(1, sizeof *v);
    if (!v) return lk_fail(err, LK_E_NOMEM, "not enough memory for the vocabulary");
    lk_status status = lk_cxx_call(load_model, &call, err);
    if (!status && !call.model) status = lk_cxx_call(look_for_tokenizer, &call, err);
    if (status == LK_E_NOMEM)
        lk_fail(err, LK_E_NOMEM, "out of memory: cannot load the tokenizer of %s", path);
    if (!status && !call.model && call.has_tokenizer)
        status = lk_fail(err, LK_E_FORMAT,
                         "libllama cannot load the tokenizer of %s: it is damaged or not "
                         "supported, or memory ran out (pre-tokenizer: %s)",
                         path, call.pre[0] ? call.pre : "not named");
    if (call.model) {
        v->model = call.model;
        v->vocab = llama_model_get_vocab(v->model);
        if (llama_vocab_type(v->vocab) != LLAMA_VOCAB_TYPE_NONE)
            v->n_tok = llama_vocab_n_tokens(v->vocab);
    }
    if (!status && v->n_tok) {
        status = copy_texts(v, err);
        if (!status) find_byte_tokens(v);
        if (!status && !lk_control_tokens_init(&v->control, v->vocab, v->n_tok))
            status = lk_fail(err, LK_E_NOMEM, "out of memory: cannot load the vocabulary");
    }
    if (status)
        lk_vocab_free(v);
    else
        *out = v;
    return status;
}

void lk_vocab_free(struct lk_vocab *vocab) {
    if (!vocab) return;
    lk_control_tokens_free(&vocab->control);
    free(vocab->text);
    free(vocab->text_at);
    free(vocab->given_template);
    if (vocab->model) llama_model_free(vocab->model);
    lk_token_bytes_free(atomic_load(&vocab->bytes));
    lk_chat_template_free(atomic_load(&vocab->chat));
    free(vocab);
}

const struct llama_vocab *lk_vocab_llama(const struct lk_vocab *vocab) {
    return vocab->n_tok ? vocab->vocab : NULL;
}

const char *lk_vocab_token_text(const struct lk_vocab *vocab, int32_t tok, size_t *len) {
    bool exists = tok >= 0 && tok < vocab->n_tok;
    *len = exists ? vocab->text_at[tok + 1] - vocab->text_at[tok] - 1 : 0;
    return exists ? vocab->text + vocab->text_at[tok] : "";
}

/* Sort the texts that a grammar can contain: all but control tokens and ends of answers. */
static lk_status sort_token_bytes(struct lk_token_bytes **out, const struct lk_vocab *v,
                                  lk_err *err) {
    size_t n = (size_t)v->n_tok;
    const char **text = malloc(n * sizeof *text);
    size_t *len = malloc(n * sizeof *len);
    lk_status status = LK_OK;
    if (!text || !len)
        status = lk_fail(err, LK_E_NOMEM, "not enough memory for the texts of %zu tokens", n);
    for (int32_t i = 0; !status && i < v->n_tok; i++) {
        text[i] = lk_vocab_token_text(v, i, &len[i]);
        if (lk_vocab_is_control(v, i) || lk_vocab_is_eog(v, i)) len[i] = 0;
    }
    if (!status) status = lk_token_bytes_new(out, text, len, (uint32_t)n, err);
    free(text);
    free(len);
    return status;
}

lk_status lk_vocab_token_bytes(const struct lk_vocab *vocab, const struct lk_token_bytes **tokens,
                               lk_err *err) {
    _Atomic(struct lk_token_bytes *) *place = &((struct lk_vocab *)vocab)->bytes;
    struct lk_token_bytes *bytes = atomic_load(place), *made = NULL;
    if (!vocab->n_tok) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no tokenizer");
    if (!bytes) {
        lk_status status = sort_token_bytes(&made, vocab, err);
        if (status) return status;
        if (atomic_compare_exchange_strong(place, &bytes, made))
            bytes = made;
        else /* another thread was faster */
            lk_token_bytes_free(made);
    }
    *tokens = bytes;
    return LK_OK;
}

bool lk_vocab_is_control(const struct lk_vocab *vocab, int32_t tok) {
    const unsigned control = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
    return tok >= 0 && tok < vocab->n_tok &&
           ((unsigned)llama_vocab_get_attr(vocab->vocab, tok) & control);
}

const struct lk_control_tokens *lk_vocab_control_tokens(const struct lk_vocab *vocab) {
    return &vocab->control;
}

int32_t lk_vocab_byte_token(const struct lk_vocab *vocab, unsigned char byte) {
    return vocab->n_tok ? vocab->byte_tok[byte] : -1;
}

int32_t lk_vocab_bos(const struct lk_vocab *vocab) {
    const struct llama_vocab *llama = lk_vocab_llama(vocab);
    return llama && llama_vocab_get_add_bos(llama) ? llama_vocab_bos(llama) : -1;
}

struct lk_special_tokens lk_vocab_special(const struct lk_vocab *vocab) {
    const struct llama_vocab *llama = lk_vocab_llama(vocab);
    if (!llama) return (struct lk_special_tokens){-1, -1, -1};
    return (struct lk_special_tokens){llama_vocab_bos(llama), llama_vocab_eos(llama),
                                      llama_vocab_eot(llama)};
}

lk_fim_tokens lk_vocab_fim_tokens(const struct lk_vocab *vocab) {
    const struct llama_vocab *llama = lk_vocab_llama(vocab);
    if (!llama) return (lk_fim_tokens){-1, -1, -1, -1, -1};
    return (lk_fim_tokens){.prefix = llama_vocab_fim_pre(llama),
                           .suffix = llama_vocab_fim_suf(llama),
                           .middle = llama_vocab_fim_mid(llama),
                           .repo = llama_vocab_fim_rep(llama),
                           .file = llama_vocab_fim_sep(llama)};
}

bool lk_vocab_is_eog(const struct lk_vocab *vocab, int32_t tok) {
    return tok >= 0 && tok < vocab->n_tok && llama_vocab_is_eog(vocab->vocab, tok);
}

const char *lk_vocab_lack(const struct lk_vocab *vocab) {
    char name[8];
    bool lacks =
        vocab->model && llama_vocab_type(vocab->vocab) == LLAMA_VOCAB_TYPE_BPE &&
        llama_model_meta_val_str(vocab->model, "tokenizer.ggml.pre", name, sizeof name) < 0;
    return lacks
               ? "warning: the model file does not name its pre-tokenizer (tokenizer.ggml.pre), so "
                 "texts may become other tokens than in training, and answers worse; convert the "
                 "model again"
               : NULL;
}

double lk_vocab_number(const struct lk_vocab *vocab, const char *key, double absent) {
    char text[40], *end = text;
    if (!vocab->model || llama_model_meta_val_str(vocab->model, key, text, sizeof text) <= 0)
        return absent;
    double value = strtod(text, &end);
    return end > text && *end == 0 ? value : absent;
}

lk_status lk_vocab_set_chat_template(struct lk_vocab *vocab, const char *text, lk_err *err) {
    const struct lk_chat_template *parsed;
    char *copy = strdup(text);
    if (!copy) return lk_fail(err, LK_E_NOMEM, "out of memory: chat template");
    free(vocab->given_template);
    vocab->given_template = copy;
    lk_chat_template_free(atomic_exchange(&vocab->chat, NULL));
    return lk_vocab_chat_template(vocab, &parsed, err);
}

const char *lk_vocab_chat_template_text(const struct lk_vocab *vocab) {
    if (vocab->given_template) return vocab->given_template;
    return vocab->model ? llama_model_chat_template(vocab->model, NULL) : NULL;
}

/* The text of a control token. libllama names any token if the file does not name one. */
static const char *control_text(const struct lk_vocab *vocab, int32_t tok) {
    size_t len;
    return lk_vocab_is_control(vocab, tok) ? lk_vocab_token_text(vocab, tok, &len) : "";
}

lk_status lk_vocab_chat_template(const struct lk_vocab *vocab, const struct lk_chat_template **out,
                                 lk_err *err) {
    _Atomic(struct lk_chat_template *) *place = &((struct lk_vocab *)vocab)->chat;
    struct lk_chat_template *chat = atomic_load(place), *made = NULL;
    struct lk_chat_texts texts = {.template = lk_vocab_chat_template_text(vocab)};
    if (!texts.template) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no chat template");
    if (!chat) {
        const struct lk_special_tokens special = lk_vocab_special(vocab);
        if (!vocab->given_template)
            texts.tool_template = llama_model_chat_template(vocab->model, "tool_use");
        texts.bos = control_text(vocab, special.bos);
        texts.eos = control_text(vocab, special.eos);
        lk_status status = lk_chat_template_new(&made, &texts, err);
        if (status) return status;
        if (atomic_compare_exchange_strong(place, &chat, made))
            chat = made;
        else /* another thread was faster */
            lk_chat_template_free(made);
    }
    *out = chat;
    return LK_OK;
}
