/* Fuzz target: tool calls in a response. The input is the response's text. Calls that are found are
 * complete, and the text before them is never more than what a stream may already have sent. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz_input.h"
#include "serve/tool_calls.h"
#include "serve/tools.h"

static void check_call(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    const char *arguments = json_string_value(json_object_get(function, "arguments"));
    if (!json_string_value(json_object_get(call, "id"))) abort();
    if (!json_string_value(json_object_get(function, "name")) || !arguments) abort();
    json_t *parsed = json_loads(arguments, 0, NULL);
    if (!json_is_object(parsed)) abort();
    json_decref(parsed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_string(data, size);
    size_t len = strlen(text), n_before = 0, n_first = 0, i;
    json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name",
                              "get_weather");
    json_t *all = lk_tools_parse_calls(text, tools, "id", false, &n_before),
           *first = lk_tools_parse_calls(text, tools, "id", true, &n_first), *call;
    if ((all != NULL) != (first != NULL)) abort();
    if (all) {
        if (n_before != n_first || n_before > len || json_array_size(first) != 1) abort();
        if (json_array_size(all) < 1) abort();
        json_array_foreach(all, i, call) check_call(call);
    }
    /* A stream: what was sent after each prefix stays a part of the text before the calls. */
    size_t step = len / 64 + 1, sent = 0;
    for (size_t n = 0; n <= len; n += step) {
        char end = text[n];
        text[n] = 0;
        size_t may = lk_tool_calls_n_text(text, n, tools, sent);
        text[n] = end;
        if (may > n || may < sent) abort();
        sent = may;
    }
    if (all && sent > n_before) abort();
    json_decref(all);
    json_decref(tools);
    json_decref(first);
    free(text);
    return 0;
}
