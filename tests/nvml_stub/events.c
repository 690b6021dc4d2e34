/* Events: each recorded event reaches each set that was registered for it before, once. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "stub.h"

struct registration {
    uint32_t gpu;
    uint64_t types;
    int64_t since_us;
};

struct event_set {
    uintptr_t id; /* the handle: a number that is never reused */
    size_t cursor; /* earlier events have been processed */
    struct registration *registrations;
    size_t count;
    struct event_set *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the sets */
static pthread_cond_t changed;                           /* on the monotonic clock */
static pthread_once_t changed_once = PTHREAD_ONCE_INIT;
static struct event_set *sets;
static uintptr_t last_id = 0x4556;

static void make_condition(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* The link that points to this set; a link to NULL if there is none. Needs the lock. */
static struct event_set **find(nvmlEventSet_t handle) {
    struct event_set **link = &sets;
    while (*link && (*link)->id != (uintptr_t)handle)
        link = &(*link)->next;
    return link;
}

static void unlink_set(struct event_set **link) {
    struct event_set *set = *link;
    *link = set->next;
    free(set->registrations);
    free(set);
}

void event_sets_drop(void) {
    pthread_once(&changed_once, make_condition);
    pthread_mutex_lock(&lock);
    while (sets)
        unlink_set(&sets);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *handle) {
    ENTER(nvmlEventSetCreate, NULL, NO_DEVICE);
    REQUIRE(handle);
    struct event_set *set = calloc(1, sizeof *set);
    if (!set)
        return NVML_ERROR_MEMORY;
    pthread_mutex_lock(&lock);
    set->id = ++last_id;
    set->next = sets;
    sets = set;
    *handle = (nvmlEventSet_t)set->id;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
    ENTER(nvmlEventSetFree, NULL, NO_DEVICE);
    pthread_once(&changed_once, make_condition);
    pthread_mutex_lock(&lock);
    struct event_set **link = find(handle);
    bool found = *link != NULL;
    if (found)
        unlink_set(link);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    ENTER(nvmlDeviceGetSupportedEventTypes, device, GPU_ONLY);
    REQUIRE(types);
    *types = call.gpu->event_types;
    return NVML_SUCCESS;
}

static nvmlReturn_t add_registration(nvmlEventSet_t handle, struct registration registration) {
    struct event_set *set = *find(handle);
    REQUIRE(set);
    struct registration *grown = realloc(set->registrations, (set->count + 1) * sizeof *grown);
    if (!grown)
        return NVML_ERROR_MEMORY;
    set->registrations = grown;
    set->registrations[set->count++] = registration;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle) {
    ENTER(nvmlDeviceRegisterEvents, device, GPU_ONLY);
    if (types & ~call.gpu->event_types)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = add_registration(handle, (struct registration){call.gpu_index, types, call.now_us});
    pthread_mutex_unlock(&lock);
    return code;
}

static bool wants(const struct event_set *set, const struct event *event) {
    for (size_t i = 0; i < set->count; i++) {
        const struct registration *registration = &set->registrations[i];
        if (registration->gpu == event->gpu && registration->types & event->type &&
            registration->since_us <= event->at_us)
            return true;
    }
    return false;
}

static const struct event *next_event(struct event_set *set, const struct timeline *events, int64_t now_us) {
    for (size_t due = timeline_upto(events, now_us); set->cursor < due;) {
        const struct event *event = ITEM(const struct event, events, set->cursor++);
        if (wants(set, event))
            return event;
    }
    return NULL;
}

/* When to check again. A clock file may change at any time; with the system clock the next event has a known time. */
static int64_t pause_us(const struct world *world, int64_t now_us) {
    size_t next = timeline_upto(&world->events, now_us);
    if (world->clock)
        return 2000;
    return next < world->events.count ? ITEM(const struct event, &world->events, next)->at_us - now_us : 3600000000;
}

static nvmlReturn_t wait_for(const struct call *call, nvmlEventSet_t handle, nvmlEventData_t *data,
                             unsigned timeout_ms) {
    int64_t deadline_us = monotonic_us() + (int64_t)timeout_ms * 1000;
    for (;;) {
        struct event_set *set = *find(handle);
        REQUIRE(set);
        int64_t now_us = world_now_us(call->world), here_us = monotonic_us();
        const struct event *event = next_event(set, &call->world->events, now_us);
        if (event) {
            *data = (nvmlEventData_t){device_handle(event->gpu, -1), event->type, event->data, event->gpu_instance,
                                      event->compute_instance};
            return NVML_SUCCESS;
        }
        if (here_us >= deadline_us)
            return NVML_ERROR_TIMEOUT;
        int64_t wake_us = here_us + pause_us(call->world, now_us);
        wake_us = wake_us < deadline_us ? wake_us : deadline_us;
        struct timespec wake = {wake_us / 1000000, wake_us % 1000000 * 1000};
        pthread_cond_timedwait(&changed, &lock, &wake);
    }
}

static nvmlReturn_t wait_locked(const struct call *call, nvmlEventSet_t handle, nvmlEventData_t *data,
                                unsigned timeout_ms) {
    REQUIRE(data);
    pthread_once(&changed_once, make_condition);
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = wait_for(call, handle, data, timeout_ms);
    pthread_mutex_unlock(&lock);
    return code;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms) {
    ENTER(nvmlEventSetWait, NULL, NO_DEVICE);
    return wait_locked(&call, handle, data, timeout_ms);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned int timeout_ms) {
    ENTER(nvmlEventSetWait_v2, NULL, NO_DEVICE);
    return wait_locked(&call, handle, data, timeout_ms);
}
