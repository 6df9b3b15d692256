/* Copies of a cache share blocks, and nothing else. Whatever a copy does afterwards, it holds what
 * a cache holds that never shared. Shared bytes are counted once, and the last owner frees them. */
#include "cache/cache.h"
#include "cache/equalizer.h"
#include "support_baselines.h"
#include "support_basis.h"
#include "test.h"

#include <pthread.h>

enum {
    N_LAYER = 2,
    N_HEAD_KV = 2,
    D_HEAD = 64,
    N_CHANNEL = N_HEAD_KV * D_HEAD,
    MAX_NODES = 5,
    MAX_STEPS = 160,
    PORTION = 70,
    MAX_TOK = 900
};

static const char *const recipes[] = {
    "f16",
    "selective",
    "kivi-4",
    "kivi-2",
    "compressed",
    "lambda",
    "streaming",
    "h2o",
    "tova",
    "best-4",
    "best-3",
    "best-2",
    "int8",
    "sink 5: int8; body: kivi4(g64); window 40: int8",
    "sink 3: f16; body: rot2; recent 10%: rot4; window 33: f16",
    "sink 2: f16; keep 10% by h2o: rot4(nomean); recent 50: int8; window 20: f16",
    "keep 48 by tova: int8; window 16: f16",
    "sink 4: f16; body: latent50%+rot3; window 40: latent75%+rot8",
    "sink 1: f16; body: k=kvquant3 v=asym3(hadamard); window 40: asym8",
    "sink 2: f16; keep 10% by h2o: asym4(g32); window 20: f16",
    "sink 2: f16; body: k=kvarn4 v=kvarn2; window 40: f16",
};

/* Append n random rows, or truncate. */
struct step {
    int64_t n; /* < 0: truncate to -n - 1 tokens */
    uint64_t seed;
};

/* A cache that shares, and a twin that never does but takes the same steps. */
struct node {
    struct lk_ledger ledger, twin_ledger;
    struct lk_cache *cache, *twin;
    struct step step[MAX_STEPS];
    int n_step;
};

struct family {
    struct lk_cache_shape shape;
    struct lk_basis basis[LK_N_BASIS][N_LAYER];
    const struct lk_basis *table[LK_N_BASIS];
    struct lk_ledger common;
    const char *text;
    lk_recipe *recipe;
    struct node node[MAX_NODES];
    uint64_t seed;
};

static uint64_t total_bytes(const struct lk_ledger *ledger) {
    uint64_t sum = 0;
    for (int p = 0; p < LK_N_PURPOSE; p++) sum += lk_ledger_bytes(ledger, p);
    return sum;
}

static void open_family(struct family *f, const char *text, uint64_t seed) {
    struct random r = {seed};
    lk_err err = {0};
    *f = (struct family){
        .shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD, .n_ctx = MAX_TOK},
        .text = text,
        .seed = seed};
    for (int which = 0; which < LK_N_BASIS; which++) {
        for (int layer = 0; layer < N_LAYER; layer++)
            f->basis[which][layer] = random_basis(&r, 1, N_CHANNEL, N_CHANNEL, 32, 0, 1);
        f->table[which] = f->basis[which];
    }
    f->shape.basis = f->table;
    if (lk_recipe_parse(&f->recipe, text, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
}

static void open_node(struct family *f, struct node *node) {
    lk_err err = {0};
    *node = (struct node){.ledger = {.common = &f->common}};
    if (lk_cache_new(&node->cache, f->recipe, &f->shape, &node->ledger, &err) != LK_OK)
        fail_msg("%s: %s", f->text, err.msg);
    assert_int_equal(lk_cache_new(&node->twin, f->recipe, &f->shape, &node->twin_ledger, NULL),
                     LK_OK);
}

static void close_node(struct node *node) {
    lk_cache_free(node->cache);
    lk_cache_free(node->twin);
    node->cache = node->twin = NULL;
    assert_int_equal(total_bytes(&node->ledger), 0);
    assert_int_equal(atomic_load(&node->ledger.borrowed), 0);
    assert_int_equal(total_bytes(&node->twin_ledger), 0);
}

static void close_family(struct family *f) {
    for (int i = 0; i < MAX_NODES; i++)
        if (f->node[i].cache) close_node(&f->node[i]);
    assert_int_equal(total_bytes(&f->common), 0);
    for (int which = 0; which < LK_N_BASIS; which++)
        for (int layer = 0; layer < N_LAYER; layer++) free_basis(&f->basis[which][layer]);
    lk_recipe_free(f->recipe);
}

/* Random attention scores for the rows of a layer; the same for a cache and its twin. */
static void add_scores(struct lk_cache *cache, int layer, uint64_t seed) {
    struct lk_evict *evict = &cache->evict[layer];
    struct random r = {seed + layer};
    for (int64_t i = 0; evict->needs_scores && i < evict->n * evict->n_head; i++)
        evict->score[i] += random_uniform(&r);
}

/* Append n rows of noise to K and V of all layers. prepared: nothing may be allocated. */
static void add_rows(struct family *f, struct lk_cache *cache, struct step step, bool prepared) {
    float x[PORTION * N_CHANNEL];
    uint64_t n_alloc = cache->ledger->n_alloc + f->common.n_alloc;
    struct random r = {step.seed};
    for (int layer = 0; layer < N_LAYER; layer++) {
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < step.n * N_CHANNEL; i++) x[i] = random_gauss(&r);
            if (side == LK_K) lk_cache_observe(cache, layer, x, (int)step.n, N_HEAD_KV);
            assert_int_equal(lk_cache_append(cache, layer, side, x, step.n, NULL), LK_OK);
        }
        add_scores(cache, layer, step.seed);
        for (int side = 0; side < 2; side++)
            assert_int_equal(lk_cache_age(cache, layer, side, NULL), LK_OK);
    }
    if (prepared && cache->ledger->n_alloc + f->common.n_alloc != n_alloc)
        fail_msg("%s: %d allocations in a step", f->text,
                 (int)(cache->ledger->n_alloc + f->common.n_alloc - n_alloc));
}

static void grow(struct family *f, struct lk_cache *cache, struct step step) {
    assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, step.n, step.n, NULL), LK_OK);
    add_rows(f, cache, step, true);
    lk_cache_trim(cache);
}

static void same_rows(const struct family *f, const struct lk_cache *a, const struct lk_cache *b) {
    static float x[MAX_TOK * N_CHANNEL], y[MAX_TOK * N_CHANNEL];
    for (int layer = 0; layer < N_LAYER; layer++) {
        const struct lk_evict *p = &a->evict[layer], *q = &b->evict[layer];
        assert_int_equal(p->n, q->n);
        if (p->n) assert_memory_equal(p->pos, q->pos, p->n * p->n_head * sizeof *p->pos);
        if (p->n && p->needs_scores)
            assert_memory_equal(p->score, q->score, p->n * p->n_head * sizeof *p->score);
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *s = &a->kv[layer][side], *t = &b->kv[layer][side];
            assert_int_equal(s->n_tok, t->n_tok);
            assert_int_equal(s->first, t->first);
            for (int i = 0; i < s->n_level; i++) {
                assert_int_equal(s->count[i].rows, t->count[i].rows);
                assert_int_equal(s->count[i].skip, t->count[i].skip);
                int64_t n = s->count[i].rows;
                for (int part = 0; n && part < s->level[i].n_part; part++) {
                    lk_kv_read(&(struct lk_row_range){s, i, 0, n}, part, a->kernels, x, N_CHANNEL);
                    lk_kv_read(&(struct lk_row_range){t, i, 0, n}, part, b->kernels, y, N_CHANNEL);
                    for (int64_t row = 0; row < n; row++)
                        if (memcmp(x + row * N_CHANNEL, y + row * N_CHANNEL,
                                   s->level[i].d_part * sizeof *x) != 0)
                            fail_msg("%s: row %d of level %d of layer %d differs", f->text,
                                     (int)row, i, layer);
                }
            }
        }
    }
}

/* Bytes of all caches; shared bytes count once. Checks that each cache's count matches its
 * ledger. */
static uint64_t family_bytes(const struct family *f) {
    uint64_t sum = lk_ledger_bytes(&f->common, LK_FOR_CACHE);
    for (int i = 0; i < MAX_NODES; i++) {
        const struct node *node = &f->node[i];
        if (!node->cache) continue;
        struct lk_cache_bytes b = lk_cache_count_bytes(node->cache);
        uint64_t own = lk_ledger_bytes(&node->ledger, LK_FOR_CACHE);
        assert_int_equal(b.code + b.scale + b.exact + b.padding,
                         own + atomic_load(&node->ledger.borrowed));
        assert_true(b.padding < UINT64_MAX / 2);
        sum += own;
    }
    return sum;
}

static void copy_node(struct family *f, struct node *to, struct node *from) {
    if (!to->cache) open_node(f, to);
    uint64_t before = family_bytes(f) - lk_ledger_bytes(&to->ledger, LK_FOR_CACHE), small = 0;
    for (int i = 0; i < 2 * N_LAYER; i++) {
        const struct lk_kv *s = &from->cache->kv[i / 2][i % 2];
        for (int level = 0; level < s->n_level; level++)
            small += (s->level[level].n_block + 4) * 12 + 2 * sizeof(struct lk_slab) + 64;
        for (int e = 0; e < 2; e++) small += lk_equalizer_bytes(&s->equalizer[e]);
        small +=
            2 * lk_evict_bytes(&from->cache->evict[i / 2], from->cache->evict[i / 2].n + LK_TILE);
    }
    assert_int_equal(lk_cache_copy(to->cache, from->cache, NULL), LK_OK);
    int64_t more = (int64_t)(family_bytes(f) - before),
            whole = (int64_t)lk_ledger_bytes(&from->twin_ledger, LK_FOR_CACHE);
    if (more > (int64_t)small + whole / 50)
        fail_msg("%s: a copy took %d bytes, of %d", f->text, (int)more, (int)whole);
    lk_cache_clear(to->twin);
    to->n_step = from->n_step;
    memcpy(to->step, from->step, sizeof to->step);
    for (int i = 0; i < to->n_step; i++)
        if (to->step[i].n >= 0)
            grow(f, to->twin, to->step[i]);
        else
            assert_true(lk_cache_truncate(to->twin, -to->step[i].n - 1));
}

static void append_step(struct family *f, struct node *node, struct step step) {
    if (node->n_step == MAX_STEPS || node->cache->kv[0][LK_K].n_tok + step.n > MAX_TOK) return;
    grow(f, node->cache, step);
    grow(f, node->twin, step);
    node->step[node->n_step++] = step;
}

static void truncate_step(struct family *f, struct node *node, int64_t n) {
    int64_t left = node->cache->kv[0][LK_K].n_tok - n;
    (void)f;
    if (left < 0 || node->n_step == MAX_STEPS) return;
    bool ok = lk_cache_truncate(node->twin, left);
    assert_int_equal(lk_cache_truncate(node->cache, left), ok);
    if (ok) node->step[node->n_step++] = (struct step){.n = -left - 1};
}

static void test_sharing_changes_nothing(void **state) {
    static struct family f;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {i};
        open_family(&f, recipes[i], i);
        open_node(&f, &f.node[0]);
        for (int round = 0; round < 90; round++) {
            struct node *node = &f.node[random_int(&r, 0, MAX_NODES - 1)],
                        *other = &f.node[random_int(&r, 0, MAX_NODES - 1)];
            if (!node->cache) continue;
            struct step step = {random_int(&r, 1, round % 3 ? 4 : PORTION), random_u32(&r)};
            int what = random_int(&r, 0, 19);
            if (round == 0) step.n = PORTION;
            if (what < 4 && other != node)
                copy_node(&f, other, node);
            else if (what == 4 && node != &f.node[0])
                close_node(node);
            else if (what < 7)
                truncate_step(&f, node, random_int(&r, 0, 9));
            else
                append_step(&f, node, step);
            family_bytes(&f);
            if (node->cache) same_rows(&f, node->cache, node->twin);
        }
        for (int n = 0; n < MAX_NODES; n++)
            if (f.node[n].cache) same_rows(&f, f.node[n].cache, f.node[n].twin);
        close_family(&f);
    }
}

/* Memory reserved after copying is enough, including copies of blocks that single rows cause. */
static void test_reserved_rows_allocate_nothing(void **state) {
    static struct family f;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        for (int n_first = 63; n_first < 400; n_first += 111) {
            struct random r = {i};
            open_family(&f, recipes[i], i);
            for (int n = 0; n < 2; n++) open_node(&f, &f.node[n]);
            for (int n = 0; n < n_first; n += 30)
                append_step(&f, &f.node[0], (struct step){30, random_u32(&r)});
            copy_node(&f, &f.node[1], &f.node[0]);
            for (int n = 1; n >= 0; n--) {
                struct node *node = &f.node[n];
                assert_int_equal(lk_cache_reserve(node->cache, 150, NULL), LK_OK);
                for (int k = 0; k < 150; k++)
                    add_rows(&f, node->cache, (struct step){1, (uint64_t)k + n}, true);
                for (int k = 0; k < 150; k++)
                    grow(&f, node->twin, (struct step){1, (uint64_t)k + n});
                same_rows(&f, node->cache, node->twin);
            }
            close_family(&f);
        }
}

/* Truncating ends a reservation, because another block may have to be copied then. */
static void test_truncate_ends_reservation(void **state) {
    static struct family f;
    open_family(&f, "body: f16", 3);
    for (int n = 0; n < 2; n++) open_node(&f, &f.node[n]);
    for (int n = 0; n < 2 * LK_TILE; n += LK_TILE)
        append_step(&f, &f.node[0], (struct step){LK_TILE, (uint64_t)n});
    copy_node(&f, &f.node[1], &f.node[0]);
    struct lk_cache *cache = f.node[1].cache;
    assert_int_equal(lk_cache_reserve(cache, 100, NULL), LK_OK);
    assert_int_equal(cache->reserved, 100);
    assert_true(lk_cache_truncate(cache, 2 * LK_TILE - 1));
    assert_int_equal(cache->reserved, 0);
    assert_false(cache->pool.keep_free);
    close_family(&f);
}

/* A pool that shares the slabs of another one uses the numbers that this one does not. */
static void test_unused_numbers_are_shared(void **state) {
    struct lk_ledger common = {0}, ledger[2] = {{.common = &common}, {.common = &common}};
    struct lk_pool pool[2];
    lk_block block[3];
    for (int i = 0; i < 2; i++) lk_pool_init(&pool[i], LK_SLAB_BYTES, &ledger[i]);
    for (int i = 0; i < 3; i++) block[i] = lk_pool_alloc(&pool[0], LK_SLAB_BYTES);
    lk_pool_free(&pool[0], block[1]);
    assert_true(lk_pool_share(&pool[1], &pool[0]));
    assert_int_equal(lk_pool_alloc(&pool[1], LK_SLAB_BYTES), block[1]);
    for (int i = 0; i < 2; i++) lk_pool_destroy(&pool[i]);
    assert_int_equal(total_bytes(&common) + total_bytes(&ledger[0]) + total_bytes(&ledger[1]), 0);
}

/* Any allocation may fail while a cache is copied, or while a step that copies blocks is prepared.
 * The original still holds what it held, and in the end everything is freed. */
static void test_without_memory(void **state) {
    static struct family f;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {i};
        open_family(&f, recipes[i], i);
        open_node(&f, &f.node[0]);
        for (int n = 0; n < 300; n += 50)
            append_step(&f, &f.node[0], (struct step){50, random_u32(&r)});
        for (int which = 0; which < 3; which++) { /* ledger of the copy, of the original, common */
            bool failed = true;
            for (int nth = 1; failed; nth = nth < 40 ? nth + 1 : nth * 3 / 2) {
                struct node *from = &f.node[0], *to = &f.node[1];
                if (which == 2) /* so that there is something to share */
                    append_step(&f, from, (struct step){1, random_u32(&r)});
                open_node(&f, to);
                struct lk_ledger *ledger = which == 0   ? &to->ledger
                                           : which == 1 ? &from->ledger
                                                        : &f.common;
                atomic_store(&ledger->fail_at, nth);
                lk_status status = lk_cache_copy(to->cache, from->cache, NULL);
                failed = atomic_load(&ledger->fail_at) <= 0;
                atomic_store(&ledger->fail_at, 0);
                assert_int_equal(status, failed ? LK_E_NOMEM : LK_OK);
                assert_int_equal(to->cache->kv[1][LK_V].n_tok,
                                 failed ? 0 : from->cache->kv[1][LK_V].n_tok);
                same_rows(&f, from->cache, from->twin);
                if (!failed) {
                    atomic_store(&to->ledger.fail_at, 1);
                    assert_int_equal(
                        lk_cache_prepare(to->cache, 0, N_LAYER, PORTION, PORTION, NULL),
                        LK_E_NOMEM);
                    atomic_store(&to->ledger.fail_at, 0);
                    same_rows(&f, to->cache, from->twin);
                    assert_int_equal(
                        lk_cache_prepare(to->cache, 0, N_LAYER, PORTION, PORTION, NULL), LK_OK);
                }
                close_node(to);
            }
        }
        same_rows(&f, f.node[0].cache, f.node[0].twin);
        close_family(&f);
    }
}

static void *run_steps(void *user) {
    struct node *node = user;
    static struct family f; /* unused: allocations are not checked */
    for (int i = 0; i < node->n_step; i++) {
        assert_int_equal(
            lk_cache_prepare(node->cache, 0, N_LAYER, node->step[i].n, node->step[i].n, NULL),
            LK_OK);
        add_rows(&f, node->cache, node->step[i], false);
    }
    return NULL;
}

/* Caches that share run in parallel threads, and each stops sharing blocks at its own pace. */
static void test_threads_share(void **state) {
    static struct family f;
    static const char *const some[] = {"best-3", "h2o", "selective"};
    for (int i = 0; i < 3; i++) {
        struct random r = {i};
        pthread_t thread[MAX_NODES];
        open_family(&f, some[i], i);
        open_node(&f, &f.node[0]);
        for (int n = 0; n < 300; n += 50)
            append_step(&f, &f.node[0], (struct step){50, random_u32(&r)});
        for (int n = 1; n < MAX_NODES; n++) copy_node(&f, &f.node[n], &f.node[0]);
        for (int n = 0; n < MAX_NODES; n++) {
            for (f.node[n].n_step = 0; f.node[n].n_step < 60; f.node[n].n_step++)
                f.node[n].step[f.node[n].n_step] =
                    (struct step){random_int(&r, 1, 8), random_u32(&r)};
            assert_int_equal(pthread_create(&thread[n], NULL, run_steps, &f.node[n]), 0);
        }
        for (int n = 0; n < MAX_NODES; n++) pthread_join(thread[n], NULL);
        for (int n = 0; n < MAX_NODES; n++) {
            for (int k = 0; k < f.node[n].n_step; k++) grow(&f, f.node[n].twin, f.node[n].step[k]);
            same_rows(&f, f.node[n].cache, f.node[n].twin);
        }
        family_bytes(&f);
        close_family(&f);
    }
}

/* A limit includes borrowed bytes. Without a common ledger nothing is shared. */
static void test_limits(void **state) {
    static struct family f;
    struct random r = {3};
    open_family(&f, "best-3", 3);
    open_node(&f, &f.node[0]);
    for (int n = 0; n < 600; n += 60)
        append_step(&f, &f.node[0], (struct step){60, random_u32(&r)});
    uint64_t whole = lk_ledger_bytes(&f.node[0].ledger, LK_FOR_CACHE);
    open_node(&f, &f.node[1]);
    f.node[1].ledger.limit = total_bytes(&f.node[1].ledger) + whole / 2;
    assert_int_equal(lk_cache_copy(f.node[1].cache, f.node[0].cache, NULL), LK_E_NOMEM);
    assert_int_equal(atomic_load(&f.node[1].ledger.borrowed), 0);
    f.node[1].ledger.limit += whole;
    assert_int_equal(lk_cache_copy(f.node[1].cache, f.node[0].cache, NULL), LK_OK);
    assert_true(atomic_load(&f.node[1].ledger.borrowed) > whole * 9 / 10);
    struct lk_ledger other_ledger = {0};
    struct lk_cache *other;
    assert_int_equal(lk_cache_new(&other, f.recipe, &f.shape, &other_ledger, NULL), LK_OK);
    assert_int_equal(lk_cache_copy(other, f.node[0].cache, NULL), LK_E_NOMEM);
    lk_cache_free(other);
    close_family(&f);
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharing_changes_nothing),
        cmocka_unit_test(test_reserved_rows_allocate_nothing),
        cmocka_unit_test(test_truncate_ends_reservation),
        cmocka_unit_test(test_unused_numbers_are_shared),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_threads_share),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
