/* Every function once, with what it gives looked at. */
#include "check.h"
#include <sys/stat.h>

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    EXPECT(uext4_version_number()
           == (UEXT4_VERSION_MAJOR << 16 | UEXT4_VERSION_MINOR << 8 | UEXT4_VERSION_PATCH));
    EXPECT(strcmp(uext4_error_text(), "") == 0);
    uext4_mkfs_options options;
    memset(&options, 0, sizeof options);
    options.size = 32 << 20;
    options.uuid = (const uint8_t *)"0123456789abcdef";
    options.root_uid = 7;
    MUST(uext4_mkfs(argv[1], &options, sizeof options));
    uext4_device *device;
    MUST(uext4_device_open(argv[1], NULL, &device));
    EXPECT(uext4_device_length(device) == 32 << 20);
    uext4_volume *v;
    MUST(uext4_open_device(device, "uid=1000,gid=100", &v));
    uext4_device_free(device);

    uext4_space space;
    MUST(uext4_statfs(v, &space, sizeof space));
    EXPECT(space.block_size > 0 && space.blocks_free <= space.blocks && space.name_max == 255);
    EXPECT(memcmp(space.uuid, options.uuid, 16) == 0);

    /* By path and by inode. */
    MUST(uext4_mkdir(v, NULL, "a/", 0755));
    uext4_inode *a, *again;
    MUST(uext4_lookup(v, NULL, "a", 0, &a));
    MUST(uext4_mkdir(v, a, "b", 0700));
    uext4_attributes at;
    MUST(uext4_getattr(v, NULL, "/a/b/../b/.", 0, &at, sizeof at));
    EXPECT(at.mode == (S_IFDIR | 0700) && at.uid == 1000 && at.gid == 100 && at.links == 2);
    MUST(uext4_getattr(v, a, NULL, 0, &at, sizeof at));
    MUST(uext4_inode_by_number(v, at.ino, at.generation, &again));
    uext4_inode_free(again);
    FAILS(uext4_inode_by_number(v, at.ino, at.generation + 1, &again), ENOENT, "generation");
    MUST(uext4_getattr(v, NULL, "/", 0, &at, sizeof at));
    EXPECT(at.ino == 2 && at.uid == 7);

    /* A file. */
    uext4_file *f;
    const uint32_t make = UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE;
    MUST(uext4_file_open(v, a, "f", make | UEXT4_OPEN_EXCLUSIVE, 0640, &f));
    EXPECT(uext4_file_pwrite(f, "hello", 5, 8192) == 5);
    uint64_t offset = 0;
    EXPECT(uext4_file_append(f, " you", 4, &offset) == 4 && offset == 8197);
    EXPECT(uext4_file_size(f) == 8201);
    char buf[64] = "";
    EXPECT(uext4_file_pread(f, buf, sizeof buf, 8192) == 9 && memcmp(buf, "hello you", 9) == 0);
    EXPECT(uext4_file_pread(f, buf, sizeof buf, 1 << 20) == 0);
    MUST(uext4_file_sync(f, 0));
    EXPECT(uext4_file_seek_data(f, 0) == 8192 && uext4_file_seek_hole(f, 0) == 0);
    EXPECT(uext4_file_seek_hole(f, 8192) == 8201);
    FAILS(uext4_file_seek_data(f, 9000), ENXIO, "");
    MUST(uext4_file_allocate(f, UEXT4_ALLOCATE, 0, 4096));
    MUST(uext4_file_allocate(f, UEXT4_ALLOCATE_ZERO, 8192, 4096));
    EXPECT(uext4_file_size(f) == 12288);
    MUST(uext4_file_allocate(f, UEXT4_ALLOCATE_PUNCH_HOLE, 0, 4096));
    MUST(uext4_file_truncate(f, 3));
    EXPECT(uext4_file_size(f) == 3);
    MUST(uext4_file_close(f));
    MUST(uext4_file_open(v, a, "f", UEXT4_OPEN_WRITE | UEXT4_OPEN_TRUNCATE, 0, &f));
    EXPECT(uext4_file_size(f) == 0);
    MUST(uext4_file_close(f));
    FAILS(uext4_file_open(v, a, "f", make | UEXT4_OPEN_EXCLUSIVE, 0640, &f), EEXIST, "f: ");
    MUST(uext4_file_open(v, a, "f", make, 0640, &f));
    MUST(uext4_file_close(f));

    /* Links. */
    MUST(uext4_symlink(v, "new", NULL, "/a/dangling"));
    EXPECT(uext4_readlink(v, a, "dangling", buf, 2) == 3 && memcmp(buf, "ne", 2) == 0);
    MUST(uext4_file_open(v, a, "dangling", make, 0600, &f)); /* makes /a/new */
    MUST(uext4_file_close(f));
    MUST(uext4_getattr(v, a, "new", 0, &at, sizeof at));
    EXPECT(at.mode == (S_IFREG | 0600));
    MUST(uext4_symlink(v, "loop", NULL, "loop"));
    FAILS(uext4_getattr(v, NULL, "loop", 0, &at, sizeof at), ELOOP, "loop: too many levels");
    MUST(uext4_getattr(v, NULL, "loop", UEXT4_NOFOLLOW, &at, sizeof at));
    EXPECT((at.mode & S_IFMT) == S_IFLNK);
    MUST(uext4_link(v, a, "f", NULL, "g"));
    MUST(uext4_link(v, a, "dangling", NULL, "h"));
    MUST(uext4_getattr(v, NULL, "h", UEXT4_NOFOLLOW, &at, sizeof at));
    EXPECT((at.mode & S_IFMT) == S_IFLNK && at.links == 2);
    FAILS(uext4_rename(v, NULL, "g", a, "f", UEXT4_RENAME_NOREPLACE), EEXIST, "");
    MUST(uext4_rename(v, NULL, "g", a, "dangling", UEXT4_RENAME_EXCHANGE));
    MUST(uext4_rename(v, NULL, "g", a, "b/g", 0));

    /* Any file, and its attributes. */
    uext4_new_file new_file;
    memset(&new_file, 0, sizeof new_file);
    new_file.mode = S_IFCHR | 0600;
    new_file.uid = 5;
    new_file.rdev_major = 1;
    new_file.rdev_minor = 3;
    uext4_inode *null;
    MUST(uext4_mknod(v, NULL, "null", &new_file, sizeof new_file, &null));
    MUST(uext4_getattr(v, null, NULL, 0, &at, sizeof at));
    EXPECT(at.mode == (S_IFCHR | 0600) && at.uid == 5 && at.rdev_major == 1 && at.rdev_minor == 3);
    uext4_changes changes;
    memset(&changes, 0, sizeof changes);
    changes.mask = UEXT4_SET_MODE | UEXT4_SET_GID | UEXT4_SET_MTIME | UEXT4_SET_ATIME_NOW;
    changes.mode = 04711;
    changes.gid = 9;
    changes.mtime = 1000000000;
    changes.mtime_nsec = 999999999;
    MUST(uext4_setattr(v, null, NULL, 0, &changes, sizeof changes));
    MUST(uext4_getattr(v, NULL, "null", 0, &at, sizeof at));
    EXPECT(at.mode == (S_IFCHR | 04711) && at.gid == 9 && at.uid == 5);
    EXPECT(at.mtime == 1000000000 && at.mtime_nsec == 999999999 && at.atime > 1700000000);
    uext4_inode_free(null);

    /* Structures of an older and of a newer program. */
    struct { uext4_attributes known; uint64_t more; } newer = { at, 1 };
    MUST(uext4_getattr(v, NULL, "null", 0, &newer.known, sizeof newer));
    EXPECT(newer.more == 0 && newer.known.ino == at.ino);
    uint64_t older[2] = { 0, 77 };
    MUST(uext4_getattr(v, NULL, "null", 0, (uext4_attributes *)older, sizeof older[0]));
    EXPECT(older[0] == at.ino && older[1] == 77);
    struct { uext4_changes known; uint64_t more; } wants = { changes, 1 };
    FAILS(uext4_setattr(v, NULL, "null", 0, &wants.known, sizeof wants), E2BIG, "does not know");

    /* Extended attributes. */
    MUST(uext4_setxattr(v, a, NULL, UEXT4_XATTR_CREATE, "user.one", "1", 1));
    FAILS(uext4_setxattr(v, a, NULL, UEXT4_XATTR_CREATE, "user.one", "1", 1), EEXIST, "");
    MUST(uext4_setxattr(v, NULL, "a", UEXT4_XATTR_REPLACE, "user.one", NULL, 0));
    MUST(uext4_setxattr(v, NULL, "a", 0, "user.two", "second", 6));
    EXPECT(uext4_getxattr(v, a, NULL, 0, "user.two", NULL, 0) == 6);
    EXPECT(uext4_getxattr(v, a, NULL, 0, "user.two", buf, 3) == 6 && memcmp(buf, "sec", 3) == 0);
    EXPECT(uext4_listxattr(v, a, NULL, 0, buf, sizeof buf) == 18);
    MUST(uext4_removexattr(v, a, NULL, 0, "user.one"));
    FAILS(uext4_getxattr(v, a, NULL, 0, "user.one", buf, 3), ENODATA, "");

    /* A directory, from a position on. */
    for (int n = 0; n < 300; n++) {
        snprintf(buf, sizeof buf, "/a/b/n%d", n);
        MUST(uext4_mkdir(v, NULL, buf, 0700));
    }
    uext4_dir *dir;
    const uext4_entry *entry;
    MUST(uext4_dir_open(v, a, "b", &dir));
    int entries = 0, result;
    uint64_t middle = 0;
    while ((result = uext4_dir_next(dir, &entry)) == 1) {
        EXPECT(strlen(entry->name) == entry->name_length && entry->type != 0);
        if (++entries == 150)
            middle = entry->next;
    }
    EXPECT(result == 0 && entries == 303);
    MUST(uext4_dir_seek(dir, middle));
    while (uext4_dir_next(dir, &entry) == 1)
        entries++;
    EXPECT(entries == 303 + 153);
    uext4_dir_close(dir);
    MUST(uext4_rmdir(v, a, "b/n0/"));
    FAILS(uext4_rmdir(v, NULL, "a/b"), ENOTEMPTY, "a/b: ");

    /* A file without a name is there until its last user has gone. */
    MUST(uext4_file_open(v, a, "new", UEXT4_OPEN_WRITE, 0, &f));
    MUST(uext4_unlink(v, a, "new"));
    EXPECT(uext4_file_pwrite(f, "x", 1, 0) == 1);
    MUST(uext4_file_close(f));
    MUST(uext4_unlink(v, NULL, "null"));
    MUST(uext4_file_open(v, a, NULL, 0, 0, &f)); /* the names in a directory */
    MUST(uext4_file_sync(f, 0));
    MUST(uext4_file_close(f));

    MUST(uext4_sync(v));
    EXPECT(uext4_trim(v, 0, UINT64_MAX, 0) > 0);
    char *stats = uext4_stats(v);
    EXPECT(stats != NULL && stats[0] == '{' && strstr(stats, "\"transactions\"") != NULL);
    uext4_string_free(stats);

    /* What is open when the volume is closed can be read, and must be closed. */
    MUST(uext4_file_open(v, a, "f", UEXT4_OPEN_WRITE, 0, &f));
    MUST(uext4_close(v));
    EXPECT(uext4_file_pread(f, buf, sizeof buf, 0) == 0);
    FAILS(uext4_file_pwrite(f, "x", 1, 0), EROFS, "");
    MUST(uext4_file_close(f));
    uext4_inode_free(a);
    MUST(uext4_open(argv[1], NULL, &v)); /* the image was let go */
    MUST(uext4_close(v));
    return 0;
}
