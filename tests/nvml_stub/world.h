/* The recorded world: read once from a file, then constant except for the accounting mode; every answer is a look-up at
 * a world time. */
#ifndef STUB_WORLD_H
#define STUB_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum function {
#define FN(name) FN_##name,
#include "functions.def"
#undef FN
    FUNCTION_COUNT
};

enum value_kind {
    MEMORY,
    BAR1,
    POWER,
    POWER_LIMIT,
    ENERGY,
    TEMPERATURE,
    MEMORY_TEMPERATURE,
    UTILIZATION,
    ENCODER,
    DECODER,
    CLOCKS,
    ECC_MODE,
    ECC_ERRORS,
    PERSISTENCE,
    SM_COUNT,
    PSTATE,
    COMPUTE_MODE,
    MIG_MODE,
    ACCOUNTING_MODE,
    VALUE_KINDS
};
enum list_kind { COMPUTE, GRAPHICS, MPS, LIST_KINDS };
enum fault_kind { FAULT_ERROR, FAULT_LATENCY, FAULT_HANG };
enum setting { AS_RECORDED, SET_OFF, SET_ON };

enum { MAX_GPUS = 256, MAX_MIG_SLOTS = 16, MAX_VALUES = 4, SIZING_EXACT = 0, SIZING_SUCCESS = -1 };
#define ANYTHING (-1)            /* a fault's GPU or slot */
#define FOREVER_US INT64_MAX
#define STEPPED_EPOCH_US INT64_C(1700000000000000) /* with NVML_STUB_CLOCK, if the world has no epoch */

/* Items ordered by time. Each item's first member is its int64_t at_us; equal times keep the order of the file. */
struct timeline {
    char *items;
    size_t count, capacity, item_bytes;
};

struct value {
    int64_t at_us;
    bool is_set;
    uint64_t v[MAX_VALUES];
};

/* A list: a range of entries in the world's pool. */
struct list {
    int64_t at_us;
    bool is_set;
    size_t first, count;
};

struct process {
    uint32_t pid, gpu_instance, compute_instance;
    uint64_t bytes, protected_bytes;
};

struct row {
    int64_t at_us;
    uint32_t pid, percent[4]; /* sm, memory, encoder, decoder */
};

/* Lines of one time are one sample: the engines may have different owners. `ordinal` numbers the samples. */
struct sample {
    int64_t at_us;
    uint32_t pid;
    uint32_t ordinal;
    uint16_t percent[4];
};

struct accounting {
    int64_t key; /* while reading: the time; in a sealed world: the pid, and each pid's records by time */
    int64_t at_us;
    uint32_t pid, gpu_percent, memory_percent;
    bool forgotten, running;
    uint64_t max_bytes, time_ms;
    int64_t start_us;
};

struct event {
    int64_t at_us;
    uint32_t gpu, gpu_instance, compute_instance;
    uint64_t type, data;
};

struct fault {
    int64_t at_us, until_us;
    enum fault_kind kind;
    int gpu, slot;
    uint64_t amount; /* error code, or milliseconds */
    bool on[FUNCTION_COUNT];
};

/* Records that GPUs and MIG instances share. */
struct subject {
    struct timeline values[VALUE_KINDS];
    struct timeline lists[LIST_KINDS];
};

struct mig {
    int64_t from_us, until_us;
    uint32_t slot, gpu_instance, compute_instance, sm_count, gpu_slices, compute_slices;
    uint64_t memory_mb;
    char uuid[96], name[96];
};

struct gpu {
    struct subject self;
    struct subject slots[MAX_MIG_SLOTS];
    struct timeline mig; /* struct mig, by from_us */
    struct timeline samples, rows, accounting;
    char uuid[96], name[96], serial[30];
    bool has_minor, has_pci, has_brand, has_architecture, has_capability, has_max_clocks;
    uint32_t minor, brand, architecture, capability[2], max_clocks[MAX_VALUES];
    uint32_t pci_domain, pci_bus, pci_device, pci_function, pci_device_id, pci_subsystem_id;
    uint32_t ring, mig_slots, accounting_buffer;
    uint64_t event_types;
    bool row_per_sample;
    int sizing; /* SIZING_EXACT, SIZING_SUCCESS, or the count that every sizing call gives */
    atomic_int accounting_set;            /* AS_RECORDED, or the mode set since the world was read */
    _Atomic int64_t accounting_cleared_us; /* earlier accounting records are deleted */
};

struct named_process {
    int64_t pid; /* ordered by pid instead of time */
    char name[256];
};

struct world {
    atomic_uint references;
    int64_t epoch_us;
    const _Atomic int64_t *clock; /* mapped from NVML_STUB_CLOCK; NULL: the system's clock */
    char driver_version[80], nvml_version[80];
    uint32_t cuda_version;
    bool has_root, root; /* whether the caller is root; by default the process's user decides */
    uint32_t gpu_count;
    struct gpu *gpus[MAX_GPUS];
    struct timeline names, events, faults;
    struct timeline processes, row_pool; /* pools for the lists, in file order */
};

extern const char *const function_names[FUNCTION_COUNT];

/* The world in this file, or NULL after one line on stderr. The caller owns the one reference. */
struct world *world_load(const char *path);
void world_release(struct world *world);
/* World time now, in microseconds. */
int64_t world_now_us(const struct world *world);
int64_t unix_now_us(void);

void *timeline_append(struct timeline *line); /* a zeroed item, or NULL without memory */
void timeline_sort(struct timeline *line);
/* How many items have at_us <= time. */
size_t timeline_upto(const struct timeline *line, int64_t time_us);

#define ITEM(type, line, index) ((type *)(void *)((line)->items + (index) * (line)->item_bytes))

/* The item valid at that time and recorded no earlier than since_us; NULL if there is none. */
const struct value *value_at(const struct subject *subject, enum value_kind kind, int64_t since_us, int64_t now_us);
const struct list *list_at(const struct timeline *line, int64_t since_us, int64_t now_us);

struct world *world_new(void);
struct gpu *gpu_new(void);
void world_seal(struct world *world); /* sorts everything; after this the world is constant */

#endif
