/* Fuzz target: thoughts and tool calls in a response. The input is the response's text. Its
 * thoughts do not depend on how it arrives. Calls that are found are complete, and the text before
 * them is never less than what a stream may already have sent. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz_input.h"
#include "serve/thoughts.h"
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

/* The thoughts and the answer of a text that arrives in pieces of `step` bytes. */
static void split(const char *template, const char *prompt, const char *text, size_t step,
                  struct lk_buf out[2]) {
    struct lk_thoughts t;
    size_t len = strlen(text);
    lk_thoughts_init(&t, lk_thought_form_of(template), prompt, len % 2);
    for (size_t at = 0; at < len; at += step)
        lk_thoughts_push(&t, text + at, len - at < step ? len - at : step, &out[0], &out[1]);
    lk_thoughts_finish(&t, &out[0], &out[1]);
    lk_thoughts_free(&t);
}

static void check_thoughts(const char *text) {
    static const char *const forms[][2] = {
        {"", ""},           {"", "<think>"},    {"[THINK]", "[THINK]"},
        {"<|channel>", ""}, {"<response>", ""}, {"<|start|>assistant", "<|start|>assistant"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct lk_buf whole[2] = {{0}, {0}}, pieces[2] = {{0}, {0}};
        split(forms[i][0], forms[i][1], text, strlen(text) + 1, whole);
        split(forms[i][0], forms[i][1], text, 1, pieces);
        for (int k = 0; k < 2; k++) {
            if (strcmp(lk_buf_cstr(&whole[k]), lk_buf_cstr(&pieces[k])) != 0) abort();
            lk_buf_free(&whole[k]);
            lk_buf_free(&pieces[k]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_string(data, size);
    struct lk_tools_text shown = {0}, shown_first = {0};
    size_t len = strlen(text), i;
    json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name",
                              "get_weather");
    json_t *all = lk_tools_parse_calls(text, tools, "id", false, &shown, NULL),
           *first = lk_tools_parse_calls(text, tools, "id", true, &shown_first, NULL), *call;
    if ((all != NULL) != (first != NULL)) abort();
    if (all) {
        if (memcmp(&shown, &shown_first, sizeof shown) != 0 || json_array_size(first) != 1) abort();
        if (shown.n_before > shown.rest || shown.rest > len) abort();
        if (json_array_size(all) < 1) abort();
        json_array_foreach(all, i, call) check_call(call);
    }
    check_thoughts(text);
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
    if (all && sent > shown.n_before) abort();
    json_decref(all);
    json_decref(tools);
    json_decref(first);
    free(text);
    return 0;
}
