/* A preloaded library that lets system calls on files fail, for tests/faults/test_faults.sh. Linux
 * on x86-64.
 *
 *   FAILIO_FOLDER=DIR  count and fail only calls on files below DIR, an absolute path
 *   FAILIO_FAIL=OP:N:ERRNO[:+]  call N of the operation OP fails with this number; the first is 1.
 *                      ERRNO 0: it transfers only half of its bytes. "+": all calls from N on.
 *   FAILIO_COUNTS=FILE  a file of sizeof(struct counts) bytes: what was counted so far
 *
 * A filter (seccomp) turns the calls of the table into signals, so stdio's own calls are seen, too.
 * The handler counts the call, and makes it or not. Calls from its own instruction pass. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum op {
    OP_OPEN,
    OP_CLOSE,
    OP_READ,
    OP_WRITE,
    OP_SYNC,
    OP_RENAME,
    OP_MAP,
    OP_ACCESS,
    OP_STAT,
    OP_LOCK,
    OP_TRUNCATE,
    OP_CHMOD,
    OP_SEEK,
    OP_UNLINK,
    OP_FOLDER,
    N_OP
};

static const char *const op_name[N_OP] = {"open",     "close", "read",   "write",  "sync",
                                          "rename",   "map",   "access", "stat",   "lock",
                                          "truncate", "chmod", "seek",   "unlink", "folder"};

/* A system call: the argument that is a descriptor, or the one that is a path; -1: none. */
static const struct call {
    int number;
    enum op op;
    int fd, path;
} calls[] = {{SYS_open, OP_OPEN, -1, 0},         {SYS_openat, OP_OPEN, -1, 1},
             {SYS_close, OP_CLOSE, 0, -1},       {SYS_read, OP_READ, 0, -1},
             {SYS_pread64, OP_READ, 0, -1},      {SYS_readv, OP_READ, 0, -1},
             {SYS_write, OP_WRITE, 0, -1},       {SYS_pwrite64, OP_WRITE, 0, -1},
             {SYS_writev, OP_WRITE, 0, -1},      {SYS_fsync, OP_SYNC, 0, -1},
             {SYS_fdatasync, OP_SYNC, 0, -1},    {SYS_rename, OP_RENAME, -1, 0},
             {SYS_renameat, OP_RENAME, -1, 1},   {SYS_renameat2, OP_RENAME, -1, 1},
             {SYS_mmap, OP_MAP, 4, -1},          {SYS_access, OP_ACCESS, -1, 0},
             {SYS_faccessat, OP_ACCESS, -1, 1},  {SYS_faccessat2, OP_ACCESS, -1, 1},
             {SYS_stat, OP_STAT, -1, 0},         {SYS_lstat, OP_STAT, -1, 0},
             {SYS_fstat, OP_STAT, 0, -1},        {SYS_newfstatat, OP_STAT, 0, 1},
             {SYS_flock, OP_LOCK, 0, -1},        {SYS_ftruncate, OP_TRUNCATE, 0, -1},
             {SYS_fchmod, OP_CHMOD, 0, -1},      {SYS_lseek, OP_SEEK, 0, -1},
             {SYS_unlink, OP_UNLINK, -1, 0},     {SYS_unlinkat, OP_UNLINK, -1, 1},
             {SYS_getdents64, OP_FOLDER, 0, -1}, {SYS_mkdir, OP_FOLDER, -1, 0}};

enum { N_CALL = sizeof calls / sizeof *calls, MAX_FD = 1024 };

struct counts {
    _Atomic uint64_t seen[N_OP], failed;
};

static struct {
    const char *folder;
    size_t folder_len;
    struct counts *counts;
    enum op op; /* N_OP: nothing fails */
    uint64_t at;
    int error;
    bool all;
    _Atomic bool below[MAX_FD]; /* descriptors of files below the folder */
} state = {.op = N_OP};

/* Make a system call. The filter lets calls that return to failio_made pass. */
long failio_make(long number, const long arg[6]);
extern const char failio_made[];
__asm__(".text\n.globl failio_make\n.type failio_make,@function\nfailio_make:\n"
        "  mov %rdi, %rax\n  mov %rsi, %r11\n  mov (%r11), %rdi\n  mov 8(%r11), %rsi\n"
        "  mov 16(%r11), %rdx\n  mov 24(%r11), %r10\n  mov 32(%r11), %r8\n  mov 40(%r11), %r9\n"
        "  syscall\n.globl failio_made\nfailio_made:\n  ret\n.size failio_make,.-failio_make\n");

static bool is_below(const char *path) {
    return path && strncmp(path, state.folder, state.folder_len) == 0 &&
           (path[state.folder_len] == '/' || path[state.folder_len] == 0);
}

static bool is_watched(const struct call *call, const long arg[6]) {
    const char *path = call->path < 0 ? NULL : (const char *)arg[call->path];
    if (path && *path) return is_below(path);
    return call->fd >= 0 && arg[call->fd] >= 0 && arg[call->fd] < MAX_FD &&
           state.below[arg[call->fd]];
}

static long make_call(const struct call *call, long arg[6]) {
    bool watched = is_watched(call, arg), fails = false;
    if (watched) {
        uint64_t n = atomic_fetch_add(&state.counts->seen[call->op], 1) + 1;
        fails = call->op == state.op && (state.all ? n >= state.at : n == state.at);
    }
    if (fails) atomic_fetch_add(&state.counts->failed, 1);
    if (fails && state.error && call->op != OP_CLOSE) return -state.error;
    if (fails && !state.error && arg[2] > 1) arg[2] /= 2;
    if (call->op == OP_CLOSE && watched) state.below[arg[0]] = false;
    long result = failio_make(call->number, arg);
    if (call->op == OP_OPEN && result >= 0 && result < MAX_FD) state.below[result] = watched;
    return fails && call->op == OP_CLOSE ? -state.error : result; /* it is closed all the same */
}

static void on_call(int number, siginfo_t *info, void *context) {
    greg_t *reg = ((ucontext_t *)context)->uc_mcontext.gregs;
    long arg[6] = {reg[REG_RDI], reg[REG_RSI], reg[REG_RDX],
                   reg[REG_R10], reg[REG_R8],  reg[REG_R9]};
    (void)number;
    for (int i = 0; i < N_CALL; i++)
        if (calls[i].number == info->si_syscall) reg[REG_RAX] = make_call(&calls[i], arg);
}

#define LOAD(offset) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, offset))
#define EQUAL(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), yes, no)
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)

static bool install_filter(void) {
    const uint64_t made = (uintptr_t)failio_made;
    enum { N_HEAD = 9 };
    struct sock_filter code[N_HEAD + N_CALL + 2] = {
        LOAD(instruction_pointer),
        EQUAL(made, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        EQUAL(made >> 32, N_HEAD + N_CALL - 4, 0),
        LOAD(nr),
        EQUAL(SYS_mmap, 0, 3),
        LOAD(args[4]),
        EQUAL(-1, N_HEAD + N_CALL - 8, 0), /* memory without a file */
        LOAD(nr),
    };
    for (int i = 0; i < N_CALL; i++)
        code[N_HEAD + i] = (struct sock_filter)EQUAL(calls[i].number, (uint8_t)(N_CALL - i), 0);
    code[N_HEAD + N_CALL] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    code[N_HEAD + N_CALL + 1] = (struct sock_filter)RETURN(SECCOMP_RET_TRAP);
    struct sock_fprog program = {N_HEAD + N_CALL + 2, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static void read_failure(const char *text) {
    for (int op = 0; op < N_OP; op++) {
        size_t len = strlen(op_name[op]);
        char *end;
        if (strncmp(text, op_name[op], len) != 0 || text[len] != ':') continue;
        state.op = (enum op)op;
        state.at = strtoull(text + len + 1, &end, 10);
        state.error = (int)strtol(end + (*end == ':'), &end, 10);
        state.all = *end == ':';
    }
}

__attribute__((constructor)) static void start(void) {
    const char *counts = getenv("FAILIO_COUNTS"), *failure = getenv("FAILIO_FAIL");
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    state.folder = getenv("FAILIO_FOLDER");
    int fd = counts ? open(counts, O_RDWR | O_CLOEXEC) : -1;
    if (!state.folder || fd < 0) return;
    state.folder_len = strlen(state.folder);
    void *shared = mmap(NULL, sizeof *state.counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED) return;
    state.counts = shared;
    if (failure) read_failure(failure);
    if (sigaction(SIGSYS, &action, NULL) != 0 || !install_filter())
        atomic_store(&state.counts->failed, UINT64_MAX); /* seccomp is not available */
}
