/* Request bodies of /api/chat and /api/generate, converted to OpenAI's forms. */
#include "serve/ollama_body.h"

#include "serve/body_convert.h"
#include "serve/json_field.h"

#include <string.h>

/* Sampling parameters, under "options". Others are about the loading of models and are ignored:
 * num_ctx, num_batch, num_gpu, num_thread, use_mmap and so on are options of `lowkey serve`. */
static bool convert_options(json_t *to, const json_t *from, struct lk_api_error *error) {
    static const char *const same[] = {"temperature", "top_p",
                                       "top_k",       "min_p",
                                       "stop",        "repeat_penalty",
                                       "typical_p",   "presence_penalty",
                                       "mirostat",    "frequency_penalty",
                                       "tfs_z"};
    const json_t *options = json_object_get(from, "options"),
                 *n = json_object_get(options, "num_predict"),
                 *seed = json_object_get(options, "seed"),
                 *last_n = json_object_get(options, "repeat_last_n");
    if (options && !json_is_null(options) && !json_is_object(options))
        return lk_api_error_set(error, 400, "invalid_type", "options",
                                "'options' must be an object");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        lk_convert_field(to, same[i], options, same[i]);
    /* -1 and -2 mean no limit, a random seed, and the whole context. */
    if (!json_is_integer(n) || json_integer_value(n) > 0)
        lk_convert_field(to, "max_tokens", options, "num_predict");
    if (!json_is_integer(seed) || json_integer_value(seed) >= 0)
        lk_convert_field(to, "seed", options, "seed");
    if (json_is_integer(last_n) && json_integer_value(last_n) < 0)
        json_object_set_new(to, "repeat_last_n", json_integer(1 << 20));
    else
        lk_convert_field(to, "repeat_last_n", options, "repeat_last_n");
    return true;
}

/* "format" is "json" or a schema. */
static bool convert_format(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *format = json_object_get(from, "format");
    const char *word = json_string_value(format);
    if (!format || json_is_null(format) || (word && !*word)) return true;
    if (word && strcmp(word, "json") == 0)
        json_object_set_new(to, "response_format", json_pack("{s:s}", "type", "json_object"));
    else if (json_is_object(format))
        json_object_set_new(
            to, "response_format",
            json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format));
    else
        return lk_api_error_set(error, 400, "invalid_value", "format",
                                "'format' must be 'json' or a JSON schema");
    return true;
}

void lk_ollama_convert_model(json_t *to, const json_t *from) {
    static const char tag[] = ":latest";
    const size_t tag_len = sizeof tag - 1;
    json_t *model = json_object_get(from, "model");
    const char *name = json_string_value(model);
    size_t len = json_string_length(model);
    if (name && len > tag_len && strcmp(name + len - tag_len, tag) == 0)
        json_object_set_new(to, "model", json_stringn(name, len - tag_len));
    else
        lk_convert_field(to, "model", from, "model");
}

/* Thoughts are on or off, or have an effort. */
static bool convert_think(json_t *to, const json_t *from, struct lk_api_error *error) {
    json_t *think = json_object_get(from, "think");
    if (!think || json_is_null(think)) return true;
    if (json_is_string(think))
        json_object_set(to, "reasoning_effort", think);
    else if (json_is_boolean(think))
        lk_convert_thinking(to, json_is_true(think));
    else
        return lk_api_error_set(error, 400, "invalid_type", "think",
                                "'think' must be true, false, or an effort such as \"low\"");
    return true;
}

/* Fields that both have. Ignored are keep_alive, truncate and template, because the model stays
 * loaded and has a template. */
static json_t *convert_common(const json_t *body, struct lk_api_error *error) {
    json_t *to = json_object();
    bool stream = true;
    if (!to) lk_convert_no_memory(error);
    if (to && lk_json_field_bool(body, "stream", &stream, error) &&
        convert_options(to, body, error) && convert_format(to, body, error) &&
        convert_think(to, body, error)) {
        json_object_set_new(to, "stream", json_boolean(stream));
        lk_ollama_convert_model(to, body);
        lk_convert_field(to, "kv", body, "kv");
        lk_convert_field(to, "cache_prompt", body, "cache_prompt");
        lk_convert_field(to, "ignore_eos", body, "ignore_eos");
        return to;
    }
    json_decref(to);
    return NULL;
}

static bool refuse_images(const json_t *object, struct lk_api_error *error) {
    return !lk_json_field_is_set(object, "images") ||
           lk_api_error_set(error, 400, "unsupported", "images",
                            "'images' are not supported: this server takes text only");
}

/* ---- /api/chat ---- */

static bool convert_message(json_t *messages, const json_t *message, size_t i,
                            struct lk_api_error *error) {
    json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content"),
           *calls = json_object_get(message, "tool_calls"), *call;
    size_t k;
    if (!json_is_string(role))
        return lk_api_error_set(error, 400, "missing_field", "messages",
                                "messages[%zu] has no 'role'", i);
    if (content && !json_is_null(content) && !json_is_string(content))
        return lk_api_error_set(error, 400, "invalid_type", "messages",
                                "messages[%zu].content must be a string", i);
    if (!refuse_images(message, error)) return false;
    bool has_text = json_string_length(content) > 0 || json_array_size(calls) == 0;
    json_t *item =
        json_pack("{s:O, s:o}", "role", role, "content",
                  has_text ? json_string(json_is_string(content) ? json_string_value(content) : "")
                           : json_null());
    if (!lk_convert_append(messages, item, error)) return false;
    lk_convert_field(item, "tool_call_id", message, "tool_call_id");
    lk_convert_field(item, "name", message, "tool_name");
    lk_convert_field(item, "reasoning_content", message, "thinking");
    json_array_foreach(calls, k, call) {
        const json_t *function = json_object_get(call, "function");
        if (!lk_convert_call(messages, json_object_get(call, "id"),
                             json_object_get(function, "name"),
                             json_object_get(function, "arguments"), "messages", error))
            return false;
    }
    return true;
}

json_t *lk_ollama_chat_to_openai(const json_t *body, struct lk_api_error *error) {
    const json_t *given = json_object_get(body, "messages"), *message;
    json_t *to = convert_common(body, error), *messages = json_array();
    bool good = to != NULL;
    size_t i;
    if (good && lk_json_field_is_set(body, "messages") && !json_is_array(given))
        good =
            lk_api_error_set(error, 400, "invalid_type", "messages", "'messages' must be an array");
    json_array_foreach(given, i, message) good =
        good && convert_message(messages, message, i, error);
    if (good) {
        json_object_set(to, "messages", messages);
        lk_convert_field(to, "tools", body, "tools");
    }
    json_decref(messages);
    if (good) return to;
    json_decref(to);
    return NULL;
}

/* ---- /api/generate ---- */

static bool convert_prompt(json_t *to, const json_t *body, struct lk_api_error *error) {
    json_t *prompt = json_object_get(body, "prompt"), *system = json_object_get(body, "system");
    bool raw = false, has_suffix = lk_json_field_is_set(body, "suffix");
    if (!lk_json_field_bool(body, "raw", &raw, error) || !refuse_images(body, error)) return false;
    if (prompt && !json_is_null(prompt) && !json_is_string(prompt))
        return lk_api_error_set(error, 400, "invalid_type", "prompt", "'prompt' must be a string");
    if (json_string_length(prompt) == 0) return true;
    if (lk_json_field_is_set(body, "context"))
        return lk_api_error_set(error, 400, "unsupported", "context",
                                "'context' is not supported: send the conversation to /api/chat");
    if (raw || has_suffix) {
        json_object_set(to, "prompt", prompt);
        lk_convert_field(to, "suffix", body, "suffix");
        return true;
    }
    json_t *messages = json_array();
    json_object_set_new(to, "messages", messages);
    if (json_string_length(system) > 0 &&
        !lk_convert_append(messages, json_pack("{s:s, s:O}", "role", "system", "content", system),
                           error))
        return false;
    return lk_convert_append(messages, json_pack("{s:s, s:O}", "role", "user", "content", prompt),
                             error);
}

json_t *lk_ollama_generate_to_openai(const json_t *body, struct lk_api_error *error) {
    json_t *to = convert_common(body, error);
    if (to && convert_prompt(to, body, error)) return to;
    json_decref(to);
    return NULL;
}
