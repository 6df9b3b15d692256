/* Chat templates: conversations with tools, and that nothing but the template makes control
 * tokens. */
#include "lowkey_serve.h"
#include "template/chat_messages.h"
#include "test.h"
#include "tiny_gguf.h"
#include "token/chat_format.h"

#include <unistd.h>

/* ---- models ---- */

enum { CONTROL = 3, MAX_TOKENS = 700 };

static const char *const control[] = {"<|im_start|>",
                                      "<|im_end|>",
                                      "<|endoftext|>",
                                      "<|eot_id|>",
                                      "<|start_header_id|>",
                                      "<|end_header_id|>",
                                      "<start_of_turn>",
                                      "<end_of_turn>",
                                      "[INST]",
                                      "[/INST]",
                                      "[TOOL_CALLS]",
                                      "[AVAILABLE_TOOLS]",
                                      "<|python_tag|>",
                                      "<tool_call>",
                                      "</tool_call>",
                                      "[/AVAILABLE_TOOLS]",
                                      "[TOOL_RESULTS]",
                                      "[/TOOL_RESULTS]",

                                      "\"}"};
enum { N_CONTROL = sizeof control / sizeof *control };

static void set_template(struct gguf_context *g, void *user) {
    static const char *at[MAX_TOKENS];
    static int32_t type[MAX_TOKENS];
    static float score[MAX_TOKENS];
    int64_t texts = gguf_find_key(g, "tokenizer.ggml.tokens"),
            types = gguf_find_key(g, "tokenizer.ggml.token_type");
    size_t n = gguf_get_arr_n(g, texts);
    static char copy[MAX_TOKENS][40];
    for (size_t i = 0; i < n; i++) {
        snprintf(copy[i], sizeof copy[i], "%s", gguf_get_arr_str(g, texts, i));
        type[i] = ((const int32_t *)gguf_get_arr_data(g, types))[i];
    }
    for (size_t i = 0, n_old = n; i < N_CONTROL; i++) {
        size_t k = 0;
        while (k < n_old && strcmp(copy[k], control[i]) != 0) k++;
        if (k < n_old) continue;
        snprintf(copy[n], sizeof copy[n], "%s", control[i]);
        type[n++] = CONTROL;
    }
    for (size_t i = 0; i < n; i++) at[i] = copy[i], score[i] = -(float)i;
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", at, n);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, n);
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, score, n);
    gguf_set_val_str(g, "tokenizer.chat_template", user);
}

/* The same, and the first token is a control token that starts texts. */
static void set_first_token(struct gguf_context *g, void *user) {
    set_template(g, user);
    int64_t types = gguf_find_key(g, "tokenizer.ggml.token_type");
    int32_t type[MAX_TOKENS];
    size_t n = gguf_get_arr_n(g, types);
    memcpy(type, gguf_get_arr_data(g, types), n * sizeof *type);
    type[0] = CONTROL;
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, n);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 0);
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", true);
}

static struct lk_vocab *open_edited(void (*edit)(struct gguf_context *, void *),
                                    const char *template) {
    char path[256];
    const char *dir = getenv("TMPDIR");
    struct lk_vocab *v = NULL;
    lk_err err = {0};
    snprintf(path, sizeof path, "%s/lowkey-chat-%d.gguf", dir ? dir : "/tmp", (int)getpid());
    assert_true(tiny_gguf_write_edited(path, tiny_preset("qwen2-bpe"), edit, (void *)template));
    if (lk_vocab_open(&v, path, &err)) fail_msg("%s", err.msg);
    unlink(path);
    return v;
}

static struct lk_vocab *open_with(const char *template) {
    return open_edited(set_template, template);
}

/* Marked text, or an error; owned. Marks are shown as { and }. */
static char *format(const struct lk_vocab *v, const lk_chat *chat) {
    char *text = NULL;
    lk_err err = {0};
    if (lk_vocab_chat_format_json(v, chat, &text, &err)) return strdup(err.msg);
    return text;
}

static void expect(const struct lk_vocab *v, const lk_chat *chat, const char *want) {
    char *got = format(v, chat), *to = got;
    for (const char *at = got; *at; at++)
        if ((unsigned char)*at < 0xFE) *to++ = *at;
    *to = 0;
    if (strcmp(got, want) != 0) fail_msg("got\n%s\n--- expected\n%s", got, want);
    free(got);
}

/* Templates in the style of families, written for this test. */
static const char chatml_tools[] =
    "{%- if tools %}<|im_start|>system\n{{ messages[0].content if messages[0].role == 'system' }}"
    "\nTools:{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}<|im_end|>\n"
    "{{- '\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>' + m.content + "
    "'</tool_response><|im_end|>\n' }}"
    "{%- elif m.role != 'system' or not tools %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for call in m.tool_calls %}{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + "
    "'\", \"arguments\": ' + call.function.arguments | tojson + '}\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}";
static const char llama_tools[] =
    "{%- for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{%- if loop.first and tools %}{{ tools | tojson(indent=2) + '\n' }}{%- endif %}"
    "{%- if m.tool_calls %}{%- set f = m.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' }}{{ f.arguments | tojson }}{{ '}' }}"
    "{%- else %}{{ m.content | trim }}{%- endif %}{{ '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{%- endif %}";
static const char mistral_tools[] =
    "{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{%- endif %}"
    "{%- if tools %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- if not loop.first and "
    "loop.previtem.role == 'user' %}{{ raise_exception('roles must alternate') }}{%- endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{%- elif m.role == 'tool' %}"
    "{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}"
    "{%- endif %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{%- elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{%- for c in m.tool_calls %}"
    "{{ c.function | tojson }}{{ ', ' if not loop.last }}{%- endfor %}{{ ']' + eos_token }}"
    "{%- else %}{{ m.content + eos_token }}{%- endif %}{%- endfor %}";
/* As newer ones: messages of user and assistant alternate, not counting calls and results. */
static const char strict_tools[] =
    "{%- set n = namespace(i=0) %}{%- for m in messages %}{%- if m.role == 'user' or "
    "(m.role == 'assistant' and not m.tool_calls) %}{%- if (m.role == 'user') != (n.i % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{%- endif %}{%- set n.i = n.i + 1 %}"
    "{%- endif %}{%- endfor %}{{ '[AVAILABLE_TOOLS]' + tools | tojson if tools }}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
    "{%- else %}{{ m.content }}{%- for c in m.tool_calls %}{{ '[TOOL_CALLS]' + c.function.name + "
    "'[ARGS]' + c.function.arguments | tojson }}{%- endfor %}{%- endif %}{%- endfor %}";
/* As gpt-oss: thoughts are called thinking, and a message with calls has either text or them. */
static const char thinking_tools[] =
    "{{ tools | tojson if tools }}{%- for m in messages %}{%- if m.tool_calls %}"
    "{%- if m.content and m.thinking %}{{ raise_exception('both') }}{%- endif %}"
    "{{ '(' + (m.thinking or m.content) + ')' + m.tool_calls[0].function.name + "
    "m.tool_calls[0].function.arguments | tojson }}{%- else %}{{ m.role + ':' + m.content }}"
    "{%- endif %}{%- endfor %}";
/* As QwQ: the prompt starts the thoughts, with a word that starts like that of calls. */
static const char started_thoughts[] =
    "{{ tools | tojson if tools }}{%- for m in messages %}{{ '\n' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls %}{{ '<tool_use>\n{\"name\": \"' + c.function.name + '\", "
    "\"arguments\": ' + c.function.arguments | tojson + '}\n</tool_use>' }}{%- endfor %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '\nassistant\n<think>\n' }}{%- endif %}";
static const char gemma[] =
    "{%- for m in messages %}{%- if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{%- endif %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
    "m.content | trim + '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}";
static const char *const templates[] = {chatml_tools, llama_tools, mistral_tools, gemma};
enum { N_TEMPLATE = sizeof templates / sizeof *templates };

/* ---- tools ---- */

#define TOOLS                                                                                      \
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", "           \
    "\"parameters\": {\"type\": \"object\"}}}]"
#define CALLED                                                                                     \
    "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"q\"}, "      \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"call-1\", "          \
    "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": "        \
    "1}\"}}]}, "                                                                                   \
    "{\"role\": \"tool\", \"tool_call_id\": \"call-1\", \"content\": \"r\"}]"

static void tools_go_through_the_template(void **state) {
    const lk_chat chat = {.messages = CALLED, .tools = TOOLS, .reply = true};
    struct lk_vocab *v = open_with(chatml_tools);
    expect(v, &chat,
           "<|im_start|>system\nS\nTools:\n{\"type\": \"function\", \"function\": {\"name\": "
           "\"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}}<|im_end|>\n"
           "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n{\"name\": \"f\", "
           "\"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>r"
           "</tool_response><|im_end|>\n<|im_start|>assistant\n");
    lk_vocab_free(v);
    v = open_with(mistral_tools); /* no system message, and strict ids */
    char *text = format(v, &chat);
    assert_non_null(strstr(text, "[INST]\xFE"
                                 "S\n\nq\xFF[/INST]"));
    assert_non_null(strstr(text, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"));
    assert_non_null(strstr(text, "[TOOL_RESULTS]\xFEr\xFF[/TOOL_RESULTS]"));
    free(text);
    lk_vocab_free(v);
    v = open_with(gemma); /* knows nothing: everything is text */
    text = format(v, &chat);
    assert_non_null(strstr(text, "S\n\n# Tools\n"));
    assert_non_null(strstr(text, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
                                 "</tool_call>"));
    assert_non_null(strstr(text, "user\n<tool_response>\nr\n</tool_response>"));
    free(text);
    lk_vocab_free(v);
}

static void words_of_calls_are_the_template_s(void **state) {
    static const lk_call_words want[N_TEMPLATE] = {
        {"\n\n\n", "", false, "<tool_call>\n", ""},
        {"", "", true, "", ""},
        {"[", "]", false, "[TOOL_CALLS][", ""},
        {"<tool_call>\n", "\n</tool_call>", false, "<tool_call>\n", ""}};
    for (size_t i = 0; i < N_TEMPLATE; i++) {
        struct lk_vocab *v = open_with(templates[i]);
        lk_call_words got = {.after = ""};
        assert_int_equal(lk_vocab_call_words(v, &got, NULL), LK_OK);
        if (i > 0) assert_string_equal(got.before, want[i].before);
        assert_string_equal(got.after, want[i].after);
        assert_int_equal(got.has_parameters, want[i].has_parameters);
        /* It may start before the call. */
        size_t n = strlen(got.opening), n_want = strlen(want[i].opening);
        assert_true(n >= n_want);
        assert_string_equal(got.opening + n - n_want, want[i].opening);
        assert_non_null(strstr(got.sample, "probe_name"));
        lk_vocab_free(v);
    }
}

static void words_do_not_start_within_the_prompt_s(void **state) {
    struct lk_vocab *v = open_with(started_thoughts);
    lk_call_words got = {.after = ""};
    assert_int_equal(lk_vocab_call_words(v, &got, NULL), LK_OK);
    assert_string_equal(got.before, "<tool_use>\n");
    assert_string_equal(got.after, "\n</tool_use>");
    lk_vocab_free(v);
}

/* Words that are too long to be repeated are not used in part. */
static void words_of_calls_are_whole(void **state) {
    struct lk_vocab *v = open_with(
        "{{ tools | tojson if tools }}{%- for m in messages %}{{ m.role + ':' + m.content }}"
        "{%- for c in m.tool_calls %}{{ 'word ' * 20 + '{\"name\": \"' + c.function.name + '\", "
        "\"arguments\": ' + c.function.arguments | tojson + '}' }}{%- endfor %}{%- endfor %}");
    lk_call_words got = {.after = ""};
    assert_int_equal(lk_vocab_call_words(v, &got, NULL), LK_OK);
    assert_non_null(strstr(got.sample, "word word"));
    assert_int_equal(strlen(got.before) + strlen(got.after) + strlen(got.opening), 0);
    lk_vocab_free(v);
}

#define THOUGHT(text)                                                                              \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": " text      \
    ", \"reasoning_content\": \"h\", \"tool_calls\": [{\"id\": \"call-1\", \"type\": "             \
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": "         \
    "\"tool\", \"tool_call_id\": \"call-1\", \"content\": \"r\"}]"

static void thoughts_and_calls_go_through_the_template(void **state) {
    lk_chat chat = {.messages = THOUGHT("\"\"")};
    struct lk_vocab *v = open_with(thinking_tools);
    expect(v, &chat, "user:q(h)f{}tool:r");
    chat.messages = THOUGHT("\"t\"");
    expect(v, &chat, "user:q(h\n\nt)f{}tool:r");
    lk_vocab_free(v);
    v = open_with(strict_tools);
    expect(v, &chat, "[INST]q[/INST]t[TOOL_CALLS]f[ARGS]{}[TOOL_RESULTS]r[/TOOL_RESULTS]");
    lk_vocab_free(v);
}

/* Tokenizing adds the token that starts a text, so a template's is dropped, whatever its number. */
static void first_token_is_added_once(void **state) {
    struct lk_vocab *v = open_edited(
        set_first_token, "{{ bos_token }}{%- for m in messages %}{{ m.content }}{%- endfor %}");
    expect(v, &(lk_chat){.messages = "[{\"role\": \"user\", \"content\": \"q\"}]"}, "q");
    lk_vocab_free(v);
}

static void last_message_is_continued(void **state) {
    static const char talk[] = "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
                               "\"assistant\", \"content\": \"%s\"}]";
    static const char *const want[N_TEMPLATE] = {
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nThe an",
        "<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\nThe an",
        "[INST]q[/INST]The an",
        "<start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\nThe an",
    };
    for (size_t i = 0; i < N_TEMPLATE; i++) {
        struct lk_vocab *v = open_with(templates[i]);
        char text[200];
        snprintf(text, sizeof text, talk, "The an");
        expect(v, &(lk_chat){.messages = text, .continue_last = true}, want[i]);
        snprintf(text, sizeof text, talk, "");
        char *empty = format(v, &(lk_chat){.messages = text, .continue_last = true}),
             *reply = format(v, &(lk_chat){.messages = "[{\"role\": \"user\", \"content\": "
                                                       "\"q\"}]",
                                           .reply = true});
        assert_string_equal(empty, reply);
        free(empty);
        free(reply);
        lk_err err = {0};
        char *out = NULL;
        const lk_chat user = {.messages = "[{\"role\": \"user\", \"content\": \"q\"}]",
                              .continue_last = true};
        assert_int_equal(lk_vocab_chat_format_json(v, &user, &out, &err), LK_E_ARG);
        lk_vocab_free(v);
    }
}

/* ---- control tokens ---- */

static uint32_t random_state;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* A JSON string: with spellings of control tokens, or the same parts without. */
static json_t *random_string(bool nasty) {
    char text[400] = "x";
    for (uint32_t i = random_below(5); i > 0; i--) {
        const char *word = control[random_below(N_CONTROL)];
        strcat(text, nasty ? word : "y");
        if (random_below(2)) strcat(text, " z\n");
    }
    if (random_below(9) == 0) strcat(text, nasty ? "<|im_" : "w");
    return json_string(text);
}

static json_t *random_call(bool nasty, const char *id) {
    return json_pack("{s:s, s:s, s:{s:o, s:{s:o, s:[o]}}}", "id", id, "type", "function",
                     "function", "name", random_string(nasty), "arguments", "a",
                     random_string(nasty), "b", random_string(nasty));
}

static char *random_chat(const struct lk_vocab *v, bool nasty) {
    json_t *messages = json_array(), *properties = json_object();
    json_t *key = random_string(nasty);
    json_object_set_new(
        properties, json_string_value(key),
        json_pack("{s:s, s:o}", "type", "string", "description", random_string(nasty)));
    json_decref(key);
    json_t *tools = json_pack("[{s:s, s:{s:o, s:o, s:{s:s, s:o}}}]", "type", "function", "function",
                              "name", random_string(nasty), "description", random_string(nasty),
                              "parameters", "type", "object", "properties", properties);
    json_array_append_new(messages,
                          json_pack("{s:s, s:o}", "role", "user", "content", random_string(nasty)));
    for (uint32_t i = random_below(4); i > 0; i--) {
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:[o]}", "role", "assistant", "content", "",
                                        "tool_calls", random_call(nasty, "abcdefgh1")));
        json_array_append_new(
            messages, json_pack("{s:s, s:s, s:o, s:o}", "role", "tool", "tool_call_id", "abcdefgh1",
                                "name", random_string(nasty), "content", random_string(nasty)));
        json_array_append_new(messages, json_pack("{s:s, s:o, s:o}", "role", "assistant", "content",
                                                  random_string(nasty), "reasoning_content",
                                                  random_string(nasty)));
        json_array_append_new(
            messages, json_pack("{s:s, s:o}", "role", "user", "content", random_string(nasty)));
    }
    char *a = json_dumps(messages, 0), *b = json_dumps(tools, 0);
    char *out = format(v, &(lk_chat){.messages = a, .tools = b, .reply = true});
    free(a);
    free(b);
    json_decref(messages);
    json_decref(tools);
    return out;
}

/* The marked tokens of a text, without what is between them. */
static char *only_marked(const char *text) {
    char *out = calloc(strlen(text) + 1, 1), *to = out;
    for (bool inside = false; *text; text++) {
        if ((unsigned char)*text == LK_MARK) inside = true;
        if (inside) *to++ = *text;
        if ((unsigned char)*text == LK_MARK_END) inside = false;
    }
    return out;
}

/* Whatever is in contents, tools, calls and results, the control tokens of the conversation are
 * those that it has with harmless texts. */
static void strangers_make_no_control_tokens(void **state) {
    for (size_t i = 0; i < N_TEMPLATE; i++) {
        struct lk_vocab *v = open_with(templates[i]);
        size_t n_nasty = 0;
        for (uint32_t seed = 0; seed < 300; seed++) {
            random_state = seed;
            char *nasty = random_chat(v, true);
            random_state = seed;
            char *harmless = random_chat(v, false);
            char *a = only_marked(nasty), *b = only_marked(harmless);
            assert_true(*a && *b);
            if (strlen(a) == strlen(b)) n_nasty++;
            assert_string_equal(a, b);
            free(a);
            free(b);
            free(nasty);
            free(harmless);
        }
        assert_int_equal(n_nasty, 300);
        lk_vocab_free(v);
    }
}

/* ---- what a template has no place for ---- */

/* Calls are written as f{...}, messages as role:content; */
#define MESSAGE "{{ m.role }}:{{ m.content }};"
#define CALLS                                                                                      \
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% "       \
    "endfor %}"
#define EACH(text) "{% for m in messages %}" text "{% endfor %}"
#define CALL(id, value)                                                                            \
    "{'id': '" id "', 'type': 'function', 'function': {'name': 'f', 'arguments': '{`a`: " value    \
    "}'}}"
#define RESULT(id) "{'role': 'tool', 'tool_call_id': '" id "', 'content': 'r" id "'}"
#define ASK "{'role': 'user', 'content': 'q'}"
#define TWO_CALLS                                                                                  \
    "[" ASK ", {'role': 'assistant', 'content': 't', 'tool_calls': [" CALL("1", "1") ", " CALL(    \
        "2", "2") "]}, " RESULT("2") ", " RESULT("1") "]"

static const struct {
    const char *template, *messages, *tools, *want;
} rewritten[] = {
    /* Several calls, where a template takes one, or writes only the first. */
    {EACH(
         "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}" MESSAGE CALLS),
     TWO_CALLS, NULL, "user:q;assistant:t;f{\"a\": 1}tool:r1;assistant:;f{\"a\": 2}tool:r2;"},
    {EACH(MESSAGE "{% if m.tool_calls %}{% set c = m.tool_calls[0] %}{{ c.function.name }}"
                  "{{ c.function.arguments | tojson }}{% endif %}"),
     TWO_CALLS, NULL, "user:q;assistant:t;f{\"a\": 1}tool:r1;assistant:;f{\"a\": 2}tool:r2;"},
    /* Tools that are listed as Python writes dicts say nothing about arguments. */
    {"{% for t in tools %}{{ t.function.name }}{{ t.function.parameters }}{% endfor %}" EACH(
         MESSAGE CALLS),
     TWO_CALLS, "[{'type': 'function', 'function': {'name': 'f', 'parameters': {'a': 1}}}]",
     "f{'a': 1}user:q;assistant:t;f{\"a\": 1}f{\"a\": 2}tool:r2;tool:r1;"},
    /* Tools without a description or a schema, which the template insists on. */
    {"{% for t in tools %}{% if t.function.description is not defined or t.function.parameters"
     ".properties is not defined %}{{ raise_exception('no schema') }}{% endif %}{{ t.function.name "
     "}}"
     "{{ t.function.description }}{{ t.function.parameters | tojson }}{% endfor %}" EACH(MESSAGE),
     "[" ASK "]",
     "[{'type': 'function', 'function': {'name': 'f'}}, {'type': 'function', 'function': {'name': "
     "'g', 'description': 'd', 'parameters': {'type': 'object'}}}]",
     "f{\"type\": \"object\", \"properties\": {}}gd{\"type\": \"object\", \"properties\": "
     "{}}user:q;"},
    /* Models whose templates do not write calls have forms of their own. */
    {"List of tools: {{ tools }}" EACH(MESSAGE), TWO_CALLS, "[{'name': 'f'}]",
     "List of tools: [{'name': 'f'}]user:q;assistant:t<|tool_call_start|>[f(a=1), f(a=2)]"
     "<|tool_call_end|>;tool:r2;tool:r1;"},
    {"{# <|tool_call|> followed by a JSON list #}" EACH(MESSAGE), TWO_CALLS, NULL,
     "user:q;assistant:t\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": "
     "\"f\", "
     "\"arguments\": {\"a\": 2}}];tool:r2;tool:r1;"},
    /* A later system message that would be lost, or replace the first one. */
    {EACH("{% if m.role != 'system' or loop.first %}" MESSAGE "{% endif %}"),
     "[{'role': 'system', 'content': 's'}, " ASK ", {'role': 'system', 'content': 'late'}]", NULL,
     "system:s;user:q;user:late;"},
    /* Thoughts that the template knows only in contents. */
    {EACH("{{ m.role }}:{% if '</think>' in m.content and not loop.last %}"
          "{{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %};"),
     "[" ASK ", {'role': 'assistant', 'content': 't', 'reasoning_content': 'h'}, " ASK
     ", {'role': 'assistant', 'content': 't', 'reasoning_content': 'h'}]",
     NULL, "user:q;assistant:t;user:q;assistant:<think>\nh\n</think>\n\nt;"},
    /* A call without a result, which the template insists on. */
    {EACH("{% if m.tool_calls and loop.last %}{{ raise_exception('no result') }}{% endif %}" MESSAGE
              CALLS),
     "[{'role': 'assistant', 'content': null, 'tool_calls': [" CALL("1", "1") "]}]", NULL,
     "user:;assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>;"},
    /* Roles that do not alternate, ids that are missing. */
    {EACH("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}"
          "{% endif %}" MESSAGE),
     "[{'role': 'assistant', 'content': 'hello'}, " ASK ", " ASK "]", NULL,
     "user:;assistant:hello;user:q\n\nq;"},
    {EACH("{% if m.tool_calls and m.tool_calls[0].id | length != 9 %}{{ raise_exception('id') }}"
          "{% endif %}" MESSAGE CALLS "{{ m.tool_call_id }}"),
     "[" ASK
     ", {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': {}}}]}, "
     "{'role': 'tool', 'content': 'r'}]",
     NULL, "user:q;assistant:;f{}tool:r;call00001"},
};

/* Texts have single quotes instead of double ones, and ` for quotes within strings. */
static json_t *parse_quoted(const char *text) {
    struct lk_buf out = {0};
    for (const char *c = text ? text : "null"; *c; c++) {
        if (*c == '`')
            lk_buf_append_str(&out, "\\\"");
        else
            lk_buf_append(&out, *c == '\'' ? "\"" : c, 1);
    }
    json_t *json = json_loads(lk_buf_cstr(&out), JSON_DECODE_ANY, NULL);
    lk_buf_free(&out);
    return json;
}

static void conversations_are_rewritten(void **state) {
    for (size_t i = 0; i < sizeof rewritten / sizeof *rewritten; i++) {
        struct lk_chat_template *t = NULL;
        const struct lk_chat_texts texts = {rewritten[i].template, NULL, "", ""};
        lk_err err = {0};
        lk_jinja_char *out = NULL;
        size_t n = 0;
        json_t *messages = parse_quoted(rewritten[i].messages),
               *tools = parse_quoted(rewritten[i].tools);
        struct lk_chat_input input = {.messages = messages,
                                      .tools = json_is_array(tools) ? tools : NULL};
        assert_non_null(messages);
        assert_int_equal(lk_chat_template_new(&t, &texts, &err), LK_OK);
        if (lk_chat_messages_render(t, &input, &out, &n, &err)) fail_msg("%zu: %s", i, err.msg);
        char *text = calloc(n + 1, 1);
        for (size_t k = 0; k < n; k++) text[k] = (char)(out[k] & 0xFF);
        if (strcmp(text, rewritten[i].want) != 0) fail_msg("%zu: %s", i, text);
        /* Only own words may become control tokens. */
        for (size_t k = 0; k < n; k++)
            if (text[k] == '|') assert_int_equal(out[k] >> 8, LK_FROM_TEMPLATE);
        free(text);
        free(out);
        json_decref(messages);
        json_decref(tools);
        lk_chat_template_free(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tools_go_through_the_template),
        cmocka_unit_test(words_of_calls_are_the_template_s),
        cmocka_unit_test(words_do_not_start_within_the_prompt_s),
        cmocka_unit_test(words_of_calls_are_whole),
        cmocka_unit_test(thoughts_and_calls_go_through_the_template),
        cmocka_unit_test(first_token_is_added_once),
        cmocka_unit_test(last_message_is_continued),
        cmocka_unit_test(conversations_are_rewritten),
        cmocka_unit_test(strangers_make_no_control_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
