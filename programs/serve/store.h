/* The folder of sessions on disk, and what lies in it.
 *
 *   DIR/NAME              sessions that clients named (route_slots.c); nobody else writes or removes them
 *   DIR/store/HEX.session sessions that the server keeps by itself, so that a prompt which begins with what one
 *                         of them has read is not read again; the longest unused go when they are too many bytes
 *   DIR/store/HEX.prefix  the same of beginnings that several requests had in common (serve/prefix.h)
 *
 * A file's time of change is the moment of its last use, so servers that share a folder agree on which is the
 * oldest. Names are drawn at random and files appear whole (base/whole_file.h): servers do not meet. What others
 * stored is seen when something is stored here. What another model's server stored counts, and is passed over.
 *
 * The index holds the tokens of every file. It is safe to use from several threads. */
#ifndef LK_SERVE_STORE_H
#define LK_SERVE_STORE_H

#include "serve/metrics.h"
#include "serve/slots.h"

enum {
    LK_STORE_LEAST = 32,
    LK_SESSION_NAME_MOST = 128
}; /* tokens: fewer are sooner read than loaded; characters */

struct lk_store;

/* Check opts->session_dir, make what lacks of it, and read what is stored there. `opts` and `metrics` are
 * borrowed. *out is owned: lk_store_close. LK_E_IO; LK_E_ARG for a folder that others may write to. */
lk_status lk_store_open(struct lk_store **out, const struct lk_serve_opts *opts,
                        struct lk_metrics *metrics, lk_err *err);
void lk_store_close(struct lk_store *store);

/* The path of a named session, into path[LK_MAX_PATH]. False after a fault: a name that is no plain one, or of
 * something that is no ordinary file (400); or, where it must be there, of nothing (404). */
bool lk_store_path(const struct lk_store *store, const char *name, bool must_exist, char *path,
                   struct lk_fault *fault);

/* Which of the server's recipes a saved session has, and its tokens as bytes; reads no more of it. LK_E_IO,
 * LK_E_FORMAT, LK_E_UNSUPPORTED: a recipe that is not allowed here. */
lk_status lk_store_inspect(const struct lk_store *store, const char *path, size_t *recipe,
                           int32_t **tok, size_t *n_tok, lk_err *err);

/* The stored session that saves most of reading the job's prompt, if it saves more than `least` tokens: its name
 * into name[LK_STORED_NAME]. One that the prompt goes on from comes before one that would have to be cut back,
 * which may turn out impossible. */
bool lk_store_find(struct lk_store *store, const struct lk_job *job, size_t least, char *name);

/* Would the server keep a session that stands after these tokens, and does not yet? */
bool lk_store_wants(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok);

/* Write the slot's session. The file it was loaded from goes, because the new one holds what that held, unless
 * others were loaded from it too, or it was kept for others to begin with. *bytes: of the file, 0 where nothing was to
 * be written. What does not work is logged; LK_E_IO, LK_E_UNSUPPORTED, LK_E_FULL: it alone is over the limit. */
lk_status lk_store_save(struct lk_store *store, const struct lk_serve_slot *slot, uint64_t *bytes,
                        lk_err *err);

/* Make the session stand where the stored one did. A file that is refused is not found again. */
lk_status lk_store_load(struct lk_store *store, lk_session *session, const char *name,
                        uint64_t *bytes, lk_err *err);

/* Remove the stored session that stands after exactly these tokens. */
void lk_store_remove(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok);

/* The text that tokens stand for, without the token that begins texts. */
void lk_tokens_text(const lk_model *model, const int32_t *tok, size_t n_tok, struct lk_buf *out);

/* How many of the first tokens are the same. */
size_t lk_tokens_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
