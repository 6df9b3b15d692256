/* Launches of the kernels that write rows. Lists of commands are in the card's memory. All
 * functions return 0 or an error number (cuda/runtime.h). */
#ifndef LK_CUDA_LAUNCH_MOVES_H
#define LK_CUDA_LAUNCH_MOVES_H

#include "cuda/runtime.h"
#include "device/commands.h"

/* Execute a list of moves [n], numbered by lk_device_move_items, which returned n_item.
 * shared: lk_device_move_shared of the list. */
int gpu_move_rows(uint64_t move, int n, int n_item, int shared, gpu_stream stream);

#endif
