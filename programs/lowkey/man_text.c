/* Text of the man page: recipes, exit status, environment and files. */
#include "man_text.h"

#include "args.h" /* turns off the warning about fields left out */

#include <stddef.h>

const char *const man_introduction =
    "`lowkey` runs language models from GGUF files on the CPU. It stores the key-value cache as a "
    "recipe says. A recipe is one line of text that assigns codecs to tokens by age, so that a "
    "long context needs a fraction of the memory of an f16 cache.";

const char *const man_conventions =
    "Every command takes `--help`. All commands except `report`, `serve` and `train` take "
    "`--json`, which prints JSON with stable keys; numbers of bytes are integers. Integer "
    "arguments of options may end in `k`, which multiplies by 1024.";

const struct man_section man_sections[N_MAN_SECTIONS] = {
    {"RECIPES",
     {
         {.text = "A recipe lists levels from the oldest tokens to the newest, separated by "
                  "semicolons:"},
         {.code = "sink 4: f16; body: k=rot3 v=rot2; recent 10%: rot4; window 128: f16"},
         {.text = "Each level has a range and codecs: one codec for K and V, or `k=CODEC` and "
                  "`v=CODEC`. Case and white space do not matter. In a file, a newline acts as a "
                  "semicolon and `#` starts a comment. `lowkey recipes` lists the presets."},
         {.text = "The ranges are:"},
         {"`sink N`", "The first N tokens, forever. `sink N(shift)` counts positions among the "
                      "tokens that are held."},
         {"`body`", "All tokens that no other level holds. `body: none` drops them, so that memory "
                    "does not grow."},
         {"`all`", "Like `body`, as the only level. A codec alone means the same."},
         {"`keep N by POLICY`",
          "Used instead of the body: holds N of the tokens between the other levels. The policy "
          "that chooses them is `h2o`, `h2o(mean)`, `tova`, `tova(apart)`, `random` or `newest`. "
          "`N%` is a share of the tokens seen so far, `N% of context` a share of the model's "
          "context length. The codec defaults to f16."},
         {"`absorb less`",
          "Evicted tokens are summed up in a state of constant size, by networks that "
          "`lowkey train less` made for the model."},
         {"`recent N`, `window N`", "The newest N tokens that are not in a newer level. `N%` is a "
                                    "share of the tokens seen so far."},
         {"`residual N`", "KIVI's buffer: K grows to N tokens and is then emptied at once; V is a "
                          "sliding window."},
         {"`layers LIST`",
          "Other codecs for the body in some layers. The list contains `first N`, `last N`, `I` "
          "or `I-J`, separated by commas. Layers count from 0. `layers LIST recent` and `layers "
          "LIST "
          "window` do the same for the level of that name."},
         {"`heads LIST`, `layers LIST heads LIST`",
          "Other bits or another codebook for some KV heads, in all layers or in some. The list "
          "contains `I` or `I-J`, separated by commas. Heads count from 0. The heads of a layer "
          "have codecs of one kind. `recent` and `window` may follow, as after `layers`."},
         {"`eager`",
          "Without codecs. Rows are projected and encoded before any query attends to them, those "
          "of a prompt too. Without it, a prompt attends to exact rows and is encoded afterwards."},
         {"`read N%`",
          "Without codecs. Decoding reads only the N per cent of the tiles (32 rows of K and V) "
          "whose keys promise the most attention, by their mean and deviation: faster at long "
          "contexts, less exact. The newest 64 rows, rows in other codecs, layers with a sliding "
          "window, and prompts are read whole."},
         {.text = "The codecs are:"},
         {"`f16`", "16-bit floats."},
         {"`int8`", "8 bits with one scale per token and head."},
         {"`kivi2`, `kivi4`",
          "KIVI at 2 or 4 bits: K per channel, V per token. Options in parentheses: the group "
          "size, `g32` (default), `g64` or `g128`."},
         {"`rot1` to `rot8`",
          "1 to 8 bits: centered, equalized and rotated, with an unbiased scale per token. "
          "Options: `mean` or `nomean` (centering), `sigma` or `nosigma` (equalization), both by "
          "default on for K and off for V; `lloyd` (default for 2 to 4 bits) or `uniform` "
          "codebook, or `trellis` (1 to 4 bits): levels that depend on the next codes too. They "
          "lose less, take longer to encode, and are slow to read on a CPU that has AVX2 but not "
          "AVX-512."},
         {"`asym2` to `asym8`",
          "Palu's quantizer: uniform levels with a scale and a zero point per token. Options: "
          "`hadamard` rotates the row first; `g32`, `g64` or `g128` gives each group of channels "
          "a scale of its own."},
         {"`hqq2` to `hqq4`",
          "HQQ: as `asym` in groups (`g32`, `g64`, the default, or `g128`), with zero points by "
          "the half-quadratic solver. Encoding is slow."},
         {"`kvquant2` to `kvquant4`",
          "KVQuant: levels by k-means for blocks of 128 tokens, K per channel and V per token, and "
          "about 1 % of the values apart as outliers."},
         {"`kvarn2` to `kvarn8`",
          "KVarN: blocks of 128 tokens, rotated, with the variances of tokens and channels "
          "normalized."},
         {"`oscar2` to `oscar4`, `nf4`",
          "OSCAR: as `asym(hadamard)`; `clip50` to `clip99` clamps values to that percentile of a "
          "row's magnitudes. NF4: levels of a Gaussian, in groups of 64 channels. Like `hqq`, "
          "`kvquant` and `kvarn` they are there to compare with: attention decodes the rows "
          "first."},
         {"`latent`, `latentN%`",
          "Low-rank coordinates in the basis of a sidecar, see `lowkey compress`: as many as the "
          "sidecar recommends, or N percent of the channels. `latent50%+rot3` quantizes them; "
          "otherwise they are f16. `latent50%(pre)` is K before RoPE."},
         {.text = "An older level cannot have more bits than the newer level that its tokens come "
                  "from."},
     }},
    {"EXIT STATUS",
     {
         {"`0`", "Success."},
         {"`1`", "Bad input or a failure; one line on standard error describes it."},
         {"`130`", "Interrupted by Ctrl-C; results that were complete have been printed. A second "
                   "Ctrl-C ends the program at once."},
     }},
    {"ENVIRONMENT",
     {
         {"`LOWKEY_MODEL`", "The model to use without `-m`."},
         {"`LOWKEY_DATA`", "Folder with the data sets of `eval`."},
         {"`LOWKEY_HISTORY`", "File for what is typed in `chat`; empty: none."},
         {"`LOWKEY_CACHE`", "Folder for downloaded models (default `~/.cache/lowkey`)."},
         {"`NO_COLOR`", "If not empty, no colors are used."},
     }},
    {"FILES",
     {
         {"`~/.cache/lowkey/models`",
          "Downloaded models. Without `-m`, Qwen2.5-Coder-0.5B-Instruct (469 MiB) is used, or "
          "SmolLM2-135M-Instruct (94 MiB) if less than 1.5 GiB of memory is free or only this one "
          "is there. `chat` and `serve` download the model if neither is there, and `run` does so "
          "in a terminal."},
         {"`~/.local/state/lowkey/history`",
          "What was typed in `chat`. `$XDG_STATE_HOME` replaces `~/.local/state`."},
         {"`~/.editrc`", "Settings of the line editor; see editrc(5)."},
     }},
};
