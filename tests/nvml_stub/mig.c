/* MIG: the parent's mode, the instances in its slots, and their attributes. */
#include "stub.h"

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *mode, unsigned int *pending) {
    ENTER(nvmlDeviceGetMigMode, device, GPU_ONLY);
    REQUIRE(mode && pending);
    const struct value *value = value_now(&call, MIG_MODE);
    if (!value)
        return NVML_ERROR_NOT_SUPPORTED;
    *mode = (unsigned int)value->v[0];
    *pending = (unsigned int)value->v[1];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    ENTER(nvmlDeviceGetMaxMigDeviceCount, device, GPU_ONLY);
    REQUIRE(count);
    *count = call.gpu->mig_slots;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex, device, GPU_ONLY);
    REQUIRE(mig);
    if (!value_now(&call, MIG_MODE))
        return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(index < call.gpu->mig_slots);
    if (!mig_is_on(&call))
        return NVML_ERROR_NOT_FOUND;
    for (size_t i = timeline_upto(&call.gpu->mig, call.now_us); i-- > 0;) {
        const struct mig *candidate = ITEM(const struct mig, &call.gpu->mig, i);
        if (candidate->slot == index && mig_is_alive(candidate, call.now_us)) {
            *mig = device_handle(call.gpu_index, (int)i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    ENTER(nvmlDeviceIsMigDeviceHandle, device, GPU_OR_MIG);
    REQUIRE(is_mig);
    *is_mig = call.mig != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig, MIG_ONLY);
    REQUIRE(device);
    *device = device_handle(call.gpu_index, -1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    ENTER(nvmlDeviceGetGpuInstanceId, device, MIG_ONLY);
    REQUIRE(id);
    *id = call.mig->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    ENTER(nvmlDeviceGetComputeInstanceId, device, MIG_ONLY);
    REQUIRE(id);
    *id = call.mig->compute_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    ENTER(nvmlDeviceGetAttributes_v2, device, MIG_ONLY);
    REQUIRE(attributes);
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = call.mig->sm_count,
                                           .gpuInstanceSliceCount = call.mig->gpu_slices,
                                           .computeInstanceSliceCount = call.mig->compute_slices,
                                           .memorySizeMB = call.mig->memory_mb};
    return NVML_SUCCESS;
}

/* Only the profile of a whole GPU is known, and only if the world has its number of SMs. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    ENTER(nvmlDeviceGetGpuInstanceProfileInfo, device, GPU_ONLY);
    REQUIRE(info);
    const struct value *value = value_now(&call, SM_COUNT);
    if (!value || profile != NVML_GPU_INSTANCE_PROFILE_7_SLICE)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlGpuInstanceProfileInfo_t){
        .sliceCount = 7, .instanceCount = 1, .multiprocessorCount = (unsigned int)value->v[0]};
    return NVML_SUCCESS;
}
