/* Records with a time: figures, process lists, samples, MIG instances, accounting, events. */
#include <string.h>

#include "nvml_abi.h"
#include "records.h"

static struct subject *next_subject(struct line *line, struct world *world, const struct record *record) {
    struct word word;
    int gpu, slot;
    if (!next_word(line, "GPU", &word) || !parse_subject(line, world, word, &gpu, &slot))
        return NULL;
    if (slot == ANYTHING)
        return &world->gpus[gpu]->self;
    if (!record->on_mig)
        fail(line, "the driver gives no '%s' for MIG instances", record->key);
    return record->on_mig ? &world->gpus[gpu]->slots[slot] : NULL;
}

/* A lone "-": NOT_SUPPORTED from here on. */
static bool next_is_unset(struct line *line) {
    if (at_end(line) || *line->at != '-' || line->at + 1 != line->end)
        return false;
    line->at = line->end;
    return true;
}

bool read_value(struct line *line, struct world *world, const struct record *record) {
    int64_t at_us;
    struct subject *subject;
    if (!next_i64(line, "time", &at_us) || !(subject = next_subject(line, world, record)))
        return false;
    struct value *value = timeline_append(&subject->values[record->kind]);
    if (!value)
        return no_memory(line);
    value->at_us = at_us;
    if (next_is_unset(line))
        return true;
    value->is_set = true;
    for (unsigned i = 0; i < record->at_most; i++) {
        if (i >= record->at_least && at_end(line))
            value->v[i] = value->v[i - 1];
        else if (record->limit ? !next_u64(line, record->key, record->limit, &value->v[i])
                               : !next_i64(line, record->key, (int64_t *)&value->v[i]))
            return false;
    }
    if (record->kind == MEMORY && (value->v[1] > value->v[0] || value->v[2] > value->v[0] - value->v[1]))
        return fail(line, "memory: reserved and used are more than total");
    if (record->kind == BAR1 && value->v[1] > value->v[0])
        return fail(line, "bar1: used is more than total");
    return true;
}

static bool parse_process(struct line *line, struct word word, struct process *process) {
    uint64_t numbers[5] = {0, NVML_NOT_AVAILABLE_U64, NVML_NO_INSTANCE, NVML_NO_INSTANCE, 0};
    static const char *const names[5] = {"pid", "bytes", "GPU instance", "compute instance", "protected bytes"};
    unsigned count = 0;
    for (; count < 5 && word.length; count++) {
        struct word head = split(&word, ':');
        uint64_t max = count == 1 || count == 4 ? UINT64_MAX : UINT32_MAX;
        if (!(count && word_is(head, "-")) && !parse_u64(line, head, names[count], max, &numbers[count]))
            return false;
    }
    if (count < 2 || word.length)
        return fail(line, "a process is pid:bytes, pid:bytes:gi:ci or pid:bytes:gi:ci:protected");
    *process = (struct process){.pid = (uint32_t)numbers[0],
                                .bytes = numbers[1],
                                .gpu_instance = (uint32_t)numbers[2],
                                .compute_instance = (uint32_t)numbers[3],
                                .protected_bytes = numbers[4]};
    return true;
}

bool read_list(struct line *line, struct world *world, const struct record *record) {
    int64_t at_us;
    struct subject *subject;
    if (!next_i64(line, "time", &at_us) || !(subject = next_subject(line, world, record)))
        return false;
    struct list *list = timeline_append(&subject->lists[record->kind]);
    if (!list)
        return no_memory(line);
    *list = (struct list){at_us, !next_is_unset(line), world->processes.count, 0};
    for (; !at_end(line); list->count++) {
        struct word word;
        struct process *process = timeline_append(&world->processes);
        if (!process)
            return no_memory(line);
        if (!next_word(line, "process", &word) || !parse_process(line, word, process))
            return false;
    }
    return true;
}

static bool parse_row(struct line *line, struct word word, struct row *row) {
    uint64_t number;
    if (!parse_u64(line, split(&word, ':'), "pid", UINT32_MAX, &number) ||
        !parse_i64(line, split(&word, ':'), "row's time", &row->at_us))
        return false;
    row->pid = (uint32_t)number;
    for (unsigned i = 0; i < 4; i++) {
        if (!parse_u64(line, split(&word, ':'), "row's percent", UINT32_MAX, &number))
            return false;
        row->percent[i] = (uint32_t)number;
    }
    return !word.length || fail(line, "a row is pid:time:sm:memory:encoder:decoder");
}

bool read_rows(struct line *line, struct world *world, const struct record *record) {
    int64_t at_us;
    uint32_t index;
    (void)record;
    if (!next_i64(line, "time", &at_us) || !next_gpu(line, world, &index))
        return false;
    struct list *list = timeline_append(&world->gpus[index]->rows);
    if (!list)
        return no_memory(line);
    *list = (struct list){at_us, !next_is_unset(line), world->row_pool.count, 0};
    for (; !at_end(line); list->count++) {
        struct word word;
        struct row *row = timeline_append(&world->row_pool);
        if (!row)
            return no_memory(line);
        if (!next_word(line, "row", &word) || !parse_row(line, word, row))
            return false;
    }
    return true;
}

bool read_sample(struct line *line, struct world *world, const struct record *record) {
    int64_t at_us;
    uint32_t index, pid;
    (void)record;
    if (!next_i64(line, "time", &at_us) || !next_gpu(line, world, &index) || !next_u32(line, "pid", &pid))
        return false;
    struct sample *sample = timeline_append(&world->gpus[index]->samples);
    if (!sample)
        return no_memory(line);
    sample->at_us = at_us;
    sample->pid = pid;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t percent;
        if (!next_u64(line, "percent", UINT16_MAX, &percent))
            return false;
        sample->percent[i] = (uint16_t)percent;
    }
    return true;
}

bool read_mig(struct line *line, struct world *world, const struct record *record) {
    struct mig mig = {0};
    uint32_t index;
    uint64_t slot;
    (void)record;
    if (!next_i64(line, "time", &mig.from_us) || !next_until(line, mig.from_us, &mig.until_us) ||
        !next_gpu(line, world, &index) || !next_u64(line, "MIG slot", MAX_MIG_SLOTS - 1, &slot) ||
        !next_u32(line, "GPU instance", &mig.gpu_instance) ||
        !next_u32(line, "compute instance", &mig.compute_instance) ||
        !next_u32(line, "SM count", &mig.sm_count) || !next_u32(line, "GPU slices", &mig.gpu_slices) ||
        !next_u32(line, "compute slices", &mig.compute_slices) ||
        !next_u64(line, "memory in MB", UINT64_MAX, &mig.memory_mb) ||
        !next_text(line, "uuid", mig.uuid, sizeof mig.uuid) || !rest_text(line, "name", mig.name, sizeof mig.name))
        return false;
    mig.slot = (uint32_t)slot;
    struct gpu *gpu = world->gpus[index];
    if (mig.slot >= gpu->mig_slots)
        gpu->mig_slots = mig.slot + 1;
    struct mig *place = timeline_append(&gpu->mig);
    if (!place)
        return no_memory(line);
    *place = mig;
    return true;
}

/* "-" for a figure the driver does not have. */
static bool next_or_absent(struct line *line, const char *what, uint64_t max, uint64_t *out) {
    struct word word;
    if (!next_word(line, what, &word))
        return false;
    *out = max;
    return word_is(word, "-") || parse_u64(line, word, what, max, out);
}

bool read_accounting(struct line *line, struct world *world, const struct record *record) {
    uint32_t index;
    uint64_t gpu_percent, memory_percent;
    struct accounting entry = {0};
    (void)record;
    if (!next_i64(line, "time", &entry.at_us) || !next_gpu(line, world, &index) || !next_u32(line, "pid", &entry.pid))
        return false;
    entry.key = entry.at_us;
    entry.forgotten = next_is_unset(line);
    if (!entry.forgotten) {
        if (!next_or_absent(line, "GPU percent", UINT32_MAX, &gpu_percent) ||
            !next_or_absent(line, "memory percent", UINT32_MAX, &memory_percent) ||
            !next_or_absent(line, "maximum bytes", UINT64_MAX, &entry.max_bytes) ||
            !next_u64(line, "time in ms", UINT64_MAX, &entry.time_ms) || !next_i64(line, "start", &entry.start_us) ||
            !next_flag(line, "running", &entry.running))
            return false;
        entry.gpu_percent = (uint32_t)gpu_percent;
        entry.memory_percent = (uint32_t)memory_percent;
    }
    struct accounting *place = timeline_append(&world->gpus[index]->accounting);
    if (!place)
        return no_memory(line);
    *place = entry;
    return true;
}

static bool parse_event_type(struct line *line, struct word word, uint64_t *type) {
    static const struct {
        const char *name;
        uint64_t type;
    } names[] = {{"xid", 0x8}, {"ecc_single", 0x1}, {"ecc_double", 0x2}, {"pstate", 0x4}, {"clock", 0x10}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *type = names[i].type;
        if (word_is(word, names[i].name))
            return true;
    }
    return parse_u64(line, word, "event type", UINT64_MAX, type);
}

bool read_event(struct line *line, struct world *world, const struct record *record) {
    struct event event = {.gpu_instance = NVML_NO_INSTANCE, .compute_instance = NVML_NO_INSTANCE};
    struct word word;
    (void)record;
    if (!next_i64(line, "time", &event.at_us) || !next_gpu(line, world, &event.gpu) ||
        !next_word(line, "event type", &word) || !parse_event_type(line, word, &event.type) ||
        !next_u64(line, "event data", UINT64_MAX, &event.data))
        return false;
    if (!at_end(line) && (!next_u32(line, "GPU instance", &event.gpu_instance) ||
                          !next_u32(line, "compute instance", &event.compute_instance)))
        return false;
    struct event *place = timeline_append(&world->events);
    if (!place)
        return no_memory(line);
    *place = event;
    return true;
}
