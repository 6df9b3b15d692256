/* Finding devices: which modules (module.h) are there, and what devices they have.
 *
 * A module lies in $LOWKEY_MODULES, or if that is not set in the folder of the program or the
 * library, or in lib/lowkey of the installation. No other place is looked at. A module stays loaded
 * until the process ends. lk_device_list (lowkey.h) lists the devices. */
#ifndef LK_DEVICE_MODULES_H
#define LK_DEVICE_MODULES_H

#include "device/module.h"

#include <stdbool.h>

/* Does a module have devices of this name ("cuda0", "cuda1", "emulated")? */
bool lk_device_has_name(const char *name);

/* Open a device. *device is owned: lk_device_close. LK_E_ARG: no kind of device has this name, or
 * there are fewer of this kind. LK_E_UNSUPPORTED: its module is not there, is of another version,
 * or cannot be loaded. LK_E_NOMEM, LK_E_IO from the device. */
lk_status lk_device_open(const char *name, struct lk_device **device, lk_err *err);
void lk_device_close(struct lk_device *device);

#endif
