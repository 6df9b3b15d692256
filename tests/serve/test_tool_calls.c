/* Tool calls in answers: every form, whole and split at any place. */
#include "serve/request.h"
#include "serve/tool_calls.h"
#include "serve/tools.h"
#include "test.h"

static const char tool_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\"}}, {\"type\": "
    "\"function\", \"function\": {\"name\": \"get\"}}, {\"type\": \"function\", \"function\": "
    "{\"name\": \"f\"}}, {\"type\": \"function\", \"function\": {\"name\": \"typed\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\"}, "
    "\"n\": {\"type\": \"integer\"}, \"b\": {\"type\": \"boolean\"}, \"e\": {\"enum\": "
    "[\"1\", \"2\"]}, \"o\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}, "
    "\"l\": {\"type\": \"array\"}}}}}]";

struct answer {
    const char *text;
    const char *want; /* "name arguments" of all calls, with ";" between them; NULL: no calls */
    const char *before;
};

#define W "get_weather {\"city\":\"Paris\"}"

static const struct answer answers[] = {
    /* Qwen, Hermes, SmolLM: tags */
    {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
     W, ""},
    {"I look.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>"
     "{\"name\": \"get\", \"arguments\": {\"a\": [1, {\"b\": null}]}}</tool_call>",
     "f {};get {\"a\":[1,{\"b\":null}]}", "I look."},
    {"<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</tool_call>",
     W, ""},
    {"<tool_call>{\"name\": \"other\", \"arguments\": {}}", "other {}", ""},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {", NULL, ""},
    {"<tool_call> is a tag, and <tool_call>{\"name\": \"f\"}</tool_call> is a call", "f {}",
     "<tool_call> is a tag, and"},
    {"a <tool b", NULL, ""},
    {"x < y <", NULL, ""},
    {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>", "f {}", ""},
    {"<|tool_call_start|>[f(a=\"b\")]<|tool_call_end|>", "f {\"a\":\"b\"}", ""},
    /* alone */
    {"{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}", W, ""},
    {" \n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}\n", W, ""},
    {"{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}", W, ""},
    {"{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}", W, ""},
    {"[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"get\", \"arguments\": {\"a\": 1}}]",
     "f {};get {\"a\":1}", ""},
    {"{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"get\", \"arguments\": {}}", "f {};get {}",
     ""},
    {"{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": true}}}",
     "f {\"x\":true}", ""},
    {"```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n```", W, ""},
    {"```\n[{\"name\": \"f\"}]\n```\n", "f {}", ""},
    {"<think>\nA <tool_call> helps.\n</think>\n\n{\"name\": \"f\", \"arguments\": {}}", "f {}",
     "<think>\nA <tool_call> helps.\n</think>"},
    {"{\"name\": \"unknown\", \"arguments\": {}}", NULL, ""},
    {"{\"name\": \"f\", \"arguments\": {}} is a call", NULL, ""},
    {"Call {\"name\": \"f\", \"arguments\": {}}", NULL, ""},
    {"{\"name\": \"f\", \"arguments\": [1]}", NULL, ""},
    {"{\"temperature\": 3}", NULL, ""},
    {"{\"name\": \"f\", \"age\": 3}", NULL, ""},
    {"```python\nprint(1)\n```", NULL, ""},
    {"[1, 2]", NULL, ""},
    {"getting there", NULL, ""},
    /* Llama 3 */
    {"<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "f {\"a\":1}", ""},
    {"<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get\", \"parameters\": {}}",
     "f {};get {}", ""},
    {"<|python_tag|>get.call(query=\"x\")", "get {\"query\":\"x\"}", ""},
    {"[get_weather(city=\"Paris\")]", W, ""},
    {"[get_weather(city='Paris'), f(a=1, b=-2.5, c=True, d=None, e=['x', {\"k\": 'it\\'s'}])]",
     W ";f {\"a\":1,\"b\":-2.5,\"c\":true,\"d\":null,\"e\":[\"x\",{\"k\":\"it's\"}]}", ""},
    {"[f()]", "f {}", ""},
    {"[f(a=open('x'))]", NULL, ""},
    {"[nope(a=1)]", NULL, ""},
    /* Mistral */
    {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefgh1\"}]",
     "f {\"a\":1}#abcdefgh1", ""},
    {"[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}", W, ""},
    {"[TOOL_CALLS]get_weather{\"city\": \"Paris\"}[TOOL_CALLS]f[ARGS]{}", W ";f {}", ""},
    {"[TOOL_CALLS]get_weather[ARGS] {\"city\": \"Paris\"}", W, ""},
    {"Text [TOOL_CALLS] and more", NULL, ""},
};
enum { N_ANSWER = sizeof answers / sizeof *answers };

static json_t *tools;

/* Forms that have words for each part of a call. */
static const struct answer markup[] = {
    /* Qwen3-Coder, Qwen3.5 */
    {"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
     "</tool_call>",
     W, ""},
    {"I look.\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=get>\n"
     "<parameter=a>\n[1, {\"b\": null}]\n</parameter>\n<parameter=t>\ntwo\n\nlines\n</parameter>\n"
     "</function>\n</tool_call>",
     "f {};get {\"a\":[1,{\"b\":null}],\"t\":\"two\\n\\nlines\"}", "I look."},
    {"<tool_call><function=typed><parameter=s>12</parameter><parameter=n>12</parameter>"
     "<parameter=b>True</parameter><parameter=e>1</parameter><parameter=o>null</parameter>"
     "<parameter=l>[\"x\"]</parameter></function></tool_call>",
     "typed {\"s\":\"12\",\"n\":12,\"b\":true,\"e\":\"1\",\"o\":null,\"l\":[\"x\"]}", ""},
    {"<tool_call>\n<function=f>\n<parameter=code>\nx = \"</parameter>\"\n<b></function>\n"
     "</tool_call>\n</parameter>\n</function>\n</tool_call>",
     "f {\"code\":\"x = \\\"</parameter>\\\"\\n<b></function>\\n</tool_call>\"}", ""},
    {"<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "f {\"a\":1}", ""},
    {"I look. <function=f></function> so", "f {}", "I look."},
    {"<function=f>{\"a\": \"</function>\"}</function>", "f {\"a\":\"</function>\"}", ""},
    {"<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>", NULL, ""},
    {"<tool_call>\n<function=>\n</function>\n</tool_call>", NULL, ""},
    {"<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n", NULL, ""},
    /* Gemma 4 */
    {"<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>", W, ""},
    {"<|tool_call>call:f{a:-1.5,b:true,c:[1,<|\"|>x, {y}: <tool_call|>\n\\<|\"|>],d:{e:null,"
     "<|\"|>f g<|\"|>:{}}}<tool_call|><|tool_call>call:get{}<tool_call|>",
     "f {\"a\":-1.5,\"b\":true,\"c\":[1,\"x, {y}: <tool_call|>\\n\\\\\"],\"d\":{\"e\":null,\"f "
     "g\":{}}};get {}",
     ""},
    {"<|tool_call>call:f{a:word}<tool_call|>", "f {\"a\":\"word\"}", ""},
    {"<|tool_call>call:f{a:<|\"|>x}<tool_call|>", NULL, ""},
    {"<|tool_call>call:f{a}<tool_call|>", NULL, ""},
    {"<|tool_call>f{a:1}<tool_call|>", NULL, ""},
    /* OLMo 3 */
    {"<function_calls>\nget_weather(city=\"Paris\")\nf(a=true, b={\"k\": [null, 'it']})\n"
     "</function_calls>",
     W ";f {\"a\":true,\"b\":{\"k\":[null,\"it\"]}}", ""},
    {"<function_calls>f(a=\"</function_calls>\")</function_calls>",
     "f {\"a\":\"</function_calls>\"}", ""},
    {"<function_calls><invoke name=\"f\"></invoke></function_calls>", "f {}", ""},
    {"a <invoke name=\"f\">\n<parameter name=\"a\">x > \"y\"</parameter>\n<parameter "
     "name=\"b\">\n[1]\n"
     "</parameter>\n</invoke>\n<invoke name=\"g\"></invoke>",
     "f {\"a\":\"x > \\\"y\\\"\",\"b\":[1]};g {}", "a"},
    {"<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n"
     "</minimax:tool_call>",
     "f {\"a\":1}", ""},
    {"<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
     "string=\"true\">x"
     "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     "f {\"a\":\"x\"}", ""},
    {"<function name=\"f\"><param name=\"a\">x</param><param name=\"b\">[1]</param></function>",
     "f {\"a\":\"x\",\"b\":[1]}", ""},
    {"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x <b></arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>[1]</arg_value>\n</tool_call><tool_call>g</tool_call>",
     "f {\"a\":\"x <b>\",\"b\":[1]};g {}", ""},
    {"<tool_call>f of x</tool_call>", NULL, ""},
    {"<tool_call>f<arg_key>a</arg_key><arg_value>x", NULL, ""},
    {"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
     "\"a\": 1}"
     "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_"
     "end|>"
     "<|tool_calls_section_end|>",
     "f {\"a\":1}#functions.f:0;g {}#functions.g:1", ""},
    {"<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": "
     "1}}\n]"
     "<|END_ACTION|>",
     "f {\"a\":1}", ""},
    {"<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "f {}", ""},
    {"<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": "
     "{}}\n</tool_calls>",
     "f {};g {}", ""},
    {"<|function_call|>{\"name\": \"f\", \"arguments\": {}}", "f {}", ""},
    /* DeepSeek */
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
     "{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
     "```json\n{\"a\": \"```\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     W ";f {\"a\":\"```\"}", ""},
    {"Look:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": "
     "\"Paris\"}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"<｜tool▁call▁end｜>\"}"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     W ";f {\"a\":\"<｜tool▁call▁end｜>\"}", "Look:"},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}", "f {\"a\":1}", ""},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1", NULL, ""},
    {"<｜tool▁calls▁begin｜>f", NULL, ""},
    /* gpt-oss */
    {"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "
     "\"Paris\"}<|call|>",
     W, ""},
    {"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": \"<|call|> "
     "<|message|>\"}<|call|><|start|>assistant<|channel|>commentary to=functions.get<|message|>{}",
     "f {\"a\":\"<|call|> <|message|>\"};get {}", ""},
    {"Now.<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", "f {}", "Now."},
    {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": ", NULL, ""},
    {"<|channel|>commentary to=functions. json<|message|>{}", NULL, ""},
    {"<|channel|>commentary<|message|>{}", NULL, ""},
    /* Mistral Small 3.2 */
    {"[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{\"a\": \"[ARGS]\"}[TOOL_CALLS]get[CALL_ID]abc123deg"
     "[ARGS]{}",
     "f {\"a\":\"[ARGS]\"}#abc123def;get {}#abc123deg", ""},
    /* Phi 4, Granite 3, Gemma 3, LFM 2 */
    {"functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"get\"}]",
     "f {\"a\":1};get {}", ""},
    {"functools are useful", NULL, ""},
    {"functools[1]", NULL, ""},
    {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"<|/tool_call|>\"}}]",
     "f {\"a\":\"<|/tool_call|>\"}", ""},
    {"```tool_code\nget_weather(city='Paris')\n```", W, ""},
    {"<|tool_call_start|>[f(a='\"', b=\"\\d\", c=[True, false], d='\t'), get()]<|tool_call_end|>ok",
     "f {\"a\":\"\\\"\",\"b\":\"\\\\d\",\"c\":[true,false],\"d\":\"\\t\"};get {}", ""},
};
enum { N_MARKUP = sizeof markup / sizeof *markup };

/* All calls of an answer as one text; NULL if there are none; owned. */
static char *calls_of(const char *text, size_t *n_before) {
    struct lk_tool_calls calls;
    char *out = NULL;
    if (lk_tool_calls_parse(text, tools, &calls)) {
        out = calloc(1, 2 * strlen(text) + 1000);
        *n_before = calls.n_before;
        for (size_t i = 0; i < calls.n; i++) {
            const struct lk_tool_call *c = &calls.at[i];
            size_t len = strlen(out);
            snprintf(out + len, 900, "%s%s %s%s%s", i ? ";" : "", c->name, c->arguments,
                     c->id ? "#" : "", c->id ? c->id : "");
        }
    }
    lk_tool_calls_free(&calls);
    return out;
}

static const struct answer *answer_at(size_t i) {
    return i < N_ANSWER ? &answers[i] : &markup[i - N_ANSWER];
}

static void forms(void **state) {
    for (size_t i = 0; i < N_ANSWER + N_MARKUP; i++) {
        const struct answer *a = answer_at(i);
        size_t n_before = 0;
        char *got = calls_of(a->text, &n_before);
        if ((got != NULL) != (a->want != NULL) || (got && strcmp(got, a->want)))
            fail_msg("%s:\n%s\nbut expected\n%s", a->text, got ? got : "no call",
                     a->want ? a->want : "no call");
        if (got) {
            assert_int_equal(n_before, strlen(a->before));
            assert_memory_equal(a->text, a->before, n_before);
        }
        free(got);
    }
}

/* The arguments as the model wrote them are kept next to their JSON. */
static void written_arguments(void **state) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\" : [1.50, \"}\\\"\"],\"b\":{}} "
         "}</tool_call>",
         "{\"a\" : [1.50, \"}\\\"\"],\"b\":{}}"},
        {"{\"arguments\":{ }, \"name\": \"f\"}", "{ }"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lk_tool_calls calls;
        assert_true(lk_tool_calls_parse(cases[i].text, tools, &calls));
        assert_int_equal(calls.n, 1);
        assert_string_equal(calls.at[0].written, cases[i].want);
        lk_tool_calls_free(&calls);
    }
}

/* The bytes that a stream has sent before its end, if the answer arrives in pieces of `step`. */
static size_t stream(const char *text, size_t step, size_t first) {
    size_t len = strlen(text), sent = 0;
    char *part = strdup(text);
    for (size_t n = first; n <= len; n += step) {
        char end = part[n];
        part[n] = 0;
        size_t may = lk_tool_calls_n_text(part, n, tools, sent);
        assert_in_range(may, sent, n);
        part[n] = end;
        sent = may;
    }
    free(part);
    return sent;
}

/* What is sent before the end is never a part of the calls, wherever the text is split. */
static void splits(void **state) {
    for (size_t i = 0; i < N_ANSWER + N_MARKUP; i++) {
        const char *text = answer_at(i)->text;
        size_t n_before = 0, len = strlen(text);
        char *got = calls_of(text, &n_before);
        for (size_t step = 1; step <= 7; step += 2)
            for (size_t first = 0; first <= len; first++) {
                size_t sent = stream(text, step, first);
                if (got && sent > n_before)
                    fail_msg("%s: %zu bytes were sent, but the calls start at %zu", text, sent,
                             n_before);
            }
        free(got);
    }
}

/* Text that cannot become a call is not held back. */
static void text_is_sent_at_once(void **state) {
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"Hello", 5},
        {"{\"temp", 6}, /* not a key of a call */
        {"{\"na", 0},
        {"{\"name\": \"get_x", 15}, /* not a tool */
        {"{\"name\": \"get_w", 0},
        {"{\"name\": \"f\", \"x", 16},
        {"[1", 2},
        {"[get", 0},
        {"[got", 4},
        {"``", 0},
        {"```c", 4},
        {"```json\n[", 0},
        {"```json\n{\"x", 11},
        {"a <tool_c", 1},
        {"a <tool_x", 9},
        {"a [TOOL_CALLS] no!", 18},
        {"<tool_call>no!", 14},
        {"{\"name\": \"f\"} and", 17},
        {"x  ", 1}, /* white space before a call is dropped */
        {"a <function=", 1},
        {"a <function>", 12},
        {"<tool_call>\n<function=f>\n<par", 0},
        {"<tool_call>\n<function=f>\n<pax", 29},
        {"<|tool_call>call:f{a:<|\"|>x", 0},
        {"<|tool_call>call:f{a:\"", 22},
        {"a<｜tool▁calls▁beg", 1},
        {"functoo", 0},
        {"functool ", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = lk_tool_calls_n_text(cases[i].text, strlen(cases[i].text), tools, 0);
        if (n != cases[i].n)
            fail_msg("%s: %zu bytes can be sent, expected %zu", cases[i].text, n, cases[i].n);
    }
}

/* Random mixtures of the parts of calls. */
static void random_texts(void **state) {
    static const char *const parts[] = {"<tool_call>",
                                        "</tool_call>",
                                        "[TOOL_CALLS]",
                                        "<|python_tag|>",
                                        "{\"name\": \"f\"",
                                        ", \"arguments\": {}",
                                        "}",
                                        "{",
                                        "[",
                                        "]",
                                        "f(a=1)",
                                        "f[ARGS]",
                                        "```json\n",
                                        "```",
                                        " ",
                                        "text",
                                        "\"",
                                        ",",
                                        "<think>",
                                        "</think>",
                                        "\n",
                                        "{\"name\": \"get\", \"parameters\": {\"a\": 'x'}}",
                                        "<function=f>",
                                        "</function>",
                                        "<parameter=a>",
                                        "</parameter>",
                                        "<|tool_call>call:f{",
                                        "<|\"|>",
                                        "<tool_call|>",
                                        "a:1",
                                        "<function_calls>",
                                        "</function_calls>",
                                        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
                                        "f<｜tool▁sep｜>{}",
                                        "<｜tool▁call▁end｜>",
                                        "<|channel|>commentary to=functions.f",
                                        "<|message|>",
                                        "[CALL_ID]",
                                        "functools"};
    uint32_t random = 1;
    size_t n_call = 0;
    for (int k = 0; k < 30000; k++) {
        char text[1000] = "";
        for (uint32_t n = random >> 8 & 7, i = 0; i <= n; i++) {
            random = random * 1664525u + 1013904223u;
            strcat(text, parts[(random >> 8) % (sizeof parts / sizeof *parts)]);
        }
        random = random * 1664525u + 1013904223u;
        size_t n_before = 0;
        char *got = calls_of(text, &n_before);
        size_t sent = stream(text, 1, 0);
        if (got && sent > n_before) fail_msg("%s: sent %zu, calls at %zu", text, sent, n_before);
        n_call += got != NULL;
        free(got);
    }
    assert_true(n_call > 300);
}

/* Add what deltas say to the names and arguments of three calls. */
static void add_deltas(const json_t *deltas, char names[][20], char arguments[][200]) {
    for (size_t k = 0; k < json_array_size(deltas); k++) {
        const json_t *delta = json_array_get(deltas, k), *fn = json_object_get(delta, "function");
        size_t index = (size_t)json_integer_value(json_object_get(delta, "index"));
        const char *name = json_string_value(json_object_get(fn, "name"));
        assert_in_range(index, 0, 2);
        assert_int_equal(name != NULL, json_object_get(delta, "id") != NULL);
        if (name) strcat(names[index], name);
        strcat(arguments[index], json_string_value(json_object_get(fn, "arguments")));
    }
}

/* Calls that are sent as they are written are those of the whole text, in pieces of any length. */
static void calls_in_pieces(void **state) {
    static const char text[] =
        " \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"} \\\"]\"}]}}\n"
        "</tool_call>\n<tool_call>\n{ \"name\" : \"get_weather\", \"parameters\": {}}\n</tool_call>"
        "<tool_call>{\"name\": \"get\", \"arguments\": {\"s\": \"\\\\\"}}</tool_call>";
    static const char *const want[][2] = {{"f", "{\"a\":[1,{\"b\":\"} \\\"]\"}]}"},
                                          {"get_weather", "{}"},
                                          {"get", "{\"s\":\"\\\\\"}"}};
    for (int single = 0; single <= 1; single++)
        for (size_t step = 1; step <= sizeof text; step++) {
            struct lk_request request = {
                .call_word = "<tool_call>", .valid_calls = true, .single_tool_call = single};
            struct lk_call_stream calls = {0};
            char names[3][20] = {""}, arguments[3][200] = {""};
            for (size_t n = 0; n < sizeof text - 1;) {
                n = n + step < sizeof text - 1 ? n + step : sizeof text - 1;
                json_t *deltas = lk_tools_stream_calls(&calls, text, n, 0, &request, "id");
                add_deltas(deltas, names, arguments);
                json_decref(deltas);
            }
            assert_false(calls.failed);
            for (int i = 0; i < 3; i++) {
                assert_string_equal(names[i], i && single ? "" : want[i][0]);
                assert_string_equal(arguments[i], i && single ? "" : want[i][1]);
            }
        }
}

static int load_tools(void **state) {
    tools = json_loads(tool_text, 0, NULL);
    return tools ? 0 : -1;
}

static int free_tools(void **state) {
    json_decref(tools);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),        cmocka_unit_test(written_arguments),
        cmocka_unit_test(splits),       cmocka_unit_test(text_is_sent_at_once),
        cmocka_unit_test(random_texts), cmocka_unit_test(calls_in_pieces),
    };
    return cmocka_run_group_tests(tests, load_tools, free_tools);
}
