#include "attention/latents.h"

static int common_multiple(int a, int b) {
    int n = a;
    while (n % b) n += a;
    return n;
}

int lk_attn_span(const struct lk_attn *attn) {
    const struct lk_kv *side[] = {attn->k, attn->v};
    int span = 1;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < side[s]->n_level; i++)
            span = common_multiple(span, side[s]->level[i].n_head);
    return span < attn->n_head_kv ? span : attn->n_head_kv;
}

int lk_attn_widest(const struct lk_attn *attn) {
    const struct lk_kv *side[] = {attn->k, attn->v};
    int most = attn->d_head;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < side[s]->n_level; i++)
            if (side[s]->level[i].d_part > most) most = side[s]->level[i].d_part;
    return most;
}

const struct lk_level *lk_attn_latents(const struct lk_kv *v) {
    const struct lk_level *found = NULL;
    for (int i = 0; i < v->n_level; i++)
        if (v->level[i].basis && (!found || v->level[i].d_part > found->d_part))
            found = &v->level[i];
    return found;
}

bool lk_attn_same_domain(const struct lk_kv *kv, int a, int b) {
    const struct lk_level *x = &kv->level[a], *y = &kv->level[b];
    return x->basis == y->basis && x->d_part == y->d_part &&
           lk_codec_same_domain(&kv->rule[a].codec, &kv->rule[b].codec);
}

void lk_attn_reconstruct(const struct lk_level *latents, int head_kv, int d_head, const float *sum,
                         float *out) {
    float row[LK_MAX_D_HEAD];
    lk_project_back(latents->basis, head_kv / latents->n_head, head_kv % latents->n_head, d_head,
                    latents->d_part, sum, row);
    for (int c = 0; c < d_head; c++) out[c] += row[c];
}
