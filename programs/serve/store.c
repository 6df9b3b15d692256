#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* flock, realpath, utimensat */
#endif
#include "serve/store.h"

#include "base/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX = 16 };
static const char own_folder[] = "store"; /* within the folder of sessions */
static const char *const suffixes[] = {".session", ".prefix"};

struct entry {
    char name[LK_STORED_NAME];
    uint64_t size;
    int64_t used; /* moment of its last use, nanoseconds since 1970 */
    bool usable;  /* by this server: its model, one of its recipes, whole */
    bool seen;    /* by the look under way */
    int n_load;   /* how often it was loaded here */
    size_t recipe, n_tok;
    int32_t *tok;       /* [n_tok] */
    struct lk_buf text; /* what they stand for */
};

struct lk_store {
    const struct lk_serve_opts *opts;
    struct lk_metrics *metrics;
    char dir[LK_MAX_PATH], auto_dir[LK_MAX_PATH]; /* of named sessions, and of the server's own */
    bool *unsavable;      /* [n_recipe] sessions of that recipe cannot be saved */
    pthread_mutex_t lock; /* of the index */
    struct entry *entry;  /* [n] */
    size_t n, cap;
};

static void note(const struct lk_store *store, const char *msg) {
    if (store->opts->note) store->opts->note(store->opts->user, msg);
}

/* ---- tokens ---- */

size_t lk_tokens_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

void lk_tokens_text(const lk_model *model, const int32_t *tok, size_t n_tok, struct lk_buf *out) {
    int32_t *begin = NULL;
    size_t n_begin = 0, i = 0;
    if (lk_tokenize(model, "", 0, true, &begin, &n_begin, NULL) == LK_OK &&
        lk_tokens_common(begin, n_begin, tok, n_tok) == n_begin)
        i = n_begin;
    lk_tokens_free(begin);
    for (; i < n_tok; i++) {
        char piece[512];
        size_t len = lk_token_text(model, tok[i], piece, sizeof piece);
        lk_buf_add(out, piece, len < sizeof piece ? len : sizeof piece - 1);
    }
}

/* ---- the index: under the lock ---- */

static struct entry *find_name(const struct lk_store *store, const char *name) {
    for (size_t i = 0; i < store->n; i++)
        if (strcmp(store->entry[i].name, name) == 0) return &store->entry[i];
    return NULL;
}

static void count(struct lk_store *store) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < store->n; i++) bytes += store->entry[i].size;
    store->metrics->stored = store->n;
    store->metrics->stored_bytes = bytes;
}

static void drop_entry(struct lk_store *store, struct entry *e) {
    free(e->tok);
    lk_buf_free(&e->text);
    *e = store->entry[--store->n];
    count(store);
}

static bool add_entry(struct lk_store *store, const struct entry *e) {
    if (store->n == store->cap) {
        size_t cap = store->cap ? 2 * store->cap : 16;
        void *bigger = realloc(store->entry, cap * sizeof *store->entry);
        if (!bigger) return false;
        store->entry = bigger;
        store->cap = cap;
    }
    store->entry[store->n++] = *e;
    count(store);
    return true;
}

static void file_path(const struct lk_store *store, const char *name, char *path) {
    snprintf(path, LK_MAX_PATH, "%.4000s/%.40s", store->auto_dir, name);
}

static void remove_file(struct lk_store *store, struct entry *e) {
    char path[LK_MAX_PATH];
    file_path(store, e->name, path);
    unlink(path); /* another server may have done so already */
    drop_entry(store, e);
}

/* Remove those longest unused until `more` bytes fit. */
static void hold_limit(struct lk_store *store, uint64_t more) {
    for (;;) {
        uint64_t bytes = more;
        struct entry *oldest = NULL;
        for (size_t i = 0; i < store->n; i++) {
            bytes += store->entry[i].size;
            if (!oldest || store->entry[i].used < oldest->used) oldest = &store->entry[i];
        }
        if (bytes <= store->opts->store_bytes || !oldest) return;
        remove_file(store, oldest);
        store->metrics->stored_removed++;
    }
}

static struct entry *find_tokens(const struct lk_store *store, size_t recipe, const int32_t *tok,
                                 size_t n_tok) {
    for (size_t i = 0; i < store->n; i++) {
        struct entry *e = &store->entry[i];
        if (e->usable && e->recipe == recipe && e->n_tok == n_tok &&
            memcmp(e->tok, tok, n_tok * sizeof *tok) == 0)
            return e;
    }
    return NULL;
}

/* ---- looking into the folder ---- */

static int64_t nanoseconds(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

/* Which of the server's recipes the file has; n_recipe where it is none of them. */
static lk_status find_recipe(const struct lk_store *store, const char *path, size_t *out,
                             lk_err *err) {
    lk_recipe *recipe = NULL;
    lk_status status = lk_session_file_recipe(&recipe, path, err);
    if (status != LK_OK) return status;
    size_t i = 0;
    while (i < store->opts->n_recipe &&
           strcmp(lk_recipe_text(recipe), lk_recipe_text(store->opts->recipe[i])) != 0)
        i++;
    if (i == store->opts->n_recipe)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "cannot load %s: its recipe '%.200s' is not allowed here; see --allow-kv",
                         path, lk_recipe_text(recipe));
    *out = i;
    lk_recipe_free(recipe);
    return status;
}

lk_status lk_store_inspect(const struct lk_store *store, const char *path, size_t *recipe,
                           int32_t **tok, size_t *n_tok, lk_err *err) {
    lk_status status = find_recipe(store, path, recipe, err);
    if (status != LK_OK) return status;
    return lk_session_file_tokens(store->opts->model, path, tok, n_tok, err);
}

/* What the file holds; it stays as it is where it is of no use here. */
static lk_status read_entry(const struct lk_store *store, struct entry *e, lk_err *err) {
    char path[LK_MAX_PATH];
    file_path(store, e->name, path);
    lk_status status = lk_store_inspect(store, path, &e->recipe, &e->tok, &e->n_tok, err);
    if (status != LK_OK) return status;
    e->usable = e->n_tok > 0 && e->n_tok < (size_t)store->opts->n_ctx;
    lk_tokens_text(store->opts->model, e->tok, e->n_tok, &e->text);
    return LK_OK;
}

static bool is_prefix(const char *name) { return strcmp(name + HEX, suffixes[1]) == 0; }

static bool is_stored_name(const char *name) {
    return strspn(name, "0123456789abcdef") == HEX &&
           (strcmp(name + HEX, suffixes[0]) == 0 || is_prefix(name));
}

/* What a server left that was killed while it wrote. Who writes now has it locked. */
static void clean(const struct lk_store *store, const char *name) {
    const time_t old_s = 60;
    char stem[LK_STORED_NAME], path[LK_MAX_PATH];
    struct stat info;
    size_t len = strlen(name);
    if (len < 4 || len - 4 >= sizeof stem || strcmp(name + len - 4, ".new") != 0) return;
    memcpy(stem, name, len - 4);
    stem[len - 4] = 0;
    if (!is_stored_name(stem)) return;
    file_path(store, name, path);
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && info.st_mtime + old_s < time(NULL) &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlink(path);
    close(fd);
}

static void look_at(struct lk_store *store, const char *name) {
    struct entry e = {.seen = true};
    char path[LK_MAX_PATH];
    struct stat info;
    lk_err err = {0};
    clean(store, name);
    if (!is_stored_name(name)) return;
    snprintf(e.name, sizeof e.name, "%s", name);
    file_path(store, name, path);
    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode)) return;
    e.size = (uint64_t)info.st_size;
    e.used = nanoseconds(info.st_mtim);
    pthread_mutex_lock(&store->lock);
    struct entry *known = find_name(store, name);
    if (known) known->seen = true, known->size = e.size, known->used = e.used;
    pthread_mutex_unlock(&store->lock);
    if (known) return;
    if (read_entry(store, &e, &err) != LK_OK) note(store, err.msg);
    pthread_mutex_lock(&store->lock);
    if (!add_entry(store, &e)) {
        free(e.tok);
        lk_buf_free(&e.text);
    }
    pthread_mutex_unlock(&store->lock);
}

/* Make the index agree with the folder. On one thread at a time. */
static lk_status look(struct lk_store *store, lk_err *err) {
    DIR *dir = opendir(store->auto_dir);
    if (!dir) return lk_fail(err, LK_E_IO, "cannot read %s: %s", store->auto_dir, strerror(errno));
    for (struct dirent *file; (file = readdir(dir));) look_at(store, file->d_name);
    closedir(dir);
    pthread_mutex_lock(&store->lock);
    for (size_t i = store->n; i-- > 0;) {
        if (store->entry[i].seen)
            store->entry[i].seen = false;
        else
            drop_entry(store, &store->entry[i]);
    }
    hold_limit(store, 0);
    pthread_mutex_unlock(&store->lock);
    return LK_OK;
}

/* ---- opening ---- */

/* A folder that is there, and that nobody else writes to: what lies in it was put there by its owner. */
static lk_status check_folder(const char *path, lk_err *err) {
    struct stat info;
    if (mkdir(path, S_IRWXU) != 0 && errno != EEXIST)
        return lk_fail(err, LK_E_IO, "cannot make %s: %s", path, strerror(errno));
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return lk_fail(err, LK_E_IO, "%s is no folder", path);
    if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)))
        return lk_fail(
            err, LK_E_ARG,
            "others may write to %s; sessions need a folder of the server's own user (chmod go-w)",
            path);
    return LK_OK;
}

static lk_status open_folders(struct lk_store *store, lk_err *err) {
    const char *given = store->opts->session_dir;
    enum { LONGEST = 3600 }; /* room for names */
    lk_status status = check_folder(given, err);
    if (status != LK_OK) return status;
    char *real = realpath(given, NULL);
    if (!real || strlen(real) > LONGEST) {
        status = lk_fail(err, LK_E_IO, "cannot use %.200s: %s", given,
                         real ? "its path is too long" : strerror(errno));
    } else {
        snprintf(store->dir, sizeof store->dir, "%s", real);
        snprintf(store->auto_dir, sizeof store->auto_dir, "%.3600s/%s", real, own_folder);
    }
    free(real);
    if (status == LK_OK && store->opts->store_bytes) status = check_folder(store->auto_dir, err);
    return status;
}

lk_status lk_store_open(struct lk_store **out, const struct lk_serve_opts *opts,
                        struct lk_metrics *metrics, lk_err *err) {
    struct lk_store *store = calloc(1, sizeof *store);
    bool *unsavable = calloc(opts->n_recipe, sizeof *unsavable);
    if (!store || !unsavable) {
        free(store);
        free(unsavable);
        return lk_fail(err, LK_E_NOMEM, "no memory for the store of sessions");
    }
    store->opts = opts;
    store->metrics = metrics;
    store->unsavable = unsavable;
    pthread_mutex_init(&store->lock, NULL);
    lk_status status = open_folders(store, err);
    if (status == LK_OK && opts->store_bytes) status = look(store, err);
    if (status != LK_OK)
        lk_store_close(store);
    else
        *out = store;
    return status;
}

void lk_store_close(struct lk_store *store) {
    if (!store) return;
    for (size_t i = 0; i < store->n; i++) {
        free(store->entry[i].tok);
        lk_buf_free(&store->entry[i].text);
    }
    pthread_mutex_destroy(&store->lock);
    free(store->unsavable);
    free(store->entry);
    free(store);
}

/* ---- named sessions ---- */

bool lk_store_path(const struct lk_store *store, const char *name, bool must_exist, char *path,
                   struct lk_fault *fault) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(name);
    struct stat info;
    if (strcmp(name, own_folder) == 0)
        return lk_fault_set(fault, 400, "invalid_value", "filename",
                            "'%s' is no name for a session: it is the folder of the server's own",
                            name);
    if (len == 0 || len > LK_SESSION_NAME_MOST || strspn(name, plain) != len || *name == '.' ||
        *name == '-' || (len > 4 && strcmp(name + len - 4, ".new") == 0))
        return lk_fault_set(fault, 400, "invalid_value", "filename",
                            "'%.60s' is no name for a session: 1 to %d of A-Z a-z 0-9 . _ -, the "
                            "first one a letter, a digit or _, and no '.new' at the end",
                            name, LK_SESSION_NAME_MOST);
    snprintf(path, LK_MAX_PATH, "%.3600s/%s", store->dir, name);
    if (lstat(path, &info) != 0) {
        if (errno != ENOENT)
            return lk_fault_set(fault, 500, "internal_error", "filename",
                                "cannot read the session '%s': %s", name, strerror(errno));
        return !must_exist || lk_fault_set(fault, 404, "session_not_found", "filename",
                                           "there is no session '%s'", name);
    }
    return S_ISREG(info.st_mode) ||
           lk_fault_set(fault, 400, "invalid_value", "filename", "'%s' is no ordinary file", name);
}

/* ---- the server's own sessions ---- */

/* Tokens of the job's prompt that need not be read after loading the entry. *whole: the prompt goes on where
 * it ended, so that all of it is of use; otherwise its end has to be cut off, which may turn out impossible. */
static size_t worth(const struct entry *e, const struct lk_job *job, bool *whole) {
    const struct lk_prompt *p = job->prompt;
    *whole = true;
    if (job->call->ask.chat && e->text.len && !e->text.failed &&
        strncmp(p->text, e->text.at, e->text.len) == 0 && p->text[e->text.len])
        return e->n_tok;
    size_t n = lk_tokens_common(e->tok, e->n_tok, p->tok, p->n_tok);
    *whole = n == e->n_tok;
    return *whole || (2 * n >= e->n_tok && 2 * n >= p->n_tok) ? n : 0;
}

bool lk_store_find(struct lk_store *store, const struct lk_job *job, size_t least, char *name) {
    const struct entry *best = NULL;
    bool best_whole = false;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->n; i++) {
        const struct entry *e = &store->entry[i];
        bool whole;
        size_t n = e->usable && e->recipe == job->call->ask.recipe ? worth(e, job, &whole) : 0;
        if (n <= least || (best_whole && !whole)) continue;
        best = e;
        best_whole = whole;
        least = n;
    }
    if (best) snprintf(name, LK_STORED_NAME, "%s", best->name);
    pthread_mutex_unlock(&store->lock);
    return best != NULL;
}

bool lk_store_wants(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok) {
    if (store->opts->store_bytes == 0 || n_tok < LK_STORE_LEAST) return false;
    pthread_mutex_lock(&store->lock);
    bool wants = !store->unsavable[recipe] && !find_tokens(store, recipe, tok, n_tok);
    pthread_mutex_unlock(&store->lock);
    return wants;
}

/* Remove the session that the new one was loaded from, if it is a beginning of that, and of no other. */
static void drop_origin(struct lk_store *store, const char *origin, const struct entry *e) {
    struct entry *old = find_name(store, origin);
    if (!old || !old->usable || is_prefix(old->name) || old->n_load > 1 || old->n_tok >= e->n_tok)
        return;
    if (memcmp(old->tok, e->tok, old->n_tok * sizeof *e->tok) == 0) remove_file(store, old);
}

static bool draw_name(char *name, bool prefix) {
    uint64_t drawn;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) return false;
    snprintf(name, LK_STORED_NAME, "%016" PRIx64 "%s", drawn, suffixes[prefix]);
    return true;
}

/* Bytes that the file will not exceed. */
static uint64_t most_bytes(const struct lk_store *store, const lk_session *session) {
    uint64_t counts = 1 << 18,
             logits = (uint64_t)lk_model_get_info(store->opts->model).n_vocab * sizeof(float);
    return lk_session_get_stats(session).cache_bytes + lk_session_n_tok(session) * sizeof(int32_t) +
           logits + counts;
}

static lk_status write_entry(struct lk_store *store, const struct lk_serve_slot *slot,
                             struct entry *e, lk_err *err) {
    char path[LK_MAX_PATH];
    struct stat info;
    if (!draw_name(e->name, slot->prefix))
        return lk_fail(err, LK_E_IO, "the system has no random number for the name of a file");
    file_path(store, e->name, path);
    lk_status status = lk_session_save(slot->session, NULL, path, err);
    if (status != LK_OK) return status;
    if (lstat(path, &info) != 0)
        return lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    e->size = (uint64_t)info.st_size;
    e->used = nanoseconds(info.st_mtim);
    return LK_OK;
}

/* The session as an entry, without its file. */
static lk_status make_entry(const struct lk_store *store, const lk_session *session, size_t recipe,
                            struct entry *e, lk_err *err) {
    size_t n_tok = lk_session_n_tok(session);
    *e = (struct entry){.usable = true,
                        .recipe = recipe,
                        .n_tok = n_tok,
                        .tok = malloc((n_tok + 1) * sizeof *e->tok)};
    if (!e->tok) return lk_fail(err, LK_E_NOMEM, "no memory for a stored session");
    memcpy(e->tok, lk_session_tokens(session), n_tok * sizeof *e->tok);
    lk_tokens_text(store->opts->model, e->tok, n_tok, &e->text);
    return LK_OK;
}

static lk_status save_new(struct lk_store *store, const struct lk_serve_slot *slot, uint64_t *bytes,
                          lk_err *err) {
    struct entry e = {0};
    uint64_t most = most_bytes(store, slot->session);
    if (most > store->opts->store_bytes)
        return lk_fail(err, LK_E_FULL,
                       "a session of %.1f MiB was not stored: the limit is %.1f MiB",
                       (double)most / (1 << 20), (double)store->opts->store_bytes / (1 << 20));
    pthread_mutex_lock(&store->lock);
    hold_limit(store, most);
    pthread_mutex_unlock(&store->lock);
    lk_status status = make_entry(store, slot->session, slot->recipe, &e, err);
    if (status == LK_OK) status = write_entry(store, slot, &e, err);
    pthread_mutex_lock(&store->lock);
    if (status == LK_E_UNSUPPORTED) store->unsavable[slot->recipe] = true;
    if (status == LK_OK) drop_origin(store, slot->origin, &e);
    bool kept = status == LK_OK && add_entry(store, &e);
    pthread_mutex_unlock(&store->lock);
    *bytes = e.size;
    if (kept) return LK_OK;
    free(e.tok);
    lk_buf_free(&e.text);
    return status;
}

lk_status lk_store_save(struct lk_store *store, const struct lk_serve_slot *slot, uint64_t *bytes,
                        lk_err *err) {
    *bytes = 0;
    lk_status status = look(store, err);
    if (status == LK_OK && lk_store_wants(store, slot->recipe, slot->tok, slot->n_tok))
        status = save_new(store, slot, bytes, err);
    if (status != LK_OK) note(store, err->msg);
    return status;
}

lk_status lk_store_load(struct lk_store *store, lk_session *session, const char *name,
                        uint64_t *bytes, lk_err *err) {
    char path[LK_MAX_PATH];
    file_path(store, name, path);
    lk_status status = lk_session_load(session, NULL, path, err);
    utimensat(AT_FDCWD, path, NULL,
              AT_SYMLINK_NOFOLLOW); /* used now; where that fails, it goes sooner */
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_name(store, name);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (e) *bytes = e->size, e->used = nanoseconds(now), e->n_load++;
    if (e && status != LK_OK && status != LK_E_NOMEM) e->usable = false;
    pthread_mutex_unlock(&store->lock);
    if (status != LK_OK) note(store, err->msg);
    return status;
}

void lk_store_remove(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_tokens(store, recipe, tok, n_tok);
    if (e) remove_file(store, e);
    pthread_mutex_unlock(&store->lock);
}
