/* The only C++ of the library: catches the exceptions of libllama, gguf and ggml. */
#include "base/cxx_call.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>

extern "C" {
#include "base/err.h"
}

#include "ggml.h"

/* Defined if ggml was compiled with cmake/ggml_alloc.h. */
extern "C" __attribute__((weak)) char lk_ggml_unwinds;

/* ggml's own, which it does not declare in its headers. It runs a debugger, if there is one. */
extern "C" __attribute__((weak)) void ggml_print_backtrace(void);

/* Called by cmake/ggml_alloc.h after an allocation failed. */
extern "C" void lk_ggml_no_memory(void);

namespace {

enum class inside { nothing, call, compute };

thread_local inside thread_state = inside::nothing;

/* GGML_ASSERT and GGML_ABORT call this. The process aborts if it returns. */
void on_abort(const char *message) {
    int error = errno; /* of the allocation or of the thread that could not be made, if any */
    if (thread_state != inside::call) {
        fprintf(stderr, "%s\n", message);
        if (ggml_print_backtrace) ggml_print_backtrace();
        return;
    }
    if (error == ENOMEM || error == EAGAIN) throw std::bad_alloc();
    const char *place = strchr(message, ':'), *name = message; /* "folder/file.c:line: text" */
    for (const char *c = message; place && c < place; c++)
        if (*c == '/') name = c + 1;
    throw std::runtime_error(name);
}

/* Before main, so that a program can replace it. Exceptions need ggml's unwind tables. */
const bool abort_callback_set = [] {
    if (&lk_ggml_unwinds) ggml_set_abort_callback(on_abort);
    return true;
}();

lk_status call(inside state, void (*fn)(void *arg), void *arg, lk_err *err) {
    struct scope {
        inside outer = thread_state;
        ~scope() { thread_state = outer; }
    } restore_at_end;
    thread_state = state;
    errno = 0; /* on_abort reads it */
    try {
        fn(arg);
        return LK_OK;
    } catch (const std::bad_alloc &) {
        return lk_fail(err, LK_E_NOMEM, "out of memory");
    } catch (const std::length_error &) {
        return lk_fail(err, LK_E_NOMEM, "out of memory");
    } catch (const std::exception &e) {
        return lk_fail(err, LK_E_FORMAT, "libllama: %.200s", e.what());
    } catch (...) {
        return lk_fail(err, LK_E_FORMAT, "libllama: unknown exception");
    }
}

} // namespace

extern "C" void lk_ggml_no_memory(void) {
    if (thread_state != inside::nothing) throw std::bad_alloc();
}

extern "C" lk_status lk_cxx_call(void (*fn)(void *arg), void *arg, lk_err *err) {
    return call(inside::call, fn, arg, err);
}

extern "C" lk_status lk_cxx_compute(void (*fn)(void *arg), void *arg, lk_err *err) {
    return call(inside::compute, fn, arg, err);
}
