/* What tasks share: limits, the text and tokens. */
#include "eval/task.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t lk_task_limit(const struct lk_task_env *env, size_t n, size_t usual, size_t quick) {
    size_t limit = env->opts->limit ? env->opts->limit : env->opts->quick && quick ? quick : usual;
    return limit && limit < n ? limit : n;
}

size_t lk_task_n_ctx(const struct lk_task_env *env, size_t usual, size_t quick) {
    if (env->opts->n_ctx > 0) return (size_t)env->opts->n_ctx;
    return env->opts->quick ? quick : usual;
}

lk_status lk_task_require_text(const struct lk_task_env *env, lk_err *err) {
    const struct lk_eval_opts *opts = env->opts;
    if (!opts->text)
        return lk_fail(err, LK_E_ARG, "%s needs a text: give --text FILE", env->task->name);
    if (!opts->text_len)
        return lk_fail(err, LK_E_ARG, "%s: the text %s is empty", env->task->name, opts->text_path);
    return LK_OK;
}

lk_status lk_task_tokenize(const lk_model *model, const char *text, size_t len, int32_t **tok,
                           size_t *n_tok, lk_err *err) {
    int32_t *bos = NULL, *body = NULL, *both = NULL;
    size_t n_bos = 0, n_body = 0;
    lk_status status = lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &bos, &n_bos, err);
    if (!status) status = lk_tokenize(model, text, len, 0, 0, &body, &n_body, err);
    if (!status) {
        both = malloc((n_bos + n_body + 1) * sizeof *both);
        if (!both) status = lk_fail(err, LK_E_NOMEM, "no memory for %zu tokens", n_bos + n_body);
    }
    if (!status) {
        if (n_bos) memcpy(both, bos, n_bos * sizeof *both);
        if (n_body) memcpy(both + n_bos, body, n_body * sizeof *both);
        *tok = both;
        *n_tok = n_bos + n_body;
    }
    lk_tokens_free(bos);
    lk_tokens_free(body);
    return status;
}

lk_status lk_task_tokenize_text(const struct lk_eval_opts *opts, const lk_model *model,
                                size_t n_ctx, int32_t **tok, size_t *n_tok, lk_err *err) {
    lk_status status = lk_task_tokenize(model, opts->text, opts->text_len, tok, n_tok, err);
    if (status || *n_tok >= n_ctx) return status;
    free(*tok);
    *tok = NULL;
    return lk_fail(err, LK_E_ARG,
                   "%s has %zu tokens, fewer than the context of %zu; give a longer text or a "
                   "smaller -c",
                   opts->text_path, *n_tok, n_ctx);
}

char *lk_task_detokenize(const lk_model *model, const int32_t *tok, size_t n) {
    struct lk_buf text = {0};
    lk_buf_append(&text, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = lk_token_text(model, tok[i], &len);
        lk_buf_append(&text, piece, len);
    }
    char *out = lk_buf_detach(&text);
    if (!out) return NULL;
    size_t len = strlen(out);
    if (lk_utf8_valid_prefix(out, len) != len)
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)out[i] >= 0x80) out[i] = '?';
    return out;
}

void lk_record_cache_stats(json_t *record, const struct lk_backend *backend) {
    lk_session_stats stats = lk_backend_stats(backend);
    if (stats.n_tok == 0 || json_object_get(record, "bits_per_value")) return;
    json_object_set_new(record, "n_tok", json_integer((json_int_t)stats.n_tok));
    json_object_set_new(record, "bits_per_value", json_real(stats.bits_per_value));
    json_object_set_new(record, "bytes_per_token", json_real(stats.bytes_per_token));
    if (stats.sidecar_bytes)
        json_object_set_new(record, "bits_with_sidecar", json_real(stats.bits_with_sidecar));
}
