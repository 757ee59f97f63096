/*
 * A file system on a device of the program's own, here an array:
 *
 *     cc -std=c99 memory.c $(pkg-config --cflags --libs uext4) -lpthread -o memory
 *     ./memory copy.img
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uext4.h>

#define LENGTH ((size_t)32 << 20)

/* The library calls from several threads, so that what it shares is locked. */
struct memory {
    pthread_mutex_t lock;
    unsigned char *bytes;
    unsigned long flushes;
    int released;
};

static int memory_read(void *user, void *buf, size_t len, uint64_t offset)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memcpy(buf, memory->bytes + offset, len);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static int memory_write(void *user, const void *buf, size_t len, uint64_t offset)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memcpy(memory->bytes + offset, buf, len);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static int memory_flush(void *user)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memory->flushes++;
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static int memory_zero(void *user, uint64_t offset, uint64_t len)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memset(memory->bytes + offset, 0, (size_t)len);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static void memory_release(void *user)
{
    struct memory *memory = user;
    memory->released = 1;
}

static int64_t must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, uext4_error_text(), strerror((int)-result));
        exit(1);
    }
    return result;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: memory FILE, to which the image is written\n");
        return 2;
    }
    struct memory memory = { PTHREAD_MUTEX_INITIALIZER, calloc(1, LENGTH), 0, 0 };
    uext4_device_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.read = memory_read;
    ops.write = memory_write;
    ops.flush = memory_flush;
    ops.zero = memory_zero;
    ops.release = memory_release;

    uext4_device *device;
    must(uext4_device_new(&ops, sizeof ops, &memory, LENGTH, 0, &device), "device");
    must(uext4_mkfs_device(device, NULL, 0), "mkfs");
    uext4_volume *volume;
    must(uext4_open_device(device, NULL, &volume), "open");
    uext4_file *file;
    must(uext4_file_open(volume, NULL, "data", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600, &file),
         "data");
    char block[4096];
    memset(block, 'x', sizeof block);
    for (int n = 0; n < 256; n++)
        must(uext4_file_pwrite(file, block, sizeof block, (uint64_t)n * 2 * sizeof block), "data");
    must(uext4_file_sync(file, 1), "data");
    must(uext4_file_close(file), "data");
    must(uext4_close(volume), "close");

    uext4_report *report;
    uext4_counts counts;
    must(uext4_fsck_device(device, 1, &report), "fsck");
    must(uext4_report_counts(report, &counts, sizeof counts), "fsck");
    uext4_report_free(report);
    uext4_device_free(device);

    FILE *copy = fopen(argv[1], "wb");
    if (copy == NULL || fwrite(memory.bytes, 1, LENGTH, copy) != LENGTH || fclose(copy) != 0) {
        perror(argv[1]);
        return 1;
    }
    printf("%s after %s flushes; released: %d\n", counts.clean ? "clean" : "NOT CLEAN",
           memory.flushes > 0 ? "some" : "no", memory.released);
    free(memory.bytes);
    return counts.clean && memory.released ? 0 : 1;
}
