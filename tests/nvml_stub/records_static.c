/* Records without a time: the host and its GPUs. */
#include <stdio.h>

#include "records.h"

bool no_memory(struct line *line) {
    return fail(line, "out of memory");
}

bool next_gpu(struct line *line, struct world *world, uint32_t *index) {
    if (!next_u32(line, "GPU", index))
        return false;
    return *index < world->gpu_count || fail(line, "no gpu record for GPU %u before this line", *index);
}

bool parse_subject(struct line *line, struct world *world, struct word word, int *gpu, int *slot) {
    struct word head = split(&word, '/');
    uint64_t number;
    if (!parse_u64(line, head, "GPU", UINT32_MAX, &number))
        return false;
    if (number >= world->gpu_count)
        return fail(line, "no gpu record for GPU %llu before this line", (unsigned long long)number);
    *gpu = (int)number;
    *slot = ANYTHING;
    if (!word.length)
        return true;
    if (!parse_u64(line, word, "MIG slot", MAX_MIG_SLOTS - 1, &number))
        return false;
    *slot = (int)number;
    return true;
}

bool next_until(struct line *line, int64_t from_us, int64_t *until_us) {
    struct word word;
    if (!next_word(line, "end", &word))
        return false;
    if (word_is(word, "-")) {
        *until_us = FOREVER_US;
        return true;
    }
    if (!parse_i64(line, word, "end", until_us))
        return false;
    return *until_us >= from_us || fail(line, "ends before it begins");
}

bool parse_bus_id(const char *text, uint32_t *domain, uint32_t *bus, uint32_t *device, uint32_t *function) {
    int length = 0;
    return sscanf(text, "%x:%x:%x.%x%n", domain, bus, device, function, &length) == 4 && text[length] == '\0';
}

/* ---- the host ---- */

bool read_epoch(struct line *line, struct world *world, const struct record *record) {
    (void)record;
    return next_i64(line, "epoch", &world->epoch_us);
}

bool read_driver_version(struct line *line, struct world *world, const struct record *record) {
    return next_text(line, record->key, world->driver_version, sizeof world->driver_version);
}

bool read_nvml_version(struct line *line, struct world *world, const struct record *record) {
    return next_text(line, record->key, world->nvml_version, sizeof world->nvml_version);
}

bool read_cuda_version(struct line *line, struct world *world, const struct record *record) {
    return next_u32(line, record->key, &world->cuda_version);
}

bool read_root(struct line *line, struct world *world, const struct record *record) {
    world->has_root = true;
    return next_flag(line, record->key, &world->root);
}

bool read_process_name(struct line *line, struct world *world, const struct record *record) {
    struct named_process *name = timeline_append(&world->names);
    if (!name)
        return no_memory(line);
    return next_i64(line, "pid", &name->pid) && rest_text(line, record->key, name->name, sizeof name->name);
}

/* ---- a GPU ---- */

bool read_gpu(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    (void)record;
    if (!next_u32(line, "GPU", &index))
        return false;
    if (index != world->gpu_count || index == MAX_GPUS)
        return fail(line, "GPU %u is out of turn: the next is %u of at most %u", index, world->gpu_count, MAX_GPUS);
    struct gpu *gpu = gpu_new();
    if (!gpu)
        return no_memory(line);
    world->gpus[world->gpu_count++] = gpu;
    return next_text(line, "uuid", gpu->uuid, sizeof gpu->uuid) && rest_text(line, "name", gpu->name, sizeof gpu->name);
}

bool read_gpu_numbers(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    if (!next_gpu(line, world, &index))
        return false;
    char *gpu = (char *)world->gpus[index];
    uint32_t *numbers = (uint32_t *)(void *)(gpu + record->field);
    for (unsigned i = 0; i < record->at_least; i++) {
        uint64_t number;
        if (!next_u64(line, record->key, record->limit, &number))
            return false;
        numbers[i] = (uint32_t)number;
    }
    if (record->field_is_known)
        *(bool *)(gpu + record->field_is_known) = true;
    return true;
}

bool read_serial(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    return next_gpu(line, world, &index) &&
           next_text(line, record->key, world->gpus[index]->serial, sizeof world->gpus[index]->serial);
}

bool read_pci(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    char bus_id[32];
    if (!next_gpu(line, world, &index) || !next_text(line, record->key, bus_id, sizeof bus_id))
        return false;
    struct gpu *gpu = world->gpus[index];
    if (!parse_bus_id(bus_id, &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device, &gpu->pci_function))
        return fail(line, "'%s' is not a PCI bus id such as 00000000:3B:00.0", bus_id);
    gpu->has_pci = true;
    return at_end(line) || (next_u32(line, "device id", &gpu->pci_device_id) &&
                            next_u32(line, "subsystem id", &gpu->pci_subsystem_id));
}

bool read_event_types(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    return next_gpu(line, world, &index) &&
           next_u64(line, record->key, UINT64_MAX, &world->gpus[index]->event_types);
}

bool read_row_mode(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    struct word word;
    if (!next_gpu(line, world, &index) || !next_word(line, record->key, &word))
        return false;
    world->gpus[index]->row_per_sample = word_is(word, "per-sample");
    return word_is(word, "per-sample") || word_is(word, "mean") || fail(line, "row_mode is mean or per-sample");
}

bool read_sizing(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    uint64_t count = SIZING_EXACT;
    struct word word;
    if (!next_gpu(line, world, &index) || !next_word(line, record->key, &word))
        return false;
    bool success = word_is(word, "success");
    if (!success && !word_is(word, "exact") && !parse_u64(line, word, "sizing", 1000000, &count))
        return false;
    world->gpus[index]->sizing = success ? SIZING_SUCCESS : (int)count;
    return true;
}
