/* The log of measured results: reading, checking and writing its file. */
#include "tune/tune_log.h"

#include "base/ascii.h"
#include "base/atomic_file.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { N_VALUE = 12, HEX = 16 };

static const char magic[] = "lowkey-tune 2 ";

/* ---- values of a result ---- */

static void get_values(const lk_compare_result *r, double value[N_VALUE]) {
    const double all[N_VALUE] = {r->ppl,
                                 r->ppl_stderr,
                                 r->kl_mean,
                                 r->kl_stderr,
                                 r->kl_p99,
                                 r->kl_p999,
                                 r->top1,
                                 r->bytes_per_token,
                                 r->bits_per_value,
                                 r->tokens_per_second,
                                 r->bits_with_sidecar,
                                 r->kl_median};
    memcpy(value, all, sizeof all);
}

static lk_compare_result from_values(const double value[N_VALUE], uint64_t n_scored) {
    return (lk_compare_result){.ppl = value[0],
                               .ppl_stderr = value[1],
                               .kl_mean = value[2],
                               .kl_stderr = value[3],
                               .kl_p99 = value[4],
                               .kl_p999 = value[5],
                               .top1 = value[6],
                               .bytes_per_token = value[7],
                               .bits_per_value = value[8],
                               .tokens_per_second = value[9],
                               .bits_with_sidecar = value[10],
                               .kl_median = value[11],
                               .n_scored = n_scored};
}

/* All values are finite and not negative, except that a perplexity may overflow. */
static bool is_possible(const lk_compare_result *r) {
    double value[N_VALUE];
    get_values(r, value);
    for (int i = 2; i < N_VALUE; i++)
        if (!isfinite(value[i]) || value[i] < 0) return false;
    return r->top1 <= 1 && r->n_scored > 0 && value[0] >= 0 && value[1] >= 0;
}

/* ---- reading ---- */

/* Text that is read from front to back. */
struct reader {
    const char *at, *end;
};

static bool read_literal(struct reader *r, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

/* 16 hexadecimal digits. */
static bool read_hex(struct reader *r, uint64_t *out) {
    if (r->end - r->at < HEX || !lk_read_hex(r->at, HEX, out)) return false;
    r->at += HEX;
    return true;
}

/* One result, after which the next line starts. */
static bool read_entry(struct reader *r, struct lk_tune_entry *e, const char **recipe) {
    uint64_t n_scored, bits;
    double value[N_VALUE];
    if (!read_hex(r, &e->text) || !read_literal(r, " ") || !read_hex(r, &n_scored)) return false;
    for (int i = 0; i < N_VALUE; i++) {
        if (!read_literal(r, " ") || !read_hex(r, &bits)) return false;
        memcpy(&value[i], &bits, sizeof bits);
    }
    if (!read_literal(r, " ")) return false;
    const char *line_end = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (!line_end || line_end == r->at || line_end - r->at >= LK_TUNE_RECIPE_BYTES) return false;
    for (const char *c = r->at; c < line_end; c++)
        if (*c < ' ' || *c > '~') return false;
    *recipe = r->at;
    e->len = (size_t)(line_end - r->at);
    r->at = line_end + 1;
    e->result = from_values(value, n_scored);
    return is_possible(&e->result);
}

static lk_status add_entry(struct lk_tune_log *log, struct lk_tune_entry e, const char *recipe,
                           lk_err *err) {
    if (log->n == LK_TUNE_LOG_MAX)
        return lk_fail(err, LK_E_FULL, "more than %d measurements", LK_TUNE_LOG_MAX);
    e.recipe = lk_alloc(&log->ledger, LK_FOR_OTHER, e.len + 1);
    if (!e.recipe) return lk_fail(err, LK_E_NOMEM, "no memory for a measurement");
    memcpy(e.recipe, recipe, e.len);
    log->entry[log->n++] = e;
    return LK_OK;
}

static lk_status fail_damaged(const struct lk_tune_log *log, lk_err *err) {
    return lk_fail(err, LK_E_FORMAT,
                   "%s is damaged, or not a state of 'lowkey tune'; delete it to start again",
                   log->path);
}

/* Parse the whole file. */
static lk_status parse(struct lk_tune_log *log, const char *text, size_t len, lk_err *err) {
    struct reader r = {text, text + len};
    uint64_t run, hash;
    if (!read_literal(&r, magic) || !read_hex(&r, &run) || !read_literal(&r, "\n"))
        return fail_damaged(log, err);
    if (run != log->run)
        return lk_fail(err, LK_E_ARG,
                       "%s belongs to another model or other weights; delete it to start again",
                       log->path);
    while (!read_literal(&r, "end ")) {
        struct lk_tune_entry e = {0};
        const char *recipe;
        if (!read_entry(&r, &e, &recipe)) return fail_damaged(log, err);
        lk_status status = add_entry(log, e, recipe, err);
        if (status) return status == LK_E_FULL ? fail_damaged(log, err) : status;
    }
    size_t n = (size_t)(r.at - 4 - text);
    if (!read_hex(&r, &hash) || !read_literal(&r, "\n") || r.at != r.end ||
        hash != lk_fnv1a(LK_FNV1A_INIT, text, n))
        return fail_damaged(log, err);
    return LK_OK;
}

/* The contents of an open file, up to LK_TUNE_LOG_BYTES. */
static lk_status read_all(FILE *file, const char *path, struct lk_buf *text, lk_err *err) {
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof part, file)) > 0) lk_buf_append(text, part, n);
    if (ferror(file)) return lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (text->failed && text->len + sizeof part > LK_TUNE_LOG_BYTES)
        return lk_fail(err, LK_E_FORMAT, "%s is too large for a state of 'lowkey tune'", path);
    return text->failed ? lk_fail(err, LK_E_NOMEM, "no memory to read %s", path) : LK_OK;
}

lk_status lk_tune_log_open(struct lk_tune_log *log, const char *path, uint64_t run, lk_err *err) {
    lk_status status = LK_OK;
    *log = (struct lk_tune_log){.path = path, .run = run};
    log->entry = lk_alloc(&log->ledger, LK_FOR_OTHER, LK_TUNE_LOG_MAX * sizeof *log->entry);
    if (!log->entry) return lk_fail(err, LK_E_NOMEM, "no memory for measurements");
    FILE *file = NULL;
    if (path) status = lk_open_if_there(&file, path, err);
    if (file) {
        struct lk_buf text = {.max = LK_TUNE_LOG_BYTES};
        status = read_all(file, path, &text, err);
        if (!status) status = parse(log, lk_buf_cstr(&text), text.len, err);
        lk_buf_free(&text);
        fclose(file);
    }
    if (status) lk_tune_log_close(log);
    return status;
}

void lk_tune_log_close(struct lk_tune_log *log) {
    for (size_t i = 0; i < log->n; i++)
        lk_release(&log->ledger, LK_FOR_OTHER, log->entry[i].recipe, log->entry[i].len + 1);
    lk_release(&log->ledger, LK_FOR_OTHER, log->entry, LK_TUNE_LOG_MAX * sizeof *log->entry);
    log->entry = NULL;
    log->n = 0;
}

/* ---- use ---- */

const lk_compare_result *lk_tune_log_find(const struct lk_tune_log *log, uint64_t text,
                                          const char *recipe) {
    for (size_t i = 0; i < log->n; i++)
        if (log->entry[i].text == text && strcmp(log->entry[i].recipe, recipe) == 0)
            return &log->entry[i].result;
    return NULL;
}

lk_status lk_tune_log_add(struct lk_tune_log *log, uint64_t text, const char *recipe,
                          const lk_compare_result *result, lk_err *err) {
    struct lk_tune_entry e = {.text = text, .len = strlen(recipe), .result = *result};
    return add_entry(log, e, recipe, err);
}

lk_status lk_tune_log_save(const struct lk_tune_log *log, lk_err *err) {
    struct lk_buf text = {.max = LK_TUNE_LOG_BYTES};
    struct lk_atomic_file file;
    if (!log->path) return LK_OK;
    lk_buf_printf(&text, "%s%016" PRIx64 "\n", magic, log->run);
    for (size_t i = 0; i < log->n; i++) {
        const struct lk_tune_entry *e = &log->entry[i];
        double value[N_VALUE];
        get_values(&e->result, value);
        lk_buf_printf(&text, "%016" PRIx64 " %016" PRIx64, e->text, e->result.n_scored);
        for (int k = 0; k < N_VALUE; k++) {
            uint64_t bits;
            memcpy(&bits, &value[k], sizeof bits);
            lk_buf_printf(&text, " %016" PRIx64, bits);
        }
        lk_buf_printf(&text, " %s\n", e->recipe);
    }
    lk_buf_printf(&text, "end %016" PRIx64 "\n",
                  lk_fnv1a(LK_FNV1A_INIT, lk_buf_cstr(&text), text.len));
    lk_status status = text.failed ? lk_fail(err, LK_E_NOMEM, "no memory to write %s", log->path)
                                   : lk_atomic_file_open(&file, log->path, err);
    if (!status) {
        fwrite(text.at, 1, text.len, file.file); /* closing reports a failure */
        status = lk_atomic_file_close(&file, LK_OK, err);
    }
    lk_buf_free(&text);
    return status;
}
