/* Generates items, formats them as prompts, and scores answers. */
#include "eval/items.h"

#include "base/buf.h"
#include "base/ledger.h"
#include "base/splitmix64.h"
#include "eval/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- random numbers and permutations ---- */

uint64_t lk_rng_next(struct lk_rng *rng) { return lk_splitmix64_next(&rng->state); }

struct lk_rng lk_rng_seed(uint64_t seed, const char *name, uint64_t index) {
    struct lk_rng rng = {seed};
    for (const char *c = name; *c; c++) rng.state = lk_rng_next(&rng) ^ (unsigned char)*c;
    rng.state = lk_rng_next(&rng) ^ index;
    return (struct lk_rng){lk_rng_next(&rng)};
}

size_t lk_rng_below(struct lk_rng *rng, size_t n) {
    /* n is far below 2^32, so the bias is negligible. */
    return (size_t)((lk_rng_next(rng) >> 32) * (uint64_t)n >> 32);
}

void lk_rng_permutation(struct lk_rng *rng, uint32_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t j = lk_rng_below(rng, i + 1);
        if (j < i) order[i] = order[j];
        order[j] = (uint32_t)i;
    }
}

/* ---- prompts, tokens and scores ---- */

struct lk_prompt_format lk_prompt_format_of(const lk_model *model) {
    lk_message msg = {"user", "."};
    char *text = NULL;
    bool chat = !lk_chat_format(model, &msg, 1, true, &text, NULL);
    lk_text_free(text);
    return (struct lk_prompt_format){model, chat};
}

/* A chat is marked text; any other text is plain. */
static unsigned tokenize_flags(const struct lk_prompt_format *format) {
    return LK_TOKENIZE_BEGIN | (format->chat ? LK_TOKENIZE_MARKED : 0);
}

/* The last turn of the user. */
static const char *last_question(const struct lk_item *item, struct lk_arena *arena) {
    if (!item->context) return item->question;
    return lk_arena_printf(arena, "%s\n\n%s", item->context, item->question);
}

static lk_status write_chat(struct lk_buf *out, const lk_model *model, const struct lk_item *item,
                            struct lk_arena *arena, lk_err *err) {
    size_t n = 2 * item->n_shot + 1;
    lk_message *msg = lk_arena_alloc(arena, n * sizeof *msg);
    if (!msg) return lk_arena_check(arena, err);
    for (size_t i = 0; i < item->n_shot; i++) {
        msg[2 * i] = (lk_message){"user", item->shot[i].question};
        msg[2 * i + 1] = (lk_message){
            "assistant", lk_arena_printf(arena, "%s%s", item->opening, item->shot[i].answer)};
    }
    msg[n - 1] = (lk_message){"user", last_question(item, arena)};
    char *text = NULL;
    lk_status status = lk_chat_format(model, msg, n, true, &text, err);
    if (status) return status;
    lk_buf_append_str(out, text);
    lk_buf_append_str(out, item->opening);
    lk_text_free(text);
    return lk_arena_check(arena, err);
}

/* The text of head and tail, appended to `out`. */
static lk_status write_prompt(struct lk_buf *out, const struct lk_prompt_format *format,
                              const struct lk_item *item, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    lk_status status = LK_OK;
    if (format->chat) {
        status = write_chat(out, format->model, item, &arena, err);
    } else {
        for (size_t i = 0; i < item->n_shot; i++)
            lk_buf_printf(out, "%s\n%s%s\n\n", item->shot[i].question, item->opening,
                          item->shot[i].answer);
        if (item->context) lk_buf_printf(out, "%s\n\n", item->context);
        lk_buf_printf(out, "%s\n%s", item->question, item->opening);
    }
    lk_arena_free(&arena);
    if (!status && out->failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    return status;
}

lk_status lk_item_length(const struct lk_prompt_format *format, const struct lk_item *item,
                         size_t *n_tok, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    lk_status status = write_prompt(&text, format, item, err);
    if (!status)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, n_tok, err);
    lk_tokens_free(tok);
    lk_buf_free(&text);
    return status;
}

/* Offset of the last question in the text of an item. */
static size_t tail_start(const char *text, size_t len, const struct lk_item *item) {
    size_t n = strlen(item->question);
    for (size_t i = len; i-- > 0;)
        if (len - i >= n && memcmp(text + i, item->question, n) == 0) return i;
    return len; /* the template changed the question: only the opening is in the tail */
}

/* Count the tokens tok [n_tok] of a text that are also the first tokens of its first `len` bytes. A
 * token may extend beyond `len`. */
static lk_status common_tokens(const struct lk_prompt_format *format, const char *text, size_t len,
                               const int32_t *tok, size_t n_tok, size_t *n, lk_err *err) {
    int32_t *part = NULL;
    size_t n_part = 0;
    lk_status status =
        lk_tokenize(format->model, text, len, tokenize_flags(format), 0, &part, &n_part, err);
    for (*n = 0; !status && *n < n_part && *n < n_tok && part[*n] == tok[*n];) ++*n;
    lk_tokens_free(part);
    return status;
}

lk_status lk_item_tokenize(const struct lk_prompt_format *format, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    size_t n_tok = 0, n_head = 0, n_given = 0;
    lk_status status = write_prompt(&text, format, item, err);
    size_t given_len = text.len, head_len = status ? 0 : tail_start(text.at, text.len, item);
    if (item->answer) lk_buf_append_str(&text, item->answer);
    if (!status && text.failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    if (!status)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, &n_tok, err);
    if (!status) status = common_tokens(format, text.at, head_len, tok, n_tok, &n_head, err);
    if (!status) status = common_tokens(format, text.at, given_len, tok, n_tok, &n_given, err);
    lk_buf_free(&text);
    if (!status && n_given < 2) status = lk_fail(err, LK_E_ARG, "item %s is empty", item->key);
    if (status) {
        lk_tokens_free(tok);
        return status;
    }
    if (n_head >= n_given) n_head = n_given - 1;
    if (n_head == 0) n_head = 1;
    *out = (struct lk_item_tokens){tok, n_head, n_given - n_head, n_tok - n_given};
    return LK_OK;
}

void lk_item_tokens_free(struct lk_item_tokens *tokens) {
    lk_tokens_free(tokens->tok);
    *tokens = (struct lk_item_tokens){0};
}

/* Whether the first `len` bytes of text contain `part`, ignoring the case of ASCII letters. */
static bool contains_text(const char *text, size_t len, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= len; i++)
        if (strncasecmp(text + i, part, n) == 0) return true;
    return false;
}

/* Length of the answer before the item's stop text. */
static size_t answer_length(const struct lk_item *item, const char *text) {
    const char *stop = item->stop ? strstr(text, item->stop) : NULL;
    return stop ? (size_t)(stop - text) : strlen(text);
}

double lk_item_score(const struct lk_item *item, const char *text) {
    size_t len = answer_length(item, text), n = 0;
    for (size_t i = 0; i < item->n_expect; i++) n += contains_text(text, len, item->expect[i]);
    if (item->match == LK_MATCH_ANY) return n > 0;
    return item->n_expect ? (double)n / item->n_expect : 0;
}

/* ---- the number of units with which an item has the requested length ---- */

/* Count the tokens of the item of n units, including room for its answer. */
static lk_status count_item_tokens(const struct lk_fit_opts *fit,
                                   const struct lk_prompt_format *format, size_t n, size_t *n_tok,
                                   lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_item item = {0};
    lk_status status = fit->make(fit->user, n, &arena, &item, err);
    if (!status) status = lk_arena_check(&arena, err);
    if (!status) status = lk_item_length(format, &item, n_tok, err);
    if (!status) *n_tok += item.n_generate;
    lk_arena_free(&arena);
    return status;
}

lk_status lk_fit_length(const struct lk_fit_opts *fit, const struct lk_prompt_format *format,
                        struct lk_arena *arena, struct lk_item *item, size_t *n_unit, size_t *n_tok,
                        lk_err *err) {
    enum { FIRST_STEP = 16 };
    size_t low = fit->min_unit, high = fit->max_unit + 1, low_tok = 0; /* low fits, high does not */
    lk_status status = count_item_tokens(fit, format, low, &low_tok, err);
    if (status) return status;
    if (low_tok > fit->max_tok)
        return lk_fail(err, LK_E_ARG,
                       "%zu tokens are too few: the shortest item of this kind has %zu with its "
                       "answer",
                       fit->max_tok, low_tok);
    /* Units have similar lengths: extrapolate from the last two counts. */
    double unit = 0;
    while (high - low > 1 && (unit == 0 || fit->max_tok - low_tok >= unit)) {
        size_t step = unit > 0 ? (size_t)((fit->max_tok - low_tok) / unit) : FIRST_STEP, tok = 0;
        size_t n = step < high - low ? low + step : high - 1;
        status = count_item_tokens(fit, format, n, &tok, err);
        if (status) return status;
        unit = tok > low_tok ? (double)(tok - low_tok) / (n - low) : 1;
        if (tok <= fit->max_tok)
            low = n, low_tok = tok;
        else
            high = n;
    }
    status = fit->make(fit->user, low, arena, item, err);
    if (!status) status = lk_arena_check(arena, err);
    if (!status && n_unit) *n_unit = low;
    if (!status && n_tok) *n_tok = low_tok - item->n_generate;
    return status;
}

/* ---- the items of a grid of lengths, depths and parts ---- */

enum { N_LENGTH = 4, MAX_CELLS = 64 };

lk_status lk_items_alloc(struct lk_items *items, size_t n, lk_err *err) {
    items->item = lk_arena_alloc(&items->arena, (n ? n : 1) * sizeof *items->item);
    return lk_arena_check(&items->arena, err);
}

static size_t n_length(const struct lk_items_opts *opts) {
    return opts->env->opts->quick ? N_LENGTH / 2 : N_LENGTH;
}

/* Number of pairs of a length and a depth. */
static size_t n_cell(const struct lk_item_grid *grid, const struct lk_items_opts *opts) {
    return n_length(opts) * (grid->n_depth ? grid->n_depth : 1);
}

struct lk_grid_point lk_grid_point_at(const struct lk_item_grid *grid,
                                      const struct lk_items_opts *opts, size_t i) {
    const char *name = opts->env->task->name;
    uint64_t seed = opts->env->opts->seed;
    uint32_t order[MAX_CELLS];
    size_t n = n_cell(grid, opts), sweep = i / n, round = sweep / grid->n_part;
    size_t n_len = n_length(opts);
    struct lk_rng round_rng = lk_rng_seed(seed, name, UINT64_MAX - round);
    lk_rng_permutation(&round_rng, order, n);
    size_t cell = order[i % n];
    return (struct lk_grid_point){
        .part = (i % n + sweep) % grid->n_part,
        .round = round,
        .length = opts->n_ctx * (cell % n_len + 1) / n_len,
        .depth = grid->n_depth > 1 ? (double)(cell / n_len) / (double)(grid->n_depth - 1) : -1,
        .rng = lk_rng_seed(seed, name, i),
        .user = grid->user};
}

static lk_status generate_item(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                               size_t i, struct lk_items *out, lk_err *err) {
    struct lk_grid_point point = lk_grid_point_at(grid, opts, i);
    struct lk_fit_opts fit = {grid->make, &point, grid->min_unit, grid->max_unit, point.length};
    size_t n_unit, n_tok;
    lk_status status =
        lk_fit_length(&fit, &opts->format, &out->arena, &out->item[i], &n_unit, &n_tok, err);
    if (status == LK_E_ARG && err) {
        char what[sizeof err->msg];
        snprintf(what, sizeof what, "%s", err->msg);
        lk_fail(err, status, "%s at length %zu: %.400s; give a larger -c", opts->env->task->name,
                point.length, what);
    }
    if (!status && n_unit == grid->max_unit &&
        n_tok + out->item[i].n_generate < point.length - point.length / 16)
        status = lk_fail(err, LK_E_ARG,
                         "%s: the data is enough for items of %zu tokens, not of %zu; give more "
                         "of it or a smaller -c",
                         opts->env->task->name, n_tok, point.length);
    return status;
}

lk_status lk_items_generate(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err) {
    const struct lk_eval_opts *o = opts->env->opts;
    size_t n_usual = n_cell(grid, opts) * (o->quick ? 1 : grid->n_part * grid->n_round);
    size_t n = o->limit ? o->limit : n_usual;
    lk_status status = lk_items_alloc(out, n, err);
    while (!status && out->n < n) {
        status = generate_item(grid, opts, out->n, out, err);
        if (!status) out->n++;
    }
    return status;
}
