/* What the ledger says is what the process holds: resident memory of caches of 32,768 tokens. */
#include "support.h"

#include "cache/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { N_TOK = 32768, PORTION = 128, N_LAYER = 6, N_HEAD_KV = 3, D_HEAD = 64, N_CHANNEL = N_HEAD_KV * D_HEAD };

static double resident(void) {
    long whole = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) skip();
    if (fscanf(f, "%ld %ld", &whole, &pages) != 2) pages = 0;
    fclose(f);
    return (double)pages * sysconf(_SC_PAGESIZE);
}

/* Fill a cache and measure: *grown, resident memory; returns the ledger's bytes of the cache. */
static double fill(const char *text, double *grown) {
    lk_recipe *recipe;
    assert_int_equal(lk_recipe_parse(&recipe, text, NULL), LK_OK);
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    struct random r = {1};
    static float x[PORTION * N_CHANNEL];
    for (int i = 0; i < PORTION * N_CHANNEL; i++) x[i] = random_gauss(&r);
    double before = resident();
    struct lk_cache *cache;
    assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
    for (int at = 0; at < N_TOK; at += PORTION) {
        assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, PORTION, PORTION, NULL), LK_OK);
        for (int layer = 0; layer < N_LAYER; layer++)
            for (int side = 0; side < 2; side++) {
                assert_int_equal(lk_cache_append(cache, layer, side, x, PORTION, NULL), LK_OK);
                assert_int_equal(lk_cache_settle(cache, layer, side, NULL), LK_OK);
            }
    }
    double bytes = (double)lk_ledger_bytes(&ledger, LK_FOR_CACHE);
    *grown = resident() - before;
    lk_cache_free(cache);
    lk_recipe_free(recipe);
    return bytes;
}

static void test_resident_memory_follows_the_ledger(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* red zones and shadow memory are not the cache's */
#endif
    /* The smaller first: memory that a process once had need not go back to the system. */
    double best3, f16, best3_ledger = fill("best-3", &best3), f16_ledger = fill("f16", &f16);
    print_message("best-3: ledger %.1f MiB, resident %.1f; f16: ledger %.1f MiB, resident %.1f\n", best3_ledger / (1 << 20),
                  best3 / (1 << 20), f16_ledger / (1 << 20), f16 / (1 << 20));
    assert_true(best3 / best3_ledger > 0.95 && best3 / best3_ledger < 1.05);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resident_memory_follows_the_ledger)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
