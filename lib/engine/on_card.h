/* Passes on one card: the rows of all sequences are in the memory of the device that computes the
 * last layers of the model. In those layers
 *
 *   pre      leaves q, k and v on the device
 *   store    moves whose source they are
 *   attend   reads q where it is, and writes the operand of `post`
 *   age      commands too, before the logits come to the host; if a policy needs scores, after
 *            that: the host chooses
 *
 * so that a pass brings tokens' embeddings to the device and logits back, and the host waits once,
 * at the end. Commands follow ggml's stream (device/device.h). They are issued in pieces of the
 * pass's graph (engine/graph.h).
 *
 * Other passes through RAM do the same (pass.h, device_rows.h). */
#ifndef LK_ENGINE_ON_CARD_H
#define LK_ENGINE_ON_CARD_H

#include "engine/pass.h"

/* Can the pass be on one card? Not if the host needs queries or partials: for sinks that shift, and
 * watches. */
bool lk_pass_on_card(const struct lk_pass *pass);

/* Is a layer's attention on the card, in such a pass? */
bool lk_card_has_layer(const struct lk_net *net, int layer);

/* In a piece of commands: let the commands of the pass's device follow ggml, or no longer. */
void lk_card_follow(struct lk_pass *pass, bool ggml);

/* In the first piece of the graph: the token inputs of all layers, if the family has them. */
void lk_card_token_inputs(struct lk_pass *pass);

/* Between pre and post of a layer: commands that store and attend. The result is the operand of
 * post, and pre gets its token input. */
struct ggml_tensor *lk_card_attention(struct lk_graph *graph, struct lk_layer_job *job,
                                      struct lk_qkv *pre);

/* After all layers: commands that age the rows, unless a policy needs scores. */
void lk_card_age(struct lk_pass *pass);

#endif
