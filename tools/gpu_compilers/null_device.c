/* A Vulkan driver around Mesa's RADV on a GPU that is not there.

With RADV_FORCE_FAMILY, RADV compiles for any AMD GPU without having one. Such a device has no memory, no fences and no
timeline semaphores, and wgpu opens none without them. This driver passes all calls on to RADV but for those: memory is
the host's, fences and semaphores are always signalled, and what is submitted or recorded is dropped. So shaders are
compiled, and nothing is run.

The few types of Vulkan that it needs are declared here, so that it compiles without Vulkan's headers. Function pointers
are passed on as they are. A call that is dropped ignores its arguments, as the calling conventions of C allow where the
caller clears the stack, on x86-64 and AArch64 alike. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*GetFunction)(void *object, const char *name);
typedef int32_t Result; /* 0 is success */

typedef struct {
    uint32_t num_types;
    struct {
        uint32_t flags;
        uint32_t heap;
    } types[32];
    uint32_t num_heaps;
    struct {
        uint64_t size;
        uint32_t flags;
    } heaps[16];
} MemoryProperties;

typedef struct {
    uint32_t type;
    void *next;
    MemoryProperties properties;
} MemoryProperties2;

typedef struct {
    uint64_t size;
    uint64_t alignment;
    uint32_t memory_types;
} MemoryRequirements;

typedef struct {
    uint32_t type;
    const void *next;
    uint64_t size;
    uint32_t memory_type;
} MemoryAllocation;

enum { DEVICE_LOCAL = 1, HOST_VISIBLE_COHERENT_CACHED = 2 + 4 + 8 };

static void *driver;
static GetFunction instance_function, device_function;
static void (*driver_requirements)(void *, uint64_t, MemoryRequirements *);

static void load(void) {
    if (!driver) {
        driver = dlopen(getenv("NULL_DEVICE_DRIVER"), RTLD_NOW | RTLD_LOCAL);
        instance_function = (GetFunction)dlsym(driver, "vk_icdGetInstanceProcAddr");
    }
}

static Result nothing(void) {
    return 0;
}

static Result create(void *device, const void *info, const void *allocator, uint64_t *made) {
    static uint64_t last = 1ull << 40;
    *made = ++last;
    return 0;
}

static Result counter_value(void *device, uint64_t semaphore, uint64_t *value) {
    *value = 1ull << 40;
    return 0;
}

static void memory_properties(void *device, MemoryProperties *properties) {
    memset(properties, 0, sizeof *properties);
    properties->num_types = 2;
    properties->types[0].flags = DEVICE_LOCAL;
    properties->types[1].flags = HOST_VISIBLE_COHERENT_CACHED;
    properties->num_heaps = 1;
    properties->heaps[0].size = 1ull << 36;
    properties->heaps[0].flags = DEVICE_LOCAL;
}

static void memory_properties2(void *device, MemoryProperties2 *properties) {
    memory_properties(device, &properties->properties);
}

static void requirements(void *device, uint64_t buffer, MemoryRequirements *required) {
    driver_requirements(device, buffer, required);
    required->memory_types = 3;
}

/* Memory of the device is never read: one byte stands for it. */
static Result allocate(void *device, const MemoryAllocation *wanted, const void *allocator, void **memory) {
    *memory = calloc(1, wanted->memory_type == 1 ? wanted->size : 1);
    return *memory ? 0 : -1;
}

static void free_memory(void *device, void *memory, const void *allocator) {
    free(memory);
}

static Result map(void *device, void *memory, uint64_t offset, uint64_t size, uint32_t flags, void **mapped) {
    *mapped = (char *)memory + offset;
    return 0;
}

static const struct {
    const char *name;
    void *function;
} replaced[] = {
    {"vkCreateFence", create},
    {"vkCreateSemaphore", create},
    {"vkGetSemaphoreCounterValue", counter_value},
    {"vkGetPhysicalDeviceMemoryProperties", memory_properties},
    {"vkGetPhysicalDeviceMemoryProperties2", memory_properties2},
    {"vkGetBufferMemoryRequirements", requirements},
    {"vkAllocateMemory", allocate},
    {"vkFreeMemory", free_memory},
    {"vkMapMemory", map},
};

static const char *const dropped[] = {
    "vkDestroyFence", "vkResetFences", "vkGetFenceStatus", "vkWaitForFences", "vkDestroySemaphore", "vkWaitSemaphores",
    "vkSignalSemaphore", "vkQueueSubmit", "vkQueueSubmit2", "vkQueueWaitIdle", "vkDeviceWaitIdle", "vkUnmapMemory",
    "vkBindBufferMemory", "vkFlushMappedMemoryRanges", "vkInvalidateMappedMemoryRanges", "vkUpdateDescriptorSets",
    "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkResetCommandBuffer", "vkResetCommandPool",
};

/* Compares the name of a function with one of these lists; a function of an extension ends with KHR. */
static int is_named(const char *name, const char *listed) {
    size_t length = strlen(listed);
    return !strncmp(name, listed, length) && (!name[length] || !strcmp(name + length, "KHR"));
}

static Function replacement(const char *name) {
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (is_named(name, replaced[i].name)) return (Function)replaced[i].function;
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (is_named(name, dropped[i])) return (Function)nothing;
    return strncmp(name, "vkCmd", 5) ? NULL : (Function)nothing;
}

static Function find_of_device(void *device, const char *name) {
    if (!driver_requirements)
        driver_requirements = (void (*)(void *, uint64_t, MemoryRequirements *))device_function(
            device, "vkGetBufferMemoryRequirements");
    Function found = replacement(name);
    return found ? found : device_function(device, name);
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    load();
    if (!strcmp(name, "vkGetDeviceProcAddr")) {
        if (!device_function) device_function = (GetFunction)instance_function(instance, name);
        return (Function)find_of_device;
    }
    Function found = replacement(name);
    return found ? found : instance_function(instance, name);
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    load();
    Function found = strncmp(name, "vkGetPhysicalDeviceMemory", 25) ? NULL : replacement(name);
    if (found) return found;
    GetFunction get = (GetFunction)dlsym(driver, "vk_icdGetPhysicalDeviceProcAddr");
    return get ? get(instance, name) : NULL;
}

Result vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    load();
    Result (*negotiate)(uint32_t *) = (Result(*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion");
    return negotiate ? negotiate(version) : 0;
}
