/* Arguments of tool calls as JSON. */
#ifndef LK_SERVE_TOOL_ARGUMENTS_H
#define LK_SERVE_TOOL_ARGUMENTS_H

#include "serve/tool_scan.h"

/* The arguments of a call that was scanned, or the whole call if it has no name; a new reference.
 * NULL: they are not valid, or no memory. Parameters have no types: a value is a string if the
 * schema of the tool allows one, and otherwise JSON, if it can be read as that. */
json_t *lk_tool_arguments(const struct lk_scan_call *call, const json_t *tools);

#endif
