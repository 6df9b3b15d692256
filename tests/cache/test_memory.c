/* The ledger matches the memory of the process: resident memory of caches of 32,768 tokens. */
#include "cache/cache.h"
#include "test.h"

#include <sys/wait.h>
#include <unistd.h>

enum {
    N_TOK = 32768,
    PORTION = 128,
    N_LAYER = 12,
    N_HEAD_KV = 3,
    D_HEAD = 64,
    N_CHANNEL = N_HEAD_KV * D_HEAD
};

static double resident_bytes(void) {
    long whole = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) skip();
    if (fscanf(f, "%ld %ld", &whole, &pages) != 2) pages = 0;
    fclose(f);
    return (double)pages * sysconf(_SC_PAGESIZE);
}

/* Fill a cache. *growth: of resident memory, in bytes. Returns the cache's bytes by the ledger. */
static double fill_cache(const char *text, double *growth) {
    lk_recipe *recipe;
    struct lk_cache *cache;
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    struct random r = {1};
    static float x[PORTION * N_CHANNEL];
    for (int i = 0; i < PORTION * N_CHANNEL; i++) x[i] = random_gauss(&r);
    double before = resident_bytes();
    bool ok = lk_recipe_parse(&recipe, text, NULL) == LK_OK &&
              lk_cache_new(&cache, recipe, &shape, &ledger, NULL) == LK_OK;
    for (int at = 0; ok && at < N_TOK; at += PORTION) {
        ok = lk_cache_prepare(cache, 0, N_LAYER, PORTION, PORTION, NULL) == LK_OK;
        for (int i = 0; ok && i < 2 * N_LAYER; i++)
            ok = lk_cache_append(cache, i / 2, i % 2, x, PORTION, NULL) == LK_OK &&
                 lk_cache_age(cache, i / 2, i % 2, NULL) == LK_OK;
    }
    *growth = resident_bytes() - before;
    return ok ? (double)lk_ledger_bytes(&ledger, LK_FOR_CACHE) : 0;
}

/* Like fill_cache, in a child process: memory that one recipe has freed must not serve the next. */
static double fill_in_child(const char *text, double *growth) {
    int ends[2];
    double answer[2] = {0};
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        answer[0] = fill_cache(text, &answer[1]);
        _exit(write(ends[1], answer, sizeof answer) == sizeof answer ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(read(ends[0], answer, sizeof answer), sizeof answer);
    waitpid(child, NULL, 0);
    close(ends[0]), close(ends[1]);
    *growth = answer[1];
    return answer[0];
}

static void test_ledger_matches_resident_memory(void **state) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* red zones and shadow memory are not counted */
#endif
    double best3, f16, best3_ledger = fill_in_child("best-3", &best3),
                       f16_ledger = fill_in_child("f16", &f16);
    print_message("best-3: ledger %.1f MiB, resident %.1f; f16: ledger %.1f MiB, resident %.1f\n",
                  best3_ledger / (1 << 20), best3 / (1 << 20), f16_ledger / (1 << 20),
                  f16 / (1 << 20));
    double ratio = (f16 - best3) / (f16_ledger - best3_ledger);
    assert_true(ratio > 0.95 && ratio < 1.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ledger_matches_resident_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
