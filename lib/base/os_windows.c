/* Windows 10 and later, with the C library ucrt and MinGW's headers. */
#define WIN32_LEAN_AND_MEAN
#define _CRT_RAND_S /* rand_s */
#define PSAPI_VERSION 2
#include "base/clock.h"
#include "base/os.h"

#include <cpuid.h>
#include <direct.h>
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* clang-format off */
#include <windows.h> /* first */
#include <psapi.h>
/* clang-format on */

static int fail_with(DWORD error) {
    switch (error) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_NAME: errno = ENOENT; break;
    case ERROR_ACCESS_DENIED: errno = EACCES; break;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION:
    case ERROR_IO_PENDING: errno = EWOULDBLOCK; break;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY:
    case ERROR_COMMITMENT_LIMIT: errno = ENOMEM; break;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL: errno = ENOSPC; break;
    case ERROR_INVALID_FUNCTION:
    case ERROR_INVALID_HANDLE:
    case ERROR_INVALID_PARAMETER: errno = EINVAL; break;
    default: errno = EIO;
    }
    return -1;
}

static HANDLE handle_of(int fd) { return (HANDLE)_get_osfhandle(fd); }

/* ---- files ---- */

int lk_os_open(const char *path, int access, int mode) {
    (void)mode;
    DWORD wanted = (access & LK_OS_READ ? GENERIC_READ : 0) |
                   (access & LK_OS_WRITE ? GENERIC_WRITE | GENERIC_READ | DELETE : 0),
          share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
          how = !(access & LK_OS_CREATE) ? OPEN_EXISTING
                : access & LK_OS_NEW     ? CREATE_NEW
                                         : OPEN_ALWAYS;
    DWORD kind = GetFileAttributesA(path);
    if (kind != INVALID_FILE_ATTRIBUTES && kind & FILE_ATTRIBUTE_DIRECTORY) {
        errno = EISDIR;
        return -1;
    }
    HANDLE file = CreateFileA(path, wanted, share, NULL, how, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return fail_with(GetLastError());
    int flags = _O_BINARY | _O_NOINHERIT | (access & LK_OS_APPEND ? _O_APPEND : 0) |
                (access & LK_OS_WRITE ? _O_RDWR : _O_RDONLY);
    int fd = _open_osfhandle((intptr_t)file, flags);
    if (fd < 0) CloseHandle(file);
    return fd;
}

FILE *lk_os_open_to_read(const char *path) {
    int fd = lk_os_open(path, LK_OS_READ, 0);
    return fd < 0 ? NULL : _fdopen(fd, "rb");
}

int lk_os_restrict(int fd, int mode) {
    (void)fd, (void)mode;
    return 0;
}

ptrdiff_t lk_os_read_at(int fd, void *data, size_t size, uint64_t offset) {
    OVERLAPPED at = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
    DWORD n = 0, want = size < (1u << 30) ? (DWORD)size : 1u << 30;
    if (ReadFile(handle_of(fd), data, want, &n, &at)) return (ptrdiff_t)n;
    return GetLastError() == ERROR_HANDLE_EOF ? 0 : fail_with(GetLastError());
}

ptrdiff_t lk_os_write_at(int fd, const void *data, size_t size, uint64_t offset) {
    OVERLAPPED at = {.Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32)};
    DWORD n = 0, want = size < (1u << 30) ? (DWORD)size : 1u << 30;
    if (WriteFile(handle_of(fd), data, want, &n, &at)) return (ptrdiff_t)n;
    return fail_with(GetLastError());
}

/* Locks of Windows also keep others from reading and writing the locked bytes. So the byte is one
 * that no file has. */
int lk_os_lock(int fd) {
    OVERLAPPED at = {.OffsetHigh = 0x7fffffff};
    if (LockFileEx(handle_of(fd), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
                   &at))
        return 0;
    return fail_with(GetLastError());
}

int lk_os_sync(int fd) { return FlushFileBuffers(handle_of(fd)) ? 0 : fail_with(GetLastError()); }

int lk_os_open_folder(const char *path) {
    DWORD kind = GetFileAttributesA(path);
    if (kind == INVALID_FILE_ATTRIBUTES) return fail_with(GetLastError());
    if (kind & FILE_ATTRIBUTE_DIRECTORY)
        return _open(lk_os_null_device, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
    errno = ENOTDIR;
    return -1;
}

int lk_os_replace(const char *from, const char *to) {
    return MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING) ? 0 : fail_with(GetLastError());
}

int lk_os_make_folder(const char *path, bool is_private) {
    (void)is_private;
    return _mkdir(path);
}

char *lk_os_real_path(const char *path) {
    if (GetFileAttributesA(path) != INVALID_FILE_ATTRIBUTES) return _fullpath(NULL, path, 0);
    fail_with(GetLastError());
    return NULL;
}

bool lk_os_is_own(unsigned mode, unsigned owner) {
    (void)mode, (void)owner;
    return true;
}

bool lk_os_is_private(unsigned mode, unsigned owner) {
    (void)mode, (void)owner;
    return true;
}

/* From units of 100 ns since 1601. */
static int64_t to_nanoseconds(FILETIME time) {
    const int64_t years = 11644473600; /* seconds from 1601 to 1970 */
    int64_t units = (int64_t)time.dwHighDateTime << 32 | time.dwLowDateTime;
    return (units - years * 10000000) * 100;
}

bool lk_os_file_info(const char *path, uint64_t *size, int64_t *time) {
    WIN32_FILE_ATTRIBUTE_DATA info;
    if (!GetFileAttributesExA(path, GetFileExInfoStandard, &info)) {
        fail_with(GetLastError());
        return false;
    }
    if (info.dwFileAttributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT)) {
        errno = EINVAL;
        return false;
    }
    *size = (uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow;
    *time = to_nanoseconds(info.ftLastWriteTime);
    return true;
}

static bool file_identity(const char *path, BY_HANDLE_FILE_INFORMATION *info) {
    int fd = lk_os_open(path, LK_OS_READ, 0);
    bool known = fd >= 0 && GetFileInformationByHandle(handle_of(fd), info);
    if (fd >= 0) _close(fd);
    return known;
}

bool lk_os_is_same_file(const char *a, const char *b) {
    BY_HANDLE_FILE_INFORMATION x, y;
    if (!file_identity(a, &x) || !file_identity(b, &y)) return errno != ENOENT;
    return x.dwVolumeSerialNumber == y.dwVolumeSerialNumber &&
           x.nFileIndexHigh == y.nFileIndexHigh && x.nFileIndexLow == y.nFileIndexLow;
}

void lk_os_touch(const char *path) {
    HANDLE file = CreateFileA(path, FILE_WRITE_ATTRIBUTES,
                              FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                              OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    if (file == INVALID_HANDLE_VALUE) return;
    SetFileTime(file, NULL, NULL, &now);
    CloseHandle(file);
}

int64_t lk_os_time(void) {
    FILETIME now;
    GetSystemTimeAsFileTime(&now);
    return to_nanoseconds(now);
}

bool lk_os_can_run(const char *path) { return _access(path, 4) == 0; }

const char *lk_os_temporary_folder(void) {
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder) folder = getenv("TEMP");
    return folder && *folder ? folder : ".";
}

static bool is_slash(char c) { return c == '/' || c == '\\'; }

bool lk_os_is_absolute(const char *path) {
    return (path[0] && path[1] == ':' && is_slash(path[2])) ||
           (is_slash(path[0]) && is_slash(path[1]));
}

char *lk_os_last_slash(const char *path) {
    for (size_t i = strlen(path); i-- > 0;)
        if (is_slash(path[i])) return (char *)path + i;
    return NULL;
}

const char *lk_os_home(void) {
    const char *home = getenv("HOME");
    return home && *home ? home : getenv("USERPROFILE");
}

const char lk_os_null_device[] = "NUL";

/* ---- memory ---- */

size_t lk_os_page_size(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

void *lk_os_aligned_alloc(size_t alignment, size_t size) {
    return _aligned_malloc(size, alignment);
}

void lk_os_aligned_free(void *ptr) { _aligned_free(ptr); }

void *lk_os_map_file(int fd, size_t size) {
    HANDLE map = CreateFileMappingA(handle_of(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    void *pages = map ? MapViewOfFile(map, FILE_MAP_READ, 0, 0, size) : NULL;
    if (!pages) fail_with(GetLastError());
    if (map) CloseHandle(map); /* the view keeps it */
    return pages;
}

void *lk_os_map_zeros(size_t size) {
    return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void *lk_os_reserve(size_t size) { return VirtualAlloc(NULL, size, MEM_RESERVE, PAGE_NOACCESS); }

bool lk_os_allow(void *pages, size_t size, bool allow) {
    DWORD before;
    if (!allow) return VirtualProtect(pages, size, PAGE_NOACCESS, &before);
    return VirtualAlloc(pages, size, MEM_COMMIT, PAGE_READWRITE) &&
           VirtualProtect(pages, size, PAGE_READWRITE, &before);
}

void lk_os_unmap(void *pages, size_t size) {
    MEMORY_BASIC_INFORMATION info;
    (void)size;
    if (VirtualQuery(pages, &info, sizeof info) && info.Type == MEM_MAPPED)
        UnmapViewOfFile(pages);
    else
        VirtualFree(pages, 0, MEM_RELEASE);
}

void lk_os_discard(void *pages, size_t size) { (void)pages, (void)size; }

void lk_os_advise_huge(void *pages, size_t size) { (void)pages, (void)size; }

/* ---- processors and threads ---- */

int lk_os_cpus_online(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwNumberOfProcessors > 0 ? (int)info.dwNumberOfProcessors : 1;
}

/* The affinity mask of this process, in its group of at most 64 processors. */
int lk_os_cpus_allowed(void) {
    DWORD_PTR allowed = 0, system = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &allowed, &system)) return 0;
    return __builtin_popcountll(allowed);
}

struct stack_call {
    void (*fn)(void *arg);
    void *arg;
};

static DWORD WINAPI run_call(void *p) {
    struct stack_call *call = p;
    call->fn(call->arg);
    return 0;
}

bool lk_os_run_with_stack(void (*fn)(void *arg), void *arg, size_t size) {
    struct stack_call call = {fn, arg};
    HANDLE thread =
        CreateThread(NULL, size, run_call, &call, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    if (!thread) return false;
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
    return true;
}

void lk_os_run_without_signals(void (*fn)(void *arg), void *arg) { fn(arg); }

void lk_os_lower_priority(int nice) {
    (void)nice;
    SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_BELOW_NORMAL);
}

bool lk_os_cond_init(pthread_cond_t *cond) { return pthread_cond_init(cond, NULL) == 0; }

/* winpthreads compares with the clock of the day. */
bool lk_os_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double end) {
    struct timespec now;
    double left = end - lk_now();
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (left > 0) ns += (int64_t)(left * 1e9);
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}

void lk_os_sleep(double seconds) { Sleep((DWORD)ceil(seconds * 1e3)); }

void lk_os_wait_on(int *value, int old) { WaitOnAddress(value, &old, sizeof old, INFINITE); }

void lk_os_wake(int *value) { WakeByAddressAll(value); }

/* ---- the program ---- */

static bool module_path(HMODULE module, char *out, size_t cap) {
    DWORD n = GetModuleFileNameA(module, out, (DWORD)cap);
    return n > 0 && n < cap;
}

bool lk_os_program_path(char *out, size_t cap) { return module_path(NULL, out, cap); }

bool lk_os_code_path(const void *code, char *out, size_t cap) {
    HMODULE module;
    DWORD flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    return GetModuleHandleExA(flags, code, &module) && module_path(module, out, cap);
}

void *lk_os_load(const char *path, char *why, size_t cap) {
    HMODULE library = LoadLibraryA(path);
    if (!library) snprintf(why, cap, "error %lu of Windows", GetLastError());
    return (void *)library;
}

void *lk_os_symbol(void *library, const char *name) {
    return (void *)(uintptr_t)GetProcAddress((HMODULE)library, name);
}

/* Windows has no scripts that run by their first line. */
int lk_os_run_program(char *const argv[], bool to_stderr, int *failed) {
    (void)argv, (void)to_stderr;
    *failed = ENOSYS;
    return -1;
}

bool lk_os_start_self(char *const argv[]) {
    (void)argv;
    return false;
}

void lk_os_stay_in_background(void) { SetPriorityClass(GetCurrentProcess(), IDLE_PRIORITY_CLASS); }

bool lk_os_process_runs(int64_t pid) {
    DWORD status = 0;
    HANDLE process = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, FALSE, (DWORD)pid);
    bool runs = process && GetExitCodeProcess(process, &status) && status == STILL_ACTIVE;
    if (process) CloseHandle(process);
    return runs;
}

bool lk_os_load_average(double *load) {
    (void)load;
    return false;
}

bool lk_os_random(void *out, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned value;
        if (rand_s(&value)) return false;
        ((unsigned char *)out)[i] = (unsigned char)value;
    }
    return true;
}

static PROCESS_MEMORY_COUNTERS memory_counters(void) {
    PROCESS_MEMORY_COUNTERS counters = {.cb = sizeof counters};
    GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters);
    return counters;
}

uint64_t lk_os_resident_bytes(void) { return memory_counters().WorkingSetSize; }

uint64_t lk_os_peak_bytes(void) { return memory_counters().PeakWorkingSetSize; }

uint64_t lk_os_free_bytes(void) {
    MEMORYSTATUSEX status = {.dwLength = sizeof status};
    return GlobalMemoryStatusEx(&status) ? status.ullAvailPhys : 0;
}

void lk_os_cpu_name(char *name, size_t cap) {
    unsigned word[12] = {0};
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &word[4 * i], &word[4 * i + 1], &word[4 * i + 2],
                    &word[4 * i + 3]);
    snprintf(name, cap, "%.48s", word[0] ? (const char *)word : "unknown");
}

/* ---- the terminal ---- */

int lk_os_terminal_columns(FILE *file) {
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo(handle_of(_fileno(file)), &info)) return 0;
    return info.srWindow.Right - info.srWindow.Left + 1;
}

/* East Asian wide characters and emoji take two columns, marks that combine none. */
int lk_os_char_columns(uint32_t code) {
    if (code < ' ' || (code >= 0x7f && code < 0xa0)) return -1;
    if ((code >= 0x300 && code < 0x370) || (code >= 0x200b && code < 0x2010)) return 0;
    bool wide = (code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xa4d0) ||
                (code >= 0xac00 && code < 0xd7a4) || (code >= 0xf900 && code < 0xfb00) ||
                (code >= 0xfe30 && code < 0xfe70) || (code >= 0xff00 && code < 0xff61) ||
                (code >= 0x1f300 && code < 0x1f650) || (code >= 0x1f900 && code < 0x1fa00) ||
                (code >= 0x20000 && code < 0x40000);
    return wide ? 2 : 1;
}

/* Consoles of Windows 10 also know escape sequences, once asked. */
void lk_os_use_utf8(void) {
    DWORD mode;
    for (int fd = 0; fd < 3; fd++) _setmode(fd, _O_BINARY);
    _set_fmode(_O_BINARY);
    SetConsoleCP(CP_UTF8);
    SetConsoleOutputCP(CP_UTF8);
    if (GetConsoleMode(handle_of(1), &mode))
        SetConsoleMode(handle_of(1), mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
    setlocale(LC_CTYPE, ".UTF-8");
}

bool lk_os_locale_is_utf8(void) {
    const char *name = setlocale(LC_CTYPE, NULL);
    return name && lk_os_strcasestr(name, "utf");
}

/* ---- texts ---- */

void *lk_os_memmem(const void *in, size_t len, const void *what, size_t n) {
    const char *at = in, *first = what;
    if (n == 0) return (void *)at;
    for (; len >= n; at++, len--) {
        const char *found = memchr(at, *first, len - n + 1);
        if (!found) return NULL;
        len -= (size_t)(found - at);
        at = found;
        if (memcmp(at, what, n) == 0) return (void *)at;
    }
    return NULL;
}

char *lk_os_strcasestr(const char *in, const char *what) {
    size_t n = strlen(what);
    for (; *in; in++)
        if (strncasecmp(in, what, n) == 0) return (char *)in;
    return n ? NULL : (char *)in;
}

ptrdiff_t lk_os_getline(char **line, size_t *cap, FILE *file) {
    size_t len = 0;
    for (int c; (c = getc(file)) != EOF;) {
        if (len + 2 > *cap || !*line) {
            size_t larger = *cap && *line ? 2 * *cap : 256;
            char *grown = realloc(*line, larger);
            if (!grown) {
                errno = ENOMEM;
                return -1;
            }
            *line = grown;
            *cap = larger;
        }
        (*line)[len++] = (char)c;
        if (c == '\n') break;
    }
    if (len > 0) (*line)[len] = 0;
    return len > 0 ? (ptrdiff_t)len : -1;
}
