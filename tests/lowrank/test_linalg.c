/* The plain loops of linalg_plain.c compared with LAPACK and OpenBLAS. */
#include "lowrank/linalg.h"
#include "test.h"

/* Both are in this program: the plain functions have names of their own. */
#define lk_gram_add plain_gram_add
#define lk_eigen plain_eigen
#define lk_cholesky plain_cholesky
#define lk_tri_mul_left_t plain_tri_mul_left_t
#define lk_tri_mul_right plain_tri_mul_right
#define lk_tri_mul_right_t plain_tri_mul_right_t
#define lk_tri_solve_right plain_tri_solve_right
#define lk_matmul plain_matmul
#define lk_matmul_nt plain_matmul_nt
#include "lowrank/linalg_plain.c"
#undef lk_gram_add
#undef lk_eigen
#undef lk_cholesky
#undef lk_tri_mul_left_t
#undef lk_tri_mul_right
#undef lk_tri_mul_right_t
#undef lk_tri_solve_right
#undef lk_matmul
#undef lk_matmul_nt

enum { MAX = 65, MATRIX = MAX * MAX };

static struct lk_ledger ledger;
static const int sizes[] = {1, 2, 3, 7, 16, 33, MAX};
#define N_SIZE (sizeof sizes / sizeof *sizes)

static void fill(struct random *r, double *x, int n) {
    for (int i = 0; i < n; i++) x[i] = random_gauss(r);
}

/* The largest difference is rounding. */
static void same(const double *plain, const double *lapack, int n, const char *what) {
    double most = 0, scale = 0;
    for (int i = 0; i < n; i++) {
        most = fmax(most, fabs(plain[i] - lapack[i]));
        scale = fmax(scale, fabs(lapack[i]));
    }
    if (!(most <= 1e-12 * scale)) fail_msg("%s of %d values: %g of %g", what, n, most, scale);
}

/* x^T x of a matrix with more rows than columns, plus the identity: positive definite. */
static void positive(struct random *r, double *out, int n) {
    static double x[2 * MATRIX];
    fill(r, x, 2 * n * n);
    memset(out, 0, (size_t)n * n * sizeof *out);
    for (int i = 0; i < n; i++) out[i * n + i] = 1;
    lk_gram_add(out, n, x, 2 * n, n);
    lk_symmetrize(out, n);
}

static void products_are_blas(void **state) {
    static double a[MATRIX], b[MATRIX], plain[MATRIX], blas[MATRIX];
    struct random r = {1};
    for (size_t s = 0; s < N_SIZE; s++)
        for (size_t t = 0; t < N_SIZE; t++) {
            int m = sizes[s], n = sizes[t], k = sizes[(s + t) % N_SIZE];
            fill(&r, a, MATRIX);
            fill(&r, b, MATRIX);
            plain_matmul(plain, a, b, m, n, k);
            lk_matmul(blas, a, b, m, n, k);
            same(plain, blas, m * n, "matmul");
            plain_matmul_nt(plain, a, b, m, n, k);
            lk_matmul_nt(blas, a, b, m, n, k);
            same(plain, blas, m * n, "matmul_nt");
            /* Rows with a stride, added to what is there. */
            memcpy(plain, b, sizeof plain);
            memcpy(blas, b, sizeof blas);
            plain_gram_add(plain, n, a, m, n < MAX ? n + 1 : n);
            lk_gram_add(blas, n, a, m, n < MAX ? n + 1 : n);
            same(plain, blas, MATRIX, "gram_add");
        }
}

static void triangles_are_blas(void **state) {
    static double l[MATRIX], b[MATRIX], plain[MATRIX], blas[MATRIX];
    static const struct {
        void (*plain)(double *, const double *, int);
        void (*blas)(double *, const double *, int);
        const char *name;
    } pair[] = {{plain_tri_mul_left_t, lk_tri_mul_left_t, "tri_mul_left_t"},
                {plain_tri_mul_right, lk_tri_mul_right, "tri_mul_right"},
                {plain_tri_mul_right_t, lk_tri_mul_right_t, "tri_mul_right_t"},
                {plain_tri_solve_right, lk_tri_solve_right, "tri_solve_right"}};
    struct random r = {2};
    lk_err err;
    for (size_t s = 0; s < N_SIZE; s++) {
        int n = sizes[s];
        positive(&r, l, n);
        memcpy(plain, l, sizeof l);
        assert_int_equal(plain_cholesky(plain, n, &err), LK_OK);
        assert_int_equal(lk_cholesky(l, n, &err), LK_OK);
        same(plain, l, n * n, "cholesky");
        fill(&r, b, n * n);
        for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
            memcpy(plain, b, sizeof b);
            memcpy(blas, b, sizeof b);
            pair[i].plain(plain, l, n);
            pair[i].blas(blas, l, n);
            same(plain, blas, n * n, pair[i].name);
        }
    }
}

/* Eigenvalues, and eigenvectors but for their sign. */
static void eigenvectors_are_lapacks(void **state) {
    static double plain[MATRIX], lapack[MATRIX], value[MAX], expected[MAX];
    struct random r = {3};
    lk_err err;
    for (size_t s = 0; s < N_SIZE; s++) {
        int n = sizes[s];
        positive(&r, lapack, n);
        memcpy(plain, lapack, sizeof plain);
        assert_int_equal(plain_eigen(plain, n, value, &ledger, &err), LK_OK);
        assert_int_equal(lk_eigen(lapack, n, expected, &ledger, &err), LK_OK);
        same(value, expected, n, "eigenvalues");
        for (int i = 0; i < n; i++) {
            double cosine = 0;
            for (int k = 0; k < n; k++) cosine += plain[i * n + k] * lapack[i * n + k];
            if (!(fabs(fabs(cosine) - 1) < 1e-9)) fail_msg("row %d of %d: %g", i, n, cosine);
        }
    }
}

static void both_refuse(void **state) {
    double value[3];
    const double indefinite[] = {1, 2, 0, 2, 1, 0, 0, 0, 1}, bad[] = {1, 0, 0, 0, NAN, 0, 0, 0, 1};
    double a[9];
    lk_err err;
    for (int plain = 0; plain < 2; plain++) {
        memcpy(a, indefinite, sizeof a);
        assert_int_equal((plain ? plain_cholesky : lk_cholesky)(a, 3, &err), LK_E_ARG);
        memcpy(a, bad, sizeof a);
        assert_int_equal((plain ? plain_eigen : lk_eigen)(a, 3, value, &ledger, &err), LK_E_ARG);
        memset(a, 0, sizeof a);
        assert_int_equal((plain ? plain_eigen : lk_eigen)(a, 3, value, &ledger, &err), LK_OK);
        assert_true(value[0] == 0 && fabs(a[0]) + fabs(a[1]) + fabs(a[2]) == 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_blas),
        cmocka_unit_test(triangles_are_blas),
        cmocka_unit_test(eigenvectors_are_lapacks),
        cmocka_unit_test(both_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
