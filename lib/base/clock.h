/* Clocks, in seconds. Only differences are meaningful. */
#ifndef LK_BASE_CLOCK_H
#define LK_BASE_CLOCK_H

/* Monotonic wall clock. It is not affected by changes to the system time. */
double lk_now(void);

/* CPU time used by the calling thread, and by the whole process. */
double lk_thread_cpu_seconds(void);
double lk_process_cpu_seconds(void);

#endif
