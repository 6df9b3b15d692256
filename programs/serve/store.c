/* Saved sessions on disk: the directory, its index, and the limit of its size. */
#include "serve/store.h"

#include "base/atomic_file.h"
#include "base/os.h"
#include "serve/tokens.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX_DIGITS = 16 };
static const char store_subdir[] = "store";
static const char *const suffixes[] = {".session", ".prefix"};

struct entry {
    char name[LK_STORE_NAME_LEN];
    uint64_t size;
    int64_t last_used; /* nanoseconds since 1970 */
    bool usable;       /* by this server: valid, of its model, with one of its recipes */
    bool seen;         /* by the directory scan that is running */
    int n_load;        /* how often this server loaded it */
    size_t recipe, n_tok;
    size_t n_done;      /* of these tokens; fewer if the prefill was cut short */
    int32_t *tok;       /* [n_tok] */
    struct lk_buf text; /* of these tokens, marked; empty if the prefill was cut short */
};

struct lk_store {
    const struct lk_server_opts *opts;
    struct lk_metrics *metrics;
    char dir[LK_MAX_PATH];       /* of sessions that clients named */
    char store_dir[LK_MAX_PATH]; /* of the server's own */
    pthread_mutex_t lock;        /* of the index */
    struct entry *entry;         /* [n] */
    size_t n, cap;
    char last_report[sizeof((lk_err *)0)->msg];
};

/* Report a message once, not for each session that fails in the same way. */
static void report(struct lk_store *store, const char *msg) {
    if (!store->opts->note) return;
    pthread_mutex_lock(&store->lock);
    bool is_new = strcmp(store->last_report, msg) != 0;
    snprintf(store->last_report, sizeof store->last_report, "%s", msg);
    pthread_mutex_unlock(&store->lock);
    if (is_new) store->opts->note(store->opts->user, msg);
}

/* ---- the index; the lock is held ---- */

static struct entry *find_by_name(const struct lk_store *store, const char *name) {
    for (size_t i = 0; i < store->n; i++)
        if (strcmp(store->entry[i].name, name) == 0) return &store->entry[i];
    return NULL;
}

static struct entry *find_by_tokens(const struct lk_store *store, size_t recipe, const int32_t *tok,
                                    size_t n_tok) {
    for (size_t i = 0; i < store->n; i++) {
        struct entry *e = &store->entry[i];
        if (e->usable && e->recipe == recipe && e->n_tok == n_tok &&
            memcmp(e->tok, tok, n_tok * sizeof *tok) == 0)
            return e;
    }
    return NULL;
}

static void update_store_metrics(struct lk_store *store) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < store->n; i++) bytes += store->entry[i].size;
    store->metrics->stored = store->n;
    store->metrics->stored_bytes = bytes;
}

static void free_entry(struct entry *e) {
    free(e->tok);
    lk_buf_free(&e->text);
}

static void drop_entry(struct lk_store *store, struct entry *e) {
    free_entry(e);
    *e = store->entry[--store->n];
    update_store_metrics(store);
}

static bool add_entry(struct lk_store *store, const struct entry *e) {
    if (store->n == store->cap) {
        size_t cap = store->cap ? 2 * store->cap : 16;
        void *larger = realloc(store->entry, cap * sizeof *store->entry);
        if (!larger) return false;
        store->entry = larger;
        store->cap = cap;
    }
    store->entry[store->n++] = *e;
    update_store_metrics(store);
    return true;
}

static void stored_path(const struct lk_store *store, const char *name, char *path) {
    snprintf(path, LK_MAX_PATH, "%.4000s/%.40s", store->store_dir, name);
}

static void remove_entry_file(struct lk_store *store, struct entry *e) {
    char path[LK_MAX_PATH];
    stored_path(store, e->name, path);
    unlink(path); /* another server may have removed it already */
    drop_entry(store, e);
}

/* Remove least recently used files until `extra` more bytes fit the limit. */
static void enforce_limit(struct lk_store *store, uint64_t extra) {
    for (;;) {
        uint64_t bytes = extra;
        struct entry *oldest = NULL;
        for (size_t i = 0; i < store->n; i++) {
            bytes += store->entry[i].size;
            if (!oldest || store->entry[i].last_used < oldest->last_used) oldest = &store->entry[i];
        }
        if (bytes <= store->opts->store_bytes || !oldest) return;
        remove_entry_file(store, oldest);
        store->metrics->stored_removed++;
    }
}

/* ---- reading the directory ---- */

lk_status lk_store_inspect(const struct lk_store *store, const char *path, size_t *recipe,
                           int32_t **tok, size_t *n_tok, size_t *n_done, lk_err *err) {
    lk_recipe *found = NULL;
    size_t n_suspended = 0;
    lk_status status = lk_session_file_recipe(&found, path, err);
    if (status) return status;
    size_t i = 0;
    while (i < store->opts->n_recipe &&
           strcmp(lk_recipe_text(found), lk_recipe_text(store->opts->recipe[i])) != 0)
        i++;
    if (i == store->opts->n_recipe)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "cannot load %s: recipe '%.200s' is not allowed; see --allow-kv", path,
                         lk_recipe_text(found));
    *recipe = i;
    lk_recipe_free(found);
    if (status) return status;
    status = lk_session_file_suspended(path, &n_suspended, err);
    if (!status) status = lk_session_file_tokens(store->opts->model, path, tok, n_tok, err);
    if (!status && n_done) *n_done = n_suspended ? n_suspended : *n_tok;
    return status;
}

/* The text by which a conversation is found. A prefill that was cut short is found by its tokens,
 * because it goes on only with these. */
static void set_text(const struct lk_store *store, struct entry *e) {
    if (e->n_done == e->n_tok)
        lk_tokens_to_marked_text(store->opts->model, e->tok, e->n_tok, &e->text);
} /* NOLINT(clang-analyzer-unix.Malloc): the list keeps the entry */

static bool is_prefix_name(const char *name) { return strcmp(name + HEX_DIGITS, suffixes[1]) == 0; }

static bool is_stored_name(const char *name) {
    return strspn(name, "0123456789abcdef") == HEX_DIGITS &&
           (strcmp(name + HEX_DIGITS, suffixes[0]) == 0 || is_prefix_name(name));
}

/* Characters of the name of a session. */
static const char name_chars[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

/* If `name` is the temporary file of a server that was killed while it wrote, remove it. A server
 * that is still writing holds a lock on its file. */
static void remove_stale_temporary(const char *dir, const char *name) {
    const time_t min_age_s = 60;
    char path[LK_MAX_PATH];
    struct stat info;
    size_t len = strlen(name);
    if (len <= 4 || len > LK_SESSION_NAME_MAX + 4 || strcmp(name + len - 4, ".new") != 0 ||
        strspn(name, name_chars) != len || *name == '.' || *name == '-')
        return;
    snprintf(path, sizeof path, "%.3600s/%.200s", dir, name);
    int fd = lk_os_open(path, LK_OS_READ | LK_OS_NO_LINK | LK_OS_AT_ONCE, 0);
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        lk_os_is_private(info.st_mode, info.st_uid) && info.st_mtime + min_age_s < time(NULL) &&
        lk_os_lock(fd) == 0)
        unlink(path);
    close(fd);
}

/* The server's own temporary files are removed when their directory is scanned. */
static void remove_named_temporaries(const struct lk_store *store) {
    DIR *dir = opendir(store->dir);
    if (!dir) return;
    for (struct dirent *file; (file = readdir(dir));)
        remove_stale_temporary(store->dir, file->d_name);
    closedir(dir);
}

/* Add the file to the index, or mark its entry as seen. A file that this server cannot use is
 * listed as well, because it counts toward the limit. */
static void scan_file(struct lk_store *store, const char *name) {
    struct entry e = {.seen = true};
    char path[LK_MAX_PATH];
    lk_err err = {0};
    remove_stale_temporary(store->store_dir, name);
    if (!is_stored_name(name)) return;
    snprintf(e.name, sizeof e.name, "%s", name);
    stored_path(store, name, path);
    if (!lk_os_file_info(path, &e.size, &e.last_used)) return;
    pthread_mutex_lock(&store->lock);
    struct entry *known = find_by_name(store, name);
    if (known) known->seen = true, known->size = e.size, known->last_used = e.last_used;
    pthread_mutex_unlock(&store->lock);
    if (known) return;
    if (!lk_store_inspect(store, path, &e.recipe, &e.tok, &e.n_tok, &e.n_done, &err)) {
        e.usable = e.n_tok > 0 && e.n_tok < (size_t)store->opts->n_ctx && e.n_done <= e.n_tok;
        if (e.usable) set_text(store, &e);
    } else if (!store->opts->n_entry) { /* of several models, most files belong to another one */
        report(store, err.msg);
    }
    pthread_mutex_lock(&store->lock);
    if (!add_entry(store, &e)) free_entry(&e);
    pthread_mutex_unlock(&store->lock);
}

/* Bring the index in line with the directory. Must not run on two threads at the same time. */
static lk_status scan_directory(struct lk_store *store, lk_err *err) {
    DIR *dir = opendir(store->store_dir);
    if (!dir) return lk_fail(err, LK_E_IO, "cannot read %s: %s", store->store_dir, strerror(errno));
    for (struct dirent *file; errno = 0, (file = readdir(dir));) scan_file(store, file->d_name);
    int failed = errno; /* then sessions would be missing from the index */
    closedir(dir);
    if (failed)
        return lk_fail(err, LK_E_IO, "cannot read %s: %s", store->store_dir, strerror(failed));
    pthread_mutex_lock(&store->lock);
    for (size_t i = store->n; i-- > 0;) {
        if (store->entry[i].seen)
            store->entry[i].seen = false;
        else
            drop_entry(store, &store->entry[i]);
    }
    enforce_limit(store, 0);
    pthread_mutex_unlock(&store->lock);
    return LK_OK;
}

/* ---- open and close ---- */

/* Create the directory if necessary, and check that only the server's user can write to it. */
static lk_status check_directory(const char *path, lk_err *err) {
    struct stat info;
    if (lk_os_make_folder(path, true) != 0 && errno != EEXIST)
        return lk_fail(err, LK_E_IO, "cannot create %s: %s", path, strerror(errno));
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return lk_fail(err, LK_E_IO, "%s is not a directory", path);
    if (!lk_os_is_own(info.st_mode, info.st_uid))
        return lk_fail(err, LK_E_ARG,
                       "other users can write to %s; sessions require a directory that only the "
                       "server's user can write to (chmod go-w)",
                       path);
    return LK_OK;
}

static lk_status open_directories(struct lk_store *store, lk_err *err) {
    const char *given = store->opts->session_dir;
    enum { MAX_LEN = 3600 }; /* leaves room for file names */
    lk_status status = check_directory(given, err);
    if (status) return status;
    char *real = lk_os_real_path(given);
    if (!real || strlen(real) > MAX_LEN) {
        status = lk_fail(err, LK_E_IO, "cannot use %.200s: %s", given,
                         real ? "the path is too long" : strerror(errno));
    } else {
        snprintf(store->dir, sizeof store->dir, "%s", real);
        snprintf(store->store_dir, sizeof store->store_dir, "%.3600s/%s", real, store_subdir);
    }
    free(real);
    if (!status && store->opts->store_bytes) status = check_directory(store->store_dir, err);
    return status;
}

lk_status lk_store_open(struct lk_store **out, const struct lk_server_opts *opts,
                        struct lk_metrics *metrics, lk_err *err) {
    struct lk_store *store = calloc(1, sizeof *store);
    if (!store) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot open the session store");
    store->opts = opts;
    store->metrics = metrics;
    pthread_mutex_init(&store->lock, NULL);
    lk_status status = open_directories(store, err);
    if (!status) remove_named_temporaries(store);
    if (!status && opts->store_bytes) status = scan_directory(store, err);
    if (status)
        lk_store_close(store);
    else
        *out = store;
    return status;
}

void lk_store_close(struct lk_store *store) {
    if (!store) return;
    for (size_t i = 0; i < store->n; i++) free_entry(&store->entry[i]);
    pthread_mutex_destroy(&store->lock);
    free(store->entry);
    free(store);
}

/* ---- sessions that clients named ---- */

bool lk_store_path(const struct lk_store *store, const char *name, bool must_exist, char *path,
                   struct lk_api_error *error) {
    size_t len = strlen(name);
    uint64_t size;
    int64_t time;
    if (strcmp(name, store_subdir) == 0)
        return lk_api_error_set(error, 400, "invalid_value", "filename",
                                "the session name '%s' is reserved for the server's own files",
                                name);
    if (len == 0 || len > LK_SESSION_NAME_MAX || strspn(name, name_chars) != len || *name == '.' ||
        *name == '-' || (len > 4 && strcmp(name + len - 4, ".new") == 0))
        return lk_api_error_set(error, 400, "invalid_value", "filename",
                                "'%.60s' is not a valid session name: use 1 to %d of A-Z a-z 0-9 "
                                ". _ -, start with a letter, a digit or _, and do not end with "
                                "'.new'",
                                name, LK_SESSION_NAME_MAX);
    snprintf(path, LK_MAX_PATH, "%.3600s/%s", store->dir, name);
    if (lk_os_file_info(path, &size, &time)) return true;
    if (errno == EINVAL)
        return lk_api_error_set(error, 400, "invalid_value", "filename",
                                "'%s' is not a regular file", name);
    if (errno != ENOENT)
        return lk_api_error_set(error, 500, "internal_error", "filename",
                                "cannot read session '%s': %s", name, strerror(errno));
    return !must_exist || lk_api_error_set(error, 404, "session_not_found", "filename",
                                           "session '%s' not found", name);
}

/* ---- the server's own sessions ---- */

/* Prompt tokens that need not be prefilled if the entry is loaded. *extends: the prompt continues
 * the session; otherwise the session must be truncated, which may turn out to be impossible. */
static size_t reusable_tokens(const struct entry *e, const struct lk_job *job, bool *extends) {
    const struct lk_prompt *p = job->prompt;
    *extends = true;
    if (lk_job_continues_text(job, &e->text)) return e->n_tok;
    size_t n = lk_tokens_common_prefix(e->tok, e->n_tok, p->tok, p->n_tok);
    *extends = n == e->n_tok;
    if (e->n_done < e->n_tok) return *extends ? e->n_done : 0;
    return *extends || (2 * n >= e->n_tok && 2 * n >= p->n_tok) ? n : 0;
}

size_t lk_store_find(struct lk_store *store, const struct lk_job *job, size_t n_min, char *name) {
    const struct entry *best = NULL;
    bool best_extends = false;
    pthread_mutex_lock(&store->lock);
    for (size_t i = 0; i < store->n; i++) {
        const struct entry *e = &store->entry[i];
        bool extends;
        if (!e->usable || e->recipe != job->completion->request.recipe) continue;
        size_t n = reusable_tokens(e, job, &extends);
        if (n <= n_min || (best_extends && !extends)) continue;
        best = e;
        best_extends = extends;
        n_min = n;
    }
    if (best) snprintf(name, LK_STORE_NAME_LEN, "%s", best->name);
    pthread_mutex_unlock(&store->lock);
    return best ? n_min : 0;
}

/* Tokens of the slot's session that need not be computed again. */
static size_t done_tokens(const struct lk_slot *slot) {
    size_t n_done;
    return lk_session_suspended(slot->session, &n_done) > 0 ? n_done : slot->n_tok;
}

bool lk_store_should_save(struct lk_store *store, const struct lk_slot *slot) {
    size_t n_done = done_tokens(slot);
    if (store->opts->store_bytes == 0 || n_done < LK_STORE_MIN_TOKENS) return false;
    pthread_mutex_lock(&store->lock);
    const struct entry *e = find_by_tokens(store, slot->recipe, slot->tok, slot->n_tok);
    bool should = !e || e->n_done < n_done;
    pthread_mutex_unlock(&store->lock);
    return should;
}

/* Remove the file that the session was loaded from, if the new one contains it, it is not a shared
 * prefix, and no other session was loaded from it. The lock is held. */
static void remove_superseded(struct lk_store *store, const char *name, const struct entry *e) {
    struct entry *old = find_by_name(store, name);
    if (!old || !old->usable || is_prefix_name(old->name) || old->n_load > 1 ||
        old->n_tok > e->n_tok || old->n_done >= e->n_done)
        return;
    if (memcmp(old->tok, e->tok, old->n_tok * sizeof *e->tok) == 0) remove_entry_file(store, old);
}

/* Upper bound of the size of the session's file, without blocks that only checkpoints share. */
static uint64_t max_file_bytes(const struct lk_store *store, const lk_session *session) {
    uint64_t counters = 1 << 18,
             logits = (uint64_t)lk_model_get_info(store->opts->model).n_vocab * sizeof(float);
    lk_session_stats stats = lk_session_get_stats(session);
    size_t n_suspended = lk_session_suspended(session, NULL),
           n_tok = n_suspended ? n_suspended : lk_session_n_tok(session);
    return stats.cache_bytes + stats.checkpoint_bytes + (n_suspended ? stats.scratch_bytes : 0) +
           n_tok * sizeof(int32_t) + logits + counters;
}

/* Describe the slot's session as an entry, without a file. */
static lk_status init_entry(const struct lk_store *store, const struct lk_slot *slot,
                            struct entry *e, lk_err *err) {
    size_t n_suspended = lk_session_suspended(slot->session, NULL),
           n_tok = n_suspended ? n_suspended : lk_session_n_tok(slot->session);
    *e = (struct entry){.usable = true,
                        .recipe = slot->recipe,
                        .n_tok = n_tok,
                        .n_done = n_suspended ? done_tokens(slot) : n_tok,
                        .tok = malloc((n_tok + 1) * sizeof *e->tok)};
    if (!e->tok) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot store a session");
    memcpy(e->tok, lk_session_tokens(slot->session), n_tok * sizeof *e->tok);
    set_text(store, e);
    return LK_OK;
}

/* Write the file of an entry, under a random name. */
static lk_status write_entry_file(struct lk_store *store, const struct lk_slot *slot,
                                  struct entry *e, lk_err *err) {
    char path[LK_MAX_PATH];
    uint64_t drawn;
    if (!lk_os_random(&drawn, sizeof drawn))
        return lk_fail(err, LK_E_IO, "cannot name a session file: no random numbers available");
    snprintf(e->name, sizeof e->name, "%016" PRIx64 "%s", drawn, suffixes[slot->is_prefix]);
    stored_path(store, e->name, path);
    lk_status status = lk_session_save(slot->session, NULL, path, err);
    if (status) return status;
    if (!lk_os_file_info(path, &e->size, &e->last_used))
        return lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    return LK_OK;
}

static lk_status save_new_entry(struct lk_store *store, const struct lk_slot *slot, uint64_t *bytes,
                                lk_err *err) {
    struct entry e = {0};
    uint64_t max = max_file_bytes(store, slot->session);
    if (max > store->opts->store_bytes)
        return lk_fail(err, LK_E_FULL,
                       "a session of %.1f MiB was not stored: it exceeds the limit of %.1f MiB",
                       (double)max / (1 << 20), (double)store->opts->store_bytes / (1 << 20));
    pthread_mutex_lock(&store->lock);
    enforce_limit(store, max);
    pthread_mutex_unlock(&store->lock);
    lk_status status = init_entry(store, slot, &e, err);
    if (!status) status = write_entry_file(store, slot, &e, err);
    pthread_mutex_lock(&store->lock);
    if (!status) remove_superseded(store, slot->stored, &e);
    bool added = !status && add_entry(store, &e);
    enforce_limit(store, 0);
    pthread_mutex_unlock(&store->lock);
    *bytes = e.size;
    if (!added) free_entry(&e);
    return status;
}

lk_status lk_store_save(struct lk_store *store, const struct lk_slot *slot, uint64_t *bytes,
                        lk_err *err) {
    *bytes = 0;
    lk_status status = scan_directory(store, err);
    if (!status && lk_store_should_save(store, slot))
        status = save_new_entry(store, slot, bytes, err);
    if (status) report(store, err->msg);
    return status;
}

lk_status lk_store_load(struct lk_store *store, lk_session *session, const char *name,
                        uint64_t *bytes, lk_err *err) {
    char path[LK_MAX_PATH];
    stored_path(store, name, path);
    lk_status status = lk_session_load(session, NULL, path, err);
    /* Record the use. If that fails, the file will only be removed earlier. */
    lk_os_touch(path);
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_by_name(store, name);
    if (e) *bytes = e->size, e->last_used = lk_os_time(), e->n_load++;
    if (e && status && status != LK_E_NOMEM) e->usable = false;
    pthread_mutex_unlock(&store->lock);
    if (status) report(store, err->msg);
    return status;
}

void lk_store_remove(struct lk_store *store, size_t recipe, const int32_t *tok, size_t n_tok) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = find_by_tokens(store, recipe, tok, n_tok);
    if (e) remove_entry_file(store, e);
    pthread_mutex_unlock(&store->lock);
}
