/* What the commands and the start of a chat share. */
#include "chat.h"

#include "chat_saved.h"
#include "output.h"
#include "xalloc.h"

#include <stdarg.h>
#include <stdlib.h>

void chat_note(const struct chat *c, const char *format, ...) {
    FILE *out = c->terminal && !c->args.json ? stdout : stderr;
    va_list args;
    if (c->color) fputs("\x1b[2m", out);
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    fputs(c->color ? "\x1b[0m\n" : "\n", out);
    fflush(out);
}

void chat_keep(struct chat *c) {
    if (!c->args.session_file) return;
    int status = chat_saved_write(c->save_name, &c->conversation, c->session, c->n_answers);
    if (status) c->status = status;
    c->unsaved = false;
}

int chat_load(struct chat *c, const char *name) {
    char n_tok[NUMBER_BUF];
    bool cached = false;
    int status =
        chat_saved_read(name, &c->conversation, c->session, c->recipe, &c->n_answers, &cached);
    if (status) return status;
    size_t n = chat_conversation_n_questions(&c->conversation);
    chat_note(c, "%s: %zu question%s, %s tokens%s", name, n, n == 1 ? "" : "s",
              format_count(n_tok, c->conversation.n_tok),
              cached || !c->conversation.n_tok
                  ? ""
                  : "; no cache of this recipe, so the next answer reads them again");
    if (c->conversation.n_tok >= c->n_ctx)
        chat_note(c, "that fills the context of %zu tokens; -c N sets a longer one", c->n_ctx);
    free(c->save_name);
    c->save_name = xasprintf("%s", name);
    return STATUS_OK;
}
