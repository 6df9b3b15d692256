/* Runs a function in a child process, which sends its record through a pipe. */
#include "eval/isolated.h"

#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: write {"record"} or {"code", "message"} to the pipe, and exit. */
static void run_child(lk_isolated_fn work, void *user, json_t *record, int pipe_end) {
    lk_err err = {0};
    lk_status status = work(user, record, &err);
    json_t *answer = status ? json_pack("{s:i s:s}", "code", status, "message", err.msg)
                            : json_pack("{s:O}", "record", record);
    bool sent = answer && json_dumpfd(answer, pipe_end, JSON_COMPACT) == 0;
    _exit(sent ? 0 : 1); /* does not flush the parent's buffers a second time */
}

/* Read the pipe until its end. */
static void read_pipe(int pipe_end, struct lk_buf *out) {
    char part[4096];
    for (;;) {
        ssize_t n = read(pipe_end, part, sizeof part);
        if (n < 0 && errno == EINTR) continue; /* the child is interrupted too, and ends */
        if (n <= 0) return;
        lk_buf_append(out, part, (size_t)n);
    }
}

/* Update `record`, or fail, according to the child's answer and exit status. */
static lk_status read_answer(const struct lk_buf *text, int status, json_t *record, lk_err *err) {
    json_t *answer = text->failed ? NULL : json_loadb(lk_buf_cstr(text), text->len, 0, NULL);
    const json_t *made = json_object_get(answer, "record"),
                 *message = json_object_get(answer, "message");
    lk_status result = LK_OK;
    if (WIFSIGNALED(status))
        result = lk_fail(err, LK_E_IO,
                         "signal %d terminated the process; check that there is enough memory",
                         WTERMSIG(status));
    else if (message)
        result = lk_fail(err, (lk_status)json_integer_value(json_object_get(answer, "code")), "%s",
                         json_string_value(message));
    else if (!made || json_object_update(record, (json_t *)made))
        result = lk_fail(err, LK_E_IO, "the process ended without an answer");
    json_decref(answer);
    return result;
}

lk_status lk_isolated_run(lk_isolated_fn work, void *user, json_t *record, lk_err *err) {
    int end[2], status = 0;
    if (pipe(end)) return lk_fail(err, LK_E_IO, "cannot create a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(end[0]);
        run_child(work, user, record, end[1]);
    }
    close(end[1]);
    if (pid < 0) {
        close(end[0]);
        return lk_fail(err, LK_E_IO, "cannot start a process: %s", strerror(errno));
    }
    struct lk_buf text = {0};
    read_pipe(end[0], &text);
    close(end[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    lk_status result = read_answer(&text, status, record, err);
    lk_buf_free(&text);
    return result;
}
