/* The part of a pass that happens on devices: attention of sequences whose rows are there, their
 * scores for policies, and aging. Queries go
 * there and partials come back, layer by layer. A device gets commands (device/commands.h), or if
 * it `uses_host` the structures that they are made from.
 *
 * One thread does this for all sequences while the others attend to rows in RAM. */
#ifndef LK_ENGINE_DEVICE_ROWS_H
#define LK_ENGINE_DEVICE_ROWS_H

#include "attention/attention.h"
#include "attention/device_call.h"
#include "base/ledger.h"
#include "device/device.h"

struct ggml_tensor;
struct lk_layer_job;
struct lk_session;
struct lk_seq;

/* Memory of a session on its device. */
struct lk_device_buffer {
    uint64_t at; /* [n] floats; 0: none */
    size_t n;
};

struct lk_session_rows {
    struct lk_device *device; /* NULL: the rows are in RAM */
    struct lk_ledger ledger;  /* of its memory that the session uses */
    struct lk_device_buffer q, partial;
    /* What a pass adds to the scores of a layer's rows. If the device takes commands, of all
     * layers: [n_layer][score_stride], there and then in RAM. */
    struct lk_device_buffer scores;
    size_t score_stride;
    float *added; /* [n_added] */
    size_t n_added;
    /* Of a device that takes commands: the packets of the layers' calls (attention/device_call.h),
     * room to make one, and the commands of a pass whose first sequence is the session's. */
    struct lk_layer_packet *packet; /* [n_packet] */
    int n_packet;
    char *making;
    size_t making_bytes;
    struct lk_device_attend *command;
    size_t n_command;
    struct lk_device_weigh *weigh; /* of a call of scores */
    size_t n_weigh;
    float *shifted; /* queries that are rotated back */
    size_t n_shifted;
};

/* What kernels read of a layer besides rows. It changes when rows age, not with each token. */
struct lk_layer_packet {
    struct lk_device_buffer there;
    char *source; /* [cap] what it was made from: [n_source]; 0: the device has none */
    size_t n_source, cap;
    struct lk_attn_packet parts;
};

/* Choose the device of a new session, by name; NULL: the model's. limit: bytes, 0: none. The recipe
 * and the model must be possible there: LK_E_UNSUPPORTED with the reason. Others as
 * lk_model_device. */
lk_status lk_device_rows_open(struct lk_session *session, const char *name, uint64_t limit,
                              lk_err *err);

/* Why the session's cache, which exists, cannot be on its device: LK_E_UNSUPPORTED. */
lk_status lk_device_rows_check(const struct lk_session *session, lk_err *err);
void lk_device_rows_free(struct lk_session *session);

/* Ranges of the partials that a call on the sequence's device leaves. */
int lk_device_ranges(const struct lk_seq *seq, const struct lk_attn *attn);

/* Floats of the partials of n_tok tokens in any layer, at least: of sums of evicted rows
 * (absorb_device.h), if there are some, and of all ranges. */
size_t lk_device_partial_floats(const struct lk_session *session, int n_tok);

/* Memory for a pass of the sequence: queries, partials of n_partial floats, scores. LK_E_NOMEM. */
lk_status lk_device_rows_reserve(const struct lk_seq *seq, size_t n_partial, lk_err *err);

/* Memory for the scores that policies need, of n_tok more tokens than now and of all rows that the
 * cache has reserved memory for. False without memory. */
bool lk_device_reserve_scores(struct lk_session *session, int n_tok);

/* Attend: attn[i] is the call of sequence seq[i], all on the same device. n <= LK_DEVICE_CALLS.
 * Partials come to attn[i].partial; if the calls have `out`, q and out are in the device's memory
 * and nothing comes. A sequence that cannot attend is marked as failed. */
enum { LK_DEVICE_CALLS = 64 };
void lk_device_attend(struct lk_seq *const *seq, const struct lk_attn *attn, size_t n);

/* Do policies need scores of the session's rows? */
bool lk_device_needs_scores(const struct lk_session *session);

/* After lk_device_attend in the same layer: add the weights of rows to their scores. They come to
 * the policies (lk_evict) when the rows age. Partials are where lk_device_attend left them. */
void lk_device_score(struct lk_seq *seq, const struct lk_attn *attn, bool last);

/* Age the rows of all layers. scratch: lk_moves_scratch_floats. */
void lk_device_age(struct lk_seq *seq, float *scratch);

/* The end of a pass: the same unless they are aged, and wait for the device. */
void lk_device_finish(struct lk_seq *seq, float *scratch, bool aged);

/* Wait until the session's rows on its device are as the host has ordered. LK_E_NOMEM or LK_E_IO if
 * a command has failed: the rows are not to be used then. */
lk_status lk_device_settle(struct lk_session *session, lk_err *err);

/* Attention of the sequences whose rows are on devices: as many calls at once as are on one. q and
 * out: as of lk_pass_seq_attn (pass_attn.h), out in the memory of the device, and then q too, or
 * NULL: partials come to RAM. */
void lk_pass_attend_on_devices(const struct lk_layer_job *job, const struct ggml_tensor *q,
                               const struct ggml_tensor *out);

#endif
