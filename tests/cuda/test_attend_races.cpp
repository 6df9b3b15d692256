/* ThreadSanitizer finds what orders the warps of an attention kernel wrongly: it is silent about
 * the kernel as it is, and about none of the mistakes that are planted in it. Warps are threads and
 * barriers are atomics in the emulator (cuda/warp.h), so a race there is a race on a card.
 *
 * The program runs itself once for each mistake, because a report decides its exit status. */
#include "attend_case.h"

#include <sys/wait.h>
#include <unistd.h>

int lk_planted;

/* What lk_planted makes attend_kernel.h and attend_chunk.h do, and how it shows. */
enum { SILENT = 0, WRONG = 1, REPORTED = 66 };
static const struct {
    const char *what;
    int status;
} mistakes[] = {
    {"none", SILENT},
    {"the next chunk of K is copied before this one was read", WRONG}, /* by the same warp */
    {"queries are read before all warps have written them", REPORTED},
    {"a block joins its warps' sums before they are complete", REPORTED},
    {"a cluster joins its blocks' sums before they are complete", REPORTED},
    {"a block ends while others of its cluster may read its memory", REPORTED},
    {"a cluster takes its ticket before its sums are written", REPORTED},
};
enum { N_MISTAKE = sizeof mistakes / sizeof mistakes[0] };

static int run_planted(int number) {
    lk_planted = number;
    attend_case c;
    c.d = 64, c.group = 4, c.n_split = 6;
    c.k = {{{f16(), 4, 0}, {rot(3, LK_K), 1700, 0}, {f16(), 20, 0}}};
    c.v = {{{f16(), 4, 0}, {rot(2, LK_V), 1700, 0}, {f16(), 20, 0}}};
    attend_problem p(c);
    double error = run_attend<attend_kernel<64, 1, attend_pair(3, 2), 2, 2>>(p);
    return error < 2e-8 ? SILENT : WRONG;
}

/* The status of this program with a mistake planted. */
static int status_with(int number) {
    char text[8];
    snprintf(text, sizeof text, "%d", number);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(99);
        setenv("TSAN_OPTIONS", "exitcode=66", 1);
        execl("/proc/self/exe", "test_attend_races", text, (char *)NULL);
        _exit(99);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 99;
    return WEXITSTATUS(status);
}

static void mistakes_are_found(void **state) {
    (void)state;
    for (int i = 0; i < N_MISTAKE; i++) {
        int status = status_with(i);
        if (status == mistakes[i].status) continue;
        print_error("%s: status %d, expected %d\n", mistakes[i].what, status, mistakes[i].status);
        fail();
    }
}

int main(int argc, char **argv) {
    if (argc > 1) return run_planted(atoi(argv[1]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(mistakes_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
