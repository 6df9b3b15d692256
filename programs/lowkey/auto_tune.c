/* Tunes the recipes that 'auto' stands for. */
#include "auto_recipe.h"
#include "available.h"
#include "base/atomic_file.h"
#include "base/cpus.h"
#include "base/os.h"
#include "lowkey_lab.h"
#include "model_find.h"
#include "output.h"
#include "progress.h"
#include "tune_report.h"
#include "xalloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Chunks of the text: long ones, since the loss of a head depends on how many rows there are, and
 * more than one, since it depends on what the text is about. */
enum { N_CHUNK = 2, MIN_CHUNK = 256, MEASURE_BYTES = 2047 << 20 };

extern const char lk_tuning_text[]; /* tuning.txt: passages of several kinds */
extern const size_t lk_tuning_text_len;

/* Everything that one tuning run needs. */
struct auto_tune {
    lk_model *model;
    struct tokens text;
    char *state; /* path */
    lk_tune_opts opts;
    lk_tune *tune;
};

/* ---- the text, and where results are kept ---- */

/* Make the folder of `path`, and the one above it. */
static void make_folders(const char *path) {
    char *folder = xasprintf("%s", path), *slash = strrchr(folder, '/');
    *slash = 0;
    char *parent = xasprintf("%s", folder);
    *strrchr(parent, '/') = 0;
    lk_os_make_folder(parent, false);
    lk_os_make_folder(folder, false); /* a failure shows when a file is opened */
    free(parent);
    free(folder);
}

size_t auto_max_chunk(const lk_model *model) {
    int32_t trained = lk_model_get_info(model).n_ctx_train;
    return trained > 0 && trained < AUTO_MAX_CHUNK ? (size_t)trained : AUTO_MAX_CHUNK;
}

/* N_CHUNK chunks of a text, one after the other, which start at equal distances in it. The text
 * goes on from its start after its end: chunks of a short text have all of it, and end in different
 * passages. */
static int cut_chunks(const struct tokens *text, size_t max, struct tokens *out) {
    size_t chunk = text->n < max ? text->n : max;
    if (chunk < MIN_CHUNK)
        return print_error("the text has %zu tokens; tuning needs %d or more", text->n, MIN_CHUNK);
    *out = (struct tokens){.at = xmalloc(N_CHUNK * chunk * sizeof *out->at), .n = N_CHUNK * chunk};
    for (size_t i = 0; i < N_CHUNK; i++)
        for (size_t t = 0; t < chunk; t++)
            out->at[i * chunk + t] = text->at[(i * text->n / N_CHUNK + t) % text->n];
    return STATUS_OK;
}

/* The chunks of the given text, or of the program's. */
static int find_text(const lk_model *model, const struct tokens *given, struct tokens *out) {
    size_t max = auto_max_chunk(model);
    if (max < MIN_CHUNK) max = MIN_CHUNK;
    struct lk_buf text = {0};
    struct tokens own = {0};
    if (given) return cut_chunks(given, max, out);
    xbuf_add(&text, lk_tuning_text, lk_tuning_text_len);
    int status = tokenize_text(model, &text, &own);
    lk_buf_free(&text);
    if (!status) status = cut_chunks(&own, max, out);
    free(own.at);
    return status;
}

/* Codes with a trellis are slow to read without AVX-512. */
static bool is_trellis_slow(const lk_model *model) {
    const char *kernels = lk_model_get_info(model).kernels;
    return strncmp(kernels, "avx512", 6) != 0 && strcmp(kernels, "amx") != 0;
}

static int32_t context_of(const lk_model *model) {
    int32_t trained = lk_model_get_info(model).n_ctx_train;
    return trained > 0 && trained < AUTO_CTX ? trained : AUTO_CTX;
}

static int start_tuning(struct auto_tune *a, lk_model *model, const struct tokens *text,
                        int32_t n_ctx, lk_progress progress, void *user) {
    *a = (struct auto_tune){.model = model, .state = auto_recipe_path(model, NULL)};
    if (!a->state)
        return print_error("recipes are stored in $LOWKEY_CACHE or ~/.cache/lowkey; set HOME");
    int status = find_text(model, text, &a->text);
    if (!status) make_folders(a->state);
    if (!status) status = check_writable(a->state);
    a->opts = (lk_tune_opts){.estimate = true,
                             .n_ctx = n_ctx,
                             .chunk = (int32_t)(a->text.n / N_CHUNK),
                             .n_chunk = N_CHUNK,
                             .n_round = -1,
                             .max_bytes = MEASURE_BYTES,
                             .fast = is_trellis_slow(model),
                             .state = a->state,
                             .progress = progress,
                             .user = user};
    return status;
}

/* Open the measurements. A state of other weights or of another version is made again. */
static int open_tune(struct auto_tune *a) {
    lk_err err = {0};
    lk_status status = lk_tune_new(&a->tune, a->model, a->text.at, a->text.n, &a->opts, &err);
    bool old = status == LK_E_ARG || status == LK_E_FORMAT;
    if (old && unlink(a->state) == 0)
        status = lk_tune_new(&a->tune, a->model, a->text.at, a->text.n, &a->opts, &err);
    return status ? print_lk_error(&err) : STATUS_OK;
}

static void end_tuning(struct auto_tune *a) {
    lk_tune_free(a->tune);
    free(a->text.at);
    free(a->state);
}

/* ---- recipe files ---- */

static int write_recipe(const struct auto_tune *a, const char *path, const lk_recipe *recipe,
                        const char *comment) {
    lk_err err = {0};
    struct lk_atomic_file f;
    char *name = model_name(a->model);
    if (lk_atomic_file_open_public(&f, path, &err)) {
        free(name);
        return print_lk_error(&err);
    }
    fprintf(f.file, "# lowkey %s: tuned for %s on %d tokens\n%s", lk_version(), name,
            (int)(a->opts.n_chunk * a->opts.chunk), comment);
    tune_print_parts(f.file, recipe);
    free(name);
    lk_status status = ferror(f.file) ? lk_fail(&err, LK_E_IO, "%s: cannot write it", path) : LK_OK;
    status = lk_atomic_file_close(&f, status, &err);
    return status ? print_lk_error(&err) : STATUS_OK;
}

/* Store a recipe, or the preset of its size if that is better on the text. The default is f16 if
 * both lose much more than the models that the presets were made with lose (0.001 to 0.003). */
static int store(const struct auto_tune *a, const struct auto_name *size, const lk_recipe *preset,
                 const lk_tuned *tuned, const lk_compare_result *of_preset) {
    const double max_default_kl = 0.03;
    const lk_compare_result *c = &tuned->measured;
    bool better = c->kl_mean < of_preset->kl_mean;
    bool exact = size == &auto_names[0] && fmin(c->kl_mean, of_preset->kl_mean) > max_default_kl;
    char *path = auto_recipe_path(a->model, size);
    char *comment = xasprintf(
        "# %.3f bits per value at %" PRIu64 " tokens; KL %.6f +- %.6f, %s %.6f +- %.6f, on %" PRIu64
        " predictions of the text%s\n",
        tuned->plan.bits_per_value, tuned->plan.n_tok, c->kl_mean, c->kl_stderr,
        lk_recipe_text(preset), of_preset->kl_mean, of_preset->kl_stderr, c->n_scored,
        exact    ? "; too much for a default"
        : better ? ""
                 : "; so the preset is kept");
    lk_recipe *f16 = NULL;
    int status = exact ? recipe_open("f16", &f16) : STATUS_OK;
    if (!status)
        status = write_recipe(a, path, exact ? f16 : better ? tuned->recipe : preset, comment);
    lk_recipe_free(f16);
    free(comment);
    free(path);
    return status;
}

/* Tune and store one size. */
static int tune_size(struct auto_tune *a, const struct auto_name *size, bool fast) {
    lk_err err = {0};
    lk_recipe *like = NULL;
    lk_tuned tuned = {0};
    lk_compare_result of_like = {0};
    int status = recipe_open(size->preset, &like);
    if (!status && (lk_tune_set_fast(a->tune, fast, &err) ||
                    lk_tune_solve_like(a->tune, like, &tuned, &of_like, &err)))
        status = print_lk_error(&err);
    if (!status) status = store(a, size, like, &tuned, &of_like);
    lk_recipe_free(tuned.recipe);
    lk_recipe_free(like);
    return status;
}

int auto_recipes_make(lk_model *model, const struct tokens *text, lk_progress progress,
                      void *user) {
    struct auto_tune a;
    lk_err err = {0};
    int status = start_tuning(&a, model, text, context_of(model), progress, user);
    if (!status) status = open_tune(&a);
    if (!status && lk_tune_measure(a.tune, &err)) status = print_lk_error(&err);
    /* A trellis gains little at 4 bits. */
    for (int i = 0; !status && i < AUTO_SIZES; i++)
        status = tune_size(&a, &auto_names[i], i == 0 || a.opts.fast);
    end_tuning(&a);
    return status;
}

int auto_recipes_make_now(lk_model *model) {
    if (auto_recipe_exists(model, &auto_names[0])) return STATUS_OK;
    struct progress progress = progress_start("tuning the cache for this model");
    int status = auto_recipes_make(model, NULL, progress_step, &progress);
    progress_end(&progress);
    return status;
}

int auto_recipe_fit(lk_model *model, uint64_t max_bytes, int32_t n_ctx, lk_recipe **out) {
    struct auto_tune a;
    lk_tuned tuned = {0};
    lk_err err = {0};
    struct progress progress = progress_start("finding a recipe of this size");
    int status = start_tuning(&a, model, NULL, n_ctx, progress_step, &progress);
    if (!status) status = open_tune(&a);
    if (!status &&
        (lk_tune_measure(a.tune, &err) || lk_tune_solve(a.tune, max_bytes, &tuned, &err)))
        status = print_lk_error(&err);
    progress_end(&progress);
    if (!status) *out = tuned.recipe;
    end_tuning(&a);
    return status;
}

int auto_recipe_open(const struct auto_args *args, const struct model_args *of, lk_model *model,
                     const struct string_list *kv, lk_recipe **recipe) {
    bool asked = args && (args->memory || args->tune), is_auto = !kv->n || auto_size(kv->item[0]);
    int status = STATUS_OK;
    if (asked && (*recipe || !is_auto))
        return print_error("--%s needs --kv auto", args->memory ? "memory" : "tune");
    if (*recipe) return STATUS_OK;
    if (asked && of->cluster)
        return print_error("--%s: give several ranks the same file with --kv",
                           args->memory ? "memory" : "tune");
    if (args && args->memory) {
        if (!of->n_ctx) return print_error("--memory: the size depends on the context; give -c N");
        return auto_recipe_fit(model, (uint64_t)args->memory << 20, (int32_t)of->n_ctx, recipe);
    }
    if (args && args->tune) status = auto_recipes_make_now(model);
    if (!status) status = auto_recipe_of_size(model, auto_name_of(kv), !of->cluster, recipe);
    if (!status && strcmp(lk_recipe_text(*recipe), "f16") == 0)
        print_error("the cache is f16: quantized ones lose much with this model, or have not been "
                    "measured (docs/tuning.md)");
    return status;
}

/* ---- in the background ---- */

/* Whether tuning fits next to what runs: the mapped weights, the chunks' caches, and others. */
static bool fits_memory(const lk_model *model) {
    enum { REST = 512 << 20, CACHES = 2 };
    lk_model_info info = lk_model_get_info(model);
    lk_session_opts opts = {.n_ctx = AUTO_MAX_CHUNK * N_CHUNK};
    lk_recipe *f16 = NULL;
    lk_plan plan = {0};
    lk_err err = {0};
    if (lk_recipe_parse(&f16, "f16", &err)) return false;
    lk_status status = lk_plan_make(model, f16, &opts, &plan, &err);
    lk_recipe_free(f16);
    return !status &&
           available_bytes("") > info.weight_bytes + CACHES * plan.cache_bytes + (uint64_t)REST;
}

bool auto_recipes_make_later(const struct model_args *args, const lk_model *model,
                             const struct string_list *kv) {
    const char *given = getenv("LOWKEY_TUNE");
    char *state = auto_recipe_path(model, NULL), *path = NULL;
    bool useful = state && !args->cluster && !args->device && !(given && strcmp(given, "0") == 0) &&
                  !auto_recipe_exists(model, auto_name_of(kv)) && fits_memory(model) &&
                  !model_find(args->model, false, &path);
    free(state);
    if (!useful) return false;
    char *parent = xasprintf("%ld", (long)getpid()),
         *threads = xasprintf("%" PRId64, args->threads ? args->threads : 0);
    char *argv[] = {"lowkey", "tune", "--while", parent, "-m", path, "-t", threads, NULL};
    if (!args->threads) argv[6] = NULL;
    bool started = lk_os_start_self(argv);
    free(threads);
    free(parent);
    free(path);
    return started;
}

bool auto_recipes_wait(int64_t pid) {
    enum { STEP_S = 5 };
    struct lk_cpus cpus = lk_cpus_read("");
    double load, most = 0.5 * lk_cpus_threads(&cpus);
    lk_os_stay_in_background();
    do {
        lk_os_sleep(STEP_S);
        if (!lk_os_process_runs(pid)) return false;
    } while (lk_os_load_average(&load) && load > most);
    return true;
}
