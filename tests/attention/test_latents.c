/* Levels of latents hold the projected rows, at any rank and however the rows got into the
 * cache. */
#include "attention/attention.h"
#include "cache/equalizer.h"
#include "cache/latent_levels.h"
#include "cache/project.h"
#include "support_basis.h"
#include "support_kv.h"
#include "test.h"

enum {
    N_LAYER = 2,
    N_HEAD = 8,
    N_HEAD_KV = 4,
    D_HEAD = 32,
    WIDTH = N_HEAD_KV * D_HEAD,
    N_EMBD = 96
};

/* Bases of all layers, and the table of them for lk_cache_shape. */
struct bases {
    struct lk_basis basis[LK_N_BASIS][N_LAYER];
    const struct lk_basis *table[LK_N_BASIS];
};

/* Groups of `group` heads with n_comp components; `rank` is the recommended rank. */
static void make_bases(struct bases *b, struct random *r, int group, int n_comp, int rank, int skew,
                       int mean) {
    for (int which = 0; which < LK_N_BASIS; which++) {
        for (int layer = 0; layer < N_LAYER; layer++)
            b->basis[which][layer] =
                random_basis(r, N_HEAD_KV / group, group * D_HEAD, n_comp, rank, skew, mean);
        b->table[which] = b->basis[which];
    }
}

static void free_bases(struct bases *b) {
    for (int which = 0; which < LK_N_BASIS; which++)
        for (int layer = 0; layer < N_LAYER; layer++) free_basis(&b->basis[which][layer]);
}

/* The same bases with numbers of another type. Means and ranks are `from`'s. */
static void pack_bases(struct bases *to, const struct bases *from, enum lk_basis_type type) {
    *to = *from;
    for (int which = 0; which < LK_N_BASIS; which++) {
        to->table[which] = to->basis[which];
        for (int layer = 0; layer < N_LAYER; layer++) {
            struct lk_basis *b = &to->basis[which][layer];
            size_t n_row = (size_t)b->n_group * b->n_comp, n = b->width;
            for (int i = 0; i < 2 && type != LK_BASIS_F32; i++) {
                struct lk_basis_matrix *m = i ? &b->up : &b->down;
                void *numbers = malloc(lk_basis_numbers_bytes(type, n_row * n));
                float *scale = type == LK_BASIS_Q8 ? malloc(n_row * sizeof *scale) : NULL;
                lk_basis_pack(type, m->f32, n_row, n, numbers, scale);
                *m = (struct lk_basis_matrix){.any = numbers, .scale = scale};
            }
            b->type = type;
        }
    }
}

static void free_packed(struct bases *b) {
    for (int which = 0; which < LK_N_BASIS; which++)
        for (int layer = 0; layer < N_LAYER; layer++) {
            struct lk_basis *basis = &b->basis[which][layer];
            if (basis->type == LK_BASIS_F32) continue;
            free((void *)basis->down.any), free((void *)basis->down.scale);
            free((void *)basis->up.any), free((void *)basis->up.scale);
        }
}

static struct lk_cache_shape shape_of(const struct bases *b) {
    return (struct lk_cache_shape){
        .n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD, .basis = b ? b->table : NULL};
}

static lk_status open_cache(struct lk_cache **cache, lk_recipe **recipe, const char *text,
                            const struct bases *b, struct lk_ledger *ledger, lk_err *err) {
    struct lk_cache_shape shape = shape_of(b);
    if (lk_recipe_parse(recipe, text, err) != LK_OK) fail_msg("%s: %s", text, err->msg);
    lk_status status = lk_cache_new(cache, *recipe, &shape, ledger, err);
    if (status != LK_OK) lk_recipe_free(*recipe);
    return status;
}

static struct lk_cache *new_cache(lk_recipe **recipe, const char *text, const struct bases *b,
                                  struct lk_ledger *ledger) {
    struct lk_cache *cache = NULL;
    lk_err err = {0};
    if (open_cache(&cache, recipe, text, b, ledger, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    return cache;
}

static float *gaussians(struct random *r, size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(r);
    return x;
}

/* Append x [n][WIDTH] in portions and age, as in decoding. */
static void append_rows(struct lk_cache *cache, const float *x, int n, int portion) {
    for (int at = 0; at < n; at += portion)
        for (int layer = 0; layer < N_LAYER; layer++)
            for (int side = 0; side < 2; side++) {
                int here = n - at < portion ? n - at : portion;
                assert_int_equal(
                    lk_cache_append(cache, layer, side, x + (size_t)at * WIDTH, here, NULL), LK_OK);
                assert_int_equal(lk_cache_age(cache, layer, side, NULL), LK_OK);
            }
}

/* Reconstruct all rows that K or V of a layer holds: [n_tok][WIDTH], to be freed. */
static float *reconstruct_rows(const struct lk_kv *s) {
    float *out = malloc((size_t)s->n_tok * WIDTH * sizeof *out), *x = out;
    for (int level = 0; level < s->n_level; level++)
        for (int64_t at = 0; at < s->count[level].rows; at++, x += WIDTH)
            for (int h = 0; h < N_HEAD_KV; h++)
                lk_project_read_head(s, level, at, h, D_HEAD, &lk_kernels_reference,
                                     x + h * D_HEAD);
    return out;
}

/* Project a row [WIDTH] to a rank of each group and back, by the definition. */
static void project_to_ranks(const struct lk_basis *basis, const int *rank, const float *x,
                             float *out) {
    for (int g = 0; g < basis->n_group; g++) {
        const float *down = basis->down.f32 + (size_t)g * basis->n_comp * basis->width,
                    *up = basis->up.f32 + (size_t)g * basis->n_comp * basis->width;
        for (int c = 0; c < basis->width; c++)
            out[g * basis->width + c] = basis->mean ? basis->mean[g * basis->width + c] : 0;
        for (int j = 0; j < rank[g]; j++) {
            double z = 0;
            for (int c = 0; c < basis->width; c++) {
                double mean = basis->mean ? basis->mean[g * basis->width + c] : 0;
                z += down[(size_t)j * basis->width + c] * (x[g * basis->width + c] - mean);
            }
            for (int c = 0; c < basis->width; c++)
                out[g * basis->width + c] += (float)z * up[(size_t)j * basis->width + c];
        }
    }
}

static void project_and_back(const struct lk_basis *basis, int rank, const float *x, float *out) {
    int all[N_HEAD_KV];
    for (int g = 0; g < basis->n_group; g++) all[g] = rank;
    project_to_ranks(basis, all, x, out);
}

static void test_rows_are_projected(void **state) {
    static const struct {
        int group, share, rank; /* share in per cent; rank of a group */
    } row[] = {{1, 25, 8},  {1, 50, 16}, {2, 50, 32},  {2, 60, 40},
               {4, 10, 16}, {4, 63, 80}, {4, 100, 128}};
    for (size_t i = 0; i < 2 * sizeof row / sizeof *row; i++) {
        int group = row[i / 2].group, odd = i % 2, n = 200;
        struct random r = {i};
        struct bases b;
        make_bases(&b, &r, group, group * D_HEAD, 8, odd, odd);
        char text[64];
        snprintf(text, sizeof text, "sink 3: latent%d%%; body: latent%d%%; window 20: f16",
                 row[i / 2].share, row[i / 2].share);
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(&recipe, text, &b, &ledger);
        float *x = gaussians(&r, (size_t)n * WIDTH),
              *expect = malloc((size_t)n * WIDTH * sizeof *expect);
        append_rows(cache, x, n, 7);
        for (int side = 0; side < 2; side++) {
            struct lk_kv *s = &cache->kv[1][side];
            assert_int_equal(s->level[1].d_part, row[i / 2].rank);
            assert_int_equal(s->level[1].n_part * group, N_HEAD_KV);
            int64_t projected = s->count[0].rows + s->count[1].rows;
            assert_true(projected > 130);
            for (int t = 0; t < n; t++) {
                if (t < projected)
                    project_and_back(&b.basis[side == LK_K ? LK_BASIS_K : LK_BASIS_V][1],
                                     row[i / 2].rank, x + t * WIDTH, expect + t * WIDTH);
                else
                    memcpy(expect + t * WIDTH, x + t * WIDTH, WIDTH * sizeof *x);
            }
            float *got = reconstruct_rows(s);
            double e = nmse(got, expect, (size_t)n * WIDTH);
            if (!(e < 2e-7))
                fail_msg("%s, groups of %d: nmse %g", text, group, e); /* f16 rounding */
            free(got);
        }
        free(x), free(expect);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
        free_bases(&b);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
    }
}

/* Without a number in the recipe, each group has the sidecar's rank of its own, rounded. Bases may
 * be stored in any type. Caches of one store share what they read. */
static void test_ranks_of_groups(void **state) {
    enum { N = 300 };
    static const int ranks[N_HEAD_KV] = {5, 32, 17, 24}, rounded[N_HEAD_KV] = {8, 32, 16, 24};
    for (int type = 0; type < LK_N_BASIS_TYPE; type++) {
        struct random r = {31};
        struct bases b, packed;
        make_bases(&b, &r, 1, D_HEAD, 8, 1, 1);
        pack_bases(&packed, &b, type);
        struct lk_ledger common = {0}, ledger = {0};
        struct lk_cache_shape shape = shape_of(&packed);
        struct lk_cache *cache[2];
        lk_recipe *recipe;
        for (int which = 0; which < LK_N_BASIS; which++)
            for (int layer = 0; layer < N_LAYER; layer++)
                for (int g = 0; g < N_HEAD_KV; g++)
                    ((int32_t *)packed.basis[which][layer].rank)[g] = ranks[g];
        assert_int_equal(lk_latent_store_new(&shape.latents, &common, NULL), LK_OK);
        assert_int_equal(lk_recipe_parse(&recipe, "latent", NULL), LK_OK);
        for (int i = 0; i < 2; i++)
            assert_int_equal(lk_cache_new(&cache[i], recipe, &shape, &ledger, NULL), LK_OK);

        /* The widest group decides how many components are copied: all 32 here. */
        const struct lk_level *level = &cache[0]->kv[0][LK_K].level[0];
        assert_ptr_equal(level->basis, cache[1]->kv[0][LK_K].level[0].basis);
        assert_ptr_not_equal(level->basis, &packed.basis[LK_BASIS_K][0]);
        size_t matrix = (size_t)WIDTH * D_HEAD,
               bytes = lk_basis_numbers_bytes(type, matrix) +
                       (type == LK_BASIS_Q8 ? WIDTH * sizeof(float) : 0);
        assert_int_equal(lk_latent_store_bytes(shape.latents), N_LAYER * 2 * 2 * bytes);
        assert_int_equal(lk_ledger_bytes(&common, LK_FOR_WEIGHTS), N_LAYER * 2 * 2 * bytes);
        struct lk_cache_needs needs;
        assert_int_equal(lk_cache_estimate(recipe, &shape, N, &needs, NULL), LK_OK);
        assert_int_equal(needs.latents, N_LAYER * 2 * 2 * bytes);
        assert_int_equal(level->block_bytes, (8 + 32 + 16 + 24) * LK_TILE * 2);

        float *x = gaussians(&r, (size_t)N * WIDTH);
        append_rows(cache[0], x, N, 7);
        const struct lk_kv *s = &cache[0]->kv[1][LK_V];
        float *got = reconstruct_rows(s), *expect = malloc((size_t)N * WIDTH * sizeof *expect);
        for (int t = 0; t < N; t++)
            project_to_ranks(&b.basis[LK_BASIS_V][1], rounded, x + t * WIDTH, expect + t * WIDTH);
        assert_true(s->count[0].rows > 256); /* the newest rows are exact */
        double e = nmse(got, expect, (size_t)s->count[0].rows * WIDTH),
               limit = type == LK_BASIS_Q8    ? 2e-4
                       : type == LK_BASIS_F16 ? 1e-6
                                              : 2e-7;
        if (!(e < limit)) fail_msg("type %d: nmse %g", type, e);
        free(got), free(expect), free(x);
        lk_recipe_free(recipe);
        lk_cache_free(cache[0]);
        assert_int_equal(lk_latent_store_bytes(shape.latents), N_LAYER * 2 * 2 * bytes);
        lk_cache_free(cache[1]);
        assert_int_equal(lk_latent_store_bytes(shape.latents), 0);
        lk_latent_store_free(shape.latents);
        free_packed(&packed);
        free_bases(&b);
        for (int p = 0; p < LK_N_PURPOSE; p++) {
            assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
            assert_int_equal(lk_ledger_bytes(&common, p), 0);
        }
    }
}

/* K's up-projection exists once for all caches whose codec has no sigma, and components that no
 * recipe reads are not copied. */
static void test_up_projection_is_shared(void **state) {
    static const char *const text[] = {"k=latent25%(pre)+rot3(nomean,nosigma) v=f16",
                                       "k=latent50%(pre)+rot3(nomean) v=f16",
                                       "k=latent25%(pre)+rot3(nomean,nosigma) v=f16",
                                       "k=latent25%(pre)+rot4(nomean,nosigma) v=f16",
                                       "body: k=latent25%(pre)+rot4(nomean,nosigma) v=f16; recent "
                                       "40: k=latent25%(pre)+rot4(nomean,nosigma) v=f16"};
    enum { N = 5 };
    struct random r = {5};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 40, 0, 0);
    struct lk_ledger common = {0}, ledger[N];
    memset(ledger, 0, sizeof ledger);
    struct lk_cache_shape shape = shape_of(&b);
    struct lk_cache *cache[N];
    lk_recipe *recipe[N];
    shape.kernels = lk_kernels_choose(NULL);
    assert_int_equal(lk_latent_store_new(&shape.latents, &common, NULL), LK_OK);
    uint64_t bytes[N], estimate[N];
    for (int i = 0; i < N; i++) {
        assert_int_equal(lk_recipe_parse(&recipe[i], text[i], NULL), LK_OK);
        assert_int_equal(lk_cache_new(&cache[i], recipe[i], &shape, &ledger[i], NULL), LK_OK);
        bytes[i] = lk_latent_store_bytes(shape.latents);
        struct lk_cache_needs needs;
        assert_int_equal(lk_cache_estimate(recipe[i], &shape, 100, &needs, NULL), LK_OK);
        assert_true((needs.derived > 0) == (i == 1));
        estimate[i] = needs.latents;
    }
    const struct lk_level *level[N];
    for (int i = 0; i < N; i++) level[i] = &cache[i]->kv[0][LK_K].level[0];
    assert_int_equal(level[0]->basis->n_comp, 16); /* of 64 */
    assert_int_equal(level[1]->basis->n_comp, 32);
    assert_ptr_equal(level[0]->k_up, level[2]->k_up);
    assert_ptr_not_equal(level[0]->k_up, level[1]->k_up);
    assert_ptr_not_equal(level[0]->k_up, level[3]->k_up);
    assert_true(bytes[0] > 0 && bytes[1] > bytes[0] && bytes[2] == bytes[1]);
    assert_true(bytes[3] > bytes[2]);                                /* other codes, other forms */
    assert_true(bytes[4] == bytes[3] && estimate[4] == estimate[3]); /* one for both levels */
    for (int i = 0; i < N; i++) {
        lk_cache_free(cache[i]);
        lk_recipe_free(recipe[i]);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger[i], p), 0);
    }
    assert_int_equal(lk_ledger_bytes(&common, LK_FOR_WEIGHTS), 0);
    lk_latent_store_free(shape.latents);
    free_bases(&b);
}

/* Truncating latents to a lower rank gives the same bits as projecting to that rank. */
static void test_truncation_equals_projection(void **state) {
    struct random r = {3};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 8, 1, 1);
    struct lk_ledger ledger = {0};
    lk_recipe *recipe[2];
    struct lk_cache *twice =
        new_cache(&recipe[0], "body: latent40%; window 64: latent90%; window 16: f16", &b, &ledger);
    struct lk_cache *once = new_cache(&recipe[1], "body: latent40%; window 80: f16", &b, &ledger);
    float *x = gaussians(&r, 500 * WIDTH);
    append_rows(twice, x, 500, 1), append_rows(once, x, 500, 1);
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *a = &twice->kv[0][side], *c = &once->kv[0][side];
        assert_true(a->count[1].rows >= 64);
        int64_t n = a->count[0].rows < c->count[0].rows ? a->count[0].rows : c->count[0].rows;
        assert_true(n > 300);
        for (int64_t block = 0; block < n / LK_TILE; block++)
            assert_memory_equal(lk_kv_block(a, 0, block), lk_kv_block(c, 0, block),
                                a->level[0].block_bytes);
    }
    free(x);
    for (int i = 0; i < 2; i++) lk_recipe_free(recipe[i]);
    lk_cache_free(twice), lk_cache_free(once);
    free_bases(&b);
}

/* ---- attention ---- */

struct call {
    struct lk_attn attn;
    float *q, *out;
};

static struct call make_call(const struct lk_cache *cache, struct random *r, int n_tok,
                             const struct lk_kernels *kernels) {
    struct lk_cache_widths width = lk_cache_max_widths(cache);
    struct call call = {.q = gaussians(r, (size_t)n_tok * N_HEAD * D_HEAD),
                        .out = malloc((size_t)n_tok * N_HEAD * D_HEAD * sizeof(float))};
    call.attn = (struct lk_attn){.k = &cache->kv[0][LK_K],
                                 .v = &cache->kv[0][LK_V],
                                 .kernels = kernels,
                                 .n_head = N_HEAD,
                                 .n_head_kv = N_HEAD_KV,
                                 .d_head = D_HEAD,
                                 .n_tok = n_tok,
                                 .n_thread = 2,
                                 .scale = 0.2f,
                                 .q = call.q,
                                 .out = call.out};
    call.attn.partial = malloc(
        lk_attn_partial_floats(N_HEAD, N_HEAD_KV, D_HEAD + width.latent, n_tok, 2) * sizeof(float));
    call.attn.scratch = aligned_alloc(64, 2 * lk_attn_scratch_floats(width.part) * sizeof(float));
    return call;
}

static void run(struct call *call) {
    for (int i = 0; i < 2; i++) lk_attn_items(&call->attn, i, 2);
    for (int i = 0; i < 2; i++)
        lk_attn_combine(&call->attn, lk_attn_ranges(&call->attn, call->attn.k, call->attn.v), i, 2);
}

static void free_call(struct call *call) {
    free(call->q), free(call->out), free(call->attn.partial), free(call->attn.scratch);
}

/* A full-rank basis only costs f16 rounding. */
static void test_full_rank_is_exact(void **state) {
    for (int group = 1; group <= N_HEAD_KV; group *= 2)
        for (int odd = 0; odd < 2; odd++) {
            struct random r = {7};
            struct bases b;
            make_bases(&b, &r, group, group * D_HEAD, 8, odd, odd);
            struct lk_ledger ledger = {0};
            lk_recipe *recipe[2];
            struct lk_cache *latent = new_cache(&recipe[0], "latent100%", &b, &ledger),
                            *rows = new_cache(&recipe[1], "f16", NULL, &ledger);
            float *x = gaussians(&r, 700 * WIDTH);
            append_rows(latent, x, 700, 50), append_rows(rows, x, 700, 50);
            struct random again = {9};
            struct call a = make_call(latent, &again, 3, lk_kernels_choose(NULL));
            again.state = 9;
            struct call c = make_call(rows, &again, 3, lk_kernels_choose(NULL));
            run(&a), run(&c);
            double e = nmse(a.out, c.out, 3 * N_HEAD * D_HEAD);
            if (!(e < 1e-6)) fail_msg("groups of %d: nmse %g", group, e);
            free_call(&a), free_call(&c);
            free(x);
            lk_cache_free(latent), lk_cache_free(rows);
            for (int i = 0; i < 2; i++) lk_recipe_free(recipe[i]);
            free_bases(&b);
        }
}

/* TALE (Eq. 20-21) and Palu (section 3.3) fold up into W_O: W_O (up^T z) = (W_O up^T) z. */
static void test_folded_output_is_equal(void **state) {
    struct random r = {21};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 8, 1, 0);
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache = new_cache(&recipe, "k=f16 v=latent50%", &b, &ledger);
    enum { N = 320, RANK = D_HEAD }; /* whole tiles: all of V is latents */
    float *x = gaussians(&r, N * WIDTH), *w_o = gaussians(&r, N_EMBD * N_HEAD * D_HEAD);
    append_rows(cache, x, N, 32);
    const struct lk_kv *v = &cache->kv[0][LK_V];
    assert_int_equal(v->count[0].rows, N);
    struct call call = make_call(cache, &r, 1, &lk_kernels_reference);
    run(&call);
    float *weight = malloc(N_HEAD * N * sizeof *weight), plain[N_EMBD] = {0}, folded[N_EMBD] = {0};
    lk_attn_weights(&call.attn, 0, weight, NULL);
    const struct lk_basis *basis = &b.basis[LK_BASIS_V][0];
    for (int h = 0; h < N_HEAD; h++) {
        int head_kv = h / (N_HEAD / N_HEAD_KV), group = head_kv / 2;
        double z[RANK] = {0};
        for (int t = 0; t < N; t++) {
            float row[2 * D_HEAD];
            lk_kv_read(&(struct lk_row_range){v, 0, t, 1}, group, &lk_kernels_reference, row,
                       2 * D_HEAD);
            for (int j = 0; j < RANK; j++) z[j] += weight[h * N + t] * row[j];
        }
        for (int e = 0; e < N_EMBD; e++) {
            const float *w = w_o + (size_t)e * N_HEAD * D_HEAD + h * D_HEAD;
            for (int c = 0; c < D_HEAD; c++) plain[e] += w[c] * call.out[h * D_HEAD + c];
            for (int j = 0; j < RANK; j++) {
                /* entry: of the folded matrix [N_EMBD][N_HEAD][RANK] */
                const float *up = basis->up.f32 +
                                  ((size_t)group * basis->n_comp + j) * basis->width +
                                  (head_kv % 2) * D_HEAD;
                float entry = 0;
                for (int c = 0; c < D_HEAD; c++) entry += w[c] * up[c];
                folded[e] += entry * (float)z[j];
            }
        }
    }
    assert_true(nmse(plain, folded, N_EMBD) < 1e-10);
    free(weight), free(x), free(w_o);
    free_call(&call);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
    free_bases(&b);
}

/* ---- the guarantees of the cache, with latents ---- */

static const char *recipes[] = {
    "latent",
    "latent30%+rot3",
    "sink 4: f16; body: k=latent60%+rot3 v=latent50%+rot3; window 64: f16",
    ("sink 4: f16; body: k=kivi2 v=latent50%+kivi2; recent 10%: k=kivi4 v=latent100%+kivi4; "
     "window 32: f16"),
    "body: latent25%+int8; recent 20%: latent50%+rot8; window 40: rot8",
    "body: k=latent+rot4(nomean,nosigma) v=latent+rot2(sigma); layers 1: rot2",
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

/* Encoding a whole prompt gives the same counts as appending and aging, and rows that are as
 * exact. */
static void test_prompt_equals_append_and_age(void **state) {
    static const int sizes[] = {2, 70, 300, 511};
    for (size_t i = 0; i < 4 * N_RECIPE; i++) {
        int n = sizes[i % 4];
        struct random r = {i};
        struct bases b;
        make_bases(&b, &r, 2, 2 * D_HEAD, 40, i % 2, i % 2);
        struct lk_ledger common = {0}, ledger = {.common = &common};
        lk_recipe *recipe, *again, *third;
        struct lk_cache *prompt = new_cache(&recipe, recipes[i / 4], &b, &ledger),
                        *aged = new_cache(&again, recipes[i / 4], &b, &ledger);
        float *x = gaussians(&r, (size_t)n * WIDTH);
        assert_int_equal(lk_cache_prepare(aged, 0, N_LAYER, n, n, NULL), LK_OK);
        uint64_t n_alloc = ledger.n_alloc;
        append_rows(aged, x, n, n);
        assert_int_equal(ledger.n_alloc, n_alloc);
        for (int layer = 0; layer < N_LAYER; layer++) {
            assert_int_equal(lk_cache_alloc_prompt(prompt, layer, n, NULL), LK_OK);
            for (int side = 0; side < 2; side++) {
                void *block;
                struct lk_kv exact = exact_rows(side, N_HEAD_KV, D_HEAD, x, n, &block);
                for (int head = N_HEAD_KV - 1; head >= 0; head--)
                    lk_cache_encode_prompt(prompt, layer, side, head, &exact);
                free(block);
                const struct lk_kv *a = &prompt->kv[layer][side], *c = &aged->kv[layer][side];
                for (int e = 0; e < 2; e++)
                    assert_int_equal(a->equalizer[e].calibrated, c->equalizer[e].calibrated);
                for (int level = 0; level < a->n_level; level++) {
                    assert_int_equal(a->count[level].rows, c->count[level].rows);
                    assert_int_equal(a->level[level].n_block, c->level[level].n_block);
                }
                float *y = reconstruct_rows(a), *z = reconstruct_rows(c);
                double prompt_error = nmse(y, x, (size_t)n * WIDTH),
                       aged_error = nmse(z, x, (size_t)n * WIDTH);
                if (!(prompt_error <= 1.02 * aged_error + 1e-6))
                    fail_msg("%s: nmse %g, aged %g", recipes[i / 4], prompt_error, aged_error);
                free(y), free(z);
            }
        }
        struct lk_cache *copy = new_cache(&third, recipes[i / 4], &b, &ledger);
        assert_int_equal(lk_cache_copy(copy, aged, NULL), LK_OK);
        for (int e = 0; e < 2; e++)
            assert_int_equal(copy->kv[1][LK_K].equalizer[e].calibrated,
                             aged->kv[1][LK_K].equalizer[e].calibrated);
        float *y = reconstruct_rows(&copy->kv[1][LK_K]), *z = reconstruct_rows(&aged->kv[1][LK_K]);
        assert_memory_equal(y, z, (size_t)n * WIDTH * sizeof *y);
        free(x), free(y), free(z);
        lk_cache_free(prompt), lk_cache_free(aged), lk_cache_free(copy);
        lk_recipe_free(recipe), lk_recipe_free(again), lk_recipe_free(third);
        free_bases(&b);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
    }
}

/* Sinks stored as latents before RoPE, appended in portions of any size. Queries are observed in
 * the basis of the body, not of the sinks. */
static void test_sinks_before_rope(void **state) {
    enum { N = 40, N_QUERY = 20 };
    double speed[D_HEAD / 2];
    struct lk_rope rope[2];
    for (int j = 0; j < D_HEAD / 2; j++) speed[j] = pow(100, -2.0 * j / D_HEAD);
    for (int i = 0; i < 2; i++) lk_rope_init(&rope[i], D_HEAD / 2, true, 1.1f, speed);
    struct random r = {21};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 40, 0, 0);
    struct lk_cache_shape shape = shape_of(&b);
    shape.rope = rope;
    float *x = gaussians(&r, (size_t)N * WIDTH), *q = gaussians(&r, (size_t)N_QUERY * WIDTH);
    for (int portion = 1; portion <= N; portion += 13) {
        struct lk_ledger ledger = {0};
        struct lk_cache *cache;
        lk_recipe *recipe;
        assert_int_equal(
            lk_recipe_parse(&recipe, "sink 6: k=latent100%(pre) v=latent100%; body: f16", NULL),
            LK_OK);
        assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
        append_rows(cache, x, N, portion);
        for (int side = 0; side < 2; side++) {
            float *y = reconstruct_rows(&cache->kv[1][side]);
            assert_true(nmse(y, x, (size_t)6 * WIDTH) < 1e-5);
            free(y);
        }
        lk_cache_free(cache);
        lk_recipe_free(recipe);
    }
    struct lk_ledger ledger = {0};
    struct lk_cache *cache;
    lk_recipe *recipe;
    assert_int_equal(
        lk_recipe_parse(
            &recipe,
            "sink 4: latent25%; body: k=latent50%(pre)+rot3 v=latent50%+rot3; window 64: f16",
            NULL),
        LK_OK);
    assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
    lk_cache_observe(cache, 1, q, N_QUERY, N_HEAD_KV); /* few: none is left out */
    const struct lk_equalizer *e = &cache->kv[1][LK_K].equalizer[1];
    float z[2 * D_HEAD], sum[2 * D_HEAD] = {0};
    for (int i = 0; i < 2 * N_QUERY; i++) {
        struct lk_basis_head h = {.basis = &b.basis[LK_BASIS_KPRE][1],
                                  .head = i % 2,
                                  .d_head = D_HEAD,
                                  .rank = e->stride};
        lk_project_query(&h, q + i / 2 * WIDTH + i % 2 * D_HEAD, z);
        for (int c = 0; c < e->stride; c++) sum[c] += z[c] * z[c];
    }
    assert_true(e->stride > 0 && nmse(e->query_power, sum, e->stride) < 1e-10);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
    free(x), free(q);
    free_bases(&b);
}

/* The pairs from n_fast on are within LK_FOLD_ERROR of a sum of n functions. The one before them is
 * not. */
static void test_slow_pairs(void **state) {
    static const struct {
        double base;
        int n_pair, n_fast[LK_MAX_FOLD + 1];
    } row[] = {{1e5, 32, {32, 29, 19, 15, 13}},   /* SmolLM2 */
               {1e6, 32, {32, 25, 16, 13, 11}},   /* Qwen2.5 */
               {1e6, 128, {128, 97, 63, 50, 42}}, /* Gemma 3 */
               {1, 3, {3, 3, 3, 3, 3}}};          /* all are fast */
    static struct lk_rope rope;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        double speed[LK_MAX_PAIR];
        int n_pair = row[i].n_pair;
        for (int j = 0; j < n_pair; j++) speed[j] = pow(row[i].base, -(double)j / n_pair);
        lk_rope_init(&rope, n_pair, i % 2, 1.5f, speed);
        for (int n = 0; n <= LK_MAX_FOLD; n++) {
            assert_int_equal(rope.fold.n_fast[n], row[i].n_fast[n]);
            for (int j = 0; j < n_pair; j++) {
                double error = 0;
                for (int t = 0; t < LK_SEGMENT; t++) {
                    double c = 1.5 * cos(t * speed[j]), s = 1.5 * sin(t * speed[j]);
                    for (int m = 0; m < n; m++) {
                        assert_true(rope.fold.sine[m][2 * j + 1] == -rope.fold.sine[m][2 * j]);
                        c -= rope.fold.cosine[m][2 * j + 1] * rope.fold.basis[m][t];
                        s -= rope.fold.sine[m][2 * j] * rope.fold.basis[m][t];
                    }
                    error = fmax(error, fmax(fabs(c), fabs(s)));
                }
                bool slow = error <= 1.5 * LK_FOLD_ERROR * 1.0001;
                if (j >= rope.fold.n_fast[n]) assert_true(slow);
                if (j == rope.fold.n_fast[n] - 1) assert_true(error >= 1.4999 * LK_FOLD_ERROR);
            }
        }
    }
}

static void test_bytes_match_the_ledger(void **state) {
    for (int i = 0; i < N_RECIPE; i++) {
        struct random r = {i};
        struct bases b;
        make_bases(&b, &r, 4, WIDTH, 64, 0, 0);
        struct lk_cache_shape shape = shape_of(&b);
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(&recipe, recipes[i], &b, &ledger);
        float *x = gaussians(&r, 100 * WIDTH);
        for (int step = 0; step < 25; step++) {
            assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, 100, 100, NULL), LK_OK);
            append_rows(cache, x, 100, 100);
            struct lk_cache_bytes bytes = lk_cache_count_bytes(cache);
            assert_int_equal(bytes.code + bytes.scale + bytes.exact + bytes.padding,
                             lk_ledger_bytes(&ledger, LK_FOR_CACHE));
        }
        lk_cache_trim(cache);
        struct lk_cache_needs needs;
        uint64_t real = lk_ledger_bytes(&ledger, LK_FOR_CACHE);
        assert_int_equal(lk_cache_estimate(recipe, &shape, 2500, &needs, NULL), LK_OK);
        assert_int_equal(needs.scratch, lk_ledger_bytes(&ledger, LK_FOR_SCRATCH));
        double difference = fabs((double)needs.cache - (double)real),
               slabs = (double)cache->pool.n_class * LK_SLAB_BYTES; /* partly free */
        if (difference > 0.02 * real + slabs)
            fail_msg("%s: estimate %.0f, real %.0f", recipes[i], (double)needs.cache, (double)real);
        free(x);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
        free_bases(&b);
    }
}

/* A cache for given kernels stores only the forms of the up-projection of K that these kernels
 * read: floats for the reference kernels. A cache for any kernels stores all of them. */
static void test_k_up_is_small(void **state) {
    static const struct {
        const char *recipe;
        int bits, code_bytes; /* code_bytes: per number */
    } row[] = {{"k=latent50%(pre)+rot3(nomean) v=f16", 3, 1},
               {"k=latent50%(pre)+rot3 v=f16", 3, 5},
               {"k=latent50%(pre)+rot5(nomean) v=f16", 5, 4},
               {"k=latent50%(pre)+rot6(nomean) v=f16", 6, 4},
               {"k=latent50%(pre) v=f16", 16, 0}};
    const struct lk_kernels *kernels[] = {NULL, &lk_kernels_reference, lk_kernels_choose(NULL)};
    struct random r = {5};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 40, 0, 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int k = 0; k < 3; k++) {
            struct lk_ledger ledger = {0}, plain = {0};
            struct lk_cache_shape shape = shape_of(&b);
            struct lk_cache *cache, *rows;
            lk_recipe *recipe, *f16;
            shape.kernels = kernels[k];
            assert_int_equal(lk_recipe_parse(&recipe, row[i].recipe, NULL), LK_OK);
            assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
            rows = new_cache(&f16, "f16", &b, &plain);
            /* The rank is half the channels of two heads. */
            size_t numbers = (size_t)N_LAYER * N_HEAD_KV * D_HEAD * D_HEAD;
            int each = row[i].code_bytes;
            if (each == 0 || kernels[k] == &lk_kernels_reference)
                each = sizeof(float);
            else if (!kernels[k])
                each = sizeof(float) + 5;
            else if (row[i].bits > 4 && row[i].bits <= kernels[k]->max_bits_q8)
                each = 1;
            size_t min = numbers * each, max = min + min / 4 + N_LAYER * 4096;
            uint64_t bytes =
                lk_ledger_bytes(&ledger, LK_FOR_SCRATCH) - lk_ledger_bytes(&plain, LK_FOR_SCRATCH);
            struct lk_cache_needs needs;
            assert_int_equal(lk_cache_estimate(recipe, &shape, 100, &needs, NULL), LK_OK);
            assert_int_equal(needs.derived, bytes);
            assert_int_equal(needs.latents, lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS));
            if (!bytes) { /* no sigma: in the store, after two half bases (up is down) */
                bytes = needs.latents - N_LAYER * WIDTH * D_HEAD * sizeof(float);
            }
            if (bytes < min || bytes > max)
                fail_msg("%s, kernels %d: %lu bytes, not %zu to %zu", row[i].recipe, k,
                         (unsigned long)bytes, min, max);
            lk_cache_free(cache), lk_cache_free(rows);
            lk_recipe_free(recipe), lk_recipe_free(f16);
            assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_SCRATCH), 0);
            assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), 0);
        }
    free_bases(&b);
}

static void test_error_messages(void **state) {
    static const struct {
        const char *recipe, *message;
        int n_comp, rank;
        lk_status status;
    } row[] = {
        {"latent", "lowkey compress", 0, 0, LK_E_ARG},
        {"k=f16 v=latent80%+rot3", "rank 48 for V, but the sidecar holds only 40 of 64", 40, 8,
         LK_E_ARG},
        {"body: latent+rot3; recent 10%: latent20%+rot3",
         "rank 40, but its rows come from a newer level of rank 16", 40, 40, LK_E_ARG},
        {"v=latent+kivi2(g128) k=f16", "multiple of 128", 64, 64, LK_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct random r = {i};
        struct bases b;
        if (row[i].n_comp) make_bases(&b, &r, 2, row[i].n_comp, row[i].rank, 0, 0);
        struct lk_ledger ledger = {0};
        struct lk_cache *cache = NULL;
        lk_recipe *recipe;
        lk_err err = {0};
        lk_status status =
            open_cache(&cache, &recipe, row[i].recipe, row[i].n_comp ? &b : NULL, &ledger, &err);
        if (status != row[i].status || !strstr(err.msg, row[i].message))
            fail_msg("%s: %d, %s", row[i].recipe, status, err.msg);
        assert_null(cache);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
        if (row[i].n_comp) free_bases(&b);
    }
}

static void test_any_allocation_may_fail(void **state) {
    struct random r = {5};
    struct bases b;
    make_bases(&b, &r, 2, 2 * D_HEAD, 40, 0, 0);
    float *x = gaussians(&r, 100 * WIDTH);
    for (int nth = 1;; nth++) {
        struct lk_ledger ledger = {.fail_at = nth};
        struct lk_cache *cache = NULL;
        lk_recipe *recipe = NULL;
        lk_err err = {0};
        lk_status status = open_cache(&cache, &recipe, recipes[2], &b, &ledger, &err);
        bool open = status == LK_OK;
        for (int step = 0; status == LK_OK && step < 8; step++) {
            status = lk_cache_prepare(cache, 0, N_LAYER, 100, 100, &err);
            if (status == LK_OK) append_rows(cache, x, 100, 100);
        }
        if (status != LK_OK) assert_int_equal(status, LK_E_NOMEM);
        lk_cache_free(cache);
        if (open) lk_recipe_free(recipe);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
        if (status == LK_OK) {
            assert_true(nth > 20);
            break;
        }
    }
    free(x);
    free_bases(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_projected),
        cmocka_unit_test(test_ranks_of_groups),
        cmocka_unit_test(test_up_projection_is_shared),
        cmocka_unit_test(test_truncation_equals_projection),
        cmocka_unit_test(test_full_rank_is_exact),
        cmocka_unit_test(test_folded_output_is_equal),
        cmocka_unit_test(test_prompt_equals_append_and_age),
        cmocka_unit_test(test_slow_pairs),
        cmocka_unit_test(test_bytes_match_the_ledger),
        cmocka_unit_test(test_k_up_is_small),
        cmocka_unit_test(test_sinks_before_rope),
        cmocka_unit_test(test_error_messages),
        cmocka_unit_test(test_any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
