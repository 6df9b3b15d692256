/* Time and memory of compressing a model with a given number of layers.
 *
 *   build/bench/compress LAYERS [tokens [window]]
 *
 * Defaults: 4096 2048.
 *
 * The model is random, in Q4_1, with the shape of SmolLM2-135M but a smaller vocabulary. It uses
 * one thread and all bases of 'palu', over all heads. Prints one row of a table:
 *
 *   layers | CPU seconds to calibrate | to fit | peak memory | peak when the model was open |
 *   twice a layer in f32 plus the statistics
 *
 * Memory is in MiB. A peak never falls, so every model needs its own process. */
#define _DEFAULT_SOURCE /* getrusage */
#include "bench_support.h"
#include "lowkey_lab.h"
#include "support.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static double mib(double bytes) { return bytes / (1 << 20); }

/* Peak memory of the process, in bytes. */
static double peak_memory(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return 1024.0 * (double)use.ru_maxrss;
}

static lk_status compress(lk_model *model, int n_ctx, const int32_t *tok, size_t n_tok,
                          double seconds[2], lk_err *err) {
    lk_compress *c = NULL;
    lk_compress_opts opts = {.method = LK_METHOD_PALU, .group = -1, .n_ctx = n_ctx};
    double start = lk_process_cpu_seconds();
    lk_status status = lk_compress_new(&c, model, &opts, tok, n_tok, err);
    if (status == LK_OK) status = lk_compress_calibrate(c, tok, n_tok, NULL, err);
    seconds[0] = lk_process_cpu_seconds() - start;
    if (status == LK_OK) status = lk_compress_fit(c, err);
    seconds[1] = lk_process_cpu_seconds() - start - seconds[0];
    lk_compress_free(c);
    return status;
}

static void print_row(const lk_model *model, const double seconds[2], double open_peak) {
    lk_model_info info = lk_model_get_info(model);
    double embedding = ((double)info.n_vocab + 1) * info.n_embd,
           layer = ((double)info.n_param - embedding) / info.n_layer * sizeof(float);
    double rows = (double)info.n_head_kv * info.d_head,
           statistics = 8.0 * info.n_layer * (3 * rows * (rows + 1) + rows * (info.d_head + 1));
    printf("| %d | %.1f | %.2f | %.0f | %.0f | %.0f |\n", info.n_layer, seconds[0], seconds[1],
           mib(peak_memory()), mib(open_peak), mib(2 * layer + statistics));
}

int main(int argc, char **argv) {
    int layers = argc > 1 ? atoi(argv[1]) : 0, n_tok = argc > 2 ? atoi(argv[2]) : 4096,
        n_ctx = argc > 3 ? atoi(argv[3]) : 2048;
    if (layers < 1 || layers > 1000 || n_tok < 768 || n_tok > 1 << 24 || n_ctx < 2 ||
        n_ctx > 2048) {
        fprintf(
            stderr,
            "usage: build/bench/compress LAYERS [TOKENS (768 or more) [WINDOW (2048 or less)]]\n");
        return 1;
    }
    struct tiny_spec spec = {.name = "bench",
                             .arch = "llama",
                             .n_layer = layers,
                             .n_head = 9,
                             .n_head_kv = 3,
                             .d_head = 64,
                             .n_ff = 1536,
                             .n_vocab = 320,
                             .n_ctx = 2048,
                             .type = GGML_TYPE_Q4_1,
                             .seed = 1};
    char path[BENCH_PATH];
    bench_temp_file(path);
    lk_model *model = NULL;
    lk_model_opts opts = {.n_threads = 1};
    lk_err err = {0};
    double seconds[2] = {0, 0};
    int32_t *tok = malloc((size_t)n_tok * sizeof *tok);
    struct random r = {1};
    bool ok = tok && tiny_gguf_write(path, &spec);
    for (int i = 0; ok && i < n_tok; i++) tok[i] = random_int(&r, 0, spec.n_vocab - 1);
    ok = ok && lk_model_open(&model, path, &opts, &err) == LK_OK;
    double open_peak = peak_memory();
    ok = ok && compress(model, n_ctx, tok, (size_t)n_tok, seconds, &err) == LK_OK;
    if (ok)
        print_row(model, seconds, open_peak);
    else
        fprintf(stderr, "bench/compress: %s\n", err.msg[0] ? err.msg : "cannot write the model");
    lk_model_free(model);
    free(tok);
    remove(path);
    return ok ? 0 : 1;
}
