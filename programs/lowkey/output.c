/* Error messages, formatted numbers, JSON, and what the terminal can show. */
#include "output.h"

#include "base/os.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

int print_error(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* File names and prompts may contain newlines and escape sequences. */
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    }
    fflush(stdout);
    fprintf(stderr, "lowkey: %s\n", line);
    return STATUS_ERROR;
}

int flush_output(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    return print_error("cannot write to standard output");
}

char *format_bytes(char buf[NUMBER_BUF], uint64_t bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t i = 0;
    while (value >= 1023.95 && i + 1 < sizeof unit / sizeof unit[0]) {
        value /= 1024.0;
        i++;
    }
    int digits = i == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(buf, NUMBER_BUF, "%.*f %s", digits, value, unit[i]);
    return buf;
}

char *format_count(char buf[NUMBER_BUF], uint64_t count) {
    char digits[NUMBER_BUF];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    size_t k = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = 0;
    return buf;
}

double tokens_per_second(size_t n_tok, double seconds) {
    return n_tok > 0 && seconds > 0.0 ? (double)n_tok / seconds : 0.0;
}

int terminal_width(FILE *file) {
    enum { MIN_WIDTH = 20, MAX_WIDTH = 1000, DEFAULT_WIDTH = 80 };
    const char *columns = getenv("COLUMNS");
    long wish = columns ? strtol(columns, NULL, 10) : 0;
    if (!isatty(fileno(file))) return 0;
    if (wish >= MIN_WIDTH && wish <= MAX_WIDTH) return (int)wish;
    int known = lk_os_terminal_columns(file);
    return known < MIN_WIDTH ? DEFAULT_WIDTH : known;
}

bool use_color(FILE *file) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(file)) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}

void print_wrapped(FILE *file, const char *text, int column, int indent, int width) {
    bool line_start = true;
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (!line_start && column + 1 + len > width) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
            line_start = true;
        }
        if (!line_start) fputc(' ', file);
        fwrite(text, 1, (size_t)len, file);
        column += len + !line_start;
        line_start = false;
        text += len;
        text += *text == ' ';
    }
    fputc('\n', file);
}

void print_paragraph(FILE *file, const char *format, ...) {
    char text[1024];
    int width = terminal_width(file);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_wrapped(file, text, 0, 0, width ? width : INT_MAX);
}

/* ---- words that come in pieces ---- */

struct word_wrap word_wrap_start(FILE *file, int width) {
    return (struct word_wrap){.file = file, .width = width, .line_start = true};
}

/* Columns of the text, which is UTF-8. */
static int columns_of(const char *text, size_t len) {
    int n = 0;
    mbstate_t state = {0};
    for (size_t i = 0, used; i < len; i += used) {
        wchar_t c = L'x';
        used = mbrtowc(&c, text + i, len - i, &state);
        if (used == 0 || used > len - i) return n + 1;
        int w = lk_os_char_columns((uint32_t)c);
        n += w < 0 ? 1 : w;
    }
    return n;
}

void word_wrap_flush(struct word_wrap *wrap) {
    if (!wrap->width) return; /* nothing is held */
    int columns = columns_of(wrap->word, wrap->n_word);
    bool breaks = wrap->n_word && wrap->column > 0 && wrap->n_space > 0 && !wrap->code &&
                  wrap->column + wrap->n_space + columns > wrap->width;
    if (breaks) {
        fputc('\n', wrap->file);
        wrap->column = 0;
    } else {
        fprintf(wrap->file, "%*s", wrap->n_space, "");
        wrap->column += wrap->n_space;
    }
    fwrite(wrap->word, 1, wrap->n_word, wrap->file);
    wrap->column += columns;
    while (wrap->column > wrap->width) wrap->column -= wrap->width; /* the terminal breaks it */
    wrap->n_space = 0;
    wrap->n_word = 0;
}

void word_wrap_print(struct word_wrap *wrap, const char *text, size_t len) {
    static const char fence[] = "```";
    if (!wrap->width) fwrite(text, 1, len, wrap->file);
    for (size_t i = 0; i < len && wrap->width; i++) {
        unsigned char c = (unsigned char)text[i];
        /* Scripts without blanks, from U+2E80 on, break anywhere. */
        bool is_start = (c & 0xc0) != 0x80, is_wide = wrap->n_word > 0 && is_start &&
                                                      (unsigned char)wrap->word[0] >= 0xe2 &&
                                                      c >= 0xe2;
        bool is_full = is_start && wrap->n_word + 4 > sizeof wrap->word;
        if (c == ' ' || c == '\n' || is_wide || is_full) {
            if (wrap->n_word || c == '\n') word_wrap_flush(wrap);
            wrap->line_start = c == '\n';
        }
        if (c == ' ') {
            wrap->n_space++;
        } else if (c == '\n') {
            fputc('\n', wrap->file);
            wrap->column = 0;
        } else {
            wrap->word[wrap->n_word++] = (char)c;
            bool is_fence = wrap->n_word == sizeof fence - 1 && wrap->line_start &&
                            memcmp(wrap->word, fence, sizeof fence - 1) == 0;
            if (is_fence) wrap->code = !wrap->code;
        }
    }
}

/* ---- JSON ---- */

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

int json_print(json_t *value, bool one_line) {
    enum { DIGITS = 10 };
    size_t flags = JSON_REAL_PRECISION(DIGITS) | (one_line ? JSON_COMPACT : JSON_INDENT(2));
    if (!value) return print_error("out of memory");
    int failed = json_dumpf(value, stdout, flags);
    json_decref(value);
    if (failed) return print_error("cannot write to standard output");
    putchar('\n');
    return flush_output(STATUS_OK);
}
