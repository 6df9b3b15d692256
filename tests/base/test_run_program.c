/* The status of a program that was run is its own, also if SIGCHLD is ignored, as it is after a
 * program was started in the background. */
#define _GNU_SOURCE /* sigaction */
#include "base/os.h"
#include "test.h"

#include <errno.h>
#include <signal.h>

static int run(const char *path, const char *script, int *failed) {
    char *argv[] = {(char *)path, "-c", (char *)script, NULL};
    return lk_os_run_program(argv, true, failed);
}

static void status_is_the_programs(void **state) {
    void (*const effect[])(int) = {SIG_DFL, SIG_IGN};
    for (int i = 0; i < 2; i++) {
        int failed;
        signal(SIGCHLD, effect[i]);
        assert_int_equal(run("/bin/sh", "exit 0", &failed), 0);
        assert_int_equal(failed, 0);
        assert_int_equal(run("/bin/sh", "exit 3", &failed), 3);
        assert_int_equal(failed, 0);
        assert_int_equal(run("/bin/sh", "kill -9 $$", &failed), -1);
        assert_int_equal(failed, 0);
        assert_int_equal(run("/nowhere/sh", "exit 0", &failed), -1);
        assert_int_equal(failed, ENOENT);
        assert_ptr_equal(signal(SIGCHLD, SIG_DFL), effect[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(status_is_the_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
