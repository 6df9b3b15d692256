/* The fields of request bodies: what becomes of every name that clients of this and of other
 * servers send. None is ignored in silence:
 *
 *   read       the endpoint reads it
 *   free       it has no effect on the answer, whatever its value
 *   synonym    it becomes the field that means the same here
 *   lacking    this server does not have it: refused by name, unless its value changes nothing
 *   unknown    listed in error->ignored, for a header of the reply and for the log */
#ifndef LK_SERVE_FIELDS_H
#define LK_SERVE_FIELDS_H

#include "serve/api_error.h"

/* Whose body it is: bits of a set in the table. */
enum lk_fields_of {
    LK_FIELDS_CHAT = 1,        /* /v1/chat/completions */
    LK_FIELDS_TEXT = 2,        /* /v1/completions */
    LK_FIELDS_NATIVE = 4,      /* llama-server's /completion and /infill */
    LK_FIELDS_RESPONSES = 8,   /* /v1/responses */
    LK_FIELDS_MESSAGES = 16,   /* /v1/messages */
    LK_FIELDS_OLLAMA = 32,     /* /api/chat and /api/generate */
    LK_FIELDS_OPTIONS = 64,    /* "options" of these */
    LK_FIELDS_EMBEDDINGS = 128 /* /v1/embeddings, /api/embed */
};

/* Parse a body as lk_json_parse_body does, and check its fields. Synonyms are renamed. NULL: see
 * `error`. */
json_t *lk_fields_parse(const char *body, size_t len, enum lk_fields_of of,
                        struct lk_api_error *error);

/* Does the value of a field change nothing? `neutral` is the number that does not, and 1 also
 * stands for true. If it is 0, negative numbers mean "off", too. */
bool lk_field_is_neutral(const json_t *value, double neutral);

#endif
