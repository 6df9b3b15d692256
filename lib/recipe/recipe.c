/* Parser of recipes, and their lifetime. */
#include "recipe/recipe.h"

#include "base/buf.h"
#include "recipe/combinations.h"
#include "recipe/presets.h"
#include "recipe/recipe_check.h"
#include "recipe/recipe_codec.h"
#include "recipe/recipe_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 16384 }; /* a recipe is a line or a small file; anything longer is a mistake */

struct parser {
    struct lk_scan scan;
    struct lk_recipe *recipe;
    struct lk_recipe_places at;
    const char *window[LK_MAX_OVERRIDE]; /* the word before ':'; NULL: none, the body. Static */
    size_t n_text;                       /* length of recipe->text */
};

/* Read an integer from `min` to `max`. */
static lk_status read_count(struct parser *p, const char *what, int64_t min, int64_t max,
                            uint32_t *out) {
    int64_t thousandths;
    size_t at = lk_scan_next(&p->scan);
    if (!lk_scan_number(&p->scan, &thousandths))
        return lk_scan_fail(&p->scan, at, true, "expected %s", what);
    if (thousandths % 1000 || thousandths / 1000 < min || thousandths / 1000 > max)
        return lk_scan_fail(&p->scan, at, false, "expected %s from %d to %d", what, (int)min,
                            (int)max);
    *out = (uint32_t)(thousandths / 1000);
    return LK_OK;
}

/* ---- sizes of levels ---- */

/* A number of tokens or a percentage; the other one is 0. */
struct lk_span {
    uint32_t n_tok;
    float percent;
    char text[16]; /* "512" or "12.5%" */
};

/* Read N | N '%'. `range` is the word before it, for messages. */
static lk_status read_span(struct lk_scan *scan, const char *range, struct lk_span *span) {
    int64_t thousandths;
    size_t at = lk_scan_next(scan);
    *span = (struct lk_span){0};
    if (!lk_scan_number(scan, &thousandths))
        return lk_scan_fail(scan, at, true,
                            "expected a number of tokens or a percentage (%s 128, %s 10%%)", range,
                            range);
    if (lk_scan_accept(scan, '%')) {
        if (thousandths <= 0 || thousandths > 100000)
            return lk_scan_fail(scan, at, false, "expected more than 0%% and at most 100%%");
        span->percent = (float)thousandths / 1000.0F;
        size_t len = lk_print_thousandths(span->text, sizeof span->text, (unsigned)thousandths);
        snprintf(span->text + len, sizeof span->text - len, "%%");
        return LK_OK;
    }
    if (thousandths % 1000 || thousandths < 1000 || thousandths / 1000 > LK_MAX_WINDOW)
        return lk_scan_fail(scan, at, false, "expected a number of tokens from 1 to %d",
                            LK_MAX_WINDOW);
    span->n_tok = (uint32_t)(thousandths / 1000);
    snprintf(span->text, sizeof span->text, "%u", span->n_tok);
    return LK_OK;
}

static lk_status expect_word(struct lk_scan *scan, const char *expected) {
    char word[LK_WORD_MAX];
    lk_scan_peek(scan, word);
    if (strcmp(word, expected) != 0)
        return lk_scan_fail(scan, scan->at, true, "expected '%s'", expected);
    lk_scan_word(scan, word);
    return LK_OK;
}

/* Read POLICY. Its name is copied to `name`. */
static lk_status read_policy(struct lk_scan *scan, struct lk_policy *policy,
                             char name[LK_WORD_MAX]) {
    size_t at = lk_scan_next(scan), n = 0;
    char names[96], option[LK_WORD_MAX];
    int kind = LK_POLICY_NEWEST;
    lk_scan_word(scan, name);
    while (kind < LK_N_POLICY && strcmp(name, lk_policy_def(kind)->name) != 0) {
        const char *before = kind == LK_POLICY_NEWEST  ? ""
                             : kind + 1 == LK_N_POLICY ? " or "
                                                       : ", ";
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", before,
                              lk_policy_def(kind++)->name);
    }
    if (kind == LK_N_POLICY) return lk_scan_fail(scan, at, true, "expected a policy (%s)", names);
    *policy = (struct lk_policy){.kind = (uint8_t)kind};
    if (!lk_scan_accept(scan, '(')) return LK_OK;
    const char *known = lk_policy_def(kind)->option;
    at = lk_scan_next(scan);
    lk_scan_word(scan, option);
    if (!known) return lk_scan_fail(scan, at, true, "the policy %s has no options", name);
    if (strcmp(option, known) != 0)
        return lk_scan_fail(scan, at, true, "expected the option of the policy, '%s'", known);
    policy->mean = kind == LK_POLICY_H2O;
    policy->per_head = kind == LK_POLICY_TOVA;
    return lk_scan_accept(scan, ')') ? LK_OK : lk_scan_fail(scan, scan->at, true, "expected ')'");
}

/* Read what follows the word 'keep': SPAN [ 'of' 'context' ] 'by' POLICY. Also prints the level's
 * name ("keep 512 by h2o") into name [cap]. */
static lk_status read_keep(struct lk_scan *scan, struct lk_limit *limit, char *name, size_t cap) {
    struct lk_span span;
    char word[LK_WORD_MAX];
    *limit = (struct lk_limit){0};
    lk_status status = read_span(scan, "keep", &span);
    if (status) return status;
    limit->n_tok = span.n_tok;
    limit->percent = span.percent;
    lk_scan_peek(scan, word);
    if (span.percent > 0 && strcmp(word, "of") == 0) {
        lk_scan_word(scan, word);
        status = expect_word(scan, "context");
        if (status) return status;
        limit->of_context = true;
    }
    status = expect_word(scan, "by");
    if (status) return status;
    status = read_policy(scan, &limit->policy, word);
    if (status) return status;
    snprintf(name, cap, "keep %s%s by %.6s", span.text, limit->of_context ? " of context" : "",
             word);
    return LK_OK;
}

/* ---- parts ---- */

/* 'shift' ')' */
static lk_status read_shift(struct parser *p, struct lk_level_spec *level) {
    lk_status status = expect_word(&p->scan, "shift");
    if (status) return status;
    level->shift = true;
    return lk_scan_accept(&p->scan, ')') ? LK_OK
                                         : lk_scan_fail(&p->scan, p->scan.at, true, "expected ')'");
}

/* Read the range of a level. `word`, at offset `at`, is already consumed. */
static lk_status read_range(struct parser *p, const char *word, size_t at,
                            struct lk_level_spec *level) {
    lk_status status = LK_OK;
    if (strcmp(word, "sink") == 0) {
        level->range = LK_SINK;
        status = read_count(p, "a number of tokens", 1, LK_MAX_SINK, &level->n_tok);
        if (!status && lk_scan_accept(&p->scan, '(')) status = read_shift(p, level);
        snprintf(level->name, sizeof level->name, "sink %u", level->n_tok);
    } else if (strcmp(word, "residual") == 0) {
        level->range = LK_RESIDUAL;
        status = read_count(p, "a number of tokens", 1, LK_MAX_WINDOW, &level->n_tok);
        if (!status && level->n_tok % LK_TILE)
            return lk_scan_fail(&p->scan, at, false,
                                "the size of a residual must be a multiple of %d tokens", LK_TILE);
        snprintf(level->name, sizeof level->name, "residual %u", level->n_tok);
    } else if (strcmp(word, "recent") == 0 || strcmp(word, "window") == 0) {
        struct lk_span span;
        level->range = LK_RECENT;
        status = read_span(&p->scan, word, &span);
        if (status) return status;
        level->n_tok = span.n_tok;
        level->percent = span.percent;
        snprintf(level->name, sizeof level->name, "%.8s %s", word, span.text);
    } else if (strcmp(word, "keep") == 0) {
        level->range = LK_BODY;
        status = read_keep(&p->scan, &level->limit, level->name, sizeof level->name);
    } else {
        level->range = LK_BODY;
        if (strcmp(word, "all") == 0) p->at.sole_level = "'all'";
        snprintf(level->name, sizeof level->name, "%s", word);
    }
    return status;
}

/* One entry of LIST: 'first' N | 'last' N | I | I '-' J */
static lk_status read_layers_entry(struct parser *p, struct lk_override *entry) {
    char word[LK_WORD_MAX];
    uint32_t n = 0, last;
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
    status = read_count(p, "'first', 'last' or a layer number", 0, LK_MAX_LAYER - 1, &n);
    if (status) return status;
    last = n;
    if (lk_scan_accept(&p->scan, '-')) {
        status = read_count(p, "a layer number", 0, LK_MAX_LAYER - 1, &last);
        if (status) return status;
    }
    if (last < n)
        return lk_scan_fail(&p->scan, at, false, "layers %u-%u are in reverse order: write %u-%u",
                            n, last, last, n);
    entry->first = (int32_t)n;
    entry->last = (int32_t)last;
    return LK_OK;
}

/* LIST of KV heads: I | I '-' J, separated by commas. Adds their bits. */
static lk_status read_heads(struct parser *p, uint64_t *heads) {
    lk_status status;
    do {
        uint32_t first = 0, last;
        size_t at = lk_scan_next(&p->scan);
        status = read_count(p, "a KV head", 0, LK_MAX_NAMED_HEAD - 1, &first);
        last = first;
        if (!status && lk_scan_accept(&p->scan, '-'))
            status = read_count(p, "a KV head", 0, LK_MAX_NAMED_HEAD - 1, &last);
        if (status) return status;
        if (last < first)
            return lk_scan_fail(&p->scan, at, false,
                                "heads %u-%u are in reverse order: write %u-%u", first, last, last,
                                first);
        for (uint32_t head = first; head <= last; head++) *heads |= (uint64_t)1 << head;
    } while (lk_scan_accept(&p->scan, ','));
    return LK_OK;
}

static lk_status read_colon(struct parser *p) {
    if (lk_scan_accept(&p->scan, ':')) return LK_OK;
    return lk_scan_fail(&p->scan, p->scan.at, true, "expected ':'");
}

/* Whether a part ends after 'keep' ..., without codecs. Its rows are f16 then. */
static bool ends_after_keep(const struct parser *p, const struct lk_limit *limit) {
    struct lk_scan ahead = p->scan;
    return limit->policy.kind != LK_POLICY_NONE && !lk_scan_accept(&ahead, ':');
}

/* [ 'keep' ... ':' ] codecs | 'none', after 'layers' LIST ':' */
static lk_status read_override(struct parser *p, struct lk_limit *limit, struct lk_codec side[2]) {
    char word[LK_WORD_MAX], name[48];
    lk_scan_peek(&p->scan, word);
    side[LK_K] = side[LK_V] = lk_codec_f16;
    if (strcmp(word, "none") == 0) {
        lk_scan_word(&p->scan, word);
        limit->policy.kind = LK_POLICY_NEWEST; /* with a limit of 0 rows */
        return LK_OK;
    }
    if (strcmp(word, "keep") != 0) return lk_recipe_read_codecs(&p->scan, side);
    lk_scan_word(&p->scan, word);
    lk_status status = read_keep(&p->scan, limit, name, sizeof name);
    if (status) return status;
    return lk_scan_accept(&p->scan, ':') ? lk_recipe_read_codecs(&p->scan, side) : LK_OK;
}

/* A new override, of all layers. `at`: where the text names it. */
static lk_status add_override(struct parser *p, size_t at) {
    struct lk_recipe *r = p->recipe;
    if (r->n_override == LK_MAX_OVERRIDE)
        return lk_scan_fail(&p->scan, at, false, "more than %d groups of layers", LK_MAX_OVERRIDE);
    p->at.override[r->n_override] = at;
    r->override[r->n_override++].last = -1;
    return LK_OK;
}

/* LIST of layers: an override for each entry. */
static lk_status read_layers(struct parser *p) {
    lk_status status;
    do {
        size_t at = lk_scan_next(&p->scan);
        status = add_override(p, at);
        if (!status) status = read_layers_entry(p, &p->recipe->override[p->recipe->n_override - 1]);
    } while (!status && lk_scan_accept(&p->scan, ','));
    return status;
}

/* LIST [ 'heads' LIST ] [ 'recent' | 'window' ] ':' [ 'keep' ... ':' ] codecs, after 'layers'; or
 * without layers, after 'heads'. */
static lk_status read_overrides(struct parser *p, const char *name, size_t at) {
    struct lk_recipe *r = p->recipe;
    int first = r->n_override;
    bool layers = strcmp(name, "layers") == 0;
    char word[LK_WORD_MAX];
    struct lk_codec side[2];
    struct lk_limit limit = {0};
    uint64_t heads = 0;
    lk_status status = layers ? read_layers(p) : add_override(p, at);
    if (status) return status;
    lk_scan_peek(&p->scan, word);
    if (layers && strcmp(word, "heads") == 0) {
        lk_scan_word(&p->scan, word);
        layers = false;
    }
    if (!layers) status = read_heads(p, &heads);
    if (status) return status;
    lk_scan_peek(&p->scan, word);
    const char *window = strcmp(word, "recent") == 0   ? "recent"
                         : strcmp(word, "window") == 0 ? "window"
                                                       : NULL;
    if (window) lk_scan_word(&p->scan, word);
    status = read_colon(p);
    if (!status && (window || heads))
        status = lk_recipe_read_codecs(&p->scan, side);
    else if (!status)
        status = read_override(p, &limit, side);
    if (status) return status;
    for (int i = first; i < r->n_override; i++) {
        p->window[i] = window;
        r->override[i].k = side[LK_K];
        r->override[i].v = side[LK_V];
        r->override[i].limit = limit;
        r->override[i].heads = heads;
    }
    return LK_OK;
}

/* codecs | 'none', after the range of a level */
static lk_status read_body_codecs(struct parser *p, struct lk_level_spec *level,
                                  struct lk_codec side[2]) {
    char word[LK_WORD_MAX];
    lk_scan_peek(&p->scan, word);
    bool body = level->range == LK_BODY && level->limit.policy.kind == LK_POLICY_NONE;
    if (!body || strcmp(word, "none") != 0) return lk_recipe_read_codecs(&p->scan, side);
    lk_scan_word(&p->scan, word);
    level->limit.policy.kind = LK_POLICY_NEWEST; /* with a limit of 0 rows */
    return LK_OK;
}

/* 'less', after 'absorb' */
static lk_status read_absorb(struct parser *p, const char *name, size_t at) {
    (void)name;
    if (p->recipe->absorbs)
        return lk_scan_fail(&p->scan, at, false, "there is already an 'absorb'");
    lk_status status = expect_word(&p->scan, "less");
    if (status) return status;
    p->recipe->absorbs = true;
    p->at.absorb = at;
    return LK_OK;
}

static lk_status read_eager(struct parser *p, const char *name, size_t at) {
    (void)name;
    if (p->recipe->eager) return lk_scan_fail(&p->scan, at, false, "there is already an 'eager'");
    p->recipe->eager = true;
    p->at.eager = at;
    return LK_OK;
}

/* N '%', after 'read' */
static lk_status read_share(struct parser *p, const char *name, size_t at) {
    int64_t thousandths;
    (void)name;
    if (p->recipe->read > 0) return lk_scan_fail(&p->scan, at, false, "there is already a 'read'");
    size_t share_at = lk_scan_next(&p->scan);
    if (!lk_scan_number(&p->scan, &thousandths) || !lk_scan_accept(&p->scan, '%'))
        return lk_scan_fail(&p->scan, share_at, true,
                            "expected per cent of the tiles, like 'read 25%%'");
    if (thousandths < 100 || thousandths > 100000)
        return lk_scan_fail(&p->scan, share_at, false, "expected 0.1%% to 100%% of the tiles");
    p->recipe->read = (float)thousandths / 100000;
    p->at.read = at;
    return LK_OK;
}

/* Add the next level, whose range is read, with what follows ':'. `at`: of its first word. */
static lk_status add_level(struct parser *p, size_t at, bool has_codecs) {
    struct lk_level_spec *level = &p->recipe->level[p->recipe->n_level];
    struct lk_codec side[2] = {lk_codec_f16, lk_codec_f16};
    lk_status status = has_codecs ? read_body_codecs(p, level, side) : LK_OK;
    if (status) return status;
    level->k = side[LK_K];
    level->v = side[LK_V];
    p->at.level[p->recipe->n_level++] = at;
    return LK_OK;
}

static lk_status check_level_count(const struct parser *p, size_t at) {
    if (p->recipe->n_level < LK_MAX_LEVEL) return LK_OK;
    return lk_scan_fail(&p->scan, at, false, "more than %d levels", LK_MAX_LEVEL);
}

/* The rest of a level. The codecs may be left out after 'keep'. */
static lk_status read_level(struct parser *p, const char *name, size_t at) {
    lk_status status = check_level_count(p, at);
    if (status) return status;
    struct lk_level_spec *level = &p->recipe->level[p->recipe->n_level];
    status = read_range(p, name, at, level);
    if (status) return status;
    bool has_codecs = !ends_after_keep(p, &level->limit);
    if (has_codecs) status = read_colon(p);
    return status ? status : add_level(p, at, has_codecs);
}

/* Codecs alone, which mean 'all: codecs'. */
static lk_status read_bare_codecs(struct parser *p, size_t at) {
    lk_status status = check_level_count(p, at);
    if (status) return status;
    struct lk_level_spec *level = &p->recipe->level[p->recipe->n_level];
    level->range = LK_BODY;
    p->at.sole_level = "a codec alone";
    snprintf(level->name, sizeof level->name, "all");
    return add_level(p, at, true);
}

/* The words that start a part. `read` reads what follows the word; `at` is the word's offset. */
static const struct part_word {
    const char *name;
    lk_status (*read)(struct parser *p, const char *name, size_t at);
} part_words[] = {{"sink", read_level},     {"body", read_level},       {"keep", read_level},
                  {"all", read_level},      {"recent", read_level},     {"window", read_level},
                  {"residual", read_level}, {"layers", read_overrides}, {"heads", read_overrides},
                  {"absorb", read_absorb},  {"eager", read_eager},      {"read", read_share}};
enum { N_PART_WORD = sizeof part_words / sizeof *part_words };

/* The entry of a word, or NULL. */
static const struct part_word *find_part_word(const char *word) {
    for (int i = 0; i < N_PART_WORD; i++)
        if (strcmp(word, part_words[i].name) == 0) return &part_words[i];
    return NULL;
}

/* An error that lists the words that may stand at `at`. */
static lk_status fail_part(const struct parser *p, size_t at) {
    char names[160];
    size_t n = 0;
    for (int i = 0; i < N_PART_WORD; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s",
                              i == 0                 ? ""
                              : i == N_PART_WORD - 1 ? " or "
                                                     : ", ",
                              part_words[i].name);
    return lk_scan_fail(&p->scan, at, true, "expected %s%s", p->n_text ? "" : "a codec, ", names);
}

static bool starts_codecs(const char *word) {
    return strcmp(word, "k") == 0 || strcmp(word, "v") == 0 || lk_recipe_names_codec(word);
}

/* One part. Codecs alone have to be the first level. */
static lk_status read_part(struct parser *p) {
    char word[LK_WORD_MAX];
    lk_scan_peek(&p->scan, word);
    size_t at = p->scan.at;
    const struct part_word *known = find_part_word(word);
    if (known) {
        lk_scan_word(&p->scan, word);
        return known->read(p, known->name, at);
    }
    bool codecs = starts_codecs(word) && p->recipe->n_level == 0;
    return codecs ? read_bare_codecs(p, at) : fail_part(p, at);
}

/* Append a part to recipe->text. The text has one line, without the comments and line breaks of the
 * source. */
static void append_text(struct parser *p, size_t from, size_t to) {
    char *text = p->recipe->text;
    if (p->n_text) {
        text[p->n_text++] = ';';
        text[p->n_text++] = ' ';
    }
    p->n_text += lk_scan_normalize(p->scan.text, from, to, text + p->n_text);
}

/* Find the level of each override. It may follow the override in the text. A recipe without a body
 * is left to lk_recipe_check. */
static lk_status find_override_levels(struct parser *p) {
    struct lk_recipe *r = p->recipe;
    for (int i = 0; i < r->n_override; i++) {
        const char *window = p->window[i];
        int found = 0, n = 0;
        for (int j = 0; j < r->n_level; j++) {
            const struct lk_level_spec *level = &r->level[j];
            bool named = window ? level->range == LK_RECENT &&
                                      strncmp(level->name, window, strlen(window)) == 0
                                : level->range == LK_BODY;
            if (!named) continue;
            if (n++ == 0) found = j;
        }
        if (window && n == 0)
            return lk_scan_fail(&p->scan, p->at.override[i], false, "unknown level '%s'", window);
        if (window && n > 1)
            return lk_scan_fail(&p->scan, p->at.override[i], false,
                                "'%s' could be one of several levels: call one of them '%s'",
                                window, window[0] == 'r' ? "window" : "recent");
        r->override[i].level = found;
    }
    return LK_OK;
}

/* part { ';' part } [';']. A line break works like ';'. */
static lk_status read_parts(struct parser *p) {
    while (!lk_scan_at_end(&p->scan)) {
        size_t from = p->scan.at;
        lk_status status = read_part(p);
        if (status) return status;
        append_text(p, from, p->scan.at);
        bool line_end = lk_scan_skip_blank(&p->scan);
        bool sign = lk_scan_accept(&p->scan, ';');
        if (!sign && !line_end && !lk_scan_at_end(&p->scan))
            return lk_scan_fail(&p->scan, p->scan.at, true, "expected ';' or the end");
    }
    lk_status status = find_override_levels(p);
    return status ? status : lk_recipe_check(p->recipe, &p->scan, &p->at);
}

/* Whether the whole text is one word, as the name of a preset is. Sets [*from, *to) to that
 * word. */
static bool is_one_word(struct lk_scan scan, size_t *from, size_t *to) {
    *from = lk_scan_next(&scan);
    while (scan.at < scan.len && !strchr(" \t\r\n\v\f#;:=(%,", scan.text[scan.at])) scan.at++;
    *to = scan.at;
    lk_scan_accept(&scan, ';');
    return lk_scan_at_end(&scan) && *to > *from;
}

/* recipe->text, with room for the parts of p->scan. A line break becomes "; ", one byte longer. */
static lk_status alloc_text(struct parser *p) {
    p->recipe->text = malloc(2 * p->scan.len + LK_WORD_MAX);
    return p->recipe->text ? LK_OK : lk_fail(p->scan.err, LK_E_NOMEM, "recipe: out of memory");
}

static lk_status parse_into(struct lk_recipe *recipe, struct lk_scan scan) {
    struct parser p = {.scan = scan, .recipe = recipe};
    size_t from, to;
    if (is_one_word(scan, &from, &to)) {
        struct lk_named_recipe preset = lk_preset_find(scan.text + from, to - from);
        char word[LK_WORD_MAX];
        lk_scan_peek(&p.scan, word);
        if (preset.name) {
            p.scan.text = preset.text;
            p.scan.len = strlen(preset.text);
            p.scan.at = 0;
            lk_status status = alloc_text(&p);
            if (!status) status = read_parts(&p);
            if (status) return status;
            snprintf(recipe->text, 2 * p.scan.len + LK_WORD_MAX, "%s", preset.name);
            return LK_OK;
        }
        if (!lk_recipe_names_codec(word) && !find_part_word(word))
            return lk_recipe_fail_name(&scan, scan.text + from, to - from);
    }
    lk_status status = alloc_text(&p);
    if (!status) status = read_parts(&p);
    if (!status) recipe->text[p.n_text] = 0;
    return status;
}

lk_status lk_recipe_parse(lk_recipe **out, const char *text, lk_err *err) {
    if (!out || !text) return lk_fail(err, LK_E_ARG, "lk_recipe_parse: NULL argument");
    struct lk_scan scan = {.text = text, .len = strnlen(text, MAX_TEXT + 1), .err = err};
    if (scan.len > MAX_TEXT)
        return lk_fail(err, LK_E_FORMAT, "recipe: longer than %d bytes", MAX_TEXT);
    if (lk_scan_at_end(&scan))
        return lk_fail(err, LK_E_FORMAT,
                       "recipe: empty; expected a preset such as best-3, or a line such as "
                       "\"sink 4: f16; body: k=rot3 v=rot2; window 128: f16\"");
    struct lk_recipe *recipe = calloc(1, sizeof *recipe);
    if (!recipe) return lk_fail(err, LK_E_NOMEM, "recipe: out of memory");
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
