/* Sums over rows, from which bases are made: how many rows, their sum, and their second moments
 * sum x x^T. A row is n_group parts of `width` numbers; parts of different groups are not crossed. */
#ifndef LK_LOWRANK_MOMENTS_H
#define LK_LOWRANK_MOMENTS_H

#include "base/err.h"
#include "base/ledger.h"

#include <stdbool.h>
#include <stdio.h>

struct lk_moments {
    int32_t n_group, width;
    uint64_t n;     /* rows */
    double *sum;    /* [n_group][width] */
    double *second; /* [n_group][width][width], the lower triangle; behind sum in one piece */
};

/* Memory of `ledger`, all zero. */
lk_status lk_moments_new(struct lk_moments *m, int n_group, int width, struct lk_ledger *ledger,
                         lk_err *err);
void lk_moments_free(struct lk_moments *m, struct lk_ledger *ledger);

/* Add `rows` rows of group g alone: x [rows][width] with row stride `stride`. Call for every group with the
 * same number of rows, then count them. */
void lk_moments_add(struct lk_moments *m, int g, const double *x, int64_t rows, int64_t stride);
void lk_moments_count(struct lk_moments *m, uint64_t rows);

/* Write and read everything but the shape, which must be set. false: the file ends or cannot be written. */
bool lk_moments_write(const struct lk_moments *m, FILE *file, uint64_t *hash);
bool lk_moments_read(struct lk_moments *m, FILE *file, uint64_t *hash);

/* FNV-1a, going on from `hash`; begin with LK_HASH_BEGIN. */
#define LK_HASH_BEGIN 14695981039346656037u
uint64_t lk_hash(uint64_t hash, const void *data, size_t size);

#endif
