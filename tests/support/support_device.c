/* Sessions on a device, for tests that do not name one: test programs are linked with
 * --wrap=lk_session_new, so that this function gets their calls. $LOWKEY_TEST_DEVICE names the
 * device. Sessions that it refuses are in RAM. */
#include "support_device.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_int n_there, n_refused;

lk_status __real_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err);

lk_status __wrap_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err);

lk_status __wrap_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err) {
    lk_session_opts own = {0};
    const char *device = getenv("LOWKEY_TEST_DEVICE");
    if (opts) own = *opts;
    if (own.device || !device) return __real_lk_session_new(out, model, recipe, opts, err);
    own.device = device;
    lk_status status = __real_lk_session_new(out, model, recipe, &own, err);
    if (status != LK_E_UNSUPPORTED) {
        n_there += !status;
        return status;
    }
    n_refused++;
    return __real_lk_session_new(out, model, recipe, opts, err);
}

struct device_sessions count_device_sessions(void) {
    return (struct device_sessions){getenv("LOWKEY_TEST_DEVICE"), n_there, n_refused};
}
