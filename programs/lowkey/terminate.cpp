/* An uncaught C++ exception: in libllama's initializers, which run before main, or on one of its
 * own threads. It is out of memory in practice. And pages of a mapped file that are gone. */
#include "terminate.h"

#include <csignal>
#include <exception>
#include <new>
#include <unistd.h>

namespace {

template <size_t n> void write_line(const char (&text)[n]) {
    ssize_t written = write(STDERR_FILENO, text, n - 1);
    (void)written;
}

/* Allocates nothing. */
[[noreturn]] void end_program() {
    try {
        if (std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
        write_line("lowkey: out of memory\n"); /* none could be allocated for the exception */
    } catch (const std::bad_alloc &) {
        write_line("lowkey: out of memory\n");
    } catch (...) {
        write_line("lowkey: unexpected error in a library\n");
    }
    _exit(1);
}

} // namespace

extern "C" void end_after_lost_page(int) {
    write_line("lowkey: a mapped file can no longer be read: it was changed, or its disk failed. "
               "Start again; --no-mmap reads the model file at the start\n");
    _exit(1);
}

#ifdef _WIN32
extern "C" void report_lost_pages(void) {}
#else
extern "C" void report_lost_pages(void) {
    struct sigaction action = {};
    action.sa_handler = end_after_lost_page;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}
#endif

extern "C" __attribute__((constructor(101))) void report_uncaught_exceptions(void) {
    std::set_terminate(end_program);
}
