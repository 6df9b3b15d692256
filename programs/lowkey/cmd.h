/* The commands of the program. cmd_NAME is defined in cmd_NAME.c and returns a STATUS_*. */
#ifndef LK_CMD_H
#define LK_CMD_H

#include "args.h"

int cmd_run(const struct command *command, int argc, char **argv);
int cmd_chat(const struct command *command, int argc, char **argv);
int cmd_serve(const struct command *command, int argc, char **argv);
int cmd_plan(const struct command *command, int argc, char **argv);
int cmd_tune(const struct command *command, int argc, char **argv);
int cmd_perplexity(const struct command *command, int argc, char **argv);
int cmd_bench(const struct command *command, int argc, char **argv);
int cmd_eval(const struct command *command, int argc, char **argv);
int cmd_train(const struct command *command, int argc, char **argv);
int cmd_recipes(const struct command *command, int argc, char **argv);
int cmd_inspect(const struct command *command, int argc, char **argv);
int cmd_compress(const struct command *command, int argc, char **argv);
int cmd_export(const struct command *command, int argc, char **argv);
int cmd_models(const struct command *command, int argc, char **argv);
int cmd_pull(const struct command *command, int argc, char **argv);
int cmd_info(const struct command *command, int argc, char **argv);

#endif
