/* Included first by scripts/analyse: what analysers, which read one file at a time, cannot know. */
#define _GNU_SOURCE /* before the headers, as some files do */
#include "base/err.h"
#define lk_fail(err, status, ...) (lk_fail(err, status, __VA_ARGS__), (status))

#ifndef __GNUC__ /* cppcheck, which does not read jansson.h */
#define json_array_foreach(array, i, value) for (i = 0; (value = json_array_get(array, i)); i++)
#define json_object_foreach(object, key, value)                                                    \
    for (key = json_first(object); (value = json_object_get(object, key)); key = json_next(key))
#endif
