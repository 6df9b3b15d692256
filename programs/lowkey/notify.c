/* Messages to the service manager, without a library: datagrams on a Unix socket. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#endif
#include "notify.h"

#include "base/clock.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Half of the time after which the manager acts: a late sign of life does no harm. */
static double watchdog_interval(void) {
    const char *time = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!time || (pid && strtol(pid, NULL, 10) != (long)getpid())) return 0;
    double seconds = 1e-6 * strtod(time, NULL);
    return seconds > 0 ? seconds / 2 : 0;
}

void notify_open(struct notify *notify) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;
    *notify = (struct notify){.fd = -1};
    if (len < 2 || len >= sizeof address.sun_path || (*path != '/' && *path != '@')) return;
    memcpy(address.sun_path, path, len);
    if (*path == '@') address.sun_path[0] = 0; /* an abstract name */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify->fd >= 0 && connect(notify->fd, (struct sockaddr *)&address, size) == 0) {
        notify->interval_s = watchdog_interval();
        return;
    }
    notify_close(notify);
}

void notify_close(struct notify *notify) {
    if (notify->fd >= 0) close(notify->fd);
    notify->fd = -1;
    notify->interval_s = 0;
}

void notify_send(const struct notify *notify, const char *message) {
    if (notify->fd >= 0) send(notify->fd, message, strlen(message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void notify_beat(struct notify *notify) {
    double now = notify->interval_s > 0 ? lk_now() : 0;
    if (notify->interval_s <= 0 || now - notify->last_beat < notify->interval_s) return;
    notify->last_beat = now;
    notify_send(notify, "WATCHDOG=1");
}
