/* Drafts of the model's own layer that predicts further tokens (model/mtp.h).
 *
 * It is a layer of the session's cache, with the session's recipe. Its row of a token is computed
 * from the last layer's output for the token before, in the same pass as the rows of the other
 * layers. To draft, it is evaluated for the next token, then for each draft, with its own output;
 * these rows are dropped again. */
#ifndef LK_ENGINE_DRAFT_MTP_H
#define LK_ENGINE_DRAFT_MTP_H

#include "engine/draft_source.h"
#include "engine/pass.h"

struct lk_draft_mtp {
    struct lk_ledger *ledger; /* of the model: the session may be freed first */
    struct lk_pass pass;      /* of one row, through one layer */
    float *hidden;            /* [n_embd] for the next step, of hidden_size bytes */
    size_t hidden_size;
};

/* For sessions of a model with the layer (hp.mtp). LK_E_NOMEM. */
lk_status lk_draft_mtp_new(struct lk_draft_mtp **out, struct lk_session *session, lk_err *err);
void lk_draft_mtp_free(struct lk_draft_mtp *mtp);

/* Start with what the session holds, for up to n steps. Returns how many are possible. Then, for
 * each step, the logits [n_vocab] of the token after `tok`, which follows those of earlier steps;
 * NULL if it failed. At the end the session is as before. */
size_t lk_draft_mtp_begin(struct lk_draft_mtp *mtp, struct lk_session *session, size_t n);
const float *lk_draft_mtp_step(struct lk_draft_mtp *mtp, struct lk_session *session, int32_t tok);
void lk_draft_mtp_end(struct lk_session *session);

/* The source of a drafter, which does these steps. LK_E_NOMEM. */
lk_status lk_draft_mtp_open(struct lk_draft_source *out, struct lk_session *session, lk_err *err);

/* Bytes that such drafts need at most, besides rows of the cache. */
uint64_t lk_draft_mtp_bytes(const struct lk_model *model);

#endif
