/* Passes in pieces: the layers of a device are computed apart from the attention between them.
 * First the device is ggml's CPU backend, which reads the same weights, so all logits must have the
 * bits that one graph gives. Then it is another process, through ggml's RPC: it has weights of its
 * own, and only ggml's operators. */
#include "engine/session_state.h"
#include "model/ggml_device.h"
#include "support_compute.h"
#include "support_model.h"
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_CTX = COMPUTE_CTX };

/* Let the layers from `first` on be computed by the device. */
static void use_device(lk_model *model, struct lk_ggml_device *device, int first) {
    *device = (struct lk_ggml_device){.name = "test",
                                      .backend = ggml_backend_cpu_init(),
                                      .buft = ggml_backend_cpu_buffer_type(),
                                      .is_host = true};
    assert_non_null(device->backend);
    ggml_backend_cpu_set_n_threads(device->backend, 1);
    model->net->device = device;
    model->net->first_on_device = first;
    model->net->rope_factors_on_device = model->net->rope_factors;
    model->net->layer_proj_on_device = model->net->layer_proj;
    model->net->layer_proj_norm_on_device = model->net->layer_proj_norm;
}

static void drop_device(lk_model *model, struct lk_ggml_device *device) {
    model->net->device = NULL;
    ggml_backend_free(device->backend);
    for (int i = 0; i < LK_N_PURPOSE; i++)
        assert_int_equal(lk_ledger_bytes(&device->ledger, (enum lk_purpose)i), 0);
}

/* The recipe for a model: of three in turn, if the family can have it. */
static const char *choose_recipe(lk_model *model, size_t i) {
    static const char *const recipe[] = {"best-3", "f16", "keep 40 by h2o: k=f16 v=f16"};
    lk_recipe *parsed = NULL;
    lk_session *session = NULL;
    assert_int_equal(lk_recipe_parse(&parsed, recipe[i % 3], NULL), LK_OK);
    lk_status status = lk_session_new(&session, model, parsed, NULL, NULL);
    lk_session_free(session);
    lk_recipe_free(parsed);
    return recipe[status ? 1 : i % 3];
}

static int context_of(const struct tiny_spec *spec) {
    return spec->n_ctx > 0 && spec->n_ctx < N_CTX ? spec->n_ctx : N_CTX;
}

static void pieces_have_the_same_bits(void **state) {
    (void)state;
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        int n_ctx = context_of(spec);
        lk_model_opts opts = {.n_threads = 2, .n_ctx = n_ctx};
        lk_model *model = open_tiny(spec, &opts);
        const char *recipe = choose_recipe(model, (size_t)(spec - tiny_presets));
        int32_t tok[N_CTX];
        random_tokens(tok, N_CTX, model, 7);
        struct results plain = {0};
        compute(model, recipe, tok, n_ctx, &plain);
        for (int part = 0; part < 2; part++) {
            struct lk_ggml_device device;
            struct results pieces = {0};
            use_device(model, &device, part ? spec->n_layer / 2 : 0);
            compute(model, recipe, tok, n_ctx, &pieces);
            drop_device(model, &device);
            int row = first_difference(&pieces, &plain, lk_model_get_info(model).n_vocab, 0);
            if (row >= 0)
                fail_msg("%s, %s, first layer on the device %d: logits %d differ", spec->name,
                         recipe, part ? spec->n_layer / 2 : 0, row);
            assert_memory_equal(pieces.embedding, plain.embedding, sizeof plain.embedding);
            free(pieces.logits);
        }
        free(plain.logits);
        lk_model_free(model);
    }
}

/* Slots of shared memory are used again: a pass of many layers needs no more than one of few. */
static void pieces_share_memory(void **state) {
    size_t bytes[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tiny_spec spec = *tiny_preset("llama");
        spec.n_layer = i ? 12 : 4;
        lk_model_opts opts = {.n_threads = 2, .n_ctx = 64};
        lk_model *model = open_tiny(&spec, &opts);
        struct lk_ggml_device device;
        use_device(model, &device, 0);
        lk_recipe *recipe;
        lk_session *s = open_session(model, "f16", 64, &recipe);
        int32_t tok[1] = {1};
        assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_OK);
        bytes[i] = lk_ledger_bytes(&device.ledger, LK_FOR_SCRATCH);
        assert_true(bytes[i] > 0);
        lk_session_free(s);
        lk_recipe_free(recipe);
        drop_device(model, &device);
        lk_model_free(model);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

/* ---- another process ---- */

/* Servers of ggml's RPC: one for all tests, one that is ended. */
static struct server {
    pid_t pid;
    char name[32]; /* of its device */
} servers[2];

typedef void (*start_server)(const char *endpoint, const char *cache_dir, size_t n_threads,
                             size_t n_devices, ggml_backend_dev_t *devices);

static int open_socket(struct sockaddr_in *at, bool listens) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof *at;
    bool ok = fd >= 0;
    if (ok && listens) ok = bind(fd, (struct sockaddr *)at, len) == 0;
    if (ok && listens) ok = getsockname(fd, (struct sockaddr *)at, &len) == 0;
    if (ok && !listens) ok = connect(fd, (struct sockaddr *)at, len) == 0;
    if (ok) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Start a server on a free port of the loopback device, before this process has threads. False:
 * this build of ggml has no RPC. */
static bool start(struct server *s) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
    if (!reg) return false;
    start_server run =
        (start_server)ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_start_server");
    int fd = open_socket(&at, true);
    if (!run || fd < 0) return false;
    close(fd);
    snprintf(s->name, sizeof s->name, "rpc:127.0.0.1:%d", ntohs(at.sin_port));
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        run(s->name + 4, NULL, 1, 1, &cpu);
        _exit(1);
    }
    for (int i = 0; i < 2000; i++) { /* until it listens */
        if ((fd = open_socket(&at, false)) >= 0) break;
        usleep(10000);
    }
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void end(struct server *s) {
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
    }
    s->pid = 0;
}

static void need_rpc(void) {
    if (servers[0].pid > 0) return;
    print_message("skipped: this build of ggml has no RPC\n");
    skip();
}

/* How far logits may be from the CPU's: their bits are equal, unless other operators compute parts
 * of the model. Then quantized activations may be rounded the other way. */
static double tolerance(const lk_model *model, enum ggml_type type) {
    bool cast = type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1; /* to f32 on the CPU */
    const struct lk_hparams *hp = &model->net->hp;
    if (hp->n_expert == 0 && hp->n_recurrent == 0 && hp->attn_temp == 0 && !cast) return 0;
    return type == GGML_TYPE_F32 ? 1e-6 : 1e-2;
}

/* All layers, and half of them, of all families. */
static void remote_layers_give_the_same_logits(void **state) {
    (void)state;
    need_rpc();
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        int n_ctx = context_of(spec), n_half = spec->n_layer / 2;
        lk_model_opts opts = {.n_threads = 2, .n_ctx = n_ctx, .no_repack = true};
        lk_model *model = open_tiny(spec, &opts);
        int n_vocab = lk_model_get_info(model).n_vocab;
        double max_nmse = tolerance(model, spec->type);
        /* Evicted rows would differ, and quantized ones be rounded the other way. */
        const char *recipe =
            max_nmse > 0 ? "f16" : choose_recipe(model, (size_t)(spec - tiny_presets));
        int32_t tok[N_CTX];
        random_tokens(tok, N_CTX, model, 7);
        struct results plain = {0};
        compute(model, recipe, tok, n_ctx, &plain);
        lk_model_free(model);
        opts.device = servers[0].name;
        for (int part = 0; part < (n_half > 0 ? 2 : 1); part++) {
            struct results remote = {0};
            opts.n_device_layers = part ? n_half : 0;
            model = open_tiny(spec, &opts);
            lk_model_info info = lk_model_get_info(model);
            assert_int_equal(info.device_bytes, info.device_weight_bytes);
            assert_true(info.device_weight_bytes > 0);
            assert_int_equal(info.n_device_layers, part ? n_half : info.n_layer);
            compute(model, recipe, tok, n_ctx, &remote);
            info = lk_model_get_info(model); /* sessions have left */
            assert_int_equal(info.device_bytes, info.device_weight_bytes);
            lk_model_free(model);
            int row = first_difference(&remote, &plain, n_vocab, max_nmse);
            if (row >= 0)
                fail_msg("%s, %s, %d layers on the device: logits %d differ", spec->name, recipe,
                         opts.n_device_layers, row);
            free(remote.logits);
        }
        free(plain.logits);
    }
}

static char model_path[] = "/tmp/lowkey-pieces-XXXXXX";

/* Opening with these options fails with this status, and the message has this part. */
static void expect_failure(const lk_model_opts *opts, lk_status status, const char *part) {
    lk_model *model = NULL;
    lk_err err = {0};
    assert_int_equal(lk_model_open(&model, model_path, opts, &err), status);
    assert_null(model);
    if (!strstr(err.msg, part) || strchr(err.msg, '\n')) fail_msg("%s", err.msg);
}

static void what_a_device_cannot_do_is_refused(void **state) {
    (void)state;
    need_rpc();
    expect_failure(&(lk_model_opts){.device = "cuda77"}, LK_E_ARG,
                   "no device 'cuda77'; devices: cpu");
    expect_failure(&(lk_model_opts){.device = "rpc:nowhere"}, LK_E_ARG, "is not rpc:HOST:PORT");
    expect_failure(&(lk_model_opts){.device = "rpc:127.0.0.1:1"}, LK_E_IO, "cannot be opened");
    expect_failure(&(lk_model_opts){.device = servers[0].name, .n_device_layers = 99}, LK_E_ARG,
                   "99 layers cannot be on the device; the model has");
    expect_failure(&(lk_model_opts){.n_device_layers = 1}, LK_E_ARG, "none is named");
    expect_failure(&(lk_model_opts){.device = servers[0].name, .max_device_bytes = 1000},
                   LK_E_NOMEM, "has not enough memory for");
    lk_model *model = NULL;
    lk_model_opts opts = {.device = servers[0].name};
    assert_int_equal(lk_model_open(&model, model_path, &opts, NULL), LK_OK);
    lk_err err = {0};
    assert_int_equal(lk_model_check_dense(model, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "without a device"));
    lk_model_free(model);
    opts = (lk_model_opts){.device = servers[0].name, .n_device_layers = -1};
    assert_int_equal(lk_model_open(&model, model_path, &opts, NULL), LK_OK);
    assert_null(lk_model_get_info(model).device);
    lk_model_free(model);
}

/* A header has the bytes that would be on the device. */
static void a_header_knows_the_device(void **state) {
    (void)state;
    need_rpc();
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        lk_model *model = NULL;
        lk_model_opts opts = {.device = servers[0].name, .header_only = i};
        assert_int_equal(lk_model_open(&model, model_path, &opts, NULL), LK_OK);
        bytes[i] = lk_model_get_info(model).device_weight_bytes;
        lk_model_free(model);
    }
    assert_true(bytes[0] > 0);
    assert_int_equal(bytes[0], bytes[1]);
}

/* The limit of the device's memory holds for activations, too; then the session goes on. */
static void activations_have_the_limit(void **state) {
    (void)state;
    need_rpc();
    lk_model *model = NULL;
    lk_model_opts opts = {.device = servers[0].name};
    lk_recipe *recipe;
    int32_t tok[200] = {0};
    lk_err err = {0};
    assert_int_equal(lk_model_open(&model, model_path, &opts, NULL), LK_OK);
    lk_session *s = open_session(model, "f16", 256, &recipe);
    model->net->device->ledger.limit = lk_model_get_info(model).device_bytes + 4096;
    assert_int_equal(lk_session_eval(s, tok, 200, false, &err), LK_E_NOMEM);
    assert_non_null(strstr(err.msg, servers[0].name));
    model->net->device->ledger.limit = 0;
    assert_int_equal(lk_session_eval(s, tok, 200, false, &err), LK_OK);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* The end of a server is an error of one line, and all handles can be freed. */
static void a_lost_server_is_an_error(void **state) {
    (void)state;
    need_rpc();
    lk_model *model = NULL;
    lk_model_opts opts = {.device = servers[1].name, .n_threads = 2};
    lk_recipe *recipe;
    int32_t tok[40] = {0};
    assert_int_equal(lk_model_open(&model, model_path, &opts, NULL), LK_OK);
    lk_session *s = open_session(model, "best-3", 256, &recipe);
    assert_int_equal(lk_session_sync(s, tok, 40, NULL, NULL), LK_OK);
    end(&servers[1]);
    for (int i = 0; i < 3; i++) {
        lk_err err = {0};
        assert_int_equal(i == 1 ? lk_session_sync(s, tok, 30, NULL, &err)
                                : lk_session_eval(s, tok, 1, false, &err),
                         LK_E_IO);
        if (!strstr(err.msg, "failed: ") || strchr(err.msg, '\n')) fail_msg("%s", err.msg);
        assert_true(lk_session_n_tok(s) == 0 || lk_session_n_tok(s) == 40);
    }
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
    expect_failure(&opts, LK_E_IO, servers[1].name);
}

/* What LeakSanitizer does not report: ggml keeps what it knows of RPC servers until the process
 * ends, and buffers of a server that is gone. All C++ objects here are ggml's. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:ggml_backend_rpc_\nleak:ggml_backend_buffer_init\nleak:std::\nleak:libstdc++\n";
}

int main(void) {
    for (size_t i = 0; i < 2; i++)
        if (!start(&servers[i])) end(&servers[i]);
    int fd = mkstemp(model_path);
    bool written = fd >= 0 && tiny_gguf_write(model_path, tiny_preset("llama"));
    if (fd >= 0) close(fd);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_have_the_same_bits),
        cmocka_unit_test(pieces_share_memory),
        cmocka_unit_test(remote_layers_give_the_same_logits),
        cmocka_unit_test(what_a_device_cannot_do_is_refused),
        cmocka_unit_test(a_header_knows_the_device),
        cmocka_unit_test(activations_have_the_limit),
        cmocka_unit_test(a_lost_server_is_an_error),
    };
    int failed = written ? cmocka_run_group_tests_name("pieces", tests, NULL, NULL) : 1;
    unlink(model_path);
    for (size_t i = 0; i < 2; i++) end(&servers[i]);
    return failed;
}
