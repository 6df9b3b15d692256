/* An uncaught C++ exception: in libllama's initializers, which run before main, or on one of its
 * own threads. It is out of memory in practice. */
#include "terminate.h"

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

extern "C" __attribute__((constructor(101))) void report_uncaught_exceptions(void) {
    std::set_terminate(end_program);
}
