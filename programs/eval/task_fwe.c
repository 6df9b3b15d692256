/* Frequent words extraction: RULER's aggregation (Hsieh et al. 2024, section 3.3).
 *
 * Made-up words of six letters; the k-th most frequent of n words appears n k^-alpha / zeta(alpha) times,
 * alpha = 2. The most frequent one is replaced by dots, which are to be passed over; the question asks
 * for the next three. The vocabulary has a word for every 50 tokens. Score: the share of the three. */
#include "eval/question.h"
#include "eval/tasks.h"

#include <math.h>
#include <string.h>

enum {
    N_ASKED = 3,
    WORD_LETTERS = 6,
    TOKENS_PER_WORD_KIND = 50,
    LEAST_WORDS = 150,
    MOST_WORDS = 1 << 24
};

static const double ALPHA = 2, ZETA_ALPHA = 1.6449340668482264; /* pi^2 / 6 */

/* Occurrences of the k-th word, from 1. */
static size_t occurrences(size_t n_word, size_t k) {
    return (size_t)((double)n_word * pow((double)k, -ALPHA) / ZETA_ALPHA);
}

/* Different words of random letters. */
static const char **choose_words(struct lk_random *random, size_t n, struct lk_arena *arena) {
    const char **word = lk_arena_take(arena, n * sizeof *word);
    for (size_t i = 0; word && i < n;) {
        char letters[WORD_LETTERS];
        for (size_t c = 0; c < WORD_LETTERS; c++)
            letters[c] = (char)('a' + lk_random_below(random, 26));
        size_t same = 0;
        while (same < i && memcmp(word[same], letters, WORD_LETTERS) != 0) same++;
        if (same == i) word[i++] = lk_arena_copy(arena, letters, WORD_LETTERS);
        if (arena->failed) return NULL;
    }
    return word;
}

/* The words in random order, as often as they are due. */
static const char *write_words(struct lk_random *random, const char **word, size_t n_kind,
                               size_t n_word, struct lk_arena *arena) {
    size_t n = 0;
    for (size_t k = 1; k <= n_kind; k++) n += occurrences(n_word, k);
    uint32_t *order = lk_arena_take(arena, (n ? n : 1) * sizeof *order);
    const char **all = lk_arena_take(arena, (n ? n : 1) * sizeof *all);
    if (!order || !all) return "";
    lk_random_order(random, order, n);
    for (size_t k = 1, i = 0; k <= n_kind; k++)
        for (size_t j = 0; j < occurrences(n_word, k); j++)
            all[order[i++]] = k == 1 ? "..." : word[k - 1];
    struct lk_string text = {.arena = arena};
    for (size_t i = 0; i < n; i++) lk_string_print(&text, "%s%s", i ? " " : "", all[i]);
    return lk_string_text(&text);
}

static lk_status make_fwe(void *user, size_t n_word, struct lk_arena *arena, struct lk_item *item,
                          lk_err *err) {
    const struct lk_place *place = user;
    struct lk_random random = place->random;
    size_t n_kind = place->length / TOKENS_PER_WORD_KIND + N_ASKED + 2;
    const char **word = choose_words(&random, n_kind, arena);
    const char **expect = lk_arena_take(arena, N_ASKED * sizeof *expect);
    if (!word || !expect) return lk_arena_check(arena, err);
    struct lk_string answer = {.arena = arena};
    for (size_t i = 0; i < N_ASKED; i++) {
        expect[i] = word[i + 1];
        lk_string_print(&answer, "%s %s", i ? "," : "", expect[i]);
    }
    item->key = lk_arena_print(arena, "%zu/%zu", place->length, place->round);
    item->context = lk_arena_print(
        arena, "The text below is in code words. Keep count of how often each word appears.\n\n%s",
        write_words(&random, word, n_kind, n_word, arena));
    item->question = "Which three words appear most often in the text above? The dots '...' are no "
                     "word. Give the words alone.";
    item->opening = "The three words that appear most often are:";
    item->answer = lk_string_text(&answer);
    item->expect = expect;
    item->n_expect = N_ASKED;
    item->match = LK_MATCH_ALL;
    item->n_generate = 50;
    item->length = (double)place->length;
    item->depth = -1;
    return LK_OK;
}

static lk_status make_items(const struct lk_items_opts *opts, struct lk_items *out, lk_err *err) {
    static const struct lk_grid grid = {
        .n_part = 1, .n_round = 5, .n_least = LEAST_WORDS, .n_most = MOST_WORDS, .make = make_fwe};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_items, 4096, 1024};

const struct lk_task lk_task_fwe = {
    .name = "fwe",
    .summary = "RULER: the most frequent of made-up words",
    .arg = &kind,
    .open = lk_question_open,
    .close = lk_question_close,
    .key = lk_question_key,
    .cost = lk_question_cost,
    .prompt = lk_question_prompt,
    .run = lk_question_run,
    .summarise = lk_question_summarise,
};
