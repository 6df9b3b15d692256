/* A session that is kept in a file between runs of the program. */
#ifndef LK_LOWKEY_KEPT_H
#define LK_LOWKEY_KEPT_H

#include "common.h"
#include "generate.h"

struct kept {
    const char *path; /* NULL: none is kept */
    bool found;
};

/* Each of these returns a program status, STATUS_OK or what to end with after a message. */

/* Look for the file. The recipe is the file's, unless `kv` names one. */
int kept_find(const struct verb *verb, struct kept *kept, const struct texts *kv, lk_recipe **out);

/* The session and the sampler stand where the file says, where there is one. */
int kept_load(const struct kept *kept, lk_session *session, lk_sampler *sampler);

/* A user's turn after an answer, as the model's template writes it, with the assistant's turn opened. *text is
 * owned: free. */
int kept_turn(const lk_model *model, const char *content, char **text);

/* Save the session behind the answer's last token. */
int kept_save(const struct kept *kept, lk_session *session, const lk_sampler *sampler,
              const struct answer *answer);

#endif
