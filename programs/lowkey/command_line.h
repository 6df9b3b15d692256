/* The command line that this program was called with, as a shell would take it. */
#ifndef LK_LOWKEY_COMMAND_LINE_H
#define LK_LOWKEY_COMMAND_LINE_H

/* argv[0] is the verb. To be called before args_read, which puts the words into another order. To be freed. */
char *command_line(int argc, char **argv);

#endif
