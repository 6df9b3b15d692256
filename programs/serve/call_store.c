/* Keeps the arguments of calls in a ring. */
#include "serve/call_store.h"

#include "base/hash.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    uint64_t hash;                         /* of name and value */
    char *id, *name, *arguments, *written; /* written: may be NULL */
    size_t len;                            /* of all texts */
};

struct lk_call_store {
    pthread_mutex_t lock;
    struct entry entry[LK_STORED_CALLS];
    size_t first, n, n_byte; /* the oldest entry, entries, bytes of their texts */
    uint64_t n_changed;
};

/* ---- values ---- */

bool lk_json_same_value(const json_t *a, const json_t *b) {
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_is_object(a) && json_is_object(b)) {
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)a, key, one) {
            const json_t *other = json_object_get(b, key);
            if (!other || !lk_json_same_value(one, other)) return false;
        }
        return true;
    }
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        json_array_foreach(a, i, one) {
            if (!lk_json_same_value(one, json_array_get(b, i))) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

/* Equal for the same values. */
static uint64_t hash_value(const json_t *value) {
    uint64_t sum = 0, hash = lk_fnv1a(LK_FNV1A_INIT, "", 0);
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_number(value)) {
        double number = json_number_value(value) + 0.0; /* -0 becomes 0 */
        return lk_fnv1a(hash, &number, sizeof number);
    }
    if (json_is_string(value))
        return lk_fnv1a(hash, json_string_value(value), json_string_length(value));
    json_object_foreach((json_t *)value, key, one) {
        uint64_t inner = hash_value(one);
        sum += lk_fnv1a(lk_fnv1a(hash, key, strlen(key)), &inner, sizeof inner);
    }
    json_array_foreach(value, i, one) {
        uint64_t inner = hash_value(one);
        sum = lk_fnv1a(sum, &inner, sizeof inner);
    }
    int type = (int)json_typeof(value);
    return lk_fnv1a(lk_fnv1a(hash, &type, sizeof type), &sum, sizeof sum);
}

static uint64_t hash_call(const char *name, const json_t *value) {
    uint64_t hash = hash_value(value);
    return lk_fnv1a(hash, name, strlen(name));
}

/* ---- the ring ---- */

struct lk_call_store *lk_call_store_new(void) {
    struct lk_call_store *store = calloc(1, sizeof *store);
    if (store) pthread_mutex_init(&store->lock, NULL);
    return store;
}

static void free_entry(struct entry *entry) {
    free(entry->id);
    free(entry->name);
    free(entry->arguments);
    free(entry->written);
    *entry = (struct entry){.id = NULL};
}

/* The lock is held. */
static void drop_oldest(struct lk_call_store *store) {
    struct entry *oldest = &store->entry[store->first];
    store->n_byte -= oldest->len;
    free_entry(oldest);
    store->first = (store->first + 1) % LK_STORED_CALLS;
    store->n--;
}

void lk_call_store_free(struct lk_call_store *store) {
    if (!store) return;
    while (store->n) drop_oldest(store);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

bool lk_call_store_put(struct lk_call_store *store, const char *id, const char *name,
                       const char *arguments, const char *written) {
    size_t len = strlen(id) + strlen(name) + strlen(arguments) + (written ? strlen(written) : 0);
    json_t *value = len <= LK_MAX_STORED_CALL ? json_loads(arguments, 0, NULL) : NULL;
    if (!value) return false;
    json_t *parsed = written ? json_loads(written, 0, NULL) : NULL;
    if (!parsed || !lk_json_same_value(parsed, value)) written = NULL;
    json_decref(parsed);
    struct entry made = {.hash = hash_call(name, value),
                         .id = strdup(id),
                         .name = strdup(name),
                         .arguments = strdup(arguments),
                         .written = written ? strdup(written) : NULL,
                         .len = len};
    json_decref(value);
    if (!made.id || !made.name || !made.arguments || (written && !made.written)) {
        free_entry(&made);
        return false;
    }
    pthread_mutex_lock(&store->lock);
    while (store->n && (store->n == LK_STORED_CALLS || store->n_byte + len > LK_STORED_CALL_BYTES))
        drop_oldest(store);
    store->entry[(store->first + store->n++) % LK_STORED_CALLS] = made;
    store->n_byte += len;
    pthread_mutex_unlock(&store->lock);
    return true;
}

/* The newest call with this hash. The lock is held. */
static const struct entry *find_hash(const struct lk_call_store *store, const char *id,
                                     const char *name, uint64_t hash) {
    for (size_t i = store->n; i-- > 0;) {
        const struct entry *one = &store->entry[(store->first + i) % LK_STORED_CALLS];
        if (one->hash == hash && strcmp(one->name, name) == 0 && (!id || strcmp(one->id, id) == 0))
            return one;
    }
    return NULL;
}

bool lk_call_store_find(struct lk_call_store *store, const char *id, const char *name,
                        const json_t *value, char **arguments, char **written) {
    uint64_t hash = hash_call(name, value);
    bool has_written = false;
    *arguments = *written = NULL;
    pthread_mutex_lock(&store->lock);
    const struct entry *found = find_hash(store, id, name, hash);
    if (found) {
        has_written = found->written != NULL;
        *arguments = strdup(found->arguments);
        *written = has_written ? strdup(found->written) : NULL;
    }
    pthread_mutex_unlock(&store->lock);
    json_t *kept = *arguments ? json_loads(*arguments, 0, NULL) : NULL;
    char *given = kept ? json_dumps(value, JSON_COMPACT) : NULL;
    bool same = given && (*written || !has_written) && lk_json_same_value(kept, value);
    if (same && strcmp(given, *arguments) != 0) {
        pthread_mutex_lock(&store->lock);
        store->n_changed++;
        pthread_mutex_unlock(&store->lock);
    }
    if (!same) {
        free(*arguments);
        free(*written);
        *arguments = *written = NULL;
    }
    json_decref(kept);
    free(given);
    return same;
}

uint64_t lk_call_store_n_changed(struct lk_call_store *store) {
    pthread_mutex_lock(&store->lock);
    uint64_t n = store->n_changed;
    pthread_mutex_unlock(&store->lock);
    return n;
}
