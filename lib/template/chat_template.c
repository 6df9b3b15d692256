/* Renders chat templates, and finds out what they take. */
#include "template/chat_template.h"

#include "base/err.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct lk_chat_template {
    struct lk_jinja *plain, *with_tools; /* with_tools: NULL if there is only one */
    char *bos, *eos;
    struct lk_chat_support support;
};

/* ---- rendering ---- */

struct setup {
    const struct lk_chat_template *t;
    const struct lk_chat_input *input;
};

static void set_variable(struct lk_jinja_heap *heap, struct lk_jinja_dict *dict, const char *name,
                         struct lk_jinja_value value) {
    struct lk_jinja_text key = lk_jinja_text_of(heap, name, strlen(name), LK_FROM_TEMPLATE);
    lk_jinja_set(heap, dict, lk_jinja_string(key), value);
}

static struct lk_jinja_value own_text(struct lk_jinja_heap *heap, const char *text) {
    return lk_jinja_string(lk_jinja_text_of(heap, text, strlen(text), LK_FROM_TEMPLATE));
}

/* A role may be a part of a control token that the template makes, if it is a word. */
static bool is_word(const char *text) {
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n < 64 && text[n] == 0;
}

static int origin_of_field(const char *role, const char *field, bool is_last) {
    if (strcmp(field, "tool_calls") == 0) return LK_FROM_CALLS;
    if (strcmp(field, "content") != 0) return LK_FROM_DATA;
    if (is_last) return LK_FROM_LAST;
    if (strcmp(role, "system") == 0) return LK_FROM_SYSTEM;
    return strcmp(role, "tool") == 0 ? LK_FROM_RESULT : LK_FROM_DATA;
}

/* The text of a content, without the bytes around own words. */
static struct lk_jinja_value make_content(struct lk_jinja_heap *heap, const char *text, size_t len,
                                          int origin) {
    lk_jinja_char *at = lk_jinja_alloc(heap, len * sizeof *at);
    size_t n = 0;
    bool own = false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= LK_OWN_WORD_END)
            own = c == LK_OWN_WORD;
        else
            at[n++] = (lk_jinja_char)((unsigned)(own ? LK_FROM_TEMPLATE : origin) << 8 | c);
    }
    return lk_jinja_string((struct lk_jinja_text){at, n});
}

static struct lk_jinja_value make_message(struct lk_jinja_heap *heap, const json_t *message,
                                          bool is_last) {
    const char *role = json_string_value(json_object_get(message, "role")), *field;
    struct lk_jinja_value out = lk_jinja_dict(heap, json_object_size(message));
    json_t *value;
    if (!role) role = "";
    json_object_foreach((json_t *)message, field, value) {
        int origin = origin_of_field(role, field, is_last);
        const char *text = json_string_value(value);
        bool own = strcmp(field, "role") == 0 && is_word(role),
             marked = text && memchr(text, LK_OWN_WORD, json_string_length(value));
        set_variable(heap, out.dict, field,
                     own      ? own_text(heap, role)
                     : marked ? make_content(heap, text, json_string_length(value), origin)
                              : lk_jinja_from_json(heap, value, origin));
    }
    return out;
}

static void set_variables(struct lk_jinja_heap *heap, struct lk_jinja_dict *variables, void *user) {
    const struct setup *setup = user;
    const struct lk_chat_input *input = setup->input;
    struct lk_jinja_value messages = lk_jinja_list(heap, json_array_size(input->messages));
    const json_t *message;
    const char *name;
    json_t *value;
    size_t i, n = json_array_size(input->messages);
    json_array_foreach(input->messages, i, message)
        lk_jinja_push(heap, messages.list, make_message(heap, message, i + 1 == n));
    set_variable(heap, variables, "messages", messages);
    set_variable(heap, variables, "tools",
                 input->tools ? lk_jinja_from_json(heap, input->tools, LK_FROM_TOOLS)
                              : lk_jinja_none());
    set_variable(heap, variables, "documents", lk_jinja_none());
    set_variable(heap, variables, "add_generation_prompt", lk_jinja_bool(input->reply));
    set_variable(heap, variables, "bos_token", own_text(heap, setup->t->bos));
    set_variable(heap, variables, "eos_token", own_text(heap, setup->t->eos));
    json_object_foreach((json_t *)input->variables, name, value)
        set_variable(heap, variables, name, lk_jinja_from_json(heap, value, LK_FROM_DATA));
}

uint64_t lk_chat_text_bytes(const json_t *json) {
    uint64_t n = 4;
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_string(json)) n += json_string_length(json);
    json_array_foreach(json, i, value) n += lk_chat_text_bytes(value);
    json_object_foreach((json_t *)json, key, value) n +=
        4 + strlen(key) + lk_chat_text_bytes(value);
    return n;
}

lk_status lk_chat_template_render(const struct lk_chat_template *t,
                                  const struct lk_chat_input *input, lk_jinja_char **out,
                                  size_t *n_out, lk_err *err) {
    struct setup setup = {t, input};
    uint64_t n_input = lk_chat_text_bytes(input->messages) + lk_chat_text_bytes(input->tools) +
                       lk_chat_text_bytes(input->variables);
    const struct lk_jinja *jinja = input->tools && t->with_tools ? t->with_tools : t->plain;
    return lk_jinja_render(jinja, n_input, set_variables, &setup, out, n_out, err);
}

/* ---- trying ---- */

/* A small conversation, rendered. */
struct trial {
    unsigned found; /* a bit for each origin that occurs; 0: it was refused */
    char *text;     /* owned; NULL: it was refused */
};

static struct trial try(const struct lk_chat_template *t, const char *messages, const char *tools) {
    struct trial out = {0};
    lk_jinja_char *text = NULL;
    size_t n = 0;
    struct lk_chat_input input = {.messages = json_loads(messages, 0, NULL),
                                  .tools = tools ? json_loads(tools, 0, NULL) : NULL};
    if (input.messages && !lk_chat_template_render(t, &input, &text, &n, NULL) &&
        (out.text = calloc(n + 1, 1)))
        for (size_t i = 0; i < n; i++) {
            out.found |= 1u << (text[i] >> 8);
            out.text[i] = (char)(text[i] & 0xFF);
        }
    free(text);
    json_decref((json_t *)input.messages);
    json_decref((json_t *)input.tools);
    return out;
}

/* The origins of a conversation. *has: its text contains both words. */
static unsigned try_words(const struct lk_chat_template *t, const char *messages, const char *tools,
                          const char *a, const char *b, bool *has) {
    struct trial trial = try(t, messages, tools);
    *has = trial.text && strstr(trial.text, a) && strstr(trial.text, b);
    free(trial.text);
    return trial.found;
}

static unsigned try_word(const struct lk_chat_template *t, const char *messages, const char *tools,
                         const char *word, bool *has) {
    return try_words(t, messages, tools, word, word, has);
}

#define USER "{\"role\": \"user\", \"content\": \"question\"}"
#define CALL_START(text, arguments) CALLS_START(text, arguments, "")
#define CALLS_START(text, arguments, more)                                                         \
    "[" USER ", {\"role\": \"assistant\", " text ", \"tool_calls\": [{\"id\": "                    \
    "\"probe0123\", \"type\": \"function\", \"function\": {\"name\": \"probe_name\", "             \
    "\"arguments\": " arguments "}}" more                                                          \
    "]}, {\"role\": \"tool\", \"tool_call_id\": \"probe0123\", "                                   \
    "\"name\": \"probe_name\", \"content\": \"result\"}"
#define CALL_WITH(text, arguments)                                                                 \
    CALL_START(text, arguments)                                                                    \
    ", {\"role\": \"assistant\", \"content\": \"answer\"}, " USER "]"
#define CALL(arguments) CALL_WITH("\"content\": \"\"", arguments)
#define ARGUMENTS "{\"probe_value\": \"v\"}"
#define THOUGHTS "\"reasoning_content\": \"probe_thoughts\", \"thinking\": \"probe_thoughts\""

/* Does the template drop thoughts from the content of an earlier answer, and not know them as a
 * field of the newest one? */
static bool find_inline_thoughts(const struct lk_chat_template *t, const char *tools) {
    static const char word[] = "probe_thoughts";
    bool field = false, called = false, kept = true, answer = false;
    try_word(t, "[" USER ", {\"role\": \"assistant\", \"content\": \"a\", " THOUGHTS "}]", NULL,
             word, &field);
    try_word(t, CALL_START("\"content\": \"\", " THOUGHTS, ARGUMENTS) "]", tools, word, &called);
    static const char thought[] =
        "[" USER ", {\"role\": \"assistant\", \"content\": "
        "\"<think>\\nprobe_thoughts\\n</think>\\n\\nprobe_answer\"}, " USER "]";
    try_word(t, thought, NULL, word, &kept);
    try_word(t, thought, NULL, "probe_answer", &answer);
    return !field && !called && !kept && answer;
}

static struct lk_chat_support find_support(const struct lk_chat_template *t, const char *text) {
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"probe_name\", \"description\": "
        "\"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"probe_key\": "
        "{\"type\": "
        "\"string\", \"description\": \"d\"}}, \"required\": [\"probe_key\"]}}}]";
    const unsigned called = 1u << LK_FROM_CALLS | 1u << LK_FROM_RESULT;
    struct lk_chat_support out = {0};
    bool has_repr = false, has;
    unsigned found =
        try_word(t, "[{\"role\": \"system\", \"content\": \"s\"}, " USER "]", NULL, "", &has);
    out.system = found >> LK_FROM_SYSTEM & 1;
    found = try_words(t,
                      "[{\"role\": \"system\", \"content\": \"probe_first\"}, " USER
                      ", {\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"system\", "
                      "\"content\": \"probe_late\"}, " USER "]",
                      NULL, "probe_first", "probe_late", &has);
    out.late_system = has || found == 0;
    found = try_word(t, "[" USER "]", tools, "", &has);
    out.tools = found >> LK_FROM_TOOLS & 1;
    const char *given = out.tools ? tools : NULL;
    /* Tools have another key: a template may list them as Python writes dicts, but not calls. */
    found = try_word(t, CALL(ARGUMENTS), given, "'probe_value'", &has_repr);
    out.calls = (found & called) == called && !has_repr;
    if (!out.calls) {
        found = try_word(t, CALL("\"{\\\"probe_value\\\": \\\"v\\\"}\""), given, "", &has);
        out.string_arguments = out.calls = (found & called) == called;
    }
    if (out.calls && !out.string_arguments)
        out.joined_thoughts = try_word(t,
                                       CALL_WITH("\"content\": \"text\", \"thinking\": "
                                                 "\"thoughts\"",
                                                 ARGUMENTS),
                                       given, "", &has) == 0;
    if (out.calls && !out.string_arguments)
        out.single_calls =
            try_word(t,
                     CALLS_START(
                         "\"content\": \"\"", ARGUMENTS,
                         ", {\"id\": \"probe4567\", \"type\": \"function\", \"function\": "
                         "{\"name\": \"probe_second\", \"arguments\": " ARGUMENTS
                         "}}") ", {\"role\": \"tool\", \"tool_call_id\": \"probe4567\", \"name\": "
                               "\"probe_second\", \"content\": \"result\"}, " USER "]",
                     given, "probe_second", &has) != 0 &&
            !has;
    out.inline_thoughts = find_inline_thoughts(t, given);
    if (strstr(text, "List of tools: "))
        out.calls_text = LK_CALLS_LFM;
    else if (strstr(text, "<|tool_call|> followed by a JSON list"))
        out.calls_text = LK_CALLS_GRANITE;
    return out;
}

lk_status lk_chat_template_new(struct lk_chat_template **out, const struct lk_chat_texts *texts,
                               lk_err *err) {
    struct lk_chat_template *t = calloc(1, sizeof *t);
    lk_status status = LK_OK;
    if (t) {
        t->bos = strdup(texts->bos);
        t->eos = strdup(texts->eos);
    }
    if (!t || !t->bos || !t->eos) {
        lk_chat_template_free(t);
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot parse the chat template");
    }
    size_t n = strlen(texts->template);
    if (lk_utf8_valid_prefix(texts->template, n) < n)
        status = lk_fail(err, LK_E_FORMAT, "the model's chat template is not UTF-8");
    if (!status) status = lk_jinja_parse(&t->plain, texts->template, n, err);
    if (!status && texts->tool_template) {
        n = strlen(texts->tool_template);
        if (lk_utf8_valid_prefix(texts->tool_template, n) == n)
            lk_jinja_parse(&t->with_tools, texts->tool_template, n, NULL);
    }
    if (status) {
        lk_chat_template_free(t);
        return status;
    }
    t->support = find_support(t, texts->template);
    *out = t;
    return LK_OK;
}

void lk_chat_template_free(struct lk_chat_template *t) {
    if (!t) return;
    lk_jinja_free(t->plain);
    lk_jinja_free(t->with_tools);
    free(t->bos);
    free(t->eos);
    free(t);
}

struct lk_chat_support lk_chat_template_support(const struct lk_chat_template *t) {
    return t->support;
}
