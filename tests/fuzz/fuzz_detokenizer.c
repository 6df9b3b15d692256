/* Fuzz target: the incremental detokenizer. The input is
 *
 *   | n u8 | n stop strings, each | len u8 | bytes | | text |
 *
 * The text is pushed as one token, byte by byte, and in random parts. Each time the output must be
 * the valid UTF-8 of the text up to a stop string, or all of it if no stop string occurs, and must
 * contain no stop string. With one stop string all ways give the same output. Stop strings with
 * U+FFFD are left out: at the end it replaces a character that was cut off. */
#define _GNU_SOURCE /* memfd_create, memmem */
#include "base/hash.h"
#include "base/utf8.h"
#include "fuzz_input.h"
#include "serve/detokenizer.h"
#include "serve/json_field.h"

enum { MAX_STOP = 16 };

struct output {
    struct lk_buf text;
    bool stopped;
};

static void append(struct output *out, struct lk_text_delta *delta) {
    if (delta->len) lk_buf_append(&out->text, delta->text, delta->len);
    lk_text_delta_free(delta);
}

/* Push text[0..len) in parts: 0: all at once, 1: single bytes, others: random parts. */
static struct output detokenize(const char *const *stop, size_t n_stop, const char *text,
                                size_t len, uint64_t way) {
    struct lk_detokenizer detok = {.stop = stop, .n_stop = n_stop};
    struct lk_text_delta delta;
    struct output out = {0};
    uint64_t state = way;
    for (size_t at = 0, n; at < len && !out.stopped; at += n) {
        n = way == 0 ? len : way == 1 ? 1 : 1 + lk_splitmix64_next(&state) % 7;
        if (n > len - at) n = len - at;
        out.stopped = lk_detokenizer_push(&detok, text + at, n, NULL, &delta);
        append(&out, &delta);
    }
    if (!out.stopped) {
        lk_detokenizer_finish(&detok, &delta);
        append(&out, &delta);
    }
    if (detok.failed || out.text.failed) abort();
    lk_detokenizer_free(&detok);
    return out;
}

static bool contains_stop(const char *const *stop, size_t n_stop, const char *text, size_t len) {
    for (size_t i = 0; i < n_stop; i++)
        if (len && memmem(text, len, stop[i], strlen(stop[i]))) return true;
    return false;
}

static bool starts_with_stop(const char *const *stop, size_t n_stop, const char *text, size_t len) {
    for (size_t i = 0; i < n_stop; i++) {
        size_t n = strlen(stop[i]);
        if (n <= len && memcmp(text, stop[i], n) == 0) return true;
    }
    return false;
}

static void check(const struct output *out, const char *const *stop, size_t n_stop,
                  const struct output *whole) {
    size_t len = out->text.len;
    if (lk_utf8_valid_prefix(out->text.at ? out->text.at : "", len) != len) abort();
    if (len > whole->text.len || (len && memcmp(out->text.at, whole->text.at, len) != 0)) abort();
    if (contains_stop(stop, n_stop, out->text.at, len)) abort();
    if (out->stopped) {
        if (!starts_with_stop(stop, n_stop, whole->text.at + len, whole->text.len - len)) abort();
    } else if (len != whole->text.len) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *stop[MAX_STOP];
    size_t n_stop = 0, at = 1;
    if (size < 1) return 0;
    for (size_t i = 0; i < data[0] % (MAX_STOP + 1u) && at < size; i++) {
        size_t n = data[at++];
        if (n > size - at) n = size - at;
        stop[n_stop] = fuzz_string(data + at, n);
        at += n;
        bool usable = stop[n_stop][0] && lk_utf8_valid_prefix(stop[n_stop], n) == n &&
                      !strstr(stop[n_stop], "\xef\xbf\xbd");
        if (usable)
            n_stop++;
        else
            free(stop[n_stop]);
    }
    const char *text = (const char *)data + at;
    struct output whole = detokenize(NULL, 0, text, size - at, 0), first = {0};
    for (uint64_t way = 0; way < 4; way++) {
        struct output out = detokenize((const char *const *)stop, n_stop, text, size - at, way);
        check(&out, (const char *const *)stop, n_stop, &whole);
        if (way == 0) {
            first = out;
            continue;
        }
        if (n_stop <= 1 && (out.stopped != first.stopped || out.text.len != first.text.len))
            abort();
        lk_buf_free(&out.text);
    }
    lk_buf_free(&first.text);
    lk_buf_free(&whole.text);
    for (size_t i = 0; i < n_stop; i++) free(stop[i]);
    return 0;
}
