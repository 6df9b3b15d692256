/* Builds bodies in OpenAI's chat form. */
#include "serve/body_convert.h"

#include "serve/json_field.h"

#include <stdlib.h>
#include <string.h>

bool lk_convert_no_memory(struct lk_api_error *error) {
    return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: body");
}

void lk_convert_field(json_t *to, const char *name, const json_t *from, const char *given) {
    json_t *value = json_object_get(from, given);
    if (value && !json_is_null(value)) json_object_set(to, name, value);
}

void lk_convert_common_fields(json_t *to, const json_t *from) {
    static const char *const names[] = {"temperature",    "top_p",
                                        "top_k",          "min_p",
                                        "repeat_penalty", "seed",
                                        "stream",         "presence_penalty",
                                        "repeat_last_n",  "frequency_penalty",
                                        "logit_bias",     "grammar",
                                        "cache_prompt",   "kv",
                                        "ignore_eos"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        lk_convert_field(to, names[i], from, names[i]);
}

bool lk_convert_is_type(const json_t *object, const char *type) {
    const char *given = json_string_value(json_object_get(object, "type"));
    return given && strcmp(given, type) == 0;
}

static bool is_listed(const char *const *names, const char *name) {
    for (; names && *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

/* Parts that are not text, by the first letters of their type, and the word for them. */
static const char *media_name(const char *type) {
    static const char *const names[][2] = {{"image", "image"},          {"input_image", "image"},
                                           {"output_image", "image"},   {"computer", "image"},
                                           {"audio", "audio"},          {"input_audio", "audio"},
                                           {"output_audio", "audio"},   {"video", "video"},
                                           {"input_video", "video"},    {"file", "file"},
                                           {"input_file", "file"},      {"document", "document"},
                                           {"container_upload", "file"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(type, names[i][0], strlen(names[i][0])) == 0) return names[i][1];
    return NULL;
}

static const char *first_string(const json_t *object, const char *const *fields) {
    const char *text = NULL;
    for (; *fields && !text; fields++) text = json_string_value(json_object_get(object, *fields));
    return text;
}

/* A placeholder for something that only its name is known of. */
static void add_placeholder(const json_t *part, const char *media, struct lk_buf *out) {
    static const char *const names[] = {"filename", "title", "name", NULL};
    const json_t *file = json_object_get(part, "file");
    const char *name = first_string(json_is_object(file) ? file : part, names);
    lk_buf_printf(out, "[%s omitted: this model reads text only%s%.200s]", media,
                  name ? "; its name is " : "", name ? name : "");
}

static void convert_text(const json_t *content, const struct lk_text_parts *parts, int depth,
                         struct lk_buf *out, struct lk_api_error *error);

/* The text of a part itself, or of the document in it; NULL: it has none. */
static const char *part_text(const json_t *part) {
    static const char *const texts[] = {"text", "refusal", "tool_name", NULL};
    const char *text = json_is_string(part) ? json_string_value(part) : first_string(part, texts);
    const json_t *source = json_object_get(part, "source");
    if (!text && lk_convert_is_type(source, "text"))
        text = json_string_value(json_object_get(source, "data"));
    if (!text) text = json_string_value(json_object_get(json_object_get(part, "resource"), "text"));
    if (!text) text = json_string_value(json_object_get(json_object_get(part, "text"), "value"));
    return text;
}

/* Append a part of a content, if it has a text: its own, that of a document or of what it contains,
 * or a placeholder. A part without a type, or a text that is not one, is written as JSON. *n counts
 * the parts with text before it. */
static void convert_part(const json_t *part, const struct lk_text_parts *parts, int depth,
                         size_t *n, struct lk_buf *out, struct lk_api_error *error) {
    enum { MAX_DEPTH = 4 }; /* a document in a result in a message */
    const char *type = json_string_value(json_object_get(part, "type")), *text = part_text(part);
    json_t *source = json_object_get(part, "source"), *value = json_object_get(part, "text"),
           *content = json_object_get(json_is_object(source) ? source : part, "content");
    if (json_is_null(part) || (!text && json_is_null(value))) return;
    if (!text && (!type || value)) {
        if ((*n)++) lk_buf_append_str(out, parts->separator);
        lk_buf_add_json(out, json_incref(value ? value : (json_t *)part));
        return;
    }
    bool nested = !text && depth < MAX_DEPTH && (json_is_string(content) || json_is_array(content));
    const char *media = !text && !nested ? media_name(type) : NULL;
    if (!text && !nested) lk_api_omit(error, type);
    if (!text && !nested && !media) return;
    if ((*n)++) lk_buf_append_str(out, media && !*parts->separator ? "\n" : parts->separator);
    if (text) lk_buf_append_str(out, text);
    if (media) add_placeholder(part, media, out);
    const char *title = json_string_value(json_object_get(part, "title"));
    if (nested && title) lk_buf_printf(out, "%s\n", title);
    const struct lk_text_parts inner = {parts->skip, "\n"};
    if (nested) convert_text(content, &inner, depth + 1, out, error);
}

/* Is an object a part of a content, and not a value, as the result of a tool? */
static bool is_part(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type && (part_text(object) || media_name(type) || json_object_get(object, "content"));
}

static void convert_text(const json_t *content, const struct lk_text_parts *parts, int depth,
                         struct lk_buf *out, struct lk_api_error *error) {
    const json_t *part;
    size_t i, n = 0;
    lk_buf_append_str(out, "");
    if (!content) return;
    if (json_is_object(content) && !is_part(content)) {
        lk_buf_add_json(out, json_incref((json_t *)content));
        return;
    }
    if (!json_is_array(content)) {
        convert_part(content, parts, depth, &n, out, error);
        return;
    }
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type && is_listed(parts->skip, type)) continue;
        convert_part(part, parts, depth, &n, out, error);
    }
}

bool lk_convert_text(const json_t *content, const struct lk_text_parts *parts, struct lk_buf *out,
                     struct lk_api_error *error) {
    convert_text(content, parts, 0, out, error);
    return !out->failed || lk_convert_no_memory(error);
}

const char *lk_convert_role(const json_t *message, struct lk_api_error *error) {
    static const char *const roles[][2] = {{"system", "system"}, {"developer", "developer"},
                                           {"user", "user"},     {"assistant", "assistant"},
                                           {"tool", "tool"},     {"function", "function"},
                                           {"human", "user"},    {"model", "assistant"},
                                           {"ai", "assistant"},  {"ipython", "tool"}};
    const char *given = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; given && i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(given, roles[i][0]) == 0) return roles[i][1];
    lk_api_ignore(error, "role ", given ? given : "null");
    return "user";
}

bool lk_convert_append(json_t *list, json_t *item, struct lk_api_error *error) {
    return json_array_append_new(list, item) == 0 || lk_convert_no_memory(error);
}

/* The text as a JSON string; frees it. NULL: out of memory. */
static json_t *detach_string(struct lk_buf *text) {
    json_t *out = text->failed ? NULL : json_stringn(lk_buf_cstr(text), text->len);
    lk_buf_free(text);
    return out;
}

/* "developer" is the newer name of "system". */
static bool is_system(const char *role) {
    return role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

bool lk_convert_message(json_t *messages, const char *role, struct lk_buf *text,
                        struct lk_api_error *error) {
    json_t *content = detach_string(text);
    if (!content) return lk_convert_no_memory(error);
    return lk_convert_append(messages, json_pack("{s:s, s:o}", "role", role, "content", content),
                             error);
}

static bool is_system_message(const json_t *message) {
    return is_system(json_string_value(json_object_get(message, "role")));
}

static void append_content(struct lk_buf *out, const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    lk_buf_append(out, json_string_value(content), json_string_length(content));
}

bool lk_convert_join_systems(json_t *messages, struct lk_api_error *error) {
    size_t n = json_array_size(messages);
    json_t *out = json_array();
    bool good = out != NULL;
    for (size_t i = 0, end; good && i < n; i = end) {
        json_t *first = json_array_get(messages, i);
        struct lk_buf text = {0};
        for (end = i + 1; end < n && is_system_message(first); end++) {
            if (!is_system_message(json_array_get(messages, end))) break;
            if (end == i + 1) append_content(&text, first);
            lk_buf_append_str(&text, "\n\n");
            append_content(&text, json_array_get(messages, end));
        }
        if (end > i + 1) good = json_object_set_new(first, "content", detach_string(&text)) == 0;
        good = good && json_array_append(out, first) == 0;
    }
    good = good && json_array_clear(messages) == 0 && json_array_extend(messages, out) == 0;
    json_decref(out);
    return good || lk_convert_no_memory(error);
}

bool lk_convert_result(json_t *messages, const json_t *id, struct lk_buf *text,
                       struct lk_api_error *error) {
    json_t *content = detach_string(text);
    if (!content) return lk_convert_no_memory(error);
    return lk_convert_append(messages,
                             json_pack("{s:s, s:O*, s:o}", "role", "tool", "tool_call_id",
                                       json_is_string(id) ? id : NULL, "content", content),
                             error);
}

/* The last message, if it is an assistant's; otherwise a new one without content. Borrowed. */
static json_t *last_assistant(json_t *messages, struct lk_api_error *error) {
    size_t n = json_array_size(messages);
    json_t *last = n ? json_array_get(messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && strcmp(role, "assistant") == 0) return last;
    if (!lk_convert_append(messages, json_pack("{s:s, s:n}", "role", "assistant", "content"),
                           error))
        return NULL;
    return json_array_get(messages, n);
}

bool lk_convert_call(json_t *messages, const json_t *id, const json_t *name,
                     const json_t *arguments, struct lk_api_error *error) {
    json_t *last = last_assistant(messages, error), *calls = json_object_get(last, "tool_calls");
    if (last && !calls) {
        json_object_set_new(last, "tool_calls", json_array());
        calls = json_object_get(last, "tool_calls");
    }
    struct lk_buf text = {0};
    if (!arguments || json_is_null(arguments))
        lk_buf_append_str(&text, "{}");
    else if (json_is_string(arguments))
        lk_buf_append_str(&text, json_string_value(arguments));
    else
        lk_buf_add_json(&text, json_incref((json_t *)arguments));
    json_t *dumped = detach_string(&text);
    if (!last || !dumped) {
        json_decref(dumped);
        return lk_convert_no_memory(error);
    }
    const char *called = json_string_value(name);
    return lk_convert_append(calls,
                             json_pack("{s:O*, s:s, s:{s:s, s:o}}", "id",
                                       json_is_string(id) ? id : NULL, "type", "function",
                                       "function", "name", called ? called : LK_UNKNOWN_TOOL,
                                       "arguments", dumped),
                             error);
}

bool lk_convert_thoughts(json_t *message, struct lk_buf *text, struct lk_api_error *error) {
    json_t *thoughts = detach_string(text);
    if (!thoughts) return lk_convert_no_memory(error);
    if (json_string_length(thoughts) > 0) json_object_set(message, "reasoning_content", thoughts);
    json_decref(thoughts);
    return true;
}

void lk_convert_thinking(json_t *to, bool enabled) {
    json_object_set_new(to, "chat_template_kwargs",
                        json_pack("{s:b, s:b}", "enable_thinking", enabled, "thinking", enabled));
}

/* ---- tools ---- */

/* Append a tool in the form of chats. In /v1/responses its fields stand next to the type, and in
 * /v1/messages the parameters are "input_schema". Tools of other types run at the provider that the
 * client expects, or have parameters that only its models know: they are left out. */
static bool convert_tool(json_t *tools, json_t *tool, size_t i, struct lk_api_error *error) {
    const json_t *inner = json_object_get(tool, "function"),
                 *function = json_is_object(inner) ? inner : tool;
    json_t *name = json_object_get(function, "name"),
           *description = json_object_get(function, "description"),
           *parameters = json_object_get(function, "parameters"),
           *schema = json_object_get(function, "input_schema");
    const char *type = json_string_value(json_object_get(tool, "type"));
    bool is_function = !type || strcmp(type, "function") == 0 ||
                       (strcmp(type, "custom") == 0 && json_is_object(schema));
    if (json_is_object(tool) && !is_function) {
        lk_api_ignore(error, "tools.", type);
        return true;
    }
    if (!json_is_string(name))
        return lk_api_error_set(error, 400, "invalid_value", "tools",
                                "tools[%zu] has no name: a tool is {\"type\": \"function\", "
                                "\"function\": {\"name\", \"description\", \"parameters\"}}",
                                i);
    bool is_deep = lk_json_is_deep(tool);
    if (is_deep) lk_api_ignore(error, "parameters of ", json_string_value(name));
    if (type && function == inner && !is_deep)
        return lk_convert_append(tools, json_incref(tool), error);
    if (!json_is_object(parameters)) parameters = json_is_object(schema) ? schema : NULL;
    if (is_deep) parameters = NULL;
    return lk_convert_append(tools,
                             json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function",
                                       "name", name, "description",
                                       json_is_string(description) ? description : NULL,
                                       "parameters", parameters),
                             error);
}

bool lk_convert_tools(json_t *body, struct lk_api_error *error) {
    json_t *given = json_object_get(body, "tools"), *tools, *tool;
    size_t i;
    if (!lk_json_field_is_set(body, "tools")) return true;
    if (!json_is_array(given))
        return lk_api_error_set(error, 400, "invalid_type", "tools", "'tools' must be an array");
    tools = json_array();
    json_array_foreach(given, i, tool) {
        if (!convert_tool(tools, tool, i, error)) {
            json_decref(tools);
            return false;
        }
    }
    return json_object_set_new(body, "tools", tools) == 0 || lk_convert_no_memory(error);
}

bool lk_convert_tool_choice(json_t *body, struct lk_api_error *error) {
    static const char *const modes[] = {"auto", "none", "required"};
    json_t *choice = json_object_get(body, "tool_choice"), *name = json_object_get(choice, "name"),
           *inner = json_object_get(json_object_get(choice, "function"), "name"), *out = NULL;
    const char *word =
        json_string_value(json_is_object(choice) ? json_object_get(choice, "type") : choice);
    if (!choice || json_is_null(choice) || (word && strcmp(word, "allowed_tools") == 0) ||
        json_is_string(inner))
        return true;
    if (word && strcmp(word, "any") == 0) word = "required";
    for (size_t i = 0; word && i < sizeof modes / sizeof *modes; i++)
        if (strcmp(word, modes[i]) == 0) out = json_string(modes[i]);
    if (!out && json_is_object(choice) && json_is_string(name))
        out = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    if (!out)
        return lk_api_error_set(error, 400, "invalid_value", "tool_choice",
                                "'tool_choice' must be none, auto, required or any, or an object "
                                "that names a function or has the type allowed_tools");
    return json_object_set_new(body, "tool_choice", out) == 0 || lk_convert_no_memory(error);
}
