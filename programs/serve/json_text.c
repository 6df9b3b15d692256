/* Conversion of arbitrary bytes to valid UTF-8 and JSON strings. */
#include "serve/json_text.h"

#include "base/utf8.h"

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
