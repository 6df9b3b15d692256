/* Registers the baselines. */
#include "baselines/baselines.h"

#include "lowkey_lab.h"

lk_status lk_baselines_register(lk_err *err) {
    static const lk_codec_ops *const all[] = {&lk_hqq_ops, &lk_kvquant_ops, &lk_kvarn_ops,
                                              &lk_oscar_ops, &lk_nf4_ops};
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < sizeof all / sizeof *all; i++)
        status = lk_codec_register(all[i], err);
    return status;
}
