/* What a person sees: messages, numbers, colour, the width of the terminal. */
#ifndef LK_LOWKEY_SAY_H
#define LK_LOWKEY_SAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { STATUS_OK = 0, STATUS_BAD = 1, STATUS_INTERRUPTED = 130 };

/* Print "lowkey: ..." as exactly one line to stderr, whatever the arguments contain; returns STATUS_BAD. */
int complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Memory or a message and exit: a program that cannot have a few bytes has nothing better to do. */
void *must_alloc(size_t size);
void *must_grow(void *ptr, size_t size);
char *must_print(const char *format, ...) __attribute__((format(printf, 1, 2), nonnull(1)));

/* Flush stdout and turn a failed write (a full disk) into a message and STATUS_BAD. */
int finish_output(int status);

/* "1.25 MiB", "640 KiB", "12 B" and "12,345" into a caller's buffer, which they return. */
enum { NUMBER_ROOM = 32 };
char *say_bytes(char buf[NUMBER_ROOM], uint64_t bytes);
char *say_count(char buf[NUMBER_ROOM], uint64_t count);

/* Columns of the terminal behind `file`; 0 where it is none. */
int terminal_width(FILE *file);
bool wants_colour(FILE *file); /* a terminal, and NO_COLOR is unset */
bool speaks_utf8(void);

double seconds_now(void); /* monotonic */

#endif
