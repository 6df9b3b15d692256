/* Collects examples into a file, and reads them from it. */
#define _XOPEN_SOURCE 700 /* pread, pwrite */
#include "training/less_data.h"

#include "base/fnv1a.h"
#include "codec/half.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const uint64_t file_magic = 0x3230737365746b6cull; /* "lktess02" */

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

/* Offset of a part in a record with n queries and n evicted rows. For N_PART, the size of the
 * record. */
static size_t part_offset(const struct lk_less_data *data, int n, enum part part) {
    const struct lk_less_source *s = &data->source;
    size_t queries = (size_t)s->n_head * n, rows = (size_t)s->n_head_kv * n, d = (size_t)s->d_head;
    const size_t bytes[N_PART] = {
        [PART_Q] = queries * d * 2,        [PART_SPARSE] = queries * d * 2,
        [PART_RESIDUAL] = queries * d * 2, [PART_K] = rows * d * 2,
        [PART_V] = rows * d * 2,           [PART_LOG_SUM] = queries * 4,
        [PART_EVICTED_AT] = rows * 4};
    size_t at = 0;
    for (int i = 0; i < (int)part; i++) at += (bytes[i] + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return at;
}

static void *record_part(const struct lk_less_data *data, int n, enum part part) {
    return (char *)data->record + part_offset(data, n, part);
}

static const struct lk_less_policy *sequence_policy(const struct lk_less_source *s, int seq) {
    return &s->policy[seq % s->n_policy];
}

/* Number of queries, and of evicted rows, in a sequence. */
static int query_count(const struct lk_less_source *s, const struct lk_less_policy *policy) {
    return s->n_ctx - 1 - lk_less_policy_budget(policy);
}

/* pread or pwrite of all bytes. */
static bool transfer_all(int file, void *at, size_t size, uint64_t offset, bool write) {
    while (size > 0) {
        ssize_t n =
            write ? pwrite(file, at, size, (off_t)offset) : pread(file, at, size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
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
        return lk_fail(err, LK_E_IO,
                       "the file of examples is truncated; remove it and start again");
    int n = query_count(&data->source, sequence_policy(&data->source, seq));
    *out = (struct lk_less_example){.n_query = n,
                                    .n_evicted = n,
                                    .q = record_part(data, n, PART_Q),
                                    .sparse = record_part(data, n, PART_SPARSE),
                                    .residual = record_part(data, n, PART_RESIDUAL),
                                    .k = record_part(data, n, PART_K),
                                    .v = record_part(data, n, PART_V),
                                    .log_sum = record_part(data, n, PART_LOG_SUM),
                                    .evicted_at = record_part(data, n, PART_EVICTED_AT)};
    return LK_OK;
}

/* ---- collecting ---- */

/* One pass of the model over all sequences. */
struct collect_pass {
    struct lk_less_data *data;
    struct lk_model *model;
    lk_session *session;
    lk_recipe *recipe;
    uint16_t *q, *full; /* [n_layer][n_ctx][n_head][d_head] halves */
    float *out;         /* [LK_EVAL_MAX][n_head][d_head] */
    float *partial, *scratch;
    float *k, *v;               /* [n_ctx][d_head] of one head */
    float *query, *sparse;      /* [group][n_ctx][d_head] */
    float *log_sum;             /* [group][n_ctx] */
    float *score;               /* [n_ctx] */
    int32_t *evicted_at, *held; /* [n_ctx] */
};

/* One allocation of a pass. */
struct pass_buffer {
    void **at;
    size_t bytes;
};

enum { N_PASS_BUFFER = 13 };

static void list_buffers(struct collect_pass *p, struct pass_buffer buffer[N_PASS_BUFFER]) {
    const struct lk_less_source *s = &p->data->source;
    size_t n = (size_t)s->n_ctx, d = (size_t)s->d_head, group = (size_t)(s->n_head / s->n_head_kv),
           row = s->n_head * d;
    const struct pass_buffer all[N_PASS_BUFFER] = {
        {(void **)&p->q, s->n_layer * n * row * 2},
        {(void **)&p->full, s->n_layer * n * row * 2},
        {(void **)&p->out, LK_EVAL_MAX * row * 4},
        {(void **)&p->partial,
         lk_attn_partial_floats(s->n_head, s->n_head_kv, s->d_head, LK_EVAL_MAX, 1) * 4},
        {(void **)&p->scratch, lk_attn_scratch_floats(s->d_head) * 4},
        {(void **)&p->k, n * d * 4},
        {(void **)&p->v, n * d * 4},
        {(void **)&p->query, group * n * d * 4},
        {(void **)&p->sparse, group * n * d * 4},
        {(void **)&p->log_sum, group * n * 4},
        {(void **)&p->score, n * 4},
        {(void **)&p->evicted_at, n * 4},
        {(void **)&p->held, n * 4}};
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
    return status == LK_OK ? lk_session_new(&p->session, p->model, p->recipe, &opts, err) : status;
}

static void pass_close(struct collect_pass *p) {
    struct pass_buffer buffer[N_PASS_BUFFER];
    lk_session_free(p->session);
    lk_recipe_free(p->recipe);
    list_buffers(p, buffer);
    for (int i = 0; i < N_PASS_BUFFER; i++)
        lk_release(p->data->ledger, LK_FOR_SCRATCH, *buffer[i].at, buffer[i].bytes);
}

/* lk_watch callback: record the queries of one layer and the output of its attention. The output is
 * computed again, in memory of our own, because other threads compute the same at this time. */
static void record_attention(void *user, int layer, const struct lk_attn *call) {
    struct collect_pass *p = user;
    const struct lk_less_source *s = &p->data->source;
    size_t row = (size_t)s->n_head * s->d_head, n = (size_t)call->n_tok * row;
    size_t at = ((size_t)layer * s->n_ctx + (size_t)(call->k->n_tok - call->n_tok)) * row;
    struct lk_attn attn = *call;
    attn.n_thread = 1;
    attn.out = p->out;
    attn.partial = p->partial;
    attn.scratch = p->scratch;
    lk_attn_items(&attn, 0, 1);
    lk_attn_combine(&attn, lk_attn_ranges(&attn, attn.k, attn.v), 0, 1);
    for (size_t i = 0; i < n; i++) {
        p->q[at + i] = lk_f32_to_f16(call->q[i]);
        p->full[at + i] = lk_f32_to_f16(p->out[i]);
    }
}

static void write_halves(uint16_t *to, const float *from, int n) {
    for (int i = 0; i < n; i++) to[i] = lk_f32_to_f16(from[i]);
}

/* Write the simulated KV head to the record. */
static void record_head(const struct collect_pass *p, int layer, int head, int group, int n_query) {
    const struct lk_less_data *data = p->data;
    const struct lk_less_source *s = &data->source;
    int d = s->d_head, first = s->n_ctx - n_query;
    for (int h = 0; h < group; h++) {
        size_t to = (size_t)(head * group + h) * n_query;
        for (int i = 0; i < n_query; i++) {
            const float *query = p->query + ((size_t)h * s->n_ctx + first + i) * d,
                        *sparse = p->sparse + ((size_t)h * s->n_ctx + first + i) * d;
            const uint16_t *full =
                p->full +
                (((size_t)layer * s->n_ctx + first + i) * s->n_head + head * group + h) * d;
            uint16_t *residual =
                (uint16_t *)record_part(data, n_query, PART_RESIDUAL) + (to + i) * d;
            write_halves((uint16_t *)record_part(data, n_query, PART_Q) + (to + i) * d, query, d);
            write_halves((uint16_t *)record_part(data, n_query, PART_SPARSE) + (to + i) * d, sparse,
                         d);
            for (int c = 0; c < d; c++)
                residual[c] = lk_f32_to_f16(sparse[c] - lk_f16_to_f32(full[c]));
        }
        memcpy((float *)record_part(data, n_query, PART_LOG_SUM) + to,
               p->log_sum + (size_t)h * s->n_ctx + first, (size_t)n_query * sizeof(float));
    }
    for (int row = 0; row < s->n_ctx; row++) { /* one row is evicted after each step */
        if (p->evicted_at[row] == s->n_ctx) continue;
        size_t to = (size_t)head * n_query + (p->evicted_at[row] - first);
        write_halves((uint16_t *)record_part(data, n_query, PART_K) + to * d,
                     p->k + (size_t)row * d, d);
        write_halves((uint16_t *)record_part(data, n_query, PART_V) + to * d,
                     p->v + (size_t)row * d, d);
        ((int32_t *)record_part(data, n_query, PART_EVICTED_AT))[to] = p->evicted_at[row] - first;
    }
}

static void record_layer(struct collect_pass *p, int layer, const struct lk_less_policy *policy) {
    const struct lk_less_source *s = &p->data->source;
    int d = s->d_head, group = s->n_head / s->n_head_kv, n = s->n_ctx;
    const struct lk_kv *kv = p->session->cache->kv[layer];
    for (int head = 0; head < s->n_head_kv; head++) {
        lk_kv_read_positions(&kv[LK_K], 0, n, head, &lk_kernels_reference, p->k, d);
        lk_kv_read_positions(&kv[LK_V], 0, n, head, &lk_kernels_reference, p->v, d);
        for (int h = 0; h < group; h++)
            for (int pos = 0; pos < n; pos++)
                for (int c = 0; c < d; c++)
                    p->query[((size_t)h * n + pos) * d + c] = lk_f16_to_f32(
                        p->q[(((size_t)layer * n + pos) * s->n_head + head * group + h) * d + c]);
        struct lk_less_head simulated = {.n_tok = n,
                                         .group = group,
                                         .d_head = d,
                                         .scale = p->model->net->hp.attn_scale,
                                         .q = p->query,
                                         .k = p->k,
                                         .v = p->v};
        lk_less_simulate(policy, &simulated, p->evicted_at, p->sparse, p->log_sum, p->score,
                         p->held);
        record_head(p, layer, head, group, query_count(s, policy));
    }
}

static lk_status eval_sequence(struct collect_pass *p, const int32_t *tok, lk_err *err) {
    lk_session_clear(p->session);
    p->session->watch = (struct lk_watch){record_attention, p};
    lk_status status = LK_OK;
    int n_ctx = p->data->source.n_ctx;
    for (int at = 0; status == LK_OK && at < n_ctx; at += LK_EVAL_MAX)
        status = lk_session_eval(p->session, tok + at,
                                 (size_t)(n_ctx - at < LK_EVAL_MAX ? n_ctx - at : LK_EVAL_MAX),
                                 false, err);
    return status;
}

static lk_status collect_examples(struct lk_less_data *data, const struct lk_less_data_opts *opts,
                                  lk_err *err) {
    const struct lk_less_source *s = &data->source;
    struct collect_pass p = {.data = data, .model = opts->model};
    lk_status status = pass_open(&p, err);
    for (int seq = 0; status == LK_OK && seq < s->n_seq; seq++) {
        status = eval_sequence(&p, opts->tok + (size_t)seq * s->n_ctx, err);
        for (int layer = 0; status == LK_OK && layer < s->n_layer; layer++) {
            record_layer(&p, layer, sequence_policy(s, seq));
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
    if (status == LK_OK &&
        (!transfer_all(data->file, &header, sizeof header, 0, true) || fsync(data->file) != 0))
        status = lk_fail(err, LK_E_IO, "cannot write the file of examples: %s", strerror(errno));
    return status;
}

/* ---- opening ---- */

static lk_status check_source(const struct lk_less_source *s, const struct lk_hparams *hp,
                              lk_err *err) {
    int budget = 0;
    for (int i = 0; i < s->n_policy; i++) {
        int n = lk_less_policy_budget(&s->policy[i]);
        budget = n > budget ? n : budget;
    }
    if (hp->n_swa > 0 || hp->alibi_max_bias > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "LESS does not support %s: the weight of an evicted row would depend on its "
                       "distance",
                       hp->n_swa > 0 ? "sliding windows" : "ALiBi");
    if (s->n_ctx < budget + 8)
        return lk_fail(err, LK_E_ARG,
                       "sequences of %d tokens are too short for a budget of %d: hardly a row is "
                       "evicted; make them longer",
                       s->n_ctx, budget);
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
    }
}

lk_status lk_less_data_open(struct lk_less_data *data, const struct lk_less_data_opts *opts,
                            lk_err *err) {
    *data = (struct lk_less_data){.ledger = opts->ledger, .file = -1};
    struct lk_less_source *s = &data->source, found;
    memset(s, 0, sizeof *s);
    set_source(s, opts);
    lk_status status = check_source(s, &opts->model->net->hp, err);
    if (status != LK_OK) return status;
    data->min_queries = opts->n_ctx;
    for (int i = 0; i < opts->n_policy; i++) {
        int n = query_count(s, &opts->policy[i]);
        if (n < data->min_queries) data->min_queries = n;
        if (n > data->max_queries) data->max_queries = n;
    }
    data->record_bytes = part_offset(data, data->max_queries, N_PART);
    data->record = lk_alloc(opts->ledger, LK_FOR_SCRATCH, data->record_bytes);
    if (!data->record)
        return lk_fail(err, LK_E_NOMEM, "no memory for an example of %zu bytes",
                       data->record_bytes);
    data->file = open(opts->path, O_RDWR | O_CREAT, 0644);
    if (data->file < 0)
        status = lk_fail(err, LK_E_IO, "cannot open %s: %s", opts->path, strerror(errno));
    bool same = status == LK_OK && transfer_all(data->file, &found, sizeof found, 0, false) &&
                memcmp(&found, s, sizeof found) == 0;
    if (status == LK_OK && !same && ftruncate(data->file, 0) != 0)
        status = lk_fail(err, LK_E_IO, "cannot truncate %s: %s", opts->path, strerror(errno));
    if (status == LK_OK && !same) status = collect_examples(data, opts, err);
    if (status != LK_OK) lk_less_data_close(data);
    return status;
}

void lk_less_data_close(struct lk_less_data *data) {
    if (data->file >= 0) close(data->file);
    lk_release(data->ledger, LK_FOR_SCRATCH, data->record, data->record_bytes);
    *data = (struct lk_less_data){.file = -1};
}
