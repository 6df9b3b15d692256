/* lowkey compress: low-rank bases of K and V as a sidecar. */
#include "base/clock.h"
#include "base/os.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct compress_args {
    struct model_args model;
    const char *method, *text, *out, *group, *rank, *search, *svd, *type;
    int64_t ctx, tokens, quantum, skip, seed;
    int64_t fisher_tokens, fisher_ctx;
    bool mean, truncate, equalize, keep, json;
};

static int read_args(const struct command *command, int argc, char **argv,
                     struct compress_args *a) {
    const struct opt_group groups[] = {
        {"What to compute",
         {
             {0, "method", "NAME", "palu, tale, kvheads or oscar", OPT_TEXT, &a->method,
              .complete = "palu tale kvheads oscar"},
             {0, "text", "FILE",
              "calibration text; -: standard input; self: a text that the model generates",
              OPT_TEXT, &a->text},
             {'o', "output", "FILE", "the sidecar", OPT_TEXT, &a->out},
             {0, "rank", "SHARE",
              "share of a group's channels to keep (default 50%; kvheads 1/N, oscar 100%)",
              OPT_TEXT, &a->rank},
             {0, "rank-search", "NAME",
              "how ranks are distributed: uniform, energy or fisher (default: fisher with palu and "
              "--rank, if ggml can differentiate the model; else uniform)",
              OPT_TEXT, &a->search, .complete = "uniform energy fisher"},
             {0, "group", "N",
              "KV heads that share components, or 'all' (default: up to 4; oscar 1)", OPT_TEXT,
              &a->group},
             {0, "svd", "NAME", "whitened (default), output, plain (weights only) or mean-pool",
              OPT_TEXT, &a->svd, .complete = "whitened output plain mean-pool"},
             {0, "quantum", "N", "ranks are multiples of N (default 8)", OPT_INT, &a->quantum, 1,
              1024},
             {0, "mean", NULL, "subtract the mean of the rows first", OPT_FLAG, &a->mean},
             {0, "equalize", NULL,
              "scale K's components by statistics of the text, for recipes with nosigma", OPT_FLAG,
              &a->equalize},
             {0, "truncate", NULL, "store only the components that the ranks need", OPT_FLAG,
              &a->truncate},
             {0, "type", "NAME", "numbers of the bases: q8 (default), f16 or f32", OPT_TEXT,
              &a->type, .complete = "q8 f16 f32"},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        {"Calibration",
         {
             {0, "tokens", "N", "maximum number of tokens of the text (default 64k; self 16k)",
              OPT_INT, &a->tokens, 1, 1 << 30},
             {'c', "ctx", "N",
              "tokens of a window (default: 2048, or as trained); best is the length in use",
              OPT_INT, &a->ctx, 2, 1 << 24},
             {0, "skip", "N",
              "rows to ignore at the start of each window (default: tale 4, others 0)", OPT_INT,
              &a->skip, 0, 1 << 20},
             {0, "fisher-tokens", "N",
              "tokens to differentiate for --rank-search fisher (default 8k)", OPT_INT,
              &a->fisher_tokens, 2, 1 << 30},
             {0, "fisher-ctx", "N", "tokens of a window of those (default 512)", OPT_INT,
              &a->fisher_ctx, 2, 1 << 16},
             {0, "seed", "N", "random seed of --text self (default 0)", OPT_INT, &a->seed, 0,
              UINT32_MAX},
             {0, "keep", NULL, "keep OUTPUT.stats for other bases of the same groups", OPT_FLAG,
              &a->keep},
         }},
        model_options(&a->model, MODEL_CALIBRATED),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* ---- options ---- */

/* The value of `text`; 0 if it is NULL; -1 after a message. */
static int find_name(const char *option, const char *text, lk_compress_choice choice) {
    if (!text) return 0;
    char list[100] = "";
    const char *name, *next;
    for (size_t i = 0; lk_compress_name(choice, i, &name); i++) {
        if (strcmp(text, name) == 0) return (int)i;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
                 i ? lk_compress_name(choice, i + 1, &next) ? ", " : " or " : "", name);
    }
    print_error("--%s: '%s' is not %s", option, text, list);
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
        return print_error(
            "--rank: '%s' is not a share such as 50%% (more than 0%%, at most 100%%)", text);
    *out = value;
    return STATUS_OK;
}

static const char *ranks_name(const lk_compress_opts *opts) {
    const char *name;
    return lk_compress_name(LK_COMPRESS_RANKS, opts->ranks, &name) ? name : "";
}

/* Whether ranks follow Fisher information without being asked to, as in Palu (section 3.3): if
 * there is a sum of ranks to distribute. The search takes much more memory and time than the bases
 * do (docs/latents.md), and recipes that name a rank do not read its result. */
static bool searches_by_default(const struct compress_args *a, const lk_compress_opts *opts) {
    return !a->search && (a->rank || a->fisher_tokens || a->fisher_ctx) &&
           opts->method == LK_METHOD_PALU && a->text &&
           (opts->svd == LK_SVD_WHITENED || opts->svd == LK_SVD_OUTPUT);
}

static int read_opts(const struct compress_args *a, lk_compress_opts *out) {
    if (!a->method) return print_error("no method: give --method palu, tale, kvheads or oscar");
    if (!a->out) return print_error("no output: give -o FILE");
    int method = find_name("method", a->method, LK_COMPRESS_METHOD);
    int svd = method < 0 ? -1 : find_name("svd", a->svd, LK_COMPRESS_SVD);
    int ranks = svd < 0 ? -1 : find_name("rank-search", a->search, LK_COMPRESS_RANKS);
    int numbers = ranks < 0 ? -1 : find_name("type", a->type, LK_COMPRESS_NUMBERS);
    if (numbers < 0) return STATUS_ERROR;
    if (!a->text && svd != LK_SVD_PLAIN)
        return print_error("no text: give --text FILE, or --text self");
    *out = (lk_compress_opts){.method = method,
                              .svd = svd,
                              .ranks = ranks,
                              .numbers = numbers,
                              .equalize = a->equalize,
                              .quantum = (int32_t)a->quantum,
                              .n_ctx = (int32_t)a->ctx,
                              .n_skip = a->skip > 0    ? (int32_t)a->skip
                                        : a->skip == 0 ? -1
                                                       : 0,
                              .mean = a->mean,
                              .truncate = a->truncate,
                              .fisher_tokens = (int32_t)a->fisher_tokens,
                              .fisher_ctx = (int32_t)a->fisher_ctx};
    if (searches_by_default(a, out)) out->ranks = LK_RANK_FISHER;
    if (a->group && strcmp(a->group, "all") == 0)
        out->group = -1;
    else if (a->group) {
        char *end;
        long n = strtol(a->group, &end, 10);
        if (end == a->group || *end || n < 1 || n > 1 << 16)
            return print_error("--group: '%s' is neither a number of heads nor 'all'", a->group);
        out->group = (int32_t)n;
    }
    return a->rank ? read_share(a->rank, &out->rank) : STATUS_OK;
}

/* ---- the text ---- */

/* Number of tokens to sample for --text self. */
static size_t sampled_tokens(const struct compress_args *a) {
    return a->tokens ? (size_t)a->tokens : 16 * 1024;
}

static int tokenize_file(const struct compress_args *a, const lk_model *model, struct tokens *out) {
    struct lk_buf text = {0};
    lk_err err = {0};
    int32_t *tok = NULL;
    int read = read_text(a->text, &text);
    if (read) return read;
    lk_status status = lk_tokenize(model, text.at, text.len, 0, 0, &tok, &out->n, &err);
    free(text.at);
    if (status) return print_lk_error(&err);
    size_t max = a->tokens ? (size_t)a->tokens : 64 * 1024;
    if (out->n > max) out->n = max;
    out->at = xmalloc(out->n * sizeof *tok);
    memcpy(out->at, tok, out->n * sizeof *tok);
    lk_tokens_free(tok);
    return STATUS_OK;
}

/* Sample n - 1 tokens after tok[0]. */
static lk_status sample_window(lk_session *session, lk_sampler *sampler, int32_t *tok, size_t n,
                               struct progress *progress, size_t done, size_t total, lk_err *err) {
    lk_status status = lk_session_sync(session, tok, 1, NULL, err);
    for (size_t i = 1; !status && i < n; i++) {
        status = lk_sampler_next(sampler, session, -1, &tok[i], err);
        if (!status && i + 1 < n) status = lk_session_eval(session, &tok[i], 1, false, err);
        if (!status && !progress_step(progress, done + i, total)) {
            *err = (lk_err){.code = LK_E_CANCELLED};
            status = LK_E_CANCELLED;
        }
    }
    return status;
}

/* Check the options before a text is sampled or read. */
static int check_opts(const struct compress_args *a, const lk_compress_opts *opts,
                      lk_model *model) {
    lk_err err = {0};
    size_t n_tok = !a->text ? 0 : strcmp(a->text, "self") == 0 ? sampled_tokens(a) : SIZE_MAX;
    return lk_compress_check(model, opts, n_tok, &err) ? print_lk_error(&err) : STATUS_OK;
}

/* Sample a text at temperature 1, untruncated: the model's own distribution. */
static int sample_text(const struct compress_args *a, lk_model *model, struct tokens *out) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    lk_sampler *sampler = NULL;
    int32_t *bos = NULL;
    size_t n_bos = 0, trained = (size_t)lk_model_get_info(model).n_ctx_train;
    size_t n_ctx = a->ctx ? (size_t)a->ctx : trained < 2048 ? trained : 2048;
    lk_session_opts opts = {.n_ctx = (int32_t)n_ctx};
    lk_sampler_opts plain = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = (uint32_t)a->seed};
    struct progress progress = progress_start("sampling a text");
    lk_status status = lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &bos, &n_bos, &err);
    if (!status) status = lk_recipe_parse(&recipe, "f16", &err);
    if (!status) status = lk_session_new(&session, model, recipe, &opts, &err);
    if (!status) status = lk_sampler_new(&sampler, model, &plain, &err);
    out->n = sampled_tokens(a);
    out->at = xmalloc(out->n * sizeof *out->at);
    for (size_t at = 0; !status && at < out->n; at += n_ctx) {
        size_t n = out->n - at < n_ctx ? out->n - at : n_ctx;
        out->at[at] = n_bos ? bos[0] : 0;
        status = sample_window(session, sampler, out->at + at, n, &progress, at, out->n, &err);
    }
    progress_end(&progress);
    lk_tokens_free(bos);
    lk_sampler_free(sampler);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return status ? print_lk_error(&err) : STATUS_OK;
}

/* ---- the work ---- */

enum { N_BASIS = 3 };

/* One kind of basis over all layers. */
struct basis_summary {
    int32_t n_group, width, min_rank, max_rank;
    double mean_rank, mean_lost, max_lost;
};

/* False if the model has no bases of the i-th kind. */
static bool summarize_basis(const lk_compress *c, int n_layer, int i, struct basis_summary *s) {
    int64_t sum = 0;
    lk_compress_basis basis;
    if (!lk_compress_get_basis(c, 0, i, &basis) || basis.n_group == 0) return false;
    *s = (struct basis_summary){
        .n_group = basis.n_group, .width = basis.width, .min_rank = INT32_MAX};
    for (int layer = 0; layer < n_layer; layer++) {
        lk_compress_get_basis(c, layer, i, &basis);
        for (int g = 0; g < basis.n_group; g++) {
            int32_t rank = basis.rank[g];
            s->min_rank = rank < s->min_rank ? rank : s->min_rank;
            s->max_rank = rank > s->max_rank ? rank : s->max_rank;
            sum += rank;
        }
        s->mean_lost += basis.lost / n_layer;
        s->max_lost = basis.lost > s->max_lost ? basis.lost : s->max_lost;
    }
    s->mean_rank = (double)sum / n_layer / s->n_group;
    return true;
}

static void print_result(const struct compress_args *a, const lk_compress_opts *opts,
                         const lk_compress *c, const lk_model *model, const struct tokens *tokens,
                         double seconds) {
    static const char *const name[N_BASIS] = {"K", "K before RoPE", "V"};
    char b[NUMBER_BUF], d[NUMBER_BUF];
    struct table table = table_new("lrrrrrr");
    table_titles(&table, "rows|groups|channels|ranks|mean|lost|max lost");
    for (int i = 0; i < N_BASIS; i++) {
        struct basis_summary s;
        if (!summarize_basis(c, lk_model_get_info(model).n_layer, i, &s)) continue;
        table_cell(&table, "%s", name[i]);
        table_cell(&table, "%d", s.n_group);
        table_cell(&table, "%d", s.width);
        table_cell(&table, s.min_rank == s.max_rank ? "%d" : "%d-%d", s.min_rank, s.max_rank);
        table_cell(&table, "%.1f", s.mean_rank);
        table_cell(&table, "%.2f%%", 100 * s.mean_lost);
        table_cell(&table, "%.2f%%", 100 * s.max_lost);
    }
    table_print(&table, stdout, 1);
    printf("\nlost: share of the rows' power, mean and maximum over layers\n");
    printf("ranks: %s%s\n", ranks_name(opts),
           searches_by_default(a, opts) && opts->ranks >= LK_RANK_FISHER
               ? " (--rank-search uniform needs less time and memory)"
               : "");
    printf("%s: %s tokens, %.1f s, peak memory %s\n", a->out, format_count(b, tokens->n), seconds,
           format_bytes(d, lk_os_peak_bytes()));
}

static int print_json(const struct compress_args *a, const lk_compress_opts *opts,
                      const lk_compress *c, const lk_model *model, const struct tokens *tokens,
                      double seconds) {
    char *name = model_name(model);
    json_t *layers = json_array();
    for (int layer = 0; layer < lk_model_get_info(model).n_layer; layer++) {
        json_t *sides = json_object();
        lk_compress_basis basis;
        for (int i = 0; lk_compress_get_basis(c, layer, i, &basis); i++) {
            if (basis.n_group == 0) continue;
            json_t *rank = json_array();
            for (int g = 0; g < basis.n_group; g++)
                json_array_append_new(rank, json_integer(basis.rank[g]));
            json_t *side = json_pack("{s:i s:o s:o}", "channels", basis.width, "rank", rank, "lost",
                                     json_number(basis.lost));
            if (basis.singular_half > 0)
                json_object_update_new(side, json_pack("{s:o s:o}", "singular_quarter",
                                                       json_number(basis.singular_quarter),
                                                       "singular_half",
                                                       json_number(basis.singular_half)));
            json_object_set_new(sides, basis.name, side);
        }
        json_array_append_new(layers, sides);
    }
    int done = json_print(json_pack("{s:s s:s s:s s:s s:I s:o s:I s:o}", "model", name, "method",
                                    a->method, "ranks", ranks_name(opts), "output", a->out, "n_tok",
                                    (json_int_t)tokens->n, "seconds", json_number(seconds),
                                    "peak_bytes", (json_int_t)lk_os_peak_bytes(), "layers", layers),
                          false);
    free(name);
    return done;
}

static int compress(const struct compress_args *a, lk_compress_opts *opts, lk_model *model,
                    const struct tokens *tokens) {
    lk_err err = {0};
    lk_compress *c = NULL;
    char *stats = xasprintf("%s.stats", a->out);
    struct progress progress = progress_start("compressing");
    double start = lk_now();
    opts->progress = progress_step;
    opts->user = &progress;
    lk_status status = lk_compress_new(&c, model, opts, tokens->at, tokens->n, &err);
    if (!status) status = lk_compress_calibrate(c, tokens->at, tokens->n, stats, &err);
    if (!status) status = lk_compress_fit(c, &err);
    progress_end(&progress);
    if (!status) status = lk_compress_write(c, a->out, &err);
    int result = status ? print_lk_error(&err) : STATUS_OK;
    if (!result && !a->keep) unlink(stats);
    if (!result && a->json)
        result = print_json(a, opts, c, model, tokens, lk_now() - start);
    else if (!result)
        print_result(a, opts, c, model, tokens, lk_now() - start);
    lk_compress_free(c);
    free(stats);
    return result;
}

/* Open the model and check the options. If ranks would follow Fisher information only by default,
 * but ggml cannot differentiate the model, they become uniform. */
static int open_model(struct compress_args *a, lk_compress_opts *opts, lk_model **model) {
    bool fisher = opts->ranks >= LK_RANK_FISHER;
    const char *weights = a->model.weights;
    lk_err err = {0};
    if (fisher) a->model.weights = "f32"; /* ggml differentiates only f32 */
    int status = model_open(&a->model, false, model);
    if (!status && fisher && searches_by_default(a, opts) &&
        lk_compress_check(*model, opts, SIZE_MAX, &err) == LK_E_UNSUPPORTED) {
        print_error("warning: ranks are uniform: %s", err.msg);
        opts->ranks = LK_RANK_UNIFORM;
        a->model.weights = weights;
        lk_model_free(*model);
        *model = NULL;
        status = model_open(&a->model, false, model);
    }
    return status ? status : check_opts(a, opts, *model);
}

int cmd_compress(const struct command *command, int argc, char **argv) {
    struct compress_args a = {.skip = -1};
    lk_compress_opts opts = {0};
    struct tokens tokens = {0};
    lk_model *model = NULL;
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) return read;
    int status = read_opts(&a, &opts);
    /* These read the weights. */
    a.model.no_repack = opts.svd == LK_SVD_PLAIN || opts.svd == LK_SVD_OUTPUT;
    if (!status) status = check_writable(a.out);
    if (!status) status = open_model(&a, &opts, &model);
    if (!status && a.text)
        status = strcmp(a.text, "self") == 0 ? sample_text(&a, model, &tokens)
                                             : tokenize_file(&a, model, &tokens);
    if (!status) status = compress(&a, &opts, model, &tokens);
    free(tokens.at);
    lk_model_free(model);
    return status;
}
