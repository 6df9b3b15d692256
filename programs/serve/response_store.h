/* Earlier responses and their inputs, for "previous_response_id", references to items and GET: in
 * memory, bounded by their number and their bytes. The oldest leave first. Ids cannot be guessed,
 * so a client only reads its own. */
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

/* Keep a response and the items, or the text, that it answers. False if both are too long, or
 * memory ran out. */
bool lk_response_store_put(struct lk_response_store *store, const char *id, const json_t *input,
                           const json_t *response);

/* The items of the conversation: the input of the response, then its output; a new reference, and
 * the bytes of their text. NULL: there is no response with this id, or memory ran out. */
json_t *lk_response_store_items(struct lk_response_store *store, const char *id, size_t *n_byte);

/* The JSON text of a response, owned: free(). NULL as above. */
char *lk_response_store_text(struct lk_response_store *store, const char *id);

/* Forget a response. False: there is none with this id. */
bool lk_response_store_remove(struct lk_response_store *store, const char *id);

#endif
