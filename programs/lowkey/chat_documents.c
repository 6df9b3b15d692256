/* Text files as parts of a message. */
#include "chat_documents.h"

#include "text_file.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

bool chat_documents_add(struct chat_documents *documents, const char *path, size_t max) {
    struct lk_buf text;
    const char *slash = strrchr(path, '/');
    if (!read_text_file(path, "/file", max, &text)) return false;
    size_t n = documents->n + 1;
    documents->item = xrealloc(documents->item, n * sizeof *documents->item);
    documents->item[documents->n++] = (struct chat_document){
        .name = xasprintf("%s", slash && slash[1] ? slash + 1 : path), .text = text};
    return true;
}

/* The number of backticks of a fence around `text`: more than any run of them in it, at least 3. */
static size_t fence_length(const char *text) {
    size_t longest = 2;
    while ((text = strchr(text, '`'))) {
        size_t n = strspn(text, "`");
        if (n > longest) longest = n;
        text += n;
    }
    return longest + 1;
}

static void add_fence(struct lk_buf *out, size_t n) {
    while (n--) xbuf_add(out, "`", 1);
    xbuf_add(out, "\n", 1);
}

char *chat_documents_message(const struct chat_documents *documents, const char *question) {
    struct lk_buf out = {0};
    for (size_t i = 0; i < documents->n; i++) {
        const struct chat_document *document = &documents->item[i];
        const char *text = document->text.at;
        size_t n = document->text.len, fence = fence_length(text);
        xbuf_add(&out, document->name, strlen(document->name));
        xbuf_add(&out, ":\n", 2);
        add_fence(&out, fence);
        xbuf_add(&out, text, n);
        if (n && text[n - 1] != '\n') xbuf_add(&out, "\n", 1);
        add_fence(&out, fence);
        xbuf_add(&out, "\n", 1);
    }
    xbuf_add(&out, question, strlen(question));
    return out.at;
}

void chat_documents_drop_last(struct chat_documents *documents) {
    struct chat_document *last = &documents->item[--documents->n];
    free(last->name);
    lk_buf_free(&last->text);
}

void chat_documents_clear(struct chat_documents *documents) {
    while (documents->n) chat_documents_drop_last(documents);
    free(documents->item);
    documents->item = NULL;
}
