/* The end of the program after a C++ exception that no caller catches, and after a mapped file was
 * lost. */
#ifndef LOWKEY_TERMINATE_H
#define LOWKEY_TERMINATE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Let such an exception end the program with one line on stderr and status 1. Called before the
 * initializers of the libraries, and again by main, because ggml's initializer replaces it. */
void report_uncaught_exceptions(void);

/* The same if a page of a mapped file cannot be read (SIGBUS): the file was cut off meanwhile, or
 * its disk or network failed. Windows: no effect; nothing can cut off a mapped file there. */
void report_lost_pages(void);

/* The handler of that signal: ends the program. */
void end_after_lost_page(int signal_number);

#ifdef __cplusplus
}
#endif
#endif
