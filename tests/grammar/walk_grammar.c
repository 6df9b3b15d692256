/* Texts of grammars, for compare_schemas.py: reads lines of JSON with a "schema", a "seed" and
 * "texts", and writes for each a line with texts that the schema's grammar made, null for each that
 * grew too long, and whether it accepts each of the given ones, or an error. */
#include "base/buf.h"
#include "grammar/grammar_state.h"
#include "lowkey_serve.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_WALK = 8, MAX_TEXT = 400 };

static uint64_t draw(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

/* Of the bytes that may follow: mostly one that ends something, so that texts stay short. */
static int choose(const uint64_t allowed[4], uint64_t *random) {
    static const char ends[] = "\"]}:,\\";
    int n = 0, byte = -1;
    bool closes = draw(random) % 4 == 0;
    for (int c = 1; c < 256; c++)
        if (allowed[c / 64] >> c % 64 & 1 && !strchr(" \n\t\r", c))
            if ((!closes || strchr(ends, c)) && draw(random) % (uint64_t)++n == 0) byte = c;
    for (int c = 1; c < 256 && byte < 0; c++)
        if (allowed[c / 64] >> c % 64 & 1 && draw(random) % (uint64_t)++n == 0) byte = c;
    return byte;
}

/* A text that the grammar accepts, a new reference. */
static json_t *walk(struct lk_grammar_state *s, const struct lk_token_bytes *bytes,
                    uint64_t *random) {
    struct lk_buf text = {0};
    json_t *out = NULL;
    lk_buf_append_str(&text, "");
    lk_grammar_reset(s);
    while (!out && text.len < MAX_TEXT) {
        uint64_t allowed[4];
        bool accepted;
        if (lk_grammar_mask(s, bytes, allowed, NULL)) break;
        int byte = choose(allowed, random);
        if (lk_grammar_is_complete(s) && (byte < 0 || draw(random) % 2)) {
            out = json_stringn(text.at, text.len);
            if (!out) out = json_pack("{s:s%}", "not UTF-8", "", 0);
        } else if (byte < 0) {
            out = json_pack("{s:s}", "no way on", "");
        } else {
            const char c = (char)byte;
            lk_buf_append(&text, &c, 1);
            if (lk_grammar_accept(s, &c, 1, &accepted, NULL) || !accepted)
                out = json_pack("{s:s}", "a byte of the mask is refused", "");
        }
    }
    lk_buf_free(&text);
    return out ? out : json_null();
}

static json_t *answer(const json_t *line, const struct lk_token_bytes *bytes) {
    char *schema = json_dumps(json_object_get(line, "schema"), JSON_ENCODE_ANY), *grammar = NULL;
    struct lk_grammar *g = NULL;
    struct lk_grammar_state *s = NULL;
    lk_err err = {0};
    uint64_t random = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    json_t *made = json_array(), *verdicts = json_array(), *text;
    size_t i;
    if (!lk_schema_to_grammar(schema, strlen(schema), &grammar, &err) &&
        !lk_grammar_new(&g, grammar, &err) && !lk_grammar_state_new(&s, g, &err)) {
        for (i = 0; i < N_WALK; i++) json_array_append_new(made, walk(s, bytes, &random));
        json_array_foreach(json_object_get(line, "texts"), i, text) {
            bool accepted = false;
            lk_grammar_reset(s);
            if (lk_grammar_accept(s, json_string_value(text), json_string_length(text), &accepted,
                                  &err))
                break;
            json_array_append_new(verdicts, json_boolean(accepted && lk_grammar_is_complete(s)));
        }
    }
    json_t *reply = err.code ? json_pack("{s:s}", "error", err.msg)
                             : json_pack("{s:O, s:O}", "made", made, "accepted", verdicts);
    json_decref(made);
    json_decref(verdicts);
    lk_grammar_state_free(s);
    lk_grammar_free(g);
    lk_text_free(grammar);
    free(schema);
    return reply;
}

int main(void) {
    char *line = NULL, byte[256];
    const char *text[256];
    size_t cap = 0, len[256];
    struct lk_token_bytes *bytes = NULL;
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        text[i] = &byte[i];
        len[i] = 1;
    }
    if (lk_token_bytes_new(&bytes, text, len, 256, NULL)) return 1;
    while (getline(&line, &cap, stdin) > 0) {
        json_t *given = json_loads(line, 0, NULL), *reply = given ? answer(given, bytes) : NULL;
        char *out = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
        if (!out) return 1;
        puts(out);
        fflush(stdout);
        free(out);
        json_decref(reply);
        json_decref(given);
    }
    lk_token_bytes_free(bytes);
    free(line);
    return 0;
}
