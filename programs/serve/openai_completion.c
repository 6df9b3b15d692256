/* The request body of /v1/completions: text or token prompts. */
#include "serve/openai_completion.h"

#include "base/buf.h"
#include "lowkey_serve.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/tokens.h"

#include <stdlib.h>
#include <string.h>

/* A prompt is a string or an array of token ids. */
static bool parse_prompt(struct lk_prompt *p, const json_t *given, const char *field,
                         struct lk_api_error *error) {
    const json_t *tok;
    size_t i;
    if (json_is_string(given)) {
        p->text = strdup(json_string_value(given));
        return p->text ||
               lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    }
    if (!json_is_array(given))
        return lk_api_error_set(error, 400, "invalid_type", field,
                                "'%s' must be a string, an array of token ids, or an array of "
                                "these",
                                field);
    p->tok = malloc((json_array_size(given) + 1) * sizeof *p->tok);
    if (!p->tok)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    json_array_foreach(given, i, tok) {
        json_int_t value = json_integer_value(tok);
        if (!json_is_integer(tok) || value < 0 || value > INT32_MAX)
            return lk_api_error_set(error, 400, "invalid_type", field,
                                    "'%s' contains an element that is not a token id", field);
        p->tok[p->n_tok++] = (int32_t)value;
    }
    return true;
}

bool lk_openai_parse_prompts(struct lk_request *request, const char *field, size_t max,
                             struct lk_api_error *error) {
    const json_t *given = json_object_get(request->body, field), *first = json_array_get(given, 0);
    bool several = json_is_array(given) && !json_is_integer(first);
    size_t n = several ? json_array_size(given) : 1;
    if (!given || n == 0)
        return lk_api_error_set(error, 400, "missing_field", field, "'%s' is missing", field);
    if (n > max)
        return lk_api_error_set(error, 400, "invalid_value", field,
                                "%zu prompts are too many; the maximum is %zu", n, max);
    request->prompt = calloc(n, sizeof *request->prompt);
    if (!request->prompt)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompts");
    request->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        if (!parse_prompt(&request->prompt[i], several ? json_array_get(given, i) : given, field,
                          error))
            return false;
    return true;
}

/* "suffix": the answer is what stands between each prompt and it. */
static bool parse_suffix(struct lk_request *request, const struct lk_server_opts *opts,
                         struct lk_api_error *error) {
    struct lk_infill infill = {0};
    if (!lk_json_field_string(request->body, "suffix", &infill.suffix, error)) return false;
    if (!infill.suffix || !*infill.suffix) return true;
    if (request->echo)
        return lk_api_error_set(error, 400, "unsupported", "suffix",
                                "'suffix' and 'echo' cannot be combined");
    request->marked = true;
    for (size_t i = 0; i < request->n_prompt; i++) {
        char *text = request->prompt[i].text;
        if (!text)
            return lk_api_error_set(error, 400, "unsupported", "suffix",
                                    "'suffix' requires prompts that are texts");
        infill.prefix = text;
        bool good = lk_infill_format(&infill, opts->model, &request->prompt[i].text, error);
        free(text);
        if (!good) {
            request->prompt[i].text = NULL;
            return false;
        }
    }
    return true;
}

bool lk_openai_completion_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                                     json_t *body, struct lk_api_error *error) {
    int64_t n_top = -1, best_of = 0;
    if (!lk_request_parse_json(request, opts, body, error)) return false;
    request->parse_special = opts->parse_special;
    if (!lk_openai_parse_prompts(request, "prompt", LK_MAX_PROMPT, error) ||
        !lk_request_reject(request, "n_probs", 0, error) ||
        !lk_json_field_bool(request->body, "echo", &request->echo, error) ||
        !lk_json_field_bool(request->body, "parse_special", &request->parse_special, error) ||
        !lk_json_field_int(request->body, "logprobs", 0, 20, &n_top, error) ||
        !lk_json_field_int(request->body, "best_of", 1, LK_MAX_N, &best_of, error))
        return false;
    request->n_top_logprobs = (int)n_top;
    if (lk_json_field_is_set(request->body, "tools"))
        return lk_api_error_set(error, 400, "unsupported", "tools",
                                "'tools' is only supported by /v1/chat/completions");
    if (best_of && (size_t)best_of != request->n)
        return lk_api_error_set(error, 400, "unsupported", "best_of",
                                "'best_of' must be equal to 'n'");
    request->score = request->echo && request->n_top_logprobs >= 0;
    if (request->score && request->stream)
        return lk_api_error_set(error, 400, "unsupported", "stream",
                                "log-probabilities of a prompt ('echo' and 'logprobs') cannot be "
                                "streamed; leave 'stream' out");
    /* Its prompts are evaluated from the first token on, and not in the way that others are. */
    if (request->score) request->reuse = false;
    return parse_suffix(request, opts, error);
}

bool lk_openai_completion_parse(struct lk_request *request, const struct lk_server_opts *opts,
                                const char *body, size_t len, struct lk_api_error *error) {
    return lk_openai_completion_parse_json(
        request, opts, lk_fields_parse(body, len, LK_FIELDS_TEXT, error), error);
}

/* ---- prompts to fill in the middle ---- */

enum { MAX_EXTRA = 256 }; /* other files of a request */

/* Append other files: each with the model's own token before its name, or as comments. */
static bool append_extra(const json_t *extra, const lk_model *model, const lk_fim_tokens *fim,
                         struct lk_buf *out, struct lk_api_error *error) {
    const json_t *file;
    size_t i;
    if (!extra || json_is_null(extra)) return true;
    if (!json_is_array(extra) || json_array_size(extra) > MAX_EXTRA)
        return lk_api_error_set(error, 400, "invalid_type", "input_extra",
                                "'input_extra' must be an array of at most %d objects", MAX_EXTRA);
    bool tokens = fim->repo >= 0 && fim->file >= 0;
    if (tokens && json_array_size(extra) > 0) {
        lk_token_append_marked(model, fim->repo, out);
        lk_buf_append_str(out, "project\n");
    }
    json_array_foreach(extra, i, file) {
        const char *text = json_string_value(json_object_get(file, "text")),
                   *name = json_string_value(json_object_get(file, "filename"));
        if (!text)
            return lk_api_error_set(error, 400, "invalid_type", "input_extra",
                                    "input_extra[%zu].text must be a string", i);
        if (tokens) lk_token_append_marked(model, fim->file, out);
        lk_buf_printf(out, tokens ? "%s\n" : "--- %s ---\n", name ? name : "file");
        lk_buf_append_str(out, text);
        lk_buf_append_str(out, "\n");
    }
    if (tokens && json_array_size(extra) > 0) {
        lk_token_append_marked(model, fim->file, out);
        lk_buf_append_str(out, "current\n");
    }
    return true;
}

bool lk_infill_format(const struct lk_infill *infill, const lk_model *model, char **out,
                      struct lk_api_error *error) {
    struct lk_buf text = {0};
    lk_fim_tokens fim = lk_model_get_fim_tokens(model);
    if (fim.prefix < 0 || fim.suffix < 0 || fim.middle < 0)
        return lk_api_error_set(error, 501, "unsupported", NULL,
                                "this model has no tokens to fill in the middle; use a model that "
                                "was trained for it, such as Qwen2.5-Coder");
    bool good = append_extra(infill->extra, model, &fim, &text, error);
    lk_token_append_marked(model, fim.prefix, &text);
    lk_buf_append_str(&text, infill->prefix ? infill->prefix : "");
    lk_buf_append_str(&text, infill->prompt ? infill->prompt : "");
    lk_token_append_marked(model, fim.suffix, &text);
    lk_buf_append_str(&text, infill->suffix ? infill->suffix : "");
    lk_token_append_marked(model, fim.middle, &text);
    if (good && text.failed)
        good = lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    if (!good) lk_buf_free(&text);
    if (good) *out = text.at;
    return good;
}
