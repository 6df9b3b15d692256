/* Fuzz target: loading saved sessions. If the first byte is 0, the rest is the file. Otherwise the
 * rest is a list of edits of a valid file, | at u32 | value i32 |, after which the checksums are
 * fixed. A session that loads must be able to continue. */
#define _GNU_SOURCE /* memfd_create */
#include "lowkey.h"
#include "support_session.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 300, N_MORE = 40, CTX = 512 };

static struct {
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    uint8_t *file;
    size_t size;
    int fd;
    char path[1024];
    lk_sampler_opts sampling;
} fuzz;

static void set_up(void) {
    const char *dir = getenv("TMPDIR");
    char model[1024];
    if (!dir || !*dir) dir = "/tmp";
    fuzz.sampling = lk_sampler_chat();
    snprintf(model, sizeof model, "%s/lowkey-fuzz-XXXXXX", dir);
    int32_t tok[PROMPT];
    struct tiny_spec spec = *tiny_preset("llama");
    lk_model_opts opts = {.n_threads = 1};
    lk_session_opts session = {.n_ctx = CTX};
    lk_sampler *sampler = NULL;
    int fd = mkstemp(model);
    if (fd < 0 || !tiny_gguf_write(model, &spec) ||
        lk_model_open(&fuzz.model, model, &opts, NULL) != LK_OK)
        abort();
    close(fd);
    unlink(model);
    for (int i = 0; i < PROMPT; i++) tok[i] = i % 300;
    if (lk_recipe_parse(&fuzz.recipe, "best-3", NULL) != LK_OK ||
        lk_session_new(&fuzz.session, fuzz.model, fuzz.recipe, &session, NULL) != LK_OK ||
        lk_sampler_new(&sampler, fuzz.model, &fuzz.sampling, NULL) != LK_OK ||
        lk_session_sync(fuzz.session, tok, PROMPT, NULL, NULL) != LK_OK ||
        lk_sampler_next(sampler, fuzz.session, tok, NULL) != LK_OK)
        abort();
    snprintf(fuzz.path, sizeof fuzz.path, "%s/lowkey-fuzz-session-%d", dir, (int)getpid());
    if (lk_session_save(fuzz.session, sampler, fuzz.path, NULL) != LK_OK) abort();
    fuzz.file = read_file(fuzz.path, &fuzz.size);
    unlink(fuzz.path);
    lk_sampler_free(sampler);
    fuzz.fd = memfd_create("session", 0);
    if (!fuzz.file || fuzz.fd < 0) abort();
    snprintf(fuzz.path, sizeof fuzz.path, "/proc/self/fd/%d", fuzz.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!fuzz.model) set_up();
    if (size < 1) return 0;
    uint8_t *file = malloc(fuzz.size + size);
    size_t n = data[0] ? fuzz.size : size - 1;
    memcpy(file, data[0] ? fuzz.file : data + 1, n);
    for (size_t at = 1; data[0] && at + 8 <= size; at += 8) {
        uint32_t offset;
        memcpy(&offset, data + at, sizeof offset);
        memcpy(file + offset % (fuzz.size - 3), data + at + 4, 4);
    }
    if (data[0]) seal_session(file, n);
    if (ftruncate(fuzz.fd, 0) != 0 || pwrite(fuzz.fd, file, n, 0) != (ssize_t)n) abort();
    free(file);
    lk_sampler *sampler = NULL;
    lk_recipe *recipe = NULL;
    if (lk_session_file_recipe(&recipe, fuzz.path, NULL) == LK_OK) lk_recipe_free(recipe);
    if (lk_sampler_new(&sampler, fuzz.model, &fuzz.sampling, NULL) != LK_OK) abort();
    if (lk_session_load(fuzz.session, sampler, fuzz.path, NULL) == LK_OK) {
        static const int32_t tok[N_MORE];
        lk_session_eval(fuzz.session, tok, N_MORE, false, NULL);
    }
    lk_sampler_free(sampler);
    return 0;
}
