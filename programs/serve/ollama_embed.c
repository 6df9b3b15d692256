/* Embeddings in ollama's form. */
#include "serve/ollama_embed.h"

#include "serve/body_convert.h"
#include "serve/embeddings.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/ollama_body.h"

#include <math.h>

/* `input`: the field with the texts. */
static bool parse_body(struct lk_request *request, const struct lk_server_opts *opts,
                       const char *body, size_t len, const char *input,
                       struct lk_api_error *error) {
    json_t *given = lk_json_parse_body(body, len, error), *to = given ? json_object() : NULL;
    if (given && !to) lk_convert_no_memory(error);
    if (to) {
        lk_ollama_convert_model(to, given);
        lk_convert_field(to, "input", given, input);
        lk_convert_field(to, "dimensions", given, "dimensions");
    }
    json_decref(given);
    return lk_embeddings_parse_json(request, opts, to, error);
}

static bool parse_embed(struct lk_request *request, const struct lk_server_opts *opts,
                        const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, "input", error);
}

static bool parse_embeddings(struct lk_request *request, const struct lk_server_opts *opts,
                             const char *body, size_t len, struct lk_api_error *error) {
    return parse_body(request, opts, body, len, "prompt", error) &&
           (request->n_prompt == 1 ||
            lk_api_error_set(error, 400, "invalid_type", "prompt", "'prompt' must be a string"));
}

static bool write_embed(const struct lk_response *r, struct lk_buf *out) {
    const struct lk_request *request = &r->completion->request;
    const struct lk_job_result *result = &r->choice[0].result;
    struct lk_buf list = {0};
    json_int_t n_tok = 0;
    lk_buf_append_str(&list, "[");
    for (size_t i = 0; i < request->n_prompt; i++) {
        n_tok += (json_int_t)request->prompt[i].n_tok;
        if (i) lk_buf_append_str(&list, ",");
        lk_embedding_append(r, i, &list);
    }
    lk_buf_append_str(&list, "]");
    if (list.failed) out->failed = true;
    json_t *rest = json_pack("{s:s, s:I, s:i, s:I}", "model", r->opts->id, "total_duration",
                             (json_int_t)llround(1e9 * (result->wait_s + result->prompt_s)),
                             "load_duration", 0, "prompt_eval_count", n_tok);
    lk_buf_add_json_with(out, rest, "embeddings", lk_buf_cstr(&list), list.len);
    lk_buf_free(&list);
    return !out->failed;
}

static bool write_embeddings(const struct lk_response *r, struct lk_buf *out) {
    lk_buf_append_str(out, "{\"embedding\":");
    lk_embedding_append(r, 0, out);
    lk_buf_append_str(out, "}");
    return !out->failed;
}

const struct lk_endpoint lk_ollama_embed = {
    .parse = parse_embed, .n_body = 2, .write_whole = write_embed};

const struct lk_endpoint lk_ollama_embeddings = {
    .parse = parse_embeddings, .n_body = 2, .write_whole = write_embeddings};
