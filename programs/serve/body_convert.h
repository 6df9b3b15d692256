/* Helpers that build a body in OpenAI's chat form from a body of another protocol. Values that
 * need no change are shared by both, not copied. */
#ifndef LK_SERVE_BODY_CONVERT_H
#define LK_SERVE_BODY_CONVERT_H

#include "base/buf.h"
#include "serve/api_error.h"

/* Set the fields that have the same name and meaning in both: the sampling parameters of OpenAI and
 * llama-server, "stream", and those of lowkey. */
void lk_convert_common_fields(json_t *to, const json_t *from);

/* Set to[name] to the value of from[given], unless that is absent or null. */
void lk_convert_field(json_t *to, const char *name, const json_t *from, const char *given);

/* Is this an object with this "type"? */
bool lk_convert_is_type(const json_t *object, const char *type);

/* How the texts of parts are joined. */
struct lk_text_parts {
    const char *const *skip; /* names of parts that are dropped; ends with NULL; may be NULL */
    const char *separator;   /* between parts */
};

/* Append the text of a content: a string, or an array of parts. An absent or null content has no
 * text; a number or an object without a type is written as JSON. A part of any API becomes its
 * text; an image or a file becomes a placeholder for the model to see, and a part without text is
 * left out: both are counted in `error` (lk_api_omit), so that no conversation ends for something
 * in its history. False: out of memory. */
bool lk_convert_text(const json_t *content, const struct lk_text_parts *parts, struct lk_buf *out,
                     struct lk_api_error *error);

/* Append to an array; releases `item`. False: out of memory, or `item` is NULL for that reason. */
bool lk_convert_append(json_t *list, json_t *item, struct lk_api_error *error);

/* Append a message to an array, and free the text. */
bool lk_convert_message(json_t *messages, const char *role, struct lk_buf *text,
                        struct lk_api_error *error);

/* Make one message of system prompts that follow each other: most chat templates know only one, at
 * the start. For the end of a conversion, so that many prompts are copied once. */
bool lk_convert_join_systems(json_t *messages, struct lk_api_error *error);

/* The role of a message as chats have it. An unknown one, which is listed in error->ignored, is the
 * user's. */
const char *lk_convert_role(const json_t *message, struct lk_api_error *error);

/* The name of an earlier call without one: its result follows. */
#define LK_UNKNOWN_TOOL "unknown"

/* Append a call to the last message, which becomes an assistant's if it is not. `arguments` is JSON
 * in a string, or the value itself. */
bool lk_convert_call(json_t *messages, const json_t *id, const json_t *name,
                     const json_t *arguments, struct lk_api_error *error);

/* Append the result of a call, and free the text. */
bool lk_convert_result(json_t *messages, const json_t *id, struct lk_buf *text,
                       struct lk_api_error *error);

/* Add to the thoughts of a message, from an API that has them apart from its text. Frees the text,
 * which may be empty. */
bool lk_convert_thoughts(json_t *message, struct lk_buf *text, struct lk_api_error *error);

/* Ask for thoughts, or for none: variables of chat templates. */
void lk_convert_thinking(json_t *to, bool enabled);

/* Put the tools and the choice of a body, in the form of any API, into the form of chats, in place.
 * A tool that the model cannot call is left out and listed in error->ignored. */
bool lk_convert_tools(json_t *body, struct lk_api_error *error);
bool lk_convert_tool_choice(json_t *body, struct lk_api_error *error);

/* 503: out of memory. */
bool lk_convert_no_memory(struct lk_api_error *error);

#endif
