/* Builds the header of a run: fingerprints of its files, the machine, and the options. */
#include "eval/run_header.h"

#include "base/fnv1a.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* "SIZE-HASH", the form of all fingerprints. */
static void print_fingerprint(char out[40], size_t size, uint64_t hash) {
    snprintf(out, 40, "%zu-%016" PRIx64, size, hash);
}

lk_status lk_file_fingerprint(const char *path, char out[40], lk_err *err) {
    enum { PART = 1 << 20 };
    FILE *file = fopen(path, "rb");
    char *part = malloc(PART);
    long size = -1;
    uint64_t hash = LK_FNV1A_INIT;
    if (file && part && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0) {
        for (int end = 0; end < 2; end++) {
            long from = end && size > PART ? size - PART : 0;
            if (fseek(file, from, SEEK_SET)) break;
            hash = lk_fnv1a(hash, part, fread(part, 1, PART, file));
        }
    }
    lk_status status = LK_OK;
    if (!part)
        status = lk_fail(err, LK_E_NOMEM, "no memory to read %s", path);
    else if (size < 0)
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    if (status == LK_OK) print_fingerprint(out, (size_t)size, hash);
    free(part);
    if (file) fclose(file);
    return status;
}

/* The processor's name from /proc/cpuinfo, or "unknown". */
static void read_cpu_name(char *name, size_t cap) {
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

/* The options that a results file must share. `sidecar`: its fingerprint, or "none". */
static json_t *pack_options(const struct lk_eval *eval, const char *sidecar) {
    const struct lk_eval_opts *opts = &eval->opts;
    char text[40] = "none", *data = opts->data ? realpath(opts->data, NULL) : NULL;
    if (opts->text)
        print_fingerprint(text, opts->text_len,
                          lk_fnv1a(LK_FNV1A_INIT, opts->text, opts->text_len));
    json_t *options = json_pack(
        "{s:I s:I s:b s:b s:I s:s s:s? s:s}", "--seed", (json_int_t)opts->seed, "--ctx",
        (json_int_t)opts->n_ctx, "--quick", opts->quick, "--plain", opts->plain, "--min-answer",
        (json_int_t)opts->min_answer, "--text", text, "--data", data, "--sidecar", sidecar);
    free(data);
    return options;
}

json_t *lk_run_header(const struct lk_eval *eval, const char *command, lk_err *err) {
    char fingerprint[40], sidecar[40] = "none", cpu[200], date[40];
    if (lk_file_fingerprint(eval->models.path, fingerprint, err)) return NULL;
    if (eval->models.opts.sidecar && lk_file_fingerprint(eval->models.opts.sidecar, sidecar, err))
        return NULL;
    const char *name = strrchr(eval->models.path, '/');
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n_threads = eval->models.opts.n_threads > 0 ? eval->models.opts.n_threads
                    : cores > 16                    ? 16
                                                    : (int)cores;
    time_t now = time(NULL);
    struct tm utc;
    read_cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *header = json_pack(
        "{s:s s:s s:s s:s s:s s:i s:s s:s s:s s:o}", "type", "run", "version", lk_version(),
        "model", name ? name + 1 : eval->models.path, "model_fingerprint", fingerprint, "weights",
        eval->models.opts.weights == LK_WEIGHTS_F32 ? "f32" : "shipped", "n_threads", n_threads,
        "cpu", cpu, "command", command, "date", date, "options", pack_options(eval, sidecar));
    if (!header)
        lk_fail(err, LK_E_NOMEM,
                "no memory for the header of the results, or a name is not valid UTF-8");
    return header;
}
