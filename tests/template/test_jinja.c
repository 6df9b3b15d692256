/* The language of chat templates, and its limits. */
#include "template/jinja.h"
#include "test.h"

#include <time.h>

static void set_variables(struct lk_jinja_heap *heap, struct lk_jinja_dict *variables, void *user) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)user, name, value) {
        struct lk_jinja_text key = lk_jinja_text_of(heap, name, strlen(name), LK_FROM_TEMPLATE);
        lk_jinja_set(heap, variables, lk_jinja_string(key),
                     lk_jinja_from_json(heap, value, LK_FROM_DATA));
    }
}

/* The output of a template, or its error; owned. */
static char *render(const char *template, const char *variables) {
    struct lk_jinja *jinja = NULL;
    lk_err err = {0};
    lk_jinja_char *out = NULL;
    size_t n = 0;
    json_t *json = json_loads(variables, 0, NULL);
    assert_non_null(json);
    char *text;
    if (lk_jinja_parse(&jinja, template, strlen(template), &err) ||
        lk_jinja_render(jinja, strlen(variables), set_variables, json, &out, &n, &err)) {
        assert_null(strchr(err.msg, '\n'));
        text = strdup(err.msg);
    } else {
        text = calloc(n + 1, 1);
        for (size_t i = 0; i < n; i++) text[i] = (char)(out[i] & 0xFF);
    }
    free(out);
    lk_jinja_free(jinja);
    json_decref(json);
    return text;
}

static const struct {
    const char *template, *want;
} language[] = {
    {"a{{ 1 + 2 * 3 }}b", "a7b"},
    {"{{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }}", "9 3 2 3.5 8"},
    {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
    {"{% for a, b in [(1, 2), ('b', 'b'), (2.5, 1)] %}{{ a < b }} {{ a <= b }} {{ a > b }} "
     "{{ a >= b }} {{ a == b }} {{ a != b }}|{% endfor %}",
     "True True False False False True|False True False True True False|"
     "False False True True False True|"},
    {"{% if 0 %}a{% elif 'x' %}b{% else %}c{% endif %}", "b"},
    {"{{ range(-2147483648, -2147483646) | list }}", "[-2147483648, -2147483647]"},
    {"{{ {'items': 1}['items'] }}{% for k, v in {'a': 1}['items']() %}{{ k }}{{ v }}{% endfor %}",
     "1a1"},
    {"{% for i in [0, 1, 2, -2, -3] %}{{ [5, 6][i] }}{{ 'ab'[i] }}|{% endfor %}", "5a|6b||5a||"},
    {"{{ [{'n': 2}, {'n': 1}] | sort(false, false, 'n') }}", "[{'n': 1}, {'n': 2}]"},
    {"{{ '\\u00e9\\x41\\n\\u20ac\\x' }}", "\u00e9A\n\u20ac\\x"},
    {"{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
     "1/2:1 2/2:3 "},
    {"{% for i in [] %}x{% else %}none{% endfor %}", "none"},
    {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"},
    {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}"
     "{% endif %}{{ i }}{% endfor %}",
     "013"},
    {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
    {"{% set n = namespace(x=1) %}{% for i in [1] %}{% set n.x = 2 %}{% endfor %}{{ n.x }}", "2"},
    {"{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=3, a=0) }}",
     "[1,2][0,3]"},
    {"{% set t %}a{{ 1 }}{% endset %}<{{ t }}>", "<a1>"},
    {"{% filter upper %}ab{% endfilter %}", "AB"},
    {"{{ 'ABC dEF-gh1i' | title }}{{ 'ABC dEF-gh1i'.title() }}", "Abc Def-Gh1iAbc Def-Gh1I"},
    {"a  {%- if true -%}  b  {%- endif -%}  c", "abc"},
    {"a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
    {"a\n  {%+ if true +%}\nb{% endif %}", "a\n  \nb"},
    {"x{# no\n #}\ny", "xy"},
    {"{{ ' ab ' | trim }}|{{ 'aXbX'.split('X') }}|{{ 'a,b,c'.rsplit(',', 1) }}",
     "ab|['a', 'b', '']|['a,b', 'c']"},
    {"{{ 'll'.rsplit('l', 1) }}{{ 'allb'.rsplit('l', 1) }}", "['l', '']['al', 'b']"},
    {"{{ ' a '.strip('x'[1:]) }}|{{ ' a ' | trim([] | join) }}|{{ ' a ' | trim }}|", " a | a |a|"},
    {"{{ [1, 2] | tojson(separators=('x'[1:], ':')) }}", "[12]"},
    {"{{ 'hello'[1:3] }}{{ 'hello'[-1] }}{{ [1,2,3][::-1] }}", "elo[3, 2, 1]"},
    {"{{ 'h\xc3\xa9llo'[1] }}{{ 'h\xc3\xa9llo' | length }}", "\xc3\xa9"
                                                             "5"},
    {"{{ {'a': [1, 2.5, none, true, 'x\"\\n']} | tojson }}",
     "{\"a\": [1, 2.5, null, true, \"x\\\"\\n\"]}"},
    {"{{ {'a': [1], 'b': {}} | tojson(indent=2) }}", "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}"},
    {"{{ x is defined }}{{ y is defined }}{{ x is mapping }}{{ x.s is string }}{{ 3 is odd }}",
     "TrueFalseTrueTrueTrue"},
    {"{{ y }}{{ y | default('d') }}{{ x.nothing.more }}", "d"},
    {"{{ 'a' in 'cat' and 2 not in [1] and not 'z' in {'a': 1} }}", "True"},
    {"{{ 'yes' if x.n > 2 else 'no' }}{{ 1 < 2 < 3 }}", "yesTrue"},
    {"{{ ['b', 'a'] | sort | join('-') }} {{ [1, 2] | map('string') | list }} "
     "{{ [{'k': 1}, {'k': 2}] | selectattr('k', 'equalto', 2) | map(attribute='k') | first }}",
     "a-b ['1', '2'] 2"},
    {"{{ '%s=%d' % ('a', 3) }} {{ '{} {n}'.format(1, n=2) }}", "a=3 1 2"},
    {"{{ 'aXbX'.replace('X', '-') }}{{ 'ab'.startswith(('x', 'a')) }}", "a-b-True"},
    {"{% generation %}a{% endgeneration %}", "a"},
    {"{% set t %}{% set a = 1 %}x{% endset %}{{ t }}{{ a | length }}", "x0"},
    {"{% filter upper %}{% set a = 1 %}x{% endfilter %}{{ a is defined }}", "XFalse"},
    {"{% for i in 'ab' %}{% macro m(q=i) %}{{ q }}{{ i }}{% endmacro %}{{ m() }}{{ m(1) }}{% "
     "endfor %}",
     "aa1abb1b"},
    {"{% for i in 'ab' %}{% for j in 'c' %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor "
     "%}",
     "1010"},
    {"{{ ['b', 'A', 'a', 'B'] | sort | join }}{{ ['b', 'A', 'a'] | unique | join }}"
     "{{ ['b', 'A'] | min }}{{ ['b', 'A', 'C'] | max }}"
     "{{ ['b', 'A'] | sort(case_sensitive=true, reverse=true) | join }}",
     "AabBbAACbA"},
    {"{{ {'b': 1, 'A': 2} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}",
     "[('A', 2), ('b', 1)][('A', 2), ('b', 1)]"},
    {"{{ {'b': 1, 'A': 2, 'a': {}} | tojson(sort_keys=true) }}", "{\"A\": 2, \"a\": {}, \"b\": 1}"},
    {"{{ '12a' | int }} {{ ' 7 ' | int }} {{ '0x1A' | int(5) }} {{ '9007199254740993' | int }} "
     "{{ '1e3' | int }} {{ '1.5x' | float }} {{ 'x' | float(0.5) }} {{ none | int }} "
     "{{ true | int }} {{ true | abs }}",
     "0 7 5 9007199254740993 1000 0.0 0.5 0 1 1"},
    {"<{{ '' | indent(2, true) }}><{{ 'a\n\nb' | indent(1) }}>", "<  ><a\n\n b>"},
    /* methods, filters, tests and operators, as Jinja 2 prints them */
    {"{% set l = [3] %}{{ l.append(1) }}{{ l.extend([2, 3]) }}{{ l.insert(0, 9) }}{{ l.insert(-1, "
     "8) }}{{ l }}{{ l.pop() }}{{ l.pop(0) }}{{ l.pop(-1) }}{{ l.index(1) }}{{ l.count(3) }}{{ l "
     "}}",
     "NoneNoneNoneNone[9, 3, 1, 2, 8, 3]39811[3, 1, 2]"},
    {"{% set d = {'a': 1} %}{{ d.update(b=2) }}{{ d.update({'c': 3}) }}{{ d.pop('a') }}{{ "
     "d.pop('z', 7) }}{{ d.get('q') }}{{ d.get('q', 5) }}{{ d.get('b', 5) }}{{ d.keys() | list "
     "}}{{ d.values() | list }}{{ d.items() | list }}{{ d }}",
     "NoneNone17None52['b', 'c'][2, 3][('b', 2), ('c', 3)]{'b': 2, 'c': 3}"},
    {"{{ 'a-b-a'.rfind('a') }}{{ 'a-b-a'.find('z') }}{{ 'aaa'.count('a') }}{{ '12'.isdigit() }}{{ "
     "''.isdigit() }}{{ 'pre-x'.removeprefix('pre-') }}{{ 'x.py'.removesuffix('.py') }}{{ "
     "'x'.removesuffix('') }}{{ 'abc'.endswith(('x', 'c')) }}",
     "4-13TrueFalsexxxTrue"},
    {"{{ 'a,b,c'.split(',', 1) }}{{ 'a b  c'.split() }}{{ 'a,b,c'.rsplit(',', 1) }}{{ "
     "'a\nb\r\nc'.splitlines() }}{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xxaxx'.strip('x') "
     "}}{{ 'abc'.capitalize() }}{{ 'aXb'.lower() }}{{ ', '.join(['a', 'b']) }}",
     "['a', 'b,c']['a', 'b', 'c']['a,b', 'c']['a', 'b', 'c']x | x|aAbcaxba, b"},
    {"{{ '{0}{1}{0}'.format('a', 'b') }}{{ '{{{}}}'.format(1) }}{{ '{a}-{b}'.format(a=1, b='x') "
     "}}{{ 'x%sy%%' % 'z' }}{{ '%s' | format(3) }}",
     "aba{1}1-xxzy%3"},
    {"{{ 7.5 | round }} {{ 7.25 | round(1) }} {{ 2 ** -1 }} {{ 2.5 // 1 }} {{ -7.5 % 2 }} {{ 1 + "
     "1.5 }} {{ 3 - 1.5 }} {{ 2 * 1.5 }} {{ true + 1 }} {{ -(-3) }} {{ -2.5 }} {{ "
     "10000000000000000.0 }} {{ 0.00001 }}",
     "8.0 7.2 0.5 2.0 0.5 2.5 1.5 3.0 2 3 -2.5 1e+16 1e-05"},
    {"{{ [1, 2] | sum }}{{ [1, 2.5] | sum }}{{ [{'n': 2}, {'n': 3}] | sum(attribute='n') }}{{ "
     "[{'n': {'m': 2}}] | map(attribute='n.m') | first }}{{ [[1, 2]] | map(attribute=1) | first "
     "}}{{ [{}] | map(attribute='n', default=5) | first }}{{ [1, 2, 3] | select('odd') | list }}{{ "
     "[0, 1] | reject | list }}",
     "33.55225[1, 3][0]"},
    {"{{ [{'n': 1}, {}] | selectattr('n') | list }}{{ [{'n': 1}, {'n': 2}] | rejectattr('n', 'gt', "
     "1) | list }}{{ [{'n': 1}] | join(',', attribute='n') }}{{ 'abc' | list }}{{ 'abc' | reverse "
     "}}{{ 'abc' | first }}{{ 'abc' | last }}{{ {'a': 1} | list }}{{ {'a': 1} | items | list }}",
     "[{'n': 1}][{'n': 1}]1['a', 'b', 'c']cbaac['a'][('a', 1)]"},
    {"{{ none | default('d') }}{{ none | default('d', true) }}{{ u | default }}|{{ '<a "
     "href=\"x\">&\\'' | e }}{{ '<' | escape | length }}{{ 5 | string }}{{ 'a' | safe }}{{ {'a': "
     "1, 'b': 2} | tojson(separators=(',', ':')) }}{{ 'é' | tojson(ensure_ascii=true) }}{{ 'a\nb' "
     "| tojson "
     "}}",
     "Noned|&lt;a href=&#34;x&#34;&gt;&amp;&#39;45a{\"a\":1,\"b\":2}\"\\u00e9\"\"a\\nb\""},
    {"{{ 3 is odd }}{{ 4 is even }}{{ 1.5 is float }}{{ 1 is integer }}{{ true is boolean }}{{ 1 "
     "is number }}{{ [1] is iterable }}{{ {} is mapping }}{{ none is none }}{{ 'a' is string }}{{ "
     "range is callable }}{{ true is true }}{{ false is false }}{{ 'AB' is upper }}{{ 'ab' is "
     "lower }}{{ 'Ab' is lower }}{{ 6 is divisibleby(3) }}{{ 1 is in [1] }}",
     "TrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueTrueFalseTrueTrue"},
    {"{{ 1 is eq 1 }}{{ 1 is ne 1 }}{{ 1 is lt 2 }}{{ 2 is le 2 }}{{ 3 is gt 2 }}{{ 2 is ge 3 }}{{ "
     "'a' is equalto 'a' }}{{ 'a' is sameas 'a' }}{{ u is undefined }}{{ [1] == [1.0] }}{{ {'a': "
     "[1]} == {'a': [1]} }}{{ {'a': 1} == {'a': 2} }}{{ [1, 2] < [1, 3] }}{{ [1] < [1, 0] }}{{ 1 "
     "== 'a' }}{{ none == none }}{{ 'b' > 'a' }}",
     "TrueFalseTrueTrueTrueFalseTrueTrueTrueTrueTrueFalseTrueTrueFalseTrueTrue"},
    {"{{ [1, 2, 3][1] }}{{ [1, 2][5] }}{{ 'abc'[-2] }}{{ 'abc'[9] }}{{ {'a': 1}['a'] }}{{ {'a': "
     "1}.b }}{{ (1, 2)[0] }}{{ (1, 2) }}{{ (1,) }}{{ [1, 2, 3, 4][1:-1] }}{{ 'abcd'[::-2] }}{{ [1, "
     "2][:99] }}{{ 'abc'[-99:2] }}",
     "2b11(1, 2)(1,)[2, 3]db[1, 2]ab"},
    {"{{ range(3) | list }}{{ range(1, 7, 3) | list }}{{ range(3, 0, -1) | list }}{{ dict(a=1) "
     "}}{{ dict({'a': 1}, b=2) }}{% set n = namespace(a=1) %}{% set n.b = n.a + 1 %}{{ n.b }}{{ "
     "'a' if false }}{{ not 1 }}{{ 1 and 0 or 'z' }}{{ 'a' in {'a': 1} }}{{ 2 not in [1] }}",
     "[0, 1, 2][1, 4][3, 2, 1]{'a': 1}{'a': 1, 'b': 2}2FalsezTrueTrue"},
    /* errors */
    {"{{ raise_exception('no ' ~ 'way') }}", "the model's chat template, line 1: it says: no way"},
    {"a\n{% if %}", "the model's chat template, line 2: expected an expression, not '%}'"},
    {"{% if 1 %}", "the model's chat template, line 1: expected elif, but the template ends"},
    {"{{ 'a", "the model's chat template, line 1: a string has no end"},
    {"\n{{ 1 | nope }}", "the model's chat template, line 2: there is no filter 'nope'"},
    {"{{ 1 // 0 }}", "the model's chat template, line 1: division by zero"},
};

static void language_is_that_of_jinja(void **state) {
    for (size_t i = 0; i < sizeof language / sizeof *language; i++) {
        char *got = render(language[i].template, "{\"x\": {\"s\": \"t\", \"n\": 3}}");
        if (strcmp(got, language[i].want) != 0)
            fail_msg("%s:\n%s\nbut expected\n%s", language[i].template, got, language[i].want);
        free(got);
    }
}

static char *repeat(const char *start, const char *part, size_t n, const char *end) {
    size_t len = strlen(part);
    char *out = calloc(strlen(start) + n * len + strlen(end) + 1, 1), *at = out;
    at = stpcpy(at, start);
    for (size_t i = 0; i < n; i++, at += len) memcpy(at, part, len);
    strcpy(at, end);
    return out;
}

/* Values that an operation, a filter, a method or a test does not take. */
static void wrong_values_are_named(void **state) {
    static const struct {
        const char *expression, *named;
    } wrong[] = {
        {"[1]['a':]", "a slice needs integers"},
        {"[1][::0]", "the step of a slice is 0"},
        {"5[1:]", "cannot slice an integer"},
        {"5()", "cannot call an integer"},
        {"[] - {}", "cannot calculate with a list and a dict"},
        {"-'a'", "cannot negate a string"},
        {"1 < 'a'", "cannot compare an integer with a string"},
        {"1 in 5", "'in' needs a string, list or dict, not an integer"},
        {"1.5 % 0", "division by zero"},
        {"'%q' % 1", "cannot format with '%q'"},
        {"'a' | abs", "'abs' needs a number"},
        {"5 | length", "an integer has no length"},
        {"5 | dictsort", "'dictsort' needs a dict, not an integer"},
        {"5 | list", "cannot loop over an integer"},
        {"range('a')", "'range' needs small integers"},
        {"range(1, 9, 0)", "the step of 'range' is 0"},
        {"strftime_now('%H' * 64)", "'strftime_now' needs a short format"},
        {"5 is divisibleby(0)", "'divisibleby' needs integers other than 0"},
        {"5 is nope", "there is no test 'nope'"},
        {"'a'.find(5)", "expected a string, not an integer"},
        {"'a'.startswith(5)", "expected a string, not an integer"},
        {"'a'.count('')", "cannot count an empty string"},
        {"[].pop()", "the list has no element to pop"},
        {"[1].index(2)", "the list does not have this element"},
        {"a[]", "expected an index, not ']'"},
        {"1 ? 2", "unexpected character '?'"},
        {"loop.nope }}{% for i in [1] %}{{ loop.nope }}{% endfor %}{{ 1", "'loop' does not have"},
        {"1 }}{% nope %}{{ 1", "expected a statement, not 'nope'"},
        {"1 }}{% set y = 5 %}{% set y.s = 1 %}{{ 1", "cannot set an attribute of an integer"},
        {"1 }}{% for a, b in [[1]] %}{% endfor %}{{ 1", "cannot unpack 1 values"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char template[200];
        snprintf(template, sizeof template, "\n{{ %s }}", wrong[i].expression);
        char *got = render(template, "{\"x\": {}}");
        if (!strstr(got, "the model's chat template, line 2: ") || !strstr(got, wrong[i].named))
            fail_msg("%s: %s, expected '%s'", template, got, wrong[i].named);
        free(got);
    }
}

/* What would crash or never end is an error. */
static void limits_hold(void **state) {
    char *many_ifs = repeat("", "{% if 1 %}", 50000, ""),
         *parentheses = repeat("{{ ", "(", 200000, "1 }}"),
         *minus = repeat("{{ ", "-", 200000, "1 }}"), *dots = repeat("{{ a", ".b", 100000, " }}"),
         *sums = repeat("{{ 1", "+1", 100000, " }}");
    const struct {
        const char *template, *named;
    } bad[] = {
        {"{% set a = [] %}{% set _ = a.append(a) %}{{ a }}", "nested"},
        {"{% set a = [] %}{% set _ = a.append(a) %}{{ a == [a] }}{{ a | tojson }}", "nested"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested"},
        {many_ifs, "nested"},
        {parentheses, "nested"},
        {minus, "nested"},
        {dots, "nested"},
        {sums, "nested"},
        {"{% for i in range(1000000000) %}{% endfor %}", "memory"},
        {"{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps"},
        {"{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}"
         "{% endfor %}",
         "memory"},
        {"{{ 'x' * 200000000000 }}", "memory"},
        {"{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
         "memory"},
        {"{{ 9223372036854775807 + 1 }}", "too large"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "too large"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *got = render(bad[i].template, "{}");
        if (!strstr(got, "the model's chat template, line ") || !strstr(got, bad[i].named))
            fail_msg("%.60s: %.200s, expected '%s'", bad[i].template, got, bad[i].named);
        free(got);
    }
    char *lists = repeat("{\"x\": ", "[", 1000, ""), *deep = repeat(lists, "]", 1000, "}"),
         *got = render("", deep);
    if (!strstr(got, "nested")) fail_msg("deep variables: %.200s", got);
    free(got);
    free(deep);
    free(lists);
    free(many_ifs);
    free(parentheses);
    free(minus);
    free(dots);
    free(sums);
}

/* `loop` may be kept longer than its loop: as in Python, it stays what it was at last. */
static void loops_may_be_kept(void **state) {
    static const struct {
        const char *template, *want;
    } kept[] = {
        {"{% set n = namespace() %}{% for x in [1, 2] %}{% set n.l = loop %}{% endfor %}"
         "{{ n.l.index }}{{ n.l.last }}{{ n.l.previtem }}{{ n.l.length }}{{ n.l.revindex0 }}",
         "2True120"},
        {"{% set l = [] %}{% for x in 'abc' %}{% set _ = l.append(loop) %}{% endfor %}"
         "{{ l[0].length }}{{ l[2].previtem }}",
         "3b"},
        {"{% set n = namespace() %}{% for x in [1, 2] %}{% set n.c = loop.cycle %}{% endfor %}"
         "{{ n.c(7, 8) }}",
         "8"},
        {"{% set d = {} %}{% for x in [1, 2, 3] %}{% set _ = d.update(k=loop) %}"
         "{% if x == 2 %}{% break %}{% endif %}{% endfor %}{{ d.k.nextitem }}{{ d.k.index0 }}",
         "31"},
        {"{% set n = namespace() %}{% macro keep() %}{% for x in [1, 2] %}{% set n.l = loop %}"
         "{% endfor %}{% endmacro %}{% macro deep(k) %}{% if k %}{{ deep(k - 1) }}{% endif %}"
         "{% endmacro %}{{ keep() }}{{ deep(9) }}{{ n.l.previtem }}",
         "1"},
        {"{% set n = namespace() %}{% for x in [1, 2] %}{% for y in 'pq' %}{% if x == 1 %}"
         "{% set n.l = loop %}{% endif %}{% endfor %}{{ 'z' * 99 }}{% endfor %}{{ n.l.previtem }}",
         NULL},
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        char *got = render(kept[i].template, "{}");
        if (kept[i].want ? strcmp(got, kept[i].want) != 0 : !strstr(got, "zp"))
            fail_msg("%s:\n%s", kept[i].template, got);
        free(got);
    }
}

/* Work on texts and lists counts, however it is asked for: many rounds end with an error soon. */
static void work_is_counted(void **state) {
    static const char *const rounds[] = {
        "a.strip(b)",
        "a.lstrip('y' * 20000 ~ 'x')",
        "a.rstrip('y' * 20000 ~ 'x')",
        "'z'.strip(a).strip(a).strip(a)",
        "a | trim(a)",
        "a | tojson",
        "a | escape",
        "[a] | string",
        "a | indent(64)",
        "a % ()",
        "a.format()",
        "a is upper",
        "a is lower",
        "a.isdigit()",
        "l.count(0)",
        "l.index(2999)",
        "l | sum",
        "l | min",
        "l | max",
        "l | select('odd') | first",
        "l[:500] | sort | first",
        "l == m",
        "l <= m",
        "l in [m]",
        "d.pop('none', 1)",
        "a | length",
        "a[9:]",
        "a.split('y')",
        "a.split()",
        "a.splitlines()",
        "a.replace('y', 'z')",
        "a.rfind('y')",
        "a.count('y')",
        "a | upper",
        "a ~ b",
        "a + a",
        "a == b",
        "a < b",
        "b in a",
        "a.startswith(b)",
        "l | map('string') | first",
        "l | join",
        "l | reverse | first",
        "l | unique | first",
        "l + m",
        "l[1:]",
        "d | dictsort | first",
        "d | tojson",
        "d | items | first",
        "d.keys()",
        "[0.1234567890123456] | string",
        "f | tojson",
        "a | list | first",
        "a | reverse",
        "l | list | first",
        "a * 2",
        "l | selectattr('a') | list",
        "dict(d)",
        "range(3000)",
        "strftime_now('%H')",
    };
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        char template[600];
        snprintf(template, sizeof template,
                 "{%% set a = 'x' * 20000 %%}{%% set b = a[:9000] ~ a[9000:] %%}"
                 "{%% set l = range(3000) | list %%}{%% set m = range(3000) | list %%}"
                 "{%% set f = [0.1234567890123456] %%}{%% set d = {} %%}"
                 "{%% for i in range(200) %%}{%% set _ = d.update({i: i}) %%}{%% endfor %%}"
                 "{%% for i in range(3000) %%}{%% for k in range(3000) %%}"
                 "{%% set z = %s %%}{%% endfor %%}{%% endfor %%}",
                 rounds[i]);
        clock_t start = clock();
        char *got = render(template, "{}");
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (!strstr(got, "steps") && !strstr(got, "memory")) fail_msg("%s: %.300s", rounds[i], got);
        if (seconds > 3) fail_msg("%s: %.1f s", rounds[i], seconds);
        free(got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(language_is_that_of_jinja),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(loops_may_be_kept),
        cmocka_unit_test(work_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
