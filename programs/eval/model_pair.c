/* Opens and closes the evaluated model in lowkey and in libllama. */
#define _DEFAULT_SOURCE /* mkstemps */
#include "eval/model_pair.h"

#include "base/cxx_call.h"
#include "base/log.h"
#include "base/os.h"

#include "llama.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

lk_status lk_model_pair_open(struct lk_model_pair *pair, lk_err *err) {
    lk_model_opts opts = pair->opts;
    if (pair->lowkey) return LK_OK;
    if (pair->tokens_only) {
        opts.weights = LK_WEIGHTS_AS_SHIPPED;
        opts.no_repack = true;
        opts.no_mmap = false;
    }
    return lk_model_open(&pair->lowkey, pair->path, &opts, err);
}

/* A model file for libllama, and what it makes of it. */
struct model_file {
    const char *path, *f32_path; /* f32_path: of the copy, if one is to be written */
    int n_thread;
    bool written;
    struct llama_model *model;
};

/* May throw. */
static void open_in_libllama(void *arg) {
    struct model_file *file = arg;
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    file->model = llama_model_load_from_file(file->path, params);
}

/* May throw. */
static void write_f32_copy(void *arg) {
    struct model_file *file = arg;
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    params.nthread = file->n_thread;
    file->written = llama_model_quantize(file->path, file->f32_path, &params) == 0;
}

/* Write a copy of the model with f32 matrices, open it and remove the file. The mapping keeps the
 * contents. */
static lk_status open_f32_copy(struct lk_model_pair *pair, lk_err *err) {
    char path[1024];
    uint64_t drawn = 0;
    lk_os_random(&drawn, sizeof drawn);
    snprintf(path, sizeof path, "%s/lowkey-f32-%016" PRIx64 ".gguf", lk_os_temporary_folder(),
             drawn);
    int file = lk_os_open(path, LK_OS_WRITE | LK_OS_CREATE | LK_OS_NEW, 0600);
    if (file < 0)
        return lk_fail(err, LK_E_IO, "cannot create the temporary file %s: %s; set TMPDIR", path,
                       strerror(errno));
    close(file);
    struct model_file model = {
        .path = pair->path, .f32_path = path, .n_thread = pair->opts.n_threads};
    lk_status status = lk_cxx_compute(write_f32_copy, &model, err);
    model.path = path;
    if (model.written) status = lk_cxx_compute(open_in_libllama, &model, err);
    unlink(path);
    if (status) return status;
    pair->llama = model.model;
    if (!model.written)
        return lk_fail(err, LK_E_IO,
                       "libllama cannot write an f32 copy of the model to %s; set TMPDIR to a "
                       "folder with enough space",
                       path);
    if (!pair->llama)
        return lk_fail(err, LK_E_UNSUPPORTED, "libllama cannot open its f32 copy of the model");
    return LK_OK;
}

lk_status lk_model_pair_llama(struct lk_model_pair *pair, struct llama_model **out, lk_err *err) {
    lk_redirect_logs();
    if (!pair->llama && pair->opts.weights == LK_WEIGHTS_F32) {
        lk_status status = open_f32_copy(pair, err);
        if (status) return status;
    }
    struct model_file model = {.path = pair->path};
    if (!pair->llama) {
        lk_status status = lk_cxx_compute(open_in_libllama, &model, err);
        if (status) return status;
        pair->llama = model.model;
    }
    if (!pair->llama) return lk_fail(err, LK_E_UNSUPPORTED, "libllama cannot open %s", pair->path);
    *out = pair->llama;
    return LK_OK;
}

void lk_model_pair_close(struct lk_model_pair *pair) {
    if (pair->llama) llama_model_free(pair->llama);
    lk_model_free(pair->lowkey);
    pair->llama = NULL;
    pair->lowkey = NULL;
}
