/* JSON values in grammars. */
#include "grammar/json_literal.h"

#include <stdlib.h>

char *lk_json_text(const json_t *value) {
    char *text = NULL;
    for (size_t digits = 15; digits <= 17; digits++) {
        free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(digits));
        json_t *parsed = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        bool same = json_equal(parsed, value);
        json_decref(parsed);
        if (same) break;
    }
    return text;
}

void lk_gbnf_literal(struct lk_buf *out, const char *text) {
    lk_buf_append_str(out, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') lk_buf_append_str(out, "\\");
        lk_buf_append(out, c, 1);
    }
    lk_buf_append_str(out, "\"");
}

json_t *lk_json_keys(const json_t *list) {
    json_t *keys = json_object();
    for (size_t i = 0; keys && i < json_array_size(list); i++) {
        if (json_object_set_new(keys, json_string_value(json_array_get(list, i)), json_true())) {
            json_decref(keys);
            return NULL;
        }
    }
    return keys;
}
