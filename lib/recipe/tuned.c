/* Presets for one model, found by `lowkey tune` with docs/tuning.md's commands for presets. */
#include "lowkey.h"

enum { N_TUNED = 1 };
static const lk_tuned_preset tuned[N_TUNED] = {
    {"smollm2-135m-4", "all: f16", "x", 1},
};

lk_tuned_preset lk_recipe_tuned(size_t i) {
    static const lk_tuned_preset none = {NULL, NULL, NULL, 0};
    return i < N_TUNED ? tuned[i] : none;
}
