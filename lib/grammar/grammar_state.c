/* Earley recognition (Earley 1970) with three changes.
 *
 * Nullable symbols are skipped when an item is made (Aycock and Horspool 2002), so rules that match
 * the empty text need not be completed in the set where they begin.
 *
 * If a rule's last symbol is another rule, the other rule's alternatives take over its origin and
 * its target, like a tail call. Right recursion then needs no chain of waiting items.
 *
 * Items name their own set as SELF, so that equal sets have equal items wherever they are. */
#include "grammar/grammar_state.h"

#include "base/hash.h"

#include <string.h>

struct item {
    uint32_t pos, count; /* symbol, and how often it has matched; see call_pos for other values */
    uint32_t origin;     /* set, or SELF */
    uint32_t target;     /* rule that is complete at the end of the alternative */
};

static const uint32_t SELF = UINT32_MAX, DEAD = UINT32_MAX, UNKNOWN = UINT32_MAX - 1;
static const uint32_t NO_ROW = UINT32_MAX;

/* First the items whose next symbol is a rule, then those whose next symbol is a byte. */
struct set {
    uint32_t first, n_wait, n_byte;
    uint32_t hash;
    uint32_t row;  /* in state->row: what follows after each class of bytes; NO_ROW: not yet */
    bool complete; /* the text may end here */
};

struct array {
    void *at;
    uint32_t n, cap;
};

struct lk_grammar_state {
    struct lk_grammar *grammar;
    struct lk_ledger ledger;
    struct array sets;  /* struct set; origins are older sets, so their numbers are lower */
    struct array items; /* struct item */
    struct array rows;  /* uint32_t: sets, DEAD or UNKNOWN; n_class for each row */
    struct array index; /* uint32_t: hash table of sets, number + 1; its size is a power of two */
    struct array path;  /* uint32_t: path[0] is the position; the others are sets of a walk */
    struct array work;  /* struct item: the set that is made */
    struct array seen;  /* uint64_t: hash table of `work`, number of the set made << 32 | item */
    uint32_t n_made;    /* sets made so far, for `seen` */
    bool complete;      /* the set that is made is */
    uint64_t steps, max_steps;
    size_t collect_at; /* bytes at which unused sets are looked for */
    lk_status failed;  /* why a set could not be made */
};

/* The elements of the arrays. */
static struct item *items_of(const struct lk_grammar_state *s) { return s->items.at; }
static struct item *work_of(const struct lk_grammar_state *s) { return s->work.at; }
static struct set *sets_of(const struct lk_grammar_state *s) { return s->sets.at; }
static uint32_t *rows_of(const struct lk_grammar_state *s) { return s->rows.at; }
static uint32_t *index_of(const struct lk_grammar_state *s) { return s->index.at; }
static uint32_t *path_of(const struct lk_grammar_state *s) { return s->path.at; }
static uint64_t *seen_of(const struct lk_grammar_state *s) { return s->seen.at; }

/* ---- memory ---- */

static bool fail(struct lk_grammar_state *s, lk_status status) {
    if (!s->failed) s->failed = status;
    return false;
}

/* Make room for n elements. */
static bool reserve(struct lk_grammar_state *s, struct array *a, uint64_t n, size_t size) {
    if (n <= a->cap) return true;
    uint64_t cap = n + n / 2 < 64 ? 64 : n + n / 2;
    if (cap > UINT32_MAX / 2) return fail(s, LK_E_UNSUPPORTED);
    if (!lk_grow(&s->ledger, LK_FOR_OTHER, &a->at, a->cap * size, cap * size))
        return fail(s, LK_E_NOMEM);
    a->cap = (uint32_t)cap;
    return true;
}

static void release(struct lk_grammar_state *s, struct array *a, size_t size) {
    lk_release(&s->ledger, LK_FOR_OTHER, a->at, a->cap * size);
    *a = (struct array){0};
}

/* Replace a hash table by an empty one of n = 2^k entries. */
static bool renew_table(struct lk_grammar_state *s, struct array *table, uint32_t n, size_t size) {
    void *at = lk_alloc(&s->ledger, LK_FOR_OTHER, n * size);
    if (!at) return fail(s, LK_E_NOMEM);
    release(s, table, size);
    *table = (struct array){at, 0, n};
    return true;
}

static uint64_t hash_item(uint64_t hash, const struct item *item) {
    uint64_t word[2];
    memcpy(word, item, sizeof word);
    return lk_splitmix64((hash ^ word[0]) * lk_splitmix64_step + word[1]);
}

/* ---- making a set ---- */

static bool count_steps(struct lk_grammar_state *s, uint64_t n) {
    s->steps += n;
    return s->steps <= s->max_steps || fail(s, LK_E_UNSUPPORTED);
}

/* Enter work item i in `seen`, without looking for equal ones. */
static void enter_seen(struct lk_grammar_state *s, uint32_t i) {
    uint32_t mask = s->seen.cap - 1, slot = (uint32_t)hash_item(0, &work_of(s)[i]) & mask;
    while (seen_of(s)[slot] >> 32 == s->n_made) slot = (slot + 1) & mask;
    seen_of(s)[slot] = (uint64_t)s->n_made << 32 | i;
}

static bool grow_seen(struct lk_grammar_state *s) {
    if (2 * s->work.n < s->seen.cap) return true;
    if (!renew_table(s, &s->seen, s->seen.cap ? 2 * s->seen.cap : 256, sizeof(uint64_t)))
        return false;
    for (uint32_t i = 0; i < s->work.n; i++) enter_seen(s, i);
    return true;
}

/* An item that stands for the alternatives of a rule; they all get its origin and target. */
static uint32_t call_pos(const struct lk_grammar *g, uint32_t rule) { return g->n_symbol + rule; }

/* Add an item to the set that is made, unless it is there. */
static bool add_item(struct lk_grammar_state *s, uint32_t pos, uint32_t count, uint32_t origin,
                     uint32_t target) {
    const struct lk_grammar *g = s->grammar;
    if (!count_steps(s, 1)) return false;
    if (pos < g->n_symbol && g->symbol[pos].kind == LK_SYMBOL_END) {
        if (origin == SELF) return true; /* empty: whatever called the target has skipped it */
        pos = 0;                         /* all ends are equal */
    }
    struct item item = {pos, count, origin, target};
    if (!grow_seen(s) || !reserve(s, &s->work, s->work.n + 1ull, sizeof item)) return false;
    uint32_t mask = s->seen.cap - 1, slot = (uint32_t)hash_item(0, &item) & mask;
    for (; seen_of(s)[slot] >> 32 == s->n_made; slot = (slot + 1) & mask) {
        if (memcmp(&work_of(s)[(uint32_t)seen_of(s)[slot]], &item, sizeof item) == 0) return true;
        if (!count_steps(s, 1)) return false;
    }
    seen_of(s)[slot] = (uint64_t)s->n_made << 32 | s->work.n;
    work_of(s)[s->work.n++] = item;
    return true;
}

/* The item after its symbol has matched once more. */
static bool add_advanced(struct lk_grammar_state *s, struct item item) {
    const struct lk_repeat *r = &s->grammar->repeat[s->grammar->symbol[item.pos].repeat];
    uint32_t count = item.count + 1;
    if (count == r->max) return add_item(s, item.pos + 1, 0, item.origin, item.target);
    if (r->max == 0 && count > r->min) count = r->min; /* no need to count further */
    return add_item(s, item.pos, count, item.origin, item.target);
}

/* Rule `target` that began at set `origin` is complete: advance what waits for it there. */
static bool complete_rule(struct lk_grammar_state *s, uint32_t origin, uint32_t target) {
    if (target == 0) s->complete = true;
    const struct set set = sets_of(s)[origin];
    if (!count_steps(s, set.n_wait / 8)) return false;
    for (uint32_t i = set.first; i < set.first + set.n_wait; i++) {
        struct item item = items_of(s)[i];
        if (s->grammar->symbol[item.pos].value != target) continue;
        if (item.origin == SELF) item.origin = origin;
        if (!add_advanced(s, item)) return false;
    }
    return true;
}

/* Add what follows from an item. */
static bool expand_item(struct lk_grammar_state *s, struct item item) {
    const struct lk_grammar *g = s->grammar;
    if (item.pos >= g->n_symbol) {
        const struct lk_rule *rule = &g->rule[item.pos - g->n_symbol];
        for (uint32_t i = 0; i < rule->n_alt; i++)
            if (!add_item(s, g->alt[rule->first_alt + i], 0, item.origin, item.target))
                return false;
        return true;
    }
    const struct lk_symbol *symbol = &g->symbol[item.pos];
    if (symbol->kind == LK_SYMBOL_END) return complete_rule(s, item.origin, item.target);
    const struct lk_repeat *repeat = &g->repeat[symbol->repeat];
    bool is_rule = symbol->kind == LK_SYMBOL_RULE;
    if ((item.count >= repeat->min || (is_rule && g->rule[symbol->value].nullable)) &&
        !add_item(s, item.pos + 1, 0, item.origin, item.target))
        return false;
    if (!is_rule) return true;
    bool is_last = item.count + 1 == repeat->max && symbol[1].kind == LK_SYMBOL_END;
    uint32_t call = call_pos(g, symbol->value);
    return is_last ? add_item(s, call, 0, item.origin, item.target)
                   : add_item(s, call, 0, SELF, symbol->value);
}

/* Is this an item that is kept in a set, and does it wait for a rule? A last symbol that is a rule
 * is not waited for. */
static bool is_kept(const struct lk_grammar *g, const struct item *item, bool *waits) {
    if (item->pos >= g->n_symbol) return false;
    const struct lk_symbol *symbol = &g->symbol[item->pos];
    *waits = symbol->kind == LK_SYMBOL_RULE;
    if (!*waits) return symbol->kind != LK_SYMBOL_END;
    return item->count + 1 != g->repeat[symbol->repeat].max || symbol[1].kind != LK_SYMBOL_END;
}

/* Append the kept items of the set that is made to state->items. */
static bool append_kept(struct lk_grammar_state *s, struct set *set) {
    if (!reserve(s, &s->items, (uint64_t)s->items.n + s->work.n, sizeof(struct item))) return false;
    struct item *out = items_of(s) + s->items.n;
    uint64_t hash = s->complete;
    *set = (struct set){.first = s->items.n, .row = NO_ROW, .complete = s->complete};
    for (int wait = 1; wait >= 0; wait--) {
        for (uint32_t i = 0; i < s->work.n; i++) {
            bool waits;
            if (!is_kept(s->grammar, &work_of(s)[i], &waits) || waits != wait) continue;
            hash = hash_item(hash, &work_of(s)[i]);
            *out++ = work_of(s)[i];
            if (wait)
                set->n_wait++;
            else
                set->n_byte++;
        }
    }
    set->hash = (uint32_t)hash;
    return true;
}

static bool is_equal(const struct lk_grammar_state *s, const struct set *a, const struct set *b) {
    return a->hash == b->hash && a->n_wait == b->n_wait && a->n_byte == b->n_byte &&
           a->complete == b->complete &&
           memcmp(items_of(s) + a->first, items_of(s) + b->first,
                  (a->n_wait + a->n_byte) * sizeof(struct item)) == 0;
}

/* Enter every set in a new table. */
static bool renew_index(struct lk_grammar_state *s, uint32_t size) {
    if (!renew_table(s, &s->index, size, sizeof(uint32_t))) return false;
    for (uint32_t i = 0; i < s->sets.n; i++) {
        uint32_t slot = sets_of(s)[i].hash & (size - 1);
        while (index_of(s)[slot]) slot = (slot + 1) & (size - 1);
        index_of(s)[slot] = i + 1;
    }
    return true;
}

/* The number of the set that was made: a new one, or an equal one. */
static bool keep_set(struct lk_grammar_state *s, uint32_t *number) {
    struct set set;
    if (2 * (s->sets.n + 1) > s->index.cap && !renew_index(s, s->index.cap ? 2 * s->index.cap : 64))
        return false;
    if (!append_kept(s, &set)) return false;
    uint32_t mask = s->index.cap - 1, slot = set.hash & mask;
    for (; index_of(s)[slot]; slot = (slot + 1) & mask) {
        *number = index_of(s)[slot] - 1;
        if (is_equal(s, &sets_of(s)[*number], &set)) return true;
        if (!count_steps(s, 1)) return false;
    }
    if (!reserve(s, &s->sets, s->sets.n + 1ull, sizeof set)) return false;
    *number = s->sets.n;
    index_of(s)[slot] = ++s->sets.n;
    sets_of(s)[*number] = set;
    s->items.n += set.n_wait + set.n_byte;
    return true;
}

static void begin_set(struct lk_grammar_state *s) {
    s->work.n = 0;
    s->complete = false;
    if (++s->n_made == 0) { /* all numbers have been used once */
        if (s->seen.at) memset(s->seen.at, 0, s->seen.cap * sizeof(uint64_t));
        s->n_made = 1;
    }
}

static bool close_set(struct lk_grammar_state *s) {
    for (uint32_t i = 0; i < s->work.n; i++)
        if (!expand_item(s, work_of(s)[i])) return false;
    return true;
}

/* ---- freeing sets ---- */

static size_t used_bytes(const struct lk_grammar_state *s) {
    return s->sets.n * sizeof(struct set) + s->items.n * sizeof(struct item) +
           (s->rows.n + s->index.cap) * sizeof(uint32_t);
}

/* Move the marked sets to the front: mark[i] becomes the new number of set i. */
static void compact_sets(struct lk_grammar_state *s, uint32_t *mark) {
    uint32_t n_set = 0, n_item = 0;
    for (uint32_t i = 0; i < s->sets.n; i++) {
        if (!mark[i]) continue;
        struct set set = sets_of(s)[i];
        uint32_t n = set.n_wait + set.n_byte;
        memmove(items_of(s) + n_item, items_of(s) + set.first, n * sizeof(struct item));
        set.first = n_item;
        set.row = NO_ROW;
        uint64_t hash = set.complete;
        for (uint32_t k = n_item; k < n_item + n; k++) {
            if (items_of(s)[k].origin != SELF) items_of(s)[k].origin = mark[items_of(s)[k].origin];
            hash = hash_item(hash, &items_of(s)[k]);
        }
        set.hash = (uint32_t)hash;
        n_item += n;
        sets_of(s)[n_set] = set;
        mark[i] = n_set++;
    }
    s->sets.n = n_set;
    s->items.n = n_item;
    s->rows.n = 0;
}

/* Free the sets that the first n_path sets of the path and the first set do not refer to, and what
 * all sets remember about the sets that follow. */
static bool collect(struct lk_grammar_state *s, uint32_t n_path) {
    size_t size = s->sets.n * sizeof(uint32_t);
    uint32_t *mark = lk_alloc(&s->ledger, LK_FOR_OTHER, size);
    if (!mark) return fail(s, LK_E_NOMEM);
    mark[0] = 1;
    for (uint32_t i = 0; i < n_path; i++) mark[path_of(s)[i]] = 1;
    for (uint32_t i = s->sets.n; i-- > 0;) {
        const struct set *set = &sets_of(s)[i];
        if (!mark[i]) continue;
        for (uint32_t k = set->first; k < set->first + set->n_wait + set->n_byte; k++)
            if (items_of(s)[k].origin != SELF) mark[items_of(s)[k].origin] = 1;
    }
    compact_sets(s, mark);
    for (uint32_t i = 0; i < n_path; i++) path_of(s)[i] = mark[path_of(s)[i]];
    lk_release(&s->ledger, LK_FOR_OTHER, mark, size);
    uint32_t table = 64;
    while (table < 4 * s->sets.n) table *= 2;
    if (!renew_index(s, table)) return false;
    size_t live = used_bytes(s);
    const size_t at_least = 1 << 18;
    s->collect_at = 2 * live > at_least ? 2 * live : at_least;
    return live <= LK_GRAMMAR_MAX_BYTES || fail(s, LK_E_UNSUPPORTED);
}

/* ---- moving ---- */

/* The row of a set, with DEAD where no symbol matches. */
static bool add_row(struct lk_grammar_state *s, uint32_t number) {
    const struct lk_grammar *g = s->grammar;
    uint32_t at = s->rows.n;
    if (!reserve(s, &s->rows, (uint64_t)at + g->n_class, sizeof(uint32_t))) return false;
    struct set *set = &sets_of(s)[number];
    if (!count_steps(s, g->n_class / 16 + set->n_byte / 4)) return false;
    s->rows.n += g->n_class;
    set->row = at;
    for (uint32_t c = 0; c < g->n_class; c++) rows_of(s)[at + c] = DEAD;
    uint32_t first = set->first + set->n_wait;
    for (uint32_t i = first; i < first + set->n_byte; i++) {
        const struct lk_symbol *symbol = &g->symbol[items_of(s)[i].pos];
        bool range = symbol->kind == LK_SYMBOL_RANGE;
        uint32_t b = range ? symbol->value & 255 : 0, end = range ? symbol->value >> 8 : 255;
        for (; b <= end; b++)
            if (range || lk_byte_set_has(&g->set[symbol->value], (uint8_t)b))
                rows_of(s)[at + g->class_of[b]] = UNKNOWN;
    }
    return true;
}

static bool matches(const struct lk_grammar *g, const struct lk_symbol *symbol, uint8_t byte) {
    if (symbol->kind == LK_SYMBOL_SET) return lk_byte_set_has(&g->set[symbol->value], byte);
    return byte >= (symbol->value & 255) && byte <= symbol->value >> 8;
}

/* Make the set that follows set `from` after a byte. */
static bool make_set(struct lk_grammar_state *s, uint32_t from, uint8_t byte, uint32_t *number) {
    uint64_t budget = s->max_steps;
    if (s->steps < budget && budget - s->steps > LK_GRAMMAR_MAX_STEPS)
        s->max_steps = s->steps + LK_GRAMMAR_MAX_STEPS;
    begin_set(s);
    const struct set set = sets_of(s)[from];
    bool made = count_steps(s, set.n_byte / 8);
    for (uint32_t i = set.first + set.n_wait; made && i < set.first + set.n_wait + set.n_byte;
         i++) {
        struct item item = items_of(s)[i];
        if (!matches(s->grammar, &s->grammar->symbol[item.pos], byte)) continue;
        if (item.origin == SELF) item.origin = from;
        made = add_advanced(s, item);
    }
    made = made && close_set(s) && keep_set(s, number);
    s->max_steps = budget;
    return made;
}

/* path[to] = what follows path[from] after a byte, or DEAD. Sets that path[0..from] does not need
 * may be freed. */
static bool step(struct lk_grammar_state *s, uint32_t from, uint32_t to, uint8_t byte) {
    uint8_t class = s->grammar->class_of[byte];
    uint32_t row = sets_of(s)[path_of(s)[from]].row,
             next = row == NO_ROW ? UNKNOWN : rows_of(s)[row + class];
    if (next == UNKNOWN) {
        if (used_bytes(s) > s->collect_at && !collect(s, from + 1)) return false;
        uint32_t number = path_of(s)[from];
        if (sets_of(s)[number].row == NO_ROW && !add_row(s, number)) return false;
        next = rows_of(s)[sets_of(s)[number].row + class];
        if (next == UNKNOWN) {
            if (!make_set(s, number, byte, &next)) return false;
            rows_of(s)[sets_of(s)[number].row + class] = next;
        }
    }
    path_of(s)[to] = next;
    return true;
}

/* ---- interface ---- */

static lk_status report(const struct lk_grammar_state *s, lk_err *err) {
    if (s->failed == LK_E_NOMEM) return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "the grammar is too ambiguous: too many of its rules match the same text; make "
                   "alternatives differ in how they begin");
}

lk_status lk_grammar_state_new(struct lk_grammar_state **out, struct lk_grammar *grammar,
                               lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_grammar_state *s = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "not enough memory for a grammar");
    uint32_t start;
    s->grammar = lk_grammar_share(grammar);
    s->collect_at = 1 << 18;
    s->max_steps = LK_GRAMMAR_MAX_STEPS;
    begin_set(s);
    s->complete = grammar->rule[0].nullable;
    if (reserve(s, &s->path, 2, sizeof(uint32_t)) &&
        add_item(s, call_pos(grammar, 0), 0, SELF, 0) && close_set(s) && keep_set(s, &start)) {
        lk_grammar_reset(s);
        *out = s;
        return LK_OK;
    }
    lk_status status = report(s, err);
    lk_grammar_state_free(s);
    return status;
}

void lk_grammar_state_free(struct lk_grammar_state *state) {
    if (!state) return;
    struct lk_grammar_state *s = state;
    release(s, &s->sets, sizeof(struct set));
    release(s, &s->items, sizeof(struct item));
    release(s, &s->rows, sizeof(uint32_t));
    release(s, &s->index, sizeof(uint32_t));
    release(s, &s->path, sizeof(uint32_t));
    release(s, &s->work, sizeof(struct item));
    release(s, &s->seen, sizeof(uint64_t));
    lk_grammar_free(s->grammar);
    struct lk_ledger ledger = {0};
    lk_release(&ledger, LK_FOR_OTHER, s, sizeof *s);
}

void lk_grammar_reset(struct lk_grammar_state *state) { path_of(state)[0] = 0; }

/* Begin to move, with a budget of steps for all moves. */
static void begin_moves(struct lk_grammar_state *s, uint64_t steps) {
    s->failed = LK_OK;
    s->max_steps = steps < UINT64_MAX - s->steps ? s->steps + steps : UINT64_MAX;
}

lk_status lk_grammar_allows(struct lk_grammar_state *state, const char *bytes, size_t n,
                            bool *allowed, lk_err *err) {
    struct lk_grammar_state *s = state;
    begin_moves(s, UINT64_MAX); /* each byte has its own limit */
    path_of(s)[1] = path_of(s)[0];
    for (size_t i = 0; i < n; i++) {
        if (!step(s, i > 0, 1, (uint8_t)bytes[i])) return report(s, err);
        if (path_of(s)[1] == DEAD) {
            *allowed = false;
            return LK_OK;
        }
    }
    *allowed = true;
    return LK_OK;
}

lk_status lk_grammar_accept(struct lk_grammar_state *state, const char *bytes, size_t n,
                            bool *accepted, lk_err *err) {
    bool allowed;
    lk_status status = lk_grammar_allows(state, bytes, n, &allowed, err);
    if (status) return status;
    if (allowed) path_of(state)[0] = path_of(state)[1];
    *accepted = allowed;
    return LK_OK;
}

bool lk_grammar_is_complete(const struct lk_grammar_state *state) {
    return sets_of(state)[path_of(state)[0]].complete;
}

lk_status lk_grammar_mask(struct lk_grammar_state *state, const struct lk_token_bytes *tokens,
                          uint64_t *allowed, lk_err *err) {
    struct lk_grammar_state *s = state;
    begin_moves(s, LK_GRAMMAR_MASK_STEPS);
    memset(allowed, 0, (tokens->n_vocab + 63) / 64 * sizeof *allowed);
    if (!reserve(s, &s->path, tokens->longest + 1ull, sizeof(uint32_t))) return report(s, err);
    uint32_t n_dead =
        UINT32_MAX; /* no text begins with the first n_dead bytes of the entry before */
    for (uint32_t i = 0; i < tokens->n; i++) {
        uint32_t n = tokens->n_shared[i], start = tokens->start[i];
        uint32_t len = tokens->start[i + 1] - start;
        if (n >= n_dead) continue;
        n_dead = UINT32_MAX;
        for (; n < len && n_dead == UINT32_MAX; n++) {
            if (!step(s, n, n + 1, (uint8_t)tokens->bytes[start + n])) return report(s, err);
            if (path_of(s)[n + 1] == DEAD) n_dead = n + 1;
        }
        if (n_dead < UINT32_MAX) continue;
        uint32_t tok = (uint32_t)tokens->tok[i];
        allowed[tok / 64] |= 1ull << (tok % 64);
    }
    return LK_OK;
}

size_t lk_grammar_state_bytes(const struct lk_grammar_state *state) {
    return sizeof *state + lk_ledger_bytes(&state->ledger, LK_FOR_OTHER);
}

uint64_t lk_grammar_state_steps(const struct lk_grammar_state *state) { return state->steps; }
