/* Rejects vocabularies on which libllama would throw or abort. */
#include "model/vocab_check.h"

#include "model/gguf_read.h"

#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const special_token_keys[] = {
    "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.seperator_token_id",
    "tokenizer.ggml.padding_token_id", "tokenizer.ggml.mask_token_id",
};

static lk_status check_special_ids(const struct lk_gguf_reader *r, int32_t n_vocab, lk_err *err) {
    for (size_t i = 0; i < sizeof special_token_keys / sizeof special_token_keys[0]; i++) {
        int64_t id = lk_gguf_find_key(r, special_token_keys[i]);
        if (id < 0) continue;
        /* Some files without such a token store -1 as an unsigned number. */
        if (gguf_get_kv_type(r->gguf, id) == GGUF_TYPE_UINT32 &&
            gguf_get_val_u32(r->gguf, id) == UINT32_MAX)
            continue;
        int32_t tok;
        lk_status status =
            lk_gguf_read_int(r, special_token_keys[i], LK_REQUIRED, 0, n_vocab - 1, &tok, err);
        if (status) return status;
    }
    return LK_OK;
}

/* An optional array with one entry per token. */
static lk_status check_per_token_array(const struct lk_gguf_reader *r, const char *key,
                                       bool allow_float, int64_t n_vocab, lk_err *err) {
    int64_t id = lk_gguf_find_key(r, key);
    if (id < 0) return LK_OK;
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_ARRAY)
        return lk_fail(err, LK_E_FORMAT, "key %s is not an array", key);
    enum gguf_type type = gguf_get_arr_type(r->gguf, id);
    if (type != GGUF_TYPE_INT32 && !(allow_float && type == GGUF_TYPE_FLOAT32)) {
        return lk_fail(err, LK_E_FORMAT, "key %s is an array of %s, expected %s", key,
                       gguf_type_name(type), allow_float ? "f32" : "i32");
    }
    size_t n = gguf_get_arr_n(r->gguf, id);
    if ((int64_t)n != n_vocab)
        return lk_fail(err, LK_E_FORMAT, "key %s has %zu entries for %" PRId64 " tokens", key, n,
                       n_vocab);
    return LK_OK;
}

/* libllama's SentencePiece tokenizer throws on a byte that has no token. Bytes that never occur in
 * UTF-8 may be missing. */
static lk_status check_bytes(const struct lk_strset *tokens, lk_err *err) {
    for (int byte = 0; byte < 0xF5; byte++) {
        char hex[8], plain = (char)byte;
        if (byte == 0xC0 || byte == 0xC1) continue;
        snprintf(hex, sizeof hex, "<0x%02X>", (unsigned)byte);
        if (lk_strset_has(tokens, hex, 6) || (byte > 0 && lk_strset_has(tokens, &plain, 1)))
            continue;
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the tokenizer has no token for the byte 0x%02X; every byte needs one",
                       (unsigned)byte);
    }
    return LK_OK;
}

/* libllama asserts that all token texts differ. It names empty texts by their index first. */
static lk_status check_token_texts(const struct lk_gguf_reader *r, int64_t id, size_t n,
                                   bool need_bytes, struct lk_ledger *ledger, lk_err *err) {
    struct lk_strset seen = {.ledger = ledger};
    if (!lk_strset_alloc(&seen, ledger, n))
        return lk_fail(err, LK_E_NOMEM, "not enough memory to check the vocabulary");
    lk_status status = LK_OK;
    size_t n_empty = 0;
    for (size_t i = 0; !status && i < n; i++) {
        const char *text = gguf_get_arr_str(r->gguf, id, i);
        char shown[64];
        if (!*text) {
            n_empty++;
        } else if (!lk_strset_add(&seen, text, strlen(text))) {
            status = lk_fail(err, LK_E_FORMAT,
                             "two tokens have the same text \"%s\" (the second is %zu)",
                             lk_printable(shown, text, strlen(text)), i);
        }
    }
    for (size_t i = 0; !status && n_empty && i < n; i++) {
        char name[32];
        int len = snprintf(name, sizeof name, "[EMPTY_%zu]", i);
        if (lk_strset_has(&seen, name, (size_t)len))
            status = lk_fail(err, LK_E_FORMAT, "the token %s collides with an empty token", name);
    }
    if (!status && need_bytes) status = check_bytes(&seen, err);
    lk_strset_free(&seen);
    return status;
}

static lk_status check_merges(const struct lk_gguf_reader *r, lk_err *err) {
    int64_t id = lk_gguf_find_key(r, "tokenizer.ggml.merges");
    if (id < 0) return lk_fail(err, LK_E_FORMAT, "the model file has no key tokenizer.ggml.merges");
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(r->gguf, id) != GGUF_TYPE_STRING) {
        return lk_fail(err, LK_E_FORMAT, "key tokenizer.ggml.merges is not an array of strings");
    }
    return LK_OK;
}

lk_status lk_vocab_check(const struct lk_gguf_reader *r, struct lk_ledger *ledger, int32_t *n_vocab,
                         lk_err *err) {
    const char *model = "none";
    *n_vocab = 0;
    lk_status status = lk_gguf_read_str(r, "tokenizer.ggml.model", LK_OPTIONAL, &model, err);
    if (status || strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0) return status;
    bool is_gemma4 = strcmp(model, "gemma4") == 0; /* BPE, with the bytes of SentencePiece */
    bool is_spm = strcmp(model, "llama") == 0, is_bpe = strcmp(model, "gpt2") == 0;
    if (!is_spm && !is_bpe && !is_gemma4) {
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "tokenizer \"%.32s\" is not supported; supported: llama (SentencePiece), "
                       "gpt2 (byte-level BPE), gemma4",
                       model);
    }
    int64_t id = lk_gguf_find_key(r, "tokenizer.ggml.tokens");
    if (id < 0) return lk_fail(err, LK_E_FORMAT, "the model file has no key tokenizer.ggml.tokens");
    if (gguf_get_kv_type(r->gguf, id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(r->gguf, id) != GGUF_TYPE_STRING) {
        return lk_fail(err, LK_E_FORMAT, "key tokenizer.ggml.tokens is not an array of strings");
    }
    size_t n = gguf_get_arr_n(r->gguf, id);
    if (n == 0 || n > 1 << 24) return lk_fail(err, LK_E_FORMAT, "the vocabulary has %zu tokens", n);
    status = check_per_token_array(r, "tokenizer.ggml.scores", true, (int64_t)n, err);
    if (!status)
        status = check_per_token_array(r, "tokenizer.ggml.token_type", false, (int64_t)n, err);
    if (!status) status = check_special_ids(r, (int32_t)n, err);
    if (!status && !is_spm) status = check_merges(r, err);
    if (!status) status = check_token_texts(r, id, n, !is_bpe, ledger, err);
    if (!status) *n_vocab = (int32_t)n;
    return status;
}
