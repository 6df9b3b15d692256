/* What ollama's clients ask about the server and its model. */
#ifndef LK_SERVE_OLLAMA_INFO_H
#define LK_SERVE_OLLAMA_INFO_H

#include "serve/exchange.h"

/* Replies of /api/version, /api/tags and /api/ps; new references. */
json_t *lk_ollama_version_json(void);
json_t *lk_ollama_tags_json(const struct lk_server *server);
json_t *lk_ollama_ps_json(const struct lk_server *server);

/* /api/show: append what is known of the model, whatever its name in the body. Always succeeds;
 * the signature is that of lk_work.convert. */
bool lk_ollama_show(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error);

#endif
