#include "say.h"

#include <langinfo.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

int complain(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    /* File names and prompts may hold anything: no line ends, no escape sequences. */
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    }
    fflush(stdout);
    fprintf(stderr, "lowkey: %s\n", line);
    return STATUS_BAD;
}

static void out_of_memory(void) {
    complain("out of memory");
    exit(STATUS_BAD);
}

void *must_alloc(size_t size) { return must_grow(NULL, size); }

void *must_grow(void *ptr, size_t size) {
    void *bigger = realloc(ptr, size ? size : 1);
    if (!bigger) out_of_memory();
    return bigger;
}

char *must_print(const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) out_of_memory();
    char *text = must_alloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

int finish_output(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    return complain("cannot write the output");
}

char *say_bytes(char buf[NUMBER_ROOM], uint64_t bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t i = 0;
    while (value >= 1023.95 && i + 1 < sizeof unit / sizeof unit[0]) {
        value /= 1024.0;
        i++;
    }
    int digits = i == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(buf, NUMBER_ROOM, "%.*f %s", digits, value, unit[i]);
    return buf;
}

char *say_count(char buf[NUMBER_ROOM], uint64_t count) {
    char digits[NUMBER_ROOM];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    size_t k = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) buf[k++] = ',';
        buf[k++] = digits[i];
    }
    buf[k] = 0;
    return buf;
}

int terminal_width(FILE *file) {
    struct winsize size;
    if (!isatty(fileno(file))) return 0;
    if (ioctl(fileno(file), TIOCGWINSZ, &size) || size.ws_col < 20) return 80;
    return size.ws_col;
}

bool wants_colour(FILE *file) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(file)) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

bool speaks_utf8(void) { return strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
