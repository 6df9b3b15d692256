/* Fuzz target: any body of a request either is understood, or gives one line that says why not and a
 * status of the client's fault. The first byte chooses what it is the body of. */
#include "serve/ask.h"
#include "serve/schema.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_fault(const struct lk_fault *fault) {
    if (fault->status < 400 || fault->status > 499 || !fault->msg[0] || strchr(fault->msg, '\n'))
        abort();
    json_t *json = lk_fault_json(fault);
    if (!json) abort();
    json_decref(json);
}

static void check_ask(const struct lk_ask *ask) {
    if (ask->n < 1 || ask->n > LK_MAX_N || ask->n_stop > LK_MAX_STOP ||
        ask->n_prompt > LK_MAX_PROMPT || ask->recipe > 1)
        abort();
    for (size_t i = 0; i < ask->n_msg; i++)
        if (!ask->msg[i].role || !ask->msg[i].content) abort();
    for (size_t i = 0; i < ask->n_stop; i++)
        if (!ask->stop[i][0]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lk_recipe *recipes[2];
    struct lk_serve_opts opts = lk_serve_defaults();
    struct lk_fault fault = {0};
    struct lk_ask ask;
    if (size == 0) return 0;
    if (!recipes[0] &&
        (lk_recipe_parse(&recipes[0], "best-4", NULL) || lk_recipe_parse(&recipes[1], "f16", NULL)))
        return 0;
    opts.id = "m";
    opts.recipe = (const lk_recipe *const *)recipes;
    opts.n_recipe = 2;
    bool chat = data[0] % 2;
    bool good = chat ? lk_ask_chat(&ask, &opts, (const char *)data + 1, size - 1, &fault)
                     : lk_ask_completion(&ask, &opts, (const char *)data + 1, size - 1, &fault);
    if (good)
        check_ask(&ask);
    else
        check_fault(&fault);
    lk_ask_free(&ask);

    json_t *schema = json_loadb((const char *)data + 1, size - 1, JSON_DECODE_ANY, NULL);
    if (schema) {
        char *grammar =
            lk_schema_grammar(schema, &(struct lk_schema_use){.field = "response_format"}, &fault);
        if (!grammar) check_fault(&fault);
        free(grammar);
    }
    json_decref(schema);
    return 0;
}
