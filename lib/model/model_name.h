/* The name of a model that users see, for example "Qwen2.5-Coder-0.5B-Instruct". */
#ifndef LK_MODEL_MODEL_NAME_H
#define LK_MODEL_MODEL_NAME_H

#include <stddef.h>

/* Write the model's name to out[cap], cut to fit, with a terminating zero.
 *
 * `path`: the file's path. `general_name`: the value of general.name, "" if the file has none. Many
 * files have the name of a training run or of an intermediate format there ("Smollm2 135M 8k Lc100K
 * Mix1 Ep2"). So the file's name is used if general.name confirms it: the file's name contains a
 * digit, and its first word occurs in general.name. Otherwise general.name is used, and the file's
 * name only if general.name is empty. The extension, shard numbers and the quantization ("Q4_K_M")
 * are not part of a file's name. */
void lk_model_name(char *out, size_t cap, const char *path, const char *general_name);

#endif
