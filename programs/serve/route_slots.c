/* POST /slots/ID?action=save|restore|erase with {"filename": NAME}. */
#include "base/atomic_file.h"
#include "serve/disk.h"
#include "serve/field.h"
#include "serve/route.h"

#include <string.h>

/* "/slots/ID". */
static bool read_id(const char *path, int *id) {
    static const char prefix[] = "/slots/";
    const char *digits = path + sizeof prefix - 1;
    if (strncmp(path, prefix, sizeof prefix - 1) != 0) return false;
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 9 || digits[n]) return false;
    *id = 0;
    for (size_t i = 0; i < n; i++) *id = 10 * *id + (digits[i] - '0');
    return true;
}

static bool read_action(const struct lk_exchange *x, enum lk_errand_kind *kind,
                        struct lk_fault *fault) {
    static const char *const names[] = {
        [LK_ERRAND_SAVE] = "save", [LK_ERRAND_RESTORE] = "restore", [LK_ERRAND_ERASE] = "erase"};
    const char *given = lk_exchange_argument(x, "action");
    for (size_t i = 0; given && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(given, names[i]) == 0) {
            *kind = (enum lk_errand_kind)i;
            return true;
        }
    return lk_fault_set(fault, 400, "invalid_value", "action",
                        "'action' is '%.40s', expected save, restore or erase", given ? given : "");
}

/* What restoring the file will take, and whether it can be at all. */
static bool inspect(struct lk_exchange *x, struct lk_disk *disk, struct lk_errand *e,
                    struct lk_fault *fault) {
    const struct lk_serve_opts *o = &x->server->opts;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    lk_err err = {0};
    lk_plan plan;
    lk_status status =
        lk_store_inspect(lk_disk_files(disk), e->path, &e->recipe, &tok, &n_tok, &err);
    lk_tokens_free(tok);
    if (status == LK_OK && n_tok > (size_t)o->n_ctx)
        return lk_fault_set(fault, 400, "context_length_exceeded", "filename",
                            "the session has %zu tokens, and the context of this server holds %d",
                            n_tok, o->n_ctx);
    if (status == LK_OK)
        status = lk_plan_make(o->model, o->recipe[e->recipe], n_tok ? n_tok : 1, true, &plan, &err);
    if (status != LK_OK) {
        lk_disk_blame(fault, &err, e->path);
        return false;
    }
    e->need = plan.cache_bytes + plan.scratch_bytes;
    return true;
}

static void reply(struct lk_exchange *x, const struct lk_errand *e, const char *name) {
    json_int_t n_tok = (json_int_t)e->n_tok, bytes = (json_int_t)e->bytes;
    if (e->kind == LK_ERRAND_ERASE) {
        lk_reply_json(x, 200, json_pack("{s:i, s:I}", "id_slot", e->id, "n_erased", n_tok));
    } else if (e->kind == LK_ERRAND_SAVE) {
        lk_reply_json(x, 200,
                      json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", e->id, "filename", name,
                                "n_saved", n_tok, "n_written", bytes, "timings", "save_ms",
                                1e3 * e->seconds));
    } else {
        lk_reply_json(x, 200,
                      json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", e->id, "filename", name,
                                "n_restored", n_tok, "n_read", bytes, "timings", "restore_ms",
                                1e3 * e->seconds));
    }
}

static bool act(struct lk_exchange *x, struct lk_errand *e, const json_t *body,
                struct lk_fault *fault) {
    struct lk_disk *disk = lk_scheduler_disk(x->server->scheduler);
    const char *name = NULL;
    char path[LK_MAX_PATH];
    if (!disk)
        return lk_fault_set(
            fault, 501, "not_enabled", NULL,
            "this server keeps no sessions on disk; it has to be started with --session-dir");
    if (!read_action(x, &e->kind, fault)) return false;
    if (e->kind != LK_ERRAND_ERASE) {
        if (!lk_field_text(body, "filename", &name, fault)) return false;
        if (!name)
            return lk_fault_set(fault, 400, "missing_field", "filename",
                                "'filename' is missing: the name of the saved session");
        if (!lk_store_path(lk_disk_files(disk), name, e->kind == LK_ERRAND_RESTORE, path, fault))
            return false;
        e->path = path;
        if (e->kind == LK_ERRAND_RESTORE && !inspect(x, disk, e, fault)) return false;
    }
    lk_exchange_working(x, true);
    bool good = lk_disk_run(disk, e, fault);
    lk_exchange_working(x, false);
    if (good) reply(x, e, name);
    return good;
}

bool lk_route_slot(struct lk_exchange *x) {
    struct lk_errand e = {0};
    struct lk_fault fault = {0};
    if (!read_id(x->path, &e.id)) return false;
    if (strcmp(x->method, "POST") != 0) {
        lk_fault_set(&fault, 405, "method_not_allowed", NULL, "%.10s is not what %.100s answers to",
                     x->method, x->path);
        lk_reply_fault(x, &fault);
        return true;
    }
    json_t *body = x->body.len ? lk_body_parse(x->body.at, x->body.len, &fault)
                               : json_object(); /* erasing needs none */
    if (!body || !act(x, &e, body, &fault)) lk_reply_fault(x, &fault);
    json_decref(body);
    return true;
}
