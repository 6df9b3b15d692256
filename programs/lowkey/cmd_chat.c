/* lowkey chat: chat with a model in the terminal. */
#include "auto_recipe.h"
#include "chat.h"
#include "chat_commands.h"
#include "chat_saved.h"
#include "cmd.h"
#include "interrupt.h"
#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_args(const struct command *command, int argc, char **argv, struct chat_args *a) {
    const struct opt_group groups[] = {
        {"Chat",
         {
             {0, "system", "TEXT", "system message", OPT_TEXT, &a->system},
             {0, "session", "FILE",
              "continue the conversation in FILE if it exists, and save it there after each "
              "answer; the messages are in FILE.chat",
              OPT_TEXT, &a->session_file},
             {'n', "tokens", "N", "maximum number of tokens of an answer (default -1: no limit)",
              OPT_INT, &a->n, 1, 1 << 24, .endless = true},
             {0, "verbose", NULL, "print the speed after each answer", OPT_FLAG, &a->verbose},
             {0, "json", NULL, "print each answer as one line of JSON", OPT_FLAG, &a->json},
             draft_option(&a->draft),
         }},
        session_options(&a->session),
        model_options(&a->model, MODEL_RUN),
        sampler_options(&a->sampler),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

static int check_args(struct chat *c) {
    struct chat_args *a = &c->args;
    if (a->system && !check_utf8_text(a->system, strlen(a->system), "--system"))
        return STATUS_ERROR;
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c->color = use_color(stdout);
    if (a->sampler.greedy) a->sampler.temperature = 0;
    a->sampler.greedy = false; /* /set changes the temperature */
    return STATUS_OK;
}

/* Open the recipe of --kv or of the saved session, if there is one. */
static int open_recipe(const struct command *command, struct chat *c) {
    const char *file = c->args.session_file;
    int status = STATUS_OK;
    if (file && c->args.session.kv.n == 0) status = chat_saved_recipe(file, &c->recipe);
    if (status || c->recipe) return status;
    return open_single_recipe(command, &c->args.session.kv, &c->recipe);
}

static int check_template(const struct chat *c) {
    const lk_message msg = {"user", "a"};
    char *text = NULL;
    lk_err err = {0};
    lk_status status = lk_chat_format(c->model, &msg, 1, true, &text, &err);
    lk_text_free(text);
    return status ? print_lk_error(&err) : STATUS_OK;
}

static void print_welcome(const struct chat *c) {
    char *name = model_name(c->model), n_ctx[NUMBER_BUF], title[RECIPE_TITLE];
    chat_note(c, "%s, cache %s, context %s tokens", name, recipe_title(c->model, c->recipe, title),
              format_count(n_ctx, c->n_ctx));
    if (c->tunes)
        chat_note(c, "while nothing else runs, a better cache for this model is looked for; the "
                     "next chat will use it");
    chat_note(c, "/help lists commands, /file NAME attaches a document, Ctrl-D leaves");
    free(name);
}

/* Read the conversation of --session, and set the system message of --system. */
static int start_conversation(struct chat *c) {
    const char *file = c->args.session_file, *system = c->args.system;
    bool exists = false;
    int status = file ? chat_saved_exists(file, &exists) : STATUS_OK;
    if (!status && exists) {
        status = chat_load(c, file);
    } else if (!status && file) {
        chat_note(c, "a new conversation, to be kept in %s", file);
        c->save_name = xasprintf("%s", file);
        status = check_writable(file);
    }
    if (status) return status;
    const char *present = chat_conversation_system(&c->conversation);
    if (!system || (present && strcmp(present, system) == 0)) return STATUS_OK;
    if (c->conversation.n_unknown)
        return print_error("--system: %s comes from 'lowkey run', so its start cannot be changed",
                           file);
    chat_conversation_set_system(&c->conversation, system);
    return STATUS_OK;
}

static int start_chat(struct chat *c) {
    lk_model_info info = lk_model_get_info(c->model);
    c->n_ctx = c->args.session.ctx ? (size_t)c->args.session.ctx : (size_t)info.n_ctx_train;
    c->conversation.model = c->model;
    int status = check_template(c);
    if (!status)
        status = session_open(&c->args.session, c->model, c->recipe, progress_step, &c->progress,
                              &c->session);
    if (!status) status = drafting_start(&c->drafting, c->args.draft, c->session);
    if (status) return status;
    if (c->terminal && !c->args.json) print_welcome(c);
    return start_conversation(c);
}

/* Ctrl-C with nothing to drop: the second one in a row leaves. */
static void ask_to_leave(struct chat *c, bool *asked) {
    if (*asked) c->quit = true;
    if (!*asked) chat_note(c, "press Ctrl-C again or Ctrl-D to leave");
    *asked = true;
}

static int chat_loop(struct chat *c) {
    bool asked_to_leave = false, end = false;
    while (!c->quit && !end && !ferror(stdout)) {
        char *text = NULL;
        enum chat_input_kind kind = chat_input_next(c->input, &text);
        switch (kind) {
        case INPUT_COMMAND: chat_run_command(c, text); break;
        case INPUT_MESSAGE:
            if (check_utf8_text(text, strlen(text), "message"))
                chat_answer_question(c, text);
            else
                c->status = STATUS_ERROR;
            break;
        case INPUT_END: end = true; break;
        case INPUT_LEAVE: ask_to_leave(c, &asked_to_leave); break;
        case INPUT_NOTHING:
        case INPUT_CANCELLED: break;
        }
        if (kind != INPUT_LEAVE) asked_to_leave = false;
        free(text);
        /* Ctrl-C stops an answer. In a terminal the chat continues. */
        if (interrupted() && !c->terminal) return STATUS_INTERRUPTED;
        if (interrupted()) clear_interrupt();
    }
    if (c->terminal && end) putchar('\n');
    return c->terminal && end ? STATUS_OK : c->status;
}

int cmd_chat(const struct command *command, int argc, char **argv) {
    struct chat c = {.args = {.model.cluster = command->cluster,
                              .session.n_checkpoint = 64,
                              .sampler = sampler_args_default(),
                              .n = -1}};
    int result = read_args(command, argc, argv, &c.args);
    if (result != ARGS_RUN) return result;
    int status = check_args(&c);
    if (!status) status = drafting_check(c.args.draft);
    if (!status) status = open_recipe(command, &c);
    c.args.model.n_ctx = c.args.session.ctx;
    if (!status) status = model_open(&c.args.model, true, &c.model);
    if (!status) sampler_args_complete(&c.args.sampler, c.model);
    bool is_auto = !status && !c.recipe;
    if (!status)
        status = auto_recipe_open(&c.args.session.auto_kv, &c.args.model, c.model,
                                  &c.args.session.kv, &c.recipe);
    if (!status && is_auto && c.terminal && !c.args.session.auto_kv.memory)
        c.tunes = auto_recipes_make_later(&c.args.model, c.model, &c.args.session.kv);
    if (!status) status = start_chat(&c);
    if (!status) {
        const struct line_reader_opts opts = {c.terminal, c.color, chat_complete};
        c.input = chat_input_open(&opts);
        status = chat_loop(&c);
        if (c.unsaved) chat_keep(&c);
    }
    chat_input_close(c.input);
    chat_conversation_free(&c.conversation);
    chat_documents_clear(&c.documents);
    drafting_close(&c.drafting);
    lk_session_free(c.session);
    lk_model_free(c.model);
    lk_recipe_free(c.recipe);
    free(c.save_name);
    return status;
}
