#include "kept.h"

#include "say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kept_find(const struct verb *verb, struct kept *kept, const struct texts *kv, lk_recipe **out) {
    lk_err err = {0};
    kept->found = kept->path && access(kept->path, F_OK) == 0;
    if (kept->path && !kept->found && errno != ENOENT)
        return complain("cannot read %s: %s", kept->path, strerror(errno));
    if (!kept->found || kv->n) return recipe_only(verb, kv, out);
    return lk_session_file_recipe(out, kept->path, &err) ? complain_of(&err) : STATUS_OK;
}

int kept_load(const struct kept *kept, lk_session *session, lk_sampler *sampler) {
    lk_err err = {0};
    return kept->found && lk_session_load(session, sampler, kept->path, &err) ? complain_of(&err)
                                                                              : STATUS_OK;
}

int kept_turn(const lk_model *model, const char *content, char **text) {
    /* What the template writes between an answer and the next answer is found by a made-up first turn. */
    static const char answer[] = "b";
    lk_message msg[] = {{"user", "a"}, {"assistant", answer}, {"user", content}};
    char *first = NULL, *all = NULL;
    lk_err err = {0};
    lk_status status = lk_chat_format(model, msg, 1, true, &first, &err);
    if (!status) status = lk_chat_format(model, msg, 3, true, &all, &err);
    size_t len = status ? 0 : strlen(first), n_answer = sizeof answer - 1;
    bool found =
        !status && strncmp(all, first, len) == 0 && strncmp(all + len, answer, n_answer) == 0;
    if (found) *text = must_print("%s", all + len + n_answer);
    lk_text_free(first);
    lk_text_free(all);
    if (status) return complain_of(&err);
    return found ? STATUS_OK
                 : complain("this model's chat template cannot continue a saved session; leave out "
                            "--chat");
}

int kept_save(const struct kept *kept, lk_session *session, const lk_sampler *sampler,
              const struct answer *answer) {
    lk_err err = {0};
    if (!kept->path) return STATUS_OK;
    if (answer->n_tok > answer->n_eval) { /* the last token was shown, but not read */
        lk_status status =
            lk_session_eval(session, answer->tok + answer->n_tok - 1, 1, false, &err);
        if (status && status != LK_E_FULL) return complain_of(&err);
    }
    return lk_session_save(session, sampler, kept->path, &err) ? complain_of(&err) : STATUS_OK;
}
