/* How a cache answers questions about a prompt, token by token, compared with the full cache.
 *
 *   build/bench/answers [-t N] [-n ITEMS] [-a TOKENS] [--decode] [--heads] [--hellinger]
 *              ITEMS MODEL RECIPE... [--sidecar FILE RECIPE...]...
 *
 * ITEMS is a text file that experiments/chat-text writes: items are separated by form feeds, the
 * three parts of an item by the byte 0x1e. The first part is prefilled (--decode: evaluated token
 * by token), the question and the right answer follow token by token (-a: only so many tokens of
 * the answer). Recipes with 'absorb less' use the sidecar given before them.
 *
 * Prints one tab-separated line for each recipe and kind of token (question; first: the token
 * before the answer; answer): recipe, kind, number of tokens, KL and its standard error over items,
 * nats of the right token, top-1 agreement, share of the tokens whose KL is higher than with the
 * first recipe, Hellinger distance of attention (--hellinger: slow), share of the states in
 * attention, share that the full cache gives to evicted rows. With --heads also a line for each
 * head: layer, head, these two shares in each kind, and the highest share of the state. */
#include "bench_support.h"
#include "lowkey_lab.h"
#include "measure/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECIPES = 32, N_PART = 3, N_KIND = 3, QUESTION = 0, FIRST = 1, ANSWER = 2 };
static const char *const kind_name[N_KIND] = {"question", "first", "answer"};

struct sums {
    double kl, kl2, nll, top1, worse, hellinger, n; /* of tokens; kl2: of items' means */
    double item_kl, item_n, n_item, item_sum;       /* item_sum: of items' means */
};

struct trial {
    const char *text;
    lk_recipe *recipe;
    struct lk_sidecar *sidecar;
    lk_session *session;
    struct lk_probe *probe;
    struct sums sum[N_KIND];
    double *share, *missed; /* [N_KIND][n_layer * n_head] sums */
    double *highest;        /* [n_layer * n_head] */
};

struct run {
    lk_model *model;
    struct lk_ledger ledger;
    struct trial trial[MAX_RECIPES]; /* [0]: the full cache */
    size_t n_trial, n_head, n_item, max_answer;
    bool decode, heads, hellinger;
};

static lk_status add_recipe(struct run *r, const char *text, struct lk_sidecar *sidecar,
                            lk_err *err) {
    if (r->n_trial == MAX_RECIPES) return lk_fail(err, LK_E_ARG, "too many recipes");
    struct trial *t = &r->trial[r->n_trial];
    *t = (struct trial){.text = text, .sidecar = sidecar};
    t->share = calloc(N_KIND * r->n_head, sizeof *t->share);
    t->missed = calloc(N_KIND * r->n_head, sizeof *t->missed);
    t->highest = calloc(r->n_head, sizeof *t->highest);
    lk_status status = lk_recipe_parse(&t->recipe, text, err);
    r->n_trial += !status;
    return status;
}

static lk_status open_trial(struct run *r, struct trial *t, size_t n_tok, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok};
    lk_status status = lk_session_new(&t->session, r->model, t->recipe, &opts, err);
    if (!status && t->recipe->absorbs && t->sidecar)
        status = lk_session_enable_absorb(t->session, t->sidecar, err);
    return status ? status : lk_probe_new(&t->probe, t->session, err);
}

static void close_trial(struct trial *t) {
    lk_probe_free(t->probe);
    lk_session_free(t->session);
    t->probe = NULL;
    t->session = NULL;
}

/* Add what the probes of the full cache and of trial t recorded. */
static void add_attention(const struct run *r, struct trial *t, int kind) {
    const struct lk_probe *full = r->trial[0].probe, *probe = t->probe;
    double distance = 0;
    for (int layer = 0; layer < probe->n_layer; layer++) {
        if (r->hellinger) distance += lk_probe_hellinger(full, probe, layer) / probe->n_layer;
        for (int head = 0; head < probe->n_head; head++) {
            size_t i = (size_t)layer * probe->n_head + head;
            const float *all = full->weight + i * full->n_pos,
                        *held = probe->weight + i * full->n_pos;
            for (int64_t pos = 0; pos < full->n_pos; pos++)
                if (held[pos] == 0) t->missed[kind * r->n_head + i] += all[pos];
            t->share[kind * r->n_head + i] += probe->state_share[i];
            t->highest[i] = fmax(t->highest[i], probe->state_share[i]);
        }
    }
    t->sum[kind].hellinger += distance;
}

/* Score the prediction of `next` after a token of this kind. work [2][n_vocab]. */
static void add_scores(struct run *r, int kind, int32_t next, float *work) {
    size_t n_vocab = (size_t)lk_model_get_info(r->model).n_vocab;
    float first = 0;
    for (size_t i = 0; i < r->n_trial; i++) {
        struct trial *t = &r->trial[i];
        struct sums *s = &t->sum[kind];
        lk_prediction p = lk_compare_score(lk_session_logits(t->session, -1), n_vocab, next, work,
                                           i ? work + n_vocab : work);
        if (i == 1) first = p.kl;
        s->worse += i > 1 && p.kl > first;
        s->nll += p.nll;
        s->kl += p.kl;
        s->item_kl += p.kl;
        s->top1 += p.same;
        s->n++;
        s->item_n++;
        if (i) add_attention(r, t, kind);
    }
}

static void end_item(struct run *r) {
    for (size_t i = 0; i < r->n_trial; i++)
        for (int kind = 0; kind < N_KIND; kind++) {
            struct sums *s = &r->trial[i].sum[kind];
            if (s->item_n == 0) continue;
            double mean = s->item_kl / s->item_n;
            s->kl2 += mean * mean;
            s->item_sum += mean;
            s->n_item++;
            s->item_kl = s->item_n = 0;
        }
}

static lk_status run_tokens(struct run *r, const int32_t *tok, size_t n_head, size_t n_given,
                            size_t n_tok, float *work, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < r->n_trial; i++) {
        struct trial *t = &r->trial[i];
        status = open_trial(r, t, n_tok, err);
        if (status) break;
        lk_probe_set(t->probe, false);
        if (!r->decode) status = lk_session_sync(t->session, tok, n_head, NULL, err);
        for (size_t at = 0; r->decode && !status && at < n_head; at++)
            status = lk_session_eval(t->session, tok + at, 1, false, err);
        lk_probe_set(t->probe, true);
    }
    for (size_t at = n_head; !status && at + 1 < n_tok; at++) {
        for (size_t i = 0; !status && i < r->n_trial; i++)
            status = lk_session_eval(r->trial[i].session, tok + at, 1, false, err);
        int kind = at + 1 < n_given ? QUESTION : at + 1 == n_given ? FIRST : ANSWER;
        if (!status) add_scores(r, kind, tok[at + 1], work);
    }
    for (size_t i = 0; i < r->n_trial; i++) close_trial(&r->trial[i]);
    end_item(r);
    return status;
}

/* One item: three parts, which are tokenized separately. */
static lk_status run_item(struct run *r, char *text, float *work, lk_err *err) {
    int32_t *tok = NULL;
    size_t n_part[N_PART] = {0}, n = 0;
    lk_status status = LK_OK;
    for (int part = 0; !status && part < N_PART; part++) {
        int32_t *piece = NULL;
        size_t len = strcspn(text, "\x1e");
        unsigned flags = LK_TOKENIZE_CONTROL | (part ? 0 : LK_TOKENIZE_BEGIN);
        status = lk_tokenize(r->model, text, len, flags, 0, &piece, &n_part[part], err);
        if (status) break;
        tok = realloc(tok, (n + n_part[part]) * sizeof *tok);
        memcpy(tok + n, piece, n_part[part] * sizeof *tok);
        n += n_part[part];
        text += len + (text[len] != 0);
        lk_tokens_free(piece);
    }
    if (!status && (!n_part[0] || !n_part[1] || n_part[2] < 2))
        status = lk_fail(err, LK_E_FORMAT, "an item lacks a part");
    size_t n_given = n_part[0] + n_part[1];
    if (n > n_given + r->max_answer) n = n_given + r->max_answer;
    if (!status) status = run_tokens(r, tok, n_part[0], n_given, n, work, err);
    free(tok);
    return status;
}

static lk_status run_items(struct run *r, const char *path, lk_err *err) {
    size_t len, n_done = 0;
    char *text = bench_read_file(path, &len), *at = text;
    if (!text) return lk_fail(err, LK_E_IO, "cannot read %s", path);
    float *work = malloc(2 * (size_t)lk_model_get_info(r->model).n_vocab * sizeof *work);
    lk_status status = LK_OK;
    while (!status && n_done < r->n_item && at < text + len) {
        size_t n = strcspn(at, "\f");
        bool last = at + n >= text + len;
        at[n] = 0;
        status = run_item(r, at, work, err);
        at += last ? n : n + 1;
        fprintf(stderr, "%zu items\n", ++n_done);
    }
    free(work);
    free(text);
    return status;
}

static double mean_of(const double *x, size_t n, double divisor) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n / divisor;
}

static void print_trial(const struct run *r, const struct trial *t) {
    size_t n = r->n_head;
    for (int kind = 0; kind < N_KIND; kind++) {
        const struct sums *s = &t->sum[kind];
        if (s->n == 0) continue;
        double mean = s->item_sum / s->n_item,
               error = sqrt(fmax(0, s->kl2 / s->n_item - mean * mean) / fmax(1, s->n_item - 1));
        printf("%s\t%s\t%.0f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\n", t->text,
               kind_name[kind], s->n, mean, error, s->nll / s->n, s->top1 / s->n, s->worse / s->n,
               s->hellinger / s->n, mean_of(t->share + kind * n, n, s->n),
               mean_of(t->missed + kind * n, n, s->n));
    }
    int heads = lk_model_get_info(r->model).n_head;
    for (size_t i = 0; r->heads && t->recipe->absorbs && i < n; i++) {
        printf("head\t%zu\t%zu", i / (size_t)heads, i % (size_t)heads);
        for (int kind = 0; kind < N_KIND; kind++)
            printf("\t%.4f\t%.4f", t->share[kind * n + i] / t->sum[kind].n,
                   t->missed[kind * n + i] / t->sum[kind].n);
        printf("\t%.4f\n", t->highest[i]);
    }
}

static lk_status run(struct run *r, const lk_model_opts *opts, char **arg, int n_arg, lk_err *err) {
    struct lk_sidecar *sidecar[MAX_RECIPES] = {0};
    int n_sidecar = 0;
    lk_status status = lk_model_open(&r->model, arg[1], opts, err);
    if (status) return status;
    const struct lk_hparams *hp = &r->model->net->hp;
    struct lk_sidecar_model of = {r->model->net->fingerprint, hp->n_layer, hp->n_head_kv,
                                  hp->d_head};
    r->n_head = (size_t)hp->n_layer * hp->n_head;
    status = add_recipe(r, "f16", NULL, err);
    for (int a = 2; !status && a < n_arg; a++) {
        if (strcmp(arg[a], "--sidecar") != 0 || a + 1 == n_arg)
            status = add_recipe(r, arg[a], n_sidecar ? sidecar[n_sidecar - 1] : NULL, err);
        else if (n_sidecar < MAX_RECIPES)
            status = lk_sidecar_open(&sidecar[n_sidecar++], arg[++a], &of, &r->ledger, err);
    }
    if (!status) status = run_items(r, arg[0], err);
    for (size_t i = 0; !status && i < r->n_trial; i++) print_trial(r, &r->trial[i]);
    for (size_t i = 0; i < r->n_trial; i++) {
        lk_recipe_free(r->trial[i].recipe);
        free(r->trial[i].share), free(r->trial[i].missed), free(r->trial[i].highest);
    }
    for (int i = 0; i < n_sidecar; i++) lk_sidecar_close(sidecar[i]);
    lk_model_free(r->model);
    return status;
}

int main(int argc, char **argv) {
    static struct run r = {.n_item = 1u << 20, .max_answer = 1u << 20};
    lk_model_opts opts = {.n_threads = 1};
    lk_err err = {0};
    int a = 1;
    for (; a < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "--decode"))
            r.decode = true;
        else if (!strcmp(argv[a], "--heads"))
            r.heads = true;
        else if (!strcmp(argv[a], "--hellinger"))
            r.hellinger = true;
        else if (!strcmp(argv[a], "-t") && a + 1 < argc)
            opts.n_threads = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-a") && a + 1 < argc)
            r.max_answer = (size_t)atoi(argv[++a]);
        else if (!strcmp(argv[a], "-n") && a + 1 < argc)
            r.n_item = (size_t)atoi(argv[++a]);
        else
            break;
    }
    if (argc - a < 3 || argv[a][0] == '-')
        return fprintf(stderr,
                       "usage: build/bench/answers [-t N] [-n ITEMS] [--decode] [--heads] "
                       "[--hellinger] ITEMS MODEL RECIPE... [--sidecar FILE RECIPE...]...\n"),
               2;
    if (!run(&r, &opts, argv + a, argc - a, &err)) return 0;
    fprintf(stderr, "%s\n", err.msg);
    return 1;
}
