/* GBNF and its recognizer: the language, messages, agreement with libllama's grammars, and bounds
 * on steps and memory. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/utf8.h"
#include "grammar/grammar_state.h"
#include "lowkey_serve.h"
#include "support_text.h"
#include "test.h"
#include "tiny_gguf.h"
#include "token/sampling.h"

#include "llama.h"

#include <unistd.h>

/* ---- helpers ---- */

static struct lk_grammar *parse(const char *text) {
    struct lk_grammar *g = NULL;
    lk_err err = {0};
    if (lk_grammar_new(&g, text, &err)) fail_msg("%s\n%.300s", err.msg, text);
    return g;
}

static struct lk_grammar_state *start(struct lk_grammar *g) {
    struct lk_grammar_state *s = NULL;
    lk_err err = {0};
    if (lk_grammar_state_new(&s, g, &err)) fail_msg("%s", err.msg);
    return s;
}

static struct lk_grammar_state *start_text(const char *text) {
    struct lk_grammar *g = parse(text);
    struct lk_grammar_state *s = start(g);
    lk_grammar_free(g); /* the state shares it */
    return s;
}

static bool accept(struct lk_grammar_state *s, const char *text, size_t n) {
    bool accepted = false;
    lk_err err = {0};
    if (lk_grammar_accept(s, text, n, &accepted, &err)) fail_msg("%s", err.msg);
    return accepted;
}

static bool matches(const char *grammar, const char *text) {
    struct lk_grammar_state *s = start_text(grammar);
    bool good = accept(s, text, strlen(text)) && lk_grammar_is_complete(s);
    lk_grammar_state_free(s);
    return good;
}

/* ---- language ---- */

#define TEXTS(...)                                                                                 \
    (const char *const[]) { __VA_ARGS__, NULL }

static void the_language(void **state) {
    const struct {
        const char *grammar;
        const char *const *good, *const *bad;
    } cases[] = {
        {"root ::= \"yes\" | \"no\"", TEXTS("yes", "no"), TEXTS("", "ye", "yesno")},
        {"# a comment\n\nroot ::= a # another\n\n\na::=\"x\"\"y\"\n", TEXTS("xy"), TEXTS("x")},
        {"root ::= (\n \"a\" | # first\n\n \"b\"\n )+\r\nother ::= \"c\"", TEXTS("a", "abba"),
         TEXTS("", "c")},
        {"root ::=\n  \"a\" |\n  \"b\"", TEXTS("a", "b"), TEXTS("ab")},
        {"root ::= \"a\" | \"\"", TEXTS("a", ""), TEXTS("aa")},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\r\\\\\\\"\\[\\]\\-\"",
         TEXTS("A\xc3\xa9\xf0\x9f\x98\x80\n\t\r\\\"[]-"), TEXTS("A")},
        {"root ::= [a-c-]", TEXTS("a", "b", "c", "-"), TEXTS("d", "")},
        {"root ::= [^\\U00000001-\\U0010FFFE]", TEXTS("\xf4\x8f\xbf\xbf"),
         TEXTS("a", "\xf4\x8f\xbf\xbe")},
        {"root ::= [^a\\n\xc3\xa9]", TEXTS("b", "\xc3\xa8", "\xe2\x82\xac", "\xf0\x9f\x98\x80"),
         TEXTS("a", "\n", "\xc3\xa9", "bb", "\xc3", "\xc0\x80", "\xed\xa0\x80",
               "\xf5\x80\x80\x80")},
        {"root ::= [\xc3\xa0-\xf0\x9f\x98\x80]",
         TEXTS("\xc3\xa0", "\xdf\xbf", "\xe0\xa0\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80",
               "\xf0\x9f\x98\x80"),
         TEXTS("a", "\xc3\x9f", "\xf0\x9f\x98\x81")},
        {"root ::= .", TEXTS("a", "\n", "\xf4\x8f\xbf\xbf"), TEXTS("", "ab", "\xff")},
        {"root ::= \"ab\"*", TEXTS("", "ab", "abab"), TEXTS("a", "aba")},
        {"root ::= \"a\"? \"b\"+", TEXTS("ab", "bbb"), TEXTS("a", "aab")},
        {"root ::= \"a\"{2}", TEXTS("aa"), TEXTS("a", "aaa")},
        {"root ::= \"a\"{ 2 , }", TEXTS("aa", "aaaaa"), TEXTS("a")},
        {"root ::= \"a\"{0,2} \"b\"", TEXTS("b", "ab", "aab"), TEXTS("aaab")},
        {"root ::= \"a\"{0} \"b\"", TEXTS("b"), TEXTS("ab")},
        {"root ::= \"a\"{2}{2,3}", TEXTS("aaaa", "aaaaaa"), TEXTS("aa", "aaaaa", "aaaaaaaa")},
        {"root ::= (\"a\"? \"b\"?){2} \"c\"", TEXTS("c", "aac", "babc", "bc"), TEXTS("babac")},
        {"root ::= (\"\" | \"a\"{0,3})* \"c\"", TEXTS("c", "aaaaaaaac"), TEXTS("a")},
        {"root ::= root \"+\" \"1\" | \"1\"", TEXTS("1", "1+1", "1+1+1"), TEXTS("1+", "+1")},
        {"root ::= \"(\" root \")\" | \"\"", TEXTS("", "()", "((()))"), TEXTS("(", "())")},
        {"root ::= \"a\" root | \"b\"", TEXTS("b", "aaab"), TEXTS("a", "ba")},
        {"root ::= a | b\na ::= b | a \"x\"\nb ::= a | \"y\"", TEXTS("y", "yxx"), TEXTS("x")},
        {"root ::= \"a\" | \"b\" dead\ndead ::= \"c\" dead", TEXTS("a"), TEXTS("b", "bc")},
        {"root ::= \"a\"\nroot ::= \"b\"", TEXTS("b"), TEXTS("a")}, /* as in libllama */
        {"root ::= \"x\"{0,65536}", TEXTS("", "xxxx"), TEXTS("y")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (const char *const *t = cases[i].good; *t; t++)
            if (!matches(cases[i].grammar, *t))
                fail_msg("%s does not match '%s'", cases[i].grammar, *t);
        for (const char *const *t = cases[i].bad; *t; t++)
            if (matches(cases[i].grammar, *t)) fail_msg("%s matches '%s'", cases[i].grammar, *t);
    }
}

static void messages(void **state) {
    char *deep = repeat_text("root ::= ", "(", 201, ""),
         *large = repeat_text("# ", "x", 131072, "");
    const struct {
        const char *grammar;
        lk_status status;
        const char *words;
    } cases[] = {
        {"", LK_E_FORMAT, "no rule named root"},
        {"other ::= \"a\"", LK_E_FORMAT, "no rule named root"},
        {"root", LK_E_FORMAT,
         "line 1, column 5: expected '::=' after the name of a rule, found the end"},
        {"root ::= \"a\" )", LK_E_FORMAT,
         "line 1, column 14: expected a symbol, a repetition, '|' or the end of the rule, found "
         "')'"},
        {"root ::= (\"a\"\n\n", LK_E_FORMAT,
         "line 3, column 1: expected a symbol, a repetition, '|' or ')', found the end"},
        {"root ::= a\n\nb ::= missing a\na ::= \"\xc3\xa9\" other", LK_E_FORMAT,
         "line 3, column 7: there is no rule named 'missing'"},
        {"root ::= \"\xc3\xa9\" {", LK_E_FORMAT,
         "line 1, column 15: expected a number, found the end"},
        {"root ::= \"abc", LK_E_FORMAT, "column 10: this literal has no closing quotation mark"},
        {"root ::= [abc", LK_E_FORMAT, "column 10: this class has no closing bracket"},
        {"root ::= [a-", LK_E_FORMAT, "column 10: this class has no closing bracket"},
        {"root ::= []", LK_E_FORMAT, "this class is empty"},
        {"root ::= [z-a]", LK_E_FORMAT, "column 11: this range ends before it begins"},
        {"root ::= \"\\q\"", LK_E_FORMAT, "found 'q'"},
        {"root ::= \"\\", LK_E_FORMAT, "in an escape, found the end"},
        {"root ::= \"\\u12g4\"", LK_E_FORMAT, "expected a hexadecimal digit, found 'g'"},
        {"root ::= \"\\U00110000\"", LK_E_FORMAT, "not a Unicode code point"},
        {"root ::= \"\\uD800\"", LK_E_FORMAT, "a surrogate is not a character"},
        {"root ::= \"\xff\"", LK_E_FORMAT, "column 11: the text is not UTF-8"},
        {"root ::= *", LK_E_FORMAT, "expected something to repeat, found '*'"},
        {"root ::= \"a\"{3,2}", LK_E_FORMAT, "maximum of this repetition is below its minimum"},
        {"root ::= \"a\"{65537}", LK_E_FORMAT, "at most 65536 repetitions"},
        {"root ::= \"a\"{1;2}", LK_E_FORMAT, "expected ',' or '}' of a repetition, found ';'"},
        {"root ::= <[5]>", LK_E_UNSUPPORTED, "references to tokens"},
        {"root ::= !<think>", LK_E_UNSUPPORTED, "references to tokens"},
        {"root ::= root \"a\"", LK_E_FORMAT, "matches no finite text"},
        {"\x01", LK_E_FORMAT, "expected the name of a rule, found byte 0x01"},
        {deep, LK_E_FORMAT, "deeper than 200"},
        {large, LK_E_FORMAT, "at most 131072"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lk_grammar *g = NULL;
        lk_err err = {0};
        lk_status status = lk_grammar_new(&g, cases[i].grammar, &err);
        assert_null(g);
        if (status != cases[i].status || !strstr(err.msg, cases[i].words))
            fail_msg("%.60s: %s \"%s\", expected \"%s\"", cases[i].grammar, lk_status_name(status),
                     err.msg, cases[i].words);
    }
    free(deep);
    free(large);
}

/* A text that is not allowed, or too ambiguous, does not move the state. */
static void rejected_text_does_not_move(void **state) {
    struct lk_grammar_state *s = start_text("root ::= \"abc\"");
    bool allowed = true;
    assert_true(accept(s, "a", 1));
    assert_false(accept(s, "bd", 2));
    assert_int_equal(lk_grammar_allows(s, "bc", 2, &allowed, NULL), LK_OK);
    assert_true(allowed);
    assert_false(lk_grammar_is_complete(s));
    assert_true(accept(s, "bc", 2));
    assert_true(lk_grammar_is_complete(s));
    assert_false(accept(s, "d", 1));
    assert_true(lk_grammar_is_complete(s));
    lk_grammar_reset(s);
    assert_true(accept(s, "abc", 3));
    lk_grammar_state_free(s);
}

/* ---- agreement with libllama ---- */

/* The text of a byte in byte-level BPE vocabularies. */
static int put_byte(char *out, int byte) {
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    int code = byte, n = 0;
    for (int b = 0; !printable && b < byte; b++)
        n += !((b >= 33 && b <= 126) || (b >= 161 && b != 173));
    if (!printable) code = 256 + n;
    if (code < 128) return sprintf(out, "%c", code);
    return sprintf(out, "%c%c", 0xc0 | code >> 6, 0x80 | (code & 63));
}

enum { N_LONG = 300, N_TOK = 256 + N_LONG + 2 };

/* Tokens: all bytes, random strings of pieces, a control token and the end. */
static void set_tokens(struct gguf_context *g, void *user) {
    static const char *const piece[] = {"a",    "b",        "c",    "[",        "]",
                                        ",",    "\"",       " ",    "1",        "\xc3",
                                        "\xa9", "\xe6\x97", "\xa5", "\xf0\x9f", "\x98\x80"};
    static char store[N_TOK][64];
    static const char *text[N_TOK];
    static int32_t type[N_TOK];
    uint64_t rng = 5;
    for (int i = 0; i < N_TOK; i++) {
        bool is_new = false;
        while (!is_new) { /* no two tokens may have the same text */
            char *at = store[i];
            if (i < 256) at += put_byte(at, i);
            for (int k = 0; i >= 256 && k <= 1 + i % 4; k++) {
                const char *p = piece[lk_splitmix64_next(&rng) % (sizeof piece / sizeof piece[0])];
                for (; *p; p++) at += put_byte(at, (unsigned char)*p);
            }
            is_new = true;
            for (int k = 0; k < i; k++) is_new = is_new && strcmp(store[k], store[i]) != 0;
        }
        if (i >= N_TOK - 2) sprintf(store[i], i == N_TOK - 1 ? "<|end|>" : "aaaaaaaaaa");
        text[i] = store[i];
        type[i] = i >= N_TOK - 2 ? 3 : 1; /* control, normal */
    }
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", text, N_TOK);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, N_TOK);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", N_TOK - 1);
}

static struct lk_vocab *vocab;

static int load_vocab(void **state) {
    char path[256];
    const char *dir = getenv("TMPDIR");
    lk_redirect_logs();
    snprintf(path, sizeof path, "%s/lowkey-grammar-%d.gguf", dir ? dir : "/tmp", (int)getpid());
    if (!tiny_gguf_write_edited(path, tiny_preset("qwen2-bpe"), set_tokens, NULL)) return 1;
    lk_status status = lk_vocab_open(&vocab, path, NULL);
    unlink(path);
    return status != LK_OK;
}

static int free_vocab(void **state) {
    lk_vocab_free(vocab);
    return 0;
}

/* A random item of a grammar whose rules r0 to r<n_rule - 1> all match some finite text. */
static char *random_item(char *at, uint64_t *rng, int n_rule, int depth) {
    static const char *const plain[] = {"\"a\"",
                                        "\"b\"",
                                        "\"ab\"",
                                        "\"\\u00e9\"",
                                        "\"\xe6\x97\xa5\"",
                                        "[abc]",
                                        "[^a\xc3\xa9]",
                                        "[a-c1\xc3\xa0-\xc3\xaf]",
                                        ".",
                                        "\"\\\"\"",
                                        "\"[\"",
                                        "\"]\"",
                                        "[\xe6\x97\xa5-\xf0\x9f\x98\x80]"};
    static const char *const times[] = {"",  "",    "",      "",      "?",   "*",
                                        "+", "{2}", "{1,2}", "{0,3}", "{2,}"};
    uint64_t pick = lk_splitmix64_next(rng) % 10;
    if (pick < 5 || (pick >= 8 && depth == 0)) {
        at += sprintf(at, "%s", plain[lk_splitmix64_next(rng) % (sizeof plain / sizeof plain[0])]);
    } else if (pick < 8) {
        at += sprintf(at, "r%d", (int)(lk_splitmix64_next(rng) % (uint64_t)n_rule));
    } else {
        at += sprintf(at, "(");
        for (int i = 0; i < 2; i++) {
            at = random_item(at, rng, n_rule, depth - 1);
            at += sprintf(at, i ? ")" : lk_splitmix64_next(rng) % 2 ? " | " : " ");
        }
    }
    return at +
           sprintf(at, "%s ", times[lk_splitmix64_next(rng) % (sizeof times / sizeof times[0])]);
}

static void random_grammar(char *at, uint64_t *rng) {
    int n_rule = 2 + (int)(lk_splitmix64_next(rng) % 3);
    at += sprintf(at, "root ::= r0 r1\n");
    for (int r = 0; r < n_rule; r++) {
        at += sprintf(at, "r%d ::= \"%c\" ", r, "abc"[r % 3]);
        for (int i = 0, n = (int)(lk_splitmix64_next(rng) % 4); i < n; i++) {
            if (i == 0 || lk_splitmix64_next(rng) % 2) at += sprintf(at, "| ");
            at = random_item(at, rng, n_rule, 2);
        }
        at += sprintf(at, "\n");
    }
}

/* Is this the beginning of a valid text, and is it `whole`? */
static bool is_utf8_prefix(const char *text, size_t n, bool *whole) {
    size_t valid = lk_utf8_valid_prefix(text, n);
    *whole = valid == n;
    return *whole || lk_utf8_decode(text + valid, n - valid, NULL) == -1;
}

/* Compare what both allow after the same text, and choose a token that both allow. libllama rejects
 * some beginnings of code points that a negated class allows, and it accepts invalid UTF-8. */
static int32_t compare_masks(struct llama_sampler *theirs, struct lk_grammar_state *ours,
                             const struct lk_token_bytes *t, const char *text, size_t n,
                             uint64_t *rng, const char *grammar) {
    static llama_token_data data[N_TOK];
    uint64_t mask[(N_TOK + 63) / 64];
    int32_t both[N_TOK], n_both = 0;
    for (int i = 0; i < N_TOK; i++) data[i] = (llama_token_data){i, 1, 0};
    llama_token_data_array list = {data, N_TOK, -1, false};
    llama_sampler_apply(theirs, &list);
    lk_err err = {0};
    if (lk_grammar_mask(ours, t, mask, &err)) fail_msg("%s", err.msg);
    for (int i = 0; i < N_TOK - 2; i++) {
        char joined[600];
        uint32_t entry = t->entry[i], len = t->start[entry + 1] - t->start[entry];
        bool whole, they = data[i].logit == 1, we = mask[i / 64] >> (i % 64) & 1, one;
        memcpy(joined, text, n);
        memcpy(joined + n, t->bytes + t->start[entry], len);
        if (lk_grammar_allows(ours, t->bytes + t->start[entry], len, &one, &err))
            fail_msg("%s", err.msg);
        if (one != we) fail_msg("the mask differs from one token\n%s", grammar);
        if (!is_utf8_prefix(joined, n + len, &whole)) {
            assert_false(we);
            continue;
        }
        if (we != they && (whole || they))
            fail_msg("%s\nafter '%.*s', '%.*s' is %d, libllama %d", grammar, (int)n, text, (int)len,
                     t->bytes + t->start[entry], we, they);
        if (we && they) both[n_both++] = i;
    }
    if (lk_utf8_valid_prefix(text, n) == n) /* libllama lets texts end within a code point */
        assert_int_equal(lk_grammar_is_complete(ours), data[N_TOK - 1].logit == 1);
    return n_both ? both[lk_splitmix64_next(rng) % (uint64_t)n_both] : -1;
}

/* An ambiguous grammar multiplies libllama's stacks until memory is exhausted, and most seeds meet
 * one. From this seed on, no step takes it more than 6 ms. */
static void agrees_with_libllama(void **state) {
    enum { N_GRAMMAR = 300, MAX_LEN = 12, FIRST_SEED = 26000 };
    const struct lk_token_bytes *t = NULL;
    assert_int_equal(lk_vocab_token_bytes(vocab, &t, NULL), LK_OK);
    assert_int_equal(t->n, N_TOK - 2);
    int n_compared = 0;
    for (int i = 0; i < N_GRAMMAR; i++) {
        char grammar[4096], text[512];
        uint64_t rng = (uint64_t)(FIRST_SEED + i);
        random_grammar(grammar, &rng);
        struct lk_grammar *g = parse(grammar);
        /* NULL: left recursion */
        struct llama_sampler *theirs =
            llama_sampler_init_grammar(lk_vocab_llama(vocab), grammar, "root");
        for (int walk = 0; theirs && walk < 3; walk++) {
            struct lk_grammar_state *ours = start(g);
            size_t n = 0;
            while (n < MAX_LEN) {
                int32_t tok = compare_masks(theirs, ours, t, text, n, &rng, grammar);
                n_compared++;
                if (tok < 0) break;
                uint32_t at = t->start[t->entry[tok]], end = t->start[t->entry[tok] + 1];
                llama_sampler_accept(theirs, tok);
                assert_true(accept(ours, t->bytes + at, end - at));
                memcpy(text + n, t->bytes + at, end - at);
                n += end - at;
            }
            lk_grammar_state_free(ours);
            llama_sampler_reset(theirs);
        }
        if (theirs) llama_sampler_free(theirs);
        lk_grammar_free(g);
    }
    assert_true(n_compared > 1500);
}

/* ---- bounds ---- */

/* Twelve kinds of arrays that begin alike: every '[' multiplies libllama's stacks by twelve. */
static void ambiguous_recursion_is_linear(void **state) {
    char *rules = repeat_text("ws ::= [ \\n]{0,16}\nA ::= b0", " | b%d", 12, "\n"),
         *text = repeat_text(rules, "b%d ::= \"[\" ws (A (ws \",\" ws A)*)? ws \"]\"\n", 12,
                             "root ::= A\n"),
         *open = repeat_text("", "[", 2000, ""), *closed = repeat_text(open, "]", 2000, "");
    struct lk_grammar_state *s = start_text(text);
    assert_true(accept(s, closed, strlen(closed)));
    assert_true(lk_grammar_is_complete(s));
    assert_true(lk_grammar_state_steps(s) < 4000 * 500);
    assert_true(lk_grammar_state_bytes(s) < 8 << 20);
    lk_grammar_state_free(s);
    free(rules), free(text), free(open), free(closed);
}

static void size_is_in_proportion_to_the_text(void **state) {
    char *schema = repeat_text("{\"type\": \"object\", \"properties\": {\"p\": {}",
                               ", \"p%d\": {\"type\": \"array\", \"maxItems\": 1000}", 300, "}}"),
         *text = NULL;
    lk_err err = {0};
    if (lk_schema_to_grammar(schema, strlen(schema), &text, &err)) fail_msg("%s", err.msg);
    double before = lk_thread_cpu_seconds();
    struct lk_grammar *g = parse(text);
    double seconds = lk_thread_cpu_seconds() - before;
    assert_true(seconds < 0.1); /* 2 ms without sanitizers */
    assert_true(lk_grammar_bytes(g) < 2 << 20);
    struct lk_grammar_state *s = start(g);
    assert_true(lk_grammar_state_bytes(s) < 64 << 10);
    char *full = repeat_text("{\"p\":1", ",\"p%d\": [1, 2]", 300, "}");
    assert_true(accept(s, full, strlen(full)));
    assert_true(lk_grammar_is_complete(s));
    lk_grammar_state_free(s);
    lk_grammar_free(g);
    lk_text_free(text);
    free(schema), free(full);
}

/* Memory is bounded by nesting, not by length; also if every byte makes a new set. */
static void memory_does_not_grow_with_the_text(void **state) {
    static const char *const grammars[] = {
        "root ::= \"[\" v (\",\" v)* \"]\"\nv ::= s | o | [0-9]+\ns ::= \"\\\"\" [^\"]* \"\\\"\"\n"
        "o ::= \"{\" s \":\" v (\",\" s \":\" v)* \"}\"",
        "root ::= e\ne ::= t | e \",\" t | \"[\" e\nt ::= [^,]+", /* left recursion */
        "root ::= ([^\"]{0,60000} | \"\\\"\")*",                  /* counts */
    };
    const char *const piece = "[{\"name\":\"caf\xc3\xa9 \",\"list\":12345},\"abc\",7,7],";
    for (size_t i = 0; i < sizeof grammars / sizeof grammars[0]; i++) {
        struct lk_grammar_state *s = start_text(grammars[i]);
        size_t n = 0, most = 0, first = i == 0;
        if (first) assert_true(accept(s, "[", 1));
        while (n < 1 << 20) {
            size_t len = strlen(piece) - 3 * first;
            assert_true(accept(s, first ? piece + 1 : piece, first ? len - 0 : len));
            if (first) assert_true(accept(s, ",", 1));
            n += len;
            if (lk_grammar_state_bytes(s) > most) most = lk_grammar_state_bytes(s);
        }
        if (most > 2 << 20) fail_msg("grammar %zu: %zu bytes", i, most);
        lk_grammar_state_free(s);
    }
}

/* Grammars that are ambiguous in the square and the cube of the text end with an error. */
static void steps_are_bounded(void **state) {
    struct lk_grammar_state *s = start_text("root ::= e\ne ::= e e | e e e | \"a\" | \"b\" e");
    bool accepted = false;
    lk_err err = {0};
    lk_status status = LK_OK;
    int n = 0;
    for (uint64_t before = 0; !status && n < 100000; n++) {
        status = lk_grammar_accept(s, "a", 1, &accepted, &err);
        uint64_t steps = lk_grammar_state_steps(s);
        assert_true(steps - before <= LK_GRAMMAR_MAX_STEPS + LK_GRAMMAR_MAX_STEPS / 4);
        before = steps;
    }
    assert_int_equal(status, LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "too ambiguous"));
    assert_true(n > 20);
    assert_true(lk_grammar_is_complete(s)); /* still at the text before */
    lk_grammar_reset(s);
    assert_true(accept(s, "aaa", 3));
    lk_grammar_state_free(s);
}

/* Nesting without end needs memory without end, and is ended. */
static void memory_is_bounded(void **state) {
    struct lk_grammar_state *s = start_text("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"");
    bool accepted = true;
    lk_err err = {0};
    lk_status status = LK_OK;
    for (int n = 0; !status && n < 10000000; n++) {
        status = lk_grammar_accept(s, "a", 1, &accepted, &err);
        assert_true(lk_grammar_state_bytes(s) < 64 << 20);
    }
    assert_int_equal(status, LK_E_UNSUPPORTED);
    lk_grammar_state_free(s);
}

/* ---- samplers ---- */

static void copies_share_the_grammar(void **state) {
    enum { N = 20 };
    static float logits[N_TOK];
    lk_logit_bias bias = {'b', 3};
    lk_sampler_opts o = {.temperature = 1,
                         .top_p = 1,
                         .repeat_penalty = 1,
                         .seed = 1,
                         .bias = &bias,
                         .n_bias = 1,
                         .grammar = "root ::= [ab]{0,30} \"c\""};
    struct lk_sampling *first = NULL, *copy = NULL, *fresh = NULL;
    assert_int_equal(lk_sampling_new(&first, vocab, &o, NULL), LK_OK);
    int32_t tok, same;
    for (int i = 0; i < 3; i++) lk_sampling_next(first, logits, N_TOK, &tok, NULL);
    assert_int_equal(lk_sampling_copy(&copy, first, 7, NULL), LK_OK); /* in its initial state */
    assert_true(lk_sampling_grammar_bytes(first) > 0);
    assert_int_equal(lk_sampling_grammar_bytes(copy), lk_sampling_grammar_bytes(first));
    assert_true(lk_sampling_bytes(copy, N_TOK) > N_TOK * sizeof(llama_token_data));
    lk_sampling_free(first);
    o.seed = 7;
    assert_int_equal(lk_sampling_new(&fresh, vocab, &o, NULL), LK_OK);
    for (int i = 0; i < N; i++) {
        lk_status status = lk_sampling_next(copy, logits, N_TOK, &tok, NULL);
        assert_int_equal(lk_sampling_next(fresh, logits, N_TOK, &same, NULL), status);
        if (status) break;
        assert_int_equal(tok, same);
    }
    lk_sampling_free(copy);
    lk_sampling_free(fresh);
}

/* Control tokens are not text, even if a grammar matches their names. */
static void control_tokens_are_not_allowed(void **state) {
    static float logits[N_TOK];
    lk_sampler_opts o = {.top_p = 1, .repeat_penalty = 1, .grammar = "root ::= \"a\"+"};
    struct lk_sampling *s = NULL;
    int32_t tok;
    for (int i = 0; i < N_TOK; i++) logits[i] = i == N_TOK - 2 ? 9 : i == N_TOK - 1 ? 5 : 0;
    assert_int_equal(lk_sampling_new(&s, vocab, &o, NULL), LK_OK);
    assert_int_equal(lk_sampling_next(s, logits, N_TOK, &tok, NULL), LK_OK);
    assert_true(tok < N_TOK - 2); /* neither the control token nor the end */
    assert_int_equal(lk_sampling_next(s, logits, N_TOK, &tok, NULL), LK_OK);
    assert_int_equal(tok, N_TOK - 1); /* now the text is complete */
    lk_sampling_free(s);
}

/* An ambiguous grammar ends an answer with an error. */
static void sampling_reports_ambiguity(void **state) {
    static float logits[N_TOK];
    lk_sampler_opts o = {
        .top_p = 1, .repeat_penalty = 1, .grammar = "root ::= e\ne ::= e e | e e e | \"a\""};
    struct lk_sampling *s = NULL;
    int32_t tok;
    lk_err err = {0};
    lk_status status = LK_OK;
    logits['a'] = 1;
    assert_int_equal(lk_sampling_new(&s, vocab, &o, NULL), LK_OK);
    for (int i = 0; !status && i < 10000; i++)
        status = lk_sampling_next(s, logits, N_TOK, &tok, &err);
    assert_int_equal(status, LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "too ambiguous"));
    lk_sampling_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_language),
        cmocka_unit_test(messages),
        cmocka_unit_test(rejected_text_does_not_move),
        cmocka_unit_test(agrees_with_libllama),
        cmocka_unit_test(ambiguous_recursion_is_linear),
        cmocka_unit_test(size_is_in_proportion_to_the_text),
        cmocka_unit_test(memory_does_not_grow_with_the_text),
        cmocka_unit_test(steps_are_bounded),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(copies_share_the_grammar),
        cmocka_unit_test(control_tokens_are_not_allowed),
        cmocka_unit_test(sampling_reports_ambiguity),
    };
    return cmocka_run_group_tests(tests, load_vocab, free_vocab);
}
