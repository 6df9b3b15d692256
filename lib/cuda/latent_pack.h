/* What the latent kernels read besides rows and queries, laid out by the host once: the
 * up-projection of K per model, or per session if its codec has sigma, and RoPE's tables. struct
 * latent_shape names the places. */
#ifndef LK_CUDA_LATENT_PACK_H
#define LK_CUDA_LATENT_PACK_H

extern "C" {
#include "codec/f16.h"
}
#include "cuda/latent_shape.h"

#include <math.h>

/* The kernel's order of the codes of 32 channels: byte e of lane t's first or second register. */
static inline int latent_fragment_channel(int second, int t, int e) {
    static const int order[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}};
    return 8 * t + order[second][e];
}

/* One head: up [D][rank] in the domain of K's codec (lk_codec_transform_query), channels in the
 * order of pairs (lk_rope_channel), and mean [D] in that order, or NULL. rank <= R. out: [UP_HEAD].
 * k_mean: [D], for struct lk_device_latent; unused without a mean. up8: if not NULL, [D][rank]
 * receives what the packed numbers stand for. */
template <class sh>
void latent_pack_up(const float *up, int rank, const float *mean, char *out, float *k_mean,
                    float *up8) {
    int8_t code[sh::D][sh::R] = {};
    float scale[sh::PAIRS], most = 0, row_bound = 0;
    memset(out, 0, sh::UP_HEAD);
    for (int i = 0; i < sh::D * rank; i++) most = fmaxf(most, fabsf(up[i]));
    for (int p = 0; p < sh::PAIRS; p++) {
        float max = fmaxf(most * 1e-7f, 1e-30f);
        for (int i = 0; i < 2 * rank; i++) max = fmaxf(max, fabsf(up[2 * p * rank + i]));
        scale[p] = max / 127;
        for (int e = 0; e < 2; e++)
            for (int r = 0; r < rank; r++) {
                int c = 2 * p + e;
                code[c][r] = (int8_t)lrintf(up[c * rank + r] * 127 / max);
                if (up8) up8[c * rank + r] = code[c][r] * scale[p];
            }
    }
    for (int tile = 0; tile < 2 * sh::N2; tile++)
        for (int ks = 0; ks < sh::KS; ks++)
            for (int i = 0; i < 256; i++) {
                int lane = i / 8, second = i / 4 % 2, e = i % 4;
                out[(tile * sh::KS + ks / 2 * 2) * 256 + lane * 16 + ks % 2 * 8 + i % 8] =
                    (char)code[8 * tile + lane / 4]
                              [32 * ks + latent_fragment_channel(second, lane % 4, e)];
            }
    /* slow channels: 16 components x 32 channels. Row (u, x, y, g) is the component whose byte the
     * lane of the result writes. */
    for (int u = 0; u < sh::KS; u++)
        for (int x = 0; x < 2; x++)
            for (int s = 0; s < sh::SL; s++)
                for (int i = 0; i < 512; i++) {
                    int lane = i / 16, reg = i / 4 % 4, e = i % 4, g = lane / 4, t = lane % 4;
                    int r = 32 * u + latent_fragment_channel(g / 4, g % 4, 2 * x + reg % 2);
                    int c = 2 * sh::FAST + 32 * s + 16 * (reg / 2) + 4 * t + e;
                    out[sh::up_slow + ((2 * u + x) * sh::SL + s) * 512 + i] = (char)code[c][r];
                }
    for (int c = 0; sh::KB == 4 && c < 16 * sh::N2; c++) {
        int sum = 0;
        for (int r = 0; r < rank; r++) sum += code[c][r];
        uint32_t start = 0x4b400000u - (uint32_t)(63 * sum);
        for (int y = 0; y < 2; y++)
            memcpy(out + sh::up_start + c / 8 * 64 + c % 8 / 2 * 16 + y * 8 + c % 2 * 4, &start, 4);
    }
    memcpy(out + sh::up_scale, scale, sizeof scale);
    for (int c = 0; mean && c < sh::D; c++) /* sums are doubled and divided by 128 */
        k_mean[c] = mean[c] / (scale[c / 2] * 64);
    for (int r = 0; r < rank; r++) {
        float square = 1;
        for (int c = 2 * sh::FAST; c < sh::D; c++) square += (float)(code[c][r] * code[c][r]);
        row_bound = fmaxf(row_bound, sqrtf(square));
    }
    memcpy(out + sh::up_norm, &row_bound, 4);
}

/* The numbers of struct lk_rope (cache/rope.h), as the kernel sees a head: pairs that are not
 * rotated have speed 0. */
struct latent_rope {
    const double *speed;        /* [D / 2] */
    float magnitude;            /* of rotated pairs */
    int n_pair;                 /* that are rotated */
    const float *basis;         /* [4][128] functions of the fold */
    const float *cosine, *sine; /* [4][stride]: coefficients of channel 2 j for pair j */
    int stride;
};

/* RoPE's tables. out: [ROPE] */
template <class sh> void latent_pack_rope(const struct latent_rope &rope, char *out) {
    for (int tile = 0; tile < sh::FAST / 4; tile++)
        for (int i = 0; i < 512; i++) {
            int s = i / 128, word = i / 32 % 4, lane = i % 32, g = lane / 4;
            int token = 32 * (g / 2) + 4 * (g % 2) + word + 8 * s, pair = 4 * tile + lane % 4;
            double unit = (pair < rope.n_pair ? rope.magnitude : 1) / 128.0;
            float x[2] = {(float)(unit * cos(token * rope.speed[pair])),
                          (float)(unit * sin(token * rope.speed[pair]))};
            uint16_t half[2] = {lk_f32_to_f16(x[0]), lk_f32_to_f16(x[1])};
            memcpy(out + (tile * 512 + i) * sh::ROPE_PAIR, sh::HALF ? (void *)half : (void *)x,
                   sh::ROPE_PAIR);
        }
    if (!sh::FOLD) return;
    memcpy(out + sh::rope_basis, rope.basis, 4 * 128 * sizeof(float));
    for (int pair = 0; pair < sh::PAIRS; pair++)
        for (int m = 0; m < 4; m++) {
            memcpy(out + sh::rope_fold + pair * 32 + 4 * m,
                   &rope.cosine[m * rope.stride + 2 * pair], 4);
            memcpy(out + sh::rope_fold + pair * 32 + 16 + 4 * m,
                   &rope.sine[m * rope.stride + 2 * pair], 4);
        }
}

/* cos and sin of `n` multiples of `step` positions: out [n][D / 2][2]. step 1: the fine angles,
 * n = 128; step 128: the coarse ones, for n_ctx / 128 + 2 of them. */
static inline void latent_pack_angles(const double *speed, int n_pair, int n, int step,
                                      float *out) {
    for (int i = 0; i < n; i++)
        for (int p = 0; p < n_pair; p++) {
            double angle = (double)step * i * speed[p];
            out[((size_t)i * n_pair + p) * 2] = (float)cos(angle);
            out[((size_t)i * n_pair + p) * 2 + 1] = (float)sin(angle);
        }
}

#endif
