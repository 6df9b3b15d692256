/* JSON schemas as grammars: which texts a grammar accepts, and which schemas are rejected. */
#include "base/clock.h"
#include "grammar/grammar_state.h"
#include "lowkey_serve.h"
#include "support_text.h"
#include "test.h"

/* True if the compiled grammar accepts exactly this text. */
static bool grammar_accepts(struct lk_grammar *g, const char *text) {
    struct lk_grammar_state *s = NULL;
    bool accepted = false;
    lk_err err = {0};
    if (lk_grammar_state_new(&s, g, &err) ||
        lk_grammar_accept(s, text, strlen(text), &accepted, &err))
        fail_msg("%s", err.msg);
    accepted = accepted && lk_grammar_is_complete(s);
    lk_grammar_state_free(s);
    return accepted;
}

static struct lk_grammar *compile(const char *grammar) {
    struct lk_grammar *g = NULL;
    lk_err err = {0};
    if (lk_grammar_new(&g, grammar, &err)) fail_msg("%s\n%s", err.msg, grammar);
    return g;
}

static bool accepts(const char *grammar, const char *text) {
    struct lk_grammar *g = compile(grammar);
    bool accepted = grammar_accepts(g, text);
    lk_grammar_free(g);
    return accepted;
}

static void check_texts(const char *schema, const char *const *good, const char *const *bad) {
    char *grammar = NULL;
    lk_err err = {0};
    if (lk_schema_to_grammar(schema, strlen(schema), &grammar, &err)) fail_msg("%s", err.msg);
    for (; *good; good++)
        if (!accepts(grammar, *good)) fail_msg("%s does not accept %s", schema, *good);
    for (; *bad; bad++)
        if (accepts(grammar, *bad)) fail_msg("%s accepts %s", schema, *bad);
    lk_text_free(grammar);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void scalars(void **state) {
    check_texts("{}", TEXTS("1", "null", "\"a\"", "[1, {\"b\": true}]"), TEXTS("", "x", "[1"));
    check_texts("true", TEXTS("1", "{}"), TEXTS("tru"));
    check_texts("{\"type\": \"integer\"}", TEXTS("0", "-12"), TEXTS("01", "1.5", "\"1\""));
    check_texts("{\"type\": \"number\"}", TEXTS("0", "-1.5e10"), TEXTS("1.", ".5", "true"));
    check_texts("{\"type\": \"boolean\"}", TEXTS("true", "false"), TEXTS("null"));
    check_texts("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
                TEXTS("\"ab\"", "\"a\\n\\u00e9\""), TEXTS("\"a\"", "\"abcd\"", "ab"));
    check_texts("{\"type\": [\"string\", \"null\"], \"maxLength\": 1}", TEXTS("\"a\"", "null"),
                TEXTS("\"ab\"", "1"));
}

static void values(void **state) {
    check_texts("{\"enum\": [\"a\\\"b\\\\\", 5, null, [1]]}",
                TEXTS("\"a\\\"b\\\\\"", "5", "null", "[1]"), TEXTS("\"a\"", "6"));
    check_texts("{\"enum\": [0.1, 1e300]}", TEXTS("0.1"), TEXTS("0.10000000000000001"));
    check_texts("{\"type\": \"integer\", \"enum\": [\"a\", 1]}", TEXTS("1"), TEXTS("\"a\""));
    check_texts("{\"type\": [\"integer\", \"null\"], \"enum\": [\"a\", 1, null]}",
                TEXTS("1", "null"), TEXTS("\"a\""));
    check_texts("{\"type\": \"string\", \"pattern\": \"^.$\"}", TEXTS("\"a\"", "\"\xc3\xa9\""),
                TEXTS("\"\"", "\"\\n\"", "\"\\r\"", "\"\xe2\x80\xa8\""));
    check_texts("{\"const\": {\"a\": 1}}", TEXTS("{\"a\":1}"), TEXTS("{}"));
}

/* Keywords next to a choice hold for each of its schemas. */
static void merged_schemas(void **state) {
    check_texts("{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"string\", \"minLength\": 2}}}, "
                "{\"properties\": {\"a\": {\"maxLength\": 3, \"type\": \"string\"}}}]}",
                TEXTS("{\"a\": \"xy\"}", "{}"), TEXTS("{\"a\": \"x\"}", "{\"a\": \"wxyz\"}"));
    check_texts("{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}, \"b\": "
                "{\"const\": 2}}, \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}",
                TEXTS("{\"a\": 1}", "{\"b\": 2}", "{\"a\": 1, \"b\": 2}"), TEXTS("{}"));
    check_texts("{\"allOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}}, "
                "\"required\": [\"a\"]}, {\"properties\": {\"b\": {\"const\": 2}}, \"required\": "
                "[\"b\", \"a\"]}]}",
                TEXTS("{\"a\": 1, \"b\": 2}"), TEXTS("{\"a\": 1}", "{\"b\": 2}"));
    check_texts("{\"type\": \"string\", \"oneOf\": [{\"const\": \"x\"}, {\"enum\": [\"y\"]}], "
                "\"title\": \"t\"}",
                TEXTS("\"x\"", "\"y\""), TEXTS("\"z\""));
    check_texts("{\"allOf\": [{}, {\"type\": \"null\"}]}", TEXTS("null"), TEXTS("1"));
}

/* What libraries write next to each other: a format with its pattern, and names of any form. */
static void redundant_keywords(void **state) {
    check_texts("{\"type\": \"string\", \"format\": \"email\", \"pattern\": "
                "\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)@x$\"}",
                TEXTS("\"a@b.org\""), TEXTS("\"a\""));
    check_texts("{\"type\": \"object\", \"propertyNames\": {\"type\": \"string\"}, "
                "\"additionalProperties\": {\"type\": \"null\"}}",
                TEXTS("{}", "{\"k\": null}"), TEXTS("{\"k\": 1}"));
}

static void arrays(void **state) {
    check_texts("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}",
                TEXTS("[]", "[1]", "[1,2, 3]"), TEXTS("[\"a\"]", "[1,]"));
    check_texts("{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 3}",
                TEXTS("[1,2]", "[1,2,3]"), TEXTS("[]", "[1]", "[1,2,3,4]"));
    check_texts("{\"type\": \"array\", \"maxItems\": 0}", TEXTS("[]"), TEXTS("[1]"));
}

static void objects(void **state) {
    check_texts("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
                "{\"type\": \"null\"}, \"c\": {}}, \"required\": [\"b\"]}",
                TEXTS("{\"b\":null}", "{\"a\": 1, \"b\": null}", "{\"b\":null,\"c\":[]}"),
                TEXTS("{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,}", "{\"b\":1}"));
    check_texts("{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
                TEXTS("{}", "{\"x\":1,\"y\":2}"), TEXTS("{\"x\":\"a\"}"));
    check_texts("{\"type\": \"object\", \"additionalProperties\": false}", TEXTS("{}", "{ }"),
                TEXTS("{\"x\":1}"));
    check_texts("{\"properties\": {\"root ::= \": {\"const\": \"\\n\"}}}",
                TEXTS("{\"root ::= \":\"\\n\"}"), TEXTS("{\"root\":1}"));
}

static void choices_and_references(void **state) {
    check_texts("{\"anyOf\": [{\"type\": \"null\"}, {\"const\": 1}]}", TEXTS("null", "1"),
                TEXTS("2"));
    check_texts("{\"allOf\": [{\"type\": \"null\"}]}", TEXTS("null"), TEXTS("1"));
    check_texts("{\"$ref\": \"#/$defs/n\", \"$defs\": {\"n\": {\"type\": \"object\", "
                "\"properties\": {\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"type\": "
                "\"null\"}]}}, \"required\": [\"next\"]}}}",
                TEXTS("{\"next\":null}", "{\"next\":{\"next\":null}}"), TEXTS("{\"next\":1}"));
    check_texts("{\"type\": [\"array\", \"null\"], \"items\": {\"$ref\": \"#\"}}",
                TEXTS("null", "[null,[]]"), TEXTS("[1]"));
}

/* "#" in a $ref is the innermost schema with an "$id". */
static void references_within_an_id(void **state) {
    check_texts("{\"anyOf\": [{\"$id\": \"a\", \"$ref\": \"#/$defs/x\", \"$defs\": {\"x\": "
                "{\"const\": \"A\"}}}, {\"$ref\": \"#/$defs/x\"}], \"$defs\": {\"x\": {\"const\": "
                "\"B\"}}}",
                TEXTS("\"A\"", "\"B\""), TEXTS("\"C\""));
    check_texts("{\"$id\": \"a\", \"type\": [\"array\", \"null\"], \"items\": {\"$ref\": \"#\"}}",
                TEXTS("null", "[null,[]]"), TEXTS("[1]"));
    /* Here "$id" is the name of a property. */
    check_texts("{\"properties\": {\"$id\": {\"const\": 1}, \"b\": {\"$ref\": "
                "\"#/properties/$id\"}}, \"required\": [\"$id\", \"b\"]}",
                TEXTS("{\"$id\":1,\"b\":1}"), TEXTS("{\"$id\":1,\"b\":2}"));
}

static void check_rejected(const char *schema, size_t len, lk_status expected, const char *words) {
    char *grammar = NULL;
    lk_err err = {0};
    lk_status status = lk_schema_to_grammar(schema, len, &grammar, &err);
    if (status != expected || !strstr(err.msg, words))
        fail_msg("%.80s: %s \"%s\", expected %s with \"%s\"", schema, lk_status_name(status),
                 err.msg, lk_status_name(expected), words);
    assert_null(grammar);
}

static void rejected_schemas(void **state) {
    static const struct {
        const char *schema;
        lk_status status;
        const char *words; /* expected in the message */
    } bad[] = {
        {"", LK_E_FORMAT, "not valid JSON"},
        {"{\"type\": ", LK_E_FORMAT, "line 1"},
        {"1", LK_E_FORMAT, "not an object"},
        {"[]", LK_E_FORMAT, "not an object"},
        {"false", LK_E_UNSUPPORTED, "false"},
        {"{\"type\": 7}", LK_E_FORMAT, "type"},
        {"{\"type\": \"string\", \"const\": 7}", LK_E_FORMAT, "none of its type"},
        {"{\"type\": [7]}", LK_E_FORMAT, "type"},
        {"{\"type\": []}", LK_E_FORMAT, "no types"},
        {"{\"type\": [\"null\", \"null\"]}", LK_E_FORMAT, "more than once"},
        {"{\"type\": \"color\"}", LK_E_FORMAT, "'color' is not a type"},
        {"{\"type\": \"string\", \"pattern\": 1}", LK_E_FORMAT, "'pattern'"},
        {"{\"type\": \"string\", \"pattern\": \"(a\"}", LK_E_FORMAT, "group without its )"},
        {"{\"type\": \"string\", \"pattern\": \"a)\"}", LK_E_FORMAT, ") without its ("},
        {"{\"type\": \"string\", \"pattern\": \"[a\"}", LK_E_FORMAT, "class without its ]"},
        {"{\"type\": \"string\", \"pattern\": \"*\"}", LK_E_FORMAT, "repetition of nothing"},
        {"{\"type\": \"string\", \"pattern\": \"a**\"}", LK_E_FORMAT, "of a repetition"},
        {"{\"type\": \"string\", \"pattern\": \"a{3,2}\"}", LK_E_FORMAT, "maximum"},
        {"{\"type\": \"string\", \"pattern\": \"[b-a]\"}", LK_E_FORMAT, "range whose end"},
        {"{\"type\": \"string\", \"pattern\": \"a\\\\\"}", LK_E_FORMAT, "backslash without"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\xzz\"}", LK_E_FORMAT, "hexadecimal"},
        {"{\"type\": \"string\", \"pattern\": \"(?=a)\"}", LK_E_UNSUPPORTED, "look-around"},
        {"{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", LK_E_UNSUPPORTED, "back reference"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\ba\"}", LK_E_UNSUPPORTED, "word boundary"},
        {"{\"type\": \"string\", \"pattern\": \"a^b\"}", LK_E_UNSUPPORTED, "anchor"},
        {"{\"type\": \"string\", \"pattern\": \"^abc$\", \"maxLength\": 2}", LK_E_UNSUPPORTED,
         "length"},
        {"{\"type\": \"string\", \"pattern\": \"^abc$\", \"minLength\": 4}", LK_E_UNSUPPORTED,
         "length"},
        {"{\"type\": \"integer\", \"minimum\": \"3\"}", LK_E_FORMAT, "'minimum'"},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", LK_E_UNSUPPORTED, "bounds"},
        {"{\"type\": \"integer\", \"minimum\": 1e18}", LK_E_UNSUPPORTED, "bounds"},
        {"{\"type\": \"integer\", \"multipleOf\": 5}", LK_E_UNSUPPORTED, "'multipleOf'"},
        {"{\"type\": \"array\", \"uniqueItems\": true}", LK_E_UNSUPPORTED, "'uniqueItems'"},
        {"{\"type\": \"array\", \"items\": false, \"minItems\": 1}", LK_E_FORMAT, "minItems"},
        {"{\"type\": \"array\", \"minItems\": 1000000000}", LK_E_UNSUPPORTED, "'minItems'"},
        {"{\"type\": \"array\", \"minItems\": -1}", LK_E_FORMAT, "'minItems'"},
        {"{\"type\": \"array\", \"minItems\": 1.5}", LK_E_FORMAT, "'minItems'"},
        {"{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", LK_E_FORMAT, "maxItems"},
        {"{\"type\": \"object\", \"patternProperties\": {}}", LK_E_UNSUPPORTED,
         "'patternProperties'"},
        {"{\"type\": \"object\", \"properties\": 1}", LK_E_FORMAT, "'properties'"},
        {"{\"type\": \"object\", \"required\": \"a\"}", LK_E_FORMAT, "'required'"},
        {"{\"type\": \"object\", \"additionalProperties\": 1}", LK_E_FORMAT,
         "'additionalProperties'"},
        {"{\"properties\": {\"a\": {}}, \"required\": [\"b\"], \"additionalProperties\": false}",
         LK_E_UNSUPPORTED, "required"},
        {"{\"properties\": {\"a\": {}}, \"additionalProperties\": {}}", LK_E_UNSUPPORTED,
         "additionalProperties"},
        {"{\"not\": {}}", LK_E_UNSUPPORTED, "'not'"},
        {"{\"anyOf\": []}", LK_E_FORMAT, "alternatives"},
        {"{\"enum\": []}", LK_E_FORMAT, "enum"},
        {"{\"type\": \"integer\", \"enum\": [\"a\"]}", LK_E_FORMAT, "enum"},
        {"{\"allOf\": [{\"type\": \"null\"}, {\"type\": \"string\"}]}", LK_E_UNSUPPORTED,
         "allOf together with type"},
        {"{\"type\": \"string\", \"anyOf\": [{\"type\": \"null\"}]}", LK_E_UNSUPPORTED,
         "anyOf together with type"},
        {"{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^a\"}}", LK_E_UNSUPPORTED,
         "propertyNames"},
        {"{\"$ref\": \"#/nowhere\"}", LK_E_UNSUPPORTED, "#/nowhere"},
        {"{\"$ref\": \"http://x.example/s\"}", LK_E_UNSUPPORTED, "http://x.example/s"},
        {"{\"$ref\": 1}", LK_E_UNSUPPORTED, "$ref"},
        {"{\"$ref\": \"#\"}", LK_E_UNSUPPORTED, "nesting"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_rejected(bad[i].schema, strlen(bad[i].schema), bad[i].status, bad[i].words);
}

/* Check a schema of one type with one keyword, given as JSON text. */
static void check_keyword(const char *type, const char *keyword, const char *value,
                          const char *const *good, const char *const *bad) {
    char schema[600];
    snprintf(schema, sizeof schema, "{\"type\": \"%s\", \"%s\": %s}", type, keyword, value);
    check_texts(schema, good, bad);
}

static void patterns(void **state) {
    check_keyword("string", "pattern", "\"^[a-z]+-\\\\d{2,3}$\"", TEXTS("\"ab-12\"", "\"z-123\""),
                  TEXTS("\"ab-1\"", "\"-12\"", "\"A-12\"", "\"ab-1234\"", "\"ab-12 \"", "ab-12"));
    check_keyword("string", "pattern", "\"^(a|bc)*?d$\"", TEXTS("\"d\"", "\"abcad\""),
                  TEXTS("\"bd\"", "\"\""));
    check_keyword("string", "pattern", "\"b+\"", TEXTS("\"b\"", "\"abbc\""),
                  TEXTS("\"\"", "\"ac\""));
    check_keyword("string", "pattern", "\"^a|b$\"", TEXTS("\"ax\"", "\"xb\""),
                  TEXTS("\"xa\"", "\"bx\""));
    check_keyword("string", "pattern", "\"^(?:x|(?<n>y))?$\"", TEXTS("\"\"", "\"x\"", "\"y\""),
                  TEXTS("\"xy\""));
    check_keyword("string", "pattern", "\"^[^\\\\d\\\\s]$\"", TEXTS("\"a\"", "\"\xc3\xa9\""),
                  TEXTS("\"1\"", "\" \"", "\"\\t\""));
    check_keyword("string", "pattern", "\"^\\\\s\\\\W.$\"", TEXTS("\" -x\"", "\"\\t\\\"\\\\\""),
                  TEXTS("\"a-x\"", "\" ax\"", "\" -\\n\""));
    check_keyword("string", "pattern", "\"^[\\\\]\\\\\\\\^-]{3}$\"", TEXTS("\"]\\\\^\"", "\"---\""),
                  TEXTS("\"]\\\\\"", "\"abc\""));
    check_keyword("string", "pattern", "\"^\\\\u00e9\\\\x41\\\\.{2}{x}$\"",
                  TEXTS("\"\xc3\xa9"
                        "A..{x}\""),
                  TEXTS("\"eA..{x}\"", "\"\xc3\xa9"
                                       "Axx{x}\""));
    check_keyword("string", "pattern", "\"^[\\\\u0400-\\\\u04ff\xf0\x9f\x98\x80]+$\"",
                  TEXTS("\"\xd0\xb0\xf0\x9f\x98\x80\""), TEXTS("\"a\""));
    check_keyword("string", "pattern", "\"^[]a|b$\"", TEXTS("\"xb\""), TEXTS("\"a\""));
    check_keyword("string", "pattern", "\"\"", TEXTS("\"\"", "\"x\""), TEXTS("1"));
    check_texts("{\"type\": \"string\", \"pattern\": \"^[a-z]*[0-9]*$\", \"minLength\": 2, "
                "\"maxLength\": 3}",
                TEXTS("\"ab\"", "\"ab1\""), TEXTS("\"a\"", "\"abcd\"", "\"1234\""));
    check_texts("{\"type\": \"string\", \"pattern\": \"^(abc|d)+$\", \"maxLength\": 7}",
                TEXTS("\"abcabc\"", "\"d\""), TEXTS("\"abcabcdd\"", "\"abcabcabc\""));
    check_texts("{\"type\": \"string\", \"pattern\": \"x\", \"maxLength\": 2}",
                TEXTS("\"x\"", "\"ax\""), TEXTS("\"aax\"", "\"a\""));
}

static void formats(void **state) {
    check_keyword("string", "format", "\"date\"", TEXTS("\"2024-02-29\"", "\"1999-12-31\""),
                  TEXTS("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"",
                        "\"24-01-01\""));
    check_keyword("string", "format", "\"date-time\"",
                  TEXTS("\"2024-01-31T23:59:59Z\"", "\"2000-02-29T00:00:00.5+02:00\""),
                  TEXTS("\"2024-01-31\"", "\"2024-01-31T24:00:00Z\"", "\"2024-01-31T23:59:59\""));
    check_keyword("string", "format", "\"time\"", TEXTS("\"09:30:00Z\""), TEXTS("\"9:30\""));
    check_keyword("string", "format", "\"duration\"",
                  TEXTS("\"P3D\"", "\"PT1H30M\"", "\"P1DT12H\""),
                  TEXTS("\"P\"", "\"PT\"", "\"3D\""));
    check_keyword("string", "format", "\"uuid\"", TEXTS("\"01234567-89ab-cdef-0123-456789abcdef\""),
                  TEXTS("\"01234567\"", "\"0123456789abcdef0123456789abcdef\""));
    check_keyword("string", "format", "\"email\"",
                  TEXTS("\"ada.l@example.com\"", "\"a+b@x-y.co.uk\""),
                  TEXTS("\"ada\"", "\"a@b\"", "\"@b.de\"", "\"a@-b.de\""));
    check_keyword("string", "format", "\"ipv4\"", TEXTS("\"10.0.255.1\""),
                  TEXTS("\"10.0.256.1\"", "\"1.2.3\"", "\"01.2.3.4\""));
    check_keyword("string", "format", "\"ipv6\"",
                  TEXTS("\"::1\"", "\"fe80::1\"", "\"1:2:3:4:5:6:7:8\""),
                  TEXTS("\"1:2\"", "\"1::2::3\"", "\"g::1\""));
    check_keyword("string", "format", "\"hostname\"", TEXTS("\"a-b.example\""), TEXTS("\"-a\""));
    check_texts(
        "{\"type\": \"string\", \"format\": \"uri\", \"minLength\": 1, \"maxLength\": 2083}",
        TEXTS("\"https://example.org/a?b=c#d\""), TEXTS("\"example\"", "\"https://a b\""));
    check_keyword("string", "format", "\"password\"", TEXTS("\"any\""), TEXTS("1"));
}

static bool near_bound(int x) {
    int digits = abs(x) % 1000;
    return digits < 12 || digits > 988 || (digits > 95 && digits < 105) || abs(x) < 50;
}

/* Numbers of up to four digits, for bounds of all kinds. */
static void bounded_integers(void **state) {
    static const int bounds[] = {-1000, -999, -101, -100, -10, -7, -1, 0, 1, 9, 10, 42, 100, 999};
    enum { N = sizeof bounds / sizeof bounds[0] };
    for (int i = 0; i < 4 * N * N; i++) {
        int lo = bounds[i % N], hi = bounds[i / N % N], exclusive = i / (N * N);
        int first = lo + (exclusive & 1), last = hi - (exclusive >> 1);
        char schema[200], *grammar = NULL;
        snprintf(schema, sizeof schema, "{\"type\": \"integer\", \"%s\": %d, \"%s\": %d}",
                 exclusive & 1 ? "exclusiveMinimum" : "minimum", lo,
                 exclusive >> 1 ? "exclusiveMaximum" : "maximum", hi);
        lk_status status = lk_schema_to_grammar(schema, strlen(schema), &grammar, NULL);
        assert_int_equal(status, first <= last ? LK_OK : LK_E_UNSUPPORTED);
        struct lk_grammar *g = grammar ? compile(grammar) : NULL;
        for (int x = -1200 + i % 7; g && x <= 1200; x += near_bound(x) ? 1 : 7) {
            char text[16];
            snprintf(text, sizeof text, "%d", x);
            if (grammar_accepts(g, text) != (first <= x && x <= last))
                fail_msg("%s: %s\n%s", schema, text, grammar);
        }
        lk_grammar_free(g);
        lk_text_free(grammar);
    }
    check_keyword("integer", "minimum", "0", TEXTS("0", "123456789012345678"),
                  TEXTS("-1", "01", "1.0", "-0", "1e3"));
    check_keyword("integer", "exclusiveMinimum", "0", TEXTS("1"), TEXTS("0"));
    check_keyword("integer", "maximum", "1e300", TEXTS("7"), TEXTS("1.5"));
    check_keyword("integer", "minimum", "0.5", TEXTS("1"), TEXTS("0"));
}

static void bounded_numbers(void **state) {
    static const char *const bounds[] = {"-12.5", "-1",  "-0.35", "-0.3", "0",   "1e-2",
                                         "0.05",  "0.5", "0.95",  "1",    "1.2", "12.25"};
    enum { N = sizeof bounds / sizeof bounds[0] };
    for (int i = 0; i < 2 * N * N; i++) {
        const char *lo = bounds[i % N], *hi = bounds[i / N % N];
        bool exclusive = i / (N * N);
        char schema[200], *grammar = NULL;
        snprintf(schema, sizeof schema, "{\"type\": \"number\", \"%s\": %s, \"%s\": %s}",
                 exclusive ? "exclusiveMinimum" : "minimum", lo,
                 exclusive ? "exclusiveMaximum" : "maximum", hi);
        lk_status status = lk_schema_to_grammar(schema, strlen(schema), &grammar, NULL);
        assert_true(status == LK_OK || strtod(lo, NULL) >= strtod(hi, NULL));
        struct lk_grammar *g = grammar ? compile(grammar) : NULL;
        for (int x = -1300 + i % 7; g && x <= 1300; x += x > -40 && x < 130 ? 1 : 7) {
            char text[32];
            double value = strtod((snprintf(text, sizeof text, "%.2f", x / 100.0), text), NULL);
            if (x == 0) strcpy(text, "0");
            bool in = exclusive ? value > strtod(lo, NULL) && value < strtod(hi, NULL)
                                : value >= strtod(lo, NULL) && value <= strtod(hi, NULL);
            char *end = text + strlen(text); /* without zeros at the end */
            while (strchr(text, '.') && (end[-1] == '0' || end[-1] == '.')) {
                bool point = *--end == '.';
                *end = 0;
                if (point) break;
            }
            if (grammar_accepts(g, text) != in) fail_msg("%s: %s\n%s", schema, text, grammar);
        }
        lk_grammar_free(g);
        lk_text_free(grammar);
    }
    check_keyword("number", "multipleOf", "0.01", TEXTS("1", "1.5", "-2.25"), TEXTS("1.234"));
    check_keyword("integer", "multipleOf", "1", TEXTS("1", "-7"), TEXTS("1.5"));
}

/* JSON as writers lay it out, on one line or indented, and no other white space. */
static void white_space_is_bounded(void **state) {
    check_texts("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
                "{}}, \"required\": [\"a\", \"b\"]}",
                TEXTS("{\"a\":1,\"b\":[1,{\"c\":2}]}", "{\"a\": 1, \"b\": [1, 2]}",
                      "{\n    \"a\": 1,\n    \"b\": {\n        \"c\": []\n    }\n}"),
                TEXTS("{\"a\" : 1, \"b\": 1}", "{\"a\":  1, \"b\": 1}", "{\"a\":\n1, \"b\": 1}",
                      "{\"a\": 1 , \"b\": 1}", "{\"a\": 1,\n\n\"b\": 1}", " {\"a\": 1, \"b\": 1}",
                      "{\"a\": 1, \"b\": 1}\n", "{\"a\": 1, \"b\": [1 ,2]}"));
}

static void tuples(void **state) {
    check_texts("{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}, {\"const\": "
                "\"x\"}], \"minItems\": 2, \"maxItems\": 2}",
                TEXTS("[1, \"x\"]", "[1,\"x\"]"), TEXTS("[1]", "[\"x\", 1]", "[1, \"x\", 2]"));
    static const char two[] = "\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}, "
                              "{\"const\": \"x\"}]";
    char text[300];
    snprintf(text, sizeof text, "{%s}", two); /* others are not written */
    check_texts(text, TEXTS("[]", "[1]", "[1, \"x\"]"), TEXTS("[\"x\"]", "[1, \"x\", 2]"));
    snprintf(text, sizeof text, "{%s, \"minItems\": 1, \"items\": {\"type\": \"null\"}}", two);
    check_texts(text, TEXTS("[1]", "[1,\"x\"]", "[1, \"x\", null, null]"),
                TEXTS("[]", "[1, null]", "[1, \"x\", 2]"));
    snprintf(text, sizeof text, "{%s, \"maxItems\": 3, \"items\": true}", two);
    check_texts(text, TEXTS("[]", "[1]", "[1,\"x\",{}]"), TEXTS("[1,\"x\",2,3]"));
    snprintf(text, sizeof text, "{%s, \"minItems\": 3}", two);
    check_texts(text, TEXTS("[1,\"x\",2]", "[1,\"x\",2,3]"), TEXTS("[1,\"x\"]"));
    snprintf(text, sizeof text, "{%s, \"maxItems\": 1}", two);
    check_texts(text, TEXTS("[]", "[1]"), TEXTS("[1,\"x\"]"));
    check_texts("{\"type\": \"array\", \"items\": false}", TEXTS("[]", "[ ]"), TEXTS("[1]"));
    check_texts("{\"type\": \"array\", \"prefixItems\": [{\"$ref\": \"#\"}]}",
                TEXTS("[]", "[[]]", "[[[]]]"), TEXTS("[1]", "[[], []]"));
}

/* Schemas of older drafts, of OpenAPI, and of programs that write names of types in their own way.
 */
static void dialects(void **state) {
    (void)state;
    check_texts("{\"type\": \"OBJECT\", \"properties\": {\"a\": {\"type\": \"INTEGER\"}}}",
                TEXTS("{}", "{\"a\":1}"), TEXTS("{\"a\":\"x\"}"));
    check_texts("{\"anyOf\": [{\"type\": \"bool\"}, {\"type\": [\"int\", \"none\"]}]}",
                TEXTS("true", "5", "null"), TEXTS("\"a\"", "1.5"));
    check_texts("{\"type\": \"any\", \"enum\": null}", TEXTS("true", "[{}]"), TEXTS(""));
    check_texts("{\"type\": \"string\", \"nullable\": true, \"maxLength\": 1}",
                TEXTS("null", "\"a\""), TEXTS("\"ab\"", "1"));
    check_texts("{\"type\": \"string\", \"enum\": [\"a\"], \"nullable\": true}",
                TEXTS("\"a\"", "null"), TEXTS("\"b\""));
    check_texts("{\"$ref\": \"#/$defs/a~1b%20~0\", \"nullable\": true, \"$defs\": {\"a/b ~\": "
                "{\"const\": 1}}}",
                TEXTS("1", "null"), TEXTS("2"));
    check_texts("{\"type\": \"integer\", \"minimum\": 1, \"exclusiveMinimum\": true, \"maximum\": "
                "3, \"exclusiveMaximum\": false}",
                TEXTS("2", "3"), TEXTS("1", "4"));
    check_texts("{\"type\": \"array\", \"items\": [{\"const\": 1}, {\"const\": 2}], "
                "\"additionalItems\": {\"const\": 3}}",
                TEXTS("[1,2]", "[1,2,3,3]"), TEXTS("[2]", "[1,2,2]"));
    check_texts("{\"properties\": {\"a\": {\"type\": \"null\", \"required\": true}}}",
                TEXTS("{}", "{\"a\":null}"), TEXTS("{\"a\":1}"));
    check_texts("{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}}, \"required\": "
                "[\"a\", \"b\", \"a\"]}",
                TEXTS("{\"a\":1,\"b\":[]}"), TEXTS("{\"a\":1}", "{\"b\":1}"));
    check_texts(
        "{\"type\": \"object\", \"propertyNames\": {\"type\": \"string\", \"enum\": [\"a\", "
        "\"b\"]}, \"additionalProperties\": {\"const\": 1}, \"required\": [\"b\"]}",
        TEXTS("{\"b\":1}", "{\"a\":1,\"b\":1}"), TEXTS("{\"a\":1}", "{\"b\":1,\"c\":1}"));
    check_texts("{\"type\": \"object\", \"properties\": [], \"unevaluatedProperties\": false}",
                TEXTS("{}"), TEXTS("{\"a\":1}"));
    check_texts("{\"type\": \"array\", \"items\": {\"const\": 1}, \"uniqueItems\": false, "
                "\"maxItems\": 4000000000, \"minItems\": null, \"x-order\": 3, \"then\": {}}",
                TEXTS("[]", "[1,1,1]"), TEXTS("[2]"));
    check_texts("{\"type\": \"object\", \"properties\": {\"type\": {\"const\": \"INT\"}, "
                "\"nullable\": {\"const\": true}}, \"minProperties\": 1, \"required\": [\"type\"]}",
                TEXTS("{\"type\":\"INT\"}", "{\"type\":\"INT\",\"nullable\":true}"),
                TEXTS("{\"type\":\"integer\"}"));
    check_texts("{\"$ref\": \"#/components/schemas/A\", \"components\": {\"schemas\": {\"A\": "
                "{\"type\": \"STRING\", \"maxLength\": 1}}}}",
                TEXTS("\"a\""), TEXTS("\"ab\""));
}

/* Large and deep schemas are rejected early and do not overflow the stack. */
static void hostile_schemas(void **state) {
    static const struct {
        const char *before, *piece;
        int n;
        const char *after;
        lk_status status;
    } hostile[] = {
        {"", "{\"items\":", 100000, "", LK_E_FORMAT}, /* incomplete; deeper than jansson allows */
        {"", "{\"anyOf\":[", 1000, "", LK_E_FORMAT},
        {"{\"properties\": {", "\"p%d\":{},", 3000, "\"z\":{}}}", LK_E_UNSUPPORTED},
        {"{\"enum\": [", "%d,", 100000, "0]}", LK_E_UNSUPPORTED},
        {"{\"type\": [", "\"null\",", 10000, "\"null\"]}", LK_E_FORMAT},
        {"{\"properties\": {\"a\": {}}, \"required\": [", "\"a%d\",", 10000, "\"a\"]}",
         LK_E_UNSUPPORTED},
        {"{\"type\": \"array\", \"prefixItems\": [", "{\"const\": %d},", 2000, "{}]}",
         LK_E_UNSUPPORTED},
        {"{\"title\": \"", "0123456789", 200000, "\"}", LK_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        char *text =
            repeat_text(hostile[i].before, hostile[i].piece, hostile[i].n, hostile[i].after);
        check_rejected(text, strlen(text), hostile[i].status, "JSON schema");
        free(text);
    }
    char *open = repeat_text("", "{\"anyOf\":[", 100, "{}"),
         *deep = repeat_text(open, "]}", 100, "");
    check_rejected(deep, strlen(deep), LK_E_UNSUPPORTED, "nesting");
    free(open);
    free(deep);
}

/* CPU time and memory are in proportion to a schema's bytes, also if it is refused. */
static void work_is_bounded_by_size(void **state) {
    static const struct {
        const char *before, *piece;
        int n;
        const char *after;
    } large[] = {
        {"{\"type\": [\"string\", \"object\", \"array\"]", ",\"k%d\":0", 90000, "}"},
        {"{\"properties\": {\"a\": {}}, \"required\": [", "\"a\",", 250000, "\"a\"]}"},
        {"{\"enum\": [", "1,", 500000, "0]}"},
        {"{\"enum\": [", "%d.1,", 100000, "0]}"},
        {"{\"$defs\": {\"a\": {}}, \"anyOf\": [", "{\"$ref\":\"#/$defs/a\"},", 45000, "{}]}"},
        {"{\"properties\": {", "\"p%d\":{},", 70000, "\"z\":{}}}"},
        {"{\"const\": [", "1.1,", 250000, "0]}"},
        {"{\"required\": [", "\"%d\",", 100000, "\"a\"]}"},
        {"{\"additionalProperties\": {\"anyOf\": [{\"type\": \"INT\"}, {}]}, \"propertyNames\": "
         "{\"enum\": [",
         "\"%d\",", 100000, "\"a\"]}}"},
    };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        char *text = repeat_text(large[i].before, large[i].piece, large[i].n, large[i].after),
             *grammar = NULL;
        double before = lk_thread_cpu_seconds();
        lk_status status = lk_schema_to_grammar(text, strlen(text), &grammar, NULL);
        double seconds = lk_thread_cpu_seconds() - before;
        if (getenv("LOWKEY_FIGURES"))
            printf("%zu bytes, %s: %.3f s\n", strlen(text), lk_status_name(status), seconds);
        if (seconds > 3) fail_msg("%.60s: %.1f s", text, seconds); /* 0.2 s without sanitizers */
        lk_text_free(grammar);
        free(text);
    }
}

/* References to references with long paths: 50 links, each inside 1,000 objects, and 20,000 uses. A
 * link is followed once, not once per use. */
static void chains_of_references(void **state) {
    enum { N_LINK = 50, DEPTH = 1000, N_USE = 20000 };
    char *path = repeat_text("#/$defs", "/p", DEPTH, ""),
         *open = repeat_text("{\"$defs\": ", "{\"p\":", DEPTH, "{"),
         *close = repeat_text("", "}", DEPTH + 1, ", \"anyOf\": ["),
         *text = malloc((strlen(path) + 64) * (N_LINK + 1) + 16 * DEPTH + 64 * N_USE), *at = text;
    at += sprintf(at, "%s", open);
    for (int i = 0; i < N_LINK; i++)
        at += sprintf(at, "\"l%d\": {\"$ref\": \"%s/l%d\"}, ", i, path, i + 1);
    at += sprintf(at, "\"l%d\": {\"type\": \"null\"}%s", N_LINK, close);
    char *uses = repeat_text("{\"$ref\": \"#/$defs/x\"}", ",{\"$ref\":\"#/$defs/x\"}", N_USE, "]}");
    sprintf(at, "%s", uses);
    /* x is the first link, outside of the objects */
    char *first = malloc(strlen(text) + strlen(path) + 64);
    sprintf(first, "{\"$defs\": {\"x\": {\"$ref\": \"%s/l0\"}, %s", path,
            text + strlen("{\"$defs\": {"));
    char *grammar = NULL;
    lk_err err = {0};
    double before = lk_thread_cpu_seconds();
    if (lk_schema_to_grammar(first, strlen(first), &grammar, &err)) fail_msg("%s", err.msg);
    double seconds = lk_thread_cpu_seconds() - before;
    if (seconds > 3) fail_msg("%.1f s", seconds); /* 0.1 s without sanitizers */
    assert_true(accepts(grammar, "null"));
    assert_false(accepts(grammar, "1"));
    lk_text_free(grammar);
    free(path), free(open), free(close), free(text), free(uses), free(first);
}

static int count_of(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

/* Alternatives that are equal are one alternative, also if they contain themselves. */
static void equal_alternatives_are_merged(void **state) {
    char *text = repeat_text("{\"$defs\": {\"A\": {\"anyOf\": [{\"type\": \"null\"}",
                             ", {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/A\"}}", 12,
                             "]}}, \"$ref\": \"#/$defs/A\"}"),
         *grammar = NULL;
    assert_int_equal(lk_schema_to_grammar(text, strlen(text), &grammar, NULL), LK_OK);
    assert_int_equal(count_of(grammar, "\"[\""), 2); /* in this schema and in the rule `array` */
    check_texts(text, TEXTS("[]", "[[],[[null]]]"), TEXTS("[1]"));
    lk_text_free(grammar);
    free(text);
    check_texts("{\"anyOf\": [{\"$id\": \"x\", \"type\": \"array\", \"items\": {\"$ref\": \"#\"}}, "
                "{\"type\": \"array\"}, {\"type\": \"array\"}]}",
                TEXTS("[[]]", "[1]"), TEXTS("1"));
    check_texts("{\"enum\": [1, 1, 2, 1]}", TEXTS("1", "2"), TEXTS("11"));
    check_texts("{\"type\": \"array\", \"items\": {\"const\": 1}, \"maxItems\": 65536}",
                TEXTS("[]", "[1,1]"), TEXTS("[2]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(values),
        cmocka_unit_test(arrays),
        cmocka_unit_test(merged_schemas),
        cmocka_unit_test(redundant_keywords),
        cmocka_unit_test(objects),
        cmocka_unit_test(choices_and_references),
        cmocka_unit_test(references_within_an_id),
        cmocka_unit_test(rejected_schemas),
        cmocka_unit_test(patterns),
        cmocka_unit_test(formats),
        cmocka_unit_test(bounded_integers),
        cmocka_unit_test(bounded_numbers),
        cmocka_unit_test(white_space_is_bounded),
        cmocka_unit_test(tuples),
        cmocka_unit_test(dialects),
        cmocka_unit_test(hostile_schemas),
        cmocka_unit_test(work_is_bounded_by_size),
        cmocka_unit_test(chains_of_references),
        cmocka_unit_test(equal_alternatives_are_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
