/* Utilisation of processes, from the driver's ring of samples.
 *
 * A row is the mean of one pid over all samples after the requested time: the sum of its percents divided by the number
 * of all samples in that window, in whole percent. Samples of pid 0 (no process was active) count. */
#include <stdlib.h>

#include "stub.h"

struct rows {
    struct row *items;
    size_t count;
};

static void add_sample(struct row *row, const struct sample *sample) {
    row->pid = sample->pid;
    row->at_us = sample->at_us;
    for (unsigned i = 0; i < 4; i++)
        row->percent[i] += sample->percent[i];
}

static struct row *row_of(struct rows *rows, uint32_t pid) {
    for (size_t i = 0; i < rows->count; i++)
        if (rows->items[i].pid == pid)
            return &rows->items[i];
    return &rows->items[rows->count++];
}

/* The first line at or after `first` whose sample is still in the ring. A line begins at most one new sample, so as
 * many lines can be skipped as samples have been overwritten. */
static size_t skip_overwritten(const struct gpu *gpu, size_t first, size_t end) {
    uint32_t newest = ITEM(const struct sample, &gpu->samples, end - 1)->ordinal;
    while (first < end) {
        uint32_t age = newest - ITEM(const struct sample, &gpu->samples, first)->ordinal;
        if (age < gpu->ring)
            break;
        first += age - gpu->ring + 1;
    }
    return first;
}

static bool ring_rows(const struct call *call, int64_t after_us, struct rows *rows) {
    const struct timeline *samples = &call->gpu->samples;
    bool each = call->gpu->row_per_sample;
    size_t end = timeline_upto(samples, call->now_us), first = timeline_upto(samples, after_us);
    if (first < end)
        first = skip_overwritten(call->gpu, first, end);
    if (first >= end)
        return true;
    rows->items = calloc(end - first, sizeof *rows->items);
    if (!rows->items)
        return false;
    for (size_t i = first; i < end; i++) {
        const struct sample *sample = ITEM(const struct sample, samples, i);
        if (sample->pid)
            add_sample(each ? &rows->items[rows->count++] : row_of(rows, sample->pid), sample);
    }
    uint32_t sample_count =
        ITEM(const struct sample, samples, end - 1)->ordinal - ITEM(const struct sample, samples, first)->ordinal + 1;
    for (size_t i = 0; !each && i < rows->count; i++)
        for (unsigned engine = 0; engine < 4; engine++)
            rows->items[i].percent[engine] /= sample_count;
    return true;
}

/* Verbatim rows replace the ring for every requested time. */
static bool rows_now(const struct call *call, uint64_t after_unix_us, struct rows *rows) {
    const struct list *given = list_at(&call->gpu->rows, INT64_MIN, call->now_us);
    if (!given) {
        int64_t after_us = after_unix_us > INT64_MAX ? INT64_MAX : (int64_t)after_unix_us;
        return ring_rows(call, after_us - call->world->epoch_us, rows);
    }
    rows->items = calloc(given->count + 1, sizeof *rows->items);
    if (!rows->items)
        return false;
    for (; rows->count < given->count; rows->count++)
        rows->items[rows->count] = *ITEM(const struct row, &call->world->row_pool, given->first + rows->count);
    return true;
}

/* The reply to a call without a buffer. */
static nvmlReturn_t reply_size(const struct gpu *gpu, size_t rows, unsigned int *count) {
    *count = gpu->sizing > 0 ? (unsigned int)gpu->sizing : (unsigned int)rows;
    if (*count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return gpu->sizing == SIZING_SUCCESS ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t reply(const struct gpu *gpu, size_t rows, const void *buffer, unsigned int *count) {
    unsigned int room = *count;
    if (!buffer)
        return reply_size(gpu, rows, count);
    *count = (unsigned int)rows;
    if (!rows)
        return NVML_ERROR_NOT_FOUND;
    return room < rows ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                    unsigned int *count, unsigned long long after_unix_us) {
    ENTER(nvmlDeviceGetProcessUtilization, device, NO_MIG_PARENT);
    REQUIRE(count);
    struct rows rows = {0};
    if (!rows_now(&call, after_unix_us, &rows))
        return NVML_ERROR_MEMORY;
    nvmlReturn_t code = reply(call.gpu, rows.count, out, count);
    for (size_t i = 0; code == NVML_SUCCESS && i < rows.count; i++) {
        const struct row *row = &rows.items[i];
        out[i] = (nvmlProcessUtilizationSample_t){row->pid,        unix_us(&call, row->at_us), row->percent[0],
                                                  row->percent[1], row->percent[2],            row->percent[3]};
    }
    free(rows.items);
    return code;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    ENTER(nvmlDeviceGetProcessesUtilizationInfo, device, NO_MIG_PARENT);
    REQUIRE(info);
    if (info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct rows rows = {0};
    if (!rows_now(&call, info->lastSeenTimeStamp, &rows))
        return NVML_ERROR_MEMORY;
    nvmlReturn_t code = reply(call.gpu, rows.count, info->procUtilArray, &info->processSamplesCount);
    for (size_t i = 0; code == NVML_SUCCESS && i < rows.count; i++) {
        const struct row *row = &rows.items[i];
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = unix_us(&call, row->at_us),
                                                                  .pid = row->pid,
                                                                  .smUtil = row->percent[0],
                                                                  .memUtil = row->percent[1],
                                                                  .encUtil = row->percent[2],
                                                                  .decUtil = row->percent[3]};
    }
    free(rows.items);
    return code;
}
