/* runtime.h without a card: one device, whose memory is a range of addresses that the host cannot
 * touch. Commands of streams are closures that run when the host waits for them. */
#include "cuda/runtime_emulated.h"

#include <deque>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

struct gpu_stream_state {
    std::deque<std::function<void()>> queue;
    gpu_graph captured; /* receives commands instead; NULL: not capturing */
};

struct gpu_graph_state {
    std::vector<std::function<void()>> commands;
};

struct gpu_event_state {
    gpu_stream stream;           /* where it was recorded last */
    uint64_t n_recorded, n_done; /* times */
};

namespace {
constexpr size_t UNDEFINED = 1 << 20;    /* bytes of new memory that are overwritten */
constexpr uintptr_t PAGE = 2 << 20;      /* a huge one */
constexpr size_t ALIGN = 256, GAP = 256; /* between allocations, so that overruns are found */

/* The card. Its memory is reserved whole; pages come when they are written. */
struct card {
    std::recursive_mutex lock;
    char *base = NULL;
    size_t size = 0, used = 0;       /* bytes given out, with gaps */
    std::map<size_t, size_t> held;   /* offset: bytes */
    std::map<void *, size_t> pinned; /* host memory that streams may use */
    int depth = 0;                   /* > 0: commands are running, the memory is open */

    int open_memory() {
        if (base) return 0;
        const char *text = getenv("LOWKEY_EMULATED_MIB");
        size = (size_t)(text ? atol(text) : 1024) << 20;
        void *range =
            mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED) return GPU_NO_MEMORY;
        base = (char *)range;
        madvise(base, size, MADV_HUGEPAGE); /* mprotect looks at each page that is there */
        ASAN_POISON_MEMORY_REGION(base, size);
        return 0;
    }

    void enter() {
        if (depth++ == 0 && base) mprotect(base, size, PROT_READ | PROT_WRITE);
    }
    void leave() {
        if (--depth == 0 && base) mprotect(base, size, PROT_NONE);
    }

    /* The whole range lies in one allocation of the card, or in pinned memory. */
    bool known(const void *address, size_t bytes) {
        const char *p = (const char *)address;
        if (base && p >= base && p < base + size) {
            auto next = held.upper_bound((size_t)(p - base));
            if (next == held.begin()) return false;
            --next;
            return (size_t)(p - base) + bytes <= next->first + next->second;
        }
        auto next = pinned.upper_bound((void *)address);
        if (next == pinned.begin()) return false;
        --next;
        return p + bytes <= (char *)next->first + next->second;
    }
};

card the_card; /* the process has one, as a machine has */

/* Run commands of a stream until `event` has happened n times; NULL: all. */
void drain(gpu_stream stream, gpu_event event, uint64_t n) {
    the_card.enter();
    while (!stream->queue.empty() && !(event && event->n_done >= n)) {
        auto command = std::move(stream->queue.front());
        stream->queue.pop_front();
        command();
    }
    the_card.leave();
}

typedef std::lock_guard<std::recursive_mutex> guard;
} // namespace

struct gpu_capability gpu_emulated_capability(void) {
    const char *text = getenv("LOWKEY_EMULATED_SM");
    int sm = text ? atoi(text) : 90;
    if (sm == 80) return {8, 0, 163 << 10, false};
    if (sm == 86) return {8, 6, 99 << 10, false};
    if (sm == 120) return {12, 0, 99 << 10, false};
    return {9, 0, 227 << 10, true};
}

int gpu_count(int *n) {
    *n = 1;
    return 0;
}

int gpu_properties(int number, struct gpu_card *card) {
    if (number != 0) return GPU_NO_DEVICE;
    guard locked(the_card.lock);
    int error = the_card.open_memory();
    if (error) return error;
    memset(card, 0, sizeof *card);
    snprintf(card->name, sizeof card->name, "emulated");
    struct gpu_capability of = gpu_emulated_capability();
    card->major = of.major, card->minor = of.minor;
    card->n_sm = GPU_EMULATED_SM;
    card->max_shared = of.max_shared;
    card->memory_bytes = the_card.size;
    card->l2_bytes = 1 << 20;
    return 0;
}

int gpu_select(int number) { return number == 0 ? 0 : GPU_NO_DEVICE; }

/* The first gap that is large enough. */
int gpu_alloc(void **memory, size_t bytes) {
    guard locked(the_card.lock);
    int error = the_card.open_memory();
    if (error) return error;
    if (bytes == 0) return GPU_INVALID;
    size_t at = ALIGN;
    for (auto &range : the_card.held) {
        if (at + bytes + GAP <= range.first) break;
        at = (range.first + range.second + GAP + ALIGN - 1) / ALIGN * ALIGN;
    }
    if (bytes > the_card.size || at + bytes + GAP > the_card.size) return GPU_NO_MEMORY;
    the_card.held[at] = bytes;
    the_card.used += bytes;
    ASAN_UNPOISON_MEMORY_REGION(the_card.base + at, bytes);
    the_card.enter(); /* undefined contents: NaN as f16 and f32, so that reading them shows */
    memset(the_card.base + at, 0xff, bytes < UNDEFINED ? bytes : UNDEFINED);
    the_card.leave();
    *memory = the_card.base + at;
    return 0;
}

int gpu_free(void *memory) {
    if (!memory) return 0;
    guard locked(the_card.lock);
    auto range = the_card.held.find((size_t)((char *)memory - the_card.base));
    if (range == the_card.held.end()) return GPU_INVALID;
    uintptr_t from = (uintptr_t)memory, first = (from + PAGE - 1) / PAGE * PAGE,
              last = (from + range->second) / PAGE * PAGE;
    if (last > first) madvise((void *)first, last - first, MADV_DONTNEED);
    ASAN_POISON_MEMORY_REGION(memory, range->second);
    the_card.used -= range->second;
    the_card.held.erase(range);
    return 0;
}

int gpu_alloc_pinned(void **memory, size_t bytes) {
    *memory = malloc(bytes);
    if (!*memory) return GPU_NO_MEMORY;
    guard locked(the_card.lock);
    the_card.pinned[*memory] = bytes;
    return 0;
}

int gpu_free_pinned(void *memory) {
    if (!memory) return 0;
    guard locked(the_card.lock);
    if (the_card.pinned.erase(memory) != 1) return GPU_INVALID;
    free(memory);
    return 0;
}

int gpu_free_bytes(uint64_t *bytes) {
    guard locked(the_card.lock);
    int error = the_card.open_memory();
    *bytes = the_card.size - the_card.used;
    return error;
}

int gpu_stream_create(gpu_stream *stream) {
    *stream = new gpu_stream_state();
    return 0;
}

void gpu_stream_destroy(gpu_stream stream) { delete stream; }

int gpu_stream_sync(gpu_stream stream) {
    guard locked(the_card.lock);
    if (stream->captured) return GPU_CAPTURE;
    drain(stream, NULL, 0);
    return 0;
}

int gpu_emulated_issue(gpu_stream stream, std::function<void()> command) {
    guard locked(the_card.lock);
    if (stream->captured)
        stream->captured->commands.push_back(std::move(command));
    else
        stream->queue.push_back(std::move(command));
    return 0;
}

int gpu_copy(void *to, const void *from, size_t bytes, gpu_stream stream) {
    guard locked(the_card.lock);
    if (!the_card.known(to, bytes) || !the_card.known(from, bytes)) return GPU_INVALID;
    return gpu_emulated_issue(stream, [=] { memcpy(to, from, bytes); });
}

int gpu_fill(void *to, int byte, size_t bytes, gpu_stream stream) {
    guard locked(the_card.lock);
    if (!the_card.known(to, bytes)) return GPU_INVALID;
    return gpu_emulated_issue(stream, [=] { memset(to, byte, bytes); });
}

int gpu_event_create(gpu_event *event) {
    *event = new gpu_event_state();
    return 0;
}

void gpu_event_destroy(gpu_event event) { delete event; }

int gpu_event_record(gpu_event event, gpu_stream stream) {
    guard locked(the_card.lock);
    if (stream->captured) return GPU_CAPTURE;
    event->stream = stream;
    event->n_recorded++;
    return gpu_emulated_issue(stream, [=] { event->n_done++; });
}

int gpu_event_sync(gpu_event event) {
    guard locked(the_card.lock);
    if (event->stream) drain(event->stream, event, event->n_recorded);
    return 0;
}

int gpu_stream_wait(gpu_stream stream, gpu_event event) {
    guard locked(the_card.lock);
    if (stream->captured) return GPU_CAPTURE;
    gpu_stream other = event->stream;
    uint64_t n = event->n_recorded;
    if (!other || other == stream) return 0;
    return gpu_emulated_issue(stream, [=] { drain(other, event, n); });
}

int gpu_capture_begin(gpu_stream stream) {
    guard locked(the_card.lock);
    if (stream->captured) return GPU_CAPTURE;
    stream->captured = new gpu_graph_state();
    return 0;
}

int gpu_capture_end(gpu_stream stream, gpu_graph *graph) {
    guard locked(the_card.lock);
    if (!stream->captured) return GPU_CAPTURE;
    *graph = stream->captured;
    stream->captured = NULL;
    return 0;
}

int gpu_graph_launch(gpu_graph graph, gpu_stream stream) {
    guard locked(the_card.lock);
    for (auto &command : graph->commands) gpu_emulated_issue(stream, command);
    return 0;
}

void gpu_graph_destroy(gpu_graph graph) { delete graph; }

const char *gpu_error_text(int error) {
    switch (error) {
    case 0: return "no error";
    case GPU_INVALID: return "invalid argument";
    case GPU_NO_MEMORY: return "out of memory";
    case GPU_BAD_LAUNCH: return "invalid configuration of a launch";
    case GPU_NO_DEVICE: return "no such device";
    case GPU_CAPTURE: return "not allowed while a graph is recorded";
    }
    return "unknown error";
}

int gpu_is_out_of_memory(int error) { return error == GPU_NO_MEMORY; }
int gpu_no_memory(void) { return GPU_NO_MEMORY; }
int gpu_bad_launch(void) { return GPU_BAD_LAUNCH; }

static int issue(gpu_stream stream, void (*command)(void *user), void *user) {
    return gpu_emulated_issue(stream, [=] { command(user); });
}

extern "C" {
extern __attribute__((visibility("default"))) const struct gpu_emulated_card lk_emulated_card;
const struct gpu_emulated_card lk_emulated_card = {
    gpu_alloc, gpu_free, gpu_stream_create, gpu_stream_destroy, gpu_stream_sync, issue};
}
