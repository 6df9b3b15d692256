/* Speed of libllama at a depth that is not computed: the cache repeats the rows of a text of 512
 * tokens. `lowkey bench` repeats a text too. This takes seconds, and computing a long context takes
 * hours.
 *
 *   build/bench/llama_depth [--dry-run | --check] MODEL DEPTH TYPE_K TYPE_V FLASH THREADS N_PROMPT
 *                           N_TOKENS REPEAT [N_SEQUENCE...]
 *
 * FLASH is on or off. Prints a JSON list of up to two tests, each with REPEAT samples, in tokens
 * per second: over a prompt of N_PROMPT tokens, and over N_TOKENS tokens that are decoded one by
 * one. A number of 0 leaves a test out. Settings are llama-bench's: a thread pool of ggml,
 * random tokens, batches of 2,048 and 512, an untimed run of each test first (of one token if they
 * are decoded). "cpu_share" is the CPU time divided by threads and time. It is near 1 on an idle
 * machine: the threads poll while they wait.
 *
 * With numbers of sequences, N_PROMPT is 0, and N_TOKENS tokens of each of so many sequences of
 * DEPTH tokens are decoded, one of each at a time; a line with a JSON object for each number. If
 * libllama has a device, the device computes all layers and has the cache.
 *
 * A depth of 0 works with every model; others only if all layers have attention without a window.
 *
 * --dry-run stops before the cache is allocated. The exit status says whether everything fits.
 * --check measures nothing. It compares the rows in the cache with rows that libllama computed, and
 * if DEPTH is at most 512, the next N_TOKENS greedy tokens with a computed context's.
 *
 * libllama saves and loads the cache of a sequence as a state. Its format is private to libllama
 * (state_write and state_read in llama-kv-cache.cpp, of the version in scripts/deps):
 *
 *   u32 magic | i32 sequence | u32 n_stream = 1 | u32 n_cell
 *   [n_cell]    i32 position | u32 n_sequence = 1 | i32 sequence
 *   u32 v_trans | u32 n_layer
 *   [n_layer]   i32 type of K | u64 row_bytes | K [n_cell][row_bytes]
 *   [n_layer]   i32 type of V | u64 row_bytes | V [n_cell][row_bytes]                  v_trans = 0
 *   [n_layer]   i32 type of V | u32 value_bytes | u32 n_row | V [n_row][n_cell] values v_trans = 1
 *
 * Without flash attention V is transposed (v_trans = 1), and its type has blocks of one value. */
#include "available.h"
#include "base/clock.h"
#include "base/hash.h"

#include "ggml-cpu.h"
#include "llama.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 512, CELL_AT = 16, CELL_BYTES = 12, DEPTH_MAX = 1 << 24, N_BATCH = 2048 };
enum { MAX_COUNTS = 8, MAX_SEQUENCES = 256 };

struct options {
    const char *model;
    uint32_t depth;
    enum ggml_type k, v;
    bool flash, dry_run, check;
    int n_thread, n_prompt, n_token, n_repeat;
    int n_sequence[MAX_COUNTS], n_count; /* numbers of sequences; none: one, with a prompt */
};

/* A context, and the tokens whose rows fill its cache. */
struct bench {
    struct options opts;
    struct llama_model *model;
    struct ggml_threadpool *pool;
    int32_t text[TEXT];
};

/* A saved state. Owned: free(at). */
struct state {
    uint8_t *at;
    size_t len;
};

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("llama_depth: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    exit(1);
}

static uint8_t *allocate(size_t n) {
    uint8_t *at = malloc(n ? n : 1);
    if (!at) die("no memory for %zu bytes", n);
    return at;
}

/* ---- states --------------------------------------------------------------------------------- */

/* Writes a state of n_cell cells that repeats the rows of a state of TEXT cells. */
struct repeater {
    const uint8_t *from;
    size_t left;    /* bytes to read */
    uint8_t *to;    /* NULL: only count */
    size_t written; /* bytes */
    uint32_t n_cell;
};

static const uint8_t *read_bytes(struct repeater *r, size_t n, const char *what) {
    const uint8_t *at = r->from;
    if (n > r->left) die("libllama's state ends in: %s", what);
    r->from += n;
    r->left -= n;
    return at;
}

static void write_bytes(struct repeater *r, const void *bytes, size_t n) {
    if (r->to) memcpy(r->to + r->written, bytes, n);
    r->written += n;
}

/* Copy a field of 4 or 8 bytes; its value. */
static uint64_t copy_field(struct repeater *r, size_t n, const char *what) {
    uint64_t wide;
    uint32_t value;
    const uint8_t *at = read_bytes(r, n, what);
    write_bytes(r, at, n);
    if (n == sizeof wide) return memcpy(&wide, at, n), wide;
    return memcpy(&value, at, n), value;
}

static void expect(uint64_t value, uint64_t expected, const char *what) {
    if (value != expected)
        die("libllama's state is not what this program expects: %s is %llu, expected %llu", what,
            (unsigned long long)value, (unsigned long long)expected);
}

static void repeat_rows(struct repeater *r, size_t row_bytes, const char *what) {
    const uint8_t *rows = read_bytes(r, TEXT * row_bytes, what);
    for (uint32_t i = 0; i < r->n_cell; i += TEXT) {
        uint32_t n = r->n_cell - i < TEXT ? r->n_cell - i : TEXT;
        write_bytes(r, rows, n * row_bytes);
    }
}

/* The cells of the new state have the positions 0, 1, ... */
static void repeat_cells(struct repeater *r) {
    for (uint32_t i = 0; i < TEXT; i++) {
        uint32_t cell[3];
        memcpy(cell, read_bytes(r, sizeof cell, "cells"), sizeof cell);
        expect(cell[0], i, "a position");
        expect(cell[1], 1, "the number of sequences of a cell");
        expect(cell[2], 0, "the sequence of a cell");
    }
    for (uint32_t i = 0; i < r->n_cell; i++) write_bytes(r, (uint32_t[]){i, 1, 0}, CELL_BYTES);
}

/* The bytes of a row must be whole blocks of the type. */
static void repeat_plain_layer(struct repeater *r, enum ggml_type type, const char *what) {
    expect(copy_field(r, 4, what), type, "a cache type");
    uint64_t row_bytes = copy_field(r, 8, what);
    expect(row_bytes % ggml_type_size(type), 0, "the remainder of a row after its last block");
    if (row_bytes == 0 || row_bytes > r->left / TEXT)
        die("libllama's state has rows of %llu bytes in: %s", (unsigned long long)row_bytes, what);
    repeat_rows(r, row_bytes, what);
}

static void repeat_transposed_layer(struct repeater *r, enum ggml_type type) {
    expect(copy_field(r, 4, "V"), type, "a cache type");
    expect(copy_field(r, 4, "V"), ggml_type_size(type), "the size of a value of V");
    expect(ggml_blck_size(type), 1, "the block of a transposed V");
    uint64_t n_row = copy_field(r, 4, "V");
    if (n_row == 0) die("libllama's state has an empty V");
    for (uint64_t i = 0; i < n_row; i++) repeat_rows(r, ggml_type_size(type), "V");
}

/* Write to `to` (NULL: nowhere) a state of n_cell cells that repeats the rows of the text, for a
 * context of n_stream sequences: the other streams are empty. The bytes of that state. */
static size_t repeat_state(const struct bench *b, const struct state *text, uint32_t n_cell,
                           uint32_t n_stream, uint8_t *to) {
    const struct options *o = &b->opts;
    struct repeater r = {.from = text->at, .left = text->len, .to = to, .n_cell = n_cell};
    copy_field(&r, 4, "the header");
    expect(copy_field(&r, 4, "the header"), 0, "the sequence");
    uint32_t one, n_text, empty = 0;
    memcpy(&one, read_bytes(&r, sizeof one, "the header"), sizeof one);
    expect(one, 1, "the number of streams");
    write_bytes(&r, &n_stream, sizeof n_stream);
    memcpy(&n_text, read_bytes(&r, sizeof n_text, "the header"), sizeof n_text);
    expect(n_text, TEXT, "the number of cells");
    write_bytes(&r, &n_cell, sizeof n_cell);
    expect(r.written, CELL_AT, "the size of the header");
    repeat_cells(&r);
    expect(copy_field(&r, 4, "the layers"), !o->flash, "v_trans");
    int n_layer = llama_model_n_layer(b->model);
    expect(copy_field(&r, 4, "the layers"), (uint64_t)n_layer, "the number of layers");
    for (int i = 0; i < n_layer; i++) repeat_plain_layer(&r, o->k, "K");
    for (int i = 0; i < n_layer; i++)
        if (o->flash)
            repeat_plain_layer(&r, o->v, "V");
        else
            repeat_transposed_layer(&r, o->v);
    expect(r.left, 0, "the number of bytes after the layers");
    for (uint32_t i = 1; i < n_stream; i++) write_bytes(&r, &empty, sizeof empty);
    return r.written;
}

static struct state save_state(struct llama_context *ctx) {
    size_t n = llama_state_seq_get_size(ctx, 0);
    struct state state = {.at = allocate(n), .len = n};
    expect(llama_state_seq_get_data(ctx, state.at, n, 0), n, "the number of bytes written");
    return state;
}

/* ---- contexts ------------------------------------------------------------------------------- */

/* A context of n_sequence sequences of n_ctx tokens each. */
static struct llama_context *open_context(const struct bench *b, uint32_t n_ctx, int n_sequence) {
    const struct options *o = &b->opts;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx * (uint32_t)n_sequence;
    params.n_seq_max = (uint32_t)n_sequence;
    params.n_batch = N_BATCH;
    params.n_ubatch = TEXT;
    params.type_k = o->k;
    params.type_v = o->v;
    params.flash_attn_type =
        o->flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(b->model, params);
    if (!ctx)
        die("libllama cannot create a cache of %u tokens with K in %s and V in %s%s", n_ctx,
            ggml_type_name(o->k), ggml_type_name(o->v), o->flash ? "" : " without flash attention");
    llama_attach_threadpool(ctx, b->pool, NULL);
    llama_set_n_threads(ctx, o->n_thread, o->n_thread);
    return ctx;
}

static void evaluate(struct llama_context *ctx, int32_t *tok, int n) {
    int status = llama_decode(ctx, llama_batch_get_one(tok, n));
    if (status != 0) die("libllama cannot evaluate %d tokens (status %d)", n, status);
    llama_synchronize(ctx);
}

/* Remove the positions from..to - 1 of all sequences; to = -1: to the end. */
static void remove_positions(struct llama_context *ctx, uint32_t from, int32_t to) {
    if (!llama_memory_seq_rm(llama_get_memory(ctx), -1, (int32_t)from, to))
        die("libllama cannot remove tokens from this model's cache");
}

/* The state after the text. */
static struct state compute_text(struct bench *b) {
    struct llama_context *ctx = open_context(b, TEXT, 1);
    evaluate(ctx, b->text, TEXT);
    struct state state = save_state(ctx);
    llama_free(ctx);
    return state;
}

static uint32_t context_size(const struct options *o) {
    uint32_t n = o->depth + (uint32_t)(o->n_prompt > o->n_token ? o->n_prompt : o->n_token);
    return n < TEXT ? TEXT : n;
}

/* The cache, and the state that is loaded into it. */
static void check_memory(const struct bench *b, const struct state *text) {
    uint64_t cache = repeat_state(b, text, context_size(&b->opts), 1, NULL),
             state = repeat_state(b, text, b->opts.depth, 1, NULL),
             free_bytes = available_bytes("");
    if (free_bytes > 0 && cache + state > free_bytes)
        die("depth %u needs %.2f GiB (the cache, and a copy that is loaded into it); free memory "
            "is %.2f GiB",
            b->opts.depth, (double)(cache + state) / (1 << 30), (double)free_bytes / (1 << 30));
}

/* A context of n_sequence sequences, each of whose caches has `depth` cells with the rows of the
 * text. The state is freed before the first token is decoded. */
static struct llama_context *open_filled(const struct bench *b, const struct state *text,
                                         int n_sequence) {
    struct llama_context *ctx = open_context(b, context_size(&b->opts), n_sequence);
    uint32_t depth = b->opts.depth;
    if (depth == 0) return ctx;
    uint32_t n_stream = (uint32_t)n_sequence;
    size_t n = repeat_state(b, text, depth, n_stream, NULL);
    uint8_t *state = allocate(n);
    expect(repeat_state(b, text, depth, n_stream, state), n, "the size of the new state");
    expect(llama_state_seq_set_data(ctx, state, n, 0), n, "the number of bytes loaded");
    free(state);
    llama_memory_t memory = llama_get_memory(ctx);
    expect((uint64_t)llama_memory_seq_pos_min(memory, 0), 0, "the first position");
    expect((uint64_t)llama_memory_seq_pos_max(memory, 0), depth - 1, "the last position");
    for (int i = 1; i < n_sequence; i++) llama_memory_seq_cp(memory, 0, i, -1, -1);
    return ctx;
}

/* ---- measurement ---------------------------------------------------------------------------- */

static int32_t random_token(const struct bench *b, uint64_t *seed) {
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(b->model));
    return (int32_t)(lk_splitmix64_next(seed) % (uint64_t)n_vocab);
}

/* Seconds for n tokens, `batch` at once. The cache has `depth` tokens before and after. */
static double time_tokens(const struct bench *b, struct llama_context *ctx, int n, int batch) {
    int32_t tok[N_BATCH];
    uint64_t seed = 2;
    double start = lk_now();
    for (int i = 0, here; i < n; i += here) {
        here = n - i < batch ? n - i : batch;
        for (int t = 0; t < here; t++) tok[t] = random_token(b, &seed);
        evaluate(ctx, tok, here);
    }
    llama_synchronize(ctx);
    double seconds = lk_now() - start;
    remove_positions(ctx, b->opts.depth, -1);
    return seconds;
}

/* Print one test: a prompt, or tokens one by one. */
static void measure(const struct bench *b, struct llama_context *ctx, bool prompt) {
    const struct options *o = &b->opts;
    int n = prompt ? o->n_prompt : o->n_token, batch = prompt ? N_BATCH : 1;
    time_tokens(b, ctx, n < batch ? n : batch, batch); /* warm up */
    printf("{\"depth\": %u, \"type_k\": \"%s\", \"type_v\": \"%s\", \"flash_attention\": %s, "
           "\"threads\": %d, \"n_prompt\": %d, \"n_gen\": %d, \"samples_ts\": [",
           o->depth, ggml_type_name(o->k), ggml_type_name(o->v), o->flash ? "true" : "false",
           o->n_thread, prompt ? n : 0, prompt ? 0 : n);
    double cpu = lk_process_cpu_seconds(), start = lk_now();
    for (int i = 0; i < o->n_repeat; i++)
        printf("%s%.4f", i ? ", " : "", n / time_tokens(b, ctx, n, batch));
    double share = (lk_process_cpu_seconds() - cpu) / ((lk_now() - start) * o->n_thread);
    printf("], \"cpu_share\": %.3f}", share);
}

static void measure_all(const struct bench *b, struct llama_context *ctx) {
    printf("[");
    if (b->opts.n_prompt > 0) measure(b, ctx, true);
    if (b->opts.n_prompt > 0 && b->opts.n_token > 0) printf(",\n ");
    if (b->opts.n_token > 0) measure(b, ctx, false);
    printf("]\n");
}

/* Seconds for `steps` tokens of each sequence. All have `depth` tokens before and after. */
static double time_steps(const struct bench *b, struct llama_context *ctx, int steps,
                         int n_sequence) {
    uint64_t seed = 2;
    struct llama_batch batch = llama_batch_init(n_sequence, 0, 1);
    double start = lk_now();
    for (int step = 0; step < steps; step++) {
        batch.n_tokens = n_sequence;
        for (int i = 0; i < n_sequence; i++) {
            batch.token[i] = random_token(b, &seed);
            batch.pos[i] = (int32_t)b->opts.depth + step;
            batch.n_seq_id[i] = 1, batch.seq_id[i][0] = i, batch.logits[i] = 1;
        }
        int status = llama_decode(ctx, batch);
        if (status != 0)
            die("libllama cannot evaluate %d sequences (status %d)", n_sequence, status);
        llama_synchronize(ctx);
    }
    double seconds = lk_now() - start;
    llama_batch_free(batch);
    remove_positions(ctx, b->opts.depth, -1);
    return seconds;
}

/* Print the speed of n_sequence sequences together, for a machine in one line. */
static void measure_sequences(const struct bench *b, struct llama_context *ctx, int n_sequence) {
    const struct options *o = &b->opts;
    time_steps(b, ctx, 1, n_sequence); /* warm up */
    printf("{\"n\": %d, \"depth\": %u, \"type_k\": \"%s\", \"type_v\": \"%s\", "
           "\"samples_ts\": [",
           n_sequence, o->depth, ggml_type_name(o->k), ggml_type_name(o->v));
    for (int i = 0; i < o->n_repeat; i++) {
        double seconds = time_steps(b, ctx, o->n_token, n_sequence);
        printf("%s%.4f", i ? ", " : "", o->n_token * n_sequence / seconds);
    }
    printf("]}\n");
    fflush(stdout);
}

/* ---- check ---------------------------------------------------------------------------------- */

/* The last repetition of the rows in the cache must be the rows that libllama computed, with higher
 * positions. Leaves only that repetition in ctx. */
static void check_rows(struct bench *b, struct llama_context *ctx) {
    uint32_t n = (b->opts.depth - 1) % TEXT + 1, first = b->opts.depth - n;
    struct llama_context *plain = open_context(b, TEXT, 1);
    evaluate(plain, b->text, TEXT);
    if (n < TEXT) remove_positions(plain, n, -1);
    if (first > 0) remove_positions(ctx, 0, (int32_t)first);
    struct state expected = save_state(plain), state = save_state(ctx);
    for (uint32_t i = 0; i < n; i++)
        memcpy(expected.at + CELL_AT + (size_t)i * CELL_BYTES, &(uint32_t){first + i}, 4);
    if (state.len != expected.len || memcmp(state.at, expected.at, state.len) != 0)
        die("the rows at positions %u to %u are not the text's", first, first + n - 1);
    printf("the rows at positions %u to %u are the text's\n", first, first + n - 1);
    free(expected.at);
    free(state.at);
    llama_free(plain);
}

/* Evaluate tok; the most probable next token. */
static int32_t next_token(const struct bench *b, struct llama_context *ctx, int32_t tok) {
    int32_t best = 0;
    evaluate(ctx, &tok, 1);
    const float *logits = llama_get_logits_ith(ctx, -1);
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(b->model));
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void check_tokens(struct bench *b, struct llama_context *ctx) {
    struct llama_context *plain = open_context(b, context_size(&b->opts), 1);
    int32_t tok = b->text[1], expected = tok;
    evaluate(plain, b->text, (int)b->opts.depth);
    for (int i = 0; i < b->opts.n_token; i++) {
        tok = next_token(b, ctx, tok);
        expected = next_token(b, plain, expected);
        if (tok != expected) die("token %d is %d; computed context: %d", i, tok, expected);
    }
    printf("%d greedy tokens are the same as in a computed context\n", b->opts.n_token);
    llama_free(plain);
}

/* ---- program -------------------------------------------------------------------------------- */

static void log_errors_only(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static enum ggml_type parse_type(const char *name) {
    for (int t = 0; t < GGML_TYPE_COUNT; t++)
        if (ggml_type_name(t) && strcmp(name, ggml_type_name(t)) == 0) return t;
    die("%s is not a type of ggml", name);
}

static int parse_number(const char *text, int min, int max, const char *what) {
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < min || n > max)
        die("%s is '%s'; give %d to %d", what, text, min, max);
    return (int)n;
}

static struct options parse_options(int argc, char **argv) {
    struct options o = {0};
    o.dry_run = argc > 1 && strcmp(argv[1], "--dry-run") == 0;
    o.check = argc > 1 && strcmp(argv[1], "--check") == 0;
    char **arg = argv + 1 + (o.dry_run || o.check);
    o.n_count = (int)(argv + argc - arg) - 9;
    if (o.n_count < 0 || o.n_count > MAX_COUNTS)
        die("usage: build/bench/llama_depth [--dry-run | --check] MODEL DEPTH TYPE_K TYPE_V FLASH "
            "THREADS N_PROMPT N_TOKENS REPEAT [N_SEQUENCE...]");
    o.model = arg[0];
    o.depth = (uint32_t)parse_number(arg[1], o.check, DEPTH_MAX, "DEPTH");
    o.k = parse_type(arg[2]);
    o.v = parse_type(arg[3]);
    o.flash = strcmp(arg[4], "on") == 0;
    if (!o.flash && strcmp(arg[4], "off") != 0) die("FLASH is '%s'; give on or off", arg[4]);
    o.n_thread = parse_number(arg[5], 1, GGML_MAX_N_THREADS, "THREADS");
    o.n_prompt = parse_number(arg[6], 0, DEPTH_MAX, "N_PROMPT");
    o.n_token = parse_number(arg[7], o.check, DEPTH_MAX, "N_TOKENS");
    o.n_repeat = parse_number(arg[8], 1, 1000, "REPEAT");
    for (int i = 0; i < o.n_count; i++)
        o.n_sequence[i] = parse_number(arg[9 + i], 1, MAX_SEQUENCES, "N_SEQUENCE");
    if (o.n_count > 0 && (o.n_prompt > 0 || o.check))
        die("several sequences have no prompt and no check");
    return o;
}

static void open_bench(struct bench *b) {
    llama_log_set(log_errors_only, NULL);
    llama_backend_init();
    b->model = llama_model_load_from_file(b->opts.model, llama_model_default_params());
    if (!b->model) die("cannot load the model %s", b->opts.model);
    struct ggml_threadpool_params params = ggml_threadpool_params_default(b->opts.n_thread);
    params.poll = 50; /* llama-bench's default */
    b->pool = ggml_threadpool_new(&params);
    if (!b->pool) die("cannot create %d threads", b->opts.n_thread);
    const struct llama_vocab *vocab = llama_model_get_vocab(b->model);
    uint64_t seed = 1;
    for (int i = 0; i < TEXT; i++) b->text[i] = random_token(b, &seed);
    if (llama_vocab_get_add_bos(vocab)) b->text[0] = llama_vocab_bos(vocab);
}

int main(int argc, char **argv) {
    struct bench b = {.opts = parse_options(argc, argv)};
    open_bench(&b);
    struct state text = {0};
    if (b.opts.depth > 0) {
        text = compute_text(&b);
        check_memory(&b, &text);
    }
    for (int i = 0; !b.opts.dry_run && i < b.opts.n_count; i++) {
        struct llama_context *ctx = open_filled(&b, &text, b.opts.n_sequence[i]);
        measure_sequences(&b, ctx, b.opts.n_sequence[i]);
        llama_free(ctx);
    }
    if (!b.opts.dry_run && b.opts.n_count == 0) {
        struct llama_context *ctx = open_filled(&b, &text, 1);
        if (!b.opts.check) {
            measure_all(&b, ctx);
        } else {
            check_rows(&b, ctx);
            if (b.opts.depth <= TEXT) check_tokens(&b, ctx);
        }
        llama_free(ctx);
    }
    free(text.at);
    llama_model_free(b.model);
    ggml_threadpool_free(b.pool);
    llama_backend_free();
    return 0;
}
