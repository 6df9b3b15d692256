/* The codecs that the program registered, and how lk_codec calls them. */
#include "codec/added.h"

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* State of the process: recipes are texts, and a parser has to find the codecs that they name.
 * Entries are written once, before n_added counts them. */
static const lk_codec_ops *added[LK_CODEC_MAX_ADDED];
static atomic_size_t n_added;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const lk_codec_ops *lk_added_codec(size_t i) { return i < atomic_load(&n_added) ? added[i] : NULL; }

bool lk_added_parse(const char *word, struct lk_codec *codec) {
    const lk_codec_ops *ops;
    for (size_t i = 0; (ops = lk_added_codec(i)); i++) {
        lk_codec_param param = {0};
        if (!ops->parse(word, &param)) continue;
        *codec = (struct lk_codec){
            .coding = LK_ADDED, .added = (uint8_t)i, .bits = param.bits, .group = param.option};
        return true;
    }
    return false;
}

static lk_status check_ops(const lk_codec_ops *ops, lk_err *err) {
    struct lk_codec other;
    if (!ops->name || !ops->words || !ops->example || !ops->parse || !ops->print || !ops->bytes ||
        !ops->encode || !ops->decode || !ops->parse_option != !ops->options)
        return lk_fail(err, LK_E_ARG, "codec '%s' lacks a name or a function",
                       ops->name ? ops->name : "?");
    if (ops->block_rows < 0 || ops->block_rows > LK_CODEC_MAX_ROWS ||
        ops->block_rows % LK_CODEC_TILE)
        return lk_fail(err, LK_E_ARG, "codec '%s': %d rows are not 0, 32, 64, 96 or 128", ops->name,
                       (int)ops->block_rows);
    lk_codec_param param = {0};
    if (!ops->parse(ops->example, &param))
        return lk_fail(err, LK_E_ARG, "codec '%s' does not read its own example '%s'", ops->name,
                       ops->example);
    if (lk_added_parse(ops->example, &other))
        return lk_fail(err, LK_E_ARG, "codec '%s': another one is called '%s'", ops->name,
                       ops->example);
    return LK_OK;
}

static lk_status register_locked(const lk_codec_ops *ops, lk_err *err) {
    size_t n = atomic_load(&n_added);
    for (size_t i = 0; i < n; i++)
        if (added[i] == ops) return LK_OK;
    lk_status status = check_ops(ops, err);
    if (status) return status;
    if (n == LK_CODEC_MAX_ADDED)
        return lk_fail(err, LK_E_ARG, "no more than %d codecs can be registered",
                       LK_CODEC_MAX_ADDED);
    added[n] = ops;
    atomic_store(&n_added, n + 1);
    return LK_OK;
}

lk_status lk_codec_register(const lk_codec_ops *ops, lk_err *err) {
    pthread_mutex_lock(&lock);
    lk_status status = register_locked(ops, err);
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- as a codec of the library ---- */

/* lk_added_parse has set the index. */
static const lk_codec_ops *ops_of(const struct lk_codec *codec) { return added[codec->added]; }

static lk_codec_shape shape_of(const struct lk_codec *codec, enum lk_side side, int d_head) {
    return (lk_codec_shape){.param = {.bits = codec->bits, .option = codec->group},
                            .value = side == LK_V,
                            .n_channel = d_head};
}

static int added_block_rows(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    int n = ops_of(codec)->block_rows;
    return n ? n : LK_TILE;
}

static bool added_row_wise(const struct lk_codec *codec, enum lk_side side) {
    (void)side;
    return ops_of(codec)->block_rows == 0;
}

static int added_unit(const struct lk_codec *codec, enum lk_side side) {
    lk_codec_shape shape = shape_of(codec, side, 0);
    return ops_of(codec)->unit ? ops_of(codec)->unit(&shape.param) : 8;
}

static const char *added_reject_reason(const struct lk_codec *codec, enum lk_side side,
                                       int d_head) {
    lk_codec_shape shape = shape_of(codec, side, d_head);
    return ops_of(codec)->reject ? ops_of(codec)->reject(&shape) : NULL;
}

static size_t added_head_bytes(const struct lk_part *part) {
    lk_codec_shape shape = shape_of(part->codec, part->side, part->d_head);
    return ops_of(part->codec)->bytes(&shape);
}

static size_t added_scale_bytes(const struct lk_part *part) {
    const lk_codec_ops *ops = ops_of(part->codec);
    lk_codec_shape shape = shape_of(part->codec, part->side, part->d_head);
    return ops->scale_bytes ? ops->scale_bytes(&shape) : 0;
}

static void added_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    lk_codec_shape shape = shape_of(codec, side, 0);
    ops_of(codec)->print(&shape.param, buf, cap);
}

static void added_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                         size_t stride) {
    lk_codec_shape shape = shape_of(part->codec, part->side, part->d_head);
    ops_of(part->codec)->encode(&shape, head, row0, n, x, stride);
}

static void added_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                         size_t stride) {
    lk_codec_shape shape = shape_of(part->codec, part->side, part->d_head);
    ops_of(part->codec)->decode(&shape, head, row0, n, x, stride);
}

const struct lk_coding_ops lk_added_ops = {
    .block_rows = added_block_rows,
    .row_wise = added_row_wise,
    .unit = added_unit,
    .reject_reason = added_reject_reason,
    .head_bytes = added_head_bytes,
    .scale_bytes = added_scale_bytes,
    .print = added_print,
    .encode = added_encode,
    .decode = added_decode,
};
