/* Compiles grammars: which rules match the empty text, which match any text at all, and which bytes
 * are equal for the grammar. */
#include "grammar/grammar.h"

#include "grammar/grammar_parse.h"

#include <string.h>

/* ---- properties that follow from the rules that a rule refers to ---- */

/* For the whole grammar, in linear time: a rule has the property if one of its alternatives has,
 * and an alternative has it if all of its symbols that must match at least once have it.
 *
 * `missing` counts the symbols of an alternative that do not have the property so far. Each rule
 * has a list of the alternatives that refer to it. */
struct closure {
    const struct lk_grammar *g;
    bool bytes_have_it;
    bool *rule_has;    /* [n_rule] */
    uint32_t *missing; /* [n_alt] */
    uint32_t *owner;   /* [n_alt] the rule of the alternative */
    uint32_t *first;   /* [n_rule + 1] of the rule's users */
    uint32_t *user;    /* alternatives, once per symbol that refers to the rule */
    uint32_t *queue;   /* [n_rule] rules that have the property */
    uint32_t n_queue;
};

static bool must_match(const struct lk_grammar *g, const struct lk_symbol *symbol) {
    return g->repeat[symbol->repeat].min > 0;
}

static void mark_rule(struct closure *c, uint32_t rule) {
    if (c->rule_has[rule]) return;
    c->rule_has[rule] = true;
    c->queue[c->n_queue++] = rule;
}

/* Call fn for each alternative that belongs to a rule. */
static void for_each_alt(struct closure *c,
                         void (*fn)(struct closure *, uint32_t rule, uint32_t alt)) {
    for (uint32_t r = 0; r < c->g->n_rule; r++)
        for (uint32_t i = 0; i < c->g->rule[r].n_alt; i++) fn(c, r, c->g->rule[r].first_alt + i);
}

static void count_users(struct closure *c, uint32_t rule, uint32_t alt) {
    c->owner[alt] = rule;
    const struct lk_symbol *s = &c->g->symbol[c->g->alt[alt]];
    for (; s->kind != LK_SYMBOL_END; s++) {
        if (!must_match(c->g, s)) continue;
        if (s->kind == LK_SYMBOL_RULE) c->first[s->value + 1]++;
        c->missing[alt] += s->kind == LK_SYMBOL_RULE || !c->bytes_have_it;
    }
}

/* first[r] is where the next user of r goes; in the end it is where the users of r + 1 begin. */
static void list_users(struct closure *c, uint32_t rule, uint32_t alt) {
    (void)rule;
    const struct lk_symbol *s = &c->g->symbol[c->g->alt[alt]];
    for (; s->kind != LK_SYMBOL_END; s++)
        if (s->kind == LK_SYMBOL_RULE && must_match(c->g, s)) c->user[c->first[s->value]++] = alt;
}

static void mark_satisfied(struct closure *c, uint32_t rule, uint32_t alt) {
    if (c->missing[alt] == 0) mark_rule(c, rule);
}

static void compute_closure(struct closure *c) {
    const struct lk_grammar *g = c->g;
    for_each_alt(c, count_users);
    for (uint32_t r = 0; r < g->n_rule; r++) c->first[r + 1] += c->first[r];
    for_each_alt(c, list_users);
    for_each_alt(c, mark_satisfied);
    for (uint32_t i = 0; i < c->n_queue; i++) {
        uint32_t r = c->queue[i];
        for (uint32_t u = r ? c->first[r - 1] : 0; u < c->first[r]; u++)
            if (--c->missing[c->user[u]] == 0) mark_rule(c, c->owner[c->user[u]]);
    }
}

/* Compute a closure. Its arrays are one piece of memory of *size bytes, which begins at `missing`;
 * the caller releases it. */
static bool new_closure(struct closure *c, const struct lk_grammar *g, bool bytes_have_it,
                        struct lk_ledger *ledger, size_t *size) {
    size_t n = 2 * (size_t)g->n_alt + 2 * (size_t)g->n_rule + 1 + g->n_symbol;
    *size = n * sizeof(uint32_t) + g->n_rule;
    *c = (struct closure){.g = g, .bytes_have_it = bytes_have_it};
    c->missing = lk_alloc(ledger, LK_FOR_OTHER, *size);
    if (!c->missing) return false;
    c->owner = c->missing + g->n_alt;
    c->first = c->owner + g->n_alt;
    c->queue = c->first + g->n_rule + 1;
    c->user = c->queue + g->n_rule;
    c->rule_has = (bool *)(c->user + g->n_symbol);
    compute_closure(c);
    return true;
}

/* Drop alternatives that match no finite text, then find the rules that match the empty text. */
static lk_status analyze_rules(struct lk_grammar *g, lk_err *err) {
    struct closure c;
    size_t size;
    if (!new_closure(&c, g, true, &g->ledger, &size))
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    for (uint32_t r = 0; r < g->n_rule; r++) {
        struct lk_rule *rule = &g->rule[r];
        uint32_t kept = 0;
        for (uint32_t i = rule->first_alt; i < rule->first_alt + rule->n_alt; i++)
            if (c.missing[i] == 0) g->alt[rule->first_alt + kept++] = g->alt[i];
        rule->n_alt = kept;
    }
    lk_release(&g->ledger, LK_FOR_OTHER, c.missing, size);
    if (g->rule[0].n_alt == 0)
        return lk_fail(err, LK_E_FORMAT,
                       "the grammar matches no finite text: every alternative of root leads to a "
                       "rule that always contains itself");
    if (!new_closure(&c, g, false, &g->ledger, &size))
        return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    for (uint32_t r = 0; r < g->n_rule; r++) g->rule[r].nullable = c.rule_has[r];
    lk_release(&g->ledger, LK_FOR_OTHER, c.missing, size);
    return LK_OK;
}

/* Number the classes of bytes: bytes are in one class if every symbol has both or none. */
static void classify_bytes(struct lk_grammar *g) {
    bool begins[257] = {true}; /* a range begins or has ended here */
    for (uint32_t i = 0; i < g->n_symbol; i++) {
        const struct lk_symbol *s = &g->symbol[i];
        if (s->kind == LK_SYMBOL_RANGE) begins[s->value & 255] = begins[(s->value >> 8) + 1] = true;
    }
    uint32_t n = 0;
    for (int b = 0; b < 256; b++) {
        n += begins[b];
        g->class_of[b] = (uint8_t)(n - 1);
    }
    for (uint32_t i = 0; i < g->n_set && n < 256; i++) { /* split each class by the set */
        int in[256], out[256];
        memset(in, -1, sizeof in);
        memset(out, -1, sizeof out);
        n = 0;
        for (int b = 0; b < 256; b++) {
            int *class = lk_byte_set_has(&g->set[i], (uint8_t)b) ? &in[g->class_of[b]]
                                                                 : &out[g->class_of[b]];
            if (*class < 0) *class = (int)n++;
            g->class_of[b] = (uint8_t) * class;
        }
    }
    g->n_class = n;
}

/* Move the contents of a buffer to memory of the ledger. *n is the number of elements. */
static bool move_array(struct lk_ledger *ledger, struct lk_buf *buf, void *array, size_t element,
                       uint32_t *n) {
    *n = (uint32_t)(buf->len / element);
    void *at = lk_alloc(ledger, LK_FOR_OTHER, buf->len ? buf->len : 1);
    if (at && buf->len) memcpy(at, buf->at, buf->len);
    memcpy(array, &at, sizeof at);
    lk_buf_free(buf);
    return at != NULL;
}

lk_status lk_grammar_new(struct lk_grammar **out, const char *text, lk_err *err) {
    struct lk_grammar_draft draft = {0};
    struct lk_ledger ledger = {0};
    struct lk_grammar *g = NULL;
    lk_status status = lk_grammar_parse(&draft, text, err);
    if (!status) {
        g = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *g);
        bool moved = g != NULL;
        if (g) atomic_init(&g->n_owner, 1);
        moved = moved && move_array(&g->ledger, &draft.rule, &g->rule, sizeof *g->rule, &g->n_rule);
        moved = moved && move_array(&g->ledger, &draft.alt, &g->alt, sizeof *g->alt, &g->n_alt);
        moved = moved &&
                move_array(&g->ledger, &draft.symbol, &g->symbol, sizeof *g->symbol, &g->n_symbol);
        moved = moved &&
                move_array(&g->ledger, &draft.repeat, &g->repeat, sizeof *g->repeat, &g->n_repeat);
        moved = moved && move_array(&g->ledger, &draft.set, &g->set, sizeof *g->set, &g->n_set);
        if (!moved) status = lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    }
    lk_grammar_draft_free(&draft);
    if (!status) status = analyze_rules(g, err);
    if (status) {
        lk_grammar_free(g);
        return status;
    }
    classify_bytes(g);
    *out = g;
    return LK_OK;
}

struct lk_grammar *lk_grammar_share(struct lk_grammar *grammar) {
    atomic_fetch_add(&grammar->n_owner, 1);
    return grammar;
}

static void release_array(struct lk_ledger *ledger, void *array, uint32_t n, size_t element) {
    lk_release(ledger, LK_FOR_OTHER, array, n ? n * element : 1);
}

void lk_grammar_free(struct lk_grammar *grammar) {
    if (!grammar || atomic_fetch_sub(&grammar->n_owner, 1) != 1) return;
    struct lk_grammar *g = grammar;
    release_array(&g->ledger, g->rule, g->n_rule, sizeof *g->rule);
    release_array(&g->ledger, g->alt, g->n_alt, sizeof *g->alt);
    release_array(&g->ledger, g->symbol, g->n_symbol, sizeof *g->symbol);
    release_array(&g->ledger, g->repeat, g->n_repeat, sizeof *g->repeat);
    release_array(&g->ledger, g->set, g->n_set, sizeof *g->set);
    struct lk_ledger ledger = {0};
    lk_release(&ledger, LK_FOR_OTHER, g, sizeof *g);
}

size_t lk_grammar_bytes(const struct lk_grammar *grammar) {
    return sizeof *grammar + lk_ledger_bytes(&grammar->ledger, LK_FOR_OTHER);
}
