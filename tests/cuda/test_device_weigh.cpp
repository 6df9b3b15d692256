/* Attention weights, projection, LESS and copies on the device, against functions of the CPU. */
extern "C" {
#include "codec/codec.h"
#include "codec/f16.h"
#include "device/moves.h"
#include "support_basis.h"
#include "support_emulated.h"
#include "test.h"
}
#include "cuda/less.cuh"
#include "cuda/project.cuh"
#include "cuda/weigh.cuh"

#include <vector>

namespace {

struct random draw = {1};

template <class T> uint64_t address(const std::vector<T> &x) {
    return x.empty() ? 0 : (uint64_t)(uintptr_t)x.data();
}

std::vector<float> draw_floats(size_t n, float scale = 1) {
    std::vector<float> x(n);
    for (float &v : x) v = scale * random_gauss(&draw);
    return x;
}
std::vector<uint16_t> draw_halves(size_t n, float scale) {
    std::vector<uint16_t> x(n);
    for (uint16_t &v : x) v = lk_f32_to_f16(scale * random_gauss(&draw));
    return x;
}

/* Run a kernel's warps, with lanes in either order. Shared memory is what was asked for. */
template <class K>
void launch(int x, int y, int z, int shared, const typename K::args &a, bool reversed) {
    lanes_reversed = reversed;
    for (int i = 0; i < x * y * z; i++) {
        std::vector<uint64_t> memory(((size_t)shared + 7) / 8, ~(uint64_t)0);
        int j = reversed ? x * y * z - 1 - i : i;
        K::warp(a, (char *)memory.data(), gpu_place{j % x, j / x % y, j / x / y, 0, 0});
    }
    lanes_reversed = false;
}

/* ---- weights ---- */

void weighs_rows(void **unused) {
    (void)unused;
    for (int i = 0; i < 12; i++) {
        const int n_head = 6, n_head_kv = i % 2 ? 2 : 6, d = i % 3 ? 64 : 80, n_row = 75, n_tok = 3;
        const int group = n_head / n_head_kv, n_range = 2, stride = d + 2;
        const int d_v = i % 4 == 2 ? 48 : 0, d_q = d_v + d; /* values that are keys too */
        bool last = i % 4 == 1, coded = i % 3 == 1, by_parts = i % 5 == 3;
        struct lk_codec codec = lk_codec_f16;
        if (coded)
            codec = {}, codec.coding = LK_ROT, codec.bits = 4, codec.mean = codec.lloyd = true;
        std::vector<float> x = draw_floats((size_t)128 * n_head_kv * d),
                           q = draw_floats((size_t)n_tok * n_head * d_q),
                           value = draw_floats((size_t)n_row * n_head_kv * d_v);
        std::vector<float> sink = draw_floats(n_head), slope = draw_floats(n_head, 0.01f);
        std::vector<float> score = draw_floats((size_t)n_row * n_head_kv), before = score;
        std::vector<float> partial((size_t)n_range * n_tok * n_head * stride, NAN);
        size_t part_bytes = lk_codec_head_bytes(&codec, LK_K, d, LK_TILE);
        std::vector<unsigned char> memory(part_bytes * n_head_kv * 4);
        struct lk_device_weigh w = {};
        struct lk_part part = {&codec, LK_K, d, LK_TILE, NULL};
        assert_null(lk_device_packing_of(&part, &w.k.coding));
        for (int b = 0; b < 4; b++) {
            w.k.block[b] = address(memory) + b * part_bytes * n_head_kv;
            for (int h = 0; h < n_head_kv; h++)
                lk_codec_encode(&part, &memory[(b * n_head_kv + h) * part_bytes], 0, LK_TILE,
                                &x[((size_t)b * LK_TILE * n_head_kv + h) * d],
                                (size_t)n_head_kv * d);
        }
        w.k.part_bytes = part_bytes, w.k.first = 11;
        w.q = address(q), w.partial = address(partial), w.score = address(score);
        w.sink = i % 2 ? address(sink) : 0, w.slope = i % 3 == 2 ? address(slope) : 0;
        w.range_stride = (int64_t)n_tok * n_head * stride, w.stride = stride, w.at = d;
        w.n_range = n_range, w.n_row = n_row, w.n_tok = n_tok;
        w.n_head = n_head, w.n_head_kv = w.n_part = n_head_kv;
        w.before = n_row - n_tok + 1, w.window = i % 5 == 4 ? 40 : 0, w.distance = w.before + 3;
        w.last = last, w.scale = 0.1f, w.softcap = i % 4 == 3 ? 5 : 0;

        std::vector<double> want(before.begin(), before.end());
        for (double &v : want) v = last ? 0 : v;
        for (int t = 0; t < n_tok; t++)
            for (int h = 0; h < n_head; h++) {
                std::vector<double> s(n_row, -INFINITY);
                double max[2] = {-1e30, -1e30}, sum[2] = {0, 0};
                for (int r = 0; r < n_row; r++) {
                    if (r > w.before + t || (w.window && r <= w.before + t - w.window)) continue;
                    float row[LK_MAX_D_HEAD];
                    double dot = 0;
                    lk_codec_decode(&part,
                                    &memory[((11 + r) / 32 * n_head_kv + h / group) * part_bytes],
                                    (11 + r) % 32, 1, row, d);
                    for (int c = 0; c < d; c++)
                        dot += (double)row[c] * q[((size_t)t * n_head + h) * d_q + d_v + c];
                    for (int c = 0; c < d_v; c++)
                        dot += (double)value[((size_t)r * n_head_kv + h / group) * d_v + c] *
                               q[((size_t)t * n_head + h) * d_q + c];
                    dot *= w.scale;
                    if (w.softcap > 0) dot = w.softcap * tanh(dot / w.softcap);
                    if (w.slope) dot -= slope[h] * (w.distance + t - r);
                    s[r] = dot;
                    max[r % 2] = fmax(max[r % 2], dot);
                }
                double all = w.sink ? exp(sink[h]) : 0;
                for (int r = 0; r < n_row; r++)
                    all += exp(s[r]), sum[r % 2] += exp(s[r] - max[r % 2]);
                for (int r = 0; r < n_row; r++)
                    if (!last || t == n_tok - 1)
                        want[(size_t)r * n_head_kv + h / group] += exp(s[r]) / all;
                for (int range = 0; range < n_range; range++) {
                    float *p = &partial[((size_t)(range * n_tok + t) * n_head + h) * stride + d];
                    p[0] = (float)max[range], p[1] = (float)sum[range];
                }
            }
        if (d_v > 0) {
            w.v.coding = lk_device_plain(LK_ROWS_F32, d_v), w.v.at = address(value);
            w.v.row_bytes = (uint64_t)(n_head_kv * d_v) * 4, w.v.part_bytes = (uint64_t)d_v * 4;
        }
        std::vector<lk_device_weigh> list(1, w);
        if (by_parts) list.resize((size_t)n_head_kv, w);
        for (size_t h = 0; by_parts && h < list.size(); h++) {
            list[h].first_part = (int32_t)h, list[h].n_part = 1;
            list[h].k.offset = h * part_bytes, list[h].v.offset = h * w.v.part_bytes;
        }
        int n = (int)list.size();
        launch<weigh_kernel>(lk_device_weigh_items(list.data(), n), 1, 1,
                             lk_device_weigh_shared(list.data(), n), {address(list), n}, i % 2);
        std::vector<float> expected(want.begin(), want.end());
        double error = nmse(score.data(), expected.data(), score.size());
        if (!(error < 1e-10)) fail_msg("case %d: error %g", i, error);
    }
}

/* ---- projection ---- */

void projects_rows(void **unused) {
    (void)unused;
    for (int i = 0; i < 12; i++) {
        const int n_group = 2, n_head = i % 2 ? 4 : 1, d_head = i % 3 ? 64 : 80,
                  n_row = 32 * (i % 3) + 13;
        const int width = n_head * d_head, n_comp = width,
                  rank = 8 * random_int(&draw, 1, width / 8);
        struct lk_basis basis = random_basis(&draw, n_group, width, n_comp, rank, i % 2, i % 4 < 2);
        std::vector<uint16_t> bytes((size_t)n_group * n_comp * width);
        std::vector<float> scale((size_t)n_group * n_comp);
        struct lk_basis_matrix down = basis.down;
        struct lk_basis packed = basis;
        struct lk_device_project p = {};
        p.down = (uint64_t)(uintptr_t)down.f32;
        for (size_t j = 0; i % 3 && j < bytes.size(); j++) {
            if (i % 3 == 1)
                bytes[j] = lk_f32_to_f16(down.f32[j]);
            else
                ((int8_t *)bytes.data())[j] = (int8_t)random_int(&draw, -127, 127);
        }
        for (float &s : scale) s = random_uniform(&draw);
        if (i % 3) packed.down.any = bytes.data(), p.down = address(bytes);
        if (i % 3 == 2) packed.down.scale = scale.data(), p.scale = address(scale);
        packed.type = i % 3 == 0 ? LK_BASIS_F32 : i % 3 == 1 ? LK_BASIS_F16 : LK_BASIS_Q8;
        p.type = i % 3 == 0   ? LK_DEVICE_BASIS_F32
                 : i % 3 == 1 ? LK_DEVICE_BASIS_F16
                              : LK_DEVICE_BASIS_Q8;
        int stride = n_group * width + 8, n_pair = i % 4 == 3 ? d_head / 2 - 8 : d_head / 2;
        std::vector<float> x = draw_floats((size_t)n_row * stride);
        std::vector<float> want((size_t)n_row * n_group * rank), got(want.size(), NAN);
        std::vector<float> cos_sin((size_t)n_row * n_pair * 2), rotated = x;
        p.from = address(x), p.to = address(got);
        p.mean = basis.mean ? (uint64_t)(uintptr_t)basis.mean : 0;
        p.from_stride = stride, p.to_stride = n_group * rank, p.to_part = rank;
        p.n_row = n_row, p.n_part = n_group, p.n_head = n_head, p.d_head = d_head;
        p.rank = rank, p.n_comp = n_comp;
        if (i % 2) {
            for (int h = 0; h < n_group * n_head; h++)
                unrotate_on_cpu(n_pair, i % 4 == 1, 1000, n_row, &rotated[(size_t)h * d_head],
                                stride, cos_sin.data());
            p.cos_sin = address(cos_sin), p.n_pair = n_pair, p.halves = i % 4 == 1;
        }
        for (int g = 0; g < n_group; g++)
            for (int h = 0; h < n_head; h++)
                project_on_cpu(&packed, g, h, d_head, rank,
                               &rotated[(size_t)(g * n_head + h) * d_head], stride, n_row,
                               &want[(size_t)g * rank], n_group * rank);
        launch<project_kernel>(lk_device_project_items(&p, 1), 1, 1, project_shared(d_head),
                               {(uint64_t)(uintptr_t)&p, 1}, i % 2);
        for (size_t j = 0; j < want.size(); j++)
            if (memcmp(&want[j], &got[j], sizeof want[j]))
                fail_msg("case %d: number %zu is %.9g, not %.9g", i, j, (double)got[j],
                         (double)want[j]);
        free_basis(&basis);
    }
}

/* ---- LESS ---- */

void absorbs_rows(void **unused) {
    (void)unused;
    const int phis[] = {4, 2, 1};
    for (int i = 0; i < 3; i++) {
        const int n_head = 4, n_head_kv = 2, d = 24, n_hidden = 40, n = 6, n_psi = i ? 2 : 1;
        const int n_row = 9, n_tok = 3, n_state = n * (d + 1);
        std::vector<uint16_t> w[4];
        for (int j = 0; j < 4; j++)
            w[j] =
                draw_halves((size_t)(j < 2 ? phis[i] : n_psi) * n_hidden * (j % 2 ? n : d), 0.3f);
        std::vector<float> bias = draw_floats(n_head), w3 = draw_floats(n_psi * n * n, 0.3f);
        std::vector<float> s1 = draw_floats(n_psi * n), s2 = draw_floats(n_psi * n);
        std::vector<float> k = draw_floats(n_row * n_head_kv * d), v = draw_floats(k.size());
        std::vector<float> q = draw_floats(n_tok * n_head * d), state(n_state * n_head_kv, 0);
        std::vector<float> feature(n_row * n_head_kv * n), partial(n_tok * n_head * (d + 2), NAN);
        std::vector<float> want = state, exact = state, mean(d), psi(n);
        struct lk_device_less a = {};
        a.phi_w1 = address(w[0]), a.phi_w2 = address(w[1]);
        a.psi_w1 = address(w[2]), a.psi_w2 = address(w[3]), a.psi_w3 = address(w3);
        a.phi_bias = address(bias), a.psi_s1 = address(s1), a.psi_s2 = address(s2);
        a.state = address(state), a.feature = address(feature), a.k = address(k), a.v = address(v);
        a.q = address(q), a.partial = address(partial);
        a.n_head = n_head, a.n_head_kv = n_head_kv, a.d_head = d, a.n_hidden = n_hidden;
        a.n_feature = n, a.n_phi = phis[i], a.n_psi = n_psi, a.n_row = n_row, a.n_tok = n_tok;
        uint64_t less = (uint64_t)(uintptr_t)&a;

        launch<less_attend_kernel>(1, n_tok, n_head, less_shared(n_hidden), {less}, false);
        for (int j = 0; j < n_tok * n_head; j++) { /* nothing has been evicted */
            const float *got = &partial[j * (d + 2)];
            assert_true(got[0] == 0 && got[d] == -INFINITY && got[d + 1] == 0);
        }
        launch<less_key_kernel>(1, n_row, n_head_kv, less_shared(n_hidden), {less}, i % 2);
        launch<less_absorb_kernel>(1, n_head_kv, n, 0, {less}, i % 2);
        for (int j = 0; j < n_row * n_head_kv; j++) {
            int head = j % n_head_kv;
            less_psi_on_cpu(&a, head, &k[j * d], psi.data());
            less_absorb_on_cpu(&a, &want[head * n_state], psi.data(), &v[j * d]);
            less_absorb_on_cpu(&a, &exact[head * n_state], &feature[j * n], &v[j * d]);
        }
        assert_true(nmse(state.data(), want.data(), want.size()) < 1e-9);
        assert_memory_equal(state.data(), exact.data(), exact.size() * sizeof(float));
        launch<less_attend_kernel>(1, n_tok, n_head, less_shared(n_hidden), {less}, true);
        for (int j = 0; j < n_tok * n_head; j++) {
            const float *got = &partial[j * (d + 2)];
            float log_sum;
            int head = j % n_head;
            less_read_on_cpu(&a, &state[head * n_head_kv / n_head * n_state], head, &q[j * d],
                             mean.data(), &log_sum);
            assert_true(fabsf(got[d] - log_sum) < 1e-4f && got[d + 1] == 1);
            assert_true(nmse(got, mean.data(), d) < 1e-9);
        }
    }
}

} // namespace

int main(void) {
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(weighs_rows),
        cmocka_unit_test(projects_rows),
        cmocka_unit_test(absorbs_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
