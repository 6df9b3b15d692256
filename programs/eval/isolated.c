#include "eval/isolated.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: one JSON object into the pipe, the record or {"code", "message"}. */
static void child(lk_isolated work, void *user, json_t *record, int to) {
    lk_err err = {0};
    lk_status status = work(user, record, &err);
    json_t *answer = status ? json_pack("{s:i s:s}", "code", status, "message", err.msg)
                            : json_pack("{s:O}", "record", record);
    bool sent = answer && json_dumpfd(answer, to, JSON_COMPACT) == 0;
    _exit(sent ? 0 : 1); /* nothing of the parent's is flushed twice */
}

/* Everything from the pipe until its end; NULL: no memory. */
static char *read_pipe(int from, size_t *len) {
    size_t cap = 4096;
    char *text = malloc(cap);
    *len = 0;
    while (text) {
        if (*len == cap) {
            char *larger = realloc(text, cap *= 2);
            if (!larger) {
                free(text);
                return NULL;
            }
            text = larger;
        }
        ssize_t n = read(from, text + *len, cap - *len);
        if (n < 0 && errno == EINTR) continue; /* the child sees the interruption too, and ends */
        if (n <= 0) break;
        *len += (size_t)n;
    }
    return text;
}

static lk_status take(const char *text, size_t len, int status, json_t *record, lk_err *err) {
    json_t *answer = text ? json_loadb(text, len, 0, NULL) : NULL;
    const json_t *made = json_object_get(answer, "record"),
                 *message = json_object_get(answer, "message");
    lk_status result = LK_OK;
    if (WIFSIGNALED(status))
        result =
            lk_fail(err, LK_E_IO, "the process was ended by signal %d; is there enough memory?",
                    WTERMSIG(status));
    else if (message)
        result = lk_fail(err, (lk_status)json_integer_value(json_object_get(answer, "code")), "%s",
                         json_string_value(message));
    else if (!made || json_object_update(record, (json_t *)made))
        result = lk_fail(err, LK_E_IO, "the process gave no answer");
    json_decref(answer);
    return result;
}

lk_status lk_isolated_run(lk_isolated work, void *user, json_t *record, lk_err *err) {
    int end[2], status = 0;
    if (pipe(end)) return lk_fail(err, LK_E_IO, "cannot make a pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        close(end[0]);
        child(work, user, record, end[1]);
    }
    close(end[1]);
    if (pid < 0) {
        close(end[0]);
        return lk_fail(err, LK_E_IO, "cannot start a process: %s", strerror(errno));
    }
    size_t len = 0;
    char *text = read_pipe(end[0], &len);
    close(end[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    lk_status result = take(text, len, status, record, err);
    free(text);
    return result;
}
