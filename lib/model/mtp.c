/* The parts of a layer that predicts further tokens. */
#include "model/mtp.h"

#include "model/blocks.h"

lk_status lk_mtp_enable(struct lk_net *net, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    if (hp->n_next == 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the file has no layer that predicts further tokens (MTP); many files are "
                       "made without it");
    if (!net->family->has_mtp)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "prediction of further tokens (MTP) is not supported for %s models",
                       net->arch);
    if (hp->n_next > 1)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the file has %d layers that predict further tokens (MTP); one is supported",
                       hp->n_next);
    hp->mtp = true;
    return LK_OK;
}

lk_status lk_mtp_bind(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_mtp *m = &net->mtp;
    int64_t n = net->hp.n_embd, n_vocab = net->hp.n_vocab;
    const struct lk_tensor_spec spec[] = {
        {&m->join, "blk.%d.nextn.eh_proj.weight", LK_USE_MATRIX, LK_REQUIRED, 2 * n, n},
        {&m->embd_norm, "blk.%d.nextn.enorm.weight", LK_USE_VECTOR, LK_REQUIRED, n, 1},
        {&m->hidden_norm, "blk.%d.nextn.hnorm.weight", LK_USE_VECTOR, LK_REQUIRED, n, 1},
        {&m->embd, "blk.%d.nextn.embed_tokens.weight", LK_USE_TABLE, LK_OPTIONAL, n, n_vocab},
        {&m->norm, "blk.%d.nextn.shared_head_norm.weight", LK_USE_VECTOR, LK_OPTIONAL, n, 1},
        {&m->output, "blk.%d.nextn.shared_head_head.weight", LK_USE_MATRIX, LK_OPTIONAL, n,
         n_vocab},
    };
    return lk_bind(ld, spec, sizeof spec / sizeof *spec, net->hp.n_layer, err);
}

struct ggml_tensor *lk_mtp_input(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *h) {
    const struct lk_mtp *m = &net->mtp;
    float eps = net->hp.norm_eps;
    struct ggml_tensor *embd = ggml_get_rows(ctx, m->embd ? m->embd : net->tok_embd, tok);
    struct ggml_tensor *both = ggml_concat(ctx, lk_rms_norm(ctx, embd, m->embd_norm, eps),
                                           lk_rms_norm(ctx, h, m->hidden_norm, eps), 0);
    return lk_linear(net, ctx, m->join, NULL, NULL, both);
}

struct ggml_tensor *lk_mtp_norm(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x) {
    const struct lk_mtp *m = &net->mtp;
    return lk_rms_norm(ctx, x, m->norm ? m->norm : net->output_norm, net->hp.norm_eps);
}

struct ggml_tensor *lk_mtp_head(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *normed) {
    const struct lk_mtp *m = &net->mtp;
    return lk_linear(net, ctx, m->output ? m->output : net->output, NULL, NULL, normed);
}
