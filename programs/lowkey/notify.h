/* Messages to the service manager: the protocol of sd_notify, over the socket in $NOTIFY_SOCKET. */
#ifndef LK_NOTIFY_H
#define LK_NOTIFY_H

#include <stdbool.h>

struct notify {
    int fd;            /* -1: there is no service manager */
    double interval_s; /* between signs of life; 0: none are expected */
    double last_beat;
};

/* Connect to the socket, and read how often the watchdog expects signs of life. */
void notify_open(struct notify *notify);
void notify_close(struct notify *notify);

/* Send a message, e.g. "READY=1". It is lost if the socket does not accept it at once. */
void notify_send(const struct notify *notify, const char *message);

/* Send a sign of life if it is time for one. Called by one thread only. */
void notify_beat(struct notify *notify);

#endif
