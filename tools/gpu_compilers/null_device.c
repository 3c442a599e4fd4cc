/* A Vulkan driver around one of Mesa's, on a GPU that is not there.

With RADV_FORCE_FAMILY, RADV compiles for any AMD GPU without having one. Such a device has no memory, no fences and no
timeline semaphores, and wgpu opens none without them. This driver passes all calls on but for those: memory is the
host's, fences and semaphores are always signalled, and what is submitted or recorded is dropped. So shaders are
compiled, and nothing is run. It is also put around ANV on the device of intel_device.c. NULL_DEVICE_PRINTS=1 prints the
statistics of VK_KHR_pipeline_executable_properties for each pipeline, and 2 also the machine code.

The few types of Vulkan that it needs are declared here, so that it compiles without Vulkan's headers. Function pointers
are passed on as they are. A call that is dropped ignores its arguments, as the calling conventions of C allow where the
caller clears the stack, on x86-64 and AArch64 alike. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
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

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags, num_queues;
    const void *queues;
    uint32_t num_layers;
    const char *const *layers;
    uint32_t num_extensions;
    const char *const *extensions;
    const void *features;
} DeviceInfo;

typedef struct {
    uint32_t type;
    const void *next;
    uint32_t flags;
    uint64_t others[9];
} PipelineInfo;

typedef struct {
    uint32_t type;
    void *next;
    uint64_t pipeline;
    uint32_t executable;
} ExecutableInfo;

typedef struct {
    uint32_t type;
    void *next;
    char name[256], description[256];
    uint32_t format;
    uint64_t value;
} Statistic;

typedef struct {
    uint32_t type;
    void *next;
    char name[256], description[256];
    uint32_t is_text;
    size_t size;
    char *data;
} Representation;

enum { DEVICE_LOCAL = 1, HOST_VISIBLE_COHERENT_CACHED = 2 + 4 + 8 };

static void *driver;
static GetFunction instance_function, device_function;
static void *own_instance;
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

/* Wish for no checks of bounds, as a device without robustBufferAccess would have it. */
static void trust(const DeviceInfo *info) {
    struct feature {
        uint32_t type;
        struct feature *next;
        uint32_t is_on; /* the first of its features */
    } *each = (struct feature *)info->next;
    if (info->features) *(uint32_t *)info->features = 0;
    for (; each; each = each->next)
        if (each->type == 1000059000 || each->type == 1000286000) each->is_on = 0;
}

static Result create_device(void *physical, const DeviceInfo *info, const void *allocator, void **made) {
    Result (*create_it)(void *, const DeviceInfo *, const void *, void **) =
        (void *)instance_function(own_instance, "vkCreateDevice");
    if (getenv("NULL_DEVICE_TRUSTS")) trust(info);
    if (!getenv("NULL_DEVICE_PRINTS")) return create_it(physical, info, allocator, made);
    struct {
        uint32_t type;
        const void *next;
        uint32_t is_on;
    } feature = {1000269000, info->next, 1};
    const char *names[256] = {"VK_KHR_pipeline_executable_properties"};
    memcpy(names + 1, info->extensions, info->num_extensions * sizeof *names);
    DeviceInfo wanted = *info;
    wanted.next = &feature;
    wanted.extensions = names;
    wanted.num_extensions++;
    return create_it(physical, &wanted, allocator, made);
}

static void print(void *device, uint64_t pipeline, int with_code) {
    Result (*statistics)(void *, const ExecutableInfo *, uint32_t *, Statistic *) =
        (void *)device_function(device, "vkGetPipelineExecutableStatisticsKHR");
    Result (*representations)(void *, const ExecutableInfo *, uint32_t *, Representation *) =
        (void *)device_function(device, "vkGetPipelineExecutableInternalRepresentationsKHR");
    ExecutableInfo info = {1000269003, NULL, pipeline, 0};
    static Statistic figures[64];
    static Representation texts[64];
    uint32_t count = 64;
    for (int i = 0; i < 64; i++) figures[i].type = 1000269004, texts[i].type = 1000269005;
    statistics(device, &info, &count, figures);
    for (uint32_t i = 0; i < count; i++) fprintf(stderr, "%s: %llu\n", figures[i].name, (unsigned long long)figures[i].value);
    count = 64;
    if (!with_code || representations(device, &info, &count, texts) < 0) return;
    for (uint32_t i = 0; i < count; i++) texts[i].data = calloc(1, texts[i].size + 1);
    representations(device, &info, &count, texts);
    for (uint32_t i = 0; i < count; i++) {
        if (strstr(texts[i].name, "Assembly")) fprintf(stderr, "disasm:\n%s\n", texts[i].data);
        free(texts[i].data);
        texts[i].data = NULL;
    }
}

static Result create_pipelines(
    void *device, uint64_t cache, uint32_t count, const PipelineInfo *infos, const void *allocator, uint64_t *made) {
    Result (*create_them)(void *, uint64_t, uint32_t, const PipelineInfo *, const void *, uint64_t *) =
        (void *)device_function(device, "vkCreateComputePipelines");
    const char *prints = getenv("NULL_DEVICE_PRINTS");
    PipelineInfo *wanted = malloc(count * sizeof *wanted);
    memcpy(wanted, infos, count * sizeof *wanted);
    for (uint32_t i = 0; prints && i < count; i++) wanted[i].flags |= *prints == '2' ? 0x40 | 0x80 : 0x40; /* and code */
    Result result = create_them(device, prints ? 0 : cache, count, wanted, allocator, made);
    for (uint32_t i = 0; prints && !result && i < count; i++) print(device, made[i], *prints == '2');
    free(wanted);
    return result;
}

static const struct {
    const char *name;
    void *function;
} replaced[] = {
    {"vkCreateDevice", create_device},
    {"vkCreateComputePipelines", create_pipelines},
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
    if (instance) own_instance = instance;
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
