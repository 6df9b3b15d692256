/* Free memory of the system. */
#ifndef LK_LOWKEY_AVAILABLE_H
#define LK_LOWKEY_AVAILABLE_H

#include <stdint.h>

/* Bytes that can be allocated without swapping: the minimum of what the kernel reports for the
 * whole system and for every control group of this process. At least 1 if any of them is known,
 * else 0. `root`: prefix of /proc and /sys, "" except in tests. */
uint64_t available_bytes(const char *root);

#endif
