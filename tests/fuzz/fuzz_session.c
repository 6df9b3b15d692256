/* Fuzz target: loading saved sessions. If the first byte is 0, the rest is the file. Otherwise the
 * byte selects a session, whose valid file is edited, and the rest is a list of edits:
 *
 *   | section u8 | offset u24 | value i32 |
 *
 * Sections are the file's; the number after the last one is the header. Offsets are from the
 * section's start, modulo its size. The checksums are fixed afterwards. A session that loads must
 * be able to continue. */
#define _GNU_SOURCE /* memfd_create */
#include "engine/session_save.h"
#include "lowkey_serve.h"
#include "support_session.h"
#include "support_sidecar.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 300, N_MORE = 40, CTX = 512 };

/* Every kind of state that a session can hold. */
static const struct kind {
    const char *model, *recipe;
    bool cut; /* its prefill is cut short */
} kinds[] = {
    {"llama", "best-3", false},
    {"llama", "sink 4: f16; keep 40 by h2o: rot4; window 32: f16; absorb less", false},
    {"llama", "keep 10% by tova: int8; window 16: f16; absorb less", false},
    {"llama", "best-1.9", false},
    {"llama", "tale", false},
    {"llama", "sink 4(shift): f16; body: none; window 60: f16", false},
    {"qwen35", "best-3", false},
    {"llama", "best-3", true},
};
enum { N_KIND = sizeof kinds / sizeof *kinds };

/* A session and its valid file. */
struct target {
    const struct kind *kind;
    lk_model *model; /* of another target, if it has the same */
    lk_recipe *recipe;
    lk_session *session;
    bool cuts; /* the next prefill */
    int32_t tok[PROMPT];
    uint8_t *file;
    size_t size;
};

static struct {
    bool is_set_up;
    struct target target[N_KIND];
    int fd;
    char path[1024];
    lk_sampler_opts sampling;
} fuzz;

/* A tiny model. With a sidecar, every recipe works. */
static lk_model *open_model(const char *dir, const char *preset) {
    char path[1024], sidecar[1024];
    lk_model *model = NULL;
    lk_model_opts opts = {.n_threads = 1};
    if (strcmp(preset, "llama") == 0) opts.sidecar = sidecar;
    snprintf(path, sizeof path, "%s/lowkey-fuzz-XXXXXX", dir);
    snprintf(sidecar, sizeof sidecar, "%s/lowkey-fuzz-XXXXXX", dir);
    int fd[2] = {mkstemp(path), mkstemp(sidecar)};
    if (fd[0] < 0 || fd[1] < 0 || !tiny_gguf_write(path, tiny_preset(preset)) ||
        (opts.sidecar && !write_sidecar_for(sidecar, path, 1)) ||
        lk_model_open(&model, path, &opts, NULL) != LK_OK)
        abort();
    for (int i = 0; i < 2; i++) close(fd[i]);
    unlink(path);
    unlink(sidecar);
    return model;
}

static bool go_on(void *user, uint64_t done, uint64_t total) {
    const struct target *t = user;
    return !t->cuts || 2 * done < total;
}

static void make_target(struct target *t) {
    lk_session_opts opts = {.n_ctx = CTX, .n_checkpoint = 4, .progress = go_on, .user = t};
    lk_sampler *sampler = NULL;
    int32_t *tok = t->tok, next;
    for (int i = 0; i < PROMPT; i++) tok[i] = i % 300;
    if (lk_recipe_parse(&t->recipe, t->kind->recipe, NULL) != LK_OK ||
        lk_session_new(&t->session, t->model, t->recipe, &opts, NULL) != LK_OK ||
        lk_sampler_new(&sampler, t->model, &fuzz.sampling, NULL) != LK_OK)
        abort();
    t->cuts = t->kind->cut;
    if (t->cuts ? lk_session_sync(t->session, tok, PROMPT, NULL, NULL) != LK_E_CANCELLED ||
                      !lk_session_suspended(t->session, NULL)
                : lk_session_sync(t->session, tok, PROMPT / 2, NULL, NULL) != LK_OK ||
                      lk_session_sync(t->session, tok, PROMPT, NULL, NULL) != LK_OK ||
                      lk_sampler_next(sampler, t->session, -1, &next, NULL) != LK_OK)
        abort();
    t->cuts = false;
    if (lk_session_save(t->session, sampler, fuzz.path, NULL) != LK_OK) abort();
    t->file = read_file(fuzz.path, &t->size);
    if (!t->file) abort();
    lk_sampler_free(sampler);
}

static void set_up(void) {
    const char *dir = getenv("TMPDIR");
    if (!dir || !*dir) dir = "/tmp";
    fuzz.sampling = lk_sampler_chat();
    snprintf(fuzz.path, sizeof fuzz.path, "%s/lowkey-fuzz-session-%d", dir, (int)getpid());
    for (int i = 0; i < N_KIND; i++) {
        struct target *t = &fuzz.target[i];
        t->kind = &kinds[i];
        for (int k = 0; k < i && !t->model; k++)
            if (strcmp(kinds[k].model, kinds[i].model) == 0) t->model = fuzz.target[k].model;
        if (!t->model) t->model = open_model(dir, kinds[i].model);
        make_target(t);
    }
    fuzz.is_set_up = true;
    unlink(fuzz.path);
    fuzz.fd = memfd_create("session", 0);
    if (fuzz.fd < 0) abort();
    snprintf(fuzz.path, sizeof fuzz.path, "/proc/self/fd/%d", fuzz.fd);
}

/* Apply one edit to a target's file. */
static void edit_file(const struct target *t, uint8_t *file, const uint8_t *edit) {
    struct lk_session_header header;
    memcpy(&header, t->file, sizeof header);
    int section = edit[0] % (LK_N_SECTION + 1);
    size_t start = section == LK_N_SECTION ? 0 : sizeof header, size = sizeof header;
    if (section < LK_N_SECTION) size = header.section[section].size;
    for (int i = 0; i < section && section < LK_N_SECTION; i++) start += header.section[i].size;
    size_t offset = edit[1] | edit[2] << 8 | (size_t)edit[3] << 16;
    if (size >= 4) memcpy(file + start + offset % (size - 3), edit + 4, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { EDIT = 8 };
    if (!fuzz.is_set_up) set_up();
    if (size < 1) return 0;
    const struct target *t = &fuzz.target[data[0] ? (data[0] - 1) % N_KIND : 0];
    uint8_t *file = malloc(t->size + size);
    size_t n = data[0] ? t->size : size - 1;
    memcpy(file, data[0] ? t->file : data + 1, n);
    for (size_t at = 1; data[0] && at + EDIT <= size; at += EDIT) edit_file(t, file, data + at);
    if (data[0]) seal_session(file, n);
    if (ftruncate(fuzz.fd, 0) != 0 || pwrite(fuzz.fd, file, n, 0) != (ssize_t)n) abort();
    free(file);
    lk_sampler *sampler = NULL;
    lk_recipe *recipe = NULL;
    if (lk_session_file_recipe(&recipe, fuzz.path, NULL) == LK_OK) lk_recipe_free(recipe);
    if (lk_sampler_new(&sampler, t->model, &fuzz.sampling, NULL) != LK_OK) abort();
    if (lk_session_load(t->session, sampler, fuzz.path, NULL) == LK_OK) {
        static const int32_t tok[N_MORE];
        if (t->kind->cut) lk_session_sync(t->session, t->tok, PROMPT, NULL, NULL); /* goes on */
        lk_session_eval(t->session, tok, N_MORE, false, NULL);
        lk_session_sync(t->session, t->tok, PROMPT / 2 + 1, NULL, NULL); /* from a checkpoint */
    }
    lk_sampler_free(sampler);
    return 0;
}
