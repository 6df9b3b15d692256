/* The models on this machine: the files of lowkey and of other programs, which are only read.
 *
 *   lowkey         $LOWKEY_CACHE/models, or ~/.cache/lowkey/models: files *.gguf in it
 *   Hugging Face   $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub: *.gguf below
 *                  models--OWNER--REPOSITORY/snapshots/COMMIT, which are links to blobs
 *   LM Studio      ~/.lmstudio/models, ~/.cache/lm-studio/models: *.gguf below OWNER/REPOSITORY
 *   llama.cpp      $LLAMA_CACHE or ~/.cache/llama.cpp: *.gguf
 *   ollama         $OLLAMA_MODELS, ~/.ollama/models or /usr/share/ollama/.ollama/models:
 *                  manifests/HOST/OWNER/MODEL/TAG, JSON whose layer of type
 *                  application/vnd.ollama.image.model has the digest of blobs/sha256-DIGEST
 *
 * Of a model in several parts the first one is listed. Vision encoders (mmproj) are not. */
#ifndef LK_LOWKEY_MODEL_LIST_H
#define LK_LOWKEY_MODEL_LIST_H

#include <stddef.h>
#include <stdint.h>

enum { MODEL_LIST_MAX = 1024 };

struct found_model {
    char *name;         /* owned: a file's name without ".gguf", or MODEL:TAG of ollama */
    char *path;         /* owned */
    const char *source; /* "ollama" */
    uint64_t bytes;     /* of all parts */
};

struct model_list {
    struct found_model item[MODEL_LIST_MAX]; /* sorted by name within a source */
    size_t n;
};

/* Free with model_list_free. Folders that cannot be read are left out. */
struct model_list *model_list_make(void);
void model_list_free(struct model_list *list);

/* The same of one folder, whose files have their names. */
struct model_list *model_list_folder(const char *folder);

/* The name of a file: without folder, ".gguf" and the number of a part; owned. */
char *model_file_name(const char *path);

/* Find the model that is called `name` (without regard to case, also with ".gguf"), or whose name
 * alone contains it. Returns a STATUS_*, after printing an error. *path is owned: free. */
int model_list_find(const char *name, char **path);

#endif
