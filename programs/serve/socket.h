/* Sockets, which libmicrohttpd opens: what the server does with them itself, on each system. */
#ifndef LK_SERVE_SOCKET_H
#define LK_SERVE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

#ifdef _WIN32
#include <winsock2.h> /* before windows.h */
#include <ws2tcpip.h>
#else
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#endif

enum lk_socket_state {
    LK_SOCKET_OPEN,
    LK_SOCKET_HALF, /* the client will send nothing more; it may still read */
    LK_SOCKET_GONE
};

/* What is known about the client, without waiting. */
enum lk_socket_state lk_socket_state(int fd);

/* Send all bytes without waiting. False if that is not possible. */
bool lk_socket_send_at_once(int fd, const char *bytes, size_t n);

/* End both directions. Threads that wait for the socket wake up. */
void lk_socket_shut(int fd);

void lk_socket_close(int fd);

/* Limit what the system holds of unsent bytes. */
void lk_socket_limit_buffer(int fd, int n);

#endif
