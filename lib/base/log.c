/* Redirection of the log messages of ggml and libllama. */
#include "base/log.h"

#include "lowkey.h"

#include "llama.h"

#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    lk_log_callback callback; /* under lock, as is user */
    void *user;
} target = {.lock = PTHREAD_MUTEX_INITIALIZER};

static lk_log_level level_of(enum ggml_log_level level) {
    switch (level) {
    case GGML_LOG_LEVEL_DEBUG: return LK_LOG_DEBUG;
    case GGML_LOG_LEVEL_WARN: return LK_LOG_WARN;
    case GGML_LOG_LEVEL_ERROR: return LK_LOG_ERROR;
    default: return LK_LOG_INFO;
    }
}

static void forward_message(enum ggml_log_level level, const char *text, void *user) {
    static _Thread_local lk_log_level last = LK_LOG_INFO;
    (void)user;
    if (level != GGML_LOG_LEVEL_CONT) last = level_of(level); /* CONT: the message continues */
    pthread_mutex_lock(&target.lock);
    lk_log_callback callback = target.callback;
    void *callback_user = target.user;
    pthread_mutex_unlock(&target.lock);
    if (callback) callback(callback_user, last, text);
}

static void install_forwarder(void) { llama_log_set(forward_message, NULL); } /* sets ggml's too */

void lk_redirect_logs(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_forwarder);
}

void lk_set_log_callback(lk_log_callback callback, void *user) {
    lk_redirect_logs();
    pthread_mutex_lock(&target.lock);
    target.callback = callback;
    target.user = user;
    pthread_mutex_unlock(&target.lock);
}
