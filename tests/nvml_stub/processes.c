/* Processes on a device: the three lists, in each version of the driver's calls. */
#include <unistd.h>

#include "stub.h"

static const struct list *processes_now(const struct call *call, enum list_kind kind) {
    return list_at(&call->subject->lists[kind], call->since_us, call->now_us);
}

static const struct process *process_of(const struct call *call, const struct list *list, size_t index) {
    return ITEM(const struct process, &call->world->processes, list->first + index);
}

/* As in the driver: a missing or too small buffer returns the required count. */
static nvmlReturn_t fit(const struct list *list, unsigned int *count, const void *entries) {
    unsigned int room = *count;
    *count = (unsigned int)list->count;
    return list->count && (!entries || room < list->count) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t fill_v2(const struct call *call, enum list_kind kind, unsigned int *count,
                            nvmlProcessInfo_v2_t *out) {
    REQUIRE(count);
    const struct list *list = processes_now(call, kind);
    if (!list)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = fit(list, count, out);
    for (size_t i = 0; code == NVML_SUCCESS && i < list->count; i++) {
        const struct process *process = process_of(call, list, i);
        out[i] = (nvmlProcessInfo_v2_t){process->pid, process->bytes, process->gpu_instance, process->compute_instance};
    }
    return code;
}

static nvmlReturn_t fill_v3(const struct call *call, enum list_kind kind, unsigned int *count,
                            nvmlProcessInfo_v3_t *out) {
#if PROCESS_INFO_BYTES == 24
    return fill_v2(call, kind, count, out);
#else
    REQUIRE(count);
    const struct list *list = processes_now(call, kind);
    if (!list)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = fit(list, count, out);
    for (size_t i = 0; code == NVML_SUCCESS && i < list->count; i++) {
        const struct process *process = process_of(call, list, i);
        out[i] = (nvmlProcessInfo_v3_t){process->pid, process->bytes, process->gpu_instance,
                                        process->compute_instance, process->protected_bytes};
    }
    return code;
#endif
}

#define PROCESS_CALL(name, version, kind)                                                                     \
    nvmlReturn_t name##version(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo##version##_t *out) { \
        ENTER(name##version, device, GPU_OR_MIG);                                                             \
        return fill##version(&call, kind, count, out);                                                        \
    }

PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, _v2, COMPUTE)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, _v3, COMPUTE)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, _v2, GRAPHICS)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, _v3, GRAPHICS)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses, _v2, MPS)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses, _v3, MPS)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *out) {
    ENTER(nvmlDeviceGetRunningProcessDetailList, device, GPU_OR_MIG);
    REQUIRE(out);
    if (out->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(out->mode < LIST_KINDS); /* compute, graphics, MPS, in the order of enum list_kind */
    const struct list *list = processes_now(&call, (enum list_kind)out->mode);
    if (!list)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = fit(list, &out->numProcArrayEntries, out->procArray);
    for (size_t i = 0; code == NVML_SUCCESS && i < list->count; i++) {
        const struct process *process = process_of(&call, list, i);
        out->procArray[i] = (nvmlProcessDetail_v1_t){process->pid, process->bytes, process->gpu_instance,
                                                     process->compute_instance, process->protected_bytes};
    }
    return code;
}

/* ---- accounting ---- */

/* The pid's latest record, unless it was overwritten; *next is the start of the next pid. */
static const struct accounting *accounting_of(const struct call *call, int64_t pid, size_t *next) {
    const struct timeline *line = &call->gpu->accounting;
    size_t first = timeline_upto(line, pid - 1), end = timeline_upto(line, pid);
    if (next)
        *next = end;
    for (size_t i = end; i-- > first;) {
        const struct accounting *record = ITEM(const struct accounting, line, i);
        if (record->at_us <= call->now_us)
            return record->forgotten || record->at_us <= call->gpu->accounting_cleared_us ? NULL : record;
    }
    return NULL;
}

/* nvml.h: on a GPU in MIG mode it is off. */
static bool accounting_is_on(const struct call *call) {
    const struct value *recorded = value_now(call, ACCOUNTING_MODE);
    int set = call->gpu->accounting_set;
    return recorded && !mig_is_on(call) && (set == AS_RECORDED ? recorded->v[0] : set == SET_ON);
}

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned int *mode) {
    ENTER(nvmlDeviceGetAccountingMode, device, GPU_ONLY);
    REQUIRE(mode);
    if (!value_now(&call, ACCOUNTING_MODE))
        return NVML_ERROR_NOT_SUPPORTED;
    *mode = accounting_is_on(&call);
    return NVML_SUCCESS;
}

/* nvml.h: needs root, deletes records when disabled, and is not supported on a GPU in MIG mode. */
nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, unsigned int mode) {
    ENTER(nvmlDeviceSetAccountingMode, device, NO_MIG_PARENT);
    REQUIRE(mode <= 1);
    if (!value_now(&call, ACCOUNTING_MODE))
        return NVML_ERROR_NOT_SUPPORTED;
    if (call.world->has_root ? !call.world->root : geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    struct gpu *gpu = call.world->gpus[call.gpu_index];
    if (!mode)
        gpu->accounting_cleared_us = call.now_us;
    gpu->accounting_set = mode ? SET_ON : SET_OFF;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *size) {
    ENTER(nvmlDeviceGetAccountingBufferSize, device, GPU_ONLY);
    REQUIRE(size);
    *size = call.gpu->accounting_buffer;
    return value_now(&call, ACCOUNTING_MODE) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    ENTER(nvmlDeviceGetAccountingPids, device, GPU_ONLY);
    REQUIRE(count);
    if (!accounting_is_on(&call))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int room = pids ? *count : 0;
    *count = 0;
    for (size_t i = 0; i < call.gpu->accounting.count;) {
        const struct accounting *record = ITEM(const struct accounting, &call.gpu->accounting, i);
        if (accounting_of(&call, record->key, &i) && (*count)++ < room)
            pids[*count - 1] = record->pid;
    }
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
    ENTER(nvmlDeviceGetAccountingStats, device, GPU_ONLY);
    REQUIRE(stats);
    if (!accounting_is_on(&call))
        return NVML_ERROR_NOT_SUPPORTED;
    const struct accounting *record = accounting_of(&call, pid, NULL);
    if (!record)
        return NVML_ERROR_NOT_FOUND;
    *stats = (nvmlAccountingStats_t){.gpuUtilization = record->gpu_percent,
                                     .memoryUtilization = record->memory_percent,
                                     .maxMemoryUsage = record->max_bytes,
                                     .time = record->time_ms,
                                     .startTime = unix_us(&call, record->start_us),
                                     .isRunning = record->running};
    return NVML_SUCCESS;
}
