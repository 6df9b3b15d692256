/* The fields that all completion endpoints share, sampling parameters, tokenization of the prompts,
 * and where later prompts will probably differ. */
#include "serve/request.h"

#include "base/os.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "serve/fields.h"
#include "serve/json_field.h"
#include "serve/thoughts.h"
#include "serve/tokens.h"
#include "serve/tools.h"
#include "serve/turns.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sampling parameters ---- */

static const char bias_field[] = "logit_bias";

/* Any 64-bit integer. Values from 0 to 2^32 - 1 are used unchanged; others are hashed to 32 bits.
 * Without a seed, and without one of the server's, a random one is drawn, so that repeated requests
 * get different answers. */
static bool parse_seed(struct lk_request *request, const struct lk_server_opts *opts,
                       struct lk_api_error *error) {
    const int64_t max_exact = INT64_C(1) << 53; /* range of exact integers in a double */
    const json_t *given = json_object_get(request->body, "seed");
    uint32_t drawn = 0;
    if (!lk_os_random(&drawn, sizeof drawn)) drawn = 1;
    int64_t seed = opts->seed < 0 ? drawn : opts->seed;
    double real = json_real_value(given);
    if (json_is_integer(given))
        seed = json_integer_value(given);
    else if (json_is_real(given) && real == floor(real) && fabs(real) > (double)max_exact)
        memcpy(&seed, &real, sizeof seed); /* of unsigned 64-bit integers, or beyond */
    else if (!lk_json_field_int(request->body, "seed", -max_exact, max_exact, &seed, error))
        return false;
    uint64_t bits = (uint64_t)seed;
    request->sampling.seed = (uint32_t)bits + (uint32_t)(bits >> 32) * 0x9E3779B9u;
    return true;
}

static bool add_bias(struct lk_request *request, int64_t tok, const json_t *value,
                     struct lk_api_error *error) {
    const double max = 100; /* as in OpenAI's API */
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (tok < 0 || tok > INT32_MAX ||
        !(json_is_false(value) || (json_is_number(value) && fabs(bias) <= max)))
        return lk_api_error_set(error, 400, "invalid_value", bias_field,
                                "'logit_bias' values must be numbers between -100 and 100, or "
                                "false");
    request->bias[request->sampling.n_bias++] = (lk_logit_bias){(int32_t)tok, (float)bias};
    return true;
}

/* {"token": bias}, OpenAI's form. */
static bool parse_bias_object(struct lk_request *request, json_t *given,
                              struct lk_api_error *error) {
    const char *key;
    json_t *value;
    json_object_foreach(given, key, value) {
        char *end = NULL;
        int64_t tok = strtoll(key, &end, 10);
        if (!isdigit((unsigned char)*key) || *end)
            return lk_api_error_set(error, 400, "invalid_value", bias_field,
                                    "'logit_bias' has the key '%.40s', but keys must be token ids",
                                    key);
        if (!add_bias(request, tok, value, error)) return false;
    }
    return true;
}

/* [[token, bias]], llama-server's second form. */
static bool parse_bias_array(struct lk_request *request, const json_t *given,
                             struct lk_api_error *error) {
    const json_t *pair;
    size_t i;
    json_array_foreach(given, i, pair) {
        const json_t *tok = json_array_get(pair, 0);
        if (!json_is_integer(tok) || json_array_size(pair) != 2)
            return lk_api_error_set(error, 400, "invalid_type", bias_field,
                                    "'logit_bias' must contain pairs of token id and bias");
        if (!add_bias(request, json_integer_value(tok), json_array_get(pair, 1), error))
            return false;
    }
    return true;
}

static bool parse_bias(struct lk_request *request, struct lk_api_error *error) {
    json_t *given = json_object_get(request->body, bias_field);
    size_t n = json_object_size(given) + json_array_size(given);
    if (!given || json_is_null(given)) return true;
    if (!json_is_object(given) && !json_is_array(given))
        return lk_api_error_set(error, 400, "invalid_type", bias_field,
                                "'logit_bias' must be an object or an array of pairs");
    if (n > LK_MAX_BIAS)
        return lk_api_error_set(error, 400, "invalid_value", bias_field,
                                "'logit_bias' names %zu tokens; the maximum is %d", n, LK_MAX_BIAS);
    if (n == 0) return true;
    request->bias = malloc(n * sizeof *request->bias);
    if (!request->bias)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: logit_bias");
    request->sampling.bias = request->bias;
    return json_is_object(given) ? parse_bias_object(request, given, error)
                                 : parse_bias_array(request, given, error);
}

/* Parse temperature, penalties, seed, logit_bias and the like from request->body into
 * request->sampling. False: see `error`. */
static bool parse_sampling(struct lk_request *request, const struct lk_server_opts *opts,
                           struct lk_api_error *error) {
    const json_t *b = request->body;
    lk_sampler_opts *s = &request->sampling;
    *s = opts->model ? lk_model_sampling(opts->model) : lk_sampler_chat();
    double temperature = (double)s->temperature, top_p = (double)s->top_p, min_p = (double)s->min_p,
           repeat = (double)s->repeat_penalty, frequency = 0, presence = 0;
    int64_t top_k = s->top_k, last_n = s->repeat_last_n;
    bool good = lk_json_field_real(b, "temperature", 0, 2, &temperature, error) &&
                lk_json_field_real(b, "top_p", 0, 1, &top_p, error) &&
                lk_json_field_real(b, "min_p", 0, 1, &min_p, error) &&
                lk_json_field_int(b, "top_k", -1, 10000000, &top_k, error) &&
                lk_json_field_real(b, "repeat_penalty", 0.01, 100, &repeat, error) &&
                lk_json_field_int(b, "repeat_last_n", 0, 1 << 20, &last_n, error) &&
                lk_json_field_real(b, "frequency_penalty", -2, 2, &frequency, error) &&
                lk_json_field_real(b, "presence_penalty", -2, 2, &presence, error) &&
                lk_json_field_bool(b, "ignore_eos", &s->ignore_eos, error) &&
                parse_seed(request, opts, error) && parse_bias(request, error);
    if (!good) return false;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->min_p = (float)min_p;
    if (top_k < 0) top_k = 0;                   /* vLLM's word for off */
    s->top_k = top_p == 0 ? 1 : (int32_t)top_k; /* top_p 0 would mean off */
    s->repeat_penalty = (float)repeat;
    s->frequency_penalty = (float)frequency;
    s->presence_penalty = (float)presence;
    s->repeat_last_n = last_n ? (int32_t)last_n : -1; /* 0 would mean the default */
    return true;
}

/* ---- where later prompts will probably differ from a chat's ---- */

static const char mark = '\xFF'; /* of a control token in marked text (lk_chat_format) */
static const char *const space = " \t\r\n";

/* The first and the last place of a message's content in a text. Templates may remove white space
 * around it. False if it is not there. */
static bool find_content(const char *text, const json_t *message, const char **first,
                         const char **last, size_t *len) {
    const char *content = json_string_value(json_object_get(message, "content"));
    if (!content) return false;
    content += strspn(content, space);
    *len = strlen(content);
    while (*len > 0 && strchr(space, content[*len - 1])) --*len;
    const char *end = text + strlen(text);
    *first = *last = *len ? lk_os_memmem(text, (size_t)(end - text), content, *len) : NULL;
    for (const char *at = *first; at;
         at = lk_os_memmem(at + *len, (size_t)(end - at) - *len, content, *len))
        *last = at;
    return *first != NULL;
}

/* The position of the control token that is marked at `at` in the text: both have equally many
 * after it. 0 if they do not. */
static size_t token_position(const struct lk_prompt *p, const lk_model *model, const char *at) {
    size_t n = 0;
    for (; at && *at; at = strchr(at + 1, mark)) n++;
    for (size_t i = p->n_tok; n > 0 && i-- > 0;)
        if (lk_token_is_control(model, p->tok[i]) && --n == 0) return i;
    return 0;
}

/* Returns the position, or 0. */
static size_t add_mark(struct lk_prompt *p, const lk_model *model, const char *at) {
    size_t position = at ? token_position(p, model, at) : 0;
    if (position > 0) p->mark[p->n_mark++] = position;
    return position;
}

/* The number of tokens that the text up to `end`, which is not before a control token, has in
 * common with the prompt: other tokens may span the end. 0: it is not known. */
static size_t common_tokens(const struct lk_prompt *p, const lk_model *model, const char *end) {
    int32_t *tok;
    size_t n_tok;
    if (lk_tokenize(model, p->text, (size_t)(end - p->text), LK_TOKENIZE_BEGIN | LK_TOKENIZE_MARKED,
                    p->n_tok, &tok, &n_tok, NULL))
        return 0;
    size_t n = lk_tokens_common_prefix(tok, n_tok, p->tok, p->n_tok);
    lk_tokens_free(tok);
    return n;
}

/* Set the marks of the prompt of a chat, whose text and tokens are there. Each is the
 * position of a control token, because text before a control token is tokenized alike, whatever
 * follows. If the template has the system prompt and a question in one message, as Gemma's, the
 * mark between them is after the tokens that do not depend on the question. A template without
 * control tokens has only this one. */
static void find_prompt_marks(struct lk_prompt *p, const json_t *messages, const lk_model *model) {
    const char *first, *last;
    size_t len, n = json_array_size(messages);
    const json_t *system = json_array_get(messages, 0), *user = NULL;
    while (n > 0 && !user) {
        const json_t *message = json_array_get(messages, --n);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "user") == 0) user = message;
    }
    p->n_mark = 0;
    if (!p->text) return;
    if (user && find_content(p->text, user, &first, &last, &len)) {
        while (last > p->text && *last != mark) last--;
        add_mark(p, model, *last == mark ? last : NULL);
    }
    if (!system || system == user || !find_content(p->text, system, &first, &last, &len)) return;
    const char *end = first + len, *rest = end + strspn(end, space);
    if (*rest == mark || *rest == 0) {
        add_mark(p, model, *rest ? rest : NULL);
    } else { /* the template has the question in the same message */
        size_t n = common_tokens(p, model, end);
        if (n > 0) p->mark[p->n_mark++] = n;
    }
}

/* ---- parsing ---- */

static bool check_modalities(const json_t *body, struct lk_api_error *error) {
    const json_t *modalities = json_object_get(body, "modalities");
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *modality = json_string_value(json_array_get(modalities, i));
        if (!modality || strcmp(modality, "text") != 0)
            return lk_api_error_set(error, 400, "unsupported", "modalities",
                                    "only the modality 'text' is supported");
    }
    return true;
}

bool lk_request_reject(const struct lk_request *request, const char *name, double neutral,
                       struct lk_api_error *error) {
    const json_t *value = json_object_get(request->body, name);
    return !value || json_is_null(value) || lk_field_is_neutral(value, neutral) ||
           lk_api_error_set(error, 400, "unsupported", name, "'%s' is not supported here", name);
}

const char *lk_server_recipe_name(const struct lk_server_opts *opts, size_t i) {
    const char *name = opts->recipe_name ? opts->recipe_name[i] : NULL;
    return name ? name : lk_recipe_text(opts->recipe[i]);
}

bool lk_server_has_model(const struct lk_server_opts *o, const char *name) {
    bool found = strcmp(name, o->id) == 0;
    for (size_t i = 0; i < o->n_alias; i++) found |= strcmp(name, o->alias[i]) == 0;
    return found;
}

static bool parse_model(const json_t *body, const struct lk_server_opts *opts,
                        struct lk_api_error *error) {
    const char *model = opts->id;
    if (!lk_json_field_string(body, "model", &model, error)) return false;
    if (!opts->strict_model || lk_server_has_model(opts, model)) return true;
    return lk_api_error_set(error, 404, "model_not_found", "model",
                            "model '%.100s' not found; this server has '%.100s'", model, opts->id);
}

static bool parse_kv(struct lk_request *request, const struct lk_server_opts *opts,
                     struct lk_api_error *error) {
    const char *kv = NULL;
    char names[400] = "";
    if (!lk_json_field_string(request->body, "kv", &kv, error)) return false;
    if (!kv) return true;
    for (size_t i = 0; i < opts->n_recipe; i++) {
        const char *text = lk_server_recipe_name(opts, i);
        if (strcmp(kv, text) == 0 || strcmp(kv, lk_recipe_text(opts->recipe[i])) == 0) {
            request->recipe = i;
            return true;
        }
        size_t used = strlen(names);
        if (strlen(text) + 3 < sizeof names - used) {
            if (used) memcpy(names + used, ", ", 3), used += 2;
            memcpy(names + used, text, strlen(text) + 1);
        }
    }
    return lk_api_error_set(error, 400, "invalid_value", "kv",
                            "the recipe '%.60s' is not allowed; allowed are: %s. The server's "
                            "option --allow-kv adds others",
                            kv, names);
}

static bool add_stop(struct lk_request *request, const json_t *text, struct lk_api_error *error) {
    size_t len = json_string_length(text);
    if (len > LK_MAX_STOP_BYTES)
        return lk_api_error_set(error, 400, "invalid_value", "stop",
                                "a stop string has %zu bytes; the maximum is %d", len,
                                LK_MAX_STOP_BYTES);
    request->stop[request->n_stop++] = json_string_value(text);
    return true;
}

static bool parse_stop(struct lk_request *request, struct lk_api_error *error) {
    const json_t *stop = json_object_get(request->body, "stop"), *item;
    size_t i;
    if (!stop || json_is_null(stop)) return true;
    if (json_is_string(stop))
        return json_string_length(stop) == 0 || add_stop(request, stop, error);
    if (!json_is_array(stop) || json_array_size(stop) > LK_MAX_STOP)
        return lk_api_error_set(error, 400, "invalid_type", "stop",
                                "'stop' must be a string or an array of at most %d strings",
                                LK_MAX_STOP);
    json_array_foreach(stop, i, item) {
        if (!json_is_string(item) && !json_is_null(item))
            return lk_api_error_set(error, 400, "invalid_type", "stop",
                                    "'stop' must contain only strings");
        if (json_string_length(item) > 0 && !add_stop(request, item, error)) return false;
    }
    return true;
}

/* vLLM's field. */
static bool parse_stop_tokens(struct lk_request *request, struct lk_api_error *error) {
    static const char field[] = "stop_token_ids";
    const json_t *given = json_object_get(request->body, field), *item;
    size_t i;
    if (!given || json_is_null(given)) return true;
    if (!json_is_array(given) || json_array_size(given) > LK_MAX_STOP)
        return lk_api_error_set(error, 400, "invalid_type", field,
                                "'%s' must be an array of at most %d token ids", field,
                                LK_MAX_STOP);
    json_array_foreach(given, i, item) {
        json_int_t tok = json_integer_value(item);
        if (!json_is_integer(item) || tok < 0 || tok > INT32_MAX)
            return lk_api_error_set(error, 400, "invalid_type", field,
                                    "'%s' must contain only token ids", field);
        request->stop_tok[request->n_stop_tok++] = (int32_t)tok;
    }
    return true;
}

/* The token limit, under any of the names that clients use. */
static bool parse_max_tokens(struct lk_request *request, struct lk_api_error *error) {
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    enum { CONTEXT = -2, NONE = -1 }; /* no limit, as in llama-server, but the context */
    int64_t max = NONE;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && max == NONE; i++) {
        int64_t min = strcmp(names[i], "n_predict") == 0 ? CONTEXT : NONE;
        if (!lk_json_field_int(request->body, names[i], min, INT32_MAX, &max, error)) return false;
        if (max == CONTEXT) max = NONE;
    }
    request->max_tokens = max == NONE ? LK_NO_LIMIT : (size_t)max;
    return true;
}

static bool parse_stream(struct lk_request *request, struct lk_api_error *error) {
    const json_t *options = json_object_get(request->body, "stream_options");
    if (!lk_json_field_bool(request->body, "stream", &request->stream, error) ||
        !lk_json_field_bool(request->body, "return_progress", &request->progress, error))
        return false;
    if (!options || json_is_null(options)) return true;
    if (!json_is_object(options))
        return lk_api_error_set(error, 400, "invalid_type", "stream_options",
                                "'stream_options' must be an object");
    if (!request->stream)
        return lk_api_error_set(error, 400, "invalid_value", "stream_options",
                                "'stream_options' requires 'stream': true");
    return lk_json_field_bool(options, "include_usage", &request->include_usage, error);
}

/* The grammar of a format with a schema; NULL: of any object. */
static bool set_schema(struct lk_request *request, const json_t *schema,
                       struct lk_api_error *error) {
    static const struct lk_schema_use use = {.field = "response_format"};
    json_t *any = json_pack("{s:s}", "type", "object");
    request->sampling.grammar = request->grammar =
        lk_schema_grammar(schema && !json_is_null(schema) ? schema : any, &use, error);
    json_decref(any);
    request->grammar_field = use.field;
    return request->grammar != NULL;
}

/* OpenAI's "response_format", and llama-cpp-python's and TGI's forms of it. */
static bool parse_response_format(struct lk_request *request, struct lk_api_error *error) {
    const json_t *format = json_object_get(request->body, "response_format");
    const char *type = NULL;
    if (!format || json_is_null(format)) return true;
    if (!json_is_object(format))
        return lk_api_error_set(error, 400, "invalid_type", "response_format",
                                "'response_format' must be an object");
    if (!lk_json_field_string(format, "type", &type, error)) return false;
    if (!type ? json_object_size(format) == 0 : strcmp(type, "text") == 0) return true;
    const json_t *value = json_object_get(format, "value");
    if (type && (strcmp(type, "json_object") == 0 || strcmp(type, "json") == 0)) {
        const json_t *schema = json_object_get(format, "schema");
        return set_schema(request, schema ? schema : value, error);
    }
    if (type && strcmp(type, "json_schema") == 0) {
        const json_t *inner = json_object_get(format, "json_schema"),
                     *schema = json_object_get(inner ? inner : format, "schema");
        if (schema && !json_is_null(schema) && !json_is_object(schema))
            return lk_api_error_set(error, 400, "invalid_type", "response_format",
                                    "'response_format.json_schema.schema' must be an object");
        return set_schema(request, schema ? schema : value, error);
    }
    return lk_api_error_set(error, 400, "invalid_value", "response_format",
                            "'response_format.type' must be text, json_object or json_schema; a "
                            "grammar is the field 'grammar'");
}

/* llama-server's "json_schema". */
static bool parse_json_schema(struct lk_request *request, struct lk_api_error *error) {
    static const struct lk_schema_use use = {.field = "json_schema"};
    if (!lk_json_field_is_set(request->body, use.field)) return true;
    if (request->grammar)
        return lk_api_error_set(
            error, 400, "invalid_value", use.field,
            "'json_schema' and 'response_format' cannot be combined; give only one of them");
    request->sampling.grammar = request->grammar =
        lk_schema_grammar(json_object_get(request->body, use.field), &use, error);
    request->grammar_field = use.field;
    return request->grammar != NULL;
}

/* llama-server's "grammar", in GBNF. */
static bool parse_grammar(struct lk_request *request, struct lk_api_error *error) {
    const char *text = NULL;
    if (!lk_json_field_string(request->body, "grammar", &text, error)) return false;
    if (!text || !*text) return true;
    if (request->grammar)
        return lk_api_error_set(error, 400, "invalid_value", "grammar",
                                "'grammar' and '%s' cannot be combined; give only one of them",
                                request->grammar_field);
    request->sampling.grammar = request->grammar = strdup(text);
    request->grammar_field = "grammar";
    return request->grammar ||
           lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: grammar");
}

bool lk_request_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                           json_t *body, struct lk_api_error *error) {
    int64_t n = 1;
    *request = (struct lk_request){
        .body = body, .n_top_logprobs = -1, .reuse = true, .max_thoughts = LK_NO_LIMIT};
    if (!request->body || !check_modalities(request->body, error) ||
        !parse_model(request->body, opts, error) || !parse_kv(request, opts, error) ||
        !parse_stop(request, error) || !parse_stop_tokens(request, error) ||
        !parse_sampling(request, opts, error) || !parse_max_tokens(request, error) ||
        !parse_stream(request, error) ||
        !lk_json_field_bool(request->body, "cache_prompt", &request->reuse, error) ||
        !lk_json_field_int(request->body, "n", 1, LK_MAX_N, &n, error) ||
        !parse_response_format(request, error) || !parse_json_schema(request, error) ||
        !parse_grammar(request, error))
        return false;
    request->n = (size_t)n;
    return true;
}

/* ---- preparing ---- */

/* Log-probabilities of a response that is not streamed are kept until its end. Shorten the answer
 * to their limit, unless the client asked for more tokens itself. */
static bool limit_logprobs(struct lk_prompt *p, const struct lk_request *request,
                           struct lk_api_error *error) {
    if (request->stream || request->n_top_logprobs < 0) return true;
    size_t max = LK_MAX_LOGPROB_BYTES / lk_request_n_answer(request) /
                 lk_logprob_bytes(request->n_top_logprobs);
    if (p->max_tokens <= max) return true;
    if (request->max_tokens != LK_NO_LIMIT)
        return lk_api_error_set(error, 400, "invalid_value", "logprobs",
                                "log-probabilities of %zu answers of %zu tokens are too many for "
                                "one response; use 'stream', or at most %zu tokens",
                                lk_request_n_answer(request), p->max_tokens, max);
    p->max_tokens = max;
    return true;
}

/* Can a prompt that is too large for an exact prefill be read in parts? */
static bool can_have_parts(const struct lk_request *request, const struct lk_server_opts *opts,
                           size_t n_tok) {
    return n_tok > LK_FIRST_PART && request->reuse && !request->embed && !request->score &&
           !lk_recipe_evicts(opts->recipe[request->recipe]);
}

/* *bytes becomes at least the peak of a prefill of n_tok tokens, without the weights. */
static lk_status plan_prefill(const struct lk_request *request, const struct lk_server_opts *opts,
                              size_t n_tok, bool chunked, uint64_t *bytes, lk_err *err) {
    lk_session_opts session = {.n_ctx = (int32_t)n_tok, .chunked_prefill = chunked};
    lk_plan plan;
    lk_status status =
        lk_plan_make(opts->model, opts->recipe[request->recipe], &session, &plan, err);
    uint64_t peak = status ? 0 : plan.peak_bytes - plan.weight_bytes + plan.device_cache_bytes;
    if (peak > *bytes) *bytes = peak;
    return status;
}

/* The memory of prompt and answer: the larger of the peak during prefill and the total at the end,
 * where the session has n_end tokens. The weights are not counted. */
static lk_status plan_bytes(struct lk_prompt *p, const struct lk_request *request,
                            const struct lk_server_opts *opts, size_t n_end, lk_err *err) {
    lk_session_opts whole = {.n_ctx = (int32_t)n_end};
    lk_plan end;
    lk_status status = lk_plan_make(opts->model, opts->recipe[request->recipe], &whole, &end, err);
    if (status) return status;
    uint64_t more = 0;
    if (request->score) /* logits of a step, of the session and of its graph */
        more +=
            2ull * LK_SCORE_STEP * sizeof(float) * (uint64_t)lk_model_get_info(opts->model).n_vocab;
    if (opts->drafts) more += lk_drafter_bytes(opts->model, opts->n_ctx, LK_SERVE_PASS);
    p->n_bytes = p->n_bytes_rest = end.cache_bytes + end.scratch_bytes;
    status = plan_prefill(request, opts, p->n_tok, true, &p->n_bytes_rest, err);
    if (!status) status = plan_prefill(request, opts, p->n_tok, request->score, &p->n_bytes, err);
    p->in_parts = p->n_bytes + more > opts->max_bytes && can_have_parts(request, opts, p->n_tok);
    if (!status && p->in_parts) {
        p->n_bytes = p->n_bytes_rest;
        status = plan_prefill(request, opts, LK_FIRST_PART, false, &p->n_bytes, err);
    }
    p->n_bytes += more;
    p->n_bytes_rest += more;
    return status;
}

/* Set the token limit of the answer, and the memory for prompt and answer. */
static bool plan_prompt(struct lk_prompt *p, const struct lk_request *request,
                        const struct lk_server_opts *opts, struct lk_api_error *error) {
    lk_err err = {0};
    size_t n_ctx = (size_t)opts->n_ctx, room = n_ctx - p->n_tok;
    p->max_tokens = request->max_tokens < opts->n_predict ? request->max_tokens : opts->n_predict;
    if (p->max_tokens > room) p->max_tokens = room;
    if (!limit_logprobs(p, request, error)) return false;
    bool fills = p->max_tokens > n_ctx - p->n_tok;
    if (plan_bytes(p, request, opts, fills ? n_ctx : p->n_tok + p->max_tokens, &err))
        return lk_api_error_from_request(error, &err, NULL);
    if (p->n_bytes <= opts->max_bytes) return true;
    return lk_api_error_set(error, 413, "cache_limit_exceeded", NULL,
                            "this request would need %.1f MiB, but the server's cache limit is "
                            "%.1f MiB; ask for fewer tokens or a smaller recipe",
                            (double)p->n_bytes / (1 << 20), (double)opts->max_bytes / (1 << 20));
}

static const char *prompt_field(const struct lk_request *request) {
    return request->chat ? "messages" : request->embed ? "input" : "prompt";
}

static unsigned tokenize_flags(const struct lk_request *request) {
    unsigned flags = LK_TOKENIZE_BEGIN;
    if (request->chat || request->marked) flags |= LK_TOKENIZE_MARKED;
    if (request->parse_special && !request->marked) flags |= LK_TOKENIZE_CONTROL;
    return flags;
}

/* The prompt does not fit the context: say how many tokens it has. They are counted up to a few
 * times the context; the number beyond is estimated, so that no text takes more work. */
static bool fail_too_long(const struct lk_prompt *p, const struct lk_request *request,
                          const struct lk_server_opts *opts, struct lk_api_error *error) {
    enum { CONTEXTS = 4, LEAST = 1 << 17, BYTES_PER_TOKEN = 4 };
    size_t n_ctx = (size_t)opts->n_ctx, n_tok = p->n_tok, max = CONTEXTS * n_ctx;
    int32_t *tok = NULL;
    if (max < LEAST) max = LEAST;
    if (n_tok == 0 && p->text &&
        lk_tokenize(opts->model, p->text, strlen(p->text), tokenize_flags(request), max, &tok,
                    &n_tok, NULL)) {
        n_tok = strlen(p->text) / BYTES_PER_TOKEN;
        if (n_tok <= max) n_tok = max + 1;
    }
    lk_tokens_free(tok);
    return lk_api_error_set_too_long(error, prompt_field(request), n_tok, n_ctx);
}

static bool prepare_prompt(struct lk_prompt *p, const struct lk_request *request,
                           const struct lk_server_opts *opts, struct lk_api_error *error) {
    const char *field = prompt_field(request);
    lk_err err = {0};
    lk_status status = LK_OK;
    if (p->text)
        status = lk_tokenize(opts->model, p->text, strlen(p->text), tokenize_flags(request),
                             (size_t)opts->n_ctx, &p->tok, &p->n_tok, &err);
    if (status == LK_E_FULL && !request->chat) return fail_too_long(p, request, opts, error);
    if (status) return lk_api_error_from_request(error, &err, field);
    if (p->n_tok == 0)
        return lk_api_error_set(error, 400, "invalid_value", field, "the prompt is empty");
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < p->n_tok; i++)
        if (p->tok[i] < 0 || p->tok[i] >= n_vocab)
            return lk_api_error_set(error, 400, "invalid_value", field,
                                    "token %zu is %d, but token ids must be between 0 and %d", i,
                                    p->tok[i], n_vocab - 1);
    if (p->n_tok + (request->max_tokens > 0) > (size_t)opts->n_ctx)
        return fail_too_long(p, request, opts, error);
    return plan_prompt(p, request, opts, error);
}

/* ---- arguments as the model wrote them ----
 *
 * A template gets arguments as a value, and writes it in its own way. So for arguments whose text
 * is known it gets {"KEY-i": 0}, where KEY is random, and the prompt then gets the text in its
 * place. */

enum { KEY_LEN = 32 };

/* Take the texts off the calls of the messages. If `key` is not NULL, it replaces arguments.
 * Returns an array of [call, text, arguments]. */
static json_t *take_written(json_t *messages, const char *key) {
    json_t *out = json_array(), *message, *call;
    size_t i, k;
    json_array_foreach(messages, i, message) {
        json_array_foreach(json_object_get(message, "tool_calls"), k, call) {
            json_t *written = json_object_get(call, LK_WRITTEN),
                   *function = json_object_get(call, "function");
            if (!written) continue;
            json_array_append_new(
                out, json_pack("[O, O, O]", call, written, json_object_get(function, "arguments")));
            json_object_del(call, LK_WRITTEN);
            if (key)
                json_object_set_new(function, "arguments",
                                    json_sprintf("{\"%s-%zu\": 0}", key, json_array_size(out) - 1));
        }
    }
    return out;
}

static void put_back_written(const json_t *taken) {
    json_t *one;
    size_t i;
    json_array_foreach(taken, i, one) {
        json_t *call = json_array_get(one, 0);
        json_object_set(call, LK_WRITTEN, json_array_get(one, 1));
        json_object_set(json_object_get(call, "function"), "arguments", json_array_get(one, 2));
    }
}

/* Put the texts into the prompt. False: the template writes arguments in another form than JSON, or
 * no memory; the prompt is then as it was. */
static bool insert_written(struct lk_prompt *p, const json_t *taken, const char *key) {
    char word[KEY_LEN + 8];
    struct lk_buf out = {0};
    const char *at = p->text, *found;
    size_t n = 0, len = (size_t)snprintf(word, sizeof word, "{\"%s-", key);
    for (; (found = strstr(at, word)); n++) {
        char *end;
        size_t i = strtoul(found + len, &end, 10);
        const char *text = json_string_value(json_array_get(json_array_get(taken, i), 1));
        bool is_short = strncmp(end, "\":0}", 4) == 0;
        if (!text || (!is_short && strncmp(end, "\": 0}", 5) != 0)) break;
        lk_buf_append(&out, at, (size_t)(found - at));
        lk_buf_append_str(&out, text);
        at = end + (is_short ? 4 : 5);
    }
    lk_buf_append_str(&out, at);
    bool good = !out.failed && !found && n == json_array_size(taken);
    if (good) {
        free(p->text);
        p->text = lk_buf_detach(&out);
    }
    lk_buf_free(&out);
    return good;
}

/* Render the template. With `key`, *taken has what was taken off the messages; a new reference. */
static bool render(struct lk_request *request, const struct lk_server_opts *opts, const char *key,
                   json_t **taken, struct lk_api_error *error) {
    lk_err err = {0};
    *taken = take_written(request->messages, key);
    char *messages = json_dumps(request->messages, JSON_COMPACT),
         *tools = request->tools ? json_dumps(request->tools, JSON_COMPACT) : NULL,
         *variables = request->variables ? json_dumps(request->variables, JSON_COMPACT) : NULL;
    const lk_chat chat = {messages, tools, variables, request->reply, request->continue_last};
    bool good = messages && (tools || !request->tools) && (variables || !request->variables);
    put_back_written(*taken);
    if (!good) lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    if (good && lk_chat_format_json(opts->model, &chat, &request->prompt->text, &err))
        good = lk_api_error_from_request(error, &err, "messages");
    free(messages);
    free(tools);
    free(variables);
    return good;
}

bool lk_request_apply_template(struct lk_request *request, const struct lk_server_opts *opts,
                               struct lk_api_error *error) {
    uint64_t random = 0;
    char key[KEY_LEN];
    json_t *taken = NULL;
    request->prompt = calloc(1, sizeof *request->prompt);
    if (!request->prompt)
        return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    request->n_prompt = 1;
    bool has_key = lk_os_random(&random, sizeof random);
    snprintf(key, sizeof key, "a%016" PRIx64, random);
    bool good = render(request, opts, has_key ? key : NULL, &taken, error);
    if (good && has_key && json_array_size(taken) > 0 &&
        !insert_written(request->prompt, taken, key)) {
        free(request->prompt->text);
        request->prompt->text = NULL;
        json_decref(taken);
        good = render(request, opts, NULL, &taken, error);
    }
    json_decref(taken);
    return good;
}

static bool check_bias(const struct lk_request *request, const struct lk_server_opts *opts,
                       struct lk_api_error *error) {
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < request->sampling.n_bias; i++)
        if (request->bias[i].tok >= n_vocab)
            return lk_api_error_set(error, 400, "invalid_value", "logit_bias",
                                    "'logit_bias' names token %d, but token ids must be between 0 "
                                    "and %d",
                                    request->bias[i].tok, n_vocab - 1);
    return true;
}

size_t lk_request_n_answer(const struct lk_request *request) {
    return request->embed ? 1 : (request->chat ? 1 : request->n_prompt) * request->n;
}

/* Upper bound of the memory of a parsed JSON value, without its texts. */
static uint64_t values_bytes(const json_t *json) {
    enum { VALUE_BYTES = 128, MEMBER_BYTES = 96, CONTAINER_BYTES = 256 };
    uint64_t bytes = VALUE_BYTES;
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(json) || json_is_object(json)) bytes += CONTAINER_BYTES;
    json_array_foreach(json, i, value) bytes += values_bytes(value);
    json_object_foreach((json_t *)json, key, value) bytes += MEMBER_BYTES + values_bytes(value);
    return bytes;
}

/* What formatting a conversation takes: its JSON text, the values parsed from it, and the work of
 * the template. */
static uint64_t chat_bytes(const struct lk_request *request) {
    const json_t *part[] = {request->messages, request->tools, request->variables};
    uint64_t n_json = 0, values = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i]) continue;
        n_json += json_dumpb(part[i], NULL, 0, JSON_COMPACT);
        values += values_bytes(part[i]);
    }
    return 2 * n_json + values + lk_chat_bytes(n_json);
}

uint64_t lk_request_bytes(const struct lk_request *request) {
    /* A text is copied by the template. How many tokens it may have is limited, so its tokenizer
     * needs no more than a few times its bytes. */
    enum { BYTES_PER_TEXT_BYTE = 4, TOKEN_COPIES = 2 };
    uint64_t text = 0, n_tok = 0;
    for (size_t i = 0; i < request->n_prompt; i++) {
        const struct lk_prompt *p = &request->prompt[i];
        text += p->text ? strlen(p->text) : 0;
        n_tok += p->n_tok;
    }
    return request->more_bytes + (request->chat ? chat_bytes(request) : 0) +
           text * BYTES_PER_TEXT_BYTE + n_tok * sizeof(int32_t) * TOKEN_COPIES;
}

uint64_t lk_request_answer_bytes(const struct lk_request *request) {
    enum { TEXT_BYTES_PER_TOKEN = 8 };
    size_t n_text = request->text_copies + !request->stream;
    uint64_t n_tok = 0, bytes_per_token = TEXT_BYTES_PER_TOKEN * n_text;
    /* A number takes up to 18 bytes as text, in a buffer that grows by half and in the reply. */
    enum { NUMBER_BYTES = 4 + 18 * 3, BASE64_BYTES = 4 + 6 * 3 };
    if (request->embed)
        return request->n_prompt * request->n_dim * (request->base64 ? BASE64_BYTES : NUMBER_BYTES);
    for (size_t i = 0; i < request->n_prompt; i++) n_tok += request->prompt[i].max_tokens;
    if (request->n_top_logprobs >= 0 && !request->stream)
        bytes_per_token += lk_logprob_bytes(request->n_top_logprobs);
    for (size_t i = 0; request->score && i < request->n_prompt && !request->stream; i++)
        n_tok += request->prompt[i].n_tok;
    return n_tok * request->n * bytes_per_token;
}

/* The queue must be able to hold all answers. Checked before anything is made for them. */
static bool check_n_answer(const struct lk_request *request, const struct lk_server_opts *opts,
                           struct lk_api_error *error) {
    size_t n = lk_request_n_answer(request);
    return n <= opts->n_queue ||
           lk_api_error_set(error, 400, "invalid_value", "n",
                            "the request asks for %zu answers, but the queue holds at most %zu", n,
                            opts->n_queue);
}

static void free_prompts(struct lk_request *request) {
    for (size_t i = 0; i < request->n_prompt; i++) {
        free(request->prompt[i].text);
        free(request->prompt[i].tok);
        free(request->prompt[i].lp);
    }
    free(request->prompt);
    request->prompt = NULL;
    request->n_prompt = 0;
}

static bool is_too_long(const struct lk_api_error *error) {
    return error->code && strcmp(error->code, "context_length_exceeded") == 0;
}

/* The chat's prompt, from the messages as they are. */
static bool prepare_chat(struct lk_request *request, const struct lk_server_opts *opts,
                         struct lk_api_error *error) {
    return lk_request_apply_template(request, opts, error) &&
           prepare_prompt(request->prompt, request, opts, error);
}

/* Messages [0, head) and [cut, n), which are borrowed. NULL if memory ran out. */
static json_t *messages_without(const json_t *messages, size_t head, size_t cut) {
    json_t *out = json_array();
    bool good = out != NULL;
    for (size_t i = 0; good && i < json_array_size(messages); i++)
        if (i < head || i >= cut) good = json_array_append(out, json_array_get(messages, i)) == 0;
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* The conversation does not fit the context, as `error` says: leave out its oldest turns until it
 * does. False: it cannot be done, and `error` says why. */
static bool leave_out_turns(struct lk_request *request, const struct lk_server_opts *opts,
                            struct lk_api_error *error) {
    json_t *all = request->messages;
    size_t n = json_array_size(all), cut = 0, head;
    struct lk_turn_message *m = calloc(n + 1, sizeof *m);
    struct lk_api_error why = *error;
    bool good = false;
    for (size_t i = 0; m && i < n; i++) {
        const json_t *message = json_array_get(all, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        m[i] =
            (struct lk_turn_message){role ? role : "", json_dumpb(message, NULL, 0, JSON_COMPACT)};
    }
    head = m ? lk_turns_head(m, n) : 0;
    while (m && !good && is_too_long(&why) &&
           (cut = lk_turns_next_cut(m, n, (size_t)opts->n_ctx, cut)) != 0) {
        free_prompts(request);
        request->messages = messages_without(all, head, cut);
        why = (struct lk_api_error){0};
        good = request->messages
                   ? prepare_chat(request, opts, &why)
                   : lk_api_error_set(&why, 503, "out_of_memory", NULL, "out of memory: messages");
        request->n_left_out = cut - head;
        if (good) json_decref(all);
        if (!good) {
            json_decref(request->messages);
            request->messages = all;
        }
    }
    free(m);
    if (good || !is_too_long(&why)) *error = why; /* none, or another one */
    return good;
}

/* Agents shorten a conversation themselves when they read that it does not fit; turns that are left
 * out would end their work without a word. Their requests have tools. */
static bool is_of_agent(const struct lk_request *request) {
    const char *truncation = json_string_value(json_object_get(request->original, "truncation"));
    return json_array_size(json_object_get(request->body, "tools")) > 0 &&
           !(truncation && strcmp(truncation, "auto") == 0);
}

/* What an effort means for a model whose template does not know efforts: tokens of thoughts. */
static size_t effort_budget(const json_t *variables) {
    static const struct {
        const char *effort;
        size_t n_tok;
    } budgets[] = {{"minimal", 512}, {"low", 1024}, {"medium", 8192}};
    const char *effort = json_string_value(json_object_get(variables, "reasoning_effort"));
    for (size_t i = 0; effort && i < sizeof budgets / sizeof budgets[0]; i++)
        if (strcmp(effort, budgets[i].effort) == 0) return budgets[i].n_tok;
    return LK_NO_LIMIT;
}

/* Set the tokens that end the thoughts when their budget is used up. */
static bool prepare_thought_end(struct lk_request *request, const struct lk_server_opts *opts,
                                struct lk_api_error *error) {
    const char *template = lk_model_chat_template(opts->model);
    const struct lk_thought_form *form = lk_thought_form_of(template);
    if (request->max_thoughts == LK_NO_LIMIT && lk_thought_form_is_in(form, template) &&
        !strstr(template, "effort"))
        request->max_thoughts = effort_budget(request->variables);
    const char *end = lk_thought_form_end(form);
    int32_t *tok = NULL;
    lk_err err = {0};
    if (request->max_thoughts == LK_NO_LIMIT) return true;
    if (!lk_thought_form_is_in(form, template)) {
        request->max_thoughts = LK_NO_LIMIT;
        return request->may_lack_thoughts ||
               lk_api_error_set(error, 400, "unsupported", "reasoning_budget",
                                "'reasoning_budget' is not supported: the chat template of this "
                                "model has no thoughts");
    }
    if (lk_tokenize(opts->model, end, strlen(end), LK_TOKENIZE_CONTROL, LK_MAX_THOUGHT_END, &tok,
                    &request->n_thought_end, &err))
        return lk_api_error_from_request(error, &err, "reasoning_budget");
    memcpy(request->thought_end, tok, request->n_thought_end * sizeof *tok);
    lk_tokens_free(tok);
    return true;
}

bool lk_request_prepare(struct lk_request *request, const struct lk_server_opts *opts,
                        struct lk_api_error *error) {
    if (request->max_tokens == 0 && !request->echo && !request->may_be_empty)
        return lk_api_error_set(error, 400, "invalid_value", "max_tokens",
                                "'max_tokens' is 0, expected at least 1, or -1 for no limit; 0 is "
                                "for prompts with 'echo'");
    if (!check_n_answer(request, opts, error) || !check_bias(request, opts, error)) return false;
    if (request->chat && (!lk_request_reject(request, "suffix", 0, error) ||
                          !lk_request_reject(request, "n_probs", 0, error)))
        return false;
    if (request->chat && !prepare_thought_end(request, opts, error)) return false;
    request->all_turns = request->all_turns || is_of_agent(request);
    if (request->chat && !prepare_chat(request, opts, error) &&
        !(is_too_long(error) && !request->all_turns && leave_out_turns(request, opts, error))) {
        if (!is_too_long(error)) return false;
        free_prompts(request); /* count the whole conversation */
        return lk_request_apply_template(request, opts, error) &&
               fail_too_long(request->prompt, request, opts, error);
    }
    for (size_t i = 0; !request->chat && i < request->n_prompt; i++)
        if (!prepare_prompt(&request->prompt[i], request, opts, error)) return false;
    if (request->chat) find_prompt_marks(request->prompt, request->messages, opts->model);
    for (size_t i = 1; request->embed && i < request->n_prompt; i++) /* one job for all */
        if (request->prompt[i].n_bytes > request->prompt[0].n_bytes)
            request->prompt[0].n_bytes = request->prompt[i].n_bytes;
    return true;
}

bool lk_request_is_constrained(const struct lk_request *request) {
    const char *trigger = request->sampling.trigger;
    return request->sampling.grammar && !(trigger && *trigger);
}

void lk_request_free(struct lk_request *request) {
    free_prompts(request);
    json_decref(request->messages);
    json_decref((json_t *)request->allowed);
    free(request->grammar);
    free(request->trigger);
    free(request->bias);
    free(request->embedding);
    json_decref(request->body);
    json_decref(request->original);
    *request = (struct lk_request){0};
}
