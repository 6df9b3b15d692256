/* /tokenize and /detokenize. */
#include "serve/route_tokens.h"

#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/work.h"

#include <string.h>

/* Longest list of tokens that is converted in one request. */
static size_t max_tokens(const struct lk_server_opts *opts) {
    enum { MIN = 1 << 16 };
    return opts->n_ctx > MIN ? (size_t)opts->n_ctx : MIN;
}

static bool tokenize(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                     struct lk_api_error *error) {
    const char *text = NULL;
    bool begin = false, control = false;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    if (!lk_json_field_string(body, "content", &text, error) ||
        !lk_json_field_bool(body, "add_special", &begin, error) ||
        !lk_json_field_bool(body, "parse_special", &control, error))
        return false;
    if (!text)
        return lk_api_error_set(error, 400, "missing_field", "content", "'content' is missing");
    unsigned flags = (begin ? LK_TOKENIZE_BEGIN : 0) | (control ? LK_TOKENIZE_CONTROL : 0);
    if (lk_tokenize(opts->model, text, strlen(text), flags, max_tokens(opts), &tok, &n, &err))
        return lk_api_error_from_request(error, &err, "content");
    lk_buf_append_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) lk_buf_printf(out, "%s%d", i ? "," : "", tok[i]);
    lk_buf_append_str(out, "]}");
    lk_tokens_free(tok);
    return true;
}

static bool detokenize(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                       struct lk_api_error *error) {
    const json_t *list = json_object_get(body, "tokens"), *tok;
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    enum { MAX_TEXT = 1 << 20 };
    struct lk_buf text = {.max = MAX_TEXT};
    size_t i;
    if (!json_is_array(list))
        return lk_api_error_set(error, 400, "missing_field", "tokens",
                                "'tokens' must be an array of token ids");
    if (json_array_size(list) > max_tokens(opts))
        return lk_api_error_set(error, 400, "invalid_value", "tokens",
                                "'tokens' has %zu elements; the maximum is %zu",
                                json_array_size(list), max_tokens(opts));
    json_array_foreach(list, i, tok) {
        size_t len;
        json_int_t id = json_integer_value(tok);
        if (!json_is_integer(tok) || id < 0 || id >= n_vocab) {
            lk_buf_free(&text);
            return lk_api_error_set(error, 400, "invalid_value", "tokens",
                                    "tokens[%zu] is not a token id of this model", i);
        }
        const char *token_text = lk_token_text(opts->model, (int32_t)id, &len);
        lk_buf_append(&text, token_text, len);
    }
    if (text.failed) {
        lk_buf_free(&text);
        return lk_api_error_set(error, 413, "text_too_long", "tokens",
                                "the text of the tokens has more than %d bytes; convert them in "
                                "parts",
                                MAX_TEXT);
    }
    lk_buf_append_str(out, "{\"content\":");
    lk_buf_add_json(out, lk_json_from_bytes(lk_buf_cstr(&text), text.len));
    lk_buf_append_str(out, "}");
    lk_buf_free(&text);
    return true;
}

void lk_route_tokenize(struct lk_exchange *x) { lk_work_reply(x, tokenize); }

void lk_route_detokenize(struct lk_exchange *x) { lk_work_reply(x, detokenize); }
