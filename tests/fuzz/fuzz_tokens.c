/* Fuzz target: tokenization with the tiny models' vocabularies. The first byte selects one; the
 * rest, as far as it is valid UTF-8, is the text. All tokens are of the vocabulary, and their text
 * is the text again, except for the space that SentencePiece puts in front and its own letter for
 * spaces. */
#define _GNU_SOURCE /* memfd_create */
#include "base/utf8.h"
#include "fuzz_input.h"
#include "serve/tokens.h"
#include "tiny_gguf.h"

enum { N_MODEL = 2 };

static lk_model *models[N_MODEL];

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Before the fuzzer limits allocations. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const char *const presets[N_MODEL] = {"qwen2-bpe", "llama-spm"};
    for (int i = 0; i < N_MODEL; i++) {
        const lk_model_opts opts = {.n_threads = 1};
        char path[1024];
        const char *dir = getenv("TMPDIR");
        snprintf(path, sizeof path, "%.900s/lowkey-fuzz-XXXXXX", dir ? dir : "/tmp");
        int fd = mkstemp(path);
        if (fd < 0 || !tiny_gguf_write(path, tiny_preset(presets[i])) ||
            lk_model_open(&models[i], path, &opts, NULL) != LK_OK)
            abort();
        close(fd);
        unlink(path);
    }
    return 0;
}

static void check_text(const lk_model *model, bool spm, const char *text, size_t len,
                       const int32_t *tok, size_t n) {
    struct lk_buf back = {0};
    lk_tokens_to_text(model, tok, n, &back);
    if (back.failed) abort();
    size_t skip = spm && back.len && back.at[0] == ' ' && (len == 0 || back.len == len + 1);
    bool has_own_space = spm && memmem(text, len, "\xe2\x96\x81", 3);
    if (!has_own_space &&
        (back.len - skip != len || (len && memcmp(back.at + skip, text, len) != 0)))
        abort();
    lk_buf_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const lk_model *model = models[data[0] % N_MODEL];
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    char *text = fuzz_string(data + 1, size - 1); /* ASan sees reads after its end */
    size_t len = lk_utf8_valid_prefix(text, size - 1);
    static const unsigned flags[] = {0, LK_TOKENIZE_BEGIN | LK_TOKENIZE_CONTROL,
                                     LK_TOKENIZE_BEGIN | LK_TOKENIZE_MARKED};
    for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++) {
        int32_t *tok = NULL;
        size_t n = 0, n_max = f == 2 ? 1000 : 0;
        lk_err err = {0};
        if (lk_tokenize(model, text, len, flags[f], n_max, &tok, &n, &err) != LK_OK) {
            fuzz_check_error(&err);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            if (tok[i] < 0 || tok[i] >= n_vocab) abort();
        if (flags[f] == 0) check_text(model, data[0] % N_MODEL == 1, text, len, tok, n);
        lk_tokens_free(tok);
    }
    free(text);
    return 0;
}
