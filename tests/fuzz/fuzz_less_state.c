/* Fuzz target: the saved training state of a layer (PATH.layer-0). The input is the file. Only a
 * file of the same training and layer may load, and loading reads exactly the net's numbers. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz_input.h"
#include "training/less_checkpoint.h"

enum { N_WEIGHT = 24, N_HEAD = 2, IDENTITY = 77, N_EPOCH = 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[LK_MAX_PATH], layer_path[LK_MAX_PATH];
    float weight[3 * N_WEIGHT], best[N_WEIGHT], level[N_HEAD];
    struct lk_less_net net = {.size = {.shape = {.n_head = N_HEAD}},
                              .n_weight = N_WEIGHT,
                              .weight = weight,
                              .mean = weight + N_WEIGHT,
                              .square = weight + 2 * N_WEIGHT,
                              .level = level};
    struct lk_less_checkpoint c = {
        .path = path, .identity = IDENTITY, .n_epoch = N_EPOCH, .net = &net, .best_weight = best};
    if (!*path) {
        const char *dir = getenv("TMPDIR");
        snprintf(path, sizeof path, "%.900s/lowkey-fuzz-less-%d", dir ? dir : "/tmp",
                 (int)getpid());
        if (lk_less_file_name(layer_path, path, ".layer-%d", 0, NULL) != LK_OK) abort();
    }
    FILE *file = fopen(layer_path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) abort();
    bool found;
    if (!lk_less_checkpoint_load(&c, 0, &found, NULL) && found) {
        size_t floats = 4 * N_WEIGHT + N_HEAD;
        if (size < sizeof c.state + floats * sizeof(float)) abort();
        if (c.state.identity != IDENTITY || c.state.layer != 0) abort();
        if (c.state.n_epoch < 1 || c.state.n_epoch > N_EPOCH) abort();
    }
    unlink(layer_path);
    return 0;
}
