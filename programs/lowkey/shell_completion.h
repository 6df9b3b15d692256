/* Completion scripts for shells, on stdout: commands, options and their arguments from the option
 * tables. */
#ifndef LK_LOWKEY_SHELL_COMPLETION_H
#define LK_LOWKEY_SHELL_COMPLETION_H

void print_bash_completion(void);
void print_zsh_completion(void);
void print_fish_completion(void);

#endif
