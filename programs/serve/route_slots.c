/* Saving, restoring and erasing of sessions by name. */
#include "serve/route_slots.h"

#include "base/atomic_file.h"
#include "serve/disk.h"
#include "serve/json_field.h"

#include <string.h>

/* Parse the path "/slots/ID". */
static bool parse_slot_id(const char *path, int *id, struct lk_api_error *error) {
    const char *digits = path + strlen("/slots/");
    size_t n = strspn(digits, "0123456789");
    if (n == 0 || digits[n])
        return lk_api_error_set(error, 404, "not_found", NULL, "%.100s not found", path);
    *id = 0;
    for (size_t i = 0; i < n && *id <= LK_MAX_SLOT_ID; i++) *id = 10 * *id + (digits[i] - '0');
    return *id <= LK_MAX_SLOT_ID ||
           lk_api_error_set(error, 404, "slot_not_found", NULL,
                            "session %.40s does not exist: the largest number of a session is %d",
                            digits, LK_MAX_SLOT_ID);
}

static bool parse_action(const struct lk_exchange *x, enum lk_disk_job_kind *kind,
                         struct lk_api_error *error) {
    static const char *const names[] = {[LK_DISK_JOB_SAVE] = "save",
                                        [LK_DISK_JOB_RESTORE] = "restore",
                                        [LK_DISK_JOB_ERASE] = "erase"};
    const char *given = lk_exchange_query(x, "action");
    for (size_t i = 0; given && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(given, names[i]) == 0) {
            *kind = (enum lk_disk_job_kind)i;
            return true;
        }
    return lk_api_error_set(error, 400, "invalid_value", "action",
                            "'action' is '%.40s', but must be save, restore or erase",
                            given ? given : "");
}

/* Before a restore: check that the file is a session for this server, and estimate its memory. */
static bool check_saved_file(struct lk_exchange *x, struct lk_disk *disk, struct lk_disk_job *job,
                             struct lk_api_error *error) {
    const struct lk_server_opts *o = &x->served->opts;
    int32_t *tok = NULL;
    size_t n_tok = 0, n_done = 0;
    lk_err err = {0};
    lk_plan plan;
    lk_status status = lk_store_inspect(lk_disk_get_store(disk), job->path, &job->recipe, &tok,
                                        &n_tok, &n_done, &err);
    lk_tokens_free(tok);
    if (!status && n_tok > (size_t)o->n_ctx)
        return lk_api_error_set(
            error, 400, "context_length_exceeded", "filename",
            "the session has %zu tokens, but the context length of this server is %d", n_tok,
            o->n_ctx);
    lk_session_opts opts = {.n_ctx = n_tok ? (int32_t)n_tok : 1,
                            .chunked_prefill = n_done == n_tok}; /* not a prefill cut short */
    if (!status) status = lk_plan_make(o->model, o->recipe[job->recipe], &opts, &plan, &err);
    if (status) {
        lk_disk_set_error(error, &err, job->path);
        return false;
    }
    job->need = plan.cache_bytes + plan.scratch_bytes;
    return true;
}

static void reply_job_result(struct lk_exchange *x, const struct lk_disk_job *job,
                             const char *name) {
    json_int_t n_tok = (json_int_t)job->n_tok, bytes = (json_int_t)job->bytes;
    json_t *json;
    if (job->kind == LK_DISK_JOB_ERASE)
        json = json_pack("{s:i, s:I}", "id_slot", job->id, "n_erased", n_tok);
    else if (job->kind == LK_DISK_JOB_SAVE)
        json = json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", job->id, "filename", name,
                         "n_saved", n_tok, "n_written", bytes, "timings", "save_ms",
                         1e3 * job->seconds);
    else
        json = json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", job->id, "filename", name,
                         "n_restored", n_tok, "n_read", bytes, "timings", "restore_ms",
                         1e3 * job->seconds);
    lk_exchange_reply_json(x, 200, json);
}

/* Run the job and reply. False: see `error`. */
static bool run_job(struct lk_exchange *x, struct lk_disk_job *job, const json_t *body,
                    struct lk_api_error *error) {
    struct lk_disk *disk = lk_scheduler_disk(x->served->scheduler);
    const char *name = NULL;
    char path[LK_MAX_PATH];
    if (!disk)
        return lk_api_error_set(error, 501, "not_enabled", NULL,
                                "sessions on disk are not enabled; start the server with "
                                "--session-dir");
    if (!parse_action(x, &job->kind, error)) return false;
    if (job->kind != LK_DISK_JOB_ERASE) {
        if (!lk_json_field_string(body, "filename", &name, error)) return false;
        if (!name)
            return lk_api_error_set(error, 400, "missing_field", "filename",
                                    "'filename' is missing: give the name of the saved session");
        if (!lk_store_path(lk_disk_get_store(disk), name, job->kind == LK_DISK_JOB_RESTORE, path,
                           error))
            return false;
        job->path = path;
        if (job->kind == LK_DISK_JOB_RESTORE && !check_saved_file(x, disk, job, error))
            return false;
    }
    bool good = lk_disk_run_job(disk, job, error);
    if (good) reply_job_result(x, job, name);
    return good;
}

void lk_route_slot(struct lk_exchange *x) {
    struct lk_disk_job job = {0};
    struct lk_api_error error = {0};
    json_t *body = NULL;
    bool good = parse_slot_id(x->path, &job.id, &error);
    if (good) /* "erase" needs no body */
        body = x->body.len ? lk_json_parse_body(x->body.at, x->body.len, &error) : json_object();
    if (!body || !run_job(x, &job, body, &error)) lk_exchange_reply_error(x, &error);
    json_decref(body);
}
