/* lowkey: LLM inference whose key-value cache stays compressed. One file cmd_*.c per command. */
#include "base/closest.h"
#include "command_table.h"
#include "help.h"
#include "interrupt.h"
#include "lowkey_lab.h"
#include "man_page.h"
#include "output.h"
#include "ranks.h"
#include "shell_completion.h"
#include "terminate.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void offer_commands(struct lk_closest *close) {
    for (size_t i = 0; i < N_COMMANDS; i++) lk_closest_offer(close, command_table[i].name);
}

/* Print that the command does not exist, and which one was probably meant. */
static int print_unknown_command(const char *name) {
    static const struct {
        const char *theirs, *ours;
    } other[] = {{"cli", "chat"},       {"generate", "run"},   {"completion", "run"},
                 {"server", "serve"},   {"ppl", "perplexity"}, {"benchmark", "bench"},
                 {"show", "info"},      {"memory", "plan"},    {"evaluate", "eval"},
                 {"presets", "recipes"}};
    struct lk_closest close = {.word = name, .len = strlen(name)};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        if (strcmp(name, other[i].theirs) == 0) close.name = other[i].ours;
    }
    if (!close.name) offer_commands(&close);
    if (close.name)
        return print_error("unknown command '%s': did you mean 'lowkey %s'? 'lowkey help' lists "
                           "them",
                           name, close.name);
    return print_error("unknown command '%s'; 'lowkey help' lists them", name);
}

/* lowkey help [COMMAND]. Hidden: help --man, help --completion bash, for the build. */
static int cmd_help(int argc, char **argv) {
    if (argc < 3) {
        print_overview(command_table, N_COMMANDS);
        return STATUS_OK;
    }
    if (strcmp(argv[2], "--man") == 0) {
        print_man_page();
        return STATUS_OK;
    }
    if (strcmp(argv[2], "--completion") == 0) {
        if (argc != 4 || strcmp(argv[3], "bash") != 0)
            return print_error("help --completion: expected 'bash'");
        print_bash_completion();
        return STATUS_OK;
    }
    const struct command *command = find_command(argv[2]);
    if (!command) return print_unknown_command(argv[2]);
    char option[] = "--help";
    char *command_argv[] = {argv[2], option, NULL};
    return command->run(command, 2, command_argv);
}

int main(int argc, char **argv) {
    report_uncaught_exceptions();
    /* LC_CTYPE only: numbers are read and printed with a decimal point in every locale. */
    setlocale(LC_CTYPE, "");
    if (!locale_is_utf8()) setlocale(LC_CTYPE, "C.UTF-8");
    catch_interrupts();
    /* A write that fails is reported: EPIPE, and EFBIG at a limit of the size of files. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return flush_output(cmd_help(argc, argv));
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("lowkey %s\n", lk_version());
        return flush_output(STATUS_OK);
    }
    const struct command *command = find_command(name);
    if (!command && name[0] == '-')
        return print_error("unknown option '%s'; expected a command first: see 'lowkey help'",
                           name);
    if (!command) return print_unknown_command(name);
    lk_err err = {0};
    if (lk_baselines_register(&err)) return print_error("%s", err.msg);
    struct ranks *ranks;
    int status = ranks_join(&ranks);
    if (!status) status = ranks_run(ranks, command, argc - 1, argv + 1);
    return flush_output(status);
}
