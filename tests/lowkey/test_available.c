/* Free memory, read from folders that imitate /proc and /sys. */
#include "available.h"
#include "support_files.h"
#include "test.h"

#define GIB ((uint64_t)1 << 30)

static char root[] = "/tmp/lowkey-available-XXXXXX";

static void write_file(const char *name, const char *text) { write_file_below(root, name, text); }

static void remove_files(void) { remove_system_below(root); }

static const char meminfo[] =
    "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n";

static void unknown_is_zero(void **state) {
    assert_int_equal(available_bytes(root), 0);
    write_file("/proc/meminfo", "MemTotal: 1024 kB\n");
    write_file("/proc/self/cgroup", "nonsense\n\n0::\n:memory");
    assert_int_equal(available_bytes(root), 0);
    remove_files();
}

static void system_limit_is_read(void **state) {
    write_file("/proc/meminfo", meminfo);
    assert_true(available_bytes(root) == 32 * GIB);
    write_file("/proc/self/cgroup", "0::/user/one\n");
    write_file("/sys/fs/cgroup/user/one/memory.max", "max\n");
    write_file("/sys/fs/cgroup/user/one/memory.current", "1073741824\n");
    assert_true(available_bytes(root) == 32 * GIB);
    remove_files();
}

static void cgroup_v2_limits_are_read(void **state) {
    write_file("/proc/meminfo", meminfo);
    write_file("/proc/self/cgroup", "1:name=systemd:/\n0::/user/one\n");
    write_file("/sys/fs/cgroup/user/one/memory.max", "8589934592\n");
    write_file("/sys/fs/cgroup/user/one/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 5 * GIB);
    write_file("/sys/fs/cgroup/user/one/memory.stat",
               "anon 1\nfile 3221225471\nactive_file 2\ninactive_file 1073741824\n");
    assert_true(available_bytes(root) == 6 * GIB);
    write_file("/sys/fs/cgroup/user/memory.max", "4294967296\n"); /* the parent group */
    write_file("/sys/fs/cgroup/user/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 1 * GIB);
    write_file("/sys/fs/cgroup/memory.max", "3221225473\n"); /* seen from inside a container */
    write_file("/sys/fs/cgroup/memory.current", "3221225472\n");
    assert_true(available_bytes(root) == 1);
    write_file("/sys/fs/cgroup/memory.max", "1024\n"); /* usage above the limit counts as 1 byte */
    assert_true(available_bytes(root) == 1);
    remove_files();
    write_file("/proc/self/cgroup", "0::/\n");
    write_file("/sys/fs/cgroup/memory.max", "2147483648\n");
    write_file("/sys/fs/cgroup/memory.current", "1073741824\n");
    assert_true(available_bytes(root) == 1 * GIB); /* without meminfo */
    remove_files();
}

static void cgroup_v1_limits_are_read(void **state) {
    write_file("/proc/self/cgroup", "5:memory_too:/other\n4:cpu,memory:/one/two\n0::/\n");
    write_file("/sys/fs/cgroup/memory/one/two/memory.limit_in_bytes",
               "9223372036854771712\n"); /* no limit */
    write_file("/sys/fs/cgroup/memory/one/two/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(available_bytes(root), 0);
    write_file("/proc/meminfo", meminfo);
    assert_true(available_bytes(root) == 32 * GIB);
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n");
    write_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    write_file("/sys/fs/cgroup/memory/memory.stat",
               "inactive_file 7\ntotal_inactive_file 1073741824\n");
    assert_true(available_bytes(root) == 2 * GIB);
    write_file("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
    write_file("/sys/fs/cgroup/memory/other/memory.usage_in_bytes", "0\n");
    assert_true(available_bytes(root) == 2 * GIB);
    remove_files();
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_is_zero), cmocka_unit_test(system_limit_is_read),
        cmocka_unit_test(cgroup_v2_limits_are_read), cmocka_unit_test(cgroup_v1_limits_are_read)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_files();
    remove(root);
    return failed;
}
