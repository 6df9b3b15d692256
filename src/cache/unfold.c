#include "cache/unfold.h"

/* Bytes for one head: the vectors as floats, and as kernels want them. Both multiples of 64. */
static size_t float_bytes(const struct lk_level *level, int d_head) { return ((size_t)level->d_part * d_head * sizeof(float) + 63) / 64 * 64; }

static size_t head_bytes(const struct lk_level *level, int d_head) {
    return float_bytes(level, d_head) + (lk_queries_bytes(d_head, level->d_part) + 63) / 64 * 64;
}

lk_status lk_unfold_new(struct lk_stream *stream, int i, int n_head_kv, int d_head, struct lk_ledger *ledger, lk_err *err) {
    struct lk_level *level = &stream->level[i];
    if (stream->rule[i].codec.projection != LK_LATENTS_PRE) return LK_OK;
    level->unfold = lk_alloc(ledger, LK_FOR_SCRATCH, n_head_kv * sizeof *level->unfold);
    if (level->unfold) level->unfold[0].mem = lk_alloc(ledger, LK_FOR_SCRATCH, n_head_kv * head_bytes(level, d_head));
    if (!level->unfold || !level->unfold[0].mem) return lk_fail(err, LK_E_NOMEM, "no memory to bring latents of K back");
    for (int part = 0; !stream->rule[i].codec.sigma && part < level->n_part; part++) lk_unfold_prepare(stream, i, part, d_head);
    return LK_OK;
}

void lk_unfold_free(struct lk_level *level, int n_head_kv, int d_head, struct lk_ledger *ledger) {
    if (!level->unfold) return;
    lk_release(ledger, LK_FOR_SCRATCH, level->unfold[0].mem, n_head_kv * head_bytes(level, d_head));
    lk_release(ledger, LK_FOR_SCRATCH, level->unfold, n_head_kv * sizeof *level->unfold);
    level->unfold = NULL;
}

void lk_unfold_prepare(struct lk_stream *stream, int i, int part, int d_head) {
    const struct lk_level *level = &stream->level[i];
    const struct lk_basis *basis = level->basis;
    int rank = level->d_part;
    for (int within = 0; level->unfold && within < level->n_head; within++) {
        int head = part * level->n_head + within;
        char *mem = (char *)level->unfold[0].mem + head * head_bytes(level, d_head);
        float *up = (float *)mem;
        for (int c = 0; c < d_head; c++) {
            for (int j = 0; j < rank; j++)
                up[c * rank + j] = basis->up[((size_t)part * basis->n_comp + j) * basis->width + (size_t)within * d_head + c];
            lk_codec_query(&stream->rule[i].codec, rank, lk_sigma_of(stream, i, part), up + c * rank, up + c * rank);
        }
        struct lk_queries *queries = &level->unfold[head].up;
        if (stream->rule[i].codec.coding == LK_F16) *queries = (struct lk_queries){.n_q = d_head, .d_head = rank, .q = up};
        else lk_queries_prepare(queries, up, d_head, rank, mem + float_bytes(level, d_head));
    }
}
