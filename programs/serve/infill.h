/* Fill in the middle: a prompt made of the texts before and after the cursor, and control tokens
 * that the model was trained with. */
#ifndef LK_SERVE_INFILL_H
#define LK_SERVE_INFILL_H

#include "lowkey.h"
#include "serve/api_error.h"

struct lk_infill {
    const char *prefix, *suffix; /* before and after the cursor; NULL: empty */
    const char *prompt;          /* the end of the prefix: the line of the cursor; or NULL */
    const json_t *extra;         /* other files: an array of {"filename", "text"}; or NULL */
};

/* Make the prompt as marked text (lk_chat_format) in *out, owned: free(). False: see `error`. 501:
 * the model has no such tokens. */
bool lk_infill_format(const struct lk_infill *infill, const lk_model *model, char **out,
                      struct lk_api_error *error);

#endif
