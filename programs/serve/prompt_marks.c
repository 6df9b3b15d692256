/* Where later prompts will probably differ from a chat's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem, memrchr */
#endif
#include "serve/prompt_marks.h"

#include "serve/tokens.h"

#include <string.h>

static const char mark = '\xFF'; /* of a control token in marked text (lk_chat_format) */
static const char *const space = " \t\r\n";

/* The first and the last place of a message's content in a text. Templates may remove white space
 * around it. False if it is not there. */
static bool find_content(const char *text, const json_t *message, const char **first,
                         const char **last, size_t *len) {
    const char *content = json_string_value(json_object_get(message, "content"));
    if (!content) return false;
    content += strspn(content, space);
    *len = strlen(content);
    while (*len > 0 && strchr(space, content[*len - 1])) --*len;
    const char *end = text + strlen(text);
    *first = *last = *len ? memmem(text, (size_t)(end - text), content, *len) : NULL;
    for (const char *at = *first; at;
         at = memmem(at + *len, (size_t)(end - at) - *len, content, *len))
        *last = at;
    return *first != NULL;
}

/* The position of the control token that is marked at `at` in the text: both have equally many
 * after it. 0 if they do not. */
static size_t token_position(const struct lk_prompt *p, const lk_model *model, const char *at) {
    size_t n = 0;
    for (; at && *at; at = strchr(at + 1, mark)) n++;
    for (size_t i = p->n_tok; n > 0 && i-- > 0;)
        if (lk_token_is_control(model, p->tok[i]) && --n == 0) return i;
    return 0;
}

/* Returns the position, or 0. */
static size_t add_mark(struct lk_prompt *p, const lk_model *model, const char *at) {
    size_t position = at ? token_position(p, model, at) : 0;
    if (position > 0) p->mark[p->n_mark++] = position;
    return position;
}

/* The number of tokens that the text up to `end`, which is not before a control token, has in
 * common with the prompt: other tokens may span the end. 0: it is not known. */
static size_t common_tokens(const struct lk_prompt *p, const lk_model *model, const char *end) {
    int32_t *tok;
    size_t n_tok;
    if (lk_tokenize(model, p->text, (size_t)(end - p->text), LK_TOKENIZE_BEGIN | LK_TOKENIZE_MARKED,
                    p->n_tok, &tok, &n_tok, NULL) != LK_OK)
        return 0;
    size_t n = lk_tokens_common_prefix(tok, n_tok, p->tok, p->n_tok);
    lk_tokens_free(tok);
    return n;
}

void lk_prompt_marks_find(struct lk_prompt *p, const json_t *messages, const lk_model *model) {
    const char *first, *last;
    size_t len, n = json_array_size(messages);
    const json_t *system = json_array_get(messages, 0), *user = NULL;
    while (n > 0 && !user) {
        const json_t *message = json_array_get(messages, --n);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && strcmp(role, "user") == 0) user = message;
    }
    p->n_mark = p->n_system = 0;
    if (!p->text) return;
    if (user && find_content(p->text, user, &first, &last, &len))
        add_mark(p, model, memrchr(p->text, mark, (size_t)(last - p->text)));
    if (!system || system == user || !find_content(p->text, system, &first, &last, &len)) return;
    const char *end = first + len, *rest = end + strspn(end, space);
    if (*rest == mark || *rest == 0) {
        p->n_system = add_mark(p, model, *rest ? rest : NULL);
    } else { /* the template has the question in the same message */
        p->n_system = common_tokens(p, model, end);
        if (p->n_system > 0) p->mark[p->n_mark++] = p->n_system;
    }
}
