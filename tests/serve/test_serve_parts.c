/* The server's parts that need no model: text from tokens, schemas, requests, queues of events. */
#include "serve/answer.h"
#include "serve/ask.h"
#include "serve/emit.h"
#include "serve/metrics.h"
#include "serve/route.h"
#include "serve/schema.h"
#include "serve/tools.h"
#include "token/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- text from tokens ---- */

/* Push pieces of bytes; what comes out, joined, with "|" where a stop string ended it. */
static void emitted(const char *const *piece, const char *const *stop, char *out) {
    struct lk_emit emit = {.stop = stop};
    struct lk_piece given;
    out[0] = 0;
    while (stop[emit.n_stop]) emit.n_stop++;
    for (; *piece; piece++) {
        bool stopped = lk_emit_push(&emit, *piece, strlen(*piece), NULL, &given);
        if (given.text) strcat(out, given.text);
        lk_piece_free(&given);
        if (!stopped) continue;
        strcat(out, "|");
        lk_emit_free(&emit);
        return;
    }
    lk_emit_finish(&emit, &given);
    if (given.text) strcat(out, given.text);
    lk_piece_free(&given);
    lk_emit_free(&emit);
}

static void text_is_whole_characters_without_stops(void **state) {
    (void)state;
    static const struct {
        const char *piece[6], *stop[3], *want;
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
        {{"\xe6\x97", "\xa5!"}, {"\xe6\x97\xa5"}, "|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[200];
        emitted(cases[i].piece, cases[i].stop, out);
        assert_string_equal(out, cases[i].want);
    }
}

static void logarithms_come_with_their_text(void **state) {
    (void)state;
    static const char *const stop[] = {"xyz"};
    struct lk_emit emit = {.stop = stop, .n_stop = 1};
    struct lk_piece piece;
    struct lk_logprob lp = {.tok = 1};
    assert_false(lk_emit_push(&emit, "ab", 2, &lp, &piece));
    assert_int_equal(piece.n_lp, 1);
    lk_piece_free(&piece);
    lp.tok = 2;
    assert_false(lk_emit_push(&emit, "cx", 2, &lp, &piece)); /* "x" may begin the stop string */
    assert_int_equal(piece.len, 1);
    assert_int_equal(piece.n_lp, 0);
    lk_piece_free(&piece);
    lp.tok = 3;
    assert_false(lk_emit_push(&emit, "q", 1, &lp, &piece));
    assert_int_equal(piece.n_lp, 2);
    assert_int_equal(piece.lp[0].tok, 2);
    lk_piece_free(&piece);
    lp.tok = 4;
    assert_true(lk_emit_push(&emit, "xyz", 3, &lp, &piece)); /* nothing of this token is shown */
    assert_int_equal(piece.len, 0);
    assert_int_equal(piece.n_lp, 0);
    lk_piece_free(&piece);
    lk_emit_free(&emit);
}

/* Tokens that divide characters, and bytes that are none. */
static void tokens_are_placed_by_characters(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t at;
    } tokens[] = {{"na\xc3", 0}, {"\xaf", 2},          {"ve", 3},
                  {"\xff", 5},   {"\xe6\x97\xa5!", 6}, {"x", 8}};
    struct lk_emit emit = {0};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        struct lk_logprob lp = {.tok = (int32_t)i};
        struct lk_piece piece;
        assert_false(lk_emit_push(&emit, tokens[i].bytes, strlen(tokens[i].bytes), &lp, &piece));
        assert_int_equal(piece.n_lp, 1);
        assert_int_equal(piece.lp[0].at, tokens[i].at);
        lk_piece_free(&piece);
    }
    lk_emit_free(&emit);
}

static void logarithms_are_of_the_softmax(void **state) {
    (void)state;
    float logits[40];
    double sum = 0;
    for (int i = 0; i < 40; i++) logits[i] = sinf(3.0f * (float)i) * 4;
    for (int i = 0; i < 40; i++) sum += exp((double)logits[i]);
    for (int top = 0; top <= LK_MAX_TOP; top++) {
        struct lk_logprob lp = lk_logprob_of(logits, 40, 7, top);
        assert_true(fabs((double)lp.logprob - log(exp((double)logits[7]) / sum)) < 1e-5);
        assert_int_equal(lp.n_top, top);
        for (int i = 0; i < top; i++) {
            int better = 0;
            for (int k = 0; k < 40; k++) better += logits[k] > logits[lp.top[i].tok];
            assert_int_equal(better, i);
        }
    }
}

/* ---- schemas ---- */

static char *grammar_of(const char *schema, struct lk_fault *fault) {
    json_t *json = json_loads(schema, 0, NULL);
    assert_non_null(json);
    char *text =
        lk_schema_grammar(json, &(struct lk_schema_use){.field = "response_format"}, fault);
    json_decref(json);
    return text;
}

static void schemas_become_grammars_or_are_refused_by_name(void **state) {
    (void)state;
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
        {"{\"type\": \"string\", \"pattern\": \"a+\"}", "pattern"},
        {"{\"type\": \"integer\", \"minimum\": 3}", "minimum"},
        {"{\"type\": \"object\", \"patternProperties\": {}}", "patternProperties"},
        {"{\"type\": \"colour\"}", "colour"},
        {"{\"$ref\": \"#/nowhere\"}", "#/nowhere"},
        {"{\"$ref\": \"http://x.example/s\"}", "http://x.example/s"},
        {"{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", "minItems"},
        {"{\"not\": {}}", "not"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"b\"]}", "required"},
        {"{\"$ref\": \"#\"}", "nesting"},
        {"{\"anyOf\": []}", "alternatives"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct lk_fault fault = {0};
        char *text = grammar_of(good[i], &fault);
        if (!text) fail_msg("%s: %s", good[i], fault.msg);
        free(text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct lk_fault fault = {0};
        assert_null(grammar_of(bad[i].schema, &fault));
        assert_int_equal(fault.status, 400);
        if (!strstr(fault.msg, bad[i].named)) fail_msg("%s: %s", bad[i].schema, fault.msg);
    }
}

/* Read a chat whose answer must be a call of one of the tools. */
static bool ask_with_tools(struct lk_ask *ask, const char *tools, struct lk_fault *fault) {
    struct lk_serve_opts opts = lk_serve_defaults();
    char body[2000];
    opts.id = "m";
    snprintf(body, sizeof body,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": "
             "\"required\", \"tools\": [%s]}",
             tools);
    return lk_ask_chat(ask, &opts, body, strlen(body), fault);
}

/* References of a tool's parameters are to these, whatever other tools have of the same name. */
static void tools_are_documents_of_their_own(void **state) {
    (void)state;
    static const char tools[] =
        "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
        "{\"$defs\": {\"City\": {\"enum\": [\"Oslo\"]}}, \"type\": \"object\", "
        "\"properties\": {\"city\": {\"$ref\": \"#/$defs/City\"}}, \"required\": [\"city\"]}}},"
        "{\"type\": \"function\", \"function\": {\"name\": \"root ::= x\", \"parameters\": "
        "{\"$defs\": {\"City\": {\"const\": \"Rome\"}}, \"type\": \"object\", "
        "\"properties\": {\"root ::= \": {\"$ref\": \"#/$defs/City\"}}}}}, {\"type\": "
        "\"function\", \"function\": {\"name\": \"bare\"}}";
    struct lk_ask ask;
    struct lk_fault fault = {0};
    if (!ask_with_tools(&ask, tools, &fault)) fail_msg("%s", fault.msg);
    assert_non_null(strstr(ask.grammar, " ::= \"\\\"Oslo\\\"\"\n"));
    assert_non_null(strstr(ask.grammar, " ::= \"\\\"Rome\\\"\"\n"));
    const char *root = strstr(ask.grammar, "\nroot ::= \"<tool_call>\\n\" r");
    assert_non_null(root);
    assert_null(strstr(root + 1, "\nroot ::= "));
    assert_non_null(strstr(root, " \"\\n</tool_call>\"\n"));
    assert_string_equal(ask.held_by, "tools");
    lk_ask_free(&ask);
    assert_false(ask_with_tools(&ask,
                                "{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                                "\"parameters\": {\"type\": \"string\", \"pattern\": \"a\"}}}",
                                &fault));
    assert_string_equal(fault.param, "tools");
    lk_ask_free(&ask);
}

/* ---- fields of requests ---- */

static bool ask_for(struct lk_ask *ask, bool chat, const char *fields, struct lk_fault *fault) {
    struct lk_serve_opts opts = lk_serve_defaults();
    char body[600];
    opts.id = "m";
    snprintf(body, sizeof body, "{%s, %s}",
             chat ? "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"
                  : "\"prompt\": \"x\"",
             fields);
    return chat ? lk_ask_chat(ask, &opts, body, strlen(body), fault)
                : lk_ask_completion(ask, &opts, body, strlen(body), fault);
}

#define TOOL "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]"

static void one_call_where_one_is_asked_for(void **state) {
    (void)state;
    static const char text[] =
        "Both.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    for (int one = 0; one < 2; one++) {
        size_t shown = 0;
        json_t *calls = lk_tools_parse(text, "id", one, &shown);
        assert_int_equal(json_array_size(calls), 2 - one);
        assert_int_equal(shown, 5);
        json_decref(calls);
    }
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *fields, *named; /* in chats, and, but for tools, in completions */
    } bad[] = {
        {"\"grammar\": \"root ::= x\"", "grammar"},
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
        {"\"suffix\": \"x\"", "suffix"},
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
    struct lk_ask ask;
    struct lk_fault fault;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int chat = 0; chat < 2; chat++) {
            if (!chat && strstr(bad[i].fields, "tool")) continue;
            if (ask_for(&ask, chat, bad[i].fields, &fault))
                fail_msg("passed over: %s", bad[i].fields);
            assert_int_equal(fault.status, 400);
            assert_string_equal(fault.param, bad[i].named);
            lk_ask_free(&ask);
        }
    assert_false(ask_for(&ask, false, TOOL, &fault));
    assert_string_equal(fault.param, "tools");
    lk_ask_free(&ask);
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        for (int chat = 0; chat < 2; chat++) {
            if (!ask_for(&ask, chat, harmless[i], &fault))
                fail_msg("%s: %s", harmless[i], fault.msg);
            lk_ask_free(&ask);
        }
    assert_true(ask_for(&ask, true, "\"json_schema\": {\"enum\": [\"Oslo\"]}", &fault));
    assert_true(ask.sampling.grammar && strstr(ask.sampling.grammar, "Oslo"));
    lk_ask_free(&ask);
    static const char *const biased[] = {
        "\"logit_bias\": {\"7\": -100, \"8\": 1.5}, \"ignore_eos\": true",
        "\"logit_bias\": [[7, false], [8, 1.5]]"};
    for (int i = 0; i < 2; i++) {
        assert_true(ask_for(&ask, i, biased[i], &fault));
        assert_int_equal(ask.sampling.n_bias, 2);
        for (int k = 0; k < 2; k++) {
            const lk_logit_bias *bias = &ask.sampling.bias[k];
            assert_true(bias->tok == 8 ? bias->bias == 1.5f
                                       : bias->tok == 7 && bias->bias == (i ? -INFINITY : -100));
        }
        assert_int_equal(ask.sampling.ignore_eos, i == 0);
        lk_ask_free(&ask);
    }
    if (!ask_for(&ask, true, TOOL ", \"parallel_tool_calls\": false", &fault))
        fail_msg("%s", fault.msg);
    assert_true(ask.tools && ask.one_call);
    lk_ask_free(&ask);
    assert_true(ask_for(
        &ask, true,
        "\"response_format\": {\"type\": \"json_object\", \"schema\": {\"enum\": [\"Oslo\"]}}",
        &fault));
    assert_non_null(strstr(ask.grammar, "Oslo"));
    lk_ask_free(&ask);
}

static uint32_t seed_of(const char *given) {
    struct lk_ask ask;
    struct lk_fault fault;
    char fields[100];
    snprintf(fields, sizeof fields, "\"seed\": %s", given);
    if (!ask_for(&ask, false, fields, &fault)) fail_msg("%s: %s", given, fault.msg);
    uint32_t seed = ask.sampling.seed;
    lk_ask_free(&ask);
    return seed;
}

static void seeds_are_whole_numbers_of_64_bits(void **state) {
    (void)state;
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
    struct lk_ask ask;
    struct lk_fault fault;
    assert_false(ask_for(&ask, false, "\"seed\": 1.5", &fault));
    lk_ask_free(&ask);
    assert_false(ask_for(&ask, false, "\"seed\": \"x\"", &fault));
    lk_ask_free(&ask);
}

/* ---- queues of events ---- */

static struct lk_call *make_call(size_t n_job) {
    struct lk_call *call = calloc(1, sizeof *call);
    call->job = calloc(n_job, sizeof *call->job);
    call->n_job = n_job;
    call->refs = 1;
    pthread_mutex_init(&call->lock, NULL);
    pthread_cond_init(&call->changed, NULL);
    return call;
}

static void queues_are_bounded_and_end(void **state) {
    (void)state;
    struct lk_call *call = make_call(2);
    struct lk_event event;
    size_t n = 0;
    while (lk_call_has_room(call)) {
        event = (struct lk_event){.kind = LK_EVENT_PIECE, .piece = {.text = strdup("x"), .len = 1}};
        lk_call_push(call, &event);
        n++;
    }
    assert_true(n > 2 && n <= LK_FEED);
    for (int i = 0; i < 2 * LK_FEED; i++) { /* pushed without asking: dropped, not grown */
        event = (struct lk_event){.kind = LK_EVENT_PIECE, .piece = {.text = strdup("y"), .len = 1}};
        lk_call_push(call, &event);
    }
    call->job[1].outcome.finish = "stop";
    lk_call_done(call, &call->job[1]);
    struct lk_fault fault;
    lk_fault_set(&fault, 503, "x", NULL, "first");
    lk_call_fail(call, &fault);
    lk_fault_set(&fault, 500, "y", NULL, "second");
    lk_call_fail(call, &fault);
    size_t pieces = 0;
    while (lk_call_pop(call, 0, &event) && event.kind == LK_EVENT_PIECE) {
        pieces++;
        lk_piece_free(&event.piece);
    }
    assert_int_equal(pieces, LK_FEED);
    assert_int_equal(event.kind, LK_EVENT_DONE);
    assert_int_equal(event.job, 1);
    assert_true(lk_call_pop(call, 0, &event));
    assert_int_equal(event.kind, LK_EVENT_FAULT);
    assert_int_equal(call->fault.status, 503);
    assert_false(lk_call_pop(call, 0.01, &event));
    lk_call_release(call);
}

/* ---- and the rest ---- */

static void secrets_are_compared_whole(void **state) {
    (void)state;
    assert_true(lk_same_secret("abc", "abc"));
    assert_false(lk_same_secret("abd", "abc"));
    assert_false(lk_same_secret("ab", "abc"));
    assert_false(lk_same_secret("abcabc", "abc"));
    assert_false(lk_same_secret("", "abc"));
    assert_false(lk_same_secret("abc", ""));
}

static void faults_are_one_line_of_text(void **state) {
    (void)state;
    struct lk_fault fault;
    lk_fault_set(&fault, 400, "c", "p", "bad\nline \x01 %s", "\xff tail");
    assert_string_equal(fault.msg, "bad line   ");
    char *text;
    json_t *json = lk_fault_json(&fault);
    text = json_dumps(json, JSON_SORT_KEYS);
    assert_string_equal(text, "{\"error\": {\"code\": \"c\", \"message\": \"bad line   \", "
                              "\"param\": \"p\", \"type\": \"invalid_request_error\"}}");
    free(text);
    json_decref(json);
}

/* What fails while an answer is made is not the client's fault, unless its grammar is at an end. */
static void work_that_fails_is_the_servers_fault(void **state) {
    (void)state;
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
        struct lk_fault fault;
        assert_false(lk_fault_of_work(&fault, &cases[i].err));
        assert_int_equal(fault.status, cases[i].status);
        assert_string_equal(fault.code, cases[i].code);
        assert_true(fault.msg[0] != 0);
    }
}

static void times_fall_into_buckets(void **state) {
    (void)state;
    static struct lk_metrics metrics;
    struct lk_buf out = {0};
    lk_times_add(&metrics.prompt, 0.02);
    lk_times_add(&metrics.prompt, 1e9);
    lk_metrics_print(&metrics, &out);
    assert_false(out.failed);
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"0.01\"} 0\n"));
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"0.03\"} 1\n"));
    assert_non_null(strstr(out.at, "lowkey_prompt_seconds_bucket{le=\"+Inf\"} 2\n"));
    lk_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_whole_characters_without_stops),
        cmocka_unit_test(logarithms_come_with_their_text),
        cmocka_unit_test(tokens_are_placed_by_characters),
        cmocka_unit_test(logarithms_are_of_the_softmax),
        cmocka_unit_test(schemas_become_grammars_or_are_refused_by_name),
        cmocka_unit_test(tools_are_documents_of_their_own),
        cmocka_unit_test(one_call_where_one_is_asked_for),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(seeds_are_whole_numbers_of_64_bits),
        cmocka_unit_test(queues_are_bounded_and_end),
        cmocka_unit_test(secrets_are_compared_whole),
        cmocka_unit_test(work_that_fails_is_the_servers_fault),
        cmocka_unit_test(faults_are_one_line_of_text),
        cmocka_unit_test(times_fall_into_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
