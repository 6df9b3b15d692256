/* What a device module exports: a shared object that is loaded when a device of its kind is named,
 * so one lowkey runs with and without it.
 *
 * The function LK_MODULE_SYMBOL returns the table of the module, or NULL if it was built for
 * another LK_MODULE_ABI. The number changes with any struct that both sides see: this file,
 * device.h, commands.h. */
#ifndef LK_DEVICE_MODULE_H
#define LK_DEVICE_MODULE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LK_MODULE_ABI = 10 };
#define LK_MODULE_SYMBOL "lk_cuda_module"

struct lk_module {
    const char *version; /* of the lowkey that it was built with */
    /* How many devices there are. A machine without a driver has none, which is not an error. */
    int (*count)(void);
    /* Fill in everything but the name of device `number`. */
    lk_status (*describe)(int number, lk_device_info *info, lk_err *err);
    /* Open device `number`, whose name the caller sets. Close it with its function `close`. */
    lk_status (*open)(int number, struct lk_device **device, lk_err *err);
};

const struct lk_module *lk_cuda_module(int abi);

#ifdef __cplusplus
}
#endif

#endif
