/* Prompts to fill in the middle. */
#include "serve/infill.h"

#include "base/buf.h"
#include "serve/tokens.h"

enum { MAX_EXTRA = 256 }; /* other files of a request */

/* Append other files: each with the model's own token before its name, or as comments. */
static bool append_extra(const json_t *extra, const lk_model *model, const lk_fim_tokens *fim,
                         struct lk_buf *out, struct lk_api_error *error) {
    const json_t *file;
    size_t i;
    if (!extra || json_is_null(extra)) return true;
    if (!json_is_array(extra) || json_array_size(extra) > MAX_EXTRA)
        return lk_api_error_set(error, 400, "invalid_type", "input_extra",
                                "'input_extra' must be an array of at most %d objects", MAX_EXTRA);
    bool tokens = fim->repo >= 0 && fim->file >= 0;
    if (tokens && json_array_size(extra) > 0) {
        lk_token_append_marked(model, fim->repo, out);
        lk_buf_append_str(out, "project\n");
    }
    json_array_foreach(extra, i, file) {
        const char *text = json_string_value(json_object_get(file, "text")),
                   *name = json_string_value(json_object_get(file, "filename"));
        if (!text)
            return lk_api_error_set(error, 400, "invalid_type", "input_extra",
                                    "input_extra[%zu].text must be a string", i);
        if (tokens) lk_token_append_marked(model, fim->file, out);
        lk_buf_printf(out, tokens ? "%s\n" : "--- %s ---\n", name ? name : "file");
        lk_buf_append_str(out, text);
        lk_buf_append_str(out, "\n");
    }
    if (tokens && json_array_size(extra) > 0) {
        lk_token_append_marked(model, fim->file, out);
        lk_buf_append_str(out, "current\n");
    }
    return true;
}

bool lk_infill_format(const struct lk_infill *infill, const lk_model *model, char **out,
                      struct lk_api_error *error) {
    struct lk_buf text = {0};
    lk_fim_tokens fim = lk_model_get_fim_tokens(model);
    if (fim.prefix < 0 || fim.suffix < 0 || fim.middle < 0)
        return lk_api_error_set(error, 501, "unsupported", NULL,
                                "this model has no tokens to fill in the middle; use a model that "
                                "was trained for it, such as Qwen2.5-Coder");
    bool good = append_extra(infill->extra, model, &fim, &text, error);
    lk_token_append_marked(model, fim.prefix, &text);
    lk_buf_append_str(&text, infill->prefix ? infill->prefix : "");
    lk_buf_append_str(&text, infill->prompt ? infill->prompt : "");
    lk_token_append_marked(model, fim.suffix, &text);
    lk_buf_append_str(&text, infill->suffix ? infill->suffix : "");
    lk_token_append_marked(model, fim.middle, &text);
    if (good && text.failed)
        good = lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    if (!good) lk_buf_free(&text);
    if (good) *out = text.at;
    return good;
}
