/* Scans tool calls in text that may be incomplete. Each scanner moves s->at past what it knows. */
#ifndef LK_SERVE_TOOL_SCAN_H
#define LK_SERVE_TOOL_SCAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum lk_scan {
    LK_SCAN_NO,   /* this is not a call, whatever follows */
    LK_SCAN_MORE, /* the text ends before it is known */
    LK_SCAN_YES,
};

/* How arguments are written; see serve/tool_arguments.h. */
enum lk_arguments {
    LK_ARGUMENTS_JSON,       /* {"a": 1} */
    LK_ARGUMENTS_PYTHON,     /* (a=1) */
    LK_ARGUMENTS_PARAMETERS, /* <parameter=a>1</parameter> */
    LK_ARGUMENTS_GEMMA,      /* {a:1} */
};

struct lk_scan_call {
    const char *name; /* [n_name]; NULL if `text` is the whole call, in JSON */
    size_t n_name;
    const char *id; /* [n_id]; NULL: none, or in `text` */
    size_t n_id;
    const char *text; /* [n_text] the arguments */
    size_t n_text;
    enum lk_arguments kind;
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

/* Is this a character of a function's name? */
bool lk_tool_scan_is_name(char c);

/* Is this the name of a tool that may be called? `is_whole`: else it may go on. */
bool lk_tool_scan_is_tool(const struct lk_scanner *s, const char *name, size_t len, bool is_whole);

/* A JSON object. */
enum lk_scan lk_tool_scan_object(struct lk_scanner *s);

/* Call s->found. */
void lk_tool_scan_report(const struct lk_scanner *s, const struct lk_scan_call *call);

/* One or several calls in JSON, or calls that start with a name, and the white space after them. */
enum lk_scan lk_tool_scan_calls(struct lk_scanner *s);

/* The same, and each may start with a name, as in f(a=1) g(b=2). */
enum lk_scan lk_tool_scan_lines(struct lk_scanner *s);

#endif
