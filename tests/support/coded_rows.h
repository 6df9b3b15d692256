/* Random rows, the same in every run, and their way through a codec. For one test program each:
 * the state is in the file that includes this. */
#ifndef LK_SUPPORT_CODED_ROWS_H
#define LK_SUPPORT_CODED_ROWS_H

#include "codec/codec.h"

#include <math.h>
#include <stdint.h>

enum { MAX_ROWS = 128 };

static uint64_t random_state = 1;

/* In (0, 1). */
static inline double uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(random_state >> 11) + 0.5) / 9007199254740992.0;
}

static inline float gaussian(void) {
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static float x[MAX_ROWS * LK_MAX_D_HEAD], got[MAX_ROWS * LK_MAX_D_HEAD];
static unsigned char head[4 * MAX_ROWS * LK_MAX_D_HEAD];

/* x: n rows of d channels with an offset per channel, as K has them. */
static inline void draw_rows(int n, int d) {
    float offset[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++) offset[c] = 2 * gaussian();
    for (int i = 0; i < n * d; i++) x[i] = gaussian() + offset[i % d];
}

/* Encode n rows of x into `head`, and decode them into `got`. */
static inline void round_trip(const struct lk_codec *codec, enum lk_side side, int n, int d) {
    struct lk_part part = {codec, side, d, lk_codec_block_rows(codec, side), NULL};
    lk_codec_encode(&part, head, 0, n, x, (size_t)d);
    lk_codec_decode(&part, head, 0, n, got, (size_t)d);
}

/* Between the first n values of `got` and `x`. */
static inline double squared_error(int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += pow((double)got[i] - x[i], 2);
    return sum;
}

#endif
