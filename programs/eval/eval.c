/* Runs tasks on backends: every item that the results file does not have yet. An item may run in a
 * child process, so that its memory can be measured separately. */
#include "eval/eval.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

enum { MAX_KEY = 256 };

/* An open task of a run. */
struct eval_job {
    const struct lk_task *task;
    struct lk_open_task items;
    bool open;
    const char *kv[LK_MAX_EVAL_KV]; /* [n_kv] see lk_eval_list_kv */
    size_t n_kv;
};

struct eval_run {
    struct lk_eval *eval;
    struct eval_job *job; /* [n_job] */
    size_t n_job;
    double done, total;           /* estimated costs: of the finished items, of all items */
    double item_done, item_total; /* the same within the current item */
    const char *task, *kv;        /* current; kv is NULL if there are several */
};

/* ---- progress ---- */

/* Report n more tokens of the current item. Its cost is an estimate, which is not exceeded. */
static bool on_tokens(void *user, double n) {
    struct eval_run *run = user;
    const struct lk_eval *eval = run->eval;
    run->item_done += n;
    double item = run->item_done < run->item_total ? run->item_done : run->item_total;
    return !eval->progress ||
           eval->progress(eval->user, run->task, run->kv, run->done + item, run->total);
}

static void start_item(struct eval_run *run, const char *task, const char *kv, double cost) {
    run->task = task;
    run->kv = kv;
    run->item_done = 0;
    run->item_total = cost;
}

static void end_item(struct eval_run *run) {
    run->done += run->item_total;
    run->item_done = 0;
    run->item_total = 0;
}

/* ---- backends ---- */

static void add_kv(const char **kv, size_t *n, const char *name) {
    for (size_t i = 0; i < *n; i++)
        if (strcmp(kv[i], name) == 0) return;
    if (*n < LK_MAX_EVAL_KV) kv[(*n)++] = name;
}

size_t lk_eval_list_kv(const struct lk_eval *eval, const struct lk_task *task, const char **kv) {
    size_t n = 0;
    bool floor = task->has_noise_floor && eval->models.opts.weights == LK_WEIGHTS_AS_SHIPPED;
    for (int llama = 0; llama < 2; llama++) {
        if (llama && floor) {
            add_kv(kv, &n, "llama.cpp:f16");
            add_kv(kv, &n, "llama.cpp:plain");
        }
        for (size_t i = 0; i < eval->n_kv; i++) {
            if (lk_backend_is_llama(eval->kv[i]) != (llama != 0)) continue;
            add_kv(kv, &n, lk_backend_full(eval->kv[i]));
            add_kv(kv, &n, eval->kv[i]);
        }
    }
    return n;
}

static bool is_full(const char *kv) { return strcmp(kv, lk_backend_full(kv)) == 0; }

static const json_t *find_record(const struct eval_run *run, const struct eval_job *job,
                                 const char *kv, size_t i) {
    char key[MAX_KEY];
    job->task->key(job->items.state, i, key, sizeof key);
    return lk_results_item(run->eval->results, job->task->name, kv, key);
}

static lk_status open_backend(struct eval_run *run, const struct eval_job *job, const char *kv,
                              struct lk_backend **out, lk_err *err) {
    lk_status status = lk_backend_open(out, &run->eval->models, kv, job->items.n_ctx, err);
    if (!status) {
        (*out)->progress = on_tokens;
        (*out)->user = run;
    }
    return status;
}

/* ---- items ---- */

static lk_status add_record(struct eval_run *run, const struct eval_job *job, const char *kv,
                            size_t i, json_t *record, lk_err *err) {
    char key[MAX_KEY];
    job->task->key(job->items.state, i, key, sizeof key);
    return lk_results_add_item(run->eval->results, job->task->name, kv, key, record, err);
}

/* Put the item's name in front of an error message. */
static lk_status prefix_item_error(const struct eval_job *job, const char *kv, size_t i,
                                   lk_status status, lk_err *err) {
    char key[MAX_KEY], what[sizeof err->msg];
    if (!status || status == LK_E_CANCELLED || !err) return status;
    job->task->key(job->items.state, i, key, sizeof key);
    snprintf(what, sizeof what, "%s", err->msg);
    return lk_fail(err, status, "%s %s, --kv %.80s: %.300s", job->task->name, key, kv, what);
}

static lk_status run_item(struct eval_run *run, const struct eval_job *job,
                          struct lk_backend *backend, size_t i, double seconds, lk_err *err) {
    json_t *record = json_object();
    if (!record) return lk_fail(err, LK_E_NOMEM, "no memory for an item");
    const json_t *full =
        is_full(backend->kv) ? NULL : find_record(run, job, lk_backend_full(backend->kv), i);
    double start = lk_now();
    run->kv = backend->kv;
    lk_status status = job->task->run(job->items.state, i, backend, full, record, err);
    if (!status) {
        json_object_set_new(record, "seconds", json_real(seconds + lk_now() - start));
        lk_record_cache_stats(record, backend);
        status = add_record(run, job, backend->kv, i, record, err);
    }
    json_decref(record);
    return prefix_item_error(job, backend->kv, i, status, err);
}

/* Run item i on n > 0 backends of one kind, after one prefill of its prompt. Each record gets an
 * equal share of the prefill's time. */
static lk_status run_item_on_all(struct eval_run *run, const struct eval_job *job,
                                 struct lk_backend *const *backend, size_t n, size_t i,
                                 lk_err *err) {
    int32_t *tok = NULL;
    size_t n_tok = 0;
    double start = lk_now();
    lk_status status = LK_OK;
    start_item(run, job->task->name, n > 1 ? NULL : backend[0]->kv,
               (double)n * job->task->cost(job->items.state, i));
    if (job->task->prompt) {
        status = job->task->prompt(job->items.state, i, &tok, &n_tok, err);
        if (!status) status = lk_backend_prefill_all(backend, n, tok, n_tok, err);
        free(tok);
    }
    double seconds = (lk_now() - start) / (double)n;
    if (status) return prefix_item_error(job, backend[0]->kv, i, status, err);
    for (size_t j = 0; !status && j < n; j++)
        status = run_item(run, job, backend[j], i, seconds, err);
    end_item(run);
    return status;
}

/* Run a task on n backends of one kind, item by item. Several backends need more memory, but share
 * the prefill. */
static lk_status run_on_backends(struct eval_run *run, const struct eval_job *job,
                                 const char *const *kv, size_t n, lk_err *err) {
    struct lk_backend *backend[LK_MAX_EVAL_KV] = {NULL}, *pending[LK_MAX_EVAL_KV];
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < job->items.n_item; i++) {
        size_t n_pending = 0;
        for (size_t j = 0; !status && j < n; j++) {
            if (find_record(run, job, kv[j], i)) continue;
            if (!backend[j]) status = open_backend(run, job, kv[j], &backend[j], err);
            pending[n_pending++] = backend[j];
        }
        if (!status && n_pending) status = run_item_on_all(run, job, pending, n_pending, i, err);
    }
    for (size_t j = 0; j < n; j++) lk_backend_close(backend[j]);
    return status;
}

/* ---- an item in a child process, which sends its record through a pipe ---- */

/* Runs in the child process and fills `record`. */
typedef lk_status isolated_fn(void *user, json_t *record, lk_err *err);

#ifndef _WIN32

/* In the child: write {"record"} or {"code", "message"} to the pipe, and exit. */
static void run_child(isolated_fn *work, void *user, json_t *record, int pipe_end) {
    lk_err err = {0};
    lk_status status = work(user, record, &err);
    json_t *answer = status ? json_pack("{s:i s:s}", "code", status, "message", err.msg)
                            : json_pack("{s:O}", "record", record);
    bool sent = answer && json_dumpfd(answer, pipe_end, JSON_COMPACT) == 0;
    _exit(sent ? 0 : 1); /* does not flush the parent's buffers a second time */
}

/* Read the pipe until its end. */
static void read_pipe(int pipe_end, struct lk_buf *out) {
    char part[4096];
    for (;;) {
        ssize_t n = read(pipe_end, part, sizeof part);
        if (n < 0 && errno == EINTR) continue; /* the child is interrupted too, and ends */
        if (n <= 0) return;
        lk_buf_append(out, part, (size_t)n);
    }
}

/* Update `record`, or fail, according to the child's answer and exit status. */
static lk_status read_answer(const struct lk_buf *text, int status, json_t *record, lk_err *err) {
    json_t *answer = text->failed ? NULL : json_loadb(lk_buf_cstr(text), text->len, 0, NULL);
    const json_t *made = json_object_get(answer, "record"),
                 *message = json_object_get(answer, "message");
    lk_status result = LK_OK;
    if (WIFSIGNALED(status))
        result = lk_fail(err, LK_E_IO,
                         "signal %d terminated the process; check that there is enough memory",
                         WTERMSIG(status));
    else if (message)
        result = lk_fail(err, (lk_status)json_integer_value(json_object_get(answer, "code")), "%s",
                         json_string_value(message));
    else if (!made || json_object_update(record, (json_t *)made))
        result = lk_fail(err, LK_E_IO, "the process ended without an answer");
    json_decref(answer);
    return result;
}

/* Run `work` in a child process and copy its record, or its error. The calling process must have no
 * other threads. LK_E_IO if a signal terminated the child. */
static lk_status run_in_process(isolated_fn *work, void *user, json_t *record, lk_err *err) {
    int end[2], status = 0;
    if (pipe(end)) return lk_fail(err, LK_E_IO, "cannot create a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(end[0]);
        run_child(work, user, record, end[1]);
    }
    close(end[1]);
    if (pid < 0) {
        close(end[0]);
        return lk_fail(err, LK_E_IO, "cannot start a process: %s", strerror(errno));
    }
    struct lk_buf text = {0};
    read_pipe(end[0], &text);
    close(end[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    lk_status result = read_answer(&text, status, record, err);
    lk_buf_free(&text);
    return result;
}

#else

static lk_status run_in_process(isolated_fn *work, void *user, json_t *record, lk_err *err) {
    (void)work, (void)user, (void)record;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "this task runs items in processes of their own, which needs fork; Windows has "
                   "none");
}

#endif

/* An item that runs in a process of its own, which opens the model and the backend. */
struct isolated_item {
    struct eval_run *run;
    const struct eval_job *job;
    const char *kv;
    size_t i;
};

static lk_status run_in_child(void *user, json_t *record, lk_err *err) {
    struct isolated_item *x = user;
    struct lk_backend *backend;
    x->run->eval->models.tokens_only = lk_backend_is_llama(x->kv);
    lk_status status = open_backend(x->run, x->job, x->kv, &backend, err);
    if (!status) status = x->job->task->run(x->job->items.state, x->i, backend, NULL, record, err);
    if (!status) lk_record_cache_stats(record, backend);
    return status;
}

static lk_status run_isolated(struct eval_run *run, const struct eval_job *job, const char *kv,
                              lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < job->items.n_item; i++) {
        if (find_record(run, job, kv, i)) continue;
        json_t *record = json_object();
        struct isolated_item x = {run, job, kv, i};
        start_item(run, job->task->name, kv, job->task->cost(job->items.state, i));
        double start = lk_now();
        if (!on_tokens(run, 0)) status = lk_fail(err, LK_E_CANCELLED, "cancelled");
        if (!status) status = run_in_process(run_in_child, &x, record, err);
        if (!status) json_object_set_new(record, "seconds", json_real(lk_now() - start));
        if (!status) status = add_record(run, job, kv, i, record, err);
        end_item(run);
        json_decref(record);
        status = prefix_item_error(job, kv, i, status, err);
    }
    return status;
}

/* ---- items that compare several backends ---- */

/* A full cache, which is first, and the backends that are compared with it. A backend is opened
 * when an item first needs it. */
struct backend_group {
    const char *kv[LK_MAX_EVAL_KV];
    struct lk_backend *backend[LK_MAX_EVAL_KV];
    size_t n;
};

static lk_status run_group_item(struct eval_run *run, const struct eval_job *job,
                                struct backend_group *g, size_t i, lk_err *err) {
    struct lk_backend *backend[LK_MAX_EVAL_KV];
    json_t *record[LK_MAX_EVAL_KV] = {NULL};
    bool done[LK_MAX_EVAL_KV] = {false};
    size_t n = 0, n_done = 0;
    lk_status status = LK_OK;
    for (size_t j = 0; j < g->n; j++) {
        done[j] = find_record(run, job, g->kv[j], i) != NULL;
        n_done += done[j];
    }
    if (n_done == g->n) return LK_OK;
    for (size_t j = 0; !status && j < g->n; j++) {
        if (done[j] && j > 0) continue; /* the full cache is always the reference */
        if (!g->backend[j]) status = open_backend(run, job, g->kv[j], &g->backend[j], err);
        record[n] = json_object();
        if (!status && !record[n]) status = lk_fail(err, LK_E_NOMEM, "no memory for an item");
        backend[n++] = g->backend[j];
    }
    if (!status) {
        start_item(run, job->task->name, NULL, (double)n * job->task->cost(job->items.state, i));
        status = job->task->run_group(job->items.state, i, backend, n, record, err);
        end_item(run);
    }
    for (size_t j = 0; !status && j < n; j++) {
        lk_record_cache_stats(record[j], backend[j]);
        if (!find_record(run, job, backend[j]->kv, i))
            status = add_record(run, job, backend[j]->kv, i, record[j], err);
    }
    for (size_t j = 0; j < n; j++) json_decref(record[j]);
    return prefix_item_error(job, g->kv[0], i, status, err);
}

static struct backend_group group_of(const struct eval_job *job, const char *full) {
    struct backend_group g = {.n = 0};
    for (size_t j = 0; j < job->n_kv; j++)
        if (strcmp(lk_backend_full(job->kv[j]), full) == 0) g.kv[g.n++] = job->kv[j];
    return g;
}

static lk_status run_group(struct eval_run *run, const struct eval_job *job, const char *full,
                           lk_err *err) {
    struct backend_group g = group_of(job, full);
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < job->items.n_item; i++)
        status = run_group_item(run, job, &g, i, err);
    for (size_t j = 0; j < g.n; j++) lk_backend_close(g.backend[j]);
    return status;
}

/* Estimated cost of the items of a task that are not finished. */
static double unfinished_cost(const struct eval_run *run, const struct eval_job *job) {
    double cost = 0;
    for (size_t i = 0; i < job->items.n_item; i++) {
        double one = job->task->cost(job->items.state, i);
        for (size_t j = 0; j < job->n_kv;) {
            const char *full = lk_backend_full(job->kv[j]);
            size_t n = 0, first = j;
            for (; j < job->n_kv && strcmp(lk_backend_full(job->kv[j]), full) == 0; j++)
                n += !find_record(run, job, job->kv[j], i);
            bool again = job->task->run_group && n && find_record(run, job, job->kv[first], i);
            cost += one * (double)(n + again);
        }
    }
    return cost;
}

/* ---- results ---- */

/* The records of all items in order, or NULL if one is missing. Owned. */
static json_t *all_records(const struct eval_run *run, const struct eval_job *job, const char *kv) {
    json_t *records = json_array();
    for (size_t i = 0; i < job->items.n_item; i++) {
        const json_t *record = find_record(run, job, kv, i);
        if (record && json_array_append(records, (json_t *)record) == 0) continue;
        json_decref(records);
        return NULL;
    }
    return records;
}

static lk_status add_result(struct eval_run *run, const struct eval_job *job, const char *kv,
                            lk_err *err) {
    json_t *records = all_records(run, job, kv),
           *full = is_full(kv) ? NULL : all_records(run, job, lk_backend_full(kv));
    struct lk_task_result result = {0};
    lk_status status = records ? lk_task_result_init(&result, err) : LK_OK;
    if (records && !status)
        status = job->task->summarize(job->items.state, records, full, &result, err);
    if (records && !status) {
        lk_add_mean(&result, "bits_per_value", records, "bits_per_value");
        lk_add_mean(&result, "bytes_per_token", records, "bytes_per_token");
        lk_add_mean(&result, "bits_with_sidecar", records, "bits_with_sidecar");
        status = lk_task_result_check(&result, err);
    }
    if (records && !status)
        status = lk_results_add_result(run->eval->results, job->task->name, kv, &result, err);
    lk_task_result_free(&result);
    json_decref(full);
    json_decref(records);
    return status;
}

/* ---- the run ---- */

static lk_status open_job(struct eval_run *run, struct eval_job *job, lk_err *err) {
    struct lk_eval *eval = run->eval;
    struct lk_task_env env = {.task = job->task, .opts = &eval->opts, .model = eval->models.lowkey};
    size_t max = job->task->max_question ? job->task->max_question : 1;
    if (env.opts->n_question > max)
        return lk_fail(err, LK_E_ARG, "%s: --questions is %zu, but at most %zu here",
                       job->task->name, env.opts->n_question, max);
    lk_status status = job->task->open(&env, &job->items, err);
    if (status) return status;
    job->open = true;
    job->n_kv = lk_eval_list_kv(eval, job->task, job->kv);
    if (job->items.n_item == 0)
        return lk_fail(err, LK_E_ARG, "%s has no items with these options", job->task->name);
    run->total += unfinished_cost(run, job);
    return LK_OK;
}

static lk_status run_job(struct eval_run *run, const struct eval_job *job, lk_err *err) {
    lk_status status = LK_OK;
    if (job->task->run_group) {
        for (size_t j = 0; !status && j < job->n_kv; j++)
            if (is_full(job->kv[j])) status = run_group(run, job, job->kv[j], err);
    }
    bool one_by_one = !job->task->own_process && !job->task->run_group;
    size_t n_recipe = 0;
    while (n_recipe < job->n_kv && !lk_backend_is_llama(job->kv[n_recipe])) n_recipe++;
    if (one_by_one && job->task->prompt) status = run_on_backends(run, job, job->kv, n_recipe, err);
    for (size_t j = 0; !status && j < job->n_kv; j++) {
        if (job->task->own_process)
            status = run_isolated(run, job, job->kv[j], err);
        else if (one_by_one)
            status = run_on_backends(run, job, &job->kv[j], 1, err);
        if (!status) status = add_result(run, job, job->kv[j], err);
    }
    return status;
}

/* Run the tasks that need processes of their own, or the others. The former come first, while this
 * process is small and has no threads. */
static lk_status run_phase(struct eval_run *run, bool own_process, lk_err *err) {
    struct lk_eval *eval = run->eval;
    bool any = false;
    lk_status status = LK_OK;
    for (size_t t = 0; t < eval->n_task; t++) any |= eval->task[t]->own_process == own_process;
    if (!any) return LK_OK;
    if (!own_process) status = lk_model_pair_open(&eval->models, err);
    size_t first = run->n_job;
    for (size_t t = 0; !status && t < eval->n_task; t++) {
        if (eval->task[t]->own_process != own_process) continue;
        run->job[run->n_job] = (struct eval_job){.task = eval->task[t]};
        status = open_job(run, &run->job[run->n_job++], err);
    }
    for (size_t j = first; !status && j < run->n_job; j++) status = run_job(run, &run->job[j], err);
    return status;
}

lk_status lk_eval_run(struct lk_eval *eval, lk_err *err) {
    for (size_t i = 0; i < eval->n_kv; i++) {
        lk_status status = lk_backend_check(eval->kv[i], err);
        if (status) return status;
    }
    struct eval_run run = {.eval = eval, .job = calloc(eval->n_task + 1, sizeof *run.job)};
    if (!run.job) return lk_fail(err, LK_E_NOMEM, "no memory for %zu tasks", eval->n_task);
    lk_status status = run_phase(&run, true, err);
    if (!status) status = run_phase(&run, false, err);
    for (size_t j = 0; j < run.n_job; j++)
        if (run.job[j].open && run.job[j].task->close)
            run.job[j].task->close(run.job[j].items.state);
    free(run.job);
    return status;
}

/* ---- the header of a run: fingerprints of its files, the machine, and the options ---- */

/* "SIZE-HASH", the form of all fingerprints. */
static void print_fingerprint(char out[40], size_t size, uint64_t hash) {
    snprintf(out, 40, "%zu-%016" PRIx64, size, hash);
}

/* A fingerprint of a file: its size, and a hash of its first and last MiB. */
static lk_status file_fingerprint(const char *path, char out[40], lk_err *err) {
    enum { PART = 1 << 20 };
    FILE *file = lk_os_open_to_read(path);
    char *part = malloc(PART);
    long size = -1;
    uint64_t hash = LK_FNV1A_INIT;
    if (file && part && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0) {
        for (int end = 0; end < 2; end++) {
            long from = end && size > PART ? size - PART : 0;
            if (fseek(file, from, SEEK_SET)) break;
            hash = lk_fnv1a(hash, part, fread(part, 1, PART, file));
        }
        if (ferror(file)) size = -1;
    }
    lk_status status = LK_OK;
    if (!part)
        status = lk_fail(err, LK_E_NOMEM, "no memory to read %s", path);
    else if (size < 0)
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (!status) print_fingerprint(out, (size_t)size, hash);
    free(part);
    if (file) fclose(file);
    return status;
}

/* The options that a results file must share. `sidecar`: its fingerprint, or "none". */
static json_t *pack_options(const struct lk_eval *eval, const char *sidecar) {
    const struct lk_eval_opts *opts = &eval->opts;
    char text[40] = "none", *data = opts->data ? lk_os_real_path(opts->data) : NULL;
    if (opts->text)
        print_fingerprint(text, opts->text_len,
                          lk_fnv1a(LK_FNV1A_INIT, opts->text, opts->text_len));
    json_t *options = json_pack(
        "{s:I s:I s:b s:b s:I s:I s:s s:s? s:s}", "--seed", (json_int_t)opts->seed, "--ctx",
        (json_int_t)opts->n_ctx, "--quick", opts->quick, "--plain", opts->plain, "--min-answer",
        (json_int_t)opts->min_answer, "--questions", (json_int_t)opts->n_question, "--text", text,
        "--data", data, "--sidecar", sidecar);
    free(data);
    return options;
}

json_t *lk_run_header(const struct lk_eval *eval, const char *command, lk_err *err) {
    char fingerprint[40], sidecar[40] = "none", cpu[200], date[40];
    if (file_fingerprint(eval->models.path, fingerprint, err)) return NULL;
    if (eval->models.opts.sidecar && file_fingerprint(eval->models.opts.sidecar, sidecar, err))
        return NULL;
    const char *name = lk_os_last_slash(eval->models.path);
    int cores = lk_os_cpus_online();
    int n_threads = eval->models.opts.n_threads > 0 ? eval->models.opts.n_threads
                    : cores > 16                    ? 16
                                                    : cores;
    time_t now = time(NULL);
    struct tm utc;
    lk_os_cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *header = json_pack(
        "{s:s s:s s:s s:s s:s s:i s:s s:s s:s s:o}", "type", "run", "version", lk_version(),
        "model", name ? name + 1 : eval->models.path, "model_fingerprint", fingerprint, "weights",
        eval->models.opts.weights == LK_WEIGHTS_F32 ? "f32" : "shipped", "n_threads", n_threads,
        "cpu", cpu, "command", command, "date", date, "options", pack_options(eval, sidecar));
    if (!header)
        lk_fail(err, LK_E_NOMEM,
                "no memory for the header of the results, or a name is not valid UTF-8");
    return header;
}

/* ---- the table of tasks and of groups of tasks ---- */

static const struct lk_task *const task_table[] = {
    &lk_task_text,    &lk_task_agree, &lk_task_bytes, &lk_task_needle,
    &lk_task_passkey, &lk_task_vt,    &lk_task_fwe,   &lk_task_qa,
};

static const struct {
    const char *name, *task[8];
} group_table[] = {
    {"ruler", {"vt", "fwe", "qa"}},
};

enum {
    N_TASK = sizeof task_table / sizeof task_table[0],
    N_GROUP = sizeof group_table / sizeof group_table[0],
    MAX_GROUP_TASKS = sizeof group_table[0].task / sizeof group_table[0].task[0],
};

const struct lk_task *lk_task_at(size_t i) { return i < N_TASK ? task_table[i] : NULL; }

const struct lk_task *lk_task_find(const char *name) {
    for (size_t i = 0; i < N_TASK; i++)
        if (strcmp(task_table[i]->name, name) == 0) return task_table[i];
    return NULL;
}

const char *lk_task_group_name(size_t i) { return i < N_GROUP ? group_table[i].name : NULL; }

const struct lk_task *lk_task_in_group(const char *name, size_t i) {
    for (size_t g = 0; g < N_GROUP; g++)
        if (strcmp(group_table[g].name, name) == 0 && i < MAX_GROUP_TASKS && group_table[g].task[i])
            return lk_task_find(group_table[g].task[i]);
    return NULL;
}
