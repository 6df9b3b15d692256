/* Names of models, from the file names and metadata of published files. */
#include "model/net.h"
#include "test.h"

static void check_name(const char *path, const char *general_name, const char *expected) {
    char name[128];
    lk_model_name(name, sizeof name, path, general_name);
    assert_string_equal(name, expected);
}

static void file_name_is_used_if_confirmed(void **state) {
    check_name("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2",
               "SmolLM2-135M-Instruct");
    check_name("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "Qwen2.5 Coder 0.5B Instruct AWQ",
               "Qwen2.5-Coder-0.5B-Instruct");
    check_name("qwen2.5-1.5b-instruct-q4_k_m.gguf", "qwen2.5-1.5b-instruct",
               "qwen2.5-1.5b-instruct");
    check_name("llama-2-7b-chat.Q4_K_M.gguf", "LLaMA v2", "llama-2-7b-chat");
    check_name("mistral-7b-instruct-v0.2.Q5_K_S.gguf", "mistralai_mistral-7b-instruct-v0.2",
               "mistral-7b-instruct-v0.2");
    check_name("tinyllama-1.1b-chat-v0.3.Q2_K.gguf", "py007_tinyllama-1.1b-chat-v0.3",
               "tinyllama-1.1b-chat-v0.3");
}

static void storage_tags_are_removed(void **state) {
    static const char *const file[] = {
        "Llama-3.3-70B-Instruct-Q4_K_M-00001-of-00002.gguf",
        "Llama-3.3-70B-Instruct-UD-Q4_K_XL.gguf",
        "Llama-3.3-70B-Instruct.i1-IQ2_XXS.gguf",
        "Llama-3.3-70B-Instruct-BF16.gguf",
        "Llama-3.3-70B-Instruct.F32.GGUF",
        "Llama-3.3-70B-Instruct-tq1_0.gguf",
        "Llama-3.3-70B-Instruct-MXFP4_MOE.gguf",
        "Llama-3.3-70B-Instruct",
    };
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++)
        check_name(file[i], "Llama 3.3 70B Instruct", "Llama-3.3-70B-Instruct");
    check_name("Qwen3-Q-0.6B.gguf", "", "Qwen3-Q-0.6B"); /* no digit after the Q */
    check_name("a-1-of-2.gguf", "", "a-1-of-2");
}

static void general_name_is_used_otherwise(void **state) {
    /* ollama's files */
    check_name("/blobs/sha256-74701a8c35f6c8d9a4b91f3f3497643001d63e0c7a84e085bed452548fa88d45",
               "Llama 3.2 1B Instruct", "Llama 3.2 1B Instruct");
    check_name("models/ggml-model-q4_0.gguf", "Gemma 3 270M", "Gemma 3 270M");
    check_name("model.gguf", "My model 3", "My model 3");
    check_name("qwen.gguf", "Qwen2.5 1.5B Instruct", "Qwen2.5 1.5B Instruct");
    check_name("q1.gguf", "Qwen q1", "Qwen q1"); /* the file's word is too short */
    check_name("tiny.gguf", "tiny", "tiny");
}

static void file_name_is_used_without_general_name(void **state) {
    check_name("falcon-rw-1b.Q8_0.gguf", "", "falcon-rw-1b");
    check_name("weird", "", "weird");
    check_name(".gguf", "", ".gguf");
    check_name("", "", "");
    check_name("folder/", "", "");
}

static void long_names_are_cut(void **state) {
    char name[8];
    lk_model_name(name, sizeof name, "x", "Qwen2.5 Coder");
    assert_string_equal(name, "Qwen2.5");
    lk_model_name(name, sizeof name, "Qwen2.5-Coder.gguf", "Qwen2.5 Coder");
    assert_string_equal(name, "Qwen2.5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_name_is_used_if_confirmed),
        cmocka_unit_test(storage_tags_are_removed),
        cmocka_unit_test(general_name_is_used_otherwise),
        cmocka_unit_test(file_name_is_used_without_general_name),
        cmocka_unit_test(long_names_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
