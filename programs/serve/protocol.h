/* A protocol: the form of requests, responses, streams and errors that a family of clients uses.
 *
 *   body --parse--> lk_request --> completion --> events --whole--> JSON
 *                                                   +------event--> bytes of a stream
 *
 * OpenAI's chat form is the common one. Protocols of others convert a body to it, so that every
 * field is checked in one place, and convert its chunks to their own events. */
#ifndef LK_SERVE_PROTOCOL_H
#define LK_SERVE_PROTOCOL_H

#include "serve/response.h"

struct lk_protocol {
    /* Parse the body. *request must be freed in any case. False: see `error`. */
    bool (*parse)(struct lk_request *request, const struct lk_server_opts *opts, const char *body,
                  size_t len, struct lk_api_error *error);
    /* Copies of the body that exist at the same time: 1, one more if it is converted, and more if
     * the response repeats it. */
    int n_body;

    /* The reply to a request without messages or prompt; a new reference. NULL: parse refuses it. */
    json_t *(*empty)(const struct lk_server_opts *opts);

    /* Append the whole response. False if out of memory. */
    bool (*whole)(struct lk_response *response, struct lk_buf *out);

    const char *stream_type; /* Content-Type of a stream */
    /* Append an event, not an error, and after the last one the end of the stream. The delta is
     * freed. Running out of memory marks `out` as failed. */
    void (*event)(struct lk_response *response, struct lk_event *event, struct lk_buf *out);
    /* Append something without meaning, so that proxies and clients do not time out. */
    void (*idle)(struct lk_response *response, struct lk_buf *out);
    /* Append an error, which ends the stream. */
    void (*fail)(struct lk_response *response, const struct lk_api_error *error,
                 struct lk_buf *out);

    /* The body of an error reply; a new reference, NULL if out of memory. */
    json_t *(*error)(const struct lk_api_error *error);
};

/* OpenAI's /v1/chat/completions and /v1/completions. */
extern const struct lk_protocol lk_openai_chat, lk_openai_completion;

#endif
