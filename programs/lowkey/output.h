/* What a user sees: error messages, formatted numbers, JSON, colors, the width of the terminal. */
#ifndef LK_LOWKEY_OUTPUT_H
#define LK_LOWKEY_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of the program; most functions of programs/lowkey return one of them. */
enum { STATUS_OK = 0, STATUS_ERROR = 1, STATUS_INTERRUPTED = 130 };

/* Print "lowkey: MESSAGE" to stderr as exactly one line, whatever the arguments contain. Returns
 * STATUS_ERROR. */
int print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Flush stdout. Returns `status`, or prints an error and returns STATUS_ERROR if a write failed,
 * for example because the disk is full. */
int flush_output(int status);

/* Format "1.25 MiB", "640 KiB" or "12 B", and "12,345". Both return `buf`. */
enum { NUMBER_BUF = 32 };
char *format_bytes(char buf[NUMBER_BUF], uint64_t bytes);
char *format_count(char buf[NUMBER_BUF], uint64_t count);

/* Tokens per second; 0 if nothing was measured. */
double tokens_per_second(size_t n_tok, double seconds);

/* Columns of the terminal that `file` writes to, or $COLUMNS; 0 if it is not a terminal. */
int terminal_width(FILE *file);

/* True if `file` is a terminal and NO_COLOR is unset. */
bool use_color(FILE *file);

/* Print `text`, wrapped between words to `width` columns. The first line continues at column
 * `column`; the lines after it are indented to `indent`. Ends with a newline. */
void print_wrapped(FILE *file, const char *text, int column, int indent, int width);

/* Print text of less than 1024 bytes as a paragraph: wrapped on a terminal, else one line. */
void print_paragraph(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Text that comes in pieces, with line breaks between words at the width of the terminal. The lines
 * of Markdown's code blocks are left as they are. */
struct word_wrap {
    FILE *file;
    int width;  /* columns; 0: nothing is broken */
    int column; /* of the cursor */
    int n_space;
    char word[128]; /* [n_word] not printed yet, after n_space blanks */
    size_t n_word;
    bool line_start, code; /* code: between two lines that start with ``` */
};

/* The cursor is at the first column. */
struct word_wrap word_wrap_start(FILE *file, int width);
void word_wrap_print(struct word_wrap *wrap, const char *text, size_t len);
/* Print what is held. */
void word_wrap_flush(struct word_wrap *wrap);

/* ---- JSON ---- */

/* A number, or null if it is not finite: JSON has no infinities and NaNs. */
json_t *json_number(double value);

/* Print `value` on several lines or on one line, and free it. Returns a STATUS_*. */
int json_print(json_t *value, bool one_line);

#endif
