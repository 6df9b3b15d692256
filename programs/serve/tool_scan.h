/* Scans tool calls in text that may be incomplete. */
#ifndef LK_SERVE_TOOL_SCAN_H
#define LK_SERVE_TOOL_SCAN_H

#include "base/buf.h"

#include <jansson.h>

enum lk_scan {
    LK_SCAN_NO,   /* this is not a call, whatever follows */
    LK_SCAN_MORE, /* the text ends before it is known */
    LK_SCAN_YES,
};

struct lk_scan_call {
    const char *name; /* [n_name]; NULL if `json` is the whole call */
    size_t n_name;
    const char *json; /* [n_json] the call, or its arguments; in Python if is_python */
    size_t n_json;
    bool is_python;
};

struct lk_scanner {
    const char *at, *end;
    const json_t *tools; /* calls must be of these; NULL: any name */
    void (*found)(void *user, const struct lk_scan_call *call); /* for each call; NULL: none */
    void *user;
};

/* Skip white space. */
void lk_tool_scan_space(struct lk_scanner *s);

/* The word is here, and skip it. */
enum lk_scan lk_tool_scan_word(struct lk_scanner *s, const char *word);

/* One or several calls, and the white space after them. */
enum lk_scan lk_tool_scan_calls(struct lk_scanner *s);

/* Arguments of a Python call, as the JSON text of an object. They were scanned. */
void lk_tool_scan_python_to_json(const char *text, size_t len, struct lk_buf *out);

#endif
