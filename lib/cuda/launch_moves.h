/* Launches of the kernels that write and weigh rows. Lists of commands are in the card's
 * memory. All functions return 0 or an error number (cuda/runtime.h). */
#ifndef LK_CUDA_LAUNCH_MOVES_H
#define LK_CUDA_LAUNCH_MOVES_H

#include "cuda/runtime.h"
#include "device/commands.h"

/* Execute moves, projections or weights [n], numbered by lk_device_move_items, ..._project_items or
 * ..._weigh_items, which returned n_item. shared: lk_device_move_shared, ..._weigh_shared. */
int gpu_move_rows(uint64_t move, int n, int n_item, int shared, gpu_stream stream);
int gpu_weigh_rows(uint64_t weigh, int n, int n_item, int shared, gpu_stream stream);

/* d_head: of the projection with the most channels of a head. */
int gpu_project_rows(uint64_t project, int n, int n_item, int d_head, gpu_stream stream);

/* LESS in layers [n] whose networks have the shape of *shape, which is the host's copy of one of
 * them: add shape->n_row rows to the states, or attend to them with shape->n_tok tokens. */
int gpu_less_absorb(uint64_t less, int n, const struct lk_device_less *shape, gpu_stream stream);
int gpu_less_attend(uint64_t less, int n, const struct lk_device_less *shape, gpu_stream stream);

#endif
