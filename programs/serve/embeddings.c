/* Requests and replies of /v1/embeddings. All texts of a request are one job of the scheduler. */
#include "serve/embeddings.h"

#include "lowkey_serve.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/openai_completion.h"

#include <math.h>
#include <string.h>

enum { MAX_INPUT = 2048 }; /* texts of a request, as in OpenAI's API */

static bool parse_encoding(struct lk_request *request, struct lk_api_error *error) {
    const char *encoding = "float", *pooling = "default";
    if (!lk_json_field_string(request->body, "encoding_format", &encoding, error) ||
        !lk_json_field_string(request->body, "pooling", &pooling, error))
        return false;
    request->base64 = strcmp(encoding, "base64") == 0;
    if (!request->base64 && strcmp(encoding, "float") != 0)
        return lk_api_error_set(error, 400, "invalid_value", "encoding_format",
                                "'encoding_format' must be float or base64");
    if (strcmp(pooling, "mean") == 0)
        request->pooling = LK_POOLING_MEAN;
    else if (strcmp(pooling, "last") == 0)
        request->pooling = LK_POOLING_LAST;
    else if (strcmp(pooling, "default") != 0)
        return lk_api_error_set(error, 400, "invalid_value", "pooling",
                                "'pooling' must be mean or last");
    return true;
}

bool lk_embeddings_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                              json_t *body, struct lk_api_error *error) {
    int64_t n_embd = lk_model_get_info(opts->model).n_embd, n_dim = n_embd;
    if (!lk_request_parse_json(request, opts, body, error)) return false;
    if (opts->n_rank > 1)
        return lk_api_error_set(error, 501, "unsupported", NULL,
                                "a server of several ranks computes no embeddings; ask one that "
                                "runs in one process");
    if (!lk_request_reject(request, "stream", 0, error) ||
        !lk_openai_parse_prompts(request, "input", MAX_INPUT, error) ||
        !parse_encoding(request, error) ||
        !lk_json_field_int(request->body, "dimensions", 1, n_embd, &n_dim, error))
        return false;
    request->parse_special = false;
    request->embed = request->may_be_empty = true;
    request->n_dim = (size_t)n_dim;
    request->n = 1;
    request->max_tokens = 0;
    request->reuse = false;
    return true;
}

static bool parse_embeddings(struct lk_request *request, const struct lk_server_opts *opts,
                             const char *body, size_t len, struct lk_api_error *error) {
    return lk_embeddings_parse_json(request, opts,
                                    lk_fields_parse(body, len, LK_FIELDS_EMBEDDINGS, error), error);
}

static void append_base64(struct lk_buf *out, const unsigned char *bytes, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned group = (unsigned)bytes[i] << 16;
        if (i + 1 < n) group |= (unsigned)bytes[i + 1] << 8;
        if (i + 2 < n) group |= bytes[i + 2];
        char text[4] = {digits[group >> 18], digits[group >> 12 & 63], digits[group >> 6 & 63],
                        digits[group & 63]};
        if (i + 2 >= n) text[3] = '=';
        if (i + 1 >= n) text[2] = '=';
        lk_buf_append(out, text, 4);
    }
}

/* The numbers are scaled to length 1 again if they are not all. base64 is of little-endian floats,
 * as in OpenAI's API. */
void lk_embedding_append(const struct lk_response *r, size_t i_text, struct lk_buf *out) {
    const struct lk_request *request = &r->completion->request;
    size_t n_embd = (size_t)lk_model_get_info(r->opts->model).n_embd;
    float *v = request->embedding + i_text * n_embd;
    double length = 0;
    size_t n = request->n_dim;
    for (size_t i = 0; i < n; i++) length += (double)v[i] * v[i];
    for (size_t i = 0; i < n && n < n_embd && length > 0; i++) v[i] = (float)(v[i] / sqrt(length));
    if (!request->base64) {
        lk_buf_append_str(out, "[");
        for (size_t i = 0; i < n; i++)
            lk_buf_printf(out, i ? ",%.9g" : "%.9g", isfinite(v[i]) ? (double)v[i] : 0.0);
        lk_buf_append_str(out, "]");
        return;
    }
    for (size_t i = 0; i < n; i++) { /* in place, whatever the byte order of the CPU */
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        unsigned char bytes[] = {(unsigned char)bits, (unsigned char)(bits >> 8),
                                 (unsigned char)(bits >> 16), (unsigned char)(bits >> 24)};
        memcpy(&v[i], bytes, sizeof bytes);
    }
    lk_buf_append_str(out, "\"");
    append_base64(out, (const unsigned char *)v, n * sizeof *v);
    lk_buf_append_str(out, "\"");
}

static bool write_embeddings(const struct lk_response *r, struct lk_buf *out) {
    struct lk_request *request = &r->completion->request;
    struct lk_buf data = {0};
    json_int_t n_tok = 0;
    lk_buf_append_str(&data, "[");
    for (size_t i = 0; i < request->n_prompt; i++) {
        n_tok += (json_int_t)request->prompt[i].n_tok;
        lk_buf_printf(&data,
                      "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        lk_embedding_append(r, i, &data);
        lk_buf_append_str(&data, "}");
    }
    lk_buf_append_str(&data, "]");
    json_t *rest =
        json_pack("{s:s, s:s, s:{s:I, s:I}, s:s}", "object", "list", "model", r->opts->id, "usage",
                  "prompt_tokens", n_tok, "total_tokens", n_tok, "note",
                  "pooled hidden states of a language model that was not trained for embeddings");
    if (data.failed) out->failed = true;
    lk_buf_add_json_with(out, rest, "data", lk_buf_cstr(&data), data.len);
    lk_buf_free(&data);
    return !out->failed;
}

const struct lk_endpoint lk_embeddings_endpoint = {.parse = parse_embeddings,
                                                   .write_whole = write_embeddings};
