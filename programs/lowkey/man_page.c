/* Writes the man page in the man(7) macros. */
#include "man_page.h"

#include "command_table.h"
#include "common.h"
#include "lowkey.h"
#include "man_text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- text ---- */

/* One character of text, escaped. */
static void put_roff(char c) {
    switch (c) {
    case '\\': fputs("\\e", stdout); break;
    case '-': fputs("\\-", stdout); break;
    case '\'': fputs("\\(aq", stdout); break;
    case '^': fputs("\\(ha", stdout); break;
    case '~': fputs("\\(ti", stdout); break;
    default: putchar(c);
    }
}

/* Length of an option such as "--kv" at s, if one starts here after `previous`; else 0. */
static size_t option_length(char previous, const char *s) {
    if (isalnum((unsigned char)previous) || previous == '-') return 0;
    if (s[0] != '-' || s[1] != '-' || !islower((unsigned char)s[2])) return 0;
    return strspn(s, "abcdefghijklmnopqrstuvwxyz-");
}

/* Text of any number of paragraphs. Words in backquotes and options are bold, sentences start on
 * new lines. */
static void put_text(const char *text) {
    bool bold = false;
    size_t option = 0; /* characters left of an option */
    for (const char *s = text; *s; s++) {
        if (s[0] == '\n' && s[1] == '\n') {
            fputs("\n.PP\n", stdout);
            s++;
            continue;
        }
        if (*s == '`') {
            bold = !bold;
            fputs(bold ? "\\fB" : "\\fR", stdout);
            continue;
        }
        if (!bold && !option && (option = option_length(s == text ? ' ' : s[-1], s)) > 0)
            fputs("\\fB", stdout);
        if (s > text + 1 && s[-1] == '.' && s[0] == ' ' && !bold)
            putchar('\n');
        else
            put_roff(*s);
        if (option && --option == 0) fputs("\\fR", stdout);
    }
    putchar('\n');
}

/* True if the first word of `text` is one of the words of `list`. */
static bool starts_with_listed_word(const char *text, const char *list) {
    size_t len = strcspn(text, " ,:");
    for (const char *s = list; s && *s; s += strcspn(s, " "), s += *s == ' ') {
        if (strcspn(s, " ") == len && strncmp(s, text, len) == 0) return true;
    }
    return false;
}

/* The help of an option as a sentence: with a capital, unless it starts with a literal value. */
static void put_help(const struct opt *opt) {
    char text[256];
    snprintf(text, sizeof text, "%s.", opt->help);
    if (!starts_with_listed_word(text, opt->complete))
        text[0] = (char)toupper((unsigned char)*text);
    put_text(text);
}

/* Lines as they are, without the indentation that --help gives them. */
static void put_code(const char *lines, const char *indentation) {
    fputs(".nf\n", stdout);
    for (const char *s = lines; *s;) {
        if (strncmp(s, indentation, strlen(indentation)) == 0) s += strlen(indentation);
        if (*s == '.' || *s == '\'') fputs("\\&", stdout);
        for (; *s && *s != '\n'; s++) put_roff(*s);
        if (*s) s++;
        putchar('\n');
    }
    fputs(".fi\n", stdout);
}

/* ---- options ---- */

static void put_option(const struct opt *opt) {
    fputs(".TP\n", stdout);
    if (opt->letter) printf("\\fB\\-%c\\fR, ", opt->letter);
    fputs("\\fB\\-\\-", stdout);
    for (const char *s = opt->name; *s; s++) put_roff(*s);
    fputs("\\fR", stdout);
    if (opt->value) printf(" \\fI%s\\fR", opt->value);
    putchar('\n');
    if (opt->man)
        put_text(opt->man);
    else
        put_help(opt);
    bool number = opt->kind == OPT_INT || opt->kind == OPT_NUMBERS || opt->kind == OPT_REAL;
    if (number && opt->max < 1 << 20)
        printf("Range: %.10g to %.10g.\n", opt->min, opt->max);
    else if (number && opt->min > 1)
        printf("Minimum: %.10g.\n", opt->min);
}

static void put_options(struct opt_group group) {
    for (const struct opt *opt = group.opt; opt->name; opt++) put_option(opt);
}

/* ---- sections ---- */

/* The words of `operands`, such as "[RECIPE...]", italic but for the brackets and dots. */
static void put_operands(const char *operands) {
    bool italic = false;
    for (const char *s = operands; *s; s++) {
        bool word = isalpha((unsigned char)*s) != 0;
        if (word != italic) fputs(word ? "\\fI" : "\\fR", stdout);
        italic = word;
        put_roff(*s);
    }
    if (italic) fputs("\\fR", stdout);
}

/* A help_printer: the subsection of one command. */
static void put_command(const struct command *command, const struct opt_group *group,
                        size_t n_group) {
    size_t n_own = 0, n_shared = 0;
    for (size_t g = 0; g < n_group; g++) n_own += !group[g].shared;
    printf(".SS %s\n\\fBlowkey %s\\fR [\\fIoptions\\fR]%s", command->name, command->name,
           *command->operands ? " " : "");
    put_operands(command->operands);
    fputs("\n.PP\n", stdout);
    put_text(command->description);
    for (size_t g = 0; g < n_group; g++) {
        if (group[g].shared) continue;
        if (n_own > 1) printf(".PP\n\\fI%s\\fR\n", group[g].title);
        put_options(group[g]);
    }
    for (size_t g = 0; g < n_group; g++) {
        if (!group[g].shared) continue;
        fputs(n_shared++ ? ", " : ".PP\nShared options, described above: ", stdout);
        fputs(group[g].title, stdout);
    }
    if (n_shared) fputs(".\n", stdout);
    if (command->appendix) {
        fputs(".PP\n", stdout);
        put_code(command->appendix, "  ");
    }
}

static void put_section(const struct man_section *section) {
    printf(".SH %s\n", section->title);
    const struct man_block *block = section->block;
    for (; block->term || block->text || block->code; block++) {
        if (block->code) {
            fputs(".PP\n.RS\n", stdout);
            put_code(block->code, "");
            fputs(".RE\n", stdout);
            continue;
        }
        if (block->term) {
            fputs(".TP\n", stdout);
            put_text(block->term);
        } else if (block != section->block) {
            fputs(".PP\n", stdout);
        }
        put_text(block->text);
    }
}

void print_man_page(void) {
    struct model_args model = {0};
    struct session_args session = {0};
    struct sampler_args sampler = {0};
    const struct opt_group shared[] = {model_options(&model), session_options(&session),
                                       sampler_options(&sampler)};
    printf(".\\\" Generated by 'lowkey help --man'.\n"
           ".TH LOWKEY 1 \"\" \"lowkey %s\" \"User Commands\"\n"
           ".nh\n.ad l\n"
           ".SH NAME\nlowkey \\- LLM inference whose key\\-value cache stays compressed\n"
           ".SH SYNOPSIS\n\\fBlowkey\\fR \\fIcommand\\fR [\\fIoptions\\fR]\n.br\n"
           "\\fBlowkey help\\fR [\\fIcommand\\fR]\n.br\n\\fBlowkey \\-\\-version\\fR\n"
           ".SH DESCRIPTION\n",
           lk_version());
    put_text(man_introduction);
    fputs(".PP\nThe commands are:\n", stdout);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf(".TP\n\\fB%s\\fR\n", command_table[i].name);
        put_text(command_table[i].summary);
    }
    fputs(".PP\n", stdout);
    put_text(man_conventions);
    fputs(".SH OPTIONS OF SEVERAL COMMANDS\n", stdout);
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        printf(".SS %s\n", shared[i].title);
        put_options(shared[i]);
    }
    fputs(".SH COMMANDS\n", stdout);
    visit_options(put_command);
    for (size_t i = 0; i < N_MAN_SECTIONS; i++) put_section(&man_sections[i]);
    fputs(".SH EXAMPLES\n", stdout);
    for (size_t i = 0; i < N_COMMANDS; i++) put_code(command_table[i].examples, "  ");
}
