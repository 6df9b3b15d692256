/* How much of the attention output, and of its error under an eviction policy, lies in a few
 * directions (LESS, figure 3).
 *
 *   build/bench/residual [-t N] [-c CTX] [-p POLICY] [-b BUDGET] MODEL TEXT
 *
 * Defaults: -t 1 -c 1024 -p h2o -b 82.
 *
 * Two sequences of CTX tokens of the text are evaluated with a full cache. For each head, the rows
 * of A are the outputs of full attention, one for each query after the budget. The residual is the
 * output under the policy minus A. Prints for each layer, as mean over heads: the share of the
 * first 1, 4, 8 and 16 of d_head in the sum of squared singular values, of A and of the residual;
 * and the norm of the residual relative to that of A. */
#include "bench_support.h"
#include "codec/half.h"
#include "lowrank/linalg.h"
#include "training/less_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_SEQ = 2, N_RANK = 4 };

static const int ranks[N_RANK] = {1, 4, 8, 16};

/* Sums over a layer's heads: [0] of A, [1] of the residual. */
struct shares {
    double of[2][N_RANK], size[2], n;
};

static int print_error(const lk_err *err) {
    fprintf(stderr, "bench/residual: %s\n", err->msg);
    return 1;
}

/* Squared singular values of x [n][d] in falling order, into value [d]. gram: scratch [d][d]. */
static lk_status singular_values(const double *x, int n, int d, double *gram, double *value,
                                 struct lk_ledger *ledger, lk_err *err) {
    memset(gram, 0, (size_t)d * d * sizeof *gram);
    lk_gram_add(gram, d, x, n, d);
    lk_symmetrize(gram, d);
    return lk_eigen(gram, d, value, ledger, err);
}

static lk_status add_head(struct shares *sum, const struct lk_less_example *ex, int head, int d,
                          double *work, struct lk_ledger *ledger, lk_err *err) {
    int n = ex->n_query;
    const uint16_t *sparse = ex->sparse + (size_t)head * n * d,
                   *residual = ex->residual + (size_t)head * n * d;
    double *gram = work + (size_t)n * d, *value = gram + (size_t)d * d;
    lk_status status = LK_OK;
    for (int which = 0; status == LK_OK && which < 2; which++) {
        for (int i = 0; i < n * d; i++)
            work[i] = which ? lk_f16_to_f32(residual[i])
                            : lk_f16_to_f32(sparse[i]) - lk_f16_to_f32(residual[i]);
        status = singular_values(work, n, d, gram, value, ledger, err);
        double all = 0, part = 0;
        for (int i = 0; i < d; i++) all += value[i];
        for (int i = 0, r = 0; i < d && r < N_RANK; i++) {
            part += value[i];
            if (i + 1 == ranks[r]) sum->of[which][r++] += all > 0 ? part / all : 0;
        }
        sum->size[which] += all;
    }
    sum->n++;
    return status;
}

static void print_layer(int layer, const struct shares *s) {
    printf("| %d |", layer);
    for (int which = 0; which < 2; which++)
        for (int r = 0; r < N_RANK; r++) printf(" %.3f |", s->of[which][r] / s->n);
    printf(" %.3f |\n", sqrt(s->size[1] / s->size[0]));
}

static lk_status print_layers(struct lk_less_data *data, lk_err *err) {
    const struct lk_less_source *s = &data->source;
    double *work = malloc(((size_t)lk_less_data_queries(s, &s->policy[0]) * s->d_head +
                           (size_t)s->d_head * (s->d_head + 1)) *
                          sizeof *work);
    lk_status status = LK_OK;
    printf("| layer | A: 1 | 4 | 8 | 16 | residual: 1 | 4 | 8 | 16 | size "
           "|\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (int layer = 0; status == LK_OK && layer < s->n_layer; layer++) {
        struct shares sum = {0};
        for (int seq = 0; status == LK_OK && seq < N_SEQ; seq++) {
            struct lk_less_example ex;
            status = lk_less_data_read(data, layer, seq, &ex, err);
            for (int head = 0; status == LK_OK && head < s->n_head; head++)
                status = add_head(&sum, &ex, head, s->d_head, work, data->ledger, err);
        }
        if (status == LK_OK) print_layer(layer, &sum);
    }
    free(work);
    return status;
}

int main(int argc, char **argv) {
    lk_model_opts opts = {.n_threads = 1};
    const char *name = "h2o";
    int budget = 82, n_ctx = 1024, a = 1;
    for (; a + 1 < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "-t"))
            opts.n_threads = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-c"))
            n_ctx = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-p"))
            name = argv[++a];
        else if (!strcmp(argv[a], "-b"))
            budget = atoi(argv[++a]);
        else
            break;
    }
    if (argc - a != 2 || n_ctx < 16)
        return fprintf(stderr, "usage: build/bench/residual [-t N] [-c CTX] [-p POLICY] [-b "
                               "BUDGET] MODEL TEXT\n"),
               2;
    struct lk_less_policy policy;
    struct lk_less_data data = {.file = -1};
    struct lk_ledger ledger = {0};
    lk_model *model = NULL;
    lk_err err = {0};
    int32_t *tok = NULL;
    size_t len, n_tok;
    char *text = bench_read_file(argv[a + 1], &len), path[BENCH_PATH];
    if (!text) return fprintf(stderr, "bench/residual: cannot read %s\n", argv[a + 1]), 1;
    if (lk_less_policy_named(&policy, name, budget, &err) ||
        lk_model_open(&model, argv[a], &opts, &err) ||
        lk_tokenize(model, text, len, 0, 0, &tok, &n_tok, &err))
        return print_error(&err);
    if (n_tok < (size_t)N_SEQ * (size_t)n_ctx)
        return fprintf(stderr, "bench/residual: the text has only %zu tokens\n", n_tok), 1;
    bench_temp_file(path);
    struct lk_less_data_opts data_opts = {.path = path,
                                          .model = model,
                                          .policy = &policy,
                                          .n_policy = 1,
                                          .tok = tok,
                                          .n_seq = N_SEQ,
                                          .n_ctx = n_ctx,
                                          .stride = 1,
                                          .ledger = &ledger};
    lk_status status = lk_less_data_open(&data, &data_opts, &err);
    if (status == LK_OK) status = print_layers(&data, &err);
    if (status == LK_OK) lk_less_data_close(&data);
    unlink(path);
    lk_tokens_free(tok);
    lk_model_free(model);
    free(text);
    return status == LK_OK ? 0 : print_error(&err);
}
