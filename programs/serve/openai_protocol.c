/* OpenAI's chat and text completions as protocols. A stream consists of server-sent events without
 * names: "data: {...}\n\n" per chunk, "data: [DONE]\n\n" at the end. */
#include "serve/json_text.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/protocol.h"

/* Append one event; releases `json`. */
static void append_data(struct lk_buf *out, json_t *json) {
    lk_buf_append_str(out, "data: ");
    lk_buf_add_json(out, json);
    lk_buf_append_str(out, "\n\n");
}

static bool append_whole(struct lk_response *response, struct lk_buf *out) {
    return lk_response_text(response, out);
}

static void append_event(struct lk_response *response, struct lk_event *event, struct lk_buf *out) {
    append_data(out, lk_response_chunk(response, event));
    if (!lk_response_is_complete(response)) return;
    if (response->completion->request.include_usage)
        append_data(out, lk_response_usage_chunk(response));
    lk_buf_append_str(out, "data: [DONE]\n\n");
}

static void append_comment(struct lk_response *response, struct lk_buf *out) {
    (void)response;
    lk_buf_append_str(out, ": waiting\n\n");
}

static void append_error(struct lk_response *response, const struct lk_api_error *error,
                         struct lk_buf *out) {
    (void)response;
    append_data(out, lk_api_error_json(error));
}

const struct lk_protocol lk_openai_chat = {.parse = lk_openai_chat_parse,
                                           .n_body = 1,
                                           .whole = append_whole,
                                           .stream_type = "text/event-stream",
                                           .event = append_event,
                                           .idle = append_comment,
                                           .fail = append_error,
                                           .error = lk_api_error_json};

const struct lk_protocol lk_openai_completion = {.parse = lk_openai_completion_parse,
                                                 .n_body = 1,
                                                 .whole = append_whole,
                                                 .stream_type = "text/event-stream",
                                                 .event = append_event,
                                                 .idle = append_comment,
                                                 .fail = append_error,
                                                 .error = lk_api_error_json};
