/* Filters of system calls: builds BPF programs from lists and installs them with seccomp. */
#define _GNU_SOURCE
#include "sandbox_filter.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
#ifdef __x86_64__
    OWN_ARCH = (int)AUDIT_ARCH_X86_64,
#else
    OWN_ARCH = (int)AUDIT_ARCH_AARCH64,
#endif
    /* The first call after Linux 6.1. The x32 calls of x86-64 have larger numbers, too. Numbers
     * from 424 on are equal on all processors. */
    FIRST_UNKNOWN = 451,
    MAX_INSTRUCTIONS = 512,
};

static const int refused_calls[] = {
    /* other programs and processes */
    __NR_execve,
    __NR_execveat,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_process_madvise,
    __NR_process_mrelease,
    __NR_kcmp,
    __NR_pidfd_open,
    __NR_pidfd_getfd,
    __NR_pidfd_send_signal,
    __NR_tkill,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    __NR_setns,
    __NR_unshare,
    __NR_personality,
    /* users and rights */
    __NR_setuid,
    __NR_setgid,
    __NR_setreuid,
    __NR_setregid,
    __NR_setresuid,
    __NR_setresgid,
    __NR_setfsuid,
    __NR_setfsgid,
    __NR_setgroups,
    __NR_capset,
    __NR_fchown,
    __NR_fchownat,
    __NR_add_key,
    __NR_request_key,
    __NR_keyctl,
    /* changes to files by name that Landlock does not refuse */
    __NR_truncate,
    __NR_fchmodat,
    __NR_setxattr,
    __NR_lsetxattr,
    __NR_removexattr,
    __NR_lremovexattr,
    /* file systems */
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_swapon,
    __NR_swapoff,
    __NR_fsopen,
    __NR_fsconfig,
    __NR_fsmount,
    __NR_fspick,
    __NR_open_tree,
    __NR_move_mount,
    __NR_mount_setattr,
    __NR_mknodat,
    __NR_name_to_handle_at,
    __NR_open_by_handle_at,
    __NR_quotactl,
    __NR_quotactl_fd,
    __NR_fanotify_init,
    __NR_fanotify_mark,
    /* the kernel and the machine */
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_reboot,
    __NR_bpf,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_syslog,
    __NR_acct,
    __NR_vhangup,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_adjtimex,
    __NR_clock_adjtime,
    __NR_sethostname,
    __NR_setdomainname,
    __NR_lookup_dcookie,
    __NR_nfsservctl,
    /* ways around a filter, and channels to other processes */
    __NR_io_uring_setup,
    __NR_io_uring_enter,
    __NR_io_uring_register,
    __NR_shmget,
    __NR_shmat,
    __NR_shmctl,
    __NR_msgget,
    __NR_semget,
    __NR_mq_open,
    __NR_mq_unlink,
    /* the network: a server accepts */
    __NR_connect,
#ifdef __NR_kexec_file_load
    __NR_kexec_file_load,
#endif
#ifdef __x86_64__
    __NR_fork,
    __NR_vfork,
    __NR_chmod,
    __NR_chown,
    __NR_lchown,
    __NR_mknod,
    __NR_uselib,
    __NR_modify_ldt,
    __NR_iopl,
    __NR_ioperm,
    __NR__sysctl,
    __NR_create_module,
    __NR_get_kernel_syms,
    __NR_query_module,
#endif
};

static const int refused_socket_calls[] = {__NR_socket, __NR_socketpair, __NR_bind, __NR_listen};

/* A call that is refused depending on an argument: if (argument & bits) is 0, or is not. */
struct flag_rule {
    int call, argument;
    uint32_t bits;
    bool refuse_if_set;
};

static const struct flag_rule flag_rules[] = {
    {__NR_clone, 0, CLONE_THREAD, false}, /* threads, but no processes */
    {__NR_clone, 0,
     CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |
         CLONE_NEWNET,
     true},
    {__NR_mmap, 2, PROT_EXEC, true},
    {__NR_mprotect, 2, PROT_EXEC, true},
    {__NR_pkey_mprotect, 2, PROT_EXEC, true},
    {__NR_sendto, 3, MSG_FASTOPEN, true}, /* connects */
    {__NR_sendmsg, 2, MSG_FASTOPEN, true},
    {__NR_sendmmsg, 3, MSG_FASTOPEN, true},
};

/* A call that is refused if an argument has one value, or has any other. */
struct value_rule {
    int call, argument;
    uint32_t value;
    bool refuse_if_equal;
};

/* ---- programs ---- */

struct program {
    struct sock_filter code[MAX_INSTRUCTIONS];
    unsigned short n;
};

/* `if_true`, `if_false`: instructions that a jump skips. */
static void emit(struct program *p, int code, uint32_t k, int if_true, int if_false) {
    if (p->n < MAX_INSTRUCTIONS)
        p->code[p->n++] =
            (struct sock_filter){(uint16_t)code, (uint8_t)if_true, (uint8_t)if_false, k};
}

static void emit_load(struct program *p, size_t offset) {
    emit(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void emit_errno(struct program *p, int number) {
    emit(p, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)number, 0, 0);
}

static void emit_call(struct program *p, int call, int error) {
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    emit_errno(p, error);
}

/* Refuse `call` if the comparison of its argument's lower half with k gives `refuse_if`. Both
 * processors are little-endian. */
static void emit_argument_rule(struct program *p, int call, int argument, int compare, uint32_t k,
                               bool refuse_if) {
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 4);
    emit_load(p, offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
    emit(p, BPF_JMP | compare | BPF_K, k, refuse_if ? 0 : 1, refuse_if ? 1 : 0);
    emit_errno(p, EPERM);
    emit_load(p, offsetof(struct seccomp_data, nr));
}

/* The start of every program: calls of another architecture are refused. */
static void emit_start(struct program *p) {
    emit_load(p, offsetof(struct seccomp_data, arch));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)OWN_ARCH, 1, 0);
    emit_errno(p, EPERM);
    emit_load(p, offsetof(struct seccomp_data, nr));
}

static lk_status install(struct program *p, lk_err *err) {
    emit(p, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    if (p->n == MAX_INSTRUCTIONS)
        return lk_fail(err, LK_E_ARG, "the system call filter is too long");
    struct sock_fprog program = {.len = p->n, .filter = p->code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return lk_fail(err, LK_E_UNSUPPORTED, "the kernel cannot set no_new_privs: %s",
                       strerror(errno));
    /* SPEC_ALLOW: without it, older kernels make every thread slower (SSBD). */
    unsigned long flags = SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    long status = syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    if (status == 0) return LK_OK;
    if (status > 0) /* the ID of a thread */
        return lk_fail(err, LK_E_IO, "thread %ld has another seccomp filter", status);
    return lk_fail(err, LK_E_UNSUPPORTED, "the kernel refuses a seccomp filter: %s",
                   strerror(errno));
}

lk_status sandbox_filter_calls(lk_err *err) {
    uint32_t self = (uint32_t)getpid();
    const struct value_rule value_rules[] = {
        {__NR_kill, 0, self, false},
        {__NR_tgkill, 0, self, false},
        {__NR_prlimit64, 0, 0, false},
        {__NR_ioctl, 1, TIOCSTI, true}, /* types into the operator's terminal */
        {__NR_ioctl, 1, TIOCLINUX, true},
    };
    struct program p = {.n = 0};
    emit_start(&p);
    emit(&p, BPF_JMP | BPF_JGE | BPF_K, FIRST_UNKNOWN, 0, 1);
    emit_errno(&p, ENOSYS);
    emit_call(&p, __NR_clone3, ENOSYS); /* its flags cannot be seen; the C library calls clone */
    for (size_t i = 0; i < sizeof flag_rules / sizeof flag_rules[0]; i++) {
        const struct flag_rule *r = &flag_rules[i];
        emit_argument_rule(&p, r->call, r->argument, BPF_JSET, r->bits, r->refuse_if_set);
    }
    for (size_t i = 0; i < sizeof value_rules / sizeof value_rules[0]; i++) {
        const struct value_rule *r = &value_rules[i];
        emit_argument_rule(&p, r->call, r->argument, BPF_JEQ, r->value, r->refuse_if_equal);
    }
    for (size_t i = 0; i < sizeof refused_calls / sizeof refused_calls[0]; i++)
        emit_call(&p, refused_calls[i], EPERM);
    return install(&p, err);
}

lk_status sandbox_filter_sockets(lk_err *err) {
    struct program p = {.n = 0};
    emit_start(&p);
    for (size_t i = 0; i < sizeof refused_socket_calls / sizeof refused_socket_calls[0]; i++)
        emit_call(&p, refused_socket_calls[i], EPERM);
    return install(&p, err);
}

#else

lk_status sandbox_filter_calls(lk_err *err) {
    return lk_fail(err, LK_E_UNSUPPORTED, "system calls are filtered on x86-64 and AArch64 Linux");
}

lk_status sandbox_filter_sockets(lk_err *err) { return sandbox_filter_calls(err); }

#endif
