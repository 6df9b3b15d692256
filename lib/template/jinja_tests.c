/* Tests of the template engine. */
#include "template/jinja_tests.h"

typedef bool test_fn(struct lk_jinja_heap *heap, const struct lk_jinja_args *args);

struct test {
    const char *name;
    test_fn *fn;
};

#define TEST(name, condition)                                                                      \
    static bool name(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {               \
        (void)heap;                                                                                \
        const struct lk_jinja_value a = args->at[0];                                               \
        return condition;                                                                          \
    }

TEST(is_defined, a.kind != LK_JINJA_UNDEFINED)
TEST(is_undefined, a.kind == LK_JINJA_UNDEFINED)
TEST(is_none, a.kind == LK_JINJA_NONE)
TEST(is_string, a.kind == LK_JINJA_STRING)
TEST(is_number, lk_jinja_is_number(a))
TEST(is_integer, a.kind == LK_JINJA_INT)
TEST(is_float, a.kind == LK_JINJA_FLOAT)
TEST(is_boolean, a.kind == LK_JINJA_BOOL)
TEST(is_true, a.kind == LK_JINJA_BOOL && a.yes)
TEST(is_false, a.kind == LK_JINJA_BOOL && !a.yes)
TEST(is_mapping, a.kind == LK_JINJA_DICT && !a.dict->is_namespace)
TEST(is_iterable, a.kind == LK_JINJA_LIST || a.kind == LK_JINJA_DICT || a.kind == LK_JINJA_STRING)
TEST(is_callable, a.kind >= LK_JINJA_METHOD)
TEST(is_odd, a.kind == LK_JINJA_INT && a.integer % 2 != 0)
TEST(is_even, a.kind == LK_JINJA_INT && a.integer % 2 == 0)
TEST(is_equal, lk_jinja_equal(heap, a, lk_jinja_arg(heap, args, 1, NULL)))
TEST(is_not_equal, !lk_jinja_equal(heap, a, lk_jinja_arg(heap, args, 1, NULL)))
TEST(is_less, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) < 0)
TEST(is_less_equal, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) <= 0)
TEST(is_greater, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) > 0)
TEST(is_greater_equal, lk_jinja_compare(heap, a, lk_jinja_arg(heap, args, 1, NULL)) >= 0)
TEST(is_in, lk_jinja_contains(heap, lk_jinja_arg(heap, args, 1, NULL), a))

static bool is_divisible(struct lk_jinja_heap *heap, const struct lk_jinja_args *args) {
    struct lk_jinja_value by = lk_jinja_arg(heap, args, 1, NULL);
    if (args->at[0].kind != LK_JINJA_INT || by.kind != LK_JINJA_INT || by.integer == 0)
        lk_jinja_fail(heap, LK_E_FORMAT, "'divisibleby' needs integers other than 0");
    return by.integer == -1 || args->at[0].integer % by.integer == 0;
}

static bool has_case(struct lk_jinja_text text, char first, char last) {
    bool found = false;
    for (size_t i = 0; i < text.len; i++) {
        char c = lk_jinja_byte(text, i);
        if (((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) && (c < first || c > last))
            return false;
        found |= c >= first && c <= last;
    }
    return found;
}

TEST(is_upper, a.kind == LK_JINJA_STRING && has_case(a.text, 'A', 'Z'))
TEST(is_lower, a.kind == LK_JINJA_STRING && has_case(a.text, 'a', 'z'))

static const struct test tests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"string", is_string},
    {"number", is_number},
    {"integer", is_integer},
    {"float", is_float},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"mapping", is_mapping},
    {"iterable", is_iterable},
    {"sequence", is_iterable},
    {"callable", is_callable},
    {"odd", is_odd},
    {"even", is_even},
    {"equalto", is_equal},
    {"eq", is_equal},
    {"sameas", is_equal},
    {"ne", is_not_equal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"le", is_less_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {"ge", is_greater_equal},
    {"in", is_in},
    {"divisibleby", is_divisible},
    {"upper", is_upper},
    {"lower", is_lower},
};

bool lk_jinja_test(struct lk_jinja_heap *heap, struct lk_jinja_text name,
                   const struct lk_jinja_args *args) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (lk_jinja_is(name, tests[i].name)) return tests[i].fn(heap, args);
    static const struct test symbols[] = {{"==", is_equal},  {"!=", is_not_equal},
                                          {"<", is_less},    {"<=", is_less_equal},
                                          {">", is_greater}, {">=", is_greater_equal}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (lk_jinja_is(name, symbols[i].name)) return symbols[i].fn(heap, args);
    char word[40] = "";
    for (size_t i = 0; i < name.len && i + 1 < sizeof word; i++) word[i] = lk_jinja_byte(name, i);
    lk_jinja_fail(heap, LK_E_UNSUPPORTED, "there is no test '%s'", word);
}
