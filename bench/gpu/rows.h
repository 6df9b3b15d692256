/* Rows of a layer for attention jobs: blocks as lib/codec packs them, the tables and commands that
 * kernels read, and the result in double precision. */
#ifndef LK_BENCH_GPU_ROWS_H
#define LK_BENCH_GPU_ROWS_H

#include "gpu/bench_gpu.h"

extern "C" {
#include "codec/codec.h"
#include "codec/hadamard.h"
}
#include "device/commands.h"

#include <memory>

/* Normal values, the same in every run. */
struct noise {
    uint64_t state;
    explicit noise(uint64_t seed) : state(seed * 2654435761u + 1) {}
    float next() {
        double sum = -6; /* of 12 uniform numbers */
        for (int i = 0; i < 12; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 11) / 9007199254740992.0;
        }
        return (float)sum;
    }
    std::vector<float> many(size_t n) {
        std::vector<float> x(n);
        for (float &v : x) v = next();
        return x;
    }
};

/* The codec of a word: f16, int8, rot1 .. rot8, kivi2, kivi4, with the options that recipes have by
 * default. False: unknown. */
static inline bool codec_of(const std::string &word, enum lk_side side, struct lk_codec *codec) {
    *codec = lk_codec_f16;
    if (word == "f16") return true;
    int bits = atoi(word.c_str() + (word.size() > 0 ? word.size() - 1 : 0));
    codec->bits = (uint8_t)bits;
    if (word == "int8") return codec->coding = LK_INT8, true;
    if (word.rfind("kivi", 0) == 0)
        return codec->coding = LK_KIVI, codec->group = 32, bits == 2 || bits == 4;
    codec->coding = LK_ROT, codec->mean = codec->sigma = side == LK_K;
    codec->lloyd = lk_codec_default_lloyd(bits);
    return word.rfind("rot", 0) == 0 && bits >= 1 && bits <= 8;
}

/* Rows of one side of a segment. `host` has the first `n_host` blocks of layer 0, of [batch][blocks
 * of a sequence]; if there are fewer than all, the others repeat them. */
struct side_rows {
    struct lk_codec codec;
    enum lk_side side;
    int block_rows;
    size_t head_bytes, block_bytes, n_block; /* blocks of a sequence */
    std::vector<char> host;
    std::unique_ptr<buffer> blocks, table; /* [layer][batch][n_block] */
};

struct segment_rows {
    side_rows k, v;
    int n_row;
};

struct attend_problem {
    int heads = 0, kv_heads = 0, d = 0, batch = 0, rows = 0, queries = 1, layers = 1;
    std::vector<segment_rows> segment;
    std::vector<float> q, sigma; /* [batch][queries][heads][d], [kv_heads][d] */
    std::unique_ptr<buffer> q_at, sigma_at, out, call; /* call: [layer][batch] */
    std::vector<struct lk_device_attend> calls;
    double bytes = 0; /* of the rows of a layer */

    int group() const { return heads / kv_heads; }
    uint64_t call_at(int layer) const {
        return call->at() + sizeof(struct lk_device_attend) * (size_t)layer * (size_t)batch;
    }
};

static inline struct lk_device_coding coding_of(const side_rows &s) {
    struct lk_device_coding c = {};
    c.coding = s.codec.coding, c.bits = s.codec.bits;
    c.book = s.codec.lloyd ? LK_DEVICE_LLOYD : LK_DEVICE_UNIFORM;
    c.mean = s.codec.mean, c.rotated = s.codec.coding == LK_ROT, c.sigma = s.codec.sigma;
    c.group = s.codec.group, c.block_rows = (uint32_t)s.block_rows;
    c.offset = 0, c.next = (uint32_t)s.head_bytes;
    return c;
}

static inline struct lk_device_rotation rotation_of(int d) {
    struct lk_device_rotation r = {};
    std::vector<float> sign((size_t)d);
    lk_rotation_signs(sign.data(), d);
    for (int c = 0; c < d; c++)
        if (sign[(size_t)c] < 0) r.sign[c / 32] |= 1u << c % 32;
    return r;
}

/* Encode n blocks of noise: [n][head]. */
static inline void encode_blocks(side_rows *s, const attend_problem &p, size_t n, noise *random) {
    s->host.assign(n * s->block_bytes, 0);
    size_t width = (size_t)p.kv_heads * (size_t)p.d;
    for (size_t b = 0; b < n; b++) {
        std::vector<float> x = random->many((size_t)s->block_rows * width);
        for (int h = 0; h < p.kv_heads; h++) {
            const float *sigma = s->codec.sigma ? &p.sigma[(size_t)h * (size_t)p.d] : NULL;
            struct lk_part part = {&s->codec, s->side, p.d, s->block_rows, sigma};
            lk_codec_encode(&part, &s->host[b * s->block_bytes + (size_t)h * s->head_bytes], 0,
                            s->block_rows, &x[(size_t)h * (size_t)p.d], width);
        }
    }
}

/* Blocks and tables of one side on the card. most: blocks to encode. False: out of memory. */
static inline bool place_side(bench_card &card, attend_problem &p, side_rows *s, int n_row,
                              size_t most, noise *random) {
    s->block_rows = lk_codec_block_rows(&s->codec, s->side);
    s->head_bytes = lk_codec_head_bytes(&s->codec, s->side, p.d, s->block_rows);
    s->block_bytes = s->head_bytes * (size_t)p.kv_heads;
    s->n_block = (size_t)((n_row + s->block_rows - 1) / s->block_rows);
    size_t layer = (size_t)p.batch * s->n_block, all = layer * (size_t)p.layers;
    encode_blocks(s, p, std::min(layer, most), random);
    s->blocks.reset(new buffer(all * s->block_bytes));
    s->table.reset(new buffer(all * sizeof(uint64_t)));
    if (!s->blocks->at() || !s->table->at()) return false;
    card.send(s->blocks->at(), s->host.data(), s->host.size());
    card.repeat(*s->blocks, s->host.size());
    std::vector<uint64_t> at(all);
    for (size_t i = 0; i < all; i++) at[i] = s->blocks->at() + i * s->block_bytes;
    card.send(s->table->at(), at.data(), at.size() * sizeof at[0]);
    p.bytes += (double)(layer * s->block_bytes);
    return true;
}

static inline lk_device_rows rows_of(const attend_problem &p, const side_rows &s, int layer,
                                     int sequence) {
    struct lk_device_rows r = {};
    size_t block = ((size_t)layer * (size_t)p.batch + (size_t)sequence) * s.n_block;
    r.table = s.table->at() + block * sizeof(uint64_t);
    r.coding = coding_of(s);
    return r;
}

/* The calls of all layers and sequences. */
static inline void make_calls(attend_problem &p) {
    size_t q_row = (size_t)p.queries * (size_t)p.heads * (size_t)p.d * sizeof(float);
    bool sigma = false;
    for (const segment_rows &s : p.segment) sigma |= s.k.codec.sigma;
    for (int layer = 0; layer < p.layers; layer++)
        for (int b = 0; b < p.batch; b++) {
            struct lk_device_attend c = {};
            c.q = p.q_at->at() + q_row * (size_t)b, c.out = p.out->at() + q_row * (size_t)b;
            c.k_sigma = sigma ? p.sigma_at->at() : 0;
            c.n_tok = p.queries, c.n_head = p.heads, c.n_head_kv = p.kv_heads, c.d_head = p.d;
            c.scale = 1.0f / sqrtf((float)p.d);
            c.k_rotation = c.v_rotation = rotation_of(p.d);
            int before = p.rows - p.queries; /* rows before the first query token */
            for (const segment_rows &s : p.segment) {
                struct lk_device_segment *to = &c.segment[c.n_segment++];
                to->k = rows_of(p, s.k, layer, b), to->v = rows_of(p, s.v, layer, b);
                to->n_row = s.n_row, to->before = to->distance = before;
                before -= s.n_row;
            }
            p.calls.push_back(c);
        }
}

/* Read a job's words. Returns why it cannot be done; empty if it can. */
static inline std::string read_problem(const job &j, attend_problem &p) {
    std::string heads = j.word("heads"), list = j.word("segments");
    if (sscanf(heads.c_str(), "%d/%d", &p.heads, &p.kv_heads) != 2) return "no heads=";
    p.d = j.number("d"), p.batch = j.number("batch", 1), p.queries = j.number("queries", 1);
    while (!list.empty()) {
        size_t slash = list.find('/'), colon = list.find(':'), comma = list.find(',');
        if (slash == std::string::npos || colon == std::string::npos) return "bad segments=";
        p.segment.emplace_back();
        segment_rows &s = p.segment.back();
        s.k.side = LK_K, s.v.side = LK_V, s.n_row = atoi(list.c_str() + colon + 1);
        std::string k = list.substr(0, slash), v = list.substr(slash + 1, colon - slash - 1);
        if (!codec_of(k, LK_K, &s.k.codec) || !codec_of(v, LK_V, &s.v.codec))
            return "no codec " + k + "/" + v;
        p.rows += s.n_row;
        list = comma == std::string::npos ? "" : list.substr(comma + 1);
    }
    if (p.segment.size() > LK_DEVICE_SEGMENTS || p.queries > LK_DEVICE_TOKENS)
        return "more segments or tokens than a call has";
    return "";
}

/* Make everything that a job's kernels read. Returns why not; empty if it is there. */
static inline std::string make_problem(bench_card &card, const job &j, attend_problem &p) {
    std::string why = read_problem(j, p);
    if (!why.empty()) return why;
    noise random(1);
    double layer_bytes = 0;
    for (segment_rows &s : p.segment)
        for (side_rows *side : {&s.k, &s.v})
            layer_bytes += (double)p.batch * s.n_row * p.kv_heads *
                           (double)lk_codec_head_bytes(&side->codec, side->side, p.d, LK_TILE) /
                           LK_TILE;
    if (!j.emulate())
        p.layers = (int)std::max(1.0, std::min<double>(MAX_LAYERS, COLD_BYTES / layer_bytes + 1));
    p.q = random.many((size_t)p.batch * (size_t)p.queries * (size_t)p.heads * (size_t)p.d);
    p.sigma = random.many((size_t)p.kv_heads * (size_t)p.d);
    for (float &x : p.sigma) x = expf(0.3f * x);
    p.q_at.reset(new buffer(p.q.size() * sizeof(float)));
    p.out.reset(new buffer(p.q.size() * sizeof(float)));
    p.sigma_at.reset(new buffer(p.sigma.size() * sizeof(float)));
    if (!p.q_at->at() || !p.out->at() || !p.sigma_at->at()) return "out of memory";
    card.send(p.q_at->at(), p.q.data(), p.q.size() * sizeof(float));
    card.send(p.sigma_at->at(), p.sigma.data(), p.sigma.size() * sizeof(float));
    card.fill(*p.out, 0xff);
    size_t most = j.emulate() ? (size_t)-1 : 16;
    for (segment_rows &s : p.segment)
        if (!place_side(card, p, &s.k, s.n_row, most, &random) ||
            !place_side(card, p, &s.v, s.n_row, most, &random))
            return "out of memory";
    make_calls(p);
    p.call.reset(new buffer(p.calls.size() * sizeof p.calls[0]));
    if (!p.call->at()) return "out of memory";
    card.send(p.call->at(), p.calls.data(), p.calls.size() * sizeof p.calls[0]);
    return "";
}

/* Rows of one side of all segments of a sequence, decoded: [rows][kv_heads][d]. */
static inline std::vector<float> decoded(const attend_problem &p, enum lk_side side, int sequence) {
    size_t width = (size_t)p.kv_heads * (size_t)p.d, at = 0;
    std::vector<float> x((size_t)p.rows * width);
    for (const segment_rows &segment : p.segment) {
        const side_rows &s = side == LK_K ? segment.k : segment.v;
        for (int row = 0; row < segment.n_row; row++, at++)
            for (int h = 0; h < p.kv_heads; h++) {
                size_t block = (size_t)sequence * s.n_block + (size_t)(row / s.block_rows);
                const char *head = &s.host[block * s.block_bytes + (size_t)h * s.head_bytes];
                const float *sigma = s.codec.sigma ? &p.sigma[(size_t)h * (size_t)p.d] : NULL;
                struct lk_part part = {&s.codec, s.side, p.d, s.block_rows, sigma};
                lk_codec_decode(&part, head, row % s.block_rows, 1,
                                &x[at * width + (size_t)h * (size_t)p.d], width);
            }
    }
    return x;
}

/* Normalized squared error of `out` of all sequences of layer 0, to double precision over the
 * decoded rows. */
static inline double attend_error(const attend_problem &p, const std::vector<float> &out) {
    double error = 0, power = 0;
    size_t width = (size_t)p.kv_heads * (size_t)p.d, d = (size_t)p.d, at = 0;
    for (int b = 0; b < p.batch; b++) {
        std::vector<float> k = decoded(p, LK_K, b), v = decoded(p, LK_V, b);
        for (int t = 0; t < p.queries; t++)
            for (int h = 0; h < p.heads; h++, at += d) {
                size_t head = (size_t)(h / p.group()) * d;
                int n = p.rows - p.queries + t + 1;
                std::vector<double> weight((size_t)n), sum(d);
                double max = -1e300, all = 0;
                for (int i = 0; i < n; i++) {
                    double score = 0;
                    for (size_t c = 0; c < d; c++)
                        score += (double)p.q[at + c] * (double)k[(size_t)i * width + head + c];
                    weight[(size_t)i] = score / sqrt((double)d);
                    max = std::max(max, weight[(size_t)i]);
                }
                for (int i = 0; i < n; i++) {
                    double w = exp(weight[(size_t)i] - max);
                    all += w;
                    for (size_t c = 0; c < d; c++)
                        sum[c] += w * (double)v[(size_t)i * width + head + c];
                }
                for (size_t c = 0; c < d; c++) {
                    double x = sum[c] / all, difference = x - (double)out[at + c];
                    power += x * x, error += difference * difference;
                }
            }
    }
    return isfinite(error) ? error / power : 1;
}

#endif
