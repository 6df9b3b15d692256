/* The bash completion script, made from the option tables. */
#ifndef SHELL_COMPLETION_H
#define SHELL_COMPLETION_H

/* Print the script to stdout. */
void print_bash_completion(void);

#endif
