/* What every test program includes: support.h, the usual headers of the C library, and cmocka.h
 * after the headers that it needs. */
#ifndef LK_TESTS_TEST_H
#define LK_TESTS_TEST_H

#include "support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif
