/* lowkey pull: download a model that scripts/fetch-model knows. */
#include "cmd.h"
#include "interrupt.h"
#include "model_find.h"
#include "output.h"

int cmd_pull(const struct command *command, int argc, char **argv) {
    int first;
    int read = args_read(command, NULL, 0, argc, argv, &first);
    if (read != ARGS_RUN) return read;
    if (argc - first > 1) return print_error("'pull' takes one name");
    catch_interrupts();
    return model_pull(first < argc ? argv[first] : NULL);
}
