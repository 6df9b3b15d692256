/* Command line options as tables. The same table gives the parser, --help and the shell completion
 * (shell_completion.h); the man page is made from --help (scripts/man-page). */
#ifndef LK_LOWKEY_ARGS_H
#define LK_LOWKEY_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Option tables leave out the last fields of struct opt. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

enum { MAX_LIST = 32 };

struct string_list {
    const char *item[MAX_LIST];
    size_t n;
};

struct number_list {
    int64_t item[MAX_LIST];
    size_t n;
};

enum opt_kind {
    OPT_FLAG,    /* bool */
    OPT_TEXT,    /* const char * */
    OPT_TEXTS,   /* struct string_list; may be repeated */
    OPT_INT,     /* int64_t; "32k" is 32768 */
    OPT_NUMBERS, /* struct number_list; may be repeated, or "4k,32k" */
    OPT_REAL,    /* double */
};

struct opt {
    char letter;       /* 0: long form only */
    const char *name;  /* without "--" */
    const char *value; /* name of the argument ("FILE"); NULL: takes none */
    const char *help;  /* for --help */
    enum opt_kind kind;
    void *to;             /* variable of the kind's type; unchanged if the option is not given */
    double min, max;      /* OPT_INT, OPT_NUMBERS, OPT_REAL: allowed range, inclusive */
    const char *complete; /* completions of the argument:
                             NULL      by `value`: FILE any file, DIR a folder, RECIPE a preset
                                       or a file, anything else nothing
                             "*.EXT"   files with this ending
                             "a b c"   these words; the first may be RECIPE, which stands for the
                                       presets and files */
    bool endless;         /* OPT_INT: -1 is allowed too, and means no limit */
    bool rare;            /* few users need it: --help lists it last */
};

struct opt_group {
    const char *title;
    struct opt opt[16]; /* up to the first without a name */
};

struct command;
struct lk_cluster;

typedef void help_printer(const struct command *command, const struct opt_group *group,
                          size_t n_group);

struct command {
    const char *name, *summary;
    const char *operands;     /* "[RECIPE...]"; "" if it takes none */
    const char *operand_hint; /* what an operand was probably meant as, if it takes none; or NULL */
    const char *complete;     /* completions of operands, as in struct opt; NULL: none */
    const char *description;  /* what --help says in addition to the summary */
    const char *examples;     /* lines: "  lowkey ...\n" */
    const char *appendix;     /* lines that --help shows last; NULL: none */
    int (*run)(const struct command *command, int argc, char **argv); /* returns a STATUS_* */
    bool on_ranks;              /* it can run on several ranks, with the cluster of `cluster` */
    struct lk_cluster *cluster; /* set by ranks_run; NULL: this process is alone */
    int n_local_rank;           /* set by ranks_run: ranks on this machine; 0: this one */
    help_printer *print_help;   /* called for --help in place of printing the help; or NULL */
};

enum { ARGS_RUN = -1 };

/* Parse argv[1..argc). The operands are left in argv[*first..argc); NULL: the command takes none.
 * Returns ARGS_RUN, or a STATUS_* to exit with, after printing the help or an error. */
int args_read(const struct command *command, const struct opt_group *group, size_t n_group,
              int argc, char **argv, int *first);

/* Print usage of the program and its n commands. */
void print_overview(const struct command *command, size_t n);

/* "lowkey" and argv[0..argc), where argv[0] is the command, quoted for a shell: free it. To be
 * called before args_read, which reorders argv. */
char *quoted_command_line(int argc, char **argv);

#endif
