/* Loading of a world file: the table of keys, the faults, the clock. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "records.h"

/* A function's name, a prefix followed by "*", or "*". "*" alone excludes nvmlShutdown, so that a broken driver can be
 * released, as a real one can. */
static bool parse_functions(struct line *line, struct word word, bool on[FUNCTION_COUNT]) {
    bool open = word.start[word.length - 1] == '*', any = false;
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        on[i] = open ? strncmp(function_names[i], word.start, word.length - 1) == 0 : word_is(word, function_names[i]);
        any |= on[i];
    }
    if (word.length == 1 && open)
        on[FN_nvmlShutdown] = false;
    on[FN_nvmlErrorString] = false; /* it returns no code */
    return any || fail(line, "no function is called '%.*s'", (int)word.length, word.start);
}

static bool read_fault(struct line *line, struct world *world, const struct record *record) {
    struct fault fault = {.kind = (enum fault_kind)record->kind, .gpu = ANYTHING, .slot = ANYTHING};
    struct word subject, function;
    if (!next_i64(line, "time", &fault.at_us) || !next_until(line, fault.at_us, &fault.until_us) ||
        !next_word(line, "GPU", &subject) || !next_word(line, "function", &function))
        return false;
    if (!word_is(subject, "*") && !parse_subject(line, world, subject, &fault.gpu, &fault.slot))
        return false;
    if (!parse_functions(line, function, fault.on))
        return false;
    if (record->limit && !next_u64(line, record->key, record->limit, &fault.amount))
        return false;
    struct fault *place = timeline_append(&world->faults);
    if (!place)
        return no_memory(line);
    *place = fault;
    return true;
}

#define NUMBERS(count, most, name) \
    .read = read_gpu_numbers, .at_least = (count), .limit = (most), .field = offsetof(struct gpu, name)
#define KNOWN(name) .field_is_known = offsetof(struct gpu, name)
#define VALUE(value, least, most, top) \
    .read = read_value, .kind = (value), .at_least = (least), .at_most = (most), .limit = (top)
#define LIST(list) .read = read_list, .kind = (list), .on_mig = true
#define FAULT(fault, top) .read = read_fault, .kind = (fault), .limit = (top)

/* The most frequent first: a world of a million lines is mostly these. */
static const struct record records[] = {
    {.key = "sample", .read = read_sample},
    {.key = "energy_mj", VALUE(ENERGY, 1, 1, UINT64_MAX)},
    {.key = "power_mw", VALUE(POWER, 1, 2, UINT32_MAX)},
    {.key = "memory", VALUE(MEMORY, 3, 3, UINT64_MAX), .on_mig = true},
    {.key = "compute", LIST(COMPUTE)},
    {.key = "graphics", LIST(GRAPHICS)},
    {.key = "mps", LIST(MPS)},
    {.key = "utilization", VALUE(UTILIZATION, 2, 2, UINT32_MAX)},
    {.key = "temperature", VALUE(TEMPERATURE, 1, 1, 0)},
    {.key = "memory_temperature", VALUE(MEMORY_TEMPERATURE, 1, 1, 0)},
    {.key = "clocks", VALUE(CLOCKS, 4, 4, UINT32_MAX)},
    {.key = "encoder", VALUE(ENCODER, 1, 1, UINT32_MAX)},
    {.key = "decoder", VALUE(DECODER, 1, 1, UINT32_MAX)},
    {.key = "rows", .read = read_rows},
    {.key = "bar1", VALUE(BAR1, 2, 2, UINT64_MAX)},
    {.key = "power_limit_mw", VALUE(POWER_LIMIT, 1, 2, UINT32_MAX)},
    {.key = "ecc", VALUE(ECC_ERRORS, 4, 4, UINT64_MAX)},
    {.key = "ecc_mode", VALUE(ECC_MODE, 1, 2, 1)},
    {.key = "persistence", VALUE(PERSISTENCE, 1, 1, 1)},
    {.key = "pstate", VALUE(PSTATE, 1, 1, 32)},
    {.key = "compute_mode", VALUE(COMPUTE_MODE, 1, 1, 3)},
    {.key = "mig_mode", VALUE(MIG_MODE, 1, 2, 1)},
    {.key = "sms", VALUE(SM_COUNT, 1, 1, UINT32_MAX)},
    {.key = "mig", .read = read_mig},
    {.key = "accounting_mode", VALUE(ACCOUNTING_MODE, 1, 1, 1)},
    {.key = "accounting", .read = read_accounting},
    {.key = "event", .read = read_event},
    {.key = "error", FAULT(FAULT_ERROR, UINT32_MAX)},
    {.key = "latency", FAULT(FAULT_LATENCY, 3600000)},
    {.key = "hang", FAULT(FAULT_HANG, 0)},
    {.key = "gpu", .read = read_gpu},
    {.key = "minor", NUMBERS(1, UINT32_MAX, minor), KNOWN(has_minor)},
    {.key = "pci", .read = read_pci},
    {.key = "serial", .read = read_serial},
    {.key = "brand", NUMBERS(1, UINT32_MAX, brand), KNOWN(has_brand)},
    {.key = "architecture", NUMBERS(1, UINT32_MAX, architecture), KNOWN(has_architecture)},
    {.key = "capability", NUMBERS(2, INT32_MAX, capability), KNOWN(has_capability)},
    {.key = "max_clocks", NUMBERS(MAX_VALUES, UINT32_MAX, max_clocks), KNOWN(has_max_clocks)},
    {.key = "ring", NUMBERS(1, 100000, ring)},
    {.key = "row_mode", .read = read_row_mode},
    {.key = "sizing", .read = read_sizing},
    {.key = "mig_slots", NUMBERS(1, MAX_MIG_SLOTS, mig_slots)},
    {.key = "accounting_buffer", NUMBERS(1, 100000, accounting_buffer)},
    {.key = "event_types", .read = read_event_types},
    {.key = "epoch_us", .read = read_epoch},
    {.key = "driver_version", .read = read_driver_version},
    {.key = "nvml_version", .read = read_nvml_version},
    {.key = "cuda_version", .read = read_cuda_version},
    {.key = "root", .read = read_root},
    {.key = "process_name", .read = read_process_name},
};

static bool read_line(struct line *line, struct world *world) {
    struct word key;
    if (at_end(line) || *line->at == '#')
        return true;
    if (!next_word(line, "key", &key))
        return false;
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        if (!word_is(key, records[i].key))
            continue;
        return records[i].read(line, world, &records[i]) && (at_end(line) || fail(line, "there is more than expected"));
    }
    return fail(line, "unknown key '%.*s'", (int)key.length, key.start);
}

static bool read_text(const char *path, const char *text, size_t length, struct world *world) {
    const char *at = text, *end = text + length;
    for (unsigned long number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct line line = {.at = at, .end = newline ? newline : end};
        if (!read_line(&line, world)) {
            fprintf(stderr, "nvml stub: %s:%lu: %s\n", path, number, line.error);
            return false;
        }
        at = newline ? newline + 1 : end;
    }
    return true;
}

/* A mapping of a file with at least that many bytes; NULL after one line on stderr. */
static void *map_file(const char *path, int flags, size_t at_least, size_t *length) {
    void *memory = MAP_FAILED;
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && fstat(file, &status) == 0) {
        *length = (size_t)status.st_size;
        if (*length < at_least)
            errno = EINVAL;
        else
            memory = mmap(NULL, *length, PROT_READ, flags, file, 0);
    }
    if (memory == MAP_FAILED)
        fprintf(stderr, "nvml stub: %s: cannot be read: %s\n", path, strerror(errno));
    if (file >= 0)
        close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool map_clock(struct world *world) {
    const char *path = getenv("NVML_STUB_CLOCK");
    size_t length;
    if (!path || !*path)
        return true;
    void *memory = map_file(path, MAP_SHARED, sizeof(int64_t), &length);
    world->clock = memory;
    if (memory && !world->epoch_us)
        world->epoch_us = STEPPED_EPOCH_US;
    return memory != NULL;
}

struct world *world_load(const char *path) {
    size_t length;
    struct world *world = world_new();
    if (!world)
        return NULL;
    char *text = map_file(path, MAP_PRIVATE, 1, &length);
    bool good = text && read_text(path, text, length, world) && map_clock(world);
    if (text)
        munmap(text, length);
    if (!good) {
        world_release(world);
        return NULL;
    }
    world_seal(world);
    return world;
}
