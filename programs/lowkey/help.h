/* The text that --help prints. */
#ifndef LK_LOWKEY_HELP_H
#define LK_LOWKEY_HELP_H

#include "args.h"

/* Usage, summary, options and examples of one command. */
void print_help(const struct command *command, const struct opt_group *group, size_t n_group);

/* Usage of the program and its n commands. */
void print_overview(const struct command *command, size_t n);

#endif
