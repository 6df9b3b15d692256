/* lowkey train: LESS networks as a sidecar. */
#include "commands.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "text_file.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

struct train_args {
    struct model_args model;
    struct string_list file;
    const char *output, *policy, *from;
    struct number_list budget, prompt, layers;
    int64_t ctx, sequences, features, hidden, share, epochs, queries, seed;
    double rate, dropout, valid;
    bool plain, markup;
};

static enum args_result read_args(const struct command *command, int argc, char **argv,
                                  struct train_args *a, int *first) {
    enum { MAX_NUMBER = 1 << 20 };
    const struct opt_group groups[] = {
        {"What to train",
         {
             {'f', "file", "FILE", "a text; may be repeated ('-': standard input)", OPT_TEXTS,
              &a->file, 0, 0,
              .man =
                  "A text; may be repeated (`-`: standard input). A form feed in it starts a new "
                  "sequence."},
             {0, "markup", NULL,
              "parse <|...|> and the like in the texts as the model's special tokens", OPT_FLAG,
              &a->markup, 0, 0},
             {'o', "output", "FILE",
              "the sidecar; files next to it keep the state of an interrupted run", OPT_TEXT,
              &a->output, 0, 0,
              .man =
                  "The sidecar. Files next to it, named like it with the endings `.examples` "
                  "and `.layer-N`, hold what is done so far. They take some gigabytes for many "
                  "sequences and are removed at the end. Bases of `--sidecar` are copied, so that "
                  "one sidecar has both."},
             {0, "policy", "NAME", "h2o, lambda or tova (default h2o)", OPT_TEXT, &a->policy, 0, 0,
              .man = "`h2o` (default): half heavy hitters and half recent rows; `lambda`: 4 sinks "
                     "and a window; `tova`.",
              .complete = "h2o lambda tova"},
             {0, "budget", "N[,N...]",
              "rows that the policy keeps per KV head; several share the networks", OPT_NUMBERS,
              &a->budget, 1, MAX_NUMBER},
             {0, "prompt", "N[,N...]",
              "tokens of a sequence that are prefilled (default 0); several are used in turn",
              OPT_NUMBERS, &a->prompt, 0, MAX_NUMBER,
              .man = "Tokens at the start of a sequence that are a prompt: the policy evicts their "
                     "rows all at once, as after a prefill, and not one by one. Several are used "
                     "in turn, together with the budgets (default 0)."},
             {0, "from", "SIDECAR", "fine-tune its networks, with their sizes", OPT_TEXT, &a->from,
              0, 0, .complete = "*.gguf"},
             {'c', "ctx", "N", "tokens of a sequence (default 1024)", OPT_INT, &a->ctx, 16,
              1 << 16},
             {0, "sequences", "N", "sequences, in equal shares of the texts (default: 64, or all)",
              OPT_INT, &a->sequences, 2, MAX_NUMBER,
              .man = "Number of sequences: as many from each text, spread evenly over it (default "
                     "64, or as many as the texts have)."},
             {0, "features", "N", "features of a head, R (default 8)", OPT_INT, &a->features, 1, 64,
              .man = "Features of a head, R in the paper (default 8)."},
             {0, "hidden", "N", "hidden units of a network, R' (default 512)", OPT_INT, &a->hidden,
              1, 4096,
              .man = "Hidden values of a network, R' in the paper (default 512). With 32 or 64 the "
                     "networks are small compared with a cache."},
             {0, "share", "N", "networks per head (0, default), per group (1), or one for all (2)",
              OPT_INT, &a->share, 0, 2,
              .man = "0 (default): each query head has its own networks; 1: the query heads of a "
                     "KV head share them; 2: all heads of a layer share them."},
             {0, "layers", "N,N",
              "only layers from the first to the last (default: all, then join them)", OPT_NUMBERS,
              &a->layers, 0, MAX_NUMBER},
             {0, "plain", NULL, "as in the paper; --queries is ignored", OPT_FLAG, &a->plain, 0, 0,
              .man =
                  "Train as in the paper: no estimated scale of features, steps of two sequences "
                  "with all their positions (`--queries` is ignored), sequences are not "
                  "weighted, and the rate is halved after each quarter of the epochs."},
         }},
        {"How to train",
         {
             {0, "epochs", "N",
              "passes; in the second half the rate is halved six times (default 40)", OPT_INT,
              &a->epochs, 1, MAX_NUMBER,
              .man = "Passes over the sequences (default 40). In the second half of them, the "
                     "learning rate is halved six times."},
             {0, "queries", "N", "query positions sampled per step (default 256)", OPT_INT,
              &a->queries, 1, 1 << 16,
              .man = "Positions of a sequence that a training step uses, different ones each time "
                     "(default 256)."},
             {0, "rate", "X", "Adam's learning rate (default 0.001)", OPT_REAL, &a->rate, 1e-7, 1},
             {0, "dropout", "X", "share of hidden units dropped in training (default 0.3)",
              OPT_REAL, &a->dropout, 0, 0.95},
             {0, "valid", "X",
              "share of sequences to validate on, for the best epoch (default 0.1)", OPT_REAL,
              &a->valid, 0.001, 0.9,
              .man = "Share of the sequences used for validation (default 0.1). The epoch that "
                     "does best on them is kept."},
             {0, "seed", "N", "random seed (default 0)", OPT_INT, &a->seed, 0, 1 << 30},
         }},
        model_options(&a->model),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, first);
}

/* The tokens of a text, *n of them. A form feed starts a new part: the tokens of each part are cut
 * to whole sequences of `ctx`. Owned: free(). */
static lk_status tokenize_parts(const lk_model *model, const char *text, size_t len, unsigned flags,
                                size_t ctx, int32_t **tok, size_t *n, lk_err *err) {
    lk_status status = LK_OK;
    *n = 0;
    for (const char *at = text, *end = text + len; status == LK_OK && at < end;) {
        const char *stop = memchr(at, '\f', (size_t)(end - at));
        int32_t *part = NULL;
        size_t n_part = 0;
        if (!stop) stop = end;
        status = lk_tokenize(model, at, (size_t)(stop - at), flags, 0, &part, &n_part, err);
        n_part = n_part / ctx * ctx;
        if (status == LK_OK && n_part) {
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
        if (!read_text_file(a->file.item[i], "text", MAX_PROMPT_BYTES, &text))
            status = interrupted() ? STATUS_INTERRUPTED : STATUS_ERROR;
        else if (tokenize_parts(model, text.at ? text.at : "", text.len, flags, ctx, &piece,
                                &n_piece, &err))
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

static void layer_done(void *progress, const lk_less_layer *l) {
    progress_end(progress);
    printf("layer %2d  loss %.4f of the policy's, epoch %d of %d, %.0f s\n", l->layer, l->loss,
           l->best_epoch, l->n_epoch, l->seconds);
    fflush(stdout);
}

static int train(const struct train_args *a, lk_model *model, const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    struct progress progress = progress_start("training");
    int32_t budget[MAX_LIST], prompt[MAX_LIST];
    for (size_t i = 0; i < a->budget.n; i++) budget[i] = (int32_t)a->budget.item[i];
    for (size_t i = 0; i < a->prompt.n; i++) prompt[i] = (int32_t)a->prompt.item[i];
    lk_less_opts opts = {.policy = a->policy,
                         .from = a->from,
                         .budget = budget,
                         .n_budget = (int32_t)a->budget.n,
                         .prompt = prompt,
                         .n_prompt = (int32_t)a->prompt.n,
                         .n_ctx = (int32_t)a->ctx,
                         .n_feature = (int32_t)a->features,
                         .n_hidden = (int32_t)a->hidden,
                         .share = (int32_t)a->share,
                         .n_epoch = (int32_t)a->epochs,
                         .n_query = (int32_t)a->queries,
                         .rate = (float)a->rate,
                         .dropout = (float)a->dropout,
                         .valid = (float)a->valid,
                         .plain = a->plain,
                         .first_layer = (int32_t)(a->layers.n ? a->layers.item[0] : 0),
                         .n_layer =
                             (int32_t)(a->layers.n ? a->layers.item[1] - a->layers.item[0] + 1 : 0),
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

int cmd_train(const struct command *command, int argc, char **argv) {
    struct train_args a = {.policy = "h2o",
                           .ctx = 1024,
                           .features = 8,
                           .hidden = 512,
                           .epochs = 40,
                           .queries = 256,
                           .rate = 1e-3,
                           .dropout = 0.3,
                           .valid = 0.1};
    lk_model *model = NULL;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    int first;
    enum args_result read = read_args(command, argc, argv, &a, &first);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_ERROR;
    if (first + 1 != argc || strcmp(argv[first], "less") != 0)
        return print_error("say what to train: 'lowkey train less'");
    if (!a.file.n) return print_error("no text: give -f FILE");
    if (!a.output) return print_error("no sidecar to write: give -o FILE");
    if (a.layers.n && (a.layers.n != 2 || a.layers.item[1] < a.layers.item[0]))
        return print_error("--layers: give the first and the last layer");
    if (!a.budget.n)
        return print_error("no budget: give --budget N, the rows that the policy keeps");
    catch_interrupts();
    int status = check_writable(a.output);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = read_sequences(&a, model, &tok, &n_tok);
    if (!status) status = train(&a, model, tok, n_tok);
    free(tok);
    lk_model_free(model);
    return status;
}
