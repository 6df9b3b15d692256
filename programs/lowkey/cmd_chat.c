/* lowkey chat: talk with a model. */
#include "commands.h"
#include "common.h"
#include "conversation.h"
#include "generate.h"
#include "line_reader.h"
#include "progress.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat_args {
    struct model_args model;
    struct session_args session;
    struct sampler_args sampler;
    const char *system;
    int64_t n;
    bool json;
};

struct chat {
    struct chat_args args;
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    struct line_reader *reader;
    struct conversation talk;
    struct progress progress; /* of reading what was asked */
    size_t n_ctx, n_answer;
    size_t prompt_tokens; /* of the last turn, as are the next three */
    double prompt_seconds, answer_seconds;
    size_t answer_tokens;
    bool terminal, leave;
    int status;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct chat_args *a) {
    const struct opt_group groups[] = {
        {"Conversation",
         {
             {0, "system", "TEXT", "system message", OPT_TEXT, &a->system, 0, 0},
             {'n', "tokens", "N",
              "most tokens of an answer (default: what the context has room for)", OPT_INT, &a->n,
              1, 1 << 24},
             {0, "json", NULL, "print each answer as one line of JSON", OPT_FLAG, &a->json, 0, 0},
         }},
        model_options(&a->model),
        session_options(&a->session),
        sampler_options(&a->sampler),
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

static int open_session(struct chat *c) {
    lk_session *fresh = NULL;
    int status =
        session_open(&c->args.session, c->model, c->recipe, progress_step, &c->progress, &fresh);
    if (status) return status;
    lk_session_free(c->session);
    c->session = fresh;
    return STATUS_OK;
}

static void reset(struct chat *c) {
    conversation_reset(&c->talk);
    c->prompt_tokens = c->answer_tokens = 0;
    if (open_session(c))
        c->leave = true, c->status = STATUS_BAD;
    else if (!c->args.json)
        puts("The conversation starts anew.");
}

static void show_stats(const struct chat *c) {
    if (c->args.json) {
        json_print(json_pack("{s:o}", "cache", json_cache(c->session)), true);
        return;
    }
    char have[NUMBER_ROOM], most[NUMBER_ROOM];
    struct table table = table_new("lrl");
    table_cell(&table, "context");
    table_cell(&table, "%s", say_count(have, lk_session_n_tok(c->session)));
    table_cell(&table, "of %s tokens", say_count(most, c->n_ctx));
    table_cell(&table, "last prompt");
    table_cell(&table, "%s", say_count(have, c->prompt_tokens));
    table_cell(&table, "tokens read, %.1f a second", rate(c->prompt_tokens, c->prompt_seconds));
    table_cell(&table, "last answer");
    table_cell(&table, "%s", say_count(have, c->answer_tokens));
    table_cell(&table, "tokens made, %.1f a second", rate(c->answer_tokens, c->answer_seconds));
    report_cache(c->session, &table);
    printf("recipe: %s\n", lk_recipe_text(c->recipe));
    table_print(&table, stdout, 0);
}

static void show_levels(const struct chat *c) {
    if (c->args.json)
        json_print(json_pack("{s:o}", "levels", json_levels(c->session)), true);
    else
        report_levels(c->session, stdout);
}

static void command(struct chat *c, const char *line) {
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        c->leave = true;
        if (c->terminal)
            c->status =
                STATUS_OK; /* what went wrong was told; a pipe's reader may have missed it */
    } else if (strcmp(line, "/stats") == 0)
        show_stats(c);
    else if (strcmp(line, "/kv") == 0)
        show_levels(c);
    else if (strcmp(line, "/reset") == 0)
        reset(c);
    else if (strcmp(line, "/help") == 0)
        fputs("/stats  speed and memory\n"
              "/kv     what the cache's levels hold\n"
              "/reset  start anew\n"
              "/quit   leave (Ctrl-D too)\n"
              "Ctrl-C stops an answer; at the prompt it leaves.\n",
              c->args.json ? stderr : stdout);
    else
        complain("unknown command '%s'; /help lists them", line);
}

/* Bring the session up to the question. False when there will be no answer. */
static bool read_question(struct chat *c, const char *question) {
    lk_err err = {0};
    size_t reused = 0;
    if (conversation_ask(&c->talk, question, &err)) {
        c->status = complain_of(&err);
        c->leave = err.code == LK_E_UNSUPPORTED; /* no chat template: no question will ever work */
        return false;
    }
    if (c->talk.n_tok >= c->n_ctx) {
        c->status = complain(
            "context full: the conversation would have %zu tokens, and the context holds %zu; "
            "/reset starts anew",
            c->talk.n_tok, c->n_ctx);
        conversation_answer(&c->talk, NULL);
        return false;
    }
    double began = seconds_now();
    c->progress = progress_begin("reading");
    lk_status status = lk_session_sync(c->session, c->talk.tok, c->talk.n_tok, &reused, &err);
    progress_end(&c->progress);
    if (status) {
        int told = complain_of(&err);
        if (status != LK_E_CANCELLED || !c->terminal) c->status = told;
        conversation_answer(&c->talk, NULL);
        return false;
    }
    c->prompt_seconds = seconds_now() - began;
    c->prompt_tokens = c->talk.n_tok - reused;
    return true;
}

static void print_answer_json(const struct chat *c, const struct answer *answer) {
    json_print(json_pack("{s:s s:s% s:s s:I s:I s:o s:o s:o}", "role", "assistant", "content",
                         answer->shown.at, answer->shown.len, "stop", stop_name(answer->why),
                         "prompt_tokens", (json_int_t)c->prompt_tokens, "answer_tokens",
                         (json_int_t)answer->n_tok, "prefill_tokens_per_second",
                         json_number(rate(c->prompt_tokens, c->prompt_seconds)),
                         "decode_tokens_per_second",
                         json_number(rate(answer->n_eval, answer->seconds)), "cache",
                         json_cache(c->session)),
               true);
}

/* What is to be said after an answer that did not end by itself. */
static void explain_stop(struct chat *c, const struct answer *answer) {
    if (answer->why == STOP_FAILED)
        c->status = complain_of(&answer->err);
    else if (answer->why == STOP_FULL || (answer->why == STOP_LENGTH && c->talk.n_tok >= c->n_ctx))
        fprintf(stderr, "lowkey: context full: %zu tokens; /reset starts anew\n", c->n_ctx);
    else if (answer->why == STOP_LENGTH && c->terminal)
        fprintf(stderr, "lowkey: stopped after %zu tokens (-n)\n", answer->n_tok);
}

static void turn(struct chat *c, const char *question) {
    struct sampler_args sampling = c->args.sampler;
    lk_sampler *sampler = NULL;
    sampling.seed = (sampling.seed + (int64_t)c->n_answer) & UINT32_MAX;
    if (!read_question(c, question)) return;
    /* A sampler for each answer: a grammar starts at its beginning again. */
    int status = sampler_open(&sampling, c->model, &sampler);
    if (status) {
        c->status = status;
        c->leave = true;
        return;
    }
    size_t room = c->n_ctx - c->talk.n_tok;
    size_t n_most = c->args.n && (size_t)c->args.n < room ? (size_t)c->args.n : room;
    struct answer answer =
        generate(c->model, c->session, sampler, n_most, c->args.json ? NULL : stdout);
    if (!c->args.json) putchar('\n');
    fflush(stdout);
    conversation_answer(&c->talk, &answer);
    c->n_answer++;
    c->answer_tokens = answer.n_eval;
    c->answer_seconds = answer.seconds;
    if (c->args.json) print_answer_json(c, &answer);
    explain_stop(c, &answer);
    answer_free(&answer);
    lk_sampler_free(sampler);
}

static void take_line(struct chat *c, const char *line) {
    while (*line == ' ' || *line == '\t') line++;
    if (!*line) return;
    if (line[0] == '/')
        command(c, line);
    else if (check_text(line, strlen(line), "message"))
        turn(c, line);
    else
        c->status = STATUS_BAD;
}

static int talk(struct chat *c) {
    while (!c->leave && !ferror(stdout)) {
        char *line = line_reader_next(c->reader);
        if (!line) break;
        take_line(c, line);
        free(line);
        /* Ctrl-C during an answer ends the answer; a person goes on, a pipe does not. */
        if (interrupted() && !c->terminal) break;
        if (interrupted()) interrupt_clear();
    }
    if (c->terminal && !c->leave) putchar('\n');
    return interrupted() ? STATUS_INTERRUPTED : c->terminal && !c->leave ? STATUS_OK : c->status;
}

static int begin(struct chat *c) {
    lk_model_info info = lk_model_get_info(c->model);
    c->n_ctx = c->args.session.ctx ? (size_t)c->args.session.ctx : (size_t)info.n_ctx_train;
    c->talk.model = c->model;
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (c->args.system) conversation_add(&c->talk, "system", c->args.system);
    int status = open_session(c);
    if (status) return status;
    if (c->terminal && !c->args.json) {
        char *name = model_name(c->model);
        printf("%s, cache %s, context %zu. /help lists commands, Ctrl-D leaves.\n", name,
               lk_recipe_text(c->recipe), c->n_ctx);
        free(name);
    }
    c->reader = line_reader_open(c->terminal);
    return STATUS_OK;
}

int chat_verb(const struct verb *verb, int argc, char **argv) {
    struct chat c = {.args.sampler = sampler_args_default()};
    enum args_result read = read_args(verb, argc, argv, &c.args);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    if (c.args.system && !check_text(c.args.system, strlen(c.args.system), "--system"))
        return STATUS_BAD;
    int status = recipe_only(verb, &c.args.session.kv, &c.recipe);
    if (!status) status = model_open(&c.args.model, true, &c.model);
    if (!status) status = begin(&c);
    if (!status) status = talk(&c);
    line_reader_close(c.reader);
    conversation_free(&c.talk);
    lk_session_free(c.session);
    lk_model_free(c.model);
    lk_recipe_free(c.recipe);
    return status;
}
