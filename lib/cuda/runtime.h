/* What the device module needs of CUDA's runtime: memory, copies, streams, events, graphs.
 *
 * With nvcc these are thin wrappers. Compiled as C++ they are an emulated card
 * (runtime_emulated.cpp) that is stricter than a real one:
 *
 *   - Its memory can be read and written only while it runs commands. A host access is a fault.
 *   - Commands of a stream run when the host waits for the stream, not when they are issued. So a
 *     staging buffer that is reused too early, or a result that is read too early, is a wrong
 *     result in every run.
 *   - Launches that a card refuses (too much shared memory, an incomplete cluster) are refused.
 *
 * All functions return 0 or an error number; gpu_error_text says what it means. */
#ifndef LK_CUDA_RUNTIME_H
#define LK_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
typedef cudaStream_t gpu_stream;
typedef cudaEvent_t gpu_event;
typedef cudaGraphExec_t gpu_graph;
#else
typedef struct gpu_stream_state *gpu_stream;
typedef struct gpu_event_state *gpu_event;
typedef struct gpu_graph_state *gpu_graph;
#endif

struct gpu_card {
    char name[128];
    int major, minor;      /* compute capability */
    int n_sm;              /* multiprocessors */
    int max_shared;        /* bytes of shared memory that a block may ask for */
    uint64_t memory_bytes; /* all of the card's memory */
    uint64_t l2_bytes;     /* its second-level cache */
};

int gpu_count(int *n);
int gpu_properties(int number, struct gpu_card *card);

/* Use a card in the calling thread. Each function of the module begins with this. */
int gpu_select(int number);

/* Memory of the card, aligned to 256 bytes; pinned memory of the host, which copies of a stream may
 * read and write. Contents are undefined. */
int gpu_alloc(void **memory, size_t bytes);
int gpu_free(void *memory);
int gpu_alloc_pinned(void **memory, size_t bytes);
int gpu_free_pinned(void *memory);

/* Bytes of the card's memory that are free now. */
int gpu_free_bytes(uint64_t *bytes);

int gpu_stream_create(gpu_stream *stream);
void gpu_stream_destroy(gpu_stream stream);
int gpu_stream_sync(gpu_stream stream);

/* Copies between pinned memory and the card, in either direction, or on the card. */
int gpu_copy(void *to, const void *from, size_t bytes, gpu_stream stream);
int gpu_fill(void *to, int byte, size_t bytes, gpu_stream stream);

/* An event marks a place in a stream, for another stream, or the host, to wait for. */
int gpu_event_create(gpu_event *event);
void gpu_event_destroy(gpu_event event);
int gpu_event_record(gpu_event event, gpu_stream stream);
int gpu_event_sync(gpu_event event);
int gpu_stream_wait(gpu_stream stream, gpu_event event);

/* Commands issued between begin and end become a graph instead of running. Events cannot be waited
 * for, and nothing can be synchronized, between these two. */
int gpu_capture_begin(gpu_stream stream);
int gpu_capture_end(gpu_stream stream, gpu_graph *graph);
int gpu_graph_launch(gpu_graph graph, gpu_stream stream);
void gpu_graph_destroy(gpu_graph graph);

const char *gpu_error_text(int error);

/* Is it the error of a card without enough memory? */
int gpu_is_out_of_memory(int error);

/* The numbers of two errors: no memory, a launch that the card cannot take. */
int gpu_no_memory(void);
int gpu_bad_launch(void);

#endif
