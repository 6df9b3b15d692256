/* The state of `lowkey chat`, and its questions and answers. */
#ifndef LK_LOWKEY_CHAT_H
#define LK_LOWKEY_CHAT_H

#include "chat_conversation.h"
#include "chat_input.h"
#include "common.h"
#include "generate.h"
#include "progress.h"

struct chat_args {
    struct model_args model;
    struct session_args session;
    struct sampler_args sampler;
    const char *system, *session_file, *draft;
    int64_t n; /* -1: no limit */
    bool json, verbose;
};

struct chat {
    struct chat_args args;
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    struct drafting drafting;
    struct chat_input *input;
    struct chat_conversation conversation;
    struct chat_documents documents; /* for the next question */
    struct progress progress;        /* of a prefill */
    char progress_what[64];
    size_t n_ctx;
    size_t n_answers; /* so far, also the ones that were taken back: part of the random seed */
    char *save_name;  /* of the last /save or /load, or of --session; NULL: none */
    bool unsaved;     /* changed by a command since the last answer */
    /* The last answer. */
    size_t prefill_tokens, decode_tokens;
    double prefill_seconds, decode_seconds;
    bool terminal; /* standard input and output are a terminal */
    bool color;
    bool tunes; /* a process tunes the recipe in the background */
    bool quit;
    int status; /* to exit with */
};

/* Print a remark, dim on a terminal: to stderr with --json, because stdout is for JSON. */
void chat_note(const struct chat *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* With --session, save the conversation; the file is that of the last /save or /load. */
void chat_keep(struct chat *c);

/* Continue the conversation saved as `name` (chat_saved.h). Returns a STATUS_*. */
int chat_load(struct chat *c, const char *name);

/* ---- answers: each function prints one, or why there is none, and saves the conversation if
 * --session was given ---- */

/* Ask `question`, with the documents that wait for it. */
void chat_answer_question(struct chat *c, const char *question);

/* Answer the last question again, with another random seed. */
void chat_answer_again(struct chat *c);

/* Continue an answer that was cut. */
void chat_answer_continue(struct chat *c);

#endif
