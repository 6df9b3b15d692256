/* Conversations of earlier responses, for "previous_response_id": in memory, bounded by their
 * number and their bytes. The oldest leave first. Ids cannot be guessed, so a client only continues
 * its own. */
#ifndef LK_SERVE_RESPONSE_STORE_H
#define LK_SERVE_RESPONSE_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum {
    LK_STORED_RESPONSES = 256,
    LK_STORED_RESPONSE_BYTES = 16 << 20, /* of all together, as JSON text */
    LK_MAX_STORED_RESPONSE = 2 << 20,    /* of one; a longer one is not kept */
};

struct lk_response_store;

/* NULL if out of memory. Freed with lk_response_store_free. May be used by several threads. */
struct lk_response_store *lk_response_store_new(void);
void lk_response_store_free(struct lk_response_store *store);

/* Keep the items of a conversation: the input of its last response, then the output. False if it is
 * too long, or memory ran out. */
bool lk_response_store_put(struct lk_response_store *store, const char *id, const json_t *input,
                           const json_t *output);

/* The items, a new reference, and the bytes of their text. NULL: there is no response with this id,
 * or memory ran out. */
json_t *lk_response_store_get(struct lk_response_store *store, const char *id, size_t *n_byte);

#endif
