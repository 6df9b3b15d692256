/* Errors of ggml and of C++ as values: out of memory, failed assertions. What stays an abort. */
#include "base/cxx_call.h"
#include "test.h"

#include "ggml.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Missing if llama.cpp is an installed package (docs/dependencies.md). */
extern char lk_ggml_unwinds __attribute__((weak));

/* ggml loses what it has allocated when an exception passes through it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:ggml_init\n"; }

static void skip_without_unwinding(void) {
    if (!&lk_ggml_unwinds) skip();
}

static void count_call(void *arg) { ++*(int *)arg; }

static void test_returns(void **state) {
    int n = 0;
    assert_int_equal(lk_cxx_call(count_call, &n, NULL), LK_OK);
    assert_int_equal(lk_cxx_compute(count_call, &n, NULL), LK_OK);
    assert_int_equal(n, 2);
}

/* ggml asserts that it got the memory. */
static void alloc_too_much(void *arg) {
    ggml_init((struct ggml_init_params){.mem_size = (size_t)1 << 60});
}

/* ggml aborts with a text. */
static void add_unequal_tensors(void *arg) {
    struct ggml_context *ctx = arg;
    struct ggml_tensor *a = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 3);
    ggml_add(ctx, a, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 4));
}

static void test_out_of_memory(void **state) {
    skip_without_unwinding();
    for (int i = 0; i < 2; i++) {
        lk_err err = {0};
        assert_int_equal(lk_cxx_call(alloc_too_much, NULL, &err), LK_E_NOMEM);
        assert_string_equal(err.msg, "out of memory");
    }
}

static void test_assertion(void **state) {
    skip_without_unwinding();
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16});
    lk_err err = {0};
    assert_int_equal(lk_cxx_call(add_unequal_tensors, ctx, &err), LK_E_FORMAT);
    assert_non_null(strstr(err.msg, "GGML_ASSERT"));
    assert_null(strchr(err.msg, '/')); /* no folder of the machine that built ggml */
    ggml_free(ctx);
}

/* The inner call ends; the outer one still catches. */
static void call_inner(void *arg) {
    int *inner = arg;
    *inner = lk_cxx_call(alloc_too_much, NULL, NULL);
    alloc_too_much(NULL);
}

static void test_nested(void **state) {
    skip_without_unwinding();
    int inner = LK_OK;
    assert_int_equal(lk_cxx_call(call_inner, &inner, NULL), LK_E_NOMEM);
    assert_int_equal(inner, LK_E_NOMEM);
}

static int signal_of(lk_status (*call)(void (*)(void *), void *, lk_err *)) {
    pid_t pid = fork();
    if (pid == 0) {
        setenv("GGML_NO_BACKTRACE", "1", 1);
        struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 1 << 16});
        if (call)
            call(add_unequal_tensors, ctx, NULL);
        else
            add_unequal_tensors(ctx);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* A failed assertion ends the process outside of these calls, and while a graph is computed. */
static void test_aborts(void **state) {
    skip_without_unwinding();
    assert_int_equal(signal_of(lk_cxx_call), 0);
    assert_int_equal(signal_of(lk_cxx_compute), SIGABRT);
    assert_int_equal(signal_of(NULL), SIGABRT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_returns),   cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_assertion), cmocka_unit_test(test_nested),
        cmocka_unit_test(test_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
