/* Printed recipes parse, and give each head group the bits that were asked for. */
#include "base/hash.h"
#include "recipe/recipe_levels.h"
#include "test.h"
#include "tune/tune_text.h"

enum { MAX_GROUPS = 240 };

static int random_from(uint64_t *state, int min, int max) {
    return min + (int)(lk_splitmix64_next(state) % (uint64_t)(max - min + 1));
}

static const struct lk_codec *codec_at(const struct lk_level_spec *level, int side, int head) {
    return lk_recipe_head_codec(level, (enum lk_side)side, head);
}

/* bits: of each head of each layer. */
static void check_text(const struct lk_tune_group *group, const struct lk_tune_bits *bits, int n,
                       int n_layer, int recent, enum lk_tune_trellis trellis) {
    struct lk_buf text = {0};
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    lk_tune_print(&text, group, bits, n, recent, trellis);
    assert_false(text.failed);
    if (lk_recipe_parse(&recipe, text.at, &err)) fail_msg("%s: %s", text.at, err.msg);
    assert_string_equal(lk_recipe_text(recipe), text.at); /* it is normalized already */
    assert_int_equal(recipe->n_level, recent ? 4 : 3);
    for (int i = 0; i < n; i++) {
        struct lk_level_spec level[LK_MAX_LEVEL];
        lk_recipe_levels(recipe, group[i].layer, n_layer, level);
        for (int head = 0; head < LK_MAX_NAMED_HEAD; head++)
            for (int side = 0; side < 2; side++) {
                if (group[i].heads && !(group[i].heads >> head & 1)) continue;
                const struct lk_codec *body = codec_at(&level[1], side, head),
                                      *newer = codec_at(&level[2], side, head);
                assert_int_equal(body->bits, bits[i].of[LK_TUNE_BODY][side]);
                assert_int_equal(body->coding, body->bits == 16 ? LK_F16 : LK_ROT);
                assert_int_equal(body->trellis, body->bits <= (int)trellis);
                if (recent) assert_int_equal(newer->bits, bits[i].of[LK_TUNE_RECENT][side]);
            }
        assert_true(!recent || level[2].percent == (float)recent);
    }
    lk_recipe_free(recipe);
    lk_buf_free(&text);
}

static void text_has_the_bits(void **state) {
    struct lk_tune_bits bits[MAX_GROUPS];
    struct lk_tune_group group[MAX_GROUPS];
    uint64_t seed = 11;
    for (int k = 0; k < 300; k++) {
        int n_each = k % 2 ? 1 : random_from(&seed, 2, 8), max = random_from(&seed, 1, 7);
        int n_layer = random_from(&seed, 1, MAX_GROUPS / n_each), n = n_layer * n_each,
            heads = random_from(&seed, 1, 64 / n_each);
        for (int i = 0; i < n; i++) {
            uint64_t all = heads == 64 ? UINT64_MAX : ((uint64_t)1 << heads) - 1;
            group[i] =
                (struct lk_tune_group){i / n_each, n_each == 1 ? 0 : all << (i % n_each * heads)};
            for (int side = 0; side < 2; side++) {
                int newer = random_from(&seed, 1, max);
                bits[i].of[LK_TUNE_RECENT][side] = (uint8_t)newer;
                bits[i].of[LK_TUNE_BODY][side] = (uint8_t)random_from(&seed, 1, newer);
            }
        }
        check_text(group, bits, n, n_layer, k % 4 > 1 ? random_from(&seed, 1, 60) : 0,
                   k % 3 ? LK_TUNE_TRELLIS : LK_TUNE_NO_TRELLIS);
    }
}

/* Equal neighbours are one range, equal layers one list, and most layers need no override. */
static void text_is_short(void **state) {
    struct lk_tune_bits bits[9];
    struct lk_tune_group group[9];
    struct lk_buf text = {0};
    for (int i = 0; i < 9; i++) bits[i] = (struct lk_tune_bits){{{3, 2}, {4, 4}}};
    for (int i = 0; i < 9; i++) group[i] = (struct lk_tune_group){i, 0};
    lk_tune_print(&text, group, bits, 9, 0, LK_TUNE_TRELLIS);
    assert_string_equal(text.at,
                        "sink 4: f16; body: k=rot3(trellis) v=rot2(trellis); window 32: rot8");
    lk_buf_clear(&text);
    bits[0].of[LK_TUNE_BODY][LK_K] = bits[1].of[LK_TUNE_BODY][LK_K] = 4;
    bits[7].of[LK_TUNE_BODY][LK_K] = 4;
    bits[8].of[LK_TUNE_RECENT][LK_V] = 6;
    lk_tune_print(&text, group, bits, 9, 20, LK_TUNE_TRELLIS);
    assert_string_equal(text.at,
                        "sink 4: f16; body: k=rot3(trellis) v=rot2(trellis); layers 0-1, 7: "
                        "k=rot4(trellis) v=rot2(trellis); "
                        "recent 20%: rot4(trellis); layers 8 recent: k=rot4(trellis) v=rot6; "
                        "window 32: rot8");
    lk_buf_free(&text);
}

/* Heads with equal bits are one list, and a layer whose heads are equal is named without them. */
static void heads_are_lists(void **state) {
    enum { N_LAYER = 3, N_GROUP = 4 };
    struct lk_tune_bits bits[N_LAYER * N_GROUP];
    struct lk_tune_group group[N_LAYER * N_GROUP];
    struct lk_buf text = {0};
    for (int i = 0; i < N_LAYER * N_GROUP; i++) {
        group[i] = (struct lk_tune_group){i / N_GROUP, (uint64_t)3 << (2 * (i % N_GROUP))};
        bits[i] = (struct lk_tune_bits){{{5, 5}, {6, 6}}};
    }
    for (int i = 4; i < 8; i++) bits[i].of[LK_TUNE_BODY][LK_V] = 6; /* the whole of layer 1 */
    for (int i = 0; i < 12; i += 4 + 4)                             /* layers 0 and 2 */
        bits[i + 1].of[LK_TUNE_BODY][LK_K] = bits[i + 3].of[LK_TUNE_BODY][LK_K] = 1;
    lk_tune_print(&text, group, bits, N_LAYER * N_GROUP, 0, LK_TUNE_NO_TRELLIS);
    assert_string_equal(text.at, "sink 4: f16; body: rot5; layers 1: k=rot5 v=rot6; "
                                 "layers 0, 2 heads 2-3, 6-7: k=rot1 v=rot5; window 32: rot8");
    lk_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_has_the_bits),
        cmocka_unit_test(text_is_short),
        cmocka_unit_test(heads_are_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
