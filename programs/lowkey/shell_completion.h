/* The completion script of bash: commands, options and their arguments from the option tables. */
#ifndef LK_LOWKEY_SHELL_COMPLETION_H
#define LK_LOWKEY_SHELL_COMPLETION_H

#include "args.h"

/* Print the script for n commands to stdout. */
void print_bash_completion(const struct command *command, size_t n);

#endif
