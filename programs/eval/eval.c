#include "eval/eval.h"

#include "eval/isolated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEY_ROOM = 256 };

/* One task of a run, open. */
struct job {
    const struct lk_task *task;
    struct lk_task_set set;
    bool open;
    const char *kv[LK_MAX_EVAL_KV]; /* [n_kv] full caches first */
    size_t n_kv;
};

struct run {
    struct lk_eval *eval;
    struct job *job; /* [n_job] */
    size_t n_job;
    double done, item, total; /* work: finished items, of the item at hand, all */
    double item_cost;
    const char *task, *kv; /* at hand */
};

/* ---- progress ---- */

/* Work of the item at hand; its cost was a guess, which it does not pass. */
static bool tick(void *user, double n) {
    struct run *run = user;
    const struct lk_eval *eval = run->eval;
    run->item += n;
    double now = run->item < run->item_cost ? run->item : run->item_cost;
    return !eval->progress ||
           eval->progress(eval->user, run->task, run->kv, run->done + now, run->total);
}

static void item_begin(struct run *run, const char *task, const char *kv, double cost) {
    run->task = task;
    run->kv = kv;
    run->item = 0;
    run->item_cost = cost;
}

static void item_end(struct run *run) {
    run->done += run->item_cost;
    run->item = 0;
    run->item_cost = 0;
}

/* ---- subjects ---- */

static void add(const char **kv, size_t *n, const char *name) {
    for (size_t i = 0; i < *n; i++)
        if (strcmp(kv[i], name) == 0) return;
    if (*n < LK_MAX_EVAL_KV) kv[(*n)++] = name;
}

size_t lk_eval_subjects(const struct lk_eval *eval, const struct lk_task *task, const char **kv) {
    size_t n = 0;
    bool floor = task->wants_floor && eval->models.opts.weights == LK_WEIGHTS_AS_SHIPPED;
    for (int llama = 0; llama < 2; llama++) {
        if (llama && floor) {
            add(kv, &n, "llama.cpp:f16");
            add(kv, &n, "llama.cpp:plain");
        }
        for (size_t i = 0; i < eval->n_kv; i++) {
            if (lk_subject_is_llama(eval->kv[i]) != (llama != 0)) continue;
            add(kv, &n, lk_subject_full(eval->kv[i]));
            add(kv, &n, eval->kv[i]);
        }
    }
    return n;
}

static bool is_full(const char *kv) { return strcmp(kv, lk_subject_full(kv)) == 0; }

static const json_t *record_of(const struct run *run, const struct job *job, const char *kv,
                               size_t i) {
    char key[KEY_ROOM];
    job->task->key(job->set.state, i, key, sizeof key);
    return lk_results_item(run->eval->results, job->task->name, kv, key);
}

static lk_status open_subject(struct run *run, const struct job *job, const char *kv,
                              struct lk_subject **out, lk_err *err) {
    lk_status status = lk_subject_open(out, &run->eval->models, kv, job->set.n_ctx, err);
    if (status == LK_OK) {
        (*out)->tick = tick;
        (*out)->user = run;
    }
    return status;
}

/* ---- items ---- */

/* What every record says of the cache, where the task said nothing. */
static void describe(json_t *record, const struct lk_subject *subject) {
    lk_session_stats stats = lk_subject_stats(subject);
    if (stats.n_tok == 0 || json_object_get(record, "bits_per_value")) return;
    json_object_set_new(record, "n_tok", json_integer((json_int_t)stats.n_tok));
    json_object_set_new(record, "bits_per_value", json_real(stats.bits_per_value));
    json_object_set_new(record, "bytes_per_token", json_real(stats.bytes_per_token));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static lk_status keep(struct run *run, const struct job *job, const char *kv, size_t i,
                      json_t *record, lk_err *err) {
    char key[KEY_ROOM];
    job->task->key(job->set.state, i, key, sizeof key);
    return lk_results_add_item(run->eval->results, job->task->name, kv, key, record, err);
}

/* The item's name in front of what went wrong. */
static lk_status blame(const struct job *job, const char *kv, size_t i, lk_status status,
                       lk_err *err) {
    char key[KEY_ROOM], what[sizeof err->msg];
    if (status == LK_OK || status == LK_E_CANCELLED || !err) return status;
    job->task->key(job->set.state, i, key, sizeof key);
    snprintf(what, sizeof what, "%s", err->msg);
    return lk_fail(err, status, "%s %s, --kv %.80s: %.300s", job->task->name, key, kv, what);
}

static lk_status run_item(struct run *run, const struct job *job, struct lk_subject *subject,
                          size_t i, double seconds, lk_err *err) {
    json_t *record = json_object();
    if (!record) return lk_fail(err, LK_E_NOMEM, "no memory for an item");
    const json_t *full =
        is_full(subject->kv) ? NULL : record_of(run, job, lk_subject_full(subject->kv), i);
    double start = now();
    run->kv = subject->kv;
    lk_status status = job->task->run(job->set.state, i, subject, full, record, err);
    if (status == LK_OK) {
        json_object_set_new(record, "seconds", json_real(seconds + now() - start));
        describe(record, subject);
        status = keep(run, job, subject->kv, i, record, err);
    }
    json_decref(record);
    return blame(job, subject->kv, i, status, err);
}

/* Item i on n > 0 subjects of one kind, which are behind its prompt then. Each item counts an equal part of
 * the prompt's time and cost. */
static lk_status run_items(struct run *run, const struct job *job,
                           struct lk_subject *const *subject, size_t n, size_t i, lk_err *err) {
    int32_t *tok = NULL;
    size_t n_tok = 0;
    double start = now();
    lk_status status = LK_OK;
    item_begin(run, job->task->name, n > 1 ? NULL : subject[0]->kv,
               (double)n * job->task->cost(job->set.state, i));
    if (job->task->prompt) {
        status = job->task->prompt(job->set.state, i, &tok, &n_tok, err);
        if (status == LK_OK) status = lk_subjects_prompt(subject, n, tok, n_tok, err);
        free(tok);
    }
    double seconds = (now() - start) / (double)n;
    if (status != LK_OK) return blame(job, subject[0]->kv, i, status, err);
    for (size_t j = 0; status == LK_OK && j < n; j++)
        status = run_item(run, job, subject[j], i, seconds, err);
    item_end(run);
    return status;
}

/* Subjects of one kind one item after the other. `n` subjects at once hold more memory and read prompts once. */
static lk_status run_subjects(struct run *run, const struct job *job, const char *const *kv,
                              size_t n, lk_err *err) {
    struct lk_subject *subject[LK_MAX_EVAL_KV] = {NULL}, *pending[LK_MAX_EVAL_KV];
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < job->set.n_item; i++) {
        size_t n_pending = 0;
        for (size_t j = 0; status == LK_OK && j < n; j++) {
            if (record_of(run, job, kv[j], i)) continue;
            if (!subject[j]) status = open_subject(run, job, kv[j], &subject[j], err);
            pending[n_pending++] = subject[j];
        }
        if (status == LK_OK && n_pending) status = run_items(run, job, pending, n_pending, i, err);
    }
    for (size_t j = 0; j < n; j++) lk_subject_close(subject[j]);
    return status;
}

/* In a process of its own: the model, the subject and the item. */
struct isolated {
    struct run *run;
    const struct job *job;
    const char *kv;
    size_t i;
};

static lk_status work_isolated(void *user, json_t *record, lk_err *err) {
    struct isolated *x = user;
    struct lk_subject *subject;
    x->run->eval->models.tokens_only = lk_subject_is_llama(x->kv);
    lk_status status = open_subject(x->run, x->job, x->kv, &subject, err);
    if (status == LK_OK)
        status = x->job->task->run(x->job->set.state, x->i, subject, NULL, record, err);
    if (status == LK_OK) describe(record, subject);
    return status;
}

static lk_status run_isolated(struct run *run, const struct job *job, const char *kv, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < job->set.n_item; i++) {
        if (record_of(run, job, kv, i)) continue;
        json_t *record = json_object();
        struct isolated x = {run, job, kv, i};
        item_begin(run, job->task->name, kv, job->task->cost(job->set.state, i));
        double start = now();
        if (!tick(run, 0)) status = lk_fail(err, LK_E_CANCELLED, "cancelled");
        if (status == LK_OK) status = lk_isolated_run(work_isolated, &x, record, err);
        if (status == LK_OK) json_object_set_new(record, "seconds", json_real(now() - start));
        if (status == LK_OK) status = keep(run, job, kv, i, record, err);
        item_end(run);
        json_decref(record);
        status = blame(job, kv, i, status, err);
    }
    return status;
}

/* ---- items on several subjects at once ---- */

/* Subjects measured against one full cache; the first is it. Opened when an item first needs them. */
struct group {
    const char *kv[LK_MAX_EVAL_KV];
    struct lk_subject *subject[LK_MAX_EVAL_KV];
    size_t n;
};

static lk_status run_group_item(struct run *run, const struct job *job, struct group *g, size_t i,
                                lk_err *err) {
    struct lk_subject *subject[LK_MAX_EVAL_KV];
    json_t *record[LK_MAX_EVAL_KV] = {NULL};
    size_t n = 0;
    lk_status status = LK_OK;
    for (size_t j = g->n; j-- > 0;) { /* the full cache last: is anything pending? */
        bool pending = !record_of(run, job, g->kv[j], i);
        if (!pending && (j > 0 || n == 0)) continue;
        if (!g->subject[j]) status = open_subject(run, job, g->kv[j], &g->subject[j], err);
        record[n] = json_object();
        if (status == LK_OK && !record[n])
            status = lk_fail(err, LK_E_NOMEM, "no memory for an item");
        subject[n++] = g->subject[j];
        if (status != LK_OK) break;
    }
    for (size_t a = 0, b = n; a + 1 < b; a++) { /* the full cache first, the others as listed */
        struct lk_subject *s = subject[a];
        json_t *r = record[a];
        subject[a] = subject[--b];
        record[a] = record[b];
        subject[b] = s;
        record[b] = r;
    }
    if (n && status == LK_OK) {
        item_begin(run, job->task->name, NULL, (double)n * job->task->cost(job->set.state, i));
        status = job->task->run_group(job->set.state, i, subject, n, record, err);
        item_end(run);
    }
    for (size_t j = 0; status == LK_OK && j < n; j++) {
        describe(record[j], subject[j]);
        if (!record_of(run, job, subject[j]->kv, i))
            status = keep(run, job, subject[j]->kv, i, record[j], err);
    }
    for (size_t j = 0; j < n; j++) json_decref(record[j]);
    return blame(job, g->kv[0], i, status, err);
}

static struct group make_group(const struct job *job, const char *full) {
    struct group g = {.n = 0};
    for (size_t j = 0; j < job->n_kv; j++)
        if (strcmp(lk_subject_full(job->kv[j]), full) == 0) g.kv[g.n++] = job->kv[j];
    return g;
}

static lk_status run_group(struct run *run, const struct job *job, const char *full, lk_err *err) {
    struct group g = make_group(job, full);
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < job->set.n_item; i++)
        status = run_group_item(run, job, &g, i, err);
    for (size_t j = 0; j < g.n; j++) lk_subject_close(g.subject[j]);
    return status;
}

/* Work of a task's items that are not finished. */
static double pending_cost(const struct run *run, const struct job *job) {
    double cost = 0;
    for (size_t i = 0; i < job->set.n_item; i++) {
        double one = job->task->cost(job->set.state, i);
        for (size_t j = 0; j < job->n_kv;) {
            const char *full = lk_subject_full(job->kv[j]);
            size_t n = 0, first = j;
            for (; j < job->n_kv && strcmp(lk_subject_full(job->kv[j]), full) == 0; j++)
                n += !record_of(run, job, job->kv[j], i);
            bool again = job->task->run_group && n && record_of(run, job, job->kv[first], i);
            cost += one * (double)(n + again);
        }
    }
    return cost;
}

/* ---- results ---- */

/* The records of all items in their order, or NULL where one is missing. Owned. */
static json_t *records_of(const struct run *run, const struct job *job, const char *kv) {
    json_t *records = json_array();
    for (size_t i = 0; i < job->set.n_item; i++) {
        const json_t *record = record_of(run, job, kv, i);
        if (record && json_array_append(records, (json_t *)record) == 0) continue;
        json_decref(records);
        return NULL;
    }
    return records;
}

static lk_status summarise(struct run *run, const struct job *job, const char *kv, lk_err *err) {
    json_t *records = records_of(run, job, kv),
           *full = is_full(kv) ? NULL : records_of(run, job, lk_subject_full(kv));
    struct lk_result result = {0};
    lk_status status = records ? lk_result_begin(&result, err) : LK_OK;
    if (records && status == LK_OK)
        status = job->task->summarise(job->set.state, records, full, &result, err);
    if (records && status == LK_OK) {
        lk_metric_mean(&result, "bits_per_value", records, "bits_per_value");
        lk_metric_mean(&result, "bytes_per_token", records, "bytes_per_token");
        status = lk_result_check(&result, err);
    }
    if (records && status == LK_OK)
        status = lk_results_add_result(run->eval->results, job->task->name, kv, &result, err);
    lk_result_free(&result);
    json_decref(full);
    json_decref(records);
    return status;
}

/* ---- the run ---- */

static lk_status open_job(struct run *run, struct job *job, lk_err *err) {
    struct lk_eval *eval = run->eval;
    struct lk_task_env env = {.task = job->task, .opts = &eval->opts, .model = eval->models.lowkey};
    lk_status status = job->task->open(&env, &job->set, err);
    if (status != LK_OK) return status;
    job->open = true;
    job->n_kv = lk_eval_subjects(eval, job->task, job->kv);
    if (job->set.n_item == 0)
        return lk_fail(err, LK_E_ARG, "%s has no items with these options", job->task->name);
    run->total += pending_cost(run, job);
    return LK_OK;
}

static lk_status run_job(struct run *run, const struct job *job, lk_err *err) {
    lk_status status = LK_OK;
    if (job->task->run_group) {
        for (size_t j = 0; status == LK_OK && j < job->n_kv; j++)
            if (is_full(job->kv[j])) status = run_group(run, job, job->kv[j], err);
    }
    bool one_by_one = !job->task->own_process && !job->task->run_group;
    size_t n_recipe = 0;
    while (n_recipe < job->n_kv && !lk_subject_is_llama(job->kv[n_recipe])) n_recipe++;
    if (one_by_one && job->task->prompt) status = run_subjects(run, job, job->kv, n_recipe, err);
    for (size_t j = 0; status == LK_OK && j < job->n_kv; j++) {
        if (job->task->own_process)
            status = run_isolated(run, job, job->kv[j], err);
        else if (one_by_one)
            status = run_subjects(run, job, &job->kv[j], 1, err);
        if (status == LK_OK) status = summarise(run, job, job->kv[j], err);
    }
    return status;
}

/* Tasks that run in processes of their own come first, while this one is small and has no threads. */
static lk_status run_phase(struct run *run, bool own_process, lk_err *err) {
    struct lk_eval *eval = run->eval;
    bool any = false;
    lk_status status = LK_OK;
    for (size_t t = 0; t < eval->n_task; t++) any |= eval->task[t]->own_process == own_process;
    if (!any) return LK_OK;
    if (!own_process) status = lk_models_open(&eval->models, err);
    size_t first = run->n_job;
    for (size_t t = 0; status == LK_OK && t < eval->n_task; t++) {
        if (eval->task[t]->own_process != own_process) continue;
        run->job[run->n_job] = (struct job){.task = eval->task[t]};
        status = open_job(run, &run->job[run->n_job++], err);
    }
    for (size_t j = first; status == LK_OK && j < run->n_job; j++)
        status = run_job(run, &run->job[j], err);
    return status;
}

lk_status lk_eval_run(struct lk_eval *eval, lk_err *err) {
    for (size_t i = 0; i < eval->n_kv; i++) {
        lk_status status = lk_subject_check(eval->kv[i], err);
        if (status != LK_OK) return status;
    }
    struct run run = {.eval = eval, .job = calloc(eval->n_task + 1, sizeof *run.job)};
    if (!run.job) return lk_fail(err, LK_E_NOMEM, "no memory for %zu tasks", eval->n_task);
    lk_status status = run_phase(&run, true, err);
    if (status == LK_OK) status = run_phase(&run, false, err);
    for (size_t j = 0; j < run.n_job; j++)
        if (run.job[j].open && run.job[j].task->close) run.job[j].task->close(run.job[j].set.state);
    free(run.job);
    return status;
}
