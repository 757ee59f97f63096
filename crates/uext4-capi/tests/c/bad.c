/* Wrong arguments, images, options and devices: an errno and a line, and nothing is touched. */
#include "check.h"

static int fails(void *user, void *buf, size_t len, uint64_t offset)
{
    (void)user, (void)buf, (void)len, (void)offset;
    return -EIO;
}

static unsigned char *bytes;
static int broken; /* the errno with which writes fail */

static int read_bytes(void *user, void *buf, size_t len, uint64_t offset)
{
    (void)user;
    memcpy(buf, bytes + offset, len);
    return 0;
}

static int write_bytes(void *user, const void *buf, size_t len, uint64_t offset)
{
    (void)user;
    if (broken)
        return -broken;
    memcpy(bytes + offset, buf, len);
    return 0;
}

static int flush(void *user)
{
    (void)user;
    return -broken;
}

static int released;

static void release(void *user)
{
    (void)user;
    released++;
}

static void arguments(const char *image)
{
    uext4_volume *v = NULL;
    uext4_file *f = NULL;
    uext4_dir *d = NULL;
    uext4_inode *inode = NULL;
    uext4_attributes at;
    char buf[8];
    FAILS(uext4_open(NULL, NULL, &v), EINVAL, "image is NULL");
    FAILS(uext4_open(image, NULL, NULL), EINVAL, "volume is NULL");
    FAILS(uext4_open(image, "ro,what", &v), EINVAL, "what");
    FAILS(uext4_open(image, "commit=x", &v), EINVAL, "commit=x");
    FAILS(uext4_open(image, "uid=me", &v), EINVAL, "uid=me");
    FAILS(uext4_open(image, "offset=99999999999", &v), EINVAL, "offset 99999999999");
    FAILS(uext4_open(image, "\xff", &v), EINVAL, "UTF-8");
    FAILS(uext4_close(NULL), EINVAL, "volume is NULL");
    FAILS(uext4_sync(NULL), EINVAL, "volume is NULL");
    FAILS(uext4_mkdir(NULL, NULL, "a", 0), EINVAL, "volume is NULL");
    FAILS(uext4_file_pread(NULL, buf, 1, 0), EINVAL, "file is NULL");
    FAILS(uext4_file_close(NULL), EINVAL, "file is NULL");
    FAILS(uext4_dir_next(NULL, NULL), EINVAL, "NULL");
    EXPECT(uext4_stats(NULL) == NULL && strstr(uext4_error_text(), "volume is NULL"));
    uext4_inode_free(NULL);
    uext4_dir_close(NULL);
    uext4_device_free(NULL);
    uext4_report_free(NULL);
    uext4_string_free(NULL);
    EXPECT(v == NULL);

    MUST(uext4_open(image, NULL, &v));
    FAILS(uext4_mkdir(v, NULL, NULL, 0700), EINVAL, "path is NULL");
    FAILS(uext4_mkdir(v, NULL, "", 0700), ENOENT, "");
    FAILS(uext4_mkdir(v, NULL, "/", 0700), EEXIST, "/: ");
    FAILS(uext4_mkdir(v, NULL, "x/..", 0700), ENOENT, "x/..: ");
    FAILS(uext4_mkdir(v, NULL, "x", 010000), EINVAL, "permission bits");
    FAILS(uext4_getattr(v, NULL, "", 0, &at, sizeof at), ENOENT, "empty");
    FAILS(uext4_getattr(v, NULL, "none/x", 0, &at, sizeof at), ENOENT, "none/x: ");
    FAILS(uext4_getattr(v, NULL, "/", 64, &at, sizeof at), EINVAL, "flags");
    FAILS(uext4_getattr(v, NULL, "/", 0, NULL, sizeof at), EINVAL, "NULL");
    FAILS(uext4_file_open(v, NULL, "/", UEXT4_OPEN_WRITE, 0, &f), EISDIR, "");
    FAILS(uext4_file_open(v, NULL, "/", UEXT4_OPEN_TRUNCATE, 0, &f), EINVAL, "flags");
    FAILS(uext4_file_open(v, NULL, "new/", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600, &f), EISDIR,
          "");
    FAILS(uext4_unlink(v, NULL, "lost+found"), EISDIR, "");
    FAILS(uext4_unlink(v, NULL, "file/"), ENOTDIR, "");
    FAILS(uext4_rmdir(v, NULL, "file"), ENOTDIR, "");
    FAILS(uext4_dir_open(v, NULL, "file", &d), ENOTDIR, "");
    FAILS(uext4_rename(v, NULL, "file", NULL, "b", 77), EINVAL, "flags");
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    FAILS(uext4_mkdir(v, NULL, name, 0700), ENAMETOOLONG, "");
    FAILS(uext4_inode_by_number(v, 1ull << 40, 0, &inode), ENOENT, "");
    FAILS(uext4_inode_by_number(v, 100, 0, &inode), ENOENT, "");
    MUST(uext4_file_open(v, NULL, "file", 0, 0, &f));
    FAILS(uext4_file_pwrite(f, "x", 1, 0), EBADF, "not open for writing");
    FAILS(uext4_file_truncate(f, 0), EBADF, "not open for writing");
    FAILS(uext4_file_pread(f, NULL, 1, 0), EINVAL, "buffer is NULL");
    EXPECT(uext4_file_pread(f, NULL, 0, 0) == 0);
    MUST(uext4_file_close(f));

    /* In use: by this volume. */
    uext4_volume *other;
    FAILS(uext4_open(image, NULL, &other), EBUSY, "in use");
    FAILS(uext4_mkfs(image, NULL, 0), EBUSY, "in use");
    MUST(uext4_close(v));

    MUST(uext4_open(image, "ro", &v));
    FAILS(uext4_mkdir(v, NULL, "new", 0700), EROFS, "");
    FAILS(uext4_file_open(v, NULL, "file", UEXT4_OPEN_WRITE, 0, &f), EROFS, "");
    FAILS(uext4_trim(v, 0, UINT64_MAX, 0), EROFS, "");
    MUST(uext4_open(image, "ro", &other)); /* readers share */
    MUST(uext4_lookup(other, NULL, "/", 0, &inode));
    FAILS(uext4_getattr(v, inode, "file", 0, &at, sizeof at), EXDEV, "another volume");
    uext4_inode_free(inode);
    MUST(uext4_close(other));
    MUST(uext4_close(v));
}

static void images(const char *image, const char *zeroes, const char *empty)
{
    uext4_volume *v = NULL;
    uext4_report *report = NULL;
    FAILS(uext4_open("/none/such", NULL, &v), ENOENT, "/none/such");
    FAILS(uext4_open("/", NULL, &v), EISDIR, "directory");
    FAILS(uext4_open(zeroes, NULL, &v), EUCLEAN, zeroes);
    FAILS(uext4_fsck(zeroes, 1, &report), EUCLEAN, zeroes);
    FAILS(uext4_fsck("/none/such", 1, &report), ENOENT, "/none/such");
    FAILS(uext4_open("nbd://", NULL, &v), EINVAL, "nbd://");
    const char *soon = "nbd_timeout=1";
    FAILS(uext4_open("nbd+unix:///x?socket=/none/such", soon, &v), ENOENT, "no connection");
    FAILS(uext4_open("nbd://127.0.0.1:1/", soon, &v), ECONNREFUSED, "no connection");
    FAILS(uext4_mkfs(image, NULL, 0), EEXIST, "UEXT4_MKFS_FORCE");
    FAILS(uext4_mkfs("/none/such", NULL, 0), ENOENT, "give a size");
    FAILS(uext4_mkfs(empty, NULL, 0), EINVAL, "no bytes; give a size");
    uext4_mkfs_options options;
    memset(&options, 0, sizeof options);
    options.size = 1 << 20;
    FAILS(uext4_mkfs("/none/such", &options, sizeof options), ENOENT, "/none/such");
    options.type = "ext5";
    FAILS(uext4_mkfs(zeroes, &options, sizeof options), EINVAL, "ext5");
    options.type = NULL;
    options.features = "what";
    FAILS(uext4_mkfs(zeroes, &options, sizeof options), EINVAL, "what");
    options.features = NULL;
    options.label = "longer than a label";
    FAILS(uext4_mkfs(zeroes, &options, sizeof options), EINVAL, "16 bytes");
    EXPECT(v == NULL && report == NULL);
}

static void devices(void)
{
    uext4_device_ops ops;
    memset(&ops, 0, sizeof ops);
    uext4_device *device;
    uext4_volume *v = NULL;
    FAILS(uext4_device_new(NULL, 0, NULL, 1, 0, &device), EINVAL, "ops is NULL");
    FAILS(uext4_device_new(&ops, sizeof ops, NULL, 1, 0, &device), EINVAL, "without read");
    ops.read = fails;
    FAILS(uext4_device_new(&ops, sizeof ops, NULL, 1, 0, &device), EINVAL, "write or flush");
    FAILS(uext4_device_new(&ops, sizeof ops, NULL, 0, 1, &device), EINVAL, "length");
    FAILS(uext4_device_new(&ops, sizeof ops, NULL, 1, 64, &device), EINVAL, "flags");
    MUST(uext4_device_new(&ops, sizeof ops, NULL, 1 << 24, UEXT4_DEVICE_READ_ONLY, &device));
    FAILS(uext4_open_device(device, "ro", &v), EIO, "");
    FAILS(uext4_mkfs_device(device, NULL, 0), EIO, "");
    uext4_report *report;
    FAILS(uext4_fsck_device(device, 1, &report), EIO, "superblock");
    uext4_device_free(device);

    /* A device that fails at work. */
    ops.read = read_bytes;
    ops.write = write_bytes;
    ops.flush = flush;
    ops.release = release;
    bytes = calloc(1, 1 << 24);
    MUST(uext4_device_new(&ops, sizeof ops, NULL, 1 << 24, UEXT4_DEVICE_ONE_AT_A_TIME, &device));
    MUST(uext4_mkfs_device(device, NULL, 0));
    MUST(uext4_open_device(device, NULL, &v));
    uext4_volume *other;
    FAILS(uext4_open_device(device, NULL, &other), EBUSY, "in use");
    FAILS(uext4_open_device(device, "ro", &other), EBUSY, "in use");
    FAILS(uext4_mkfs_device(device, NULL, 0), EBUSY, "in use");
    uext4_file *f;
    MUST(uext4_file_open(v, NULL, "kept", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600, &f));
    MUST(uext4_file_pwrite(f, "kept", 4, 0));
    MUST(uext4_file_sync(f, 0));
    broken = EIO;
    MUST(uext4_file_pwrite(f, "lost", 4, 4096));
    FAILS(uext4_file_sync(f, 0), EIO, "");
    uext4_file_close(f);
    int closed = uext4_close(v);
    EXPECT(closed == -EIO || closed == -EROFS);
    EXPECT(released == 0);
    uext4_device_free(device);
    EXPECT(released == 1);

    /* What was synced is there, by a device that works again. */
    broken = 0;
    MUST(uext4_device_new(&ops, sizeof ops, NULL, 1 << 24, 0, &device));
    MUST(uext4_open_device(device, NULL, &v));
    uext4_device_free(device);
    MUST(uext4_file_open(v, NULL, "kept", 0, 0, &f));
    char buf[4];
    EXPECT(uext4_file_pread(f, buf, 4, 0) == 4 && memcmp(buf, "kept", 4) == 0);
    MUST(uext4_file_close(f));
    MUST(uext4_close(v));
    EXPECT(released == 2);
    free(bytes);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 4);
    arguments(argv[1]);
    images(argv[1], argv[2], argv[3]);
    devices();
    return 0;
}
