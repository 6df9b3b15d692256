/* Request bodies of ollama's API. */
#ifndef LK_SERVE_OLLAMA_BODY_H
#define LK_SERVE_OLLAMA_BODY_H

#include "serve/api_error.h"

/* Convert a body to OpenAI's chat form; for /api/generate with "raw" or "suffix" to its completion
 * form, which has a "prompt". Without a prompt or messages, which asks to load the model, the
 * result has none either. A new reference. NULL: see `error`. */
json_t *lk_ollama_chat_to_openai(const json_t *body, struct lk_api_error *error);
json_t *lk_ollama_generate_to_openai(const json_t *body, struct lk_api_error *error);

/* Set the model's name, without ollama's default tag ":latest". */
void lk_ollama_convert_model(json_t *to, const json_t *from);

#endif
