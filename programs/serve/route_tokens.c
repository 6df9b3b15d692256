/* /tokenize, /detokenize, /tokenizer_info and /apply-template. */
#include "serve/route_tokens.h"

#include "serve/answer.h"
#include "serve/json_field.h"
#include "serve/openai_chat.h"

#include <string.h>

/* Longest list of tokens that is converted in one request. */
static size_t max_tokens(const struct lk_server_opts *opts) {
    enum { MIN = 1 << 16 };
    return opts->n_ctx > MIN ? (size_t)opts->n_ctx : MIN;
}

/* The text is "content" in llama-server's form. In vLLM's form it is "prompt", and control tokens
 * are parsed, as by the tokenizers that come with models. */
static bool tokenize(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                     struct lk_api_error *error) {
    const char *text = NULL;
    bool begin = false, control = false;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    if (!lk_json_field_string(body, "prompt", &text, error)) return false;
    if (text) begin = control = true;
    if (!lk_json_field_string(body, "content", &text, error) ||
        !lk_json_field_bool(body, "add_special", &begin, error) ||
        !lk_json_field_bool(body, "add_special_tokens", &begin, error) ||
        !lk_json_field_bool(body, "parse_special", &control, error))
        return false;
    if (!text)
        return lk_api_error_set(error, 400, "missing_field", "content", "'content' is missing");
    unsigned flags = (begin ? LK_TOKENIZE_BEGIN : 0) | (control ? LK_TOKENIZE_CONTROL : 0);
    if (lk_tokenize(opts->model, text, strlen(text), flags, max_tokens(opts), &tok, &n, &err))
        return lk_api_error_from_request(error, &err, "content");
    lk_buf_append_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) lk_buf_printf(out, "%s%d", i ? "," : "", tok[i]);
    lk_buf_printf(out, "],\"count\":%zu,\"max_model_len\":%d}", n, opts->n_ctx);
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
    for (int form = 0; form < 2; form++) { /* llama-server's, vLLM's */
        lk_buf_append_str(out, form ? ",\"prompt\":" : "{\"content\":");
        lk_buf_add_json(out, lk_json_from_bytes(lk_buf_cstr(&text), text.len));
    }
    lk_buf_append_str(out, "}");
    lk_buf_free(&text);
    return true;
}

void lk_route_tokenize(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .convert = tokenize};
    lk_work_reply(&work, lk_work_convert);
}

void lk_route_detokenize(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .convert = detokenize};
    lk_work_reply(&work, lk_work_convert);
}

/* The text of a control token, or null. */
static json_t *control_token(const lk_model *model, int32_t tok) {
    size_t len;
    return tok < 0 ? json_null() : json_string(lk_token_text(model, tok, &len));
}

void lk_route_tokenizer_info(struct lk_exchange *x) {
    const lk_model *model = x->served->opts.model;
    lk_model_info info = lk_model_get_info(model);
    const char *chat_template = lk_model_chat_template(model);
    lk_exchange_reply_json(x, 200,
                           json_pack("{s:o, s:o, s:n, s:s?, s:i}", "bos_token",
                                     control_token(model, info.bos), "eos_token",
                                     control_token(model, info.eos), "pad_token", "chat_template",
                                     chat_template, "model_max_length", x->served->opts.n_ctx));
}

/* Format the messages of a chat. The marks of control tokens are dropped. */
static void format_chat(void *arg) {
    struct lk_work *work = arg;
    const struct lk_exchange *x = work->x;
    struct lk_request request = {0};
    if (lk_work_charge_body(work) &&
        lk_openai_chat_parse(&request, &x->served->opts, x->body.at, x->body.len, &work->error) &&
        lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error) &&
        lk_request_apply_template(&request, &x->served->opts, &work->error)) {
        char *text = request.prompt[0].text;
        size_t n = 0;
        for (size_t i = 0; text[i]; i++)
            if ((unsigned char)text[i] < 0xFE) text[n++] = text[i];
        lk_buf_append_str(&work->out, "{\"prompt\":");
        lk_buf_add_json(&work->out, lk_json_from_bytes(text, n));
        lk_buf_append_str(&work->out, "}");
        if (work->out.failed)
            lk_api_error_set(&work->error, 503, "out_of_memory", NULL, "out of memory: response");
    }
    lk_request_free(&request);
}

void lk_route_apply_template(struct lk_exchange *x) {
    struct lk_work work = {.x = x};
    lk_work_reply(&work, format_chat);
}
