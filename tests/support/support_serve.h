/* A server with a tiny model and a folder for its sessions, and ways to ask it. What is not as expected fails
 * the test. */
#ifndef LK_TESTS_SUPPORT_SERVE_H
#define LK_TESTS_SUPPORT_SERVE_H

#include "serve/serve.h"

#include <jansson.h>
#include <stdint.h>

enum { CTX = 512, ROOM = 512 };

extern lk_model *model, *other_model; /* of one shape */
extern lk_recipe *recipes[3];         /* best-4 and f16, which the server allows, and best-2 */
extern char dir[ROOM],
    store[ROOM + 16];       /* the folder of sessions, and of those that the server stores */
extern _Atomic int n_notes; /* told to the operator since the test began */
extern char last_note[1024];

/* Of a group and of each of its tests. */
int open_models(void **state);
int close_models(void **state);
int new_folder(void **state);
int remove_folder(void **state);

struct lk_serve_opts serve_options(void);
struct lk_server *serve_start(const struct lk_serve_opts *opts);

/* "FOLDER/NAME" into out[2 * ROOM]. */
void in_folder(char *out, const char *folder, const char *name);

/* What lies in the folder of stored sessions; only its owner may read it. */
struct listing {
    int n, n_part; /* whole files; parts of some */
    uint64_t bytes;
    char name[64][256];
};
struct listing stored_files(void);

/* Ask, expect the status, and give the JSON (to be released). Expect an error with a code, which does not tell
 * where the folder is. */
json_t *ask_json(const struct lk_server *server, int status, const char *method, const char *path,
                 const char *body);
void refused(const struct lk_server *server, int status, const char *path, const char *body,
             const char *code);

json_int_t number_at(const json_t *json, const char *object, const char *field);
json_int_t reused_tokens(const json_t *answer);
const char *prefix_source(const json_t *answer);
uint64_t metric(const struct lk_server *server, const char *name);

/* The sessions there are, once there are n and none is at work: what is told is a tenth of a second old. */
json_t *idle_slots(const struct lk_server *server, size_t n);

/* A chat: what was said, what was answered and said then (or NULL), and 24 tokens of answer, greedily, with their
 * logarithms. `more`: an object of further fields. */
json_t *chat(const struct lk_server *server, const char *first, const json_t *answer,
             const char *second, const char *more);

/* The i-th of prompts that differ from the beginning, each long enough to be stored. `more`: ", \"field\": value". */
json_t *complete(const struct lk_server *server, int i, const char *more);

/* The body of a request with a prompt of n tokens and one of answer; owned. `more`: an object of further fields. */
char *tokens_body(int n, const char *more);

/* Ask for that, and wait until some of the prompt was read: the socket. */
int begin_reading(const struct lk_server *server, int n_tok);

/* The choices of two answers: the same text, and the same logarithms to the bit. */
void same_answer(const json_t *a, const json_t *b);

#endif
