/* Keeps earlier responses as JSON texts, in a ring. A response that was removed leaves its place
 * empty. */
#include "serve/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char id[64];
    char *input, *response; /* NULL: the place is empty */
    size_t len;             /* of both */
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
static void clear(struct lk_response_store *store, struct entry *entry) {
    store->n_byte -= entry->len;
    free(entry->input);
    free(entry->response);
    *entry = (struct entry){.input = NULL};
}

/* The lock is held. */
static void drop_oldest(struct lk_response_store *store) {
    clear(store, &store->entry[store->first]);
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
                           const json_t *response) {
    json_t *items = json_is_string(input)
                        ? json_pack("[{s:s, s:O}]", "role", "user", "content", input)
                        : json_incref((json_t *)input);
    struct entry made = {.input = NULL};
    if (items && strlen(id) < sizeof made.id) {
        made.input = json_dumps(items, JSON_COMPACT);
        made.response = json_dumps(response, JSON_COMPACT);
    }
    json_decref(items);
    if (made.input && made.response) made.len = strlen(made.input) + strlen(made.response);
    if (made.len == 0 || made.len > LK_MAX_STORED_RESPONSE) {
        free(made.input);
        free(made.response);
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

/* NULL: there is none. The lock is held. */
static struct entry *find(struct lk_response_store *store, const char *id) {
    for (size_t i = 0; i < store->n; i++) {
        struct entry *one = &store->entry[(store->first + i) % LK_STORED_RESPONSES];
        if (one->response && strcmp(one->id, id) == 0) return one;
    }
    return NULL;
}

json_t *lk_response_store_items(struct lk_response_store *store, const char *id, size_t *n_byte) {
    char *input = NULL, *response = NULL;
    pthread_mutex_lock(&store->lock);
    const struct entry *found = find(store, id);
    if (found) {
        input = strdup(found->input);
        response = strdup(found->response);
        *n_byte = found->len;
    }
    pthread_mutex_unlock(&store->lock);
    json_t *items = input ? json_loads(input, 0, NULL) : NULL,
           *last = response ? json_loads(response, 0, NULL) : NULL;
    if (items && (!last || json_array_extend(items, json_object_get(last, "output")))) {
        json_decref(items);
        items = NULL;
    }
    json_decref(last);
    free(input);
    free(response);
    return items;
}

char *lk_response_store_text(struct lk_response_store *store, const char *id) {
    pthread_mutex_lock(&store->lock);
    const struct entry *found = find(store, id);
    char *text = found ? strdup(found->response) : NULL;
    pthread_mutex_unlock(&store->lock);
    return text;
}

bool lk_response_store_remove(struct lk_response_store *store, const char *id) {
    pthread_mutex_lock(&store->lock);
    struct entry *found = find(store, id);
    if (found) clear(store, found);
    pthread_mutex_unlock(&store->lock);
    return found != NULL;
}
