/* lowkey_lab.h - measuring, training and compressing, on top of lowkey.h.
 *
 * The rules at the top of lowkey.h hold here too. Link with lowkey_lab and lowkey.
 */
#ifndef LOWKEY_LAB_H
#define LOWKEY_LAB_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- comparing recipes on a text ------------------------------------------------------------ */

typedef struct {
    int32_t n_ctx;        /* tokens per chunk; predictions of its second half are scored */
    int32_t n_chunk;      /* 0: as many as the text has                                  */
    int32_t n_step;       /* tokens read at once, 1 to LK_EVAL_MAX; 0: 32. Rows are re-encoded
                             after a step, so they stay exact up to n_step - 1 tokens longer
                             than in a decoder, which steps by 1                        */
    lk_progress progress; /* may be NULL; units are tokens x recipes                     */
    void *user;
} lk_compare_opts;

typedef struct {
    double ppl, ppl_stderr;    /* perplexity                                              */
    double kl_mean, kl_stderr; /* KL(full cache || recipe) of next-token distributions, nats */
    double kl_p99, kl_p999;
    double top1; /* share of positions whose most probable token agrees     */
    double bytes_per_token, bits_per_value; /* at the end of a chunk, from the ledger            */
    double tokens_per_second; /* through this cache, matmuls included                    */
    uint64_t n_scored;
} lk_compare_result;

/* Read tok[0..n_tok) in chunks of n_ctx through every recipe and through a full f16 cache, and
 * compare the distributions. results: [n_recipe]. LK_E_ARG where the text is shorter than a chunk. */
lk_status lk_compare(lk_model *model, const lk_recipe *const *recipe, size_t n_recipe,
                     const int32_t *tok, size_t n_tok, const lk_compare_opts *opts,
                     lk_compare_result *results, lk_err *err);

/* ---- training ------------------------------------------------------------------------------- */

/* LESS's networks of one layer, trained. Losses are of the attention block's output against the full
 * cache's, on sequences kept back: 1 is what the policy alone gives, 0 the full cache. */
typedef struct {
    int32_t layer, best_epoch, n_epoch;
    double loss;    /* of the best epoch, which is kept      */
    double seconds; /* this run spent on the layer           */
} lk_less_layer;

typedef struct {
    const char *policy;    /* "h2o", "lambda" or "tova"                                          */
    const int32_t *budget; /* [n_budget] rows of a KV head that the policy holds between steps; if
                              several, sequences take turns, and the networks serve all of them   */
    int32_t n_budget;
    int32_t n_ctx; /* tokens of a sequence; 0: 1024                                      */
    int32_t n_seq; /* sequences; 0: as many as the text has                              */
    const char
        *from; /* a sidecar whose networks, R, R' and sharing are trained further; NULL: new ones */
    int32_t n_feature; /* R; 0: 8                                                            */
    int32_t n_hidden;  /* R'; 0: 512                                                         */
    int32_t share;     /* 0: networks for every head; 1: the query heads of a KV head share
                              theirs; 2: all heads of a layer share theirs                       */
    int32_t n_epoch;   /* 0: 40; in the second half of them the rate is halved six times     */
    int32_t n_query;   /* positions of a sequence that a step looks at, others each time; 0: 256 */
    float rate;        /* of Adam; 0: 0.001                                                  */
    float dropout;     /* of hidden values, below 1; 0: none                                 */
    float valid;       /* share of sequences kept back; 0: 0.1                               */
    bool plain;        /* features without levels, as the paper has them                     */
    int32_t first_layer, n_layer; /* train these alone (0: all that follow), and write no sidecar
                              unless they are all: several calls may share the layers             */
    uint64_t seed;
    lk_progress progress; /* may be NULL; units are sequences read or learned from              */
    void (*layer_done)(void *user, const lk_less_layer *layer); /* may be NULL            */
    void *user;
} lk_less_opts;

/* Train LESS's networks for every layer of `model` on tok[0..n_tok), and write them as a sidecar to
 * `path`. Files beside it, PATH.examples and PATH.layer-N, hold what a run that ends early has done;
 * the next run with the same arguments continues there, and the same seed gives the same sidecar.
 * LK_E_ARG, LK_E_UNSUPPORTED (sliding windows, ALiBi), LK_E_IO, LK_E_NOMEM, LK_E_CANCELLED; LK_E_FORMAT
 * where a loss is not finite, with the last good state kept. */
lk_status lk_train_less(lk_model *model, const int32_t *tok, size_t n_tok, const lk_less_opts *opts,
                        const char *path, lk_err *err);

/* ---- measuring speed ------------------------------------------------------------------------ */

typedef struct {
    const size_t *depth; /* [n_depth] tokens in the cache when measuring begins, increasing    */
    size_t n_depth;
    int32_t n_prefill;    /* tokens read at once at each depth; 0: not measured                 */
    int32_t n_decode;     /* tokens decoded one by one at each depth; 0: not measured           */
    int32_t n_repeat;     /* times, from the same depth                                         */
    uint64_t max_bytes;   /* limit of the caches and scratch; 0: none                           */
    lk_progress progress; /* may be NULL; units are guessed shares of the time                  */
    void *user;
} lk_bench_opts;

typedef struct {
    size_t depth;
    double prefill_tps, decode_tps; /* tokens per second, median of the repeats; 0: not measured */
    double prefill_tps_best,
        decode_tps_best; /* of the fastest repeat                                     */
    uint64_t
        n_repeated; /* of the depth, tokens whose rows were repeated instead of computed             */
    uint64_t
        n_tok; /* tokens held when the bytes were counted: the depth; from none on, what was read or decoded */
    uint64_t cache_bytes;
    double bits_per_value;
} lk_bench_result;

/* Measure the speed of `recipe` at each depth. The first 512 tokens of a depth are read from the text
 * tok[0..n_tok); the others get the K and V rows of the text, which is read once, over and over: what
 * they cost is the same, and what is predicted from them means nothing. Decoding chooses the most
 * probable token; one token before the first is not timed. The cache is kept twice, to return to the
 * depth. results: [n_depth]. */
lk_status lk_bench(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                   const lk_bench_opts *opts, lk_bench_result *results, lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
