/* lowkey train: networks for LESS, as a sidecar. */
#include "commands.h"
#include "common.h"
#include "lowkey_lab.h"
#include "new_file.h"
#include "progress.h"
#include "say.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

struct train_args {
    struct model_args model;
    struct texts file;
    const char *output, *policy, *from;
    struct numbers budget, layers;
    int64_t ctx, sequences, features, hidden, share, epochs, queries, seed;
    double rate, dropout, valid;
    bool plain, markup;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct train_args *a, int *first) {
    enum { MOST = 1 << 20 };
    const struct opt_group groups[] = {
        {"What to train",
         {
             {'f', "file", "FILE", "a text; may be repeated ('-': standard input)", OPT_TEXTS,
              &a->file, 0, 0},
             {0, "markup", NULL,
              "read <|...|> and the like in the texts as the model's special tokens", OPT_FLAG,
              &a->markup, 0, 0},
             {'o', "output", "FILE",
              "the sidecar; files beside it keep what an interrupted run has done", OPT_TEXT,
              &a->output, 0, 0},
             {0, "policy", "NAME", "h2o, lambda or tova (default h2o)", OPT_TEXT, &a->policy, 0, 0},
             {0, "budget", "N[,N...]",
              "rows that the policy keeps for each KV head; several: networks for all", OPT_NUMBERS,
              &a->budget, 1, MOST},
             {0, "from", "SIDECAR", "train its networks further, of the size that they have",
              OPT_TEXT, &a->from, 0, 0},
             {'c', "ctx", "N", "tokens of a sequence (default 1024)", OPT_INT, &a->ctx, 16,
              1 << 16},
             {0, "sequences", "N", "sequences, in equal shares of the texts (default: 64, or all)",
              OPT_INT, &a->sequences, 2, MOST},
             {0, "features", "N", "features of a head, R (default 8)", OPT_INT, &a->features, 1,
              64},
             {0, "hidden", "N", "hidden values of a network, R' (default 512)", OPT_INT, &a->hidden,
              1, 4096},
             {0, "share", "N", "0: networks for each head (default), 1: for each group, 2: for all",
              OPT_INT, &a->share, 0, 2},
             {0, "layers", "N,N",
              "only from the first to the last of these; without it all are joined", OPT_NUMBERS,
              &a->layers, 0, MOST},
             {0, "plain", NULL, "features without levels, as in the paper", OPT_FLAG, &a->plain, 0,
              0},
         }},
        {"How to train",
         {
             {0, "epochs", "N",
              "passes; in the second half the rate is halved six times (default 40)", OPT_INT,
              &a->epochs, 1, MOST},
             {0, "queries", "N", "positions of a sequence that a step looks at (default 256)",
              OPT_INT, &a->queries, 1, 1 << 16},
             {0, "rate", "X", "of Adam (default 0.001)", OPT_REAL, &a->rate, 1e-7, 1},
             {0, "dropout", "X", "share of hidden values left out while learning (default 0.3)",
              OPT_REAL, &a->dropout, 0, 0.95},
             {0, "valid", "X",
              "share of sequences kept back to choose the best epoch (default 0.1)", OPT_REAL,
              &a->valid, 0.001, 0.9},
             {0, "seed", "N", "of all random choices (default 0)", OPT_INT, &a->seed, 0, 1 << 30},
         }},
        model_options(&a->model),
    };
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, first);
}

/* Of a text's tokens `want` sequences from all over it, or all that it has, behind the *n of tok; each with the
 * model's begin token in its first place. */
static void choose_sequences(const int32_t *piece, size_t n_piece, const int32_t *begin, size_t ctx,
                             size_t want, int32_t **tok, size_t *n) {
    size_t have = n_piece / ctx;
    if (want > have) want = have;
    *tok = must_grow(*tok, (*n + want * ctx + 1) * sizeof **tok);
    for (size_t i = 0; i < want; i++, *n += ctx) {
        memcpy(*tok + *n, piece + i * have / want * ctx, ctx * sizeof **tok);
        if (begin) (*tok)[*n] = *begin;
    }
}

/* Sequences in equal shares of all texts, `*n` tokens in all. */
static int read_sequences(const struct train_args *a, const lk_model *model, int32_t **tok,
                          size_t *n) {
    lk_err err = {0};
    int32_t *begin = NULL;
    size_t n_begin = 0, ctx = (size_t)a->ctx, want = a->sequences ? (size_t)a->sequences : 64;
    if (lk_tokenize(model, "", 0, true, &begin, &n_begin, &err)) return complain_of(&err);
    int status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < a->file.n; i++) {
        struct text text = {0};
        int32_t *piece = NULL;
        size_t n_piece = 0, share = want * (i + 1) / a->file.n - want * i / a->file.n;
        if (!read_text(a->file.item[i], "text", PROMPT_BYTES_MOST, &text))
            status = interrupted() ? STATUS_INTERRUPTED : STATUS_BAD;
        else if (lk_tokenize(model, text.at ? text.at : "", text.len, a->markup, &piece, &n_piece,
                             &err))
            status = complain_of(&err);
        else
            choose_sequences(piece, n_piece, n_begin ? begin : NULL, ctx, share, tok, n);
        free(text.at);
        lk_tokens_free(piece);
    }
    lk_tokens_free(begin);
    if (status != STATUS_OK) return status;
    size_t have = *n / ctx;
    if (a->sequences && have < want)
        return complain("in equal shares the texts have %zu sequences of %zu tokens, fewer than "
                        "the %zu of --sequences",
                        have, ctx, want);
    if (have < 2)
        return complain("the texts have %zu sequences of %zu tokens; at least 2 are needed", have,
                        ctx);
    return STATUS_OK;
}

static bool step(void *progress, uint64_t done, uint64_t total) {
    return progress_step(progress, done, total);
}

static void layer_done(void *progress, const lk_less_layer *l) {
    progress_end(progress);
    printf("layer %2d  loss %.4f of the policy's, epoch %d of %d, %.0f s\n", l->layer, l->loss,
           l->best_epoch, l->n_epoch, l->seconds);
    fflush(stdout);
}

static int train(const struct train_args *a, lk_model *model, const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    struct progress progress = progress_begin("training");
    int32_t budget[LIST_MOST];
    for (size_t i = 0; i < a->budget.n; i++) budget[i] = (int32_t)a->budget.item[i];
    lk_less_opts opts = {.policy = a->policy,
                         .from = a->from,
                         .budget = budget,
                         .n_budget = (int32_t)a->budget.n,
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
                         .progress = step,
                         .layer_done = layer_done,
                         .user = &progress};
    lk_status status = lk_train_less(model, tok, n_tok, &opts, a->output, &err);
    progress_end(&progress);
    if (status == LK_E_CANCELLED) return complain("%s", err.msg), STATUS_INTERRUPTED;
    return status ? complain_of(&err) : STATUS_OK;
}

int train_verb(const struct verb *verb, int argc, char **argv) {
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
    enum args_result read = read_args(verb, argc, argv, &a, &first);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    if (first + 1 != argc || strcmp(argv[first], "less") != 0)
        return complain("say what to train: 'lowkey train less'");
    if (!a.file.n) return complain("no text: give -f FILE");
    if (!a.output) return complain("no sidecar to write: give -o FILE");
    if (a.layers.n && (a.layers.n != 2 || a.layers.item[1] < a.layers.item[0]))
        return complain("--layers: give the first and the last");
    if (!a.budget.n) return complain("no budget: give --budget N, the rows that the policy keeps");
    interrupt_catch();
    int status = new_file_try(a.output);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = read_sequences(&a, model, &tok, &n_tok);
    if (!status) status = train(&a, model, tok, n_tok);
    free(tok);
    lk_model_free(model);
    return status;
}
