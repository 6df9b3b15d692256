/* /v1/embeddings: pooled hidden states of the language model. */
#ifndef LK_SERVE_EMBEDDINGS_H
#define LK_SERVE_EMBEDDINGS_H

#include "serve/answer.h"

extern const struct lk_endpoint lk_embeddings_endpoint;

/* Parse a body that is JSON already, for other APIs. It is taken over; NULL: parsing it failed, and
 * `error` is set. *request must be freed in any case. */
bool lk_embeddings_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                              json_t *body, struct lk_api_error *error);

/* Append the first n_dim numbers of a text's embedding, as JSON. May be called once per text. */
void lk_embedding_append(const struct lk_response *response, size_t i_text, struct lk_buf *out);

#endif
