/* Tests whose sessions are on a device (support_device.c). */
#ifndef SUPPORT_DEVICE_H
#define SUPPORT_DEVICE_H

#include "lowkey.h"

/* Sessions so far: on the device that $LOWKEY_TEST_DEVICE names, or in RAM because it refused
 * them, by its reason. name: NULL without a device. */
enum { MAX_REFUSALS = 24 };
struct device_sessions {
    const char *name;
    int n_there, n_refused;
    struct {
        char reason[96];
        int n;
    } refusal[MAX_REFUSALS]; /* in the order of their first session; unused ones have n 0 */
};
struct device_sessions count_device_sessions(void);

#endif
