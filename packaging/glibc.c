/* What the static libraries of Debian 12 need of glibc 2.29 and later, for programs that run with
 * glibc 2.28.
 *
 * scripts/package links this file into the program and the library, with --wrap for the
 * mathematical functions: glibc 2.29 gave these new versions, which differ from the old ones only
 * in how they report errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The first version of glibc for the machine. */
#ifdef __aarch64__
#define FIRST "GLIBC_2.17"
#else
#define FIRST "GLIBC_2.2.5"
#endif
#define OLD(name) __asm__(".symver old_" #name ", " #name "@" FIRST)
OLD(exp);
OLD(exp2);
OLD(log);
OLD(log2);
OLD(pow);
double old_exp(double x), old_exp2(double x), old_log(double x), old_log2(double x);
double old_pow(double x, double y);

#pragma GCC visibility push(hidden)
double __wrap_exp(double x) { return old_exp(x); }
double __wrap_exp2(double x) { return old_exp2(x); }
double __wrap_log(double x) { return old_log(x); }
double __wrap_log2(double x) { return old_log2(x); }
double __wrap_pow(double x, double y) { return old_pow(x, y); }

/* glibc 2.29. */
int getcpu(unsigned *cpu, unsigned *node) { return (int)syscall(SYS_getcpu, cpu, node, NULL); }

/* glibc 2.32. libstdc++ uses atomic operations if it is 0, which is always right. */
char __libc_single_threaded = 0;

/* glibc 2.36, for std::random_device. */
uint32_t arc4random(void) {
    uint32_t value;
    while (getrandom(&value, sizeof value, 0) != sizeof value) {
        if (errno != EINTR) abort();
    }
    return value;
}

/* glibc 2.35: the object that has the code at an address, and its table of frames, for libgcc's
 * unwinder, with the layout of <dlfcn.h>. */
struct dl_find_object {
    unsigned long long flags;
    void *map_start, *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct dl_find_object *result;
};

static int search_object(struct dl_phdr_info *info, size_t size, void *user) {
    struct search *search = user;
    uintptr_t start = 0, end = 0, frames = 0;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t at = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_GNU_EH_FRAME) frames = at;
        if (header->p_type != PT_LOAD || search->address < at) continue;
        if (search->address < at + header->p_memsz) {
            start = at;
            end = at + header->p_memsz;
        }
    }
    if (!end) return 0;
    *search->result = (struct dl_find_object){
        .map_start = (void *)start, .map_end = (void *)end, .eh_frame = (void *)frames};
    return frames ? 1 : -1;
}

int _dl_find_object(void *address, struct dl_find_object *result) {
    struct search search = {(uintptr_t)address, result};
    return dl_iterate_phdr(search_object, &search) == 1 ? 0 : -1;
}
#pragma GCC visibility pop
