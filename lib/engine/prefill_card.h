/* An exact prefill whose layers are computed by a card that has the sessions' rows too: its memory
 * there, and a layer's attention as nodes of ggml's.
 *
 *     RAM    embeddings |
 *     card              x -> pre -> exact K and V -> attention -> post -> x   a graph per chunk
 *                                       |
 *                                       +-> encoded after the last chunk, by moves on the card
 *
 * Hidden states and exact rows stay there between chunks and layers. ggml's operator attends to
 * f16 rows with a mask, which is cut out of a strip that the card has from the start:
 *
 *     strip [chunk][base + chunk + pad]     mask of a chunk at `at`, of rows from `first` on:
 *     0 . . . 0 0 -  -  -  row 0              columns from base + first - at on
 *     0 . . . 0 0 0  -  -  row 1
 *             ^ base: a token's own row
 *
 * The recurrence of a recurrent layer is nodes of the same graph.
 *
 * A layer goes through RAM instead if it is not on the card, has a recurrence that is not computed
 * there, or attends to the rows of such a layer, and all layers do if a policy selects rows, or
 * something watches attention. */
#ifndef LK_ENGINE_PREFILL_CARD_H
#define LK_ENGINE_PREFILL_CARD_H

#include "cache/prompt_rows.h"
#include "engine/graph.h"

struct lk_prefill;

enum { LK_EXACT_KINDS = 2 /* of layers: all; those with a window, if layers share rows */ };

struct lk_prefill_card {
    bool used;                 /* layers that can are there; set when the prefill begins */
    int kind;                  /* of the current layer: its exact rows */
    size_t n;                  /* tokens of the current chunk */
    char *headers;             /* [headers_size] of the tensors, which `ctx` has */
    size_t headers_size, size; /* size: bytes on the card */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *x;                        /* [n_tok][n_embd] */
    struct ggml_tensor *exact[LK_EXACT_KINDS][2]; /* f16 [rows][width]; of latent attention: K, with
                                                     V's channels before its own */
    struct ggml_tensor *mask[2]; /* f16 strips: of full attention, of windows; NULL: no layer */
    struct ggml_tensor *sinks;   /* [n_head] of the current layer; NULL: no layer has them */
    /* In RAM: what channel statistics are computed from. */
    float *q;              /* [chunk][n_head][d_query] */
    char *first, *by_head; /* K or V of the first tokens, as they are there and head by head */
    size_t q_size, first_size, by_head_size;
};

/* Can the prefill's layers on the card attend there? Its sessions' caches, recipes and watches
 * decide. */
bool lk_prefill_card_fits(const struct lk_prefill *prefill);

/* Does a layer attend there if such a prefill uses the card? */
bool lk_prefill_card_has(const struct lk_net *net, int layer);

/* Does any layer not do so? exact: not counting recurrent layers. */
bool lk_prefill_card_lacks(const struct lk_net *net, bool exact);

/* Bytes there of a prompt of n_tok tokens. */
uint64_t lk_prefill_card_bytes(const struct lk_net *net, size_t n_tok);

/* Memory there, with its masks. The caller frees it, also after a failure: LK_E_NOMEM, LK_E_IO. */
lk_status lk_prefill_card_alloc(struct lk_prefill *prefill, lk_err *err);
void lk_prefill_card_free(struct lk_prefill *prefill);

/* Let the card have what the next layer needs besides rows. */
void lk_prefill_card_enter(struct lk_prefill *prefill, int layer);

/* Nodes of tokens [at, at + n) in a layer, up to its attention, whose result [n][n_head * d_head]
 * is returned. K and V are stored. */
struct ggml_tensor *lk_prefill_card_attention(struct lk_prefill *prefill, int layer, size_t at,
                                              size_t n, struct lk_qkv *pre);

/* A node that keeps x of tokens [at, at + n) for the next layer. */
void lk_prefill_card_keep(struct lk_prefill *prefill, struct ggml_tensor *x, size_t at, size_t n);

/* Write x of tokens [at, at + n) there, or read it. */
void lk_prefill_card_set_x(struct lk_prefill *prefill, const float *x, size_t at, size_t n);
void lk_prefill_card_get_x(const struct lk_prefill *prefill, float *x, size_t at, size_t n);

/* The current layer's exact rows of K or V, from token 0 on. */
struct lk_rows_there lk_prefill_card_rows(const struct lk_prefill *prefill, int side);

#endif
