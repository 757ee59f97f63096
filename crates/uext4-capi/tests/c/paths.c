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

static int kernel_open(const char *flags, const char *path, int writes)
{
    int how = (has(flags, 'w') ? O_RDWR : O_RDONLY) | (has(flags, 'c') ? O_CREAT : 0)
              | (has(flags, 'x') ? O_EXCL : 0) | (has(flags, 't') ? O_TRUNC : 0)
              | (has(flags, 'n') ? O_NOFOLLOW : 0);
    int fd = open(path, how, 0644);
    if (fd < 0)
        return -errno;
    int result = writes ? kernel((int)write(fd, "x", 1)) : 0;
    close(fd);
    return result;
}

static int uext4_opened(const char *flags, const char *path, int writes)
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
    result = writes ? (int)uext4_file_pwrite(file, "x", 1, 0) : 0;
    MUST(uext4_file_close(file));
    return result < 0 ? result : 0;
}

static int open_it(const char *flags, const char *path, int writes)
{
    return image ? uext4_opened(flags, path, writes) : kernel_open(flags, path, writes);
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
    if (is(call, "is-capable"))
        return image ? (int)uext4_getxattr(v, NULL, a, 0, CAPABILITY, NULL, 0) > 0
                           ? 0
                           : -ENODATA
                     : kernel((int)getxattr(a, CAPABILITY, NULL, 0));
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
        return open_it(a, b, 0);
    if (is(call, "write"))
        return open_it("w", a, 1);
    if (is(call, "readonly"))
        return make_read_only();
    return changes(call, a, b);
}

/* A word of the table as an argument. */
static const char *given(const char *word, char *room)
{
    if (!word || is(word, "{none}"))
        return "";
    const char *at = strstr(word, "{long}");
    if (!at)
        return word;
    char name[257] = {0};
    memset(name, 'x', sizeof name - 1);
    sprintf(room, "%.*s%s%s", (int)(at - word), word, name, at + strlen("{long}"));
    return room;
}

static void answer(const char *line, char *words)
{
    char rooms[3][512];
    const char *argument[3];
    const char *call = strtok(words, " ");
    for (int i = 0; i < 3; i++)
        argument[i] = given(strtok(NULL, " "), rooms[i]);
    int result;
    if (is(call, "stat") || is(call, "lstat") || is(call, "mode"))
        result = mode_of(argument[0], !is(call, "lstat"));
    else if (is(call, "links"))
        result = make_links(atoi(argument[0]), argument[1], argument[2]);
    else
        result = names(call, argument[0], argument[1]);
    if (result < 0)
        printf("%s: %s\n", line, strerrorname_np(-result));
    else if (is(call, "mode"))
        printf("%s: %o\n", line, result & 07777);
    else
        printf("%s: %o\n", line, result & S_IFMT);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    umask(0);
    if (is(argv[1], "uext4")) {
        image = argv[2];
        MUST(uext4_open(image, NULL, &v));
    } else {
        EXPECT(mount("tmpfs", argv[2], "tmpfs", 0, "mode=755") == 0);
        EXPECT(chroot(argv[2]) == 0 && chdir("/") == 0);
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
