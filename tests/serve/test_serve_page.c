/* The files of the web page, and what the page learns about recipes. tests/serve/page_check.py uses
 * the page in a browser. */
#include "serve/page.h"
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

static const char *const keys[] = {"secret-key"};

static struct lk_server *start_with_key(void) {
    struct lk_server_opts opts = serve_options();
    opts.session_dir = NULL;
    opts.key = keys;
    opts.n_key = 1;
    return serve_start(&opts);
}

static void expect_file(const struct lk_server *server, const char *path, const char *type) {
    char line[100];
    struct http_reply reply = http_request(lk_server_port(server), "GET", path, "", "");
    snprintf(line, sizeof line, "\r\nContent-Type: %s; charset=utf-8\r\n", type);
    if (reply.status != 200 || !strstr(reply.head, line))
        fail_msg("%s: %d %s", path, reply.status, reply.head);
    /* Only files of the page can run, and they cannot load anything from other servers. */
    const char *policy = strstr(reply.head, "\r\nContent-Security-Policy: ");
    assert_non_null(policy);
    assert_non_null(strstr(policy, "default-src 'none'; script-src 'self';"));
    assert_non_null(strstr(policy, "require-trusted-types-for 'script'"));
    assert_null(strstr(policy, "unsafe"));
    assert_null(strstr(policy, "http"));
    assert_non_null(strstr(reply.head, "\r\nReferrer-Policy: no-referrer\r\n"));
    http_free(&reply);
}

static void files_need_no_key(void **state) {
    struct lk_server *server = start_with_key();
    expect_file(server, "/", "text/html");
    expect_file(server, "/page/page.css", "text/css");
    expect_file(server, "/page/main.js", "text/javascript");
    expect_file(server, "/page/marked.js", "text/javascript");
    static const char *const missing[] = {"/page/nothing", "/page/../page.html", "/page/a/main.js"};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        struct http_reply reply = http_request(lk_server_port(server), "GET", missing[i], "", "");
        if (reply.status != 404) fail_msg("%s: %d", missing[i], reply.status);
        http_free(&reply);
    }
    lk_server_stop(server);
}

/* Every file that another one names is embedded: page.html names "page/NAME", scripts "./NAME". */
static void named_files_exist(void **state) {
    static const char *const from[] = {"page.html", "main.js", "list.js", "log.js", "markdown.js"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        const struct lk_page_file *file = lk_page_find(from[i]);
        assert_non_null(file);
        assert_int_equal(strlen(file->text), *file->len);
        const char *mark = i == 0 ? "\"page/" : "from \"./";
        for (const char *at = file->text; (at = strstr(at, mark)); n++) {
            char name[64] = "";
            at += strlen(mark);
            sscanf(at, "%63[^\"]", name);
            if (!lk_page_find(name)) fail_msg("%s names %s", from[i], name);
        }
    }
    assert_true(n > 15);
    assert_null(lk_page_find(""));
}

static void recipes_have_a_loss(void **state) {
    static const struct {
        const char *recipe, *loss;
    } expected[] = {
        {"f16", "none"},
        {"sink 4: f16; body: f16; window 16: f16", "none"},
        {"selective", "minimal"},
        {"best-4", "minimal"},
        {"body: int8", "minimal"},
        {"kivi-4", "small"},
        {"best-3", "small"},
        {"best-2", "large"},
        {"kivi-2", "large"},
        {"lambda", "forgets"},
        {"h2o", "forgets"},
        {"sink 4: f16; body: none; window 16: f16", "forgets"},
        {"qwen2.5-coder-0.5b-4", "minimal"},
        {"all: f16; read 25%", "forgets"},
    };
    enum { N = sizeof expected / sizeof expected[0] };
    lk_recipe *list[N];
    for (size_t i = 0; i < N; i++)
        assert_int_equal(lk_recipe_parse(&list[i], expected[i].recipe, NULL), LK_OK);
    struct lk_server_opts opts = serve_options();
    opts.session_dir = NULL;
    opts.recipe = (const lk_recipe *const *)list;
    opts.n_recipe = N;
    struct lk_server *server = serve_start(&opts);
    json_t *models = request_json(server, 200, "GET", "/v1/models", "");
    const json_t *meta =
                     json_object_get(json_array_get(json_object_get(models, "data"), 0), "meta"),
                 *kv = json_object_get(meta, "kv");
    assert_int_equal(json_array_size(kv), N);
    for (size_t i = 0; i < N; i++) {
        const json_t *loss = json_object_get(json_array_get(kv, i), "loss");
        assert_string_equal(json_string_value(loss), expected[i].loss);
    }
    json_decref(models);
    lk_server_stop(server);
    for (size_t i = 0; i < N; i++) lk_recipe_free(list[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_need_no_key),
        cmocka_unit_test(named_files_exist),
        cmocka_unit_test(recipes_have_a_loss),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
