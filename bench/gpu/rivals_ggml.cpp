/* ggml-cuda's flash attention for scripts/bench-gpu: reads jobs, one per line, and answers each
 * with a line of JSON.
 *
 *     attend heads=32/8 d=128 batch=8 rows=32768 queries=1 type=q4_0
 *
 * `us` is the median time of a layer by the host's clock, of a graph of layers that together have
 * at least 768 MB of rows. scripts/bench-gpu --prepare DIR --rivals builds it. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cuda.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

const size_t COLD_BYTES = (size_t)768 << 20;
const int MAX_LAYERS = 48, PIECE_ROWS = 256;

struct job {
    int heads, kv_heads, d, batch, rows, queries;
    ggml_type type;
};

struct timing {
    double us, deviation;
    int repeats;
};

bool read_job(const char *line, job *j) {
    char type[16] = "";
    if (sscanf(line, "attend heads=%d/%d d=%d batch=%d rows=%d queries=%d type=%15s", &j->heads,
               &j->kv_heads, &j->d, &j->batch, &j->rows, &j->queries, type) != 7)
        return false;
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name((ggml_type)t) && strcmp(ggml_type_name((ggml_type)t), type) == 0)
            return j->type = (ggml_type)t, true;
    return false;
}

void skip(const char *why) { printf("{\"skipped\": \"%s\"}\n", why); }

/* Rows of normal values, encoded: 16 MiB, which are written again and again. */
std::vector<char> make_rows(const job &j) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> x((size_t)j.d * j.kv_heads * PIECE_ROWS);
    for (float &v : x) v = normal(generator);
    std::vector<char> piece(ggml_row_size(j.type, j.d) * j.kv_heads * PIECE_ROWS), all;
    if (j.type == GGML_TYPE_F16)
        ggml_fp32_to_fp16_row(x.data(), (ggml_fp16_t *)piece.data(), (int64_t)x.size());
    else
        ggml_quantize_chunk(j.type, x.data(), piece.data(), 0, (int64_t)PIECE_ROWS * j.kv_heads,
                            j.d, nullptr);
    while (all.size() < ((size_t)16 << 20)) all.insert(all.end(), piece.begin(), piece.end());
    return all;
}

void fill(ggml_tensor *t, const std::vector<char> &rows) {
    for (size_t at = 0, n = ggml_nbytes(t); at < n; at += rows.size())
        ggml_backend_tensor_set(t, rows.data(), at, std::min(rows.size(), n - at));
}

timing time_graph(ggml_backend_t backend, ggml_cgraph *graph, int layers) {
    typedef std::chrono::steady_clock clock;
    for (int i = 0; i < 3; i++) ggml_backend_graph_compute(backend, graph);
    std::vector<double> us;
    double all = 0;
    for (int i = 0; i < 9 && (i < 3 || all < 2e5); i++) {
        ggml_backend_synchronize(backend);
        auto begin = clock::now();
        ggml_backend_graph_compute(backend, graph);
        ggml_backend_synchronize(backend);
        double took = std::chrono::duration<double, std::micro>(clock::now() - begin).count();
        us.push_back(took / layers), all += took;
    }
    std::sort(us.begin(), us.end());
    double mean = 0, squares = 0;
    for (double t : us) mean += t / (double)us.size();
    for (double t : us) squares += (t - mean) * (t - mean);
    return {us[us.size() / 2], sqrt(squares / (double)(us.size() - 1)), (int)us.size()};
}

/* Layers of K and V with their graph. K, V and q lie in `memory`, what is computed in `results`. */
void run(ggml_backend_t backend, const job &j) {
    size_t layer_bytes = 2 * ggml_row_size(j.type, j.d) * j.kv_heads * (size_t)j.rows * j.batch;
    int layers = (int)std::min<size_t>(MAX_LAYERS, COLD_BYTES / layer_bytes + 1);
    ggml_init_params params = {
        ggml_tensor_overhead() * (size_t)(layers * 12 + 64) + ggml_graph_overhead(), nullptr, true};
    ggml_context *memory = ggml_init(params), *results = ggml_init(params);
    ggml_tensor *q = ggml_new_tensor_4d(memory, GGML_TYPE_F32, j.d, j.queries, j.heads, j.batch);
    ggml_tensor *mask = ggml_new_tensor_4d(memory, GGML_TYPE_F16, j.rows, j.queries, 1, j.batch);
    std::vector<ggml_tensor *> k(layers), v(layers);
    for (int l = 0; l < layers; l++) {
        k[l] = ggml_new_tensor_4d(memory, j.type, j.d, j.kv_heads, j.rows, j.batch);
        v[l] = ggml_new_tensor_4d(memory, j.type, j.d, j.kv_heads, j.rows, j.batch);
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(memory, backend);
    ggml_gallocr_t allocator = nullptr;
    if (!buffer) {
        skip("out of memory");
    } else {
        ggml_cgraph *graph = ggml_new_graph(results);
        for (int l = 0; l < layers; l++) {
            ggml_tensor *out = ggml_flash_attn_ext(
                results, q, ggml_permute(results, k[l], 0, 2, 1, 3),
                ggml_permute(results, v[l], 0, 2, 1, 3), mask, 1.0f / sqrtf((float)j.d), 0, 0);
            ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
            ggml_set_output(out);
            ggml_build_forward_expand(graph, out);
        }
        allocator = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
        if (!ggml_gallocr_alloc_graph(allocator, graph)) {
            skip("out of memory");
        } else {
            std::vector<char> rows = make_rows(j);
            for (int l = 0; l < layers; l++) fill(k[l], rows), fill(v[l], rows);
            std::vector<float> query((size_t)j.d * j.queries * j.heads * j.batch);
            for (size_t i = 0; i < query.size(); i++) query[i] = sinf((float)i);
            ggml_backend_tensor_set(q, query.data(), 0, query.size() * sizeof *query.data());
            std::vector<uint16_t> zero((size_t)j.rows * j.queries * j.batch, 0);
            ggml_backend_tensor_set(mask, zero.data(), 0, zero.size() * sizeof *zero.data());
            timing t = time_graph(backend, graph, layers);
            printf("{\"us\": %.3f, \"sd\": %.3f, \"repeats\": %d, \"gbs\": %.0f}\n", t.us,
                   t.deviation, t.repeats, (double)layer_bytes / t.us / 1e3);
        }
    }
    if (allocator) ggml_gallocr_free(allocator);
    if (buffer) ggml_backend_buffer_free(buffer);
    ggml_free(memory);
    ggml_free(results);
}

} // namespace

int main() {
    ggml_backend_t backend = ggml_backend_cuda_init(0);
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        job j;
        if (!backend)
            skip("ggml-cuda sees no card");
        else if (!read_job(line, &j))
            skip("unknown job");
        else if ((size_t)j.rows * j.batch * j.kv_heads * j.d * ggml_type_size(j.type) /
                     (size_t)ggml_blck_size(j.type) >
                 (size_t)6 << 30)
            skip("takes too long to upload");
        else
            run(backend, j);
        fflush(stdout);
    }
    return 0;
}
