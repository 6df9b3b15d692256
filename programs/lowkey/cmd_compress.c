/* lowkey compress: a sidecar with bases of low rank. */
#define _DEFAULT_SOURCE /* getrusage */
#include "commands.h"
#include "common.h"
#include "lowrank/compress.h"
#include "lowrank/export.h"
#include "model_find.h"
#include "new_file.h"
#include "progress.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct compress_args {
    struct model_args model;
    const char *method, *text, *out, *group, *rank, *search, *svd, *export;
    int64_t ctx, tokens, quantum, skip, seed;
    int64_t fisher_tokens, fisher_ctx;
    bool mean, truncate, keep, json, palu_code;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct compress_args *a) {
    const struct opt_group groups[] = {
        {"What to make",
         {
             {0, "method", "NAME", "palu, tale or kvheads", OPT_TEXT, &a->method, 0, 0},
             {0, "text", "FILE",
              "text to calibrate on ('-': standard input; 'self': what the model says)", OPT_TEXT,
              &a->text, 0, 0},
             {'o', "output", "FILE", "the sidecar", OPT_TEXT, &a->out, 0, 0},
             {0, "rank", "SHARE",
              "components kept of a group's channels (default 50%; kvheads 1/N)", OPT_TEXT,
              &a->rank, 0, 0},
             {0, "rank-search", "NAME", "uniform (default), energy, fisher or fisher-uniform",
              OPT_TEXT, &a->search, 0, 0},
             {0, "group", "N", "KV heads that share components, or 'all' (default: up to 4)",
              OPT_TEXT, &a->group, 0, 0},
             {0, "svd", "NAME", "whitened (default), output, plain (weights only) or mean-pool",
              OPT_TEXT, &a->svd, 0, 0},
             {0, "quantum", "N", "ranks are multiples of this (default 8)", OPT_INT, &a->quantum, 1,
              1024},
             {0, "mean", NULL, "take the rows' mean out first", OPT_FLAG, &a->mean, 0, 0},
             {0, "truncate", NULL, "leave components out that the ranks do not need", OPT_FLAG,
              &a->truncate, 0, 0},
             {0, "export", "FILE",
              "a GGUF model with merged KV heads (kvheads, models without RoPE)", OPT_TEXT,
              &a->export, 0, 0},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json, 0, 0},
         }},
        {"How the text is read",
         {
             {0, "tokens", "N", "at most so many (default 64k; of 'self' 16k)", OPT_INT, &a->tokens,
              1, 1 << 30},
             {'c', "ctx", "N",
              "tokens of a context: as many as will be (default: 2048 or as trained)", OPT_INT,
              &a->ctx, 2, 1 << 24},
             {0, "skip", "N", "rows left out at the begin of each (default: tale 4, others 0)",
              OPT_INT, &a->skip, 0, 1 << 20},
             {0, "fisher-tokens", "N",
              "that gradients are taken of for --rank-search fisher (default 8k)", OPT_INT,
              &a->fisher_tokens, 2, 1 << 30},
             {0, "fisher-ctx", "N", "in windows of so many (default 512)", OPT_INT, &a->fisher_ctx,
              2, 1 << 16},
             {0, "palu-code", NULL,
              "Fisher information as Palu's code takes it, not as its paper says", OPT_FLAG,
              &a->palu_code, 0, 0},
             {0, "seed", "N", "of the text 'self' (default 0)", OPT_INT, &a->seed, 0, UINT32_MAX},
             {0, "keep", NULL,
              "keep the statistics (OUTPUT.stats), for other bases of the same groups", OPT_FLAG,
              &a->keep, 0, 0},
         }},
        model_options(&a->model),
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

/* ---- options ---- */

/* The place of `text` in names, or the first where it is NULL; -1 after a message. */
static int find_name(const char *option, const char *text, const char *const *names, int n) {
    if (!text) return 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(text, names[i]) == 0) return i;
    }
    char list[100] = "";
    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
                 i ? i == n - 1 ? " or " : ", " : "", names[i]);
    complain("--%s: '%s' is not %s", option, text, list);
    return -1;
}

/* "50%" or "0.5". */
static int read_share(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);
    if (end != text && strcmp(end, "%") == 0)
        value /= 100;
    else if (end == text || *end)
        value = -1;
    if (!(value > 0 && value <= 1))
        return complain("--rank: '%s' is not a share such as 50%% (more than 0%%, at most 100%%)",
                        text);
    *out = value;
    return STATUS_OK;
}

static int read_opts(const struct compress_args *a, struct lk_compress_opts *out) {
    if (!a->method) return complain("no method: give --method palu, tale or kvheads");
    if (!a->out) return complain("no output: give -o FILE");
    int method = find_name("method", a->method, lk_method_name, LK_N_METHOD);
    int svd = method < 0 ? -1 : find_name("svd", a->svd, lk_svd_name, LK_N_SVD);
    int search =
        svd < 0 ? -1 : find_name("rank-search", a->search, lk_rank_search_name, LK_N_RANK_SEARCH);
    if (search < 0) return STATUS_BAD;
    if (!a->text && svd != LK_SVD_PLAIN)
        return complain("no text: give --text FILE, or --text self");
    *out = (struct lk_compress_opts){.method = method,
                                     .svd = svd,
                                     .search = search,
                                     .quantum = (int32_t)a->quantum,
                                     .n_ctx = (int32_t)a->ctx,
                                     .skip = (int32_t)a->skip,
                                     .mean = a->mean,
                                     .truncate = a->truncate,
                                     .as_code = a->palu_code,
                                     .export = a->export != NULL,
                                     .fisher_tokens = (int32_t)a->fisher_tokens,
                                     .fisher_ctx = (int32_t)a->fisher_ctx};
    if (a->group && strcmp(a->group, "all") == 0)
        out->group = -1;
    else if (a->group) {
        char *end;
        long n = strtol(a->group, &end, 10);
        if (end == a->group || *end || n < 1 || n > 1 << 16)
            return complain("--group: '%s' is neither a number of heads nor 'all'", a->group);
        out->group = (int32_t)n;
    }
    return a->rank ? read_share(a->rank, &out->rank) : STATUS_OK;
}

/* ---- the text ---- */

struct tokens {
    int32_t *at;
    size_t n;
};

/* How many tokens the model makes where the text is its own. */
static size_t own_tokens(const struct compress_args *a) {
    return a->tokens ? (size_t)a->tokens : 16 * 1024;
}

static int read_file(const struct compress_args *a, const lk_model *model, struct tokens *out) {
    struct text text = {0};
    lk_err err = {0};
    int32_t *tok = NULL;
    if (!read_text(a->text, "text", PROMPT_BYTES_MOST, &text))
        return interrupted() ? STATUS_INTERRUPTED : STATUS_BAD;
    if (!text.len) {
        free(text.at);
        return complain("the text %s is empty", a->text);
    }
    lk_status status = lk_tokenize(model, text.at, text.len, false, &tok, &out->n, &err);
    free(text.at);
    if (status) return complain_of(&err);
    size_t most = a->tokens ? (size_t)a->tokens : 64 * 1024;
    if (out->n > most) out->n = most;
    out->at = must_alloc(out->n * sizeof *tok);
    memcpy(out->at, tok, out->n * sizeof *tok);
    lk_tokens_free(tok);
    return STATUS_OK;
}

/* One context of sampled tokens behind the model's begin token, which is the first of them. */
static lk_status sample_window(lk_session *session, lk_sampler *sampler, int32_t *tok, size_t n,
                               struct progress *progress, size_t done, size_t total, lk_err *err) {
    lk_status status = lk_session_sync(session, tok, 1, NULL, err);
    for (size_t i = 1; status == LK_OK && i < n; i++) {
        status = lk_sampler_next(sampler, session, &tok[i], err);
        if (status == LK_OK && i + 1 < n) status = lk_session_eval(session, &tok[i], 1, false, err);
        if (status == LK_OK && !progress_step(progress, done + i, total)) {
            *err = (lk_err){.code = LK_E_CANCELLED};
            status = LK_E_CANCELLED;
        }
    }
    return status;
}

/* Whatever would be refused later, before a text is made or read. */
static int check_opts(const struct compress_args *a, const struct lk_compress_opts *opts,
                      lk_model *model) {
    lk_err err = {0};
    size_t n_tok = !a->text ? 0 : strcmp(a->text, "self") == 0 ? own_tokens(a) : SIZE_MAX;
    return lk_compress_check(model, opts, n_tok, &err) ? complain_of(&err) : STATUS_OK;
}

/* Text that the model makes at temperature 1 without any cut: its own distribution. */
static int sample_text(const struct compress_args *a, lk_model *model, struct tokens *out) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    lk_sampler *sampler = NULL;
    int32_t *begin = NULL;
    size_t n_begin = 0, trained = (size_t)lk_model_get_info(model).n_ctx_train;
    size_t n_ctx = a->ctx ? (size_t)a->ctx : trained < 2048 ? trained : 2048;
    lk_session_opts opts = {.n_ctx = (int32_t)n_ctx};
    lk_sampler_opts free_run = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = (uint32_t)a->seed};
    struct progress progress = progress_begin("making a text");
    lk_status status = lk_tokenize(model, "", 0, true, &begin, &n_begin, &err);
    if (!status) status = lk_recipe_parse(&recipe, "f16", &err);
    if (!status) status = lk_session_new(&session, model, recipe, &opts, &err);
    if (!status) status = lk_sampler_new(&sampler, model, &free_run, &err);
    out->n = own_tokens(a);
    out->at = must_alloc(out->n * sizeof *out->at);
    for (size_t at = 0; !status && at < out->n; at += n_ctx) {
        size_t n = out->n - at < n_ctx ? out->n - at : n_ctx;
        out->at[at] = n_begin ? begin[0] : 0;
        status = sample_window(session, sampler, out->at + at, n, &progress, at, out->n, &err);
    }
    progress_end(&progress);
    lk_tokens_free(begin);
    lk_sampler_free(sampler);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return status ? complain_of(&err) : STATUS_OK;
}

/* ---- the work ---- */

static void print_result(const struct compress_args *a, const struct lk_compress *c,
                         const lk_model *model, const struct tokens *tokens, double seconds) {
    static const char *const name[LK_N_BASIS] = {"K", "K before RoPE", "V"};
    struct rusage use;
    char b[NUMBER_ROOM], d[NUMBER_ROOM];
    struct table table = table_new("lrrrrrr");
    int n_layer = lk_model_get_info(model).n_layer;
    const char *title[] = {"rows", "groups", "channels", "ranks", "mean", "lost", "most lost"};
    for (size_t i = 0; i < sizeof title / sizeof title[0]; i++) table_cell(&table, "%s", title[i]);
    for (int side = 0; side < LK_N_BASIS; side++) {
        int32_t least = INT32_MAX, most = 0;
        int64_t sum = 0;
        double lost = 0, worst = 0;
        const struct lk_basis *basis = lk_compress_basis(c, 0, side);
        if (basis->n_group == 0) continue;
        for (int layer = 0; layer < n_layer; layer++) {
            const struct lk_basis *here = lk_compress_basis(c, layer, side);
            double e = lk_compress_error(c, layer, side);
            for (int g = 0; g < here->n_group; g++) {
                least = here->rank[g] < least ? here->rank[g] : least;
                most = here->rank[g] > most ? here->rank[g] : most;
                sum += here->rank[g];
            }
            lost += e / n_layer;
            worst = e > worst ? e : worst;
        }
        table_cell(&table, "%s", name[side]);
        table_cell(&table, "%d", basis->n_group);
        table_cell(&table, "%d", basis->width);
        table_cell(&table, least == most ? "%d" : "%d-%d", least, most);
        table_cell(&table, "%.1f", (double)sum / n_layer / basis->n_group);
        table_cell(&table, "%.2f%%", 100 * lost);
        table_cell(&table, "%.2f%%", 100 * worst);
    }
    table_print(&table, stdout, 1);
    getrusage(RUSAGE_SELF, &use);
    printf("\nlost: share of the rows' power, mean over layers and in the worst one\n%s: %s "
           "tokens, %.1f s, at most %s of memory\n",
           a->out, say_count(b, tokens->n), seconds, say_bytes(d, (uint64_t)use.ru_maxrss * 1024));
}

static int print_json(const struct compress_args *a, const struct lk_compress *c,
                      const lk_model *model, const struct tokens *tokens, double seconds) {
    struct rusage use;
    char *name = model_name(model);
    json_t *layers = json_array();
    for (int layer = 0; layer < lk_model_get_info(model).n_layer; layer++) {
        json_t *sides = json_object();
        for (int side = 0; side < LK_N_BASIS; side++) {
            const struct lk_basis *basis = lk_compress_basis(c, layer, side);
            json_t *rank = json_array();
            for (int g = 0; g < basis->n_group; g++)
                json_array_append_new(rank, json_integer(basis->rank[g]));
            if (basis->n_group == 0)
                json_decref(rank);
            else
                json_object_set_new(sides, lk_basis_side_name(side),
                                    json_pack("{s:i s:o s:o}", "channels", basis->width, "rank",
                                              rank, "lost",
                                              json_number(lk_compress_error(c, layer, side))));
        }
        json_array_append_new(layers, sides);
    }
    getrusage(RUSAGE_SELF, &use);
    int done = json_print(json_pack("{s:s s:s s:s s:I s:o s:I s:o}", "model", name, "method",
                                    a->method, "output", a->out, "n_tok", (json_int_t)tokens->n,
                                    "seconds", json_number(seconds), "peak_bytes",
                                    (json_int_t)use.ru_maxrss * 1024, "layers", layers),
                          false);
    free(name);
    return done;
}

/* The model with fewer heads, under its name when it is whole. */
static int export_model(const struct compress_args *a, const struct lk_compress *c) {
    lk_err err = {0};
    char *path = NULL;
    struct new_file file;
    int status = model_find(a->model.model, false, &path);
    if (!status) status = new_file_open(&file, a->export);
    if (!status)
        status = new_file_close(
            &file, lk_export_kv_heads(c, path, file.file, &err) ? complain_of(&err) : STATUS_OK);
    free(path);
    return status;
}

static int compress(const struct compress_args *a, struct lk_compress_opts *opts, lk_model *model,
                    const struct tokens *tokens) {
    lk_err err = {0};
    struct lk_compress *c = NULL;
    struct new_file file = {0};
    char *stats = must_print("%s.stats", a->out);
    struct progress progress = progress_begin("compressing");
    double began = seconds_now();
    opts->progress = progress_step;
    opts->user = &progress;
    lk_status status = lk_compress_new(&c, model, opts, tokens->at, tokens->n, &err);
    if (!status) status = lk_compress_read(c, tokens->at, tokens->n, stats, &err);
    if (!status) status = lk_compress_fit(c, &err);
    progress_end(&progress);
    int result = status ? complain_of(&err) : new_file_open(&file, a->out);
    if (!result) {
        result = lk_compress_write(c, file.file, &err) ? complain_of(&err) : STATUS_OK;
        result = new_file_close(&file, result);
    }
    if (!result && a->export) result = export_model(a, c);
    if (!result && !a->keep) unlink(stats);
    if (!result && a->json)
        result = print_json(a, c, model, tokens, seconds_now() - began);
    else if (!result)
        print_result(a, c, model, tokens, seconds_now() - began);
    lk_compress_free(c);
    free(stats);
    return result;
}

int compress_verb(const struct verb *verb, int argc, char **argv) {
    struct compress_args a = {.skip = -1};
    struct lk_compress_opts opts = {0};
    struct tokens tokens = {0};
    lk_model *model = NULL;
    enum args_result read = read_args(verb, argc, argv, &a);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    int status = read_opts(&a, &opts);
    a.model.no_repack = opts.svd == LK_SVD_PLAIN || opts.svd == LK_SVD_OUTPUT ||
                        a.export; /* the weights themselves are looked at */
    if (opts.search >= LK_RANK_FISHER) a.model.weights = "f32"; /* what gradients are taken of */
    if (!status) status = new_file_try(a.out);
    if (!status && a.export) status = new_file_try(a.export);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = check_opts(&a, &opts, model);
    if (!status && a.text)
        status = strcmp(a.text, "self") == 0 ? sample_text(&a, model, &tokens)
                                             : read_file(&a, model, &tokens);
    if (!status) status = compress(&a, &opts, model, &tokens);
    free(tokens.at);
    lk_model_free(model);
    return status;
}
