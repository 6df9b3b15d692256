/* A conversation on disk, in two files. NAME is a session as `run --session` and the library save
 * it: recipe, tokens and cache. NAME.chat is JSON with the messages and all tokens. NAME.chat says
 * what the conversation is; a cache that holds another beginning of it, or none, is completed by
 * prefilling. So a crash between the two writes loses nothing, and recipes whose cache cannot be
 * saved can be used. Functions that return int return a STATUS_*, after printing an error. */
#ifndef LK_LOWKEY_CHAT_SAVED_H
#define LK_LOWKEY_CHAT_SAVED_H

#include "chat_conversation.h"

#include <stdbool.h>

/* Does NAME or NAME.chat exist? STATUS_ERROR if that cannot be said, so nothing may be written. */
int chat_saved_exists(const char *path, bool *exists);

/* The same; STATUS_ERROR also if NAME is not a saved session, so it may not be replaced. */
int chat_saved_replaceable(const char *path, bool *exists);

/* The recipe of NAME; *out is NULL if only NAME.chat exists. */
int chat_saved_recipe(const char *path, lk_recipe **out);

/* Save the conversation and the session, each file atomically. Tokens of the session that are not
 * of the conversation are dropped first. `n_answers` is the number of answers so far, which the
 * random seed of the next one depends on. */
int chat_saved_write(const char *path, const struct chat_conversation *c, lk_session *session,
                     size_t n_answers);

/* Replace the conversation and what the session holds. Both are unchanged on failure. *cached is
 * false if the cache has another recipe or is missing: the next question then prefills the
 * conversation. */
int chat_saved_read(const char *path, struct chat_conversation *c, lk_session *session,
                    const lk_recipe *recipe, size_t *n_answers, bool *cached);

#endif
