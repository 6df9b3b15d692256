/* Runs a command on several ranks of this machine that exchange bytes through a slow network: each
 * rank has its own network namespace, and a switch in this process delivers packets late.
 *
 *   usage: build/bench/delayed_network RANKS DELAY_MS MBIT SECONDS COMMAND [ARGUMENT]...
 *
 *   build/bench/delayed_network 2 1 0 300 build/lowkey bench -m model.gguf --depth 32k -p 0 -t 1
 *
 * DELAY_MS is the time that a packet takes, in one direction; 0: no added delay. MBIT is the rate
 * at which a rank can send; 0: not limited. After SECONDS everything is ended. Needs Linux, root,
 * /dev/net/tun and Open MPI.
 *
 *     namespace 0           this process             namespace 1
 *     rank 0 - lk0 (TUN) -> queue of sender 0 -----> lk0 (TUN) - rank 1
 *              lk0 (TUN) <----- queue of sender 1 <- lk0 (TUN)
 *
 * The kernel's netem does the same, but not every kernel has it. Namespaces and devices have no
 * names outside of the processes that use them, so that they disappear with these processes. This
 * process becomes the parent of all orphans below it, and ends them before it ends.
 *
 * mpirun starts the daemons of the other ranks with this program instead of ssh:
 *   delayed_network --enter ADDRESS COMMAND...   the command, in the namespace of the address */
#define _GNU_SOURCE
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_RANK = 16,
    MTU = 9000,       /* few packets, because the switch has a part of a rank's processor */
    MAX_QUEUE = 2048, /* packets of a sender that are under way; others are dropped */
    FIRST_HOST = 1    /* rank 0 is 10.77.0.1 */
};

static const char DEVICE[] = "lk0", NETWORK[] = "10.77.0.", ENV[] = "LK_DELAYED_NETWORK";

struct packet {
    double due; /* when it is delivered */
    int to, n;
    char data[MTU];
};

/* What one rank sends. Packets stay in their order, because all take equally long. */
struct sender {
    int tun, ns;          /* file descriptors: the device, and the namespace */
    struct packet *queue; /* [MAX_QUEUE] a ring */
    unsigned first, n;
    double line_free; /* when the last packet has been sent */
};

struct network {
    int n_rank;
    double delay, bytes_per_second; /* 0: not limited */
    struct sender sender[MAX_RANK];
    uint64_t n_packet, n_byte, n_dropped;
};

static volatile sig_atomic_t stop;

static void on_signal(int signal_number) {
    if (signal_number != SIGCHLD) stop = 1;
}

static void die(const char *what) {
    fprintf(stderr, "delayed_network: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- namespaces ---- */

/* Switch on an interface of this namespace. `host`: the last byte of its address; 0: it has one. */
static void start_interface(const char *name, int host) {
    struct ifreq request = {0};
    struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char text[32];
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (host) {
        snprintf(text, sizeof text, "%s%d", NETWORK, host);
        address->sin_family = AF_INET;
        inet_pton(AF_INET, text, &address->sin_addr);
        if (ioctl(fd, SIOCSIFADDR, &request)) die("cannot set an address");
        inet_pton(AF_INET, "255.255.255.0", &address->sin_addr);
        if (ioctl(fd, SIOCSIFNETMASK, &request)) die("cannot set a network mask");
        request.ifr_mtu = MTU;
        if (ioctl(fd, SIOCSIFMTU, &request)) die("cannot set the size of packets");
    }
    if (ioctl(fd, SIOCGIFFLAGS, &request)) die("cannot read the flags of an interface");
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, &request)) die("cannot switch on an interface");
    close(fd);
}

/* Make a namespace for each rank. The process is in that of rank 0 afterwards. */
static void make_namespaces(struct network *net) {
    for (int i = 0; i < net->n_rank; i++) {
        struct sender *s = &net->sender[i];
        struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
        if (unshare(CLONE_NEWNET)) die("cannot make a network namespace (this needs root)");
        s->ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        s->tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (s->ns < 0 || s->tun < 0) die("cannot open a namespace and /dev/net/tun");
        memcpy(request.ifr_name, DEVICE, sizeof DEVICE);
        if (ioctl(s->tun, TUNSETIFF, &request)) die("cannot make a TUN device");
        start_interface("lo", 0);
        start_interface(DEVICE, FIRST_HOST + i);
        s->queue = calloc(MAX_QUEUE, sizeof *s->queue);
        if (!s->queue) die("no memory");
    }
    if (setns(net->sender[0].ns, CLONE_NEWNET)) die("cannot enter a network namespace");
}

/* The rank with an address of this network, or -1. */
static int rank_of(const char *address) {
    size_t n = strlen(NETWORK);
    return strncmp(address, NETWORK, n) == 0 ? atoi(address + n) - FIRST_HOST : -1;
}

/* --enter ADDRESS COMMAND...: what mpirun calls in the place of ssh. */
static int enter(int argc, char **argv) {
    char command[1 << 16] = "", host[32], path[64];
    int pid = 0, first_fd[MAX_RANK], n = 0, rank = argc > 3 ? rank_of(argv[2]) : -1;
    const char *env = getenv(ENV);
    for (int used = 0; env && n < MAX_RANK; env += used, n++)
        if (sscanf(env, n ? ",%d%n" : "%d:%n", n ? &first_fd[n - 1] : &pid, &used) < 1) break;
    if (rank < 0 || rank >= n - 1) {
        fprintf(stderr, "delayed_network: mpirun calls --enter, not a user\n");
        return 1;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, first_fd[rank]);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) die("cannot enter a network namespace");
    /* Ranks with the same host name would count as one machine. */
    snprintf(host, sizeof host, "rank%d", rank);
    if (unshare(CLONE_NEWUTS) || sethostname(host, strlen(host))) die("cannot set the host name");
    for (int i = 3; i < argc; i++) {
        if (strlen(command) + strlen(argv[i]) + 2 > sizeof command) return 1;
        strcat(strcat(command, argv[i]), " ");
    }
    execl("/bin/sh", "sh", "-c", command, NULL);
    die("cannot start a shell");
    return 1;
}

/* ---- the switch ---- */

/* Take all packets that a rank has sent. */
static void take_packets(struct network *net, struct sender *s) {
    static char spare[MTU];
    for (;;) {
        bool full = s->n == MAX_QUEUE;
        struct packet *p = &s->queue[(s->first + s->n) % MAX_QUEUE];
        ssize_t n = read(s->tun, full ? spare : p->data, MTU);
        if (n <= 0) return;
        unsigned char *ip = (unsigned char *)(full ? spare : p->data);
        int to = ip[19] - FIRST_HOST; /* the last byte of the destination */
        if (n < 20 || ip[0] >> 4 != 4 || to < 0 || to >= net->n_rank) continue;
        net->n_packet++;
        net->n_byte += (uint64_t)n;
        net->n_dropped += full;
        if (full) continue;
        double now = lk_now();
        if (s->line_free < now) s->line_free = now;
        if (net->bytes_per_second > 0) s->line_free += (double)n / net->bytes_per_second;
        p->due = s->line_free + net->delay;
        p->to = to;
        p->n = (int)n;
        s->n++;
    }
}

/* Deliver what is due. Returns the time until the next packet is, or -1 if there is none. */
static double deliver_packets(struct network *net) {
    double now = lk_now(), next = -1;
    for (int i = 0; i < net->n_rank; i++) {
        struct sender *s = &net->sender[i];
        for (; s->n > 0 && s->queue[s->first].due <= now; s->n--) {
            const struct packet *p = &s->queue[s->first];
            if (write(net->sender[p->to].tun, p->data, (size_t)p->n) != p->n) net->n_dropped++;
            s->first = (s->first + 1) % MAX_QUEUE;
        }
        double wait = s->n > 0 ? s->queue[s->first].due - now : -1;
        if (wait >= 0 && (next < 0 || wait < next)) next = wait;
    }
    return next;
}

/* Carry packets until the command ends, a signal arrives or the time is over. Returns the status of
 * the command. */
static int run_switch(struct network *net, pid_t command, double seconds) {
    struct pollfd poll_fd[MAX_RANK];
    sigset_t waiting;
    double end = lk_now() + seconds;
    int status = 1;
    sigemptyset(&waiting);
    for (int i = 0; i < net->n_rank; i++)
        poll_fd[i] = (struct pollfd){.fd = net->sender[i].tun, .events = POLLIN};
    for (;;) {
        pid_t ended = waitpid(-1, &status, WNOHANG); /* orphans too */
        if (ended == command) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        double next = deliver_packets(net), left = end - lk_now();
        if (stop || left <= 0) break;
        if (next < 0 || next > left) next = left < 1 ? left : 1;
        struct timespec wait = {(time_t)next, (long)((next - (double)(time_t)next) * 1e9)};
        if (ppoll(poll_fd, (nfds_t)net->n_rank, &wait, &waiting) <= 0) continue;
        for (int i = 0; i < net->n_rank; i++)
            if (poll_fd[i].revents) take_packets(net, &net->sender[i]);
    }
    fprintf(stderr, "delayed_network: %s\n", stop ? "interrupted" : "the time is over");
    return 1;
}

/* End every process that this one has started, directly or not. */
static void end_processes(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    for (int i = 0; i < 500; i++) {
        int pid, n = 0;
        FILE *file = fopen(path, "r");
        while (file && fscanf(file, "%d", &pid) == 1) {
            kill(pid, i < 200 ? SIGTERM : SIGKILL);
            n++;
        }
        if (file) fclose(file);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        if (n == 0) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* ---- the command ---- */

static void start_mpirun(const struct network *net, char **command, int n_command) {
    enum { OPTIONS = 32 };
    char hosts[MAX_RANK * 24] = "", n_rank[16], agent[4200], self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) die("cannot read the name of this program");
    self[n] = 0;
    snprintf(agent, sizeof agent, "%s --enter", self);
    snprintf(n_rank, sizeof n_rank, "%d", net->n_rank);
    for (int i = 0; i < net->n_rank; i++)
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), "%s%s%d:1", i ? "," : "",
                 NETWORK, FIRST_HOST + i);
    const char *option[] = {"mpirun",
                            "--allow-run-as-root",
                            "--bind-to",
                            "none",
                            "-n",
                            n_rank,
                            "--host",
                            hosts,
                            "--mca",
                            "plm_rsh_agent",
                            agent,
                            "--mca",
                            "btl",
                            "tcp,self",
                            "--mca",
                            "btl_tcp_if_include",
                            DEVICE,
                            "--mca",
                            "oob_tcp_if_include",
                            DEVICE};
    int n_option = (int)(sizeof option / sizeof option[0]);
    const char **all = calloc((size_t)(OPTIONS + n_command + 1), sizeof *all);
    if (!all) die("no memory");
    memcpy(all, option, sizeof option);
    for (int i = 0; i < n_command; i++) all[n_option + i] = command[i];
    execvp("mpirun", (char **)all);
    die("cannot start mpirun");
}

/* Let the agent find the namespaces: "PID:,FD,FD...". */
static void tell_agent(const struct network *net) {
    char text[32 + MAX_RANK * 12];
    int at = snprintf(text, sizeof text, "%d:", (int)getpid());
    for (int i = 0; i < net->n_rank; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, ",%d", net->sender[i].ns);
    setenv(ENV, text, 1);
}

/* Signals arrive only while the switch waits. */
static void catch_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        sigaction(caught[i], &action, NULL);
        sigaddset(&blocked, caught[i]);
    }
    sigprocmask(SIG_BLOCK, &blocked, NULL);
}

int main(int argc, char **argv) {
    static struct network net;
    if (argc > 1 && strcmp(argv[1], "--enter") == 0) return enter(argc, argv);
    net.n_rank = argc > 5 ? atoi(argv[1]) : 0;
    net.delay = argc > 5 ? atof(argv[2]) / 1e3 : -1;
    net.bytes_per_second = argc > 5 ? atof(argv[3]) * 1e6 / 8 : -1;
    double seconds = argc > 5 ? atof(argv[4]) : 0;
    if (net.n_rank < 1 || net.n_rank > MAX_RANK || !(net.delay >= 0 && net.delay <= 1) ||
        !(net.bytes_per_second >= 0) || !(seconds > 0 && seconds <= 86400)) {
        fprintf(stderr, "usage: build/bench/delayed_network RANKS DELAY_MS MBIT SECONDS COMMAND "
                        "[ARGUMENT]...\n"
                        "RANKS: 1 to 16; DELAY_MS: 0 to 1000; MBIT 0: no limit\n");
        return 1;
    }
    make_namespaces(&net);
    tell_agent(&net);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_TIMERSLACK, 1000); /* nanoseconds */
    catch_signals();
    pid_t parent = getpid(), command = fork();
    if (command < 0) die("cannot start a process");
    if (command == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) return 1;
        start_mpirun(&net, argv + 5, argc - 5);
    }
    /* Ranks that wait keep their processors busy; the switch must not wait for them. */
    if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
        fprintf(stderr, "delayed_network: no real-time priority; delays will be longer\n");
    int status = run_switch(&net, command, seconds);
    end_processes();
    fprintf(stderr,
            "delayed_network: %llu packets, %.1f MB, %llu dropped; the switch used %.2f s of a "
            "processor\n",
            (unsigned long long)net.n_packet, (double)net.n_byte / 1e6,
            (unsigned long long)net.n_dropped, lk_process_cpu_seconds());
    for (int i = 0; i < net.n_rank; i++) free(net.sender[i].queue);
    return status;
}
