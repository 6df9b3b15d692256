/* Collects examples into a file, reads them from it, and chooses the queries of a step. */
#define _XOPEN_SOURCE 700 /* pread, pwrite */
#include "training/less_data.h"

#include "base/hash.h"
#include "base/os.h"
#include "training/descent.h"
#include "training/less_net.h"

#include <ggml-cpu.h>

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static const uint64_t file_magic = 0x3330737365746b6cull; /* "lktess03" */

enum { HEADER_BYTES = 4096, PART_ALIGN = 64 };

/* ---- the file ---- */

enum part {
    PART_Q,
    PART_SPARSE,
    PART_RESIDUAL,
    PART_K,
    PART_V,
    PART_LOG_SUM,
    PART_EVICTED_AT,
    N_PART
};

/* Rows that a policy has evicted at the end of a sequence. */
static int less_data_evicted(const struct lk_less_source *s, const struct lk_less_policy *policy) {
    return s->n_ctx - 1 - lk_less_policy_budget(policy);
}

/* Offset of a part in a record of this policy. For N_PART, the size of the record. */
static size_t part_offset(const struct lk_less_data *data, const struct lk_less_policy *policy,
                          enum part part) {
    const struct lk_less_source *s = &data->source;
    size_t queries = (size_t)s->n_head * (size_t)lk_less_data_queries(s, policy),
           rows = (size_t)s->n_head_kv * (size_t)less_data_evicted(s, policy),
           d = (size_t)s->d_head;
    const size_t bytes[N_PART] = {
        [PART_Q] = queries * d * 2,        [PART_SPARSE] = queries * d * 2,
        [PART_RESIDUAL] = queries * d * 2, [PART_K] = rows * d * 2,
        [PART_V] = rows * d * 2,           [PART_LOG_SUM] = queries * 4,
        [PART_EVICTED_AT] = rows * 4};
    size_t at = 0;
    for (int i = 0; i < (int)part; i++) at += (bytes[i] + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return at;
}

static void *record_part(const struct lk_less_data *data, const struct lk_less_policy *policy,
                         enum part part) {
    return (char *)data->record + part_offset(data, policy, part);
}

static const struct lk_less_policy *sequence_policy(const struct lk_less_source *s, int seq) {
    return &s->policy[seq % s->n_policy];
}

int lk_less_data_queries(const struct lk_less_source *s, const struct lk_less_policy *policy) {
    return (s->n_ctx - lk_less_policy_first(policy) + s->stride - 1) / s->stride;
}

/* pread or pwrite of all bytes. errno is 0 if the file ends before. */
static bool transfer_all(int file, void *at, size_t size, uint64_t offset, bool write) {
    while (size > 0) {
        ptrdiff_t n =
            write ? lk_os_write_at(file, at, size, offset) : lk_os_read_at(file, at, size, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = 0;
        if (n <= 0) return false;
        at = (char *)at + n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

static uint64_t record_offset(const struct lk_less_data *data, int layer, int seq) {
    return HEADER_BYTES + ((uint64_t)layer * data->source.n_seq + seq) * data->record_bytes;
}

lk_status lk_less_data_read(struct lk_less_data *data, int layer, int seq,
                            struct lk_less_example *out, lk_err *err) {
    if (!transfer_all(data->file, data->record, data->record_bytes, record_offset(data, layer, seq),
                      false))
        return lk_fail(err, LK_E_IO, "cannot read the file of examples: %s",
                       errno ? strerror(errno) : "it is truncated; remove it and start again");
    const struct lk_less_policy *policy = sequence_policy(&data->source, seq);
    *out = (struct lk_less_example){.n_query = lk_less_data_queries(&data->source, policy),
                                    .n_evicted = less_data_evicted(&data->source, policy),
                                    .stride = data->source.stride,
                                    .q = record_part(data, policy, PART_Q),
                                    .sparse = record_part(data, policy, PART_SPARSE),
                                    .residual = record_part(data, policy, PART_RESIDUAL),
                                    .k = record_part(data, policy, PART_K),
                                    .v = record_part(data, policy, PART_V),
                                    .log_sum = record_part(data, policy, PART_LOG_SUM),
                                    .evicted_at = record_part(data, policy, PART_EVICTED_AT)};
    return LK_OK;
}

/* ---- collecting ---- */

/* One pass of the model over all sequences. */
struct collect_pass {
    struct lk_less_data *data;
    struct lk_model *model;
    lk_session *session;
    lk_recipe *recipe;
    const struct lk_less_policy *policy; /* of the current sequence */
    uint16_t *q, *full;                  /* [n_layer][n_ctx][n_head][d_head] halves */
    float *prompt_score;                 /* [n_layer][n_ctx][n_head_kv] */
    float *out;                          /* [LK_EVAL_MAX][n_head][d_head] */
    float *k, *v;                        /* [n_head_kv][n_ctx][d_head] of the current layer */
    float *query;                        /* [n_head][n_ctx][d_head] */
    struct lk_less_scratch simulation;
    struct lk_less_simulated found;
};

/* One allocation of a pass. */
struct pass_buffer {
    void **at;
    size_t bytes;
};

enum { N_PASS_BUFFER = 14 };

static void list_buffers(struct collect_pass *p, struct pass_buffer buffer[N_PASS_BUFFER]) {
    const struct lk_less_source *s = &p->data->source;
    size_t n = (size_t)s->n_ctx, d = (size_t)s->d_head, n_kv = (size_t)s->n_head_kv,
           row = s->n_head * d;
    const struct pass_buffer all[N_PASS_BUFFER] = {
        {(void **)&p->q, s->n_layer * n * row * 2},
        {(void **)&p->full, s->n_layer * n * row * 2},
        {(void **)&p->prompt_score, s->n_layer * n * n_kv * 4},
        {(void **)&p->out, LK_EVAL_MAX * row * 4},
        {(void **)&p->k, n_kv * n * d * 4},
        {(void **)&p->v, n_kv * n * d * 4},
        {(void **)&p->query, n * row * 4},
        {(void **)&p->simulation.score, n_kv * n * 4},
        {(void **)&p->simulation.held, n_kv * n * 4},
        {(void **)&p->simulation.rank, n * 4},
        {(void **)&p->simulation.order, n * sizeof *p->simulation.order},
        {(void **)&p->found.evicted_at, n_kv * n * 4},
        {(void **)&p->found.sparse, n * row * 4},
        {(void **)&p->found.log_sum, s->n_head * n * 4}};
    memcpy(buffer, all, sizeof all);
}

static lk_status pass_open(struct collect_pass *p, lk_err *err) {
    struct pass_buffer buffer[N_PASS_BUFFER];
    size_t bytes = 0;
    list_buffers(p, buffer);
    for (int i = 0; i < N_PASS_BUFFER; i++) {
        bytes += buffer[i].bytes;
        *buffer[i].at = lk_alloc(p->data->ledger, LK_FOR_SCRATCH, buffer[i].bytes);
        if (!*buffer[i].at)
            return lk_fail(err, LK_E_NOMEM, "no memory to collect examples (%.0f MiB)",
                           (double)bytes / (1 << 20));
    }
    lk_status status = lk_recipe_parse(&p->recipe, "f16", err);
    lk_session_opts opts = {.n_ctx = p->data->source.n_ctx};
    return status ? status : lk_session_new(&p->session, p->model, p->recipe, &opts, err);
}

static void pass_close(struct collect_pass *p) {
    struct pass_buffer buffer[N_PASS_BUFFER];
    lk_session_free(p->session);
    lk_recipe_free(p->recipe);
    list_buffers(p, buffer);
    for (int i = 0; i < N_PASS_BUFFER; i++)
        lk_release(p->data->ledger, LK_FOR_SCRATCH, *buffer[i].at, buffer[i].bytes);
}

/* lk_watch callback: record the queries of one layer, the output of its attention, and the scores
 * of a prompt's rows. The output goes to memory of our own, because other threads write it too at
 * this time. */
static void record_attention(void *user, int layer, const struct lk_attn *call, int n_range) {
    struct collect_pass *p = user;
    const struct lk_less_source *s = &p->data->source;
    size_t row = (size_t)s->n_head * s->d_head, n = (size_t)call->n_tok * row;
    size_t at = ((size_t)layer * s->n_ctx + (size_t)(call->k->n_tok - call->n_tok)) * row;
    struct lk_attn attn = *call;
    attn.out = p->out;
    enum lk_policy_scores needed = lk_policy_needed_scores(&p->policy->rule);
    if (call->k->n_tok <= p->policy->prompt && needed != LK_SCORES_NONE)
        lk_attn_accumulate_scores(&attn, n_range, needed == LK_SCORES_LAST,
                                  p->prompt_score + (size_t)layer * s->n_ctx * s->n_head_kv, 0, 1);
    lk_attn_combine(&attn, n_range, 0, 1);
    ggml_cpu_fp32_to_fp16(call->q, p->q + at, (int64_t)n);
    ggml_cpu_fp32_to_fp16(p->out, p->full + at, (int64_t)n);
}

static void write_halves(uint16_t *to, const float *from, int n) {
    ggml_cpu_fp32_to_fp16(from, to, n);
}

/* Write a query head of the simulated layer to the record. */
static void record_queries(const struct collect_pass *p, int layer, int head) {
    const struct lk_less_data *data = p->data;
    const struct lk_less_source *s = &data->source;
    int d = s->d_head, n_query = lk_less_data_queries(s, p->policy),
        first = lk_less_policy_first(p->policy);
    uint16_t *q = record_part(data, p->policy, PART_Q),
             *sparse = record_part(data, p->policy, PART_SPARSE),
             *residual = record_part(data, p->policy, PART_RESIDUAL);
    float *log_sum = record_part(data, p->policy, PART_LOG_SUM), full[LK_MAX_D_HEAD];
    for (int i = 0; i < n_query; i++) {
        size_t pos = (size_t)(first + i * s->stride), to = (size_t)head * n_query + i,
               from = (size_t)head * s->n_ctx + pos,
               row = ((size_t)layer * s->n_ctx + pos) * s->n_head + head;
        const float *mean = p->found.sparse + from * d;
        memcpy(q + to * d, p->q + row * d, (size_t)d * sizeof *q);
        write_halves(sparse + to * d, mean, d);
        ggml_cpu_fp16_to_fp32(p->full + row * d, full, d);
        for (int c = 0; c < d; c++) full[c] = mean[c] - full[c];
        write_halves(residual + to * d, full, d);
        log_sum[to] = p->found.log_sum[from];
    }
}

/* Write the evicted rows of a KV head to the record, in the order of eviction: those that query 0
 * misses, in the order of positions, then one row for each query. */
static void record_evicted(const struct collect_pass *p, int head) {
    const struct lk_less_data *data = p->data;
    const struct lk_less_source *s = &data->source;
    int d = s->d_head, n_evicted = less_data_evicted(s, p->policy), n_first = 0,
        first = lk_less_policy_first(p->policy);
    const int32_t *evicted_at = p->found.evicted_at + (size_t)head * s->n_ctx;
    uint16_t *k = record_part(data, p->policy, PART_K), *v = record_part(data, p->policy, PART_V);
    int32_t *at = record_part(data, p->policy, PART_EVICTED_AT);
    for (int row = 0; row < s->n_ctx; row++) n_first += evicted_at[row] <= first;
    for (int row = 0, i = 0; row < s->n_ctx; row++) {
        if (evicted_at[row] == s->n_ctx) continue;
        int missed = evicted_at[row] - first; /* the first query that misses the row */
        size_t to = (size_t)head * n_evicted + (missed > 0 ? n_first + missed - 1 : i++),
               from = (size_t)head * s->n_ctx + row;
        write_halves(k + to * d, p->k + from * d, d);
        write_halves(v + to * d, p->v + from * d, d);
        at[to] = missed > 0 ? missed : 0;
    }
}

static void record_layer(struct collect_pass *p, int layer) {
    const struct lk_less_source *s = &p->data->source;
    int d = s->d_head, n = s->n_ctx;
    const struct lk_kv *kv = p->session->cache->kv[layer];
    for (int head = 0; head < s->n_head_kv; head++) {
        size_t to = (size_t)head * n * d;
        lk_kv_read_positions(&kv[LK_K], 0, n, head, &lk_kernels_reference, p->k + to, d);
        lk_kv_read_positions(&kv[LK_V], 0, n, head, &lk_kernels_reference, p->v + to, d);
    }
    for (int head = 0; head < s->n_head; head++)
        for (int pos = 0; pos < n; pos++)
            ggml_cpu_fp16_to_fp32(p->q + (((size_t)layer * n + pos) * s->n_head + head) * d,
                                  p->query + ((size_t)head * n + pos) * d, d);
    struct lk_less_layer_rows rows = {.n_tok = n,
                                      .n_head_kv = s->n_head_kv,
                                      .group = s->n_head / s->n_head_kv,
                                      .d_head = d,
                                      .scale = p->model->net->hp.attn_scale,
                                      .q = p->query,
                                      .k = p->k,
                                      .v = p->v,
                                      .prompt_score =
                                          p->prompt_score + (size_t)layer * n * s->n_head_kv};
    p->found.stride = s->stride;
    lk_less_simulate(p->policy, &rows, &p->simulation, &p->found);
    for (int head = 0; head < s->n_head; head++) record_queries(p, layer, head);
    for (int head = 0; head < s->n_head_kv; head++) record_evicted(p, head);
}

static lk_status eval_sequence(struct collect_pass *p, const int32_t *tok, lk_err *err) {
    const struct lk_less_source *s = &p->data->source;
    int prompt = p->policy->prompt;
    memset(p->prompt_score, 0,
           (size_t)s->n_layer * s->n_ctx * s->n_head_kv * sizeof *p->prompt_score);
    lk_session_clear(p->session);
    p->session->watch = (struct lk_watch){.on_partials = record_attention, .user = p};
    lk_status status = LK_OK;
    for (int at = 0, n; !status && at < s->n_ctx; at += n) {
        int end = at < prompt ? prompt : s->n_ctx; /* a call is inside the prompt or after it */
        n = end - at < LK_EVAL_MAX ? end - at : LK_EVAL_MAX;
        status = lk_session_eval(p->session, tok + at, (size_t)n, false, err);
    }
    return status;
}

static lk_status collect_examples(struct lk_less_data *data, const struct lk_less_data_opts *opts,
                                  lk_err *err) {
    const struct lk_less_source *s = &data->source;
    struct collect_pass p = {.data = data, .model = opts->model};
    lk_status status = pass_open(&p, err);
    for (int seq = 0; !status && seq < s->n_seq; seq++) {
        p.policy = sequence_policy(s, seq);
        status = eval_sequence(&p, opts->tok + (size_t)seq * s->n_ctx, err);
        for (int layer = 0; !status && layer < s->n_layer; layer++) {
            record_layer(&p, layer);
            if (!transfer_all(data->file, data->record, data->record_bytes,
                              record_offset(data, layer, seq), true))
                status =
                    lk_fail(err, LK_E_IO, "cannot write the file of examples: %s", strerror(errno));
            else if (opts->progress &&
                     !opts->progress(opts->user, (uint64_t)seq * s->n_layer + layer + 1,
                                     (uint64_t)s->n_seq * s->n_layer))
                status =
                    lk_fail(err, LK_E_CANCELLED,
                            "cancelled after %d of %d sequences; the same command starts again",
                            seq, s->n_seq);
        }
    }
    pass_close(&p);
    struct lk_less_source header = *s; /* written last: a file with a header is complete */
    if (!status &&
        (!transfer_all(data->file, &header, sizeof header, 0, true) || lk_os_sync(data->file) != 0))
        status = lk_fail(err, LK_E_IO, "cannot write the file of examples: %s", strerror(errno));
    return status;
}

/* ---- opening ---- */

static lk_status check_source(const struct lk_less_source *s, const struct lk_hparams *hp,
                              lk_err *err) {
    int first = 0;
    for (int i = 0; i < s->n_policy; i++) {
        int n = lk_less_policy_first(&s->policy[i]);
        first = n > first ? n : first;
    }
    if (hp->n_swa > 0 || hp->alibi_max_bias > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "LESS does not support %s: the weight of an evicted row would depend on its "
                       "distance",
                       hp->n_swa > 0 ? "sliding windows" : "ALiBi");
    if (s->n_ctx < first + 7)
        return lk_fail(err, LK_E_ARG,
                       "sequences of %d tokens are too short: with these budgets and prompts, the "
                       "first row is missed at %d; make them longer",
                       s->n_ctx, first);
    if (s->n_seq < 2)
        return lk_fail(err, LK_E_ARG, "the text has %d sequences of %d tokens; give at least 2",
                       s->n_seq, s->n_ctx);
    return LK_OK;
}

/* `source` is zeroed. Fields are set one by one: padding bytes stay zero. */
static void set_source(struct lk_less_source *source, const struct lk_less_data_opts *opts) {
    const struct lk_net *net = opts->model->net;
    source->magic = file_magic;
    source->fingerprint = net->fingerprint;
    source->hash =
        lk_fnv1a(LK_FNV1A_INIT, opts->tok, (size_t)opts->n_seq * opts->n_ctx * sizeof *opts->tok);
    source->n_layer = net->hp.n_layer;
    source->n_head = net->hp.n_head;
    source->n_head_kv = net->hp.n_head_kv;
    source->d_head = net->hp.d_head;
    source->n_ctx = opts->n_ctx;
    source->n_seq = opts->n_seq;
    source->stride = opts->stride;
    source->n_policy = opts->n_policy;
    for (int i = 0; i < opts->n_policy; i++) {
        struct lk_less_policy *to = &source->policy[i];
        const struct lk_less_policy *from = &opts->policy[i];
        to->rule.kind = from->rule.kind;
        to->rule.mean = from->rule.mean;
        to->rule.per_head = from->rule.per_head;
        to->rule.seed = from->rule.seed;
        to->sink = from->sink;
        to->keep = from->keep;
        to->window = from->window;
        to->prompt = from->prompt;
    }
}

lk_status lk_less_data_open(struct lk_less_data *data, const struct lk_less_data_opts *opts,
                            lk_err *err) {
    *data = (struct lk_less_data){.ledger = opts->ledger, .file = -1};
    struct lk_less_source *s = &data->source, found;
    memset(s, 0, sizeof *s);
    set_source(s, opts);
    lk_status status = check_source(s, &opts->model->net->hp, err);
    if (status) return status;
    for (int i = 0; i < opts->n_policy; i++) {
        size_t bytes = part_offset(data, &opts->policy[i], N_PART);
        data->record_bytes = bytes > data->record_bytes ? bytes : data->record_bytes;
    }
    data->record = lk_alloc(opts->ledger, LK_FOR_SCRATCH, data->record_bytes);
    if (!data->record)
        return lk_fail(err, LK_E_NOMEM, "no memory for an example of %zu bytes",
                       data->record_bytes);
    data->file = lk_os_open(opts->path, LK_OS_READ | LK_OS_WRITE | LK_OS_CREATE, 0644);
    if (data->file < 0)
        status = lk_fail(err, LK_E_IO, "cannot open %s: %s", opts->path, strerror(errno));
    bool whole = !status && transfer_all(data->file, &found, sizeof found, 0, false),
         same = whole && memcmp(&found, s, sizeof found) == 0;
    if (!status && !whole && errno) /* 0: the file is shorter */
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", opts->path, strerror(errno));
    if (!status && !same && ftruncate(data->file, 0) != 0)
        status = lk_fail(err, LK_E_IO, "cannot truncate %s: %s", opts->path, strerror(errno));
    if (!status && !same) status = collect_examples(data, opts, err);
    if (status) lk_less_data_close(data);
    return status;
}

void lk_less_data_close(struct lk_less_data *data) {
    if (data->file >= 0) close(data->file);
    lk_release(data->ledger, LK_FOR_SCRATCH, data->record, data->record_bytes);
    *data = (struct lk_less_data){.file = -1};
}

/* ---- queries ---- */

enum { AFTER_CONTROL = 8 }; /* tokens */
static const float after_control_weight = 8;

int lk_less_stride(int n_ctx, int n_query) {
    int stride = n_ctx / 16 / n_query;
    return stride < 1 ? 1 : stride;
}

/* How the places of a step are used for one policy. */
struct places {
    int n_rows_only, n_query, distance;
};

/* n_query 0: the places are not enough if each takes n_between rows. */
static struct places divide_places(const struct lk_less_source *source,
                                   const struct lk_less_policy *policy, int n_place,
                                   int n_between) {
    /* Rows that query 0 misses. */
    int n_first = lk_less_policy_first(policy) - lk_less_policy_budget(policy),
        n_rows_only = n_first > 1 ? (n_first + n_between - 1) / n_between : 0,
        n_all = lk_less_data_queries(source, policy), n = n_place - n_rows_only;
    if (n > n_all) n = n_all;
    if (n < 1 || (n_all + n - 1) / n * source->stride > n_between)
        return (struct places){.distance = 1};
    return (struct places){n_place - n, n, n_all / n};
}

void lk_less_queries_size(struct lk_less_queries *q, const struct lk_less_source *source,
                          int wanted) {
    q->n_query = wanted;
    for (int i = 0; i < source->n_policy; i++) { /* no more places than queries */
        int n = lk_less_data_queries(source, &source->policy[i]);
        if (source->policy[i].prompt == 0 && q->n_query > n) q->n_query = n;
    }
    if (q->n_query < 2) q->n_query = 2;
    q->n_between = 1;
    for (int i = 0; i < source->n_policy; i++)
        while (!divide_places(source, &source->policy[i], q->n_query, q->n_between).n_query)
            q->n_between++;
}

/* Whether one of the tokens up to position pos of a sequence is a control token. */
static bool follows_control(const struct lk_less_queries *q, const int32_t *tok, int pos) {
    for (int back = 0; back <= AFTER_CONTROL && back <= pos; back++)
        if (lk_token_is_control(q->model, tok[pos - back])) return true;
    return false;
}

void lk_less_choose_queries(struct lk_less_queries *q, const struct lk_less_source *source, int seq,
                            uint64_t seed) {
    const struct lk_less_policy *policy = &source->policy[seq % source->n_policy];
    const int32_t *tok = q->tok + (size_t)seq * source->n_ctx;
    struct places p = divide_places(source, policy, q->n_query, q->n_between);
    int offset = seed ? (int)(lk_splitmix64_nth(seed, 0) % (uint64_t)p.distance) : p.distance / 2;
    for (int i = 0; i < q->n_query; i++) {
        int nth = i - p.n_rows_only;
        q->query[i] = nth < 0 ? -1 : nth * p.distance + offset;
        q->weight[i] = 1;
        if (nth < 0 || q->plain) continue;
        int pos = lk_less_policy_first(policy) + q->query[i] * source->stride;
        if (follows_control(q, tok, pos)) q->weight[i] = after_control_weight;
    }
}

/* ---- schedule ---- */

enum { LATE_HALVINGS = 6, QUARTERS = 4 };

float lk_less_epoch_rate(const struct lk_less_schedule *s, int epoch) {
    int late = 2 * epoch - s->n_epoch;
    if (s->plain) return ldexpf(s->rate, -(int)((int64_t)epoch * QUARTERS / s->n_epoch));
    return late < 0 ? s->rate
                    : ldexpf(s->rate, -(1 + (int)((int64_t)late * LATE_HALVINGS / s->n_epoch)));
}

int lk_less_batch(const struct lk_less_schedule *s) { return s->plain ? 2 : 1; }
