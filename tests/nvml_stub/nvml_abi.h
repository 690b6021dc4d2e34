/* The part of NVML's binary interface that the stub implements, as in nvidia-ml-py: types, codes, layouts. */
#ifndef STUB_NVML_ABI_H
#define STUB_NVML_ABI_H

#include <stdint.h>

#ifndef PROCESS_INFO_BYTES
#define PROCESS_INFO_BYTES 24 /* some R535 drivers: 32 */
#endif

typedef unsigned int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

#define NVML_NOT_AVAILABLE_U64 UINT64_MAX
#define NVML_NOT_AVAILABLE_U32 UINT32_MAX
#define NVML_NO_INSTANCE UINT32_MAX /* gpuInstanceId and computeInstanceId outside MIG */

/* A struct version is its size with the version number in the top byte. */
#define NVML_STRUCT_VERSION(type, number) ((unsigned int)(sizeof(type) | ((unsigned int)(number) << 24)))

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    unsigned long long protectedMemSizeKib, unprotectedMemSizeKib;
} nvmlConfComputeMemSizeInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

#if PROCESS_INFO_BYTES == 32
typedef nvmlProcessDetail_v1_t nvmlProcessInfo_v3_t;
#else
typedef nvmlProcessInfo_v2_t nvmlProcessInfo_v3_t;
#endif

typedef struct {
    unsigned int version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version, processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int version, sensorType;
    int temperature;
} nvmlTemperature_t;

enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned int gpuUtilization, memoryUtilization;
    unsigned long long maxMemoryUsage, time, startTime;
    unsigned int isRunning, reserved[5];
} nvmlAccountingStats_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

enum { NVML_GPU_INSTANCE_PROFILE_7_SLICE = 4, NVML_CLOCK_COUNT = 4, NVML_MEMORY_LOCATION_DRAM = 2, NVML_MEMORY_LOCATION_COUNT = 8 };

_Static_assert(sizeof(void *) == 8, "handles are encoded in 64 bits");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "PCI info");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "memory v2");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "process entry");
_Static_assert(sizeof(nvmlProcessInfo_v3_t) == PROCESS_INFO_BYTES, "process entry of this driver");
_Static_assert(sizeof(nvmlProcessDetailList_t) == 24, "process detail list");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "utilisation sample");
_Static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40, "utilisation info");
_Static_assert(sizeof(nvmlProcessesUtilizationInfo_t) == 24, "utilisation info list");
_Static_assert(sizeof(nvmlTemperature_t) == 12, "temperature");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "field value");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "attributes");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "profile of a GPU instance");
_Static_assert(sizeof(nvmlAccountingStats_t) == 56, "accounting");
_Static_assert(sizeof(nvmlEventData_t) == 32, "event");

#endif
