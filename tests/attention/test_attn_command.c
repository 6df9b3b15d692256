/* Commands of attention describe the call: what they say, computed plainly, is what the CPU's
 * kernels compute. tests/cuda has the kernels that execute them. */
#include "attention/attn_command.h"
#include "attention/attn_item.h"
#include "codec/rot.h"
#include "test.h"

struct setup {
    const char *recipe;
    int n_head, n_head_kv, d_head, n_swa;
    float alibi;
    bool rope;
};

static const struct setup setups[] = {
    {"all: f16", 9, 3, 64, 0, 0, false},
    {"sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8", 8, 2, 128, 0, 0, false},
    {"sink 16: f16; body: int8; window 100: f16", 8, 1, 128, 0, 8, false},
    {"body: kivi2; residual 128: f16", 6, 2, 64, 0, 0, false},
    {"sink 5: f16; body: kivi4(g64); recent 10%: rot8; window 33: f16", 4, 4, 128, 0, 8, false},
    {"sink 4: f16; body: rot4; window 40: f16", 4, 1, 256, 75, 0, false},
    {"body: k=rot2(trellis) v=rot1(trellis); window 5%: rot6", 5, 5, 80, 0, 0, false},
    {"sink 4(shift): f16; body: none; window 100: f16", 9, 3, 64, 0, 8, true},
    {"all: k=asym3(hadamard) v=asym4(g32)", 6, 2, 64, 75, 8, false},
    {"keep 90 by h2o: k=rot5 v=rot4; recent 50: rot6; window 33: f16", 4, 2, 80, 0, 0, false},
    {"body: rot4; heads 1: k=rot5 v=rot3; window 32: rot8", 4, 2, 64, 0, 0, false},
};

struct fixture {
    struct lk_ledger ledger;
    struct lk_cache *cache;
    lk_recipe *recipe;
    struct lk_rope rope[2];
    uint8_t is_swa;
};

static void open_cache(struct fixture *f, const struct setup *setup) {
    *f = (struct fixture){.is_swa = setup->n_swa > 0};
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = setup->n_head_kv,
                                   .d_head = setup->d_head,
                                   .n_swa = setup->n_swa,
                                   .is_swa = &f->is_swa};
    double speed[LK_MAX_PAIR];
    for (int i = 0; i < setup->d_head / 2; i++) speed[i] = pow(1e4, -2.0 * i / setup->d_head);
    for (int i = 0; i < 2; i++) lk_rope_init(&f->rope[i], setup->d_head / 2, true, 1, speed);
    if (setup->rope) shape.rope = f->rope;
    lk_err err = {0};
    if (lk_recipe_parse(&f->recipe, setup->recipe, &err) ||
        lk_cache_new(&f->cache, f->recipe, &shape, &f->ledger, &err))
        fail_msg("%s: %s", setup->recipe, err.msg);
}

/* Append random rows in portions; the last n_tok are not aged. */
static void append_rows(struct lk_cache *cache, int n_rows, int n_tok, struct random *r) {
    int width = cache->shape.n_head_kv * cache->shape.d_head;
    float *x = malloc((size_t)64 * width * sizeof *x);
    for (int at = 0; at < n_rows;) {
        int n = at + n_tok < n_rows ? random_int(r, 1, 60) : n_tok;
        if (at < n_rows - n_tok && n > n_rows - n_tok - at) n = n_rows - n_tok - at;
        at += n;
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < n * width; i++) x[i] = random_gauss(r);
            assert_int_equal(lk_cache_append(cache, 0, side, x, n, NULL), LK_OK);
            if (at < n_rows) assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
        }
        const struct lk_evict *evict = &cache->evict[0];
        for (int64_t i = 0; evict->needs_scores && i < evict->n * evict->n_head; i++)
            evict->score[i] += random_uniform(r);
    }
    free(x);
}

/* ---- a command, computed plainly ---- */

static struct lk_codec codec_of(const struct lk_device_coding *c, int d) {
    return (struct lk_codec){.coding = c->coding,
                             .bits = c->bits,
                             .group = c->coding == LK_ASYM && c->group == d ? 0 : c->group,
                             .mean = c->mean,
                             .sigma = c->sigma,
                             .lloyd = c->coding == LK_ROT && c->book == LK_DEVICE_LLOYD,
                             .trellis = c->coding == LK_ROT && c->book == LK_DEVICE_TRELLIS,
                             .hadamard = c->coding == LK_ASYM && c->rotated};
}

/* Row i of a segment, of one head. */
static void read_row(const struct lk_device_rows *rows, enum lk_side side, int i, int head, int d,
                     uint64_t sigma, float *x) {
    struct lk_device_coding c = rows->coding;
    c.offset += (uint32_t)head * c.next;
    if (rows->part) c = ((const struct lk_device_coding *)rows->part)[head];
    struct lk_codec codec = codec_of(&c, d);
    const uint64_t *table = (const uint64_t *)rows->table;
    uint32_t row = rows->first + (uint32_t)i;
    const char *block = (const char *)table[row / c.block_rows] + c.offset;
    struct lk_part part = {.codec = &codec,
                           .side = side,
                           .d_head = d,
                           .block_rows = (int)c.block_rows,
                           .sigma = c.sigma ? (const float *)sigma + (size_t)head * d : NULL};
    lk_codec_decode(&part, block, (int)(row % c.block_rows), 1, x, (size_t)d);
}

static void compute(const struct lk_device_attend *a, int t, int head, float *out) {
    int d = a->d_head, h = head / (a->n_head / a->n_head_kv);
    float k[LK_DEVICE_MAX_HEAD], v[LK_DEVICE_MAX_HEAD];
    double acc[LK_DEVICE_MAX_HEAD] = {0}, max = -INFINITY, sum = 0;
    size_t row = (size_t)t * a->n_head + head;
    for (int s = 0; s < a->n_segment; s++) {
        const struct lk_device_segment *g = &a->segment[s];
        const float *q = (const float *)(g->shifted ? a->q_shifted : a->q) + row * d;
        for (int i = 0; i < g->n_row; i++) {
            if (i > g->before + t || (a->window && i <= g->before + t - a->window)) continue;
            double score = 0;
            read_row(&g->k, LK_K, i, h, d, a->k_sigma, k);
            read_row(&g->v, LK_V, i, h, d, a->v_sigma, v);
            for (int c = 0; c < d; c++) score += (double)q[c] * k[c];
            score *= a->scale;
            if (a->softcap > 0) score = a->softcap * tanh(score / a->softcap);
            if (a->slope) score -= ((const float *)a->slope)[head] * (double)(g->distance + t - i);
            double joint = fmax(max, score), old = exp(max - joint), p = exp(score - joint);
            for (int c = 0; c < d; c++) acc[c] = acc[c] * old + p * v[c];
            max = joint, sum = sum * old + p;
        }
    }
    for (int c = 0; c < d; c++) out[row * d + c] = (float)(acc[c] / sum);
}

/* ---- addresses, as if the host were the device ---- */

struct tables {
    uint64_t *table[2][LK_MAX_KV_LEVEL];
    struct lk_device_coding *part[2][LK_MAX_KV_LEVEL];
    float slope[16];
};

static void find_addresses(const struct lk_attn *attn, struct tables *t,
                           struct lk_attn_addresses *at) {
    *at = (struct lk_attn_addresses){.levels = (uint64_t)lk_trellis_table};
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = side == LK_K ? attn->k : attn->v;
        at->sigma[side] = (uint64_t)kv->equalizer[0].sigma;
        for (int l = 0; l < kv->n_level; l++) {
            const struct lk_level *level = &kv->level[l];
            uint64_t *table = calloc((size_t)level->n_block + 1, sizeof *table);
            for (int64_t b = 0; b < level->n_block; b++) table[b] = (uint64_t)lk_kv_block(kv, l, b);
            t->table[side][l] = table;
            at->table[side][l] = (uint64_t)table;
            t->part[side][l] = NULL;
            if (!lk_attn_mixes_codecs(kv, l)) continue;
            t->part[side][l] = calloc((size_t)level->n_part, sizeof *t->part[side][l]);
            lk_attn_codings(kv, l, t->part[side][l]);
            at->part[side][l] = (uint64_t)t->part[side][l];
        }
    }
    for (int h = 0; h < attn->n_head; h++)
        t->slope[h] = lk_alibi_slope(h, attn->n_head, attn->alibi_max_bias);
    at->slope = (uint64_t)t->slope;
}

static void check_call(struct lk_attn *attn, const struct setup *setup, int n_rows) {
    size_t n = (size_t)attn->n_tok * attn->n_head * attn->d_head;
    float *shifted = malloc(n * sizeof *shifted), *out = malloc(n * sizeof *out);
    struct tables t;
    struct lk_attn_addresses at;
    struct lk_device_attend command;
    assert_null(lk_attn_refused(attn));
    find_addresses(attn, &t, &at);
    at.q = (uint64_t)attn->q, at.q_shifted = (uint64_t)shifted, at.out = (uint64_t)out;
    lk_attn_shift_queries(attn, attn->q, shifted);
    lk_attn_command(attn, &at, &command);
    for (int i = 0; i < attn->n_tok; i++)
        for (int h = 0; h < attn->n_head; h++) compute(&command, i, h, out);
    lk_attn_items(attn, 0, 1);
    lk_attn_combine(attn, lk_attn_ranges(attn, attn->k, attn->v), 0, 1);
    double e = nmse(out, attn->out, n);
    if (!(e <= 1e-9)) fail_msg("%s, %d rows: nmse %g", setup->recipe, n_rows, e);
    for (int side = 0; side < 2; side++)
        for (int l = 0; l < (side == LK_K ? attn->k : attn->v)->n_level; l++)
            free(t.table[side][l]), free(t.part[side][l]);
    free(shifted), free(out);
}

static void check_setup(const struct setup *setup, int n_rows, int n_tok) {
    struct random r = {(uint64_t)n_rows};
    static struct fixture f;
    open_cache(&f, setup);
    append_rows(f.cache, n_rows, n_tok, &r);
    size_t n = (size_t)n_tok * setup->n_head * setup->d_head;
    float *q = malloc(n * sizeof *q), *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) q[i] = random_gauss(&r);
    struct lk_attn a = {.k = &f.cache->kv[0][LK_K],
                        .v = &f.cache->kv[0][LK_V],
                        .kernels = &lk_kernels_reference,
                        .n_head = setup->n_head,
                        .n_head_kv = setup->n_head_kv,
                        .d_head = setup->d_head,
                        .n_tok = n_tok,
                        .n_thread = 1,
                        .scale = 1 / sqrtf((float)setup->d_head),
                        .alibi_max_bias = setup->alibi,
                        .rope = setup->rope ? &f.rope[0] : NULL,
                        .q = q,
                        .out = out};
    struct lk_cache_widths room = lk_cache_max_widths(f.cache);
    a.partial =
        malloc(lk_attn_partial_floats(a.n_head, a.n_head_kv, a.d_head, n_tok, 1) * sizeof(float));
    a.scratch = aligned_alloc(64, lk_attn_scratch_floats(room.part) * sizeof(float));
    check_call(&a, setup, n_rows);
    a.softcap = 2;
    check_call(&a, setup, n_rows);
    free(a.partial), free(a.scratch), free(q), free(out);
    lk_cache_free(f.cache);
    lk_recipe_free(f.recipe);
}

static void commands_describe_calls(void **state) {
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        check_setup(&setups[i], 1, 1);
        check_setup(&setups[i], 40, 3);
        check_setup(&setups[i], 470, 1);
        check_setup(&setups[i], case_runs(i) ? 901 : 260, 2);
    }
}

static void refusals(void **state) {
    const struct setup mixed = {
        "body: rot4(sigma); window 32: k=rot8(nosigma) v=f16", 2, 1, 64, 0, 0, false};
    static struct fixture f;
    open_cache(&f, &mixed);
    struct lk_attn a = {.k = &f.cache->kv[0][LK_K], .v = &f.cache->kv[0][LK_V], .n_tok = 1};
    assert_non_null(strstr(lk_attn_refused(&a), "sigma"));
    lk_cache_free(f.cache);
    lk_recipe_free(f.recipe);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(commands_describe_calls),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
