/* How much memory the system can still give. */
#ifndef LK_LOWKEY_AVAILABLE_H
#define LK_LOWKEY_AVAILABLE_H

#include <stdint.h>

/* Bytes without swapping, as the system as a whole and the control groups that this process is in say: the least of
 * them, at least 1 where any is known, 0 where none is. `root`: the folder that holds proc and sys, "" but in tests. */
uint64_t available_bytes(const char *root);

#endif
