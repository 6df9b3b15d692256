/* Which messages leave a conversation that does not fit. */
#include "serve/turns.h"
#include "test.h"

enum { CTX = 300, STEP = CTX + CTX / 3 }; /* 400 bytes */

static void all_cuts(const struct lk_turn_message *m, size_t n, size_t *cut, size_t *n_cut) {
    *n_cut = 0;
    for (size_t at = 0; (at = lk_turns_next_cut(m, n, CTX, at)) != 0;) {
        assert_true(*n_cut < 16);
        assert_true(*n_cut == 0 || at > cut[*n_cut - 1]);
        assert_string_equal(m[at].role, "user");
        cut[(*n_cut)++] = at;
    }
}

/* The oldest turns leave first, in steps; the newest one is never left out. */
static void the_oldest_turns_leave(void **state) {
    const struct lk_turn_message m[] = {{"system", 900},    {"user", 100},      {"assistant", 200},
                                        {"user", 100},      {"assistant", 100}, {"user", 50},
                                        {"assistant", 350}, {"user", 30},       {"assistant", 10},
                                        {"user", 10}};
    size_t cut[16], n;
    assert_int_equal(lk_turns_head(m, 10), 1);
    all_cuts(m, 10, cut, &n);
    assert_int_equal(n, 3);
    assert_int_equal(cut[0], 5); /* 500 bytes before it */
    assert_int_equal(cut[1], 7); /* 900 */
    assert_int_equal(cut[2], 9); /* all that can leave */
}

/* A cut is before a user's message: calls and their results go with the message that led to them.
 */
static void calls_stay_with_their_turn(void **state) {
    const struct lk_turn_message m[] = {
        {"system", 10},     {"user", 10},     {"assistant", 300}, {"tool", 300}, {"tool", 300},
        {"assistant", 300}, {"user", 10},     {"assistant", 20},  {"tool", 900}, {"assistant", 20},
        {"user", 5},        {"assistant", 5}, {"tool", 5}};
    size_t cut[16], n;
    all_cuts(m, 13, cut, &n);
    assert_int_equal(n, 2);
    assert_int_equal(cut[0], 6);
    assert_int_equal(cut[1], 10); /* its call and result stay, too */
}

static void system_messages_at_the_start_stay(void **state) {
    const struct lk_turn_message m[] = {{"system", 10},     {"developer", 10}, {"user", 500},
                                        {"assistant", 500}, {"system", 10},    {"user", 10}};
    assert_int_equal(lk_turns_head(m, 6), 2);
    assert_int_equal(lk_turns_next_cut(m, 6, CTX, 0), 5); /* one between turns leaves with them */
    assert_int_equal(lk_turns_next_cut(m, 6, CTX, 5), 0);
    assert_int_equal(lk_turns_head(m + 2, 3), 0);
}

/* One huge message, no messages, no user: nothing can leave. */
static void what_cannot_leave(void **state) {
    const struct lk_turn_message one[] = {{"system", 10}, {"user", 1 << 20}},
                                 none[] = {{"system", 10}, {"assistant", 1000}},
                                 agent[] = {{"user", 10}, {"assistant", 9000}, {"tool", 9000}};
    assert_int_equal(lk_turns_next_cut(one, 2, CTX, 0), 0);
    assert_int_equal(lk_turns_next_cut(one + 1, 1, CTX, 0), 0);
    assert_int_equal(lk_turns_next_cut(none, 2, CTX, 0), 0);
    assert_int_equal(lk_turns_next_cut(agent, 3, CTX, 0), 0);
    assert_int_equal(lk_turns_next_cut(NULL, 0, CTX, 0), 0);
    /* After a huge one that is old: it leaves. */
    const struct lk_turn_message old[] = {
        {"user", 1 << 20}, {"assistant", 1}, {"user", 1}, {"assistant", 1}, {"user", 1}};
    assert_int_equal(lk_turns_next_cut(old, 5, CTX, 0), 2);
    assert_int_equal(lk_turns_next_cut(old, 5, CTX, 2), 4);
}

/* While a conversation grows, its cuts stay where they are; and there are few of them. */
static void cuts_stay(void **state) {
    enum { N = 4001 };
    static struct lk_turn_message m[N];
    for (size_t i = 0; i < N; i++)
        m[i] = (struct lk_turn_message){i % 2 ? "assistant" : "user", 10 + i * 7919 % 83};
    for (size_t n = 101; n + 2 <= N; n += 2) {
        size_t cut[2][16], n_cut[2];
        all_cuts(m, n, cut[0], &n_cut[0]);
        all_cuts(m, n + 2, cut[1], &n_cut[1]);
        assert_true(n_cut[0] >= 2 && n_cut[0] <= 9);
        /* All but the last, which leaves only the newest turn, and the first, whose rest grew. */
        for (size_t i = 0; i + 1 < n_cut[0]; i++) {
            size_t left = 0;
            int found = 0;
            for (size_t k = cut[0][i]; k < n + 2; k++) left += m[k].n_byte;
            for (size_t k = 0; k < n_cut[1]; k++) found += cut[1][k] == cut[0][i];
            assert_int_equal(found, left / 8 <= CTX);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_turns_leave),
        cmocka_unit_test(calls_stay_with_their_turn),
        cmocka_unit_test(system_messages_at_the_start_stay),
        cmocka_unit_test(what_cannot_leave),
        cmocka_unit_test(cuts_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
