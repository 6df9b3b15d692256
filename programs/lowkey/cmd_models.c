/* lowkey models: the model files on this machine. */
#include "cmd.h"
#include "common.h"
#include "model_list.h"
#include "output.h"
#include "table.h"

#include <string.h>

/* What the header of a file says. */
struct model_header {
    char arch[32], lack[sizeof((lk_err *)0)->msg]; /* lack: why it does not run, or "" */
    uint64_t n_param;
    int n_ctx;
};

static struct model_header read_header(const char *path) {
    struct model_header header = {0};
    lk_model_opts opts = {.header_only = true};
    lk_model *model = NULL;
    lk_err err = {0};
    if (lk_model_open(&model, path, &opts, &err)) {
        snprintf(header.lack, sizeof header.lack, "%s", err.msg);
        return header;
    }
    lk_model_info info = lk_model_get_info(model);
    snprintf(header.arch, sizeof header.arch, "%s", info.arch);
    header.n_param = info.n_param;
    header.n_ctx = info.n_ctx_train;
    lk_model_free(model);
    return header;
}

static void add_row(struct table *table, const struct found_model *model) {
    char bytes[NUMBER_BUF], count[NUMBER_BUF];
    struct model_header header = read_header(model->path);
    const char *why = strstr(header.lack, ": "); /* the path comes first */
    table_cell(table, "%s", model->name);
    table_cell(table, "%s", format_bytes(bytes, model->bytes));
    table_cell(table, "%s", header.arch);
    if (header.n_param)
        table_cell(table, "%.2fB", (double)header.n_param / 1e9);
    else
        table_cell(table, "%s", "");
    table_cell(table, "%s", header.n_ctx ? format_count(count, (uint64_t)header.n_ctx) : "");
    table_cell(table, "%s", model->source);
    table_cell(table, "%s", *header.lack ? (why ? why + 2 : header.lack) : "yes");
}

static json_t *row_json(const struct found_model *model) {
    struct model_header header = read_header(model->path);
    return json_pack("{s:s s:s s:s s:I s:s s:I s:i s:b s:s}", "name", model->name, "path",
                     model->path, "source", model->source, "bytes", (json_int_t)model->bytes,
                     "arch", header.arch, "n_param", (json_int_t)header.n_param, "n_ctx_train",
                     header.n_ctx, "runs", !*header.lack, "lack", header.lack);
}

int cmd_models(const struct command *command, int argc, char **argv) {
    bool json = false;
    const struct opt_group groups[] = {
        {"Output", {{0, "json", NULL, "print JSON", OPT_FLAG, &json}}},
    };
    int read = args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
    if (read != ARGS_RUN) return read;
    struct model_list *models = model_list_make();
    struct table table = table_new("lrLRRll");
    table.min_first = 48; /* names are there to be copied */
    json_t *list = json_array();
    int status = STATUS_OK;
    if (models->n) table_titles(&table, "model|size|family|parameters|context|from|runs");
    for (size_t i = 0; i < models->n; i++) {
        if (json)
            json_array_append_new(list, row_json(&models->item[i]));
        else
            add_row(&table, &models->item[i]);
    }
    if (json)
        status = json_print(json_pack("{s:O}", "models", list), false);
    else if (models->n)
        table_print(&table, stdout, true);
    else
        printf("no models in the folders of lowkey, Hugging Face, LM Studio, llama.cpp and ollama; "
               "'lowkey pull' downloads one\n");
    json_decref(list);
    model_list_free(models);
    return status;
}
