/* Sums over rows, and their file format. */
#include "lowrank/moments.h"

#include "base/fnv1a.h"
#include "lowrank/linalg.h"

/* Bytes of sum and second. */
static size_t moments_bytes(const struct lk_moments *m) {
    return (size_t)m->n_group * m->width * (m->width + 1) * sizeof(double);
}

lk_status lk_moments_new(struct lk_moments *m, int n_group, int width, struct lk_ledger *ledger,
                         lk_err *err) {
    *m = (struct lk_moments){.n_group = n_group, .width = width};
    m->sum = lk_alloc(ledger, LK_FOR_SCRATCH, moments_bytes(m));
    if (!m->sum)
        return lk_fail(err, LK_E_NOMEM,
                       "no memory for the second moments of %d x %d channels; use smaller groups",
                       n_group, width);
    m->second = m->sum + (size_t)n_group * width;
    return LK_OK;
}

void lk_moments_free(struct lk_moments *m, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_SCRATCH, m->sum, moments_bytes(m));
    *m = (struct lk_moments){0};
}

void lk_moments_add(struct lk_moments *m, int g, const double *x, int64_t rows, int64_t stride) {
    double *sum = m->sum + (size_t)g * m->width;
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < m->width; c++) sum[c] += x[i * stride + c];
    lk_gram_add(m->second + (size_t)g * m->width * m->width, m->width, x, rows, stride);
}

void lk_moments_count(struct lk_moments *m, uint64_t rows) { m->n += rows; }

bool lk_moments_write(const struct lk_moments *m, FILE *file, uint64_t *hash) {
    size_t size = moments_bytes(m);
    *hash = lk_fnv1a(lk_fnv1a(*hash, &m->n, sizeof m->n), m->sum, size);
    return fwrite(&m->n, sizeof m->n, 1, file) == 1 && fwrite(m->sum, size, 1, file) == 1;
}

bool lk_moments_read(struct lk_moments *m, FILE *file, uint64_t *hash) {
    size_t size = moments_bytes(m);
    if (fread(&m->n, sizeof m->n, 1, file) != 1 || fread(m->sum, size, 1, file) != 1) return false;
    *hash = lk_fnv1a(lk_fnv1a(*hash, &m->n, sizeof m->n), m->sum, size);
    return true;
}
