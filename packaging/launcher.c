/* bin/lowkey of packages: runs the program that was built for this kind of CPU,
 * lib/lowkey/LEVEL/lowkey.
 *
 * The levels are lines of lib/lowkey/levels, which packaging/levels describes. LOWKEY_CPU names one
 * instead. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 16384, NAME = 32, PATH = 4096 };

/* The first line of /proc/cpuinfo with flags ("Features" on AArch64), with a blank at its end.
 * Without one, flags stays empty. */
static void read_flags(char flags[LINE]) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    bool found = false;
    while (file && !found && fgets(flags, LINE - 1, file))
        found = strncmp(flags, "flags", 5) == 0 || strncmp(flags, "Features", 8) == 0;
    if (file) fclose(file);
    if (found)
        flags[strcspn(flags, "\n")] = ' ';
    else
        *flags = 0;
}

static bool has_all(const char *flags, char *needed) {
    char word[NAME + 2];
    for (char *next = strtok(needed, " \n"); next; next = strtok(NULL, " \n")) {
        snprintf(word, sizeof word, " %s ", next);
        if (!strstr(flags, word)) return false;
    }
    return true;
}

/* The last level that this CPU has, or false if it has none. */
static bool choose_level(const char *path, char level[NAME]) {
    static char flags[LINE], line[LINE];
    FILE *file = fopen(path, "r");
    bool found = false;
    read_flags(flags);
    while (file && fgets(line, sizeof line, file)) {
        char *needed = strrchr(line, '|');
        if (*line == '#' || !needed || !has_all(flags, needed + 1)) continue;
        snprintf(level, NAME, "%.*s", (int)strcspn(line, " "), line);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

int main(int argc, char **argv) {
    (void)argc;
    char self[PATH], path[PATH + 64], level[NAME];
    const char *given = getenv("LOWKEY_CPU");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    for (int i = 0; i < 2; i++) { /* without /bin/lowkey */
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
    }
    snprintf(path, sizeof path, "%s/lib/lowkey/levels", self);
    if (given && *given)
        snprintf(level, sizeof level, "%s", given);
    else if (!choose_level(path, level)) {
        fprintf(stderr,
                "lowkey: this CPU has no AVX2, or /proc is not mounted; set LOWKEY_CPU to a "
                "level of %s, or build lowkey from its sources\n",
                path);
        return 1;
    }
    snprintf(path, sizeof path, "%s/lib/lowkey/%s/lowkey", self, level);
    setenv("LOWKEY_CPU", level, 1);
    execv(path, argv);
    fprintf(stderr, "lowkey: cannot run %s: %s\n", path, strerror(errno));
    return 1;
}
