/* Recipes: the levels they parse to, and the messages for wrong ones. */
#include "cache/level.h"
#include "lowkey_serve.h"
#include "recipe/recipe_check.h"
#include "recipe/recipe_levels.h"
#include "support_baselines.h"
#include "test.h"

static lk_recipe *parsed(const char *text) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    if (lk_recipe_parse(&recipe, text, &err)) fail_msg("\"%s\": %s", text, err.msg);
    return recipe;
}

static void assert_codec(struct lk_codec codec, enum lk_coding coding, int bits, bool mean,
                         bool sigma) {
    assert_int_equal(codec.coding, coding);
    assert_int_equal(codec.bits, bits);
    assert_int_equal(codec.mean, mean);
    assert_int_equal(codec.sigma, sigma);
}

static void levels_are_read(void **state) {
    lk_recipe *r = parsed(
        "sink 4: f16; body: k=rot3 v=rot2(uniform); recent 12.5%: kivi4(g64); window 128: f16");
    assert_int_equal(r->n_level, 4);
    assert_int_equal(r->level[0].range, LK_SINK);
    assert_int_equal(r->level[0].n_tok, 4);
    assert_string_equal(r->level[0].name, "sink 4");
    assert_codec(r->level[0].k, LK_F16, 16, false, false);
    assert_int_equal(r->level[1].range, LK_BODY);
    assert_string_equal(r->level[1].name, "body");
    assert_codec(r->level[1].k, LK_ROT, 3, true, true);
    assert_true(r->level[1].k.lloyd); /* the default at 3 bits */
    assert_codec(r->level[1].v, LK_ROT, 2, false, false);
    assert_false(r->level[1].v.lloyd);
    assert_false(r->level[1].v.trellis);
    assert_int_equal(r->level[2].range, LK_RECENT);
    assert_string_equal(r->level[2].name, "recent 12.5%");
    assert_true(r->level[2].percent == 12.5F);
    assert_int_equal(r->level[2].n_tok, 0);
    assert_codec(r->level[2].k, LK_KIVI, 4, false, false);
    assert_int_equal(r->level[2].v.group, 64);
    assert_int_equal(r->level[3].range, LK_RECENT);
    assert_string_equal(r->level[3].name, "window 128");
    assert_int_equal(r->level[3].n_tok, 128);
    lk_recipe_free(r);
}

static void options_override_the_side(void **state) {
    lk_recipe *r = parsed("all: v=rot4(sigma, mean) k=rot5(nomean,nosigma,uniform)");
    assert_codec(r->level[0].k, LK_ROT, 5, false, false);
    assert_codec(r->level[0].v, LK_ROT, 4, true, true);
    lk_recipe_free(r);
    r = parsed("rot1(nomean)");
    assert_codec(r->level[0].k, LK_ROT, 1, false, true);
    assert_codec(r->level[0].v, LK_ROT, 1, false, false);
    lk_recipe_free(r);
}

static void layers_override_the_body(void **state) {
    struct lk_level_spec level[LK_MAX_LEVEL];
    lk_recipe *r = parsed("sink 4: f16; body: rot2; layers first 2, last 2, 10, 12-14: k=rot4 "
                          "v=rot3; window 64: f16");
    assert_int_equal(r->n_level, 3);
    assert_int_equal(r->n_override, 4);
    for (int layer = 0; layer < 30; layer++) {
        bool overridden = layer < 2 || layer >= 28 || layer == 10 || (layer >= 12 && layer <= 14);
        lk_recipe_levels(r, layer, 30, level);
        assert_int_equal(level[0].k.bits, 16);
        assert_int_equal(level[1].k.bits, overridden ? 4 : 2);
        assert_int_equal(level[1].v.bits, overridden ? 3 : 2);
        assert_int_equal(level[2].v.bits, 16);
    }
    lk_recipe_free(r);

    r = parsed("body: rot2; layers 0-5: rot3; layers 3: rot4");
    lk_recipe_levels(r, 3, 4, level);
    assert_int_equal(level[0].k.bits, 4); /* the last one applies */
    lk_recipe_levels(r, 2, 4, level);
    assert_int_equal(level[0].k.bits, 3);
    lk_recipe_free(r);
}

static void layers_have_a_maximum_of_groups(void **state) {
    char text[32 + 2 * LK_MAX_OVERRIDE] = "body: rot2; layers ";
    size_t len = strlen(text);
    for (int i = 0; i < LK_MAX_OVERRIDE; i++) {
        text[len++] = '3';
        text[len++] = ',';
    }
    memcpy(text + len - 1, ":f16", 5);
    lk_recipe *r = NULL;
    lk_err err = {0};
    lk_recipe_free(parsed(text));
    memcpy(text + len - 1, ",3:f16", 7);
    assert_int_equal(lk_recipe_parse(&r, text, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "more than 512 groups of layers"));
}

static void heads_have_their_own_codecs(void **state) {
    struct lk_level_spec level[LK_MAX_LEVEL];
    lk_recipe_level shown;
    lk_recipe *r = parsed("body: rot2; heads 5: k=rot3 v=rot2; layers 1-2 heads 0, 2-3: rot1; "
                          "layers 2 heads 3: k=rot2 v=rot4; layers 4: rot3; window 32: rot4; "
                          "layers last 1 heads 63 window: rot5");
    assert_true(lk_recipe_levels(r, 0, 8, level));
    assert_int_equal(level[0].n_head_codecs, 1);
    assert_int_equal(lk_recipe_head_codec(level, LK_K, 5)->bits, 3);
    assert_int_equal(lk_recipe_head_codec(level, LK_K, 4)->bits, 2);
    lk_recipe_levels(r, 2, 8, level);
    const uint8_t k[] = {1, 2, 1, 2, 2, 3}, v[] = {1, 2, 1, 4, 2, 2};
    for (int head = 0; head < 6; head++) {
        assert_int_equal(lk_recipe_head_codec(level, LK_K, head)->bits, k[head]);
        assert_int_equal(lk_recipe_head_codec(level, LK_V, head)->bits, v[head]);
    }
    lk_recipe_levels(r, 4, 8, level); /* a part of the whole layer replaces earlier ones of heads */
    assert_int_equal(level[0].n_head_codecs, 0);
    lk_recipe_levels(r, 7, 8, level);
    assert_int_equal(lk_recipe_head_codec(&level[1], LK_K, 63)->bits, 5);
    assert_int_equal(lk_recipe_head_codec(&level[1], LK_K, 62)->bits, 4);
    const char *name[] = {"heads 5", "layers 1-2 heads 0, 2-3", "layers 2 heads 3", "layers 4",
                          "layers last 1 heads 63 window"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        assert_true(lk_recipe_get_level(r, (size_t)r->n_level + i, &shown));
        assert_string_equal(shown.name, name[i]);
    }
    lk_recipe_free(r);
    char text[2048] = "body: rot8", *end = text + strlen(text);
    for (int head = 0; head < 60; head++) /* 8 pairs of codecs */
        end += sprintf(end, "; heads %d: k=rot%d v=rot%d", head, 1 + head % 2, 1 + head % 8);
    lk_recipe_free(parsed(text));
    sprintf(end, "; layers 3 heads 60: rot7");
    lk_err err = {0};
    assert_int_equal(lk_recipe_parse(&r, text, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "the heads of layer 3 have more than 9 different codecs"));
}

static void layers_override_a_window(void **state) {
    struct lk_level_spec level[LK_MAX_LEVEL];
    lk_recipe_level shown;
    lk_recipe *r = parsed("layers last 1 window: rot7; sink 4: f16; body: rot2; layers 1-2: rot5; "
                          "recent 20%: rot4; layers 0-2 recent: k=rot6 v=rot5; window 32: rot8");
    assert_int_equal(r->n_level, 4);
    for (int layer = 0; layer < 9; layer++) {
        lk_recipe_levels(r, layer, 9, level);
        assert_int_equal(level[1].k.bits, layer == 1 || layer == 2 ? 5 : 2);
        assert_int_equal(level[2].k.bits, layer <= 2 ? 6 : 4);
        assert_int_equal(level[2].v.bits, layer <= 2 ? 5 : 4);
        assert_int_equal(level[3].v.bits, layer == 8 ? 7 : 8);
        assert_int_equal(level[0].v.bits, 16);
    }
    assert_true(lk_recipe_get_level(r, 4, &shown));
    assert_string_equal(shown.name, "layers last 1 window");
    assert_true(lk_recipe_get_level(r, 5, &shown));
    assert_string_equal(shown.name, "layers 1-2");
    assert_true(lk_recipe_get_level(r, 6, &shown));
    assert_string_equal(shown.name, "layers 0-2 recent");
    assert_string_equal(shown.v_codec, "rot5");
    lk_recipe_free(r);
}

static void keep_limits_the_body(void **state) {
    lk_recipe_level level;
    struct lk_level_spec spec[LK_MAX_LEVEL];
    lk_recipe *r = parsed("sink 4(shift): f16; body: none; window 28: f16");
    assert_true(r->level[0].shift);
    lk_recipe_free(r);
    r = parsed("keep 512 by h2o");
    assert_true(lk_recipe_evicts(r));
    assert_int_equal(r->n_level, 1);
    assert_int_equal(r->level[0].limit.n_tok, 512);
    assert_codec(r->level[0].v, LK_F16, 16, false, false);
    lk_recipe_free(r);
    r = parsed("body: latent100%+rot3"); /* the maximum itself */
    lk_recipe_free(r);
    r = parsed("keep 12.5% of context by h2o(mean): k=rot4 v=kivi2; layers first 2: keep 100% by "
               "tova: rot3; window 64: rot8");
    assert_true(r->level[0].limit.of_context && r->level[0].limit.percent == 12.5F);
    assert_true(r->level[0].limit.policy.mean);
    assert_true(lk_recipe_get_level(r, 0, &level));
    assert_string_equal(level.name, "keep 12.5% of context by h2o");
    lk_recipe_levels(r, 1, 9, spec);
    assert_int_equal(spec[0].limit.policy.kind, LK_POLICY_TOVA);
    assert_true(spec[0].limit.percent == 100 && spec[0].k.bits == 3);
    lk_recipe_levels(r, 2, 9, spec);
    assert_int_equal(spec[0].limit.policy.kind, LK_POLICY_H2O);
    struct lk_level_rule rule[LK_MAX_KV_LEVEL];
    assert_int_equal(lk_level_rules(r, 2, 9, LK_V, 0, 1000, rule), 3);
    assert_int_equal(rule[0].limit.n_tok, 128); /* 125, in whole tiles */
    assert_int_equal(rule[1].batch, 32);
    assert_int_equal(lk_level_rules(r, 2, 9, LK_V, LK_RULES_SLIDING, 1000, rule), 3);
    /* here the sliding window is the limit */
    assert_int_equal(rule[0].limit.policy.kind, LK_POLICY_NONE);
    lk_recipe_free(r);
    /* Some layers drop everything, or nothing, or choose differently. */
    r = parsed("body: none; layers 0: keep 50 by h2o: kivi4; layers 2: rot2; layers 0-1,3: keep "
               "100% by newest: rot4; window 64: f16; absorb less");
    lk_recipe_levels(r, 0, 9, spec);
    assert_true(spec[0].limit.percent == 100 && spec[0].k.bits == 4);
    lk_recipe_levels(r, 4, 9, spec);
    assert_true(lk_limit_is_zero(&spec[0].limit));
    lk_recipe_free(r);
    r = parsed("sink 4(shift): f16; keep 99 by newest: rot4; layers last 2: none; window 64: f16");
    lk_recipe_levels(r, 7, 9, spec);
    assert_true(lk_limit_is_zero(&spec[1].limit) && spec[1].k.coding == LK_F16);
    assert_true(lk_recipe_get_level(r, 3, &level));
    assert_string_equal(level.k_codec, "none");
    lk_recipe_free(r);
}

static void the_body_may_be_none(void **state) {
    lk_recipe_level level;
    lk_recipe *r = parsed("sink 4: f16; body: none; recent 100: rot4; window 28: f16");
    assert_true(lk_recipe_evicts(r));
    assert_int_equal(r->level[1].limit.policy.kind, LK_POLICY_NEWEST);
    assert_int_equal(r->level[1].limit.n_tok, 0);
    assert_true(lk_recipe_get_level(r, 1, &level));
    assert_string_equal(level.name, "body");
    assert_string_equal(level.k_codec, "none");
    assert_string_equal(level.v_codec, "none");
    lk_recipe_free(r);
    r = parsed("best-3");
    assert_false(lk_recipe_evicts(r));
    lk_recipe_free(r);
}

/* Different spellings of the same recipe, and the text that lk_recipe_text returns. */
static void spellings_are_equivalent(void **state) {
    static const struct {
        const char *text, *normalized, *same;
    } row[] = {
        {"f16", "f16", "all: f16"},
        {" F16\n", "f16", "all:f16"},
        {"Best-3", "best-3", "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8"},
        {"# mine\nselective # as published\n", "selective",
         "sink 16: f16; body: int8; window 256: f16"},
        {"rot4", "rot4", "all: k=rot4 v=rot4"},
        {"int8 ;", "int8", "all: int8"},
        {"k=rot4 v=rot2", "k=rot4 v=rot2", "all: v=rot2 k=rot4"},
        {"V = ROT2\tK = Rot4", "V = ROT2 K = Rot4", "all: k=rot4 v=rot2"},
        {"SINK 4:F16;BODY:K=ROT3 V=ROT2;WINDOW 128:F16;",
         "SINK 4:F16; BODY:K=ROT3 V=ROT2; WINDOW 128:F16",
         "sink 4: f16; body: k=rot3 v=rot2; window 128: f16"},
        {"  sink   4 :  f16  ;\n\n body :\n  k = rot3   # keys\n  v = rot2 ;\r\n window 128 : f16 "
         ";  ",
         "sink 4 : f16; body : k = rot3 v = rot2; window 128 : f16",
         "sink 4: f16; body: k=rot3 v=rot2; window 128: f16"},
        {"sink 4: f16\nbody: rot3\nwindow 64: f16\n", "sink 4: f16; body: rot3; window 64: f16",
         "sink 4: f16; body: rot3(lloyd); window 64: f16"},
        {"body: kivi2 ( g128 )", "body: kivi2 ( g128 )", "body: k=kivi2(g128) v=kivi2(g128)"},
        {"body: f16; layers first 1 : f16", "body: f16; layers first 1 : f16",
         "layers first 1: f16; body: f16"},
        {"body: rot3; recent 10 %: rot4", "body: rot3; recent 10 %: rot4",
         "body: rot3; recent 10.0%: rot4"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        lk_recipe *a = parsed(row[i].text), *b = parsed(row[i].same);
        assert_string_equal(lk_recipe_text(a), row[i].normalized);
        assert_int_equal(a->n_level, b->n_level);
        assert_int_equal(a->n_override, b->n_override);
        for (int j = 0; j < a->n_level; j++) {
            assert_int_equal(a->level[j].range, b->level[j].range);
            assert_int_equal(a->level[j].n_tok, b->level[j].n_tok);
            assert_memory_equal(&a->level[j].k, &b->level[j].k, sizeof a->level[j].k);
            assert_memory_equal(&a->level[j].v, &b->level[j].v, sizeof a->level[j].v);
        }
        lk_recipe *again = parsed(lk_recipe_text(a)); /* the normalized text parses again */
        assert_string_equal(lk_recipe_text(again), lk_recipe_text(a));
        assert_memory_equal(again->level, a->level, sizeof a->level);
        assert_memory_equal(again->override, a->override, sizeof a->override);
        lk_recipe_free(again);
        lk_recipe_free(a);
        lk_recipe_free(b);
    }
}

static void presets_are_recipes(void **state) {
    size_t n = 0;
    lk_preset preset;
    for (; lk_recipe_preset(n, &preset); n++) {
        lk_recipe *named = parsed(preset.name), *written = parsed(preset.text);
        assert_string_equal(lk_recipe_text(named), preset.name);
        assert_string_equal(lk_recipe_text(written), preset.text);
        assert_memory_equal(named->level, written->level, sizeof named->level);
        assert_non_null(preset.note);
        assert_null(strchr(preset.note, '\n'));
        lk_recipe_free(named);
        lk_recipe_free(written);
    }
    assert_in_range(n, 7, 100);
    assert_false(lk_recipe_preset(n, &preset));
    assert_false(lk_recipe_preset((size_t)-1, &preset));
}

static void tuned_presets_are_recipes(void **state) {
    lk_preset preset;
    for (size_t n = 0; lk_recipe_tuned(n, &preset); n++) {
        lk_recipe *named = parsed(preset.name), *written = parsed(preset.text);
        assert_string_equal(lk_recipe_text(named), preset.name);
        assert_string_equal(lk_recipe_text(written), preset.text);
        assert_int_equal(named->n_override, written->n_override);
        assert_memory_equal(named->level, written->level, sizeof named->level);
        assert_null(strchr(preset.note, '\n'));
        assert_true(preset.model != 0);
        lk_preset other;
        for (size_t i = 0; lk_recipe_preset(i, &other); i++)
            assert_string_not_equal(other.name, preset.name);
        lk_recipe_free(named);
        lk_recipe_free(written);
    }
    assert_true(lk_recipe_tuned(0, &(lk_preset){0}));
    assert_false(lk_recipe_tuned((size_t)-1, &(lk_preset){0}));
}

struct bad_recipe {
    const char *text, *place, *message;
};

static void assert_errors(const struct bad_recipe *row, size_t n_row) {
    for (size_t i = 0; i < n_row; i++) {
        lk_err err = {0};
        lk_recipe *recipe = NULL;
        lk_status status = lk_recipe_parse(&recipe, row[i].text, &err);
        if (status != LK_E_FORMAT) fail_msg("\"%s\": accepted", row[i].text);
        assert_int_equal(err.code, LK_E_FORMAT);
        assert_null(recipe);
        if (!strstr(err.msg, row[i].place) || !strstr(err.msg, row[i].message) ||
            strchr(err.msg, '\n'))
            fail_msg("\"%s\": expected %s ... %s, got: %s", row[i].text, row[i].place,
                     row[i].message, err.msg);
        assert_int_equal(lk_recipe_parse(&recipe, row[i].text, NULL), LK_E_FORMAT);
    }
}

static void errors_show_their_place(void **state) {
    static const struct bad_recipe row[] = {
        {"", "recipe: ", "empty"},
        {" \n # nothing\n", "recipe: ", "empty"},
        {";", "column 1:", "expected a codec, sink, body"},
        {"gzip", "'gzip' is not a recipe", "neither a preset, such as best-4, nor a codec"},
        {"\x1b[2J\xff", "'?[2J?' is not a recipe", "neither"},
        {"sink 4: x=rot3", "column 9:",
         "expected 'k=', 'v=' or a codec (f16, int8, kivi2, kivi4, rot1 to rot8, asym2 to asym8, "
         "hqq2 to hqq4, kvquant2 to kvquant4, kvarn2 to kvarn8, oscar2 to oscar4, nf4, or latent), "
         "found 'x': \"sink 4: "
         ">>x=rot3\""},
        {"body: k=rot3", "column 13:", "expected 'v=', found the end"},
        {"body: k=rot3 k=rot2", "column 14:", "expected 'v=', found 'k'"},
        {"body: k rot3", "column 9:", "expected '=' after 'k', found 'rot3'"},
        {"body: k=rot3 v=rot33", "column 16:", "found 'rot33', did you mean 'rot3'?: "},
        {"body: k=sigma v=rot3", "column 9:", "expected a codec (f16, int8"},
        {"body rot3", "column 6:", "expected ':', found 'rot3'"},
        {"sink: f16; body: rot3", "column 5:", "expected a number of tokens, found ':'"},
        {"sink 0: f16; body: rot3", "column 6:", "from 1 to 1024"},
        {"sink 1025: f16; body: rot3", "column 6:", "from 1 to 1024"},
        {"sink 4.5: f16; body: rot3", "column 6:", "from 1 to 1024"},
        {"sink -4: f16; body: rot3", "column 6:", "found '-'"},
        {"body: rot3; window 1000001: f16", "column 20:", "from 1 to 1000000"},
        {"body: rot3; window 99999999999999999999999999: f16", "column 20:", "from 1 to 1000000"},
        {"body: rot3; window 0: f16", "column 20:", "from 1 to"},
        {"body: rot3; window many: f16", "column 20:", "window 128, window 10%), found 'many'"},
        {"body: rot3; recent 0%: f16", "column 20:", "at most 100%"},
        {"body: rot3; recent 100.5%: f16", "column 20:", "at most 100%"},
        {"body: rot3; recent 60%: rot4; recent 50%: f16", "column 31:", "more than 100%"},
        {"body: rot3; recent 60%: rot4; recent 40.5%: f16", "column 31:", "more than 100%"},
        {"body: rot3; window 600000: rot4; window 600000: f16",
         "column 34:", "more than 1000000 tokens"},
        {"body: rot3; residual 100: f16", "column 13:", "must be a multiple of 32"},
        {"body: kivi2(g128); residual 64: f16",
         "column 20:", "not a multiple of the kivi group of 128"},
        {"body: rot3; residual 64: f16; window 32: f16", "column 31:", "no level can follow"},
        {"sink 4: f16", "column 12:", "the recipe has no body"},
        {"layers 3: rot3", "column 15:", "no body"},
        {"body: rot3; body: rot4", "column 13:", "already a body"},
        {"body: rot3; all: rot4", "column 13:", "already a body"},
        {"sink 4: f16; sink 8: f16; body: rot3", "column 14:", "already a sink: 'sink 4'"},
        {"body: rot3; sink 4: f16", "column 13:", "must come first"},
        {"window 64: f16; body: rot3", "column 17:", "move the body before 'window 64'"},
        {"sink 4: f16; all: rot3", "column 1:", "'all' leaves no tokens for 'sink 4': use 'body:'"},
        {"all: rot3; window 64: f16", "column 12:", "leaves no tokens for 'window 64'"},
        {"rot3; window 64: f16", "column 7:", "a codec alone leaves no tokens"},
        {"foo 3: f16", "column 1:",
         "expected a codec, sink, body, keep, all, recent, window, residual, layers, heads, "
         "absorb, "
         "eager or read, found 'foo'"},
        {"sink 4: f16; rot3", "column 14:",
         "expected sink, body, keep, all, recent, window, residual, layers, heads, absorb, eager "
         "or read, found 'rot3'"},
        {"body: rot4; heads 64: rot3", "column 19:", "expected a KV head from 0 to 63"},
        {"body: rot4; layers 2 heads 3-1: rot3", "column 28:", "heads 3-1 are in reverse order"},
        {"body: rot4; heads 1: kivi2", "column 13:", "only bits and codebooks may differ"},
        {"body: rot4; heads 1: k=rot4(nosigma) v=rot4", "column 13:", "K of some heads uses"},
        {"body: rot4; heads 1: keep 9 by h2o: rot4", "column 22:", "or a codec"},
        {"body: rot4; layers 1: keep 9 by h2o: rot4; layers 1 heads 0: rot3(trellis); window 9: "
         "f16",
         "column 51:", "single rows cannot be replaced"},
        {"body: rot4; layers 1: keep 9 by h2o: rot4; layers 1: rot3(trellis); window 9: f16",
         "column 51:", "single rows cannot be replaced"},
        {"body: latent; heads 1: rot4", "column 15:", "latents belong to groups of heads"},
        {"body: rot2; heads 1: rot3; window 9: rot2", "column 13:", "'heads' stores K in 3 bits"},
        {"body: int8; window 64: rot4", "column 1:",
         "'body' stores K in 8 bits, but its rows come from 'window 64', which has only 4 bits"},
        {"body: k=rot2 v=rot4; window 64: k=rot3 v=rot3", "column 1:", "stores V in 4 bits"},
        {"body: rot3; window 64: rot4; layers first 2: f16",
         "column 37:", "'layers' stores K in 16 bits"},
        {"body: f16(mean)", "column 10:", "f16 has no options"},
        {"body: int8(mean)", "column 11:", "int8 has no options"},
        {"body: rot3(", "column 12:",
         "expected an option of rot (mean, nomean, sigma, nosigma, lloyd, uniform or trellis), "
         "found the end"},
        {"body: rot3(trellis, lloyd)", "column 21:", "trellis or lloyd is given twice"},
        {"body: rot3(trellis, trellis)", "column 21:", "trellis is given twice"},
        {"body: rot5(trellis)", "column 12:", "trellises for 1 to 4 bits only"},
        {"body: rot3(mean nosigma)", "column 17:", "expected ',' or ')'"},
        {"body: rot3(mean, nomean)", "column 18:", "mean or nomean is given twice"},
        {"body: rot3(g64)", "column 12:", "expected an option of rot"},
        {"body: kivi2(g48)", "column 13:", "g32, g64 or g128"},
        {"body: kivi2(g32,g64)", "column 17:", "the group size is given twice"},
        {"body: kivi3", "column 7:", "did you mean 'kivi4'?"},
        {"body: asym9", "column 7:", "did you mean 'asym4'?"},
        {"body: asym1", "column 7:", "did you mean 'asym4'?"},
        {"body: hqq5", "column 7:", "did you mean 'hqq4'?"},
        {"body: kvquant", "column 7:", "did you mean 'kvquant4'?"},
        {"body: asym3(mean)",
         "column 13:", "expected an option of asym (g32, g64, g128 or hadamard)"},
        {"body: oscar3(clip100)", "column 14:", "expected an option of oscar (clip50 to clip99)"},
        {"body: oscar3(clip96,clip96)", "column 21:", "expected an option of oscar"},
        {"body: asym3(hadamar)", "column 13:", "did you mean 'hadamard'?"},
        {"body: asym3(hadamard,hadamard)", "column 22:", "hadamard is given twice"},
        {"body: asym3(g32,g32)", "column 17:", "the group size is given twice"},
        {"body: hqq4(hadamard)", "column 12:", "expected an option of hqq (g32, g64 or g128)"},
        {"body: kvquant3(g64)", "column 15:", "kvquant3 has no options"},
        {"body: kvarn4(g64)", "column 13:", "kvarn4 has no options"},
        {"keep 64 by h2o: kvarn4; window 64: f16", "column 1:", "the rows of a block share what"},
        {"body: rot3 window 64: f16", "column 12:", "expected ';' or the end, found 'window'"},
        {"body: rot3; widow 64: f16", "column 13:", "found 'widow', did you mean 'window'?"},
        {"body: rot3; wni 64: f16", "column 13:", "expected sink, body, keep"},
        {"body: rot3;; window 64: f16", "column 12:", "found ';'"},
        {"body: rot1; window 1: f16; window 1: f16; window 1: f16; window 1: f16; window 1: f16; "
         "window 1: f16; "
         "window 1: f16; window 1: f16",
         "column 118:", "more than 8 levels"},
        {"sink 4: f16\nbody: rot3 v=rot2\n",
         "line 2, column 12:", "expected ';' or the end, found 'v'"},
        {"body: rot3 \xc3\xa9\xc3\xa9 x", "column 12:", "found byte 0xc3: \"body: rot3 >>???? x\""},
        {"body: rot3 # \xc3\xa9\xc3\xa9\n \xc3\xa9", "line 2, column 2:", "found byte 0xc3"},
        {"body: rot3 \x01", "column 12:", "found byte 0x01"},
    };
    assert_errors(row, sizeof row / sizeof row[0]);
}

static void errors_of_latents(void **state) {
    static const struct bad_recipe row[] = {
        {"body: latent0%", "column 13:", "more than 0% and at most 100%"},
        {"body: latent101%", "column 13:", "at most 100%"},
        {"body: latent50", "column 15:", "expected '%'"},
        {"body: latents+rot3", "column 13:", "expected ';' or the end, found 's'"},
        {"body: latent50%+", "column 17:", "expected a codec for the latents (f16, int8"},
        {"body: latent50%+latent", "column 17:", "expected a codec for the latents"},
        {"body: latent(post)", "column 14:", "expected an option of latent (pre), found 'post'"},
        {"body: latent(pre", "column 17:", "expected ')'"},
        {"body: k=f16 v=latent50%(pre)", "column 25:", "'pre' is only for K"},
        {"body: rot3; recent 10%: latent50%+rot3", "column 1:",
         "stores K as full rows, but its rows come from 'recent 10%', which stores latents"},
        {"body: latent+rot2; recent 10%: latent(pre)+rot3",
         "column 1:", "stores K as other latents"},
        {"body: latent60%+rot2; recent 10%: latent50%+rot3",
         "column 1:", "higher rank than 'recent 10%'"},
        {"body: latent+rot2; window 64: latent+rot2; layers 3: k=rot2 v=latent+rot2",
         "column 51:", "stores K as full rows"},
    };
    assert_errors(row, sizeof row / sizeof row[0]);
}

static void unknown_names_are_explained(void **state) {
    static const struct bad_recipe row[] = {
        {"selectve", "'selectve'", "did you mean selective?"},
        {"best3", "'best3'", "did you mean best-3?"},
        {"best-5", "'best-5'", "did you mean best-4?"},
        {"BEST-19", "'BEST-19'", "did you mean best-1.9?"},
        {" kivi-3 ;", "'kivi-3'", "did you mean kivi-4?"},
        {"streming", "'streming'", "did you mean streaming?"},
        {"rot9", "'rot9'", "did you mean rot8?"},
        {"q8_0", "'q8_0' is not a recipe", "selective has about its size"},
        {"Q5_1", "'Q5_1' is not a recipe", "best-4 is smaller"},
        {"q4_0", "'q4_0' is not a recipe", "best-4 has about its size"},
        {"turbo3", "'turbo3' is not a recipe", "best-3 has about its size"},
        {"f32", "'f32' is not a recipe", "f16 is the most exact"},
        {"kivi", "'kivi' is not a recipe", "use kivi-4"},
        {"kvquant", "'kvquant' is not a recipe", "did you mean kvquant4?"},
        {"hqq", "'hqq' is not a recipe", "did you mean hqq4?"},
        {"asym", "'asym' is not a recipe", "did you mean asym4?"},
    };
    assert_errors(row, sizeof row / sizeof row[0]);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        lk_err err = {0};
        lk_recipe *recipe = NULL;
        lk_recipe_parse(&recipe, row[i].text, &err);
        if (strlen(err.msg) > 110) fail_msg("longer than a line: %s", err.msg);
    }
}

static void errors_of_layers_show_their_place(void **state) {
    static const struct bad_recipe row[] = {
        {"body: rot2; layers: rot3", "column 19:", "expected 'first', 'last' or a layer number"},
        {"body: rot2; layers 5-3: rot3",
         "column 20:", "layers 5-3 are in reverse order: write 3-5"},
        {"body: rot2; layers first 0: rot3", "column 26:", "from 1 to"},
        {"body: rot2; layers 0 recent: rot3", "column 20:", "unknown level 'recent'"},
        {"body: rot2; layers 0 sink: rot3", "column 22:", "expected ':'"},
        {"body: rot2; window 32: rot8; layers 0 window: none", "column 47:", "or a codec"},
        {"body: rot2; window 32: rot8; layers 0 window: keep 5 by h2o", "column 47:", "or a codec"},
        {"body: rot2; recent 9%: rot4; recent 99: rot8; layers 0 recent: rot8",
         "column 54:", "'recent' could be one of several levels: call one of them 'window'"},
        {"body: rot4; window 32: rot4; layers 3 window: k=rot4 v=rot3", "column 37:",
         "'layers' stores V in 4 bits, but its rows come from 'window 32', which has only 3 bits"},
        {"body: rot4; recent 9%: rot4; layers 3 recent: rot6; window 9: rot5",
         "column 37:", "'recent 9%' stores K in 6 bits, but its rows come from 'window 9'"},
        {"body: latent+rot2; window 64: latent+rot2; layers 3 window: latent+rot4",
         "column 51:", "'window 64' stores latents in all layers, or in none"},
    };
    assert_errors(row, sizeof row / sizeof row[0]);
}

static void errors_of_sizes_show_their_place(void **state) {
    static const struct bad_recipe row[] = {
        {"sink 4: f16; body: none", "column 14:", "needs a window"},
        {"sink 4: rot8; body: rot3", "column 1:", "arrive one at a time"},
        {"sink 4: k=kivi4 v=int8; body: rot3", "column 1:", "arrive one at a time"},
        {"sink 4(shift): f16; body: rot3", "column 1:", "'shift' needs evicted rows"},
        {"sink 4(shift): f16; keep 9 by h2o", "column 1:", "this policy leaves gaps"},
        {"sink 4(shift): f16; keep 9 by newest; layers 1: keep 9 by tova",
         "column 1:", "this policy leaves gaps"},
        {"sink 4(move): f16; body: none; window 9: f16", "column 8:", "expected 'shift'"},
        {"keep 0 by h2o: f16", "column 6:", "from 1 to"},
        {"keep many by h2o: f16", "column 6:", "keep 128, keep 10%"},
        {"keep 120% by h2o: f16", "column 6:", "at most 100%"},
        {"keep 50 of context by h2o: f16", "column 9:", "expected 'by', found 'of'"},
        {"keep 5% of prompt by h2o: f16", "column 12:", "expected 'context'"},
        {"keep 50: f16", "column 8:", "expected 'by'"},
        {"keep 50 by luck: f16", "column 12:", "newest, random, h2o, tova or replay"},
        {"keep 50 by tova(mean): f16", "column 17:", "the option of the policy, 'apart'"},
        {"keep 50 by h2o; body: rot3", "column 17:", "already a body"},
        {"keep 50 by h2o: rot4; residual 64: f16", "column 23:", "use 'window'"},
        {"rot4; layers 0: keep 64 by h2o; absorb less; absorb less",
         "column 46:", "there is already an 'absorb'"},
        {"body: rot4; layers 1: none", "column 20:", "needs a window"},
        {"rot4; read", "column 11:", "expected per cent of the tiles"},
        {"rot4; read 25", "column 12:", "expected per cent of the tiles"},
        {"rot4; read 0%", "column 12:", "expected 0.1% to 100%"},
        {"rot4; read 101%", "column 12:", "expected 0.1% to 100%"},
        {"read 5%; rot4; read 5%", "column 16:", "there is already a 'read'"},
        {"eager; rot4; eager", "column 14:", "there is already an 'eager'"},
        {"body: rot4; absorb less", "column 13:", "'absorb' needs evicted rows"},
        {"all: none", "column 1:", "needs a window"},
        {"body: f16; window 64: none", "column 23:", "expected 'k=', 'v=' or a codec"},
        {"body: none; layers 3: rot2; window 64: f16", "column 20:", "the body is 'none'"},
        {"body: none; residual 64: f16", "column 13:", "use 'window'"},
    };
    assert_errors(row, sizeof row / sizeof row[0]);
}

/* Every pair of the table parses, or is refused for the reason that the table gives, and its
 * example has both features. */
static void combinations_are_a_table(void **state) {
    lk_combination pair;
    size_t n = 0, n_refused = 0;
    for (; lk_recipe_combination(n, &pair); n++) {
        lk_err err = {0};
        lk_recipe *recipe = NULL;
        enum lk_feature f[2] = {LK_N_FEATURE, LK_N_FEATURE};
        for (int i = 0; i < LK_N_FEATURE; i++) {
            if (strcmp(pair.a, lk_feature_name((enum lk_feature)i)) == 0) f[0] = i;
            if (strcmp(pair.b, lk_feature_name((enum lk_feature)i)) == 0) f[1] = i;
        }
        assert_true(f[0] < f[1] && f[1] < LK_N_FEATURE);
        lk_status status = lk_recipe_parse(&recipe, pair.example, &err);
        n_refused += pair.reason != NULL;
        if (pair.reason && f[1] < LK_FEATURE_SLIDING) { /* models are checked with sessions */
            if (status != LK_E_FORMAT || !strstr(err.msg, pair.reason))
                fail_msg("%s: not '%s' but '%s'", pair.example, pair.reason, err.msg);
            continue;
        }
        if (status != LK_OK) fail_msg("%s and %s: %s", pair.a, pair.b, err.msg);
        lk_features has = lk_recipe_features(recipe);
        for (int i = 0; i < 2; i++)
            if (f[i] < LK_FEATURE_SLIDING && !(has & lk_feature_bit(f[i])))
                fail_msg("%s: no %s", pair.example, i ? pair.b : pair.a);
        lk_recipe_free(recipe);
    }
    const size_t n_own = LK_FEATURE_SLIDING, n_model = LK_N_FEATURE - LK_FEATURE_SLIDING;
    assert_int_equal(n, n_own * (n_own - 1) / 2 + n_own * n_model);
    assert_true(n_refused > 10 && n_refused < n / 5);
    assert_false(lk_recipe_combination((size_t)-1, &pair));
}

static void limits_hold(void **state) {
    static char text[20000];
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, NULL, &err), LK_E_ARG);
    assert_int_equal(lk_recipe_parse(NULL, "f16", &err), LK_E_ARG);
    memset(text, ' ', sizeof text - 1);
    memcpy(text, "f16", 3);
    assert_int_equal(lk_recipe_parse(&recipe, text, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "longer than"));
    memset(text, 'a', 16000);
    text[16000] = 0;
    assert_int_equal(lk_recipe_parse(&recipe, text, &err), LK_E_FORMAT);
    lk_recipe_free(NULL);
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_read),
        cmocka_unit_test(options_override_the_side),
        cmocka_unit_test(layers_override_the_body),
        cmocka_unit_test(layers_have_a_maximum_of_groups),
        cmocka_unit_test(heads_have_their_own_codecs),
        cmocka_unit_test(layers_override_a_window),
        cmocka_unit_test(spellings_are_equivalent),
        cmocka_unit_test(presets_are_recipes),
        cmocka_unit_test(tuned_presets_are_recipes),
        cmocka_unit_test(errors_show_their_place),
        cmocka_unit_test(errors_of_latents),
        cmocka_unit_test(unknown_names_are_explained),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(errors_of_layers_show_their_place),
        cmocka_unit_test(errors_of_sizes_show_their_place),
        cmocka_unit_test(the_body_may_be_none),
        cmocka_unit_test(keep_limits_the_body),
        cmocka_unit_test(combinations_are_a_table),
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
