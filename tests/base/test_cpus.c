/* The number of processors: the affinity mask, and quotas in folders that imitate /proc and /sys.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "base/cpus.h"
#include "support_files.h"
#include "test.h"

#include <sched.h>
#include <unistd.h>

static char root[] = "/tmp/lowkey-cpus-XXXXXX";

static void write_file(const char *name, const char *text) { write_file_below(root, name, text); }

static int remove_files(void **state) {
    remove_system_below(root);
    return 0;
}

static double quota(void) { return lk_cpus_read(root).quota; }

static void no_quota(void **state) {
    assert_true(quota() == 0.0);
    write_file("/proc/self/cgroup", "3:cpu,cpuacct:/one\n0::/\nnonsense\n");
    assert_true(quota() == 0.0);
    write_file("/sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", "-1\n");
    write_file("/sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000\n");
    write_file("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_true(quota() == 0.0);
}

static void quota_of_version_2(void **state) {
    write_file("/proc/self/cgroup", "0::/user/one\n");
    write_file("/sys/fs/cgroup/user/one/cpu.max", "150000 100000\n");
    assert_true(quota() == 1.5);
    write_file("/sys/fs/cgroup/user/cpu.max", "50000 200000\n"); /* the parent's is smaller */
    assert_true(quota() == 0.25);
    write_file("/sys/fs/cgroup/user/cpu.max", "0 0\n"); /* makes no sense */
    assert_true(quota() == 1.5);
}

static void quota_of_version_1(void **state) {
    write_file("/proc/self/cgroup", "4:cpuset:/x\n3:cpu,cpuacct:/docker/one\n");
    write_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"); /* as a container sees its own */
    assert_true(quota() == 3.0);
    write_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    assert_true(quota() == 6.0);
}

static void threads_are_never_more(void **state) {
    static const struct {
        int allowed;
        double quota;
        int threads;
    } cases[] = {{1, 0, 1},   {2, 0, 2},   {64, 0, 16}, {8, 4, 4},
                 {8, 2.5, 2}, {8, 0.2, 1}, {2, 100, 2}, {64, 17, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lk_cpus cpus = {64, cases[i].allowed, cases[i].quota};
        assert_int_equal(lk_cpus_threads(&cpus), cases[i].threads);
    }
}

/* Like `taskset`. */
static void affinity_is_counted(void **state) {
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(lk_cpus_read(root).allowed, CPU_COUNT(&before));
    int first = 0;
    while (!CPU_ISSET(first, &before)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct lk_cpus cpus = lk_cpus_read(root);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(cpus.allowed, 1);
    assert_int_equal(lk_cpus_threads(&cpus), 1);
    assert_true(cpus.online >= CPU_COUNT(&before));
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(no_quota, remove_files),
        cmocka_unit_test_teardown(quota_of_version_2, remove_files),
        cmocka_unit_test_teardown(quota_of_version_1, remove_files),
        cmocka_unit_test(threads_are_never_more),
        cmocka_unit_test(affinity_is_counted),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(root) ? 1 : failed;
}
