/* lowkey train: LESS networks or LoRA adapters. */
#include "cmd.h"
#include "common.h"
#include "interrupt.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "text.h"
#include "xalloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not given: 0, NULL or an empty list; numbers for which 0 is a choice: -1. */
struct train_args {
    struct model_args model;
    struct string_list file;
    const char *output;
    struct number_list layers;
    bool markup;
    int64_t ctx, sequences, epochs, seed;
    double rate, valid;
    /* less */
    const char *policy, *from;
    struct number_list budget, prompt;
    int64_t features, hidden, share, queries;
    double dropout;
    bool plain;
    /* lora */
    struct string_list kv;
    int64_t rank, batch, layer_epochs;
    double alpha, end_rate;
};

enum { MAX_NUMBER = 1 << 20 };

static struct opt_group less_options(struct train_args *a) {
    return (struct opt_group){
        "Networks (less)",
        {
            {0, "budget", "N[,N...]",
             "rows that the policy keeps per KV head; several are used in turn", OPT_NUMBERS,
             &a->budget, 1, MAX_NUMBER},
            {0, "policy", "NAME",
             "h2o (default): half heavy hitters, half recent rows; lambda: 4 sinks and a window; "
             "tova",
             OPT_TEXT, &a->policy, .complete = "h2o lambda tova"},
            {0, "prompt", "N[,N...]",
             "tokens at the start of a sequence that are prefilled, so that their rows are evicted "
             "all at once (default 0); several are used in turn",
             OPT_NUMBERS, &a->prompt, 0, MAX_NUMBER},
            {0, "features", "N", "features of a head, R in the paper (default 8)", OPT_INT,
             &a->features, 1, 64},
            {0, "hidden", "N",
             "hidden units of a network, R' in the paper (default 512); 32 or 64 make the sidecar "
             "small",
             OPT_INT, &a->hidden, 1, 4096},
            {0, "share", "N",
             "0 (default): networks for each query head; 1: for each KV head; 2: for each layer",
             OPT_INT, &a->share, 0, 2},
            {0, "queries", "N", "query positions sampled in a step (default 256)", OPT_INT,
             &a->queries, 1, 1 << 16},
            {0, "dropout", "X", "share of hidden units dropped in training (default 0.3)", OPT_REAL,
             &a->dropout, 0, 0.95},
            {0, "from", "SIDECAR", "start from the networks of a sidecar", OPT_TEXT, &a->from,
             .complete = "*.gguf"},
            {0, "plain", NULL,
             "as in the paper: no estimated scale of features, steps of two whole sequences, equal "
             "weights of sequences, the rate is halved after each quarter of the epochs",
             OPT_FLAG, &a->plain},
        }};
}

static struct opt_group lora_options(struct train_args *a) {
    return (struct opt_group){
        "Adapters (lora)",
        {
            {'k', "kv", "RECIPE", "recipe of the cache whose loss is to be recovered", OPT_TEXTS,
             &a->kv},
            {0, "rank", "N", "rank of the adapters (default 32)", OPT_INT, &a->rank, 1, 4096},
            {0, "alpha", "X", "adapters are multiplied by alpha / rank (default 32)", OPT_REAL,
             &a->alpha, 1e-3, 1e5},
            {0, "batch", "N", "sequences of a step (default 1)", OPT_INT, &a->batch, 1, 4096},
            {0, "layer-epochs", "N",
             "epochs in which each layer's attention learns the output of full attention, before "
             "those of --epochs (default 1)",
             OPT_INT, &a->layer_epochs, 0, MAX_NUMBER},
            {0, "end-rate", "X",
             "learning rate of --epochs (default: a fifth of --rate, or --rate after "
             "--layer-epochs 0)",
             OPT_REAL, &a->end_rate, 1e-7, 1},
        }};
}

static int read_args(const struct command *command, int argc, char **argv, struct train_args *a,
                     int *first) {
    const struct opt_group groups[] = {
        {"What to train",
         {
             {'f', "file", "FILE",
              "a text; -: standard input; may be repeated; a form feed in it starts a new sequence",
              OPT_TEXTS, &a->file},
             {'o', "output", "FILE",
              "the sidecar; other contents of --sidecar are copied to it; until the end, files of "
              "the same name with .examples, .layer-N or .lora hold what is done",
              OPT_TEXT, &a->output},
             {'c', "ctx", "N", "tokens of a sequence (default: less 1024, lora 512)", OPT_INT,
              &a->ctx, 16, 1 << 16},
             {0, "sequences", "N",
              "number of sequences, in equal shares of the texts (default: 64, or all)", OPT_INT,
              &a->sequences, 2, MAX_NUMBER},
             {0, "layers", "N,N",
              "train only the layers from the first to the last (default: all); less joins the "
              "parts when it is run without this option",
              OPT_NUMBERS, &a->layers, 0, MAX_NUMBER},
             {0, "markup", NULL, "parse control tokens such as <|im_start|> in the texts", OPT_FLAG,
              &a->markup},
         }},
        {"How to train",
         {
             {0, "epochs", "N", "passes over the sequences (default: less 40, lora 1)", OPT_INT,
              &a->epochs, 0, MAX_NUMBER},
             {0, "rate", "X", "learning rate (default: less 0.001, lora 0.0002)", OPT_REAL,
              &a->rate, 1e-7, 1},
             {0, "valid", "X",
              "share of sequences for validation (default: less 0.1, lora 0.05); the best epoch or "
              "step is kept",
              OPT_REAL, &a->valid, 0.001, 0.9},
             {0, "seed", "N", "random seed (default 0)", OPT_INT, &a->seed, 0, 1 << 30},
         }},
        less_options(a),
        lora_options(a),
        model_options(&a->model, MODEL_FITTED),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, first);
}

/* The tokens of a text, *n of them. A form feed starts a new part: the tokens of each part are cut
 * to whole sequences of `ctx`. Owned: free(). */
static lk_status tokenize_parts(const lk_model *model, const char *text, size_t len, unsigned flags,
                                size_t ctx, int32_t **tok, size_t *n, lk_err *err) {
    lk_status status = LK_OK;
    *n = 0;
    for (const char *at = text, *end = text + len; !status && at < end;) {
        const char *stop = memchr(at, '\f', (size_t)(end - at));
        int32_t *part = NULL;
        size_t n_part = 0;
        if (!stop) stop = end;
        status = lk_tokenize(model, at, (size_t)(stop - at), flags, 0, &part, &n_part, err);
        n_part = n_part / ctx * ctx;
        if (!status && n_part) {
            *tok = xrealloc(*tok, (*n + n_part) * sizeof **tok);
            memcpy(*tok + *n, part, n_part * sizeof **tok);
            *n += n_part;
        }
        lk_tokens_free(part);
        at = stop + 1;
    }
    return status;
}

/* Append up to n_want sequences of a text's tokens to tok[0..*n), spread evenly over the text. The
 * first token of each is replaced by *bos unless it is NULL. */
static void append_sequences(const int32_t *piece, size_t n_piece, const int32_t *bos, size_t ctx,
                             size_t n_want, int32_t **tok, size_t *n) {
    size_t n_have = n_piece / ctx;
    if (n_want > n_have) n_want = n_have;
    *tok = xrealloc(*tok, (*n + n_want * ctx + 1) * sizeof **tok);
    for (size_t i = 0; i < n_want; i++, *n += ctx) {
        memcpy(*tok + *n, piece + i * n_have / n_want * ctx, ctx * sizeof **tok);
        if (bos) (*tok)[*n] = *bos;
    }
}

/* Sequences in equal shares from all texts, *n tokens in total. */
static int read_sequences(const struct train_args *a, const lk_model *model, int32_t **tok,
                          size_t *n) {
    const unsigned flags = a->markup ? LK_TOKENIZE_BEGIN | LK_TOKENIZE_CONTROL : 0;
    lk_err err = {0};
    int32_t *bos = NULL;
    size_t n_bos = 0, ctx = (size_t)a->ctx, n_want = a->sequences ? (size_t)a->sequences : 64;
    if (lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &bos, &n_bos, &err))
        return print_lk_error(&err);
    int status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < a->file.n; i++) {
        struct lk_buf text = {0};
        int32_t *piece = NULL;
        size_t n_piece = 0, share = n_want * (i + 1) / a->file.n - n_want * i / a->file.n;
        status = read_text(a->file.item[i], &text);
        if (status) break;
        if (tokenize_parts(model, text.at, text.len, flags, ctx, &piece, &n_piece, &err))
            status = print_lk_error(&err);
        else
            append_sequences(piece, n_piece, n_bos ? bos : NULL, ctx, share, tok, n);
        free(text.at);
        free(piece);
    }
    lk_tokens_free(bos);
    if (status != STATUS_OK) return status;
    size_t n_have = *n / ctx;
    if (a->sequences && n_have < n_want)
        return print_error("in equal shares the texts have %zu sequences of %zu tokens, fewer than "
                           "the %zu of --sequences",
                           n_have, ctx, n_want);
    if (n_have < 2)
        return print_error("the texts have %zu sequences of %zu tokens; at least 2 are needed",
                           n_have, ctx);
    return STATUS_OK;
}

/* Reject an option of the other kind of training. */
static int check_options(const struct train_args *a, bool lora) {
    const struct {
        const char *name;
        bool given, of_lora;
    } option[] = {{"policy", a->policy != NULL, false},
                  {"budget", a->budget.n > 0, false},
                  {"prompt", a->prompt.n > 0, false},
                  {"from", a->from != NULL, false},
                  {"features", a->features > 0, false},
                  {"hidden", a->hidden > 0, false},
                  {"share", a->share >= 0, false},
                  {"plain", a->plain, false},
                  {"queries", a->queries > 0, false},
                  {"dropout", a->dropout >= 0, false},
                  {"kv", a->kv.n > 0, true},
                  {"rank", a->rank > 0, true},
                  {"alpha", a->alpha > 0, true},
                  {"batch", a->batch > 0, true},
                  {"layer-epochs", a->layer_epochs >= 0, true},
                  {"end-rate", a->end_rate > 0, true}};
    for (size_t i = 0; i < sizeof option / sizeof *option; i++)
        if (option[i].given && option[i].of_lora != lora)
            return print_error("--%s is an option of 'lowkey train %s'", option[i].name,
                               lora ? "less" : "lora");
    if (!a->file.n) return print_error("no text: give -f FILE");
    if (!a->output) return print_error("no sidecar to write: give -o FILE");
    if (a->layers.n && (a->layers.n != 2 || a->layers.item[1] < a->layers.item[0]))
        return print_error("--layers: give the first and the last layer");
    if (!lora && !a->budget.n)
        return print_error("no budget: give --budget N, the rows that the policy keeps");
    if (lora && a->kv.n != 1)
        return print_error("give one --kv RECIPE, the cache whose loss is to be recovered");
    return STATUS_OK;
}

/* Number of layers to train; 0: all. */
static int32_t n_layers(const struct train_args *a) {
    return a->layers.n ? (int32_t)(a->layers.item[1] - a->layers.item[0] + 1) : 0;
}

/* ---- LESS networks ---- */

static void layer_done(void *progress, const lk_less_layer *l) {
    progress_end(progress);
    printf("layer %2d  loss %.4f of the policy's, epoch %d of %d, %.0f s\n", l->layer, l->loss,
           l->best_epoch, l->n_epoch, l->seconds);
    fflush(stdout);
}

/* Train on tok[0..n_tok), sequences of a->ctx tokens, and write a->output. */
static int train_less(const struct train_args *a, lk_model *model, const int32_t *tok,
                      size_t n_tok) {
    lk_err err = {0};
    struct progress progress = progress_start("training");
    int32_t budget[MAX_LIST], prompt[MAX_LIST];
    for (size_t i = 0; i < a->budget.n; i++) budget[i] = (int32_t)a->budget.item[i];
    for (size_t i = 0; i < a->prompt.n; i++) prompt[i] = (int32_t)a->prompt.item[i];
    lk_less_opts opts = {.policy = a->policy ? a->policy : "h2o",
                         .from = a->from,
                         .budget = budget,
                         .n_budget = (int32_t)a->budget.n,
                         .prompt = prompt,
                         .n_prompt = (int32_t)a->prompt.n,
                         .n_ctx = (int32_t)a->ctx,
                         .n_feature = (int32_t)a->features,
                         .n_hidden = (int32_t)a->hidden,
                         .share = a->share > 0 ? (int32_t)a->share : 0,
                         .n_epoch = a->epochs > 0 ? (int32_t)a->epochs : 0,
                         .n_query = (int32_t)a->queries,
                         .rate = (float)a->rate,
                         .dropout = a->dropout >= 0 ? (float)a->dropout : 0.3f,
                         .valid = (float)a->valid,
                         .plain = a->plain,
                         .first_layer = (int32_t)a->layers.item[0],
                         .n_layer = n_layers(a),
                         .seed = (uint64_t)a->seed,
                         .progress = progress_step,
                         .layer_done = layer_done,
                         .user = &progress};
    lk_status status = lk_train_less(model, tok, n_tok, &opts, a->output, &err);
    progress_end(&progress);
    if (status == LK_E_CANCELLED) return print_error("%s", err.msg), STATUS_INTERRUPTED;
    if (status) return print_lk_error(&err);
    int32_t last = lk_model_get_info(model).n_layer - 1;
    if (opts.first_layer == 0 && opts.first_layer + (a->layers.n ? opts.n_layer - 1 : last) == last)
        printf("wrote %s\n", a->output);
    else
        print_paragraph(stdout,
                        "layers %d to %d of 0 to %d are trained; %s is not written yet. When the "
                        "others are trained too, the same command without --layers writes it.",
                        (int)opts.first_layer, (int)(opts.first_layer + opts.n_layer - 1),
                        (int)last, a->output);
    return STATUS_OK;
}

/* ---- adapters ---- */

struct watch {
    struct progress progress;
    lk_lora_report last;
};

static bool step(void *watch, uint64_t done, uint64_t total) {
    return progress_step(&((struct watch *)watch)->progress, done, total);
}

static void report(void *user, const lk_lora_report *r) {
    struct watch *watch = user;
    progress_end(&watch->progress);
    printf("step %" PRId64 " of %" PRId64 "  KL %.4f +- %.4f on the validation sequences%s\n",
           r->step, r->n_step, r->kl, r->kl_stderr, r->best_step == r->step ? ", best so far" : "");
    fflush(stdout);
    watch->last = *r;
}

/* Epochs of the command line, where 0 means none, as the library's, where it means the default. */
static int32_t epochs(int64_t n) { return n < 0 ? 0 : n == 0 ? -1 : (int32_t)n; }

/* The same for adapters. */
static int train_lora(const struct train_args *a, lk_model *model, const lk_recipe *recipe,
                      const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    struct watch watch = {.progress = progress_start("training")};
    lk_lora_opts opts = {.n_ctx = (int32_t)a->ctx,
                         .valid = (float)a->valid,
                         .rank = (int32_t)a->rank,
                         .alpha = (float)a->alpha,
                         .rate = (float)a->rate,
                         .end_rate = (float)a->end_rate,
                         .batch = (int32_t)a->batch,
                         .n_layer_epoch = epochs(a->layer_epochs),
                         .n_epoch = epochs(a->epochs),
                         .first_layer = (int32_t)a->layers.item[0],
                         .n_layer = n_layers(a),
                         .seed = (uint64_t)a->seed,
                         .progress = step,
                         .report = report,
                         .user = &watch};
    lk_status status = lk_train_lora(model, recipe, tok, n_tok, &opts, a->output, &err);
    progress_end(&watch.progress);
    if (status == LK_E_CANCELLED) return print_error("%s", err.msg), STATUS_INTERRUPTED;
    if (status) return print_lk_error(&err);
    printf("wrote %s, with the weights of step %" PRId64 "\n", a->output, watch.last.best_step);
    return STATUS_OK;
}

/* ---- the command ---- */

int cmd_train(const struct command *command, int argc, char **argv) {
    struct train_args a = {.share = -1, .epochs = -1, .dropout = -1, .layer_epochs = -1};
    lk_model *model = NULL;
    lk_recipe *recipe = NULL;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    int first;
    int read = read_args(command, argc, argv, &a, &first);
    if (read != ARGS_RUN) return read;
    bool lora = first + 1 == argc && strcmp(argv[first], "lora") == 0;
    if (first + 1 != argc || (!lora && strcmp(argv[first], "less") != 0))
        return print_error("expected 'less' or 'lora'");
    int status = check_options(&a, lora);
    if (status) return status;
    if (!a.ctx) a.ctx = lora ? 512 : 1024;
    catch_interrupts();
    status = check_writable(a.output);
    if (!status && lora) status = recipe_open(a.kv.item[0], &recipe);
    if (lora) a.model.weights = "f32", a.model.no_repack = true; /* what is differentiated */
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = read_sequences(&a, model, &tok, &n_tok);
    if (!status)
        status =
            lora ? train_lora(&a, model, recipe, tok, n_tok) : train_less(&a, model, tok, n_tok);
    free(tok);
    lk_recipe_free(recipe);
    lk_model_free(model);
    return status;
}
