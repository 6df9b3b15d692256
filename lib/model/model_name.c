/* Chooses between a model's file name and general.name. */
#include "model/model_name.h"

#include "base/ascii.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

static bool is_alnum(char c) { return isalnum((unsigned char)c) != 0; }

/* Q4_K_M, IQ2_XXS, TQ1_0 and so on. */
static bool is_quantization(const char *tag, size_t len) {
    size_t at = len > 0 && strchr("IiTt", tag[0]) ? 1 : 0;
    if (at + 2 > len || (tag[at] != 'Q' && tag[at] != 'q') || !lk_is_digit(tag[at + 1]))
        return false;
    for (at += 2; at < len; at++)
        if (!is_alnum(tag[at]) && tag[at] != '_') return false;
    return true;
}

/* 00001-of-00003 */
static bool is_shard(const char *tag, size_t len) {
    if (len != 14 || memcmp(tag + 5, "-of-", 4) != 0) return false;
    for (size_t i = 0; i < len; i++)
        if ((i < 5 || i > 8) && !lk_is_digit(tag[i])) return false;
    return true;
}

/* True if tag[0..len) says how the weights are stored, not which model it is. */
static bool is_storage_tag(const char *tag, size_t len) {
    /* "UD", "i1" and "imat" are how the quantization was chosen. */
    static const char *const word[] = {"gguf",  "f16",       "f32", "bf16", "fp16", "fp32",
                                       "mxfp4", "mxfp4_moe", "ud",  "i1",   "imat"};
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        if (strlen(word[i]) == len && strncasecmp(tag, word[i], len) == 0) return true;
    return is_quantization(tag, len) || is_shard(tag, len);
}

/* Length of `name` without the tags at its end. */
static size_t length_without_tags(const char *name) {
    size_t len = strlen(name);
    for (size_t at = 1; at < len; at++) {
        bool separator = strchr(".-_", name[at]) != NULL;
        if (separator && is_storage_tag(name + at + 1, len - at - 1)) {
            len = at;
            at = 0;
        }
    }
    return len;
}

static bool contains_word(const char *text, const char *word, size_t len) {
    for (; *text; text++)
        if (strncasecmp(text, word, len) == 0) return true;
    return false;
}

/* See lk_model_name. Shorter words than 3 characters would be found by chance. */
static bool is_confirmed(const char *name, size_t len, const char *general_name) {
    size_t n_word = 0;
    bool has_digit = false;
    while (n_word < len && is_alnum(name[n_word])) n_word++;
    for (size_t i = 0; i < len; i++) has_digit |= lk_is_digit(name[i]);
    return has_digit && n_word >= 3 && contains_word(general_name, name, n_word);
}

void lk_model_name(char *out, size_t cap, const char *path, const char *general_name) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = length_without_tags(name);
    if (*general_name && !is_confirmed(name, len, general_name)) {
        name = general_name;
        len = strlen(general_name);
    }
    if (len > cap - 1) len = cap - 1;
    memcpy(out, name, len);
    out[len] = 0;
}
