/* The emulated card as a device of ggml's, for weights: its buffers are memory of the card, which
 * the host cannot touch, and its graphs wait in a stream until the host waits for it. ggml's CPU
 * operators compute them. So a model can have its weights and its sessions' rows on one card. */
#ifndef SUPPORT_CARD_H
#define SUPPORT_CARD_H

#include <stdbool.h>

/* Register the device "emulated" with ggml. False: this build of ggml has other tables, or the
 * emulated module is not there. Before any model is opened. */
bool open_card(void);

/* Skip the test if open_card returned false. */
void need_card(void);

/* How often ggml's device has brought bytes to the card and from it, and waited for it, since the
 * last call. Weights are not counted. */
struct card_copies {
    int n_set, n_get, n_wait;
};
struct card_copies take_card_copies(void);

#endif
