/* Which rows are held here, against a plain account of every row. */
#include "cache/kv.h"
#include "test.h"

enum { N_ROW = 5000 };

/* Random levels as appending and aging leave them: sinks, then blocks that start at multiples of
 * their size after the sinks. */
static void random_kv(struct random *r, struct lk_kv *kv) {
    static const int block_rows[] = {32, 64, 128};
    int64_t index = 0;
    memset(kv, 0, sizeof *kv);
    kv->share = (struct lk_share){0, random_int(r, 1, 5)};
    kv->share.own = random_int(r, 0, kv->share.n - 1);
    kv->n_level = random_int(r, 1, 4);
    bool sinks = kv->n_level > 1 && random_int(r, 0, 1);
    for (int i = 0; i < kv->n_level; i++) {
        struct lk_level_rule *rule = &kv->rule[i];
        *rule = (struct lk_level_rule){
            .codec = lk_codec_f16, .block_rows = block_rows[random_int(r, 0, 2)], .batch = 32};
        if (i == 0) rule->batch = 0;
        if (i == 0 && sinks) rule->keep = (uint32_t)random_int(r, 1, 70);
        if (i == 0 && sinks) rule->block_rows = (int)rule->keep;
        int64_t n = i == 0 && sinks ? (int64_t)rule->keep : random_int(r, 0, N_ROW / 4);
        int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level);
        kv->count[i].rows = n;
        if (n > 0 && !(i == 0 && sinks))
            kv->count[i].skip = (int32_t)((index - n_sink) % rule->block_rows);
        kv->level[i].n_block = lk_level_blocks(rule, &kv->count[i]);
        index += n;
    }
    kv->n_tok = index;
}

/* The share of a row, counted by hand. */
static int plain_owner(const struct lk_kv *kv, int64_t index) {
    int64_t n_sink = lk_level_sinks(kv->rule, kv->n_level);
    int owner = 0;
    if (index < kv->first + n_sink) return 0;
    for (int64_t i = n_sink, in_stripe = 0; i < index; i++)
        if (++in_stripe == LK_STRIPE) {
            in_stripe = 0;
            owner = (owner + 1) % kv->share.n;
        }
    return owner;
}

static void test_rows(void **state) {
    struct random r = {1};
    for (int round = 0; round < 60; round++) {
        struct lk_kv kv;
        random_kv(&r, &kv);
        if (kv.n_tok == 0) continue;
        kv.first = random_int(&r, 0, 1) * random_int(&r, 1, 999); /* older rows were dropped */
        kv.n_tok += kv.first;
        int own[N_ROW + 1] = {0}, own_share = kv.share.own; /* rows before each */
        for (int64_t i = 0; i < kv.n_tok; i++) {
            int owner = plain_owner(&kv, i);
            assert_int_equal(lk_held_share(&kv, i), kv.share.n > 1 ? owner : own_share);
            own[i + 1] = own[i] + (kv.share.n == 1 || owner == own_share);
        }
        for (int i = 0; i < 50; i++) {
            int64_t a = random_int(&r, 0, (int)kv.n_tok), b = random_int(&r, 0, (int)kv.n_tok);
            assert_int_equal(lk_held_count(&kv, a, b), a < b ? own[b] - own[a] : 0);
            int64_t next = lk_held_next(&kv, a), end = lk_held_end(&kv, a);
            assert_int_equal(lk_held_share(&kv, next), own_share);
            assert_int_equal(lk_held_count(&kv, a, next), 0);
            if (end < INT64_MAX) {
                assert_int_equal(lk_held_share(&kv, end - 1), lk_held_share(&kv, a));
                assert_true(end > a && end - a <= LK_STRIPE + 70 + kv.first);
            }
        }
    }
}

/* A block and all its rows have one owner. Blocks and rows of a level are counted right. */
static void test_blocks(void **state) {
    struct random r = {2};
    for (int round = 0; round < 300; round++) {
        struct lk_kv kv;
        random_kv(&r, &kv);
        int64_t first = 0;
        for (int i = 0; i < kv.n_level; first += kv.count[i++].rows) {
            int64_t held = 0, rows = 0, skip = kv.count[i].skip;
            assert_int_equal(lk_kv_level_first(&kv, i), first);
            for (int64_t b = 0; b < kv.level[i].n_block; b++) {
                int owner = lk_held_block_share(&kv, i, b);
                bool holds = kv.share.n == 1 || owner == kv.share.own;
                assert_int_equal(lk_held_has_block(&kv, i, b), holds);
                held += holds;
                for (int64_t at = b * kv.rule[i].block_rows - skip;
                     at < (b + 1) * kv.rule[i].block_rows - skip && at < kv.count[i].rows; at++) {
                    if (at < 0) continue;
                    assert_int_equal(lk_held_share(&kv, first + at), owner);
                    assert_int_equal(lk_held_has_row(&kv, i, at), holds);
                    rows += holds;
                }
            }
            assert_int_equal(lk_held_blocks(&kv, i), held);
            assert_int_equal(lk_held_rows(&kv, i), rows);
            assert_true(lk_held_max_blocks(&kv, i, kv.level[i].n_block) >= held);
            kv.has_all_rows = true;
            assert_int_equal(lk_held_blocks(&kv, i), kv.level[i].n_block);
            for (int64_t b = 0; b < kv.level[i].n_block; b++)
                assert_true(lk_held_has_block(&kv, i, b));
            kv.has_all_rows = false;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
