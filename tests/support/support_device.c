/* Sessions on a device, for tests that do not name one: test programs are linked with
 * --wrap=lk_session_new, so that this function gets their calls. $LOWKEY_TEST_DEVICE names the
 * device. Sessions that it refuses are in RAM. */
#include "support_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct device_sessions sessions;

static void count(const char *refusal) {
    pthread_mutex_lock(&lock);
    int i = 0;
    sessions.n_there += !refusal;
    sessions.n_refused += refusal != NULL;
    while (refusal && i < MAX_REFUSALS && sessions.refusal[i].n > 0 &&
           strcmp(sessions.refusal[i].reason, refusal) != 0)
        i++;
    if (refusal && i < MAX_REFUSALS) {
        snprintf(sessions.refusal[i].reason, sizeof sessions.refusal[i].reason, "%s", refusal);
        sessions.refusal[i].n++;
    }
    pthread_mutex_unlock(&lock);
}

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
    static const char refused[] = "cannot hold this session's cache: ";
    lk_err why = {0};
    lk_status status = __real_lk_session_new(out, model, recipe, &own, &why);
    const char *reason = status ? strstr(why.msg, refused) : NULL;
    if (!reason) {
        if (!status) count(NULL);
        if (status && err) *err = why;
        return status;
    }
    status = __real_lk_session_new(out, model, recipe, opts, err);
    if (!status) count(reason + strlen(refused));
    return status;
}

struct device_sessions count_device_sessions(void) {
    pthread_mutex_lock(&lock);
    struct device_sessions all = sessions;
    pthread_mutex_unlock(&lock);
    all.name = getenv("LOWKEY_TEST_DEVICE");
    return all;
}
