/* Access to what a tuning run holds. */
#include "tune/tune_state.h"

struct lk_measure lk_tune_measure_of(struct lk_tune *t) {
    return (struct lk_measure){.model = t->model,
                               .log = &t->log,
                               .max_bytes = t->opts.max_bytes,
                               .progress = t->opts.progress,
                               .user = t->opts.user};
}

double lk_tune_measured_kl(const struct lk_tune *t, const struct lk_measure_text *text,
                           const struct lk_buf *recipe) {
    return lk_tune_log_find(&t->log, text->id, lk_buf_cstr(recipe))->kl_mean;
}
