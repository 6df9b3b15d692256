/* The ledger counts memory and refuses at its limit and at a chosen allocation. Errors are one
 * line. Files appear complete or not at all. */
#define _DEFAULT_SOURCE /* syscall */
#include "base/atomic_file.h"
#include "base/err.h"
#include "base/ledger.h"
#include "base/os.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t held(const struct lk_ledger *ledger) {
    uint64_t sum = 0;
    for (int i = 0; i < LK_N_PURPOSE; i++) sum += lk_ledger_bytes(ledger, (enum lk_purpose)i);
    return sum;
}

static void memory_is_aligned_and_zero(void **state) {
    struct lk_ledger ledger = {0};
    static const size_t size[] = {1, 63, 64, 65, 4096, 100003};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        unsigned char *p = lk_alloc(&ledger, LK_FOR_SCRATCH, size[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t j = 0; j < size[i]; j++) assert_int_equal(p[j], 0);
        memset(p, 0xff, size[i]);
        lk_release(&ledger, LK_FOR_SCRATCH, p, size[i]);
    }
    assert_int_equal(held(&ledger), 0);
}

static void bytes_are_counted_by_purpose(void **state) {
    struct lk_ledger ledger = {0};
    void *a = lk_alloc(&ledger, LK_FOR_CACHE, 1000);
    void *b = lk_alloc(&ledger, LK_FOR_OTHER, 64);
    assert_true(lk_ledger_bytes(&ledger, LK_FOR_CACHE) >= 1000);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 64);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), 0);
    assert_int_equal(ledger.n_alloc, 2);
    lk_release(&ledger, LK_FOR_CACHE, a, 1000);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_CACHE), 0);
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_OTHER), 64);
    lk_release(&ledger, LK_FOR_OTHER, b, 64);
    assert_int_equal(held(&ledger), 0);
}

static void releasing_null_does_nothing(void **state) {
    struct lk_ledger ledger = {0};
    lk_release(&ledger, LK_FOR_CACHE, NULL, 1000);
    assert_int_equal(held(&ledger), 0);
}

static void impossible_sizes_are_refused(void **state) {
    struct lk_ledger ledger = {0};
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, 0));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX - 64));
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, SIZE_MAX / 2));
    assert_int_equal(held(&ledger), 0);
}

static void the_limit_holds_over_all_purposes(void **state) {
    struct lk_ledger ledger = {.limit = 1024};
    void *a = lk_alloc(&ledger, LK_FOR_CACHE, 512);
    assert_non_null(a);
    assert_null(lk_alloc(&ledger, LK_FOR_SCRATCH, 513));
    void *b = lk_alloc(&ledger, LK_FOR_SCRATCH, 512);
    assert_non_null(b);
    assert_null(lk_alloc(&ledger, LK_FOR_OTHER, 1));
    assert_false(lk_ledger_add(&ledger, LK_FOR_WEIGHTS, 1));
    assert_int_equal(held(&ledger), 1024);
    lk_release(&ledger, LK_FOR_CACHE, a, 512);
    a = lk_alloc(&ledger, LK_FOR_OTHER, 512);
    assert_non_null(a);
    lk_release(&ledger, LK_FOR_OTHER, a, 512);
    lk_release(&ledger, LK_FOR_SCRATCH, b, 512);
    assert_int_equal(held(&ledger), 0);
}

static void the_nth_allocation_fails_once(void **state) {
    for (int n = 1; n <= 4; n++) {
        struct lk_ledger ledger = {.fail_at = n};
        void *p[5];
        for (int i = 0; i < 5; i++) {
            p[i] = lk_alloc(&ledger, LK_FOR_CACHE, 64);
            if (i + 1 == n)
                assert_null(p[i]);
            else
                assert_non_null(p[i]);
        }
        for (int i = 0; i < 5; i++) lk_release(&ledger, LK_FOR_CACHE, p[i], 64);
        assert_int_equal(held(&ledger), 0);
    }
}

static void growing_keeps_contents(void **state) {
    struct lk_ledger ledger = {0};
    void *p = NULL;
    assert_true(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 0, 100));
    for (int i = 0; i < 100; i++) ((unsigned char *)p)[i] = (unsigned char)i;
    assert_true(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 100, 5000));
    for (int i = 0; i < 100; i++) assert_int_equal(((unsigned char *)p)[i], i);
    for (int i = 100; i < 5000; i++) assert_int_equal(((unsigned char *)p)[i], 0);
    lk_release(&ledger, LK_FOR_SCRATCH, p, 5000);
    assert_int_equal(held(&ledger), 0);
}

static void refused_growth_changes_nothing(void **state) {
    struct lk_ledger ledger = {0};
    void *p = lk_alloc(&ledger, LK_FOR_SCRATCH, 100), *before = p;
    memset(p, 7, 100);
    uint64_t bytes = held(&ledger);
    ledger.fail_at = 1;
    assert_false(lk_grow(&ledger, LK_FOR_SCRATCH, &p, 100, 5000));
    assert_ptr_equal(p, before);
    assert_int_equal(held(&ledger), bytes);
    for (int i = 0; i < 100; i++) assert_int_equal(((unsigned char *)p)[i], 7);
    lk_release(&ledger, LK_FOR_SCRATCH, p, 100);
    assert_int_equal(held(&ledger), 0);
}

static void foreign_memory_is_counted(void **state) {
    struct lk_ledger ledger = {.limit = 1000};
    assert_true(lk_ledger_add(&ledger, LK_FOR_WEIGHTS, 1000));
    assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS), 1000);
    assert_null(lk_alloc(&ledger, LK_FOR_CACHE, 1));
    lk_ledger_remove(&ledger, LK_FOR_WEIGHTS, 1000);
    assert_int_equal(held(&ledger), 0);
}

static void errors_are_a_status_and_a_line(void **state) {
    lk_err err = {0};
    assert_int_equal(lk_fail(&err, LK_E_FORMAT, "tensor %s has %d rows", "blk.0", 3), LK_E_FORMAT);
    assert_int_equal(err.code, LK_E_FORMAT);
    assert_string_equal(err.msg, "tensor blk.0 has 3 rows");
    assert_int_equal(lk_fail(NULL, LK_E_IO, "%s is ignored", "this"), LK_E_IO);
    lk_fail(&err, LK_E_FORMAT, "not a\nnumber: '%s'", "1\t2\x7f");
    assert_string_equal(err.msg, "not a number: '1 2 '");
}

static void a_long_error_is_cut(void **state) {
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    lk_err err = {0};
    assert_int_equal(lk_fail(&err, LK_E_ARG, "%s", text), LK_E_ARG);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void a_path_is_whole_or_refused(void **state) {
    char path[4096] = "", cut[4] = "";
    assert_true(lk_os_program_path(path, sizeof path));
    assert_int_equal(path[0], '/');
    assert_false(lk_os_program_path(cut, sizeof cut));
}

static void every_status_has_its_own_name(void **state) {
    const char *name[8];
    for (int i = 0; i < 8; i++) {
        name[i] = lk_status_name((lk_status)-i);
        assert_non_null(name[i]);
        for (int j = 0; j < i; j++) assert_string_not_equal(name[i], name[j]);
    }
    assert_string_equal(lk_status_name((lk_status)-99), "unknown status");
}

/* ---- atomic files ---- */

static char folder[] = "/tmp/lowkey-base-XXXXXX", name[64];
static int folder_errno; /* fsync on folders fails with it; 0: call the system */

/* Replaces the function of the C library. */
int fsync(int fd) {
    struct stat info;
    if (folder_errno && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = folder_errno;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static int open_folder(void **state) {
    if (!mkdtemp(folder)) return -1;
    snprintf(name, sizeof name, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state) {
    unlink(name);
    return rmdir(folder); /* fails if any file is left */
}

static void remove_file(void) { assert_true(unlink(name) == 0 || errno == ENOENT); }

static lk_status write_file(const char *text) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, name, NULL);
    if (status != LK_OK) return status;
    fputs(text, f.file);
    return lk_atomic_file_close(&f, LK_OK, NULL);
}

static void assert_file_is(const char *text) {
    char found[16] = "";
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_int_equal(fread(found, 1, sizeof found - 1, file), strlen(text));
    fclose(file);
    assert_string_equal(found, text);
}

/* With few descriptors left, one of the later steps fails. */
static void a_failed_file_leaves_the_older(void **state) {
    struct rlimit limit;
    assert_int_equal(write_file("old"), LK_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int next = open("/dev/null", O_RDONLY), n_failed = 0;
    close(next);
    for (int left = 0; left < 4; left++) {
        struct rlimit few = {(rlim_t)(next + left), limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        lk_status status = write_file("new");
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        n_failed += status != LK_OK;
        assert_file_is(status == LK_OK ? "new" : "old");
        assert_int_equal(write_file("old"), LK_OK);
    }
    assert_in_range(n_failed, 1, 3);
    remove_file();
}

static void a_folder_that_cannot_be_read_is_refused_first(void **state) {
    enum { NOBODY = 65534 }; /* permissions do not restrict root */
    bool root = geteuid() == 0;
    if (root && (chown(folder, NOBODY, (gid_t)-1) || seteuid(NOBODY))) skip();
    assert_int_equal(write_file("old"), LK_OK);
    assert_int_equal(chmod(folder, 0300), 0);
    lk_status status = write_file("new");
    assert_int_equal(chmod(folder, 0700), 0);
    assert_file_is("old");
    remove_file();
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(status, LK_E_IO);
}

static void file_systems_may_not_sync_folders(void **state) {
    const int unable[] = {EINVAL, ENOTSUP};
    for (int i = 0; i < 2; i++) {
        folder_errno = unable[i];
        lk_status status = write_file(i ? "two" : "one");
        folder_errno = 0;
        assert_int_equal(status, LK_OK);
        assert_file_is(i ? "two" : "one");
    }
    folder_errno = EIO; /* a real failure */
    lk_status status = write_file("three");
    folder_errno = 0;
    assert_int_equal(status, LK_E_IO);
    remove_file();
}

static mode_t mode_of_file(void) {
    struct stat info;
    assert_int_equal(stat(name, &info), 0);
    return info.st_mode & 0777;
}

static void files_are_private_or_follow_the_umask(void **state) {
    struct lk_atomic_file f;
    mode_t before = umask(027);
    assert_int_equal(lk_atomic_file_open(&f, name, NULL), LK_OK);
    assert_int_equal(lk_atomic_file_close(&f, LK_OK, NULL), LK_OK);
    assert_int_equal(mode_of_file(), 0600);
    assert_int_equal(write_file("text"), LK_OK);
    assert_int_equal(mode_of_file(), 0640);
    umask(before);
    remove_file();
}

static void shared_memory_is_counted_once(void **state) {
    struct lk_ledger common = {0}, a = {.common = &common}, b = {.common = &common, .limit = 1000};
    void *p = lk_alloc(&a, LK_FOR_CACHE, 640);
    assert_non_null(p);
    assert_true(lk_ledger_share(&a, LK_FOR_CACHE, 640));
    assert_int_equal(held(&a), 0);
    assert_int_equal(a.borrowed, 640);
    assert_int_equal(held(&common), 640);
    assert_true(lk_ledger_borrow(&b, 640));
    assert_int_equal(held(&common), 640);
    assert_null(lk_alloc(&b, LK_FOR_CACHE, 384)); /* borrowed bytes count for the limit */
    assert_false(lk_ledger_borrow(&b, 384));
    lk_ledger_return(&a, 640);
    lk_ledger_return(&b, 640);
    lk_release(&common, LK_FOR_CACHE, p, 640);
    assert_int_equal(a.borrowed + b.borrowed, 0);
    assert_int_equal(held(&common), 0);
    struct lk_ledger single = {0};
    assert_false(lk_ledger_share(&single, LK_FOR_CACHE, 64));
}

static void checking_a_file_leaves_nothing(void **state) {
    lk_err err = {0};
    char bad[128];
    assert_int_equal(lk_atomic_file_check(name, &err), LK_OK);
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(write_file("text"), LK_OK);
    assert_int_equal(lk_atomic_file_check(name, &err), LK_OK);
    assert_file_is("text");
    assert_int_equal(lk_atomic_file_check(folder, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, "not a regular file"));
    snprintf(bad, sizeof bad, "%s/none/file", folder);
    assert_int_equal(lk_atomic_file_check(bad, &err), LK_E_IO);
    remove_file();
}

/* The library's calls come here: the next flock fails with this error, if it is not 0. */
static int flock_error;

int flock(int fd, int operation) {
    int failed = flock_error;
    flock_error = 0;
    if (!failed) return (int)syscall(SYS_flock, fd, operation);
    errno = failed;
    return -1;
}

/* Without locks a file can be written; other failures are named, and leave no temporary file. */
static void failures_of_locks_are_told_apart(void **state) {
    static const int without_locks[] = {ENOLCK, ENOTSUP, ENOSYS, EINTR};
    struct lk_atomic_file f;
    lk_err err = {0};
    char temporary[LK_MAX_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.new", name);
    for (size_t i = 0; i < sizeof without_locks / sizeof *without_locks; i++) {
        flock_error = without_locks[i];
        assert_int_equal(lk_atomic_file_open(&f, name, &err), LK_OK);
        fputs("text", f.file);
        assert_int_equal(lk_atomic_file_close(&f, LK_OK, &err), LK_OK);
        remove_file();
    }
    flock_error = EIO;
    assert_int_equal(lk_atomic_file_open(&f, name, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, strerror(EIO)));
    assert_int_equal(access(temporary, F_OK), -1);
    flock_error = EWOULDBLOCK;
    assert_int_equal(lk_atomic_file_open(&f, name, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, "another process"));
    unlink(temporary); /* it is the other process's */
}

/* Only a file that does not exist may be taken for one that has to be made. */
static void what_cannot_be_read_is_not_absent(void **state) {
    char loop[LK_MAX_PATH + 8];
    FILE *file;
    lk_err err = {0};
    bool exists;
    snprintf(loop, sizeof loop, "%s.loop", name);
    assert_int_equal(lk_open_if_there(&file, loop, &err), LK_OK);
    assert_null(file);
    assert_int_equal(lk_file_exists(&exists, loop, &err), LK_OK);
    assert_false(exists);
    assert_int_equal(symlink(loop, loop), 0); /* opening it fails with ELOOP, even for root */
    assert_int_equal(lk_open_if_there(&file, loop, &err), LK_E_IO);
    assert_null(file);
    assert_int_equal(lk_file_exists(&exists, loop, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, strerror(ELOOP)));
    unlink(loop);
}

static void a_file_has_one_writer(void **state) {
    struct lk_atomic_file first, second;
    lk_err err = {0};
    assert_int_equal(lk_atomic_file_open(&first, name, &err), LK_OK);
    assert_int_equal(lk_atomic_file_open(&second, name, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, "another process"));
    assert_int_equal(lk_atomic_file_close(&first, LK_OK, &err), LK_OK);
    assert_int_equal(lk_atomic_file_open(&second, name, &err), LK_OK);
    assert_int_equal(lk_atomic_file_close(&second, LK_E_CANCELLED, &err), LK_E_CANCELLED);
    remove_file();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_zero),
        cmocka_unit_test(bytes_are_counted_by_purpose),
        cmocka_unit_test(releasing_null_does_nothing),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(the_limit_holds_over_all_purposes),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(growing_keeps_contents),
        cmocka_unit_test(refused_growth_changes_nothing),
        cmocka_unit_test(foreign_memory_is_counted),
        cmocka_unit_test(shared_memory_is_counted_once),
        cmocka_unit_test(errors_are_a_status_and_a_line),
        cmocka_unit_test(a_long_error_is_cut),
        cmocka_unit_test(every_status_has_its_own_name),
        cmocka_unit_test(a_path_is_whole_or_refused),
        cmocka_unit_test(a_failed_file_leaves_the_older),
        cmocka_unit_test(a_folder_that_cannot_be_read_is_refused_first),
        cmocka_unit_test(file_systems_may_not_sync_folders),
        cmocka_unit_test(files_are_private_or_follow_the_umask),
        cmocka_unit_test(checking_a_file_leaves_nothing),
        cmocka_unit_test(a_file_has_one_writer),
        cmocka_unit_test(failures_of_locks_are_told_apart),
        cmocka_unit_test(what_cannot_be_read_is_not_absent),
    };
    return cmocka_run_group_tests(tests, open_folder, remove_folder);
}
