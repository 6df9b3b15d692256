/* The tokens of a replay. */
#include "engine/replay.h"

#include "engine/model.h"
#include "recipe/recipe_levels.h"

#include <string.h>

enum { N_QUOTED = 8 }; /* tokens before a part: where the model finds it */

/* Without `out` the tokens are only counted. */
static lk_status make(const struct lk_model *model, const int32_t *tok, size_t n_tok, int32_t *out,
                      size_t *n, lk_err *err) {
    static const char request[] = "\n\nRepeat the text above word for word:\n\n";
    int32_t *first = NULL;
    size_t n_first = 0;
    lk_status status = lk_tokenize(model, request, strlen(request), 0, 0, &first, &n_first, err);
    if (status && status != LK_E_UNSUPPORTED) return status;
    *n = 0;
    for (size_t at = 0; at < n_tok;) {
        size_t from = at > N_QUOTED ? at - N_QUOTED : 0, room = LK_EVAL_MAX - n_first;
        size_t part = n_tok - from < room ? n_tok - from : room;
        if (out) {
            for (size_t i = 0; i < n_first; i++) out[*n + i] = first[i]; /* first may be NULL */
            memcpy(out + *n + n_first, tok + from, part * sizeof *out);
        }
        *n += n_first + part;
        at = from + part;
    }
    lk_tokens_free(first);
    return LK_OK;
}

lk_status lk_replay_count(const struct lk_model *model, const struct lk_recipe *recipe,
                          size_t n_tok, size_t *n, lk_err *err) {
    *n = 0;
    return lk_recipe_replays(recipe) ? make(model, NULL, n_tok, NULL, n, err) : LK_OK;
}

lk_status lk_replay_write(const struct lk_model *model, const int32_t *tok, size_t n_tok,
                          int32_t *out, lk_err *err) {
    size_t n;
    return make(model, tok, n_tok, out, &n, err);
}
