/* What attention needs to know about levels of latents. */
#include "attention/latents.h"

int lk_attn_partial_latents(const struct lk_attn *attn) {
    return attn->restored ? 0 : lk_attn_v_rank(attn->v);
}

static int common_multiple(int a, int b) {
    int n = a;
    while (n % b) n += a;
    return n;
}

int lk_attn_head_unit(const struct lk_attn *attn) {
    const struct lk_kv *side[] = {attn->k, attn->v};
    int unit = 1;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < side[s]->n_level; i++)
            unit = common_multiple(unit, side[s]->level[i].n_head);
    return unit < attn->n_head_kv ? unit : attn->n_head_kv;
}

int lk_attn_max_part(const struct lk_attn *attn) {
    const struct lk_kv *side[] = {attn->k, attn->v};
    int max = attn->d_head;
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < side[s]->n_level; i++)
            if (side[s]->level[i].d_part > max) max = side[s]->level[i].d_part;
    return max;
}

const struct lk_level *lk_attn_v_latents(const struct lk_kv *v, int head_kv) {
    const struct lk_level *found = NULL;
    int rank = -1;
    for (int i = 0; i < v->n_level; i++) {
        const struct lk_level *level = &v->level[i];
        if (!level->basis) continue;
        int n = lk_level_part_channels(level, head_kv / level->n_head);
        if (n > rank) found = level, rank = n;
    }
    return found;
}

int lk_attn_v_rank(const struct lk_kv *v) {
    int rank = 0;
    for (int i = 0; i < v->n_level; i++)
        if (v->level[i].basis && v->level[i].d_part > rank) rank = v->level[i].d_part;
    return rank;
}

bool lk_attn_same_domain(const struct lk_kv *kv, int a, int b, int part) {
    const struct lk_level *x = &kv->level[a], *y = &kv->level[b];
    return x->basis == y->basis &&
           lk_level_part_channels(x, part) == lk_level_part_channels(y, part) &&
           lk_codec_same_domain(&kv->rule[a].codec, &kv->rule[b].codec);
}
