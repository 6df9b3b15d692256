/* Commands through the emulated device, as a session gives them: random rows are encoded there, bit
 * by bit as lib/codec does, and queries attend to random levels, as in double precision. Nothing
 * but the device's functions touches its memory. */
#include "../cuda/attend_case.h"

extern "C" {
#include "device/modules.h"
#include "device/moves.h"
#include "test.h"
}

namespace {

/* An open device, and what was allocated there. */
struct place {
    struct lk_device *device = NULL;
    std::vector<std::pair<uint64_t, size_t>> held;

    place() {
        lk_err err = {};
        if (lk_device_open("emulated", &device, &err)) fail_msg("%s", err.msg);
    }
    ~place() {
        clear();
        lk_device_close(device);
    }
    void clear() {
        for (auto &x : held) device->call->free(device, x.first, x.second);
        held.clear();
    }
    uint64_t room(size_t bytes) {
        uint64_t at = 0;
        assert_int_equal(device->call->alloc(device, bytes, &at, NULL), LK_OK);
        held.emplace_back(at, bytes);
        return at;
    }
    uint64_t put(const void *from, size_t bytes) {
        if (bytes == 0) return 0;
        uint64_t at = room(bytes);
        assert_int_equal(device->call->upload(device, at, from, bytes, NULL), LK_OK);
        return at;
    }
    template <class T> uint64_t put(const std::vector<T> &x) {
        return put(x.data(), x.size() * sizeof(T));
    }
};

/* ---- moves ---- */

lk_codec any_codec(random_numbers &r, lk_side side, int d) {
    for (;;) {
        int kind = r.below(8);
        lk_codec c = kind == 0   ? f16()
                     : kind == 1 ? codec_of(LK_INT8, 8)
                     : kind == 2 ? codec_of(LK_KIVI, 2 + 2 * r.below(2), 32 << r.below(2))
                     : kind == 3 ? codec_of(LK_ASYM, 2 + r.below(7))
                     : kind == 4 ? rot(1 + r.below(4), side, true)
                                 : rot(1 + r.below(8), side);
        if (!lk_codec_reject_reason(&c, side, d)) return c;
    }
}

/* Rows of all heads, encoded by the device in one move and by the CPU. */
void check_move(place &p, random_numbers &r) {
    static const int widths[] = {64, 96, 128, 256};
    int d = widths[r.below(4)], heads = 1 + r.below(3);
    lk_side side = r.below(2) ? LK_V : LK_K;
    lk_codec codec = any_codec(r, side, d);
    int block_rows = codec.coding == LK_F16 ? 1 + r.below(50) : lk_codec_block_rows(&codec, side);
    bool whole = !lk_codec_row_wise(&codec, side);
    int n = whole ? block_rows * (1 + r.below(3)) : 1 + r.below(150);
    std::vector<float> x((size_t)n * heads * d), sigma((size_t)heads * d);
    for (auto &y : x) y = (float)r.normal();
    for (auto &y : sigma) y = (float)exp(0.5 * r.normal());

    size_t head_bytes = lk_codec_head_bytes(&codec, side, d, block_rows);
    size_t n_block = (size_t)(n + block_rows - 1) / block_rows, block_bytes = head_bytes * heads;
    std::vector<char> want(n_block * block_bytes, 0), got(want.size());
    uint64_t blocks = p.room(want.size());
    std::vector<uint64_t> table;
    for (size_t b = 0; b < n_block; b++) table.push_back(blocks + b * block_bytes);

    lk_device_move move = {};
    move.kind = LK_MOVE_APPEND, move.n_row = n, move.n_part = heads;
    move.from.at = p.put(x);
    move.from.coding = lk_device_plain(LK_ROWS_F32, d);
    move.from.row_bytes = (uint64_t)heads * d * sizeof(float);
    move.from.part_bytes = (uint64_t)d * sizeof(float);
    lk_part part = {&codec, side, d, block_rows, codec.sigma ? sigma.data() : NULL};
    assert_null(lk_device_packing_of(&part, &move.to.coding));
    move.to.at = p.put(table), move.to.part_bytes = head_bytes;
    move.to.sigma = codec.sigma ? p.put(sigma) : 0, move.to.sigma_stride = d;
    lk_err err = {};
    if (p.device->call->move(p.device, &move, NULL, 1, &err)) fail_msg("%s", err.msg);

    for (int h = 0; h < heads; h++)
        for (int i = 0; i < n; i += block_rows) {
            part.sigma = codec.sigma ? &sigma[(size_t)h * d] : NULL;
            lk_codec_encode(&part, &want[i / block_rows * block_bytes + h * head_bytes], 0,
                            n - i < block_rows ? n - i : block_rows,
                            &x[((size_t)i * heads + h) * d], (size_t)heads * d);
        }
    assert_int_equal(p.device->call->download(p.device, got.data(), blocks, got.size(), NULL),
                     LK_OK);
    if (memcmp(got.data(), want.data(), got.size()) != 0)
        fail_msg("coding %d bits %d side %d d %d heads %d rows %d differ", codec.coding, codec.bits,
                 side, d, heads, n);
}

void the_device_encodes_as_the_cpu(void **) {
    place p;
    random_numbers r{7};
    for (int i = 0; i < 120; i++) {
        check_move(p, r);
        p.clear();
    }
}

/* ---- attention ---- */

/* Levels of random codecs over the same number of rows on both sides. */
attend_case any_case(random_numbers &r, uint64_t seed) {
    attend_case c;
    static const int widths[] = {64, 96, 128, 128, 256};
    c.d = widths[r.below(5)], c.heads = 1 + r.below(3), c.group = 1 + r.below(6);
    c.n_tok = r.below(3) ? 1 : 1 + r.below(4);
    c.seed = seed;
    c.softcap = r.below(4) ? 0 : 20, c.alibi = r.below(4) == 0, c.sink = r.below(4) == 0;
    c.partial = r.below(2), c.window = r.below(4) ? 0 : 40;
    if (c.partial) c.sink = false; /* whoever joins the partials adds it */
    int n_seq = 1 + r.below(3);
    for (int s = 0; s < n_seq; s++) {
        std::vector<level_spec> side[2];
        int rows[4], n_level = 1 + r.below(4);
        for (int i = 0; i < n_level; i++) rows[i] = 1 + r.below(i ? 60 : 300);
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < n_level; i++) {
                lk_side of = k ? LK_V : LK_K;
                lk_codec codec = i == n_level - 1 ? f16() : any_codec(r, of, c.d);
                if (i == 0 && c.d == 128 && r.below(2)) codec = rot(k ? 2 : 3, of);
                side[k].push_back({codec, rows[i] + (i == n_level - 1 ? c.n_tok : 0), 0});
            }
        c.k.push_back(side[0]), c.v.push_back(side[1]);
    }
    return c;
}

/* Copy a side's blocks and tables; rows.table says which table a segment reads. */
void send_rows(place &p, const side_rows &side, lk_device_rows &rows) {
    for (auto &table : side.table)
        if ((uint64_t)table.data() == rows.table) {
            std::vector<uint64_t> there;
            for (uint64_t block : table)
                there.push_back(p.put((const void *)block, (size_t)rows.coding.next * side.heads));
            rows.table = p.put(there);
            return;
        }
    fail();
}

lk_device_attend send_call(place &p, attend_problem &x, size_t s, uint64_t out) {
    lk_device_attend a = x.call[s];
    a.q = p.put(x.q[s]);
    (a.out ? a.out : a.partial) = out;
    a.extra = p.put(x.extra[s]);
    if (a.k_sigma) a.k_sigma = p.put(x.k_sigma);
    if (a.v_sigma) a.v_sigma = p.put(x.v_sigma);
    a.levels = p.put(lk_trellis_table, sizeof lk_trellis_table);
    if (a.sink) a.sink = p.put(x.sink);
    if (a.slope) a.slope = p.put(x.slope);
    if (a.k_rotation.matrix) a.k_rotation.matrix = p.put(x.k_matrix);
    if (a.v_rotation.matrix) a.v_rotation.matrix = p.put(x.v_matrix);
    for (int i = 0; i < a.n_segment; i++) {
        send_rows(p, x.k[s], a.segment[i].k);
        send_rows(p, x.v[s], a.segment[i].v);
    }
    return a;
}

double attend_error(place &p, attend_problem &x) {
    std::vector<lk_device_attend> call;
    std::vector<uint64_t> out;
    for (size_t s = 0; s < x.call.size(); s++) {
        out.push_back(p.room(x.out[s].size() * sizeof(float)));
        call.push_back(send_call(p, x, s, out[s]));
    }
    lk_err err = {};
    for (int again = 0; again < 2; again++) /* tickets are as they were */
        if (p.device->call->attend(p.device, call.data(), NULL, call.size(), &err))
            fail_msg("%s", err.msg);
    double error = 0, energy = 0;
    for (size_t s = 0; s < x.call.size(); s++) {
        assert_int_equal(p.device->call->download(p.device, x.out[s].data(), out[s],
                                                  x.out[s].size() * sizeof(float), NULL),
                         LK_OK);
        std::vector<double> want = x.reference(s), got = x.result(s);
        for (size_t i = 0; i < want.size(); i++) {
            if (!(fabs(got[i]) < 1e9)) return 1e9;
            error += (got[i] - want[i]) * (got[i] - want[i]), energy += want[i] * want[i];
        }
    }
    return error / energy;
}

/* Weights of the rows that token t of sequence s attends to, added to want [rows][heads]. */
void add_weights(const attend_problem &x, size_t s, int t, std::vector<double> &want) {
    const lk_device_attend &a = x.call[s];
    int d = x.c.d, n_head = x.c.heads * x.c.group;
    for (int head = 0; head < n_head; head++) {
        int h = head / x.c.group, at = 0;
        std::vector<double> w((size_t)x.k[s].n, 0);
        double sum = 0;
        for (int i = 0; i < a.n_segment; i++)
            for (int j = 0; j < a.segment[i].n_row; j++, at++) {
                const lk_device_segment &g = a.segment[i];
                if (j > g.before + t || (x.c.window && j <= g.before + t - x.c.window)) continue;
                double y = 0;
                for (int e = 0; e < d; e++)
                    y += (double)x.q[s][((size_t)t * n_head + head) * d + e] *
                         x.k[s].x[((size_t)at * x.c.heads + h) * d + e];
                y *= a.scale;
                if (x.c.softcap > 0) y = x.c.softcap * tanh(y / x.c.softcap);
                if (x.c.alibi) y -= (double)x.slope[head] * (g.distance + t - j);
                w[at] = exp(y);
                sum += w[at];
            }
        for (int i = 0; i < at; i++) want[(size_t)i * x.c.heads + h] += w[i] / sum;
    }
}

/* The command of each segment. */
std::vector<lk_device_weigh> weights_of(attend_problem &x, size_t s, const lk_device_attend &call,
                                        bool last, uint64_t score) {
    std::vector<lk_device_weigh> all;
    size_t level = 0;
    for (int i = 0; i < call.n_segment; i++) {
        const lk_device_segment &g = call.segment[i];
        while (level + 1 < x.k[s].table.size() &&
               x.call[s].segment[i].k.table != (uint64_t)x.k[s].table[level].data())
            level++;
        lk_codec codec = x.c.k[s][level].codec;
        lk_part part = {&codec, LK_K, x.c.d, (int)g.k.coding.block_rows, NULL};
        lk_device_weigh w = {};
        assert_null(lk_device_packing_of(&part, &w.k.coding));
        w.k.at = g.k.table, w.k.part_bytes = g.k.coding.next, w.k.offset = g.k.coding.offset;
        w.k.first = g.k.first;
        w.k.sigma = codec.sigma ? call.k_sigma : 0, w.k.sigma_stride = x.c.d;
        w.q = call.q, w.partial = call.partial, w.slope = call.slope, w.score = score;
        w.stride = x.c.d + 2, w.at = x.c.d, w.n_range = 1;
        w.n_row = g.n_row, w.n_tok = call.n_tok, w.n_head = call.n_head;
        w.n_head_kv = w.n_part = call.n_head_kv;
        w.before = g.before, w.window = call.window, w.distance = g.distance;
        w.last = last, w.scale = call.scale, w.softcap = call.softcap;
        all.push_back(w);
        score += (uint64_t)g.n_row * x.c.heads * sizeof(float);
    }
    return all;
}

/* After attention, the rows' scores grow by their weights. */
void the_device_scores_rows(void **) {
    place p;
    random_numbers r{5};
    for (int i = 0; i < 25; i++) {
        attend_case c = any_case(r, 300 + (uint64_t)i);
        c.partial = true, c.sink = false;
        attend_problem x(c);
        for (size_t s = 0; s < x.call.size(); s++) {
            bool last = i % 2;
            lk_device_attend call = send_call(p, x, s, p.room(x.out[s].size() * sizeof(float)));
            std::vector<float> score((size_t)x.k[s].n * c.heads);
            for (float &y : score) y = (float)r.normal();
            std::vector<double> want(score.begin(), score.end());
            if (last) want.assign(want.size(), 0);
            for (int t = last ? c.n_tok - 1 : 0; t < c.n_tok; t++) add_weights(x, s, t, want);
            uint64_t at = p.put(score);
            std::vector<lk_device_weigh> weigh = weights_of(x, s, call, last, at);
            lk_err err = {};
            if (p.device->call->attend(p.device, &call, NULL, 1, &err) ||
                p.device->call->score(p.device, weigh.data(), weigh.size(), NULL, last, at, &err))
                fail_msg("%s", err.msg);
            size_t bytes = score.size() * sizeof(float);
            assert_int_equal(p.device->call->download(p.device, score.data(), at, bytes, NULL),
                             LK_OK);
            std::vector<float> expected(want.begin(), want.end());
            double error = nmse(score.data(), expected.data(), score.size());
            if (!(error < 1e-5)) fail_msg("case %d: error %g", i, error);
        }
        p.clear();
    }
}

void the_device_attends_to_what_it_has(void **) {
    place p;
    random_numbers r{11};
    for (uint64_t i = 0; i<24; i += case_step()> 4 ? 4 : 1) {
        attend_problem x(any_case(r, i));
        double error = attend_error(p, x);
        if (!(error < 1e-6))
            fail_msg("case %d: d %d heads %d group %d tokens %d: NMSE %.2e", (int)i, x.c.d,
                     x.c.heads, x.c.group, x.c.n_tok, error);
        p.clear();
    }
}

} // namespace

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_encodes_as_the_cpu),
        cmocka_unit_test(the_device_attends_to_what_it_has),
        cmocka_unit_test(the_device_scores_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
