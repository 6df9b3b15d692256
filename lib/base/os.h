/* What the tree needs of an operating system beyond C11 and POSIX threads. os_posix.c is for Linux
 * and macOS, os_windows.c for Windows. Files use no system calls of their own, but for what only
 * exists on one system and is compiled only there.
 *
 * Functions that return int as a status return 0, or -1 with errno set. Paths are UTF-8; on Windows
 * the program's manifest makes the C library read them so (Windows 10, version 1903). */
#ifndef LK_BASE_OS_H
#define LK_BASE_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- files ---- */

enum lk_os_access {
    LK_OS_READ = 1,
    LK_OS_WRITE = 2,
    LK_OS_CREATE = 4,   /* if it is missing */
    LK_OS_NEW = 8,      /* with CREATE: fail if it exists */
    LK_OS_NO_LINK = 16, /* fail if it is a symbolic link; no effect on Windows */
    LK_OS_AT_ONCE = 32, /* do not wait for the writer of a named pipe; no effect on Windows */
    LK_OS_APPEND = 64,  /* each write goes to the end */
};

/* Open a file for binary data. Child processes do not inherit it. `access`: bits; `mode`: POSIX
 * permissions of a new file, which Windows ignores. Returns a descriptor or -1. A file that is open
 * can be replaced and removed on all systems. */
int lk_os_open(const char *path, int access, int mode);

/* As fopen for reading binary data; child processes do not inherit it. */
FILE *lk_os_open_to_read(const char *path);

/* Take permissions that are not in `mode` from a file, except that its owner can read
 * and write it. Windows: no effect. */
int lk_os_restrict(int fd, int mode);

/* Read or write at an offset, as pread and pwrite. Windows moves the descriptor's position. */
ptrdiff_t lk_os_read_at(int fd, void *data, size_t size, uint64_t offset);
ptrdiff_t lk_os_write_at(int fd, const void *data, size_t size, uint64_t offset);

/* Lock a file for this process without waiting; closing it unlocks. EWOULDBLOCK: another process
 * has the lock. */
int lk_os_lock(int fd);

/* Wait until the data of a file, or the names in a folder, are on disk. EINVAL or ENOTSUP if that
 * is impossible, as for folders on Windows. */
int lk_os_sync(int fd);

/* A descriptor of the folder `path`, for lk_os_sync. Windows has none for folders: an unrelated
 * one, if the folder exists. */
int lk_os_open_folder(const char *path);

/* Rename a file, replacing `to` in one step. */
int lk_os_replace(const char *from, const char *to);

/* Make a folder that only its owner may use (`is_private`), or as the umask says. Windows: the
 * permissions of its parent. */
int lk_os_make_folder(const char *path, bool is_private);

/* The absolute path without links: free it. NULL with errno. */
char *lk_os_real_path(const char *path);

/* Is the user of this process the owner of the file, and can no other user write to it (is_own), or
 * use it at all (is_private)? `mode` and `owner` as in struct stat. Windows: always true, because
 * its access lists are not read. */
bool lk_os_is_own(unsigned mode, unsigned owner);
bool lk_os_is_private(unsigned mode, unsigned owner);

/* A regular file that is not a link: its size, and when it was written, in nanoseconds since 1970.
 * False if there is none, with errno. */
bool lk_os_file_info(const char *path, uint64_t *size, int64_t *time);

/* Whether both paths are the same file, or may be: one is there and cannot be looked at. */
bool lk_os_is_same_file(const char *a, const char *b);

/* Set that time of a file, which is not a link, to now. A failure is ignored. */
void lk_os_touch(const char *path);

/* The time of day in nanoseconds since 1970. */
int64_t lk_os_time(void);

/* A program that this process may run. Windows: a file that can be read. */
bool lk_os_can_run(const char *path);

/* The folder for temporary files: $TMPDIR, or what the system has. */
const char *lk_os_temporary_folder(void);

/* Is the path absolute? Windows: "C:/..." or "//...", with either slash. */
bool lk_os_is_absolute(const char *path);

/* The last slash of a path; on Windows the last slash or backslash. NULL: none. */
char *lk_os_last_slash(const char *path);

/* The user's home folder: $HOME, or on Windows $USERPROFILE if that is not set. NULL: none. */
const char *lk_os_home(void);

/* The name of the device that reads nothing and drops what is written. */
extern const char lk_os_null_device[];

/* ---- memory ---- */

size_t lk_os_page_size(void);

/* `size` bytes with this alignment, a power of two, for lk_os_aligned_free. NULL: no memory. */
void *lk_os_aligned_alloc(size_t alignment, size_t size);
void lk_os_aligned_free(void *ptr);

/* Map `size` bytes of a file for reading. NULL with errno. */
void *lk_os_map_file(int fd, size_t size);

/* Pages of zeros. NULL: no memory. */
void *lk_os_map_zeros(size_t size);

/* Address space without memory: no access is allowed. NULL: no memory. */
void *lk_os_reserve(size_t size);

/* Allow or forbid all access to reserved pages. They keep their values, which are zero at first. */
bool lk_os_allow(void *pages, size_t size, bool allow);

/* Give back what the three functions above returned. `size` as there. */
void lk_os_unmap(void *pages, size_t size);

/* The values of whole pages are not needed: pages of a file are read again, others may become zero.
 * Windows: no effect. */
void lk_os_discard(void *pages, size_t size);

/* Ask for huge pages. No effect on other systems than Linux. */
void lk_os_advise_huge(void *pages, size_t size);

/* ---- processors and threads ---- */

/* Processors of the system, and how many of them this process may use (0: unknown). */
int lk_os_cpus_online(void);
int lk_os_cpus_allowed(void);

/* Run fn(arg), which may recurse deeper than the caller's stack allows, on a new thread with a
 * stack of `size` bytes, and wait for it. Only touched pages of the stack take memory. False if the
 * system refuses the memory or the thread; fn has not run then. */
bool lk_os_run_with_stack(void (*fn)(void *arg), void *arg, size_t size);

/* Run fn(arg). Threads that it starts never receive signals that a program may wait for: HUP, INT,
 * QUIT, TERM, ALRM, CHLD, USR1, USR2. Windows has no such signals. */
void lk_os_run_without_signals(void (*fn)(void *arg), void *arg);

/* Lower the priority of this thread, where threads have one of their own: Linux, 1 to 19. */
void lk_os_lower_priority(int nice);

/* A condition for lk_os_wait_until. */
bool lk_os_cond_init(pthread_cond_t *cond);

/* As pthread_cond_timedwait, until lk_now() is `end`. False when that time has passed. */
bool lk_os_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double end);

void lk_os_sleep(double seconds);

/* Sleep while *value is `old`. May return early. Another thread changes it, then calls lk_os_wake,
 * which wakes all. macOS: sleeps for a short time. */
void lk_os_wait_on(int *value, int old);
void lk_os_wake(int *value);

/* ---- the program ---- */

/* The path of the running program. False if the system does not say, or it does not fit. */
bool lk_os_program_path(char *out, size_t cap);

/* The file that contains this code: a shared library or the program. False: as above. */
bool lk_os_code_path(const void *code, char *out, size_t cap);

/* Load a shared library for good, and find a symbol in it (NULL: none). NULL with a reason in `why`
 * if it cannot be loaded. */
void *lk_os_load(const char *path, char *why, size_t cap);
void *lk_os_symbol(void *library, const char *name);

/* Run a program with the null device as its input and, with `to_stderr`, our standard error as its
 * output, and wait for it, on one thread at a time: SIGCHLD has its default effect meanwhile.
 * *failed is an errno value, or 0. Returns its exit status, -1 if it was ended otherwise. */
int lk_os_run_program(char *const argv[], bool to_stderr, int *failed);

/* Start this program in the background, with the null device as input and output, out of reach of
 * the terminal's Ctrl-C. Its status is of no use. False if that failed. */
bool lk_os_start_self(char *const argv[]);

/* Run only when nothing else wants to, from now on: the lowest priority. */
void lk_os_stay_in_background(void);

bool lk_os_process_runs(int64_t pid);

/* Processes that ran or waited to run in the last minute, on average. False: unknown (Windows). */
bool lk_os_load_average(double *load);

/* Draw random bytes. False if the system has none. */
bool lk_os_random(void *out, size_t size);

/* Memory that this process holds now and held at most, in bytes; 0: unknown. */
uint64_t lk_os_resident_bytes(void);
uint64_t lk_os_peak_bytes(void);

/* Memory that programs can get without swapping, in bytes. 0: unknown, as on Linux, where
 * /proc/meminfo and control groups say it (programs/lowkey/available.h). */
uint64_t lk_os_free_bytes(void);

/* The processor's name, "unknown" if the system does not say. */
void lk_os_cpu_name(char *name, size_t cap);

/* ---- the terminal ---- */

/* Columns of the terminal that `file` is; 0: unknown. */
int lk_os_terminal_columns(FILE *file);

/* Columns that a character takes; -1: it is not printable. */
int lk_os_char_columns(uint32_t code);

/* At the start of a program: set the locale's characters, to UTF-8 if the system's locale has
 * others; numbers keep their decimal point. Windows: standard input and output are bytes, the
 * console shows UTF-8 and knows escape sequences. */
void lk_os_use_utf8(void);

/* Are the locale's characters UTF-8? */
bool lk_os_locale_is_utf8(void);

/* ---- texts: functions of glibc that other C libraries lack ---- */

void *lk_os_memmem(const void *in, size_t len, const void *what, size_t n);
char *lk_os_strcasestr(const char *in, const char *what);

/* As getline: *line is reallocated and may be NULL at first. -1 at the end. */
ptrdiff_t lk_os_getline(char **line, size_t *cap, FILE *file);

#endif
