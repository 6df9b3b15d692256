/* libFuzzer target: model files. The input goes through the check alone and, as a file in memory,
 * through opening a model, which reaches the loader and ggml's GGUF parser.
 *
 * Build with LOWKEY_FUZZ. Seed it with small files written by tests/support/tiny_gguf.c. */
#define _GNU_SOURCE /* memfd_create */
#include "model/gguf_check.h"
#include "model/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void open_as_file(const uint8_t *data, size_t size, const struct lk_net_opts *opts) {
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0) abort();
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, data + done, size - done);
        if (n <= 0) abort();
        done += (size_t)n;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct lk_ledger ledger = {.limit = (uint64_t)256 << 20};
    struct lk_net *net = NULL;
    lk_err err = {0};
    if (lk_net_open(&net, path, opts, &ledger, &err) == LK_OK)
        lk_net_free(net, &ledger);
    else if (!err.msg[0])
        abort(); /* an error must have a message */
    for (int i = 0; i < LK_N_PURPOSE; i++) {
        if (lk_ledger_bytes(&ledger, i) != 0) abort();
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct lk_ledger ledger = {.limit = (uint64_t)256 << 20};
    lk_gguf_check(data, size, &ledger, NULL);
    open_as_file(data, size, NULL);
    open_as_file(data, size, &(struct lk_net_opts){.f32 = true, .no_mmap = true});
    return 0;
}
