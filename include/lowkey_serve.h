/* lowkey_serve.h - what a server needs in addition to lowkey.h: several sessions in one pass, chats
 * in JSON, checkpoints at chosen places, embeddings, and the memory of each part.
 *
 * The rules of lowkey.h hold here too. */
#ifndef LOWKEY_SERVE_H
#define LOWKEY_SERVE_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- several sessions in one pass over the weights ---- */

/* Evaluates several sessions in one pass over the weights. One thread at a time may use it. */
typedef struct lk_batch lk_batch;

enum { LK_BATCH_MAX = 1024 }; /* maximum number of tokens of one lk_batch_eval */

typedef struct {
    lk_session *session;
    const int32_t *tok; /* [n_tok] as in lk_session_eval, like `all` */
    size_t n_tok;
    bool all;
    lk_err err; /* result: LK_OK, or why the session was not evaluated */
} lk_batch_entry;

/* Scratch memory for evaluating any sessions of `model`, which must outlive it. *out is owned:
 * lk_batch_free. */
lk_status lk_batch_new(lk_batch **out, lk_model *model, lk_err *err);
void lk_batch_free(lk_batch *batch);

/* lk_session_eval of n different sessions in one pass. Recipes and lengths may differ. An entry
 * that fails gets its err and is left out; the others are evaluated. If the status is not LK_OK, no
 * entry was evaluated. LK_E_ARG for sessions of other models, a session given twice, and too many
 * tokens. */
lk_status lk_batch_eval(lk_batch *batch, lk_batch_entry *entry, size_t n, lk_err *err);

/* ---- chats ---- */

/* A conversation with all that templates know. {.messages = ...} formats it as it is. */
typedef struct {
    /* JSON array of messages as in OpenAI's API: objects with a role (system, user, assistant,
     * tool), a content (string), and maybe tool_calls, tool_call_id, name and other fields that the
     * template reads. Arguments of calls may be objects or JSON in strings. */
    const char *messages;
    const char *tools;     /* JSON array of tools as in OpenAI's API; NULL: none */
    const char *variables; /* JSON object, more variables of the template, for example
                              {"enable_thinking": false}; NULL: none */
    bool reply;            /* open the assistant's turn at the end */
    bool continue_last;    /* end in the last message, which is the assistant's, for continuing it;
                              `reply` does not matter then */
} lk_chat;

/* Like lk_chat_format. Everything but roles may come from strangers. Tools, calls and results that
 * the template has no place for become text of system, assistant and user messages. Also LK_E_ARG:
 * a message is not as above; LK_E_FORMAT: invalid JSON. */
lk_status lk_chat_format_json(const lk_model *model, const lk_chat *chat, char **text, lk_err *err);

/* Upper bound of the memory that formatting takes, including its result, if the JSON texts of the
 * conversation, or the roles and contents of messages, have n_json bytes. */
uint64_t lk_chat_bytes(uint64_t n_json);

/* How the model writes a tool call: words, a JSON object with "name" and "arguments" (or
 * "parameters"), words. Control tokens in the words are left out. */
typedef struct {
    char before[64], after[64]; /* zero-terminated; "" if there are none, or are unknown */
    bool has_parameters;        /* the arguments are called "parameters" */
    char opening[128];          /* the end of the text before the JSON, with control tokens */
    /* The call of probe_name with {"probe_key": "v"} as the template writes it, as marked text
     * (lk_chat_format), cut at its end. */
    char sample[400];
} lk_call_words;

/* Find the words in the model's chat template. Errors as of lk_chat_format. */
lk_status lk_chat_call_words(const lk_model *model, lk_call_words *words, lk_err *err);

/* Control tokens around the parts of a text whose middle is to be filled in; -1: the model has
 * none. `repo` and `file` precede the name of a repository and of a file. */
typedef struct {
    int32_t prefix, suffix, middle, repo, file;
} lk_fim_tokens;
lk_fim_tokens lk_model_get_fim_tokens(const lk_model *model);

/* ---- sampling ---- */

/* GBNF grammar for lk_sampler_opts that accepts only JSON texts that match the JSON schema `schema`
 * (len bytes). Properties come in the schema's order. Supported keywords: type, properties,
 * required, additionalProperties, items, prefixItems (of arrays with exactly these items),
 * minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum,
 * exclusiveMaximum, multipleOf (1, 0.1, ...), enum, const, anyOf, oneOf (treated as anyOf), allOf,
 * and $ref within the document. Keywords next to a choice, and the schemas of allOf, are merged. A
 * pattern next to a known format, and propertyNames that are strings, restrict nothing. *grammar is
 * owned: lk_text_free. Errors: LK_E_FORMAT (not JSON, or not a schema), LK_E_UNSUPPORTED (a keyword
 * that cannot be expressed, named in err, or a schema that is too large), LK_E_NOMEM. */
lk_status lk_schema_to_grammar(const char *schema, size_t len, char **grammar, lk_err *err);

/* The same for texts that match a regular expression (ECMA 262) as a whole. Not supported are
 * look-around, back references, word boundaries and anchors inside the expression. */
lk_status lk_regex_to_grammar(const char *regex, char **grammar, lk_err *err);

/* A new sampler in its initial state, with the options of `from` and another seed. The compiled
 * grammar is shared, not parsed again. *out is owned: lk_sampler_free, in any order. LK_E_NOMEM. */
lk_status lk_sampler_copy(lk_sampler **out, const lk_sampler *from, uint32_t seed, lk_err *err);

/* Accept a token that the sampler did not choose, as if it had: penalties and the grammar go on
 * from it. Without a trigger the grammar must allow it. LK_E_NOMEM. */
lk_status lk_sampler_accept(lk_sampler *sampler, int32_t tok, lk_err *err);

/* Are the tokens that follow thoughts of the model? In them the trigger of a grammar is a word like
 * others; the answer starts after them, for a trigger that counts only there. */
void lk_sampler_set_thoughts(lk_sampler *sampler, bool are_thoughts);

typedef struct {
    int32_t tok;
    float logprob; /* natural logarithm of the probability */
} lk_token_logprob;

/* Log-probabilities of the token that follows the i-th one (see lk_session_logits): of `tok` in
 * *logprob (ignored if NULL), and of the n_top most probable tokens in top[0..n_top), most probable
 * first. LK_E_ARG without logits at i, for a token that does not exist, and if n_top exceeds the
 * vocabulary. */
lk_status lk_session_logprobs(const lk_session *session, int32_t i, int32_t tok, float *logprob,
                              lk_token_logprob *top, size_t n_top, lk_err *err);

/* ---- sessions ---- */

/* lk_session_sync that also keeps checkpoints after mark[0..n_mark) tokens, the most important
 * first: where later texts may differ, such as the end of a system prompt or the start of the last
 * question. */
lk_status lk_session_sync_marked(lk_session *session, const int32_t *tok, size_t n_tok,
                                 const size_t *mark, size_t n_mark, size_t *n_reused, lk_err *err);

/* A prefill of lk_session_sync that was cancelled, and that the next one goes on with: the number
 * of its tokens, which lk_session_tokens then has; 0: none. The session itself has no tokens.
 * *n_done (may be NULL): what was done, in tokens through all layers. */
size_t lk_session_suspended(const lk_session *session, size_t *n_done);

/* *n_done of the prefill that a saved session has; 0 if it was not cut short, or nothing was done.
 * Only the file's header is checked. LK_E_IO, LK_E_FORMAT. */
lk_status lk_session_file_suspended(const char *path, size_t *n_done, lk_err *err);

/* How the hidden states of a text's tokens become one vector. */
typedef enum {
    LK_POOLING_MODEL = 0, /* as the model file says; the mean if it does not say */
    LK_POOLING_MEAN = 1,
    LK_POOLING_LAST = 3, /* the last token's */
} lk_pooling;

/* The embedding out[n_embd] of tok[0..n_tok): the hidden states after the final norm, pooled and
 * scaled to length 1. The tokens attend to each other exactly, whatever the recipe. The session is
 * empty afterwards; progress and cancellation are as for lk_session_sync.
 * A model that was trained to predict tokens was not trained for this: similar texts have similar
 * vectors, but an embedding model separates them better. LK_E_ARG, LK_E_FULL, LK_E_UNSUPPORTED for
 * a file that pools in another way, LK_E_CANCELLED, LK_E_NOMEM. */
lk_status lk_session_embed(lk_session *session, const int32_t *tok, size_t n_tok,
                           lk_pooling pooling, float *out, lk_err *err);

/* ---- memory ---- */

/* Bytes of the cache that copies (lk_session_copy) share permanently: full blocks whose rows are
 * never evicted or moved. */
uint64_t lk_session_immutable_bytes(const lk_session *session);

/* Bytes of a batch's activations and graphs. */
uint64_t lk_batch_scratch_bytes(const lk_batch *batch);

/* Bytes of n such sessions: their caches, and what the recipe needs of the sidecar. Weights and
 * other scratch memory do not depend on the recipe. */
uint64_t lk_plan_bytes(const lk_plan *plan, uint64_t n_session);

/* Memory of a sampler: what it holds by itself, or will hold after its first choice; and the
 * compiled grammar, which it shares with its copies (0 without a grammar). A grammar's state grows
 * with the nesting of the text, to at most about 30 MiB. */
uint64_t lk_sampler_bytes(const lk_sampler *sampler);
uint64_t lk_sampler_grammar_bytes(const lk_sampler *sampler);

/* ---- recipes: what cannot be combined ---- */

/* Two features that a recipe can have, or a recipe and a model ("keep by h2o", "sliding windows").
 * Names and reason are static. */
typedef struct {
    const char *a, *b;
    const char *reason; /* why they cannot be combined; NULL: they can */
    char example[256];  /* a recipe that has both, as far as the recipe decides */
} lk_combination;

/* The i-th pair of features. False if there are fewer. */
bool lk_recipe_combination(size_t i, lk_combination *out);

#ifdef __cplusplus
}
#endif
#endif
