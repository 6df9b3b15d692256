/* K or V rows of a layer outside a cache. */
#include "support_kv.h"

#include <stdlib.h>

struct lk_kv exact_rows(enum lk_side side, int n_head, int d_head, const float *x, int n,
                        void **block) {
    struct lk_kv kv = {.side = side, .n_level = 1, .n_tok = n};
    kv.rule[0] = (struct lk_level_rule){.codec = lk_codec_f16, .block_rows = n};
    kv.count[0].rows = n;
    kv.level[0] = (struct lk_level){
        .block = block,
        .n_block = 1,
        .head_bytes = lk_codec_head_bytes(&lk_codec_f16, side, d_head, n),
        .n_part = n_head,
        .d_part = d_head,
        .n_head = 1,
    };
    *block = malloc((size_t)n_head * kv.level[0].head_bytes);
    for (int h = 0; *block && h < n_head; h++) {
        struct lk_part part = lk_kv_part(&kv, 0, h);
        lk_codec_encode(&part, (char *)*block + h * kv.level[0].head_bytes, 0, n, x + h * d_head,
                        (size_t)n_head * d_head);
    }
    return kv;
}
