/* Counts what a process asks the allocator for. Loaded before the C library (LD_PRELOAD), with PYTHONMALLOC=malloc, it
 * counts what Python asks for too, but for what that has on its free lists. */
#include <stdatomic.h>
#include <stddef.h>

static atomic_long asked;

/* glibc's own names: dlsym itself allocates, so that looking up the next malloc from within one would not end. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size) {
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    return __libc_realloc(old, size);
}

long otel_gpu_allocations(void) {
    return atomic_load_explicit(&asked, memory_order_relaxed);
}
