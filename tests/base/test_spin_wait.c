/* Waiting for other threads: no change is missed, and a long wait takes no processor time. */
#include "base/clock.h"
#include "base/spin_wait.h"
#include "test.h"

#include <pthread.h>

/* Many more threads than processors pass a turn around: thread i waits until `turn` is i. If a wake
 * was missed, the test would not end. */
enum { N_THREAD = 8, N_ROUND = 2000 };

static int turn[N_THREAD]; /* how often it was each thread's turn */

static void *pass_turn(void *arg) {
    int i = (int)(size_t)arg;
    for (int round = 0; round < N_ROUND; round++) {
        int *next = &turn[(i + 1) % N_THREAD];
        lk_ggml_wait(&turn[i], round);
        __atomic_fetch_add(next, 1, __ATOMIC_SEQ_CST);
        lk_ggml_wake(next);
    }
    return NULL;
}

static void no_wake_is_missed(void **state) {
    pthread_t thread[N_THREAD];
    for (size_t i = 0; i < N_THREAD; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, pass_turn, (void *)i), 0);
    __atomic_fetch_add(&turn[0], 1, __ATOMIC_SEQ_CST);
    lk_ggml_wake(&turn[0]);
    for (size_t i = 0; i < N_THREAD; i++) pthread_join(thread[i], NULL);
    assert_int_equal(turn[0], N_ROUND + 1);
    for (size_t i = 1; i < N_THREAD; i++) assert_int_equal(turn[i], N_ROUND);
}

struct waiter {
    int value;
    double cpu_seconds;
};

static void *wait_long(void *arg) {
    struct waiter *waiter = arg;
    double before = lk_thread_cpu_seconds();
    lk_ggml_wait(&waiter->value, 0);
    waiter->cpu_seconds = lk_thread_cpu_seconds() - before;
    return NULL;
}

static void a_long_wait_sleeps(void **state) {
    struct waiter waiter = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_long, &waiter), 0);
    double end = lk_now() + 0.3;
    while (lk_now() < end) {}
    __atomic_store_n(&waiter.value, 1, __ATOMIC_SEQ_CST);
    lk_ggml_wake(&waiter.value);
    pthread_join(thread, NULL);
    assert_true(waiter.cpu_seconds < 0.1); /* it spins for 0.0001 s */
}

static void a_change_in_the_past_is_seen(void **state) {
    int value = 5;
    lk_ggml_wait(&value, 4); /* returns at once */
    assert_int_equal(value, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wake_is_missed),
        cmocka_unit_test(a_long_wait_sleeps),
        cmocka_unit_test(a_change_in_the_past_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
