/* Random recipes over the whole grammar, random sidecars, and random scripts. */
#include "random_recipe.h"

#include "codec/f16.h"
#include "sidecar/sidecar_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- recipes ---- */

static bool chance(struct random *r, int percent) { return random_int(r, 0, 99) < percent; }

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size,
                                                         const char *format, ...) {
    size_t len = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

/* What the newer level of one side has: older ones have at most that. */
struct newer {
    int bits;
    int latent; /* 0: rows, 1: latents, 2: latents of K before RoPE */
    int share;  /* percent of the rank; 0: the sidecar's */
};

/* Choices for a whole recipe, so that its levels fit together. */
struct plan {
    bool evicts; /* rows are replaced one by one */
    bool latents, sigma, exact;
    bool recommended; /* latents have the sidecar's ranks */
    int d_head;
};

static void random_options(struct random *r, const struct plan *plan, int side, int bits,
                           char *text, size_t size) {
    char sign = '(';
    bool lloyd = bits >= 2 && bits <= 4;
    if (chance(r, 30)) {
        append(text, size, "%c%s", sign, chance(r, 50) ? "mean" : "nomean");
        sign = ',';
    }
    if (!plan->sigma ? side == LK_K : chance(r, 30)) {
        append(text, size, "%c%s", sign, plan->sigma && chance(r, 60) ? "sigma" : "nosigma");
        sign = ',';
    }
    if (bits <= 4 && !plan->evicts && chance(r, 25)) {
        append(text, size, "%ctrellis", sign);
        sign = ',';
    } else if (lloyd && chance(r, 25)) {
        append(text, size, "%cuniform", sign);
        sign = ',';
    }
    if (sign == ',') append(text, size, ")");
}

static void random_codec(struct random *r, const struct plan *plan, int side, struct newer *newer,
                         char *text, size_t size) {
    bool all = newer->bits == 16 && (plan->exact || chance(r, 25));
    if (newer->latent || (plan->latents && chance(r, 45))) {
        if (!newer->latent) newer->latent = side == LK_K ? random_int(r, 1, 2) : 1;
        int most = newer->share ? newer->share : 100;
        if (!plan->recommended && (newer->share || chance(r, 75)))
            newer->share = chance(r, 25) ? most : random_int(r, most < 20 ? most : 20, most);
        append(text, size, "latent");
        if (newer->share) append(text, size, "%d%%", newer->share);
        if (newer->latent == 2) append(text, size, "(pre)");
        if (all) return;
        append(text, size, "+");
    }
    int kind = all ? 0 : random_int(r, 0, 13);
    bool whole = side == LK_V && !newer->latent && plan->d_head % 32; /* no groups of channels */
    if (kind == 0 && newer->bits == 16) {
        append(text, size, "f16");
    } else if (kind <= 2 && newer->bits >= 8) {
        newer->bits = 8;
        append(text, size, "int8");
    } else if (kind <= 5 && newer->bits >= 2 && !whole) {
        int group = side == LK_K || newer->latent ? 32 << random_int(r, 0, 2) : 32;
        newer->bits = newer->bits >= 4 && chance(r, 50) ? 4 : 2;
        append(text, size, "kivi%d", newer->bits);
        if (chance(r, 20)) append(text, size, "(g%d)", group);
    } else if (kind == 10 && newer->bits >= 2) {
        newer->bits = random_int(r, 2, newer->bits < 8 ? newer->bits : 8);
        append(text, size, "asym%d", newer->bits);
        bool group = plan->d_head % 32 == 0 && chance(r, 30), rotated = chance(r, 40);
        if (group || rotated)
            append(text, size, "(%s%s%s)", group ? "g32" : "", group && rotated ? "," : "",
                   rotated ? "hadamard" : "");
    } else if (kind == 11 && newer->bits >= 2 && plan->d_head % 32 == 0) {
        newer->bits = random_int(r, 2, newer->bits < 4 ? newer->bits : 4);
        append(text, size, "hqq%d(g32)", newer->bits);
    } else if (kind == 12 && newer->bits >= 2 && !plan->evicts) {
        newer->bits = random_int(r, 2, newer->bits < 4 ? newer->bits : 4);
        append(text, size, "kvquant%d", newer->bits);
    } else if (kind == 13 && newer->bits >= 2 && !plan->evicts) {
        newer->bits = random_int(r, 2, newer->bits < 8 ? newer->bits : 8);
        append(text, size, "kvarn%d", newer->bits);
    } else {
        newer->bits = random_int(r, 1, newer->bits < 8 ? newer->bits : 8);
        append(text, size, "rot%d", newer->bits);
        random_options(r, plan, side, newer->bits, text, size);
    }
}

static void random_codecs(struct random *r, const struct plan *plan, struct newer newer[2],
                          char *text, size_t size) {
    append(text, size, "k=");
    random_codec(r, plan, LK_K, &newer[LK_K], text, size);
    append(text, size, " v=");
    random_codec(r, plan, LK_V, &newer[LK_V], text, size);
}

/* Codecs of some heads: those of the body, with fewer bits if they are rot. */
static void random_heads(struct random *r, const char *codecs, int n_head_kv, char *text) {
    int head = random_int(r, 0, n_head_kv - 1);
    append(text, MAX_PART, chance(r, 50) ? "heads %d: %s" : "layers last 1 heads %d: %s", head,
           codecs);
    for (char *at = strchr(text, ':'); (at = strstr(at, "rot")); at += 4)
        at[3] = (char)('0' + random_int(r, 1, at[3] - '0'));
}

static void random_keep(struct random *r, char *text, size_t size) {
    static const char *const policy[] = {"newest", "random",      "h2o",   "h2o(mean)",
                                         "tova",   "tova(apart)", "replay"};
    append(text, size, "keep ");
    if (chance(r, 60))
        append(text, size, "%d", random_int(r, 1, 80));
    else
        append(text, size, "%d%%%s", random_int(r, 3, 70), chance(r, 30) ? " of context" : "");
    append(text, size, " by %s", policy[random_int(r, 0, 6)]);
}

/* rot is left out: sinks are encoded from f32 rows, which the account cannot take over from the
 * engine, and a near-tie in rot's search for a step changes a whole row. */
static void random_sink(struct random *r, const struct plan *plan, bool shift, char *text,
                        size_t size) {
    append(text, size, "sink %d%s: ", random_int(r, 1, 12), shift ? "(shift)" : "");
    struct plan alone = {.exact = true, .d_head = plan->d_head, .latents = plan->latents && !shift};
    struct newer all[2] = {{16, 0, 0}, {16, 0, 0}};
    if (plan->exact || chance(r, 60))
        random_codecs(r, &alone, all, text, size);
    else
        append(text, size, chance(r, 50) ? "int8" : "k=int8 v=f16");
}

/* Another codec of the only window in some layers, with a number of bits between that of the window
 * and that of the next newer level. */
static void random_window_layers(struct random *r, const struct plan *plan, const char *window,
                                 const struct newer newer[2], const struct newer older[2],
                                 char *text) {
    static const char *const list[] = {"first 1", "last 1", "0", "1-1", "0, last 1"};
    append(text, MAX_PART, "layers %s %s: ", list[random_int(r, 0, 4)], window);
    for (int side = LK_K; side <= LK_V; side++) {
        int max = newer[side].bits < 8 ? newer[side].bits : 8;
        append(text, MAX_PART, side == LK_K ? "k=" : " v=");
        if (older[side].bits == 16) {
            append(text, MAX_PART, "f16");
            continue;
        }
        int bits = random_int(r, older[side].bits, max);
        append(text, MAX_PART, "rot%d", bits);
        random_options(r, plan, side, bits, text, MAX_PART);
    }
}

void random_recipe(struct random *r, const struct plain_model *m, struct random_recipe *out) {
    /* Parts are made from the newest to the oldest level, and turned around. */
    struct plan plan = {.sigma = chance(r, 25), .exact = chance(r, 30), .d_head = m->d_head};
    int body = random_int(r, 0, 9); /* 0, 1: none; 2 to 4: keep; else all rows */
    plan.evicts = body <= 4;
    plan.latents = chance(r, 45);
    struct newer newer[2] = {{16, 0, 0}, {16, 0, 0}};
    bool residual = !plan.evicts && chance(r, 20);
    int n_recent = random_int(r, body <= 1 && !residual, 2), n_sink = chance(r, 55);
    bool absorbs = plan.evicts && !m->alibi && m->n_swa == 0 && chance(r, 45);
    memset(out, 0, sizeof *out);
    if (absorbs) append(out->part[out->n++], MAX_PART, "absorb less");
    for (int i = 0; i < n_recent + residual; i++) {
        char *text = out->part[out->n++];
        bool window = chance(r, 65);
        if (residual && i == 0)
            append(text, MAX_PART, "residual %d: ", 32 * random_int(r, 1, 3));
        else if (window)
            append(text, MAX_PART, "window %d: ", random_int(r, 1, chance(r, 30) ? 90 : 40));
        else
            append(text, MAX_PART, "recent %d%%: ", random_int(r, 1, 45));
        struct plan newest = plan;
        struct newer before[2] = {newer[0], newer[1]};
        if (i == 0 && chance(r, 50)) newest = (struct plan){.exact = true, .d_head = m->d_head};
        random_codecs(r, &newest, newer, text, MAX_PART);
        bool latents = newer[LK_K].latent || newer[LK_V].latent;
        if (n_recent == 1 && !(residual && i == 0) && !latents && chance(r, 30))
            random_window_layers(r, &plan, window ? "window" : "recent", before, newer,
                                 out->part[out->n++]);
    }
    bool layers = body > 1 && chance(r, 30);
    if (layers) {
        struct newer older[2] = {newer[0], newer[1]};
        char *text = out->part[out->n++];
        static const char *const list[] = {"first 1", "last 1", "0", "1-1", "0, last 1"};
        append(text, MAX_PART, "layers %s: ", list[random_int(r, 0, 4)]);
        bool sized = plan.evicts && chance(r, 50);
        if (sized) {
            random_keep(r, text, MAX_PART);
            append(text, MAX_PART, ": ");
        }
        if (n_recent > 0 && !sized && chance(r, 15))
            append(text, MAX_PART, "none");
        else
            random_codecs(r, &plan, older, text, MAX_PART);
    }
    char *text = out->part[out->n++];
    if (body <= 1) {
        append(text, MAX_PART, "body: none");
    } else {
        if (plan.evicts)
            random_keep(r, text, MAX_PART);
        else
            append(text, MAX_PART, "body");
        append(text, MAX_PART, ": ");
        size_t codecs = strlen(text);
        random_codecs(r, &plan, newer, text, MAX_PART);
        bool latents = newer[LK_K].latent || newer[LK_V].latent;
        if (!layers && !latents && chance(r, 50))
            random_heads(r, text + codecs, m->n_head_kv, out->part[out->n++]);
    }
    if (n_sink) random_sink(r, &plan, body <= 1 && chance(r, 40), out->part[out->n++], MAX_PART);
    if (chance(r, 25)) append(out->part[out->n++], MAX_PART, "eager");
    if (chance(r, 20)) /* another way to read the same rows; test_read.c checks shares */
        append(out->part[out->n++], MAX_PART, "read 100%%");
    for (int i = 0; i < out->n / 2; i++) {
        char swap[MAX_PART];
        memcpy(swap, out->part[i], MAX_PART);
        memcpy(out->part[i], out->part[out->n - 1 - i], MAX_PART);
        memcpy(out->part[out->n - 1 - i], swap, MAX_PART);
    }
}

void random_latent_recipe(struct random *r, const struct plain_model *m,
                          struct random_recipe *out) {
    struct plan plan = {.evicts = chance(r, 40),
                        .latents = true,
                        .sigma = chance(r, 25),
                        .exact = chance(r, 30),
                        .recommended = true,
                        .d_head = m->d_head};
    struct newer newer[2] = {{16, m->rope ? 2 : 1, 0}, {16, 1, 0}};
    char window[MAX_PART] = "";
    memset(out, 0, sizeof *out);
    if (plan.evicts || chance(r, 50)) {
        append(window, MAX_PART, "window %d: ", random_int(r, 1, 40));
        random_codecs(r, &plan, newer, window, MAX_PART);
    }
    if (chance(r, 40))
        append(out->part[out->n++], MAX_PART, "sink %d: k=latent%s v=latent", random_int(r, 1, 9),
               m->rope ? "(pre)" : "");
    char *body = out->part[out->n++];
    if (plan.evicts)
        random_keep(r, body, MAX_PART);
    else
        append(body, MAX_PART, "body");
    append(body, MAX_PART, ": ");
    random_codecs(r, &plan, newer, body, MAX_PART);
    if (window[0]) append(out->part[out->n++], MAX_PART, "%s", window);
    if (plan.evicts && !m->alibi && m->n_swa == 0 && chance(r, 40))
        append(out->part[out->n++], MAX_PART, "absorb less");
    append(out->part[out->n++], MAX_PART, "eager");
}

void join_recipe(const struct random_recipe *recipe, char *text, size_t size) {
    text[0] = 0;
    for (int i = 0; i < recipe->n; i++) append(text, size, "%s%s", i ? "; " : "", recipe->part[i]);
}

/* ---- sidecars ---- */

static float *random_floats(struct random *r, size_t n, double size, bool half) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)size * random_gauss(r);
        if (half) x[i] = (float)plain_f16(x[i]);
    }
    return x;
}

static struct plain_less random_less(struct random *r, const struct plain_model *m, int n_hidden,
                                     int n_feature, int n_phi, int n_psi) {
    size_t d = (size_t)m->d_head, h = (size_t)n_hidden, f = (size_t)n_feature;
    return (struct plain_less){.n_hidden = n_hidden,
                               .n_feature = n_feature,
                               .n_phi = n_phi,
                               .n_psi = n_psi,
                               .phi_w1 = random_floats(r, n_phi * d * h, 2 / sqrt((double)d), true),
                               .phi_w2 = random_floats(r, n_phi * h * f, 2 / sqrt((double)h), true),
                               .phi_level = random_floats(r, (size_t)m->n_head, 0.5, false),
                               .psi_w1 = random_floats(r, n_psi * d * h, 2 / sqrt((double)d), true),
                               .psi_w2 = random_floats(r, n_psi * h * f, 2 / sqrt((double)h), true),
                               .psi_w3 =
                                   random_floats(r, n_psi * f * f, 1 / sqrt((double)f), false),
                               .psi_s1 = random_floats(r, n_psi * f, 1, false),
                               .psi_s2 = random_floats(r, n_psi * f, 1, false)};
}

/* Orthonormal rows x [n_row][n]: Gram-Schmidt, twice for accuracy. */
static void orthonormalize(float *x, int n_row, int n) {
    for (int i = 0; i < n_row; i++) {
        float *row = x + (size_t)i * n;
        double norm = 0;
        for (int k = 0; k < 2 * i; k++) {
            const float *other = x + (size_t)(k % i) * n;
            double dot = 0;
            for (int c = 0; c < n; c++) dot += (double)row[c] * other[c];
            for (int c = 0; c < n; c++) row[c] -= (float)dot * other[c];
        }
        for (int c = 0; c < n; c++) norm += (double)row[c] * row[c];
        for (int c = 0; c < n; c++) row[c] /= (float)sqrt(norm);
    }
}

/* skew: down and up differ, and are each other's inverse at full rank. */
static struct plain_basis random_basis_of(struct random *r, int n_group, int width, int n_comp,
                                          bool skew, bool mean) {
    size_t n = (size_t)n_comp * width;
    struct plain_basis b = {.n_group = n_group,
                            .width = width,
                            .n_comp = n_comp,
                            .down = random_floats(r, n_group * n, 1, false),
                            .up = malloc(n_group * n * sizeof *b.up),
                            .mean =
                                mean ? random_floats(r, (size_t)n_group * width, 1, false) : NULL,
                            .rank = malloc((size_t)n_group * sizeof *b.rank)};
    for (int g = 0; g < n_group; g++) {
        orthonormalize(b.down + g * n, n_comp, width);
        memcpy(b.up + g * n, b.down + g * n, n * sizeof *b.up);
        for (int j = 0; skew && j < n_comp; j++) {
            float stretch = 0.5f + random_uniform(r);
            for (int c = 0; c < width; c++) {
                b.up[g * n + (size_t)j * width + c] /= stretch;
                b.down[g * n + (size_t)j * width + c] *= stretch;
            }
        }
        b.rank[g] = width;
    }
    return b;
}

struct random_sidecar random_sidecar(struct random *r, const struct plain_model *m,
                                     bool full_rank) {
    struct random_sidecar s = {.n_layer = m->n_layer};
    int hidden = 8 * random_int(r, 1, 3), feature = random_int(r, 2, 8), group;
    int n_phi = chance(r, 40) ? m->n_head : chance(r, 50) ? m->n_head_kv : 1;
    int n_psi = chance(r, 60) ? m->n_head_kv : 1;
    s.less = malloc((size_t)m->n_layer * sizeof *s.less);
    for (int i = 0; i < m->n_layer; i++)
        s.less[i] = random_less(r, m, hidden, feature, n_phi, n_psi);
    for (int side = 0; side < N_PLAIN_BASIS; side++) {
        s.basis[side] = malloc((size_t)m->n_layer * sizeof *s.basis[side]);
        for (int i = 0; i < m->n_layer; i++) {
            do group = random_int(r, 1, m->n_head_kv);
            while (m->n_head_kv % group);
            int width = group * m->d_head, n_group = m->n_head_kv / group;
            int n_comp =
                full_rank || chance(r, 70) ? width : random_int(r, width / 16, width / 8) * 8;
            s.basis[side][i] =
                random_basis_of(r, n_group, width, n_comp, chance(r, 50), chance(r, 50));
            for (int g = 0; !full_rank && g < n_group; g++)
                s.basis[side][i].rank[g] = random_int(r, 1, n_comp / 8) * 8;
        }
    }
    return s;
}

static void free_less(struct plain_less *l) {
    float *all[] = {l->phi_w1, l->phi_w2, l->phi_level, l->psi_w1,
                    l->psi_w2, l->psi_w3, l->psi_s1,    l->psi_s2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

void free_random_sidecar(struct random_sidecar *s) {
    for (int i = 0; i < s->n_layer; i++) free_less(&s->less[i]);
    for (int side = 0; side < N_PLAIN_BASIS; side++) {
        for (int i = 0; i < s->n_layer; i++) {
            struct plain_basis *b = &s->basis[side][i];
            free(b->down);
            free(b->up);
            free(b->mean);
            free(b->rank);
        }
        free(s->basis[side]);
    }
    free(s->less);
    *s = (struct random_sidecar){0};
}

/* Memory of tensors until the file is written. */
struct store {
    void *mem[1024];
    int n;
};

static void *keep(struct store *store, void *mem) { return store->mem[store->n++] = mem; }

/* Add a tensor "blk.LAYER.NAME" of floats; `half`: as f16. */
static bool add_floats(struct lk_sidecar_builder *b, struct store *store, int layer,
                       const char *name, const float *x, int ne0, int ne1, int ne2, bool half) {
    struct lk_sidecar_tensor t = {
        .ne = {ne0, ne1, ne2}, .type = half ? LK_SIDECAR_F16 : LK_SIDECAR_F32, .data = (void *)x};
    size_t n = (size_t)ne0 * ne1 * ne2;
    snprintf(t.name, sizeof t.name, "blk.%d.%s", layer, name);
    if (half) {
        uint16_t *y = keep(store, malloc(n * sizeof *y));
        for (size_t i = 0; i < n; i++) y[i] = lk_f32_to_f16(x[i]);
        t.data = y;
    }
    return lk_sidecar_builder_add(b, &t, NULL) == LK_OK;
}

static bool add_basis(struct lk_sidecar_builder *b, struct store *store, int layer,
                      const char *side, const struct plain_basis *basis) {
    char name[16];
    int n = basis->n_comp, w = basis->width, g = basis->n_group;
    int32_t *rank = keep(store, malloc((size_t)g * sizeof *rank));
    float *error = keep(store, calloc((size_t)g * n, sizeof *error));
    for (int i = 0; i < g; i++) rank[i] = basis->rank[i];
    struct lk_sidecar_tensor ranks = {.ne = {g, 1, 1}, .type = LK_SIDECAR_I32, .data = rank};
    snprintf(ranks.name, sizeof ranks.name, "blk.%d.%s.rank", layer, side);
    bool ok = lk_sidecar_builder_add(b, &ranks, NULL) == LK_OK;
    snprintf(name, sizeof name, "%s.down", side);
    ok = ok && add_floats(b, store, layer, name, basis->down, w, n, g, false);
    snprintf(name, sizeof name, "%s.up", side);
    if (memcmp(basis->up, basis->down, (size_t)g * n * w * sizeof *basis->up) != 0)
        ok = ok && add_floats(b, store, layer, name, basis->up, w, n, g, false);
    snprintf(name, sizeof name, "%s.mean", side);
    if (basis->mean) ok = ok && add_floats(b, store, layer, name, basis->mean, w, g, 1, false);
    snprintf(name, sizeof name, "%s.error", side);
    return ok && add_floats(b, store, layer, name, error, n, g, 1, false);
}

static bool add_layer(struct lk_sidecar_builder *b, struct store *store,
                      const struct random_sidecar *s, const struct plain_model *m, int i) {
    static const char *const side[N_PLAIN_BASIS] = {"k", "kpre", "v"};
    const struct plain_less *l = &s->less[i];
    int d = m->d_head, h = l->n_hidden, f = l->n_feature;
    bool ok = add_floats(b, store, i, "less.phi.w1", l->phi_w1, h, d, l->n_phi, true) &&
              add_floats(b, store, i, "less.phi.w2", l->phi_w2, f, h, l->n_phi, true) &&
              add_floats(b, store, i, "less.phi.level", l->phi_level, m->n_head, 1, 1, false) &&
              add_floats(b, store, i, "less.psi.w1", l->psi_w1, h, d, l->n_psi, true) &&
              add_floats(b, store, i, "less.psi.w2", l->psi_w2, f, h, l->n_psi, true) &&
              add_floats(b, store, i, "less.psi.w3", l->psi_w3, f, f, l->n_psi, false) &&
              add_floats(b, store, i, "less.psi.s1", l->psi_s1, f, l->n_psi, 1, false) &&
              add_floats(b, store, i, "less.psi.s2", l->psi_s2, f, l->n_psi, 1, false);
    for (int k = 0; ok && k < N_PLAIN_BASIS; k++)
        ok = add_basis(b, store, i, side[k], &s->basis[k][i]);
    return ok;
}

bool write_random_sidecar(const struct random_sidecar *s, const struct plain_model *m,
                          uint64_t fingerprint, const char *path) {
    struct lk_ledger ledger = {0};
    struct lk_sidecar_builder *b = NULL;
    struct lk_sidecar_info info = {.method = "less",
                                   .model = {fingerprint, m->n_layer, m->n_head_kv, m->d_head}};
    struct store *store = calloc(1, sizeof *store);
    FILE *file = fopen(path, "wb");
    bool ok = file && lk_sidecar_builder_new(&b, &info, &ledger, NULL) == LK_OK;
    for (int i = 0; ok && i < s->n_layer; i++) ok = add_layer(b, store, s, m, i);
    ok = ok && lk_sidecar_builder_write(b, file, NULL) == LK_OK;
    lk_sidecar_builder_free(b);
    for (int i = 0; i < store->n; i++) free(store->mem[i]);
    free(store);
    if (file) fclose(file);
    return ok;
}

/* ---- what a recipe has ---- */

bool needs_sidecar(const struct lk_recipe *recipe) {
    bool any = recipe->absorbs;
    for (int i = 0; i < recipe->n_level; i++)
        any |= recipe->level[i].k.projection || recipe->level[i].v.projection;
    for (int i = 0; i < recipe->n_override; i++)
        any |= recipe->override[i].k.projection || recipe->override[i].v.projection;
    return any;
}

bool has_equalized_residual(const struct lk_recipe *recipe) {
    const struct lk_level_spec *last = &recipe->level[recipe->n_level - 1];
    return last->range == LK_RESIDUAL && (last->k.sigma || last->v.sigma);
}

bool has_percentages(const struct lk_recipe *recipe) {
    bool any = false;
    for (int i = 0; i < recipe->n_level; i++)
        any |= recipe->level[i].percent > 0 || recipe->level[i].limit.percent > 0;
    for (int i = 0; i < recipe->n_override; i++) any |= recipe->override[i].limit.percent > 0;
    return any;
}

bool is_lossy(const struct lk_recipe *recipe) {
    bool any = false;
    for (int i = 0; i < recipe->n_level; i++)
        any |= recipe->level[i].k.coding != LK_F16 || recipe->level[i].v.coding != LK_F16;
    for (int i = 0; i < recipe->n_override; i++)
        any |= recipe->override[i].k.coding != LK_F16 || recipe->override[i].v.coding != LK_F16;
    return any;
}

bool is_ranked(const struct lk_recipe *recipe) {
    bool any = false;
    for (int i = 0; i < recipe->n_level; i++)
        any |= lk_policy_needed_scores(&recipe->level[i].limit.policy) != LK_SCORES_NONE;
    for (int i = 0; i < recipe->n_override; i++)
        any |= lk_policy_needed_scores(&recipe->override[i].limit.policy) != LK_SCORES_NONE;
    return any;
}

/* ---- scripts ---- */

const char *op_name(enum op_kind kind) {
    static const char *const name[N_OP] = {"prompt", "steps", "eval", "batch",
                                           "fork",   "save",  "cut",  "clear"};
    return name[kind];
}

int random_script(struct random *r, int n_ctx, bool long_prompts, struct op *out) {
    int n = random_int(r, 3, 9);
    (void)n_ctx;
    for (int i = 0; i < n; i++) {
        struct op *op = &out[i];
        int kind = random_int(r, 0, 99);
        *op = (struct op){.a = random_int(r, 0, 2), .seed = random_u32(r)};
        op->kind = i == 0      ? (chance(r, 75) ? OP_PROMPT : OP_EVAL)
                   : kind < 8  ? OP_PROMPT
                   : kind < 34 ? OP_STEPS
                   : kind < 56 ? OP_EVAL
                   : kind < 72 ? OP_BATCH
                   : kind < 82 ? OP_FORK
                   : kind < 88 ? OP_SAVE
                   : kind < 98 ? OP_CUT
                               : OP_CLEAR;
        op->n = op->kind == OP_STEPS   ? random_int(r, 1, 20)
                : op->kind == OP_EVAL  ? random_int(r, 1, chance(r, 30) ? 90 : 35)
                : op->kind == OP_BATCH ? random_int(r, 1, chance(r, 60) ? 1 : 20)
                : op->kind == OP_CUT   ? random_int(r, 0, 12)
                                       : random_int(r, 1, chance(r, 30) ? 180 : 70);
        if (op->kind == OP_PROMPT && long_prompts) op->n += 250;
    }
    return n;
}
