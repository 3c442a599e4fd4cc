/* An Intel GPU that is not there, for Mesa's driver ANV: preloaded, it takes the place of Linux's driver i915.

It replaces libdrm's list of devices, and ioctl() on a device's file. That file is a sparse one in memory, so buffers are
mapped as they are. Submissions are dropped: shaders are compiled, and nothing is run. INTEL_DEVICE names the family.

The few numbers and structures of i915's and libdrm's interfaces that it needs are written here, so that it compiles
without their headers. Arguments of ioctl() are seen as arrays of words, with the names of their fields beside them. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    char **nodes;
    int available_nodes, bus_type;
    void *bus, *info;
} Device; /* drmDevice of libdrm */

static const struct {
    const char *name;
    uint16_t id, subslices, units, has_memory;
} families[] = {{"tgl", 0x9a49, 6, 16, 0}, {"dg2", 0x56a0, 32, 16, 1}, {"bmg", 0xe20b, 20, 8, 1}};

static int family = -1;
static char path[64];
static uint64_t offsets[1 << 16], end = 1 << 20; /* of buffers in the device's file */
static uint32_t last_buffer, last_object;

static void load(void) {
    if (family >= 0) return;
    for (family = 2; family > 0 && strcmp(getenv("INTEL_DEVICE"), families[family].name); family--) continue;
    int file = memfd_create("gpu", 0);
    if (ftruncate(file, 1ll << 42)) abort();
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), file);
}

int drmGetDevices2(uint32_t flags, Device **devices, int most) {
    load();
    struct {
        Device device;
        char *nodes[3];
        uint16_t bus[3], pci[5];
    } *made = calloc(1, sizeof *made);
    made->device = (Device){made->nodes, 5, 0, made->bus, made->pci}; /* nodes for display and rendering, on PCI */
    made->nodes[0] = made->nodes[1] = made->nodes[2] = path;
    made->bus[1] = 2;
    uint16_t pci[] = {0x8086, families[family].id, 0x8086, 0x1234, families[family].id == 0x56a0 ? 8 : 4};
    memcpy(made->pci, pci, sizeof pci);
    if (devices && most > 0) devices[0] = &made->device;
    return 1;
}

int drmGetDevice2(int file, uint32_t flags, Device **found) {
    drmGetDevices2(0, found, 1);
    return 0;
}

static int fail(void) {
    errno = EINVAL;
    return -1;
}

static uint32_t make_buffer(uint64_t size) {
    offsets[++last_buffer] = end;
    end += (size + 65535) & ~65535ull;
    return last_buffer;
}

static int parameter(const int *words) { /* param, value */
    int value = 1; /* it has what is asked for */
    switch (words[0]) {
    case 4: value = families[family].id; break;
    case 18: value = 3; break; /* address spaces of 48 bits */
    case 28: value = 10; break; /* version of the parser of commands */
    case 32: case 40: value = 4; break; /* revision, version of mappings */
    case 33: value = families[family].subslices; break;
    case 34: value = families[family].subslices * families[family].units; break;
    case 51: value = 19200000; break; /* clock of timestamps */
    case 54: return fail(); /* counters */
    case 56: value = 0; break; /* probing of pointers */
    }
    **(int **)(words + 2) = value;
    return 0;
}

static void set_bits(uint8_t *bits, int count) {
    for (int i = 0; i < count; i++) bits[i / 8] |= 1 << i % 8;
}

/* Answers an item of a query; one without room gets the length alone. */
static void query(uint64_t *item) { /* query_id, length, data_ptr */
    int32_t *length = (int32_t *)(item + 1);
    int subslices = families[family].subslices, units = families[family].units, num_regions = 1 + families[family].has_memory;
    int stride = (subslices + 7) / 8, unit_stride = units / 8, has_room = *length > 0;
    void *data = (void *)item[2];
    uint16_t *shorts = data;
    uint32_t *words = data;
    uint64_t *longs = data;
    switch (item[0] & 0xffff) {
    case 1: case 6: { /* slices, subslices and units */
        *length = 17 + stride + subslices * unit_stride;
        if (!has_room) return;
        uint16_t head[] = {0, 1, subslices, units, 1, stride, 1 + stride, unit_stride};
        memset(data, 0, *length);
        memcpy(data, head, sizeof head);
        set_bits((uint8_t *)data + 16, 1);
        set_bits((uint8_t *)data + 17, subslices);
        set_bits((uint8_t *)data + 17 + stride, subslices * units);
        return;
    }
    case 2: /* engines: for rendering, for copies */
        *length = 16 + 2 * 56;
        if (!has_room) return;
        memset(data, 0, *length);
        words[0] = 2;
        shorts[(16 + 56) / 2] = 1;
        return;
    case 4: /* memory: the host's, and the device's own */
        *length = 16 + num_regions * 88;
        if (!has_room) return;
        memset(data, 0, *length);
        words[0] = num_regions;
        for (int i = 0; i < num_regions; i++) {
            uint64_t *region = longs + 2 + 11 * i;
            *(uint16_t *)region = i;
            region[1] = region[2] = 32ull << 30;
            region[3] = region[4] = i ? 32ull << 30 : 0;
        }
        return;
    default: *length = -EINVAL;
    }
}

static int driver_call(int number, uint32_t *words, uint64_t *longs) {
    switch (number) {
    case 0x06: return parameter((int *)words);
    case 0x17: words[1] = 0; return 0; /* busy */
    case 0x1b: case 0x3c: words[2] = make_buffer(longs[0]); return 0;
    case 0x23: longs[0] = longs[1] = 1ull << 40; return 0; /* aperture */
    case 0x24: longs[1] = offsets[words[0]]; return 0;
    case 0x2d: words[0] = ++last_object; return 0; /* context */
    case 0x33: words[5] = make_buffer(longs[1]); return 0; /* of the host's memory */
    case 0x34: longs[2] = longs[1] == 3 ? 1ull << 48 : 0; return 0; /* bytes of an address space */
    case 0x36: case 0x37: return fail(); /* counters */
    case 0x39:
        for (uint32_t i = 0; i < words[0]; i++) query((uint64_t *)longs[1] + 3 * i);
        return 0;
    case 0x3a: words[3] = ++last_object; return 0; /* address space */
    default: return 0;
    }
}

int ioctl(int file, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    uint32_t *words = va_arg(list, void *);
    va_end(list);
    uint64_t *longs = (uint64_t *)words;
    int number = request & 0xff;
    if ((request >> 8 & 0xff) != 'd') return syscall(SYS_ioctl, file, request, words);
    load();
    if (number >= 0x40 && number < 0xa0) return driver_call(number - 0x40, words, longs);
    if (number == 0x00) { /* version: three numbers, then lengths and texts of name, date and description */
        words[0] = 1;
        words[1] = 6;
        for (int i = 2; i < 8; i += 2) {
            if (longs[i + 1] && longs[i]) strncpy((char *)longs[i + 1], "i915", longs[i]);
            longs[i] = 4;
        }
    }
    if (number == 0x0c) longs[1] = 1; /* a capability */
    if (number == 0xbf) words[0] = ++last_object; /* an object of synchronisation */
    if (number == 0xcb) /* their timelines: all is done */
        for (uint32_t i = 0; i < words[4]; i++) ((uint64_t *)longs[1])[i] = 1ull << 62;
    return 0;
}
