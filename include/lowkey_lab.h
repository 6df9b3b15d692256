/* lowkey_lab.h - the laboratory: measure recipes, make sidecars.
 *
 *   baselines  codecs of other projects, to compare with
 *   compare    perplexity, KL divergence and agreement of recipes, or of any predictor, on a text
 *   inspect    what a cache holds, the error of its rows, and how far attention moves
 *   bench      speed of prefill and decode at chosen depths
 *   compress   low-rank bases of K and V rows (Palu, TALE, merged KV heads), written as a sidecar
 *   train      networks for LESS, written as a sidecar
 *   tune       a recipe with its own bits for each layer, side and age, for a given model
 *
 * The rules at the top of lowkey.h hold here too. In options, 0 and NULL select the default.
 * Link with liblowkey_lab.a and liblowkey.a: lowkey::lab of CMake, lowkey-lab of pkg-config.
 * liblowkey.so alone has the baselines and what measures (compare, inspect, bench), but not
 * compress and train, which need BLAS, nor tune.
 *
 * "Full cache" means a session with the recipe "f16".
 */
#ifndef LOWKEY_LAB_H
#define LOWKEY_LAB_H

#include "lowkey.h"
#include "lowkey_cluster.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codecs of other projects ---- */

/* Register hqq, kvquant, kvarn, oscar and nf4, which the papers are compared with, and their
 * presets (lowkey_codec.h). Recipes name them afterwards. May be called again. */
lk_status lk_baselines_register(lk_err *err);

/* ---- one prompt, several recipes ---- */

/* Prefill one prompt into n > 0 sessions of one model, whatever their recipes. The result is the
 * same as lk_session_sync on each of them when empty. Exact K and V rows are computed only once for
 * all sessions whose recipes evict no rows. tok: token ids of the model's vocabulary, not checked.
 * What the sessions held before is dropped. Only the first session's progress is called.
 * After a failure all sessions are empty. */
lk_status lk_prefill_all(lk_session *const *session, size_t n, const int32_t *tok, size_t n_tok,
                         lk_err *err);

/* ---- compare: recipes on a text ---- */

typedef struct {
    int32_t n_ctx;        /* tokens per chunk, at least 4 */
    int32_t n_chunk;      /* 0: as many as the text has */
    int32_t n_scored;     /* predictions that are scored, at the end of a chunk; at most n_ctx - 1;
                             0: those of the second half */
    int32_t n_step;       /* tokens per evaluation, 1 to LK_EVAL_MAX; 0: 32. Rows age after an
                             evaluation, so they stay exact up to n_step - 1 tokens longer than in
                             a decoder, whose n_step is 1 */
    lk_progress progress; /* may be NULL; counts tokens x recipes */
    void *user;
    bool prompt; /* what precedes the scored predictions is a prompt: its tokens attend exactly,
                    and are computed only once for all recipes that evict nothing */
    /* The model whose full cache recipes are compared with, with the same vocabulary: for an
     * adapted model, the original. NULL: the model itself. */
    lk_model *reference;
} lk_compare_opts;

typedef struct {
    /* Errors of means: over predictions, as if they were independent, and between chunks (0: there
     * is one), which also has what predictions of a chunk have in common. */
    double ppl, ppl_stderr, ppl_chunk_stderr; /* perplexity */
    /* KL(full cache || recipe) of next-token distributions, in nats */
    double kl_mean, kl_stderr, kl_chunk_stderr;
    double kl_median, kl_p99, kl_p999; /* percentiles 50, 99 and 99.9 */
    double top1;                       /* share of positions with the same most probable token */
    double bytes_per_token, bits_per_value; /* at the end of a chunk, mean over chunks */
    double tokens_per_second;               /* whole evaluations, matrix products included */
    uint64_t n_scored;
    double bits_with_sidecar; /* as bits_per_value, with what one session needs of the sidecar */
} lk_compare_result;

/* Evaluate tok[0..n_tok) in chunks of n_ctx tokens with every recipe and with a full cache, and
 * compare the next-token distributions. results: [n_recipe]. LK_E_ARG if the text is shorter than
 * one chunk, or the reference has another vocabulary. */
lk_status lk_compare(lk_model *model, const lk_recipe *const *recipe, size_t n_recipe,
                     const int32_t *tok, size_t n_tok, const lk_compare_opts *opts,
                     lk_compare_result *results, lk_err *err);

/* ---- compare: any predictors, position by position ----
 *
 * A chunk of n_ctx tokens is evaluated from an empty cache in small steps, so that a prediction
 * sees what a decoder would have kept by then. The last predictions are scored; by default those at
 * positions n_ctx / 2 to n_ctx - 2, as in llama-perplexity. */

/* A source of logits: a session, or another program's context. */
typedef struct lk_predictor {
    void *self;
    void (*clear)(void *self); /* forget all tokens */
    /* Append n tokens. `all`: keep the logits of every token, not only of the last one. */
    lk_status (*eval)(void *self, const int32_t *tok, size_t n, bool all, lk_err *err);
    /* Logits [n_vocab] of the i-th token of the last eval, borrowed until the next eval. */
    const float *(*logits)(void *self, int32_t i);
    double seconds; /* time spent in eval; lk_compare_chunk adds to it */
} lk_predictor;

/* One scored prediction. The first predictor is the reference: its own kl is 0, its `same` true. */
typedef struct lk_prediction {
    float nll; /* -log p of the text's next token, in nats */
    float kl;  /* KL(reference || this predictor), in nats */
    bool same; /* the most probable token is the reference's */
} lk_prediction;

/* A chunk of text and how to evaluate it. */
typedef struct {
    const int32_t *tok; /* [n_ctx] */
    size_t n_ctx;
    size_t n_step; /* tokens per evaluation, 1 to LK_EVAL_MAX */
    size_t n_vocab;
    lk_progress progress; /* may be NULL; counts tokens x predictors */
    void *user;
    size_t n_scored; /* as in lk_compare_opts */
    size_t n_held; /* tokens that the predictors hold already, at most those before the first scored
                      prediction; 0: they are cleared first */
} lk_compare_text;

/* Predictions of the second half of a chunk; 0 if it has fewer than 4 tokens. */
size_t lk_compare_n_scored(size_t n_ctx);

/* Replace tok[0] by the model's begin-of-sequence token if it has one, as llama-perplexity does. */
void lk_compare_set_bos(const lk_model *model, int32_t *tok);

/* Evaluate one chunk with n predictors. score[i]: the scored predictions of predictor i, in the
 * order of positions. */
lk_status lk_compare_chunk(lk_predictor *predictor, size_t n, const lk_compare_text *chunk,
                           lk_prediction *const *score, lk_err *err);

/* Score one prediction: logits [n_vocab], followed in the text by token `next`. `reference`
 * [n_vocab]: the reference's log-probabilities. `log_p` [n_vocab] receives those of `logits`; for
 * the reference itself it is the same memory as `reference`. */
lk_prediction lk_compare_score(const float *logits, size_t n_vocab, int32_t next,
                               const float *reference, float *log_p);

/* Perplexity, KL and agreement of n predictions of n_chunk chunks of equal length, one after the
 * other. They are sorted by KL afterwards. Other fields are 0. */
lk_compare_result lk_compare_summarize(lk_prediction *score, size_t n, size_t n_chunk);

/* ---- inspect: attention ---- */

/* Records how the last token of each evaluation of one session spreads its attention. */
typedef struct lk_probe lk_probe;

/* Attach a probe to `session`, which must outlive it; a session has at most one. Evaluations are
 * slower while it is on. Memory: about 4 x n_layer x n_head x n_ctx bytes.
 * *out is owned: lk_probe_free. */
lk_status lk_probe_new(lk_probe **out, lk_session *session, lk_err *err);
void lk_probe_free(lk_probe *probe);

/* Turn recording on (the initial state) or off. */
void lk_probe_set(lk_probe *probe, bool on);

/* Hellinger distance |sqrt p - sqrt q| / sqrt 2, 0 to 1, between two attention distributions in one
 * layer, mean over heads (LESS, Dong et al. 2024, section 4.4). Both sessions belong to the same
 * model and evaluated the same tokens, each with its own queries and keys: the distance includes
 * the errors of earlier layers and steps. What a state of evicted rows ('absorb') weighs counts for
 * these rows, if the other session holds all rows. */
double lk_probe_hellinger(const lk_probe *a, const lk_probe *b, int32_t layer);

/* Share of a state of evicted rows in the recorded attention of a layer, mean over heads; 0 without
 * a state. */
double lk_probe_state_share(const lk_probe *probe, int32_t layer);

/* Copy what one head of a layer recorded: weight[i] is the share of position i in the attention of
 * the last token. 0 for rows that were evicted; with the share of a state they add up to 1. weight:
 * [n]. *n_pos: the number of positions; those from n on are left out. LK_E_ARG if nothing was
 * recorded, and for an unknown layer or head. */
lk_status lk_probe_read(const lk_probe *probe, int32_t layer, int32_t head, float *weight, size_t n,
                        size_t *n_pos, lk_err *err);

/* ---- inspect: rows ---- */

/* Decode rows that a KV head of a layer holds, as attention sees them: K (side 0) after RoPE, or V
 * (side 1); latents are reconstructed. Rows are counted from the oldest, and at most n from `first`
 * on are read. pos: [n] positions of their tokens, which have gaps if a policy evicted rows. x:
 * [n][*d], or NULL: only positions. *n_row: the number of rows that the head holds; *d: their
 * channels. Layers are those with a cache. Slow: for studies. LK_E_ARG for an unknown layer,
 * head or side, LK_E_UNSUPPORTED if rows are in other processes. */
lk_status lk_session_read_rows(const lk_session *session, int32_t layer, int32_t head, int32_t side,
                               size_t first, size_t n, int32_t *pos, float *x, size_t *n_row,
                               size_t *d, lk_err *err);

/* Rows of K or V in one level of one layer, or a sum of several. */
typedef struct lk_holding {
    char codec[64];         /* printed; "mixed" in a sum over different codecs */
    int64_t rows;           /* tokens; in a sum, the maximum over layers */
    uint64_t bytes, values; /* values: rows x n_head_kv x d_head */
    double error, power;    /* sums over values of (x - exact)^2 and exact^2 */
    double mass;            /* share of attention on these rows, mean over queries and heads */
} lk_holding;

/* Bits per value, and normalized mean squared error; NaN if there are no values. */
double lk_holding_bits(const lk_holding *holding);
double lk_holding_error(const lk_holding *holding);

typedef struct {
    size_t n_query;       /* last tokens, decoded one by one; 1 to n_tok - 1 */
    lk_progress progress; /* may be NULL; counts tokens */
    void *user;
} lk_inspect_opts;

/* Index 0 of every pair is K, index 1 is V. */
typedef struct lk_inspection {
    int n_layer, n_level; /* levels of the recipe, and one for the newest rows */
    size_t n_tok, n_query;
    char (*name)[32];       /* [n_level] */
    lk_holding (*at)[2];    /* [n_layer][n_level] */
    lk_holding (*level)[2]; /* [n_level] sums over layers */
    double *hellinger; /* [n_layer] distance from the full cache's attention, mean of queries */
    lk_session_stats stats;
} lk_inspection;

/* Read tok[0..n_tok) through `recipe` and through a full cache: all but the last n_query tokens as
 * a prompt, the others one by one. Then compare the rows and the attention of both.
 * *out is owned: lk_inspection_free. */
lk_status lk_inspect(lk_inspection **out, lk_model *model, const lk_recipe *recipe,
                     const int32_t *tok, size_t n_tok, const lk_inspect_opts *opts, lk_err *err);
void lk_inspection_free(lk_inspection *inspection);

/* ---- bench ---- */

typedef struct {
    const size_t *depth; /* [n_depth] tokens in the cache when a measurement starts, increasing */
    size_t n_depth;
    int32_t n_prefill;    /* tokens prefilled at each depth; 0: prefill is not measured */
    int32_t n_decode;     /* tokens decoded one by one at each depth; 0: decode is not measured */
    int32_t n_repeat;     /* measurements at each depth, at least 1 */
    uint64_t max_bytes;   /* limit for caches and scratch; 0: none */
    lk_progress progress; /* may be NULL; counts estimated shares of the time */
    void *user;
} lk_bench_opts;

typedef struct {
    size_t depth;
    double prefill_tps, decode_tps;           /* tokens per second, median; 0: not measured */
    double prefill_tps_best, decode_tps_best; /* of the fastest repeat */
    uint64_t n_repeated; /* tokens of the depth whose rows were repeated instead of computed */
    uint64_t n_tok;      /* tokens in the cache when bytes were counted; see lk_bench */
    uint64_t cache_bytes;
    double bits_per_value;
    double bits_with_sidecar; /* with what one session needs of the sidecar */
    /* CPU time of the process while it was timed, divided by the time and the number of threads.
     * Much less than 1: other programs ran, or the process is limited. */
    double cpu_share;
    /* Of a cluster (lowkey_cluster.h): its peers, the bytes of the cache on the peer that holds
     * most of them, and what peer 0 did for each decoded token: exchanges, bytes received and sent,
     * seconds in exchanges, waiting included, and their share of the time. Without a cluster 1,
     * cache_bytes, and 0. */
    int32_t n_peer;
    uint64_t max_peer_bytes;
    double exchanges_per_token, received_per_token, sent_per_token, exchange_seconds,
        exchange_share;
} lk_bench_result;

/* Measure the speed of `recipe` at each depth. The first 512 tokens of a depth are computed from
 * the text tok[0..n_tok), which has at least 512 tokens. All others repeat the text's K and V rows:
 * their cost is realistic, the predictions are not. Decode picks the most probable token; one token
 * before the first is not timed. Two copies of the cache are held, to return to a depth.
 * Bytes are counted at the depth; at depth 0, after the measurement. results: [n_depth]. */
lk_status lk_bench(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                   const lk_bench_opts *opts, lk_bench_result *results, lk_err *err);

/* On peers other than 0, before lk_cluster_follow: they can repeat the rows of a benchmark that
 * peer 0 runs. */
void lk_bench_join(lk_cluster *cluster);

/* ---- compress ----
 *
 *   lk_compress_new        check the options against the model
 *   lk_compress_calibrate  collect statistics of a text; can be cancelled and resumed
 *   lk_compress_fit        compute bases and ranks
 *   lk_compress_write      write the sidecar
 *
 * Defaults of the methods:
 *
 *              keys                           values    factors              rank
 *   palu       before and after RoPE          yes       sqrt(Sigma) in each  rank x width
 *   tale       no                             yes       sqrt(Sigma) in each  rank x width
 *   kvheads    after RoPE, all heads jointly  by group  orthonormal          d_head per group
 *   oscar      after RoPE                     yes       orthonormal          width (a rotation)
 *
 * oscar takes the eigenvectors of the queries for K, and those of values for V, weighted by the
 * mean square of their token's scores; groups have one KV head. */

/* The method whose defaults are used. */
typedef enum {
    LK_METHOD_PALU,
    LK_METHOD_TALE,
    LK_METHOD_KVHEADS,
    LK_METHOD_OSCAR,
} lk_compress_method;

/* What the decomposition minimizes. */
typedef enum {
    LK_SVD_WHITENED,  /* error of the rows themselves */
    LK_SVD_PLAIN,     /* error of the weights; needs no text */
    LK_SVD_OUTPUT,    /* error of scores (K) and of the residual stream (V); keys before RoPE are
                         handled as whitened */
    LK_SVD_MEAN_POOL, /* nothing: average the heads of a group */
} lk_compress_svd;

/* How ranks are distributed among layers. The mean rank is the same for all. */
typedef enum {
    LK_RANK_UNIFORM, /* the same everywhere */
    LK_RANK_ENERGY,  /* minimize the sum of relative errors */
    LK_RANK_FISHER,  /* proportional to a group's Fisher information; K and V compete (Palu) */
} lk_compress_ranks;

/* Numbers of the matrices in a sidecar. */
typedef enum {
    LK_NUMBERS_Q8, /* bytes, and a scale for each row */
    LK_NUMBERS_F16,
    LK_NUMBERS_F32,
} lk_compress_numbers;

/* The enumerations above. */
typedef enum {
    LK_COMPRESS_METHOD,
    LK_COMPRESS_SVD,
    LK_COMPRESS_RANKS,
    LK_COMPRESS_NUMBERS,
} lk_compress_choice;

/* Set *name to value i of an enumeration as `lowkey compress` spells it, for example "palu"; it is
 * static. False if there is no such value. */
bool lk_compress_name(lk_compress_choice choice, size_t i, const char **name);

typedef struct {
    lk_compress_method method;
    lk_compress_svd svd;
    lk_compress_ranks ranks;
    /* Share of the width, at most 1; 0: the method's default (palu and tale 0.5, oscar 1). Not with
     * LK_SVD_MEAN_POOL. */
    double rank;
    int32_t quantum; /* ranks are multiples of this; 0: 8 */
    int32_t group;   /* KV heads per group; 0: the method's default; -1: all */
    int32_t n_ctx;   /* tokens of a window; 0: 2048, or the trained length if shorter */
    int32_t n_skip;  /* first rows of a window to ignore; 0: 4 for tale, else none; -1: none */
    int32_t fisher_tokens; /* tokens of the text to differentiate; 0: 8192 */
    int32_t fisher_ctx;    /* tokens of their windows; 0: 512, or n_ctx if shorter */
    bool mean;             /* subtract the mean of the rows */
    /* Scale K's components by the channel statistics of the text. Recipes then need none of their
     * own (nosigma), and sessions share K's up-projection. Not for LK_METHOD_KVHEADS and
     * LK_METHOD_OSCAR. */
    bool equalize;
    bool truncate;               /* store no more components than the ranks need */
    lk_compress_numbers numbers; /* of the sidecar */
    lk_progress progress;        /* may be NULL; counts tokens, then fitting as so many tokens */
    void *user;
} lk_compress_opts;

/* The statistics of a text and the bases computed from them. */
typedef struct lk_compress lk_compress;

/* Check the options without computing anything, for a text of n_tok tokens (SIZE_MAX: not known
 * yet). LK_E_ARG names the option that is wrong, LK_E_UNSUPPORTED what the model does not allow. */
lk_status lk_compress_check(lk_model *model, const lk_compress_opts *opts, size_t n_tok,
                            lk_err *err);

/* Also checks. tok[0..n_tok) is the calibration text; with LK_SVD_PLAIN it may be NULL, 0.
 * LK_SVD_PLAIN and LK_SVD_OUTPUT need a model opened with no_repack, LK_RANK_FISHER* one
 * with f32 weights. *out is owned: lk_compress_free. `model` must outlive it. */
lk_status lk_compress_new(lk_compress **out, lk_model *model, const lk_compress_opts *opts,
                          const int32_t *tok, size_t n_tok, lk_err *err);
void lk_compress_free(lk_compress *c);

/* Evaluate the text that was passed to lk_compress_new. `path`: file that holds the statistics
 * meanwhile; if it exists, the call continues from it. NULL: none. */
lk_status lk_compress_calibrate(lk_compress *c, const int32_t *tok, size_t n_tok, const char *path,
                                lk_err *err);
lk_status lk_compress_fit(lk_compress *c, lk_err *err);

/* Write the sidecar to `path`, or leave what is there unchanged. */
lk_status lk_compress_write(const lk_compress *c, const char *path, lk_err *err);

/* Bases of one layer after lk_compress_fit. */
typedef struct {
    const char *name;    /* "k", "kpre" (before RoPE) or "v"; static */
    int32_t n_group;     /* 0: no such basis */
    int32_t width;       /* channels of a group */
    const int32_t *rank; /* [n_group], borrowed until lk_compress_free */
    double lost;         /* share of the rows' power that is lost at these ranks */
    /* Share of the sum of the rows' singular values that the largest quarter and half of them have
     * ("Effectively Compress KV Heads", figure 1); 0 unless the components are of the rows. */
    double singular_quarter, singular_half;
} lk_compress_basis;

/* The i-th kind of basis of a layer; false past the last kind. */
bool lk_compress_get_basis(const lk_compress *c, int32_t layer, int32_t i, lk_compress_basis *out);

/* ---- train ---- */

/* Result of one layer. Losses are squared errors of the attention block's output, on validation
 * sequences, relative to the policy without LESS: 1 is the policy alone, 0 the full cache. */
typedef struct {
    int32_t layer, best_epoch, n_epoch;
    double loss;    /* of the best epoch, which is kept */
    double seconds; /* of this run */
} lk_less_layer;

typedef struct {
    /* The cache that the networks complement. */
    const char *policy;    /* "h2o", "lambda" or "tova"; required */
    const int32_t *budget; /* [n_budget] rows per KV head that the policy keeps between steps.
                              With several budgets, sequences use them in turn; the resulting
                              networks serve all of them */
    int32_t n_budget;
    const int32_t *prompt; /* [n_prompt] tokens at the start of a sequence that are prefilled: rows
                              are evicted all at once at their end. Sequences use them in turn */
    int32_t n_prompt;      /* 0: all tokens are evaluated as in decoding */

    /* The text. */
    int32_t n_ctx; /* tokens per sequence; 0: 1024 */
    int32_t n_seq; /* sequences; 0: as many as the text has */
    float valid;   /* share of the sequences used for validation; 0: 0.1 */

    /* The networks. */
    const char *from;  /* sidecar to fine-tune, whose sizes replace the next three; NULL: none */
    int32_t n_feature; /* features R; 0: 8 */
    int32_t n_hidden;  /* hidden units R'; 0: 512 */
    int32_t share;     /* 0: one network per head; 1: the query heads of a KV head share one;
                          2: all heads of a layer share one */
    bool plain;        /* train as in the paper: no per-head scale estimated from the text; steps
                          of two sequences, whose positions all count, with equal weights; the
                          rate is halved after each quarter of the epochs */

    /* The optimization: Adam, one sequence per step. */
    int32_t n_epoch; /* 0: 40; in the second half the rate is halved six times */
    int32_t n_query; /* query positions sampled from a sequence in each step; 0: 256 */
    float rate;      /* learning rate; 0: 0.001 */
    float dropout;   /* share of hidden units dropped, below 1; 0: none */
    uint64_t seed;

    /* Layers of this call. A sidecar is written only if they are all layers of the model. Several
     * processes may train different layers; the last call then joins them. */
    int32_t first_layer, n_layer; /* n_layer 0: all from first_layer on */

    lk_progress progress; /* may be NULL; counts sequences, collected or trained on */
    void (*layer_done)(void *user, const lk_less_layer *layer); /* may be NULL */
    void *user;
} lk_less_opts;

/* Train LESS networks for the layers of `model` on tok[0..n_tok) and write them to `path`, a
 * sidecar. The bases of the sidecar that the model was opened with, if any, are copied into it.
 * PATH.examples and PATH.layer-N hold the state of an unfinished run: the next call with the same
 * arguments continues from there. The same seed gives the same sidecar.
 * LK_E_ARG, LK_E_UNSUPPORTED (sliding windows, ALiBi), LK_E_IO, LK_E_NOMEM, LK_E_CANCELLED;
 * LK_E_FORMAT if a loss is not finite: the last good state is kept. */
lk_status lk_train_less(lk_model *model, const int32_t *tok, size_t n_tok, const lk_less_opts *opts,
                        const char *path, lk_err *err);

/* ---- recover ---- */

/* A measurement while adapters are trained: means over the validation sequences. */
typedef struct {
    int64_t step, n_step; /* training steps done, and in total */
    int64_t best_step;    /* the step with the smallest kl so far: this one, or an earlier one */
    double kl;            /* KL(full cache || recipe) in nats */
    double kl_stderr;     /* over sequences */
} lk_lora_report;

typedef struct {
    int32_t n_ctx; /* tokens per sequence; 0: 512 */
    float valid;   /* share of the sequences used for validation; 0: 0.05; at least one */
    int32_t rank;  /* of the adapters; 0: 32 */
    float alpha;   /* they are multiplied by alpha / rank; 0: 32 */
    /* Learning rates, after a warm-up and before a cosine decay: layer by layer (0: 0.0002), and
     * end to end (0: a fifth of it; without the part layer by layer, the same). */
    float rate, end_rate;
    int32_t batch; /* sequences of a step; 0: 1 */
    /* Passes over the sequences: first each layer's attention learns the full one's output from the
     * full model's inputs, then all layers together learn its predictions. Negative: none. */
    int32_t n_layer_epoch;        /* 0: 1 */
    int32_t n_epoch;              /* 0: 1 */
    int32_t first_layer, n_layer; /* layers that get adapters; n_layer 0: all from first_layer on */
    uint64_t seed;
    lk_progress progress; /* may be NULL; counts steps, weighted by their cost */
    void (*report)(void *user, const lk_lora_report *report); /* may be NULL */
    void *user;
} lk_lora_opts;

/* Train low-rank adapters of W_Q, W_K, W_V and W_O, so that `model` with a cache of `recipe`
 * predicts like the model with a full cache, on tok[0..n_tok), and write them to `path`, a sidecar
 * that also has what the sidecar of the model has. The divergence on the validation sequences is
 * measured at the start, after each tenth of the steps and between the two parts; the weights with
 * the smallest one are written. The model is opened with LK_WEIGHTS_F32 and no_repack. PATH.lora
 * holds the state of an unfinished run: the next call with the same arguments continues from there
 * and gives the same sidecar.
 * LK_E_ARG, LK_E_UNSUPPORTED (other blocks than llama's, recipes that evict), LK_E_IO, LK_E_NOMEM,
 * LK_E_CANCELLED; LK_E_FORMAT if a loss is not finite. */
lk_status lk_train_lora(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                        const lk_lora_opts *opts, const char *path, lk_err *err);

/* ---- export ---- */

/* Numbers of the matrices that an export changes. */
typedef enum {
    LK_EXPORT_AUTO, /* as lowkey holds them: q8_0 if the file's are quantized, else the same type */
    LK_EXPORT_Q8_0,
    LK_EXPORT_F16,
    LK_EXPORT_F32,
} lk_export_numbers;

/* Set *name to value i as `lowkey export` spells it, for example "q8_0"; it is static. False if
 * there is no such value. */
bool lk_export_numbers_name(size_t i, const char **name);

typedef struct {
    lk_export_numbers numbers;
    bool adapters_only;   /* leave out whatever else the sidecar has */
    lk_progress progress; /* may be NULL; counts bytes of the model */
    void *user;
} lk_export_opts;

typedef struct {
    int64_t n_tensor, n_changed; /* tensors in the file, and how many were changed */
    int32_t n_head_kv;           /* KV heads of the written model */
} lk_export_result;

/* Write the model of `model_path`, with what the sidecar changes in its weights, to `path`: a plain
 * GGUF file that any program runs that knows the architecture. Adapters are added to W_Q, W_K, W_V
 * and W_O. Bases are multiplied into them, which leaves one KV head per group; only for models
 * without RoPE and bases of rank d_head (LK_METHOD_KVHEADS). All other tensors, metadata and
 * vocabulary stay as they are. Memory: the attention weights of one layer.
 * LK_E_UNSUPPORTED if a plain model cannot have what the sidecar has, or a type does not fit;
 * LK_E_ARG for a sidecar of another model, or with nothing to export; LK_E_FORMAT for damaged files
 * and numbers that become too large; LK_E_IO, LK_E_NOMEM, LK_E_CANCELLED. */
lk_status lk_export(const char *model_path, const char *sidecar_path, const lk_export_opts *opts,
                    const char *path, lk_export_result *result, lk_err *err);

/* ---- tune: bits of each layer, head group, side and age ----
 *
 *   lk_tune_new        check the options
 *   lk_tune_measure    measure what each side of each head group loses at a few numbers of bits
 *   lk_tune_solve      find, measure and improve a recipe of a given size
 *   lk_tune_check      measure recipes on another text
 *
 * Recipes have the form "sink 4: f16; body: ...; recent N%: ...; window 32: rot8", with the codec
 * rot of 1 to 6 or 8 bits for K and for V of each head group in the body and in the level 'recent'.
 * A head group is one KV head of a layer or, if there are many, some neighbors. All KL is measured
 * by lk_compare. Results are kept in a file, from which an interrupted run with the same arguments
 * continues: it finds the same recipes as a run without interruption. */

/* A model, a text, and what is measured on it so far. */
typedef struct lk_tune lk_tune;

typedef struct {
    bool estimate;       /* estimate single groups instead of measuring them, from the first of
                             `bits` on: one prompt per chunk */
    int32_t n_ctx;       /* tokens of a session whose bytes count; 0: the same as `chunk` */
    int32_t chunk;       /* tokens per chunk, at least 4; 0: 1024, or 4096 for an estimate */
    int32_t n_chunk;     /* chunks to measure on, spread over the text; 0: 2 */
    int32_t n_scored;    /* predictions that are scored, at the end of a chunk, after a prompt; 0:
                             those of the second half, without a prompt but for single groups */
    const int32_t *bits; /* [n_bits] numbers of bits to measure at: 1 to 6 or 8, increasing */
    size_t n_bits;       /* at most 6; 0: {2} */
    int32_t max_groups;  /* head groups of a layer, at most 8; 0: 8; 1: all heads have equal bits */
    int32_t min_k_bits;  /* fewest bits of keys in a recipe: 1 to 6 or 8; 0: 2. Keys of 1 bit lose
                             little in short chunks and much in longer contexts */
    bool no_prompt;      /* measure single groups without an exact prompt too, in twice the time */
    int32_t n_round;     /* rounds of measuring variants of a recipe; 0: 2; -1: none */
    bool fast;           /* only codecs that all CPUs read fast: no trellis-coded levels */
    uint64_t max_bytes;  /* limit for the sessions that are measured at a time; 0: 768 MiB */
    const char *state;   /* path of the file of results, borrowed; NULL: none */
    lk_progress progress; /* may be NULL; counts recipes x tokens of each call */
    void *user;
} lk_tune_opts;

/* Prepare to tune recipes for `model`, which must outlive *out, on tok[0..n_tok). The results of
 * opts->state are read if it exists. *out is owned: lk_tune_free. LK_E_ARG for options out of
 * range, a text of less than n_chunk chunks, and a state of another model or other weights;
 * LK_E_FORMAT for a damaged state; LK_E_UNSUPPORTED if the model's heads cannot be stored as rot;
 * LK_E_IO, LK_E_NOMEM. */
lk_status lk_tune_new(lk_tune **out, lk_model *model, const int32_t *tok, size_t n_tok,
                      const lk_tune_opts *opts, lk_err *err);
void lk_tune_free(lk_tune *tune);

/* Measure one head group and side at a time at opts->bits, with a full cache otherwise; then what
 * share of a side's loss is due to the newest rows. LK_E_CANCELLED, LK_E_IO, LK_E_FULL,
 * LK_E_NOMEM. */
lk_status lk_tune_measure(lk_tune *tune, lk_err *err);

/* Change opts->fast for what is solved from now on. After lk_tune_measure, nothing is measured
 * again. LK_E_NOMEM. */
lk_status lk_tune_set_fast(lk_tune *tune, bool fast, lk_err *err);

/* KL that a side (0: K, 1: V) of a layer alone costs at 1 to 6 or 8 bits: the sum of those of its
 * head groups, measured or interpolated. 0 before lk_tune_measure, and for other arguments. */
double lk_tune_kl(const lk_tune *tune, int32_t layer, int side, int bits);

typedef struct {
    lk_recipe *recipe;          /* owned: lk_recipe_free */
    lk_compare_result measured; /* on the text that tunes it */
    double estimate;            /* of measured.kl_mean: the sum over head groups and sides */
    lk_plan plan;               /* at n_ctx tokens */
} lk_tuned;

/* Find the recipe with the smallest measured KL whose cache has at most max_bytes at n_ctx tokens.
 * After lk_tune_measure. LK_E_ARG if no recipe is that small; otherwise as lk_tune_measure. */
lk_status lk_tune_solve(lk_tune *tune, uint64_t max_bytes, lk_tuned *out, lk_err *err);

/* The same, with the size of the recipe `like`: no larger than it in the plan at n_ctx tokens. If
 * these are the tokens of a chunk, and groups were not estimated, it is also no larger when both
 * are measured: while a text is evaluated step by step, blocks are partly filled, and a cache with
 * many codecs is up to some percent larger than its plan. of_like: `like`, measured on the same
 * text, or NULL. */
lk_status lk_tune_solve_like(lk_tune *tune, const lk_recipe *like, lk_tuned *out,
                             lk_compare_result *of_like, lk_err *err);

/* Find a small recipe whose measured KL is at most max_kl. LK_E_ARG if none is found. */
lk_status lk_tune_solve_kl(lk_tune *tune, double max_kl, lk_tuned *out, lk_err *err);

/* The estimate alone, without measuring: *kl of the best recipe of at most max_bytes, and its
 * bytes. Errors as of lk_tune_solve. */
lk_status lk_tune_estimate(lk_tune *tune, uint64_t max_bytes, double *kl, uint64_t *bytes,
                           lk_err *err);

/* lk_compare of the recipes on the first n_chunk chunks (0: all) of tok[0..n_tok), with results
 * from the state if they are there. results: [n_recipe]. Errors as of lk_compare, and as of
 * lk_tune_measure. */
lk_status lk_tune_check(lk_tune *tune, const lk_recipe *const *recipe, size_t n_recipe,
                        const int32_t *tok, size_t n_tok, int32_t n_chunk,
                        lk_compare_result *results, lk_err *err);

/* ---- tune: rows of each layer ---- */

typedef struct {
    int32_t chunk;        /* tokens per chunk, at least 8; a chunk is read and replayed by itself */
    int32_t n_ctx;        /* tokens of a session whose bytes count; 0: the same as `chunk` */
    lk_progress progress; /* may be NULL; counts tokens */
    void *user;
} lk_budget_opts;

/* A recipe like `like`, which keeps a percentage by replay (recipe/policy.h), in which each layer
 * keeps its own share: the rows of all layers whose scores are above one threshold, on all whole
 * chunks of tok[0..n_tok). Layers with a sliding window have the share of `like`. In at most its
 * bytes. *out is owned: lk_recipe_free. LK_E_ARG
 * for another kind of recipe or a text of less than one chunk; otherwise as lk_session_sync. */
lk_status lk_tune_budgets(lk_recipe **out, lk_model *model, const lk_recipe *like,
                          const int32_t *tok, size_t n_tok, const lk_budget_opts *opts,
                          lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
