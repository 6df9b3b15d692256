/* A server with a tiny model and a temporary session directory, and helpers for requests. Helpers
 * fail the test if anything is not as expected. */
#ifndef LK_TESTS_SERVE_H
#define LK_TESTS_SERVE_H

#include "serve/server.h"

#include <jansson.h>
#include <stdint.h>

enum { CTX = 512, ROOM = 512 };

extern lk_model *model, *other_model; /* same shape, different weights */
extern lk_recipe *recipes[3];         /* best-4 and f16, which the server allows, and best-2 */
extern char session_dir[ROOM], store_dir[ROOM + 16]; /* store_dir: the server's own sessions */
extern _Atomic int n_note;                           /* operator messages since the test started */
extern char last_note[1024];                         /* the last of them */

/* Setup and teardown of a group, and of each test that uses session_dir. */
int open_models(void **state);
int close_models(void **state);
int make_session_dir(void **state);
int remove_session_dir(void **state);

/* With LOWKEY_TEST_RANKS=N in the environment, `model` is opened by N ranks, which are threads, and
 * serve_options().n_rank is N. */
struct lk_server_opts serve_options(void);
struct lk_server *serve_start(const struct lk_server_opts *opts);

/* "DIR/NAME" into out[2 * ROOM]. */
void join_path(char *out, const char *dir, const char *name);

/* The files in store_dir. Expects that only the owner can read them. */
struct listing {
    int n, n_temporary; /* complete files, and temporary ones (.new) */
    uint64_t bytes;     /* of the complete files */
    char name[64][256];
};
struct listing stored_files(void);

/* Send a request, expect the status, and return the JSON (owned). */
json_t *request_json(const struct lk_server *server, int status, const char *method,
                     const char *path, const char *body);

/* POST a request, and expect an error with this code whose message does not reveal session_dir. */
void expect_error(const struct lk_server *server, int status, const char *path, const char *body,
                  const char *code);

json_int_t int_at(const json_t *json, const char *object, const char *field);
json_int_t reused_tokens(const json_t *response);
const char *prefix_source(const json_t *response);
uint64_t metric(const struct lk_server *server, const char *name);

/* GET /slots, once there are n sessions and all are idle. Snapshots may be 0.1 s old. */
json_t *wait_idle_slots(const struct lk_server *server, size_t n);

/* A chat with 24 greedy tokens of answer and logprobs. `first` is the first message. If `response`
 * is not NULL, the chat continues with its message and `second`. `more`: a JSON object with more
 * fields. */
json_t *chat(const struct lk_server *server, const char *first, const json_t *response,
             const char *second, const char *more);

/* Complete prompt i. Prompts differ from the first token on, and are long enough to be stored.
 * `more`: ", \"field\": value". */
json_t *complete(const struct lk_server *server, int i, const char *more);

/* A request body with a prompt of n tokens and max_tokens 1; owned. `more`: a JSON object with more
 * fields. */
char *make_tokens_body(int n, const char *more);

/* Send such a request, and wait until a part of the prompt was processed. Returns the socket. */
int start_prefill(const struct lk_server *server, int n_tok);

/* Expect the same choices: same text, and bit-identical logprobs. */
void expect_same_answer(const json_t *a, const json_t *b);

#endif
