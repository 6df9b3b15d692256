/* Policies: which rows a level of limited size keeps. */
#ifndef LK_POLICY_POLICY_H
#define LK_POLICY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum lk_keep {
    LK_KEEP_ALL,    /* no limit: every row stays          */
    LK_KEEP_NEWEST, /* the oldest row goes                */
};

struct lk_policy {
    uint8_t keep; /* enum lk_keep */
};

#endif
