/* runtime.h on a real card. */
#include "cuda/runtime.h"

#include <stdio.h>
#include <string.h>

int gpu_count(int *n) { return cudaGetDeviceCount(n); }

int gpu_properties(int number, struct gpu_card *card) {
    struct cudaDeviceProp prop;
    cudaError_t error = cudaGetDeviceProperties(&prop, number);
    if (error) return error;
    memset(card, 0, sizeof *card);
    snprintf(card->name, sizeof card->name, "%.127s", prop.name);
    card->major = prop.major, card->minor = prop.minor;
    card->n_sm = prop.multiProcessorCount;
    card->max_shared = (int)prop.sharedMemPerBlockOptin;
    card->memory_bytes = prop.totalGlobalMem;
    card->l2_bytes = (uint64_t)prop.l2CacheSize;
    return 0;
}

int gpu_select(int number) { return cudaSetDevice(number); }

/* An error of memory must not stay behind as the thread's last error: launches report that. */
int gpu_alloc(void **memory, size_t bytes) {
    cudaError_t error = cudaMalloc(memory, bytes);
    if (error) cudaGetLastError();
    return error;
}

int gpu_free(void *memory) { return cudaFree(memory); }

int gpu_alloc_pinned(void **memory, size_t bytes) {
    cudaError_t error = cudaMallocHost(memory, bytes);
    if (error) cudaGetLastError();
    return error;
}

int gpu_free_pinned(void *memory) { return cudaFreeHost(memory); }

int gpu_free_bytes(uint64_t *bytes) {
    size_t free = 0, total = 0;
    cudaError_t error = cudaMemGetInfo(&free, &total);
    *bytes = free;
    return error;
}

int gpu_stream_create(gpu_stream *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
}

void gpu_stream_destroy(gpu_stream stream) {
    if (stream) cudaStreamDestroy(stream);
}

int gpu_stream_sync(gpu_stream stream) { return cudaStreamSynchronize(stream); }

int gpu_copy(void *to, const void *from, size_t bytes, gpu_stream stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

int gpu_fill(void *to, int byte, size_t bytes, gpu_stream stream) {
    return cudaMemsetAsync(to, byte, bytes, stream);
}

int gpu_event_create(gpu_event *event) {
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

void gpu_event_destroy(gpu_event event) {
    if (event) cudaEventDestroy(event);
}

int gpu_event_record(gpu_event event, gpu_stream stream) { return cudaEventRecord(event, stream); }
int gpu_event_sync(gpu_event event) { return cudaEventSynchronize(event); }
int gpu_stream_wait(gpu_stream stream, gpu_event event) {
    return cudaStreamWaitEvent(stream, event, 0);
}

int gpu_capture_begin(gpu_stream stream) {
    return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}

int gpu_capture_end(gpu_stream stream, gpu_graph *graph) {
    cudaGraph_t recorded;
    cudaError_t error = cudaStreamEndCapture(stream, &recorded);
    if (error) return error;
    error = cudaGraphInstantiate(graph, recorded, 0);
    cudaGraphDestroy(recorded);
    return error;
}

int gpu_graph_launch(gpu_graph graph, gpu_stream stream) { return cudaGraphLaunch(graph, stream); }

void gpu_graph_destroy(gpu_graph graph) {
    if (graph) cudaGraphExecDestroy(graph);
}

const char *gpu_error_text(int error) { return cudaGetErrorString((cudaError_t)error); }
int gpu_is_out_of_memory(int error) { return error == cudaErrorMemoryAllocation; }
int gpu_no_memory(void) { return cudaErrorMemoryAllocation; }
int gpu_bad_launch(void) { return cudaErrorInvalidConfiguration; }
