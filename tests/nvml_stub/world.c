/* Timelines: growth, order, look-up; creation and destruction of the world. */
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

const char *const function_names[FUNCTION_COUNT] = {
#define FN(name) #name,
#include "functions.def"
#undef FN
};

static int64_t key_at(const char *item) {
    return *(const int64_t *)(const void *)item;
}

static int64_t time_of(const struct timeline *line, size_t index) {
    return key_at(line->items + index * line->item_bytes);
}

void *timeline_append(struct timeline *line) {
    if (line->count == line->capacity) {
        size_t capacity = line->capacity ? 2 * line->capacity : 8;
        char *items = realloc(line->items, capacity * line->item_bytes);
        if (!items)
            return NULL;
        line->items = items;
        line->capacity = capacity;
    }
    void *item = line->items + line->count++ * line->item_bytes;
    memset(item, 0, line->item_bytes);
    return item;
}

/* A stable merge sort, bottom up: qsort may exchange items of equal time, and the last of those in the file is valid. */
static bool merge_sort(struct timeline *line) {
    size_t bytes = line->item_bytes, count = line->count;
    char *from = line->items, *to = malloc(line->capacity * bytes);
    if (!to)
        return false;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t low = 0; low < count; low += 2 * width) {
            size_t middle = low + width < count ? low + width : count;
            size_t high = low + 2 * width < count ? low + 2 * width : count;
            size_t left = low, right = middle;
            for (size_t out = low; out < high; out++) {
                bool take_left = right == high;
                if (!take_left && left < middle)
                    take_left = key_at(from + left * bytes) <= key_at(from + right * bytes);
                memcpy(to + out * bytes, from + (take_left ? left++ : right++) * bytes, bytes);
            }
        }
        char *other = from;
        from = to;
        to = other;
    }
    line->items = from;
    free(to);
    return true;
}

void timeline_sort(struct timeline *line) {
    bool ordered = true;
    for (size_t i = 1; ordered && i < line->count; i++)
        ordered = time_of(line, i - 1) <= time_of(line, i);
    if (!ordered && !merge_sort(line))
        abort(); /* out of memory: the test cannot run */
}

size_t timeline_upto(const struct timeline *line, int64_t time_us) {
    size_t low = 0, high = line->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (time_of(line, middle) <= time_us)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct value *value_at(const struct subject *subject, enum value_kind kind, int64_t since_us, int64_t now_us) {
    const struct timeline *line = &subject->values[kind];
    size_t upto = timeline_upto(line, now_us);
    const struct value *value = upto ? ITEM(const struct value, line, upto - 1) : NULL;
    return value && value->is_set && value->at_us >= since_us ? value : NULL;
}

const struct list *list_at(const struct timeline *line, int64_t since_us, int64_t now_us) {
    size_t upto = timeline_upto(line, now_us);
    const struct list *list = upto ? ITEM(const struct list, line, upto - 1) : NULL;
    return list && list->is_set && list->at_us >= since_us ? list : NULL;
}

int64_t unix_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t world_now_us(const struct world *world) {
    return world->clock ? atomic_load(world->clock) : unix_now_us() - world->epoch_us;
}

static void subject_init(struct subject *subject) {
    for (size_t i = 0; i < VALUE_KINDS; i++)
        subject->values[i].item_bytes = sizeof(struct value);
    for (size_t i = 0; i < LIST_KINDS; i++)
        subject->lists[i].item_bytes = sizeof(struct list);
}

struct gpu *gpu_new(void) {
    struct gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return NULL;
    subject_init(&gpu->self);
    for (size_t i = 0; i < MAX_MIG_SLOTS; i++)
        subject_init(&gpu->slots[i]);
    gpu->mig.item_bytes = sizeof(struct mig);
    gpu->samples.item_bytes = sizeof(struct sample);
    gpu->rows.item_bytes = sizeof(struct list);
    gpu->accounting.item_bytes = sizeof(struct accounting);
    gpu->ring = 72;
    gpu->accounting_buffer = 4000;
    atomic_init(&gpu->accounting_set, AS_RECORDED);
    atomic_init(&gpu->accounting_cleared_us, INT64_MIN);
    gpu->event_types = 0x1f; /* single and double bit ECC errors, P-state, XID, clock */
    return gpu;
}

struct world *world_new(void) {
    struct world *world = calloc(1, sizeof *world);
    if (!world)
        return NULL;
    atomic_init(&world->references, 1);
    world->names.item_bytes = sizeof(struct named_process);
    world->events.item_bytes = sizeof(struct event);
    world->faults.item_bytes = sizeof(struct fault);
    world->processes.item_bytes = sizeof(struct process);
    world->row_pool.item_bytes = sizeof(struct row);
    return world;
}

static void subject_each(struct subject *subject, void (*act)(struct timeline *)) {
    for (size_t i = 0; i < VALUE_KINDS; i++)
        act(&subject->values[i]);
    for (size_t i = 0; i < LIST_KINDS; i++)
        act(&subject->lists[i]);
}

static void gpu_each(struct gpu *gpu, void (*act)(struct timeline *)) {
    subject_each(&gpu->self, act);
    for (size_t i = 0; i < MAX_MIG_SLOTS; i++)
        subject_each(&gpu->slots[i], act);
    act(&gpu->mig);
    act(&gpu->samples);
    act(&gpu->rows);
    act(&gpu->accounting);
}

static void number_samples(struct timeline *samples) {
    uint32_t ordinal = 0;
    for (size_t i = 0; i < samples->count; i++) {
        if (i && time_of(samples, i) != time_of(samples, i - 1))
            ordinal++;
        ITEM(struct sample, samples, i)->ordinal = ordinal;
    }
}

/* By time, then, since sorting is stable, by pid: queries are for one pid's record at a time. */
static void group_by_pid(struct timeline *accounting) {
    for (size_t i = 0; i < accounting->count; i++) {
        struct accounting *record = ITEM(struct accounting, accounting, i);
        record->key = record->pid;
    }
    timeline_sort(accounting);
}

void world_seal(struct world *world) {
    for (size_t i = 0; i < world->gpu_count; i++) {
        gpu_each(world->gpus[i], timeline_sort);
        number_samples(&world->gpus[i]->samples);
        group_by_pid(&world->gpus[i]->accounting);
    }
    timeline_sort(&world->names);
    timeline_sort(&world->events);
}

static void timeline_free(struct timeline *line) {
    free(line->items);
}

void world_release(struct world *world) {
    if (!world || atomic_fetch_sub(&world->references, 1) != 1)
        return;
    for (size_t i = 0; i < world->gpu_count; i++) {
        gpu_each(world->gpus[i], timeline_free);
        free(world->gpus[i]);
    }
    struct timeline *rest[] = {&world->names, &world->events, &world->faults, &world->processes, &world->row_pool};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        timeline_free(rest[i]);
    if (world->clock)
        munmap((void *)(uintptr_t)world->clock, sizeof *world->clock);
    free(world);
}
