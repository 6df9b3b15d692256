/* Prints recipes of `lowkey tune`. */
#include "tune/tune_text.h"

#include <stdbool.h>
#include <string.h>

static bool same_bits(const struct lk_tune_bits *a, const struct lk_tune_bits *b,
                      enum lk_tune_age age) {
    return memcmp(a->of[age], b->of[age], sizeof a->of[age]) == 0;
}

void lk_tune_print_codec(struct lk_buf *out, int bits, enum lk_tune_trellis trellis) {
    if (bits == 16)
        lk_buf_append_str(out, "f16");
    else
        lk_buf_printf(out, bits <= (int)trellis ? "rot%d(trellis)" : "rot%d", bits);
}

static void print_codecs(struct lk_buf *out, const uint8_t bits[2], enum lk_tune_trellis trellis) {
    lk_buf_append_str(out, bits[0] == bits[1] ? "" : "k=");
    lk_tune_print_codec(out, bits[0], trellis);
    if (bits[0] == bits[1]) return;
    lk_buf_append_str(out, " v=");
    lk_tune_print_codec(out, bits[1], trellis);
}

/* The layer whose bits are those of the levels themselves: most layers have them in one age or
 * both. They come from one layer, because a body must not have more bits than what is newer. */
static int find_most_common(const struct lk_tune_bits *layer, int n_layer, int n_age) {
    int best = 0, max = 0;
    for (int i = 0; i < n_layer; i++) {
        int n = 0;
        for (int j = 0; j < n_layer; j++)
            for (int age = 0; age < n_age; age++) n += same_bits(&layer[i], &layer[j], age);
        if (n > max) best = i, max = n;
    }
    return best;
}

/* "layers 0-2, 5 recent: k=rot4 v=rot3": the layers from `first` on with the bits of that one. */
static void print_override(struct lk_buf *out, const struct lk_tune_bits *layer, int n_layer,
                           enum lk_tune_age age, int first, enum lk_tune_trellis trellis) {
    const char *before = "; layers ";
    for (int i = first; i < n_layer; i++) {
        int last = i;
        if (!same_bits(&layer[i], &layer[first], age)) continue;
        while (last + 1 < n_layer && same_bits(&layer[last + 1], &layer[first], age)) last++;
        lk_buf_printf(out, last > i ? "%s%d-%d" : "%s%d", before, i, last);
        before = ", ";
        i = last;
    }
    lk_buf_append_str(out, age == LK_TUNE_RECENT ? " recent: " : ": ");
    print_codecs(out, layer[first].of[age], trellis);
}

/* common: the layer whose bits the level has. */
static void print_level(struct lk_buf *out, const struct lk_tune_bits *layer, int n_layer,
                        enum lk_tune_age age, int common, enum lk_tune_trellis trellis) {
    print_codecs(out, layer[common].of[age], trellis);
    for (int i = 0; i < n_layer; i++) {
        bool printed = same_bits(&layer[i], &layer[common], age);
        for (int j = 0; j < i && !printed; j++) printed = same_bits(&layer[i], &layer[j], age);
        if (!printed) print_override(out, layer, n_layer, age, i, trellis);
    }
}

void lk_tune_print(struct lk_buf *out, const struct lk_tune_bits *layer, int n_layer, int recent,
                   enum lk_tune_trellis trellis) {
    int common = find_most_common(layer, n_layer, recent ? LK_TUNE_AGES : 1);
    lk_buf_append_str(out, "sink 4: f16; body: ");
    print_level(out, layer, n_layer, LK_TUNE_BODY, common, trellis);
    if (recent) {
        lk_buf_printf(out, "; recent %d%%: ", recent);
        print_level(out, layer, n_layer, LK_TUNE_RECENT, common, trellis);
    }
    lk_buf_append_str(out, "; window 32: rot8");
}
