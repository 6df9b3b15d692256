#include "codec/rot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codec/hadamard.h"
#include "codec/half.h"

/* ---- levels ------------------------------------------------------------------------------- */

/* Steps that minimise the squared error of 2^b uniform levels on a unit Gaussian (Max 1960). */
static const float uniform_unit[9] = {0, 1.595769f, 0.995687f, 0.586019f, 0.335201f,
                                      0.188139f, 0.104063f, 0.056868f, 0.030762f};

/* Lloyd-Max levels of a unit Gaussian, rounded to small integers (error within 1 % of the optimum). */
static const uint8_t lloyd2[] = {0, 7, 13, 20};
static const uint8_t lloyd3[] = {0, 8, 14, 19, 24, 29, 35, 43};
static const uint8_t lloyd4[] = {0, 8, 13, 17, 21, 24, 27, 30, 33, 36, 39, 42, 46, 50, 55, 63};

struct lk_rot_levels lk_rot_levels(const struct lk_codec *codec) {
    if (codec->lloyd && codec->bits == 2) return (struct lk_rot_levels){lloyd2, 20, 0.151035f};
    if (codec->lloyd && codec->bits == 3) return (struct lk_rot_levels){lloyd3, 43, 0.099990f};
    if (codec->lloyd && codec->bits == 4) return (struct lk_rot_levels){lloyd4, 63, 0.087131f};
    return (struct lk_rot_levels){NULL, (1 << codec->bits) - 1, uniform_unit[codec->bits]};
}

/* ---- one row -------------------------------------------------------------------------------- */

/* Four lanes, as gcc and clang have them on every machine: the search below is most of the time that
 * encoding takes. Rows are multiples of 8 long. */
typedef float   float4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline float4 all4(float x) { return (float4){x, x, x, x}; }

static inline float total4(float4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/* Where `mask` (0 or -1 per lane) is set a, else b. */
static inline float4 select4(int4 mask, float4 a, float4 b) { return (float4)(((int4)a & mask) | ((int4)b & ~mask)); }

/* Levels as the search wants them: code i + 1 begins at border[i], gap[i] above code i. */
struct coder {
    struct lk_rot_levels levels;
    float                mid;
    int                  n_border; /* 0 for uniform levels */
    float                border[15];
    int32_t              gap[15];
};

static struct coder make_coder(const struct lk_codec *codec) {
    struct coder coder = {.levels = lk_rot_levels(codec)};
    const struct lk_rot_levels *levels = &coder.levels;
    coder.mid = 0.5f * (float)levels->top;
    for (int i = 0; levels->table && levels->table[i] < levels->top; i++, coder.n_border++) {
        coder.border[i] = 0.5f * (float)(levels->table[i] + levels->table[i + 1]) - coder.mid;
        coder.gap[i] = levels->table[i + 1] - levels->table[i];
    }
    return coder;
}

/* Codes of four values already divided by the step, and their levels. */
static inline int4 code4(const struct coder *coder, float4 at, float4 *level) {
    if (coder->n_border == 0) {
        float4 zero = all4(0), top = all4((float)coder->levels.top);
        at += coder->mid + 0.5f; /* truncation rounds to the nearest */
        at = select4(at > zero, at, zero);
        at = select4(at < top, at, top);
        int4 code = __builtin_convertvector(at, int4);
        *level = __builtin_convertvector(code, float4) - coder->mid;
        return code;
    }
    int4 code = {0}, sum = {0};
    for (int i = 0; i < coder->n_border; i++) {
        int4 above = at > all4(coder->border[i]);
        code -= above;
        sum += above & coder->gap[i];
    }
    *level = __builtin_convertvector(sum, float4) - coder->mid;
    return code;
}

/* <level, y> and <level, level>. */
struct fit {
    float dot, norm;
};

static struct fit fit_of(const struct coder *coder, int d, const float *y, float inverse) {
    float4 dot = {0}, norm = {0}, level;
    for (int c = 0; c < d; c += 4) {
        float4 x = load4(y + c);
        code4(coder, x * inverse, &level);
        dot += level * x;
        norm += level * level;
    }
    return (struct fit){total4(dot), total4(norm)};
}

static void code_all(const struct coder *coder, int d, const float *y, float inverse, uint8_t *code) {
    float4 level;
    for (int c = 0; c < d; c += 4) {
        int4 four = code4(coder, load4(y + c) * inverse, &level);
        for (int j = 0; j < 4; j++) code[c + j] = (uint8_t)four[j];
    }
}

/* Steps worth trying, as multiples of a guess. The Gaussian's best step is the guess for coarse codes;
 * for fine ones it is the step at which the row's largest value just reaches the last level, because
 * one row is short and rarely has the tail that the Gaussian's step makes room for. Against the
 * Gaussian's step alone, the search takes this share off the squared error of Gaussian rows of 64:
 * 2 bits 1.5 %, 3 bits 6 %, 4 bits 17 %, 6 bits 40 %, 8 bits 55 %. */
enum { N_TRIAL = 5 };
static const float coarse_trial[N_TRIAL] = {1.0f, 0.82f, 0.91f, 1.09f, 1.18f};
static const float fine_trial[N_TRIAL] = {1.02f, 0.98f, 0.94f, 0.90f, 0.86f};

/* Codes of y [d], and their scale. Under the unbiased scale the error is <y, y> (1 / cos^2 - 1), cos
 * the cosine between y and its levels: the trial with the largest one wins. */
static float code_row(const struct coder *coder, int bits, int d, const float *y, uint8_t *code) {
    float4 square = {0}, largest = {0};
    for (int c = 0; c < d; c += 4) {
        float4 x = load4(y + c), magnitude = select4(x > all4(0), x, -x);
        square += x * x;
        largest = select4(magnitude > largest, magnitude, largest);
    }
    float energy = total4(square), rms = sqrtf(energy / (float)d), most = 0;
    for (int j = 0; j < 4; j++) most = largest[j] > most ? largest[j] : most;
    memset(code, 0, d);
    if (!(rms > 0)) return 0;
    bool fine = bits > 3;
    float reach = coder->n_border ? coder->mid : coder->mid + 0.5f; /* in steps; uniform cells reach past the last level */
    float guess = fine ? most / reach : rms * coder->levels.unit;
    float best = 0, scale = 0, step = guess;
    for (int i = 0; i < (bits == 1 ? 1 : N_TRIAL); i++) {
        float trial = guess * (fine ? fine_trial : coarse_trial)[i];
        struct fit fit = fit_of(coder, d, y, 1 / trial);
        if (!(fit.dot * (fit.dot / fit.norm) > best)) continue;
        best = fit.dot * (fit.dot / fit.norm);
        scale = energy / fit.dot;
        step = trial;
    }
    code_all(coder, d, y, 1 / step, code);
    return scale;
}

/* ---- the codec ------------------------------------------------------------------------------ */

static int block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)codec, (void)side;
    return LK_TILE;
}

static bool row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    return !codec->mean;
}

static const char *refuses(const struct lk_codec *codec, enum lk_side side, int d_head) {
    (void)side, (void)d_head;
    if (codec->bits < 1 || codec->bits > 8) return "rot has 1 to 8 bits";
    if (codec->lloyd && codec->bits > 4) return "Lloyd-Max levels are for 1 to 4 bits";
    return NULL;
}

static size_t scale_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * LK_TILE + (part->codec->mean ? part->d_head : 0);
}

static size_t head_bytes(const struct lk_part *part) {
    return lk_cells_bytes(part->codec->bits, part->d_head) + scale_bytes(part);
}

static void print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    /* What a recipe has by default is not said: K is centred and equalised, V is not. */
    const char *option[3];
    int n = 0;
    if (codec->mean != (side == LK_K)) option[n++] = codec->mean ? "mean" : "nomean";
    if (codec->sigma != (side == LK_K)) option[n++] = codec->sigma ? "sigma" : "nosigma";
    if (codec->lloyd != lk_codec_lloyd(codec->bits)) option[n++] = codec->lloyd ? "lloyd" : "uniform";
    size_t len = (size_t)snprintf(buf, cap, "rot%d", codec->bits);
    for (int i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%c%s%s", i ? ',' : '(', option[i], i == n - 1 ? ")" : "");
}

/* The row in the codec's domain, not centred. */
static void to_domain(const struct lk_part *part, const float *x, float *y) {
    for (int c = 0; c < part->d_head; c++) y[c] = lk_tame(part->sigma ? x[c] / part->sigma[c] : x[c]);
    lk_rotate(y, part->d_head);
}

/* Subtract from y [LK_TILE][d] its mean as it will be read back: code [d] times the scale returned. */
static float centre(int d, float *y, int8_t *code) {
    float mean[LK_MAX_D_HEAD] = {0}, most = 0;
    for (int t = 0; t < LK_TILE; t++)
        for (int c = 0; c < d; c++) mean[c] += y[t * d + c];
    for (int c = 0; c < d; c++) most = fmaxf(most, fabsf(mean[c] / LK_TILE));
    float scale = most / 127;
    for (int c = 0; c < d; c++) {
        code[c] = (int8_t)(scale > 0 ? fminf(fmaxf(roundf(mean[c] / LK_TILE / scale), -127), 127) : 0);
        mean[c] = scale * code[c];
    }
    for (int t = 0; t < LK_TILE; t++)
        for (int c = 0; c < d; c++) y[t * d + c] -= mean[c];
    return scale;
}

static void store_mean_scale(uint16_t *scale, float mean_scale) {
    uint32_t bits;
    memcpy(&bits, &mean_scale, sizeof bits);
    for (int t = 0; t < LK_TILE; t++) scale[t] |= (uint16_t)((bits >> t & 1) << 15);
}

static float load_mean_scale(const uint16_t *scale) {
    uint32_t bits = 0;
    for (int t = 0; t < LK_TILE; t++) bits |= (uint32_t)(scale[t] >> 15) << t;
    float mean_scale;
    memcpy(&mean_scale, &bits, sizeof mean_scale);
    return mean_scale;
}

static void encode(const struct lk_part *part, void *head, int row0, int n, const float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct coder coder = make_coder(codec);
    int d = part->d_head;
    uint16_t *scale = (uint16_t *)lk_rot_scales(codec, head, d);
    float y[LK_TILE * LK_MAX_D_HEAD], mean_scale = 0;
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = 0; t < n; t++) to_domain(part, x + t * stride, y + t * d);
    if (codec->mean) mean_scale = centre(d, y, (int8_t *)lk_rot_mean(codec, head, d));
    for (int t = 0; t < n; t++) {
        scale[row0 + t] = lk_half(code_row(&coder, codec->bits, d, y + t * d, code));
        lk_cells_put(part->side, codec->bits, d, head, row0 + t, code);
    }
    if (codec->mean) store_mean_scale(scale, mean_scale);
}

static void decode(const struct lk_part *part, const void *head, int row0, int n, float *x, size_t stride) {
    const struct lk_codec *codec = part->codec;
    struct lk_rot_levels levels = lk_rot_levels(codec);
    int d = part->d_head;
    const uint16_t *scale = lk_rot_scales(codec, head, d);
    const int8_t *mean = lk_rot_mean(codec, head, d);
    float mid = 0.5f * (float)levels.top, mean_scale = codec->mean ? load_mean_scale(scale) : 0;
    uint8_t code[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        lk_cells_get(part->side, codec->bits, d, head, t, code);
        float row_scale = lk_unhalf(scale[t] & 0x7fff);
        for (int c = 0; c < d; c++) x[c] = row_scale * ((float)(levels.table ? levels.table[code[c]] : code[c]) - mid);
        if (codec->mean)
            for (int c = 0; c < d; c++) x[c] += mean_scale * mean[c];
        lk_unrotate(x, d);
        if (part->sigma)
            for (int c = 0; c < d; c++) x[c] *= part->sigma[c];
    }
}

const struct lk_codec_ops lk_rot_ops = {
    .block_rows = block_rows,
    .row_wise = row_wise,
    .refuses = refuses,
    .head_bytes = head_bytes,
    .scale_bytes = scale_bytes,
    .print = print,
    .encode = encode,
    .decode = decode,
};
