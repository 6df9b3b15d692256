/* Options that several commands share, and opening models, recipes, sessions and samplers. */
#include "common.h"

#include "available.h"
#include "base/atomic_file.h"
#include "eval/task.h"
#include "model_find.h"
#include "output.h"
#include "progress.h"
#include "text.h"
#include "xalloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

int print_lk_error(const lk_err *err) {
    if (err->code == LK_E_CANCELLED) return STATUS_INTERRUPTED;
    return print_error("%s", err->msg[0] ? err->msg : lk_status_name(err->code));
}

/* ---- model ---- */

struct opt_group model_options(struct model_args *args, enum model_use use) {
    const unsigned all = ~0u, shown = MODEL_SHOWN, planned = MODEL_PLANNED,
                   calibrated = MODEL_CALIBRATED;
    const struct {
        unsigned uses;
        struct opt opt;
    } row[] = {
        {all,
         {'m', "model", "FILE",
          "GGUF file, or a name that 'lowkey models' lists (default: $LOWKEY_MODEL, or a small "
          "model)",
          OPT_TEXT, &args->model, .complete = "*.gguf"}},
        {all & ~shown,
         {'t', "threads", "N", "threads (default: cores that may be used, at most 16)", OPT_INT,
          &args->threads, 1, 512}},
        {all & ~calibrated,
         {0, "sidecar", "FILE",
          "file from 'lowkey compress' or 'lowkey train', for recipes that need one; its adapters "
          "are merged into the weights",
          OPT_TEXT, &args->sidecar, .complete = "*.gguf"}},
        {MODEL_RUN,
         {0, "lora", "FILE", "LoRA adapter in llama.cpp's form (GGUF), merged into the weights",
          OPT_TEXT, &args->lora, .complete = "*.gguf"}},
        {MODEL_RUN,
         {0, "lora-scale", "X", "factor of the adapter (default 1)", OPT_REAL, &args->lora_scale,
          -100, 100, .rare = true}},
        {all,
         {0, "weights", "KIND",
          "shipped (default): as stored in the file; f32: dequantized and slow, but activations "
          "are not rounded, so that small errors of a cache can be seen",
          OPT_TEXT, &args->weights, .complete = "shipped f32", .rare = true}},
        {MODEL_RUN | planned | shown,
         {0, "device", "NAME",
          "device that computes the last layers: one of 'lowkey info', or rpc:HOST:PORT (default: "
          "cpu)",
          OPT_TEXT, &args->device, .rare = true}},
        {MODEL_RUN | planned | shown,
         {0, "layers", "N", "layers that the device computes (default: all)", OPT_INT,
          &args->layers, 1, 1024, .rare = true}},
        {MODEL_RUN | planned,
         {0, "cache-device", "NAME",
          "device that holds the cache and attends to it: one of 'lowkey info', or cpu (default: "
          "as --device if it can, else cpu)",
          OPT_TEXT, &args->cache_device, .rare = true}},
        {MODEL_RUN | planned,
         {0, "no-mmap", NULL, "read the model file instead of mapping it", OPT_FLAG, &args->no_mmap,
          .rare = true}},
        {MODEL_RUN | MODEL_RUN_ALONE | shown,
         {0, "kernels", "NAME",
          "attention kernels: reference, avx2, avxvnni, avx512, avx512vbmi, amx or neon (default: "
          "the fastest of this CPU)",
          OPT_TEXT, &args->kernels, .complete = "reference avx2 avxvnni avx512 avx512vbmi amx neon",
          .rare = true}},
        {MODEL_RUN | planned,
         {0, "stages", "N",
          "divide the layers over N stages of ranks (default 1; see docs/cluster.md)", OPT_INT,
          &args->stages, 1, 64, .rare = true}},
    };
    struct opt_group group = {"Model", {{0}}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i].uses & use) group.opt[n++] = row[i].opt;
    return group;
}

/* The device that holds the cache: as asked for, or the one with the weights if it can. */
static const char *cache_device(const struct model_args *args) {
    lk_device_info d;
    if (args->cache_device || !args->device) return args->cache_device;
    for (size_t i = 0; lk_device_list(i, &d); i++)
        if (strcasecmp(args->device, d.name) == 0) return args->device;
    return NULL;
}

int model_opts_from_args(const struct model_args *args, lk_model_opts *out) {
    const char *kind = args->weights ? args->weights : "shipped";
    bool f32 = strcmp(kind, "f32") == 0;
    if (!f32 && strcmp(kind, "shipped") != 0)
        return print_error("--weights: '%s' is neither shipped nor f32", kind);
    *out = (lk_model_opts){.n_threads = (int32_t)args->threads,
                           .n_ctx = (int32_t)args->n_ctx,
                           .no_mmap = args->no_mmap,
                           .no_repack = args->no_repack,
                           .header_only = args->header_only,
                           .kernels = args->kernels,
                           .device = args->device,
                           .n_device_layers = (int32_t)args->layers,
                           .cache_device = cache_device(args),
                           .sidecar = args->sidecar,
                           .lora = args->lora,
                           .lora_scale = (float)args->lora_scale,
                           .weights = f32 ? LK_WEIGHTS_F32 : LK_WEIGHTS_AS_SHIPPED};
    return STATUS_OK;
}

int model_open(const struct model_args *args, bool fetch, lk_model **out) {
    lk_model_opts opts;
    lk_err err = {0};
    char *path = NULL;
    int status = model_opts_from_args(args, &opts);
    if (!status) status = model_find(args->model, fetch, &path);
    if (status) return status;

    if (args->lora && args->cluster)
        status = print_error("--lora: several ranks cannot use an adapter");
    else if (args->stages > 1 && !args->cluster)
        status = print_error("--stages: this process is alone; start several ranks with mpirun or "
                             "srun");
    else if (args->cluster &&
             lk_cluster_set_stages(args->cluster, args->stages ? (int32_t)args->stages : 1, &err))
        status = print_error("--stages: %s", err.msg);
    if (status) {
        free(path);
        return status;
    }
    struct progress progress = progress_start("loading the model");
    opts.progress = progress_step;
    opts.user = &progress;
    lk_status opened = args->cluster ? lk_model_open_cluster(out, path, &opts, args->cluster, &err)
                                     : lk_model_open(out, path, &opts, &err);
    progress_end(&progress);
    free(path);
    if (opened) return print_lk_error(&err);
    const char *lack = lk_model_get_info(*out).kernels_lack;
    if (lack) print_error("%s", lack);
    lack = lk_model_get_info(*out).tokenizer_lack;
    if (lack) print_error("%s", lack);
    return STATUS_OK;
}

char *model_name(const lk_model *model) {
    const char *name = lk_model_get_info(model).name;
    return printable_copy(name ? name : "");
}

/* ---- texts ---- */

int read_text(const char *path, struct lk_buf *text) {
    int status = read_text_file(path, "text", MAX_PROMPT_BYTES, text);
    if (status || text->len) return status;
    lk_buf_free(text);
    return print_error("the text %s is empty", path);
}

int tokenize_text(const lk_model *model, const struct lk_buf *text, struct tokens *out) {
    lk_err err = {0};
    return lk_task_tokenize(model, text->at, text->len, &out->at, &out->n, &err)
               ? print_lk_error(&err)
               : STATUS_OK;
}

int read_tokens(const lk_model *model, const char *path, struct tokens *out) {
    struct lk_buf text = {0};
    int status = read_text(path, &text);
    if (!status) status = tokenize_text(model, &text, out);
    lk_buf_free(&text);
    return status;
}

void make_sentences(struct lk_buf *text, size_t n) {
    static const char *const who[] = {"A sailor",     "The baker",  "Her uncle",    "One clerk",
                                      "My neighbour", "The doctor", "An old friend"};
    static const char *const did[] = {"counted", "lost",  "painted",   "remembered", "sold",
                                      "carried", "found", "described", "kept"};
    static const char *const what[] = {"coins", "letters", "lamps",  "apples", "ropes", "maps",
                                       "doors", "songs",   "stones", "keys",   "clocks"};
    for (size_t i = 0; text->len < 4 * n + 64; i++)
        xbuf_printf(text, "%s %s %zu %s. ", who[i * 5 % 7], did[i * 7 % 9], i * i % 97 + 2,
                    what[i * 3 % 11]);
}

/* ---- recipes ---- */

/* Does kv name several recipes, with commas between them? */
static bool is_list(const char *kv) {
    const char *rest = kv;
    size_t n = 0;
    for (; *rest; n++) {
        size_t len = strcspn(rest, ",");
        char *name = xasprintf("%.*s", (int)len, rest);
        lk_recipe *recipe = NULL;
        bool good = !lk_recipe_parse(&recipe, name, NULL);
        lk_recipe_free(recipe);
        free(name);
        if (!good) return false;
        rest += len + (rest[len] == ',');
    }
    return n > 1;
}

/* *is_file: kv is the name of a file that contains the recipe. */
static int open_recipe(const char *kv, lk_recipe **out, bool *is_file) {
    enum { MAX_FILE_BYTES = 16 * 1024 };
    lk_err err;
    struct stat info;
    struct lk_buf text;
    *is_file = false;
    if (!check_utf8_text(kv, strlen(kv), "recipe")) return STATUS_ERROR;
    if (!lk_recipe_parse(out, kv, &err)) return STATUS_OK;
    if (strpbrk(kv, ":=;") || stat(kv, &info)) {
        if (strchr(kv, '/') && !strpbrk(kv, ":=;"))
            return print_error("recipe: '%s' is neither a recipe nor a file", kv);
        if (is_list(kv))
            return print_error("'%s' names several recipes: give --kv once for each", kv);
        bool is_name = strpbrk(kv, ":=; \n") == NULL, guessed = strchr(err.msg, '?');
        return print_error("%s%s%s", err.msg,
                           is_name && !guessed ? ", and there is no file of this name" : "",
                           is_name ? "; see 'lowkey recipes'" : "");
    }
    int read = read_text_file(kv, "recipe", MAX_FILE_BYTES, &text);
    if (read) return read;
    lk_status status = lk_recipe_parse(out, text.at, &err);
    lk_buf_free(&text);
    *is_file = true;
    return status ? print_error("%s: %s", kv, err.msg) : STATUS_OK;
}

int recipe_open(const char *kv, lk_recipe **out) {
    bool is_file;
    return open_recipe(kv, out, &is_file);
}

int auto_size(const char *kv) {
    static const struct {
        const char *name;
        int size;
    } known[] = {{"auto", 4}, {"auto-4", 4}, {"auto-3", 3}, {"auto-2", 2}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcasecmp(kv, known[i].name) == 0) return known[i].size;
    return 0;
}

const char *recipe_label(const lk_recipe *recipe, char buf[RECIPE_LABEL]) {
    const char *text = lk_recipe_text(recipe);
    bool fits = strlen(text) < RECIPE_LABEL;
    snprintf(buf, RECIPE_LABEL, "%.*s%s", RECIPE_LABEL - 4, text, fits ? "" : "...");
    return fits ? text : buf;
}

int recipes_open(const struct string_list *kv, const char *fallback, struct recipes *out) {
    *out = (struct recipes){0};
    for (size_t i = 0; i < (kv->n ? kv->n : 1); i++) {
        const char *given = kv->n ? kv->item[i] : fallback;
        bool is_file, is_auto = auto_size(given) != 0;
        int status = is_auto ? STATUS_OK : open_recipe(given, &out->item[i], &is_file);
        if (!status) out->name[i] = is_auto || is_file ? given : lk_recipe_text(out->item[i]);
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

int open_single_recipe(const struct command *command, const struct string_list *kv,
                       lk_recipe **out) {
    if (kv->n > 1)
        return print_error(
            "'%s' takes one --kv; 'lowkey plan' and 'lowkey perplexity' compare several",
            command->name);
    return kv->n && !auto_size(kv->item[0]) ? recipe_open(kv->item[0], out) : STATUS_OK;
}

/* ---- session ---- */

struct opt memory_option(struct auto_args *args) {
    return (struct opt){
        0,       "memory",      "MIB", "--kv auto: the recipe whose cache has MIB at -c tokens",
        OPT_INT, &args->memory, 1,     1 << 24};
}

struct opt tune_option(struct auto_args *args) {
    return (struct opt){
        0,        "tune",
        NULL,     "--kv auto: if no recipe was tuned for the model, do that before the start",
        OPT_FLAG, &args->tune};
}

struct opt_group session_options(struct session_args *args) {
    return (struct opt_group){
        "Cache",
        {
            {'k', "kv", "RECIPE", KV_HELP, OPT_TEXTS, &args->kv, .complete = KV_WORDS},
            memory_option(&args->auto_kv),
            tune_option(&args->auto_kv),
            {'c', "ctx", "N",
             "maximum number of tokens in the session (default, and 0: as trained)", OPT_INT,
             &args->ctx, 0, 1 << 24},
            {0, "max-memory", "MIB", "limit for cache and scratch memory (default: free memory)",
             OPT_INT, &args->max_memory, 1, 1 << 24},
            {0, "stream", NULL,
             "prefill through the compressed cache: less memory for long prompts, less exact",
             OPT_FLAG, &args->stream},
        },
    };
}

uint64_t session_limit(const struct session_args *args) {
    /* Without a limit, the out-of-memory killer would end a prompt that is too long. */
    return args->max_memory ? (uint64_t)args->max_memory << 20 : available_bytes("");
}

void warn_beyond_training(const lk_model *model, int64_t n_ctx) {
    char asked[NUMBER_BUF], trained[NUMBER_BUF];
    int64_t n_ctx_train = lk_model_get_info(model).n_ctx_train;
    if (n_ctx_train > 0 && n_ctx > n_ctx_train)
        print_error("warning: %s tokens of context, but the model was trained for %s; answers get "
                    "worse beyond that",
                    format_count(asked, (uint64_t)n_ctx),
                    format_count(trained, (uint64_t)n_ctx_train));
}

int session_open(const struct session_args *args, lk_model *model, const lk_recipe *recipe,
                 lk_progress progress, void *user, lk_session **out) {
    lk_err err = {0};
    lk_session_opts opts = {
        .n_ctx = (int32_t)args->ctx,
        .chunked_prefill = args->stream,
        .max_bytes = session_limit(args),
        .n_checkpoint = args->n_checkpoint,
        .progress = progress,
        .user = user,
    };
    return lk_session_new(out, model, recipe, &opts, &err) ? print_lk_error(&err) : STATUS_OK;
}

/* ---- sampling ---- */

struct sampler_args sampler_args_default(void) {
    return (struct sampler_args){.temperature = NAN,
                                 .top_p = NAN,
                                 .min_p = NAN,
                                 .repeat_penalty = NAN,
                                 .top_k = -1,
                                 .repeat_last_n = -1};
}

void sampler_args_complete(struct sampler_args *args, const lk_model *model) {
    lk_sampler_opts d = lk_model_sampling(model);
    if (isnan(args->temperature)) args->temperature = (double)d.temperature;
    if (isnan(args->top_p)) args->top_p = (double)d.top_p;
    if (isnan(args->min_p)) args->min_p = (double)d.min_p;
    if (isnan(args->repeat_penalty)) args->repeat_penalty = (double)d.repeat_penalty;
    if (args->top_k < 0) args->top_k = d.top_k;
    if (args->repeat_last_n < 0) args->repeat_last_n = d.repeat_last_n;
}

struct opt_group sampler_options(struct sampler_args *args) {
    return (struct opt_group){
        "Sampling",
        {
            {0, "temp", "T",
             "temperature (default: the model file's, else 0.8); 0: always the most probable token",
             OPT_REAL, &args->temperature, 0, 100},
            {0, "greedy", NULL, "same as --temp 0", OPT_FLAG, &args->greedy},
            {0, "seed", "N", "random seed (default 0)", OPT_INT, &args->seed, 0, 4294967295.0},
            {0, "top-k", "N",
             "keep the N most probable tokens (default: the model file's, else 40); 0: off",
             OPT_INT, &args->top_k, 0, 10000000},
            {0, "top-p", "P",
             "keep the most probable tokens up to a total probability of P (default: the model "
             "file's, else 0.95); 1: off",
             OPT_REAL, &args->top_p, 0, 1},
            {0, "min-p", "P",
             "keep tokens at least P times as probable as the best one (default: the model file's, "
             "else 0.05); 0: off",
             OPT_REAL, &args->min_p, 0, 1},
            {0, "repeat-penalty", "X",
             "divide the logits of repeated tokens by X (default: the model file's, else 1: off)",
             OPT_REAL, &args->repeat_penalty, 0.01, 100},
            {0, "repeat-last-n", "N",
             "how many of the last tokens count as repeated (default: the model file's, else 64)",
             OPT_INT, &args->repeat_last_n, 0, 1 << 20},
            {0, "grammar-file", "FILE", "GBNF grammar that the answer must follow", OPT_TEXT,
             &args->grammar_file, .complete = "*.gbnf"},
            {0, "ignore-eos", NULL, "never choose a token that ends the answer", OPT_FLAG,
             &args->ignore_eos},
        },
    };
}

int sampler_open(const struct sampler_args *args, const lk_model *model, lk_sampler **out) {
    enum { MAX_GRAMMAR_BYTES = 1024 * 1024 };
    struct lk_buf grammar = {0};
    lk_err err = {0};
    /* 0 has a meaning of its own in the library: for top-p it is "off". */
    bool only_best = args->greedy || args->top_p == 0;
    lk_sampler_opts opts = {
        .temperature = only_best ? 0.0F : (float)args->temperature,
        .top_k = (int32_t)args->top_k,
        .top_p = (float)args->top_p,
        .min_p = (float)args->min_p,
        .repeat_penalty = (float)args->repeat_penalty,
        .repeat_last_n = args->repeat_last_n ? (int32_t)args->repeat_last_n : -1,
        .seed = (uint32_t)args->seed,
        .ignore_eos = args->ignore_eos,
    };
    if (args->grammar_file) {
        int read = read_text_file(args->grammar_file, "grammar", MAX_GRAMMAR_BYTES, &grammar);
        if (read) return read;
        if (!grammar.len) {
            lk_buf_free(&grammar);
            return print_error("the grammar %s is empty", args->grammar_file);
        }
        opts.grammar = grammar.at;
    }
    lk_status status = lk_sampler_new(out, model, &opts, &err);
    lk_buf_free(&grammar);
    if (status == LK_E_FORMAT && args->grammar_file)
        return print_error("%s: %s", args->grammar_file, err.msg);
    return status ? print_lk_error(&err) : STATUS_OK;
}

int check_writable(const char *path) {
    struct lk_atomic_file file;
    lk_err err = {0};
    if (lk_atomic_file_open_public(&file, path, &err)) return print_lk_error(&err);
    lk_atomic_file_close(&file, LK_E_CANCELLED, NULL);
    return STATUS_OK;
}

/* ---- memory ---- */

/* The plan of a session with n_tok tokens. False if there is none for this recipe. */
static bool plan_session(const struct session_args *args, const lk_model *model,
                         const lk_recipe *recipe, size_t n_tok, lk_plan *plan) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .chunked_prefill = args->stream};
    return n_tok && n_tok <= INT32_MAX && !lk_plan_make(model, recipe, &opts, plan, NULL);
}

/* Cache and scratch together, at their peak. */
static uint64_t session_bytes(const lk_plan *plan) { return plan->peak_bytes - plan->weight_bytes; }

/* The most exact of the best presets whose session fits, if the given recipe is larger; or NULL. */
static const char *smaller_preset(const struct session_args *args, const lk_model *model,
                                  size_t n_tok, uint64_t need, uint64_t limit) {
    static const char *const preset[] = {"best-4", "best-3", "best-2"};
    for (size_t i = 0; i < sizeof preset / sizeof preset[0]; i++) {
        lk_recipe *recipe = NULL;
        lk_plan plan;
        if (lk_recipe_parse(&recipe, preset[i], NULL)) continue;
        bool planned = plan_session(args, model, recipe, n_tok, &plan);
        lk_recipe_free(recipe);
        if (planned && session_bytes(&plan) < need && session_bytes(&plan) <= limit)
            return preset[i];
    }
    return NULL;
}

/* The largest number of tokens below n_tok whose session fits; 0 if none does. */
static size_t fitting_tokens(const struct session_args *args, const lk_model *model,
                             const lk_recipe *recipe, size_t n_tok, uint64_t limit) {
    size_t low = 0, high = n_tok; /* low fits, high does not */
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        lk_plan plan;
        bool fits =
            plan_session(args, model, recipe, middle, &plan) && session_bytes(&plan) <= limit;
        if (fits)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int print_need(const struct session_args *args, const lk_model *model,
                      const lk_recipe *recipe, size_t n_tok, const lk_plan *plan, uint64_t limit) {
    char tokens[NUMBER_BUF], need[NUMBER_BUF], have[NUMBER_BUF], fit[NUMBER_BUF], way[2][80] = {""};
    uint64_t bytes = session_bytes(plan);
    const char *preset = smaller_preset(args, model, n_tok, bytes, limit);
    size_t n_fit = preset ? 0 : fitting_tokens(args, model, recipe, n_tok, limit);
    if (preset)
        snprintf(way[0], sizeof way[0], "use --kv %s", preset);
    else if (n_fit)
        snprintf(way[0], sizeof way[0], "%s tokens fit", format_count(fit, n_fit));
    if (args->max_memory)
        snprintf(way[1], sizeof way[1], "%suse --max-memory %llu", *way[0] ? ", or " : "",
                 (unsigned long long)(bytes >> 20) + 1);
    return print_error("%s tokens with %.60s need %s of cache and scratch, but %s%s%s%s%s",
                       format_count(tokens, n_tok), lk_recipe_text(recipe),
                       format_bytes(need, bytes),
                       args->max_memory ? "--max-memory allows " : "the free memory is ",
                       format_bytes(have, limit), *way[0] || *way[1] ? "; " : "", way[0], way[1]);
}

int print_memory_error(const struct session_args *args, const lk_model *model,
                       const lk_recipe *recipe, size_t n_tok, const lk_err *err) {
    lk_plan plan;
    uint64_t limit = session_limit(args);
    bool explained = err->code == LK_E_NOMEM && plan_session(args, model, recipe, n_tok, &plan) &&
                     session_bytes(&plan) > limit;
    return explained ? print_need(args, model, recipe, n_tok, &plan, limit) : print_lk_error(err);
}

int check_memory(const struct session_args *args, const lk_model *model, const lk_recipe *recipe,
                 size_t n_tok) {
    lk_plan plan;
    uint64_t limit = session_limit(args);
    if (!limit || !plan_session(args, model, recipe, n_tok, &plan) ||
        plan.cache_bytes - plan.device_cache_bytes <= limit)
        return STATUS_OK;
    return print_need(args, model, recipe, n_tok, &plan, limit);
}
