/* The store: sessions in a directory on disk, and an index of the ones that the server saved on its
 * own.
 *
 *   DIR/NAME               sessions that clients named (route_slots.c); the server never removes or
 *                          overwrites them on its own
 *   DIR/store/HEX.session  sessions that the server saved on its own, so that a prompt which
 *                          continues one of them need not be prefilled again; the least recently
 *                          used ones are removed when they exceed the limit
 *   DIR/store/HEX.prefix   same, for prefixes that several requests share (serve/slot_prefill.h)
 *
 * The modification time of a file is the time of its last use, so servers that share a directory
 * agree on the oldest one. Names are random and files appear atomically (base/atomic_file.h), so
 * servers do not get in each other's way. Files that other servers add are found when this server
 * stores something itself. Files of other models count toward the limit but are not used.
 *
 * The index holds the tokens of every file. It is thread-safe. */
#ifndef LK_SERVE_STORE_H
#define LK_SERVE_STORE_H

#include "serve/metrics.h"
#include "serve/slots.h"

enum {
    LK_STORE_MIN_TOKENS = 32, /* prefilling fewer tokens is faster than loading them */
    LK_SESSION_NAME_MAX = 128 /* characters */
};

struct lk_store;

/* Check opts->session_dir, create missing directories, and index the stored sessions. `opts` and
 * `metrics` are borrowed. The caller owns *out and frees it with lk_store_close. LK_E_IO; LK_E_ARG:
 * other users can write to the directory. */
lk_status lk_store_open(struct lk_store **out, const struct lk_server_opts *opts,
                        struct lk_metrics *metrics, lk_err *err);
void lk_store_close(struct lk_store *store);

/* The path of a session that clients call `name`, into path[LK_MAX_PATH]. False: see `error`. 400:
 * the name is not allowed, or is not a regular file. 404: must_exist, and there is no such file. */
bool lk_store_path(const struct lk_store *store, const char *name, bool must_exist, char *path,
                   struct lk_api_error *error);

/* Read only the recipe (an index into the server's recipes) and the tokens of a saved session.
 * *n_done (may be NULL): how many of them need not be computed again, which are fewer if its
 * prefill was cut short. Free *tok with lk_tokens_free. LK_E_IO, LK_E_FORMAT. LK_E_UNSUPPORTED: the
 * recipe is not allowed. */
lk_status lk_store_inspect(const struct lk_store *store, const char *path, size_t *recipe,
                           int32_t **tok, size_t *n_tok, size_t *n_done, lk_err *err);

/* Find the stored session that saves the most prefill of the job's prompt, if it saves more than
 * n_min tokens. Its name goes to name[LK_STORE_NAME_LEN]. Sessions that the prompt continues are
 * preferred to ones that must be truncated, because that may turn out to be impossible. Returns the
 * number of tokens that it saves, 0 if there is none. */
size_t lk_store_find(struct lk_store *store, const struct lk_job *job, size_t n_min, char *name);

/* Should the server store the slot's session? False if it is stored already. */
bool lk_store_should_save(struct lk_store *store, const struct lk_slot *slot);

/* Write the slot's session. The file that it was loaded from is removed, since the new one contains
 * it, unless it is a shared prefix or several sessions were loaded from it. *bytes: size of the
 * file, 0 if nothing had to be written. Failures are also reported with opts->note. LK_E_IO.
 * LK_E_FULL: the session alone exceeds the limit. */
lk_status lk_store_save(struct lk_store *store, const struct lk_slot *slot, uint64_t *bytes,
                        lk_err *err);

/* Load a stored session. An invalid file will not be found again. */
lk_status lk_store_load(struct lk_store *store, lk_session *session, const char *name,
                        uint64_t *bytes, lk_err *err);

/* Remove the stored session that holds exactly these tokens. */
void lk_store_remove(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok);

#endif
