/* Jobs of bench/gpu/kernels.cpp over low-rank latents of groups of 4 KV heads:
 *
 *     latent heads=32/32 d=128 batch=1 rows=65536 queries=1 k=rot4 v=rot4 k_rank=128 v_rank=384
 *     ... rope=before fold=1
 *
 * A score job has the scores of K, and values that cost little: V has 128 components in 2 bits.
 * rope=before: K's latents are from before RoPE, as Palu's; the kernel reconstructs keys and
 * rotates them. fold=1: pairs of channels that turn slowly are folded into the query. rope=after: a
 * group is one KV head whose channels are the components, so the job is one of attention. The table
 * of kernels has the shapes of the rows of bench-gpu. */
#include "cuda/latent.h"
#include "cuda/latent_pack.h"
#include "gpu/jobs.h"
#include "gpu/rows.h"

extern "C" {
#include "rope_fold.h"
}

namespace {

enum { D = 128, PART_HEADS = 4, CLUSTER = 4 };

struct latent_problem {
    attend_problem p; /* shape and queries */
    side_rows k, v;   /* of groups, in place of heads */
    int k_rank, v_rank;
    std::vector<float> up8, v_up; /* [kv_heads][D][k_rank] of pairs, [kv_heads][v_rank][D] */
    double speed[D / 2];
};

/* A side's rows: groups of heads are the parts of a block, and a row has `rank` components. */
bool place_latents(bench_card &card, latent_problem &l, side_rows *s, int rank, size_t most,
                   noise *random) {
    attend_problem &p = l.p;
    int heads = p.kv_heads, d = p.d;
    s->codec.mean = s->codec.sigma = false;
    p.kv_heads = heads / PART_HEADS, p.d = rank;
    bool placed = place_side(card, p, s, p.rows, most, random);
    p.kv_heads = heads, p.d = d;
    return placed;
}

/* Memory of the card with a copy of the host's. */
template <class T> std::unique_ptr<buffer> sent(bench_card &card, const std::vector<T> &x) {
    std::unique_ptr<buffer> b(new buffer(x.size() * sizeof(T)));
    if (b->at()) card.send(b->at(), x.data(), b->size);
    return b;
}

/* Component j of rows in the codec's domain, where up-projections are: [row][rank]. */
std::vector<float> domain_rows(const latent_problem &l, const side_rows &s, int rank, int sequence,
                               int part) {
    std::vector<float> x((size_t)l.p.rows * (size_t)rank);
    for (int row = 0; row < l.p.rows; row++) {
        size_t block = (size_t)sequence * s.n_block + (size_t)(row / s.block_rows);
        struct lk_part of = {&s.codec, s.side, rank, s.block_rows, NULL};
        const char *head = &s.host[block * s.block_bytes + (size_t)part * s.head_bytes];
        lk_codec_decode(&of, head, row % s.block_rows, 1, &x[(size_t)row * (size_t)rank],
                        (size_t)rank);
        lk_rotate(&x[(size_t)row * (size_t)rank], rank);
    }
    return x;
}

/* Squared error of layer 0's partials relative to double precision over the same codes, with the
 * up-projection of K in 8 bits. */
double latent_error(const latent_problem &l, const std::vector<float> &partial) {
    const attend_problem &p = l.p;
    double error = 0, power = 0;
    for (int b = 0; b < p.batch; b++)
        for (int head = 0; head < p.heads; head++) {
            int h = head / p.group(), part = h / PART_HEADS;
            size_t row = (size_t)b * (size_t)p.heads + (size_t)head;
            std::vector<float> kz = domain_rows(l, l.k, l.k_rank, b, part),
                               vz = domain_rows(l, l.v, l.v_rank, b, part);
            std::vector<double> score((size_t)p.rows), out(D, 0.0), sum((size_t)l.v_rank, 0.0);
            double max = -1e300, all = 0;
            for (int i = 0; i < p.rows; i++) {
                const float *up = &l.up8[(size_t)h * D * (size_t)l.k_rank];
                double key[D], s = 0;
                for (int c = 0; c < D; c++) {
                    key[c] = 0;
                    for (int j = 0; j < l.k_rank; j++)
                        key[c] += (double)up[c * l.k_rank + j] *
                                  (double)kz[(size_t)i * (size_t)l.k_rank + (size_t)j];
                }
                for (int j = 0; j < D / 2; j++) {
                    double turn = l.speed[j] * i, co = cos(turn), si = sin(turn);
                    s += p.q[row * D + (size_t)j] * (co * key[2 * j] - si * key[2 * j + 1]) +
                         p.q[row * D + (size_t)j + D / 2] * (si * key[2 * j] + co * key[2 * j + 1]);
                }
                score[(size_t)i] = s / sqrt((double)D);
                max = std::max(max, score[(size_t)i]);
            }
            for (int i = 0; i < p.rows; i++) {
                double w = exp(score[(size_t)i] - max);
                all += w;
                for (int j = 0; j < l.v_rank; j++)
                    sum[(size_t)j] += w * (double)vz[(size_t)i * (size_t)l.v_rank + (size_t)j];
            }
            const float *got = &partial[row * (D + 2)];
            for (int c = 0; c < D; c++) {
                for (int j = 0; j < l.v_rank; j++)
                    out[(size_t)c] +=
                        sum[(size_t)j] *
                        (double)l.v_up[((size_t)h * (size_t)l.v_rank + (size_t)j) * D + (size_t)c];
                double x = out[(size_t)c] / all, y = (double)got[c] / (double)got[D + 1];
                power += x * x, error += (x - y) * (x - y);
            }
        }
    return isfinite(error) ? error / power : 1;
}

/* Run a job with the kernel of a shape. */
template <class sh> answer run_shape(bench_card &card, const job &j, latent_problem &l) {
    attend_problem &p = l.p;
    noise random(3);
    size_t parts = (size_t)p.kv_heads / PART_HEADS, heads = (size_t)p.kv_heads;
    double layer_bytes =
        (double)p.batch * p.rows * (double)parts * (sh::KB * l.k_rank + sh::VB * l.v_rank) / 8;
    if (!j.emulate())
        p.layers = (int)std::max(1.0, std::min<double>(MAX_LAYERS, COLD_BYTES / layer_bytes + 1));
    size_t most = j.emulate() ? (size_t)-1 : 16;
    if (!place_latents(card, l, &l.k, l.k_rank, most, &random) ||
        !place_latents(card, l, &l.v, l.v_rank, most, &random))
        return skipped("out of memory");
    /* RoPE */
    for (int i = 0; i < D / 2; i++) l.speed[i] = pow(10000, -2.0 * i / D);
    float basis[4 * 128], cosine[4 * D], sine[4 * D];
    int n_fast = rope_fold(D / 2, l.speed, basis, cosine, sine);
    if (sh::FOLD && n_fast > sh::FAST) return skipped("too many fast pairs for the fold");
    struct latent_rope tables = {l.speed, 1, D / 2, basis, cosine, sine, D};
    int n_coarse = p.rows / 128 + 3;
    std::vector<float> fine(128 * D), coarse((size_t)n_coarse * D);
    latent_pack_angles(l.speed, D / 2, 128, 1, fine.data());
    latent_pack_angles(l.speed, D / 2, n_coarse, 128, coarse.data());
    std::vector<char> rope(sh::ROPE), packed(heads * sh::UP_HEAD);
    latent_pack_rope<sh>(tables, rope.data());
    /* up-projections: random */
    l.up8.resize(heads * D * (size_t)l.k_rank);
    for (size_t h = 0; h < heads; h++) {
        std::vector<float> up = random.many((size_t)D * (size_t)l.k_rank);
        for (float &x : up) x /= sqrtf((float)l.k_rank);
        float mean[D];
        latent_pack_up<sh>(up.data(), l.k_rank, NULL, &packed[h * sh::UP_HEAD], mean,
                           &l.up8[h * D * (size_t)l.k_rank]);
    }
    std::vector<uint16_t> v_up;
    for (float x : random.many(heads * (size_t)l.v_rank * D))
        v_up.push_back(lk_f32_to_f16(x / sqrtf((float)l.v_rank)));
    for (uint16_t x : v_up) l.v_up.push_back(lk_f16_to_f32(x));
    std::vector<struct lk_device_latent_part> k_part, v_part;
    for (size_t i = 0; i < parts; i++) {
        k_part.push_back({(uint32_t)(i * l.k.head_bytes), (uint32_t)l.k_rank});
        v_part.push_back({(uint32_t)(i * l.v.head_bytes), (uint32_t)l.v_rank});
    }
    p.q = random.many((size_t)p.batch * (size_t)p.heads * D);
    auto q = sent(card, p.q), fine_at = sent(card, fine), coarse_at = sent(card, coarse),
         rope_at = sent(card, rope), up_at = sent(card, packed), v_up_at = sent(card, v_up),
         k_part_at = sent(card, k_part), v_part_at = sent(card, v_part);
    /* calls */
    size_t row = (size_t)p.heads * (D + 2);
    buffer partial((size_t)p.batch * row * sizeof(float));
    std::vector<struct lk_device_latent> calls;
    for (int layer = 0; layer < p.layers; layer++)
        for (int b = 0; b < p.batch; b++) {
            struct lk_device_latent c = {};
            c.q = q->at() + (size_t)b * (size_t)p.heads * D * sizeof(float);
            c.partial = partial.at() + (size_t)b * row * sizeof(float);
            c.k_up = up_at->at(), c.v_up = v_up_at->at();
            c.k_part = k_part_at->at(), c.v_part = v_part_at->at();
            c.segment.k = rows_of(p, l.k, layer, b), c.segment.v = rows_of(p, l.v, layer, b);
            c.segment.n_row = p.rows, c.segment.before = p.rows - 1, c.n_tok = 1;
            calls.push_back(c);
        }
    auto calls_at = sent(card, calls);
    /* the launch */
    struct lk_device_latent_launch a = {};
    a.rope = rope_at->at(), a.fine = fine_at->at(), a.coarse = coarse_at->at();
    a.n_call = p.batch, a.n_head_kv = p.kv_heads, a.group = p.group();
    a.k_heads = a.v_heads = PART_HEADS, a.n_tile = (p.group() + sh::NQ - 1) / sh::NQ;
    a.v_rank = l.v_rank, a.n_pair = D / 2, a.halves = 1, a.scale = 1 / sqrtf((float)D);
    int n_y = p.kv_heads / sh::NH * a.n_tile, chunks = (p.rows + 127) / 128;
    int clusters = std::max(
        1, std::min(card.is.n_sm / (n_y * p.batch * CLUSTER), (chunks + CLUSTER - 1) / CLUSTER));
    a.n_split = clusters * CLUSTER;
    size_t columns = (size_t)p.batch * heads * (size_t)a.n_tile * sh::NQ;
    buffer sum(columns * (size_t)(l.v_rank + 2) * 4),
        scratch(columns * (sh::RV / 32) * (size_t)clusters * 34 * 4),
        ticket(columns * (sh::RV / 32) * 4);
    if (!partial.at() || !calls_at->at() || !sum.at() || !scratch.at() || !ticket.at())
        return skipped("out of memory");
    card.fill(ticket, 0), card.fill(partial, 0xff);
    a.sum = sum.at(), a.scratch = scratch.at(), a.ticket = ticket.at();
    typedef latent_kernel<sh, CLUSTER> kernel;
    typedef latent_back<D, sh::NQ> back;
    answer result = timed(card, p.layers, [&](int layer) {
        a.call = calls_at->at() + sizeof calls[0] * (size_t)layer * (size_t)p.batch;
        int error = gpu_launch<kernel>({a.n_split, n_y, p.batch}, sh::BYTES, card.stream, a);
        return error ? error : gpu_launch<back>({p.kv_heads, p.batch, 1}, 0, card.stream, a);
    });
    result.bytes = layer_bytes;
    if (j.emulate()) {
        std::vector<float> got((size_t)p.batch * row);
        card.receive(got.data(), partial.at(), got.size() * sizeof(float));
        result.nmse = latent_error(l, got);
    }
    return result;
}

/* The shapes of bench-gpu's rows: bits and ranks of K and V, queries of a KV head. */
struct entry {
    int k_bits, k_rank, v_bits, v_rank, group;
    bool fold;
    answer (*run)(bench_card &, const job &, latent_problem &);
};
const entry entries[] = {
    {4, 128, 4, 384, 1, false,
     run_shape<latent_shape<128, 128, 4, 384, 4, 4, 1, false, 2, 2, true>>},
    {4, 128, 4, 384, 1, true,
     run_shape<latent_shape<128, 128, 4, 384, 4, 4, 1, true, 2, 2, false>>},
    {3, 128, 4, 384, 1, true,
     run_shape<latent_shape<128, 128, 3, 384, 4, 4, 1, true, 2, 2, false>>},
    {4, 256, 4, 256, 1, true, run_shape<latent_shape<128, 256, 4, 256, 4, 4, 1, true, 1, 1, true>>},
    {4, 128, 4, 256, 4, false,
     run_shape<latent_shape<128, 128, 4, 256, 4, 4, 4, false, 2, 2, true>>},
    {4, 128, 2, 128, 1, false,
     run_shape<latent_shape<128, 128, 4, 128, 2, 4, 1, false, 2, 2, true>>},
    {4, 128, 2, 128, 1, true,
     run_shape<latent_shape<128, 128, 4, 128, 2, 4, 1, true, 2, 2, false>>},
};

/* Latents after RoPE: attention with a KV head per group. */
answer run_after(bench_card &card, const job &j, const latent_problem &l) {
    if (l.k_rank != l.v_rank) return skipped("K and V have other ranks, and no kernel for them");
    std::string text = "attend heads=" + std::to_string(l.p.heads) + "/" +
                       std::to_string(l.p.kv_heads / PART_HEADS) +
                       " d=" + std::to_string(l.k_rank) + " batch=" + j.word("batch") +
                       " queries=1 segments=" + j.word("k") + "/" + j.word("v") + ":" +
                       j.word("rows") + (j.emulate() ? " emulate=1" : "");
    return run_attend(card, job(text.c_str()));
}

} // namespace

answer run_latent(bench_card &card, const job &j) {
    latent_problem l;
    attend_problem &p = l.p;
    if (sscanf(j.word("heads").c_str(), "%d/%d", &p.heads, &p.kv_heads) != 2)
        return skipped("no heads=");
    p.d = j.number("d"), p.batch = j.number("batch", 1), p.rows = j.number("rows");
    bool score = j.kind == "score";
    l.k_rank = j.number("k_rank"), l.v_rank = score ? 128 : j.number("v_rank");
    if (j.number("group", PART_HEADS) != PART_HEADS)
        return skipped("no kernel for groups of " + j.word("group") + " heads");
    l.k.side = LK_K, l.v.side = LK_V;
    if (p.d != D || p.kv_heads % PART_HEADS) return skipped("no kernel for this shape");
    if (!codec_of(j.word("k"), LK_K, &l.k.codec) ||
        !codec_of(score ? "rot2" : j.word("v"), LK_V, &l.v.codec))
        return skipped("no kernel for K as rows of heads and V as latents");
    if (j.word("rope") == "after") return run_after(card, j, l);
    for (const entry &e : entries)
        if (l.k.codec.coding == LK_ROT && l.v.codec.coding == LK_ROT &&
            e.k_bits == l.k.codec.bits && e.k_rank == l.k_rank && e.v_bits == l.v.codec.bits &&
            e.v_rank == l.v_rank && e.group == p.group() && e.fold == (j.number("fold") != 0))
            return e.run(card, j, l);
    return skipped(l.k.codec.coding == LK_ROT && l.v.codec.coding == LK_ROT
                       ? "no kernel of this shape, bits and ranks"
                       : "no kernel for latents in f16 before RoPE");
}
