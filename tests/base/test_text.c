/* Growing buffers, UTF-8 and decimal numbers. */
#include "base/buf.h"
#include "base/utf8.h"
#include "test.h"

static void buffers_grow(void **state) {
    struct lk_buf buf = {0};
    char expect[4000] = "";
    assert_string_equal(lk_buf_cstr(&buf), "");
    for (int i = 0; i < 500; i++) {
        lk_buf_append_str(&buf, "ab");
        lk_buf_append(&buf, "c\0", 1);
        lk_buf_printf(&buf, "%03d", i);
        sprintf(expect + strlen(expect), "abc%03d", i);
    }
    assert_false(buf.failed);
    assert_int_equal(buf.len, strlen(expect));
    assert_string_equal(lk_buf_cstr(&buf), expect);
    lk_buf_consume(&buf, 6);
    assert_string_equal(lk_buf_cstr(&buf), expect + 6);
    lk_buf_consume(&buf, buf.len);
    assert_string_equal(lk_buf_cstr(&buf), "");
    lk_buf_printf(&buf, "%2000d", 7); /* longer than any piece before */
    assert_int_equal(buf.len, 2000);
    lk_buf_clear(&buf);
    lk_buf_append(&buf, NULL, 0);
    assert_string_equal(lk_buf_cstr(&buf), "");
    lk_buf_append_str(&buf, "mine");
    char *text = lk_buf_detach(&buf);
    assert_string_equal(text, "mine");
    assert_null(buf.at);
    free(text);
    lk_buf_free(&buf);
}

static void buffers_have_a_limit(void **state) {
    struct lk_buf buf = {.max = 10};
    lk_buf_append_str(&buf, "0123456789");
    assert_false(buf.failed);
    lk_buf_append_str(&buf, "x");
    assert_true(buf.failed);
    lk_buf_consume(&buf, 5);
    lk_buf_append_str(&buf, "y"); /* it would fit, but something is missing already */
    assert_string_equal(lk_buf_cstr(&buf), "56789");
    assert_null(lk_buf_detach(&buf));
    assert_false(buf.failed);
    lk_buf_printf(&buf, "%11d", 1);
    assert_true(buf.failed);
    lk_buf_clear(&buf);
    assert_false(buf.failed);
    lk_buf_append(&buf, "", (size_t)-1);
    assert_true(buf.failed);
    lk_buf_free(&buf);
    assert_int_equal(buf.max, 10);
}

/* Encode a code point without any check. */
static size_t encode(uint32_t code, char *s) {
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; code >>= 6) s[i] = (char)(0x80 | (code & 0x3f));
    s[0] = (char)(lead[n] | code);
    return n;
}

static void every_code_point_is_decoded(void **state) {
    for (uint32_t code = 0; code < 0x120000; code++) {
        bool valid = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
        char s[5] = "";
        size_t n = encode(code, s);
        uint32_t got = 0;
        assert_int_equal(lk_utf8_decode(s, 5, &got), valid ? (int)n : 0);
        assert_int_equal(lk_utf8_valid_prefix(s, n), valid ? n : 0);
        if (!valid) continue;
        assert_int_equal(got, code);
        for (size_t cut = 1; cut < n; cut++) assert_int_equal(lk_utf8_decode(s, cut, NULL), -1);
    }
}

static void broken_sequences_are_found(void **state) {
    static const struct {
        const char *text;
        int first; /* result of lk_utf8_decode */
        size_t valid;
    } row[] = {
        {"\x80", 0, 0},
        {"\xc0\x80", 0, 0},
        {"\xc1\xbf", 0, 0},
        {"\xe0\x80\x80", 0, 0},
        {"\xed\xa0\x80", 0, 0},
        {"\xf0\x80\x80\x80", 0, 0},
        {"\xf4\x90\x80\x80", 0, 0},
        {"\xf5\x80\x80\x80", 0, 0},
        {"\xff", 0, 0},
        {"\xc3"
         "a",
         0, 0},
        {"\xe2\x82"
         "a",
         0, 0},
        {"\xe2\x82", -1, 0},
        {"a\xc3\xa4\xe2\x82", 1, 3},
        {"\xe2\x82\xac\x80", 3, 3},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        size_t len = strlen(row[i].text);
        assert_int_equal(lk_utf8_decode(row[i].text, len, NULL), row[i].first);
        assert_int_equal(lk_utf8_valid_prefix(row[i].text, len), row[i].valid);
    }
}

static void decimals_have_no_trailing_zeros(void **state) {
    static const struct {
        unsigned thousandths;
        const char *text;
    } row[] = {{0, "0"},        {1, "0.001"},     {500, "0.5"},
               {1000, "1"},     {12500, "12.5"},  {62050, "62.05"},
               {100000, "100"}, {10010, "10.01"}, {4294967295u, "4294967.295"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char buf[16];
        assert_int_equal(lk_print_thousandths(buf, sizeof buf, row[i].thousandths),
                         strlen(row[i].text));
        assert_string_equal(buf, row[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(buffers_have_a_limit),
        cmocka_unit_test(every_code_point_is_decoded),
        cmocka_unit_test(broken_sequences_are_found),
        cmocka_unit_test(decimals_have_no_trailing_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
