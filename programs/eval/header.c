/* What identifies a run: the model, the machine and the options. */
#include "eval/eval.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* FNV-1a, 64 bits. */
static uint64_t hash(uint64_t h, const void *data, size_t n) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < n; i++) h = (h ^ byte[i]) * 0x100000001b3u;
    return h;
}

static const uint64_t HASH_BEGIN = 0xcbf29ce484222325u;

lk_status lk_eval_fingerprint(const char *path, char out[40], lk_err *err) {
    enum { PART = 1 << 20 };
    FILE *file = fopen(path, "rb");
    char *part = malloc(PART);
    long size = -1;
    uint64_t h = HASH_BEGIN;
    if (file && part && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0) {
        for (int end = 0; end < 2; end++) {
            long from = end && size > PART ? size - PART : 0;
            if (fseek(file, from, SEEK_SET)) break;
            h = hash(h, part, fread(part, 1, PART, file));
        }
    }
    lk_status status = LK_OK;
    if (!part)
        status = lk_fail(err, LK_E_NOMEM, "no memory to read %s", path);
    else if (size < 0)
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (status == LK_OK) snprintf(out, 40, "%ld-%016" PRIx64, size, h);
    free(part);
    if (file) fclose(file);
    return status;
}

/* The processor's name from /proc/cpuinfo, or "unknown". */
static void cpu_name(char *name, size_t cap) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, cap, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(name, cap, "%s", value);
        break;
    }
    if (file) fclose(file);
}

static json_t *options(const struct lk_eval *eval, const char *sidecar) {
    const struct lk_eval_opts *opts = &eval->opts;
    char text[40] = "none", *data = opts->data ? realpath(opts->data, NULL) : NULL;
    if (opts->text)
        snprintf(text, sizeof text, "%zu-%016" PRIx64, opts->text_len,
                 hash(HASH_BEGIN, opts->text, opts->text_len));
    json_t *made =
        json_pack("{s:I s:I s:I s:b s:s s:s? s:s}", "--seed", (json_int_t)opts->seed, "--ctx",
                  (json_int_t)opts->n_ctx, "--shots", (json_int_t)opts->shots, "--quick",
                  opts->quick, "--text", text, "--data", data, "--sidecar", sidecar);
    free(data);
    return made;
}

json_t *lk_eval_header(const struct lk_eval *eval, const char *command, lk_err *err) {
    char fingerprint[40], sidecar[40] = "none", cpu[200], date[40];
    if (lk_eval_fingerprint(eval->models.path, fingerprint, err)) return NULL;
    if (eval->models.opts.sidecar && lk_eval_fingerprint(eval->models.opts.sidecar, sidecar, err))
        return NULL;
    const char *name = strrchr(eval->models.path, '/');
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n_threads = eval->models.opts.n_threads > 0 ? eval->models.opts.n_threads
                    : cores > 16                    ? 16
                                                    : (int)cores;
    time_t now = time(NULL);
    struct tm utc;
    cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *header = json_pack(
        "{s:s s:s s:s s:s s:s s:i s:s s:s s:s s:o}", "type", "run", "version", lk_version(),
        "model", name ? name + 1 : eval->models.path, "model_fingerprint", fingerprint, "weights",
        eval->models.opts.weights == LK_WEIGHTS_F32 ? "f32" : "shipped", "n_threads", n_threads,
        "cpu", cpu, "command", command, "date", date, "options", options(eval, sidecar));
    if (!header)
        lk_fail(err, LK_E_NOMEM,
                "no memory for a results file's first line, or a name that is not UTF-8");
    return header;
}
