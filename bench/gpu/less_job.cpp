/* Jobs of bench/gpu/kernels.cpp for LESS, of one layer of `batch` sequences:
 *
 *     less ... part=features state=8             the 8 features of a key that was evicted
 *     less ... part=update state=8               add them to the sums
 *     less ... part=read state=8                 the features of queries, and what they read
 *
 * A launch is for all sequences. Networks have a hidden layer of 512 numbers, as LESS's. */
#include "cuda/launch_moves.h"
#include "cuda/less.cuh"
#include "gpu/jobs.h"
#include "gpu/rows.h"

namespace {

/* Arrays that a job's commands name: memory of the card with values of the host. */
struct arrays {
    bench_card &card;
    std::vector<std::unique_ptr<buffer>> all;
    bool complete = true;
    explicit arrays(bench_card &c) : card(c) {}
    template <class T> uint64_t add(const std::vector<T> &x) {
        all.emplace_back(new buffer(x.size() * sizeof(T)));
        uint64_t at = all.back()->at();
        if (at)
            card.send(at, x.data(), x.size() * sizeof(T));
        else
            complete = false;
        return at;
    }
    template <class T> std::vector<T> get(uint64_t at, size_t n) {
        std::vector<T> x(n);
        card.receive(x.data(), at, n * sizeof(T));
        return x;
    }
};

struct shape {
    int heads = 0, kv_heads = 0, d, batch;
};

bool read_shape(const job &j, shape *s) {
    s->d = j.number("d"), s->batch = j.number("batch", 1);
    return sscanf(j.word("heads").c_str(), "%d/%d", &s->heads, &s->kv_heads) == 2;
}

double square_error(const std::vector<double> &want, const float *got) {
    double error = 0, power = 0;
    for (size_t i = 0; i < want.size(); i++) {
        error += (want[i] - (double)got[i]) * (want[i] - (double)got[i]);
        power += want[i] * want[i];
    }
    return isfinite(error) ? error / power : 1;
}

/* ---- LESS ---- */

enum { HIDDEN = 512 };

/* What the host keeps of a problem. */
struct less_problem {
    int d, n;                                          /* n: features */
    std::vector<float> w1[2], w2[2], w3, s1, s2, bias; /* 0: of queries, 1: of keys */
    std::vector<float> k, v, q, state;
};

std::vector<double> gelu_rows(const std::vector<float> &w, size_t at, const double *x, int n_in,
                              int n_out) {
    std::vector<double> y((size_t)n_out);
    for (int o = 0; o < n_out; o++) {
        double sum = 0;
        for (int i = 0; i < n_in; i++)
            sum += x[i] * (double)w[at + (size_t)i * (size_t)n_out + (size_t)o];
        y[(size_t)o] = sum / 2 * (1 + tanh(0.7978845608 * (sum + 0.044715 * sum * sum * sum)));
    }
    return y;
}

/* Both layers of the network of `head`, of queries or of keys. */
std::vector<double> features(const less_problem &p, int keys, int head, const float *x) {
    std::vector<double> in(x, x + p.d);
    size_t h = (size_t)head;
    in = gelu_rows(p.w1[keys], h * (size_t)p.d * HIDDEN, in.data(), p.d, HIDDEN);
    return gelu_rows(p.w2[keys], h * HIDDEN * (size_t)p.n, in.data(), HIDDEN, p.n);
}

std::vector<double> key_features(const less_problem &p, int head, const float *k) {
    std::vector<double> u = features(p, 1, head, k), out(u.size());
    size_t n = (size_t)p.n, h = (size_t)head;
    for (size_t r = 0; r < n; r++) u[r] *= fabs((double)p.s1[h * n + r]);
    for (size_t r = 0; r < n; r++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += u[i] * (double)p.w3[(h * n + i) * n + r];
        out[r] = fabs(u[r] + sum * (double)p.s2[h * n + r]);
    }
    return out;
}

/* Weights as f16, and what they are as floats. */
std::vector<uint16_t> halves(std::vector<float> *x, float scale) {
    std::vector<uint16_t> out;
    for (float &v : *x) out.push_back(lk_f32_to_f16(v * scale)), v = lk_f16_to_f32(out.back());
    return out;
}

/* Error of sequence 0's result. */
double less_error(const std::string &part, const less_problem &p, const shape &s, arrays &on,
                  const struct lk_device_less &a) {
    size_t d = (size_t)p.d, n = (size_t)p.n, row = d + 1;
    std::vector<double> want;
    if (part == "features") {
        for (int h = 0; h < s.kv_heads; h++)
            for (double x : key_features(p, h, &p.k[(size_t)h * d])) want.push_back(x);
        return square_error(want, on.get<float>(a.feature, want.size()).data());
    }
    if (part == "update") { /* the features that are there */
        std::vector<float> psi = on.get<float>(a.feature, (size_t)s.kv_heads * n);
        for (size_t i = 0; i < (size_t)s.kv_heads * n; i++)
            for (size_t c = 0; c < row; c++)
                want.push_back((double)p.state[i * row + c] +
                               (double)psi[i] * (c < d ? (double)p.v[i / n * d + c] : 1));
        return square_error(want, on.get<float>(a.state, want.size()).data());
    }
    std::vector<float> all = on.get<float>(a.partial, (size_t)s.heads * (d + 2)), got;
    for (int h = 0; h < s.heads; h++) {
        std::vector<double> phi = features(p, 0, h, &p.q[(size_t)h * d]), sum(row);
        const float *state = &p.state[(size_t)(h * s.kv_heads / s.heads) * n * row];
        for (size_t r = 0; r < n; r++)
            for (size_t c = 0; c < row; c++) sum[c] += fabs(phi[r]) * (double)state[r * row + c];
        for (size_t c = 0; c < d; c++) {
            want.push_back(sum[c] / sum[d]);
            got.push_back(all[(size_t)h * (d + 2) + c]);
        }
    }
    return square_error(want, got.data());
}

} // namespace

answer run_less(bench_card &card, const job &j) {
    shape s;
    if (!read_shape(j, &s)) return skipped("no heads=");
    std::string part = j.word("part");
    less_problem p;
    p.d = s.d, p.n = j.number("state", 8);
    if (p.n > LESS_MAX_FEATURE) return skipped("too many features");
    size_t d = (size_t)s.d, n = (size_t)p.n, heads = (size_t)s.heads, kv = (size_t)s.kv_heads;
    noise random(5);
    for (int keys = 0; keys < 2; keys++) {
        p.w1[keys] = random.many((keys ? kv : heads) * d * HIDDEN);
        p.w2[keys] = random.many((keys ? kv : heads) * HIDDEN * n);
    }
    p.w3 = random.many(kv * n * n), p.s1 = random.many(kv * n), p.s2 = random.many(kv * n);
    p.bias = random.many(heads), p.k = random.many(kv * d), p.v = random.many(kv * d);
    p.q = random.many(heads * d), p.state = random.many(kv * n * (d + 1));
    for (float &x : p.state) x = fabsf(x);
    arrays on(card);
    struct lk_device_less a = {};
    a.phi_w1 = on.add(halves(&p.w1[0], 1 / sqrtf((float)d)));
    a.phi_w2 = on.add(halves(&p.w2[0], 1 / sqrtf(HIDDEN)));
    a.psi_w1 = on.add(halves(&p.w1[1], 1 / sqrtf((float)d)));
    a.psi_w2 = on.add(halves(&p.w2[1], 1 / sqrtf(HIDDEN)));
    a.psi_w3 = on.add(p.w3), a.psi_s1 = on.add(p.s1), a.psi_s2 = on.add(p.s2);
    a.phi_bias = on.add(p.bias), a.k = on.add(p.k), a.v = on.add(p.v), a.q = on.add(p.q);
    a.n_head = s.heads, a.n_head_kv = s.kv_heads, a.d_head = s.d, a.n_hidden = HIDDEN;
    a.n_feature = p.n, a.n_phi = s.heads, a.n_psi = s.kv_heads, a.n_row = a.n_tok = 1;
    std::vector<struct lk_device_less> list;
    std::vector<float> zero(heads * (d + 2)), psi = random.many(kv * n);
    for (int b = 0; b < s.batch; b++) {
        a.state = on.add(p.state), a.feature = on.add(psi), a.partial = on.add(zero);
        list.push_back(a);
    }
    uint64_t at = on.add(list);
    if (!on.complete) return skipped("out of memory");
    int shared = less_shared(HIDDEN);
    less_args args = {at};
    answer result = timed(card, 8, [&](int) {
        if (part == "features")
            return gpu_launch<less_key_kernel>({s.batch, 1, s.kv_heads}, shared, card.stream, args);
        if (part == "update")
            return gpu_launch<less_absorb_kernel>({s.batch, s.kv_heads, p.n}, 0, card.stream, args);
        return gpu_launch<less_attend_kernel>({s.batch, 1, s.heads}, shared, card.stream, args);
    });
    if (j.emulate()) result.nmse = less_error(part, p, s, on, list[0]);
    return result;
}
