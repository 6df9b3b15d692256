/* Text files that go with the next question. */
#ifndef LK_LOWKEY_CHAT_DOCUMENTS_H
#define LK_LOWKEY_CHAT_DOCUMENTS_H

#include "base/buf.h"

struct chat_documents {
    struct chat_document {
        char *name;
        struct lk_buf text;
    } * item; /* [n] */
    size_t n;
};

/* Read a text file of at most `max` bytes. Returns false after printing an error. */
bool chat_documents_add(struct chat_documents *documents, const char *path, size_t max);

/* The question with the documents before it, each with its name and in a fence: free it. */
char *chat_documents_message(const struct chat_documents *documents, const char *question);

void chat_documents_drop_last(struct chat_documents *documents);
void chat_documents_clear(struct chat_documents *documents);

#endif
