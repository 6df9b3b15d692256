/* lowkey.h - LLM inference whose key-value cache stays compressed.
 *
 *   text -> tokens -> model (ggml) -> cache (levels of coded blocks) -> attention -> logits
 *
 *   lk_model    weights and vocabulary, immutable; shared by any number of sessions and threads.
 *   lk_recipe   one line of text that says how a cache keeps what it has seen; immutable.
 *   lk_session  one token timeline: its cache, its scratch, its last logits. One thread at a time.
 *   lk_batch    evaluates several sessions together; has no tokens of its own. One thread at a time.
 *   lk_sampler  turns a session's logits into tokens. One thread at a time.
 *
 * True of every function here and not repeated below:
 *   - A fallible call returns lk_status and, when `err` is not NULL, fills it with one clear line.
 *     Output parameters are written on LK_OK only. After a failure every handle is still valid.
 *   - "owned": free it with the named call. "borrowed until X": never free it, never read it after X.
 *     Arguments are copied unless said otherwise.
 *   - lk_*_free(NULL) does nothing. Nothing here prints, exits or aborts.
 *   - Shapes are written fastest dimension last: [n_tok][n_vocab] is n_tok rows of n_vocab numbers.
 */
#ifndef LOWKEY_H
#define LOWKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

/* Values are frozen; new ones are appended. */
typedef enum {
    LK_OK = 0,
    LK_E_ARG = -1,         /* an argument is out of range */
    LK_E_NOMEM = -2,       /* memory could not be had */
    LK_E_IO = -3,          /* the system refused to read or write */
    LK_E_FORMAT = -4,      /* a file or a text is damaged or is not what it claims */
    LK_E_UNSUPPORTED = -5, /* valid, but this build cannot do it */
    LK_E_FULL = -6,        /* the session's context length is reached */
    LK_E_CANCELLED = -7,   /* a progress callback returned false */
} lk_status;

typedef struct {
    lk_status code;
    char msg[500]; /* one line, no newline at its end */
} lk_err;

/* Static name of a status, for example "out of memory". */
const char *lk_status_name(lk_status status);

/* Version of the library, for example "0.1.0". Static. */
const char *lk_version(void);

/* Progress of long work: `done` of `total` units. Return false to cancel (LK_E_CANCELLED). */
typedef bool (*lk_progress)(void *user, uint64_t done, uint64_t total);

/* ---- model ---- */

typedef struct lk_model lk_model;

typedef enum {
    LK_WEIGHTS_AS_SHIPPED = 0, /* the file's types, repacked for the CPU where ggml can */
    LK_WEIGHTS_F32 = 1,        /* dequantised at load: slow, and free of activation rounding */
} lk_weights;

typedef struct {
    int32_t n_threads; /* 0: the machine's cores, at most 16 */
    lk_weights weights;
    bool no_mmap;        /* read the file instead of mapping it */
    bool no_repack;      /* keep the file's layout (less memory, slower matmuls) */
    const char *kernels; /* attention kernels by name, for example "reference"; NULL: the fastest */
    const char *sidecar; /* path of what was made offline for this model, which recipes of latents
                              need; NULL: none */
    lk_progress progress; /* may be NULL; units are bytes */
    void *user;
} lk_model_opts;

typedef struct {
    const char *arch; /* borrowed until lk_model_free, as is name */
    const char *name;
    const char *kernels; /* attention kernels in use, for example "avx2"; static */
    const char
        *kernels_lack;   /* why attention is slow on this machine, static; NULL where it is not */
    const char *sidecar; /* method of the sidecar, for example "palu"; NULL: there is none */
    uint64_t n_param, file_bytes,
        weight_bytes;       /* weight_bytes: resident copies, repacked or dequantised */
    uint64_t sidecar_bytes; /* resident */
    uint64_t
        shared_bytes; /* of caches, which several sessions hold together (lk_session_copy), counted once. All
                               sessions' cache_bytes without their own shared_bytes, and this, are what all caches hold */
    int32_t n_layer, n_embd, n_head, n_head_kv, d_head, n_vocab, n_ctx_train, n_swa, n_threads;
} lk_model_info;

/* Open a GGUF model. `opts` may be NULL for defaults. *out is owned: lk_model_free, after its last
 * session and sampler. Errors: LK_E_IO, LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM, LK_E_CANCELLED. */
lk_status lk_model_open(lk_model **out, const char *path, const lk_model_opts *opts, lk_err *err);
void lk_model_free(lk_model *model);

/* Facts about an open model. Cannot fail. */
lk_model_info lk_model_get_info(const lk_model *model);

/* The model's chat template (Jinja text), borrowed until lk_model_free; NULL if it has none. */
const char *lk_model_chat_template(const lk_model *model);

/* ---- tokens ---- */

/* Tokens of `text` (`len` bytes, valid UTF-8). `special`: add the model's begin token and read
 * control tokens such as <|im_start|>. *tok is owned: lk_tokens_free. */
lk_status lk_tokenize(const lk_model *model, const char *text, size_t len, bool special,
                      int32_t **tok, size_t *n_tok, lk_err *err);
void lk_tokens_free(int32_t *tok);

/* Text of one token into buf, zero terminated, cut at `cap`. Returns its length in bytes.
 * A piece may be part of a UTF-8 sequence. */
size_t lk_token_text(const lk_model *model, int32_t tok, char *buf, size_t cap);

/* Does this token end a generation? */
bool lk_token_ends(const lk_model *model, int32_t tok);

typedef struct {
    const char *role, *content; /* "system", "user" or "assistant" */
} lk_message;

/* The conversation in the model's own chat template. `reply`: open the assistant's turn.
 * *text is owned: lk_text_free. LK_E_UNSUPPORTED where the model has no template known to libllama. */
lk_status lk_chat_format(const lk_model *model, const lk_message *msg, size_t n_msg, bool reply,
                         char **text, lk_err *err);
void lk_text_free(char *text);

/* ---- recipes ---- */

typedef struct lk_recipe lk_recipe;

/* Parse a preset's name or a recipe, for example
 *   "sink 4: f16; body: k=rot3 v=rot2; window 128: f16".
 * On LK_E_FORMAT the message marks the position and says what was expected.
 * *out is owned: lk_recipe_free. */
lk_status lk_recipe_parse(lk_recipe **out, const char *text, lk_err *err);
void lk_recipe_free(lk_recipe *recipe);

/* The text it was made from (a preset keeps its name). Borrowed until lk_recipe_free. */
const char *lk_recipe_text(const lk_recipe *recipe);

typedef struct {
    const char *name, *text, *note; /* static; note is one line of plain words */
    const char
        *sidecar; /* options of `lowkey compress` that make the sidecar it needs; NULL: none */
} lk_preset;

/* The i-th preset, or one whose name is NULL past the last. */
lk_preset lk_recipe_preset(size_t i);

/* True if some layer's body has a limit: rows are evicted, so a session cannot be cut back to a prefix. */
bool lk_recipe_evicts(const lk_recipe *recipe);

/* What a recipe says of one level; codecs as printed text. */
typedef struct {
    char name[48], k_codec[64], v_codec[64];
} lk_recipe_level;

/* The i-th level from the oldest to the newest, then the layers whose body differs ("layers 0-1");
 * false past the last. */
bool lk_recipe_get_level(const lk_recipe *recipe, size_t i, lk_recipe_level *out);

/* ---- sessions ---- */

typedef struct lk_session lk_session;

enum { LK_EVAL_MAX = 512 }; /* most tokens of one lk_session_eval */

typedef struct {
    int32_t n_ctx;        /* most tokens the session may hold; 0: the model's trained length */
    bool chunked_prefill; /* read prompts through the compressed cache instead of exactly:
                              less memory for very long prompts, slightly less fidelity */
    uint64_t max_bytes;   /* limit of cache and scratch together; 0: none */
    lk_progress progress; /* of lk_session_sync; may be NULL; units are tokens x layers */
    void *user;
} lk_session_opts;

/* A session of `model` that keeps its cache by `recipe`. Both must outlive it. `opts` may be NULL.
 * *out is owned: lk_session_free. */
lk_status lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                         const lk_session_opts *opts, lk_err *err);
void lk_session_free(lk_session *session);

/* Make the session stand exactly after tok[0..n_tok): keeps the common prefix where the cache can
 * be cut back to it, evaluates the rest, and rebuilds from the first token otherwise.
 * *n_reused (may be NULL): tokens not evaluated again. Afterwards the last token's logits are there.
 * On LK_E_CANCELLED or failure the session is empty or stands at a valid prefix. */
lk_status lk_session_sync(lk_session *session, const int32_t *tok, size_t n_tok, size_t *n_reused,
                          lk_err *err);

/* Make `session` stand where `from` stands, with the last token's logits, and no evaluation. Both hold the same
 * blocks of cache from then on, and one that writes to a block copies this block first: a long beginning that
 * many sessions have in common takes its bytes once. Each goes on, is cut back and is freed as if it were
 * alone, and different threads may use them; only this call uses both, and ends what lk_session_reserve
 * prepared in either. Both have the same model and recipe (LK_E_ARG). After LK_E_NOMEM `session` is empty. */
lk_status lk_session_copy(lk_session *session, lk_session *from, lk_err *err);

/* Append 1..LK_EVAL_MAX tokens. `all`: keep logits of each, not of the last alone. Errors: LK_E_ARG, LK_E_FULL and
 * LK_E_NOMEM, after which the session is as it was; where memory runs out among the layers, it is empty
 * (lk_session_n_tok). */
lk_status lk_session_eval(lk_session *session, const int32_t *tok, size_t n_tok, bool all,
                          lk_err *err);

/* Number of leading tokens of tok[0..n_tok) that lk_session_sync would keep instead of evaluating. */
size_t lk_session_reusable(const lk_session *session, const int32_t *tok, size_t n_tok);

/* Forget every token; the session is as new. */
void lk_session_clear(lk_session *session);

/* Prepare the cache for n_tok more tokens: evaluating them one by one allocates nothing, but that the first step
 * of a session takes what every step computes in. LK_E_NOMEM. */
lk_status lk_session_reserve(lk_session *session, size_t n_tok, lk_err *err);

/* Logits [n_vocab] after the i-th token of the last evaluation; i < 0 counts from its end.
 * NULL where there are none. Borrowed until the session's next call. */
const float *lk_session_logits(const lk_session *session, int32_t i);

/* The tokens the session has seen. Borrowed until the session's next call. */
size_t lk_session_n_tok(const lk_session *session);
const int32_t *lk_session_tokens(const lk_session *session);

/* ---- several sessions in one pass over the weights ---- */

typedef struct lk_batch lk_batch;

enum { LK_BATCH_MAX = 1024 }; /* most tokens of one lk_batch_eval, all sessions together */

typedef struct {
    lk_session *session;
    const int32_t *tok; /* [n_tok] to append, as in lk_session_eval */
    size_t n_tok;
    bool all;
    lk_err err; /* what came of it; code LK_OK: the session has its tokens, and their logits */
} lk_batch_item;

/* A batch for sessions of `model`, which must outlive it. It owns what passes compute in, so that one batch
 * serves any sessions, in any number and company. *out is owned: lk_batch_free. */
lk_status lk_batch_new(lk_batch **out, lk_model *model, lk_err *err);
void lk_batch_free(lk_batch *batch);

/* lk_session_eval of n different sessions of the batch's model, whatever their recipes and lengths, in one
 * pass over the weights. An item that cannot be done says so in its err and is left out; the others are
 * evaluated. The status is of the pass itself: where it is not LK_OK, no item was evaluated, and each says
 * why. LK_E_ARG for other models' sessions, for one session twice and for too many tokens. */
lk_status lk_batch_eval(lk_batch *batch, lk_batch_item *item, size_t n, lk_err *err);

/* Bytes that the batch holds for activations and graphs. */
uint64_t lk_batch_scratch_bytes(const lk_batch *batch);

/* What a session's memory holds, measured by its ledger, in bytes. */
typedef struct {
    uint64_t n_tok;
    uint64_t code_bytes;    /* packed codes of the compressed levels */
    uint64_t scale_bytes;   /* scales, zero points, means, channel statistics, and of rows that a
                               policy keeps their positions and scores */
    uint64_t exact_bytes;   /* f16 rows: sinks, windows, rows not yet coded */
    uint64_t padding_bytes; /* room in blocks not filled yet, reserved blocks, tables */
    uint64_t state_bytes;   /* what dropped tokens were summed up in (absorb) */
    uint64_t cache_bytes;   /* all of the above: everything the cache holds */
    uint64_t shared_bytes;  /* of these, in blocks that other sessions may hold as well: see
                               lk_model_info.shared_bytes */
    uint64_t f16_bytes;     /* what an f16 cache would hold for the same tokens */
    uint64_t scratch_bytes; /* activations, logits, graphs: not cache */
    double bits_per_value;  /* 16 x cache_bytes / f16_bytes */
    double bytes_per_token; /* cache_bytes / n_tok */
} lk_session_stats;

lk_session_stats lk_session_get_stats(const lk_session *session);

/* Bytes of the cache that a session and its copies (lk_session_copy) share for good: full blocks whose rows
 * are neither evicted nor moved. */
uint64_t lk_session_immutable_bytes(const lk_session *session);

/* One level of the cache, summed over layers. Rows counts tokens of one layer (the first that has
 * this level in full attention). `name` as in the recipe; codecs as printed text. */
typedef struct {
    char name[48], k_codec[64], v_codec[64];
    uint64_t k_rows, v_rows, k_bytes, v_bytes;
} lk_level_stats;

/* The i-th level from the oldest to the newest; false past the last. */
bool lk_session_get_level(const lk_session *session, size_t i, lk_level_stats *out);

/* ---- planning ---- */

typedef struct {
    uint64_t n_tok, cache_bytes, f16_bytes, weight_bytes, scratch_bytes;
    uint64_t peak_bytes; /* highest sum while a prompt of n_tok is read */
    double bits_per_value;
} lk_plan;

/* What n_tok tokens under `recipe` will need, without running: the same block arithmetic as the
 * cache itself. `chunked_prefill` as in lk_session_opts. */
lk_status lk_plan_make(const lk_model *model, const lk_recipe *recipe, size_t n_tok,
                       bool chunked_prefill, lk_plan *out, lk_err *err);

/* ---- sampling ---- */

typedef struct lk_sampler lk_sampler;

/* What is added to a token's logit, -1e6 to 1e6; -INFINITY: it is never chosen. */
typedef struct {
    int32_t tok;
    float bias;
} lk_logit_bias;

typedef struct {
    float temperature;                         /* <= 0: greedy */
    int32_t top_k;                             /* <= 0: off */
    float top_p, min_p;                        /* 1 and 0: off */
    float repeat_penalty;                      /* 1: off */
    float frequency_penalty, presence_penalty; /* taken from repeated tokens' logits; 0: off */
    int32_t repeat_last_n;                     /* tokens that count as repeated */
    uint32_t seed;
    const char *grammar;       /* GBNF text, or NULL */
    const lk_logit_bias *bias; /* [n_bias]; like the grammar read by lk_sampler_new alone */
    size_t n_bias;
    bool ignore_eos; /* tokens that end an answer are never chosen */
} lk_sampler_opts;

/* temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalty over 64 tokens, seed 0, no grammar, no bias. */
lk_sampler_opts lk_sampler_defaults(void);

/* `opts` may be NULL for defaults. *out is owned: lk_sampler_free. LK_E_ARG for options out of range, LK_E_FORMAT for a
 * grammar that does not parse. */
lk_status lk_sampler_new(lk_sampler **out, const lk_model *model, const lk_sampler_opts *opts,
                         lk_err *err);
void lk_sampler_free(lk_sampler *sampler);

/* Choose a token from the session's last logits and remember it (penalties, grammar). LK_E_ARG where it has none or they are
 * no numbers, or a bias is of a token that there is not; LK_E_FORMAT where no token fits the grammar, or the biases leave none. */
lk_status lk_sampler_next(lk_sampler *sampler, const lk_session *session, int32_t *tok,
                          lk_err *err);

/* ---- sessions on disk ---- */

/* Write all that `session` holds to `path`, and, where it is not NULL, how `sampler` stands. The file takes the
 * place of an older one at once when it is whole and on disk; until then, and after a failure, the older one
 * is there. It holds what the session has read: only its owner may read it. Errors: LK_E_IO, and
 * LK_E_UNSUPPORTED for recipes whose rows are latents, chosen by a policy or absorbed. */
lk_status lk_session_save(const lk_session *session, const lk_sampler *sampler, const char *path,
                          lk_err *err);

/* Make `session` stand where the saved one stood, with the same logits from there on, to the bit. It has the
 * same model and recipe (see lk_session_file_recipe), and room for as many tokens. `sampler` (may be NULL)
 * goes on where the saved one stood if it was made with the same options, and is left alone otherwise.
 * Everything is checked first: a file that is damaged, cut short, or of another model or recipe is refused
 * with the reason. Errors: LK_E_IO, LK_E_FORMAT, LK_E_FULL, LK_E_NOMEM, LK_E_UNSUPPORTED as lk_session_save; the
 * session is as it was, but after LK_E_NOMEM empty, and the sampler may then have moved. */
lk_status lk_session_load(lk_session *session, lk_sampler *sampler, const char *path, lk_err *err);

/* The tokens of a saved session of `model`. Only the header and the tokens are checked.
 * *tok is owned: lk_tokens_free. Errors: LK_E_IO, LK_E_FORMAT, LK_E_NOMEM. */
lk_status lk_session_file_tokens(const lk_model *model, const char *path, int32_t **tok,
                                 size_t *n_tok, lk_err *err);

/* The recipe of a saved session. *out is owned: lk_recipe_free. */
lk_status lk_session_file_recipe(lk_recipe **out, const char *path, lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
