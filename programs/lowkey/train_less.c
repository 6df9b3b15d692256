/* lowkey train less: networks of LESS as a sidecar. */
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "train.h"

#include <stdio.h>

static void layer_done(void *progress, const lk_less_layer *l) {
    progress_end(progress);
    printf("layer %2d  loss %.4f of the policy's, epoch %d of %d, %.0f s\n", l->layer, l->loss,
           l->best_epoch, l->n_epoch, l->seconds);
    fflush(stdout);
}

int train_less(const struct train_args *a, lk_model *model, const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    struct progress progress = progress_start("training");
    int32_t budget[MAX_LIST], prompt[MAX_LIST];
    for (size_t i = 0; i < a->budget.n; i++) budget[i] = (int32_t)a->budget.item[i];
    for (size_t i = 0; i < a->prompt.n; i++) prompt[i] = (int32_t)a->prompt.item[i];
    lk_less_opts opts = {.policy = a->policy ? a->policy : "h2o",
                         .from = a->from,
                         .budget = budget,
                         .n_budget = (int32_t)a->budget.n,
                         .prompt = prompt,
                         .n_prompt = (int32_t)a->prompt.n,
                         .n_ctx = (int32_t)a->ctx,
                         .n_feature = (int32_t)a->features,
                         .n_hidden = (int32_t)a->hidden,
                         .share = a->share > 0 ? (int32_t)a->share : 0,
                         .n_epoch = a->epochs > 0 ? (int32_t)a->epochs : 0,
                         .n_query = (int32_t)a->queries,
                         .rate = (float)a->rate,
                         .dropout = a->dropout >= 0 ? (float)a->dropout : 0.3f,
                         .valid = (float)a->valid,
                         .plain = a->plain,
                         .first_layer = (int32_t)(a->layers.n ? a->layers.item[0] : 0),
                         .n_layer =
                             (int32_t)(a->layers.n ? a->layers.item[1] - a->layers.item[0] + 1 : 0),
                         .seed = (uint64_t)a->seed,
                         .progress = progress_step,
                         .layer_done = layer_done,
                         .user = &progress};
    lk_status status = lk_train_less(model, tok, n_tok, &opts, a->output, &err);
    progress_end(&progress);
    if (status == LK_E_CANCELLED) return print_error("%s", err.msg), STATUS_INTERRUPTED;
    if (status) return print_lk_error(&err);
    int32_t last = lk_model_get_info(model).n_layer - 1;
    if (opts.first_layer == 0 && opts.first_layer + (a->layers.n ? opts.n_layer - 1 : last) == last)
        printf("wrote %s\n", a->output);
    else
        print_paragraph(stdout,
                        "layers %d to %d of 0 to %d are trained; %s is not written yet. When the "
                        "others are trained too, the same command without --layers writes it.",
                        (int)opts.first_layer, (int)(opts.first_layer + opts.n_layer - 1),
                        (int)last, a->output);
    return STATUS_OK;
}
