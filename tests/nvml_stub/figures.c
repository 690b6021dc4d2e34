/* A device's own figures: memory, power, energy, temperature, utilisation, clocks, ECC, modes, field values. */
#include "stub.h"

/* One of the numbers recorded for this time. */
static nvmlReturn_t number(const struct call *call, enum value_kind kind, unsigned place, unsigned int *out) {
    REQUIRE(out);
    const struct value *value = value_now(call, kind);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)value->v[place];
    return NVML_SUCCESS;
}

/* ---- memory: recorded as total, reserved, used; `used` excludes `reserved`, as in v2 ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    ENTER(nvmlDeviceGetMemoryInfo, device, GPU_OR_MIG);
    REQUIRE(memory);
    const struct value *value = value_now(&call, MEMORY);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t used = value->v[1] + value->v[2];
    *memory = (nvmlMemory_t){.total = value->v[0], .free = value->v[0] - used, .used = used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER(nvmlDeviceGetMemoryInfo_v2, device, GPU_OR_MIG);
    REQUIRE(memory);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct value *value = value_now(&call, MEMORY);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = value->v[0];
    memory->reserved = value->v[1];
    memory->used = value->v[2];
    memory->free = value->v[0] - value->v[1] - value->v[2];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    ENTER(nvmlDeviceGetBAR1MemoryInfo, device, GPU_OR_MIG);
    REQUIRE(memory);
    const struct value *value = value_now(&call, BAR1);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *memory = (nvmlBAR1Memory_t){value->v[0], value->v[0] - value->v[1], value->v[1]};
    return NVML_SUCCESS;
}

/* No world has confidential computing: all memory is unprotected. */
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *memory) {
    ENTER(nvmlDeviceGetConfComputeMemSizeInfo, device, GPU_ONLY);
    REQUIRE(memory);
    const struct value *value = value_now(&call, MEMORY);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *memory = (nvmlConfComputeMemSizeInfo_t){0, value->v[0] / 1024};
    return NVML_SUCCESS;
}

/* ---- power, energy, temperature ---- */

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    ENTER(nvmlDeviceGetPowerUsage, device, GPU_ONLY);
    return number(&call, POWER, 0, milliwatts);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    ENTER(nvmlDeviceGetPowerManagementLimit, device, GPU_ONLY);
    return number(&call, POWER_LIMIT, 0, milliwatts);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    ENTER(nvmlDeviceGetEnforcedPowerLimit, device, GPU_ONLY);
    return number(&call, POWER_LIMIT, 1, milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    ENTER(nvmlDeviceGetTotalEnergyConsumption, device, GPU_ONLY);
    REQUIRE(millijoules);
    const struct value *value = value_now(&call, ENERGY);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *millijoules = value->v[0];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    ENTER(nvmlDeviceGetTemperature, device, GPU_ONLY);
    REQUIRE(sensor == 0);
    return number(&call, TEMPERATURE, 0, celsius);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    ENTER(nvmlDeviceGetTemperatureV, device, GPU_ONLY);
    REQUIRE(temperature);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(temperature->sensorType == 0);
    return number(&call, TEMPERATURE, 0, (unsigned int *)&temperature->temperature);
}

/* ---- utilisation and clocks ---- */

enum { UTILIZATION_PERIOD_US = 167000 };

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    ENTER(nvmlDeviceGetUtilizationRates, device, NO_MIG_PARENT);
    REQUIRE(utilization);
    nvmlReturn_t code = number(&call, UTILIZATION, 0, &utilization->gpu);
    return code == NVML_SUCCESS ? number(&call, UTILIZATION, 1, &utilization->memory) : code;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    ENTER(nvmlDeviceGetEncoderUtilization, device, NO_MIG_PARENT);
    REQUIRE(period_us);
    *period_us = UTILIZATION_PERIOD_US;
    return number(&call, ENCODER, 0, percent);
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) {
    ENTER(nvmlDeviceGetDecoderUtilization, device, NO_MIG_PARENT);
    REQUIRE(period_us);
    *period_us = UTILIZATION_PERIOD_US;
    return number(&call, DECODER, 0, percent);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    ENTER(nvmlDeviceGetClockInfo, device, GPU_ONLY);
    REQUIRE(type < NVML_CLOCK_COUNT);
    return number(&call, CLOCKS, type, mhz);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz) {
    ENTER(nvmlDeviceGetMaxClockInfo, device, GPU_ONLY);
    REQUIRE(type < NVML_CLOCK_COUNT && mhz);
    *mhz = call.gpu->max_clocks[type];
    return call.gpu->has_max_clocks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* ---- ECC: recorded as volatile corrected, volatile uncorrected, aggregate corrected, aggregate uncorrected ---- */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    ENTER(nvmlDeviceGetEccMode, device, GPU_ONLY);
    nvmlReturn_t code = number(&call, ECC_MODE, 0, current);
    return code == NVML_SUCCESS ? number(&call, ECC_MODE, 1, pending) : code;
}

static nvmlReturn_t ecc_errors(const struct call *call, unsigned type, unsigned counter, unsigned long long *count) {
    REQUIRE(type < 2 && counter < 2 && count);
    const struct value *value = value_now(call, ECC_ERRORS);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = value->v[2 * counter + type];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                unsigned long long *count) {
    ENTER(nvmlDeviceGetTotalEccErrors, device, GPU_ONLY);
    return ecc_errors(&call, type, counter, count);
}

/* All recorded errors are in device memory; other locations have none. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                                    unsigned int location, unsigned long long *count) {
    ENTER(nvmlDeviceGetMemoryErrorCounter, device, GPU_ONLY);
    REQUIRE(location < NVML_MEMORY_LOCATION_COUNT);
    nvmlReturn_t code = ecc_errors(&call, type, counter, count);
    if (code == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DRAM)
        *count = 0;
    return code;
}

/* ---- modes ---- */

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
    ENTER(nvmlDeviceGetPersistenceMode, device, GPU_ONLY);
    return number(&call, PERSISTENCE, 0, mode);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned int *state) {
    ENTER(nvmlDeviceGetPerformanceState, device, GPU_ONLY);
    return number(&call, PSTATE, 0, state);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
    ENTER(nvmlDeviceGetComputeMode, device, GPU_ONLY);
    return number(&call, COMPUTE_MODE, 0, mode);
}

/* ---- field values: ids as in nvidia-ml-py's NVML_FI_DEV_… ---- */

static const struct field {
    unsigned int id;
    enum value_kind kind;
    unsigned place;
    bool is_wide;
} fields[] = {
    {1, ECC_MODE, 0, false},   {2, ECC_MODE, 1, false},     {3, ECC_ERRORS, 0, true},
    {4, ECC_ERRORS, 1, true},  {5, ECC_ERRORS, 2, true},    {6, ECC_ERRORS, 3, true},
    {11, ECC_ERRORS, 0, true}, {12, ECC_ERRORS, 1, true},   {22, ECC_ERRORS, 2, true},
    {23, ECC_ERRORS, 3, true}, {82, MEMORY_TEMPERATURE, 0, false}, {83, ENERGY, 0, true},
    {185, POWER, 0, false},    {186, POWER, 1, false},      {190, POWER_LIMIT, 1, false},
    {191, ENERGY, 0, true},    {192, POWER_LIMIT, 0, false},
};

static void fill_field(const struct call *call, nvmlFieldValue_t *out) {
    out->timestamp = (long long)unix_us(call, call->now_us);
    out->latencyUsec = 0;
    out->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct value *value = fields[i].id == out->fieldId ? value_now(call, fields[i].kind) : NULL;
        if (!value || out->scopeId != 0)
            continue;
        out->nvmlReturn = NVML_SUCCESS;
        out->valueType = fields[i].is_wide ? NVML_VALUE_TYPE_UNSIGNED_LONG_LONG : NVML_VALUE_TYPE_UNSIGNED_INT;
        if (fields[i].is_wide)
            out->value.ullVal = value->v[fields[i].place];
        else
            out->value.uiVal = (unsigned int)value->v[fields[i].place];
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(nvmlDeviceGetFieldValues, device, GPU_ONLY);
    REQUIRE(count > 0 && values);
    for (int i = 0; i < count; i++)
        fill_field(&call, &values[i]);
    return NVML_SUCCESS;
}
