/* Latents: rows of a basis, projection into it and back. */
#include "cache/project.h"

#include "codec/f16.h"

#include <math.h>
#include <string.h>

/* ---- rows of a basis as floats, and compact copies ---- */

/* Vectors of four lanes: gcc and clang provide them on every CPU. */
typedef float float4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));
typedef uint32_t uint4 __attribute__((vector_size(16)));
typedef uint16_t ushort4 __attribute__((vector_size(8)));
typedef int8_t char4 __attribute__((vector_size(4)));

/* Moving the bits of a half float to those of a float leaves the exponent 112
 * too small, also for subnormal values, which the product normalizes. */
void lk_basis_halves_to_floats(const uint16_t *x, int n, float *out) {
    const float4 up = {0x1p112f, 0x1p112f, 0x1p112f, 0x1p112f};
    for (int i = 0; i < n; i += 4) {
        ushort4 half;
        memcpy(&half, x + i, sizeof half);
        uint4 bits = __builtin_convertvector(half, uint4);
        float4 magnitude = (float4)((bits & 0x7fff) << 13) * up;
        uint4 all = (uint4)magnitude | (bits & 0x8000) << 16;
        memcpy(out + i, &all, sizeof all);
    }
}

void lk_basis_bytes_to_floats(const int8_t *x, int n, float scale, float *out) {
    const float4 all = {scale, scale, scale, scale};
    for (int i = 0; i < n; i += 4) {
        char4 byte;
        memcpy(&byte, x + i, sizeof byte);
        float4 y = __builtin_convertvector(__builtin_convertvector(byte, int4), float4) * all;
        memcpy(out + i, &y, sizeof y);
    }
}

/* ---- copies ---- */

static size_t round_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Bytes of one group's rows, and of its scales. */
static size_t group_bytes(const struct lk_basis *b, int n_comp) {
    return lk_basis_numbers_bytes(b->type, (size_t)n_comp * b->width);
}
static size_t group_scale_bytes(const struct lk_basis *b, int n_comp) {
    return b->type == LK_BASIS_Q8 ? n_comp * sizeof(float) : 0;
}

/* Bytes of one matrix and its scales. */
static size_t matrix_bytes(const struct lk_basis *b, int n_comp) {
    return round_to_line(b->n_group * group_bytes(b, n_comp)) +
           round_to_line(b->n_group * group_scale_bytes(b, n_comp));
}

size_t lk_basis_copy_bytes(const struct lk_basis *of, int n_comp) {
    return (of->up.any == of->down.any ? 1 : 2) * matrix_bytes(of, n_comp);
}

/* Copy the first n_comp rows of each group, and their scales, to `mem`. */
static struct lk_basis_matrix copy_matrix(const struct lk_basis *of,
                                          const struct lk_basis_matrix *from, int n_comp,
                                          char *mem) {
    size_t n = group_bytes(of, n_comp), n_from = group_bytes(of, of->n_comp);
    float *scale = (float *)(mem + round_to_line(of->n_group * n));
    for (int g = 0; g < of->n_group; g++)
        memcpy(mem + g * n, (const char *)from->any + g * n_from, n);
    for (int g = 0; from->scale && g < of->n_group; g++)
        memcpy(scale + (size_t)g * n_comp, from->scale + (size_t)g * of->n_comp,
               group_scale_bytes(of, n_comp));
    return (struct lk_basis_matrix){.any = mem, .scale = from->scale ? scale : NULL};
}

struct lk_basis lk_basis_copy(const struct lk_basis *of, int n_comp, void *mem) {
    struct lk_basis to = *of;
    to.n_comp = n_comp;
    to.down = to.up = copy_matrix(of, &of->down, n_comp, mem);
    if (of->up.any != of->down.any)
        to.up = copy_matrix(of, &of->up, n_comp, (char *)mem + matrix_bytes(of, n_comp));
    to.error = NULL;
    return to;
}

/* ---- packing ---- */

static float pack_bytes(const float *x, size_t n, int8_t *out) {
    float max = 0;
    for (size_t i = 0; i < n; i++) max = fmaxf(max, fabsf(x[i]));
    float scale = max / 127, inverse = scale > 0 ? 1 / scale : 0;
    if (!isfinite(inverse)) scale = inverse = 0; /* so small that it counts as zero */
    for (size_t i = 0; i < n; i++) out[i] = (int8_t)lrintf(x[i] * inverse);
    return scale;
}

void lk_basis_pack(enum lk_basis_type type, const float *x, size_t n_row, size_t n, void *out,
                   float *scale) {
    if (type == LK_BASIS_F16)
        for (size_t i = 0; i < n_row * n; i++) ((uint16_t *)out)[i] = lk_f32_to_f16(x[i]);
    if (type == LK_BASIS_Q8)
        for (size_t row = 0; row < n_row; row++)
            scale[row] = pack_bytes(x + row * n, n, (int8_t *)out + row * n);
}

/* ---- projection ---- */

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store4(float *x, float4 v) { memcpy(x, &v, sizeof v); }

/* n is a multiple of 8, like all head widths and ranks. */
static float dot(const float *a, const float *b, int n) {
    float4 even = {0}, odd = {0};
    for (int i = 0; i < n; i += 8) {
        even += load4(a + i) * load4(b + i);
        odd += load4(a + i + 4) * load4(b + i + 4);
    }
    even += odd;
    return even[0] + even[1] + even[2] + even[3];
}

static void add_scaled(float *y, float a, const float *x, int n) {
    float4 all = {a, a, a, a};
    for (int i = 0; i < n; i += 4) store4(y + i, load4(y + i) + all * load4(x + i));
}

/* The head's d_head channels of a row of down or up. buf: [d_head] */
static const float *row_of(const struct lk_basis_head *h, enum lk_basis_factor factor, int comp,
                           float *buf) {
    return lk_basis_row(h->basis, factor, h->group, comp, h->head * h->d_head, h->d_head, buf);
}

const float *lk_basis_mean(const struct lk_basis_head *h) {
    const struct lk_basis *basis = h->basis;
    if (!basis->mean) return NULL;
    return basis->mean + (size_t)h->group * basis->width + (size_t)h->head * h->d_head;
}

void lk_project_add(const struct lk_basis_head *h, const float *x, size_t x_stride, int64_t n,
                    float *z, size_t z_stride) {
    const float *mean = lk_basis_mean(h);
    float buf[LK_MAX_D_HEAD];
    for (int j = 0; j < h->rank; j++) {
        const float *down = row_of(h, LK_BASIS_DOWN, j, buf);
        float offset = mean ? dot(down, mean, h->d_head) : 0;
        for (int64_t t = 0; t < n; t++)
            z[t * z_stride + j] += dot(down, x + t * x_stride, h->d_head) - offset;
    }
}

void lk_project_query(const struct lk_basis_head *h, const float *q, float *out) {
    float buf[LK_MAX_D_HEAD];
    for (int j = 0; j < h->rank; j++) out[j] = dot(row_of(h, LK_BASIS_UP, j, buf), q, h->d_head);
}

void lk_project_back(const struct lk_basis_head *h, const float *z, float *out) {
    float buf[LK_MAX_D_HEAD];
    memset(out, 0, h->d_head * sizeof *out);
    for (int j = 0; j < h->rank; j++)
        add_scaled(out, z[j], row_of(h, LK_BASIS_UP, j, buf), h->d_head);
}

/* ---- reading rows of a level ---- */

void lk_project_read(const struct lk_row_range *range, const struct lk_level *to, int part,
                     int rank, const struct lk_kernels *kernels, float *scratch, float *x,
                     size_t stride) {
    for (int64_t t = 0; t < range->n; t++) memset(x + t * stride, 0, rank * sizeof *x);
    for (int i = 0; i < to->n_head; i++) {
        int head_kv = part * to->n_head + i;
        struct lk_basis_head head = lk_level_basis_head(to, head_kv);
        head.rank = rank;
        lk_kv_read(range, head_kv, kernels, scratch, stride);
        if (to->rope)
            lk_rope_unrotate(to->rope, lk_kv_position(range->kv, range->level, range->at, 0),
                             range->n, scratch, stride);
        lk_project_add(&head, scratch, stride, range->n, x, stride);
    }
}

void lk_project_restore_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                             const float *z, float *x) {
    const struct lk_level *from = &kv->level[level];
    if (!from->basis) {
        memcpy(x, z, d_head * sizeof *x);
        return;
    }
    struct lk_basis_head h = lk_level_basis_head(from, head);
    const float *mean = lk_basis_mean(&h);
    lk_project_back(&h, z, x);
    for (int c = 0; mean && c < d_head; c++) x[c] += mean[c];
    if (from->rope) lk_rope_rotate(from->rope, lk_kv_position(kv, level, at, head), 1, x, 0);
}

void lk_project_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                          const struct lk_kernels *kernels, float *x) {
    float z[LK_MAX_D_HEAD];
    lk_kv_read(&(struct lk_row_range){kv, level, at, 1}, head / kv->level[level].n_head, kernels, z,
               LK_MAX_D_HEAD);
    lk_project_restore_head(kv, level, at, head, d_head, z, x);
}
