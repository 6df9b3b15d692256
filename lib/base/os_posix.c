/* Linux and macOS. If macOS lacks something, its part stands next to the one for Linux. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/clock.h"
#include "base/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/random.h>
#include <sys/sysctl.h>
#endif

extern char **environ;

/* ---- files ---- */

int lk_os_open(const char *path, int access, int mode) {
    int flags = O_CLOEXEC;
    if (access & LK_OS_WRITE)
        flags |= access & LK_OS_READ ? O_RDWR : O_WRONLY;
    else
        flags |= O_RDONLY;
    if (access & LK_OS_CREATE) flags |= O_CREAT;
    if (access & LK_OS_NEW) flags |= O_EXCL;
    if (access & LK_OS_NO_LINK) flags |= O_NOFOLLOW;
    if (access & LK_OS_AT_ONCE) flags |= O_NONBLOCK;
    if (access & LK_OS_APPEND) flags |= O_APPEND;
    return open(path, flags, mode);
}

FILE *lk_os_open_to_read(const char *path) { return fopen(path, "rbe"); }

int lk_os_restrict(int fd, int mode) {
    struct stat info;
    if (fstat(fd, &info)) return -1;
    return fchmod(fd, (mode_t)mode & (info.st_mode | S_IRUSR | S_IWUSR));
}

ptrdiff_t lk_os_read_at(int fd, void *data, size_t size, uint64_t offset) {
    return pread(fd, data, size, (off_t)offset);
}

ptrdiff_t lk_os_write_at(int fd, const void *data, size_t size, uint64_t offset) {
    return pwrite(fd, data, size, (off_t)offset);
}

int lk_os_lock(int fd) {
    int failed;
    do failed = flock(fd, LOCK_EX | LOCK_NB);
    while (failed && errno == EINTR);
    return failed;
}

int lk_os_sync(int fd) { return fsync(fd); }

int lk_os_open_folder(const char *path) { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

int lk_os_replace(const char *from, const char *to) { return rename(from, to); }

int lk_os_make_folder(const char *path, bool is_private) {
    return mkdir(path, is_private ? S_IRWXU : 0777);
}

char *lk_os_real_path(const char *path) { return realpath(path, NULL); }

bool lk_os_is_own(unsigned mode, unsigned owner) {
    return owner == geteuid() && !(mode & (S_IWGRP | S_IWOTH));
}

bool lk_os_is_private(unsigned mode, unsigned owner) {
    return owner == geteuid() && (mode & (S_IRWXG | S_IRWXO)) == 0;
}

static int64_t to_nanoseconds(struct timespec t) {
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool lk_os_file_info(const char *path, uint64_t *size, int64_t *time) {
    struct stat info;
    if (lstat(path, &info) != 0) return false;
    if (!S_ISREG(info.st_mode)) {
        errno = EINVAL;
        return false;
    }
    *size = (uint64_t)info.st_size;
#ifdef __APPLE__
    *time = to_nanoseconds(info.st_mtimespec);
#else
    *time = to_nanoseconds(info.st_mtim);
#endif
    return true;
}

bool lk_os_is_same_file(const char *a, const char *b) {
    struct stat x, y;
    if (stat(a, &x) != 0 || stat(b, &y) != 0) return errno != ENOENT && errno != ENOTDIR;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void lk_os_touch(const char *path) { utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW); }

int64_t lk_os_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return to_nanoseconds(now);
}

bool lk_os_can_run(const char *path) { return access(path, X_OK) == 0; }

const char *lk_os_temporary_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}

bool lk_os_is_absolute(const char *path) { return *path == '/'; }

char *lk_os_last_slash(const char *path) { return strrchr(path, '/'); }

const char *lk_os_home(void) { return getenv("HOME"); }

const char lk_os_null_device[] = "/dev/null";

/* ---- memory ---- */

size_t lk_os_page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *lk_os_aligned_alloc(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }

void lk_os_aligned_free(void *ptr) { free(ptr); }

static void *map_pages(size_t size, int protection, int flags, int fd) {
    void *pages = mmap(NULL, size, protection, MAP_PRIVATE | flags, fd, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void *lk_os_map_file(int fd, size_t size) { return map_pages(size, PROT_READ, 0, fd); }

void *lk_os_map_zeros(size_t size) {
    return map_pages(size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
}

void *lk_os_reserve(size_t size) {
    return map_pages(size, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

bool lk_os_allow(void *pages, size_t size, bool allow) {
    return mprotect(pages, size, allow ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
}

void lk_os_unmap(void *pages, size_t size) { munmap(pages, size); }

void lk_os_discard(void *pages, size_t size) { madvise(pages, size, MADV_DONTNEED); }

void lk_os_advise_huge(void *pages, size_t size) {
#ifdef MADV_HUGEPAGE
    madvise(pages, size, MADV_HUGEPAGE);
#else
    (void)pages, (void)size;
#endif
}

/* ---- processors and threads ---- */

int lk_os_cpus_online(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* Linux: the affinity mask. The kernel refuses sets that are smaller than its own. */
int lk_os_cpus_allowed(void) {
    int n = 0;
#ifdef __linux__
    enum { MIN_CPU = 1024, MAX_CPU = 1 << 16 };
    for (size_t size = MIN_CPU; n == 0 && size <= MAX_CPU; size *= 4) {
        cpu_set_t *set = CPU_ALLOC(size);
        if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(size), set) == 0)
            n = CPU_COUNT_S(CPU_ALLOC_SIZE(size), set);
        CPU_FREE(set);
    }
#endif
    return n;
}

struct stack_call {
    void (*fn)(void *arg);
    void *arg;
};

static void *run_call(void *p) {
    struct stack_call *call = p;
    call->fn(call->arg);
    return NULL;
}

#ifndef MAP_STACK
#define MAP_STACK 0
#endif

bool lk_os_run_with_stack(void (*fn)(void *arg), void *arg, size_t size) {
    enum { GUARD = 1 << 16 }; /* inaccessible, so that a stack overflow faults */
    size = (size + 2 * GUARD - 1) / GUARD * GUARD;
    char *memory =
        map_pages(size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1);
    if (!memory) return false;
    struct stack_call call = {fn, arg};
    pthread_attr_t attr;
    pthread_t thread;
    bool ran = false;
    if (mprotect(memory, GUARD, PROT_NONE) == 0 && pthread_attr_init(&attr) == 0) {
        ran = pthread_attr_setstack(&attr, memory + GUARD, size - GUARD) == 0 &&
              pthread_create(&thread, &attr, run_call, &call) == 0;
        if (ran) pthread_join(thread, NULL);
        pthread_attr_destroy(&attr);
    }
    munmap(memory, size);
    return ran;
}

void lk_os_run_without_signals(void (*fn)(void *arg), void *arg) {
    static const int signals[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,
                                  SIGALRM, SIGCHLD, SIGUSR1, SIGUSR2};
    sigset_t blocked, before;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&blocked, signals[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    fn(arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void lk_os_lower_priority(int nice) {
#ifdef __linux__
    setpriority(PRIO_PROCESS, 0, nice); /* of the calling thread */
#else
    (void)nice;
#endif
}

static struct timespec to_timespec(double seconds) {
    return (struct timespec){(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
}

bool lk_os_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr)) return false;
#ifndef __APPLE__
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
#endif
    bool good = pthread_cond_init(cond, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return good;
}

bool lk_os_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double end) {
#ifdef __APPLE__
    double left = end - lk_now();
    struct timespec time = to_timespec(left > 0 ? left : 0);
    return pthread_cond_timedwait_relative_np(cond, lock, &time) != ETIMEDOUT;
#else
    struct timespec time = to_timespec(end);
    return pthread_cond_timedwait(cond, lock, &time) != ETIMEDOUT;
#endif
}

void lk_os_sleep(double seconds) {
    struct timespec time = to_timespec(seconds);
    nanosleep(&time, NULL);
}

#ifdef __linux__

void lk_os_wait_on(int *value, int old) {
    syscall(SYS_futex, value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
}

void lk_os_wake(int *value) {
    syscall(SYS_futex, value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

void lk_os_wait_on(int *value, int old) {
    (void)value, (void)old;
    lk_os_sleep(20e-6);
}

void lk_os_wake(int *value) { (void)value; }

#endif

/* ---- the program ---- */

bool lk_os_program_path(char *out, size_t cap) {
#ifdef __APPLE__
    uint32_t size = (uint32_t)cap;
    return _NSGetExecutablePath(out, &size) == 0;
#else
    ssize_t n = readlink("/proc/self/exe", out, cap);
    if (n <= 0 || (size_t)n == cap) return false; /* unknown, or cut off */
    out[n] = 0;
    return true;
#endif
}

bool lk_os_code_path(const void *code, char *out, size_t cap) {
    Dl_info info;
    if (!dladdr(code, &info) || !info.dli_fname) return false;
    return (size_t)snprintf(out, cap, "%s", info.dli_fname) < cap;
}

void *lk_os_load(const char *path, char *why, size_t cap) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) snprintf(why, cap, "%s", dlerror());
    return library;
}

void *lk_os_symbol(void *library, const char *name) { return dlsym(library, name); }

int lk_os_run_program(char *const argv[], bool to_stderr, int *failed) {
    posix_spawn_file_actions_t actions;
    pid_t child, ended;
    int status = 0;
    *failed = posix_spawn_file_actions_init(&actions) ? ENOMEM : 0;
    if (*failed) return -1;
    /* If SIGCHLD is ignored, as after lk_os_start_self, waitpid() loses the status. */
    struct sigaction before, standard = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &standard, &before);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, lk_os_null_device, O_RDONLY, 0);
    if (to_stderr) posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    *failed = posix_spawn(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (!*failed) {
        while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) continue;
        if (ended < 0) *failed = errno;
    }
    sigaction(SIGCHLD, &before, NULL);
    return !*failed && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool lk_os_start_self(char *const argv[]) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    pid_t child;
#ifdef __linux__
    const char *self = "/proc/self/exe";
#else
    char self[4096];
    if (!lk_os_program_path(self, sizeof self)) return false;
#endif
    posix_spawn_file_actions_init(&actions);
    for (int fd = 0; fd < 3; fd++)
        posix_spawn_file_actions_addopen(&actions, fd, lk_os_null_device, fd ? O_WRONLY : O_RDONLY,
                                         0);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    bool started = posix_spawn(&child, self, &actions, &attr, argv, environ) == 0;
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (started) signal(SIGCHLD, SIG_IGN);
    return started;
}

void lk_os_stay_in_background(void) {
    setpriority(PRIO_PROCESS, 0, 19);
#ifdef SCHED_IDLE
    sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
#endif
}

bool lk_os_process_runs(int64_t pid) { return kill((pid_t)pid, 0) == 0 || errno != ESRCH; }

bool lk_os_load_average(double *load) { return getloadavg(load, 1) == 1; }

bool lk_os_random(void *out, size_t size) {
#ifdef __linux__
    return getrandom(out, size, 0) == (ssize_t)size;
#else
    return getentropy(out, size) == 0;
#endif
}

uint64_t lk_os_resident_bytes(void) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    int n = fscanf(file, "%llu %llu", &total, &resident);
    fclose(file);
    return n == 2 ? resident * (uint64_t)lk_os_page_size() : 0;
}

uint64_t lk_os_peak_bytes(void) {
    struct rusage use;
    if (getrusage(RUSAGE_SELF, &use)) return 0;
#ifdef __APPLE__
    return (uint64_t)use.ru_maxrss;
#else
    return (uint64_t)use.ru_maxrss * 1024;
#endif
}

uint64_t lk_os_free_bytes(void) {
#ifdef __APPLE__
    vm_statistics64_data_t stat;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&stat, &n)) return 0;
    return ((uint64_t)stat.free_count + stat.inactive_count) * lk_os_page_size();
#else
    return 0;
#endif
}

void lk_os_cpu_name(char *name, size_t cap) {
    snprintf(name, cap, "unknown");
#ifdef __APPLE__
    size_t len = cap;
    if (sysctlbyname("machdep.cpu.brand_string", name, &len, NULL, 0))
        snprintf(name, cap, "unknown");
#else
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(name, cap, "%s", value);
        break;
    }
    if (file) fclose(file);
#endif
}

/* ---- the terminal ---- */

int lk_os_terminal_columns(FILE *file) {
    struct winsize size;
    return ioctl(fileno(file), TIOCGWINSZ, &size) ? 0 : size.ws_col;
}

int lk_os_char_columns(uint32_t code) { return wcwidth((wchar_t)code); }

bool lk_os_locale_is_utf8(void) { return strcmp(nl_langinfo(CODESET), "UTF-8") == 0; }

/* LC_CTYPE only: numbers are read and printed with a decimal point in every locale. */
void lk_os_use_utf8(void) {
    setlocale(LC_CTYPE, "");
    if (!lk_os_locale_is_utf8()) setlocale(LC_CTYPE, "C.UTF-8");
}

/* ---- texts ---- */

void *lk_os_memmem(const void *in, size_t len, const void *what, size_t n) {
    return memmem(in, len, what, n);
}

char *lk_os_strcasestr(const char *in, const char *what) { return strcasestr(in, what); }

ptrdiff_t lk_os_getline(char **line, size_t *cap, FILE *file) { return getline(line, cap, file); }
