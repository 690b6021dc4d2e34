/* Initialisation, the call's common part, faults, counters. */
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these three; never held while anything waits */
static struct world *current;
static unsigned initialised;
static int64_t first_init_us;

/* Calls by function, and those that name a GPU by its index. */
struct counters {
    atomic_ullong counts[FUNCTION_COUNT];
    atomic_ullong device_counts[MAX_GPUS];
};
static struct counters own_counters;
static _Atomic(struct counters *) counters = &own_counters;

/* ---- time ---- */

void sleep_us(int64_t microseconds) {
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
}

int64_t monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

uint64_t unix_us(const struct call *call, int64_t at_us) {
    return (uint64_t)(call->world->epoch_us + at_us);
}

/* ---- counters ---- */

void count_call(enum function function) {
    atomic_fetch_add(&counters->counts[function], 1);
}

/* Counts in a file that other processes may map: all counts so far, and later ones. */
static void share_counters(void) {
    const char *path = getenv("NVML_STUB_LIVE");
    if (!path || !*path || counters != &own_counters)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    if (ftruncate(file, sizeof own_counters) == 0) {
        void *shared = mmap(NULL, sizeof own_counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (shared != MAP_FAILED) {
            memcpy(shared, &own_counters, sizeof own_counters);
            counters = shared;
        }
    }
    close(file);
}

unsigned long long stub_call_count(const char *function) {
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        if (strcmp(function_names[i], function) == 0)
            return atomic_load(&counters->counts[i]);
    return 0;
}

unsigned long long stub_device_call_count(unsigned int gpu) {
    return gpu < MAX_GPUS ? atomic_load(&counters->device_counts[gpu]) : 0;
}

/* With a rename: a reader gets all of the counts or the previous ones. */
static void write_counts(void) {
    const char *path = getenv("NVML_STUB_CALLS");
    char draft[4096];
    if (!path || !*path || snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid()) >= (int)sizeof draft)
        return;
    FILE *file = fopen(draft, "we");
    if (!file)
        return;
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        if (atomic_load(&counters->counts[i]))
            fprintf(file, "%s %llu\n", function_names[i], atomic_load(&counters->counts[i]));
    if (fclose(file) != 0 || rename(draft, path) != 0)
        unlink(draft);
}

/* Only a process that made calls writes counts: its children may inherit the variable. */
__attribute__((destructor)) static void at_exit(void) {
    bool any = false;
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        any |= atomic_load(&counters->counts[i]) > 0;
    if (any)
        write_counts();
}

/* ---- faults ---- */

static bool strikes(const struct fault *fault, enum function function, int gpu, int slot, int64_t now_us) {
    return fault->on[function] && now_us >= fault->at_us && now_us < fault->until_us &&
           (fault->gpu == ANYTHING || fault->gpu == gpu) && (fault->slot == ANYTHING || fault->slot == slot);
}

/* Hangs first, then delays (which add up), then the last error in the file that is valid by then. */
static nvmlReturn_t play_faults(const struct world *world, enum function function, int gpu, int slot) {
    const struct timeline *faults = &world->faults;
    nvmlReturn_t code = NVML_SUCCESS;
    int64_t delay_us = 0;
    for (size_t i = 0; i < faults->count; i++) {
        const struct fault *fault = ITEM(const struct fault, faults, i);
        while (fault->kind == FAULT_HANG && strikes(fault, function, gpu, slot, world_now_us(world)))
            sleep_us(fault->until_us == FOREVER_US ? 100000 : 2000);
    }
    for (size_t i = 0; i < faults->count; i++) {
        const struct fault *fault = ITEM(const struct fault, faults, i);
        if (fault->kind == FAULT_LATENCY && strikes(fault, function, gpu, slot, world_now_us(world)))
            delay_us += (int64_t)fault->amount * 1000;
    }
    if (delay_us)
        sleep_us(delay_us);
    for (size_t i = 0; i < faults->count; i++) {
        const struct fault *fault = ITEM(const struct fault, faults, i);
        if (fault->kind == FAULT_ERROR && strikes(fault, function, gpu, slot, world_now_us(world)))
            code = (nvmlReturn_t)fault->amount;
    }
    return code;
}

/* ---- a call ---- */

enum { HANDLE_MARK = 0x4e56 };

nvmlDevice_t device_handle(uint32_t gpu_index, int mig) {
    return (nvmlDevice_t)((uintptr_t)HANDLE_MARK << 32 | (uintptr_t)gpu_index << 16 | (uintptr_t)(mig + 1));
}

static bool resolve(struct call *call, nvmlDevice_t device) {
    uintptr_t number = (uintptr_t)device;
    size_t mig = number & 0xffff;
    call->gpu_index = number >> 16 & 0xffff;
    if (number >> 32 != HANDLE_MARK || call->gpu_index >= call->world->gpu_count)
        return false;
    call->gpu = call->world->gpus[call->gpu_index];
    call->subject = &call->gpu->self;
    call->since_us = INT64_MIN;
    if (!mig)
        return true;
    if (mig > call->gpu->mig.count)
        return false;
    call->mig = ITEM(const struct mig, &call->gpu->mig, mig - 1);
    call->subject = &call->gpu->slots[call->mig->slot];
    call->since_us = call->mig->from_us;
    return true;
}

bool mig_is_alive(const struct mig *mig, int64_t now_us) {
    return now_us >= mig->from_us && now_us < mig->until_us;
}

const struct value *value_now(const struct call *call, enum value_kind kind) {
    return value_at(call->subject, kind, call->since_us, call->now_us);
}

bool mig_is_on(const struct call *call) {
    const struct value *mode = value_at(&call->gpu->self, MIG_MODE, INT64_MIN, call->now_us);
    return mode && mode->v[0];
}

static nvmlReturn_t check_scope(const struct call *call, enum scope scope) {
    if (call->mig && !(mig_is_on(call) && mig_is_alive(call->mig, call->now_us)))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->mig ? scope == GPU_ONLY || scope == NO_MIG_PARENT : scope == NO_MIG_PARENT && mig_is_on(call))
        return NVML_ERROR_NOT_SUPPORTED;
    return !call->mig && scope == MIG_ONLY ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t suffer(struct call *call, enum function function, int gpu, int slot) {
    if (gpu != ANYTHING)
        atomic_fetch_add(&counters->device_counts[gpu], 1);
    nvmlReturn_t code = play_faults(call->world, function, gpu, slot);
    call->now_us = world_now_us(call->world);
    return code;
}

nvmlReturn_t call_begin(struct call *call, enum function function, nvmlDevice_t device, enum scope scope) {
    count_call(function);
    pthread_mutex_lock(&lock);
    call->world = current;
    if (current)
        atomic_fetch_add(&current->references, 1);
    pthread_mutex_unlock(&lock);
    if (!call->world)
        return NVML_ERROR_UNINITIALIZED;
    if (scope == NAMED_DEVICE)
        return NVML_SUCCESS;
    if (scope == NO_DEVICE)
        return suffer(call, function, ANYTHING, ANYTHING);
    if (!resolve(call, device))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = suffer(call, function, (int)call->gpu_index, call->mig ? (int)call->mig->slot : ANYTHING);
    return code == NVML_SUCCESS ? check_scope(call, scope) : code;
}

void call_end(struct call *call) {
    world_release(call->world);
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned int length) {
    REQUIRE(out);
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---- initialisation ---- */

static struct world *acquire_or_load(void) {
    struct world *world = NULL;
    const char *path = getenv("NVML_STUB_WORLD");
    pthread_mutex_lock(&lock);
    if (!first_init_us)
        first_init_us = unix_now_us();
    share_counters();
    if (current) {
        world = current;
        atomic_fetch_add(&world->references, 1);
    }
    pthread_mutex_unlock(&lock);
    if (world)
        return world;
    if (!path || !*path)
        fputs("nvml stub: NVML_STUB_WORLD names no world file\n", stderr);
    else
        world = world_load(path);
    if (world && !world->epoch_us)
        world->epoch_us = first_init_us;
    return world;
}

static nvmlReturn_t init(enum function function) {
    count_call(function);
    struct world *world = acquire_or_load();
    if (!world)
        return NVML_ERROR_UNKNOWN;
    nvmlReturn_t code = play_faults(world, function, ANYTHING, ANYTHING);
    if (code == NVML_SUCCESS) {
        pthread_mutex_lock(&lock);
        if (!current) {
            current = world;
            world = NULL;
        }
        initialised++;
        pthread_mutex_unlock(&lock);
    }
    world_release(world);
    return code;
}

nvmlReturn_t nvmlInit(void) {
    return init(FN_nvmlInit);
}

nvmlReturn_t nvmlInit_v2(void) {
    return init(FN_nvmlInit_v2);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return init(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void) {
    ENTER(nvmlShutdown, NULL, NO_DEVICE);
    struct world *left = NULL;
    pthread_mutex_lock(&lock);
    if (initialised && --initialised == 0) {
        left = current;
        current = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (left) {
        event_sets_drop();
        write_counts();
        world_release(left);
    }
    return NVML_SUCCESS;
}
