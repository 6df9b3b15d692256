/* Fuzz target: a request body is either parsed, or rejected with a one-line message and a 4xx
 * status. The first byte selects the endpoint, the rest is the body. The body is also converted as
 * a JSON schema. */
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/schema.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const struct lk_api_error *error) {
    if (error->status < 400 || error->status > 499 || !error->msg[0] || strchr(error->msg, '\n'))
        abort();
    json_t *json = lk_api_error_json(error);
    if (!json) abort();
    json_decref(json);
}

static void check_request(const struct lk_request *request) {
    if (request->n < 1 || request->n > LK_MAX_N || request->n_stop > LK_MAX_STOP ||
        request->n_prompt > LK_MAX_PROMPT || request->recipe > 1)
        abort();
    for (size_t i = 0; i < request->n_msg; i++)
        if (!request->msg[i].role || !request->msg[i].content) abort();
    for (size_t i = 0; i < request->n_stop; i++)
        if (!request->stop[i][0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lk_recipe *recipes[2];
    struct lk_server_opts opts = lk_server_defaults();
    struct lk_api_error error = {0};
    struct lk_request request;
    if (size == 0) return 0;
    if (!recipes[0] &&
        (lk_recipe_parse(&recipes[0], "best-4", NULL) || lk_recipe_parse(&recipes[1], "f16", NULL)))
        return 0;
    opts.id = "m";
    opts.recipe = (const lk_recipe *const *)recipes;
    opts.n_recipe = 2;
    const char *body = (const char *)data + 1;
    bool good = data[0] % 2 ? lk_openai_chat_parse(&request, &opts, body, size - 1, &error)
                            : lk_openai_completion_parse(&request, &opts, body, size - 1, &error);
    if (good)
        check_request(&request);
    else
        check_error(&error);
    lk_request_free(&request);

    json_t *schema = json_loadb(body, size - 1, JSON_DECODE_ANY, NULL);
    if (schema) {
        char *grammar =
            lk_schema_grammar(schema, &(struct lk_schema_use){.field = "response_format"}, &error);
        if (!grammar) check_error(&error);
        free(grammar);
    }
    json_decref(schema);
    return 0;
}
