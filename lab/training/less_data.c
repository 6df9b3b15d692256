#define _XOPEN_SOURCE 700 /* pread, pwrite */
#include "training/less_data.h"

#include "codec/half.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const uint64_t magic = 0x3230737365746b6cull; /* "lktess02" */

enum { HEADER = 4096, ALIGN = 64 };

/* ---- the file ---- */

enum part { PART_Q, PART_SPARSE, PART_RESIDUAL, PART_K, PART_V, PART_LOG_SUM, PART_GONE, N_PART };

/* Offset of a part in a record with n queries and rows; of N_PART, the record's size. */
static size_t offset_of(const struct lk_less_data *data, int n, enum part part) {
    const struct lk_less_source *s = &data->source;
    size_t queries = (size_t)s->n_head * n, rows = (size_t)s->n_head_kv * n, d = (size_t)s->d_head;
    const size_t bytes[N_PART] = {[PART_Q] = queries * d * 2,
                                  [PART_SPARSE] = queries * d * 2,
                                  [PART_RESIDUAL] = queries * d * 2,
                                  [PART_K] = rows * d * 2,
                                  [PART_V] = rows * d * 2,
                                  [PART_LOG_SUM] = queries * 4,
                                  [PART_GONE] = rows * 4};
    size_t at = 0;
    for (int i = 0; i < (int)part; i++) at += (bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static void *part_of(const struct lk_less_data *data, int n, enum part part) {
    return (char *)data->record + offset_of(data, n, part);
}

static const struct lk_less_policy *policy_of(const struct lk_less_source *s, int seq) {
    return &s->policy[seq % s->n_policy];
}

static int budget_of(const struct lk_less_policy *policy) {
    return policy->sink + policy->keep + policy->window;
}

/* Queries, and rows that go, of a sequence. */
static int queries_of(const struct lk_less_source *s, const struct lk_less_policy *policy) {
    return s->n_ctx - 1 - budget_of(policy);
}

static bool transfer(int file, void *at, size_t size, uint64_t offset, bool write) {
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

static uint64_t record_at(const struct lk_less_data *data, int layer, int seq) {
    return HEADER + ((uint64_t)layer * data->source.n_seq + seq) * data->record_bytes;
}

lk_status lk_less_data_read(struct lk_less_data *data, int layer, int seq,
                            struct lk_less_example *out, lk_err *err) {
    if (!transfer(data->file, data->record, data->record_bytes, record_at(data, layer, seq), false))
        return lk_fail(err, LK_E_IO, "the file of examples ends early; remove it and begin again");
    int n = queries_of(&data->source, policy_of(&data->source, seq));
    *out = (struct lk_less_example){.n_query = n,
                                    .n_gone = n,
                                    .q = part_of(data, n, PART_Q),
                                    .sparse = part_of(data, n, PART_SPARSE),
                                    .residual = part_of(data, n, PART_RESIDUAL),
                                    .k = part_of(data, n, PART_K),
                                    .v = part_of(data, n, PART_V),
                                    .log_sum = part_of(data, n, PART_LOG_SUM),
                                    .gone = part_of(data, n, PART_GONE)};
    return LK_OK;
}

/* ---- collecting ---- */

/* One pass of the model. */
struct pass {
    struct lk_less_data *data;
    struct lk_model *model;
    lk_session *session;
    lk_recipe *recipe;
    uint16_t *q, *full; /* [n_layer][n_ctx][n_head][d_head] halves */
    float *out;         /* [LK_EVAL_MAX][n_head][d_head] */
    float *partial, *scratch;
    float *k, *v;          /* [n_ctx][d_head] of one head */
    float *query, *sparse; /* [group][n_ctx][d_head] */
    float *log_sum;        /* [group][n_ctx] */
    float *score;          /* [n_ctx] */
    int32_t *gone, *held;  /* [n_ctx] */
};

struct piece {
    void **at;
    size_t bytes;
};

/* What the pass needs; returns the number of pieces. */
static int list_pieces(struct pass *p, struct piece piece[14]) {
    const struct lk_less_source *s = &p->data->source;
    size_t n = (size_t)s->n_ctx, d = (size_t)s->d_head, group = (size_t)(s->n_head / s->n_head_kv),
           row = s->n_head * d;
    const struct piece all[] = {
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
        {(void **)&p->gone, n * 4},
        {(void **)&p->held, n * 4}};
    memcpy(piece, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static void pass_end(struct pass *p) {
    struct piece piece[14];
    lk_session_free(p->session);
    lk_recipe_free(p->recipe);
    for (int i = 0, n = list_pieces(p, piece); i < n; i++)
        lk_release(p->data->ledger, LK_FOR_SCRATCH, *piece[i].at, piece[i].bytes);
}

static lk_status pass_begin(struct pass *p, lk_err *err) {
    struct piece piece[14];
    size_t bytes = 0;
    bool ok = true;
    for (int i = 0, n = list_pieces(p, piece); ok && i < n; i++) {
        ok = (*piece[i].at = lk_alloc(p->data->ledger, LK_FOR_SCRATCH, piece[i].bytes)) != NULL;
        bytes += piece[i].bytes;
    }
    if (!ok)
        return lk_fail(err, LK_E_NOMEM, "no memory to collect examples (%.0f MiB)",
                       (double)bytes / (1 << 20));
    lk_status status = lk_recipe_parse(&p->recipe, "f16", err);
    lk_session_opts opts = {.n_ctx = p->data->source.n_ctx};
    return status == LK_OK ? lk_session_new(&p->session, p->model, p->recipe, &opts, err) : status;
}

/* A layer's call of attention: its queries and, by memory of our own beside the threads that compute the
 * same, its output. */
static void see(void *user, int layer, const struct lk_attn *call) {
    struct pass *p = user;
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
        p->q[at + i] = lk_half(call->q[i]);
        p->full[at + i] = lk_half(p->out[i]);
    }
}

/* All rows of one head of an exact stream into x [n_ctx][d_head]. */
static void read_rows(const struct lk_kv *kv, int head, int d_head, float *x) {
    for (int level = 0; level < kv->n_level; level++) {
        const struct lk_level_rule *rule = &kv->rule[level];
        int64_t n;
        for (int64_t at = 0; at < kv->fill[level].rows; at += n, x += n * d_head) {
            int row;
            const char *block = lk_cache_locate(kv, level, at, &row, &n);
            lk_codec_decode(&rule->codec, kv->side, d_head, rule->block_rows, NULL,
                            block + head * kv->level[level].head_bytes, row, (int)n, x, d_head);
        }
    }
}

static void put_halves(uint16_t *to, const float *from, int n) {
    for (int i = 0; i < n; i++) to[i] = lk_half(from[i]);
}

/* The simulated head's part of the record. */
static void record_head(const struct pass *p, int layer, int head, int group, int n_query) {
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
            uint16_t *residual = (uint16_t *)part_of(data, n_query, PART_RESIDUAL) + (to + i) * d;
            put_halves((uint16_t *)part_of(data, n_query, PART_Q) + (to + i) * d, query, d);
            put_halves((uint16_t *)part_of(data, n_query, PART_SPARSE) + (to + i) * d, sparse, d);
            for (int c = 0; c < d; c++) residual[c] = lk_half(sparse[c] - lk_unhalf(full[c]));
        }
        memcpy((float *)part_of(data, n_query, PART_LOG_SUM) + to,
               p->log_sum + (size_t)h * s->n_ctx + first, (size_t)n_query * sizeof(float));
    }
    for (int row = 0; row < s->n_ctx; row++) { /* one row goes after each step */
        if (p->gone[row] == s->n_ctx) continue;
        size_t to = (size_t)head * n_query + (p->gone[row] - first);
        put_halves((uint16_t *)part_of(data, n_query, PART_K) + to * d, p->k + (size_t)row * d, d);
        put_halves((uint16_t *)part_of(data, n_query, PART_V) + to * d, p->v + (size_t)row * d, d);
        ((int32_t *)part_of(data, n_query, PART_GONE))[to] = p->gone[row] - first;
    }
}

static void record_layer(struct pass *p, int layer, const struct lk_less_policy *policy) {
    const struct lk_less_source *s = &p->data->source;
    int d = s->d_head, group = s->n_head / s->n_head_kv, n = s->n_ctx;
    const struct lk_kv *kv = p->session->cache->kv[layer];
    for (int head = 0; head < s->n_head_kv; head++) {
        read_rows(&kv[LK_K], head, d, p->k);
        read_rows(&kv[LK_V], head, d, p->v);
        for (int h = 0; h < group; h++)
            for (int pos = 0; pos < n; pos++)
                for (int c = 0; c < d; c++)
                    p->query[((size_t)h * n + pos) * d + c] = lk_unhalf(
                        p->q[(((size_t)layer * n + pos) * s->n_head + head * group + h) * d + c]);
        struct lk_less_head of = {.n_tok = n,
                                  .group = group,
                                  .d_head = d,
                                  .scale = p->model->net->hp.attn_scale,
                                  .q = p->query,
                                  .k = p->k,
                                  .v = p->v};
        lk_less_simulate(policy, &of, p->gone, p->sparse, p->log_sum, p->score, p->held);
        record_head(p, layer, head, group, queries_of(s, policy));
    }
}

static lk_status read_sequence(struct pass *p, const int32_t *tok, lk_err *err) {
    lk_session_clear(p->session);
    p->session->watch = (struct lk_watch){see, p};
    lk_status status = LK_OK;
    int n_ctx = p->data->source.n_ctx;
    for (int at = 0; status == LK_OK && at < n_ctx; at += LK_EVAL_MAX)
        status = lk_session_eval(p->session, tok + at,
                                 (size_t)(n_ctx - at < LK_EVAL_MAX ? n_ctx - at : LK_EVAL_MAX),
                                 false, err);
    return status;
}

static lk_status collect(struct lk_less_data *data, struct lk_model *model, const int32_t *tok,
                         lk_progress progress, void *user, lk_err *err) {
    const struct lk_less_source *s = &data->source;
    struct pass p = {.data = data, .model = model};
    lk_status status = pass_begin(&p, err);
    for (int seq = 0; status == LK_OK && seq < s->n_seq; seq++) {
        status = read_sequence(&p, tok + (size_t)seq * s->n_ctx, err);
        for (int layer = 0; status == LK_OK && layer < s->n_layer; layer++) {
            record_layer(&p, layer, policy_of(s, seq));
            if (!transfer(data->file, data->record, data->record_bytes, record_at(data, layer, seq),
                          true))
                status =
                    lk_fail(err, LK_E_IO, "cannot write the file of examples: %s", strerror(errno));
            else if (progress && !progress(user, (uint64_t)seq * s->n_layer + layer + 1,
                                           (uint64_t)s->n_seq * s->n_layer))
                status =
                    lk_fail(err, LK_E_CANCELLED,
                            "cancelled after %d of %d sequences; the same command begins again",
                            seq, s->n_seq);
        }
    }
    pass_end(&p);
    struct lk_less_source header = *s; /* the header comes last: a file that has one is whole */
    if (status == LK_OK &&
        (!transfer(data->file, &header, sizeof header, 0, true) || fsync(data->file) != 0))
        status = lk_fail(err, LK_E_IO, "cannot write the file of examples: %s", strerror(errno));
    return status;
}

/* FNV-1a. */
static uint64_t hash_of(const void *bytes, size_t n) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
    return hash;
}

static lk_status check(const struct lk_less_source *s, const struct lk_hparams *hp, lk_err *err) {
    int budget = 0;
    for (int i = 0; i < s->n_policy; i++)
        budget = budget_of(&s->policy[i]) > budget ? budget_of(&s->policy[i]) : budget;
    if (hp->n_swa > 0 || hp->alibi_max_bias > 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "LESS is not possible with %s: what a dropped row weighs would depend on its distance",
            hp->n_swa > 0 ? "sliding windows" : "ALiBi");
    if (s->n_ctx < budget + 8)
        return lk_fail(
            err, LK_E_ARG,
            "in sequences of %d tokens a budget of %d lets hardly a row go; make them longer",
            s->n_ctx, budget);
    if (s->n_seq < 2)
        return lk_fail(err, LK_E_ARG,
                       "the text has %d sequences of %d tokens; at least 2 are needed", s->n_seq,
                       s->n_ctx);
    return LK_OK;
}

lk_status lk_less_data_open(struct lk_less_data *data, const char *path, struct lk_model *model,
                            const struct lk_less_policy *policy, int n_policy, const int32_t *tok,
                            int n_seq, int n_ctx, lk_progress progress, void *user,
                            struct lk_ledger *ledger, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    *data = (struct lk_less_data){.ledger = ledger, .file = -1};
    /* padding too, and fields by themselves below: sources are compared as bytes */
    memset(&data->source, 0, sizeof data->source);
    struct lk_less_source *s = &data->source;
    s->magic = magic;
    s->fingerprint = model->net->fingerprint;
    s->hash = hash_of(tok, (size_t)n_seq * n_ctx * sizeof *tok);
    s->n_layer = hp->n_layer, s->n_head = hp->n_head, s->n_head_kv = hp->n_head_kv,
    s->d_head = hp->d_head;
    s->n_ctx = n_ctx, s->n_seq = n_seq;
    s->n_policy = n_policy;
    for (int i = 0; i < n_policy; i++) {
        const struct lk_policy *rule = &policy[i].rule;
        s->policy[i].rule.keep = rule->keep, s->policy[i].rule.mean = rule->mean,
        s->policy[i].rule.apart = rule->apart, s->policy[i].rule.salt = rule->salt;
        s->policy[i].sink = policy[i].sink, s->policy[i].keep = policy[i].keep,
        s->policy[i].window = policy[i].window;
    }
    lk_status status = check(s, hp, err);
    if (status != LK_OK) return status;
    data->n_least = n_ctx;
    for (int i = 0; i < n_policy; i++) {
        int n = queries_of(s, &policy[i]);
        if (n < data->n_least) data->n_least = n;
        if (n > data->n_most) data->n_most = n;
    }
    data->record_bytes = offset_of(data, data->n_most, N_PART);
    data->record = lk_alloc(ledger, LK_FOR_SCRATCH, data->record_bytes);
    if (!data->record)
        return lk_fail(err, LK_E_NOMEM, "no memory for an example of %zu bytes",
                       data->record_bytes);
    data->file = open(path, O_RDWR | O_CREAT, 0644);
    if (data->file < 0) status = lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    struct lk_less_source there;
    bool same = status == LK_OK && transfer(data->file, &there, sizeof there, 0, false) &&
                memcmp(&there, s, sizeof there) == 0;
    if (status == LK_OK && !same && ftruncate(data->file, 0) != 0)
        status = lk_fail(err, LK_E_IO, "cannot empty %s: %s", path, strerror(errno));
    if (status == LK_OK && !same) status = collect(data, model, tok, progress, user, err);
    if (status != LK_OK) lk_less_data_close(data);
    return status;
}

void lk_less_data_close(struct lk_less_data *data) {
    if (data->file >= 0) close(data->file);
    lk_release(data->ledger, LK_FOR_SCRATCH, data->record, data->record_bytes);
    *data = (struct lk_less_data){.file = -1};
}
