/* ROUGE compared with values of rouge-score 0.1.2, and properties of the scores.
 *
 * With a file as argument it prints scores instead, for test_rouge_package.sh. The file contains
 * pairs of zero-terminated texts, reference and candidate. */
#include "eval/rouge.h"
#include "support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool nearly(double a, double b) { return fabs(a - b) < 1e-9; }

static struct lk_rouge rouge(const char *reference, const char *candidate) {
    struct lk_rouge r;
    lk_err err = {0};
    if (lk_rouge(reference, candidate, &r, &err) != LK_OK) fail_msg("%s", err.msg);
    return r;
}

/* Precision and recall of ROUGE-1, 2, L and Lsum by rouge-score. */
static const struct {
    const char *reference, *candidate;
    double precision[4], recall[4];
} known[] = {
    {"the full cache keeps every row exactly",
     "the compressed cache keeps every second row",
     {0.7142857143, 0.3333333333, 0.7142857143, 0.7142857143},
     {0.7142857143, 0.3333333333, 0.7142857143, 0.7142857143}},
    {"A row ages. A row is packed again.\nThe sinks stay exact.\nNothing is lost twice.",
     "The sinks stay.\nA row is packed, and packed again.\nNothing stays.",
     {0.75, 0.5454545455, 0.5, 0.75},
     {0.5625, 0.4, 0.375, 0.5625}},
    {"one two three four", "four three two one", {1, 0, 0.25, 0.25}, {1, 0, 0.25, 0.25}},
    {"Don't re-encode: it's 3-bit, 4-bit or f16.",
     "don t re encode it s 3 bit",
     {1, 1, 1, 1},
     {0.6666666667, 0.6363636364, 0.6666666667, 0.6666666667}},
    {"a a a b b c",
     "a a b c c c d",
     {0.5714285714, 0.5, 0.5714285714, 0.5714285714},
     {0.6666666667, 0.6, 0.6666666667, 0.6666666667}},
    {"word", "word", {1, 0, 1, 1}, {1, 0, 1, 1}},
    {"", "something", {0, 0, 0, 0}, {0, 0, 0, 0}},
    {"something", "", {0, 0, 0, 0}, {0, 0, 0, 0}},
    {"?!  ...", "something", {0, 0, 0, 0}, {0, 0, 0, 0}},
    {"x", "x y", {0.5, 0, 0.5, 0.5}, {1, 0, 1, 1}},
    {"caf\xc3\xa9"
     " na\xc3\xaf"
     "ve \xc4\xb0"
     "stanbul 300 \xe2\x84\xaa"
     "",
     "cafe na ve i stanbul 300 k",
     {0.8571428571, 0.8333333333, 0.8571428571, 0.8571428571},
     {0.8571428571, 0.8333333333, 0.8571428571, 0.8571428571}},
};

static void test_known_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct lk_rouge r = rouge(known[i].reference, known[i].candidate);
        const struct lk_rouge_score *s[] = {&r.r1, &r.r2, &r.l, &r.lsum};
        for (int k = 0; k < 4; k++) {
            double p = known[i].precision[k], q = known[i].recall[k],
                   f = p + q > 0 ? 2 * p * q / (p + q) : 0;
            if (!(nearly(s[k]->precision, p) && nearly(s[k]->recall, q) && nearly(s[k]->f, f)))
                fail_msg("pair %zu, score %d: %.9f %.9f %.9f", i, k, s[k]->precision, s[k]->recall,
                         s[k]->f);
        }
    }
}

/* A text of repeated words, with line breaks. */
static void write_text(struct random *r, int n_word, char *out) {
    static const char *const word[] = {"cache", "key", "value", "row", "level",
                                       "a",     "I",   "42",    "x-y", "Tile"};
    static const char *const space[] = {" ", " ", " ", ", ", "\n", ".\n"};
    *out = 0;
    for (int i = 0; i < n_word; i++) {
        strcat(out, word[random_int(r, 0, 9)]);
        strcat(out, space[random_int(r, 0, 5)]);
    }
}

static void test_properties(void **state) {
    (void)state;
    struct random r = {7};
    char a[1000], b[1000];
    for (int i = 0; i < 300; i++) {
        write_text(&r, random_int(&r, 1, 40), a);
        write_text(&r, random_int(&r, 1, 40), b);
        struct lk_rouge same = rouge(a, a), ab = rouge(a, b), ba = rouge(b, a);
        assert_true(nearly(same.r1.f, 1) && nearly(same.l.f, 1) && nearly(same.lsum.f, 1));
        assert_true(nearly(ab.r1.precision, ba.r1.recall) && nearly(ab.r2.precision, ba.r2.recall));
        assert_true(nearly(ab.l.precision, ba.l.recall));
        assert_true(ab.r2.precision <= 1 && ab.l.f <= ab.r1.f + 1e-12 &&
                    ab.lsum.f <= ab.r1.f + 1e-12);
    }
}

static int print_scores(const char *path) {
    static char text[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(text, 1, sizeof text - 2, file) : 0;
    if (file) fclose(file);
    for (const char *reference = text; reference < text + n;) {
        const char *candidate = reference + strlen(reference) + 1;
        struct lk_rouge r;
        if (lk_rouge(reference, candidate, &r, NULL) != LK_OK) return 1;
        const struct lk_rouge_score *s[] = {&r.r1, &r.r2, &r.l, &r.lsum};
        for (int k = 0; k < 4; k++)
            printf("%.17g %.17g %.17g%c", s[k]->precision, s[k]->recall, s[k]->f,
                   k == 3 ? '\n' : ' ');
        reference = candidate + strlen(candidate) + 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return print_scores(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
