/* What the jobs of bench/gpu/kernels.cpp share: a card, memory, timing of graphs, answers. */
#ifndef LK_BENCH_GPU_H
#define LK_BENCH_GPU_H

#include "cuda/launch.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

static const size_t COLD_BYTES = (size_t)768
                                 << 20; /* of the rows of a graph; an L2 has 50 to 126 MB */
static const int MAX_LAYERS = 48, MAX_REPEATS = 9;

/* "KIND KEY=VALUE ...", one line. */
struct job {
    std::string line, kind;
    explicit job(const char *text) : line(text) {
        while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
        kind = line.substr(0, line.find(' '));
    }
    /* The value of a key; `otherwise` if it is not there. */
    std::string word(const char *key, const char *otherwise = "") const {
        std::string find = std::string(" ") + key + "=";
        size_t at = line.find(find);
        if (at == std::string::npos) return otherwise;
        at += find.size();
        return line.substr(at, line.find(' ', at) - at);
    }
    int number(const char *key, int otherwise = 0) const {
        std::string value = word(key);
        return value.empty() ? otherwise : atoi(value.c_str());
    }
    bool emulate() const { return number("emulate") != 0; }
};

struct answer {
    std::string skipped, failed;
    double us = 0, deviation = 0, bytes = 0, nmse = -1;
    int repeats = 0;
};

static inline answer skipped(const std::string &why) {
    answer a;
    a.skipped = why;
    return a;
}
static inline answer failed(const std::string &why) {
    answer a;
    a.failed = why;
    return a;
}

static inline void print(const answer &a) {
    if (!a.skipped.empty())
        printf("{\"skipped\": \"%s\"}\n", a.skipped.c_str());
    else if (!a.failed.empty())
        printf("{\"failed\": \"%s\"}\n", a.failed.c_str());
    else {
        printf("{\"repeats\": %d", a.repeats);
        if (a.us > 0) printf(", \"us\": %.3f, \"sd\": %.3f", a.us, a.deviation);
        if (a.us > 0 && a.bytes > 0) printf(", \"gbs\": %.0f", a.bytes / a.us / 1e3);
        if (a.nmse >= 0) printf(", \"nmse\": %.3e", a.nmse);
        printf("}\n");
    }
    fflush(stdout);
}

/* Memory of the card, freed with the object. at() is 0 if there was not enough. */
struct buffer {
    void *memory = NULL;
    size_t size;
    explicit buffer(size_t bytes) : size(bytes) {
        if (gpu_alloc(&memory, bytes)) memory = NULL;
    }
    ~buffer() {
        if (memory) gpu_free(memory);
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    uint64_t at() const { return (uint64_t)memory; }
};

/* The first card, with pinned memory that all copies go through. */
struct bench_card {
    enum { PINNED = 4 << 20 };
    std::string missing; /* why there is none */
    struct gpu_card is;
    gpu_stream stream = NULL;
    char *pinned = NULL;

    bench_card() {
        int n = 0, error = gpu_count(&n);
        if (!error && n > 0) error = gpu_select(0);
        if (!error && n > 0) error = gpu_properties(0, &is);
        if (!error && n > 0) error = gpu_stream_create(&stream);
        if (!error && n > 0) error = gpu_alloc_pinned((void **)&pinned, PINNED);
        if (error)
            missing = gpu_error_text(error);
        else if (n < 1)
            missing = "no card";
        else
            printf("%s, %d multiprocessors\n", is.name, is.n_sm);
    }
    ~bench_card() {
        if (pinned) gpu_free_pinned(pinned);
        if (stream) gpu_stream_destroy(stream);
    }
    bench_card(const bench_card &) = delete;
    bench_card &operator=(const bench_card &) = delete;

    int sync() { return gpu_stream_sync(stream); }
    void fill(const buffer &to, int byte) {
        gpu_fill(to.memory, byte, to.size, stream);
        sync();
    }
    void send(uint64_t to, const void *from, size_t size) {
        for (size_t at = 0; at < size; at += PINNED) {
            size_t n = std::min<size_t>(PINNED, size - at);
            memcpy(pinned, (const char *)from + at, n);
            gpu_copy((char *)to + at, pinned, n, stream);
            sync();
        }
    }
    void receive(void *to, uint64_t from, size_t size) {
        for (size_t at = 0; at < size; at += PINNED) {
            size_t n = std::min<size_t>(PINNED, size - at);
            gpu_copy(pinned, (const char *)from + at, n, stream);
            sync();
            memcpy((char *)to + at, pinned, n);
        }
    }
    int last_byte(const buffer &b) {
        char byte = 0;
        receive(&byte, b.at() + b.size - 1, 1);
        return byte;
    }
    /* Fill a buffer with copies of its first `n` bytes. */
    void repeat(const buffer &b, size_t n) {
        for (; n < b.size; n *= 2)
            gpu_copy((char *)b.memory + n, b.memory, std::min(n, b.size - n), stream);
        sync();
    }
};

/* Microseconds between two places of a stream. */
struct stopwatch {
#ifdef __CUDACC__
    cudaEvent_t begin_, end_;
    stopwatch() { cudaEventCreate(&begin_), cudaEventCreate(&end_); }
    ~stopwatch() { cudaEventDestroy(begin_), cudaEventDestroy(end_); }
    void begin(gpu_stream s) { cudaEventRecord(begin_, s); }
    double end(gpu_stream s) {
        float ms = 0;
        cudaEventRecord(end_, s);
        cudaEventSynchronize(end_);
        cudaEventElapsedTime(&ms, begin_, end_);
        return ms * 1000.0;
    }
#else
    std::chrono::steady_clock::time_point at;
    void begin(gpu_stream) { at = std::chrono::steady_clock::now(); }
    double end(gpu_stream s) {
        gpu_stream_sync(s);
        auto took = std::chrono::steady_clock::now() - at;
        return std::chrono::duration<double, std::micro>(took).count();
    }
#endif
};

/* Time a graph of n launches: launch(i) issues the i-th on the card's stream. The emulator
 * runs the graph once and measures nothing. */
template <class L> answer timed(bench_card &card, int n, const L &launch) {
    answer a;
    gpu_graph graph;
    int error = launch(0);
    if (!error) error = card.sync();
    a.repeats = 1;
#ifndef __CUDACC__
    if (error) return failed(gpu_error_text(error));
    return a;
#endif
    if (!error) error = gpu_capture_begin(card.stream);
    for (int i = 0; !error && i < n; i++) error = launch(i);
    if (!error) error = gpu_capture_end(card.stream, &graph);
    if (error) return failed(gpu_error_text(error));
    error = gpu_graph_launch(graph, card.stream);
    if (!error) error = card.sync();
    std::vector<double> us;
    double all = 0, mean = 0, squares = 0;
    stopwatch watch;
    for (int i = 0; !error && i < MAX_REPEATS && (i < 3 || all < 3e5); i++) {
        watch.begin(card.stream);
        error = gpu_graph_launch(graph, card.stream);
        us.push_back(watch.end(card.stream) / n), all += us.back() * n;
    }
    if (!error) error = card.sync();
    gpu_graph_destroy(graph);
    if (error) return failed(gpu_error_text(error));
    std::sort(us.begin(), us.end());
    for (double t : us) mean += t / (double)us.size();
    for (double t : us) squares += (t - mean) * (t - mean);
    a.us = us[us.size() / 2], a.repeats = (int)us.size();
    a.deviation = sqrt(squares / (double)(us.size() - 1));
    return a;
}

#endif
