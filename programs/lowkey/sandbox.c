/* The sandbox: restricts files with Landlock in every thread, then system calls with seccomp. */
#define _GNU_SOURCE
#include "sandbox.h"

#include "sandbox_filter.h"

#include <stdio.h>

#ifdef __linux__

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- Landlock, as in linux/landlock.h of Linux 6.15: the headers of the machine that builds may
 * be older than the kernel of the machine that runs ---- */

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446 }; /* on all processors */
enum { RULESET_VERSION = 1, RULE_PATH = 1, RULE_PORT = 2 };

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_V1 = (1 << 13) - 1, /* everything that version 1 can refuse */
    FS_REFER = 1 << 13,    /* version 2 */
    FS_TRUNCATE = 1 << 14, /* version 3 */
    FS_IOCTL_DEV = 1 << 15 /* version 5 */
};
enum { NET_BIND_TCP = 1 << 0, NET_CONNECT_TCP = 1 << 1 };     /* version 4 */
enum { SCOPE_ABSTRACT_UNIX = 1 << 0, SCOPE_SIGNAL = 1 << 1 }; /* version 6 */

struct ruleset_attr {
    uint64_t files, net, scoped;
};

struct path_attr {
    uint64_t allowed;
    int32_t folder;
} __attribute__((packed));

struct port_attr {
    uint64_t allowed, port;
};

/* 0: the kernel has no Landlock, or it is disabled. */
static int landlock_abi(void) {
    long abi = syscall(CREATE_RULESET, NULL, 0, RULESET_VERSION);
    return abi > 0 ? (int)abi : 0;
}

static struct ruleset_attr refused_rights(int abi) {
    struct ruleset_attr attr = {.files = FS_V1};
    if (abi >= 2) attr.files |= FS_REFER;
    if (abi >= 3) attr.files |= FS_TRUNCATE;
    if (abi >= 5) attr.files |= FS_IOCTL_DEV;
    if (abi >= 4) attr.net = NET_BIND_TCP | NET_CONNECT_TCP;
    if (abi >= 6) attr.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
    return attr;
}

static lk_status allow_session_dir(int ruleset, uint64_t handled, const char *path, lk_err *err) {
    const uint64_t needed = FS_READ_FILE | FS_WRITE_FILE | FS_READ_DIR | FS_REMOVE_FILE |
                            FS_MAKE_DIR | FS_MAKE_REG | FS_TRUNCATE;
    if (!path) return LK_OK;
    if (mkdir(path, S_IRWXU) != 0 && errno != EEXIST)
        return lk_fail(err, LK_E_IO, "cannot create %s: %s", path, strerror(errno));
    struct path_attr attr = {.allowed = needed & handled,
                             .folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (attr.folder < 0) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    bool added = syscall(ADD_RULE, ruleset, RULE_PATH, &attr, 0) == 0;
    int why = errno;
    close(attr.folder);
    if (added) return LK_OK;
    return lk_fail(err, LK_E_IO, "sandbox: cannot allow %s: %s", path, strerror(why));
}

static lk_status make_ruleset(int abi, const char *session_dir, int port, int *out, lk_err *err) {
    struct ruleset_attr attr = refused_rights(abi);
    size_t size = abi >= 6   ? sizeof attr
                  : abi >= 4 ? offsetof(struct ruleset_attr, scoped)
                             : offsetof(struct ruleset_attr, net);
    int ruleset = (int)syscall(CREATE_RULESET, &attr, size, 0);
    if (ruleset < 0)
        return lk_fail(err, LK_E_IO, "sandbox: cannot create Landlock rules: %s", strerror(errno));
    lk_status status = allow_session_dir(ruleset, attr.files, session_dir, err);
    struct port_attr bind = {NET_BIND_TCP, (uint64_t)port};
    if (!status && attr.net && syscall(ADD_RULE, ruleset, RULE_PORT, &bind, 0) != 0)
        status = lk_fail(err, LK_E_IO, "sandbox: cannot allow port %d: %s", port, strerror(errno));
    if (!status)
        *out = ruleset;
    else
        close(ruleset);
    return status;
}

/* ---- all threads ---- */

/* Landlock restricts the calling thread and the threads that it starts later. So every other thread
 * receives a signal, whose handler restricts it. */
struct entry {
    int ruleset;
    sem_t entered;
    atomic_int n_failed;
};

static bool restrict_thread(int ruleset) {
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(RESTRICT_SELF, ruleset, 0) == 0;
}

static void on_enter_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    if (info->si_code != SI_QUEUE || info->si_pid != getpid()) return;
    struct entry *entry = info->si_value.sival_ptr;
    int saved = errno;
    if (!restrict_thread(entry->ruleset)) atomic_fetch_add(&entry->n_failed, 1);
    sem_post(&entry->entered);
    errno = saved;
}

/* Signal every thread but the calling one. Returns their number, or -1. */
static int signal_threads(struct entry *entry, int number) {
    pid_t process = getpid(), caller = (pid_t)syscall(__NR_gettid);
    siginfo_t info = {.si_signo = number, .si_code = SI_QUEUE};
    info.si_pid = process;
    info.si_uid = getuid();
    info.si_value.sival_ptr = entry;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return -1;
    int n = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        pid_t thread = (pid_t)strtol(task->d_name, NULL, 10);
        if (thread > 0 && thread != caller &&
            syscall(__NR_rt_tgsigqueueinfo, process, thread, number, &info) == 0)
            n++;
    }
    closedir(tasks);
    return n;
}

static lk_status wait_for_threads(struct entry *entry, int n, lk_err *err) {
    enum { WAIT_S = 10 };
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_S;
    for (int i = 0; i < n; i++) {
        while (sem_timedwait(&entry->entered, &end) != 0)
            if (errno != EINTR)
                return lk_fail(err, LK_E_IO, "sandbox: a thread did not enter within %d seconds",
                               WAIT_S);
    }
    if (atomic_load(&entry->n_failed))
        return lk_fail(err, LK_E_IO, "sandbox: a thread could not be restricted");
    return LK_OK;
}

static lk_status restrict_all_threads(int ruleset, lk_err *err) {
    struct sigaction action = {.sa_sigaction = on_enter_signal,
                               .sa_flags = SA_SIGINFO | SA_RESTART},
                     old;
    int number = SIGRTMAX - 1;
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot enter the sandbox");
    entry->ruleset = ruleset;
    sem_init(&entry->entered, 0, 0);
    sigaction(number, &action, &old);
    int n = signal_threads(entry, number);
    lk_status status = n < 0
                           ? lk_fail(err, LK_E_IO, "sandbox: cannot list the threads in /proc: %s",
                                     strerror(errno))
                           : wait_for_threads(entry, n, err);
    /* On failure the signal may still be pending in a thread: keep its handler and the entry. */
    if (status) return status;
    sigaction(number, &old, NULL);
    sem_destroy(&entry->entered);
    free(entry);
    if (!restrict_thread(ruleset))
        return lk_fail(err, LK_E_IO, "sandbox: cannot restrict the process: %s", strerror(errno));
    return LK_OK;
}

/* ---- the steps ---- */

lk_status sandbox_enter(struct sandbox *out, const char *session_dir, int port, lk_err *err) {
    struct sandbox active = {.landlock_abi = landlock_abi()};
    int ruleset = -1;
    if (active.landlock_abi) {
        lk_status status = make_ruleset(active.landlock_abi, session_dir, port, &ruleset, err);
        if (status) return status;
        status = restrict_all_threads(ruleset, err);
        close(ruleset);
        if (status) return status;
    }
    lk_status status = sandbox_filter_calls(err);
    active.filter = !status;
    if (status && status != LK_E_UNSUPPORTED) return status;
    if (!active.landlock_abi && !active.filter)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "--sandbox requires a kernel with Landlock or seccomp; this one has neither");
    *out = active;
    return LK_OK;
}

lk_status sandbox_seal(const struct sandbox *sandbox, lk_err *err) {
    return sandbox->filter ? sandbox_filter_sockets(err) : LK_OK;
}

#else

lk_status sandbox_enter(struct sandbox *out, const char *session_dir, int port, lk_err *err) {
    (void)out;
    (void)session_dir;
    (void)port;
    return lk_fail(err, LK_E_UNSUPPORTED, "--sandbox requires Linux");
}

lk_status sandbox_seal(const struct sandbox *sandbox, lk_err *err) {
    (void)sandbox;
    (void)err;
    return LK_OK;
}

#endif

char *sandbox_describe(const struct sandbox *sandbox, char line[SANDBOX_LINE]) {
    char files[64] = "files are not restricted (no Landlock)";
    int abi = sandbox->landlock_abi;
    if (abi)
        snprintf(files, sizeof files, "files of the session directory only (Landlock %d)", abi);
    snprintf(line, SANDBOX_LINE, "sandbox: %s, %s, %s", files,
             sandbox->filter ? "no new sockets"
             : abi >= 4      ? "no outgoing TCP"
                             : "any network",
             sandbox->filter ? "system calls filtered" : "all system calls (no seccomp)");
    return line;
}
