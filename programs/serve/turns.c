/* Cuts a conversation between its turns. */
#include "serve/turns.h"

#include <stdbool.h>
#include <string.h>

/* A text with more bytes for each token of the context is not even tried. */
enum { MAX_BYTES_PER_TOKEN = 8 };

static bool is_system(const struct lk_turn_message *m) {
    return strcmp(m->role, "system") == 0 || strcmp(m->role, "developer") == 0;
}

static bool is_user(const struct lk_turn_message *m) { return strcmp(m->role, "user") == 0; }

size_t lk_turns_head(const struct lk_turn_message *m, size_t n) {
    size_t head = 0;
    while (head < n && is_system(&m[head])) head++;
    return head;
}

/* Start of the newest turn; 0 if no message is of a user. */
static size_t newest_turn(const struct lk_turn_message *m, size_t n) {
    while (n > 0 && !is_user(&m[n - 1])) n--;
    return n > 0 ? n - 1 : 0;
}

size_t lk_turns_next_cut(const struct lk_turn_message *m, size_t n, size_t n_ctx, size_t cut) {
    /* About three eighths of a context of text: the rest is half of it to three quarters. */
    size_t step = n_ctx + n_ctx / 3, head = lk_turns_head(m, n), newest = newest_turn(m, n);
    size_t left = 0, out = 0, n_step = 0;
    for (size_t i = head; i < n; i++) left += m[i].n_byte;
    for (size_t i = head; i < newest; i++) {
        out += m[i].n_byte;
        left -= m[i].n_byte;
        if (i + 1 == newest) break;
        if (!is_user(&m[i + 1]) || out / step == n_step) continue;
        n_step = out / step;
        if (i + 1 > cut && left / MAX_BYTES_PER_TOKEN <= n_ctx) return i + 1;
    }
    return newest > head && newest > cut ? newest : 0;
}
