/* A Vulkan layer that makes a device fail: lost, out of memory, or busy without an end.

It passes all calls on to the driver. A test loads this library with ctypes, which gives it the copy that the Vulkan
loader uses, and arms a fault: which call of a kind, counted from now, shall fail. After a loss the device's calls return
VK_ERROR_DEVICE_LOST where Vulkan allows it. A device that is opened anew works.

The few types of Vulkan that it needs are declared here, so that it compiles without Vulkan's headers. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*Function)(void);
typedef Function (*GetFunction)(void *object, const char *name);
typedef int32_t Result;

enum { SUCCESS = 0, NOT_READY = 1, TIMEOUT = 2, OUT_OF_DEVICE_MEMORY = -2, LOST = -4, MAP_FAILED = -5 };
enum { INSTANCE_LINK = 47, DEVICE_LINK = 48 }; /* of VkStructureType */

/* How the loader tells a layer which functions come after it. */
typedef struct Link {
    struct Link *next;
    GetFunction of_instance, of_device;
} Link;

typedef struct Info {
    uint32_t type;
    struct Info *next;
    uint32_t is_no_link;
    Link *link;
} Info;

typedef struct {
    uint32_t type;
    void *next;
    uint32_t version;
    GetFunction of_instance, of_device, of_physical_device;
} LayerInterface;

typedef struct {
    uint32_t type;
    const void *next;
    uint64_t size;
} Allocation;

/* An instance or a device. Its children, as queues, have the same table of functions at their beginning. */
typedef struct {
    void *table; /* NULL if it was destroyed */
    void *handle;
    GetFunction get;
    void (*destroy)(void *, const void *); /* the loader finds an instance's only while that is created */
    int lost;
    uint64_t counter; /* of the finished submissions, as it was last read */
} Parent;

typedef struct {
    void *table;
    uint64_t memory, size;
} Block;

typedef enum { SUBMIT, WAIT, STATUS, MAP, ALLOCATE, CREATE_BUFFER, NUM_KINDS } Kind;

enum { MOST_PARENTS = 4096, MOST_BLOCKS = 65536 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Parent parents[MOST_PARENTS];
static Block blocks[MOST_BLOCKS];
static int armed[NUM_KINDS], calls[NUM_KINDS], struck, hangs;

/* For tests: has the call of `kind` that comes after `count` others fail; none if `count` is negative. */
void arm(int kind, int count) {
    pthread_mutex_lock(&lock);
    armed[kind] = count + 1;
    pthread_mutex_unlock(&lock);
}

/* For tests: lets devices seem busy with all that they have not reported as finished, or lets them go on. */
void hang(int on) {
    pthread_mutex_lock(&lock);
    hangs = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int read_locked(const int *number) {
    pthread_mutex_lock(&lock);
    int value = *number;
    pthread_mutex_unlock(&lock);
    return value;
}

/* For tests: how many calls of `kind` there were, and how many faults. */
int num_calls(int kind) { return read_locked(&calls[kind]); }
int num_struck(void) { return read_locked(&struck); }

/* For tests: the device memory of this process. */
uint64_t allocated_bytes(void) {
    uint64_t sum = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_BLOCKS; i++) sum += blocks[i].table ? blocks[i].size : 0;
    pthread_mutex_unlock(&lock);
    return sum;
}

static Parent *parent_of(void *object) {
    for (Parent *parent = parents; parent < parents + MOST_PARENTS; parent++)
        if (parent->table == *(void **)object) return parent;
    abort();
}

static void add_parent(void *handle, GetFunction get, const char *destroy) {
    pthread_mutex_lock(&lock);
    Parent *parent = parents;
    while (parent->table) parent++;
    *parent = (Parent){*(void **)handle, handle, get, (void (*)(void *, const void *))get(handle, destroy), 0, 0};
    pthread_mutex_unlock(&lock);
}

static Function next(void *object, const char *name) {
    pthread_mutex_lock(&lock);
    Parent *parent = parent_of(object);
    pthread_mutex_unlock(&lock);
    return parent->get(parent->handle, name);
}

#define PASS_ON(type, object, name, parameters, arguments) (((type(*) parameters)next(object, name))arguments)

/* Counts a call, and returns true if it is the one that fails. */
static int strikes(Kind kind) {
    calls[kind]++;
    if (armed[kind] <= 0 || --armed[kind]) return 0;
    struck++;
    return 1;
}

/* Counts a call on a device or queue, and returns true if that is lost. A device that gets lost ends its work before,
 * since its memory may be freed from then on. */
static int is_lost(Kind kind, void *object) {
    pthread_mutex_lock(&lock);
    Parent *parent = parent_of(object);
    int is_now = strikes(kind);
    if (is_now) parent->lost = 1;
    int lost = parent->lost;
    pthread_mutex_unlock(&lock);
    if (is_now) ((Result(*)(void *))parent->get(parent->handle, "vkDeviceWaitIdle"))(parent->handle);
    return lost;
}

static int is_full(Kind kind) {
    pthread_mutex_lock(&lock);
    int full = strikes(kind);
    pthread_mutex_unlock(&lock);
    return full;
}

/* Waits while devices hang, for at most `timeout` nanoseconds. Returns true if they hang still. */
static int wait_while_hanging(uint64_t timeout) {
    const uint64_t second = 1000000000, longest = 1000000 * second;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    uint64_t nanoseconds = end.tv_nsec + (timeout < longest ? timeout : longest);
    end.tv_sec += nanoseconds / second;
    end.tv_nsec = nanoseconds % second;
    pthread_mutex_lock(&lock);
    int failed = 0;
    while (hangs && !failed) failed = pthread_cond_timedwait(&changed, &lock, &end);
    int still = hangs;
    pthread_mutex_unlock(&lock);
    return still;
}

static Result submit(void *queue, uint32_t count, const void *submits, uint64_t fence) {
    if (is_lost(SUBMIT, queue)) return LOST;
    return PASS_ON(Result, queue, "vkQueueSubmit", (void *, uint32_t, const void *, uint64_t),
                   (queue, count, submits, fence));
}

static Result wait_semaphores(void *device, const void *semaphores, uint64_t timeout) {
    if (is_lost(WAIT, device)) return LOST;
    if (wait_while_hanging(timeout)) return TIMEOUT;
    return PASS_ON(Result, device, "vkWaitSemaphores", (void *, const void *, uint64_t), (device, semaphores, timeout));
}

static Result wait_fences(void *device, uint32_t count, const uint64_t *fences, uint32_t all, uint64_t timeout) {
    if (is_lost(WAIT, device)) return LOST;
    if (wait_while_hanging(timeout)) return TIMEOUT;
    return PASS_ON(Result, device, "vkWaitForFences", (void *, uint32_t, const uint64_t *, uint32_t, uint64_t),
                   (device, count, fences, all, timeout));
}

static Result device_wait_idle(void *device) {
    return is_lost(WAIT, device) ? LOST : PASS_ON(Result, device, "vkDeviceWaitIdle", (void *), (device));
}

static Result counter_value(void *device, uint64_t semaphore, uint64_t *value) {
    if (is_lost(STATUS, device)) return LOST;
    Result result = PASS_ON(Result, device, "vkGetSemaphoreCounterValue", (void *, uint64_t, uint64_t *),
                            (device, semaphore, value));
    pthread_mutex_lock(&lock);
    Parent *parent = parent_of(device);
    if (hangs) *value = parent->counter;
    parent->counter = *value;
    pthread_mutex_unlock(&lock);
    return result;
}

static Result fence_status(void *device, uint64_t fence) {
    if (is_lost(STATUS, device)) return LOST;
    if (read_locked(&hangs)) return NOT_READY;
    return PASS_ON(Result, device, "vkGetFenceStatus", (void *, uint64_t), (device, fence));
}

static Result map(void *device, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags, void **mapped) {
    if (is_lost(MAP, device)) return MAP_FAILED;
    return PASS_ON(Result, device, "vkMapMemory", (void *, uint64_t, uint64_t, uint64_t, uint32_t, void **),
                   (device, memory, offset, size, flags, mapped));
}

static Result create_buffer(void *device, const void *wanted, const void *allocator, uint64_t *buffer) {
    if (is_full(CREATE_BUFFER)) return OUT_OF_DEVICE_MEMORY;
    return PASS_ON(Result, device, "vkCreateBuffer", (void *, const void *, const void *, uint64_t *),
                   (device, wanted, allocator, buffer));
}

static Result allocate(void *device, const Allocation *wanted, const void *allocator, uint64_t *memory) {
    if (is_full(ALLOCATE)) return OUT_OF_DEVICE_MEMORY;
    Result result = PASS_ON(Result, device, "vkAllocateMemory", (void *, const void *, const void *, uint64_t *),
                            (device, wanted, allocator, memory));
    if (result) return result;
    pthread_mutex_lock(&lock);
    Block *block = blocks;
    while (block->table) block++;
    *block = (Block){*(void **)device, *memory, wanted->size};
    pthread_mutex_unlock(&lock);
    return result;
}

static void free_memory(void *device, uint64_t memory, const void *allocator) {
    pthread_mutex_lock(&lock);
    for (Block *block = blocks; block < blocks + MOST_BLOCKS; block++)
        if (block->table == *(void **)device && block->memory == memory) block->table = NULL;
    pthread_mutex_unlock(&lock);
    PASS_ON(void, device, "vkFreeMemory", (void *, uint64_t, const void *), (device, memory, allocator));
}

static void destroy(void *object, const void *allocator) {
    pthread_mutex_lock(&lock);
    Parent *parent = parent_of(object);
    void (*destroy_next)(void *, const void *) = parent->destroy;
    parent->table = NULL;
    pthread_mutex_unlock(&lock);
    destroy_next(object, allocator);
}

/* Takes this layer's link off the list, in which the next layer looks for its own. */
static Link *take_link(Info *info, uint32_t type) {
    do info = info->next;
    while (info->type != type || info->is_no_link);
    Link *link = info->link;
    info->link = link->next;
    return link;
}

static Result create_instance(Info *info, const void *allocator, void **instance) {
    GetFunction get = take_link(info, INSTANCE_LINK)->of_instance;
    Result result = ((Result(*)(const void *, const void *, void **))get(NULL, "vkCreateInstance"))(
        info, allocator, instance);
    if (!result) add_parent(*instance, get, "vkDestroyInstance");
    return result;
}

static Result create_device(void *physical_device, Info *info, const void *allocator, void **device) {
    GetFunction get = take_link(info, DEVICE_LINK)->of_device;
    Result result = PASS_ON(Result, physical_device, "vkCreateDevice", (void *, const void *, const void *, void **),
                            (physical_device, info, allocator, device));
    if (!result) add_parent(*device, get, "vkDestroyDevice");
    return result;
}

static Function of_instance(void *instance, const char *name);
static Function of_device(void *device, const char *name);

static const struct {
    const char *name;
    void *function;
} replaced[] = {
    {"vkGetInstanceProcAddr", of_instance}, {"vkCreateInstance", create_instance},
    {"vkDestroyInstance", destroy}, {"vkCreateDevice", create_device},
    {"vkGetDeviceProcAddr", of_device}, {"vkDestroyDevice", destroy},
    {"vkQueueSubmit", submit}, {"vkWaitSemaphores", wait_semaphores},
    {"vkWaitForFences", wait_fences}, {"vkDeviceWaitIdle", device_wait_idle},
    {"vkGetSemaphoreCounterValue", counter_value}, {"vkGetFenceStatus", fence_status},
    {"vkMapMemory", map}, {"vkCreateBuffer", create_buffer},
    {"vkAllocateMemory", allocate}, {"vkFreeMemory", free_memory},
};

/* Returns this layer's function of a name, which ends with KHR where it comes from an extension. */
static Function own(const char *name) {
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        size_t length = strlen(replaced[i].name);
        if (!strncmp(name, replaced[i].name, length) && (!name[length] || !strcmp(name + length, "KHR")))
            return (Function)replaced[i].function;
    }
    return NULL;
}

static Function of_instance(void *instance, const char *name) {
    Function found = own(name);
    return found || !instance ? found : next(instance, name);
}

static Function of_device(void *device, const char *name) {
    Function found = own(name);
    return found ? found : next(device, name);
}

Result vkNegotiateLoaderLayerInterfaceVersion(LayerInterface *interface) {
    interface->version = 2;
    interface->of_instance = of_instance;
    interface->of_device = of_device;
    interface->of_physical_device = NULL;
    return SUCCESS;
}
