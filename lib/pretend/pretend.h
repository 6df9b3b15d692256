/* The pretend device: executes the commands of lib/device/device.h with the functions of the CPU,
 * in memory that only its own functions can read and write. So the engine can be tested as on a
 * device on any machine: an access that does not go through the device ends the process.
 *
 * Results are those of the CPU, bit for bit. It is always built, so that any program can run on
 * it. It is slow: one thread executes its commands. */
#ifndef LK_PRETEND_PRETEND_H
#define LK_PRETEND_PRETEND_H

#include "base/ledger.h"
#include "device/device.h"

#define LK_PRETEND_NAME "pretend"

/* Open one. ledger: of what it needs besides the memory that its users allocate; borrowed. Close it
 * with its function `close`. LK_E_NOMEM. */
lk_status lk_pretend_open(struct lk_device **out, struct lk_ledger *ledger, lk_err *err);

#endif
