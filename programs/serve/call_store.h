/* Arguments of calls as the model wrote them. Clients parse the arguments of a call and send them
 * back in another serialization: other white space, order of keys, numbers or escapes. A prompt
 * made of that would differ from what the session holds at the first such call. So the server keeps
 * what it sent, and a call that comes back with the same value is rendered as it was generated. In
 * memory, bounded by number and bytes; the oldest leave first. */
#ifndef LK_SERVE_CALL_STORE_H
#define LK_SERVE_CALL_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LK_STORED_CALLS = 2048,
    LK_STORED_CALL_BYTES = 16 << 20, /* of all together */
    LK_MAX_STORED_CALL = 256 << 10,  /* of one; a longer one is not kept */
};

struct lk_call_store;

/* NULL if out of memory. Freed with lk_call_store_free. May be used by several threads. */
struct lk_call_store *lk_call_store_new(void);
void lk_call_store_free(struct lk_call_store *store);

/* Keep a call. `arguments`: JSON text of an object, with its keys in the order of the model.
 * `written`: the text that the model wrote, if that is JSON; otherwise NULL. False if it is too
 * long, or memory ran out. */
bool lk_call_store_put(struct lk_call_store *store, const char *id, const char *name,
                       const char *arguments, const char *written);

/* The newest call with this id (NULL: any), name and value of its arguments. *arguments and
 * *written are owned: free(); *written may be NULL. False if there is none, or memory ran out; then
 * both are NULL. */
bool lk_call_store_find(struct lk_call_store *store, const char *id, const char *name,
                        const json_t *value, char **arguments, char **written);

/* How many calls were found whose arguments the client had serialized in another way. */
uint64_t lk_call_store_n_changed(struct lk_call_store *store);

/* Do two JSON texts mean the same? Keys have no order, and 1, 1.0 and 1e0 are the same. */
bool lk_json_same_value(const json_t *a, const json_t *b);

#endif
