/* The table of combinations, and an example of each pair of features. */
#include "recipe/combinations.h"

#include "codec/added.h"
#include "lowkey_serve.h"

#include <stdio.h>
#include <string.h>

#define BIT(name) ((lk_features)1 << LK_FEATURE_##name)
#define BY(policy) (BIT(KEEPS) << (LK_POLICY_##policy - 1))

enum {
    KEEPS = (BIT(KEEPS_LAST) << 1) - BIT(KEEPS),
    EVICTS = KEEPS | BIT(NONE),
    LATENTS = BIT(LATENT) | BIT(LATENT_PRE),
    CODECS = BIT(F16) | BIT(INT8) | BIT(ROT) | BIT(KIVI) | BIT(ASYM) | BIT(ADDED_ROWS) |
             BIT(ADDED_BLOCKS) | BIT(LATENT) | BIT(LATENT_PRE),
};

static const char gaps[] =
    "'shift' counts distances among the rows that are held, but this policy leaves gaps between "
    "them: use 'keep N by newest' or 'body: none'";
static const char residual[] =
    "rows are evicted, but a residual passes on K and V at different times: use 'window' instead";
static const char whole_blocks[] =
    "the rows of a block share what this codec stores of them, so a policy cannot replace one of "
    "them: use another codec";
static const char groups[] = "latents belong to groups of heads: use 'heads' without latents";
static const char absorb[] = "'absorb' needs evicted rows: add 'keep N by POLICY' or 'body: none'";
static const char alibi[] =
    "this model weights rows by their distance (ALiBi), which 'absorb' does not keep; remove "
    "'absorb' from the recipe";

static const char softcap[] =
    "this model caps its scores, which 'absorb' does not; remove 'absorb' from the recipe";

static const char latents[] = "this model has latents already (MLA); use a codec without 'latent'";
static const char both_sides[] =
    "this model's latents are keys and values at once (MLA), so its tiles are not read apart; "
    "remove 'read' from the recipe";
static const char no_states[] =
    "this model's latents are keys and values at once (MLA), which 'absorb' does not know; remove "
    "'absorb' from the recipe";
static const char no_bases[] =
    "latents do not support models with two head sizes; use a recipe without latents";
static const char two_heads[] = "this model has heads of two sizes, but the states of 'absorb' are "
                                "of one size; remove 'absorb' "
                                "from the recipe";

static const char ranks_tiles[] =
    "several ranks hold rows of the cache, and 'read' chooses among all of them; use a recipe "
    "without it, or one process";

static const char stages_states[] =
    "several stages do not divide the states of 'absorb'; remove 'absorb' from the recipe, or use "
    "one stage";

static const char one_process[] =
    "a prompt is replayed in one process; use one, or another policy than replay";

static const struct lk_combination_rule rules[] = {
    {BIT(SINK), LK_FEATURE_SHIFT, 0, "there is already a sink"},
    {BIT(BODY), LK_FEATURE_SHIFT, EVICTS,
     "'shift' needs evicted rows: use 'keep N by newest' or 'body: none'"},
    {KEEPS & ~BY(NEWEST), LK_FEATURE_SHIFT, 0, gaps},
    {EVICTS, LK_FEATURE_RESIDUAL, 0, residual},
    {KEEPS, LK_FEATURE_ADDED_BLOCKS, 0, whole_blocks},
    {BIT(NONE), LK_FEATURE_LAYERS, KEEPS | BIT(BODY),
     "'layers' sets codecs of the body, but the body is 'none'"},
    {BIT(NONE), LK_FEATURE_HEADS, KEEPS | BIT(BODY),
     "'heads' sets codecs of the body, but the body is 'none'"},
    {LATENTS, LK_FEATURE_HEADS, 0, groups},
    {BIT(BODY), LK_FEATURE_LESS, EVICTS, absorb},
    {BIT(LESS), LK_FEATURE_ALIBI, 0, alibi},
    {BIT(LESS), LK_FEATURE_SOFTCAP, 0, softcap},
    {LATENTS, LK_FEATURE_TWO_HEADS, 0, no_bases},
    {BIT(LESS), LK_FEATURE_TWO_HEADS, 0, two_heads},
    {BIT(READ), LK_FEATURE_ALIBI, 0,
     "this model weights rows by their distance (ALiBi), which estimates of tiles do not know; "
     "remove 'read' from the recipe"},
    {LATENTS, LK_FEATURE_SHARED, 0, latents},
    {BIT(READ), LK_FEATURE_SHARED, 0, both_sides},
    {BIT(LESS), LK_FEATURE_SHARED, 0, no_states},
    {BIT(SHIFT), LK_FEATURE_SHARED, 0,
     "this model has latent attention (MLA), whose sinks cannot shift; remove '(shift)' from the "
     "recipe"},
    {BIT(SHIFT), LK_FEATURE_LEARNED, 0,
     "this model has learned positions, so sinks cannot shift; remove '(shift)' from the recipe"},
    {BIT(READ), LK_FEATURE_DIVIDED_ROWS, 0, ranks_tiles},
    {BIT(LESS), LK_FEATURE_DIVIDED_LAYERS, 0, stages_states},
    {BY(REPLAY), LK_FEATURE_LESS, 0,
     "'absorb' learns from rows that decoding evicts, but a replay evicts a prompt's rows; use "
     "another policy, or remove 'absorb'"},
    {BY(REPLAY), LK_FEATURE_EAGER, 0,
     "a replay needs a prompt's exact rows, which 'eager' does not keep; remove one of the two"},
    {BY(REPLAY), LK_FEATURE_LEARNED, 0,
     "this model has learned positions, and a replay needs positions after the prompt's; use "
     "another policy than replay"},
    {BY(REPLAY), LK_FEATURE_RECURRENT, 0,
     "this model has recurrent layers, which cannot forget a replay; use another policy than "
     "replay"},
    {BY(REPLAY), LK_FEATURE_BORROWED, 0,
     "layers of this model attend to rows of earlier layers, where a replay is forgotten; use "
     "another policy than replay"},
    {BY(REPLAY), LK_FEATURE_DIVIDED_ROWS, 0, one_process},
    {BY(REPLAY), LK_FEATURE_DIVIDED_LAYERS, 0, one_process},
};

const struct lk_combination_rule *lk_combination_check(lk_features features) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (features & rules[i].a && features & lk_feature_bit(rules[i].b) &&
            !(features & rules[i].unless))
            return &rules[i];
    return NULL;
}

const char *lk_feature_name(enum lk_feature f) {
    static const char *const name[] = {
        [LK_FEATURE_F16] = "f16",
        [LK_FEATURE_INT8] = "int8",
        [LK_FEATURE_ROT] = "rot",
        [LK_FEATURE_KIVI] = "kivi",
        [LK_FEATURE_ASYM] = "asym",
        [LK_FEATURE_ADDED_ROWS] = "added codec of rows",
        [LK_FEATURE_ADDED_BLOCKS] = "added codec of blocks",
        [LK_FEATURE_LATENT] = "latent",
        [LK_FEATURE_LATENT_PRE] = "latent(pre)",
        [LK_FEATURE_SINK] = "sink",
        [LK_FEATURE_SHIFT] = "sink (shift)",
        [LK_FEATURE_BODY] = "body",
        [LK_FEATURE_NONE] = "body: none",
        [LK_FEATURE_PERCENT] = "keep N%",
        [LK_FEATURE_WINDOW] = "window",
        [LK_FEATURE_RESIDUAL] = "residual",
        [LK_FEATURE_LAYERS] = "layers: codecs",
        [LK_FEATURE_LAYERS_LIMIT] = "layers: keep",
        [LK_FEATURE_HEADS] = "heads: codecs",
        [LK_FEATURE_LESS] = "absorb less",
        [LK_FEATURE_EAGER] = "eager",
        [LK_FEATURE_READ] = "read N%",
        [LK_FEATURE_SLIDING] = "sliding windows",
        [LK_FEATURE_LEARNED] = "learned positions",
        [LK_FEATURE_ALIBI] = "ALiBi",
        [LK_FEATURE_SOFTCAP] = "soft cap",
        [LK_FEATURE_SHARED] = "latent attention",
        [LK_FEATURE_TWO_HEADS] = "two head sizes",
        [LK_FEATURE_RECURRENT] = "recurrent layers",
        [LK_FEATURE_BORROWED] = "rows of other layers",
        [LK_FEATURE_DIVIDED_ROWS] = "several ranks",
        [LK_FEATURE_DIVIDED_LAYERS] = "several stages",
    };
    if (f >= LK_FEATURE_KEEPS && f <= LK_FEATURE_KEEPS_LAST)
        return lk_policy_def((int)f - LK_FEATURE_KEEPS + 1)->feature;
    return name[f];
}

/* ---- examples ---- */

/* A registered codec of blocks, or of rows. Without one, a word that no recipe may have. */
static const char *added_example(bool blocks) {
    const lk_codec_ops *ops;
    for (size_t i = 0; (ops = lk_added_codec(i)); i++)
        if ((ops->block_rows > 0) == blocks) return ops->example;
    return "CODEC";
}

/* "k=... v=..." with the codecs among the features; rot4 if there are none. */
static void print_codecs(lk_features f, char *buf, size_t cap) {
    const struct {
        lk_features bit;
        const char *name;
    } plain[] = {{BIT(F16), "f16"},
                 {BIT(INT8), "int8"},
                 {BIT(ROT), "rot4"},
                 {BIT(KIVI), "kivi4"},
                 {BIT(ASYM), "asym4"},
                 {BIT(ADDED_ROWS), added_example(false)},
                 {BIT(ADDED_BLOCKS), added_example(true)}};
    const char *side[2] = {NULL, NULL};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (f & plain[i].bit) side[side[0] != NULL] = plain[i].name;
    if (!side[0]) side[0] = "rot4";
    if (!side[1]) side[1] = side[0];
    bool pre = f & BIT(LATENT_PRE), latent = f & BIT(LATENT);
    char text[2][40];
    for (int i = 0; i < 2; i++) {
        const char *basis = i == 0 && pre ? "latent50%(pre)" : latent ? "latent50%" : "";
        bool exact = *basis && strcmp(side[i], "f16") == 0;
        snprintf(text[i], sizeof text[i], "%s%s%s", basis, *basis && !exact ? "+" : "",
                 exact ? "" : side[i]);
    }
    snprintf(buf, cap, "k=%s v=%s", text[0], text[1]);
}

/* "body", "body: none" or "keep N by POLICY", with the codecs. */
static void print_body(lk_features body, bool percent, int n, const char *codecs, char *buf,
                       size_t cap) {
    if (body == BIT(BODY)) snprintf(buf, cap, "body: %s", codecs);
    if (body == BIT(NONE)) snprintf(buf, cap, "body: none");
    if (!(body & KEEPS)) return;
    int kind = LK_POLICY_NEWEST;
    while (body != BIT(KEEPS) << (kind - 1)) kind++;
    snprintf(buf, cap, "keep %d%s by %s: %s", percent ? 20 : n, percent ? "%" : "",
             lk_policy_def(kind)->name, codecs);
}

/* Choose the body of the example, and the limit of its second layer, among the features that were
 * asked for; add what these need. */
static void choose_bodies(lk_features *f, lk_features *body, lk_features *layer) {
    lk_features bodies = *f & (EVICTS | BIT(BODY));
    bool absorbs = *f & BIT(LESS), shift = *f & BIT(SHIFT);
    if (*f & BIT(PERCENT) && !(bodies & KEEPS)) bodies |= BY(H2O);
    /* the body has to hold rows */
    bool holds = *f & (CODECS | BIT(LAYERS) | BIT(LAYERS_LIMIT) | BIT(HEADS));
    if (!bodies && shift) bodies = holds ? BY(NEWEST) : BIT(NONE);
    if (!bodies && absorbs && !(*f & BIT(LAYERS_LIMIT))) bodies = holds ? BY(H2O) : BIT(NONE);
    if (!bodies) bodies = BIT(BODY);
    *body = bodies & -bodies; /* the first */
    *layer = bodies & ~*body;
    if (!*layer && *f & BIT(LAYERS_LIMIT)) *layer = *body & KEEPS ? *body : BY(TOVA);
    *f |= bodies | *layer;
    if (*layer) *f |= BIT(LAYERS_LIMIT);
}

/* "k=... v=..." for a head: K in fewer bits than print_codecs gives, if the codec has such. */
static void print_head_codecs(const char *codecs, char *buf, size_t cap) {
    size_t n = strcspn(codecs, " ");
    const char *four = memchr(codecs, '4', n);
    snprintf(buf, cap, "%s", codecs);
    if (four) buf[four - codecs] = strncmp(codecs, "k=kivi", 6) == 0 ? '2' : '3';
}

/* Print a recipe that has the features, and add to *f what it has besides. */
static void print_example(lk_features *f, char *buf, size_t cap) {
    char codecs[96], text[112];
    bool uses_codecs = *f & CODECS;
    lk_features body, layer;
    size_t n = 0;
    choose_bodies(f, &body, &layer);
    print_codecs(*f, codecs, sizeof codecs);
    bool percent = *f & BIT(PERCENT);
    if (*f & EVICTS && !(*f & BIT(RESIDUAL))) *f |= BIT(WINDOW);
    if (*f & BIT(SINK)) n += (size_t)snprintf(buf + n, cap - n, "sink 4: f16; ");
    if (*f & BIT(SHIFT)) n += (size_t)snprintf(buf + n, cap - n, "sink 4(shift): f16; ");
    print_body(body, percent && body & KEEPS, 96, codecs, text, sizeof text);
    n += (size_t)snprintf(buf + n, cap - n, "%s", text);
    if (*f & BIT(LAYERS)) n += (size_t)snprintf(buf + n, cap - n, "; layers 0: int8");
    if (layer) {
        print_body(layer, percent && layer & KEEPS, 64, codecs, text, sizeof text);
        const char *limit = layer == BIT(NONE) ? "none" : text;
        n += (size_t)snprintf(buf + n, cap - n, "; layers 1: %s", limit);
    }
    if (*f & BIT(HEADS)) {
        print_head_codecs(codecs, text, sizeof text);
        n += (size_t)snprintf(buf + n, cap - n, "; layers 1 heads 0: %s", text);
    }
    if (body == BIT(NONE) && uses_codecs) /* another level has to hold the rows */
        n += (size_t)snprintf(buf + n, cap - n, "; recent 64: %s", codecs);
    if (*f & BIT(WINDOW)) n += (size_t)snprintf(buf + n, cap - n, "; window 32: f16");
    if (*f & BIT(RESIDUAL)) n += (size_t)snprintf(buf + n, cap - n, "; residual 32: f16");
    if (*f & BIT(LESS)) n += (size_t)snprintf(buf + n, cap - n, "; absorb less");
    if (*f & BIT(EAGER)) n += (size_t)snprintf(buf + n, cap - n, "; eager");
    if (*f & BIT(READ)) snprintf(buf + n, cap - n, "; read 25%%");
}

bool lk_recipe_combination(size_t i, lk_combination *out) {
    size_t b = 1;
    for (; i >= (b < LK_FEATURE_SLIDING ? b : LK_FEATURE_SLIDING); b++) {
        i -= b < LK_FEATURE_SLIDING ? b : LK_FEATURE_SLIDING; /* a model's features: no pairs */
        if (b + 1 == LK_N_FEATURE) return false;
    }
    lk_features f = lk_feature_bit((enum lk_feature)i) | lk_feature_bit((enum lk_feature)b);
    *out = (lk_combination){.a = lk_feature_name((enum lk_feature)i),
                            .b = lk_feature_name((enum lk_feature)b)};
    print_example(&f, out->example, sizeof out->example);
    const struct lk_combination_rule *rule = lk_combination_check(f);
    out->reason = rule ? rule->reason : NULL;
    return true;
}
