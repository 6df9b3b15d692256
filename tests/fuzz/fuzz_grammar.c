/* Fuzz target: a JSON schema or GBNF text, a zero byte, and a text that the grammar may allow. What
 * a grammar allows does not depend on how a text is cut, and neither steps nor memory exceed their
 * bounds. The first byte selects: 's' schema, else GBNF. */
#include "grammar/grammar_state.h"
#include "lowkey_serve.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 2000, MAX_MEMORY = 64 << 20 };

static const char *const token[] = {
    "{",    "\"",   "a",    "\"a\"",        "1",       "[[",   "]", ",", "\n",
    "true", "\xc3", "\xa9", "aaaaaaaaaaaa", "{\"a\":", "0.5e1"};
enum { N_TOKEN = sizeof token / sizeof token[0] };

static void check_error(lk_status status, const lk_err *err) {
    if (status == LK_OK || !err->msg[0] || strchr(err->msg, '\n')) abort();
}

static void check_memory(const struct lk_grammar_state *s, const struct lk_grammar *g) {
    if (lk_grammar_state_bytes(s) > MAX_MEMORY || lk_grammar_bytes(g) > MAX_MEMORY) abort();
}

/* The mask of all tokens agrees with each token alone. */
static void check_mask(struct lk_grammar_state *s, const struct lk_token_bytes *tokens) {
    uint64_t mask, before = lk_grammar_state_steps(s);
    lk_err err = {0};
    lk_status status = lk_grammar_mask(s, tokens, &mask, &err);
    if (lk_grammar_state_steps(s) - before > LK_GRAMMAR_MASK_STEPS + LK_GRAMMAR_MAX_STEPS) abort();
    if (status) {
        check_error(status, &err);
        return;
    }
    for (int i = 0; i < N_TOKEN; i++) {
        bool allowed;
        if (lk_grammar_allows(s, token[i], strlen(token[i]), &allowed, &err)) continue;
        if (allowed != (mask >> i & 1)) abort();
    }
}

/* One state gets the text byte by byte, the other one gets the accepted prefix at once. */
static void check_text(struct lk_grammar *g, const char *text, size_t n,
                       const struct lk_token_bytes *tokens) {
    struct lk_grammar_state *s = NULL, *whole = NULL;
    lk_err err = {0};
    lk_status status = lk_grammar_state_new(&s, g, &err);
    if (status) {
        check_error(status, &err);
        return;
    }
    bool good = true;
    size_t at = 0;
    while (good && at < n) {
        uint64_t before = lk_grammar_state_steps(s);
        bool allowed, complete = lk_grammar_is_complete(s);
        if (at % 64 == 0) check_mask(s, tokens);
        before = lk_grammar_state_steps(s);
        status = lk_grammar_allows(s, text + at, 1, &allowed, &err);
        if (lk_grammar_state_steps(s) - before > 2 * LK_GRAMMAR_MAX_STEPS) abort();
        check_memory(s, g);
        if (status) {
            check_error(status, &err);
            break;
        }
        if (lk_grammar_accept(s, text + at, 1, &good, &err) || good != allowed) abort();
        if (!good && lk_grammar_is_complete(s) != complete) abort();
        at += good;
    }
    bool accepted, same = false;
    if (lk_grammar_state_new(&whole, g, &err) == LK_OK) {
        status = lk_grammar_accept(whole, text, at, &accepted, &err);
        same = !status && accepted && lk_grammar_is_complete(whole) == lk_grammar_is_complete(s);
        if (!same) abort();
        check_memory(whole, g);
    }
    lk_grammar_state_free(whole);
    lk_grammar_reset(s);
    if (lk_grammar_accept(s, text, at, &accepted, &err) || !accepted) abort();
    lk_grammar_state_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct lk_token_bytes *tokens;
    size_t len[N_TOKEN];
    for (int i = 0; i < N_TOKEN; i++) len[i] = strlen(token[i]);
    if (!tokens && lk_token_bytes_new(&tokens, token, len, N_TOKEN, NULL)) return 0;
    if (size < 1) return 0;
    const uint8_t *zero = memchr(data, 0, size);
    size_t n_first = zero ? (size_t)(zero - data) : size, n_text = zero ? size - n_first - 1 : 0;
    if (n_first == 0) return 0;
    char *grammar = malloc(n_first), *made = NULL;
    if (!grammar) return 0;
    memcpy(grammar, data + 1, n_first - 1);
    grammar[n_first - 1] = 0;
    struct lk_grammar *g = NULL;
    lk_err err = {0};
    lk_status status = LK_OK;
    if (data[0] == 's') {
        status = lk_schema_to_grammar(grammar, n_first - 1, &made, &err);
        if (status)
            check_error(status, &err);
        else if ((status = lk_grammar_new(&g, made, &err)) && !strstr(err.msg, "no finite text"))
            abort(); /* what the converter writes parses */
    } else {
        status = lk_grammar_new(&g, grammar, &err);
        if (status) check_error(status, &err);
    }
    if (!status)
        check_text(g, zero ? (const char *)zero + 1 : "", n_text < MAX_TEXT ? n_text : MAX_TEXT,
                   tokens);
    lk_grammar_free(g);
    lk_text_free(made);
    free(grammar);
    return 0;
}
