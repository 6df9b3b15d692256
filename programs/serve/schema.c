/* Turns a schema of a request into a grammar with the library's converter. */
#include "serve/schema.h"

#include "base/buf.h"
#include "lowkey.h"

#include <stdlib.h>
#include <string.h>

/* Replace the rule "root ::= RULE" by one with the text around the JSON. Frees `grammar`. */
static char *wrap_root(char *grammar, const struct lk_schema_use *use) {
    static const char root[] = "\nroot ::= ";
    struct lk_buf out = {0};
    const char *rule = strstr(grammar, root) + sizeof root - 1;
    size_t len = strcspn(rule, "\n");
    lk_buf_append(&out, grammar, (size_t)(rule - grammar));
    lk_buf_printf(&out, "\"%s\" ", use->before ? use->before : "");
    lk_buf_append(&out, rule, len);
    lk_buf_printf(&out, " \"%s\"", use->after ? use->after : "");
    lk_buf_append_str(&out, rule + len);
    free(grammar);
    if (out.failed) lk_buf_free(&out);
    return out.at;
}

char *lk_schema_grammar(const json_t *schema, const struct lk_schema_use *use,
                        struct lk_api_error *fault) {
    char *grammar = NULL, *text = json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT);
    lk_err err = {0};
    lk_status status = LK_E_NOMEM;
    if (text) status = lk_schema_to_grammar(text, strlen(text), &grammar, &err);
    free(text);
    if (!status && (use->before || use->after)) {
        grammar = wrap_root(grammar, use);
        if (!grammar) status = LK_E_NOMEM;
    }
    if (!status) return grammar;
    if (status == LK_E_NOMEM)
        lk_api_error_set(fault, 503, "out_of_memory", NULL, "not enough memory for a grammar");
    else
        lk_api_error_set(fault, 400, "unsupported_schema", use->field, "%s", err.msg);
    return NULL;
}
