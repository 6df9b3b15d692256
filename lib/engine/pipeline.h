/* Units of work that go through the stages of a model (model/stages.h), which compute at the same
 * time:
 *
 *     tick      0         1         2         3
 *     stage 0   unit 0    unit 1    unit 2
 *     stage 1             unit 0    unit 1    unit 2
 *
 * A unit is a pass over some rows: a chunk of a text (chunks.c), or a group of the sequences of a
 * batch (batch.c). After each tick, hidden states go to the next stages. All ranks have the same
 * units and ticks. One process is a pipeline of one stage.
 *
 *     for (tick = 0; tick < lk_pipeline_ticks(&p); tick++)
 *         build the pass of unit lk_pipeline_own(&p, tick), if there is one, and set its inputs
 *         lk_pipeline_tick
 *         take the results of the pass */
#ifndef LK_ENGINE_PIPELINE_H
#define LK_ENGINE_PIPELINE_H

#include "engine/session_state.h"

struct lk_pipeline {
    struct lk_pass *pass; /* of the units on this rank; lk_pass_reserve_hidden has been called */
    int64_t n_unit;       /* can become smaller before a tick, but not less than those started */
};

int64_t lk_pipeline_ticks(const struct lk_pipeline *p);

/* The unit that this rank's stage computes in a tick, and the one that the stage before computes,
 * whose hidden states come here after it; -1: none. */
int64_t lk_pipeline_own(const struct lk_pipeline *p, int64_t tick);
int64_t lk_pipeline_previous(const struct lk_pipeline *p, int64_t tick);

/* Compute this rank's unit, and exchange hidden states with the stages next to it. n_row: rows of
 * unit lk_pipeline_previous. After a failure, LK_E_NOMEM or LK_E_IO, all ranks are lost. */
lk_status lk_pipeline_tick(struct lk_pipeline *p, int64_t tick, size_t n_row, lk_err *err);

#endif
