/* Custom nodes that update the states of recurrent layers. */
#include "engine/recurrent_nodes.h"

#include <string.h>

/* Thread ith's share of copying n floats. */
static void copy_share(float *to, const float *from, size_t n, int ith, int nth) {
    size_t first = n * (size_t)ith / (size_t)nth, last = n * (size_t)(ith + 1) / (size_t)nth;
    memcpy(to + first, from + first, (last - first) * sizeof *to);
}

/* src: projections [n_row][channels]. Convolves the channels of each sequence. */
static void convolve_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    const struct lk_net *net = job->pass->model->net;
    struct lk_recurrence_weights weights = lk_recurrent_weights(job->pass->model->net, job->layer);
    int channels = lk_recurrence_channels(&net->hp.recurrence);
    int first = (int)((int64_t)channels * ith / nth),
        last = (int)((int64_t)channels * (ith + 1) / nth);
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        const struct lk_seq *seq = &job->pass->seq[i];
        size_t at = (size_t)seq->row * channels;
        const float *x = (const float *)dst->src[0]->data + at,
                    *from = lk_recurrent_state(&net->hp, lk_states_before(seq), job->layer);
        float *to = lk_recurrent_state(&net->hp, seq->session->recurrent, job->layer);
        lk_recurrence_conv(&net->hp.recurrence, &weights, from, x, seq->n_tok, first, last,
                           (float *)dst->data + at);
        lk_recurrence_conv_advance(&net->hp.recurrence, from, to, x, seq->n_tok, first, last);
        if (seq->drafts)
            copy_share(lk_recurrent_input(&seq->session->drafts, &net->hp, job->layer).mixed, x,
                       (size_t)seq->n_tok * channels, ith, nth);
    }
}

/* src: the convolved projections, decay and beta [n_row][n_v_head]. */
static void recurrence_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    const struct lk_hparams *hp = &job->pass->model->net->hp;
    struct lk_recurrence_weights weights = lk_recurrent_weights(job->pass->model->net, job->layer);
    int n_head = hp->recurrence.n_v_head, channels = lk_recurrence_channels(&hp->recurrence);
    for (size_t task = (size_t)ith; task < job->pass->n_seq * n_head; task += (size_t)nth) {
        const struct lk_seq *seq = &job->pass->seq[task / n_head];
        size_t row = (size_t)seq->row;
        const float *decay = (const float *)dst->src[1]->data + row * n_head,
                    *beta = (const float *)dst->src[2]->data + row * n_head;
        lk_recurrence_head(&hp->recurrence, &weights, job->pass->model->kernels,
                           lk_recurrent_state(hp, lk_states_before(seq), job->layer),
                           lk_recurrent_state(hp, seq->session->recurrent, job->layer),
                           (int)(task % n_head), (const float *)dst->src[0]->data + row * channels,
                           decay, beta, seq->n_tok,
                           (float *)dst->data + row * n_head * hp->recurrence.d_value);
        if (!seq->drafts || task % n_head != 0) continue;
        struct lk_recurrent_input input = lk_recurrent_input(&seq->session->drafts, hp, job->layer);
        memcpy(input.decay, decay, (size_t)seq->n_tok * n_head * sizeof *decay);
        memcpy(input.beta, beta, (size_t)seq->n_tok * n_head * sizeof *beta);
    }
}

struct ggml_tensor *lk_recurrence_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                        const struct lk_qkv *pre) {
    const struct lk_recurrence_shape *shape = &job->pass->model->net->hp.recurrence;
    int64_t n_tok = pre->mixed->ne[1];
    struct ggml_tensor *mixed = pre->mixed;
    struct ggml_tensor *args[] = {ggml_custom_4d(ctx, GGML_TYPE_F32, mixed->ne[0], n_tok, 1, 1,
                                                 &mixed, 1, convolve_node, GGML_N_TASKS_MAX, job),
                                  pre->decay, pre->beta};
    if (shape->kind == LK_SHORT_CONV) return args[0];
    return ggml_custom_4d(ctx, GGML_TYPE_F32, (int64_t)shape->n_v_head * shape->d_value, n_tok, 1,
                          1, args, 3, recurrence_node, GGML_N_TASKS_MAX, job);
}
