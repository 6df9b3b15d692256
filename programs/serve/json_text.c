/* Conversion of arbitrary bytes to valid UTF-8, and of JSON values to text. */
#include "serve/json_text.h"

#include "base/utf8.h"

#include <stdlib.h>

void lk_buf_add_utf8(struct lk_buf *out, const char *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        size_t n = lk_utf8_valid_prefix(bytes + at, len - at);
        lk_buf_append(out, bytes + at, n);
        at += n;
        if (at == len) break;
        lk_buf_append_str(out, "\xef\xbf\xbd");
        at++;
    }
}

json_t *lk_json_from_bytes(const char *bytes, size_t len) {
    struct lk_buf text = {0};
    lk_buf_append_str(&text, "");
    lk_buf_add_utf8(&text, bytes, len);
    json_t *json = text.failed ? NULL : json_stringn(text.at, text.len);
    lk_buf_free(&text);
    return json;
}

void lk_buf_add_json(struct lk_buf *out, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(json);
    if (text)
        lk_buf_append_str(out, text);
    else
        out->failed = true;
    free(text);
}

void lk_buf_add_event(struct lk_buf *out, json_t *json) {
    lk_buf_append_str(out, "data: ");
    lk_buf_add_json(out, json);
    lk_buf_append_str(out, "\n\n");
}

void lk_buf_add_json_with(struct lk_buf *out, json_t *object, const char *field, const char *value,
                          size_t len) {
    struct lk_buf text = {0};
    bool empty = json_object_size(object) == 0;
    lk_buf_add_json(&text, object);
    if (text.failed) out->failed = true;
    if (!text.failed) lk_buf_append(out, text.at, text.len - 1); /* without the closing brace */
    lk_buf_printf(out, "%s\"%s\":", empty ? "" : ",", field);
    lk_buf_append(out, value, len);
    lk_buf_append_str(out, "}");
    lk_buf_free(&text);
}
