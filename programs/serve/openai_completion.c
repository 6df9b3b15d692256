/* The body of /v1/completions. */
#include "serve/ask.h"
#include "serve/field.h"

#include <stdlib.h>
#include <string.h>

static bool set_text(struct lk_prompt *p, const json_t *text, struct lk_fault *fault) {
    p->text = strdup(json_string_value(text));
    return p->text || lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the prompt");
}

static bool set_tokens(struct lk_prompt *p, const json_t *list, struct lk_fault *fault) {
    const json_t *tok;
    size_t i;
    p->tok = malloc((json_array_size(list) + 1) * sizeof *p->tok);
    if (!p->tok) return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the prompt");
    json_array_foreach(list, i, tok) {
        json_int_t value = json_integer_value(tok);
        if (!json_is_integer(tok) || value < 0 || value > INT32_MAX)
            return lk_fault_set(fault, 400, "invalid_type", "prompt",
                                "'prompt' mixes tokens with something else");
        p->tok[p->n_tok++] = (int32_t)value;
    }
    return true;
}

static bool set_prompt(struct lk_prompt *p, const json_t *given, struct lk_fault *fault) {
    if (json_is_string(given)) return set_text(p, given, fault);
    if (json_is_array(given)) return set_tokens(p, given, fault);
    return lk_fault_set(fault, 400, "invalid_type", "prompt",
                        "'prompt' must be a string, tokens, or an array of one of these");
}

static bool read_prompts(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *given = json_object_get(ask->body, "prompt"), *first = json_array_get(given, 0);
    bool several = json_is_array(given) && !json_is_integer(first);
    size_t n = several ? json_array_size(given) : 1;
    if (!given || n == 0)
        return lk_fault_set(fault, 400, "missing_field", "prompt", "'prompt' is missing");
    if (n > LK_MAX_PROMPT)
        return lk_fault_set(fault, 400, "invalid_value", "prompt",
                            "%zu prompts; at most %d are accepted", n, LK_MAX_PROMPT);
    ask->prompt = calloc(n, sizeof *ask->prompt);
    if (!ask->prompt)
        return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the prompts");
    ask->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        if (!set_prompt(&ask->prompt[i], several ? json_array_get(given, i) : given, fault))
            return false;
    return true;
}

bool lk_ask_completion(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body,
                       size_t len, struct lk_fault *fault) {
    int64_t top = -1, best_of = 0;
    if (!lk_ask_common(ask, opts, body, len, fault) || !read_prompts(ask, fault) ||
        !lk_field_bool(ask->body, "echo", &ask->echo, fault) ||
        !lk_field_int(ask->body, "logprobs", 0, 20, &top, fault) ||
        !lk_field_int(ask->body, "best_of", 1, LK_MAX_N, &best_of, fault))
        return false;
    ask->n_top = (int)top;
    if (lk_field_given(ask->body, "tools"))
        return lk_fault_set(fault, 400, "unsupported", "tools",
                            "'tools' are for /v1/chat/completions");
    if (best_of && (size_t)best_of != ask->n)
        return lk_fault_set(fault, 400, "unsupported", "best_of",
                            "'best_of' other than 'n' is not supported");
    if (ask->echo && ask->n_top >= 0)
        return lk_fault_set(fault, 400, "unsupported", "echo",
                            "'echo' together with 'logprobs' is not supported");
    return true;
}
