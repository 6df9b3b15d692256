/* Attention of random queries over random rows in levels of any codecs: in double precision over
 * what lk_codec_decode gives, and by a kernel of lib/cuda in the emulator. */
#ifndef LK_TEST_ATTEND_CASE_H
#define LK_TEST_ATTEND_CASE_H

#include "cuda/attend_kernel.h"

#include <math.h>
#include <memory>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "codec/codec.h"
#include "codec/hadamard.h"
#include "codec/rot.h"
#include "support.h"

#include <cmocka.h>
}

struct random_numbers {
    uint64_t state;
    double uniform() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u, z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
    }
    double normal() {
        double r = sqrt(-2 * log(uniform() + 1e-300));
        return r * cos(6.283185307179586 * uniform());
    }
    int below(int n) { return (int)(uniform() * n); }
};

/* Rows of one codec; `skip` rows of the first block are gone. */
struct level_spec {
    lk_codec codec;
    int rows, skip;
};

static inline lk_codec codec_of(lk_coding coding, int bits, int group = 0) {
    lk_codec c = {};
    c.coding = (uint8_t)coding, c.bits = (uint8_t)bits, c.group = (uint16_t)group;
    return c;
}
/* rot with the defaults of a side. */
static inline lk_codec rot(int bits, lk_side side, bool trellis = false) {
    lk_codec c = codec_of(LK_ROT, bits);
    c.mean = c.sigma = side == LK_K;
    c.trellis = trellis;
    c.lloyd = !trellis && lk_codec_default_lloyd(bits);
    return c;
}
static inline lk_codec f16() { return codec_of(LK_F16, 16); }

struct attend_case {
    std::string name;
    int d = 128, d_rope = 0, heads = 1, group = 4, n_tok = 1;
    std::vector<std::vector<level_spec>> k, v; /* [sequence][level], oldest first */
    int window = 0;
    float softcap = 0;
    bool alibi = false, sink = false, partial = false, shift = false, v_sigma = false;
    int n_extra = 0, n_split = 1;
    uint64_t seed = 1;
};

/* One side of one sequence: blocks, their addresses, and the decoded rows. */
struct side_rows {
    int d, heads, n = 0;
    std::vector<std::unique_ptr<char, void (*)(void *)>> block;
    std::vector<std::vector<uint64_t>> table; /* [level] */
    std::vector<int> first;                   /* [level] its first row in the sequence */
    std::vector<int> block_rows;              /* [level] */
    std::vector<double> x;                    /* [n][heads][d] */
};

static inline lk_device_coding device_coding(const lk_codec &c, lk_side side, int d,
                                             int block_rows) {
    lk_device_coding r = {};
    r.coding = c.coding, r.bits = c.bits, r.mean = c.mean;
    r.book = c.trellis ? LK_DEVICE_TRELLIS : c.lloyd ? LK_DEVICE_LLOYD : LK_DEVICE_UNIFORM;
    r.rotated = lk_codec_rotates(&c), r.sigma = c.sigma;
    r.group = (uint16_t)(c.coding == LK_ASYM && !c.group ? d : c.group);
    r.block_rows = (uint32_t)block_rows;
    r.next = (uint32_t)lk_codec_head_bytes(&c, side, d, block_rows);
    return r;
}

static inline void make_rows(side_rows &to, lk_side side, int d, int heads,
                             const std::vector<level_spec> &levels, const float *sigma,
                             random_numbers &r) {
    to.d = d, to.heads = heads;
    std::vector<double> bias((size_t)heads * d);
    for (auto &b : bias) b = 0.7 * r.normal();
    for (auto &level : levels) {
        const lk_codec &c = level.codec;
        int block_rows = c.coding == LK_F16 ? 1 + r.below(70) : lk_codec_block_rows(&c, side);
        bool by_row = lk_codec_row_wise(&c, side);
        size_t head_bytes = lk_codec_head_bytes(&c, side, d, block_rows);
        int skip = level.skip % block_rows, all = skip + level.rows;
        to.block_rows.push_back(block_rows);
        to.first.push_back(to.n);
        to.table.emplace_back();
        to.x.resize((size_t)(to.n + level.rows) * heads * d);
        for (int b = 0; b * block_rows < all; b++) {
            char *block = (char *)aligned_alloc(32, head_bytes * heads);
            memset(block, 0xff, head_bytes * heads);
            to.block.emplace_back(block, free);
            to.table.back().push_back((uint64_t)block);
            int n = all - b * block_rows < block_rows ? all - b * block_rows : block_rows;
            std::vector<float> x((size_t)block_rows * d), y(x.size());
            for (int h = 0; h < heads; h++) {
                for (int i = 0; i < block_rows; i++)
                    for (int j = 0; j < d; j++) {
                        double s = sigma ? sigma[h * d + j] : 1, wide = i % 31 == 7 ? 3 : 1;
                        x[(size_t)i * d + j] = (float)(s * wide * r.normal() + bias[h * d + j] * s);
                    }
                lk_part part = {&c, side, d, block_rows, c.sigma && sigma ? sigma + h * d : NULL};
                char *at = block + h * head_bytes;
                lk_codec_encode(&part, at, 0, by_row ? n : block_rows, x.data(), (size_t)d);
                lk_codec_decode(&part, at, 0, n, y.data(), (size_t)d);
                for (int i = 0; i < n; i++) {
                    int row = b * block_rows + i - skip;
                    if (row < 0) continue;
                    for (int j = 0; j < d; j++)
                        to.x[((size_t)(to.n + row) * heads + h) * d + j] = y[(size_t)i * d + j];
                }
            }
        }
        to.n += level.rows;
    }
    to.first.push_back(to.n);
}

static inline void make_rotation(lk_device_rotation &r, int d, std::vector<float> &matrix) {
    if ((d & (d - 1)) == 0) {
        std::vector<float> sign((size_t)d);
        lk_rotation_signs(sign.data(), d);
        for (int c = 0; c < d; c++)
            if (sign[c] < 0) r.sign[c / 32] |= 1u << c % 32;
        return;
    }
    matrix.assign((size_t)d * d, 0);
    std::vector<float> x((size_t)d);
    for (int c = 0; c < d; c++) {
        std::fill(x.begin(), x.end(), 0.0f);
        x[c] = 1;
        lk_rotate(x.data(), d);
        for (int i = 0; i < d; i++) matrix[(size_t)i * d + c] = x[i];
    }
    r.matrix = (uint64_t)matrix.data();
}

/* A case with all of its memory. */
struct attend_problem {
    attend_case c;
    std::vector<side_rows> k, v;
    std::vector<float> k_sigma, v_sigma, k_matrix, v_matrix, slope, sink;
    std::vector<std::vector<float>> q, q_shifted, extra, out;
    std::vector<lk_device_attend> call;

    int width() const { return c.d + c.d_rope; }
    int n_head() const { return c.heads * c.group; }

    explicit attend_problem(const attend_case &from) : c(from) {
        random_numbers r{c.seed};
        size_t n = c.k.size();
        int d_k = c.d_rope ? c.d_rope : c.d;
        k_sigma.resize((size_t)c.heads * d_k), v_sigma.resize((size_t)c.heads * c.d);
        for (auto &s : k_sigma) s = (float)exp(0.5 * r.normal());
        for (auto &s : v_sigma) s = (float)exp(0.5 * r.normal());
        for (int h = 0; h < n_head(); h++) {
            slope.push_back((float)pow(2, -8.0 * (h + 1) / n_head()));
            sink.push_back((float)r.normal());
        }
        k.resize(n), v.resize(n), q.resize(n), q_shifted.resize(n), extra.resize(n), out.resize(n);
        call.resize(n);
        for (size_t s = 0; s < n; s++) {
            make_rows(k[s], LK_K, d_k, c.heads, c.k[s], k_sigma.data(), r);
            make_rows(v[s], LK_V, c.d, c.heads, c.v[s], c.v_sigma ? v_sigma.data() : NULL, r);
            size_t n_q = (size_t)c.n_tok * n_head() * width();
            for (size_t i = 0; i < n_q; i++) {
                int head = (int)(i / width() % n_head()) / c.group, j = (int)(i % width());
                double by = c.d_rope ? 1 : k_sigma[head * d_k + j];
                q[s].push_back((float)(r.normal() / by));
                q_shifted[s].push_back((float)(r.normal() / by));
            }
            size_t row = (size_t)c.d + 2;
            extra[s].resize(c.n_extra * (size_t)c.n_tok * n_head() * row);
            for (size_t i = 0; i < extra[s].size(); i++)
                extra[s][i] = (float)(i % row == row - 1 ? 1 + r.uniform() : r.normal());
            out[s].assign((size_t)c.n_tok * n_head() * (c.d + 2 * c.partial), NAN);
            make_call(s);
        }
    }

    void make_call(size_t s) {
        lk_device_attend &a = call[s];
        memset(&a, 0, sizeof a);
        a.q = (uint64_t)q[s].data(), a.q_shifted = c.shift ? (uint64_t)q_shifted[s].data() : 0;
        (c.partial ? a.partial : a.out) = (uint64_t)out[s].data();
        a.extra = (uint64_t)extra[s].data(), a.n_extra = c.n_extra;
        a.extra_stride = (int64_t)c.n_tok * n_head() * (c.d + 2);
        for (auto &level : c.k[s])
            if (level.codec.sigma) a.k_sigma = (uint64_t)k_sigma.data();
        if (c.v_sigma) a.v_sigma = (uint64_t)v_sigma.data();
        a.levels = (uint64_t)lk_trellis_table;
        if (c.sink) a.sink = (uint64_t)sink.data();
        if (c.alibi) a.slope = (uint64_t)slope.data();
        a.n_tok = c.n_tok, a.n_head = n_head(), a.n_head_kv = c.heads;
        a.d_head = c.d, a.d_rope = c.d_rope;
        a.window = c.window, a.softcap = c.softcap;
        a.scale = (float)(1 / sqrt((double)width()));
        make_rotation(a.k_rotation, c.d_rope ? c.d_rope : c.d, k_matrix);
        make_rotation(a.v_rotation, c.d, v_matrix);
        size_t i = 0, j = 0;
        for (int row = 0; row < k[s].n;) {
            while (row >= k[s].first[i + 1]) i++;
            while (row >= v[s].first[j + 1]) j++;
            int end = k[s].first[i + 1] < v[s].first[j + 1] ? k[s].first[i + 1] : v[s].first[j + 1];
            lk_device_segment &x = a.segment[a.n_segment++];
            set_rows(x.k, k[s], c.k[s][i], LK_K, i, row);
            set_rows(x.v, v[s], c.v[s][j], LK_V, j, row);
            x.n_row = end - row, x.before = k[s].n - c.n_tok - row;
            x.shifted = c.shift && i == 0;
            x.distance = x.before + (x.shifted ? 3 : 0);
            row = end;
        }
    }

    static void set_rows(lk_device_rows &to, const side_rows &from, const level_spec &level,
                         lk_side side, size_t i, int row) {
        int block_rows = from.block_rows[i];
        to.table = (uint64_t)from.table[i].data();
        to.coding = device_coding(level.codec, side, from.d, block_rows);
        to.first = (uint32_t)(level.skip % block_rows + row - from.first[i]);
    }

    /* In double precision. */
    std::vector<double> reference(size_t s) const {
        const lk_device_attend &a = call[s];
        std::vector<double> result;
        for (int t = 0; t < c.n_tok; t++)
            for (int head = 0; head < n_head(); head++) reference_row(a, s, t, head, result);
        return result;
    }

    void reference_row(const lk_device_attend &a, size_t s, int t, int head,
                       std::vector<double> &result) const {
        int h = head / c.group, n = k[s].n, d_k = k[s].d;
        size_t row = (size_t)t * n_head() + head;
        std::vector<double> score((size_t)n, -INFINITY), acc((size_t)c.d, 0.0);
        double max = -INFINITY, sum = 0;
        int at = 0;
        for (int i = 0; i < a.n_segment; i++)
            for (int j = 0; j < a.segment[i].n_row; j++, at++) {
                const lk_device_segment &g = a.segment[i];
                const float *x = (g.shifted ? q_shifted : q)[s].data() + row * width();
                if (j > g.before + t || (c.window && j <= g.before + t - c.window)) continue;
                double y = 0;
                for (int e = 0; e < d_k; e++)
                    y += (double)x[(c.d_rope ? c.d : 0) + e] *
                         k[s].x[((size_t)at * c.heads + h) * d_k + e];
                for (int e = 0; c.d_rope && e < c.d; e++)
                    y += (double)x[e] * v[s].x[((size_t)at * c.heads + h) * c.d + e];
                y *= a.scale;
                if (c.softcap > 0) y = c.softcap * tanh(y / c.softcap);
                if (c.alibi) y -= (double)slope[head] * (g.distance + t - j);
                score[at] = y;
                max = fmax(max, y);
            }
        const float *e = extra[s].data();
        size_t wide = (size_t)c.d + 2, all = (size_t)c.n_tok * n_head();
        for (int i = 0; i < c.n_extra; i++)
            max = fmax(max, e[((size_t)i * all + row) * wide + c.d]);
        if (c.sink) max = fmax(max, sink[head]);
        for (int i = 0; i < n; i++) {
            double w = exp(score[i] - max);
            sum += w;
            for (int j = 0; j < c.d; j++) acc[j] += w * v[s].x[((size_t)i * c.heads + h) * c.d + j];
        }
        for (int i = 0; i < c.n_extra; i++) {
            const float *p = e + ((size_t)i * all + row) * wide;
            double w = exp(p[c.d] - max);
            sum += w * p[c.d + 1];
            for (int j = 0; j < c.d; j++) acc[j] += w * p[j];
        }
        if (c.sink) sum += exp(sink[head] - max);
        for (int j = 0; j < c.d; j++) result.push_back(acc[j] / sum);
    }

    /* The kernel's result: partials are divided by their sums. */
    std::vector<double> result(size_t s) const {
        std::vector<double> y;
        size_t wide = (size_t)c.d + 2 * c.partial;
        for (size_t row = 0; row < out[s].size() / wide; row++)
            for (int j = 0; j < c.d; j++)
                y.push_back(out[s][row * wide + j] /
                            (double)(c.partial ? out[s][row * wide + c.d + 1] : 1));
        return y;
    }
};

/* Run a kernel. Returns the error's energy relative to the result's; 1e9 if a ticket is left. */
template <class K> double run_attend(attend_problem &p) {
    const attend_case &c = p.c;
    lk_device_attend_launch launch = {};
    int columns = c.group * c.n_tok;
    launch.call = (uint64_t)p.call.data();
    launch.n_call = (int)p.call.size(), launch.n_head_kv = c.heads;
    launch.n_tile = (columns + K::C - 1) / K::C;
    launch.n_split = (c.n_split + K::CLUSTER - 1) / K::CLUSTER * K::CLUSTER;
    size_t pairs = p.call.size() * c.heads * launch.n_tile * K::C;
    std::vector<float> scratch(pairs * (launch.n_split / K::CLUSTER) * (K::CHANNELS + 2), NAN);
    std::vector<uint32_t> ticket(pairs, 0);
    launch.scratch = (uint64_t)scratch.data(), launch.ticket = (uint64_t)ticket.data();
    int shared = K::shared(c.d, c.d_rope, c.shift);
    for (int z = 0; z < launch.n_call; z++)
        for (int y = 0; y < c.heads * launch.n_tile; y++) {
            std::vector<std::thread> clusters; /* all of a head at the same time */
            for (int x = 0; x < launch.n_split; x += K::CLUSTER)
                clusters.emplace_back([=] { gpu_emulate_cluster<K>(x, y, z, shared, launch); });
            for (auto &cluster : clusters) cluster.join();
        }
    double error = 0, energy = 0;
    for (size_t s = 0; s < p.call.size(); s++) {
        std::vector<double> want = p.reference(s), got = p.result(s);
        for (size_t i = 0; i < want.size(); i++) {
            if (!(fabs(got[i]) < 1e9)) return 1e9;
            error += (got[i] - want[i]) * (got[i] - want[i]), energy += want[i] * want[i];
        }
    }
    for (uint32_t t : ticket)
        if (t != 0) return 1e9;
    return error / energy;
}

#endif
