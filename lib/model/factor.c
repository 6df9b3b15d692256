/* Weights replaced by their factors: the product of a down-projection and a matrix. */
#include "model/factor.h"

int64_t lk_factor_rows(const struct lk_factor *f) {
    int64_t n = 0;
    for (int g = 0; g < f->n_group; g++) n += f->rank[g];
    return n;
}

int64_t lk_segment_rows(const struct lk_row_segment *segment) {
    if (segment->use == LK_ROWS_KEPT) return segment->n;
    if (segment->use == LK_ROWS_SKIPPED) return 0;
    return lk_factor_rows(segment->factor);
}

void lk_factor_apply(const struct lk_factor *f, const float *w, int64_t n_col, float *buf,
                     float *out) {
    enum { COLUMNS = 64 }; /* summed at once */
    for (int g = 0; g < f->n_group; g++)
        for (int j = 0; j < f->rank[g]; j++, out += n_col) {
            const float *down = f->down(f->user, g, j, buf),
                        *rows = w + (int64_t)g * f->width * n_col;
            for (int64_t at = 0; at < n_col; at += COLUMNS) {
                int n = n_col - at < COLUMNS ? (int)(n_col - at) : COLUMNS;
                double sum[COLUMNS] = {0};
                for (int r = 0; r < f->width; r++)
                    for (int c = 0; c < n; c++)
                        sum[c] += (double)down[r] * rows[r * n_col + at + c];
                for (int c = 0; c < n; c++) out[at + c] = (float)sum[c];
            }
        }
}
