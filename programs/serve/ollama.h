/* ollama's API. Bodies become OpenAI's chat or completion form, streams are lines of JSON. */
#ifndef LK_SERVE_OLLAMA_H
#define LK_SERVE_OLLAMA_H

#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/exchange.h"

/* /api/chat and /api/generate. */
extern const struct lk_endpoint lk_ollama_chat, lk_ollama_generate;

/* The body of a reply with an error; a new reference. */
json_t *lk_ollama_error_json(const struct lk_api_error *error);

/* Convert a body to OpenAI's chat form; for /api/generate with "raw" or "suffix" to its completion
 * form, which has a "prompt". Without a prompt or messages, which asks to load the model, the
 * result has none either. A new reference. NULL: see `error`. */
json_t *lk_ollama_chat_to_openai(const json_t *body, struct lk_api_error *error);
json_t *lk_ollama_generate_to_openai(const json_t *body, struct lk_api_error *error);

/* Replies of /api/version, /api/tags and /api/ps; new references. */
json_t *lk_ollama_version_json(void);
json_t *lk_ollama_tags_json(const struct lk_server *server);
json_t *lk_ollama_ps_json(const struct lk_server *server);

/* The reply to a request that asks to unload the model of this name. `chat`: to /api/chat. */
json_t *lk_ollama_unloaded_json(const char *model, bool chat);

/* /api/show: append what is known of the model, whatever its name in the body. Always succeeds;
 * the signature is that of lk_work.convert. */
bool lk_ollama_show(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error);

/* /api/embed, and the older /api/embeddings with one text. */
extern const struct lk_endpoint lk_ollama_embed, lk_ollama_embeddings;

#endif
