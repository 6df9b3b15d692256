#include "args.h"

#include "say.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_MOST = 64, FIRST_LONG = 256 }; /* long options are numbered beyond any letter */

/* getopt's view of the groups. */
struct all {
    const struct opt *opt[ALL_MOST];
    struct option longs[ALL_MOST + 2];
    char letters[2 * ALL_MOST + 4];
    size_t n;
};

static void collect(const struct opt_group *group, size_t n_group, struct all *all) {
    size_t k = 0;
    memset(all, 0, sizeof *all);
    all->letters[k++] = ':'; /* tell a missing value from an unknown option */
    all->letters[k++] = 'h';
    for (size_t g = 0; g < n_group; g++) {
        for (const struct opt *opt = group[g].opt; opt->name && all->n < ALL_MOST; opt++) {
            int takes = opt->kind != OPT_FLAG;
            all->longs[all->n] = (struct option){opt->name, takes, NULL, FIRST_LONG + (int)all->n};
            all->opt[all->n++] = opt;
            if (!opt->letter) continue;
            all->letters[k++] = opt->letter;
            if (takes) all->letters[k++] = ':';
        }
    }
    all->longs[all->n] = (struct option){"help", 0, NULL, 'h'};
}

static const struct opt *find(const struct all *all, int c) {
    if (c >= FIRST_LONG) return (size_t)(c - FIRST_LONG) < all->n ? all->opt[c - FIRST_LONG] : NULL;
    for (size_t i = 0; i < all->n; i++) {
        if (all->opt[i]->letter == c) return all->opt[i];
    }
    return NULL;
}

static bool out_of_range(const struct opt *opt, const char *text) {
    complain("--%s: '%s' is not a number from %.10g to %.10g", opt->name, text, opt->least,
             opt->most);
    return false;
}

/* A whole number that ends at `end` or at the text's end. */
static bool read_int(const struct opt *opt, const char *text, char end, const char **rest,
                     int64_t *out) {
    char *stop;
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    if (stop == text || errno == ERANGE) return out_of_range(opt, text);
    if (*stop == 'k' || *stop == 'K') {
        if (value > INT64_MAX / 1024 || value < 0) return out_of_range(opt, text);
        value *= 1024;
        stop++;
    }
    if (*stop && *stop != end) return out_of_range(opt, text);
    if ((double)value < opt->least || (double)value > opt->most) return out_of_range(opt, text);
    *rest = stop;
    *out = value;
    return true;
}

static bool read_numbers(const struct opt *opt, const char *text, struct numbers *out) {
    for (;;) {
        if (out->n == LIST_MOST) {
            complain("--%s: more than %d numbers", opt->name, LIST_MOST);
            return false;
        }
        if (!read_int(opt, text, ',', &text, &out->item[out->n])) return false;
        out->n++;
        if (!*text) return true;
        text++;
    }
}

static bool read_real(const struct opt *opt, const char *text, double *out) {
    char *stop;
    errno = 0;
    double value = strtod(text, &stop);
    if (stop == text || *stop || errno == ERANGE || !isfinite(value) || value < opt->least ||
        value > opt->most)
        return out_of_range(opt, text);
    *out = value;
    return true;
}

static bool read_value(const struct opt *opt, const char *text) {
    const char *rest;
    switch (opt->kind) {
    case OPT_FLAG: *(bool *)opt->to = true; return true;
    case OPT_TEXT: *(const char **)opt->to = text; return true;
    case OPT_INT: return read_int(opt, text, 0, &rest, opt->to);
    case OPT_NUMBERS: return read_numbers(opt, text, opt->to);
    case OPT_REAL: return read_real(opt, text, opt->to);
    case OPT_TEXTS: break;
    }
    struct texts *texts = opt->to;
    if (texts->n == LIST_MOST) {
        complain("--%s is given more than %d times", opt->name, LIST_MOST);
        return false;
    }
    texts->item[texts->n++] = text;
    return true;
}

static void print_help(const struct verb *verb, const struct opt_group *group, size_t n_group) {
    enum { NAME_COLUMN = 28 };
    printf("usage: lowkey %s [options]%s%s\n\n%s\n", verb->name, *verb->operands ? " " : "",
           verb->operands, verb->summary);
    for (size_t g = 0; g < n_group; g++) {
        printf("\n%s\n", group[g].title);
        for (const struct opt *opt = group[g].opt; opt->name; opt++) {
            char name[80], letter[8] = "    ";
            if (opt->letter) snprintf(letter, sizeof letter, "-%c, ", opt->letter);
            snprintf(name, sizeof name, "  %s--%s%s%s", letter, opt->name, opt->value ? " " : "",
                     opt->value ? opt->value : "");
            printf("%-*s %s\n", NAME_COLUMN, name, opt->help);
        }
    }
    printf("\nExamples\n%s", verb->examples);
}

static enum args_result refuse(const struct verb *verb, const struct all *all, int c, int at,
                               char **argv) {
    const struct opt *opt = optopt ? find(all, optopt) : NULL;
    if (c == ':' && opt)
        complain("--%s needs a value: %s; see 'lowkey %s --help'", opt->name, opt->value,
                 verb->name);
    else if (opt && optopt >= FIRST_LONG)
        complain("--%s takes no value; see 'lowkey %s --help'", opt->name, verb->name);
    else if (optopt && optopt < FIRST_LONG && optopt != 'h')
        complain("unknown option '-%c'; see 'lowkey %s --help'", optopt, verb->name);
    else
        complain("unknown option '%s'; see 'lowkey %s --help'", argv[at], verb->name);
    return ARGS_BAD;
}

enum args_result args_read(const struct verb *verb, const struct opt_group *group, size_t n_group,
                           int argc, char **argv, int *first) {
    struct all all;
    int c;
    collect(group, n_group, &all);
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, all.letters, all.longs, NULL)) != -1) {
        const struct opt *opt = find(&all, c);
        if (c == 'h') {
            print_help(verb, group, n_group);
            return ARGS_HELP;
        }
        if (c == '?' || c == ':' || !opt) return refuse(verb, &all, c, optind - 1, argv);
        if (!read_value(opt, optarg)) return ARGS_BAD;
    }
    *first = optind;
    if (optind < argc && !*verb->operands) {
        complain("'%s' is not an option; see 'lowkey %s --help'", argv[optind], verb->name);
        return ARGS_BAD;
    }
    return ARGS_RUN;
}
