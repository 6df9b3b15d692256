/* Jobs of bench/gpu/kernels.cpp that write rows:
 *
 *     encode heads=32/8 d=128 batch=1 rows=32 queries=1 layers=32 k=rot3 v=rot2
 *     age    ... layers=32 from=rot4/rot4 k=rot3 v=rot2
 *
 * `rows` rows of every layer are encoded from f16 rows, or decoded from another codec and encoded,
 * K and V of all layers in one launch. `us` is the time of the launch. */
#include "cuda/launch_moves.h"
#include "gpu/jobs.h"
#include "gpu/rows.h"

extern "C" {
#include "codec/f16.h"
#include "device/moves.h"
}

namespace {

/* Rows of one side of all layers, and where they go. */
struct side_move {
    side_rows from, to;
    std::vector<uint16_t> plain; /* of encode: f16 [layer][row][head][d], one layer's repeated */
    std::unique_ptr<buffer> plain_at;
};

struct lk_part part_of(const attend_problem &p, const side_rows &s, int head) {
    const float *sigma = s.codec.sigma ? &p.sigma[(size_t)head * (size_t)p.d] : NULL;
    return {&s.codec, s.side, p.d, s.block_rows, sigma};
}

/* The end of a move in the blocks of a layer. Returns why it cannot be made; NULL if it can. */
const char *in_blocks(const attend_problem &p, const side_rows &s, int layer,
                      struct lk_device_move_rows *r) {
    struct lk_part part = part_of(p, s, 0);
    memset(r, 0, sizeof *r);
    r->at = s.table->at() + (size_t)layer * s.n_block * sizeof(uint64_t);
    r->sigma = s.codec.sigma ? p.sigma_at->at() : 0, r->sigma_stride = p.d;
    r->part_bytes = s.head_bytes;
    return lk_device_packing_of(&part, &r->coding);
}

/* The f16 rows of a layer. */
struct lk_device_move_rows in_rows(const attend_problem &p, const side_move &s, int layer) {
    struct lk_device_move_rows r = {};
    r.part_bytes = (uint64_t)p.d * 2, r.row_bytes = r.part_bytes * (uint64_t)p.kv_heads;
    r.at = s.plain_at->at() + r.row_bytes * (uint64_t)p.rows * (uint64_t)layer;
    r.coding = lk_device_plain(LK_ROWS_F16, p.d);
    return r;
}

/* The row of layer 0 that the move reads, as floats. */
void source_row(const attend_problem &p, const side_move &s, int row, int head, float *x) {
    if (s.plain.empty()) {
        struct lk_part part = part_of(p, s.from, head);
        size_t block = (size_t)(row / s.from.block_rows);
        lk_codec_decode(&part,
                        &s.from.host[block * s.from.block_bytes + (size_t)head * s.from.head_bytes],
                        row % s.from.block_rows, 1, x, (size_t)p.d);
        return;
    }
    size_t at = ((size_t)row * (size_t)p.kv_heads + (size_t)head) * (size_t)p.d;
    for (int c = 0; c < p.d; c++) x[c] = lk_f16_to_f32(s.plain[at + (size_t)c]);
}

/* Bytes of layer 0's blocks that differ from lib/codec's. */
size_t count_wrong(bench_card &card, const attend_problem &p, const side_move &s) {
    std::vector<char> got(s.to.n_block * s.to.block_bytes);
    card.receive(got.data(), s.to.blocks->at(), got.size());
    size_t wrong = 0;
    std::vector<float> x((size_t)s.to.block_rows * (size_t)p.d);
    for (size_t block = 0; block < s.to.n_block; block++)
        for (int head = 0; head < p.kv_heads; head++) {
            struct lk_part part = part_of(p, s.to, head);
            for (int i = 0; i < s.to.block_rows; i++)
                source_row(p, s, (int)block * s.to.block_rows + i, head,
                           &x[(size_t)i * (size_t)p.d]);
            std::vector<char> expected(s.to.head_bytes, 0x55);
            lk_codec_encode(&part, expected.data(), 0, s.to.block_rows, x.data(), (size_t)p.d);
            const char *at = &got[block * s.to.block_bytes + (size_t)head * s.to.head_bytes];
            for (size_t i = 0; i < s.to.head_bytes; i++) wrong += at[i] != expected[i];
        }
    return wrong;
}

/* Memory of one side. Returns why not; empty if it is there. */
std::string place(bench_card &card, const job &j, attend_problem &p, side_move *s,
                  enum lk_side side, noise *random) {
    s->from.side = s->to.side = side;
    std::string from = j.word("from");
    size_t slash = from.find('/');
    from = side == LK_K ? from.substr(0, slash) : from.substr(slash + 1);
    if (!codec_of(j.word(side == LK_K ? "k" : "v"), side, &s->to.codec)) return "no such codec";
    if (!place_side(card, p, &s->to, p.rows, 1, random)) return "out of memory";
    card.fill(*s->to.blocks, 0x55);
    if (j.kind == "age") {
        if (!codec_of(from, side, &s->from.codec)) return "no such codec";
        return place_side(card, p, &s->from, p.rows, (size_t)-1, random) ? "" : "out of memory";
    }
    size_t width = (size_t)p.kv_heads * (size_t)p.d;
    for (float x : random->many((size_t)p.rows * width)) s->plain.push_back(lk_f32_to_f16(x));
    s->plain_at.reset(new buffer(s->plain.size() * 2 * (size_t)p.layers));
    if (!s->plain_at->at()) return "out of memory";
    card.send(s->plain_at->at(), s->plain.data(), s->plain.size() * 2);
    card.repeat(*s->plain_at, s->plain.size() * 2);
    return "";
}

} // namespace

answer run_move(bench_card &card, const job &j) {
    attend_problem p;
    side_move side[2];
    noise random(2);
    if (sscanf(j.word("heads").c_str(), "%d/%d", &p.heads, &p.kv_heads) != 2)
        return skipped("no heads=");
    p.d = j.number("d"), p.batch = 1, p.layers = j.number("layers", 1);
    p.rows = j.number("rows") / 32 * 32;
    if (p.rows == 0) return skipped("less than a tile");
    p.sigma = random.many((size_t)p.kv_heads * (size_t)p.d);
    for (float &x : p.sigma) x = expf(0.3f * x);
    p.sigma_at.reset(new buffer(p.sigma.size() * sizeof(float)));
    card.send(p.sigma_at->at(), p.sigma.data(), p.sigma.size() * sizeof(float));
    std::vector<struct lk_device_move> moves;
    for (int s = 0; s < 2; s++) {
        std::string why = place(card, j, p, &side[s], (enum lk_side)s, &random);
        if (!why.empty()) return skipped(why);
        for (int layer = 0; layer < p.layers; layer++) {
            struct lk_device_move m = {};
            const char *refused = in_blocks(p, side[s].to, layer, &m.to);
            if (!refused && j.kind == "age") refused = in_blocks(p, side[s].from, layer, &m.from);
            if (refused) return skipped(refused);
            if (j.kind == "encode") m.from = in_rows(p, side[s], layer);
            m.kind = LK_MOVE_APPEND, m.n_row = p.rows, m.n_part = p.kv_heads;
            moves.push_back(m);
        }
    }
    int n = (int)moves.size(), n_item = lk_device_move_items(moves.data(), n);
    buffer list(moves.size() * sizeof moves[0]);
    if (!list.at()) return skipped("out of memory");
    card.send(list.at(), moves.data(), list.size);
    int shared = lk_device_move_shared(moves.data(), n);
    answer a = timed(card, 8,
                     [&](int) { return gpu_move_rows(list.at(), n, n_item, shared, card.stream); });
    size_t wrong = 0;
    for (int s = 0; s < 2; s++) wrong += count_wrong(card, p, side[s]);
    if (wrong) return failed(std::to_string(wrong) + " bytes differ from lib/codec's");
    if (j.emulate()) a.nmse = 0; /* the same bits */
    return a;
}
