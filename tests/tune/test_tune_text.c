/* Printed recipes parse, and give each layer the bits that were asked for. */
#include "base/splitmix64.h"
#include "recipe/recipe_levels.h"
#include "tune/tune_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LAYERS = 96 };

static int random_from(uint64_t *state, int min, int max) {
    return min + (int)(lk_splitmix64_next(state) % (uint64_t)(max - min + 1));
}

static void check_text(const struct lk_tune_bits *bits, int n_layer, int recent,
                       enum lk_tune_trellis trellis) {
    struct lk_buf text = {0};
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    lk_tune_print(&text, bits, n_layer, recent, trellis);
    assert_false(text.failed);
    if (lk_recipe_parse(&recipe, text.at, &err)) fail_msg("%s: %s", text.at, err.msg);
    assert_string_equal(lk_recipe_text(recipe), text.at); /* it is normalized already */
    assert_int_equal(recipe->n_level, recent ? 4 : 3);
    for (int layer = 0; layer < n_layer; layer++) {
        struct lk_level_spec level[LK_MAX_LEVEL];
        lk_recipe_levels(recipe, layer, n_layer, level);
        assert_int_equal(level[1].k.bits, bits[layer].of[LK_TUNE_BODY][LK_K]);
        assert_int_equal(level[1].v.bits, bits[layer].of[LK_TUNE_BODY][LK_V]);
        assert_int_equal(level[1].k.coding, level[1].k.bits == 16 ? LK_F16 : LK_ROT);
        assert_int_equal(level[1].v.trellis, level[1].v.bits <= (int)trellis);
        if (!recent) continue;
        assert_int_equal(level[2].k.bits, bits[layer].of[LK_TUNE_RECENT][LK_K]);
        assert_int_equal(level[2].v.bits, bits[layer].of[LK_TUNE_RECENT][LK_V]);
        assert_true(level[2].percent == (float)recent);
    }
    lk_recipe_free(recipe);
    lk_buf_free(&text);
}

static void text_has_the_bits(void **state) {
    (void)state;
    struct lk_tune_bits bits[MAX_LAYERS];
    uint64_t seed = 11;
    for (int k = 0; k < 300; k++) {
        int n_layer = random_from(&seed, 1, MAX_LAYERS), max = random_from(&seed, 1, 7);
        for (int layer = 0; layer < n_layer; layer++)
            for (int side = 0; side < 2; side++) {
                int newer = random_from(&seed, 1, max);
                bits[layer].of[LK_TUNE_RECENT][side] = (uint8_t)newer;
                bits[layer].of[LK_TUNE_BODY][side] = (uint8_t)random_from(&seed, 1, newer);
            }
        check_text(bits, n_layer, k % 2 ? random_from(&seed, 1, 60) : 0,
                   k % 3 ? LK_TUNE_TRELLIS : LK_TUNE_NO_TRELLIS);
    }
}

/* Equal neighbours are one range, equal layers one list, and most layers need no override. */
static void text_is_short(void **state) {
    (void)state;
    struct lk_tune_bits bits[9];
    struct lk_buf text = {0};
    for (int i = 0; i < 9; i++) bits[i] = (struct lk_tune_bits){{{3, 2}, {4, 4}}};
    lk_tune_print(&text, bits, 9, 0, LK_TUNE_TRELLIS);
    assert_string_equal(text.at,
                        "sink 4: f16; body: k=rot3(trellis) v=rot2(trellis); window 32: rot8");
    lk_buf_clear(&text);
    bits[0].of[LK_TUNE_BODY][LK_K] = bits[1].of[LK_TUNE_BODY][LK_K] = 4;
    bits[7].of[LK_TUNE_BODY][LK_K] = 4;
    bits[8].of[LK_TUNE_RECENT][LK_V] = 6;
    lk_tune_print(&text, bits, 9, 20, LK_TUNE_TRELLIS);
    assert_string_equal(text.at,
                        "sink 4: f16; body: k=rot3(trellis) v=rot2(trellis); layers 0-1, 7: "
                        "k=rot4(trellis) v=rot2(trellis); "
                        "recent 20%: rot4(trellis); layers 8 recent: k=rot4(trellis) v=rot6; "
                        "window 32: rot8");
    lk_buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_has_the_bits),
        cmocka_unit_test(text_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
