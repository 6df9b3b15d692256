/* Thoughts and answers of every form, whole and split at any place. */
#include "serve/thoughts.h"
#include "test.h"

/* What templates contain, and how their prompts end. */
static const char plain[] = "{{ '<|im_start|>assistant' }}", gemma[] = "{{ '<|channel>thought' }}",
                  mistral[] = "[THINK]", granite[] = "<think></think><response></response>",
                  messages[] = "{{- '<|start|>assistant<|channel|>final<|message|>' }}";
#define OSS                                                                                        \
    "<|message|>hi<|end|>\xFF<|start|>\xFE"                                                        \
    "assistant"

static const struct example {
    const char *template, *prompt, *text, *thoughts, *answer;
} examples[] = {
    {plain, "", "Hello <think>x</think>", "", "Hello <think>x</think>"},
    {plain, "", "<think>\nSo.\n\nIt is </thin.\n</think>\n\nHello\n", "So.\n\nIt is </thin.",
     "Hello\n"},
    {plain, "", " \n<think>a</think>b", "a", "b"},
    {plain, "", "<think></think>b", "", "b"},
    {plain, "", "<think>a  ", "a", ""},
    {plain, "", "<thin", "", "<thin"},
    {plain, "", "\n <", "", "\n <"},
    {plain, "", "<think>a</think> <think>b</think>", "a", "<think>b</think>"},
    {plain, "x<think>\n", "a\n</think>\n\nb", "a", "b"},
    {plain, "\xFF<think>\xFE", "a</think>b", "a", "b"},
    {plain, "<think>\n\n</think>\n\n", "b", "", "b"},
    {plain, "<think>\n", "a", "a", ""},
    {NULL, "", "<think>a</think>b", "a", "b"},
    {gemma, "", "<|channel>thought\na\n<channel|>b <|channel>thought\nc<channel|>d", "a\n\nc",
     "b d"},
    {gemma, "<|channel>thought\n<channel|>", "b<|chan", "", "b<|chan"},
    {mistral, "", "[THINK]a[/THIN[/THINK]b", "a[/THIN", "b"},
    {mistral, "[INST]x[/INST][THINK]", "a[/THINK]b", "a", "b"},
    {granite, "", "<think>a</think>\n\n<response>b <response>\n</response>c", "a",
     "b <response>\nc"},
    {granite, "", "<think>a</think>b</response>", "a", "b</response>"},
    {granite, "", "<think>a</think><respons", "a", "<respons"},
    /* gpt-oss */
    {messages, OSS,
     "<|channel|>analysis<|message|>So <it> is.<|end|><|start|>assistant<|channel|>final"
     "<|message|>Hello <|x|>",
     "So <it> is.", "Hello <|x|>"},
    {messages, OSS,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>I "
     "look.<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant"
     "<|channel|>final<|message|>Hello",
     "a\n\nb", "I look.\n\nHello"},
    {messages, OSS,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|>\"}<|call|>",
     "a",
     "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": "
     "\"<|end|>\"}<|call|>"},
    {messages, OSS, " to=functions.f<|channel|>commentary json<|message|>{}", "",
     "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}"},
    {messages, OSS, "{\"a\": 1}", "", "{\"a\": 1}"},
    {messages, OSS, "<|channel|>analysis", "", "<|channel|>analysis"},
    {messages, OSS, "<|channel|>final<|message|>a<|return|>", "", "a"},
    {messages, OSS, "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "a", "b"},
    {messages, OSS, "<|chan", "", "<|chan"},
    {messages, OSS, "a<|chan", "", "a<|chan"},
    {messages, "<|channel|>final<|message|>Hel", "lo<|end|>", "", "lo"},
    /* the form of another model is text */
    {plain, "", "<|channel|>analysis<|message|>a", "", "<|channel|>analysis<|message|>a"},
    {messages, OSS, "<think>a</think>b", "", "<think>a</think>b"},
};
enum { N_EXAMPLE = sizeof examples / sizeof *examples };

struct parts {
    struct lk_buf thoughts, answer;
};

static void free_parts(struct parts *p) {
    lk_buf_free(&p->thoughts);
    lk_buf_free(&p->answer);
}

/* The parts of an answer that arrives as text[0..first) and then in pieces of `step`. */
static struct parts split(const struct lk_thought_form *form, const char *prompt, bool constrained,
                          const char *text, size_t first, size_t step) {
    struct parts p = {{0}, {0}};
    struct lk_thoughts t;
    size_t len = strlen(text);
    lk_thoughts_init(&t, form, prompt, constrained);
    for (size_t at = 0, n = first; at < len; at += n, n = step) {
        if (n > len - at) n = len - at;
        lk_thoughts_push(&t, text + at, n, &p.thoughts, &p.answer);
    }
    lk_thoughts_finish(&t, &p.thoughts, &p.answer);
    lk_thoughts_free(&t);
    return p;
}

static void forms(void **state) {
    for (size_t i = 0; i < N_EXAMPLE; i++) {
        const struct example *e = &examples[i];
        size_t len = strlen(e->text);
        for (size_t first = 0; first <= len; first++)
            for (size_t step = 1; step <= len + 1; step += step) {
                struct parts p =
                    split(lk_thought_form_of(e->template), e->prompt, false, e->text, first, step);
                if (strcmp(lk_buf_cstr(&p.thoughts), e->thoughts) ||
                    strcmp(lk_buf_cstr(&p.answer), e->answer))
                    fail_msg("%s\nsplit at %zu, then every %zu:\n%s\nand\n%s", e->text, first, step,
                             lk_buf_cstr(&p.thoughts), lk_buf_cstr(&p.answer));
                free_parts(&p);
            }
    }
}

/* A grammar may close the thoughts that the prompt opens, or ignore them. */
static void constrained_answers(void **state) {
    static const char *const texts[] = {"{}", "\n</think>\n\n{}", "</think>{}"};
    for (size_t i = 0; i < 3; i++) {
        struct parts p = split(lk_thought_form_of(plain), "<think>\n", true, texts[i], 1, 1);
        assert_int_equal(p.thoughts.len, 0);
        assert_string_equal(lk_buf_cstr(&p.answer), "{}");
        free_parts(&p);
    }
}

static void without_form(void **state) {
    struct parts p = split(NULL, "<think>", false, "<think>a</think>b", 3, 2);
    assert_int_equal(p.thoughts.len, 0);
    assert_string_equal(lk_buf_cstr(&p.answer), "<think>a</think>b");
    free_parts(&p);
}

#define SPACE "                                "

/* Text is sent as soon as it is known what it is. */
static void text_is_sent_at_once(void **state) {
    static const struct {
        const char *template, *prompt, *text;
        size_t n_thoughts, n_answer;
    } cases[] = {
        {plain, "", "H", 0, 1},
        {plain, "", "<thin", 0, 0},
        {plain, "", "<thing", 0, 6},
        {plain, "", SPACE SPACE, 0, 0},
        {plain, "", SPACE SPACE " ", 0, 65},
        {plain, "", SPACE SPACE " <think>", 0, 72},
        {plain, "", "<think>a b ", 3, 0},
        {plain, "", "<think>a</th", 1, 0},
        {plain, "", "<think>a</tx", 5, 0},
        {plain, "", "<think>a</think>b ", 1, 2},
        {messages, OSS, "<|channel|>analysis<|message|>a ", 2, 0},
        {messages, OSS, "<|channel|>final<|message|>a<|", 0, 1},
        {messages, OSS, "<|channel|>final<|message|>a<|x", 0, 4},
        {gemma, "", "a <|channel", 0, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct parts p = {{0}, {0}};
        struct lk_thoughts t;
        lk_thoughts_init(&t, lk_thought_form_of(cases[i].template), cases[i].prompt, false);
        lk_thoughts_push(&t, cases[i].text, strlen(cases[i].text), &p.thoughts, &p.answer);
        if (p.thoughts.len != cases[i].n_thoughts || p.answer.len != cases[i].n_answer)
            fail_msg("%s: %zu bytes of thoughts and %zu of the answer", cases[i].text,
                     p.thoughts.len, p.answer.len);
        lk_thoughts_free(&t);
        free_parts(&p);
    }
}

/* Random mixtures of words: the parts do not depend on how the text is split, and only words and
 * white space around them are missing. */
static void random_texts(void **state) {
    static const char *const words[] = {"<think>",
                                        "</think>",
                                        "<response>",
                                        "</response>",
                                        "[THINK]",
                                        "[/THINK]",
                                        "<|channel>thought",
                                        "<channel|>",
                                        "<|start|>assistant",
                                        "<|channel|>",
                                        "analysis",
                                        "final",
                                        " to=functions.f",
                                        "<|message|>",
                                        "<|end|>",
                                        "<|call|>",
                                        "abc",
                                        " ",
                                        "\n",
                                        "<",
                                        "<|"};
    static const char *const templates[] = {plain, gemma, mistral, granite, messages};
    static const char *const prompts[] = {"", "<think>\n", "[THINK]", OSS};
    uint32_t random = 1;
    for (int k = 0; k < 20000; k++) {
        char text[400] = "";
        size_t n_abc = 0, n_found = 0;
        for (uint32_t n = random >> 8 & 15, i = 0; i < n; i++) {
            random = random * 1664525u + 1013904223u;
            const char *word = words[(random >> 8) % (sizeof words / sizeof *words)];
            strcat(text, word);
            n_abc += strcmp(word, "abc") == 0;
        }
        random = random * 1664525u + 1013904223u;
        const struct lk_thought_form *form = lk_thought_form_of(templates[(random >> 8) % 5]);
        const char *prompt = prompts[(random >> 12) % 4];
        bool constrained = random >> 20 & 1;
        struct parts whole = split(form, prompt, constrained, text, 400, 1),
                     pieces = split(form, prompt, constrained, text, 1 + (random >> 16) % 7, 1);
        assert_string_equal(lk_buf_cstr(&whole.thoughts), lk_buf_cstr(&pieces.thoughts));
        assert_string_equal(lk_buf_cstr(&whole.answer), lk_buf_cstr(&pieces.answer));
        for (const char *at = lk_buf_cstr(&whole.thoughts); (at = strstr(at, "abc")); at++)
            n_found++;
        for (const char *at = lk_buf_cstr(&whole.answer); (at = strstr(at, "abc")); at++) n_found++;
        if (!form->has_messages && n_found != n_abc) fail_msg("%s: text was lost", text);
        free_parts(&whole);
        free_parts(&pieces);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),        cmocka_unit_test(constrained_answers),
        cmocka_unit_test(without_form), cmocka_unit_test(text_is_sent_at_once),
        cmocka_unit_test(random_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
