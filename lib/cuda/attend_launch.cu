/* The choice of an attention kernel and of its splits. Rules, from measurements of single levels on
 * an H200 (batch 1 to 32, 8 KV heads of 128 channels) that the launches of several levels have not
 * repeated yet:
 *
 * - One block fills a multiprocessor. Its 12 warps (fewer where shared memory is small) take chunks
 *   in turn, so a block with fewer chunks than warps is a waste.
 * - Few pairs of (sequence, KV head): each is split until the card is full. If a card has clusters,
 *   8 splits are a cluster, which joins them without global memory.
 * - Many pairs: as few splits as fill whole waves of blocks. A split costs about 1 % of a wave. */
#include "cuda/attend_kernel.h"
#include "cuda/attend_launch.h"

namespace {

/* Rows of the longest call. */
int most_rows(const lk_device_attend *call, int n) {
    int most = 0;
    for (int i = 0; i < n; i++) {
        int rows = 0;
        for (int s = 0; s < call[i].n_segment; s++) rows += call[i].segment[s].n_row;
        if (rows > most) most = rows;
    }
    return most;
}

/* The pairs of codecs that would come in chunks, by the coding of the first KV head. */
uint32_t wanted_pairs(const lk_device_attend *call, int n) {
    uint32_t pairs = 0;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < call[i].n_segment; s++) {
            const lk_device_coding &k = call[i].segment[s].k.coding,
                                   &v = call[i].segment[s].v.coding;
            if (k.coding == LK_ROT && v.coding == LK_ROT && k.book == LK_DEVICE_LLOYD &&
                v.book == LK_DEVICE_LLOYD)
                pairs |= attend_pair(k.bits, v.bits);
        }
    return pairs;
}

int count_bits(uint32_t x) { return x ? (int)(x & 1) + count_bits(x >> 1) : 0; }

/* Splits of n_pair pairs over n_sm multiprocessors, at most `most`. */
int choose_splits(int n_pair, int n_sm, int most) {
    int best = 1;
    double best_share = 0; /* of the time that blocks are busy */
    for (int n = 1; n <= most && (n == 1 || n * n_pair <= 8 * n_sm); n++) {
        int waves = (n * n_pair + n_sm - 1) / n_sm;
        double share = (double)n * n_pair / ((double)waves * n_sm) * (1 - 0.01 * n);
        if (share > best_share) best = n, best_share = share;
    }
    return best;
}

struct choice {
    const attend_entry *entry;
    int score;
};

/* Prefer kernels with chunks for what is there, then clusters for few pairs, then many warps. */
void consider(const attend_entry *entries, int n, const gpu_card *card, const lk_device_attend &a,
              uint32_t pairs, int columns, bool clusters, choice *best) {
    for (int i = 0; i < n; i++) {
        const attend_entry &e = entries[i];
        if (a.d_head > e.channels ||
            e.shared(a.d_head, a.d_rope, a.q_shifted != 0) > card->max_shared)
            continue;
        if (e.cluster > 1 && !clusters) continue;
        uint32_t in_chunks = a.d_head == e.channels && a.d_rope == 0 ? pairs & e.pairs : 0;
        int score = 1000 * count_bits(in_chunks) + 100 * (e.cluster > 1) + e.warps;
        if (columns > 4)
            score += 200 * (e.columns > 4);
        else
            score += 200 * (e.columns == 4);
        score -= e.channels / 8; /* no larger sums than needed */
        if (!best->entry || score > best->score) *best = {&e, score};
    }
}

} // namespace

bool attend_plan_make(const gpu_card *card, const lk_device_attend *call, int n,
                      attend_plan *plan) {
    const lk_device_attend &a = call[0];
    int columns = 0;
    for (int i = 0; i < n; i++) {
        int n_column = call[i].n_head / call[i].n_head_kv * call[i].n_tok;
        if (n_column > columns) columns = n_column;
    }
    int n_pair = n * a.n_head_kv, n_chunk = (most_rows(call, n) + 127) / 128;
    bool clusters = card->major >= 9 && card->major < 12 && 8 * n_pair <= card->n_sm;
    uint32_t pairs = wanted_pairs(call, n);
    choice best = {NULL, 0};
    consider(attend_entries_128, attend_n_entry_128, card, a, pairs, columns, clusters, &best);
    consider(attend_entries_64, attend_n_entry_64, card, a, pairs, columns, clusters, &best);
    consider(attend_entries_any, attend_n_entry_any, card, a, pairs, columns, clusters, &best);
    if (!best.entry) return false;

    const attend_entry &e = *best.entry;
    memset(plan, 0, sizeof *plan);
    plan->entry = &e;
    plan->shared = e.shared(a.d_head, a.d_rope, a.q_shifted != 0);
    plan->launch.n_call = n, plan->launch.n_head_kv = a.n_head_kv;
    plan->launch.n_tile = (columns + e.columns - 1) / e.columns;
    n_pair *= plan->launch.n_tile;
    int most = (n_chunk + e.warps - 1) / e.warps; /* splits with work for all warps */
    if (e.cluster > 1) {
        int n_cluster = card->n_sm / (e.cluster * n_pair),
            enough = (most + e.cluster - 1) / e.cluster;
        if (n_cluster > enough) n_cluster = enough;
        plan->launch.n_split = e.cluster * (n_cluster > 1 ? n_cluster : 1);
    } else {
        plan->launch.n_split = choose_splits(n_pair, card->n_sm, most > 1 ? most : 1);
    }
    size_t rows = (size_t)n_pair * (size_t)e.columns;
    plan->scratch_bytes =
        rows * (size_t)(plan->launch.n_split / e.cluster) * (size_t)(e.channels + 2) * 4;
    plan->ticket_bytes = rows * 4;
    return true;
}

int attend_run(const attend_plan *plan, gpu_stream stream) {
    const lk_device_attend_launch &a = plan->launch;
    return plan->entry->launch(a.n_split, a.n_head_kv * a.n_tile, a.n_call, plan->shared, stream,
                               &a);
}
