/* The common part of every call: count it, reference the world, apply faults, find the device. */
#ifndef STUB_STUB_H
#define STUB_STUB_H

#include "nvml_abi.h"
#include "world.h"

enum scope {
    NO_DEVICE,     /* the call has no device */
    NAMED_DEVICE,  /* by index, UUID or bus id: the call finds it, then calls suffer() */
    GPU_ONLY,      /* a MIG handle gets NOT_SUPPORTED */
    GPU_OR_MIG,    /* both kinds of handle are valid */
    MIG_ONLY,      /* a GPU's handle gets INVALID_ARGUMENT */
    NO_MIG_PARENT, /* neither a MIG handle nor a GPU in MIG mode */
};

/* One call in progress. Its reference keeps the world alive during a concurrent shutdown. */
struct call {
    struct world *world;
    int64_t now_us;
    uint32_t gpu_index;
    const struct gpu *gpu;
    const struct mig *mig; /* NULL for a GPU */
    const struct subject *subject;
    int64_t since_us; /* earlier records belong to another MIG instance in the same slot */
};

nvmlReturn_t call_begin(struct call *call, enum function function, nvmlDevice_t device, enum scope scope);
void call_end(struct call *call);

/* Leaves the calling function unless the call may be answered. No lock is held after it. */
#define ENTER(name, device, scope)                                      \
    __attribute__((cleanup(call_end))) struct call call = {0};          \
    nvmlReturn_t entered = call_begin(&call, FN_##name, device, scope); \
    if (entered != NVML_SUCCESS)                                        \
    return entered

#define REQUIRE(condition)                      \
    do {                                        \
        if (!(condition))                       \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

/* Handles are numbers, not pointers: a stale one is refused. mig: -1, or its index in gpu->mig. */
nvmlDevice_t device_handle(uint32_t gpu_index, int mig);
/* Applies the faults of this device (ANYTHING: not found) and reads the time again. */
nvmlReturn_t suffer(struct call *call, enum function function, int gpu, int slot);

/* The recorded value at this time; NULL if there is none. */
const struct value *value_now(const struct call *call, enum value_kind kind);
bool mig_is_on(const struct call *call);
bool mig_is_alive(const struct mig *mig, int64_t now_us);
nvmlReturn_t copy_text(const char *text, char *out, unsigned int length);
uint64_t unix_us(const struct call *call, int64_t at_us);

void sleep_us(int64_t microseconds);
int64_t monotonic_us(void);
void count_call(enum function function);
void event_sets_drop(void); /* at the last shutdown */

#endif
