/* libFuzzer target: model files. The input goes through the check alone and, as a file in memory,
 * through opening a model, which reaches the loader and ggml's GGUF parser. A rejected file gives a
 * message, and no bytes remain in the ledger. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz_input.h"
#include "model/gguf_read.h"
#include "model/net.h"

static void open_net(const char *path, const struct lk_net_opts *opts) {
    struct lk_ledger ledger = {.limit = (uint64_t)256 << 20};
    struct lk_net *net = NULL;
    lk_err err = {0};
    if (lk_net_open(&net, path, opts, &ledger, &err) == LK_OK)
        lk_net_free(net, &ledger);
    else
        fuzz_check_error(&err);
    for (int i = 0; i < LK_N_PURPOSE; i++) {
        if (lk_ledger_bytes(&ledger, i) != 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct fuzz_file file = {-1, ""};
    struct lk_ledger ledger = {.limit = (uint64_t)256 << 20};
    if (file.fd < 0) file = fuzz_file_new();
    fuzz_file_set(&file, data, size);
    lk_gguf_check(data, size, &ledger, NULL);
    open_net(file.path, NULL);
    open_net(file.path, &(struct lk_net_opts){.f32 = true, .no_mmap = true});
    return 0;
}
