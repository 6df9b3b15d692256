/* K or V rows of a layer outside a cache. */
#include "support_kv.h"

#include <stdlib.h>

/* One block, and the arena that it is in. */
struct exact {
    struct lk_arena arena;
    struct lk_slab slab;
    lk_block block;
    _Alignas(64) char rows[];
};

struct lk_kv exact_rows(enum lk_side side, int n_head, int d_head, const float *x, int n,
                        void **memory) {
    size_t head_bytes = lk_codec_head_bytes(&lk_codec_f16, side, d_head, n);
    struct exact *exact = *memory =
        aligned_alloc(64, (sizeof *exact + (size_t)n_head * head_bytes + 63) / 64 * 64);
    if (!exact) abort();
    exact->block = lk_arena_wrap(&exact->arena, &exact->slab, exact->rows);
    struct lk_kv kv = {.side = side, .n_level = 1, .n_tok = n, .arena = &exact->arena};
    kv.rule[0] = (struct lk_level_rule){.codec = lk_codec_f16, .block_rows = n};
    kv.count[0].rows = n;
    kv.level[0] = (struct lk_level){
        .block = &exact->block,
        .n_block = 1,
        .head_bytes = head_bytes,
        .n_part = n_head,
        .d_part = d_head,
        .n_head = 1,
    };
    for (int h = 0; h < n_head; h++) {
        struct lk_part part = lk_kv_part(&kv, 0, h);
        lk_codec_encode(&part, exact->rows + h * head_bytes, 0, n, x + h * d_head,
                        (size_t)n_head * d_head);
    }
    return kv;
}
