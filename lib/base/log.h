/* ggml and libllama print by default; a library must not. */
#ifndef LK_BASE_LOG_H
#define LK_BASE_LOG_H

/* Silence both, once per process. Call before anything else of theirs. */
void lk_silence_logs(void);

#endif
