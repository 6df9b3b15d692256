/* Computations of lib/ for tests in C++. */
#include "support_emulated.h"

#include "absorb/less.h"
#include "cache/cache.h"
#include "cache/move_command.h"
#include "cache/project.h"
#include "cache/rope.h"
#include "support_basis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void project_on_cpu(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                    const float *x, int x_stride, int n, float *z, int z_stride) {
    struct lk_basis_head of = {
        .basis = basis, .group = group, .head = head, .d_head = d_head, .rank = rank};
    lk_project_add(&of, x, (size_t)x_stride, n, z, (size_t)z_stride);
}

void unrotate_on_cpu(int n_pair, bool halves, int64_t pos, int n, float *x, int stride,
                     float *cos_sin) {
    struct lk_rope *rope = calloc(1, sizeof *rope);
    double speed[LK_MAX_PAIR];
    for (int j = 0; j < n_pair; j++) speed[j] = pow(10000, -(double)j / n_pair);
    lk_rope_init(rope, n_pair, halves, 1.25f, speed);
    /* An un-rotated pair (1, 0) is its cosine and sine. */
    float *unit = calloc((size_t)n * 2 * n_pair, sizeof *unit);
    for (int i = 0; i < n * n_pair; i++)
        unit[i / n_pair * 2 * n_pair + lk_rope_first(rope, i % n_pair)] = 1;
    lk_rope_unrotate(rope, pos, n, unit, (size_t)2 * n_pair);
    for (int i = 0; i < n * n_pair; i++) {
        const float *row = unit + i / n_pair * 2 * n_pair;
        cos_sin[2 * i] = row[lk_rope_first(rope, i % n_pair)];
        cos_sin[2 * i + 1] = row[lk_rope_second(rope, i % n_pair)];
    }
    free(unit);
    lk_rope_unrotate(rope, pos, n, x, (size_t)stride);
    free(rope);
}

static struct lk_less_shape shape_of(const struct lk_device_less *less) {
    return (struct lk_less_shape){.n_head = less->n_head,
                                  .n_head_kv = less->n_head_kv,
                                  .d_head = less->d_head,
                                  .n_hidden = less->n_hidden,
                                  .n_feature = less->n_feature,
                                  .n_phi = less->n_phi,
                                  .n_psi = less->n_psi};
}

static struct lk_less_maps maps_of(const struct lk_device_less *less) {
    return (struct lk_less_maps){.phi_w1 = (const uint16_t *)(uintptr_t)less->phi_w1,
                                 .phi_w2 = (const uint16_t *)(uintptr_t)less->phi_w2,
                                 .phi_bias = (const float *)(uintptr_t)less->phi_bias,
                                 .psi_w1 = (const uint16_t *)(uintptr_t)less->psi_w1,
                                 .psi_w2 = (const uint16_t *)(uintptr_t)less->psi_w2,
                                 .psi_w3 = (const float *)(uintptr_t)less->psi_w3,
                                 .psi_s1 = (const float *)(uintptr_t)less->psi_s1,
                                 .psi_s2 = (const float *)(uintptr_t)less->psi_s2,
                                 .kernels = &lk_kernels_reference};
}

void less_psi_on_cpu(const struct lk_device_less *less, int head, const float *k, float *psi) {
    struct lk_less_shape shape = shape_of(less);
    struct lk_less_maps maps = maps_of(less);
    float work[LK_LESS_MAX_HIDDEN];
    lk_less_psi(&shape, &maps, head, k, psi, work);
}

void less_absorb_on_cpu(const struct lk_device_less *less, float *state, const float *psi,
                        const float *v) {
    struct lk_less_shape shape = shape_of(less);
    lk_less_absorb(&shape, state, psi, v);
}

void less_read_on_cpu(const struct lk_device_less *less, const float *state, int head,
                      const float *q, float *mean, float *log_sum) {
    struct lk_less_shape shape = shape_of(less);
    struct lk_less_maps maps = maps_of(less);
    float work[LK_LESS_MAX_HIDDEN], phi[LK_LESS_MAX_FEATURE];
    lk_less_phi(&shape, &maps, head, q, phi, work);
    lk_less_read(&shape, state, phi, maps.phi_bias[head], mean, log_sum);
}

/* ---- commands of moves ---- */

enum { N_HEAD = 4, D_HEAD = 64, WIDTH = N_HEAD * D_HEAD, N_TOKEN = 900, MAX_BYTES = 1 << 16 };

static const char *const recipes[N_MOVE_RECIPES] = {
    "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
    "sink 4: f16; body: rot2(trellis); recent 20%: rot3(trellis); window 40: f16",
    "body: kivi2; residual 128: f16",
    "body: kivi4(g64); residual 64: int8",
    "body: asym4(g32); window 33: asym8(hadamard)",
    "sink 4: f16; body: rot4; heads 1: k=rot5 v=rot3; window 40: f16",
    "sink 4: f16; keep 64 by newest: rot4; window 40: f16",
    "body: k=latent50%+rot3 v=latent25%+rot2; window 64: k=latent100%+rot8 v=latent50%+rot4",
    "sink 4: f16; body: k=latent50%(pre)+rot4 v=latent50%+kivi2; window 40: rot8",
    "body: k=latent(pre)+asym3(hadamard) v=latent+asym3(hadamard); window 20: f16",
};

/* What a check works with. */
struct checked {
    struct lk_cache *cache;
    void (*execute)(struct lk_device_move *move, int n);
    float *scratch, *latents;
    int n_move;
    char *text;
    size_t cap;
};

/* Latents of the rows of a move, as float rows [n][n_part][d_part]. */
static void project_rows(const struct lk_move *m, float *latents) {
    const struct lk_kv *kv = m->kv;
    const struct lk_level *to = &kv->level[m->to];
    float rows[LK_MAX_MOVE * D_HEAD];
    size_t stride = (size_t)to->n_part * to->d_part;
    memset(latents, 0, m->n * stride * sizeof *latents);
    for (int head = 0; head < N_HEAD; head++) {
        for (int t = 0; t < m->n; t++) {
            if (m->x) {
                memcpy(rows + t * D_HEAD, m->x + t * WIDTH + head * D_HEAD, D_HEAD * sizeof *rows);
                continue;
            }
            struct lk_part p = lk_kv_part(kv, m->from, head);
            int row = m->from_row + t;
            const char *block = lk_block_address(kv->arena, m->from_block[row / p.block_rows]);
            lk_codec_decode(&p, block + lk_level_part_offset(&kv->level[m->from], head),
                            row % p.block_rows, 1, rows + t * D_HEAD, D_HEAD);
        }
        if (to->rope) lk_rope_unrotate(to->rope, m->pos, m->n, rows, D_HEAD);
        struct lk_basis_head h = lk_level_basis_head(to, head);
        lk_project_add(&h, rows, D_HEAD, m->n, latents + head / to->n_head * to->d_part, stride);
    }
}

/* Copy the bytes of a move's target blocks to, or from, memory [LK_MOVE_BLOCKS][MAX_BYTES]. */
static void copy_targets(const struct lk_move *m, char *memory, bool back) {
    for (int b = 0; b < LK_MOVE_BLOCKS; b++) {
        char *block = lk_block_address(m->kv->arena, m->to_block[b]), *at = memory + b * MAX_BYTES;
        size_t size = m->kv->level[m->to].block_bytes;
        if (block) memcpy(back ? block : at, back ? at : block, size);
    }
}

static void check_move(struct checked *c, const struct lk_move *m) {
    char *before = calloc(3 * LK_MOVE_BLOCKS, MAX_BYTES),
         *want = before + LK_MOVE_BLOCKS * MAX_BYTES, *got = want + LK_MOVE_BLOCKS * MAX_BYTES;
    struct lk_device_move command[N_HEAD];
    struct lk_sigma_addresses sigma;
    for (int i = 0; i < 2; i++) sigma.of[i] = (uint64_t)(uintptr_t)m->kv->equalizer[i].sigma;
    if (lk_move_projects(m)) project_rows(m, c->latents);
    copy_targets(m, before, false);
    c->execute(command, lk_move_commands(m, &sigma, (uint64_t)(uintptr_t)c->latents, command));
    copy_targets(m, got, false);
    copy_targets(m, before, true);
    lk_move_execute(m, c->cache->kernels, c->scratch, c->cache->d_part[m->kv->side]);
    copy_targets(m, want, false);
    if (memcmp(got, want, LK_MOVE_BLOCKS * MAX_BYTES))
        snprintf(c->text, c->cap, "move %d, %d rows of level %d to %d of %s", c->n_move, m->n,
                 m->x ? -1 : m->from, m->to, m->kv->side == LK_K ? "K" : "V");
    c->n_move++;
    free(before);
}

/* Append all rows, and check the moves that age them. */
static void check_aging(struct checked *c, const float *x) {
    enum { MOVES = 256, BLOCKS = 2048 };
    struct lk_moves list = {.cache = c->cache, .scratch = c->scratch, .cap = MOVES};
    list.move = calloc(MOVES, sizeof *list.move);
    list.gone = calloc(BLOCKS, sizeof *list.gone);
    list.cap_gone = BLOCKS;
    bool ok = true;
    for (int n_tok = 0, n; ok && n_tok < N_TOKEN; n_tok += n) {
        n = n_tok % 7 == 0 ? 61 : 1;
        if (n > N_TOKEN - n_tok) n = N_TOKEN - n_tok;
        lk_cache_observe(c->cache, 0, x, 1, N_HEAD);
        for (int side = 0; side < 2; side++)
            ok = ok && !lk_cache_append(c->cache, 0, side, x + (size_t)n_tok * WIDTH, n, NULL);
        for (int side = 0; ok && side < 2; side++) {
            ok = !lk_cache_age_by(&list, 0, side, NULL);
            for (int i = 0; i < list.n; i++) check_move(c, &list.move[i]);
            lk_moves_run(&list);
        }
    }
    if (!ok) snprintf(c->text, c->cap, "no memory");
    free(list.move);
    free(list.gone);
}

int check_move_commands(int recipe, void (*execute)(struct lk_device_move *move, int n), char *text,
                        size_t cap) {
    struct random r = {(uint64_t)recipe + 1};
    struct lk_rope *rope = calloc(2, sizeof *rope);
    double speed[D_HEAD / 2];
    for (int j = 0; j < D_HEAD / 2; j++) speed[j] = pow(10000, -2.0 * j / D_HEAD);
    for (int i = 0; i < 2; i++) lk_rope_init(&rope[i], D_HEAD / 2, true, 1, speed);
    struct lk_basis basis[LK_N_BASIS];
    const struct lk_basis *bases[LK_N_BASIS];
    for (int i = 0; i < LK_N_BASIS; i++) {
        basis[i] = random_basis(&r, 2, 2 * D_HEAD, 2 * D_HEAD, 48, false, i == LK_BASIS_V);
        bases[i] = &basis[i];
    }
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = N_HEAD,
                                   .d_head = D_HEAD,
                                   .basis = bases,
                                   .rope = rope,
                                   .n_ctx = 4096,
                                   .kernels = &lk_kernels_reference};
    struct lk_ledger ledger = {0};
    lk_recipe *parsed = NULL;
    lk_err err = {0};
    struct checked c = {.execute = execute, .text = text, .cap = cap};
    *text = 0;
    lk_status status = lk_recipe_parse(&parsed, recipes[recipe], &err);
    if (!status) status = lk_cache_new(&c.cache, parsed, &shape, &ledger, &err);
    if (!status) status = lk_cache_reserve(c.cache, N_TOKEN, &err);
    if (status) {
        snprintf(text, cap, "%s: %s", recipes[recipe], err.msg);
        return 0;
    }
    const char *refused = lk_move_refused(&c.cache->kv[0][LK_K]);
    if (refused) snprintf(text, cap, "%s", refused);
    float *x = malloc((size_t)N_TOKEN * WIDTH * sizeof *x);
    for (int i = 0; i < N_TOKEN * WIDTH; i++) x[i] = random_gauss(&r);
    c.scratch = malloc(lk_moves_scratch_floats(LK_MAX_D_HEAD) * sizeof *c.scratch);
    c.latents = malloc((size_t)LK_MAX_MOVE * WIDTH * sizeof *c.latents);
    check_aging(&c, x);
    free(x);
    free(c.scratch);
    free(c.latents);
    lk_cache_free(c.cache);
    lk_recipe_free(parsed);
    for (int i = 0; i < LK_N_BASIS; i++) free_basis(&basis[i]);
    free(rope);
    return *text ? 0 : c.n_move;
}
