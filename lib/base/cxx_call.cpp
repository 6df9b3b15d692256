/* The only C++ of the library: catches the exceptions of libllama and gguf. */
#include "base/cxx_call.h"

#include <exception>
#include <new>
#include <stdexcept>

extern "C" {
#include "base/err.h"
}

extern "C" lk_status lk_cxx_call(void (*fn)(void *arg), void *arg, lk_err *err) {
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
