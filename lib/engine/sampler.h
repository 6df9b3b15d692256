/* A sampler's handle. */
#ifndef LK_ENGINE_SAMPLER_H
#define LK_ENGINE_SAMPLER_H

#include "token/sampling.h"

struct lk_sampler {
    struct lk_sampling *sampling;
    int32_t n_vocab; /* of the model */
};

#endif
