/* Renders templates for compare_jinja.py and random_templates.py: reads lines of JSON with
 * "template", "messages" and "tools", and writes for each a line with the messages and tools as the
 * template got them and the text, or an error. With "variables" the template is rendered as is. */
#include "base/buf.h"
#include "template/chat_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON text must be UTF-8, which the marks of own words are not. */
static void drop_marks(json_t *messages) {
    json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) {
        struct lk_buf text = {0};
        const char *content = json_string_value(json_object_get(message, "content"));
        for (; content && *content; content++)
            if ((unsigned char)*content < LK_OWN_WORD_END) lk_buf_append(&text, content, 1);
        json_object_set_new(message, "content", json_string(lk_buf_cstr(&text)));
        lk_buf_free(&text);
    }
}

/* What the template makes of the conversation, a new reference. */
static json_t *render(const json_t *line) {
    struct lk_chat_template *t = NULL;
    lk_err err = {0};
    lk_jinja_char *out = NULL;
    size_t n = 0;
    const struct lk_chat_texts texts = {.template =
                                            json_string_value(json_object_get(line, "template")),
                                        .bos = "<BOS>",
                                        .eos = "<EOS>"};
    json_t *messages = json_deep_copy(json_object_get(line, "messages")),
           *tools = json_object_get(line, "tools");
    struct lk_chat_input input = {.messages = messages,
                                  .tools = json_array_size(tools) > 0 ? tools : NULL,
                                  .variables = json_object_get(line, "variables"),
                                  .reply = true};
    lk_status status = lk_chat_template_new(&t, &texts, &err);
    if (!status && input.variables)
        status = lk_chat_template_render(t, &input, &out, &n, &err);
    else if (!status)
        status = lk_chat_messages_render(t, &input, &out, &n, &err);
    struct lk_buf text = {0};
    lk_buf_append_str(&text, "");
    for (size_t i = 0; i < n; i++) lk_buf_append(&text, &(char){(char)(out[i] & 0xFF)}, 1);
    drop_marks(messages);
    json_t *reply = status ? json_pack("{s:s}", "error", err.msg)
                           : json_pack("{s:s%, s:O?, s:O?, s:b, s:b}", "text", text.at, text.len,
                                       "messages", messages, "tools", input.tools, "calls",
                                       lk_chat_template_support(t).calls, "has_tools",
                                       lk_chat_template_support(t).tools);
    if (!reply) reply = json_pack("{s:s}", "error", "a text that is not UTF-8");
    free(out);
    lk_buf_free(&text);
    json_decref(messages);
    lk_chat_template_free(t);
    return reply;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        json_t *given = json_loads(line, 0, NULL), *reply = given ? render(given) : NULL;
        char *text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
        if (!text) return 1;
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(reply);
        json_decref(given);
    }
    free(line);
    return 0;
}
