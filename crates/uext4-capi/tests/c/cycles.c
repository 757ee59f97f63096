/*
 * Opens and closes so many times: an image for reading, the same for writing, a device of
 * callbacks; with a file, a directory and a failure each time. What is open and running afterwards
 * is what it was after the first tenth, and memory has not grown by more than a megabyte.
 */
#include "check.h"
#include <dirent.h>
#include <unistd.h>

static unsigned char *bytes;

static int read_bytes(void *user, void *buf, size_t len, uint64_t offset)
{
    (void)user;
    memcpy(buf, bytes + offset, len);
    return 0;
}

static int write_bytes(void *user, const void *buf, size_t len, uint64_t offset)
{
    (void)user;
    memcpy(bytes + offset, buf, len);
    return 0;
}

static int flush(void *user)
{
    (void)user;
    return 0;
}

static int entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    EXPECT(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static long resident(void)
{
    long size, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    EXPECT(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void use(uext4_volume *volume, int writes)
{
    uext4_attributes attributes;
    uext4_inode *inode;
    uext4_file *file;
    uext4_dir *dir;
    const uext4_entry *entry;
    MUST(uext4_lookup(volume, NULL, "/", 0, &inode));
    MUST(uext4_dir_open(volume, inode, NULL, &dir));
    MUST(uext4_dir_next(dir, &entry));
    uext4_dir_close(dir);
    FAILS(uext4_getattr(volume, inode, "none", 0, &attributes, sizeof attributes), ENOENT, "none");
    uext4_inode_free(inode);
    if (writes) {
        MUST(uext4_file_open(volume, NULL, "file", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600,
                             &file));
        MUST(uext4_file_pwrite(file, "x", 1, 0));
        MUST(uext4_file_close(file));
    }
    MUST(uext4_close(volume));
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    int cycles = atoi(argv[2]);
    uext4_volume *volume;
    uext4_device *device;
    uext4_device_ops ops;
    memset(&ops, 0, sizeof ops);
    ops.read = read_bytes;
    ops.write = write_bytes;
    ops.flush = flush;
    const uint64_t length = 4 << 20;
    bytes = calloc(1, length);
    MUST(uext4_device_new(&ops, sizeof ops, NULL, length, 0, &device));
    MUST(uext4_mkfs_device(device, NULL, 0));
    uext4_device_free(device);
    int files = 0, threads = 0;
    long memory = 0;
    for (int n = 1; n <= cycles; n++) {
        if (n % 10 == 0) {
            MUST(uext4_open(argv[1], n % 100 == 0 ? NULL : "ro", &volume));
            use(volume, n % 100 == 0);
            FAILS(uext4_open("/none", NULL, &volume), ENOENT, "/none");
        } else {
            MUST(uext4_device_new(&ops, sizeof ops, NULL, length, 0, &device));
            MUST(uext4_open_device(device, NULL, &volume));
            uext4_device_free(device);
            use(volume, 1);
        }
        if (n == cycles / 10) {
            files = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
            memory = resident();
        }
    }
    long growth = resident() - memory;
    EXPECT(entries("/proc/self/fd") == files);
    EXPECT(entries("/proc/self/task") == threads && threads == 3);
    printf("%d cycles; memory grew by %ld KiB after the first tenth\n", cycles,
           growth / 1024);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    EXPECT(growth < 1 << 20);
#endif
    free(bytes);
    return 0;
}
