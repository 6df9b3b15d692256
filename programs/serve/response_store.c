/* Keeps conversations of earlier responses as JSON texts, in a ring. */
#include "serve/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char id[64];
    char *text; /* [len] NULL: none */
    size_t len;
};

struct lk_response_store {
    pthread_mutex_t lock;
    struct entry entry[LK_STORED_RESPONSES];
    size_t first, n, n_byte; /* the oldest entry, entries, bytes of their texts */
};

struct lk_response_store *lk_response_store_new(void) {
    struct lk_response_store *store = calloc(1, sizeof *store);
    if (store) pthread_mutex_init(&store->lock, NULL);
    return store;
}

/* The lock is held. */
static void drop_oldest(struct lk_response_store *store) {
    struct entry *oldest = &store->entry[store->first];
    store->n_byte -= oldest->len;
    free(oldest->text);
    *oldest = (struct entry){.text = NULL};
    store->first = (store->first + 1) % LK_STORED_RESPONSES;
    store->n--;
}

void lk_response_store_free(struct lk_response_store *store) {
    if (!store) return;
    while (store->n) drop_oldest(store);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

bool lk_response_store_put(struct lk_response_store *store, const char *id, const json_t *input,
                           const json_t *output) {
    json_t *items = json_is_string(input)
                        ? json_pack("[{s:s, s:O}]", "role", "user", "content", input)
                        : json_copy((json_t *)input);
    struct entry made = {.text = NULL};
    if (items && strlen(id) < sizeof made.id && json_array_extend(items, (json_t *)output) == 0)
        made.text = json_dumps(items, JSON_COMPACT);
    json_decref(items);
    made.len = made.text ? strlen(made.text) : 0;
    if (!made.text || made.len > LK_MAX_STORED_RESPONSE) {
        free(made.text);
        return false;
    }
    memcpy(made.id, id, strlen(id) + 1);
    pthread_mutex_lock(&store->lock);
    while (store->n &&
           (store->n == LK_STORED_RESPONSES || store->n_byte + made.len > LK_STORED_RESPONSE_BYTES))
        drop_oldest(store);
    store->entry[(store->first + store->n++) % LK_STORED_RESPONSES] = made;
    store->n_byte += made.len;
    pthread_mutex_unlock(&store->lock);
    return true;
}

json_t *lk_response_store_get(struct lk_response_store *store, const char *id, size_t *n_byte) {
    char *text = NULL;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->n && !text; i++) {
        const struct entry *one = &store->entry[(store->first + i) % LK_STORED_RESPONSES];
        if (strcmp(one->id, id) == 0) text = strdup(one->text);
    }
    pthread_mutex_unlock(&store->lock);
    json_t *items = text ? json_loads(text, 0, NULL) : NULL;
    *n_byte = text ? strlen(text) : 0;
    free(text);
    return items;
}
