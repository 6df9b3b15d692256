/* The latent kernels that are compiled, and the choice among them. */
#include "cuda/latent.h"
#include "cuda/latent_launch.h"
#include "cuda/latent_pack.h"

namespace {

template <class sh> void pack_rope_of(const struct latent_rope *rope, char *out) {
    latent_pack_rope<sh>(*rope, out);
}

template <class sh, int CLUSTER>
int launch_of(int n_split, int n_y, int n_call, gpu_stream stream,
              const struct lk_device_latent_launch *args) {
    return gpu_launch<latent_kernel<sh, CLUSTER>>(gpu_grid{n_split, n_y, n_call}, sh::BYTES, stream,
                                                  *args);
}

template <class sh>
int back_of(int n_head_kv, int n_call, gpu_stream stream,
            const struct lk_device_latent_launch *args) {
    return gpu_launch<latent_back<sh::D, sh::NQ>>(gpu_grid{n_head_kv, n_call, 1}, 0, stream, *args);
}

template <class sh>
int front_of(int n_head_kv, int n_call, gpu_stream stream,
             const struct lk_device_latent_launch *args) {
    return gpu_launch<latent_front<sh::D>>(gpu_grid{n_head_kv, n_call, 1}, 0, stream, *args);
}

/* A kernel for latents of rotated keys. */
template <class sh, int CLUSTER> constexpr struct latent_entry post_entry_of() {
    return {
        sh::D,        sh::R,      sh::KB,    sh::RV, sh::VB, sh::NH, sh::NQ, 0,
        CLUSTER,      true,       sh::BYTES, 0,      0,      NULL,   NULL,   launch_of<sh, CLUSTER>,
        front_of<sh>, back_of<sh>};
}

template <class sh, int CLUSTER> constexpr struct latent_entry entry_of() {
    return {sh::D,
            sh::R,
            sh::KB,
            sh::RV,
            sh::VB,
            sh::NH,
            sh::NQ,
            sh::FOLD ? sh::FAST : sh::PAIRS,
            CLUSTER,
            false,
            sh::BYTES,
            (size_t)sh::UP_HEAD,
            (size_t)sh::ROPE,
            latent_pack_up<sh>,
            pack_rope_of<sh>,
            launch_of<sh, CLUSTER>,
            NULL,
            back_of<sh>};
}

/* In order of preference. Fields of a shape: channels, K's rank and bits, V's rank and bits, heads,
 * queries, fold, chunks of K and of V in flight, table in f16, rotated keys. */
const struct latent_entry entries[] = {
    entry_of<latent_shape<128, 128, 4, 384, 4, 4, 1, true, 2, 2, false>, 8>(),
    entry_of<latent_shape<128, 256, 4, 256, 4, 4, 1, true, 1, 1, true>, 8>(),
    entry_of<latent_shape<128, 256, 3, 256, 3, 4, 1, true, 1, 2, true>, 8>(),
    entry_of<latent_shape<128, 128, 4, 256, 4, 4, 4, false, 2, 2, true>, 8>(),
    entry_of<latent_shape<128, 128, 4, 384, 4, 2, 1, true, 1, 1, true>, 1>(),
    entry_of<latent_shape<128, 128, 4, 256, 4, 1, 4, false, 1, 1, true>, 1>(),
    post_entry_of<latent_shape<128, 256, 4, 256, 4, 4, 1, false, 2, 2, false, true>, 8>(),
    post_entry_of<latent_shape<128, 256, 4, 256, 4, 4, 1, false, 2, 2, false, true>, 1>(),
};

} // namespace

const struct latent_entry *latent_choose(const struct gpu_card *card,
                                         const struct lk_device_latent_need *need) {
    const struct latent_entry *best = NULL;
    bool clusters = card->major >= 9 && card->major < 12;
    for (const struct latent_entry &e : entries) {
        if (e.post != need->post || e.d_head != need->d_head || e.k_bits != need->k_bits ||
            e.v_bits != need->v_bits || e.k_rank < need->k_rank || e.v_rank < need->v_rank ||
            e.shared > card->max_shared || need->k_heads % e.heads != 0 ||
            need->v_heads % e.heads != 0 || (!e.post && e.n_fast < need->n_fast) ||
            (e.cluster > 1 && !clusters))
            continue;
        /* the fold costs as much as half of the pairs from four queries on */
        bool fold = e.n_fast < e.d_head / 2, best_fold = best && best->n_fast < best->d_head / 2;
        if (!best || (!e.post && fold != best_fold && fold == (need->queries <= 2))) best = &e;
    }
    return best;
}

const struct latent_entry *latent_entry_at(int number) { return &entries[number]; }
int latent_entry_number(const struct latent_entry *entry) { return (int)(entry - entries); }

struct latent_room latent_plan(const struct gpu_card *card, const struct latent_entry *e, int n_row,
                               int queries, struct lk_device_latent_launch *a) {
    a->n_tile = (queries + e->queries - 1) / e->queries;
    int n_block = a->n_call * (a->n_head_kv / e->heads) * a->n_tile, n_chunk = (n_row + 127) / 128;
    int n_cluster = card->n_sm / (n_block * e->cluster);
    int most = (n_chunk + 2 * e->cluster - 1) / (2 * e->cluster); /* both halves of K have work */
    n_cluster = n_cluster < most ? n_cluster : most;
    n_cluster = n_cluster > 1 ? n_cluster : 1;
    a->n_split = n_cluster * e->cluster;
    size_t columns = (size_t)a->n_call * a->n_head_kv * a->n_tile * e->queries,
           places = columns * (size_t)(e->v_rank / 32);
    return {columns * (size_t)(a->v_rank + 2) * 4, places * (size_t)n_cluster * 34 * 4, places * 4};
}

int latent_run(const struct latent_entry *e, const struct lk_device_latent_launch *a,
               gpu_stream stream) {
    int error = e->front ? e->front(a->n_head_kv, a->n_call, stream, a) : 0;
    if (!error)
        error = e->launch(a->n_split, a->n_head_kv / e->heads * a->n_tile, a->n_call, stream, a);
    return error ? error : e->back(a->n_head_kv, a->n_call, stream, a);
}
