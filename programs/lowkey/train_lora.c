/* lowkey train lora: adapters that recover what a cache loses, as a sidecar. */
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "train.h"

#include <inttypes.h>
#include <stdio.h>

struct watch {
    struct progress progress;
    lk_lora_report last;
};

static bool step(void *watch, uint64_t done, uint64_t total) {
    return progress_step(&((struct watch *)watch)->progress, done, total);
}

static void report(void *user, const lk_lora_report *r) {
    struct watch *watch = user;
    progress_end(&watch->progress);
    printf("step %" PRId64 " of %" PRId64 "  KL %.4f +- %.4f on the validation sequences%s\n",
           r->step, r->n_step, r->kl, r->kl_stderr, r->best_step == r->step ? ", best so far" : "");
    fflush(stdout);
    watch->last = *r;
}

/* Epochs of the command line, where 0 means none, as the library's, where it means the default. */
static int32_t epochs(int64_t n) { return n < 0 ? 0 : n == 0 ? -1 : (int32_t)n; }

int train_lora(const struct train_args *a, lk_model *model, const lk_recipe *recipe,
               const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    struct watch watch = {.progress = progress_start("training")};
    lk_lora_opts opts = {.n_ctx = (int32_t)a->ctx,
                         .valid = (float)a->valid,
                         .rank = (int32_t)a->rank,
                         .alpha = (float)a->alpha,
                         .rate = (float)a->rate,
                         .end_rate = (float)a->end_rate,
                         .batch = (int32_t)a->batch,
                         .n_layer_epoch = epochs(a->layer_epochs),
                         .n_epoch = epochs(a->epochs),
                         .first_layer = (int32_t)(a->layers.n ? a->layers.item[0] : 0),
                         .n_layer =
                             (int32_t)(a->layers.n ? a->layers.item[1] - a->layers.item[0] + 1 : 0),
                         .seed = (uint64_t)a->seed,
                         .progress = step,
                         .report = report,
                         .user = &watch};
    lk_status status = lk_train_lora(model, recipe, tok, n_tok, &opts, a->output, &err);
    progress_end(&watch.progress);
    if (status == LK_E_CANCELLED) return print_error("%s", err.msg), STATUS_INTERRUPTED;
    if (status) return print_lk_error(&err);
    printf("wrote %s, with the weights of step %" PRId64 "\n", a->output, watch.last.best_step);
    return STATUS_OK;
}
