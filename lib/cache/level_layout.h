/* Layout of a level's blocks: number, size and meaning of their parts, from recipe, model and
 * sidecar. */
#ifndef LK_CACHE_LEVEL_LAYOUT_H
#define LK_CACHE_LEVEL_LAYOUT_H

#include "base/err.h"
#include "base/ledger.h"
#include "cache/kv.h"

/* Set the layout fields of `level` by its rule; its basis is the sidecar's whole one. LK_E_ARG if
 * the recipe asks for a basis or a rank that the sidecar does not have, LK_E_FORMAT if the sidecar
 * does not match the model, LK_E_UNSUPPORTED if the codec cannot store such parts, LK_E_NOMEM.
 * Free with lk_level_layout_free, also after a failure. */
lk_status lk_level_layout(struct lk_level *level, const struct lk_level_rule *rule,
                          const struct lk_cache_shape *shape, int layer, enum lk_side side,
                          struct lk_ledger *ledger, lk_err *err);
void lk_level_layout_free(struct lk_level *level, struct lk_ledger *ledger);

#endif
