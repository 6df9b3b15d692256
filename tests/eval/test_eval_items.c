/* The items of the tasks that ask questions: their lengths, needles, expected answers and
 * errors. */
#include "base/ledger.h"
#include "eval/eval.h"
#include "eval/items.h"
#include "test.h"
#include "tiny_gguf.h"

#include <sys/stat.h>
#include <unistd.h>

enum { N_CTX = 8000, TEXT_SENTENCES = 1000 };

static char folder[256]; /* for this test's files */
static lk_model *model;
static char *text; /* sentences for the haystacks */

static char *path_of(const char *name) {
    static char path[2][512];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_file(const char *name, const char *content) {
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static int set_up(void **state) {
    const char *dir = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/lowkey-items-XXXXXX", dir ? dir : "/tmp");
    assert_non_null(mkdtemp(folder));
    assert_true(tiny_gguf_write(path_of("tiny.gguf"), tiny_preset("qwen2-bpe")));
    lk_err err = {0};
    if (lk_model_open(&model, path_of("tiny.gguf"), &(lk_model_opts){.n_threads = 1}, &err) !=
        LK_OK)
        fail_msg("%s", err.msg);
    text = calloc(TEXT_SENTENCES, 64);
    struct random r = {1};
    for (int i = 0; i < TEXT_SENTENCES; i++) {
        char line[64] = "";
        int n = random_int(&r, 2, 8);
        for (int w = 0; w < n; w++)
            sprintf(line + strlen(line), "%sw%d", w ? " " : "", random_int(&r, 0, 999));
        sprintf(text + strlen(text), "%s.%s", line, i % 10 == 9 ? "\n\n" : i % 3 ? " " : "\n");
    }
    return 0;
}

static int tear_down(void **state) {
    char command[512];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    lk_model_free(model);
    free(text);
    return system(command);
}

/* ---- the items of tasks ---- */

struct made {
    struct lk_ledger ledger;
    struct lk_items items;
    lk_err err;
};

static lk_status make_with(struct made *m, const char *name, const struct lk_eval_opts *opts,
                           size_t n_ctx) {
    const struct lk_task *task = lk_task_find(name);
    assert_non_null(task);
    struct lk_task_env env = {.task = task, .opts = opts, .model = model};
    *m = (struct made){.items.n = 0};
    m->items.arena.ledger = &m->ledger;
    struct lk_items_opts o = {.env = &env, .format = lk_prompt_format_of(model), .n_ctx = n_ctx};
    return ((const struct lk_question_kind *)task->arg)->make(&o, &m->items, &m->err);
}

static void free_made(struct made *m) {
    lk_arena_free(&m->items.arena);
    assert_int_equal(lk_ledger_bytes(&m->ledger, LK_FOR_OTHER), 0);
}

static struct lk_eval_opts options(size_t limit, uint64_t seed) {
    return (struct lk_eval_opts){
        .text_path = "text", .text = text, .text_len = strlen(text), .limit = limit, .seed = seed};
}

static void make(struct made *m, const char *name, size_t limit, uint64_t seed) {
    struct lk_eval_opts opts = options(limit, seed);
    if (make_with(m, name, &opts, N_CTX) != LK_OK) fail_msg("%s: %s", name, m->err.msg);
    assert_int_equal(m->items.n, limit);
}

static const char *const generated[] = {"needle", "passkey", "vt", "fwe", "qa"};

static void items_repeat(void **state) {
    for (size_t t = 0; t < 5; t++) {
        struct made a, b, c;
        make(&a, generated[t], 6, 7);
        make(&b, generated[t], 3, 7);
        make(&c, generated[t], 6, 8);
        int differ = 0;
        for (size_t i = 0; i < 6; i++) {
            for (size_t j = 0; j < i; j++)
                assert_string_not_equal(a.items.item[i].key, a.items.item[j].key);
            if (i < 3) {
                assert_string_equal(a.items.item[i].key, b.items.item[i].key);
                assert_string_equal(a.items.item[i].context, b.items.item[i].context);
                assert_string_equal(a.items.item[i].expect[0], b.items.item[i].expect[0]);
            }
            differ += strcmp(a.items.item[i].context, c.items.item[i].context) != 0;
        }
        assert_int_equal(differ, 6);
        free_made(&a);
        free_made(&b);
        free_made(&c);
    }
}

/* Items have the requested length. Right answers score 1, wrong ones 0. The tail starts with the
 * question. */
static void items_are_sound(void **state) {
    struct lk_prompt_format format = lk_prompt_format_of(model);
    for (size_t t = 0; t < 5; t++) {
        struct made m;
        make(&m, generated[t], 9, 3);
        for (size_t i = 0; i < m.items.n; i++) {
            const struct lk_item *item = &m.items.item[i];
            struct lk_item_tokens tokens;
            size_t n;
            assert_int_equal(lk_item_length(&format, item, &n, NULL), LK_OK);
            assert_int_equal(lk_item_tokenize(&format, item, &tokens, NULL), LK_OK);
            assert_true(n + item->n_generate <= (size_t)item->length);
            /* Short of the length by at most two units of 130 tokens. */
            assert_true((double)(n + item->n_generate) > 0.92 * item->length);
            assert_true(tokens.n_head + tokens.n_tail <= n &&
                        tokens.n_head + tokens.n_tail + 2 >= n);
            assert_true(tokens.n_answer > 0 && tokens.n_tail > 0 && tokens.n_tail < 300);
            assert_true(lk_item_score(item, item->answer) == 1);
            assert_true(lk_item_score(item, "00000 zzzzzz") == 0);
            for (size_t e = 0; e < item->n_expect; e++)
                assert_non_null(strstr(item->context, item->expect[e]));
            lk_item_tokens_free(&tokens);
        }
        free_made(&m);
    }
}

static void needle_depths(void **state) {
    struct made m;
    make(&m, "needle", 40, 5); /* the whole grid */
    int cell[2][4][5] = {{{0}}};
    for (size_t i = 0; i < m.items.n; i++) {
        const struct lk_item *item = &m.items.item[i];
        bool multi = strcmp(item->part, "multi") == 0;
        cell[multi][(int)(item->length * 4 / N_CTX) - 1][(int)(item->depth * 4)]++;
        const char *start = strstr(item->context, "\n\n") + 2, *at = strstr(start, item->expect[0]);
        double where = (double)(at - start) / (double)strlen(start);
        assert_true(fabs(where - item->depth) < (multi ? 0.25 : 0.1)); /* other needles move it */
        int n = 0;
        for (const char *s = start; (s = strstr(s, "The secret number of ")); s++) n++;
        assert_int_equal(n, multi ? 4 : 1);
    }
    for (int p = 0; p < 2; p++)
        for (int l = 0; l < 4; l++)
            for (int d = 0; d < 5; d++) assert_int_equal(cell[p][l][d], 1);
    free_made(&m);
}

/* Follow the assignments in the text. */
static void vt_chains_hold(void **state) {
    struct made m;
    make(&m, "vt", 8, 5);
    for (size_t i = 0; i < m.items.n; i++) {
        const struct lk_item *item = &m.items.item[i];
        char name[16][8], from[8];
        int value[16], n = 0, number;
        for (const char *s = item->context; (s = strstr(s, "VAR ")); s += 4) {
            if (sscanf(s, "VAR %5s = VAR %5s", name[n], from) == 2) {
                int j = 0;
                while (j < n && strcmp(name[j], from) != 0) j++;
                assert_true(j < n);
                value[n++] = value[j];
            } else if (sscanf(s, "VAR %5s = %d", name[n], &value[n]) == 2) {
                n++;
            }
        }
        assert_int_equal(n, 5);
        assert_int_equal(sscanf(item->question, "Which variables have the value %d", &number), 1);
        for (int j = 0; j < 5; j++) {
            assert_int_equal(value[j], number);
            assert_string_equal(name[j], item->expect[j]);
        }
        assert_true(fabs(lk_item_score(item, name[2]) - 0.2) < 1e-12);
        assert_int_equal(item->n_shot, 1);
        for (int j = 0; j < 5; j++) assert_null(strstr(item->shot->question, name[j]));
    }
    free_made(&m);
}

/* Count the words of the text. */
static void fwe_words_are_the_most_frequent(void **state) {
    struct made m;
    make(&m, "fwe", 8, 5);
    for (size_t i = 0; i < m.items.n; i++) {
        const struct lk_item *item = &m.items.item[i];
        char word[512][8];
        int count[512] = {0}, n = 0, n_dots = 0, used;
        for (const char *s = strstr(item->context, "\n\n") + 2;
             sscanf(s, "%7s%n", word[n], &used) == 1; s += used) {
            if (strcmp(word[n], "...") == 0) {
                n_dots++;
                continue;
            }
            int j = 0;
            while (strcmp(word[j], word[n]) != 0) j++;
            count[j]++;
            n += j == n;
        }
        for (size_t e = 0; e < 3; e++) {
            int best = 0;
            for (int j = 1; j < n; j++)
                if (count[j] > count[best]) best = j;
            assert_string_equal(word[best], item->expect[e]);
            assert_true(n_dots > count[best]);
            count[best] = 0;
            for (int j = 0; e == 2 && j < n; j++)
                assert_true(count[j] > 0 || j == best || lk_item_score(item, word[j]) > 0);
        }
    }
    free_made(&m);
}

static void qa_documents_hold_the_answer(void **state) {
    struct made m;
    make(&m, "qa", 16, 5);
    int n_two = 0;
    for (size_t i = 0; i < m.items.n; i++) {
        const struct lk_item *item = &m.items.item[i];
        bool two = strcmp(item->part, "two_hop") == 0;
        char name[64] = "", pattern[128], town[64], river[64];
        const char *was = strstr(item->question, two ? "in which " : "town was "),
                   *born = strstr(item->question, " born?");
        n_two += two;
        assert_true(was && born);
        was += two ? strlen("in which ") : strlen("town was ");
        snprintf(name, sizeof name, "%.*s", (int)(born - was - (two ? 4 : 0)),
                 was); /* "NAME was" */
        snprintf(pattern, sizeof pattern, "%s was born in ", name);
        const char *at = strstr(item->context, pattern);
        assert_non_null(at);
        assert_null(strstr(at + 1, pattern));
        assert_int_equal(sscanf(at + strlen(pattern), "%63s in", town), 1);
        snprintf(pattern, sizeof pattern, "\n%s is a town of ", town);
        at = strstr(item->context, pattern);
        assert_non_null(at);
        assert_null(strstr(at + 1, pattern));
        assert_int_equal(sscanf(at + strlen(pattern), "%*d people on the river %63[A-Za-z]", river),
                         1);
        assert_string_equal(item->expect[0], two ? river : town);
    }
    assert_int_equal(n_two, 8);
    free_made(&m);
}

static void assert_fails(const char *name, const struct lk_eval_opts *opts, size_t n_ctx,
                         lk_status status, const char *words) {
    struct made m;
    assert_int_equal(make_with(&m, name, opts, n_ctx), status);
    if (!strstr(m.err.msg, words)) fail_msg("'%s' is not in: %s", words, m.err.msg);
    assert_null(strchr(m.err.msg, '\n'));
    free_made(&m);
}

static void bad_options(void **state) {
    struct lk_eval_opts opts = options(2, 1), none = {.limit = 2}, blank = opts, little = opts;
    blank.text = " \n", blank.text_len = 2;
    little.text_len = 200;
    assert_fails("needle", &none, N_CTX, LK_E_ARG, "--text");
    assert_fails("needle", &blank, N_CTX, LK_E_ARG, "empty");
    assert_fails("needle", &little, N_CTX, LK_E_ARG, "enough for items of");
    for (size_t t = 0; t < 5; t++) assert_fails(generated[t], &opts, 200, LK_E_ARG, "too few");
}

/* ---- items from data ---- */

static void questions_from_data(void **state) {
    struct made m;
    struct lk_eval_opts opts = {.data = folder, .limit = 4};
    mkdir(path_of("qa"), 0700);
    FILE *file = fopen(path_of("qa/test.jsonl"), "w");
    for (int i = 0; i < 60; i++)
        fprintf(file,
                "{\"question\":\"Who is n%d?\",\"context\":\"Here is what can be said of n%d, "
                "which is not much: it is k%d of them all.\",\"answers\":[\"k%d of\",\"none\"]}\n",
                i, i, i, i);
    fclose(file);
    if (make_with(&m, "qa", &opts, 1200) != LK_OK) fail_msg("%s", m.err.msg);
    for (size_t i = 0; i < m.items.n; i++) {
        const struct lk_item *item = &m.items.item[i];
        assert_non_null(strstr(item->context, item->expect[0]));
        assert_string_equal(item->part, "data");
        assert_true(lk_item_score(item, "none") == 1 && lk_item_score(item, "x") == 0);
    }
    free_made(&m);
    assert_fails("qa", &opts, 100000, LK_E_ARG, "more of it");
    write_file("qa/test.jsonl", "{\"question\":\"?\",\"context\":\"c\",\"answers\":[]}\n");
    assert_fails("qa", &opts, N_CTX, LK_E_FORMAT, "test.jsonl:1: \"answers\"");
    unlink(path_of("qa/test.jsonl"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_repeat),
        cmocka_unit_test(items_are_sound),
        cmocka_unit_test(needle_depths),
        cmocka_unit_test(vt_chains_hold),
        cmocka_unit_test(fwe_words_are_the_most_frequent),
        cmocka_unit_test(qa_documents_hold_the_answer),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(questions_from_data),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
