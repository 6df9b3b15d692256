/* lowkey export: a model and what its sidecar changes as a plain GGUF file. */
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "model_find.h"
#include "output.h"
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct export_args {
    const char *model, *sidecar, *out, *type;
    bool adapters_only;
};

static int read_args(const struct command *command, int argc, char **argv, struct export_args *a) {
    const struct opt_group groups[] = {
        {"What to export",
         {
             {'m', "model", "FILE", "GGUF file (default: $LOWKEY_MODEL, or a small model)",
              OPT_TEXT, &a->model, .complete = "*.gguf"},
             {0, "sidecar", "FILE", "sidecar from 'lowkey train lora' or 'lowkey compress'",
              OPT_TEXT, &a->sidecar, .complete = "*.gguf"},
             {'o', "output", "FILE", "the model to write", OPT_TEXT, &a->out, .complete = "*.gguf"},
             {0, "type", "NAME",
              "type of the matrices that change: q8_0, f16, f32 or auto (default: q8_0 for "
              "quantized ones, others keep their type)",
              OPT_TEXT, &a->type, .complete = "auto q8_0 f16 f32"},
             {0, "adapters-only", NULL,
              "leave out the sidecar's bases and LESS networks; the adapters were trained for a "
              "cache with them, so the result may be worse than the original model",
              OPT_FLAG, &a->adapters_only},
         }},
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* Index of the name among lk_export_numbers; -1 after a message. */
static int find_numbers(const char *name) {
    const char *known;
    for (int i = 0; lk_export_numbers_name((size_t)i, &known); i++)
        if (strcmp(name, known) == 0) return i;
    print_error("--type: '%s' is not auto, q8_0, f16 or f32", name);
    return -1;
}

static void print_result(const char *path, const lk_export_result *r) {
    char size[NUMBER_BUF];
    struct stat info;
    printf("wrote %s", path);
    if (stat(path, &info) == 0) printf(", %s", format_bytes(size, (uint64_t)info.st_size));
    printf(": %" PRId64 " of %" PRId64 " tensors changed, %d KV heads\n", r->n_changed, r->n_tensor,
           r->n_head_kv);
}

int cmd_export(const struct command *command, int argc, char **argv) {
    struct export_args a = {.type = "auto"};
    lk_export_result result;
    lk_err err = {0};
    char *model = NULL;
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) return read;
    if (!a.sidecar) return print_error("no sidecar: give --sidecar FILE");
    if (!a.out) return print_error("no output: give -o FILE");
    int numbers = find_numbers(a.type), status = numbers < 0 ? STATUS_ERROR : STATUS_OK;
    if (!status) status = model_find(a.model, false, &model);
    if (!status) {
        struct progress progress = progress_start("exporting");
        lk_export_opts opts = {.numbers = (lk_export_numbers)numbers,
                               .adapters_only = a.adapters_only,
                               .progress = progress_step,
                               .user = &progress};
        lk_status done = lk_export(model, a.sidecar, &opts, a.out, &result, &err);
        progress_end(&progress);
        if (done) status = print_lk_error(&err);
    }
    if (!status) print_result(a.out, &result);
    free(model);
    return status;
}
