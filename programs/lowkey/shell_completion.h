/* The completion script of bash: commands, options and their arguments from the option tables. */
#ifndef LK_LOWKEY_SHELL_COMPLETION_H
#define LK_LOWKEY_SHELL_COMPLETION_H

/* Print the script to stdout. */
void print_bash_completion(void);

#endif
