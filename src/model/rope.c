/* Angles of rotary positions, as ggml_rope_ext turns them. */
#include "model/blocks.h"

#include <math.h>

/* The pair whose wavelength lets it turn `turns` times in the original context (YaRN; Peng et al. 2023,
 * section 3.2). */
static double pair_of(const struct lk_hparams *hp, double turns) {
    const double pi = 3.14159265358979323846;
    return hp->n_rot * log(hp->n_ctx_orig / (turns * 2 * pi)) / (2 * log((double)hp->rope_base));
}

void lk_rope_freq(const struct lk_net *net, double *freq) {
    const struct lk_hparams *hp = &net->hp;
    double low = 0, high = 0;
    if (hp->yarn_ext_factor != 0) {
        low = fmax(0, floor(pair_of(hp, hp->yarn_beta_fast)));
        high = fmin(hp->n_rot - 1, ceil(pair_of(hp, hp->yarn_beta_slow)));
    }
    for (int i = 0; i < hp->n_rot / 2; i++) {
        float divisor = 1;
        if (net->rope_factors) ggml_backend_tensor_get(net->rope_factors, &divisor, i * sizeof divisor, sizeof divisor);
        double turned = pow((double)hp->rope_base, -2.0 * i / hp->n_rot) / divisor, scaled = hp->rope_scale * turned;
        double ramp = 1 - fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
        double mix = hp->yarn_ext_factor != 0 ? ramp * hp->yarn_ext_factor : 0;
        freq[i] = scaled * (1 - mix) + turned * mix;
    }
}
