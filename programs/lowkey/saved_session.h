/* The --session option: a session that is saved to a file between runs of the program. Functions
 * that return int return a STATUS_*, after printing an error if it is not STATUS_OK. */
#ifndef LK_LOWKEY_SAVED_SESSION_H
#define LK_LOWKEY_SAVED_SESSION_H

#include "common.h"
#include "generate.h"

struct saved_session {
    const char *path; /* NULL: the session is not saved */
    bool exists;
};

/* Look for the file and open the recipe: the one of `kv`, or of the file. Without both, *out stays
 * NULL, as by open_single_recipe. */
int saved_session_find(const struct command *command, struct saved_session *saved,
                       const struct string_list *kv, lk_recipe **out);

/* Restore the session and the sampler if the file exists. */
int saved_session_load(const struct saved_session *saved, lk_session *session, lk_sampler *sampler);

/* Format a user's turn that follows an answer in the model's chat template, up to the start of the
 * assistant's turn, as marked text. *text is owned: free. LK_E_ARG if the template does not write
 * turns one after another; otherwise as lk_chat_format. */
lk_status format_next_turn(const lk_model *model, const char *content, char **text, lk_err *err);

/* Evaluate the last token of the answer if generation stopped before that, and save. */
int saved_session_save(const struct saved_session *saved, lk_session *session,
                       const lk_sampler *sampler, const struct answer *answer);

#endif
