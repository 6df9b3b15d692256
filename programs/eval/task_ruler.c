/* Two tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654).
 *
 * `vt`: variable tracking, RULER's multi-hop tracing (Hsieh et al. 2024, section 3.2).
 *
 * One variable is assigned a number, and four more are assigned from each other, in this order but
 * far apart, in noise. The question asks for all five. A short example with other names comes
 * first, as in RULER. Score: share of the five names in the answer.
 *
 * `fwe`: frequent words extraction, RULER's aggregation task (Hsieh et al. 2024, section 3.3).
 *
 * The words are random, of six letters. In a text of n words, the k-th most frequent one occurs n
 * k^-alpha / zeta(alpha) times, alpha = 2. The most frequent one is replaced by dots, which do not
 * count, and the question asks for the next three. There is one different word per 50 tokens.
 * Score: share of the three words.
 *
 * With several questions, a document has a chain, or a text in words of its own, for each. */
#include "base/buf.h"
#include "eval/items.h"
#include "eval/material.h"
#include "eval/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- vt ---- */

enum {
    MAX_QUESTIONS = 4,
    N_VARIABLE = 5,
    NAME_LETTERS = 5,
    SHOT_VARIABLES = 3,
    SHOT_UNITS = 2,
    MIN_UNITS = 4,
    MAX_UNITS = 1 << 24
};

#define TASK_TEXT                                                                                  \
    "Variables are assigned values in the text below, some of them from other variables. Keep "    \
    "track of the assignments.\n\n%s"
#define QUESTION "Which variables have the value %zu in the end, by the text above?"

/* Choose n names of random capital letters. False if two are equal. */
static bool choose_names(struct lk_rng *rng, char name[][NAME_LETTERS + 1], size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < NAME_LETTERS; c++) name[i][c] = (char)('A' + lk_rng_below(rng, 26));
        name[i][NAME_LETTERS] = 0;
        for (size_t j = 0; j < i; j++)
            if (strcmp(name[i], name[j]) == 0) return false;
    }
    return true;
}

static int compare_sizes(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Variables that are assigned from each other, and the number of the first one. */
struct chain {
    char (*name)[NAME_LETTERS + 1];
    size_t n_name, number;
};

/* n_unit lines of noise, with the assignments of chains of equal length among them. */
static const char *write_chains(struct lk_rng *rng, const struct chain *chain, size_t n_chain,
                                size_t n_unit, struct lk_arena *arena) {
    struct lk_haystack noise = lk_haystack_noise();
    struct lk_needle needle[MAX_QUESTIONS * N_VARIABLE];
    size_t before[MAX_QUESTIONS * N_VARIABLE], n = n_chain * chain->n_name;
    for (size_t i = 0; i < n; i++) before[i] = lk_rng_below(rng, n_unit + 1);
    qsort(before, n, sizeof *before, compare_sizes);
    for (size_t i = 0; i < n; i++) {
        const struct chain *c = &chain[i % n_chain];
        size_t k = i / n_chain;
        needle[i] = (struct lk_needle){
            before[i], k ? lk_arena_printf(arena, "VAR %s = VAR %s", c->name[k], c->name[k - 1])
                         : lk_arena_printf(arena, "VAR %s = %zu", c->name[0], c->number)};
    }
    struct lk_buf text = {0};
    lk_haystack_write(&noise, 0, n_unit, needle, n, "\n", &text);
    return lk_arena_printf(arena, TASK_TEXT, lk_arena_take_buf(arena, &text));
}

static const char *list_names(char name[][NAME_LETTERS + 1], size_t n, struct lk_arena *arena) {
    struct lk_buf list = {0};
    for (size_t i = 0; i < n; i++) lk_buf_printf(&list, "%s %s", i ? "," : "", name[i]);
    return lk_arena_take_buf(arena, &list);
}

/* Questions about a document. */
static size_t n_question(const struct lk_grid_point *point) {
    return point->n_question ? point->n_question : 1;
}

static lk_status make_vt(void *user, size_t n_unit, struct lk_arena *arena, struct lk_item *item,
                         lk_err *err) {
    const struct lk_grid_point *point = user;
    struct lk_rng rng = point->rng;
    size_t n_chain = n_question(point), n_name = n_chain * N_VARIABLE;
    char name[MAX_QUESTIONS * N_VARIABLE + SHOT_VARIABLES][NAME_LETTERS + 1];
    while (!choose_names(&rng, name, n_name + SHOT_VARIABLES)) {}
    struct chain chain[MAX_QUESTIONS], other = {name + n_name, SHOT_VARIABLES, 0};
    for (size_t i = 0; i < n_chain; i++) /* different numbers */
        chain[i] = (struct chain){name + i * N_VARIABLE, N_VARIABLE,
                                  10000 + (45000 * i + lk_rng_below(&rng, 45000)) / n_chain};
    other.number = 55000 + lk_rng_below(&rng, 45000);
    struct lk_shot *shot = lk_arena_alloc(arena, sizeof *shot);
    struct lk_item *next = lk_arena_alloc(arena, n_chain * sizeof *next);
    const char **expect = lk_arena_alloc(arena, n_name * sizeof *expect);
    if (!shot || !next || !expect) return lk_arena_check(arena, err);
    const char *example = write_chains(&rng, &other, 1, SHOT_UNITS, arena);
    shot->question = lk_arena_printf(arena, "%s\n\n" QUESTION, example, other.number);
    shot->answer = lk_arena_printf(arena, "%s.", list_names(other.name, SHOT_VARIABLES, arena));
    for (size_t i = 0; i < n_name; i++) expect[i] = lk_arena_printf(arena, "%s", name[i]);
    item->key = lk_arena_printf(arena, "%zu/%zu", point->length, point->round);
    item->shot = shot;
    item->n_shot = 1;
    item->context = write_chains(&rng, chain, n_chain, n_unit, arena);
    item->opening = "The variables that have this value are:";
    item->n_expect = N_VARIABLE;
    item->match = LK_MATCH_ALL;
    item->n_generate = 40;
    item->length = (double)point->length;
    item->depth = -1;
    for (size_t i = n_chain; i-- > 0;) {
        struct lk_item *one = i ? &next[i] : item;
        const struct lk_item *after = i + 1 < n_chain ? &next[i + 1] : NULL;
        *one = *item;
        one->question = lk_arena_printf(arena, QUESTION, chain[i].number);
        one->answer = list_names(chain[i].name, N_VARIABLE, arena);
        one->expect = expect + i * N_VARIABLE;
        one->next = after;
    }
    return LK_OK;
}

static lk_status make_vt_items(const struct lk_items_opts *opts, struct lk_items *out,
                               lk_err *err) {
    static const struct lk_item_grid grid = {
        .n_part = 1, .n_round = 5, .min_unit = MIN_UNITS, .max_unit = MAX_UNITS, .make = make_vt};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind vt_kind = {make_vt_items, 4096, 1024};

const struct lk_task lk_task_vt = {
    .name = "vt",
    .summary = "RULER: variables that are assigned from each other",
    .arg = &vt_kind,
    .max_question = MAX_QUESTIONS,
    LK_QUESTION_FUNCTIONS,
};

/* ---- fwe ---- */

enum { N_ASKED = 3, WORD_LETTERS = 6, TOKENS_PER_WORD = 50, MIN_WORDS = 150, MAX_WORDS = 1 << 24 };

static const double ALPHA = 2, ZETA_ALPHA = 1.6449340668482264; /* pi^2 / 6 */

/* Occurrences of the k-th word, k >= 1, in a text of n_word words. */
static size_t occurrences(size_t n_word, size_t k) {
    return (size_t)((double)n_word * pow((double)k, -ALPHA) / ZETA_ALPHA);
}

/* n different words of random letters. */
static const char **choose_words(struct lk_rng *rng, size_t n, struct lk_arena *arena) {
    const char **word = lk_arena_alloc(arena, n * sizeof *word);
    for (size_t i = 0; word && i < n;) {
        char letters[WORD_LETTERS];
        for (size_t c = 0; c < WORD_LETTERS; c++) letters[c] = (char)('a' + lk_rng_below(rng, 26));
        size_t same = 0;
        while (same < i && memcmp(word[same], letters, WORD_LETTERS) != 0) same++;
        if (same == i) word[i++] = lk_arena_copy(arena, letters, WORD_LETTERS);
        if (arena->failed) return NULL;
    }
    return word;
}

/* The words in random order, each as often as it occurs. */
static const char *write_words(struct lk_rng *rng, const char **word, size_t n_kind, size_t n_word,
                               struct lk_arena *arena) {
    size_t n = 0;
    for (size_t k = 1; k <= n_kind; k++) n += occurrences(n_word, k);
    uint32_t *order = lk_arena_alloc(arena, (n ? n : 1) * sizeof *order);
    const char **all = lk_arena_alloc(arena, (n ? n : 1) * sizeof *all);
    if (!order || !all) return "";
    lk_rng_permutation(rng, order, n);
    for (size_t k = 1, i = 0; k <= n_kind; k++)
        for (size_t j = 0; j < occurrences(n_word, k); j++)
            all[order[i++]] = k == 1 ? "..." : word[k - 1];
    struct lk_buf text = {0};
    for (size_t i = 0; i < n; i++) lk_buf_printf(&text, "%s%s", i ? " " : "", all[i]);
    return lk_arena_take_buf(arena, &text);
}

/* The i-th text of n, each of n_word words, into `text`, and the question about it. */
static lk_status write_fwe(struct lk_rng *rng, const struct lk_grid_point *point, size_t i,
                           size_t n, size_t n_word, struct lk_buf *text, struct lk_item *item,
                           struct lk_arena *arena, lk_err *err) {
    size_t n_kind = point->length / n / TOKENS_PER_WORD + N_ASKED + 2;
    const char **word = choose_words(rng, n_kind, arena);
    const char **expect = lk_arena_alloc(arena, N_ASKED * sizeof *expect);
    if (!word || !expect) return lk_arena_check(arena, err);
    struct lk_buf answer = {0};
    for (size_t k = 0; k < N_ASKED; k++) {
        expect[k] = word[k + 1];
        lk_buf_printf(&answer, "%s %s", k ? "," : "", expect[k]);
    }
    if (n > 1) lk_buf_printf(text, "%sText %zu:\n", i ? "\n\n" : "", i + 1);
    lk_buf_printf(text, "%s", write_words(rng, word, n_kind, n_word, arena));
    const char *which = n > 1 ? lk_arena_printf(arena, "text %zu", i + 1) : "the text";
    item->question =
        lk_arena_printf(arena,
                        "Which three words appear most often in %s above? The dots '...' are no "
                        "word. Give the words alone.",
                        which);
    item->answer = lk_arena_take_buf(arena, &answer);
    item->expect = expect;
    return LK_OK;
}

static lk_status make_fwe(void *user, size_t n_word, struct lk_arena *arena, struct lk_item *item,
                          lk_err *err) {
    const struct lk_grid_point *point = user;
    struct lk_rng rng = point->rng;
    size_t n = n_question(point);
    struct lk_item *next = lk_arena_alloc(arena, n * sizeof *next);
    if (!next) return lk_arena_check(arena, err);
    struct lk_buf text = {0};
    *item = (struct lk_item){.key = lk_arena_printf(arena, "%zu/%zu", point->length, point->round),
                             .opening = "The three words that appear most often are:",
                             .n_expect = N_ASKED,
                             .match = LK_MATCH_ALL,
                             .n_generate = 50,
                             .length = (double)point->length,
                             .depth = -1};
    lk_status status = LK_OK;
    for (size_t i = 0; i < n && !status; i++) {
        next[i] = *item;
        status = write_fwe(&rng, point, i, n, n_word / n, &text, &next[i], arena, err);
    }
    item->context = lk_arena_printf(
        arena, "The text below is in code words. Keep count of how often each word appears.\n\n%s",
        lk_arena_take_buf(arena, &text));
    for (size_t i = n; i-- > 0 && !status;) {
        next[i].context = item->context;
        next[i].next = i + 1 < n ? &next[i + 1] : NULL;
    }
    if (!status) *item = next[0];
    return status;
}

static lk_status make_fwe_items(const struct lk_items_opts *opts, struct lk_items *out,
                                lk_err *err) {
    static const struct lk_item_grid grid = {
        .n_part = 1, .n_round = 5, .min_unit = MIN_WORDS, .max_unit = MAX_WORDS, .make = make_fwe};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind fwe_kind = {make_fwe_items, 4096, 1024};

const struct lk_task lk_task_fwe = {
    .name = "fwe",
    .summary = "RULER: the most frequent of many random words",
    .arg = &fwe_kind,
    .max_question = MAX_QUESTIONS,
    LK_QUESTION_FUNCTIONS,
};
