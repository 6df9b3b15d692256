/* Formats --help to the width of the terminal. */
#include "help.h"

#include "lowkey.h"
#include "output.h"

#include <stdio.h>

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

void print_help(const struct command *command, const struct opt_group *group, size_t n_group) {
    int width = help_width();
    printf("usage: lowkey %s [options]%s%s\n\n", command->name, *command->operands ? " " : "",
           command->operands);
    print_wrapped(stdout, command->summary, 0, 0, width);
    for (size_t g = 0; g < n_group; g++) {
        printf("\n%s\n", group[g].title);
        for (const struct opt *opt = group[g].opt; opt->name; opt++) print_option(opt, width);
    }
    printf("\nExamples\n%s", command->examples);
    if (command->appendix) printf("\n%s", command->appendix);
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
    printf("\nExamples\n"
           "  lowkey chat\n"
           "  lowkey run -m model.gguf --kv best-3 --stats -p \"Once upon a time\"\n"
           "  lowkey help run\n");
}
