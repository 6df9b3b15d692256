/* Trellis-coded quantization: tables and the reference encoder. trellis.h describes both. */
#include "codec/trellis.h"

#include <string.h>

/* Levels, found by alternating between encoding words of Gaussian rows and replacing each level by
 * the mean of the values that use it (Lloyd's algorithm), from random assignments of equally
 * probable levels. Those of 3 and 4 bits are for rows of 64 channels, divided by their maximum. */
const uint8_t lk_trellis_table[5][LK_TRELLIS_LEVELS] = {
    [1] = {96, 88, 42, 32,  71, 126, 5,  52, 62, 94,  40, 71,  85, 41, 46, 89,
           68, 95, 4,  55,  78, 81,  35, 57, 38, 51,  76, 89,  31, 42, 75, 106,
           42, 45, 89, 77,  33, 78,  57, 92, 8,  49,  71, 117, 36, 82, 87, 42,
           31, 48, 66, 108, 35, 43,  79, 95, 79, 118, 13, 51,  78, 86, 22, 51},
    [2] = {23, 49, 67, 90,  42, 60, 80, 105, 26, 50, 66, 85,  36, 57, 73,  101,
           47, 72, 93, 120, 17, 35, 56, 67,  55, 29, 86, 126, 0,  81, 103, 58,
           2,  33, 56, 77,  52, 71, 97, 83,  15, 73, 46, 101, 34, 44, 63,  83,
           33, 57, 77, 102, 33, 49, 69, 100, 40, 51, 69, 84,  23, 60, 85,  116},
    [3] = {0,  26, 54, 70,  17, 49, 34, 42,  27, 37, 48,  59, 40, 11, 62, 51,
           85, 85, 98, 126, 57, 64, 76, 102, 68, 79, 108, 90, 79, 70, 92, 117,
           0,  26, 54, 70,  17, 49, 34, 42,  27, 37, 48,  59, 40, 11, 62, 51,
           85, 85, 98, 126, 57, 64, 76, 102, 68, 79, 108, 90, 79, 70, 92, 117},
    [4] = {6,  21, 32, 39, 46, 58, 62, 53, 65, 78, 73, 70, 84, 92, 103, 122,
           16, 35, 26, 48, 39, 44, 51, 57, 61, 68, 82, 90, 76, 83, 115, 100,
           23, 12, 42, 32, 47, 50, 56, 64, 70, 64, 79, 74, 92, 87, 96,  110,
           0,  28, 37, 44, 52, 54, 59, 60, 69, 74, 66, 80, 87, 97, 106, 126},
};

/* The Viterbi algorithm over all symbols of a word, from symbol `end` - 1 down to `end`, around the
 * word. The state after symbol end - 1 is `state`, and the one before symbol `end` is the same;
 * state < 0: both are free. */
static void find_path(const struct lk_trellis *t, const float *value, int end, int state,
                      uint8_t *index) {
    const float none = 3e38f;
    uint8_t best[LK_TRELLIS_MAX_SYMBOLS][LK_TRELLIS_MAX_STATES];
    float cost[LK_TRELLIS_MAX_STATES], next[LK_TRELLIS_MAX_STATES];
    int n = t->n_symbol;
    for (int i = 0; i < t->n_state; i++) cost[i] = state < 0 || i == state ? 0 : 1e38f;
    for (int k = 1; k <= n; k++) {
        int p = (end + n - k) % n;
        for (int i = 0; i < t->n_state; i++) next[i] = none;
        for (int i = 0; i < t->n_index; i++) {
            float error = value[p] - (float)(t->table[i] - LK_TRELLIS_TOP / 2);
            float sum = cost[lk_trellis_next_state(t, i)] + error * error;
            int own = lk_trellis_own_state(t, i);
            if (!(sum < next[own])) continue;
            next[own] = sum;
            best[p][own] = (uint8_t)i;
        }
        memcpy(cost, next, sizeof cost);
    }
    int at = state < 0 ? 0 : state;
    for (int i = 1; state < 0 && i < t->n_state; i++)
        if (cost[i] < cost[at]) at = i;
    for (int k = 0; k < n; k++) {
        int p = (end + k) % n;
        index[p] = best[p][at];
        at = lk_trellis_next_state(t, index[p]);
    }
}

void lk_trellis_encode(const struct lk_trellis *t, const float *value, uint8_t *index) {
    int middle = t->n_symbol / 2;
    find_path(t, value, 0, -1, index);
    find_path(t, value, middle, lk_trellis_own_state(t, index[middle]), index);
}

void lk_trellis_levels(const struct lk_trellis *t, int d_head, const uint8_t *code,
                       uint8_t *level) {
    int n = t->n_symbol, n_group = d_head * 4 / n;
    for (int group = 0; group < n_group; group++)
        for (int word = 0; word < 8; word++)
            for (int p = 0; p < n; p++) {
                int own = code[lk_trellis_place(t, group, word, p)], index = own, shift = t->bits;
                for (int k = 1; t->bits != 3 && shift < 6; k++, shift += t->bits)
                    index |= code[lk_trellis_place(t, group, word, (p + k) % n)] << shift;
                if (t->bits == 3)
                    index = (own & 3) | (own >> 2) << 4 |
                            (code[lk_trellis_place(t, group, word, (p + 1) % n)] & 3) << 2;
                level[lk_trellis_place(t, group, word, p)] = t->table[index & 63];
            }
}
