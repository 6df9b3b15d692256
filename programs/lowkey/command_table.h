/* The table of all commands: names, summaries, descriptions and examples. Options are in the
 * tables of cmd_*.c. */
#ifndef LK_LOWKEY_COMMAND_TABLE_H
#define LK_LOWKEY_COMMAND_TABLE_H

#include "args.h"

enum { N_COMMANDS = 14 };
extern const struct command command_table[N_COMMANDS];

/* NULL if there is no such command. */
const struct command *find_command(const char *name);

/* Call `visit` with the option tables of every command, in the order of the table. */
void visit_options(help_printer *visit);

#endif
