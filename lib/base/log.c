#include "base/log.h"

#include "llama.h"

#include <pthread.h>

static void discard(enum ggml_log_level level, const char *text, void *user) {
    (void)level;
    (void)text;
    (void)user;
}

static void silence(void) { llama_log_set(discard, NULL); } /* sets ggml's too */

void lk_silence_logs(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, silence);
}
