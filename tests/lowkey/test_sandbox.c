/* The sandbox, from inside: what a process that has entered it can still do, in a thread that
 * existed before and in one that starts afterwards. */
#define _GNU_SOURCE
#include "sandbox.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[] = "/tmp/lowkey-sandbox-XXXXXX";
static char session_dir[100], outside[100];

/* ---- what is tried; each returns 0 or an errno ---- */

static int result_of(long status) { return status < 0 ? errno : 0; }

static int open_and_close(const char *path, int flags) {
    int fd = open(path, flags, 0600);
    int result = result_of(fd);
    if (fd >= 0) close(fd);
    return result;
}

static int try_read_passwd(void) { return open_and_close("/etc/passwd", O_RDONLY); }
static int try_read_proc(void) { return open_and_close("/proc/self/mem", O_RDONLY); }
static int try_read_outside(void) { return open_and_close(outside, O_RDONLY); }
static int try_truncate_outside(void) { return result_of(truncate(outside, 0)); }
static int try_chmod_outside(void) { return result_of(chmod(outside, 0666)); }
static int try_create_outside(void) {
    char path[120];
    snprintf(path, sizeof path, "%s-new", outside);
    return open_and_close(path, O_WRONLY | O_CREAT);
}
static int try_link_into(void) {
    char path[120];
    snprintf(path, sizeof path, "%s/link", session_dir);
    return result_of(link(outside, path));
}
static int try_exec(void) {
    char name[] = "/bin/true";
    char *argv[] = {name, NULL}, *env[] = {NULL};
    return result_of(execve(name, argv, env));
}
static int try_fork(void) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    return result_of(child);
}
static int try_code(void) {
    void *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? errno : 0;
}
static int try_protect(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? 0 : result_of(mprotect(page, 4096, PROT_READ | PROT_EXEC));
}
static int try_ptrace(void) { return result_of(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL)); }
static int try_signal(void) { return result_of(kill(getppid(), 0)); }
static int try_setuid(void) { return result_of(setresuid(1, 1, 1)); }
static int try_unshare(void) { return result_of(syscall(SYS_unshare, 0x10000000)); } /* a user */
static int try_terminal(void) { return result_of(ioctl(0, TIOCSTI, "x")); }
static int try_io_uring(void) {
    char params[120] = {0};
    return result_of(syscall(SYS_io_uring_setup, 1, params));
}
static int try_socket(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    int result = result_of(fd);
    if (fd >= 0) close(fd);
    return result;
}
/* A socket that exists already, given as the number of its descriptor. */
static int open_socket = -1, listener_port;
static int try_connect(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)listener_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return result_of(connect(open_socket, (struct sockaddr *)&to, sizeof to));
}
static int try_fast_open(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)listener_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return result_of(sendto(open_socket, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to));
}
static int try_bind(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return result_of(bind(open_socket, (struct sockaddr *)&to, sizeof to));
}

enum part { FILES, CALLS };
static const struct attempt {
    const char *name;
    int (*run)(void);
    enum part part; /* who refuses it: Landlock, or seccomp */
    int expected;
} attempts[] = {
    {"read /etc/passwd", try_read_passwd, FILES, EACCES},
    {"read /proc/self/mem", try_read_proc, FILES, EACCES},
    {"read a file of the same user", try_read_outside, FILES, EACCES},
    {"create a file", try_create_outside, FILES, EACCES},
    {"link a file into the directory", try_link_into, FILES, EXDEV},
    {"truncate a file of the same user", try_truncate_outside, CALLS, EPERM},
    {"change the mode of a file", try_chmod_outside, CALLS, EPERM},
    {"execute a program", try_exec, CALLS, EPERM},
    {"fork", try_fork, CALLS, EPERM},
    {"map executable memory", try_code, CALLS, EPERM},
    {"make memory executable", try_protect, CALLS, EPERM},
    {"trace the parent", try_ptrace, CALLS, EPERM},
    {"signal the parent", try_signal, CALLS, EPERM},
    {"change the user", try_setuid, CALLS, EPERM},
    {"enter a user namespace", try_unshare, CALLS, EPERM},
    {"type into the terminal", try_terminal, CALLS, EPERM},
    {"io_uring", try_io_uring, CALLS, EPERM},
    {"open a socket", try_socket, CALLS, EPERM},
    {"connect", try_connect, CALLS, EPERM},
    {"connect by sending", try_fast_open, CALLS, EPERM},
    {"bind", try_bind, CALLS, EPERM},
};

/* ---- the process in the sandbox ---- */

/* Descriptor of the pipe that gets the lines of failures. */
static int report_to;

static void report(const char *who, const char *what, int result) {
    dprintf(report_to, "%s: %s: %s\n", who, what, result ? strerror(result) : "not refused");
}

static void try_everything(const char *who, const struct sandbox *active) {
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        const struct attempt *a = &attempts[i];
        if (a->part == FILES ? !active->landlock_abi : !active->filter) continue;
        int result = a->run();
        if (result != a->expected) report(who, a->name, result);
    }
}

/* What the server does with its directory. */
static void use_session_dir(const char *who) {
    char from[120], to[120], sub[120];
    int thread = (int)syscall(SYS_gettid); /* the threads do this at the same time */
    snprintf(from, sizeof from, "%s/%d.new", session_dir, thread);
    snprintf(to, sizeof to, "%s/%d", session_dir, thread);
    snprintf(sub, sizeof sub, "%s/store", session_dir);
    int fd = open(from, O_RDWR | O_CREAT, 0600);
    bool good = fd >= 0 && write(fd, "x", 1) == 1 && ftruncate(fd, 0) == 0 && fsync(fd) == 0 &&
                fchmod(fd, 0600) == 0 && futimens(fd, NULL) == 0 && rename(from, to) == 0 &&
                open_and_close(to, O_RDONLY) == 0 && (mkdir(sub, 0700) == 0 || errno == EEXIST) &&
                open_and_close(session_dir, O_RDONLY | O_DIRECTORY) == 0 && unlink(to) == 0;
    if (!good) report(who, "use the session directory", errno);
    if (fd >= 0) close(fd);
}

struct worker {
    pthread_t thread;
    sem_t go;
    struct sandbox active;
    const char *who;
};

static void *run_worker(void *data) {
    struct worker *w = data;
    while (sem_wait(&w->go) != 0) {} /* a signal interrupts it */
    try_everything(w->who, &w->active);
    use_session_dir(w->who);
    return NULL;
}

static void start_worker(struct worker *w, const char *who) {
    w->who = who;
    sem_init(&w->go, 0, 0);
    if (pthread_create(&w->thread, NULL, run_worker, w)) report(who, "start", EAGAIN);
}

static int listen_on_any_port(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return -1;
    *port = ntohs(address.sin_port);
    return fd;
}

/* Enter, listen, seal, then try everything in three threads, and accept a connection. */
static void run_in_sandbox(int port_to) {
    struct worker before = {0}, after = {0};
    struct sandbox active = {0};
    lk_err err = {0};
    start_worker(&before, "a thread from before");
    open_socket = socket(AF_INET, SOCK_STREAM, 0);
    if (sandbox_enter(&active, session_dir, 0, &err) != LK_OK) {
        dprintf(report_to, "sandbox_enter: %s\n", err.msg);
        return;
    }
    int listener = listen_on_any_port(&listener_port);
    if (listener < 0) report("the main thread", "listen before sandbox_seal", errno);
    if (sandbox_seal(&active, &err) != LK_OK) dprintf(report_to, "sandbox_seal: %s\n", err.msg);
    start_worker(&after, "a later thread");
    before.active = after.active = active;
    try_everything("the main thread", &active);
    sem_post(&before.go);
    sem_post(&after.go);
    pthread_join(before.thread, NULL);
    pthread_join(after.thread, NULL);
    if (write(port_to, &listener_port, sizeof listener_port) < 0) return;
    int connection = accept(listener, NULL, NULL);
    if (connection < 0 || send(connection, "hello", 5, 0) != 5)
        report("the main thread", "accept and answer", errno);
}

static int connect_to(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void test_rights(void **state) {
    int lines[2], ports[2], port = 0;
    char text[4000] = "", hello[8] = "";
    assert_int_equal(pipe(lines), 0);
    assert_int_equal(pipe(ports), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        report_to = lines[1];
        run_in_sandbox(ports[1]);
        _exit(0);
    }
    close(lines[1]);
    close(ports[1]);
    if (read(ports[0], &port, sizeof port) == sizeof port) {
        int fd = connect_to(port);
        ssize_t n = recv(fd, hello, sizeof hello - 1, 0);
        close(fd);
        assert_int_equal(n, 5);
    }
    size_t used = 0;
    for (ssize_t n; (n = read(lines[0], text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(lines[0]);
    close(ports[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (strstr(text, "has neither")) skip();
    assert_string_equal(text, "");
    assert_int_equal(status, 0);
    assert_int_not_equal(port, 0);
}

/* The attempts are real: most of them succeed outside. */
static void test_outside(void **state) {
    assert_int_equal(try_read_passwd(), 0);
    assert_int_equal(try_read_outside(), 0);
    assert_int_equal(try_fork(), 0);
    assert_int_equal(try_socket(), 0);
    assert_int_equal(try_signal(), 0);
    int listener = listen_on_any_port(&listener_port);
    open_socket = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(try_connect(), 0);
    close(open_socket);
    close(listener);
}

static void test_messages(void **state) {
    char line[SANDBOX_LINE];
    const struct sandbox all = {7, true}, files = {3, false}, calls = {0, true};
    assert_string_equal(
        sandbox_describe(&all, line),
        "sandbox: files of the session directory only (Landlock 7), no new sockets, "
        "system calls filtered");
    assert_string_equal(sandbox_describe(&files, line),
                        "sandbox: files of the session directory only (Landlock 3), any network, "
                        "all system calls (no seccomp)");
    assert_string_equal(sandbox_describe(&calls, line),
                        "sandbox: files are not restricted (no Landlock), no new sockets, system "
                        "calls filtered");
}

/* A directory that cannot be made is an error, before anything is restricted. */
static void test_no_directory(void **state) {
    struct sandbox active;
    lk_err err = {0};
    if (syscall(444, NULL, 0, 1) < 1) skip();
    assert_int_equal(sandbox_enter(&active, "/nowhere/sessions", 0, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, "/nowhere/sessions"));
    assert_int_equal(try_read_passwd(), 0);
}

static int make_files(void **state) {
    if (!mkdtemp(root)) return -1;
    snprintf(session_dir, sizeof session_dir, "%s/sessions", root);
    snprintf(outside, sizeof outside, "%s/outside", root);
    return open_and_close(outside, O_WRONLY | O_CREAT);
}

static int remove_files(void **state) {
    char command[120];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outside),
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_no_directory),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
