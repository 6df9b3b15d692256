/* Sessions on a device, for tests that do not name one: test programs are linked with
 * --wrap=lk_session_new, so that this function gets their calls. $LOWKEY_TEST_DEVICE names the
 * device. */
#include "lowkey.h"

#include <stdlib.h>

lk_status __real_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err);

lk_status __wrap_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err);

lk_status __wrap_lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, lk_err *err) {
    lk_session_opts own = {0};
    if (opts) own = *opts;
    if (!own.device) own.device = getenv("LOWKEY_TEST_DEVICE");
    return __real_lk_session_new(out, model, recipe, &own, err);
}
