/* Numbers between bounds (the JSON schema keywords minimum, maximum, exclusiveMinimum,
 * exclusiveMaximum, multipleOf) as parts of a grammar. */
#ifndef LK_TOKEN_NUMBER_RANGE_H
#define LK_TOKEN_NUMBER_RANGE_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

/* Append the numbers that the keywords of `schema` allow, without exponents, with at most 18 digits
 * before the point. `integer`: none after it; otherwise at most 17. LK_E_FORMAT: a bound is not a
 * number. LK_E_UNSUPPORTED: no number is left, a bound has more digits than that, or multipleOf is
 * not 1, 0.1, 0.01 and so on. LK_E_NOMEM. */
lk_status lk_number_range_gbnf(struct lk_buf *out, const json_t *schema, bool integer, lk_err *err);

/* Has the schema one of these keywords? */
bool lk_number_range_is_bounded(const json_t *schema);

#endif
