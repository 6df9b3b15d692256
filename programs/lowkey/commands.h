#ifndef LK_LOWKEY_COMMANDS_H
#define LK_LOWKEY_COMMANDS_H

#include "args.h"

/* One file each; all return a program status. */
int run_verb(const struct verb *verb, int argc, char **argv);
int chat_verb(const struct verb *verb, int argc, char **argv);
int plan_verb(const struct verb *verb, int argc, char **argv);
int perplexity_verb(const struct verb *verb, int argc, char **argv);
int bench_verb(const struct verb *verb, int argc, char **argv);
int eval_verb(const struct verb *verb, int argc, char **argv);
int train_verb(const struct verb *verb, int argc, char **argv);
int recipes_verb(const struct verb *verb, int argc, char **argv);
int inspect_verb(const struct verb *verb, int argc, char **argv);
int serve_verb(const struct verb *verb, int argc, char **argv);
int report_verb(const struct verb *verb, int argc, char **argv);
int compress_verb(const struct verb *verb, int argc, char **argv);
int info_verb(const struct verb *verb, int argc, char **argv);

#endif
