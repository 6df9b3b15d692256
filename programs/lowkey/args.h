/* Options as a table, from which both the reading and the --help of a verb are made. */
#ifndef LK_LOWKEY_ARGS_H
#define LK_LOWKEY_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LIST_MOST = 32 };

struct texts {
    const char *item[LIST_MOST];
    size_t n;
};

struct numbers {
    int64_t item[LIST_MOST];
    size_t n;
};

enum opt_kind {
    OPT_FLAG,    /* bool */
    OPT_TEXT,    /* const char * */
    OPT_TEXTS,   /* struct texts; may be repeated */
    OPT_INT,     /* int64_t; "32k" is 32768 */
    OPT_NUMBERS, /* struct numbers; may be repeated, or "4k,32k" */
    OPT_REAL,    /* double */
};

struct opt {
    char letter; /* 0: only the long form */
    const char *name, *value, *help;
    enum opt_kind kind;
    void *to;           /* of the kind's type; untouched where the option is not given */
    double least, most; /* of numbers */
};

struct opt_group {
    const char *title;
    struct opt opt[16]; /* to the first without a name */
};

struct verb {
    const char *name, *summary;
    const char *operands; /* "[RECIPE...]" or "" */
    const char *examples; /* lines */
    int (*run)(const struct verb *verb, int argc, char **argv);
};

enum args_result { ARGS_RUN, ARGS_HELP, ARGS_BAD };

/* Read argv[1..]; what follows the options is left in argv[*first..argc). Prints help or a message. */
enum args_result args_read(const struct verb *verb, const struct opt_group *group, size_t n_group,
                           int argc, char **argv, int *first);

#endif
