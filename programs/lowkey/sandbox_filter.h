/* Filters of system calls (seccomp), installed in all threads of the process. A refused call
 * returns an error (EPERM) and does not end the process. */
#ifndef LK_LOWKEY_SANDBOX_FILTER_H
#define LK_LOWKEY_SANDBOX_FILTER_H

#include "base/err.h"

/* Refuse what a server that computes and answers never needs. A list of refused calls, not of
 * allowed ones: which harmless calls a C library makes changes from version to version. Calls that
 * are newer than the list do not exist (ENOSYS), as on an older kernel. LK_E_UNSUPPORTED: the
 * kernel has no seccomp, or the processor is neither x86-64 nor AArch64. */
lk_status sandbox_filter_calls(lk_err *err);

/* Refuse to create, bind and listen on sockets, too. */
lk_status sandbox_filter_sockets(lk_err *err);

#endif
