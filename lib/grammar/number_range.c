/* Ranges of numbers, digit by digit.
 *
 * Numbers with m digits after the point are multiples of 10^-m, so a range is one of integers: from
 * the least multiple that the bounds allow to the greatest one. Negative numbers are a range of
 * magnitudes with a sign. The texts of a range are those that are equal to a bound up to some
 * digit, differ from it in the right direction there, and are free after that. */
#include "grammar/number_range.h"

#include "grammar/schema_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 18, FRACTION = 17 }; /* before and after the point */

__extension__ typedef __int128 multiple; /* of 10^-m; holds DIGITS + FRACTION digits */

struct range {
    multiple lo, hi; /* inclusive */
    int m;           /* digits after the point */
};

bool lk_number_range_is_bounded(const json_t *schema) {
    static const char *const keywords[] = {"minimum", "maximum", "exclusiveMinimum",
                                           "exclusiveMaximum", "multipleOf"};
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
        if (json_object_get(schema, keywords[i])) return true;
    return false;
}

static multiple power_of_ten(int n) {
    multiple power = 1;
    while (n-- > 0) power *= 10;
    return power;
}

/* ---- reading bounds ---- */

/* Read the text of a JSON number as a multiple, rounded towards zero. It is limited to one more
 * than all numbers have. */
static multiple read_decimal(const char *text, int m, bool *exact) {
    const multiple limit = power_of_ten(DIGITS + m);
    bool negative = *text == '-', after_point = false;
    const char *at = text + negative, *e = strpbrk(at, "eE");
    long exponent = e ? strtol(e + 1, NULL, 10) : 0;
    multiple value = 0;
    *exact = true;
    for (; *at && at != e; at++) {
        if (*at == '.') {
            after_point = true;
            continue;
        }
        if (value < limit * 10) value = value * 10 + (*at - '0');
        exponent -= after_point;
    }
    for (exponent += m; exponent > 0 && value && value < limit; exponent--) value *= 10;
    for (; exponent < 0 && value; exponent++) {
        if (value % 10) *exact = false;
        value /= 10;
    }
    if (value > limit) value = limit;
    return negative ? -value : value;
}

/* Apply a keyword to a range. */
static lk_status apply_bound(const json_t *schema, const char *key, bool is_min, bool exclusive,
                             struct range *range, lk_err *err) {
    const json_t *given = json_object_get(schema, key);
    bool exact;
    if (!given) return LK_OK;
    if (!json_is_number(given))
        return lk_fail(err, LK_E_FORMAT, "the JSON schema is not valid: '%s' is not a number", key);
    char *text = lk_json_text(given);
    if (!text) return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    multiple value = read_decimal(text, range->m, &exact);
    bool negative = *text == '-';
    free(text);
    /* Rounded inwards: a positive minimum and a negative maximum up, in magnitude. */
    if (!exact && negative != is_min)
        value += negative ? -1 : 1;
    else if (exact && exclusive)
        value += is_min ? 1 : -1;
    if (is_min && value > range->lo) range->lo = value;
    if (!is_min && value < range->hi) range->hi = value;
    return LK_OK;
}

/* multipleOf 1, 0.1, 0.01, ...: the number of digits after the point. */
static lk_status apply_step(const json_t *schema, int *m, lk_err *err) {
    const json_t *step = json_object_get(schema, "multipleOf");
    if (!step) return LK_OK;
    double value = json_number_value(step), power = 1.0;
    for (int n = 0; n <= FRACTION && json_is_number(step); n++, power *= 10.0) {
        if (value * power < 1.0 - 1e-9 || value * power > 1.0 + 1e-9) continue;
        if (n < *m) *m = n;
        return LK_OK;
    }
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "the JSON schema's 'multipleOf' must be 1, 0.1, 0.01 and so on");
}

/* ---- digits: of lo and hi, equally many; lo <= hi ---- */

static bool are_all(const char *digits, int n, char digit) {
    for (int i = 0; i < n; i++)
        if (digits[i] != digit) return false;
    return true;
}

static void write_one_digit(struct lk_buf *out, char lo, char hi) {
    if (lo == hi)
        lk_buf_printf(out, "\"%c\"", lo);
    else
        lk_buf_printf(out, "[%c-%c]", lo, hi);
}

/* n digits, or fewer if zeros may be left out at the end. `is_first`: at least one digit. */
static void write_digits(struct lk_buf *out, const char *lo, const char *hi, int n, bool may_end,
                         bool is_first) {
    static const char zeros[] = "000000000000000000", nines[] = "999999999999999999";
    if (n == 0) {
        lk_buf_append_str(out, "\"\"");
        return;
    }
    if (are_all(lo, n, '0') && are_all(hi, n, '9')) {
        lk_buf_printf(out, "[0-9]{%d,%d}", may_end ? is_first : n, n);
        return;
    }
    const char *between = "";
    bool differ = *lo != *hi, low_is_free = are_all(lo + 1, n - 1, '0'),
         high_is_free = are_all(hi + 1, n - 1, '9');
    char first = (char)(*lo + !low_is_free), last = (char)(*hi - !high_is_free);
    lk_buf_append_str(out, "(");
    if (may_end && !is_first && are_all(lo, n, '0')) {
        lk_buf_append_str(out, "\"\"");
        between = " | ";
    }
    if (!differ) {
        lk_buf_printf(out, "%s\"%c\" ", between, *lo);
        write_digits(out, lo + 1, hi + 1, n - 1, may_end, false);
        lk_buf_append_str(out, ")");
        return;
    }
    if (!low_is_free) {
        lk_buf_printf(out, "%s\"%c\" ", between, *lo);
        write_digits(out, lo + 1, nines, n - 1, may_end, false);
        between = " | ";
    }
    if (first <= last) {
        lk_buf_append_str(out, between);
        write_one_digit(out, first, last);
        lk_buf_append_str(out, " ");
        write_digits(out, zeros, nines, n - 1, may_end, false);
        between = " | ";
    }
    if (!high_is_free) {
        lk_buf_printf(out, "%s\"%c\" ", between, *hi);
        write_digits(out, zeros, hi + 1, n - 1, may_end, false);
    }
    lk_buf_append_str(out, ")");
}

/* ---- numbers ---- */

/* Integers from lo to hi >= lo >= 0, by their number of digits. */
static void write_integers(struct lk_buf *out, int64_t lo, int64_t hi) {
    const char *between = "";
    lk_buf_append_str(out, "(");
    for (int n = 1; n <= DIGITS; n++) {
        int64_t least = n == 1 ? 0 : (int64_t)power_of_ten(n - 1),
                greatest = (int64_t)power_of_ten(n) - 1;
        char a[24], b[24];
        if (hi < least || lo > greatest) continue;
        snprintf(a, sizeof a, "%lld", (long long)(lo > least ? lo : least));
        snprintf(b, sizeof b, "%lld", (long long)(hi < greatest ? hi : greatest));
        lk_buf_append_str(out, between);
        write_digits(out, a, b, n, false, true);
        between = " | ";
    }
    lk_buf_append_str(out, ")");
}

/* Integers from lo to hi, each with the fractions from `low` to `high`, which have m digits. */
static void write_numbers(struct lk_buf *out, int64_t lo, int64_t hi, const char *low,
                          const char *high, int m) {
    write_integers(out, lo, hi);
    if (m == 0) return;
    bool may_be_zero = are_all(low, m, '0');
    if (are_all(high, m, '0')) { /* only zeros: leave them out */
        return;
    }
    lk_buf_append_str(out, " (\".\" ");
    write_digits(out, low, high, m, true, true);
    lk_buf_append_str(out, may_be_zero ? ")?" : ")");
}

/* Magnitudes from lo to hi >= lo >= 0. */
static void write_magnitudes(struct lk_buf *out, multiple lo, multiple hi, int m) {
    const multiple one = power_of_ten(m);
    int64_t first = (int64_t)(lo / one), last = (int64_t)(hi / one);
    char low[24], high[24];
    static const char zeros[] = "00000000000000000", nines[] = "99999999999999999";
    snprintf(low, sizeof low, "%0*lld", m, (long long)(lo % one));
    snprintf(high, sizeof high, "%0*lld", m, (long long)(hi % one));
    if (first == last) {
        write_numbers(out, first, last, low, high, m);
        return;
    }
    const char *between = "";
    if (!are_all(low, m, '0')) {
        write_numbers(out, first, first, low, nines, m);
        first++;
        between = " | ";
    }
    bool high_is_free = are_all(high, m, '9');
    if (first <= last - !high_is_free) {
        lk_buf_append_str(out, between);
        write_numbers(out, first, last - !high_is_free, zeros, nines, m);
        between = " | ";
    }
    if (high_is_free) return;
    lk_buf_append_str(out, between);
    write_numbers(out, last, last, zeros, high, m);
}

lk_status lk_number_range_gbnf(struct lk_buf *out, const json_t *schema, bool integer,
                               lk_err *err) {
    struct range range = {.m = integer ? 0 : FRACTION};
    lk_status status = apply_step(schema, &range.m, err);
    range.hi = power_of_ten(DIGITS + range.m) - 1;
    range.lo = -range.hi;
    if (!status) status = apply_bound(schema, "minimum", true, false, &range, err);
    if (!status) status = apply_bound(schema, "exclusiveMinimum", true, true, &range, err);
    if (!status) status = apply_bound(schema, "maximum", false, false, &range, err);
    if (!status) status = apply_bound(schema, "exclusiveMaximum", false, true, &range, err);
    if (status) return status;
    if (range.lo > range.hi)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the JSON schema's bounds leave no number of at most %d digits", DIGITS);
    if (range.lo < 0) {
        lk_buf_append_str(out, "\"-\" (");
        write_magnitudes(out, range.hi < 0 ? -range.hi : 1, -range.lo, range.m);
        lk_buf_append_str(out, range.hi < 0 ? ")" : ") | ");
    }
    if (range.hi >= 0) write_magnitudes(out, range.lo > 0 ? range.lo : 0, range.hi, range.m);
    return LK_OK;
}
