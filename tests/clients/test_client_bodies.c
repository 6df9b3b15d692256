/* Bodies of other APIs converted to OpenAI's chat form: expected results, and what is refused. */
#include "serve/anthropic.h"
#include "serve/ollama.h"
#include "serve/openai_responses.h"
#include "test.h"

static json_t *convert_anthropic(const json_t *body, struct lk_api_error *error) {
    return lk_anthropic_to_chat(body, false, error);
}

typedef json_t *convert_fn(const json_t *body, struct lk_api_error *error);

/* Texts have single quotes instead of double ones. */
static json_t *parse(const char *text) {
    char *copy = strdup(text);
    json_error_t why;
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_t *json = json_loads(copy, 0, &why);
    if (!json) fail_msg("%s: %s", why.text, copy);
    free(copy);
    return json;
}

static void expect_converted(convert_fn *convert, const char *given, const char *expected) {
    struct lk_api_error error = {0};
    json_t *body = parse(given), *wanted = parse(expected), *before = json_deep_copy(body),
           *made = convert(body, &error);
    if (!made) fail_msg("%s: %s", given, error.msg);
    char *text = json_dumps(made, JSON_SORT_KEYS);
    if (!json_equal(made, wanted)) fail_msg("%s became %s", given, text);
    assert_true(json_equal(body, before)); /* values are shared, so none may have changed */
    free(text);
    json_decref(made);
    json_decref(before);
    json_decref(wanted);
    json_decref(body);
}

/* The error's message must contain `named`. */
static void expect_refused(convert_fn *convert, const char *given, const char *named) {
    struct lk_api_error error = {0};
    json_t *body = parse(given), *made = convert(body, &error);
    if (made) fail_msg("%s was accepted", given);
    assert_int_equal(error.status, 400);
    if (!strstr(error.msg, named)) fail_msg("%s: %s", given, error.msg);
    json_decref(body);
}

#define USER "{'role': 'user', 'content': 'a'}"

static void anthropic_messages(void **state) {
    expect_converted(convert_anthropic, "{'max_tokens': 3, 'messages': [" USER "]}",
                     "{'max_tokens': 3, 'messages': [" USER "]}");
    /* System blocks are joined; a reminder right after them belongs to them. */
    expect_converted(convert_anthropic,
                     "{'max_tokens': 3, 'system': [{'type': 'text', 'text': 'x'}, {'type': 'text', "
                     "'text': 'y', 'cache_control': {'type': 'ephemeral'}}], 'messages': [{'role': "
                     "'system', 'content': 'z'}, " USER "]}",
                     "{'max_tokens': 3, 'messages': [{'role': 'system', 'content': "
                     "'x\\n\\ny\\n\\nz'}, " USER "]}");
    /* Thoughts and a call join their text, a result precedes the text after it. */
    expect_converted(
        convert_anthropic,
        "{'max_tokens': 3, 'messages': [" USER ", {'role': 'assistant', 'content': [{'type': "
        "'thinking', 'thinking': 'h'}, {'type': 'text', 'text': 'b'}, {'type': 'tool_use', 'id': "
        "'t', 'name': 'f', 'input': {'n': 1}}]}, {'role': 'user', 'content': [{'type': "
        "'tool_result', 'tool_use_id': 't', 'content': [{'type': 'text', 'text': 'r'}]}, {'type': "
        "'text', 'text': 'c'}]}]}",
        "{'max_tokens': 3, 'messages': [" USER ", {'role': 'assistant', 'content': 'b', "
        "'reasoning_content': 'h', 'tool_calls': [{'id': 't', 'type': 'function', 'function': "
        "{'name': 'f', 'arguments': "
        "'{\\'n\\':1}'}}]}, {'role': 'tool', 'tool_call_id': 't', 'content': 'r'}, {'role': "
        "'user', 'content': 'c'}]}");
}

static void anthropic_fields(void **state) {
    expect_converted(
        convert_anthropic,
        "{'model': 'claude', 'max_tokens': 3, 'stop_sequences': ['s'], 'temperature': 1, 'top_k': "
        "5, 'stream': true, 'metadata': {'user_id': 'u'}, 'thinking': {'type': 'enabled'}, "
        "'tools': [{'name': 'f', 'description': 'd', 'input_schema': {'type': 'object'}}], "
        "'tool_choice': {'type': 'tool', 'name': 'f', 'disable_parallel_tool_use': true}, "
        "'output_config': {'format': {'type': 'json_schema', 'schema': {}}}, 'messages': [" USER
        "]}",
        "{'model': 'claude', 'max_tokens': 3, 'stop': ['s'], 'temperature': 1, 'top_k': 5, "
        "'stream': true, 'chat_template_kwargs': {'enable_thinking': true, 'thinking': true}, "
        "'tools': "
        "[{'type': 'function', 'function': {'name': 'f', 'description': 'd', 'parameters': "
        "{'type': 'object'}}}], 'tool_choice': {'type': 'function', 'function': {'name': 'f'}}, "
        "'parallel_tool_calls': false, 'response_format': {'type': 'json_schema', 'json_schema': "
        "{'schema': {}}}, 'messages': [" USER "]}");
    expect_converted(convert_anthropic,
                     "{'max_tokens': 3, 'messages': [" USER "], 'tool_choice': {'type': 'any'}}",
                     "{'max_tokens': 3, 'messages': [" USER "], 'tool_choice': 'required'}");
    expect_converted(convert_anthropic,
                     "{'max_tokens': 3, 'messages': [" USER "], 'thinking': {'type': 'disabled'}}",
                     "{'max_tokens': 3, 'messages': [" USER "], 'chat_template_kwargs': "
                     "{'enable_thinking': false, 'thinking': false}}");
    expect_converted(convert_anthropic,
                     "{'max_tokens': 3, 'messages': [" USER "], 'reasoning_budget': 7}",
                     "{'max_tokens': 3, 'messages': [" USER "], 'reasoning_budget': 7}");
}

static void anthropic_refuses(void **state) {
    static const struct {
        const char *body, *named;
    } bad[] = {{"{'messages': [" USER "]}", "'max_tokens' is missing"},
               {"{'max_tokens': 3}", "'messages'"},
               {"{'max_tokens': 3, 'messages': []}", "'messages'"},
               {"{'max_tokens': 3, 'messages': [" USER "], 'tools': [{}]}", "tools[0] has no name"},
               {"{'max_tokens': 3, 'messages': [" USER "], 'tool_choice': {'type': 'tool'}}",
                "'tool_choice'"},
               {"{'max_tokens': 3, 'messages': [" USER "], 'mcp_servers': [{'name': 'x'}]}",
                "'mcp_servers'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(convert_anthropic, bad[i].body, bad[i].named);
}

static void responses_input(void **state) {
    expect_converted(lk_openai_responses_to_chat,
                     "{'model': 'm', 'instructions': 'x', 'input': 'a', 'max_output_tokens': 3}",
                     "{'model': 'm', 'max_tokens': 3, 'messages': [{'role': 'system', 'content': "
                     "'x'}, " USER "]}");
    /* The shape of Codex: a developer's message, calls and results as items, tools of others. */
    expect_converted(
        lk_openai_responses_to_chat,
        "{'instructions': 'x', 'store': false, 'include': ['reasoning.encrypted_content'], "
        "'prompt_cache_key': 'k', 'reasoning': {'effort': 'low'}, 'parallel_tool_calls': false, "
        "'tool_choice': 'auto', 'tools': [{'type': 'web_search'}, {'type': 'function', 'name': "
        "'shell', 'strict': false, 'parameters': {'type': 'object'}}], 'input': [{'type': "
        "'message', 'role': 'developer', 'content': [{'type': 'input_text', 'text': 'y'}]}, "
        "{'type': 'message', 'role': 'user', 'content': [{'type': 'input_text', 'text': 'a'}]}, "
        "{'type': 'reasoning', 'summary': []}, {'type': 'function_call', 'call_id': 't', 'name': "
        "'shell', 'arguments': '{}'}, {'type': 'function_call', 'call_id': 'u', 'name': 'shell', "
        "'arguments': '{}'}, {'type': 'function_call_output', 'call_id': 't', 'output': 'r'}]}",
        "{'parallel_tool_calls': false, 'tool_choice': 'auto', 'reasoning_effort': 'low', "
        "'tools': [{'type': 'function', 'function': {'name': 'shell', 'parameters': {'type': "
        "'object'}}}], 'messages': [{'role': "
        "'system', 'content': 'x\\n\\ny'}, " USER
        ", {'role': 'assistant', 'content': null, 'tool_calls': [{'id': 't', 'type': 'function', "
        "'function': {'name': 'shell', 'arguments': '{}'}}, {'id': 'u', 'type': 'function', "
        "'function': {'name': 'shell', 'arguments': '{}'}}]}, {'role': 'tool', 'tool_call_id': "
        "'t', 'content': 'r'}]}");
    /* Thoughts belong to the text or the call after them. */
    expect_converted(
        lk_openai_responses_to_chat,
        "{'input': [{'role': 'user', 'content': 'a'}, {'type': 'reasoning', 'summary': [{'type': "
        "'summary_text', 'text': 'h'}]}, {'type': 'message', 'role': 'assistant', 'content': "
        "[{'type': 'output_text', 'text': 'b'}]}, {'type': 'reasoning', 'summary': [], 'content': "
        "[{'type': 'reasoning_text', 'text': 'i'}]}, {'type': 'function_call', 'call_id': 't', "
        "'name': 'f', 'arguments': '{}'}]}",
        "{'messages': [" USER
        ", {'role': 'assistant', 'content': 'b', 'reasoning_content': 'h'}, {'role': 'assistant', "
        "'content': '', 'reasoning_content': 'i', 'tool_calls': [{'id': 't', 'type': 'function', "
        "'function': {'name': 'f', 'arguments': '{}'}}]}]}");
    expect_converted(
        lk_openai_responses_to_chat,
        "{'input': 'a', 'text': {'format': {'type': 'json_schema', 'name': 'n', 'schema': {}}}, "
        "'tool_choice': {'type': 'function', 'name': 'f'}}",
        "{'messages': [" USER
        "], 'response_format': {'type': 'json_schema', 'json_schema': {'type': 'json_schema', "
        "'name': 'n', 'schema': {}}}, 'tool_choice': {'type': 'function', 'function': {'name': "
        "'f'}}}");
}

/* What a text model cannot read becomes a placeholder or is left out, and counted. */
static void left_out(void **state) {
    (void)state;
    static const struct {
        convert_fn *convert;
        const char *given, *expected, *omitted;
        size_t n;
    } cases[] = {
        {convert_anthropic,
         "{'max_tokens': 3, 'messages': [{'role': 'user', 'content': [{'type': 'image', 'source': "
         "{}}, {'type': 'text', 'text': 'a'}]}, {'role': 'assistant', 'content': [{'type': "
         "'server_tool_use', 'id': 's', 'name': 'web_search', 'input': {}}, {'type': 'text', "
         "'text': 'b'}]}, {'role': 'user', 'content': [{'type': 'document', 'title': 't', "
         "'source': {'type': 'text', 'data': 'c'}}, {'type': 'document', 'title': 'u', 'source': "
         "{'type': 'base64'}}, {'type': 'search_result', 'title': 'v', 'content': [{'type': "
         "'text', 'text': 'd'}]}]}, {'role': 'assistant', 'content': null}]}",
         "{'max_tokens': 3, 'messages': [{'role': 'user', 'content': '[image omitted: this model "
         "reads text only]\\n\\na'}, {'role': 'assistant', 'content': 'b'}, {'role': 'user', "
         "'content': 'c\\n\\n[document omitted: this model reads text only; its name is "
         "u]\\n\\nv\\nd'}, "
         "{'role': 'assistant', 'content': ''}]}",
         "image", 3},
        {convert_anthropic,
         "{'max_tokens': 3, 'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', "
         "'id': 't', 'name': 'f', 'input': null}]}, {'role': 'user', 'content': [{'type': "
         "'tool_result', 'tool_use_id': 't', 'content': [{'type': 'tool_reference', 'tool_name': "
         "'g'}, {'type': 'image'}]}]}]}",
         "{'max_tokens': 3, 'messages': [{'role': 'assistant', 'content': null, 'tool_calls': "
         "[{'id': 't', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}]}, "
         "{'role': 'tool', 'tool_call_id': 't', 'content': 'g\\n\\n[image omitted: this model "
         "reads text only]'}]}",
         "image", 1},
        {lk_openai_responses_to_chat,
         "{'input': [{'type': 'custom_tool_call', 'call_id': 'c', 'name': 'patch', 'input': "
         "'text'}, {'type': 'custom_tool_call_output', 'call_id': 'c', 'output': 'r'}, {'type': "
         "'local_shell_call', 'call_id': 'd', 'action': {'command': ['ls']}}, {'type': "
         "'local_shell_call_output', 'id': 'd', 'output': {'exit': 0}}, {'type': "
         "'web_search_call', 'id': 'w', 'status': 'completed'}, {'type': 'mcp_call', 'id': 'm', "
         "'name': 'ask', 'arguments': '{}', 'output': 'o'}, {'type': 'item_reference', 'id': "
         "'i'}, {'type': 'compaction', 'encrypted_content': 'x'}, {'role': 'user', 'content': "
         "[{'type': 'input_text', 'text': 'a'}, {'type': 'input_image', 'image_url': 'u'}, "
         "{'type': 'input_file', 'filename': 'f.pdf'}]}]}",
         "{'messages': [{'role': 'assistant', 'content': null, 'tool_calls': [{'id': 'c', 'type': "
         "'function', 'function': {'name': 'patch', 'arguments': 'text'}}]}, {'role': 'tool', "
         "'tool_call_id': 'c', 'content': 'r'}, {'role': 'assistant', 'content': null, "
         "'tool_calls': [{'id': 'd', 'type': 'function', 'function': {'name': 'local_shell', "
         "'arguments': '{\\'command\\':[\\'ls\\']}'}}]}, {'role': 'tool', 'tool_call_id': 'd', "
         "'content': '{\\'exit\\':0}'}, {'role': 'assistant', 'content': null, 'tool_calls': "
         "[{'id': 'm', 'type': 'function', 'function': {'name': 'ask', 'arguments': '{}'}}]}, "
         "{'role': 'tool', 'tool_call_id': 'm', 'content': 'o'}, {'role': 'user', 'content': "
         "'a\\n[image omitted: this model reads text only]\\n[file omitted: this model reads text "
         "only; its name is f.pdf]'}]}",
         "web_search_call", 5},
        {lk_openai_responses_to_chat, "{'input': []}",
         "{'messages': [{'role': 'user', 'content': ''}]}", "", 0},
        {lk_ollama_chat_to_openai,
         "{'messages': [{'role': 'user', 'content': 'a', 'images': ['eA==', 'eA==']}]}",
         "{'stream': true, 'messages': [{'role': 'user', 'content': 'a\\n[image omitted: this "
         "model reads text only]\\n[image omitted: this model reads text only]'}]}",
         "image", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct lk_api_error error = {0};
        expect_converted(cases[i].convert, cases[i].given, cases[i].expected);
        json_t *body = parse(cases[i].given), *made = cases[i].convert(body, &error);
        assert_int_equal(error.n_omitted, cases[i].n);
        assert_string_equal(error.omitted, cases[i].omitted);
        json_decref(made);
        json_decref(body);
    }
}

/* Items that no API has: a role, a text or a name is missing, or of another type. */
static void odd_items(void **state) {
    (void)state;
    static const char call[] = "{'role': 'assistant', 'content': null, 'tool_calls': [{'type': "
                               "'function', 'function': {'name': 'unknown', 'arguments': '5'}}]}";
    char expected[400];
    snprintf(expected, sizeof expected,
             "{'max_tokens': 3, 'messages': [" USER ", " USER ", {'role': 'user', 'content': '5'}, "
             "{'role': 'user', 'content': ''}, %s]}",
             call);
    expect_converted(
        convert_anthropic,
        "{'max_tokens': 3, 'messages': ['a', null, {'role': 'robot', 'content': 'a'}, "
        "{'role': 'user', 'content': 5}, {'role': 'user', 'content': [{'type': 'text'}, "
        "null]}, {'role': 'assistant', 'content': [{'type': 'tool_use', 'input': 5}]}]}",
        expected);
    snprintf(expected, sizeof expected, "{'messages': [" USER ", " USER ", %s]}", call);
    expect_converted(lk_openai_responses_to_chat,
                     "{'input': ['a', null, {'type': 'message', 'content': 'a'}, {'type': "
                     "'function_call', 'arguments': 5}]}",
                     expected);
    snprintf(expected, sizeof expected,
             "{'stream': true, 'messages': ['a', {'role': 'user', 'content': 'ab'}, %s]}", call);
    expect_converted(
        lk_ollama_chat_to_openai,
        "{'messages': ['a', null, {'role': 'robot', 'content': ['a', {'type': 'text', "
        "'text': 'b'}]}, {'role': 'assistant', 'tool_calls': [{'function': {'arguments': "
        "5}}]}]}",
        expected);
}

static void responses_refuses(void **state) {
    static const struct {
        const char *body, *named;
    } bad[] = {{"{}", "'input'"},
               {"{'input': 5}", "'input'"},
               {"{'input': [5]}", "input[0]"},
               {"{'input': 'a', 'conversation': 'c'}", "'conversation'"},
               {"{'input': 'a', 'background': true}", "'background'"},
               {"{'input': 'a', 'top_logprobs': 3}", "'top_logprobs'"},
               {"{'input': 'a', 'instructions': 5}", "'instructions'"},
               {"{'input': 'a', 'tools': 5}", "'tools'"},
               {"{'input': 'a', 'tool_choice': {'type': 'mcp'}}", "'tool_choice'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(lk_openai_responses_to_chat, bad[i].body, bad[i].named);
}

static void ollama_bodies(void **state) {
    expect_converted(
        lk_ollama_chat_to_openai,
        "{'model': 'x:latest', 'keep_alive': '5m', 'think': false, 'options': {'num_ctx': 4096, "
        "'num_predict': 3, 'seed': -1, 'repeat_last_n': -1, 'stop': ['s'], 'num_gpu': 9}, "
        "'format': 'json', 'messages': [" USER
        ", {'role': 'assistant', 'content': '', 'thinking': 'h', 'tool_calls': [{'function': "
        "{'name': 'f', 'arguments': {'n': 1}}}]}, {'role': 'tool', 'tool_name': 'f', 'content': "
        "'r'}], 'tools': []}",
        "{'model': 'x', 'max_tokens': 3, 'stream': true, 'stop': ['s'], 'repeat_last_n': 1048576, "
        "'response_format': {'type': 'json_object'}, 'tools': [], 'chat_template_kwargs': "
        "{'enable_thinking': false, 'thinking': false}, 'messages': [" USER
        ", {'role': 'assistant', 'content': null, 'reasoning_content': 'h', 'tool_calls': "
        "[{'type': 'function', 'function': "
        "{'name': 'f', 'arguments': '{\\'n\\':1}'}}]}, {'role': 'tool', 'name': 'f', 'content': "
        "'r'}]}");
    expect_converted(lk_ollama_generate_to_openai,
                     "{'prompt': 'a', 'system': 'x', 'stream': false, 'format': {'type': 'null'}, "
                     "'options': {'num_predict': -1, 'seed': 7}}",
                     "{'stream': false, 'seed': 7, 'response_format': {'type': 'json_schema', "
                     "'json_schema': {'schema': {'type': 'null'}}}, 'messages': [{'role': "
                     "'system', 'content': 'x'}, " USER "]}");
    expect_converted(lk_ollama_generate_to_openai, "{'prompt': 'a', 'think': 'high'}",
                     "{'stream': true, 'reasoning_effort': 'high', 'messages': [" USER "]}");
    expect_converted(lk_ollama_generate_to_openai, "{'prompt': 'a', 'system': 'x', 'raw': true}",
                     "{'stream': true, 'prompt': 'a'}");
    expect_converted(lk_ollama_generate_to_openai, "{'prompt': 'a', 'suffix': 'b'}",
                     "{'stream': true, 'prompt': 'a', 'suffix': 'b'}");
    /* Asks to load the model. */
    expect_converted(lk_ollama_generate_to_openai, "{'keep_alive': -1}", "{'stream': true}");
}

static void ollama_refuses(void **state) {
    static const struct {
        const char *body, *named;
    } bad[] = {{"{'messages': 'a'}", "'messages'"},
               {"{'messages': [" USER "], 'options': []}", "'options'"},
               {"{'messages': [" USER "], 'format': 'yaml'}", "'format'"},
               {"{'messages': [" USER "], 'stream': 1}", "'stream'"},
               {"{'messages': [" USER "], 'think': 1}", "'think'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(lk_ollama_chat_to_openai, bad[i].body, bad[i].named);
    expect_refused(lk_ollama_generate_to_openai, "{'prompt': 5}", "'prompt'");
    expect_refused(lk_ollama_generate_to_openai, "{'prompt': 'a', 'context': [1]}", "'context'");
    expect_refused(lk_ollama_generate_to_openai, "{'prompt': 'a', 'images': ['eA==']}", "'images'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anthropic_messages), cmocka_unit_test(anthropic_fields),
        cmocka_unit_test(anthropic_refuses),  cmocka_unit_test(responses_input),
        cmocka_unit_test(left_out),           cmocka_unit_test(odd_items),
        cmocka_unit_test(responses_refuses),  cmocka_unit_test(ollama_bodies),
        cmocka_unit_test(ollama_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
