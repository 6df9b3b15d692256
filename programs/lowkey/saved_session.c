/* Loads and saves the session of --session. */
#include "saved_session.h"

#include "base/err.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int saved_session_find(const struct command *command, struct saved_session *saved,
                       const struct string_list *kv, lk_recipe **out) {
    lk_err err = {0};
    saved->exists = saved->path && access(saved->path, F_OK) == 0;
    if (saved->path && !saved->exists && errno != ENOENT)
        return print_error("cannot read %s: %s", saved->path, strerror(errno));
    if (!saved->exists || kv->n) return open_single_recipe(command, kv, out);
    return lk_session_file_recipe(out, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}

int saved_session_load(const struct saved_session *saved, lk_session *session,
                       lk_sampler *sampler) {
    lk_err err = {0};
    if (!saved->exists) return STATUS_OK;
    return lk_session_load(session, sampler, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}

lk_status format_next_turn(const lk_model *model, const char *content, char **text, lk_err *err) {
    /* Format a placeholder turn, alone and with the new turn after it: the difference is what the
     * template writes between an answer and the next one. */
    static const char answer[] = "b";
    lk_message msg[] = {{"user", "a"}, {"assistant", answer}, {"user", content}};
    char *first = NULL, *all = NULL;
    lk_status status = lk_chat_format(model, msg, 1, true, &first, err);
    if (!status) status = lk_chat_format(model, msg, 3, true, &all, err);
    size_t len = status ? 0 : strlen(first), n_answer = sizeof answer - 1;
    if (!status && strncmp(all, first, len) == 0 && strncmp(all + len, answer, n_answer) == 0)
        *text = xasprintf("%s", all + len + n_answer);
    else if (!status)
        status =
            lk_fail(err, LK_E_ARG, "this model's chat template cannot continue a saved session");
    lk_text_free(first);
    lk_text_free(all);
    return status;
}

int saved_session_save(const struct saved_session *saved, lk_session *session,
                       const lk_sampler *sampler, const struct answer *answer) {
    lk_err err = {0};
    if (!saved->path) return STATUS_OK;
    if (answer->n_tok > answer->n_eval) {
        lk_status status =
            lk_session_eval(session, answer->tok + answer->n_tok - 1, 1, false, &err);
        if (status && status != LK_E_FULL) return print_lk_error(&err);
    }
    return lk_session_save(session, sampler, saved->path, &err) ? print_lk_error(&err) : STATUS_OK;
}
