/* Log messages of ggml and libllama. Both print to stderr by default, which a library must not do;
 * they go to the callback of lk_set_log_callback instead. */
#ifndef LK_BASE_LOG_H
#define LK_BASE_LOG_H

/* Redirect the messages, once per process. Call before any other function of ggml or libllama. */
void lk_redirect_logs(void);

#endif
