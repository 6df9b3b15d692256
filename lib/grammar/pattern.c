/* Converts regular expressions to GBNF.
 *
 * Every node knows how many code points its texts have. To keep a maximum length, repetitions are
 * limited further, until the whole fits; to keep a minimum length, their minimum is raised. */
#include "grammar/pattern.h"

#include "base/ledger.h"
#include "grammar/pattern_parse.h"
#include "lowkey_serve.h"

#include <string.h>

/* ---- lengths ---- */

static int times(int length, int n) {
    int64_t product = (int64_t)length * n;
    return product > LK_PATTERN_NO_LIMIT ? LK_PATTERN_NO_LIMIT : (int)product;
}

static int plus(int a, int b) { return a + b > LK_PATTERN_NO_LIMIT ? LK_PATTERN_NO_LIMIT : a + b; }

static void measure(struct lk_pattern_tree *t, int index) {
    struct lk_pattern_node *n = &t->node[index];
    if (n->kind == LK_PATTERN_CLASS) return;
    n->min_len = n->kind == LK_PATTERN_CHOICE ? LK_PATTERN_NO_LIMIT : 0;
    n->max_len = 0;
    for (int i = n->child; i; i = t->node[i].next) {
        const struct lk_pattern_node *child = &t->node[i];
        measure(t, i);
        if (n->kind == LK_PATTERN_REPEAT) {
            n->min_len = times(child->min_len, n->min);
            n->max_len = times(child->max_len, n->max);
        } else if (n->kind == LK_PATTERN_SEQUENCE) {
            n->min_len = plus(n->min_len, child->min_len);
            n->max_len = plus(n->max_len, child->max_len);
        } else {
            if (child->min_len < n->min_len) n->min_len = child->min_len;
            if (child->max_len > n->max_len) n->max_len = child->max_len;
        }
    }
}

/* What a list of nodes takes beyond its minimum if each takes at most `share`. */
static int used_by_share(const struct lk_pattern_tree *t, int first, int share) {
    int used = 0;
    for (int i = first; i; i = t->node[i].next) {
        int room = t->node[i].max_len - t->node[i].min_len;
        used = plus(used, room < share ? room : share);
    }
    return used;
}

/* The largest share with which the list takes no more than `rest`: short parts keep their lengths,
 * and long ones become equally long. */
static int fair_share(const struct lk_pattern_tree *t, int first, int rest) {
    int lo = 0, hi = rest;
    while (lo < hi) {
        int middle = lo + (hi - lo + 1) / 2;
        if (used_by_share(t, first, middle) <= rest)
            lo = middle;
        else
            hi = middle - 1;
    }
    return lo;
}

/* Limit repetitions, so that the texts of a node have at most `max` code points. False if its
 * shortest text is longer. */
static bool limit_length(struct lk_pattern_tree *t, int index, int max) {
    struct lk_pattern_node *n = &t->node[index];
    if (n->max_len <= max) return true;
    if (n->min_len > max) return false;
    if (n->kind == LK_PATTERN_CHOICE) { /* leave out the alternatives that are too long */
        int *link = &n->child;
        while (*link) {
            if (limit_length(t, *link, max))
                link = &t->node[*link].next;
            else
                *link = t->node[*link].next;
        }
    } else if (n->kind == LK_PATTERN_SEQUENCE) {
        int rest = max - n->min_len, share = fair_share(t, n->child, rest);
        rest -= used_by_share(t, n->child, share);
        for (int i = n->child; i; i = t->node[i].next) {
            int room = t->node[i].max_len - t->node[i].min_len, extra = room < share ? room : share;
            if (room > extra) { /* what a fair division leaves over */
                int more = room - extra < rest ? room - extra : rest;
                extra += more;
                rest -= more;
            }
            if (!limit_length(t, i, t->node[i].min_len + extra)) return false;
        }
    } else {
        const struct lk_pattern_node *child = &t->node[n->child];
        int each = child->max_len;
        if (n->min > 0 && times(each, n->min) > max) { /* long items in a required number */
            if (!limit_length(t, n->child, max / n->min)) return false;
            each = t->node[n->child].max_len;
        } else if (each > max) { /* no item fits: none at all */
            each = limit_length(t, n->child, max) ? t->node[n->child].max_len : max + 1;
        }
        if (each > 0 && n->max > max / each) n->max = max / each;
    }
    measure(t, index);
    return n->max_len <= max;
}

/* Raise the minimum of repetitions, so that the texts have at least `min` code points. */
static bool raise_length(struct lk_pattern_tree *t, int index, int min) {
    struct lk_pattern_node *n = &t->node[index];
    if (n->min_len >= min) return true;
    if (n->max_len < min) return false;
    if (n->kind == LK_PATTERN_CHOICE) {
        int *link = &n->child;
        while (*link) {
            if (raise_length(t, *link, min))
                link = &t->node[*link].next;
            else
                *link = t->node[*link].next;
        }
    } else if (n->kind == LK_PATTERN_SEQUENCE) {
        int missing = min - n->min_len;
        for (int i = n->child; i && missing > 0; i = t->node[i].next) {
            struct lk_pattern_node *child = &t->node[i];
            int before = child->min_len, room = child->max_len - before;
            raise_length(t, i, before + (room < missing ? room : missing));
            missing -= t->node[i].min_len - before;
        }
    } else {
        int each = t->node[n->child].min_len;
        if (each == 0 && n->max == 1) {
            if (!raise_length(t, n->child, min)) return false;
            each = t->node[n->child].min_len;
        }
        if (each > 0 && n->min < (min + each - 1) / each) n->min = (min + each - 1) / each;
        if (n->min > n->max) return false;
    }
    measure(t, index);
    return n->min_len >= min;
}

/* ---- GBNF ---- */

static void write_code(struct lk_buf *out, uint32_t code) {
    if (code > 0xffff)
        lk_buf_printf(out, "\\U%08X", code);
    else if (code > 0x7e)
        lk_buf_printf(out, "\\u%04X", code);
    else if (code < 0x20 || strchr("[]\\^-\"", (int)code))
        lk_buf_printf(out, "\\x%02X", code);
    else
        lk_buf_printf(out, "%c", (int)code);
}

static void write_raw_range(struct lk_buf *out, uint32_t lo, uint32_t hi, bool *open) {
    if (lo > hi) return;
    if (!*open) lk_buf_append_str(out, "[");
    *open = true;
    write_code(out, lo);
    if (hi == lo) return;
    lk_buf_append_str(out, "-");
    write_code(out, hi);
}

/* The characters of a class, plain or as JSON writes them: as themselves from U+0020 on, but
 * for quotes, backslashes and U+007F; tabs, newlines and the like, quotes and backslashes as
 * escapes. */
static void write_class(struct lk_pattern_tree *t, const struct lk_pattern_node *n,
                        struct lk_buf *out) {
    static const struct {
        uint32_t code;
        const char *escape;
    } escapes[] = {{'\b', "b"}, {'\t', "t"},   {'\n', "n"},   {'\f', "f"},
                   {'\r', "r"}, {'"', "\\\""}, {'\\', "\\\\"}};
    static const struct lk_code_range raw[] = {{0x20, '"' - 1},
                                               {'"' + 1, '\\' - 1},
                                               {'\\' + 1, 0x7e},
                                               {0x80, 0xd7ff},
                                               {0xe000, LK_PATTERN_MAX_CODE}};
    static const struct lk_code_range all[] = {{0, 0xd7ff}, {0xe000, LK_PATTERN_MAX_CODE}};
    const struct lk_code_range *allowed = t->plain ? all : raw;
    size_t n_allowed = t->plain ? sizeof all / sizeof all[0] : sizeof raw / sizeof raw[0],
           n_escape = t->plain ? 0 : sizeof escapes / sizeof escapes[0];
    bool open = false, any;
    const struct lk_code_range *r = t->range + n->first_range;
    lk_buf_append_str(out, "(");
    for (int i = 0; i < n->n_range; i++)
        for (size_t k = 0; k < n_allowed; k++)
            write_raw_range(out, r[i].lo > allowed[k].lo ? r[i].lo : allowed[k].lo,
                            r[i].hi < allowed[k].hi ? r[i].hi : allowed[k].hi, &open);
    if (open) lk_buf_append_str(out, "]");
    any = open;
    for (size_t k = 0; k < n_escape; k++)
        for (int i = 0; i < n->n_range; i++) {
            if (escapes[k].code < r[i].lo || escapes[k].code > r[i].hi) continue;
            lk_buf_printf(out, "%s\"\\\\%s\"", any ? " | " : "", escapes[k].escape);
            any = true;
            break;
        }
    lk_buf_append_str(out, any ? ")" : "[^\\x00-\\U0010FFFF])"); /* without characters: nothing */
}

static void write_node(struct lk_pattern_tree *t, int index, struct lk_buf *out) {
    const struct lk_pattern_node *n = &t->node[index];
    if (n->kind == LK_PATTERN_CLASS) {
        write_class(t, n, out);
        return;
    }
    if (n->kind == LK_PATTERN_CHOICE) lk_buf_append_str(out, "(");
    if (n->kind == LK_PATTERN_SEQUENCE && !n->child) lk_buf_append_str(out, "\"\"");
    for (int i = n->child; i; i = t->node[i].next) {
        if (i != n->child) lk_buf_append_str(out, n->kind == LK_PATTERN_CHOICE ? " | " : " ");
        bool dropped = n->kind == LK_PATTERN_REPEAT && n->max == 0;
        if (dropped)
            lk_buf_append_str(out, "\"\"");
        else
            write_node(t, i, out);
    }
    if (n->kind == LK_PATTERN_CHOICE) lk_buf_append_str(out, ")");
    if (n->kind != LK_PATTERN_REPEAT || n->max == 0) return;
    if (n->max == LK_PATTERN_NO_LIMIT)
        lk_buf_printf(out, "{%d,}", n->min);
    else
        lk_buf_printf(out, "{%d,%d}", n->min, n->max);
}

/* ---- the whole ---- */

static lk_status convert(struct lk_pattern_tree *t, const char *pattern, struct lk_buf *out,
                         int min, int max, lk_err *err) {
    lk_status status = lk_pattern_parse(t, pattern, err);
    if (status) return status;
    measure(t, t->root);
    if ((max >= 0 && !limit_length(t, t->root, max)) || !raise_length(t, t->root, min) ||
        (max >= 0 && t->node[t->root].max_len > max))
        return lk_fail(err, LK_E_UNSUPPORTED, "it cannot be kept together with the length");
    write_node(t, t->root, out);
    return LK_OK;
}

static lk_status write_pattern(struct lk_buf *out, const char *pattern, int min, int max,
                               bool plain, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_pattern_tree *t;
    if (strlen(pattern) > LK_PATTERN_MAX)
        return lk_fail(err, LK_E_UNSUPPORTED, "it has more than %d bytes", LK_PATTERN_MAX);
    t = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *t); /* 250 KiB */
    if (!t) return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    t->plain = plain;
    lk_status status = convert(t, pattern, out, min, max, err);
    lk_release(&ledger, LK_FOR_OTHER, t, sizeof *t);
    return status;
}

lk_status lk_pattern_gbnf(struct lk_buf *out, const char *pattern, int min, int max, lk_err *err) {
    return write_pattern(out, pattern, min, max, false, err);
}

lk_status lk_regex_to_grammar(const char *regex, char **grammar, lk_err *err) {
    struct lk_buf whole = {0}, out = {0};
    lk_err why = {0};
    size_t len = strlen(regex);
    bool start = regex[0] == '^', end = len > 1 && regex[len - 1] == '$' && regex[len - 2] != '\\';
    lk_buf_printf(&whole, "^(?:%.*s)$", (int)(len - start - end), regex + start);
    lk_buf_append_str(&out, "root ::= ");
    lk_status status = LK_E_NOMEM;
    if (!whole.failed) status = write_pattern(&out, whole.at, 0, -1, true, &why);
    if (!status && out.failed) status = LK_E_NOMEM;
    lk_buf_free(&whole);
    if (!status) {
        *grammar = out.at;
        return LK_OK;
    }
    lk_buf_free(&out);
    if (status == LK_E_NOMEM) return lk_fail(err, status, "not enough memory for a grammar");
    return lk_fail(err, status, "the regular expression cannot be used: %.300s", why.msg);
}
