/* How a request wants its tokens chosen. */
#include "serve/ask.h"
#include "serve/field.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>

static const char bias_field[] = "logit_bias";

/* Any whole number of 64 bits; those from 0 to 2^32 - 1 are themselves. Where nobody gave one, answers to the same
 * request shall differ. */
static bool read_seed(struct lk_ask *ask, struct lk_fault *fault) {
    const int64_t exact = INT64_C(1) << 53; /* what a number with a point can say */
    const json_t *given = json_object_get(ask->body, "seed");
    uint32_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = 1;
    int64_t seed = drawn;
    if (json_is_integer(given))
        seed = json_integer_value(given);
    else if (!lk_field_int(ask->body, "seed", -exact, exact, &seed, fault))
        return false;
    uint64_t bits = (uint64_t)seed;
    ask->sampling.seed = (uint32_t)bits + (uint32_t)(bits >> 32) * 0x9E3779B9u;
    return true;
}

static bool add_bias(struct lk_ask *ask, int64_t tok, const json_t *value, struct lk_fault *fault) {
    const double most = 100; /* as OpenAI's */
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (tok < 0 || tok > INT32_MAX ||
        !(json_is_false(value) || (json_is_number(value) && fabs(bias) <= most)))
        return lk_fault_set(fault, 400, "invalid_value", bias_field,
                            "'logit_bias' must give tokens numbers from -100 to 100, or false");
    ask->bias[ask->sampling.n_bias++] = (lk_logit_bias){(int32_t)tok, (float)bias};
    return true;
}

/* {"token": bias}, as OpenAI has it. */
static bool read_bias_object(struct lk_ask *ask, json_t *given, struct lk_fault *fault) {
    const char *key;
    json_t *value;
    json_object_foreach(given, key, value) {
        char *end = NULL;
        int64_t tok = strtoll(key, &end, 10);
        if (!isdigit((unsigned char)*key) || *end)
            return lk_fault_set(fault, 400, "invalid_value", bias_field,
                                "'logit_bias' names '%.40s', expected the number of a token", key);
        if (!add_bias(ask, tok, value, fault)) return false;
    }
    return true;
}

/* [[token, bias]], as llama.cpp's server has it besides. */
static bool read_bias_array(struct lk_ask *ask, const json_t *given, struct lk_fault *fault) {
    const json_t *pair;
    size_t i;
    json_array_foreach(given, i, pair) {
        const json_t *tok = json_array_get(pair, 0);
        if (!json_is_integer(tok) || json_array_size(pair) != 2)
            return lk_fault_set(fault, 400, "invalid_type", bias_field,
                                "'logit_bias' must hold pairs of a token's number and its bias");
        if (!add_bias(ask, json_integer_value(tok), json_array_get(pair, 1), fault)) return false;
    }
    return true;
}

static bool read_bias(struct lk_ask *ask, struct lk_fault *fault) {
    json_t *given = json_object_get(ask->body, bias_field);
    size_t n = json_object_size(given) + json_array_size(given);
    if (!given || json_is_null(given)) return true;
    if (!json_is_object(given) && !json_is_array(given))
        return lk_fault_set(fault, 400, "invalid_type", bias_field,
                            "'logit_bias' must be an object or an array of pairs");
    if (n > LK_MAX_BIAS)
        return lk_fault_set(fault, 400, "invalid_value", bias_field,
                            "'logit_bias' names %zu tokens; at most %d are accepted", n,
                            LK_MAX_BIAS);
    if (n == 0) return true;
    ask->bias = malloc(n * sizeof *ask->bias);
    if (!ask->bias)
        return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the biases");
    ask->sampling.bias = ask->bias;
    return json_is_object(given) ? read_bias_object(ask, given, fault)
                                 : read_bias_array(ask, given, fault);
}

bool lk_ask_sampling(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *b = ask->body;
    lk_sampler_opts *s = &ask->sampling;
    *s = lk_sampler_defaults();
    double temperature = (double)s->temperature, top_p = (double)s->top_p, min_p = (double)s->min_p,
           repeat = 1, frequency = 0, presence = 0;
    int64_t top_k = s->top_k, last_n = s->repeat_last_n;
    bool good = lk_field_real(b, "temperature", 0, 2, &temperature, fault) &&
                lk_field_real(b, "top_p", 0, 1, &top_p, fault) &&
                lk_field_real(b, "min_p", 0, 1, &min_p, fault) &&
                lk_field_int(b, "top_k", 0, 10000000, &top_k, fault) &&
                lk_field_real(b, "repeat_penalty", 0.01, 100, &repeat, fault) &&
                lk_field_int(b, "repeat_last_n", 0, 1 << 20, &last_n, fault) &&
                lk_field_real(b, "frequency_penalty", -2, 2, &frequency, fault) &&
                lk_field_real(b, "presence_penalty", -2, 2, &presence, fault) &&
                lk_field_bool(b, "ignore_eos", &s->ignore_eos, fault) && read_seed(ask, fault) &&
                read_bias(ask, fault);
    if (!good) return false;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->min_p = (float)min_p;
    s->top_k = (int32_t)top_k;
    s->repeat_penalty = (float)repeat;
    s->frequency_penalty = (float)frequency;
    s->presence_penalty = (float)presence;
    s->repeat_last_n = (int32_t)last_n;
    return true;
}
