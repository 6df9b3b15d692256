/* The sampling parameters of a request. */
#include "serve/request_sampling.h"

#include "serve/json_field.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>

static const char bias_field[] = "logit_bias";

/* Any 64-bit integer. Values from 0 to 2^32 - 1 are used unchanged; others are hashed to 32 bits.
 * Without a seed a random one is drawn, so that repeated requests get different answers. */
static bool parse_seed(struct lk_request *request, struct lk_api_error *error) {
    const int64_t max_exact = INT64_C(1) << 53; /* range of exact integers in a double */
    const json_t *given = json_object_get(request->body, "seed");
    uint32_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = 1;
    int64_t seed = drawn;
    if (json_is_integer(given))
        seed = json_integer_value(given);
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

bool lk_request_parse_sampling(struct lk_request *request, struct lk_api_error *error) {
    const json_t *b = request->body;
    lk_sampler_opts *s = &request->sampling;
    *s = lk_sampler_chat();
    double temperature = (double)s->temperature, top_p = (double)s->top_p, min_p = (double)s->min_p,
           repeat = 1, frequency = 0, presence = 0;
    int64_t top_k = s->top_k, last_n = s->repeat_last_n;
    bool good = lk_json_field_real(b, "temperature", 0, 2, &temperature, error) &&
                lk_json_field_real(b, "top_p", 0, 1, &top_p, error) &&
                lk_json_field_real(b, "min_p", 0, 1, &min_p, error) &&
                lk_json_field_int(b, "top_k", 0, 10000000, &top_k, error) &&
                lk_json_field_real(b, "repeat_penalty", 0.01, 100, &repeat, error) &&
                lk_json_field_int(b, "repeat_last_n", 0, 1 << 20, &last_n, error) &&
                lk_json_field_real(b, "frequency_penalty", -2, 2, &frequency, error) &&
                lk_json_field_real(b, "presence_penalty", -2, 2, &presence, error) &&
                lk_json_field_bool(b, "ignore_eos", &s->ignore_eos, error) &&
                parse_seed(request, error) && parse_bias(request, error);
    if (!good) return false;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->min_p = (float)min_p;
    s->top_k = top_p == 0 ? 1 : (int32_t)top_k; /* top_p 0 would mean off */
    s->repeat_penalty = (float)repeat;
    s->frequency_penalty = (float)frequency;
    s->presence_penalty = (float)presence;
    s->repeat_last_n = last_n ? (int32_t)last_n : -1; /* 0 would mean the default */
    return true;
}
