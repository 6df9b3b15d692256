/* Fuzz target: a chat template, a zero byte, and a conversation as JSON: a list of messages. Any
 * template ends within the bounds of memory and time, with an error of one line or an output that
 * is the same the next time. */
#include "template/chat_messages.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(lk_status status, const lk_err *err) {
    if (status == LK_OK || !err->msg[0] || strchr(err->msg, '\n')) abort();
}

static void check_rendering(const struct lk_chat_template *t, const json_t *messages) {
    struct lk_chat_input input = {.messages = messages, .tools = messages, .reply = true};
    for (int with_tools = 0; with_tools < 2; with_tools++) {
        lk_jinja_char *out[2] = {NULL, NULL};
        size_t n[2] = {0, 0};
        lk_status status[2];
        if (!with_tools) input.tools = NULL;
        for (int i = 0; i < 2; i++) {
            lk_err err = {0};
            status[i] = lk_chat_template_render(t, &input, &out[i], &n[i], &err);
            if (status[i]) check_error(status[i], &err);
        }
        bool same = status[0] == status[1] && n[0] == n[1] &&
                    (!n[0] || memcmp(out[0], out[1], n[0] * sizeof *out[0]) == 0);
        free(out[0]);
        free(out[1]);
        if (!same) abort();
        input.tools = messages;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char plain[] =
        "[{\"role\": \"system\", \"content\": \"a <|b|> c\"}, {\"role\": \"user\", \"content\": "
        "\"x\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, null, 0.5]}}}]}]";
    const uint8_t *zero = memchr(data, 0, size);
    size_t n = zero ? (size_t)(zero - data) : size;
    char *template = malloc(n + 1);
    if (!template) return 0;
    if (n) memcpy(template, data, n);
    template[n] = 0;
    struct lk_chat_template *t = NULL;
    lk_err err = {0};
    struct lk_chat_texts texts = {template, NULL, "<s>", "</s>"};
    lk_status status = lk_chat_template_new(&t, &texts, &err);
    if (status) {
        check_error(status, &err);
    } else {
        json_t *messages = zero ? json_loadb((const char *)zero + 1, size - n - 1, 0, NULL) : NULL;
        if (!json_is_array(messages)) {
            json_decref(messages);
            messages = json_loads(plain, 0, NULL);
        }
        check_rendering(t, messages);
        struct lk_chat_input input = {.messages = messages, .reply = true};
        lk_jinja_char *out = NULL;
        status = lk_chat_messages_render(t, &input, &out, &n, &err); /* rewrites messages */
        if (status) check_error(status, &err);
        free(out);
        json_decref(messages);
    }
    lk_chat_template_free(t);
    free(template);
    return 0;
}
