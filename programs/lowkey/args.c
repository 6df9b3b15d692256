/* Parses command lines by option tables, with getopt_long. */
#include "args.h"

#include "help.h"
#include "output.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* getopt_long returns a letter, or FIRST_LONG + i for long option i. */
enum { MAX_OPTIONS = 64, FIRST_LONG = 256 };

/* All options of a command in the form that getopt_long takes. */
struct getopt_table {
    const struct opt *opt[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 2];
    char letters[2 * MAX_OPTIONS + 4];
    size_t n;
};

static void fill_getopt_table(const struct opt_group *group, size_t n_group,
                              struct getopt_table *table) {
    size_t k = 0;
    memset(table, 0, sizeof *table);
    table->letters[k++] = ':'; /* getopt: return ':' for a missing value, '?' for others */
    table->letters[k++] = 'h';
    for (size_t g = 0; g < n_group; g++) {
        for (const struct opt *opt = group[g].opt; opt->name && table->n < MAX_OPTIONS; opt++) {
            int has_arg = opt->kind != OPT_FLAG;
            table->longs[table->n] =
                (struct option){opt->name, has_arg, NULL, FIRST_LONG + (int)table->n};
            table->opt[table->n++] = opt;
            if (!opt->letter) continue;
            table->letters[k++] = opt->letter;
            if (has_arg) table->letters[k++] = ':';
        }
    }
    table->longs[table->n] = (struct option){"help", 0, NULL, 'h'};
}

/* The option for a return value of getopt_long, or NULL. */
static const struct opt *find_opt(const struct getopt_table *table, int c) {
    if (c >= FIRST_LONG)
        return (size_t)(c - FIRST_LONG) < table->n ? table->opt[c - FIRST_LONG] : NULL;
    for (size_t i = 0; i < table->n; i++) {
        if (table->opt[i]->letter == c) return table->opt[i];
    }
    return NULL;
}

static bool print_range_error(const struct opt *opt, const char *text) {
    print_error("--%s: '%s' is not a number from %.10g to %.10g", opt->name, text, opt->min,
                opt->max);
    return false;
}

/* Parse an integer that is followed by `end` or by the end of the text. */
static bool parse_int(const struct opt *opt, const char *text, char end, const char **rest,
                      int64_t *out) {
    char *stop;
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    if (stop == text || errno == ERANGE) return print_range_error(opt, text);
    if (*stop == 'k' || *stop == 'K') {
        if (value > INT64_MAX / 1024 || value < 0) return print_range_error(opt, text);
        value *= 1024;
        stop++;
    }
    if (*stop && *stop != end) return print_range_error(opt, text);
    if ((double)value < opt->min || (double)value > opt->max) return print_range_error(opt, text);
    *rest = stop;
    *out = value;
    return true;
}

static bool parse_numbers(const struct opt *opt, const char *text, struct number_list *out) {
    for (;;) {
        if (out->n == MAX_LIST) {
            print_error("--%s: more than %d numbers", opt->name, MAX_LIST);
            return false;
        }
        if (!parse_int(opt, text, ',', &text, &out->item[out->n])) return false;
        out->n++;
        if (!*text) return true;
        text++;
    }
}

static bool parse_real(const struct opt *opt, const char *text, double *out) {
    char *stop;
    errno = 0;
    double value = strtod(text, &stop);
    if (stop == text || *stop || errno == ERANGE || !isfinite(value) || value < opt->min ||
        value > opt->max)
        return print_range_error(opt, text);
    *out = value;
    return true;
}

static bool parse_value(const struct opt *opt, const char *text) {
    const char *rest;
    switch (opt->kind) {
    case OPT_FLAG: *(bool *)opt->to = true; return true;
    case OPT_TEXT: *(const char **)opt->to = text; return true;
    case OPT_INT: return parse_int(opt, text, 0, &rest, opt->to);
    case OPT_NUMBERS: return parse_numbers(opt, text, opt->to);
    case OPT_REAL: return parse_real(opt, text, opt->to);
    case OPT_TEXTS: break;
    }
    struct string_list *list = opt->to;
    if (list->n == MAX_LIST) {
        print_error("--%s is given more than %d times", opt->name, MAX_LIST);
        return false;
    }
    list->item[list->n++] = text;
    return true;
}

/* `c`: what getopt_long returned for the option before argv[optind]. */
static void print_option_error(const struct command *command, const struct getopt_table *table,
                               int c, char **argv) {
    const struct opt *opt = optopt ? find_opt(table, optopt) : NULL;
    if (c == ':' && opt)
        print_error("--%s needs a value: %s; see 'lowkey %s --help'", opt->name, opt->value,
                    command->name);
    else if (opt && optopt >= FIRST_LONG)
        print_error("--%s takes no value; see 'lowkey %s --help'", opt->name, command->name);
    else if (optopt && optopt < FIRST_LONG && optopt != 'h')
        print_error("unknown option '-%c'; see 'lowkey %s --help'", optopt, command->name);
    else
        print_error("unknown option '%s'; see 'lowkey %s --help'", argv[optind - 1], command->name);
}

enum args_result args_read(const struct command *command, const struct opt_group *group,
                           size_t n_group, int argc, char **argv, int *first) {
    struct getopt_table table;
    int c;
    fill_getopt_table(group, n_group, &table);
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, table.letters, table.longs, NULL)) != -1) {
        const struct opt *opt = find_opt(&table, c);
        if (c == 'h') {
            (command->print_help ? command->print_help : print_help)(command, group, n_group);
            return ARGS_HELP;
        }
        if (c == '?' || c == ':' || !opt) {
            print_option_error(command, &table, c, argv);
            return ARGS_BAD;
        }
        if (!parse_value(opt, optarg)) return ARGS_BAD;
    }
    *first = optind;
    if (optind < argc && !*command->operands) {
        print_error("'%s' is not an option; see 'lowkey %s --help'", argv[optind], command->name);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}
