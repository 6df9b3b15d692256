#include "common.h"

#include "available.h"
#include "capture.h"
#include "model_find.h"
#include "progress.h"
#include "say.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int complain_of(const lk_err *err) {
    if (err->code == LK_E_CANCELLED) return STATUS_INTERRUPTED;
    return complain("%s", err->msg[0] ? err->msg : lk_status_name(err->code));
}

struct opt_group model_options(struct model_args *args) {
    return (struct opt_group){
        "Model",
        {
            {'m', "model", "FILE", "GGUF file (default: $LOWKEY_MODEL, else the fetched SmolLM2)",
             OPT_TEXT, &args->model, 0, 0},
            {'t', "threads", "N", "threads (default: the machine's cores, at most 16)", OPT_INT,
             &args->threads, 1, 512},
            {0, "weights", "KIND", "shipped (default), or f32: dequantised, slow, free of rounding",
             OPT_TEXT, &args->weights, 0, 0},
            {0, "kernels", "NAME", "attention kernels (default: the fastest that this CPU has)",
             OPT_TEXT, &args->kernels, 0, 0},
            {0, "sidecar", "FILE", "what 'lowkey compress' or 'lowkey train' made for this model",
             OPT_TEXT, &args->sidecar, 0, 0},
            {0, "no-mmap", NULL, "read the file instead of mapping it", OPT_FLAG, &args->no_mmap, 0,
             0},
        },
    };
}

int model_options_read(const struct model_args *args, lk_model_opts *out) {
    const char *kind = args->weights ? args->weights : "shipped";
    bool f32 = strcmp(kind, "f32") == 0;
    if (!f32 && strcmp(kind, "shipped") != 0)
        return complain("--weights: '%s' is neither shipped nor f32", kind);
    *out = (lk_model_opts){.n_threads = (int32_t)args->threads,
                           .no_mmap = args->no_mmap,
                           .no_repack = args->no_repack,
                           .kernels = args->kernels,
                           .sidecar = args->sidecar,
                           .weights = f32 ? LK_WEIGHTS_F32 : LK_WEIGHTS_AS_SHIPPED};
    return STATUS_OK;
}

int model_open(const struct model_args *args, bool fetch, lk_model **out) {
    lk_model_opts opts;
    lk_err err = {0};
    char *path = NULL;
    int status = model_options_read(args, &opts);
    if (!status) status = model_find(args->model, fetch, &path);
    if (status) return status;

    struct progress progress = progress_begin("loading the model");
    opts.progress = progress_step;
    opts.user = &progress;
    lk_status opened = lk_model_open(out, path, &opts, &err);
    progress_end(&progress);
    free(path);
    if (opened) return complain_of(&err);
    const char *lack = lk_model_get_info(*out).kernels_lack;
    if (lack) complain("%s", lack);
    return STATUS_OK;
}

char *model_name(const lk_model *model) {
    const char *name = lk_model_get_info(model).name;
    return text_clean(name ? name : "");
}

int recipe_open(const char *kv, lk_recipe **out) {
    enum { FILE_MOST = 16 * 1024 };
    lk_err err;
    struct stat info;
    struct text text;
    if (!check_text(kv, strlen(kv), "recipe")) return STATUS_BAD;
    if (!lk_recipe_parse(out, kv, &err)) return STATUS_OK;
    if (strpbrk(kv, ":=;") || stat(kv, &info)) {
        if (strchr(kv, '/') && !strpbrk(kv, ":=;"))
            return complain("recipe: no recipe and no file is called '%s'", kv);
        return complain_of(&err);
    }
    if (!read_text(kv, "recipe", FILE_MOST, &text)) return STATUS_BAD;
    lk_status status = lk_recipe_parse(out, text.at, &err);
    free(text.at);
    return status ? complain("%s: %s", kv, err.msg) : STATUS_OK;
}

int recipes_open(const struct texts *kv, const char *fallback, struct recipes *out) {
    *out = (struct recipes){0};
    for (size_t i = 0; i < (kv->n ? kv->n : 1); i++) {
        int status = recipe_open(kv->n ? kv->item[i] : fallback, &out->item[i]);
        if (status) {
            recipes_free(out);
            return status;
        }
        out->n++;
    }
    return STATUS_OK;
}

void recipes_free(struct recipes *recipes) {
    for (size_t i = 0; i < recipes->n; i++) lk_recipe_free(recipes->item[i]);
    recipes->n = 0;
}

int recipe_only(const struct verb *verb, const struct texts *kv, lk_recipe **out) {
    if (kv->n > 1)
        return complain(
            "'%s' takes one --kv; 'lowkey plan' and 'lowkey perplexity' compare several",
            verb->name);
    return recipe_open(kv->n ? kv->item[0] : DEFAULT_RECIPE, out);
}

struct opt_group session_options(struct session_args *args) {
    return (struct opt_group){
        "Cache",
        {
            {'k', "kv", "RECIPE",
             "preset, recipe or file of one (default " DEFAULT_RECIPE "; see 'lowkey recipes')",
             OPT_TEXTS, &args->kv, 0, 0},
            {'c', "ctx", "N", "most tokens to hold (default: the model's trained length)", OPT_INT,
             &args->ctx, 1, 1 << 24},
            {0, "stream", NULL,
             "read prompts through the compressed cache: less memory, less exact", OPT_FLAG,
             &args->stream, 0, 0},
            {0, "max-memory", "MIB",
             "limit of cache and scratch together (default: what the system has free)", OPT_INT,
             &args->max_memory, 1, 1 << 24},
        },
    };
}

int session_open(const struct session_args *args, lk_model *model, const lk_recipe *recipe,
                 lk_progress progress, void *user, lk_session **out) {
    lk_err err = {0};
    lk_session_opts opts = {
        .n_ctx = (int32_t)args->ctx,
        .chunked_prefill = args->stream,
        /* Without a limit a prompt that is too long would be ended by the kernel instead of by an error. */
        .max_bytes = args->max_memory ? (uint64_t)args->max_memory << 20 : available_bytes(""),
        .progress = progress,
        .user = user,
    };
    return lk_session_new(out, model, recipe, &opts, &err) ? complain_of(&err) : STATUS_OK;
}

struct sampler_args sampler_args_default(void) {
    lk_sampler_opts d = lk_sampler_defaults();
    return (struct sampler_args){
        .temperature = (double)d.temperature,
        .top_p = (double)d.top_p,
        .min_p = (double)d.min_p,
        .repeat_penalty = (double)d.repeat_penalty,
        .top_k = d.top_k,
        .repeat_last_n = d.repeat_last_n,
        .seed = d.seed,
    };
}

struct opt_group sampler_options(struct sampler_args *args) {
    return (struct opt_group){
        "Sampling",
        {
            {0, "temp", "T", "temperature (default 0.8); 0 is greedy", OPT_REAL, &args->temperature,
             0, 100},
            {0, "greedy", NULL, "always the most probable token", OPT_FLAG, &args->greedy, 0, 0},
            {0, "top-k", "N", "only the N most probable (default 40); 0: off", OPT_INT,
             &args->top_k, 0, 10000000},
            {0, "top-p", "P", "only the most probable of sum P (default 0.95); 1: off", OPT_REAL,
             &args->top_p, 0, 1},
            {0, "min-p", "P", "at least P times the best (default 0.05); 0: off", OPT_REAL,
             &args->min_p, 0, 1},
            {0, "repeat-penalty", "X", "divide repeated tokens' logits by X (default 1: off)",
             OPT_REAL, &args->repeat_penalty, 0.01, 100},
            {0, "repeat-last-n", "N", "tokens that count as repeated (default 64)", OPT_INT,
             &args->repeat_last_n, 0, 1 << 20},
            {0, "seed", "N", "of the random choice (default 0)", OPT_INT, &args->seed, 0,
             4294967295.0},
            {0, "ignore-eos", NULL, "never choose a token that ends the answer", OPT_FLAG,
             &args->ignore_eos, 0, 0},
            {0, "grammar-file", "FILE", "GBNF grammar the answer must follow", OPT_TEXT,
             &args->grammar_file, 0, 0},
        },
    };
}

int sampler_open(const struct sampler_args *args, const lk_model *model, lk_sampler **out) {
    enum { GRAMMAR_MOST = 1024 * 1024 };
    struct text grammar = {0};
    lk_err err = {0};
    lk_sampler_opts opts = {
        .temperature = args->greedy ? 0.0F : (float)args->temperature,
        .top_k = (int32_t)args->top_k,
        .top_p = (float)args->top_p,
        .min_p = (float)args->min_p,
        .repeat_penalty = (float)args->repeat_penalty,
        .repeat_last_n = (int32_t)args->repeat_last_n,
        .seed = (uint32_t)args->seed,
        .ignore_eos = args->ignore_eos,
    };
    if (args->grammar_file) {
        if (!read_text(args->grammar_file, "grammar", GRAMMAR_MOST, &grammar)) return STATUS_BAD;
        if (!grammar.len) {
            free(grammar.at);
            return complain("the grammar %s is empty", args->grammar_file);
        }
        opts.grammar = grammar.at;
    }
    char detail[200];
    struct capture capture = capture_begin();
    lk_status status = lk_sampler_new(out, model, &opts, &err);
    capture_end(&capture, detail, sizeof detail);
    free(grammar.at);
    if (status == LK_E_FORMAT && args->grammar_file)
        return complain("%s: %s%s%s%s", args->grammar_file, err.msg, *detail ? " (" : "", detail,
                        *detail ? ")" : "");
    return status ? complain_of(&err) : STATUS_OK;
}
