#include "recipe/recipe.h"

#include "recipe/presets.h"
#include "recipe/recipe_check.h"
#include "recipe/recipe_codec.h"
#include "recipe/recipe_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 16384 }; /* a recipe is a line or a small file; longer is a mistake */

struct parse {
    struct lk_scan scan;
    struct lk_recipe *recipe;
    size_t level_at[LK_MAX_LEVEL], override_at[LK_MAX_OVERRIDE];
    const char *alone; /* the body was written so that it must be the only level */
    size_t n_text, absorb_at;
};

static const char ranges[] = "sink, body, keep, all, recent, window, residual, layers or absorb";

static bool is_range(const char *word) {
    static const char *const name[] = {"sink",   "body",   "keep",     "all",
                                       "recent", "window", "residual", "layers"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (strcmp(word, name[i]) == 0) return true;
    }
    return false;
}

/* A whole number from `least` to `most`. */
static lk_status read_count(struct parse *p, const char *what, int64_t least, int64_t most,
                            uint32_t *out) {
    int64_t value;
    lk_scan_skip(&p->scan);
    size_t at = p->scan.at;
    if (!lk_scan_number(&p->scan, &value))
        return lk_scan_fail(&p->scan, at, true, "expected %s", what);
    if (value % 1000 || value / 1000 < least || value / 1000 > most)
        return lk_scan_fail(&p->scan, at, false, "expected %s from %d to %d", what, (int)least,
                            (int)most);
    *out = (uint32_t)(value / 1000);
    return LK_OK;
}

/* "recent 12.5%": without floats, whose point depends on the locale. */
static void print_percent(char *buf, size_t cap, const char *range, unsigned thousandths) {
    int n = snprintf(buf, cap, "%.8s %u.%03u", range, thousandths / 1000, thousandths % 1000);
    while (buf[n - 1] == '0') n--;
    if (buf[n - 1] == '.') n--;
    snprintf(buf + n, cap - (size_t)n, "%%");
}

/* SPAN := N | N '%' */
static lk_status read_span(struct parse *p, const char *range, struct lk_level_spec *level) {
    int64_t value;
    lk_scan_skip(&p->scan);
    size_t at = p->scan.at;
    if (!lk_scan_number(&p->scan, &value))
        return lk_scan_fail(&p->scan, at, true,
                            "expected a number of tokens or per cent (%s 128, %s 10%%)", range,
                            range);
    if (lk_scan_sign(&p->scan, '%')) {
        if (value <= 0 || value > 100000)
            return lk_scan_fail(&p->scan, at, false, "expected more than 0%% and at most 100%%");
        level->percent = (float)value / 1000.0F;
        print_percent(level->name, sizeof level->name, range, (unsigned)value);
        return LK_OK;
    }
    if (value % 1000 || value < 1000 || value / 1000 > LK_MAX_WINDOW)
        return lk_scan_fail(&p->scan, at, false, "expected a number of tokens from 1 to %d",
                            LK_MAX_WINDOW);
    level->n_tok = (uint32_t)(value / 1000);
    snprintf(level->name, sizeof level->name, "%s %u", range, level->n_tok);
    return LK_OK;
}

/* 'shift' ')' */
static lk_status read_shift(struct parse *p, struct lk_level_spec *level) {
    char word[LK_WORD_MAX];
    lk_scan_peek(&p->scan, word);
    if (strcmp(word, "shift") != 0)
        return lk_scan_fail(&p->scan, p->scan.at, true, "expected 'shift'");
    lk_scan_word(&p->scan, word);
    level->shift = true;
    return lk_scan_sign(&p->scan, ')') ? LK_OK
                                       : lk_scan_fail(&p->scan, p->scan.at, true, "expected ')'");
}

/* The range of a level, its word already read. */
static lk_status read_range(struct parse *p, const char *word, size_t at,
                            struct lk_level_spec *level) {
    lk_status status = LK_OK;
    if (strcmp(word, "sink") == 0) {
        level->range = LK_SINK;
        status = read_count(p, "a number of tokens", 1, LK_MAX_SINK, &level->n_tok);
        if (!status && lk_scan_sign(&p->scan, '(')) status = read_shift(p, level);
        snprintf(level->name, sizeof level->name, "sink %u", level->n_tok);
    } else if (strcmp(word, "residual") == 0) {
        level->range = LK_RESIDUAL;
        status = read_count(p, "a number of tokens", 1, LK_MAX_WINDOW, &level->n_tok);
        if (!status && level->n_tok % LK_TILE)
            return lk_scan_fail(&p->scan, at, false, "a residual holds a multiple of %d tokens",
                                LK_TILE);
        snprintf(level->name, sizeof level->name, "residual %u", level->n_tok);
    } else if (strcmp(word, "recent") == 0 || strcmp(word, "window") == 0) {
        level->range = LK_RECENT;
        status = read_span(p, word, level);
    } else if (strcmp(word, "keep") == 0) {
        level->range = LK_BODY;
        status = lk_recipe_read_keep(&p->scan, &level->limit, level->name, sizeof level->name);
    } else {
        level->range = LK_BODY;
        if (strcmp(word, "all") == 0) p->alone = "'all'";
        snprintf(level->name, sizeof level->name, "%s", word);
    }
    return status;
}

/* One entry of LIST: 'first' N | 'last' N | I | I '-' J */
static lk_status read_layers_entry(struct parse *p, struct lk_override *entry) {
    char word[LK_WORD_MAX];
    uint32_t n, last;
    lk_status status;
    lk_scan_peek(&p->scan, word);
    size_t at = p->scan.at;
    if (strcmp(word, "first") == 0 || strcmp(word, "last") == 0) {
        lk_scan_word(&p->scan, word);
        status = read_count(p, "a number of layers", 1, LK_MAX_LAYER, &n);
        if (status) return status;
        entry->first = word[0] == 'f' ? 0 : -(int32_t)n;
        entry->last = word[0] == 'f' ? (int32_t)n - 1 : -1;
        return LK_OK;
    }
    status = read_count(p, "'first', 'last' or a layer's number", 0, LK_MAX_LAYER - 1, &n);
    if (status) return status;
    last = n;
    if (lk_scan_sign(&p->scan, '-')) {
        status = read_count(p, "a layer's number", 0, LK_MAX_LAYER - 1, &last);
        if (status) return status;
    }
    if (last < n) return lk_scan_fail(&p->scan, at, false, "layers %u-%u go backwards", n, last);
    entry->first = (int32_t)n;
    entry->last = (int32_t)last;
    return LK_OK;
}

static lk_status read_colon(struct parse *p) {
    if (lk_scan_sign(&p->scan, ':')) return LK_OK;
    return lk_scan_fail(&p->scan, p->scan.at, true, "expected ':'");
}

/* Does a part end with a body's size? Its rows are f16 then. */
static bool ends_keep(const struct parse *p, const struct lk_limit *limit) {
    struct lk_scan look = p->scan;
    return limit->policy.keep != LK_POLICY_NONE && !lk_scan_sign(&look, ':');
}

/* [ 'keep' ... ':' ] codecs, of some layers */
static lk_status read_override(struct parse *p, struct lk_limit *limit, struct lk_codec side[2]) {
    char word[LK_WORD_MAX], name[48];
    lk_scan_peek(&p->scan, word);
    if (strcmp(word, "keep") != 0) return lk_recipe_read_codecs(&p->scan, side);
    lk_scan_word(&p->scan, word);
    lk_status status = lk_recipe_read_keep(&p->scan, limit, name, sizeof name);
    if (status) return status;
    side[LK_K] = side[LK_V] = lk_exact;
    return lk_scan_sign(&p->scan, ':') ? lk_recipe_read_codecs(&p->scan, side) : LK_OK;
}

/* LIST ':' [ 'keep' ... ':' ] codecs, after 'layers' */
static lk_status read_layers(struct parse *p) {
    struct lk_recipe *r = p->recipe;
    int first = r->n_override;
    struct lk_codec side[2];
    struct lk_limit limit = {0};
    lk_status status;
    do {
        lk_scan_skip(&p->scan);
        if (r->n_override == LK_MAX_OVERRIDE)
            return lk_scan_fail(&p->scan, p->scan.at, false, "more than %d groups of layers",
                                LK_MAX_OVERRIDE);
        p->override_at[r->n_override] = p->scan.at;
        status = read_layers_entry(p, &r->override[r->n_override]);
        if (status) return status;
        r->n_override++;
    } while (lk_scan_sign(&p->scan, ','));
    status = read_colon(p);
    if (!status) status = read_override(p, &limit, side);
    if (status) return status;
    for (int i = first; i < r->n_override; i++) {
        r->override[i].k = side[LK_K];
        r->override[i].v = side[LK_V];
        r->override[i].limit = limit;
    }
    return LK_OK;
}

/* codecs | 'none', after the range of a level */
static lk_status read_body_codecs(struct parse *p, struct lk_level_spec *level,
                                  struct lk_codec side[2]) {
    char word[LK_WORD_MAX];
    lk_scan_peek(&p->scan, word);
    bool body = level->range == LK_BODY && level->limit.policy.keep == LK_POLICY_NONE;
    if (!body || strcmp(word, "none") != 0) return lk_recipe_read_codecs(&p->scan, side);
    lk_scan_word(&p->scan, word);
    level->limit.policy.keep = LK_POLICY_NEWEST; /* 0 of them */
    return LK_OK;
}

/* 'less' or 'performer', after 'absorb' */
static lk_status read_absorb(struct parse *p, size_t at) {
    char word[LK_WORD_MAX];
    lk_scan_peek(&p->scan, word);
    bool less = strcmp(word, "less") == 0;
    if (!less && strcmp(word, "performer") != 0)
        return lk_scan_fail(&p->scan, p->scan.at, true, "expected 'less' or 'performer'");
    lk_scan_word(&p->scan, word);
    p->recipe->absorbs = less ? LK_ABSORB_LESS : LK_ABSORB_PERFORMER;
    p->absorb_at = at;
    return LK_OK;
}

/* A part with a range, or codecs alone, which mean 'all: codecs'. */
static lk_status read_part(struct parse *p) {
    struct lk_recipe *r = p->recipe;
    struct lk_codec side[2];
    char word[LK_WORD_MAX];
    lk_status status = LK_OK;
    bool sized = false;
    lk_scan_peek(&p->scan, word);
    size_t at = p->scan.at;
    bool bare = strcmp(word, "k") == 0 || strcmp(word, "v") == 0 || lk_recipe_names_codec(word);
    if (strcmp(word, "absorb") == 0) {
        lk_scan_word(&p->scan, word);
        return read_absorb(p, at);
    }
    if (!bare && !is_range(word))
        return lk_scan_fail(&p->scan, at, true, "expected %s%s", p->n_text ? "" : "a codec, ",
                            ranges);
    if (strcmp(word, "layers") == 0) {
        lk_scan_word(&p->scan, word);
        return read_layers(p);
    }
    if (r->n_level == LK_MAX_LEVEL)
        return lk_scan_fail(&p->scan, at, false, "more than %d levels", LK_MAX_LEVEL);
    if (bare && r->n_level > 0) return lk_scan_fail(&p->scan, at, true, "expected %s", ranges);
    struct lk_level_spec *level = &r->level[r->n_level];
    if (bare) {
        level->range = LK_BODY;
        p->alone = "a codec alone";
        snprintf(level->name, sizeof level->name, "all");
    } else {
        lk_scan_word(&p->scan, word);
        status = read_range(p, word, at, level);
        sized = !status && ends_keep(p, &level->limit);
        if (!status && !sized) status = read_colon(p);
    }
    side[LK_K] = side[LK_V] = lk_exact;
    if (!status && !sized) status = read_body_codecs(p, level, side);
    if (status) return status;
    level->k = side[LK_K];
    level->v = side[LK_V];
    p->level_at[r->n_level++] = at;
    return LK_OK;
}

/* Keep the part as read, on one line: recipes from files have comments and line ends. */
static void keep_text(struct parse *p, size_t from, size_t to) {
    char *text = p->recipe->text;
    if (p->n_text) {
        text[p->n_text++] = ';';
        text[p->n_text++] = ' ';
    }
    p->n_text += lk_scan_squeeze(p->scan.text, from, to, text + p->n_text);
}

/* part { ';' part } [';'], where a line's end serves as well as ';' */
static lk_status read_parts(struct parse *p) {
    while (!lk_scan_done(&p->scan)) {
        size_t from = p->scan.at;
        lk_status status = read_part(p);
        if (status) return status;
        keep_text(p, from, p->scan.at);
        bool line_end = lk_scan_skip(&p->scan);
        bool sign = lk_scan_sign(&p->scan, ';');
        if (!sign && !line_end && !lk_scan_done(&p->scan))
            return lk_scan_fail(&p->scan, p->scan.at, true, "expected ';' or the end");
    }
    lk_status status = lk_recipe_check(p->recipe, &p->scan, p->level_at, p->override_at, p->alone);
    if (!status && p->recipe->absorbs && !lk_recipe_evicts(p->recipe))
        return lk_scan_fail(
            &p->scan, p->absorb_at, false,
            "nothing is let go that could be absorbed: say 'keep N by POLICY' or 'body: none'");
    return status;
}

/* The whole text is one word: a preset's name, perhaps misspelt. */
static bool one_word(struct lk_scan scan, size_t *from, size_t *to) {
    lk_scan_skip(&scan);
    *from = scan.at;
    while (scan.at < scan.len && !strchr(" \t\r\n\v\f#;:=(%,", scan.text[scan.at])) scan.at++;
    *to = scan.at;
    lk_scan_sign(&scan, ';');
    return lk_scan_done(&scan) && *to > *from;
}

static lk_status refuse_word(const struct lk_scan *scan, size_t at) {
    char names[160];
    size_t n = 0;
    for (size_t i = 0; lk_recipe_preset(i).name && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              lk_recipe_preset(i).name);
    return lk_scan_fail(scan, at, false, "neither a preset (%s) nor a codec (%s)", names,
                        lk_recipe_codec_names);
}

static lk_status parse_into(struct lk_recipe *recipe, struct lk_scan scan) {
    struct parse p = {.scan = scan, .recipe = recipe};
    size_t from, to;
    if (one_word(scan, &from, &to)) {
        const lk_preset *preset = lk_preset_find(scan.text + from, to - from);
        char word[LK_WORD_MAX];
        lk_scan_peek(&p.scan, word);
        if (preset) {
            p.scan.text = preset->text;
            p.scan.len = strlen(preset->text);
            p.scan.at = 0;
            lk_status status = read_parts(&p);
            if (status) return status;
            p.n_text = strlen(preset->name);
            memcpy(recipe->text, preset->name, p.n_text + 1);
            return LK_OK;
        }
        if (!lk_recipe_names_codec(word) && !is_range(word)) return refuse_word(&scan, from);
    }
    lk_status status = read_parts(&p);
    if (!status) recipe->text[p.n_text] = 0;
    return status;
}

lk_status lk_recipe_parse(lk_recipe **out, const char *text, lk_err *err) {
    enum { PRESET_ROOM = 256 }; /* a preset's text is longer than the name it is read from */
    if (!out || !text) return lk_fail(err, LK_E_ARG, "lk_recipe_parse: NULL argument");
    struct lk_scan scan = {.text = text, .len = strnlen(text, TEXT_MOST + 1), .err = err};
    if (scan.len > TEXT_MOST)
        return lk_fail(err, LK_E_FORMAT, "recipe: longer than %d bytes", TEXT_MOST);
    if (lk_scan_done(&scan))
        return lk_fail(err, LK_E_FORMAT,
                       "recipe: empty; expected a preset such as best-3, or a line such as "
                       "\"sink 4: f16; body: k=rot3 v=rot2; window 128: f16\"");
    struct lk_recipe *recipe = calloc(1, sizeof *recipe);
    /* A line's end becomes "; ", one byte more. */
    if (recipe) recipe->text = malloc(2 * scan.len + PRESET_ROOM);
    if (!recipe || !recipe->text) {
        lk_recipe_free(recipe);
        return lk_fail(err, LK_E_NOMEM, "recipe: out of memory");
    }
    scan.at = 0;
    lk_status status = parse_into(recipe, scan);
    if (status) {
        lk_recipe_free(recipe);
        return status;
    }
    *out = recipe;
    return LK_OK;
}

void lk_recipe_free(lk_recipe *recipe) {
    if (!recipe) return;
    free(recipe->text);
    free(recipe);
}

const char *lk_recipe_text(const lk_recipe *recipe) { return recipe->text; }

bool lk_recipe_evicts(const struct lk_recipe *recipe) {
    for (int i = 0; i < recipe->n_level; i++)
        if (recipe->level[i].limit.policy.keep != LK_POLICY_NONE) return true;
    for (int i = 0; i < recipe->n_override; i++)
        if (recipe->override[i].limit.policy.keep != LK_POLICY_NONE) return true;
    return false;
}

static bool covers(const struct lk_override *o, int layer, int n_layer) {
    int first = o->first < 0 ? o->first + n_layer : o->first;
    int last = o->last < 0 ? o->last + n_layer : o->last;
    return layer >= first && layer <= last;
}

bool lk_recipe_names_layer(const struct lk_recipe *recipe, int layer, int n_layer) {
    for (int i = 0; i < recipe->n_override; i++)
        if (covers(&recipe->override[i], layer, n_layer)) return true;
    return false;
}

void lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out) {
    memcpy(out, recipe->level, (size_t)recipe->n_level * sizeof *out);
    for (int i = 0; i < recipe->n_override; i++) {
        const struct lk_override *o = &recipe->override[i];
        if (!covers(o, layer, n_layer)) continue;
        for (int j = 0; j < recipe->n_level; j++) {
            if (out[j].range != LK_BODY) continue;
            out[j].k = o->k;
            out[j].v = o->v;
            if (o->limit.policy.keep != LK_POLICY_NONE) out[j].limit = o->limit;
        }
    }
}
