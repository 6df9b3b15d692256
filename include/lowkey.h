/* lowkey.h - LLM inference with a key-value cache that stays compressed.
 *
 *   text -> tokens -> model (ggml) -> cache (levels of quantized blocks) -> attention -> logits
 *
 *   lk_model    weights and vocabulary. Immutable; shared by any number of sessions and threads.
 *   lk_recipe   one line of text that says how a cache stores its rows. Immutable.
 *   lk_session  one sequence of tokens: its cache, scratch memory and last logits.
 *   lk_sampler  chooses the next token from a session's logits.
 *   lk_drafter  guesses tokens that a session then evaluates in one pass: lowkey_draft.h.
 *
 * What a server needs besides is in lowkey_serve.h: several sessions in one pass, chats in JSON,
 * grammars of JSON schemas, embeddings, and the memory of each part.
 *
 * These rules hold for every function and are not repeated below:
 *
 *   Threads    One thread at a time may use a session, batch or sampler (but: lk_session_cancel).
 *   Errors     A function that can fail returns lk_status. If `err` is not NULL, it also gets a
 *              message of one line. Output parameters are written on LK_OK only. After a failure
 *              every handle is still valid.
 *   Options    NULL options, zeroed options and a field that is 0 mean the default.
 *   Ownership  "owned": free it with the named function; lk_*_free(NULL) does nothing. "borrowed
 *              until X": do not free it, and do not read it after X. Arguments are copied unless
 *              stated otherwise.
 *   Shapes     The last dimension is the fastest: [n_tok][n_vocab] is n_tok rows of n_vocab.
 *   Output     The library never prints, exits or aborts.
 *
 * The ABI is not stable before version 1.0: structs may grow, so recompile for each release. Enum
 * values are frozen; new ones are appended. */
#ifndef LOWKEY_H
#define LOWKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the functions of a program that generates text; all others are below ----
 *
 * Open a model, parse a recipe, make a session and a sampler; tokenize a prompt and let the session
 * hold it; then choose a token, print its text and evaluate it, until it ends the answer. */

typedef enum {
    LK_OK = 0,
    LK_E_ARG = -1,         /* an argument is out of range */
    LK_E_NOMEM = -2,       /* out of memory, or a limit is reached */
    LK_E_IO = -3,          /* the system could not read or write */
    LK_E_FORMAT = -4,      /* a file or a text is damaged or malformed */
    LK_E_UNSUPPORTED = -5, /* valid, but not supported by this build */
    LK_E_FULL = -6,        /* the context length, or a maximum number of tokens, is reached */
    LK_E_CANCELLED = -7,   /* ended by lk_session_cancel or a progress callback */
} lk_status;

typedef struct {
    lk_status code;
    char msg[500]; /* one line without a newline */
} lk_err;

/* Options are structs below; NULL: the defaults. */
typedef struct lk_model lk_model;
typedef struct lk_recipe lk_recipe;
typedef struct lk_session lk_session;
typedef struct lk_sampler lk_sampler;
typedef struct lk_model_opts lk_model_opts;
typedef struct lk_session_opts lk_session_opts;
typedef struct lk_sampler_opts lk_sampler_opts;

/* Progress of a long operation: `done` of `total` units. Return false to cancel
 * (LK_E_CANCELLED). */
typedef bool (*lk_progress)(void *user, uint64_t done, uint64_t total);

/* Open a GGUF model, of a split one any of its files ("NAME-00001-of-00003.gguf"). *out is owned:
 * lk_model_free, after its last session, batch and sampler.
 * LK_E_IO, LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM, LK_E_CANCELLED. */
lk_status lk_model_open(lk_model **out, const char *path, const lk_model_opts *opts, lk_err *err);
void lk_model_free(lk_model *model);

/* Parse a recipe or the name of a preset, for example "sink 4: f16; body: k=rot3 v=rot2; window
 * 128: f16". On LK_E_FORMAT the message shows the position and what was expected. *out is owned:
 * lk_recipe_free, after its last session. */
lk_status lk_recipe_parse(lk_recipe **out, const char *text, lk_err *err);
void lk_recipe_free(lk_recipe *recipe);

/* Create an empty session. `model` and `recipe` must outlive it. *out is owned: lk_session_free. */
lk_status lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                         const lk_session_opts *opts, lk_err *err);
void lk_session_free(lk_session *session);

/* Control tokens such as <|im_start|> (the types control and unknown of a vocabulary) structure a
 * conversation. Text that only spells one is plain text and becomes other tokens, unless a flag
 * says otherwise. User-defined tokens are found in any text. */
enum {
    LK_TOKENIZE_BEGIN = 1,   /* add the tokens that the model expects around a text (begin token) */
    LK_TOKENIZE_CONTROL = 2, /* text that spells a control token becomes that token: only for texts
                                whose author may speak as any role */
    LK_TOKENIZE_MARKED = 4,  /* marked text becomes control tokens: see lk_chat_format */
};

/* Tokenize text[0..len), which must be valid UTF-8. `flags`: a sum of LK_TOKENIZE_*; 0: plain text
 * only. `n_max`: maximum number of tokens; time and memory are then in proportion to it, and runs
 * with only or without white space are cut every 64 KiB. 0: no maximum, and runs are cut every
 * 4 MiB. *tok is owned: lk_tokens_free. LK_E_FULL: more than n_max tokens. LK_E_FORMAT: not UTF-8,
 * or a mark without a control token. LK_E_UNSUPPORTED: the model has no tokenizer. LK_E_NOMEM. */
lk_status lk_tokenize(const lk_model *model, const char *text, size_t len, unsigned flags,
                      size_t n_max, int32_t **tok, size_t *n_tok, lk_err *err);
void lk_tokens_free(int32_t *tok);

/* Make the session hold exactly tok[0..n_tok), with the logits of the last token. Tokens of the
 * common prefix are kept if the cache can be cut back to it, or to a checkpoint within it; the
 * others are evaluated. Then checkpoints are kept: at the end, and within the evaluated tokens.
 * *n_reused (may be NULL) is the number of tokens kept. LK_E_ARG and LK_E_FULL leave the session
 * unchanged; after any other failure it is empty or holds a prefix of tok.
 *
 * An exact prefill that is cancelled leaves a session without tokens, but with the work that was
 * done, and its memory. The next call goes on with it, bit for bit, if tok has enough tokens in
 * common; *n_reused is then what need not be computed, in tokens through all layers. Any other
 * operation drops it; copies do not have it. */
lk_status lk_session_sync(lk_session *session, const int32_t *tok, size_t n_tok, size_t *n_reused,
                          lk_err *err);

enum { LK_EVAL_MAX = 512 }; /* maximum number of tokens of one lk_session_eval */

/* Append 1..LK_EVAL_MAX tokens. `all`: keep the logits of every token, not only of the last one.
 * LK_E_ARG, LK_E_FULL, LK_E_CANCELLED, LK_E_NOMEM. After a failure the session is unchanged, except
 * that it is empty if memory ran out between two layers (see lk_session_n_tok). */
lk_status lk_session_eval(lk_session *session, const int32_t *tok, size_t n_tok, bool all,
                          lk_err *err);

/* Create a sampler; the default is greedy. *out is owned: lk_sampler_free. LK_E_ARG for options out
 * of range, LK_E_FORMAT for an invalid grammar (the message names line and column),
 * LK_E_UNSUPPORTED for a grammar that refers to tokens, or if the model has no tokenizer,
 * LK_E_NOMEM. A grammar has at most 128 KiB. */
lk_status lk_sampler_new(lk_sampler **out, const lk_model *model, const lk_sampler_opts *opts,
                         lk_err *err);
void lk_sampler_free(lk_sampler *sampler);

/* Choose the token that follows the i-th one (see lk_session_logits; -1: the last) and remember it
 * for penalties and grammar. LK_E_ARG if the session has no logits there, if they are not numbers,
 * or if a bias names a token that does not exist. LK_E_FORMAT if the grammar or the biases allow no
 * token. LK_E_UNSUPPORTED if the grammar is too ambiguous: this token would need too many steps,
 * which bounds the time of a call. */
lk_status lk_sampler_next(lk_sampler *sampler, const lk_session *session, int32_t i, int32_t *tok,
                          lk_err *err);

/* The text of a token, zero-terminated, borrowed until lk_model_free. *len is its number of bytes
 * without the zero; a text can contain zeros, and may be part of a UTF-8 sequence. "" for a token
 * that does not exist. Never fails. */
const char *lk_token_text(const lk_model *model, int32_t tok, size_t *len);

/* True if this token ends an answer: eos, eot and others of their kind. */
bool lk_token_ends(const lk_model *model, int32_t tok);

/* Logits [n_vocab] after the i-th token of the last evaluation; i < 0 counts from its end. NULL if
 * there are none. Borrowed until the session's next call. */
const float *lk_session_logits(const lk_session *session, int32_t i);

/* ---- errors and messages ---- */

/* Name of a status, for example "out of memory". Static. */
const char *lk_status_name(lk_status status);

/* Version of the library, for example "0.1.0". Static. */
const char *lk_version(void);

/* A message of ggml or libllama. It may be part of a line. Called from any thread. */
typedef enum { LK_LOG_DEBUG = 1, LK_LOG_INFO = 2, LK_LOG_WARN = 3, LK_LOG_ERROR = 4 } lk_log_level;
typedef void (*lk_log_callback)(void *user, lk_log_level level, const char *text);

/* Receive these messages, for the whole process. NULL, the default, discards them. */
void lk_set_log_callback(lk_log_callback callback, void *user);

/* ---- devices ---- */

/* A device that can hold caches. Its functions are in a module that is loaded from $LOWKEY_MODULES,
 * from the folder of the program or the library, or from lib/lowkey of the installation. */
typedef struct {
    char name[32];  /* "cuda0" */
    char text[160]; /* "NVIDIA H200, sm_90, 139.8 GiB", or why it cannot be used */
    uint64_t memory_bytes, free_bytes;
} lk_device_info;

/* The devices of this machine by index. False if there are not so many. */
bool lk_device_list(size_t index, lk_device_info *out);

/* Why this machine has no device of any kind ("liblowkey-cuda.so is not in FOLDER: ..."), in one
 * line. Returns line [size]; it is empty if there are devices. */
char *lk_device_missing(char *line, size_t size);

/* ---- model ---- */

typedef enum {
    LK_WEIGHTS_AS_SHIPPED = 0, /* the file's types, repacked for the CPU if ggml can */
    LK_WEIGHTS_F32 = 1,        /* dequantized at load: slow, but without activation rounding */
} lk_weights;

struct lk_model_opts {
    int32_t n_threads; /* 0: the cores that the process may use (affinity, quota), at most 16 */
    lk_weights weights;
    bool no_mmap;         /* read the file instead of mapping it */
    bool no_repack;       /* keep the file's layout and ggml's products: less memory, slower */
    bool header_only;     /* load no weights: for plans, properties and tokens, without sessions */
    const char *kernels;  /* name of the attention kernels, e.g. "reference"; NULL: the fastest */
    const char *sidecar;  /* path of a sidecar (data made offline for this model); NULL: none */
    lk_progress progress; /* may be NULL; units are bytes */
    void *user;
    int32_t n_ctx; /* the longest context of its sessions; 0: as in its training. Models with
                      LongRoPE rotate keys differently for contexts beyond their original one */

    /* A device that computes the last layers and the logits: a name of lk_weight_device_list, in
     * any case, or "rpc:HOST:PORT", a server of ggml's RPC in a network that you trust. NULL or
     * "cpu": none. Embeddings stay in RAM, and so do caches without a device of their own. */
    const char *device;
    int32_t n_device_layers;   /* layers that it computes; 0: all; -1: none */
    uint64_t max_device_bytes; /* limit for the memory of the device; 0: none */

    /* Where sessions that name no device of their own (lk_session_opts) have their rows. It is
     * opened with the model. */
    const char *cache_device;

    /* A LoRA adapter in llama.cpp's form (GGUF), which is added to the weights when they are
     * loaded; quantized matrices that it changes are then held in 8 bits. NULL: none. Not together
     * with a sidecar. lora_scale: factor of the adapter; 0: 1. */
    const char *lora;
    float lora_scale;
};

/* The devices of this machine that lk_model_opts can name, by index. False if there are not so
 * many. */
bool lk_weight_device_list(size_t index, lk_device_info *out);

typedef struct {
    const char *arch;    /* borrowed until lk_model_free, like name */
    const char *name;    /* for users: the file's name without its quantization, or general.name */
    const char *kernels; /* attention kernels in use, for example "avx2"; static */
    const char *kernels_lack;   /* why attention is slow on this machine; static; NULL: it is not */
    const char *tokenizer_lack; /* what the file lacks to split texts as in training; as above */
    const char *sidecar_method; /* for example "palu"; NULL: no sidecar */
    uint64_t identity; /* hash of the weights of all norms, which no quantization changes */
    uint64_t n_param;
    uint64_t file_bytes;
    uint64_t weight_bytes; /* resident copies of weights, repacked or dequantized */
    uint64_t sidecar_bytes, sidecar_file_bytes; /* in memory: what open sessions read of it */
    uint64_t shared_bytes; /* cache that several sessions share (lk_session_copy), counted once; a
                              session's own part is cache_bytes - shared_bytes of its stats */
    uint64_t n_value;      /* of K and V per token, in all layers with a cache */
    int32_t n_layer, n_embd, n_head, n_vocab;
    int32_t n_head_kv, d_head; /* of layers with full attention; others may differ (Gemma 4) */
    int32_t d_rope;      /* latent attention: channels of K, and d_head is V's; 0: equally many */
    int32_t n_cached;    /* layers with a cache, which recipes number */
    int32_t n_ctx_train; /* context length of the training */
    int32_t n_swa;       /* window of sliding-window layers; 0: there are none */
    int32_t n_threads;   /* in use */
    const char *device;  /* that computes layers; NULL: none. Borrowed until lk_model_free */
    int32_t n_device_layers;
    const char *prompt_lack; /* why prompts attend in RAM although a device computes layers; static;
                                NULL: they attend on the device, unless a recipe's policy selects
                                rows, or there is no device */
    int32_t n_device_recurrent;   /* recurrent layers whose states sessions have in its memory */
    const char *recurrence_lack;  /* why the CPU computes the recurrences of the device's layers;
                                    static; NULL: it does not, or there are none */
    uint64_t device_weight_bytes; /* weights in its memory, not part of weight_bytes */
    uint64_t device_bytes;        /* held there now: weights, and activations of all sessions */
    int32_t bos, eos, eot;        /* token ids: begin of text, end of text, end of turn; -1: none */
    bool is_adapted;              /* its weights are the file's with adapters added */
} lk_model_info;

/* Properties of a model. */
lk_model_info lk_model_get_info(const lk_model *model);

/* The model's chat template (Jinja), borrowed until lk_model_free; NULL if it has none. */
const char *lk_model_chat_template(const lk_model *model);

/* Use another template than that of the file. Call it before the model is used by several threads.
 * Errors as for lk_model_check_chat_template; the model then has this template still. */
lk_status lk_model_set_chat_template(lk_model *model, const char *text, lk_err *err);

/* Can the template be used? LK_E_UNSUPPORTED: there is none, or it needs what lowkey's Jinja does
 * not have. LK_E_FORMAT: it is not Jinja. LK_E_NOMEM. */
lk_status lk_model_check_chat_template(const lk_model *model, lk_err *err);

/* ---- tokens ---- */

/* True if this token is of the types control or unknown. */
bool lk_token_is_control(const lk_model *model, int32_t tok);

typedef struct {
    const char *role, *content; /* "system", "user" or "assistant" */
} lk_message;

/* Format a conversation with the model's chat template. `reply`: open the assistant's turn at the
 * end. Contents may come from strangers, roles may not: they are part of the template. If the
 * template has no place for a system message, it becomes a part of the first message of the user.
 *
 * The result is marked text, for lk_tokenize with LK_TOKENIZE_MARKED: each control token of the
 * template stands between the bytes 0xFF and 0xFE, which do not occur in UTF-8. A content cannot
 * contain them, so it cannot spell a control token. Drop these bytes to show the text to people.
 *
 * *text is owned: lk_text_free. LK_E_FORMAT: a content is not UTF-8, or the template refuses the
 * conversation; the message quotes it. LK_E_UNSUPPORTED: there is no template, or it exceeds
 * the limits of templates. LK_E_NOMEM. */
lk_status lk_chat_format(const lk_model *model, const lk_message *msg, size_t n_msg, bool reply,
                         char **text, lk_err *err);

/* Free a text that a function here returned. NULL is allowed. */
void lk_text_free(char *text);

/* ---- recipes ---- */

/* The text that was parsed. Borrowed until lk_recipe_free. */
const char *lk_recipe_text(const lk_recipe *recipe);

typedef struct {
    const char *name, *text, *note; /* static; note is a one-line description */
    const char *compress; /* `lowkey compress` options that make its sidecar; NULL: it needs none */
    uint64_t model;       /* identity of the model it was tuned for (lk_model_info); 0: any */
} lk_preset;

/* The i-th preset for any model, and the i-th preset for one model, found by `lowkey tune`: each
 * layer has its own bits, which are arbitrary with another model. False if there are fewer. */
bool lk_recipe_preset(size_t i, lk_preset *out);
bool lk_recipe_tuned(size_t i, lk_preset *out);

/* The i-th preset for this model, the most exact one first: `lowkey run`, `chat` and `serve` use it
 * by default. False if there are fewer. */
bool lk_model_tuned(const lk_model *model, size_t i, lk_preset *out);

/* True if a level has a limit. Rows are then evicted, and a session that has evicted rows cannot be
 * cut back to a prefix (see lk_session_reusable). */
bool lk_recipe_evicts(const lk_recipe *recipe);

typedef struct {
    char name[48], k_codec[64], v_codec[64]; /* codecs as in a recipe */
} lk_recipe_level;

/* The i-th level from oldest to newest, then one entry for each override of layers ("layers 0-1").
 * False if there are fewer. */
bool lk_recipe_get_level(const lk_recipe *recipe, size_t i, lk_recipe_level *out);

/* ---- sessions ---- */

struct lk_session_opts {
    int32_t n_ctx;        /* maximum number of tokens; 0: the context length of the training */
    bool chunked_prefill; /* prefill through the compressed cache instead of exactly: less memory */
    uint64_t max_bytes;   /* limit for cache and scratch together; 0: none */

    /* A device that holds the rows of the cache and attends to them: "cuda0", or "pretend", the CPU
     * with memory of its own, for tests. "cpu": the CPU. NULL: the model's cache_device, or the
     * CPU. A recipe or a model that the device cannot run is refused by lk_session_new,
     * LK_E_UNSUPPORTED. */
    const char *device;
    uint64_t max_device_bytes; /* limit for its memory there, and for states of recurrent layers on
                                  the model's device; 0: none */

    int32_t n_checkpoint;      /* maximum of the states that lk_session_sync keeps; 0: none, so an
                                  edited or repeated turn is prefilled from the start with most
                                  recipes: chats want 64, which the programs have */
    uint64_t checkpoint_bytes; /* what they may hold, beyond the first 8; 0: 64 MiB, or a quarter
                                  of an f16 cache of n_ctx tokens if that is more */
    lk_progress progress;      /* of lk_session_sync; may be NULL; units are tokens x layers */
    void *user;
};

/* The number of tokens of tok[0..n_tok) that lk_session_sync would keep: the common prefix if the
 * session can be cut back to it, or 0. It can always be extended. What can be removed from its end:
 *
 *   all: f16                   any number of tokens
 *   other recipes              tokens whose rows are all in the newest level: a window or residual
 *                              of f16, otherwise the rows that are not encoded yet, fewer than 32
 *                              once the first ones were encoded. Latents are like any other codec.
 *   keep ... by h2o or tova    none: what removed tokens added to the scores is not known
 *   any limit, with or         tokens as above until the first row is evicted, then none. States of
 *     without absorb           absorb are empty until then.
 *   sliding windows            tokens as above, as long as these layers still hold the rows that an
 *                              earlier query sees
 *
 * The tightest line decides, over all layers. With n_checkpoint in lk_session_opts, every session
 * can also be cut back to its checkpoints. A session that cannot be cut back is prefilled again by
 * lk_session_sync. Copying and saving work at any time, and include the checkpoints. After a
 * prefill that was cancelled: what *n_reused of lk_session_sync would be. */
size_t lk_session_reusable(const lk_session *session, const int32_t *tok, size_t n_tok);

/* Remove tokens from the end until n_tok remain, as if they had not been evaluated: those of a pass
 * as above, or what lk_session_reusable allows. The logits of the remaining tokens of the last pass
 * stay. LK_E_ARG; LK_E_UNSUPPORTED if rows have aged: it is unchanged; LK_E_NOMEM: it is empty. */
lk_status lk_session_truncate(lk_session *session, size_t n_tok, lk_err *err);

/* Cancel the evaluation that is running or, if none is, the next one: it returns LK_E_CANCELLED.
 * May be called from any thread while the session exists. Checked before every chunk of up to
 * LK_EVAL_MAX tokens; lk_session_sync checks in every layer if it starts from an empty session
 * without chunked_prefill. The session is then in the state that lk_session_sync or lk_session_eval
 * documents for a failure. */
void lk_session_cancel(lk_session *session);

/* Drop all tokens and a cancellation that has not taken effect. */
void lk_session_clear(lk_session *session);

/* Allocate cache memory for n_tok more tokens. Evaluating them one by one, or in passes that
 * lk_session_draftable allows, then allocates nothing, except for scratch memory in the first step
 * of a session and in its first passes of each size. LK_E_NOMEM. */
lk_status lk_session_reserve(lk_session *session, size_t n_tok, lk_err *err);

/* Make `session` hold what `from` holds, including the last token's logits, without evaluating
 * anything. Both then share their cache blocks, and either copies a block before it writes to it.
 * Apart from memory they are independent; different threads may use them. Only this call uses both.
 * It ends the effect of lk_session_reserve on either. LK_E_ARG if models or recipes differ;
 * LK_E_FULL; LK_E_NOMEM, after which `session` is empty. */
lk_status lk_session_copy(lk_session *session, lk_session *from, lk_err *err);

/* The tokens that the session holds. Borrowed until the session's next call. */
size_t lk_session_n_tok(const lk_session *session);
const int32_t *lk_session_tokens(const lk_session *session);

/* ---- memory ---- */

typedef struct {
    uint64_t n_tok;
    uint64_t code_bytes;  /* packed codes of quantized levels */
    uint64_t scale_bytes; /* scales, zero points, means, channel statistics; positions and scores of
                               rows under an eviction policy */
    uint64_t exact_bytes; /* f16 rows: sinks, windows, rows that are not quantized yet */
    uint64_t padding_bytes;    /* unused parts of blocks, reserved blocks, tables */
    uint64_t state_bytes;      /* states of recurrent layers; sums of evicted rows (absorb) */
    uint64_t cache_bytes;      /* all of the above */
    uint64_t checkpoint_bytes; /* of checkpoints, in addition to cache_bytes */
    uint64_t shared_bytes;     /* part of cache_bytes in blocks that other sessions may share */
    uint64_t f16_bytes;        /* what an f16 cache would need for these tokens */
    uint64_t scratch_bytes;    /* activations, logits, graphs; not part of the cache */
    uint64_t device_bytes;     /* in the memory of devices: rows and states of recurrent layers,
                                  which are part of cache_bytes, and scratch, which is not part of
                                  scratch_bytes */
    double bits_per_value;     /* 16 x cache_bytes / f16_bytes */
    double bytes_per_token;    /* cache_bytes / n_tok */
    uint64_t sidecar_bytes;    /* what the recipe needs of the sidecar; sessions share most of it */
    double bits_with_sidecar;  /* 16 x (cache_bytes + sidecar_bytes) / f16_bytes */
    /* With 'read N%' in the recipe, else 0, since the session was made: tiles of 32 rows that
     * could be left out, of K and V, and how many of them were read. */
    uint64_t tiles, tiles_read;
} lk_session_stats;

/* Memory that a session holds, from the counters of its allocator. */
lk_session_stats lk_session_get_stats(const lk_session *session);

typedef struct {
    char name[48], k_codec[64], v_codec[64];
    uint64_t k_rows, v_rows; /* tokens, in the first layer with full attention that has the level */
    uint64_t k_bytes, v_bytes; /* of all layers */
} lk_level_stats;

/* The i-th level from oldest to newest. False if there are fewer. */
bool lk_session_get_level(const lk_session *session, size_t i, lk_level_stats *out);

typedef struct {
    uint64_t n_tok, cache_bytes, f16_bytes, weight_bytes, scratch_bytes;
    uint64_t peak_bytes; /* maximum of the sum during the prefill of n_tok tokens */
    double bits_per_value;
    uint64_t sidecar_bytes; /* of weight_bytes: what sessions share of the sidecar */
    uint64_t derived_bytes; /* of scratch_bytes: what each session makes of it for itself */
    uint64_t device_bytes;  /* weights and activations on the model's device, in no other number */
    uint64_t device_cache_bytes;   /* rows on the session's device, in whole slabs of the device and
                                    with one to grow for each block size, and states of recurrent
                                    layers on the model's: part of cache_bytes, but not of
                                    peak_bytes, which are in RAM */
    uint64_t device_scratch_bytes; /* what the session has there besides rows, at most */
    uint64_t device_shared_bytes;  /* what all sessions of the recipe share there, of the sidecar */
} lk_plan;

/* Memory that a session with these options will need when it is full (n_tok is opts->n_ctx),
 * computed with the cache's own arithmetic. Only n_ctx, chunked_prefill and device are read. */
lk_status lk_plan_make(const lk_model *model, const lk_recipe *recipe, const lk_session_opts *opts,
                       lk_plan *out, lk_err *err);

/* ---- sampling ---- */

typedef struct {
    int32_t tok;
    float bias; /* added to the token's logit, -1e6 to 1e6; -INFINITY: never chosen */
} lk_logit_bias;

struct lk_sampler_opts {
    float temperature;       /* 0 or less: greedy, the most probable token */
    int32_t top_k;           /* 0 or less: off */
    float top_p;             /* 0 or 1: off */
    float min_p;             /* 0: off */
    float repeat_penalty;    /* divides repeated tokens' logits; 0 or 1: off */
    float frequency_penalty; /* subtracted for each repetition; 0: off */
    float presence_penalty;  /* subtracted once; 0: off */
    int32_t repeat_last_n;   /* number of last tokens that count as repeated; 0: 64; -1: none */
    uint32_t seed;
    const char *grammar;       /* GBNF; NULL: none. Read by lk_sampler_new only, like bias */
    const lk_logit_bias *bias; /* [n_bias] */
    size_t n_bias;
    bool ignore_eos; /* never choose a token that ends an answer */
    /* The grammar holds only after this text, of at most 63 bytes, each time until it is complete;
     * what comes before and between is free, and the rest if the grammar allows no token or is too
     * ambiguous. With a trigger, control tokens match by their texts, except those that end an
     * answer. NULL or "": the grammar holds from the start; "": and control tokens match. Read like
     * grammar. */
    const char *trigger;
    bool trigger_first; /* the trigger counts only at the start, after white space */
};

/* Options for conversation, as in llama.cpp: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05. */
lk_sampler_opts lk_sampler_chat(void);

/* The same, with what the model file recommends (general.sampling.temp, top_k, top_p, min_p,
 * penalty_repeat and penalty_last_n). */
lk_sampler_opts lk_model_sampling(const lk_model *model);

/* ---- sessions on disk ---- */

/* Save a session, whatever its recipe, and, if not NULL, the state of a sampler. The file replaces
 * an existing one atomically, once it is complete. Only its owner may read it. LK_E_IO. */
lk_status lk_session_save(const lk_session *session, const lk_sampler *sampler, const char *path,
                          lk_err *err);

/* Load a saved session into one with the same model and recipe (see lk_session_file_recipe), and
 * with the same sidecar if the recipe has latents or `absorb less`. It continues with bit-identical
 * logits. `sampler` (may be NULL) continues too if it has the options
 * of the saved one, and is unchanged otherwise. Everything is validated first. LK_E_IO, LK_E_FORMAT
 * for a file that is damaged or does not match, LK_E_FULL, LK_E_NOMEM. After a
 * failure the session is unchanged, or empty after LK_E_NOMEM; the sampler may have changed
 * then. */
lk_status lk_session_load(lk_session *session, lk_sampler *sampler, const char *path, lk_err *err);

/* The tokens of a saved session of `model`. Only the header and the tokens are validated. *tok is
 * owned: lk_tokens_free. LK_E_IO, LK_E_FORMAT, LK_E_NOMEM. */
lk_status lk_session_file_tokens(const lk_model *model, const char *path, int32_t **tok,
                                 size_t *n_tok, lk_err *err);

/* The recipe of a saved session. *out is owned: lk_recipe_free. */
lk_status lk_session_file_recipe(lk_recipe **out, const char *path, lk_err *err);

#ifdef __cplusplus
}
#endif
#endif
