/* Typed access to the fields of JSON request bodies, and texts: bytes as valid UTF-8, JSON values
 * as text. */
#include "serve/json_field.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What jansson allocates, malloc's overhead included. */
enum { OBJECT_BYTES = 288, ARRAY_BYTES = 160, VALUE_BYTES = 56, KEY_BYTES = 72 };

uint64_t lk_json_parsed_bytes(const char *text, size_t len) {
    uint64_t bytes = len;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else
                in_string = c != '"';
            continue;
        }
        switch (c) {
        case '"': in_string = true; break;
        case '{': bytes += OBJECT_BYTES; break;
        case '[': bytes += ARRAY_BYTES; break;
        case ',': bytes += VALUE_BYTES; break;
        case ':': bytes += KEY_BYTES; break;
        default: break;
        }
    }
    return bytes;
}

uint64_t lk_json_max_parsed_bytes(size_t len) {
    const uint64_t base = 8 << 20, factor = 5;
    return base + factor * len;
}

/* The code of an escape "\\uXXXX" at the start of a text; -1: none is there. */
static long unicode_escape(const char *at, size_t len) {
    char digits[5] = {0};
    if (len < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    memcpy(digits, at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

/* Does the escape at the start of a text, which has *len bytes, not stand for a character? A NUL
 * counts as none. */
static bool is_bad_escape(const char *at, size_t left, size_t *len) {
    long code = unicode_escape(at, left);
    bool high = code >= 0xd800 && code < 0xdc00, low = code >= 0xdc00 && code < 0xe000;
    long next = high ? unicode_escape(at + 6, left - 6) : -1;
    bool pair = next >= 0xdc00 && next < 0xe000;
    *len = pair ? 12 : code >= 0 ? 6 : left < 2 ? left : 2;
    return code == 0 || low || (high && !pair);
}

/* The length of the number at the start of a text. Is it too large for the JSON library, which has
 * 64-bit integers and finite reals? */
static bool is_large_number(const char *at, size_t left, size_t *len, bool *is_real) {
    enum { SAFE_DIGITS = 18, SAFE_EXPONENT = 2 };
    size_t n = 0, n_digit = 0, n_exponent = 0;
    bool has_point = false, has_exponent = false;
    for (; n < left && strchr("+-.eE0123456789", at[n]) && at[n]; n++) {
        bool is_digit = at[n] >= '0' && at[n] <= '9';
        if (is_digit && has_exponent) n_exponent++;
        if (is_digit && !has_exponent && !has_point) n_digit++;
        has_point |= at[n] == '.';
        has_exponent |= at[n] == 'e' || at[n] == 'E';
    }
    *len = n;
    *is_real = has_point || has_exponent;
    return n_digit > SAFE_DIGITS || n_exponent > SAFE_EXPONENT;
}

/* Append a large number: an integer beyond 64 bits as a real, a real beyond the largest one as
 * that. */
static void add_large_number(struct lk_buf *out, const char *at, size_t len, bool is_real) {
    static const char *const limits[] = {"9223372036854775807", "9223372036854775808"};
    char text[400];
    bool minus = *at == '-';
    snprintf(text, sizeof text, "%.*s", (int)(len < sizeof text ? len : sizeof text - 1), at);
    const char *digits = text + minus, *limit = limits[minus];
    size_t n = strlen(digits);
    bool fits =
        !is_real && (n < strlen(limit) || (n == strlen(limit) && strcmp(digits, limit) <= 0));
    if (!fits && (len >= sizeof text || !isfinite(strtod(text, NULL))))
        lk_buf_append_str(out, minus ? "-1.7976931348623157e308" : "1.7976931348623157e308");
    else
        lk_buf_printf(out, "%s%s", text, fits || is_real ? "" : "e0");
}

/* Bytes at the start of a text that are not UTF-8; 0: a character is there, of *len bytes. */
static size_t count_bad_bytes(const char *at, size_t left, size_t *len) {
    enum { MAX_CHARACTER = 4 };
    size_t n = 0;
    while (n < left && (unsigned char)at[n] >= 0x80) {
        size_t rest = left - n;
        if (lk_utf8_valid_prefix(at + n, rest < MAX_CHARACTER ? rest : MAX_CHARACTER)) break;
        n++;
    }
    unsigned char c = (unsigned char)*at;
    *len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : MAX_CHARACTER;
    return n;
}

/* The body with U+FFFD for what is not a character, in escapes and in bytes, and with numbers that
 * the JSON library has. False if it is that already. */
static bool repair_body(const char *body, size_t len, struct lk_buf *out) {
    bool in_string = false;
    size_t done = 0, n;
    for (size_t i = 0; i < len; i += n) {
        const char *at = body + i, *instead = NULL;
        size_t left = len - i;
        bool is_real, is_number = !in_string && (*at == '-' || (*at >= '0' && *at <= '9'));
        n = 1;
        if (*at == '"') {
            in_string = !in_string;
        } else if (*at == '\\') {
            if (is_bad_escape(at, left, &n)) instead = "\\ufffd";
        } else if ((unsigned char)*at >= 0x80) {
            size_t n_bad = count_bad_bytes(at, left, &n);
            if (n_bad) n = n_bad, instead = "\xef\xbf\xbd";
        } else if (is_number) {
            if (is_large_number(at, left, &n, &is_real)) instead = "";
        }
        if (!instead) continue;
        lk_buf_append(out, body + done, i - done);
        lk_buf_append_str(out, instead);
        if (is_number) add_large_number(out, at, n, is_real);
        done = i + n;
    }
    if (done) lk_buf_append(out, body + done, len - done);
    return done > 0;
}

json_t *lk_json_parse_texts(const char *body, size_t len, struct lk_api_error *error) {
    struct lk_buf copy = {0};
    json_t *json = NULL;
    bool changed = body && repair_body(body, len, &copy);
    if (copy.failed)
        lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: body");
    else
        json = lk_json_parse_body(changed ? copy.at : body, changed ? copy.len : len, error);
    lk_buf_free(&copy);
    return json;
}

json_t *lk_json_parse_body(const char *body, size_t len, struct lk_api_error *error) {
    json_error_t why;
    if (!body) body = "";
    if (len >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0) body += 3, len -= 3;
    uint64_t bytes = lk_json_parsed_bytes(body, len), max = lk_json_max_parsed_bytes(len);
    if (bytes > max) {
        lk_api_error_set(error, 413, "too_many_values", NULL,
                         "the JSON values of the body would take %.1f MiB; a body of this length "
                         "may have values of %.1f MiB",
                         (double)bytes / (1 << 20), (double)max / (1 << 20));
        return NULL;
    }
    json_t *json = json_loadb(body, len, 0, &why);
    if (json && json_is_object(json)) return json;
    if (json)
        lk_api_error_set(error, 400, "invalid_json", NULL, "the body is not a JSON object");
    else
        lk_api_error_set(error, 400, "invalid_json", NULL,
                         "the body is not valid JSON: %s (line %d, column %d)", why.text, why.line,
                         why.column);
    json_decref(json);
    return NULL;
}

static bool has_depth(const json_t *value, int depth) {
    const char *key;
    json_t *one;
    size_t i;
    if (depth == 0) return json_is_object(value) || json_is_array(value);
    json_array_foreach(value, i, one) if (has_depth(one, depth - 1)) return true;
    json_object_foreach((json_t *)value, key, one) if (has_depth(one, depth - 1)) return true;
    return false;
}

bool lk_json_is_deep(const json_t *value) {
    enum { MAX_DEPTH = 64 };
    return has_depth(value, MAX_DEPTH);
}

bool lk_json_field_is_set(const json_t *body, const char *name) {
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v)) return false;
    if (json_is_object(v)) return json_object_size(v) > 0;
    return !json_is_array(v) || json_array_size(v) > 0;
}

/* The field's value; NULL if it is absent or null. */
static const json_t *get_field(const json_t *body, const char *name) {
    const json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

bool lk_json_field_bool(const json_t *body, const char *name, bool *out,
                        struct lk_api_error *error) {
    const json_t *v = get_field(body, name);
    if (!v) return true;
    if (!json_is_boolean(v))
        return lk_api_error_set(error, 400, "invalid_type", name, "'%s' must be true or false",
                                name);
    *out = json_is_true(v);
    return true;
}

bool lk_json_field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                       struct lk_api_error *error) {
    double value = 0;
    if (!get_field(body, name)) return true;
    if (!lk_json_field_real(body, name, (double)min, (double)max, &value, error)) return false;
    if (value != floor(value))
        return lk_api_error_set(error, 400, "invalid_type", name, "'%s' must be an integer", name);
    *out = (int64_t)value;
    return true;
}

bool lk_json_field_real(const json_t *body, const char *name, double min, double max, double *out,
                        struct lk_api_error *error) {
    const json_t *v = get_field(body, name);
    if (!v) return true;
    if (!json_is_number(v))
        return lk_api_error_set(error, 400, "invalid_type", name, "'%s' must be a number", name);
    double value = json_number_value(v);
    if (!(value >= min && value <= max))
        return lk_api_error_set(error, 400, "invalid_value", name,
                                "'%s' is %.10g, but must be between %.10g and %.10g", name, value,
                                min, max);
    *out = value;
    return true;
}

bool lk_json_field_string(const json_t *body, const char *name, const char **out,
                          struct lk_api_error *error) {
    const json_t *v = get_field(body, name);
    if (!v) return true;
    if (!json_is_string(v))
        return lk_api_error_set(error, 400, "invalid_type", name, "'%s' must be a string", name);
    *out = json_string_value(v);
    return true;
}

/* ---- text ---- */

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
    lk_buf_add_json(&text, object);
    if (text.failed) out->failed = true;
    if (!text.failed) lk_buf_append(out, text.at, text.len - 1); /* without the closing brace */
    lk_buf_printf(out, ",\"%s\":", field);
    lk_buf_append(out, value, len);
    lk_buf_append_str(out, "}");
    lk_buf_free(&text);
}
