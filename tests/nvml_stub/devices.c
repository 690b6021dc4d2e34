/* The system, and the devices with their identity; MIG devices. */
#include <stdio.h>
#include <string.h>

#include "records.h"
#include "stub.h"

const char *nvmlErrorString(nvmlReturn_t code) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "Driver/library version mismatch", "In use", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient resources", "Frequency not supported", "Argument version mismatch"};
    count_call(FN_nvmlErrorString);
    return code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}

/* ---- the system ---- */

static nvmlReturn_t version_text(const char *text, char *out, unsigned int length) {
    return *text ? copy_text(text, out, length) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER(nvmlSystemGetDriverVersion, NULL, NO_DEVICE);
    return version_text(call.world->driver_version, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    ENTER(nvmlSystemGetNVMLVersion, NULL, NO_DEVICE);
    return version_text(call.world->nvml_version, version, length);
}

static nvmlReturn_t cuda_version(const struct world *world, int *version) {
    REQUIRE(version);
    *version = (int)world->cuda_version;
    return world->cuda_version ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER(nvmlSystemGetCudaDriverVersion, NULL, NO_DEVICE);
    return cuda_version(call.world, version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(nvmlSystemGetCudaDriverVersion_v2, NULL, NO_DEVICE);
    return cuda_version(call.world, version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    ENTER(nvmlSystemGetProcessName, NULL, NO_DEVICE);
    size_t upto = timeline_upto(&call.world->names, pid);
    const struct named_process *found = upto ? ITEM(const struct named_process, &call.world->names, upto - 1) : NULL;
    return found && found->pid == pid ? copy_text(found->name, name, length) : NVML_ERROR_NOT_FOUND;
}

/* ---- finding a device ---- */

static nvmlReturn_t count_devices(const struct call *call, unsigned int *count) {
    REQUIRE(count);
    *count = call->world->gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) {
    ENTER(nvmlDeviceGetCount, NULL, NO_DEVICE);
    return count_devices(&call, count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER(nvmlDeviceGetCount_v2, NULL, NO_DEVICE);
    return count_devices(&call, count);
}

static nvmlReturn_t by_index(struct call *call, enum function function, unsigned int index, nvmlDevice_t *device) {
    bool found = index < call->world->gpu_count;
    nvmlReturn_t code = suffer(call, function, found ? (int)index : ANYTHING, ANYTHING);
    if (code != NVML_SUCCESS)
        return code;
    REQUIRE(found && device);
    *device = device_handle(index, -1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByIndex, NULL, NAMED_DEVICE);
    return by_index(&call, FN_nvmlDeviceGetHandleByIndex, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByIndex_v2, NULL, NAMED_DEVICE);
    return by_index(&call, FN_nvmlDeviceGetHandleByIndex_v2, index, device);
}

static int find_mig_uuid(const struct gpu *gpu, const char *uuid, int64_t now_us) {
    for (size_t i = 0; i < gpu->mig.count; i++) {
        const struct mig *mig = ITEM(const struct mig, &gpu->mig, i);
        if (strcmp(mig->uuid, uuid) == 0 && mig_is_alive(mig, now_us))
            return (int)i;
    }
    return -1;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByUUID, NULL, NAMED_DEVICE);
    REQUIRE(uuid && device);
    int gpu = ANYTHING, mig = -1, slot = ANYTHING;
    int64_t now_us = world_now_us(call.world);
    for (uint32_t i = 0; i < call.world->gpu_count && gpu == ANYTHING; i++) {
        mig = find_mig_uuid(call.world->gpus[i], uuid, now_us);
        if (mig >= 0)
            slot = (int)ITEM(const struct mig, &call.world->gpus[i]->mig, mig)->slot;
        if (mig >= 0 || strcmp(call.world->gpus[i]->uuid, uuid) == 0)
            gpu = (int)i;
    }
    nvmlReturn_t code = suffer(&call, FN_nvmlDeviceGetHandleByUUID, gpu, slot);
    if (code == NVML_SUCCESS && gpu == ANYTHING)
        code = NVML_ERROR_NOT_FOUND;
    if (code == NVML_SUCCESS)
        *device = device_handle((uint32_t)gpu, mig);
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByPciBusId_v2, NULL, NAMED_DEVICE);
    uint32_t domain, bus, slot, function;
    REQUIRE(bus_id && device && parse_bus_id(bus_id, &domain, &bus, &slot, &function));
    int found = ANYTHING;
    for (uint32_t i = 0; i < call.world->gpu_count; i++) {
        const struct gpu *gpu = call.world->gpus[i];
        if (gpu->has_pci && gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot &&
            gpu->pci_function == function)
            found = (int)i;
    }
    nvmlReturn_t code = suffer(&call, FN_nvmlDeviceGetHandleByPciBusId_v2, found, ANYTHING);
    if (code == NVML_SUCCESS && found == ANYTHING)
        code = NVML_ERROR_NOT_FOUND;
    if (code == NVML_SUCCESS)
        *device = device_handle((uint32_t)found, -1);
    return code;
}

/* ---- identity of a device ---- */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    ENTER(nvmlDeviceGetName, device, GPU_OR_MIG);
    return copy_text(call.mig ? call.mig->name : call.gpu->name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    ENTER(nvmlDeviceGetUUID, device, GPU_OR_MIG);
    return copy_text(call.mig ? call.mig->uuid : call.gpu->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    ENTER(nvmlDeviceGetIndex, device, GPU_OR_MIG);
    REQUIRE(index);
    *index = call.mig ? call.mig->slot : call.gpu_index;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    ENTER(nvmlDeviceGetSerial, device, GPU_ONLY);
    return *call.gpu->serial ? copy_text(call.gpu->serial, serial, length) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t known(bool is_known, uint32_t value, unsigned int *out) {
    REQUIRE(out);
    if (is_known)
        *out = value;
    return is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    ENTER(nvmlDeviceGetMinorNumber, device, GPU_ONLY);
    return known(call.gpu->has_minor, call.gpu->minor, minor);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand) {
    ENTER(nvmlDeviceGetBrand, device, GPU_ONLY);
    return known(call.gpu->has_brand, call.gpu->brand, brand);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture) {
    ENTER(nvmlDeviceGetArchitecture, device, GPU_ONLY);
    return known(call.gpu->has_architecture, call.gpu->architecture, architecture);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(nvmlDeviceGetCudaComputeCapability, device, GPU_OR_MIG);
    REQUIRE(major && minor);
    *major = (int)call.gpu->capability[0];
    *minor = (int)call.gpu->capability[1];
    return call.gpu->has_capability ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    ENTER(nvmlDeviceGetPciInfo_v3, device, GPU_ONLY);
    REQUIRE(pci);
    const struct gpu *gpu = call.gpu;
    if (!gpu->has_pci)
        return NVML_ERROR_NOT_SUPPORTED;
    *pci = (nvmlPciInfo_t){.domain = gpu->pci_domain,
                           .bus = gpu->pci_bus,
                           .device = gpu->pci_device,
                           .pciDeviceId = gpu->pci_device_id,
                           .pciSubSystemId = gpu->pci_subsystem_id};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", gpu->pci_domain & 0xffff,
             gpu->pci_bus & 0xff, gpu->pci_device & 0xff, gpu->pci_function & 0xf);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", gpu->pci_domain, gpu->pci_bus & 0xff,
             gpu->pci_device & 0xff, gpu->pci_function & 0xf);
    return NVML_SUCCESS;
}
