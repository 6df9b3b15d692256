/* Completes commands and file names. */
#include "chat_complete.h"

#include "chat_commands.h"
#include "xalloc.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_WORDS = 500 };

/* Possible completions of a word. */
struct words {
    char *word[MAX_WORDS];
    size_t n;
};

static void add_word(struct words *words, const char *word, const char *end) {
    if (words->n < MAX_WORDS) words->word[words->n++] = xasprintf("%s%s", word, end);
}

static int compare_words(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void find_commands(struct words *words, const char *prefix) {
    const char *name;
    for (size_t i = 0; (name = chat_command_name(i)); i++)
        if (strncmp(name, prefix, strlen(prefix)) == 0) add_word(words, name, " ");
}

/* Files in the folder of `path` whose names start with its last part. */
static void find_files(struct words *words, const char *path) {
    const char *slash = strrchr(path, '/'), *prefix = slash ? slash + 1 : path;
    char *folder = slash ? xasprintf("%.*s", (int)(slash + 1 - path), path) : xasprintf("./");
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat info;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        if (entry->d_name[0] == '.' && prefix[0] != '.') continue;
        char *name = xasprintf("%s%s", folder, entry->d_name);
        bool is_folder = stat(name, &info) == 0 && S_ISDIR(info.st_mode);
        add_word(words, entry->d_name, is_folder ? "/" : " ");
        free(name);
    }
    if (dir) closedir(dir);
    free(folder);
}

static size_t common_prefix(const struct words *words) {
    size_t len = words->n ? strlen(words->word[0]) : 0;
    for (size_t i = 1; i < words->n; i++) {
        size_t k = 0;
        while (k < len && words->word[i][k] == words->word[0][k]) k++;
        len = k;
    }
    while (words->n && len && ((unsigned char)words->word[0][len] & 0xc0) == 0x80) len--;
    return len;
}

/* Append word[from..to) with backslashes before blanks within it, but not before the last one. */
static void add_escaped(struct lk_buf *out, const char *word, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (strchr("\\\"'", word[i]) || (word[i] == ' ' && word[i + 1])) xbuf_add(out, "\\", 1);
        xbuf_add(out, word + i, 1);
    }
}

/* Start of the word at the end of the text, without quotes and backslashes: free it. */
static char *last_word(const char *text) {
    char *word = NULL;
    for (char *next; (next = chat_next_word(&text)); word = next) free(word);
    return word;
}

void chat_complete(const char *before, struct lk_buf *insert, struct lk_buf *choices) {
    struct words words = {.n = 0};
    size_t n_before = strlen(before);
    if (before[0] != '/') return;
    bool first = !strchr(before, ' ');
    bool new_word = before[n_before - 1] == ' ' && before[n_before - 2] != '\\';
    char *word = new_word ? xasprintf("%s", "") : last_word(before);
    const char *prefix = word;
    if (first) {
        find_commands(&words, prefix);
    } else {
        find_files(&words, prefix);
        const char *slash = strrchr(prefix, '/');
        if (slash) prefix = slash + 1;
    }
    qsort(words.word, words.n, sizeof words.word[0], compare_words);
    size_t n_common = common_prefix(&words), n_typed = strlen(prefix);
    if (n_common > n_typed) add_escaped(insert, words.word[0], n_typed, n_common);
    for (size_t i = 0; i < words.n; i++) {
        if (words.n > 1) {
            xbuf_add(choices, words.word[i], strlen(words.word[i]));
            xbuf_add(choices, "\n", 1);
        }
        free(words.word[i]);
    }
    free(word);
}
