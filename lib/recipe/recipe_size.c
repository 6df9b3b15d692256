/* Parser of level sizes: SPAN, and 'keep' SPAN [ 'of' 'context' ] 'by' POLICY [ '(' OPTION ')'
 * ]. */
#include "recipe/recipe_size.h"

#include "base/buf.h"

#include <stdio.h>
#include <string.h>

lk_status lk_recipe_read_span(struct lk_scan *scan, const char *range, struct lk_span *span) {
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
    static const struct {
        const char *name;
        uint8_t kind;
    } known[] = {{"h2o", LK_POLICY_H2O},
                 {"tova", LK_POLICY_TOVA},
                 {"random", LK_POLICY_RANDOM},
                 {"newest", LK_POLICY_NEWEST}};
    size_t at = lk_scan_next(scan);
    lk_scan_word(scan, name);
    *policy = (struct lk_policy){0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) policy->kind = known[i].kind;
    if (policy->kind == LK_POLICY_NONE)
        return lk_scan_fail(scan, at, true, "expected a policy (h2o, tova, random or newest)");
    if (!lk_scan_accept(scan, '(')) return LK_OK;
    char option[LK_WORD_MAX];
    at = lk_scan_next(scan);
    lk_scan_word(scan, option);
    if (policy->kind == LK_POLICY_H2O && strcmp(option, "mean") == 0)
        policy->mean = true;
    else if (policy->kind == LK_POLICY_TOVA && strcmp(option, "apart") == 0)
        policy->per_head = true;
    else
        return lk_scan_fail(scan, at, true,
                            "expected an option of the policy (h2o: mean; tova: apart)");
    return lk_scan_accept(scan, ')') ? LK_OK : lk_scan_fail(scan, scan->at, true, "expected ')'");
}

lk_status lk_recipe_read_keep(struct lk_scan *scan, struct lk_limit *limit, char *name,
                              size_t cap) {
    struct lk_span span;
    char word[LK_WORD_MAX];
    *limit = (struct lk_limit){0};
    lk_status status = lk_recipe_read_span(scan, "keep", &span);
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
