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

/* The group that has the bits of the levels themselves: most groups have them in one age or
 * both. They come from one group, because a body must not have more bits than what is newer. */
static int find_most_common(const struct lk_tune_bits *bits, int n, int n_age) {
    int best = 0, max = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int j = 0; j < n; j++)
            for (int age = 0; age < n_age; age++) same += same_bits(&bits[i], &bits[j], age);
        if (same > max) best = i, max = same;
    }
    return best;
}

/* One level of a recipe. */
struct level {
    const struct lk_tune_group *group;
    const struct lk_tune_bits *bits;
    int n, common; /* common: the group whose bits the level has */
    enum lk_tune_age age;
};

/* The first group of the layer of group i. */
static int first_of_layer(const struct level *l, int i) {
    while (i > 0 && l->group[i - 1].layer == l->group[i].layer) i--;
    return i;
}

/* The group whose bits the layer of group i has, apart from what is said of its heads: one with the
 * bits of the level, or the first. It is the same in all ages, because heads that no part of a
 * recipe names must not have more bits in the body than in what is newer. */
static int base_of(const struct level *l, int i) {
    int first = first_of_layer(l, i);
    for (int j = first; j < l->n && l->group[j].layer == l->group[i].layer; j++)
        if (memcmp(&l->bits[j], &l->bits[l->common], sizeof l->bits[j]) == 0) return j;
    return first;
}

/* An override that starts at a group. */
struct override {
    int bits;       /* the group that has its bits */
    uint64_t heads; /* 0: the whole layer */
};

/* The override of the layer, or of heads, that starts at group i. False if there is none. */
static bool find_override(const struct level *l, int i, bool heads, struct override *out) {
    int first = first_of_layer(l, i), base = base_of(l, i);
    *out = (struct override){heads ? i : base, 0};
    if (!heads) return i == first && !same_bits(&l->bits[base], &l->bits[l->common], l->age);
    if (same_bits(&l->bits[i], &l->bits[base], l->age)) return false;
    for (int j = first; j < l->n && l->group[j].layer == l->group[i].layer; j++) {
        if (!same_bits(&l->bits[j], &l->bits[i], l->age)) continue;
        if (j < i) return false;
        out->heads |= l->group[j].heads;
    }
    return true;
}

/* Whether the override at group i is `other`, but for the layer. */
static bool joins(const struct level *l, int i, const struct override *other) {
    struct override here;
    return find_override(l, i, other->heads != 0, &here) && here.heads == other->heads &&
           same_bits(&l->bits[here.bits], &l->bits[other->bits], l->age);
}

void lk_tune_print_heads(struct lk_buf *out, uint64_t heads) {
    const char *before = " heads ";
    for (int i = 0; heads >> i; i++) {
        int last = i;
        if (!(heads >> i & 1)) continue;
        while (last < 63 && heads >> (last + 1) & 1) last++;
        lk_buf_printf(out, last > i ? "%s%d-%d" : "%s%d", before, i, last);
        before = ", ";
        i = last;
        if (last == 63) break;
    }
}

/* "layers 0-2, 5 heads 1 recent: k=rot4 v=rot3": all layers from that of group `at` on that have
 * this override. */
static void print_override(struct lk_buf *out, const struct level *l, int at,
                           const struct override *o, enum lk_tune_trellis trellis) {
    int first = -1, last = -1;
    const char *before = "; layers ";
    for (int i = at; i <= l->n; i++) {
        bool end = i == l->n;
        if (!end && !joins(l, i, o)) continue;
        int layer = end ? -1 : l->group[i].layer;
        if (first >= 0 && layer == last + 1) {
            last = layer;
            continue;
        }
        if (first >= 0) {
            lk_buf_printf(out, last > first ? "%s%d-%d" : "%s%d", before, first, last);
            before = ", ";
        }
        first = last = layer;
    }
    lk_tune_print_heads(out, o->heads);
    lk_buf_append_str(out, l->age == LK_TUNE_RECENT ? " recent: " : ": ");
    print_codecs(out, l->bits[o->bits].of[l->age], trellis);
}

/* The codecs of a level, then of layers, then of heads. */
static void print_level(struct lk_buf *out, const struct level *l, enum lk_tune_trellis trellis) {
    print_codecs(out, l->bits[l->common].of[l->age], trellis);
    for (int heads = 0; heads < 2; heads++)
        for (int i = 0; i < l->n; i++) {
            struct override o;
            bool printed = !find_override(l, i, heads, &o);
            for (int j = 0; j < i && !printed; j++) printed = joins(l, j, &o);
            if (!printed) print_override(out, l, i, &o, trellis);
        }
}

void lk_tune_print_side(struct lk_buf *out, int side, int bits) {
    lk_buf_append_str(out, "k=");
    lk_tune_print_codec(out, side ? 16 : bits, LK_TUNE_TRELLIS);
    lk_buf_append_str(out, " v=");
    lk_tune_print_codec(out, side ? bits : 16, LK_TUNE_TRELLIS);
}

void lk_tune_print_probe(struct lk_buf *out, const struct lk_tune_group *group, int side,
                         int bits) {
    lk_buf_printf(out, "layers %d", group->layer);
    if (group->heads) {
        lk_buf_append_str(out, ": ");
        lk_tune_print_side(out, side, 8);
        lk_buf_printf(out, "; layers %d", group->layer);
    }
    lk_tune_print_heads(out, group->heads);
    lk_buf_append_str(out, ": ");
    lk_tune_print_side(out, side, bits);
}

void lk_tune_print(struct lk_buf *out, const struct lk_tune_group *group,
                   const struct lk_tune_bits *bits, int n, int recent,
                   enum lk_tune_trellis trellis) {
    int common = find_most_common(bits, n, recent ? LK_TUNE_AGES : 1);
    struct level level = {group, bits, n, common, LK_TUNE_BODY};
    lk_buf_append_str(out, "sink 4: f16; body: ");
    print_level(out, &level, trellis);
    if (recent) {
        level.age = LK_TUNE_RECENT;
        lk_buf_printf(out, "; recent %d%%: ", recent);
        print_level(out, &level, trellis);
    }
    lk_buf_append_str(out, "; window 32: rot8");
}
