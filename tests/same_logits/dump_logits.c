/* Print a hash of every logit that a model gives under every recipe, one line per stage.
 *
 * usage: dump_logits [--sidecar FILE] [--recipe TEXT] [--save FILE | --load FILE] [--text FILE]
 *                    [--threads N] [--share N] [--write FILE | --near FILE] MODEL...
 *
 * scripts/same-logits compiles this file against two versions of lowkey and compares the output. It
 * uses only calls that both have; option structs are initialized by position for the same reason.
 * Without --recipe every preset runs and, without a sidecar, the recipes below. --save writes the
 * session of the first model, --load continues such a session; both need --recipe. --share 4:
 * of the pairs of a model and a recipe a fourth runs, chosen by their names.
 *
 * --write also stores all logits. --near, in a run with the same other options on another kind of
 * CPU, compares with them: the lines have the normalized squared error instead of the hash, the sum
 * of squared differences divided by the sum of squares. */
#include <lowkey_lab.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 700, N_STEP = 12, N_CHUNK = 40, MAX_TEXT = 1 << 16 };

/* Recipes besides the presets: every codec, its options, layer overrides, eviction, windows. */
static const char *const more_recipes[] = {
    "all: int8",
    "all: kivi4(g32)",
    "sink 2: f16; body: rot1; window 16: f16",
    "sink 2: f16; body: k=rot5(nomean) v=rot6(uniform); window 16: rot8",
    "sink 2: f16; body: k=rot7(nosigma) v=rot3(mean); recent 25%: rot4; window 8: f16",
    "sink 4: f16; body: rot3; window 16: f16; layers first 1, last 1: k=rot4 v=rot8",
    "body: k=kivi2 v=rot2; residual 32: f16",
    "sink 4(shift): f16; keep 64 by h2o(mean): rot4; window 32: f16",
    "keep 40 by tova(apart): rot8; window 16: f16",
    "sink 2: f16; keep 25% by random: f16; window 16: f16",
    "sink 4: f16; body: rot3; window 32: f16; read 25%",
    NULL,
};

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) { /* FNV-1a */
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

/* Logits of another run, as floats in the order of the calls. */
struct others {
    FILE *write, *near; /* both NULL: only hashes */
    double error, square;
    float *row; /* [n_vocab] */
};

struct run {
    lk_model *model;
    const char *name; /* of the model's file */
    const char *recipe;
    const int32_t *tok; /* [n_tok] */
    size_t n_tok;
    size_t n_vocab;
    struct others *others;
};

/* Write the logits, or add their differences from those that were written. */
static void use_logits(const struct run *run, const float *logits) {
    struct others *others = run->others;
    if (others->write) fwrite(logits, sizeof *logits, run->n_vocab, others->write);
    if (!others->near) return;
    size_t n = fread(others->row, sizeof *logits, run->n_vocab, others->near);
    if (n < run->n_vocab) others->error = INFINITY;
    for (size_t i = 0; i < n; i++) {
        double d = (double)logits[i] - (double)others->row[i];
        others->error += d * d;
        others->square += (double)others->row[i] * (double)others->row[i];
    }
}

static void print_hash(const struct run *run, const char *stage, uint64_t hash) {
    struct others *others = run->others;
    if (others->near && others->square > 0) {
        printf("%s | %s | %s | %.2e\n", run->name, run->recipe, stage,
               others->error / others->square);
        others->error = others->square = 0;
        return;
    }
    printf("%s | %s | %s | %016llx\n", run->name, run->recipe, stage, (unsigned long long)hash);
}

static void print_failure(const struct run *run, const char *stage, const lk_err *err) {
    printf("%s | %s | %s | status %d\n", run->name, run->recipe, stage, (int)err->code);
}

static uint64_t hash_logits(const struct run *run, const lk_session *session, int32_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < n; i++) {
        const float *logits = lk_session_logits(session, i);
        if (!logits) continue;
        hash = hash_bytes(hash, logits, run->n_vocab * sizeof *logits);
        use_logits(run, logits);
    }
    return hash;
}

/* Single tokens and one chunk with all logits, from where the session stands. */
static void decode(const struct run *run, lk_session *session, const char *stage) {
    lk_err err = {0};
    uint64_t hash = 0;
    size_t at = lk_session_n_tok(session);
    for (int i = 0; i < N_STEP && !err.code; i++) {
        lk_session_eval(session, &run->tok[(at + (size_t)i) % run->n_tok], 1, false, &err);
        uint64_t h = hash_logits(run, session, 1);
        hash = hash_bytes(hash, &h, sizeof h);
    }
    if (!err.code) lk_session_eval(session, run->tok, N_CHUNK, true, &err);
    if (err.code) {
        print_failure(run, stage, &err);
        return;
    }
    uint64_t h = hash_logits(run, session, N_CHUNK);
    print_hash(run, stage, hash_bytes(hash, &h, sizeof h));
    lk_session_stats stats = lk_session_get_stats(session);
    /* Padding depends on which thread took a block first. */
    print_hash(run, "bytes held", stats.code_bytes + stats.scale_bytes + stats.exact_bytes);
}

static void run_recipe(const struct run *run, const char *save, const char *load) {
    lk_err err = {0};
    lk_recipe *recipe = NULL;
    if (lk_recipe_parse(&recipe, run->recipe, &err)) {
        print_failure(run, "recipe", &err);
        return;
    }
    size_t n_prompt = run->n_tok;
    for (int chunked = 0; chunked < 2; chunked++) {
        lk_session *session = NULL;
        lk_session_opts opts = {(int32_t)(n_prompt + N_STEP + N_CHUNK), chunked == 1};
        if (lk_session_new(&session, run->model, recipe, &opts, &err)) {
            print_failure(run, "session", &err);
            break;
        }
        const char *stage = chunked ? "prompt in chunks" : "prompt";
        if (load) {
            if (lk_session_load(session, NULL, load, &err)) {
                print_failure(run, "load", &err);
                fprintf(stderr, "%s\n", err.msg);
            } else {
                decode(run, session, "decode after load");
            }
            lk_session_free(session);
            break;
        }
        if (lk_session_sync(session, run->tok, n_prompt, NULL, &err)) {
            print_failure(run, stage, &err);
            err = (lk_err){0};
        } else {
            print_hash(run, stage, hash_logits(run, session, 1));
            if (save && !chunked && lk_session_save(session, NULL, save, &err)) {
                print_failure(run, "save", &err);
                err = (lk_err){0};
            }
            decode(run, session, save ? "decode after load" : "decode");
        }
        lk_session_free(session);
        if (save) break;
    }
    lk_recipe_free(recipe);
}

/* Run the recipe if the pair of it and the model is in the share. */
static void run_shared(struct run *run, const char *recipe, uint64_t share) {
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, run->name, strlen(run->name));
    if ((hash_bytes(hash, recipe, strlen(recipe)) >> 32) % share) return;
    run->recipe = recipe;
    run_recipe(run, NULL, NULL);
}

/* Tokens from a fixed generator, or of the text. Returns their number. */
static size_t make_tokens(const lk_model *model, const char *text, size_t max, int32_t *tok) {
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    uint64_t state = 12345;
    for (size_t i = 0; i < max; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        tok[i] = (int32_t)((state >> 33) % (uint64_t)n_vocab);
    }
    if (!text) return max;
    static char buf[MAX_TEXT];
    FILE *file = fopen(text, "rb");
    size_t len = file ? fread(buf, 1, sizeof buf, file) : 0, n = 0;
    if (file) fclose(file);
    while (len > 0 && (buf[len - 1] & 0x80)) len--; /* do not cut a UTF-8 sequence */
    int32_t *of_text = NULL;
#ifdef OLD_TOKENIZE /* the other version has no flags yet */
    if (lk_tokenize(model, buf, len, true, &of_text, &n, NULL)) return max;
#else
    if (lk_tokenize(model, buf, len, LK_TOKENIZE_BEGIN, 0, &of_text, &n, NULL)) return max;
#endif
    if (n < max) max = n;
    memcpy(tok, of_text, max * sizeof *tok);
    lk_tokens_free(of_text);
    return max;
}

/* NULL: there are fewer presets. */
static const char *preset_name(size_t i) {
#ifdef OLD_PRESETS /* the other version returns the struct */
    return lk_recipe_preset(i).name;
#else
    lk_preset preset;
    return lk_recipe_preset(i, &preset) ? preset.name : NULL;
#endif
}

int main(int argc, char **argv) {
#ifdef BASELINES /* the other version has them in the library */
    if (lk_baselines_register(NULL)) return 1;
#endif
    const char *sidecar = NULL, *recipe = NULL, *save = NULL, *load = NULL, *text = NULL;
    struct others others = {0};
    int a = 1, n_threads = 2;
    uint64_t share = 1;
    for (; a + 1 < argc && !strncmp(argv[a], "--", 2); a += 2) {
        if (!strcmp(argv[a], "--sidecar"))
            sidecar = argv[a + 1];
        else if (!strcmp(argv[a], "--recipe"))
            recipe = argv[a + 1];
        else if (!strcmp(argv[a], "--threads"))
            n_threads = atoi(argv[a + 1]);
        else if (!strcmp(argv[a], "--share"))
            share = strtoull(argv[a + 1], NULL, 10);
        else if (!strcmp(argv[a], "--save"))
            save = argv[a + 1];
        else if (!strcmp(argv[a], "--load"))
            load = argv[a + 1];
        else if (!strcmp(argv[a], "--text"))
            text = argv[a + 1];
        else if (!strcmp(argv[a], "--write"))
            others.write = fopen(argv[a + 1], "wb");
        else if (!strcmp(argv[a], "--near"))
            others.near = fopen(argv[a + 1], "rb");
        else
            return fprintf(stderr, "dump_logits: unknown option %s\n", argv[a]), 2;
    }
    if ((save || load) && !recipe) return fprintf(stderr, "dump_logits: no --recipe\n"), 2;
    for (; a < argc; a++) {
        lk_err err = {0};
        lk_model *model = NULL;
        lk_model_opts opts = {.n_threads = n_threads, .sidecar = sidecar};
        if (lk_model_open(&model, argv[a], &opts, &err)) {
            fprintf(stderr, "dump_logits: %s: %s\n", argv[a], err.msg);
            return 1;
        }
        const char *slash = strrchr(argv[a], '/');
        lk_model_info info = lk_model_get_info(model);
        int32_t tok[MAX_PROMPT];
        size_t max = (size_t)info.n_ctx_train - N_STEP - N_CHUNK;
        if (max > MAX_PROMPT) max = MAX_PROMPT;
        size_t n_vocab = (size_t)info.n_vocab;
        others.row = realloc(others.row, n_vocab * sizeof *others.row);
        if (!others.row) return 1;
        struct run run = {model, slash ? slash + 1 : argv[a], NULL, tok, 0, n_vocab, &others};
        run.n_tok = make_tokens(model, text, max, tok);
        if (recipe) {
            run.recipe = recipe;
            run_recipe(&run, save, load);
        }
        for (size_t i = 0; !recipe && preset_name(i); i++) run_shared(&run, preset_name(i), share);
        for (size_t i = 0; !recipe && !sidecar && more_recipes[i]; i++)
            run_shared(&run, more_recipes[i], share);
        lk_model_free(model);
    }
    free(others.row);
    if (others.near) fclose(others.near);
    return others.write && fclose(others.write) ? 1 : 0;
}
