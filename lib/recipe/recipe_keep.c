/* 'keep' SPAN [ 'of' 'context' ] 'by' POLICY [ '(' OPTION ')' ], a body of limited size. */
#include "recipe/recipe_check.h"

#include <stdio.h>
#include <string.h>

static lk_status expect_word(struct lk_scan *scan, const char *expected) {
    char word[LK_WORD_MAX];
    lk_scan_peek(scan, word);
    if (strcmp(word, expected) != 0)
        return lk_scan_fail(scan, scan->at, true, "expected '%s'", expected);
    lk_scan_word(scan, word);
    return LK_OK;
}

static lk_status read_policy(struct lk_scan *scan, struct lk_policy *policy,
                             char name[LK_WORD_MAX]) {
    static const struct {
        const char *name;
        uint8_t keep;
    } known[] = {{"h2o", LK_POLICY_H2O},
                 {"tova", LK_POLICY_TOVA},
                 {"random", LK_POLICY_RANDOM},
                 {"newest", LK_POLICY_NEWEST}};
    lk_scan_skip(scan);
    size_t at = scan->at;
    lk_scan_word(scan, name);
    *policy = (struct lk_policy){0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) policy->keep = known[i].keep;
    if (policy->keep == LK_POLICY_NONE)
        return lk_scan_fail(scan, at, true, "expected a policy (h2o, tova, random or newest)");
    if (!lk_scan_sign(scan, '(')) return LK_OK;
    char option[LK_WORD_MAX];
    lk_scan_skip(scan);
    at = scan->at;
    lk_scan_word(scan, option);
    if (policy->keep == LK_POLICY_H2O && strcmp(option, "mean") == 0)
        policy->mean = true;
    else if (policy->keep == LK_POLICY_TOVA && strcmp(option, "apart") == 0)
        policy->apart = true;
    else
        return lk_scan_fail(scan, at, true,
                            "expected an option of the policy (h2o: mean; tova: apart)");
    return lk_scan_sign(scan, ')') ? LK_OK : lk_scan_fail(scan, scan->at, true, "expected ')'");
}

lk_status lk_recipe_read_keep(struct lk_scan *scan, struct lk_limit *limit, char *name,
                              size_t cap) {
    int64_t value;
    char word[LK_WORD_MAX], span[20];
    *limit = (struct lk_limit){0};
    lk_scan_skip(scan);
    size_t at = scan->at;
    if (!lk_scan_number(scan, &value))
        return lk_scan_fail(scan, at, true,
                            "expected a number of tokens or per cent (keep 512, keep 5%%)");
    bool percent = lk_scan_sign(scan, '%');
    if (percent && (value <= 0 || value > 100000))
        return lk_scan_fail(scan, at, false, "expected more than 0%% and at most 100%%");
    if (!percent && (value % 1000 || value < 1000 || value / 1000 > LK_MAX_WINDOW))
        return lk_scan_fail(scan, at, false, "expected a number of tokens from 1 to %d",
                            LK_MAX_WINDOW);
    if (percent)
        limit->percent = (float)value / 1000.0F;
    else
        limit->n_tok = (uint32_t)(value / 1000);
    snprintf(span, sizeof span, percent ? "%u.%03u" : "%u", (unsigned)(value / 1000),
             (unsigned)(value % 1000));
    for (size_t n = strlen(span); percent && (span[n - 1] == '0' || span[n - 1] == '.'); n--) {
        bool point = span[n - 1] == '.';
        span[n - 1] = 0;
        if (point) break;
    }
    lk_scan_peek(scan, word);
    if (percent && strcmp(word, "of") == 0) {
        lk_scan_word(scan, word);
        lk_status status = expect_word(scan, "context");
        if (status) return status;
        limit->of_context = true;
    }
    lk_status status = expect_word(scan, "by");
    if (!status) status = read_policy(scan, &limit->policy, word);
    if (status) return status;
    snprintf(name, cap, "keep %s%s%s by %.6s", span, percent ? "%" : "",
             limit->of_context ? " of context" : "", word);
    return LK_OK;
}
