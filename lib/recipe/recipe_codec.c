/* Parser of codecs in a recipe. */
#include "recipe/recipe_codec.h"

#include "codec/added.h"

#include <stdio.h>
#include <string.h>

void lk_recipe_codec_names(char *buf, size_t cap) {
    const lk_codec_ops *ops;
    int n = snprintf(buf, cap, "f16, int8, kivi2, kivi4, rot1 to rot8, asym2 to asym8");
    for (size_t i = 0; (ops = lk_added_codec(i)) && n >= 0 && (size_t)n < cap; i++)
        n += snprintf(buf + n, cap - (size_t)n, ", %s", ops->words);
    if (n >= 0 && (size_t)n < cap) snprintf(buf + n, cap - (size_t)n, ", or latent");
}

static const char latent[] = "latent";

/* The levels of rot. */
enum levels { UNIFORM, LLOYD, TRELLIS };

/* A codec as written in the text. Options that are not given get the default of K or V later. */
struct parsed_codec {
    struct lk_codec codec;
    int mean, sigma; /* -1: not given */
    int levels;      /* enum levels, -1: not given */
    size_t pre_at;   /* offset of the word 'pre'; 0: not given */
};

/* Whether a word is `name` and a number of bits between `min` and `max`. */
static bool read_bits(const char *word, const char *name, int min, int max, uint8_t *bits) {
    size_t len = strlen(name);
    if (strncmp(word, name, len) != 0 || word[len] < '0' + min || word[len] > '0' + max ||
        word[len + 1])
        return false;
    *bits = (uint8_t)(word[len] - '0');
    return true;
}

static bool read_codec_name(const char *word, struct lk_codec *codec) {
    *codec = (struct lk_codec){0};
    if (strcmp(word, "f16") == 0) {
        codec->coding = LK_F16;
        codec->bits = 16;
    } else if (strcmp(word, "int8") == 0) {
        codec->coding = LK_INT8;
        codec->bits = 8;
    } else if (read_bits(word, "kivi", 2, 4, &codec->bits) && codec->bits != 3) {
        codec->coding = LK_KIVI;
        codec->group = 32;
    } else if (read_bits(word, "rot", 1, 8, &codec->bits)) {
        codec->coding = LK_ROT;
    } else if (read_bits(word, "asym", 2, 8, &codec->bits)) {
        codec->coding = LK_ASYM;
    } else {
        return lk_added_parse(word, codec);
    }
    return true;
}

bool lk_recipe_names_codec(const char *word) {
    struct lk_codec unused;
    size_t n = sizeof latent - 1;
    if (strncmp(word, latent, n) == 0) return word[n + strspn(word + n, "0123456789")] == 0;
    return read_codec_name(word, &unused);
}

/* Options of kivi and asym. */
static lk_status apply_group_option(struct lk_scan *scan, const char *word, size_t at,
                                    struct lk_codec *codec, bool *group_given) {
    bool asym = codec->coding == LK_ASYM;
    unsigned group = strcmp(word, "g32") == 0    ? 32
                     : strcmp(word, "g64") == 0  ? 64
                     : strcmp(word, "g128") == 0 ? 128
                                                 : 0;
    if (asym && strcmp(word, "hadamard") == 0) {
        if (codec->hadamard) return lk_scan_fail(scan, at, false, "hadamard is given twice");
        codec->hadamard = true;
        return LK_OK;
    }
    if (!group)
        return lk_scan_fail(scan, at, true, "expected an option of %s (g32, g64%s)",
                            asym ? "asym" : "kivi", asym ? ", g128 or hadamard" : " or g128");
    if (*group_given) return lk_scan_fail(scan, at, false, "the group size is given twice");
    codec->group = (uint16_t)group;
    *group_given = true;
    return LK_OK;
}

/* The option of a codec that was added. */
static lk_status apply_added_option(struct lk_scan *scan, const char *word, size_t at,
                                    struct lk_codec *codec) {
    const lk_codec_ops *ops = lk_added_codec(codec->added);
    lk_codec_param param = {.bits = codec->bits, .option = codec->group};
    if (!ops->parse_option(word, &param))
        return lk_scan_fail(scan, at, true, "expected an option of %s (%s)", ops->name,
                            ops->options);
    codec->group = param.option;
    return LK_OK;
}

/* Apply one option of a codec. `at` is the offset of `word`. */
static lk_status apply_option(struct lk_scan *scan, const char *word, size_t at,
                              struct parsed_codec *w, bool *group_given) {
    struct {
        int *value;
        const char *word[3]; /* of the values 0, 1, 2 */
    } option[3] = {{&w->mean, {"nomean", "mean"}},
                   {&w->sigma, {"nosigma", "sigma"}},
                   {&w->levels, {"uniform", "lloyd", "trellis"}}};

    if (w->codec.coding == LK_ADDED) return apply_added_option(scan, word, at, &w->codec);
    if (w->codec.coding != LK_ROT)
        return apply_group_option(scan, word, at, &w->codec, group_given);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3 && option[i].word[k]; k++) {
            if (strcmp(word, option[i].word[k]) != 0) continue;
            int before = *option[i].value;
            if (option[i].value == &w->levels && k == TRELLIS && w->codec.bits > 4)
                return lk_scan_fail(scan, at, false, "rot has trellises for 1 to 4 bits only");
            if (before == k) return lk_scan_fail(scan, at, false, "%s is given twice", word);
            if (before >= 0)
                return lk_scan_fail(scan, at, false, "%s or %s is given twice",
                                    option[i].word[before], word);
            *option[i].value = k;
            return LK_OK;
        }
    return lk_scan_fail(
        scan, at, true,
        "expected an option of rot (mean, nomean, sigma, nosigma, lloyd, uniform or trellis)");
}

/* Read 'latent' [ N '%' ] [ '(' 'pre' ')' ] [ '+' ]. The scanner is at 'latent'. Sets *more if
 * there was a '+', so that a codec follows. */
static lk_status read_projection(struct lk_scan *scan, struct parsed_codec *w, bool *more) {
    char word[LK_WORD_MAX];
    int64_t share;
    size_t at = scan->at = lk_scan_next(scan) + sizeof latent - 1;
    w->codec.projection = LK_PROJECTION_LATENT;
    if (lk_scan_number(scan, &share)) {
        if (!lk_scan_accept(scan, '%'))
            return lk_scan_fail(scan, scan->at, true, "expected '%%' after the rank");
        if (share <= 0 || share > LK_FULL_RANK)
            return lk_scan_fail(scan, at, false, "expected more than 0%% and at most 100%%");
        w->codec.share = (uint32_t)share;
    }
    if (lk_scan_accept(scan, '(')) {
        at = lk_scan_next(scan);
        lk_scan_word(scan, word);
        if (strcmp(word, "pre") != 0)
            return lk_scan_fail(scan, at, true, "expected an option of latent (pre)");
        w->codec.projection = LK_PROJECTION_LATENT_PRE;
        w->pre_at = at;
        if (!lk_scan_accept(scan, ')')) return lk_scan_fail(scan, scan->at, true, "expected ')'");
    }
    *more = lk_scan_accept(scan, '+');
    return LK_OK;
}

/* NAME [ '(' OPTION { ',' OPTION } ')' ] */
static lk_status read_coding(struct lk_scan *scan, const char *expected, struct parsed_codec *w) {
    char word[LK_WORD_MAX];
    struct lk_codec named;
    size_t at = lk_scan_next(scan);
    lk_scan_word(scan, word);
    if (!read_codec_name(word, &named)) {
        char names[256];
        lk_recipe_codec_names(names, sizeof names);
        return lk_scan_fail(scan, at, true, "expected %s (%s)", expected, names);
    }
    named.projection = w->codec.projection;
    named.share = w->codec.share;
    w->codec = named;
    if (!lk_scan_accept(scan, '(')) return LK_OK;
    bool plain = w->codec.coding == LK_F16 || w->codec.coding == LK_INT8 ||
                 (w->codec.coding == LK_ADDED && !lk_added_codec(w->codec.added)->options);
    if (plain) return lk_scan_fail(scan, scan->at - 1, false, "%s has no options", word);
    bool group_given = false;
    do {
        char option[LK_WORD_MAX];
        at = lk_scan_next(scan);
        lk_scan_word(scan, option);
        lk_status status = apply_option(scan, option, at, w, &group_given);
        if (status) return status;
    } while (lk_scan_accept(scan, ','));
    if (!lk_scan_accept(scan, ')'))
        return lk_scan_fail(scan, scan->at, true, "expected ',' or ')'");
    return LK_OK;
}

/* CODEC := LATENTS | [ LATENTS '+' ] NAME ... */
static lk_status read_codec(struct lk_scan *scan, const char *expected, struct parsed_codec *w) {
    char word[LK_WORD_MAX];
    lk_scan_peek(scan, word);
    *w = (struct parsed_codec){.mean = -1, .sigma = -1, .levels = -1, .codec = lk_codec_f16};
    if (strncmp(word, latent, sizeof latent - 1) == 0) {
        bool more = false;
        lk_status status = read_projection(scan, w, &more);
        if (status || !more) return status;
        expected = "a codec for the latents";
    }
    return read_coding(scan, expected, w);
}

/* The codec with the defaults of one side. mean and sigma are off for V, because only K has offsets
 * and outlier channels. */
static struct lk_codec with_defaults(const struct parsed_codec *w, enum lk_side side) {
    struct lk_codec codec = w->codec;
    if (codec.coding == LK_ROT) {
        codec.mean = w->mean < 0 ? side == LK_K : w->mean;
        codec.sigma = w->sigma < 0 ? side == LK_K : w->sigma;
        codec.lloyd = w->levels < 0 ? lk_codec_default_lloyd(codec.bits) : w->levels == LLOYD;
        codec.trellis = w->levels == TRELLIS;
    }
    if (side == LK_V && codec.projection)
        codec.projection = LK_PROJECTION_LATENT; /* V has no RoPE */
    return codec;
}

/* CODEC | 'k=' CODEC 'v=' CODEC, in either order */
lk_status lk_recipe_read_codecs(struct lk_scan *scan, struct lk_codec side[2]) {
    struct parsed_codec w;
    char word[LK_WORD_MAX];
    lk_scan_peek(scan, word);
    bool sided = strcmp(word, "k") == 0 || strcmp(word, "v") == 0;
    if (!sided) {
        lk_status status = read_codec(scan, "'k=', 'v=' or a codec", &w);
        if (status) return status;
        side[LK_K] = with_defaults(&w, LK_K);
        side[LK_V] = with_defaults(&w, LK_V);
        return LK_OK;
    }
    enum lk_side first = word[0] == 'k' ? LK_K : LK_V, second = first == LK_K ? LK_V : LK_K;
    for (int i = 0; i < 2; i++) {
        enum lk_side now = i == 0 ? first : second;
        const char *name = now == LK_K ? "k" : "v";
        size_t at = lk_scan_next(scan);
        lk_scan_word(scan, word);
        if (strcmp(word, name) != 0) return lk_scan_fail(scan, at, true, "expected '%s='", name);
        if (!lk_scan_accept(scan, '='))
            return lk_scan_fail(scan, scan->at, true, "expected '=' after '%s'", name);
        lk_status status = read_codec(scan, "a codec", &w);
        if (status) return status;
        if (now == LK_V && w.pre_at)
            return lk_scan_fail(scan, w.pre_at, false, "'pre' is only for K, which RoPE rotates");
        side[now] = with_defaults(&w, now);
    }
    return LK_OK;
}
