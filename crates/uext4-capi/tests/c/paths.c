/*
 * Does the calls of paths.txt, from standard input, and prints what each gives: by the kernel on a
 * tmpfs that is mounted on a folder, or by uext4 on an image.
 *
 *   paths kernel FOLDER     in a mount namespace of its own, and without CAP_FSETID
 *   paths uext4 IMAGE
 */
#define _GNU_SOURCE /* renameat2, strerrorname_np */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *image; /* NULL: the kernel's turn */
static uext4_volume *v;

/* Of version 2: one capability, permitted. */
static const unsigned char capability[20] = {1, 0, 0, 2, 1};
#define CAPABILITY "security.capability"

static int kernel(int result)
{
    return result < 0 ? -errno : 0;
}

static int has(const char *flags, char flag)
{
    return strchr(flags, flag) != NULL;
}

static int kernel_open(const char *flags, const char *path, const char *data)
{
    int how = (has(flags, 'w') ? O_RDWR : O_RDONLY) | (has(flags, 'c') ? O_CREAT : 0)
              | (has(flags, 'x') ? O_EXCL : 0) | (has(flags, 't') ? O_TRUNC : 0)
              | (has(flags, 'n') ? O_NOFOLLOW : 0);
    int fd = open(path, how, 0644);
    if (fd < 0)
        return -errno;
    int result = data ? kernel((int)write(fd, data, strlen(data))) : 0;
    close(fd);
    return result;
}

static int uext4_opened(const char *flags, const char *path, const char *data)
{
    uint32_t how = (has(flags, 'w') ? UEXT4_OPEN_WRITE : 0)
                   | (has(flags, 'c') ? UEXT4_OPEN_CREATE : 0)
                   | (has(flags, 'x') ? UEXT4_OPEN_EXCLUSIVE : 0)
                   | (has(flags, 't') ? UEXT4_OPEN_TRUNCATE : 0)
                   | (has(flags, 'n') ? UEXT4_NOFOLLOW : 0);
    uext4_file *file;
    int result = uext4_file_open(v, NULL, path, how, 0644, &file);
    if (result < 0)
        return result;
    result = data ? (int)uext4_file_pwrite(file, data, strlen(data), 0) : 0;
    MUST(uext4_file_close(file));
    return result < 0 ? result : 0;
}

/* Opens, and writes data that is not NULL. */
static int open_it(const char *flags, const char *path, const char *data)
{
    return image ? uext4_opened(flags, path, data) : kernel_open(flags, path, data);
}

/* Allocates or punches a range of a file. */
static int range(int punches, const char *offset, const char *len, const char *path)
{
    uint64_t from = strtoull(offset, NULL, 10), bytes = strtoull(len, NULL, 10);
    if (image) {
        uext4_file *file;
        int result = uext4_file_open(v, NULL, path, UEXT4_OPEN_WRITE, 0, &file);
        if (result < 0)
            return result;
        uint32_t what = punches ? UEXT4_ALLOCATE_PUNCH_HOLE : UEXT4_ALLOCATE;
        result = uext4_file_allocate(file, what, from, bytes);
        MUST(uext4_file_close(file));
        return result;
    }
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return -errno;
    int mode = punches ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : 0;
    int result = kernel(fallocate(fd, mode, (off_t)from, (off_t)bytes));
    close(fd);
    return result;
}

static int list(const char *path)
{
    if (image) {
        uext4_dir *dir;
        int result = uext4_dir_open(v, NULL, path, &dir);
        if (result == 0)
            uext4_dir_close(dir);
        return result;
    }
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    closedir(dir);
    return 0;
}

static int set(const char *path, uint32_t mask, uint32_t mode)
{
    uext4_changes changes = {.mask = mask, .mode = mode};
    return uext4_setattr(v, NULL, path, 0, &changes, sizeof changes);
}

/* Its mode, or a negative errno. */
static int mode_of(const char *path, int follow)
{
    if (image) {
        uext4_attributes at;
        int result = uext4_getattr(v, NULL, path, follow ? 0 : UEXT4_NOFOLLOW, &at, sizeof at);
        return result < 0 ? result : (int)at.mode;
    }
    struct stat st;
    return (follow ? stat(path, &st) : lstat(path, &st)) < 0 ? -errno : (int)st.st_mode;
}

static int make_link(const char *target, const char *path)
{
    return image ? uext4_symlink(v, target, NULL, path) : kernel(symlink(target, path));
}

static int make_links(int count, const char *name, const char *target)
{
    char to[64], from[64];
    snprintf(to, sizeof to, "%s", target);
    for (int i = 1; i <= count; i++) {
        snprintf(from, sizeof from, "%s%d", name, i);
        int result = make_link(to, from);
        if (result < 0)
            return result;
        memcpy(to, from, sizeof to);
    }
    return 0;
}

static int rename_it(const char *path, const char *new_path, unsigned flags)
{
    return image ? uext4_rename(v, NULL, path, NULL, new_path, flags)
                 : kernel(renameat2(AT_FDCWD, path, AT_FDCWD, new_path, flags));
}

static int make_file(const char *path)
{
    uext4_new_file new = {.mode = S_IFREG | 0644};
    return image ? uext4_mknod(v, NULL, path, &new, sizeof new, NULL)
                 : kernel(mknod(path, S_IFREG | 0644, 0));
}

static int make_read_only(void)
{
    if (!image)
        return kernel(mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL));
    MUST(uext4_close(v));
    return uext4_open(image, "ro", &v);
}

static int is(const char *call, const char *name)
{
    return strcmp(call, name) == 0;
}

static int changes(const char *call, const char *a, const char *b)
{
    if (is(call, "truncate"))
        return image ? set(a, UEXT4_SET_SIZE, 0) : kernel(truncate(a, 0));
    if (is(call, "chown"))
        return image ? set(a, UEXT4_SET_UID | UEXT4_SET_GID, 0) : kernel(chown(a, 0, 0));
    if (is(call, "chmod")) {
        mode_t mode = (mode_t)strtoul(a, NULL, 8);
        return image ? set(b, UEXT4_SET_MODE, mode) : kernel(chmod(b, mode));
    }
    if (is(call, "capable"))
        return image ? uext4_setxattr(v, NULL, a, 0, CAPABILITY, capability, sizeof capability)
                     : kernel(setxattr(a, CAPABILITY, capability, sizeof capability, 0));
    if (is(call, "is-capable")) {
        int size = image ? (int)uext4_getxattr(v, NULL, a, 0, CAPABILITY, NULL, 0)
                         : kernel((int)getxattr(a, CAPABILITY, NULL, 0));
        return size < 0 ? size : 0;
    }
    fprintf(stderr, "%s: not a call\n", call);
    exit(2);
}

static int names(const char *call, const char *a, const char *b)
{
    char buf[64];
    if (is(call, "mkdir"))
        return image ? uext4_mkdir(v, NULL, a, 0755) : kernel(mkdir(a, 0755));
    if (is(call, "mknod"))
        return make_file(a);
    if (is(call, "symlink"))
        return make_link(a, b);
    if (is(call, "link"))
        return image ? uext4_link(v, NULL, a, NULL, b) : kernel(link(a, b));
    if (is(call, "unlink"))
        return image ? uext4_unlink(v, NULL, a) : kernel(unlink(a));
    if (is(call, "rmdir"))
        return image ? uext4_rmdir(v, NULL, a) : kernel(rmdir(a));
    if (is(call, "rename"))
        return rename_it(a, b, 0);
    if (is(call, "noreplace"))
        return rename_it(a, b, UEXT4_RENAME_NOREPLACE);
    if (is(call, "exchange"))
        return rename_it(a, b, UEXT4_RENAME_EXCHANGE);
    if (is(call, "readlink")) {
        long long got = image ? uext4_readlink(v, NULL, a, buf, sizeof buf)
                              : kernel((int)readlink(a, buf, sizeof buf));
        return got < 0 ? (int)got : 0;
    }
    if (is(call, "list"))
        return list(a);
    if (is(call, "open"))
        return open_it(a, b, NULL);
    if (is(call, "write"))
        return open_it("w", a, "x");
    if (is(call, "write-nothing"))
        return open_it("w", a, "");
    if (is(call, "readonly"))
        return make_read_only();
    return changes(call, a, b);
}

/* Bytes of {dots}: with 5 more the longest path that the kernel takes. */
#define DOTS 4090

/* A word of the table as an argument. */
static const char *given(const char *word, char *room)
{
    if (!word || is(word, "{none}"))
        return "";
    const char *name = strstr(word, "{long}"), *dots = strstr(word, "{dots}");
    const char *at = name ? name : dots;
    if (!at)
        return word;
    char fill[DOTS + 1] = {0};
    memset(fill, 'x', name ? 256 : 0);
    for (int i = 0; !name && i < DOTS; i += 2)
        memcpy(fill + i, "./", 2);
    sprintf(room, "%.*s%s%s", (int)(at - word), word, fill, at + strlen("{long}"));
    return room;
}

static void answer(const char *line, char *words)
{
    static char rooms[3][DOTS + 512];
    const char *argument[3];
    const char *call = strtok(words, " ");
    for (int i = 0; i < 3; i++)
        argument[i] = given(strtok(NULL, " "), rooms[i]);
    int result;
    if (is(call, "stat") || is(call, "lstat") || is(call, "mode"))
        result = mode_of(argument[0], !is(call, "lstat"));
    else if (is(call, "links"))
        result = make_links(atoi(argument[0]), argument[1], argument[2]);
    else if (is(call, "allocate") || is(call, "punch"))
        result = range(is(call, "punch"), argument[0], argument[1], argument[2]);
    else
        result = names(call, argument[0], argument[1]);
    if (result < 0)
        printf("%s: %s\n", line, strerrorname_np(-result));
    else if (is(call, "mode"))
        printf("%s: %o\n", line, result & 07777);
    else
        printf("%s: %o\n", line, result & S_IFMT);
}

/*
 * Takes a tmpfs on a folder for the root of this process. This name space's copies of the host's
 * other mounts go: they would keep what the host unmounts meanwhile.
 */
static void enter(const char *folder)
{
    EXPECT(mount("tmpfs", folder, "tmpfs", 0, "mode=755") == 0);
    int self = open("/proc/self", O_RDONLY);
    EXPECT(chdir(folder) == 0);
    if (syscall(SYS_pivot_root, ".", ".") == 0) {
        char mounts[4096] = {0};
        EXPECT(umount2(".", MNT_DETACH) == 0);
        int file = openat(self, "mountinfo", O_RDONLY);
        if (file >= 0) {
            ssize_t len = read(file, mounts, sizeof mounts - 1);
            EXPECT(len > 0 && strchr(mounts, '\n') == mounts + len - 1);
            close(file);
        }
    } else {
        /* In a chroot, whose root is no mount. */
        EXPECT(chroot(".") == 0);
    }
    close(self);
    EXPECT(chdir("/") == 0);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    umask(0);
    if (is(argv[1], "uext4")) {
        image = argv[2];
        MUST(uext4_open(image, NULL, &v));
    } else {
        enter(argv[2]);
    }
    char line[256], words[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!*line || *line == '#')
            continue;
        strcpy(words, line);
        answer(line, words);
    }
    if (image)
        MUST(uext4_close(v));
    return 0;
}
