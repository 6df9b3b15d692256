#include "serve/field.h"

#include <math.h>

bool lk_field_given(const json_t *body, const char *name) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) return false;
    if (json_is_object(v)) return json_object_size(v) > 0;
    return !json_is_array(v) || json_array_size(v) > 0;
}

static bool absent(const json_t *body, const char *name) {
    const json_t *v = json_object_get(body, name);
    return !v || json_is_null(v);
}

bool lk_field_bool(const json_t *body, const char *name, bool *out, struct lk_fault *fault) {
    const json_t *v = json_object_get(body, name);
    if (absent(body, name)) return true;
    if (!json_is_boolean(v))
        return lk_fault_set(fault, 400, "invalid_type", name, "'%s' must be true or false", name);
    *out = json_is_true(v);
    return true;
}

bool lk_field_int(const json_t *body, const char *name, int64_t least, int64_t most, int64_t *out,
                  struct lk_fault *fault) {
    double value = 0;
    if (absent(body, name)) return true;
    if (!lk_field_real(body, name, (double)least, (double)most, &value, fault)) return false;
    if (value != floor(value))
        return lk_fault_set(fault, 400, "invalid_type", name, "'%s' must be a whole number", name);
    *out = (int64_t)value;
    return true;
}

bool lk_field_real(const json_t *body, const char *name, double least, double most, double *out,
                   struct lk_fault *fault) {
    const json_t *v = json_object_get(body, name);
    if (absent(body, name)) return true;
    if (!json_is_number(v))
        return lk_fault_set(fault, 400, "invalid_type", name, "'%s' must be a number", name);
    double value = json_number_value(v);
    if (!(value >= least && value <= most))
        return lk_fault_set(fault, 400, "invalid_value", name,
                            "'%s' is %.10g, expected %.10g to %.10g", name, value, least, most);
    *out = value;
    return true;
}

bool lk_field_text(const json_t *body, const char *name, const char **out, struct lk_fault *fault) {
    if (absent(body, name)) return true;
    const char *text = json_string_value(json_object_get(body, name));
    if (!text) return lk_fault_set(fault, 400, "invalid_type", name, "'%s' must be a string", name);
    *out = text;
    return true;
}
