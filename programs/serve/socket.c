/* Sockets of POSIX and of Windows. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* POLLRDHUP */
#endif
#include "serve/socket.h"

#ifdef _WIN32

enum { END_BOTH = SD_BOTH };

enum lk_socket_state lk_socket_state(int fd) {
    char byte;
    WSAPOLLFD at = {.fd = (SOCKET)fd, .events = POLLRDNORM};
    if (WSAPoll(&at, 1, 0) <= 0) return LK_SOCKET_OPEN;
    if (at.revents & (POLLERR | POLLNVAL)) return LK_SOCKET_GONE;
    /* POLLHUP only says that the client sends nothing more, and so does a read of 0 bytes. */
    if (at.revents & POLLHUP) return LK_SOCKET_HALF;
    int n = recv((SOCKET)fd, &byte, 1, MSG_PEEK);
    return n > 0 ? LK_SOCKET_OPEN : n == 0 ? LK_SOCKET_HALF : LK_SOCKET_GONE;
}

/* The socket is one that waits; a few bytes fit into its buffer, or the client does not read. */
bool lk_socket_send_at_once(int fd, const char *bytes, size_t n) {
    WSAPOLLFD at = {.fd = (SOCKET)fd, .events = POLLWRNORM};
    if (WSAPoll(&at, 1, 0) <= 0 || !(at.revents & POLLWRNORM)) return false;
    return send((SOCKET)fd, bytes, (int)n, 0) == (int)n;
}

void lk_socket_close(int fd) { closesocket((SOCKET)fd); }

#else

#include <poll.h>
#include <unistd.h>

enum { END_BOTH = SHUT_RDWR };

#ifdef POLLRDHUP

enum lk_socket_state lk_socket_state(int fd) {
    struct pollfd at = {.fd = fd, .events = POLLRDHUP};
    if (poll(&at, 1, 0) <= 0) return LK_SOCKET_OPEN;
    if (at.revents & (POLLHUP | POLLERR | POLLNVAL)) return LK_SOCKET_GONE;
    return at.revents & POLLRDHUP ? LK_SOCKET_HALF : LK_SOCKET_OPEN;
}

#else

enum lk_socket_state lk_socket_state(int fd) {
    char byte;
    struct pollfd at = {.fd = fd, .events = POLLIN};
    if (poll(&at, 1, 0) <= 0) return LK_SOCKET_OPEN;
    if (at.revents & (POLLERR | POLLNVAL)) return LK_SOCKET_GONE;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) return LK_SOCKET_OPEN;
    return n == 0 && !(at.revents & POLLHUP) ? LK_SOCKET_HALF : LK_SOCKET_GONE;
}

#endif

bool lk_socket_send_at_once(int fd, const char *bytes, size_t n) {
    return send(fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

void lk_socket_close(int fd) { close(fd); }

#endif

void lk_socket_shut(int fd) { shutdown(fd, END_BOTH); }

void lk_socket_limit_buffer(int fd, int n) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, (const void *)&n, sizeof n);
}
