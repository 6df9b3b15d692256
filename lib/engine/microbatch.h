/* Micro-batches: groups of the sequences of a batch, which the stages of a model compute at the
 * same time (pipeline.h).
 *
 * With P stages and G groups, stage 0 computes group 1 while stage 1 computes group 0, and so on.
 * Each group reads the weights of the stage, so more groups pay if the caches are large compared
 * with the weights. Times are estimated in bytes. Reading b bytes and multiplying n rows by them
 * takes as long as reading
 *
 *     b + n * b / LK_ROWS_PER_READ
 *
 * Let w be the bytes of the weights, and b_i those of the rows that sequence i attends to. Its n_i
 * tokens cost c_i = b_i + n_i * (w + b_i) / LK_ROWS_PER_READ, and a group costs w plus the c_i of
 * its sequences: t_g in all stages together. If the slowest stage needs the share a of it, the
 * groups pass all stages in
 *
 *     a * sum of t_g + (1 - a) * max of t_g
 *
 * which is (1 + (G - 1) * a) * (w + C / G) for groups of equal cost. a is the share of the layers
 * in the stage that has most of them, because groups pay with long caches only. Weights are divided
 * evenly, and layers are not if the last stage has a large output matrix. The exchange of hidden
 * states is not counted. */
#ifndef LK_ENGINE_MICROBATCH_H
#define LK_ENGINE_MICROBATCH_H

#include <stddef.h>
#include <stdint.h>

enum {
    LK_MAX_MICROBATCHES = 16,
    LK_MICROBATCH_GAIN = 10, /* more groups have to save one part in so many: it is an estimate */
    LK_ROWS_PER_READ = 8,    /* products with so many rows take as long as reading the weights */
};

/* Group g has sequences [end[g - 1], end[g]), the first one from 0 on. */
struct lk_microbatches {
    int n;
    size_t end[LK_MAX_MICROBATCHES];
};

/* The cost of a sequence of n_tok tokens that attends to rows of `bytes` bytes. */
static inline uint64_t lk_microbatch_cost(uint64_t weights, uint64_t bytes, size_t n_tok) {
    return bytes + n_tok * (weights + bytes) / LK_ROWS_PER_READ;
}

/* Groups of n > 0 sequences of these costs, in their order. No division into as many or fewer
 * groups passes all stages faster, and none into more saves a part in LK_MICROBATCH_GAIN. The
 * slowest stage has `most` of `all` layers. The result depends on the arguments only. */
struct lk_microbatches lk_microbatches_choose(const uint64_t *cost, size_t n, uint64_t weights,
                                              int most, int all);

#endif
