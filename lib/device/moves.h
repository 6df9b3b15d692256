/* Moves of rows on a device, from the host's side: how parts are packed, and the work of a list. */
#ifndef LK_DEVICE_MOVES_H
#define LK_DEVICE_MOVES_H

#include "codec/codec.h"
#include "device/commands.h"

/* Channels of a row that kernels can hold: a tile of rows lies in shared memory, twice if the
 * rotation is not a power of two. */
enum { LK_DEVICE_MAX_D = 1024, LK_DEVICE_MAX_D_PALEY = 768 };

/* Set *out to the coding of a part. Returns NULL, or why kernels cannot encode and decode it: a
 * static string ("devices do not run added codecs"). */
const char *lk_device_packing_of(const struct lk_part *part, struct lk_device_packing *out);

/* The coding of plain rows of d channels: LK_ROWS_F32 or LK_ROWS_F16. */
struct lk_device_packing lk_device_plain(int coding, int d);

/* Number the work items of a list: sets first_item of move [n], and returns the number of items of
 * all of them. An item is the work of one warp: up to 32 rows of one part, or a block of kivi's K;
 * of REPLACE, all rows of one part. */
int32_t lk_device_move_items(struct lk_device_move *move, int n);

/* The same for projections: an item is 32 rows and 32 components of one part. */
int32_t lk_device_project_items(struct lk_device_project *project, int n);

/* The same for weights of rows. */
int32_t lk_device_weigh_items(struct lk_device_weigh *weigh, int n);

/* Bytes of shared memory in which a warp decodes a tile of a part; 0 without channels. */
int32_t lk_device_tile_bytes(const struct lk_device_packing *packing);

/* Bytes of shared memory that a warp needs for the moves of a list. */
int32_t lk_device_move_shared(const struct lk_device_move *move, int n);
int32_t lk_device_weigh_shared(const struct lk_device_weigh *weigh, int n);

#endif
