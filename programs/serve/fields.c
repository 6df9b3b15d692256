/* The table of fields, and the synonyms that need more than another name. */
#include "serve/fields.h"

#include "base/buf.h"
#include "lowkey_serve.h"
#include "serve/body_convert.h"
#include "serve/call_grammar.h"
#include "serve/json_field.h"

#include <stdio.h>
#include <string.h>

enum {
    SAMPLED = LK_FIELDS_CHAT | LK_FIELDS_TEXT | LK_FIELDS_NATIVE,
    CONVERTED = LK_FIELDS_RESPONSES | LK_FIELDS_MESSAGES,
    OPENAI = LK_FIELDS_CHAT | LK_FIELDS_TEXT | LK_FIELDS_RESPONSES | LK_FIELDS_EMBEDDINGS
};

/* ---- the table ---- */

enum { MAX_NAMES = 40 };

struct group {
    unsigned of;
    double neutral;                   /* of lacking fields */
    const char *names[MAX_NAMES + 1]; /* ends with NULL */
};

static const struct group read[] = {
    {SAMPLED | CONVERTED | LK_FIELDS_OPTIONS,
     0,
     {"temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n", "seed",
      "presence_penalty", "frequency_penalty"}},
    {SAMPLED | CONVERTED,
     0,
     {"model", "stream", "logit_bias", "grammar", "cache_prompt", "kv", "ignore_eos"}},
    {SAMPLED,
     0,
     {"stop", "max_completion_tokens", "max_tokens", "n_predict", "n", "stream_options",
      "return_progress", "response_format", "json_schema", "stop_token_ids", "suffix", "n_probs"}},
    {LK_FIELDS_CHAT | CONVERTED, 0, {"tools", "tool_choice", "reasoning_budget"}},
    {LK_FIELDS_CHAT,
     0,
     {"messages", "parallel_tool_calls", "logprobs", "top_logprobs", "chat_template_kwargs",
      "reasoning_effort", "reasoning_format", "add_generation_prompt", "continue_final_message",
      "modalities"}},
    {LK_FIELDS_TEXT, 0, {"tools", "echo", "logprobs", "best_of"}},
    {LK_FIELDS_TEXT | LK_FIELDS_NATIVE, 0, {"prompt", "parse_special"}},
    {LK_FIELDS_NATIVE, 0, {"input_prefix", "input_suffix", "input_extra"}},
    {LK_FIELDS_RESPONSES,
     0,
     {"input", "instructions", "max_output_tokens", "stop", "parallel_tool_calls", "reasoning",
      "text", "truncation", "previous_response_id", "conversation", "prompt", "top_logprobs",
      "background", "store"}},
    {LK_FIELDS_MESSAGES,
     0,
     {"messages", "system", "thinking", "max_tokens", "stop_sequences", "output_config",
      "output_format", "mcp_servers"}},
    {LK_FIELDS_OLLAMA,
     0,
     {"model", "messages", "prompt", "system", "suffix", "images", "raw", "context", "tools",
      "think", "format", "options", "stream", "kv", "cache_prompt", "ignore_eos"}},
    {LK_FIELDS_OPTIONS, 0, {"stop", "num_predict"}},
    {LK_FIELDS_EMBEDDINGS,
     0,
     {"model", "input", "prompt", "encoding_format", "dimensions", "pooling", "kv", "stream"}},
};

/* Fields of accounts and queues, and the parameters of samplers that are refused when they are on.
 */
static const struct group harmless[] = {
    {OPENAI,
     0,
     {"user", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
      "include"}},
    {OPENAI | LK_FIELDS_MESSAGES, 0, {"metadata", "service_tier", "cache_control"}},
    {LK_FIELDS_CHAT, 0, {"prediction"}}, /* only saves time */
    {SAMPLED,
     0,
     {"priority", "request_id", "rid", "id_slot", "n_keep", "n_discard",
      "guided_decoding_backend"}},
    {SAMPLED | CONVERTED | LK_FIELDS_OPTIONS,
     0,
     {"mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
      "dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent", "smoothing_curve"}},
    {LK_FIELDS_OLLAMA | LK_FIELDS_EMBEDDINGS, 0, {"keep_alive"}},
};

static const struct group lacking[] = {
    {SAMPLED | CONVERTED | LK_FIELDS_OPTIONS,
     0,
     {"mirostat",
      "mirostat_mode",
      "dry_multiplier",
      "xtc_probability",
      "dynatemp_range",
      "dynamic_temperature",
      "top_n_sigma",
      "nsigma",
      "top_a",
      "smoothing_factor",
      "epsilon_cutoff",
      "eta_cutoff",
      "penalty_alpha",
      "skew",
      "temperature_last",
      "no_repeat_ngram_size",
      "min_tokens",
      "min_new_tokens",
      "min_length",
      "min_keep",
      "penalize_nl",
      "samplers",
      "sampler_order",
      "sampler_priority"}},
    {SAMPLED | CONVERTED | LK_FIELDS_OPTIONS,
     1,
     {"typical_p", "typical", "tfs_z", "tfs", "length_penalty", "guidance_scale",
      "encoder_repetition_penalty"}},
    {SAMPLED | CONVERTED,
     0,
     {"use_beam_search",
      "early_stopping",
      "negative_prompt",
      "bad_words",
      "bad_words_ids",
      "banned_tokens",
      "banned_strings",
      "custom_token_bans",
      "ban_eos_token",
      "logits_processors",
      "logit_processor",
      "custom_logit_processor",
      "allowed_token_ids",
      "stop_regex",
      "include_stop_str_in_output",
      "no_stop_trim",
      "watermark",
      "lora",
      "lora_path",
      "adapter_id",
      "chat_template",
      "documents",
      "structural_tag",
      "prompt_logprobs",
      "truncate_prompt_tokens",
      "t_max_predict_ms",
      "t_max_prompt_ms",
      "n_indent",
      "kv_transfer_params",
      "vllm_xargs",
      "session_params",
      "return_hidden_states",
      "return_token_ids",
      "return_tokens_as_token_ids",
      "post_sampling_probs",
      "image_data",
      "multimodal_data"}},
    {SAMPLED | CONVERTED, 1, {"num_beams", "skip_special_tokens", "include_reasoning"}},
    {LK_FIELDS_CHAT, 0, {"functions", "function_call", "audio", "web_search_options", "echo"}},
    {LK_FIELDS_CHAT, 1, {"best_of"}},
    {LK_FIELDS_TEXT | LK_FIELDS_NATIVE, 1, {"add_special_tokens"}},
    {LK_FIELDS_CHAT, 0, {"add_special_tokens"}},
    {LK_FIELDS_OLLAMA, 0, {"template", "logprobs", "top_logprobs"}},
    {LK_FIELDS_OLLAMA | LK_FIELDS_EMBEDDINGS, 1, {"truncate"}},
};

static const struct synonym {
    unsigned of;
    const char *means, *names[5]; /* ends with NULL */
} synonyms[] = {
    {SAMPLED | CONVERTED, "repeat_penalty", {"repetition_penalty", "rep_pen", "penalty_repeat"}},
    {SAMPLED | CONVERTED,
     "repeat_last_n",
     {"repetition_penalty_range", "rep_pen_range", "penalty_last_n"}},
    {SAMPLED | CONVERTED, "seed", {"random_seed", "sampling_seed"}},
    {LK_FIELDS_CHAT | CONVERTED,
     "reasoning_budget",
     {"thinking_budget", "thinking_budget_tokens", "thinking_token_budget"}},
    {SAMPLED, "max_tokens", {"max_new_tokens", "max_length", "num_predict", "max_output_tokens"}},
    {LK_FIELDS_RESPONSES, "max_output_tokens", {"max_tokens", "max_completion_tokens"}},
    {SAMPLED, "stop", {"stop_sequence", "stop_sequences"}},
    {LK_FIELDS_MESSAGES, "stop_sequences", {"stop"}},
    {SAMPLED, "json_schema", {"guided_json"}},
    {SAMPLED, "grammar", {"guided_grammar", "grammar_string", "ebnf"}},
    {SAMPLED, "regex", {"guided_regex"}},
    {SAMPLED, "choice", {"guided_choice"}},
};

/* The name in a list that ends with NULL; NULL: it is not there. */
static const char *listed(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names;
}

/* The name in the groups. *neutral: of its group. */
static const char *find(const struct group *groups, size_t n, enum lk_fields_of of,
                        const char *name, double *neutral) {
    const char *found = NULL;
    for (size_t i = 0; i < n && !found; i++) {
        if (groups[i].of & of) found = listed(groups[i].names, name);
        *neutral = groups[i].neutral;
    }
    return found;
}

bool lk_field_is_neutral(const json_t *v, double neutral) {
    if (json_is_boolean(v)) return json_is_true(v) == (neutral != 0);
    if (json_is_number(v)) {
        double number = json_number_value(v);
        return number == neutral || (neutral == 0 && number < 0);
    }
    if (json_is_string(v)) return json_string_length(v) == 0;
    return json_array_size(v) + json_object_size(v) == 0;
}

/* ---- synonyms ---- */

static bool no_memory(struct lk_api_error *error) {
    return lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: body");
}

/* Set a field to what another one says, unless it has that value. `name` is a literal. Releases
 * the value. */
static bool set_meant(json_t *body, const char *name, const char *given, json_t *value,
                      struct lk_api_error *error) {
    const json_t *there = json_object_get(body, name);
    bool differs = there && !json_is_null(there) && !json_equal(there, value);
    bool set = !differs && value && json_object_set(body, name, value) == 0;
    json_decref(value);
    if (differs)
        return lk_api_error_set(error, 400, "invalid_value", name,
                                "'%s' and '%.60s' mean the same but differ; give only one of them",
                                name, given);
    return set || no_memory(error);
}

static bool rename_synonyms(json_t *body, enum lk_fields_of of, struct lk_api_error *error) {
    for (size_t i = 0; i < sizeof synonyms / sizeof synonyms[0]; i++) {
        const struct synonym *s = &synonyms[i];
        for (const char *const *name = s->names; (s->of & of) && *name; name++) {
            json_t *value = json_incref(json_object_get(body, *name));
            json_object_del(body, *name);
            if (!value || json_is_null(value))
                json_decref(value);
            else if (!set_meant(body, s->means, *name, value, error))
                return false;
        }
    }
    return true;
}

/* Move the members of vLLM's "structured_outputs" to the fields of the same meaning. OpenRouter has
 * a flag of this name. */
static bool move_structured_outputs(json_t *body, struct lk_api_error *error) {
    static const char *const members[][2] = {
        {"json", "json_schema"}, {"regex", "regex"}, {"choice", "choice"}, {"grammar", "grammar"}};
    json_t *outputs = json_incref(json_object_get(body, "structured_outputs")), *value;
    const char *key;
    bool moved = true;
    json_object_del(body, "structured_outputs");
    json_object_foreach(outputs, key, value) {
        const char *means = NULL;
        for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
            if (strcmp(key, members[i][0]) == 0) means = members[i][1];
        bool neutral = lk_field_is_neutral(value, 0);
        if (means && !json_is_null(value))
            moved = set_meant(body, means, "structured_outputs", json_incref(value), error);
        else if (strcmp(key, "json_object") == 0 && !neutral)
            moved = set_meant(body, "response_format", "structured_outputs",
                              json_pack("{s:s}", "type", "json_object"), error);
        else if (strcmp(key, "structural_tag") == 0 && !neutral)
            moved = lk_api_error_set(error, 400, "unsupported", "structured_outputs",
                                     "'structured_outputs.structural_tag' is not supported by "
                                     "this server");
        if (!moved) break;
    }
    json_decref(outputs);
    return moved;
}

static char *choice_grammar(const json_t *choice) {
    struct lk_buf out = {0};
    const json_t *one;
    size_t i;
    lk_buf_append_str(&out, "root ::= ");
    json_array_foreach(choice, i, one) {
        lk_buf_append_str(&out, i ? "\" | \"" : "\"");
        lk_gbnf_add_literal(&out, json_is_string(one) ? json_string_value(one) : "");
    }
    lk_buf_append_str(&out, "\"");
    if (out.failed) lk_buf_free(&out);
    return out.at;
}

/* "regex" and "choice" become a grammar. */
static bool make_grammar(json_t *body, const char *name, struct lk_api_error *error) {
    json_t *given = json_object_get(body, name);
    bool is_regex = strcmp(name, "regex") == 0;
    char *text = NULL;
    lk_err err = {0};
    if (!given || lk_field_is_neutral(given, 0)) return true;
    if (is_regex ? !json_is_string(given) : !json_is_array(given))
        return lk_api_error_set(error, 400, "invalid_type", NULL, "'%s' must be %s", name,
                                is_regex ? "a string" : "an array of strings");
    if (!is_regex)
        text = choice_grammar(given);
    else if (lk_regex_to_grammar(json_string_value(given), &text, &err))
        return lk_api_error_from_request(error, &err, "regex");
    bool set = text ? set_meant(body, "grammar", name, json_string(text), error) : no_memory(error);
    lk_text_free(text);
    return set;
}

/* A schema may be given as a text. */
static bool parse_schema_text(json_t *body, struct lk_api_error *error) {
    const json_t *schema = json_object_get(body, "json_schema");
    const char *text = json_string_value(schema);
    if (!text || !*text) return true;
    json_t *parsed = NULL;
    if (lk_json_parsed_bytes(text, strlen(text)) <= lk_json_max_parsed_bytes(strlen(text)))
        parsed = json_loads(text, 0, NULL);
    return (parsed && json_object_set_new(body, "json_schema", parsed) == 0) ||
           lk_api_error_set(error, 400, "invalid_value", "json_schema",
                            "'json_schema' is a text that is not a JSON schema");
}

static bool convert_constraints(json_t *body, struct lk_api_error *error) {
    bool good = move_structured_outputs(body, error) && parse_schema_text(body, error) &&
                make_grammar(body, "regex", error) && make_grammar(body, "choice", error);
    json_object_del(body, "regex");
    json_object_del(body, "choice");
    return good;
}

/* Greedy sampling has a name of its own elsewhere. */
static bool convert_do_sample(json_t *body, struct lk_api_error *error) {
    bool do_sample = true;
    if (!lk_json_field_bool(body, "do_sample", &do_sample, error)) return false;
    json_object_del(body, "do_sample");
    return do_sample || json_object_set_new(body, "temperature", json_integer(0)) == 0 ||
           no_memory(error);
}

/* Set the variable of chat templates, unless the client has set it. */
static void set_thinking(json_t *body, bool enabled) {
    json_t *variables = json_object_get(body, "chat_template_kwargs");
    if (!json_is_object(variables)) {
        lk_convert_thinking(body, enabled);
        return;
    }
    json_object_set_new(variables, "enable_thinking", json_boolean(enabled));
    json_object_set_new(variables, "thinking", json_boolean(enabled));
}

/* The switches for thoughts of other servers: true, false, or an object with a type, with "enabled"
 * with an effort, or with a maximum of tokens. */
static bool convert_thinking(json_t *body, const char *name, struct lk_api_error *error) {
    const json_t *given = json_object_get(body, name);
    const char *type = json_string_value(json_object_get(given, "type"));
    const json_t *enabled = json_is_object(given) ? json_object_get(given, "enabled") : given;
    if (!json_object_get(json_object_get(body, "chat_template_kwargs"), "enable_thinking") &&
        (type || json_is_boolean(enabled)))
        set_thinking(body, type ? strcmp(type, "disabled") != 0 : json_is_true(enabled));
    json_t *effort = json_object_get(given, "effort");
    bool good = !json_is_string(effort) ||
                set_meant(body, "reasoning_effort", name, json_incref(effort), error);
    json_t *budget = json_object_get(given, "budget_tokens");
    if (!budget) budget = json_object_get(given, "max_tokens");
    if (good && budget && !json_is_null(budget))
        good = set_meant(body, "reasoning_budget", name, json_incref(budget), error);
    json_object_del(body, name);
    return good;
}

static bool convert_chat_switches(json_t *body, struct lk_api_error *error) {
    const json_t *apart = json_object_get(body, "separate_reasoning");
    bool is_false = json_is_false(apart);
    json_object_del(body, "separate_reasoning");
    const char *old = json_string_value(json_object_get(body, "function_call"));
    if (old && (strcmp(old, "none") == 0 || strcmp(old, "auto") == 0))
        json_object_del(body, "function_call"); /* says nothing: "functions" are refused */
    return convert_thinking(body, "enable_thinking", error) &&
           convert_thinking(body, "thinking", error) &&
           convert_thinking(body, "reasoning", error) &&
           (!is_false ||
            set_meant(body, "reasoning_format", "separate_reasoning", json_string("none"), error));
}

/* ---- checking ---- */

static bool check_fields(json_t *body, enum lk_fields_of of, const char *prefix,
                         struct lk_api_error *error) {
    const char *key;
    json_t *value;
    json_object_foreach(body, key, value) {
        double neutral;
        const char *lacks = find(lacking, sizeof lacking / sizeof *lacking, of, key, &neutral);
        if (lacks && !json_is_null(value) && !lk_field_is_neutral(value, neutral))
            return lk_api_error_set(error, 400, "unsupported", lacks,
                                    "'%s' is not supported by this server", lacks);
        if (!lacks && !find(read, sizeof read / sizeof *read, of, key, &neutral) &&
            !find(harmless, sizeof harmless / sizeof *harmless, of, key, &neutral))
            lk_api_ignore(error, prefix, key);
    }
    return true;
}

json_t *lk_fields_parse(const char *text, size_t len, enum lk_fields_of of,
                        struct lk_api_error *error) {
    json_t *body = lk_json_parse_texts(text, len, error);
    if (!body) return NULL;
    json_t *options = of == LK_FIELDS_OLLAMA ? json_object_get(body, "options") : NULL;
    bool good =
        rename_synonyms(body, of, error) &&
        (!(of & SAMPLED) || (convert_constraints(body, error) && convert_do_sample(body, error))) &&
        (of != LK_FIELDS_CHAT || convert_chat_switches(body, error)) &&
        check_fields(body, of, "", error) &&
        check_fields(options, LK_FIELDS_OPTIONS, "options.", error);
    if (good) return body;
    json_decref(body);
    return NULL;
}
