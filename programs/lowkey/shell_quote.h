/* The command line of this program, quoted for a shell. */
#ifndef LK_LOWKEY_SHELL_QUOTE_H
#define LK_LOWKEY_SHELL_QUOTE_H

/* "lowkey" and argv[0..argc), where argv[0] is the command: free it. To be called before args_read,
 * which reorders argv. */
char *quoted_command_line(int argc, char **argv);

#endif
