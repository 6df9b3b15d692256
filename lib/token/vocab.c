/* Tokenizes, detokenizes and formats conversations with libllama's vocabulary. Inputs on which
 * libllama would abort or overflow its stack are rejected or bounded first. */
#include "token/vocab.h"

#include "base/log.h"
#include "base/utf8.h"
#include "token/big_stack.h"
#include "token/token_bytes.h"

#include "gguf.h"
#include "llama.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct lk_vocab {
    struct llama_model *model; /* NULL if the file has no tokenizer */
    const struct llama_vocab *vocab;
    int32_t n_tok;                          /* 0 without a tokenizer */
    _Atomic(struct lk_token_bytes *) bytes; /* NULL until they are needed */
};

/* True if the file names a tokenizer. libllama fails to load files that do not. */
static bool has_tokenizer(const char *path) {
    struct gguf_context *gguf =
        gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = true});
    bool yes = gguf && gguf_find_key(gguf, "tokenizer.ggml.model") >= 0;
    if (gguf) gguf_free(gguf);
    return yes;
}

lk_status lk_vocab_open(struct lk_vocab **out, const char *path, lk_err *err) {
    lk_redirect_logs();
    struct lk_vocab *v = calloc(1, sizeof *v);
    if (!v) return lk_fail(err, LK_E_NOMEM, "not enough memory for the vocabulary");
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    v->model = llama_model_load_from_file(path, params);
    if (v->model) {
        v->vocab = llama_model_get_vocab(v->model);
        if (llama_vocab_type(v->vocab) != LLAMA_VOCAB_TYPE_NONE)
            v->n_tok = llama_vocab_n_tokens(v->vocab);
    } else if (has_tokenizer(path)) {
        free(v);
        return lk_fail(err, LK_E_FORMAT, "libllama cannot load the tokenizer of %s", path);
    }
    *out = v;
    return LK_OK;
}

void lk_vocab_free(struct lk_vocab *vocab) {
    if (!vocab) return;
    if (vocab->model) llama_model_free(vocab->model);
    lk_token_bytes_free(atomic_load(&vocab->bytes));
    free(vocab);
}

const struct llama_vocab *lk_vocab_llama(const struct lk_vocab *vocab) {
    return vocab->n_tok ? vocab->vocab : NULL;
}

lk_status lk_vocab_token_bytes(const struct lk_vocab *vocab, const struct lk_token_bytes **tokens,
                               lk_err *err) {
    _Atomic(struct lk_token_bytes *) *place = &((struct lk_vocab *)vocab)->bytes;
    struct lk_token_bytes *bytes = atomic_load(place), *made = NULL;
    if (!vocab->n_tok) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no tokenizer");
    if (!bytes) {
        lk_status status = lk_token_bytes_new(&made, vocab->vocab, err);
        if (status) return status;
        if (atomic_compare_exchange_strong(place, &bytes, made))
            bytes = made;
        else /* another thread was faster */
            lk_token_bytes_free(made);
    }
    *tokens = bytes;
    return LK_OK;
}

/* True if BOS and EOS can be added as the model asks: libllama asserts that the tokens exist. */
static bool can_add_special(const struct llama_vocab *v) {
    bool bos_fine = !llama_vocab_get_add_bos(v) || llama_vocab_bos(v) != LLAMA_TOKEN_NULL;
    bool eos_fine = !llama_vocab_get_add_eos(v) || llama_vocab_eos(v) != LLAMA_TOKEN_NULL;
    return bos_fine && eos_fine;
}

/* Length of the longest run that is all whitespace or all other bytes. */
static size_t longest_run(const char *text, size_t len) {
    size_t longest = 0, run = 0;
    bool was_space = false;
    for (size_t i = 0; i < len; i++) {
        bool space = text[i] == ' ' || (text[i] >= 9 && text[i] <= 13);
        run = space == was_space ? run + 1 : 1;
        was_space = space;
        if (run > longest) longest = run;
    }
    return longest;
}

struct tokenize_call {
    const struct llama_vocab *vocab;
    const char *text;
    int32_t len, cap, n;
    int32_t *tok; /* [cap] */
    bool add, parse;
};

static void call_llama_tokenize(void *arg) {
    struct tokenize_call *c = arg;
    c->n = llama_tokenize(c->vocab, c->text, c->len, c->tok, c->cap, c->add, c->parse);
}

/* Some of libllama's pre-tokenizers use std::regex, which recurses once per character of a word, so
 * a long word overflows an ordinary stack. Texts with such words get a stack in proportion to their
 * longest run. */
static lk_status tokenize_with_stack(struct tokenize_call *c, size_t run, lk_err *err) {
    enum { SHORT_RUN = 1000, MAX_RUN = 1 << 22, STACK_PER_BYTE = 2048, STACK_BASE = 8 << 20 };
    if (run <= SHORT_RUN) {
        call_llama_tokenize(c);
        return LK_OK;
    }
    if (run > MAX_RUN)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the text has a run of %zu bytes without a space, at most %d are supported",
                       run, MAX_RUN);
    if (lk_call_with_stack(call_llama_tokenize, c, STACK_BASE + run * STACK_PER_BYTE)) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "not enough memory to tokenize a word of %zu bytes", run);
}

lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            bool special, int32_t **tok, size_t *n_tok, lk_err *err) {
    if (!vocab->n_tok) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no tokenizer");
    if (len > INT32_MAX / 2)
        return lk_fail(err, LK_E_ARG,
                       "a text of %zu bytes is too long; pass at most 1 GiB at a time", len);
    size_t valid = lk_utf8_valid_prefix(text, len);
    if (valid < len)
        return lk_fail(err, LK_E_FORMAT, "the text is not UTF-8: byte %zu is 0x%02X", valid,
                       (unsigned char)text[valid]);
    struct tokenize_call call = {.vocab = vocab->vocab,
                                 .text = text,
                                 .len = (int32_t)len,
                                 .add = special && can_add_special(vocab->vocab),
                                 .parse = special};
    size_t run = longest_run(text, len);
    size_t cap = len + 8; /* each token covers at least one byte, except BOS and EOS */
    int32_t *out = NULL;
    for (int attempt = 0; attempt < 2; attempt++) { /* normalization can lengthen a text */
        int32_t *grown = realloc(out, cap * sizeof *out);
        if (!grown) {
            free(out);
            return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu tokens", cap);
        }
        out = grown;
        call.tok = out;
        call.cap = (int32_t)(cap < INT32_MAX ? cap : INT32_MAX);
        lk_status status = tokenize_with_stack(&call, run, err);
        if (status) {
            free(out);
            return status;
        }
        if (call.n >= 0) {
            *tok = out;
            *n_tok = (size_t)call.n;
            return LK_OK;
        }
        if (call.n == INT32_MIN) break;
        cap = (size_t)(-(int64_t)call.n);
    }
    free(out);
    return lk_fail(err, LK_E_FORMAT, "the text has too many tokens");
}

size_t lk_vocab_token_text(const struct lk_vocab *vocab, int32_t tok, char *buf, size_t cap) {
    char local[512], *piece = local;
    if (cap > 0) buf[0] = 0;
    if (tok < 0 || tok >= vocab->n_tok) return 0;
    int32_t n = llama_token_to_piece(vocab->vocab, tok, local, sizeof local, 0, true);
    if (n < 0) { /* longer than `local` */
        piece = malloc((size_t)-n);
        if (!piece) return 0;
        n = llama_token_to_piece(vocab->vocab, tok, piece, -n, 0, true);
    }
    size_t len = n > 0 ? (size_t)n : 0;
    if (cap > 0) {
        size_t kept = len < cap ? len : cap - 1;
        memcpy(buf, piece, kept);
        buf[kept] = 0;
    }
    if (piece != local) free(piece);
    return len;
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

bool lk_vocab_is_eog(const struct lk_vocab *vocab, int32_t tok) {
    return tok >= 0 && tok < vocab->n_tok && llama_vocab_is_eog(vocab->vocab, tok);
}

/* Apply the template to checked messages. *text is owned. */
static lk_status apply_template(const char *template, const struct llama_chat_message *chat,
                                size_t n_msg, bool reply, char **text, lk_err *err) {
    int32_t len = llama_chat_apply_template(template, chat, n_msg, reply, NULL, 0);
    if (len < 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "libllama does not support the model's chat template");
    char *out = malloc((size_t)len + 1);
    if (!out)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a conversation of %d bytes", len);
    llama_chat_apply_template(template, chat, n_msg, reply, out, len + 1);
    out[len] = 0;
    *text = out;
    return LK_OK;
}

const char *lk_vocab_chat_template(const struct lk_vocab *vocab) {
    return vocab->model ? llama_model_chat_template(vocab->model, NULL) : NULL;
}

lk_status lk_vocab_apply_chat_template(const struct lk_vocab *vocab, const lk_message *msg,
                                       size_t n_msg, bool reply, char **text, lk_err *err) {
    const char *template = lk_vocab_chat_template(vocab);
    if (!template) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no chat template");
    if (n_msg == 0) return lk_fail(err, LK_E_ARG, "a conversation needs at least one message");
    struct llama_chat_message *chat = malloc(n_msg * sizeof *chat);
    if (!chat) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu messages", n_msg);
    lk_status status = LK_OK;
    size_t total = 0;
    for (size_t i = 0; !status && i < n_msg; i++) {
        if (!msg[i].role || !msg[i].content) {
            status = lk_fail(err, LK_E_ARG, "message %zu has no role or no content", i);
            break;
        }
        total +=
            strlen(msg[i].role) + strlen(msg[i].content) + 256; /* 256: added by the template */
        chat[i] = (struct llama_chat_message){msg[i].role, msg[i].content};
    }
    if (!status && total > INT32_MAX / 2)
        status = lk_fail(err, LK_E_ARG, "the conversation is too long: %zu bytes", total);
    if (!status) status = apply_template(template, chat, n_msg, reply, text, err);
    free(chat);
    return status;
}
