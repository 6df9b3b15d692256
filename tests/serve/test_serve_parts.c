/* Parts of the server that need no model: detokenizer, schemas, request parsing, the event ring. */
#include "grammar/grammar_state.h"
#include "serve/auth.h"
#include "serve/call_grammar.h"
#include "serve/detokenizer.h"
#include "serve/metrics.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/request.h"
#include "serve/response_store.h"
#include "serve/tools.h"
#include "test.h"

/* ---- detokenizer ---- */

/* Push the bytes of several tokens. `out`: all text, followed by "|" if a stop string was found. */
static void detokenize_all(const char *const *token, const char *const *stop, char *out) {
    struct lk_detokenizer detok = {.stop = stop};
    struct lk_text_delta delta;
    out[0] = 0;
    while (stop[detok.n_stop]) detok.n_stop++;
    for (; *token; token++) {
        bool stopped = lk_detokenizer_push(&detok, *token, strlen(*token), NULL, &delta);
        if (delta.text) strcat(out, delta.text);
        lk_text_delta_free(&delta);
        if (!stopped) continue;
        strcat(out, "|");
        lk_detokenizer_free(&detok);
        return;
    }
    lk_detokenizer_finish(&detok, &delta);
    if (delta.text) strcat(out, delta.text);
    lk_text_delta_free(&delta);
    lk_detokenizer_free(&detok);
}

static void detokenizer_utf8_and_stop_strings(void **state) {
    static const struct {
        const char *token[6], *stop[3], *want;
    } cases[] = {
        {{"hello", " ", "world"}, {NULL}, "hello world"},
        {{"na\xc3", "\xaf", "ve"}, {NULL}, "na\xc3\xafve"},
        {{"\xf0", "\x9f", "\x98", "\x80"}, {NULL}, "\xf0\x9f\x98\x80"},
        {{"a\xff", "b"},
         {NULL},
         "a\xef\xbf\xbd"
         "b"},
        {{"a\xe2\x82"}, {NULL}, "a\xef\xbf\xbd"},
        {{"\xc3", "x"}, {NULL}, "\xef\xbf\xbdx"},
        {{"one STO", "P two"}, {"STOP"}, "one |"},
        {{"one ST", "ART"}, {"STOP"}, "one START"},
        {{"aab"}, {"ab"}, "a|"},
        {{"aa", "a", "b"}, {"ab"}, "aa|"},
        {{"x12", "3"}, {"123", "23"}, "x|"},
        {{"ab", "c"}, {"abcd", "bc"}, "a|"},
        {{"abc"}, {"abcd"}, "abc"},
        {{"abcd"}, {"abcd", "bc"}, "a|"}, /* as if it came in pieces */
        {{"ab\xff"}, {"b\xef\xbf\xbd"}, "a|"},
        {{"ab\xc3"}, {"b\xef\xbf\xbd"}, "a"},
        {{"\xe6\x97", "\xa5!"}, {"\xe6\x97\xa5"}, "|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[200];
        detokenize_all(cases[i].token, cases[i].stop, out);
        assert_string_equal(out, cases[i].want);
    }
}

static void stop_strings_after_a_zero_byte(void **state) {
    static const char *const stop[] = {"b x"};
    struct lk_detokenizer detok = {.stop = stop, .n_stop = 1};
    struct lk_text_delta delta;
    assert_true(lk_detokenizer_push(&detok, "a\0b x c", 7, NULL, &delta));
    assert_int_equal(delta.len, 2);
    lk_text_delta_free(&delta);
    lk_detokenizer_free(&detok);
}

static void logprobs_arrive_with_their_text(void **state) {
    static const char *const stop[] = {"xyz"};
    struct lk_detokenizer detok = {.stop = stop, .n_stop = 1};
    struct lk_text_delta delta;
    struct lk_logprob lp = {.tok = 1};
    assert_false(lk_detokenizer_push(&detok, "ab", 2, &lp, &delta));
    assert_int_equal(delta.n_lp, 1);
    lk_text_delta_free(&delta);
    lp.tok = 2;
    assert_false(lk_detokenizer_push(&detok, "cx", 2, &lp,
                                     &delta)); /* "x" may be the start of the stop string */
    assert_int_equal(delta.len, 1);
    assert_int_equal(delta.n_lp, 0);
    lk_text_delta_free(&delta);
    lp.tok = 3;
    assert_false(lk_detokenizer_push(&detok, "q", 1, &lp, &delta));
    assert_int_equal(delta.n_lp, 2);
    assert_int_equal(delta.lp[0].tok, 2);
    lk_text_delta_free(&delta);
    lp.tok = 4;
    assert_true(lk_detokenizer_push(&detok, "xyz", 3, &lp, &delta)); /* no text of this token */
    assert_int_equal(delta.len, 0);
    assert_int_equal(delta.n_lp, 0);
    lk_text_delta_free(&delta);
    lk_detokenizer_free(&detok);
}

/* With tokens that split characters, and invalid bytes. */
static void logprob_offsets_count_characters(void **state) {
    static const struct {
        const char *bytes;
        size_t at;
    } tokens[] = {{"na\xc3", 0}, {"\xaf", 2},          {"ve", 3},
                  {"\xff", 5},   {"\xe6\x97\xa5!", 6}, {"x", 8}};
    struct lk_detokenizer detok = {0};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        struct lk_logprob lp = {.tok = (int32_t)i};
        struct lk_text_delta delta;
        assert_false(
            lk_detokenizer_push(&detok, tokens[i].bytes, strlen(tokens[i].bytes), &lp, &delta));
        assert_int_equal(delta.n_lp, 1);
        assert_int_equal(delta.lp[0].offset, tokens[i].at);
        lk_text_delta_free(&delta);
    }
    lk_detokenizer_free(&detok);
}

/* ---- schemas ---- */

static char *grammar_of(const char *schema, struct lk_api_error *error) {
    json_t *json = json_loads(schema, 0, NULL);
    assert_non_null(json);
    char *text =
        lk_schema_grammar(json, &(struct lk_schema_use){.field = "response_format"}, error);
    json_decref(json);
    return text;
}

static void schemas_convert_or_are_rejected(void **state) {
    static const char *const good[] = {
        "{}",
        "{\"type\": \"object\"}",
        "{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 5}",
        "{\"enum\": [\"a\\\"b\", 5, null, [1]]}",
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"string\"}}, \"required\": [\"b\"]}",
        "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"number\"}}",
        "{\"type\": \"object\", \"additionalProperties\": false}",
        "{\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"minItems\": 2, \"maxItems\": "
        "4}",
        "{\"type\": \"array\", \"maxItems\": 1}",
        "{\"type\": \"array\", \"maxItems\": 0}",
        "{\"$ref\": \"#/$defs/n\", \"$defs\": {\"n\": {\"type\": \"object\", \"properties\": "
        "{\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"type\": \"null\"}]}}, \"required\": "
        "[\"next\"]}}}",
        "{\"title\": \"T\", \"description\": \"d\", \"type\": [\"string\", \"null\"], "
        "\"maxLength\": 3}",
        "{\"allOf\": [{\"type\": \"null\"}]}",
    };
    static const struct {
        const char *schema, *named;
    } bad[] = {
        {"{\"type\": \"string\", \"pattern\": \"(?=a)\"}", "pattern"},
        {"{\"type\": \"integer\", \"multipleOf\": 3}", "multipleOf"},
        {"{\"type\": \"object\", \"patternProperties\": {}}", "patternProperties"},
        {"{\"type\": \"flavor\"}", "flavor"},
        {"{\"$ref\": \"#/nowhere\"}", "#/nowhere"},
        {"{\"$ref\": \"http://x.example/s\"}", "http://x.example/s"},
        {"{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", "minItems"},
        {"{\"not\": {}}", "not"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"b\"], "
         "\"additionalProperties\": false}",
         "required"},
        {"{\"$ref\": \"#\"}", "nesting"},
        {"{\"anyOf\": []}", "alternatives"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct lk_api_error error = {0};
        char *text = grammar_of(good[i], &error);
        if (!text) fail_msg("%s: %s", good[i], error.msg);
        free(text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct lk_api_error error = {0};
        assert_null(grammar_of(bad[i].schema, &error));
        assert_int_equal(error.status, 400);
        if (!strstr(error.msg, bad[i].named)) fail_msg("%s: %s", bad[i].schema, error.msg);
    }
}

/* Parse a chat whose answer must be a tool call. */
static bool parse_with_tools(struct lk_request *request, const char *tools,
                             struct lk_api_error *error) {
    struct lk_server_opts opts = lk_server_defaults();
    char body[2000];
    opts.id = "m";
    snprintf(body, sizeof body,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": "
             "\"required\", \"tools\": [%s]}",
             tools);
    return lk_openai_chat_parse(request, &opts, body, strlen(body), error);
}

/* "$ref" is resolved within the parameters of its own tool. */
static void tool_refs_are_per_tool(void **state) {
    static const char tools[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
        "{\"$defs\": {\"City\": {\"enum\": [\"Oslo\"]}}, \"type\": \"object\", "
        "\"properties\": {\"city\": {\"$ref\": \"#/$defs/City\"}}, \"required\": [\"city\"]}}},"
        "{\"type\": \"function\", \"function\": {\"name\": \"root ::= x\", \"parameters\": "
        "{\"$defs\": {\"City\": {\"const\": \"Rome\"}}, \"type\": \"object\", "
        "\"properties\": {\"root ::= \": {\"$ref\": \"#/$defs/City\"}}}}}, {\"type\": "
        "\"function\", \"function\": {\"name\": \"bare\"}}";
    struct lk_request request;
    struct lk_api_error error = {0};
    if (!parse_with_tools(&request, tools, &error)) fail_msg("%s", error.msg);
    assert_non_null(strstr(request.grammar, " ::= \"\\\"Oslo\\\"\"\n"));
    assert_non_null(strstr(request.grammar, " ::= \"\\\"Rome\\\"\"\n"));
    const char *root = strstr(request.grammar, "\nroot ::= \"<tool_call>\\n\" r");
    assert_non_null(root);
    assert_null(strstr(root + 1, "\nroot ::= "));
    assert_non_null(strstr(root, " \"\\n</tool_call>\"\n"));
    assert_string_equal(request.grammar_field, "tools");
    lk_request_free(&request);
    assert_false(
        parse_with_tools(&request,
                         "{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                         "\"parameters\": {\"type\": \"string\", \"pattern\": \"(?=a)\"}}}",
                         &error));
    assert_string_equal(error.param, "tools");
    lk_request_free(&request);
}

/* Does the grammar accept exactly this text? */
static bool accepts(const char *grammar, const char *text) {
    struct lk_grammar *g = NULL;
    struct lk_grammar_state *s = NULL;
    bool accepted = false;
    lk_err err = {0};
    if (lk_grammar_new(&g, grammar, &err) || lk_grammar_state_new(&s, g, &err) ||
        lk_grammar_accept(s, text, strlen(text), &accepted, &err))
        fail_msg("%s", err.msg);
    accepted = accepted && lk_grammar_is_complete(s);
    lk_grammar_state_free(s);
    lk_grammar_free(g);
    return accepted;
}

/* A call has the arguments of its schema and nothing else, as JSON and in words of a template. */
static void calls_match_their_schemas(void **state) {
    static const char tool[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"array\", \"items\": {\"const\": \"x\"}}}, \"required\": [\"a\", \"b\"]}}}";
    static const struct {
        const char *a, *b, *more;
        bool good;
    } row[] = {{"1", "[\"x\"]", "", true},      {"12", "[]", "", true},
               {"[\"x\"]", "1", "", false},     {"1", "[\"y\"]", "", false},
               {"\"x\"", "[]", "", false},      {"1", "[1]", "", false},
               {"1", "[]", ", \"c\": 1", false}};
    static const struct {
        const char *sample,
            *format; /* a call as the template writes it; what follows its trigger */
    } form[] = {
        {"<tool_call>\n<function=probe_name>\n<parameter=probe_key>\nv\n</parameter>\n</function>\n"
         "</tool_call>",
         "f>\n<parameter=a>\n%s\n</parameter>\n<parameter=b>\n%s\n</parameter>\n</function>"},
        {"<tool_call>\n{\"name\": \"probe_name\", \"arguments\": {\"probe_key\": \"v\"}}\n"
         "</tool_call>",
         "\n{\"name\": \"f\", \"arguments\": {\"a\": %s, \"b\": %s}}\n</tool_call>"}};
    struct lk_request request;
    struct lk_api_error error = {0};
    json_t *tools = json_pack("[o]", json_loads(tool, 0, NULL));
    if (!parse_with_tools(&request, tool, &error)) fail_msg("%s", error.msg);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": %s, \"b\": %s}%s}\n"
                 "</tool_call>",
                 row[i].a, row[i].b, row[i].more);
        if (accepts(request.grammar, text) != row[i].good) fail_msg("%s", text);
    }
    lk_request_free(&request);
    for (size_t k = 0; k < sizeof form / sizeof *form; k++) {
        lk_call_words words = {0};
        snprintf(words.sample, sizeof words.sample, "%s", form[k].sample);
        struct lk_call_grammar made = lk_call_grammar_make(&words, tools, NULL, false);
        assert_non_null(made.text);
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            char text[300];
            if (*row[i].more) continue;
            snprintf(text, sizeof text, form[k].format, row[i].a, row[i].b);
            if (accepts(made.text, text) != row[i].good) fail_msg("%s", text);
        }
        free(made.text);
    }
    json_decref(tools);
}

/* A required call of many tools, or of one with a parameter that cannot be expressed, leaves out
 * what is not required, but refuses what is. */
static void required_calls_leave_out_optional_parameters(void **state) {
    static const char one[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"string\", \"pattern\": \"(?=a)\"}}, \"required\": [\"%s\"]}}}";
    struct lk_request request;
    struct lk_api_error error = {0};
    char tools[1000];
    snprintf(tools, sizeof tools, one, "a");
    if (!parse_with_tools(&request, tools, &error)) fail_msg("%s", error.msg);
    assert_non_null(strstr(request.grammar, "\\\"a\\\""));
    assert_null(strstr(request.grammar, "\\\"b\\\""));
    lk_request_free(&request);
    snprintf(tools, sizeof tools, one, "b");
    assert_false(parse_with_tools(&request, tools, &error));
    assert_non_null(strstr(error.msg, "pattern"));
    lk_request_free(&request);
    struct lk_buf body = {0};
    struct lk_server_opts opts = lk_server_defaults();
    opts.id = "m";
    lk_buf_append_str(&body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
                             "\"tool_choice\": \"required\", \"tools\": [");
    for (int i = 0; i < 128; i++) {
        lk_buf_printf(&body,
                      "%s{\"type\": \"function\", \"function\": {\"name\": \"tool_%d\", "
                      "\"parameters\": {\"type\": \"object\", \"required\": [\"p0_%d\"], "
                      "\"properties\": {",
                      i ? "," : "", i, i);
        for (int k = 0; k < 12; k++)
            lk_buf_printf(&body, "%s\"p%d_%d\": {\"type\": \"array\", \"items\": {\"enum\": [%d]}}",
                          k ? "," : "", k, i, 100 * k + i);
        lk_buf_append_str(&body, "}}}}");
    }
    lk_buf_append_str(&body, "]}");
    if (!lk_openai_chat_parse(&request, &opts, lk_buf_cstr(&body), body.len, &error))
        fail_msg("%s", error.msg);
    assert_non_null(strstr(request.grammar, "p0_127"));
    assert_null(strstr(request.grammar, "p1_127"));
    lk_request_free(&request);
    lk_buf_free(&body);
}

/* ---- request fields ---- */

static int64_t server_seed = -1;

static bool parse_fields(struct lk_request *request, bool chat, const char *fields,
                         struct lk_api_error *error) {
    struct lk_server_opts opts = lk_server_defaults();
    char body[600];
    opts.id = "m";
    opts.seed = server_seed;
    snprintf(body, sizeof body, "{%s, %s}",
             chat ? "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"
                  : "\"prompt\": \"x\"",
             fields);
    return chat ? lk_openai_chat_parse(request, &opts, body, strlen(body), error)
                : lk_openai_completion_parse(request, &opts, body, strlen(body), error);
}

#define TOOL "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

static void parallel_tool_calls_can_be_disabled(void **state) {
    static const char text[] =
        "Both.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    for (int one = 0; one < 2; one++) {
        struct lk_tools_text shown = {0};
        json_t *calls = lk_tools_parse_calls(text, NULL, "id", one, &shown, NULL);
        assert_int_equal(json_array_size(calls), 2 - one);
        assert_int_equal(shown.n_before, 5);
        assert_int_equal(shown.rest, strlen(text));
        json_decref(calls);
    }
}

static void unsupported_fields_are_rejected(void **state) {
    static const struct {
        const char *fields, *named; /* for chats, and without tools for completions */
    } bad[] = {
        {"\"typical_p\": 0.9", "typical_p"},
        {"\"mirostat\": 2", "mirostat"},
        {"\"json_schema\": {\"not\": {}}", "json_schema"},
        {"\"json_schema\": 1", "json_schema"},
        {"\"ignore_eos\": 1", "ignore_eos"},
        {"\"logit_bias\": 1", "logit_bias"},
        {"\"logit_bias\": {\"x\": 1}", "logit_bias"},
        {"\"logit_bias\": {\" 1\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"-1\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"1\": 101}", "logit_bias"},
        {"\"logit_bias\": {\"1\": true}", "logit_bias"},
        {"\"logit_bias\": {\"99999999999999999999\": 1}", "logit_bias"},
        {"\"logit_bias\": [1]", "logit_bias"},
        {"\"logit_bias\": [[1]]", "logit_bias"},
        {"\"logit_bias\": [[-1, 1]]", "logit_bias"},
        {"\"logit_bias\": [[1, \"x\"]]", "logit_bias"},
        {"\"json_schema\": {\"type\": \"object\"}, \"response_format\": {\"type\": "
         "\"json_object\"}",
         "json_schema"},
        {"\"xtc_probability\": 0.1", "xtc_probability"},
        {"\"response_format\": {\"type\": \"json_object\", \"schema\": {\"not\": {}}}",
         "response_format"},
        {"\"tool_choice\": \"required\"", "tool_choice"},
        {"\"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}, \"tools\": "
         "[]",
         "tool_choice"},
        {"\"tools\": {}", "tools"},
        {"\"tools\": {\"a\": 1}", "tools"},
    };
    static const char *const harmless[] = {
        "\"grammar\": \"\", \"json_schema\": {}, \"ignore_eos\": false, \"typical_p\": 1.0, "
        "\"mirostat\": 0, \"logit_bias\": null, \"suffix\": null, \"tools\": null",
        "\"tools\": [], \"tool_choice\": \"auto\", \"parallel_tool_calls\": false, "
        "\"dry_multiplier\": 0, \"top_n_sigma\": -1",
        "\"tool_choice\": \"none\", \"functions\": []",
    };
    struct lk_request request;
    struct lk_api_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int chat = 0; chat < 2; chat++) {
            if (!chat && strstr(bad[i].fields, "tool")) continue;
            if (parse_fields(&request, chat, bad[i].fields, &error))
                fail_msg("accepted: %s", bad[i].fields);
            assert_int_equal(error.status, 400);
            assert_string_equal(error.param, bad[i].named);
            lk_request_free(&request);
        }
    assert_false(parse_fields(&request, false, TOOL, &error));
    assert_string_equal(error.param, "tools");
    lk_request_free(&request);
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        for (int chat = 0; chat < 2; chat++) {
            if (!parse_fields(&request, chat, harmless[i], &error))
                fail_msg("%s: %s", harmless[i], error.msg);
            lk_request_free(&request);
        }
    assert_true(parse_fields(&request, true, "\"json_schema\": {\"enum\": [\"Oslo\"]}", &error));
    assert_true(request.sampling.grammar && strstr(request.sampling.grammar, "Oslo"));
    lk_request_free(&request);
    static const char *const biased[] = {
        "\"logit_bias\": {\"7\": -100, \"8\": 1.5}, \"ignore_eos\": true",
        "\"logit_bias\": [[7, false], [8, 1.5]]"};
    for (int i = 0; i < 2; i++) {
        assert_true(parse_fields(&request, i, biased[i], &error));
        assert_int_equal(request.sampling.n_bias, 2);
        for (int k = 0; k < 2; k++) {
            const lk_logit_bias *bias = &request.sampling.bias[k];
            assert_true(bias->tok == 8 ? bias->bias == 1.5f
                                       : bias->tok == 7 && bias->bias == (i ? -INFINITY : -100));
        }
        assert_int_equal(request.sampling.ignore_eos, i == 0);
        lk_request_free(&request);
    }
    if (!parse_fields(&request, true, TOOL ", \"parallel_tool_calls\": false", &error))
        fail_msg("%s", error.msg);
    assert_true(request.tools && request.single_tool_call);
    lk_request_free(&request);
    assert_true(parse_fields(
        &request, true,
        "\"response_format\": {\"type\": \"json_object\", \"schema\": {\"enum\": [\"Oslo\"]}}",
        &error));
    assert_non_null(strstr(request.grammar, "Oslo"));
    lk_request_free(&request);
}

/* NULL: the request gives no seed. */
static uint32_t seed_of(const char *given) {
    struct lk_request request;
    struct lk_api_error error;
    char fields[100];
    snprintf(fields, sizeof fields, given ? "\"seed\": %s" : "\"n\": 1", given);
    if (!parse_fields(&request, false, fields, &error)) fail_msg("%s: %s", given, error.msg);
    uint32_t seed = request.sampling.seed;
    lk_request_free(&request);
    return seed;
}

static void seeds_are_64_bit_integers(void **state) {
    static const char *const seeds[] = {"0",
                                        "7",
                                        "4294967295",
                                        "4294967296",
                                        "9007199254740993",
                                        "9007199254740992",
                                        "9223372036854775807",
                                        "-1",
                                        "-9223372036854775808"};
    assert_int_equal(seed_of("7"), 7);
    assert_int_equal(seed_of("7.0"), 7);
    assert_int_equal(seed_of("4294967290"), 4294967290u);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        assert_int_equal(seed_of(seeds[i]), seed_of(seeds[i]));
        for (size_t k = 0; k < i; k++) assert_int_not_equal(seed_of(seeds[i]), seed_of(seeds[k]));
    }
    assert_int_not_equal(seed_of(NULL), seed_of(NULL));
    server_seed = 5;
    assert_int_equal(seed_of(NULL), 5);
    assert_int_equal(seed_of("7"), 7);
    server_seed = -1;
    struct lk_request request;
    struct lk_api_error error;
    assert_false(parse_fields(&request, false, "\"seed\": 1.5", &error));
    lk_request_free(&request);
    assert_false(parse_fields(&request, false, "\"seed\": \"x\"", &error));
    lk_request_free(&request);
}

/* ---- event ring ---- */

static struct lk_completion *new_test_completion(size_t n_job) {
    struct lk_completion *completion = calloc(1, sizeof *completion);
    completion->job = calloc(n_job, sizeof *completion->job);
    completion->n_job = n_job;
    completion->refs = 1;
    pthread_mutex_init(&completion->lock, NULL);
    pthread_cond_init(&completion->changed, NULL);
    return completion;
}

static void event_ring_is_bounded(void **state) {
    struct lk_completion *completion = new_test_completion(2);
    struct lk_event event;
    size_t n = 0;
    while (lk_completion_has_room(completion)) {
        event = (struct lk_event){.kind = LK_EVENT_TEXT, .delta = {.text = strdup("x"), .len = 1}};
        lk_completion_push(completion, &event);
        n++;
    }
    assert_true(n > 2 && n <= LK_EVENT_RING_LEN);
    for (int i = 0; i < 2 * LK_EVENT_RING_LEN; i++) { /* dropped if the ring is full */
        event = (struct lk_event){.kind = LK_EVENT_TEXT, .delta = {.text = strdup("y"), .len = 1}};
        lk_completion_push(completion, &event);
    }
    completion->job[1].result.finish = "stop";
    lk_completion_finish_job(completion, &completion->job[1]);
    struct lk_api_error error;
    lk_api_error_set(&error, 503, "x", NULL, "first");
    lk_completion_fail(completion, &error);
    lk_api_error_set(&error, 500, "y", NULL, "second");
    lk_completion_fail(completion, &error);
    size_t n_text = 0;
    while (lk_completion_pop(completion, 0, &event) && event.kind == LK_EVENT_TEXT) {
        n_text++;
        lk_text_delta_free(&event.delta);
    }
    assert_int_equal(n_text, LK_EVENT_RING_LEN);
    assert_int_equal(event.kind, LK_EVENT_DONE);
    assert_int_equal(event.job, 1);
    assert_true(lk_completion_pop(completion, 0, &event));
    assert_int_equal(event.kind, LK_EVENT_ERROR);
    assert_int_equal(completion->error.status, 503);
    assert_false(lk_completion_pop(completion, 0.01, &event));
    lk_completion_release(completion);
}

/* ---- others ---- */

static void secrets_are_compared_completely(void **state) {
    assert_true(lk_auth_secret_equal("abc", "abc"));
    assert_false(lk_auth_secret_equal("abd", "abc"));
    assert_false(lk_auth_secret_equal("ab", "abc"));
    assert_false(lk_auth_secret_equal("abcabc", "abc"));
    assert_false(lk_auth_secret_equal("", "abc"));
    assert_false(lk_auth_secret_equal("abc", ""));
}

static void api_errors_are_one_line(void **state) {
    struct lk_api_error error;
    lk_api_error_set(&error, 400, "c", "p", "bad\nline \x01 %s", "\xff tail");
    assert_string_equal(error.msg, "bad line   ");
    char *text;
    json_t *json = lk_api_error_json(&error);
    text = json_dumps(json, JSON_SORT_KEYS);
    assert_string_equal(text, "{\"error\": {\"code\": \"c\", \"message\": \"bad line   \", "
                              "\"param\": \"p\", \"type\": \"invalid_request_error\"}}");
    free(text);
    json_decref(json);
}

/* An error during decoding is a server error, unless no token matches the client's grammar. */
static void work_errors_are_server_errors(void **state) {
    static const struct {
        lk_err err;
        int status;
        const char *code;
    } cases[] = {{{LK_E_ARG, "the logit of token 5 is not finite"}, 500, "internal_error"},
                 {{LK_E_ARG, "logits of 3 tokens, expected 4"}, 500, "internal_error"},
                 {{LK_E_ARG, ""}, 500, "internal_error"},
                 {{LK_E_FORMAT, "no token fits the grammar here"}, 400, "invalid_value"},
                 {{LK_E_FULL, "full"}, 400, "context_length_exceeded"},
                 {{LK_E_NOMEM, "no memory"}, 503, "out_of_memory"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lk_api_error error;
        assert_false(lk_api_error_from_work(&error, &cases[i].err));
        assert_int_equal(error.status, cases[i].status);
        assert_string_equal(error.code, cases[i].code);
        assert_true(error.msg[0] != 0);
    }
}

static void histogram_buckets(void **state) {
    static struct lk_metrics metrics;
    struct lk_buf out = {0};
    lk_histogram_add(&metrics.prompt, 0.02);
    lk_histogram_add(&metrics.prompt, 1e9);
    lk_metrics_print(&metrics, &out);
    assert_false(out.failed);
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"0.01\"} 0\n"));
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"0.03\"} 1\n"));
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"+Inf\"} 2\n"));
    lk_buf_free(&out);
}

/* ---- responses ---- */

static void responses_are_kept_until_removed(void **state) {
    struct lk_response_store *store = lk_response_store_new();
    json_t *input = json_string("a"), *response = json_pack("{s:[{s:s}]}", "output", "id", "item");
    char id[8];
    for (int i = 0; i <= LK_STORED_RESPONSES; i++) {
        snprintf(id, sizeof id, "r%d", i);
        assert_true(lk_response_store_put(store, id, input, response));
    }
    assert_null(lk_response_store_text(store, "r0")); /* the oldest leaves first */
    size_t n_byte;
    json_t *items = lk_response_store_items(store, "r1", &n_byte);
    assert_int_equal(json_array_size(items), 2);
    assert_true(lk_response_store_remove(store, "r1"));
    assert_false(lk_response_store_remove(store, "r1"));
    assert_null(lk_response_store_items(store, "r1", &n_byte));
    char *text = lk_response_store_text(store, id);
    assert_string_equal(text, "{\"output\":[{\"id\":\"item\"}]}");
    free(text);
    json_decref(items), json_decref(input), json_decref(response);
    lk_response_store_free(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(detokenizer_utf8_and_stop_strings),
        cmocka_unit_test(stop_strings_after_a_zero_byte),
        cmocka_unit_test(logprobs_arrive_with_their_text),
        cmocka_unit_test(logprob_offsets_count_characters),
        cmocka_unit_test(schemas_convert_or_are_rejected),
        cmocka_unit_test(tool_refs_are_per_tool),
        cmocka_unit_test(calls_match_their_schemas),
        cmocka_unit_test(required_calls_leave_out_optional_parameters),
        cmocka_unit_test(parallel_tool_calls_can_be_disabled),
        cmocka_unit_test(unsupported_fields_are_rejected),
        cmocka_unit_test(seeds_are_64_bit_integers),
        cmocka_unit_test(event_ring_is_bounded),
        cmocka_unit_test(secrets_are_compared_completely),
        cmocka_unit_test(responses_are_kept_until_removed),
        cmocka_unit_test(work_errors_are_server_errors),
        cmocka_unit_test(api_errors_are_one_line),
        cmocka_unit_test(histogram_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
