/* Arenas (lists of chunks from which memory is allocated in order), random numbers, sentences, JSON
 * lines. */
#include "eval/material.h"

#include "base/ascii.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/ledger.h"
#include "base/os.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16, ALIGN = 16 };

/* The header of a chunk. Allocations follow it. */
struct lk_arena_chunk {
    struct lk_arena_chunk *previous;
    size_t size, used; /* bytes, including the header */
};

static const size_t HEADER = (sizeof(struct lk_arena_chunk) + ALIGN - 1) / ALIGN * ALIGN;

static struct lk_arena_chunk *add_chunk(struct lk_arena *arena, size_t size) {
    size_t total = HEADER + (size > CHUNK_BYTES ? size : CHUNK_BYTES);
    struct lk_arena_chunk *chunk = lk_alloc(arena->ledger, LK_FOR_OTHER, total);
    if (!chunk) return NULL;
    *chunk = (struct lk_arena_chunk){.previous = arena->last, .size = total, .used = HEADER};
    arena->last = chunk;
    return chunk;
}

void *lk_arena_alloc(struct lk_arena *arena, size_t size) {
    if (arena->failed || size > SIZE_MAX / 2) {
        arena->failed = true;
        return NULL;
    }
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    struct lk_arena_chunk *chunk = arena->last;
    if (!chunk || chunk->size - chunk->used < size) chunk = add_chunk(arena, size);
    if (!chunk) {
        arena->failed = true;
        return NULL;
    }
    void *at = (char *)chunk + chunk->used;
    chunk->used += size;
    return at;
}

const char *lk_arena_copy(struct lk_arena *arena, const char *bytes, size_t len) {
    char *copy = lk_arena_alloc(arena, len + 1);
    if (!copy) return "";
    if (len) memcpy(copy, bytes, len);
    return copy;
}

const char *lk_arena_printf(struct lk_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = lk_arena_alloc(arena, (size_t)len + 1);
    if (!text) return "";
    va_start(args, format);
    vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

const char *lk_arena_take_buf(struct lk_arena *arena, struct lk_buf *buf) {
    if (buf->failed) arena->failed = true;
    const char *copy = lk_arena_copy(arena, lk_buf_cstr(buf), buf->len);
    lk_buf_free(buf);
    return copy;
}

void *lk_arena_grow(struct lk_arena *arena, void *list, size_t n, size_t *cap, size_t size) {
    enum { FIRST_CAP = 64 };
    if (n < *cap) return list;
    size_t larger = *cap ? 2 * *cap : FIRST_CAP;
    void *moved = lk_arena_alloc(arena, larger * size);
    if (!moved) return NULL;
    if (n) memcpy(moved, list, n * size);
    *cap = larger;
    return moved;
}

lk_status lk_arena_check(const struct lk_arena *arena, lk_err *err) {
    if (!arena->failed) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for the texts of a task; use fewer items or a smaller context");
}

void lk_arena_free(struct lk_arena *arena) {
    while (arena->last) {
        struct lk_arena_chunk *chunk = arena->last;
        arena->last = chunk->previous;
        lk_release(arena->ledger, LK_FOR_OTHER, chunk, chunk->size);
    }
    arena->failed = false;
}

/* ---- random numbers ---- */

struct lk_rng lk_rng_seed(uint64_t seed, const char *name, uint64_t index) {
    struct lk_rng rng = {seed};
    for (const char *c = name; *c; c++)
        rng.state = lk_splitmix64_next(&rng.state) ^ (unsigned char)*c;
    rng.state = lk_splitmix64_next(&rng.state) ^ index;
    return (struct lk_rng){lk_splitmix64_next(&rng.state)};
}

size_t lk_rng_below(struct lk_rng *rng, size_t n) {
    /* n is far below 2^32, so the bias is negligible. */
    return (size_t)((lk_splitmix64_next(&rng->state) >> 32) * (uint64_t)n >> 32);
}

void lk_rng_permutation(struct lk_rng *rng, uint32_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t j = lk_rng_below(rng, i + 1);
        if (j < i) order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

/* ---- haystacks ---- */

enum { MAX_SENTENCE = 600 }; /* bytes */

/* Bytes of quotes (straight or curly) and brackets at s, after a full stop. */
static size_t closer_length(const char *s, size_t len) {
    size_t i = 0;
    while (i < len) {
        if (strchr("\"')]_", s[i]) && s[i])
            i++;
        else if (len - i >= 3 &&
                 (memcmp(s + i, "\xe2\x80\x9d", 3) == 0 || memcmp(s + i, "\xe2\x80\x99", 3) == 0))
            i += 3;
        else
            break;
    }
    return i;
}

/* Whether the white space at s contains an empty line. */
static bool is_paragraph_end(const char *s, size_t len) {
    size_t n_line = 0;
    for (size_t i = 0; i < len && lk_is_space(s[i]); i++) n_line += s[i] == '\n';
    return n_line > 1;
}

/* Length of the sentence at s, which does not start with white space. */
static size_t sentence_length(const char *s, size_t len) {
    size_t last_space = 0;
    for (size_t i = 0; i < len; i++) {
        if (strchr(".!?", s[i]) && s[i]) {
            size_t end = i + 1 + closer_length(s + i + 1, len - i - 1);
            if (end == len || lk_is_space(s[end])) return end;
        }
        if (lk_is_space(s[i])) {
            if (is_paragraph_end(s + i, len - i)) return i;
            last_space = i;
        }
        if (i >= MAX_SENTENCE && last_space) return last_space;
        if (i >= MAX_SENTENCE && ((unsigned char)s[i] & 0xc0) != 0x80)
            return i; /* not inside a character */
    }
    return len;
}

/* A copy on one line: each run of white space becomes one space. */
static const char *join_lines(const char *s, size_t len, struct lk_arena *arena) {
    char *line = lk_arena_alloc(arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; line && i < len; i++)
        if (!lk_is_space(s[i]))
            line[n++] = s[i];
        else if (n && line[n - 1] != ' ')
            line[n++] = ' ';
    while (n && line[n - 1] == ' ') line[--n] = 0;
    return line ? line : "";
}

/* Split the text into sentences, and return their number. unit NULL: only count them. */
static size_t split_sentences(const char *text, size_t len, const char **unit,
                              struct lk_arena *arena) {
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (lk_is_space(text[i])) {
            i++;
            continue;
        }
        size_t end = sentence_length(text + i, len - i);
        if (unit) unit[n] = join_lines(text + i, end, arena);
        n++;
        i += end;
    }
    return n;
}

lk_status lk_haystack_split(const char *text, size_t len, struct lk_arena *arena,
                            struct lk_haystack *out, lk_err *err) {
    size_t n = split_sentences(text, len, NULL, NULL);
    if (n == 0) return lk_fail(err, LK_E_ARG, "the text is empty; give a text with words");
    const char **unit = lk_arena_alloc(arena, n * sizeof *unit);
    if (unit) split_sentences(text, len, unit, arena);
    lk_status status = lk_arena_check(arena, err);
    if (!status) *out = (struct lk_haystack){unit, n};
    return status;
}

void lk_haystack_write(const struct lk_haystack *haystack, size_t first, size_t n,
                       const struct lk_needle *needle, size_t n_needle, const char *between,
                       struct lk_buf *out) {
    size_t next = 0;
    for (size_t i = 0; i <= n; i++) {
        for (; next < n_needle && needle[next].before == i; next++)
            lk_buf_printf(out, "%s%s", out->len ? between : "", needle[next].text);
        if (i < n)
            lk_buf_printf(out, "%s%s", out->len ? between : "",
                          haystack->unit[(first + i) % haystack->n_unit]);
    }
}

struct lk_haystack lk_haystack_noise(void) {
    static const char *unit[] = {
        "The rain has stopped and the road is dry. A door opens and closes. The kettle is on. "
        "Nothing else has changed since this morning."};
    return (struct lk_haystack){unit, 1};
}

const char *lk_invent_name(uint32_t index, const char *ending, struct lk_arena *arena) {
    static const char *const head[16] = {"Bar", "Cal", "Dor", "Fen", "Gar", "Hel", "Kes", "Lum",
                                         "Mar", "Nor", "Pel", "Ros", "Sil", "Tor", "Ul",  "Ver"};
    static const char *const middle[16] = {"a",  "ba", "de", "do", "fi", "ga", "lo", "mi",
                                           "na", "o",  "ra", "ri", "sa", "ta", "ve", "wi"};
    static const char *const tail[16] = {"b",  "d", "dr", "k",  "l", "ln", "m", "n",
                                         "nd", "r", "rd", "rt", "s", "st", "t", "x"};
    return lk_arena_printf(arena, "%s%s%s%s", head[index & 15], middle[index >> 4 & 15],
                           tail[index >> 8 & 15], ending);
}

/* ---- JSON lines ---- */

static bool is_blank(const char *line) { return line[strspn(line, " \t\r\n")] == 0; }

static lk_status parse_row(const char *path, size_t number, const char *line, size_t len,
                           lk_jsonl_row_fn on_row, void *user, lk_err *err) {
    json_error_t why;
    json_t *json = json_loadb(line, len, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: not JSON: %s (column %d)", path, number, why.text,
                       why.column);
    lk_status status = LK_OK;
    if (!json_is_object(json))
        status =
            lk_fail(err, LK_E_FORMAT,
                    "%s:%zu: not a JSON object; each line must be one, such as {\"question\": ...}",
                    path, number);
    if (!status)
        status =
            on_row(user, &(struct lk_jsonl_row){.json = json, .path = path, .line = number}, err);
    json_decref(json);
    return status;
}

lk_status lk_jsonl_read(const char *path, lk_jsonl_row_fn on_row, void *user, lk_err *err) {
    FILE *file = lk_os_open_to_read(path);
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    ptrdiff_t len;
    lk_status status = LK_OK;
    errno = 0;
    for (size_t number = 1; !status && (len = lk_os_getline(&line, &cap, file)) >= 0; number++) {
        if (!is_blank(line) || (size_t)len != strlen(line))
            status = parse_row(path, number, line, (size_t)len, on_row, user, err);
        errno = 0;
    }
    if (!status && (ferror(file) || errno == ENOMEM))
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

lk_status lk_jsonl_string(const struct lk_jsonl_row *row, const char *name, const char **out,
                          lk_err *err) {
    const char *text = json_string_value(json_object_get(row->json, name));
    if (!text)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not a string", row->path,
                       row->line, name);
    *out = text;
    return LK_OK;
}

lk_status lk_jsonl_array(const struct lk_jsonl_row *row, const char *name, const json_t **out,
                         lk_err *err) {
    const json_t *list = json_object_get(row->json, name);
    if (!json_is_array(list))
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not an array", row->path,
                       row->line, name);
    *out = list;
    return LK_OK;
}
