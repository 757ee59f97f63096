/*
 * uext4.h: ext4 in user space. The manual page is uext4(3), the guide docs/c.md.
 *
 * MIT OR Apache-2.0. Made by cbindgen from crates/uext4-capi; do not change it by hand.
 *
 * Results: a function that returns int or int64_t gives 0 or a count, or a negative errno, and
 * uext4_error_text() then says why in words. A failed call writes none of its results.
 *
 * Threads: any thread may call any function with any object, also at the same time as others,
 * except that an open directory is used by one thread at a time, and that an object is given back
 * when no other call uses it. Giving back twice, or using what was given back, is an error of the
 * program that is not caught, as with free(3).
 *
 * Paths are bytes, as the kernel's: they need not be UTF-8. A path begins at the inode `at`, or at
 * the root of the volume if that is NULL or if the path begins with a slash; a path of NULL is the
 * inode `at` itself. Permissions are not asked for: the program that has the image may do all.
 *
 * Structures come with their size (sizeof) and grow at their end only: a program and a library of
 * different versions understand each other. Set those that you fill in to zero first.
 */

#ifndef UEXT4_H
#define UEXT4_H

#include <stddef.h>
#include <stdint.h>

// For uext4_device_new: nothing is written; the callbacks write and flush may be NULL.
#define UEXT4_DEVICE_READ_ONLY 1

// For uext4_device_new: callbacks are called one at a time. (Still by any thread.)
#define UEXT4_DEVICE_ONE_AT_A_TIME 2

// For uext4_file_open: the file may be changed, not only read.
#define UEXT4_OPEN_WRITE 2

// For uext4_file_open: a file that is not there is made, with the permissions mode.
#define UEXT4_OPEN_CREATE 4

// For uext4_file_open, with UEXT4_OPEN_CREATE: fail with EEXIST if the name is there.
#define UEXT4_OPEN_EXCLUSIVE 8

// For uext4_file_open: the file is emptied.
#define UEXT4_OPEN_TRUNCATE 16

// For uext4_file_allocate: every byte of the range gets a block; the file becomes longer if the
// range ends behind it.
#define UEXT4_ALLOCATE 0

// For uext4_file_allocate: the same, and the size stays.
#define UEXT4_ALLOCATE_KEEP_SIZE 1

// For uext4_file_allocate: the range becomes a hole.
#define UEXT4_ALLOCATE_PUNCH_HOLE 2

// For uext4_file_allocate: the range becomes zero, and keeps or gets its blocks.
#define UEXT4_ALLOCATE_ZERO 3

// For uext4_file_allocate: the same, and the size stays.
#define UEXT4_ALLOCATE_ZERO_KEEP_SIZE 4

// For uext4_file_allocate: the range is taken out; whole blocks.
#define UEXT4_ALLOCATE_COLLAPSE 5

// For uext4_file_allocate: a hole is put in; whole blocks.
#define UEXT4_ALLOCATE_INSERT 6

// Severity of a finding: lawful, but odd or stale.
#define UEXT4_WARNING 1

// Severity of a finding: something is wrong.
#define UEXT4_ERROR 2

// Severity of a finding: so wrong that the check stopped.
#define UEXT4_FATAL 3

// Flag of calls that take a path: a symbolic link at its end is not followed.
#define UEXT4_NOFOLLOW 1

// For uext4_changes: mode, the permission bits.
#define UEXT4_SET_MODE 1

// For uext4_changes: uid.
#define UEXT4_SET_UID 2

// For uext4_changes: gid.
#define UEXT4_SET_GID 4

// For uext4_changes: size; the file is cut, or lengthened by a hole.
#define UEXT4_SET_SIZE 8

// For uext4_changes: atime.
#define UEXT4_SET_ATIME 16

// For uext4_changes: mtime.
#define UEXT4_SET_MTIME 32

// For uext4_changes: the access time becomes the current one.
#define UEXT4_SET_ATIME_NOW 64

// For uext4_changes: the modification time becomes the current one.
#define UEXT4_SET_MTIME_NOW 128

// For uext4_mkfs_options: what the image or device holds is lost. Without it only what is new or
// empty is taken: a file of no bytes, or a device that begins with 68 KiB of zeroes. What another
// host has mounted, as mmp tells, is refused all the same.
#define UEXT4_MKFS_FORCE 1

// For uext4_rename: fail with EEXIST if the new name is there.
#define UEXT4_RENAME_NOREPLACE 1

// For uext4_rename: what has the new name gets the old one.
#define UEXT4_RENAME_EXCHANGE 2

// The version of the header, to be compared with what uext4_version_number returns. Before 1.0
// a new minor version may break programs; its library has another soname.
#define UEXT4_VERSION_MAJOR 0

// See UEXT4_VERSION_MAJOR.
#define UEXT4_VERSION_MINOR 1

// See UEXT4_VERSION_MAJOR.
#define UEXT4_VERSION_PATCH 0

// For uext4_setxattr: fail with EEXIST if the attribute is there.
#define UEXT4_XATTR_CREATE 2

// For uext4_setxattr: fail with ENODATA if the attribute is not there.
#define UEXT4_XATTR_REPLACE 4

// A device: a fixed number of bytes in which a file system lies. May be used by any number of
// threads. One volume at a time is open for writing on it, or any number for reading.
typedef struct uext4_device uext4_device;

// An open directory: a position in the list of its entries. One thread at a time may use it; more
// of them may be open on one directory.
typedef struct uext4_dir uext4_dir;

// An open file, or a directory that is open to be synced. May be used by any number of threads.
typedef struct uext4_file uext4_file;

// An inode that is in use: its number goes to no other file, even when its last name is removed.
// May be used by any number of threads.
typedef struct uext4_inode uext4_inode;

// What a check found. Read by any number of threads.
typedef struct uext4_report uext4_report;

// An open file system. May be used by any number of threads.
typedef struct uext4_volume uext4_volume;

// Callbacks of a device. Each returns 0 or a negative errno, and serves a request whole or fails.
// No request reaches past the length of the device.
//
// Threads: callbacks are called by any thread that uses the volume and by threads of the library,
// several at a time unless UEXT4_DEVICE_ONE_AT_A_TIME was given. Where two of them overlap in time
// and place, any mix of their bytes will do. A callback must not call the library with a volume,
// file or directory of its own device, nor leave by longjmp or an exception.
//
// Durability: what write has taken may be lost with a loss of power until a flush that began
// afterwards has returned 0. A device that answers flush without having done so loses files.
typedef struct uext4_device_ops {
    // Fills len bytes at buf from byte offset of the device.
    int (*read)(void *user, void *buf, size_t len, uint64_t offset);
    // Writes len bytes from buf at byte offset of the device.
    int (*write)(void *user, const void *buf, size_t len, uint64_t offset);
    // Makes every write that has returned durable.
    int (*flush)(void *user);
    // Optional: writes, and returns when these bytes are durable. Without it write and flush are
    // called.
    int (*write_durable)(void *user, const void *buf, size_t len, uint64_t offset);
    // Optional: the bytes of a range are no longer needed, and may read as anything. -EOPNOTSUPP:
    // the device cannot, and nothing has changed.
    int (*trim)(void *user, uint64_t offset, uint64_t len);
    // Optional: the bytes of a range become zero. -EOPNOTSUPP: the device cannot, and nothing has
    // changed; zeroes are written then.
    int (*zero)(void *user, uint64_t offset, uint64_t len);
    // Optional: called once, when nothing calls the others any more.
    void (*release)(void *user);
} uext4_device_ops;

// An entry of a directory. It is valid until the next call on the same open directory.
typedef struct uext4_entry {
    // Inode number.
    uint64_t ino;
    // Position behind this entry, for uext4_dir_seek. It stays valid while the directory changes.
    uint64_t next;
    // Name, with a zero byte at its end.
    const char *name;
    // Length of the name in bytes.
    uint32_t name_length;
    // Type as st_mode of stat(2) has it, without permissions; 0 if the directory does not say.
    uint32_t type;
} uext4_entry;

// Sums of a check.
typedef struct uext4_counts {
    // Errors; more than there are findings if there are very many.
    uint64_t errors;
    // Warnings.
    uint64_t warnings;
    // Findings that uext4_report_finding has.
    uint64_t findings;
    // Inodes.
    uint64_t inodes;
    // Inodes in use.
    uint64_t inodes_used;
    // Blocks.
    uint64_t blocks;
    // Blocks in use.
    uint64_t blocks_used;
    // Regular files.
    uint64_t files;
    // Directories.
    uint64_t directories;
    // Symbolic links.
    uint64_t symlinks;
    // Devices, pipes and sockets.
    uint64_t special;
    // 1 if there is nothing to repair, else 0. Warnings do not count.
    uint32_t clean;
    // 1 if the check stopped half-way, else 0.
    uint32_t stopped;
} uext4_counts;

// A finding of a check. Its texts are valid until the report is given back.
typedef struct uext4_finding {
    // Stable code, such as "inode.checksum" (docs/fsck.md).
    const char *code;
    // Where it is, such as "inode 12".
    const char *place;
    // What is wrong, in a sentence.
    const char *sentence;
    // UEXT4_WARNING, UEXT4_ERROR or UEXT4_FATAL.
    uint32_t severity;
} uext4_finding;

// Attributes of an inode, as of statx(2).
typedef struct uext4_attributes {
    // Number.
    uint64_t ino;
    // Bytes.
    uint64_t size;
    // Space in use, in units of 512 bytes.
    uint64_t blocks;
    // Last access: seconds since 1970.
    int64_t atime;
    // Last change of the content.
    int64_t mtime;
    // Last change of the inode.
    int64_t ctime;
    // Creation, where has_crtime is not 0.
    int64_t crtime;
    // Nanoseconds of atime.
    uint32_t atime_nsec;
    // Nanoseconds of mtime.
    uint32_t mtime_nsec;
    // Nanoseconds of ctime.
    uint32_t ctime_nsec;
    // Nanoseconds of crtime.
    uint32_t crtime_nsec;
    // Whether the inode has room for the time of its creation.
    uint32_t has_crtime;
    // Type and permissions, as st_mode of stat(2).
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
    // Names.
    uint32_t links;
    // Tells files of the same number apart.
    uint32_t generation;
    // Inode flags, as of FS_IOC_GETFLAGS.
    uint32_t flags;
    // Bytes of a block.
    uint32_t block_size;
    // Driver, of a device file.
    uint32_t rdev_major;
    // Device of that driver.
    uint32_t rdev_minor;
} uext4_attributes;

// Attributes to set: those of which mask has the bit.
typedef struct uext4_changes {
    // UEXT4_SET_MODE and the like.
    uint32_t mask;
    // Permission bits, set-id and sticky bits included.
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group.
    uint32_t gid;
    // Bytes.
    uint64_t size;
    // Last access: seconds since 1970.
    int64_t atime;
    // Last change of the content.
    int64_t mtime;
    // Nanoseconds of atime.
    uint32_t atime_nsec;
    // Nanoseconds of mtime.
    uint32_t mtime_nsec;
} uext4_changes;

// Options of mkfs, named as those of mke2fs(8). What is 0 or NULL is as mke2fs -t ext4 has it.
typedef struct uext4_mkfs_options {
    // Bytes of the file system; 0: of the whole device. A file that is not there is made of this
    // size.
    uint64_t size;
    // Time of making, in seconds since 1970; 0: now.
    uint64_t time;
    // "ext2", "ext3" or "ext4".
    const char *type;
    // Features to add, or with ^ to leave out, separated by commas.
    const char *features;
    // Label, at most 16 bytes.
    const char *label;
    // The 16 bytes of the UUID; NULL: a random one.
    const uint8_t *uuid;
    // The 16 bytes from which hashes of names start; NULL: random ones.
    const uint8_t *hash_seed;
    // UEXT4_MKFS_FORCE or 0.
    uint32_t flags;
    // Bytes of a block: 1024, 2048 or 4096.
    uint32_t block_size;
    // Bytes of an inode.
    uint32_t inode_size;
    // One inode for so many bytes.
    uint32_t inode_ratio;
    // Inodes.
    uint32_t inodes;
    // Size of the journal in MiB.
    uint32_t journal_mib;
    // Owner of the root directory.
    uint32_t root_uid;
    // Group of the root directory.
    uint32_t root_gid;
} uext4_mkfs_options;

// What uext4_mknod makes.
typedef struct uext4_new_file {
    // Type and permissions, as st_mode of stat(2); a directory or a regular file, too.
    uint32_t mode;
    // Owner.
    uint32_t uid;
    // Group. That of a directory with set-group-id takes its place.
    uint32_t gid;
    // Driver, of a device file.
    uint32_t rdev_major;
    // Device of that driver.
    uint32_t rdev_minor;
} uext4_new_file;

// Space of a volume, as of statfs(2). Blocks are of block_size bytes.
typedef struct uext4_space {
    // Blocks for data and directories.
    uint64_t blocks;
    // Free blocks.
    uint64_t blocks_free;
    // Free blocks that are not kept for root.
    uint64_t blocks_available;
    // Inodes.
    uint64_t inodes;
    // Free inodes.
    uint64_t inodes_free;
    // Made of the UUID.
    uint64_t fsid;
    // Bytes of a block.
    uint32_t block_size;
    // Longest name in bytes.
    uint32_t name_max;
    // The UUID.
    uint8_t uuid[16];
} uext4_space;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens an image file, a block device, or a network block device (nbd://HOST/EXPORT,
// nbd+unix:///EXPORT?socket=PATH, with TLS nbds://). While it is open for writing, no other
// process that works by uext4 or by a loop device can have it.
//
// Of the options, those of devices count: ro, direct, io=, no_space_timeout=, nbd_timeout=,
// offset=BYTES and sizelimit=BYTES for a part of the file. NULL is none.
int uext4_device_open(const char *image, const char *options, struct uext4_device **device);

// Makes a device of length bytes out of callbacks, each of which is called with user. Flags are
// UEXT4_DEVICE_READ_ONLY and UEXT4_DEVICE_ONE_AT_A_TIME. If this fails, release is not called.
int uext4_device_new(const struct uext4_device_ops *ops,
                     size_t ops_size,
                     void *user,
                     uint64_t length,
                     uint32_t flags,
                     struct uext4_device **device);

// Length of a device in bytes.
uint64_t uext4_device_length(const struct uext4_device *device);

// Gives a device back. A volume that is open on it keeps what it needs of it until it is closed.
// NULL is ignored.
void uext4_device_free(struct uext4_device *device);

// Opens a directory to list it, by path as with uext4_lookup; path may be NULL, for at itself.
int uext4_dir_open(const struct uext4_volume *volume,
                   const struct uext4_inode *at,
                   const char *path,
                   struct uext4_dir **dir);

// The next entry, "." and ".." among them: returns 1 and puts it in *entry, 0 at the end, or a
// negative errno. An entry that is there all the time is listed once; one that is made or removed
// meanwhile may be listed or not.
int uext4_dir_next(struct uext4_dir *dir, const struct uext4_entry **entry);

// Goes to a position: next of an entry of this directory, or 0 for its begin.
int uext4_dir_seek(struct uext4_dir *dir, uint64_t position);

// Closes a directory. NULL is ignored.
void uext4_dir_close(struct uext4_dir *dir);

// Why the last call of this thread that failed did so: one line without a newline, for people;
// empty if none has failed. It is valid until the next call of this thread that fails. Never
// NULL.
const char *uext4_error_text(void);

// Opens a file, by path as with uext4_lookup; path may be NULL, for at itself. Flags:
// UEXT4_OPEN_WRITE and the like, UEXT4_NOFOLLOW. A directory can be opened for
// uext4_file_sync. What is made is of the owner that the volume was opened with.
int uext4_file_open(const struct uext4_volume *volume,
                    const struct uext4_inode *at,
                    const char *path,
                    uint32_t flags,
                    uint32_t mode,
                    struct uext4_file **file);

// Closes a file and gives it back, also where this fails: something that was written before could
// not be written back, and no sync has told of it. Data is not made durable; see uext4_file_sync.
int uext4_file_close(struct uext4_file *file);

// Reads up to len bytes at byte offset. Returns how many: fewer than asked only at the end of the
// file.
int64_t uext4_file_pread(const struct uext4_file *file, void *buf, size_t len, uint64_t offset);

// Writes len bytes at byte offset. Returns how many: fewer than given only if an error came after
// the first.
int64_t uext4_file_pwrite(const struct uext4_file *file,
                          const void *buf,
                          size_t len,
                          uint64_t offset);

// Writes len bytes at the end of the file, wherever that is by then, and returns how many. If
// offset is not NULL the byte where they begin is put there.
int64_t uext4_file_append(const struct uext4_file *file,
                          const void *buf,
                          size_t len,
                          uint64_t *offset);

// Makes a file durable, or the names in a directory. With data_only not 0, only what is needed to
// read its data back.
int uext4_file_sync(const struct uext4_file *file, int data_only);

// Cuts a file, or lengthens it by a hole.
int uext4_file_truncate(const struct uext4_file *file, uint64_t size);

// Size of a file in bytes.
int64_t uext4_file_size(const struct uext4_file *file);

// Allocates, punches, zeroes, takes out or puts in a range of bytes, as fallocate(2). What is
// UEXT4_ALLOCATE or one of its like.
int uext4_file_allocate(const struct uext4_file *file,
                        uint32_t what,
                        uint64_t offset,
                        uint64_t len);

// The first byte at or behind offset that may hold data; -ENXIO if there is none.
int64_t uext4_file_seek_data(const struct uext4_file *file, uint64_t offset);

// The first byte at or behind offset that is in a hole, or the end of the file; -ENXIO past that.
int64_t uext4_file_seek_hole(const struct uext4_file *file, uint64_t offset);

// Checks the file system of an image, as e2fsck -fn; nothing is written. A journal that was left
// dirty is a warning, and is not replayed. Threads: 0 for one for each processor. Damage is in the
// report and no failure of this call.
int uext4_fsck(const char *image, uint32_t threads, struct uext4_report **report);

// The same of a device, on which no volume is open for writing.
int uext4_fsck_device(const struct uext4_device *device,
                      uint32_t threads,
                      struct uext4_report **report);

// Sums of a report. counts_size is sizeof *counts.
int uext4_report_counts(const struct uext4_report *report,
                        struct uext4_counts *counts,
                        size_t counts_size);

// A finding by its number, from 0, in the order of the passes; NULL past the last.
const struct uext4_finding *uext4_report_finding(const struct uext4_report *report,
                                                 uint64_t number);

// Gives a report back. NULL is ignored.
void uext4_report_free(struct uext4_report *report);

// Finds an inode by path and holds it: for further calls, whose paths begin at it, or that have
// NULL as path and mean the inode itself. The path begins at the inode at, or at the root if that
// is NULL or the path begins with a slash. Flags: UEXT4_NOFOLLOW.
int uext4_lookup(const struct uext4_volume *volume,
                 const struct uext4_inode *at,
                 const char *path,
                 uint32_t flags,
                 struct uext4_inode **inode);

// Finds an inode by its number and generation, and holds it. The root is number 2. A generation of
// 0 stands for any.
int uext4_inode_by_number(const struct uext4_volume *volume,
                          uint64_t ino,
                          uint32_t generation,
                          struct uext4_inode **inode);

// Gives an inode back. If it has no name any more it is deleted. NULL is ignored.
void uext4_inode_free(struct uext4_inode *inode);

// Attributes of an inode, by path as with uext4_lookup; path may be NULL, for at itself.
// attributes_size is sizeof *attributes.
int uext4_getattr(const struct uext4_volume *volume,
                  const struct uext4_inode *at,
                  const char *path,
                  uint32_t flags,
                  struct uext4_attributes *attributes,
                  size_t attributes_size);

// Sets attributes of an inode, by path as with uext4_lookup; path may be NULL, for at itself.
// changes_size is sizeof *changes.
int uext4_setattr(const struct uext4_volume *volume,
                  const struct uext4_inode *at,
                  const char *path,
                  uint32_t flags,
                  const struct uext4_changes *changes,
                  size_t changes_size);

// Makes an ext4 file system in an image file, which is made if it is not there, or on a block
// device or network block device. options_size is sizeof *options; options may be NULL where the
// image is there. If it fails, a file that it made is removed, and one of no bytes has none.
int uext4_mkfs(const char *image, const struct uext4_mkfs_options *options, size_t options_size);

// Makes an ext4 file system on a device, on which no volume may be open.
int uext4_mkfs_device(const struct uext4_device *device,
                      const struct uext4_mkfs_options *options,
                      size_t options_size);

// Makes a directory with these permissions, set-id bits left out; no umask applies. It is of the
// owner that the volume was opened with.
int uext4_mkdir(const struct uext4_volume *volume,
                const struct uext4_inode *at,
                const char *path,
                uint32_t mode);

// Makes a file of any type but a symbolic link, also a device file, pipe or socket, with an owner
// of its own. new_size is sizeof *new_file. If inode is not NULL the new inode is held there.
int uext4_mknod(const struct uext4_volume *volume,
                const struct uext4_inode *at,
                const char *path,
                const struct uext4_new_file *new_file,
                size_t new_size,
                struct uext4_inode **inode);

// Makes a symbolic link at path that leads to target.
int uext4_symlink(const struct uext4_volume *volume,
                  const char *target,
                  const struct uext4_inode *at,
                  const char *path);

// Where a symbolic link leads: fills buf with at most size bytes, without a zero byte, and returns
// the length of the whole.
int64_t uext4_readlink(const struct uext4_volume *volume,
                       const struct uext4_inode *at,
                       const char *path,
                       void *buf,
                       size_t size);

// Gives a file that is there another name. A symbolic link at the end of path is not followed, as
// with link(2). path may be NULL, for at itself.
int uext4_link(const struct uext4_volume *volume,
               const struct uext4_inode *at,
               const char *path,
               const struct uext4_inode *new_at,
               const char *new_path);

// Removes a name of something that is no directory.
int uext4_unlink(const struct uext4_volume *volume, const struct uext4_inode *at, const char *path);

// Removes an empty directory.
int uext4_rmdir(const struct uext4_volume *volume, const struct uext4_inode *at, const char *path);

// Renames. What has the new name is replaced, unless flags (UEXT4_RENAME_NOREPLACE or
// UEXT4_RENAME_EXCHANGE) say otherwise.
int uext4_rename(const struct uext4_volume *volume,
                 const struct uext4_inode *at,
                 const char *path,
                 const struct uext4_inode *new_at,
                 const char *new_path,
                 uint32_t flags);

// Version of the library: major * 65536 + minor * 256 + patch.
uint32_t uext4_version_number(void);

// Version of the library as text, such as "0.1.0".
const char *uext4_version(void);

// Opens the file system of an image file, a block device, or a network block device
// (nbd://HOST/EXPORT; see uext4_device_open). A journal that was left dirty is replayed, with ro
// in memory alone.
//
// Options are words as of mount -o, separated by commas, those of uext4(5): ro, noatime,
// commit=SECONDS, ... Besides: offset=BYTES and sizelimit=BYTES for a part of the file; uid=ID and
// gid=ID, the owner of what is made (0, root's, by default). NULL is none.
//
// Fails with EROFS where the file system can only be read and ro was not given.
int uext4_open(const char *image, const char *options, struct uext4_volume **volume);

// Opens the file system on a device. Options are those of uext4_open, of which those of devices
// have no effect. The device may be freed before the volume is closed.
int uext4_open_device(const struct uext4_device *device,
                      const char *options,
                      struct uext4_volume **volume);

// Writes everything back, leaves a clean image, and gives the volume back, also where this fails:
// then the journal holds what must be replayed, as after a crash, and what was synced is not lost.
//
// No call with the volume may be under way or begin. Close files, directories and inodes first.
// Those that are open afterwards stay valid until they are closed or freed, which they must be:
// they can still be read, and the last of them lets the device go.
int uext4_close(struct uext4_volume *volume);

// Makes everything durable, as sync(2).
int uext4_sync(const struct uext4_volume *volume);

// Space of a volume. space_size is sizeof *space.
int uext4_statfs(const struct uext4_volume *volume, struct uext4_space *space, size_t space_size);

// Tells the device which blocks are free, in runs of at least min_len bytes among the len bytes
// from byte start: an image file gets holes there. Returns the bytes of these runs.
int64_t uext4_trim(const struct uext4_volume *volume,
                   uint64_t start,
                   uint64_t len,
                   uint64_t min_len);

// Counters, latencies and blocked threads of a volume as JSON text, the form of "uext4 stats
// --json" (docs/stats.md). Waits for no other thread. NULL if it fails; otherwise to be given back
// by uext4_string_free.
char *uext4_stats(const struct uext4_volume *volume);

// Gives back a text that this library made. NULL is ignored.
void uext4_string_free(char *text);

// Value of an attribute, by its full name ("user.colour"): fills buf with at most size bytes, and
// returns the length of the whole. The inode is found by path as with uext4_lookup; path may be
// NULL, for at itself. Fails with ENODATA if there is no such attribute.
int64_t uext4_getxattr(const struct uext4_volume *volume,
                       const struct uext4_inode *at,
                       const char *path,
                       uint32_t flags,
                       const char *name,
                       void *buf,
                       size_t size);

// Full names of the attributes, each with a zero byte behind it: fills buf with at most size
// bytes, and returns the length of the whole.
int64_t uext4_listxattr(const struct uext4_volume *volume,
                        const struct uext4_inode *at,
                        const char *path,
                        uint32_t flags,
                        void *buf,
                        size_t size);

// Sets an attribute. Flags: UEXT4_NOFOLLOW, UEXT4_XATTR_CREATE or UEXT4_XATTR_REPLACE.
int uext4_setxattr(const struct uext4_volume *volume,
                   const struct uext4_inode *at,
                   const char *path,
                   uint32_t flags,
                   const char *name,
                   const void *value,
                   size_t size);

// Removes an attribute. Fails with ENODATA if it is not there.
int uext4_removexattr(const struct uext4_volume *volume,
                      const struct uext4_inode *at,
                      const char *path,
                      uint32_t flags,
                      const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UEXT4_H */
