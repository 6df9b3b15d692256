/* A sampler's handle. */
#ifndef LK_ENGINE_SAMPLER_H
#define LK_ENGINE_SAMPLER_H

#include "token/sampling.h"

struct lk_sampler {
    struct lk_sampling *sampling;
    const lk_model *model;
    lk_sampler_opts opts;
};

#endif
