/* Parses command lines by option tables, with getopt_long, and prints the tables as help. */
#include "args.h"

#include "base/closest.h"
#include "foreign_options.h"
#include "lowkey.h"
#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* getopt_long returns a letter, or FIRST_LONG + i for long option i. */
enum { MAX_OPTIONS = 64, FIRST_LONG = 256, OPERAND = 1 };

/* All options of a command in the form that getopt_long takes. */
struct getopt_table {
    const struct opt *opt[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 2];
    char letters[2 * MAX_OPTIONS + 8];
    size_t n;
};

static void fill_getopt_table(const struct opt_group *group, size_t n_group,
                              struct getopt_table *table) {
    size_t k = 0;
    memset(table, 0, sizeof *table);
    table->letters[k++] = '-'; /* getopt: return operands in their place, as OPERAND */
    table->letters[k++] = ':'; /* return ':' for a missing value, '?' for other mistakes */
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
    bool mib = opt->value && strcmp(opt->value, "MIB") == 0, whole = opt->kind != OPT_REAL;
    print_error("--%s: '%s' is not a number%s from %.10g to %.10g%s%s", opt->name, text,
                mib ? " of MiB" : "", opt->min, opt->max, opt->endless ? ", nor -1" : "",
                mib                            ? "; 8192 is 8 GiB"
                : whole && opt->max >= 1 << 20 ? "; 32k is 32768"
                                               : "");
    return false;
}

/* Parse an integer that is followed by `end` or by the end of the text. */
static bool parse_int(const struct opt *opt, const char *text, char end, const char **rest,
                      int64_t *out) {
    char *stop;
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    if (stop == text || errno == ERANGE) return print_range_error(opt, text);
    int64_t unit = *stop == 'k' || *stop == 'K'   ? 1 << 10
                   : *stop == 'm' || *stop == 'M' ? 1 << 20
                                                  : 1;
    if (unit > 1) {
        if (value > INT64_MAX / unit || value < 0) return print_range_error(opt, text);
        value *= unit;
        stop++;
    }
    if (*stop && *stop != end) return print_range_error(opt, text);
    bool endless = opt->endless && value == -1;
    if (!endless && ((double)value < opt->min || (double)value > opt->max))
        return print_range_error(opt, text);
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

/* ---- mistakes ---- */

/* Print an error about an option that the command does not have, with what was probably meant.
 * `value`: the argument after it, or NULL. */
static void print_unknown_option(const struct command *command, const struct getopt_table *table,
                                 const char *arg, const char *value) {
    char advice[400];
    const char *name = arg + strspn(arg, "-");
    const int len = (int)strcspn(arg, "="); /* the value may be a secret */
    struct lk_closest close = {.word = name, .len = strcspn(name, "=")};
    if (foreign_option_advice(arg, value, advice, sizeof advice)) {
        print_error("unknown option '%.*s': %s", len, arg, advice);
        return;
    }
    if (command->operand_hint && (strcmp(arg, "-p") == 0 || strcmp(arg, "--prompt") == 0)) {
        print_error("unknown option '%s': %s", arg, command->operand_hint);
        return;
    }
    lk_closest_offer(&close, "help");
    for (size_t i = 0; i < table->n; i++) lk_closest_offer(&close, table->opt[i]->name);
    if (close.name)
        print_error("unknown option '%.*s': did you mean --%s? See 'lowkey %s --help'", len, arg,
                    close.name, command->name);
    else
        print_error("unknown option '%.*s'; see 'lowkey %s --help'", len, arg, command->name);
}

/* Whether `arg` is another program's long option. getopt would take it as the start of one of ours:
 * --api-key is not --api-key-file. */
static bool is_foreign(const struct getopt_table *table, const char *arg) {
    char advice[400];
    if (strncmp(arg, "--", 2) != 0) return false;
    const char *name = arg + 2;
    size_t len = strcspn(name, "=");
    if (!len) return false;
    for (size_t i = 0; i < table->n; i++)
        if (strncmp(table->opt[i]->name, name, len) == 0 && !table->opt[i]->name[len]) return false;
    return foreign_option_advice(arg, NULL, advice, sizeof advice);
}

/* Whether `arg`, one dash and several characters, is a letter with its value ("-n20", "-kbest-3").
 * Other programs have options with one dash and several letters: "-ngl", "-hf". */
static bool is_letter_with_value(const struct getopt_table *table, const char *arg) {
    const struct opt *opt = find_opt(table, (unsigned char)arg[1]);
    char advice[400];
    if (!opt || opt->kind == OPT_FLAG) return false;
    if (opt->kind == OPT_INT || opt->kind == OPT_NUMBERS || opt->kind == OPT_REAL)
        return arg[2] && strchr("0123456789+-.", arg[2]);
    for (size_t i = 0; i < table->n; i++) {
        if (strcmp(table->opt[i]->name, arg + 1) == 0) return false; /* "-model" */
    }
    return !foreign_option_advice(arg, NULL, advice, sizeof advice);
}

/* Whether several long options start with the name in `arg`. Prints them if so. */
static bool print_ambiguous(const struct getopt_table *table, const char *arg) {
    char names[200] = "";
    const char *name = arg + strspn(arg, "-");
    size_t n = 0, len = strcspn(name, "="), at = 0;
    for (size_t i = 0; len && i < table->n; i++) {
        if (strncmp(table->opt[i]->name, name, len) != 0) continue;
        if (at + strlen(table->opt[i]->name) + 6 < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s--%s", n ? ", " : "",
                                   table->opt[i]->name);
        n++;
    }
    if (n > 1) print_error("option '%s' is ambiguous: %s", arg, names);
    return n > 1;
}

/* `c`: what getopt_long returned for the option before argv[optind]. */
static void print_option_error(const struct command *command, const struct getopt_table *table,
                               int c, int argc, char **argv) {
    const struct opt *opt = optopt ? find_opt(table, optopt) : NULL;
    const char *arg = argv[optind - 1];
    if (c == ':' && opt)
        print_error("--%s needs a value: %s; see 'lowkey %s --help'", opt->name, opt->value,
                    command->name);
    else if (opt && optopt >= FIRST_LONG)
        print_error("--%s takes no value; see 'lowkey %s --help'", opt->name, command->name);
    else if (strncmp(arg, "--", 2) != 0 || !print_ambiguous(table, arg))
        print_unknown_option(command, table, arg, optind < argc ? argv[optind] : NULL);
}

static void print_stray_operand(const struct command *command, const char *operand) {
    size_t len = strlen(operand);
    bool is_model = len > 5 && strcmp(operand + len - 5, ".gguf") == 0;
    const char *hint = is_model ? "a model is given with -m" : command->operand_hint;
    print_error("'%s' is not an option%s%s; see 'lowkey %s --help'", operand, hint ? ": " : "",
                hint ? hint : "", command->name);
}

/* ---- help ---- */

/* Lines are wrapped at the terminal's width, but at no more than MAX_WIDTH columns. */
enum { NAME_COLUMN = 28, COMMAND_COLUMN = 14, DEFAULT_WIDTH = 80, MAX_WIDTH = 100 };

static int help_width(void) {
    int width = terminal_width(stdout);
    return width == 0 ? DEFAULT_WIDTH : width > MAX_WIDTH ? MAX_WIDTH : width;
}

static void print_option(const struct opt *opt, int width) {
    char letter[8] = "    ";
    if (opt->letter) snprintf(letter, sizeof letter, "-%c, ", opt->letter);
    int n = printf("  %s--%s", letter, opt->name);
    if (opt->value) n += printf(" %s", opt->value);
    if (n + 2 > NAME_COLUMN) n = printf("\n") - 1;
    printf("%*s", NAME_COLUMN - n, "");
    print_wrapped(stdout, opt->help, NAME_COLUMN, NAME_COLUMN, width);
}

/* Print a title and those options of n groups whose flag `rare` is this one; without such options
 * print nothing. */
static void print_options(const char *title, const struct opt_group *group, size_t n, bool rare,
                          int width) {
    size_t n_printed = 0;
    for (size_t g = 0; g < n; g++)
        for (const struct opt *opt = group[g].opt; opt->name; opt++) {
            if (opt->rare != rare) continue;
            if (n_printed++ == 0) printf("\n%s\n", title);
            print_option(opt, width);
        }
}

static void print_help(const struct command *command, const struct opt_group *group,
                       size_t n_group) {
    int width = help_width();
    printf("usage: lowkey %s [options]%s%s\n\n", command->name, *command->operands ? " " : "",
           command->operands);
    print_wrapped(stdout, command->summary, 0, 0, width);
    putchar('\n');
    print_wrapped(stdout, command->description, 0, 0, width);
    for (size_t g = 0; g < n_group; g++) print_options(group[g].title, &group[g], 1, false, width);
    print_options("Seldom needed", group, n_group, true, width);
    printf("\nExamples\n%s", command->examples);
    if (command->appendix) printf("\n%s", command->appendix);
}

/* ---- parsing ---- */

int args_read(const struct command *command, const struct opt_group *group, size_t n_group,
              int argc, char **argv, int *first) {
    struct getopt_table table;
    int n_operand = 0;
    fill_getopt_table(group, n_group, &table);
    opterr = 0;
    optind = 1;
    for (;;) {
        const char *arg = optind < argc ? argv[optind] : "";
        bool long_letter = arg[0] == '-' && arg[1] && arg[1] != '-' && arg[2] &&
                           !is_letter_with_value(&table, arg);
        if (long_letter || is_foreign(&table, arg)) {
            print_unknown_option(command, &table, arg, optind + 1 < argc ? argv[optind + 1] : NULL);
            return STATUS_ERROR;
        }
        int c = getopt_long(argc, argv, table.letters, table.longs, NULL);
        if (c == -1) break;
        if (c == OPERAND) {
            argv[1 + n_operand++] = optarg; /* the arguments before optind are parsed */
            continue;
        }
        if (c == 'h') {
            (command->print_help ? command->print_help : print_help)(command, group, n_group);
            return STATUS_OK;
        }
        const struct opt *opt = find_opt(&table, c);
        if (c == '?' || c == ':' || !opt) {
            print_option_error(command, &table, c, argc, argv);
            return STATUS_ERROR;
        }
        if (!parse_value(opt, optarg)) return STATUS_ERROR;
    }
    /* Operands after "--" follow the others. */
    int operand = optind - n_operand;
    memmove(argv + operand, argv + 1, (size_t)n_operand * sizeof *argv);
    if (first) *first = operand;
    if (operand < argc && !*command->operands) {
        print_stray_operand(command, argv[operand]);
        return STATUS_ERROR;
    }
    return ARGS_RUN;
}

void print_overview(const struct command *command, size_t n) {
    int width = help_width();
    printf("lowkey %s: LLM inference whose key-value cache stays compressed\n\n"
           "usage: lowkey COMMAND [options]\n\n",
           lk_version());
    for (size_t i = 0; i < n; i++) {
        printf("  %-*s", COMMAND_COLUMN - 2, command[i].name);
        print_wrapped(stdout, command[i].summary, COMMAND_COLUMN, COMMAND_COLUMN, width);
    }
    printf("  %-*sShow the options of a command, with examples.\n", COMMAND_COLUMN - 2, "help");
    fputs("\nExamples\n"
          "  lowkey chat\n"
          "  lowkey run -m model.gguf --kv best-3 --stats -p \"Once upon a time\"\n"
          "  lowkey help run\n"
          "\nEnvironment\n"
          "  LOWKEY_MODEL    model to use without -m\n"
          "  LOWKEY_CACHE    folder of downloaded models (default ~/.cache/lowkey)\n"
          "  LOWKEY_DATA     folder of data sets for eval\n"
          "  LOWKEY_HISTORY  file for what is typed in chat (default\n"
          "                  ~/.local/state/lowkey/history); empty: none\n"
          "  NO_COLOR        no colors, if not empty\n"
          "\nExit status: 0: success; 1: bad input or a failure, after one line on stderr;\n"
          "130: interrupted. Numbers may end in k (times 1024) or m.\n",
          stdout);
}

/* ---- quoting ---- */

static const char plain_characters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=%+@";

char *quoted_command_line(int argc, char **argv) {
    struct lk_buf line = {0};
    xbuf_add(&line, "lowkey", 6);
    for (int i = 0; i < argc; i++) {
        bool plain = *argv[i] && argv[i][strspn(argv[i], plain_characters)] == 0;
        char *word = printable_copy(argv[i]);
        xbuf_add(&line, plain ? " " : " '", plain ? 1 : 2);
        for (const char *c = word; *c; c++) {
            if (*c == '\'')
                xbuf_add(&line, "'\\''", 4);
            else
                xbuf_add(&line, c, 1);
        }
        if (!plain) xbuf_add(&line, "'", 1);
        free(word);
    }
    return line.at;
}
