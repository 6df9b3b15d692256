/* Groups of processors, read from folders that imitate /sys. */
#include "cpu_groups.h"
#include "support_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char root[] = "/tmp/lowkey-cpu-groups-XXXXXX";

/* The set of a list of processors like "0-3,8". */
static cpu_set_t cpus(const char *list) {
    cpu_set_t set;
    int first, last, used;
    CPU_ZERO(&set);
    for (; sscanf(list, "%d%n", &first, &used) == 1; list += *list == ',') {
        list += used;
        last = first;
        if (sscanf(list, "-%d%n", &last, &used) == 1) list += used;
        for (int i = first; i <= last; i++) CPU_SET(i, &set);
    }
    return set;
}

static void is_group(const struct cpu_group *group, const char *list, int node) {
    cpu_set_t expected = cpus(list);
    assert_true(CPU_EQUAL(&group->cpus, &expected));
    assert_int_equal(group->node, node);
}

static void write_nodes(const char *online, const char *node0, const char *node2) {
    write_file_below(root, "/sys/devices/system/node/online", online);
    write_file_below(root, "/sys/devices/system/node/node0/cpulist", node0);
    write_file_below(root, "/sys/devices/system/node/node2/cpulist", node2);
}

static void nodes_are_groups(void **state) {
    struct cpu_group group[MAX_CPU_GROUPS];
    cpu_set_t all = cpus("0-7"), some = cpus("1,2,5");
    (void)state;
    write_nodes("0,2\n", "0-1,4-5\n", "2-3,6-7\n");
    assert_int_equal(cpu_groups_make(root, &all, 0, group), 2);
    is_group(&group[0], "0-1,4-5", 0);
    is_group(&group[1], "2-3,6-7", 2);
    /* Only what the process may use. */
    assert_int_equal(cpu_groups_make(root, &some, 0, group), 2);
    is_group(&group[0], "1,5", 0);
    is_group(&group[1], "2", 2);
    some = cpus("2-3");
    assert_int_equal(cpu_groups_make(root, &some, 0, group), 1);
    is_group(&group[0], "2-3", 2);
    remove_system_below(root);
}

static void groups_keep_to_nodes(void **state) {
    struct cpu_group group[MAX_CPU_GROUPS];
    cpu_set_t all = cpus("0-7");
    (void)state;
    write_nodes("0,2\n", "0-1,4-5\n", "2-3,6-7\n");
    assert_int_equal(cpu_groups_make(root, &all, 4, group), 4);
    is_group(&group[0], "0-1", 0);
    is_group(&group[1], "4-5", 0);
    is_group(&group[2], "2-3", 2);
    is_group(&group[3], "6-7", 2);
    assert_int_equal(cpu_groups_make(root, &all, 3, group), 3);
    is_group(&group[0], "0-1,4", 0);
    is_group(&group[1], "5,2-3", -1);
    is_group(&group[2], "6-7", 2);
    assert_int_equal(cpu_groups_make(root, &all, 8, group), 8);
    is_group(&group[7], "7", 2);
    assert_int_equal(cpu_groups_make(root, &all, 9, group), 0);
    remove_system_below(root);
}

static void nodes_may_be_unknown(void **state) {
    struct cpu_group group[MAX_CPU_GROUPS];
    cpu_set_t all = cpus("0-3"), none;
    (void)state;
    CPU_ZERO(&none);
    assert_int_equal(cpu_groups_make(root, &all, 0, group), 1);
    is_group(&group[0], "0-3", -1);
    assert_int_equal(cpu_groups_make(root, &all, 2, group), 2);
    is_group(&group[1], "2-3", -1);
    write_nodes("0-junk", "0-,-7,99999999999999", "\n");
    assert_int_equal(cpu_groups_make(root, &all, 0, group), 2);
    is_group(&group[0], "0", 0);
    is_group(&group[1], "1-3", -1);
    assert_int_equal(cpu_groups_make(root, &none, 0, group), 0);
    remove_system_below(root);
}

static void threads_are_bound(void **state) {
    struct cpu_group group[MAX_CPU_GROUPS];
    cpu_set_t before, after;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int n = cpu_groups_make("", &before,
                            CPU_COUNT(&before) > MAX_CPU_GROUPS ? 2 : CPU_COUNT(&before), group);
    assert_true(n >= 1);
    assert_true(cpu_group_enter(&group[n - 1]));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&after, &group[n - 1].cpus));
    CPU_ZERO(&group[0].cpus);
    assert_false(cpu_group_enter(&group[0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_groups),
        cmocka_unit_test(groups_keep_to_nodes),
        cmocka_unit_test(nodes_may_be_unknown),
        cmocka_unit_test(threads_are_bound),
    };
    if (!mkdtemp(root)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_system_below(root);
    remove(root);
    return failed;
}
