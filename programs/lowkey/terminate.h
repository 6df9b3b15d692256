/* The end of the program after a C++ exception that no caller catches. */
#ifndef LOWKEY_TERMINATE_H
#define LOWKEY_TERMINATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Let such an exception end the program with one line on stderr and status 1. Called before the
 * initializers of the libraries, and again by main, because ggml's initializer replaces it. */
void report_uncaught_exceptions(void);

#ifdef __cplusplus
}
#endif
#endif
