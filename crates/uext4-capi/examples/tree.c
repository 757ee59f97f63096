/*
 * Makes an image, writes a tree into it, reads it back, and checks it:
 *
 *     cc -std=c99 tree.c $(pkg-config --cflags --libs uext4) -o tree && ./tree disk.img
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uext4.h>

/* Ends the program with the library's own words if a call has failed. */
static int64_t must(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, uext4_error_text(), strerror((int)-result));
        exit(1);
    }
    return result;
}

static void write_file(uext4_volume *volume, const char *path, const char *text)
{
    uext4_file *file;
    must(uext4_file_open(volume, NULL, path, UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0644, &file),
         path);
    must(uext4_file_pwrite(file, text, strlen(text), 0), path);
    must(uext4_file_sync(file, 0), path); /* durable from here on */
    must(uext4_file_close(file), path);
}

static void read_file(uext4_volume *volume, const char *path)
{
    char buf[256];
    uext4_file *file;
    must(uext4_file_open(volume, NULL, path, 0, 0, &file), path);
    int64_t count = must(uext4_file_pread(file, buf, sizeof buf, 0), path);
    printf("%s: %.*s\n", path, (int)count, buf);
    must(uext4_file_close(file), path);
}

/* Prints what is below a directory. Paths begin at the directory's inode. */
static void list(uext4_volume *volume, uext4_inode *at, int depth)
{
    const uext4_entry *entry;
    uext4_dir *dir;
    must(uext4_dir_open(volume, at, NULL, &dir), "list");
    while (must(uext4_dir_next(dir, &entry), "list") == 1) {
        if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
            continue;
        uext4_attributes attributes;
        must(uext4_getattr(volume, at, entry->name, UEXT4_NOFOLLOW, &attributes,
                           sizeof attributes), entry->name);
        printf("%*s%s %o %llu\n", 2 * depth, "", entry->name, (unsigned)attributes.mode,
               (unsigned long long)attributes.size);
        if ((attributes.mode & 0170000) == 0040000) {
            uext4_inode *below;
            must(uext4_lookup(volume, at, entry->name, UEXT4_NOFOLLOW, &below), entry->name);
            list(volume, below, depth + 1);
            uext4_inode_free(below);
        }
    }
    uext4_dir_close(dir);
}

static void check(const char *image)
{
    uext4_report *report;
    uext4_counts counts;
    const uext4_finding *finding;
    must(uext4_fsck(image, 0, &report), "fsck");
    must(uext4_report_counts(report, &counts, sizeof counts), "fsck");
    for (uint64_t n = 0; (finding = uext4_report_finding(report, n)) != NULL; n++)
        printf("%s: %s [%s]\n", finding->place, finding->sentence, finding->code);
    printf("%s: %s, %llu files, %llu directories\n", image, counts.clean ? "clean" : "NOT CLEAN",
           (unsigned long long)counts.files, (unsigned long long)counts.directories);
    int is_clean = counts.clean;
    uext4_report_free(report);
    if (!is_clean)
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: tree IMAGE, which is not there yet\n");
        return 2;
    }
    printf("uext4 %s\n", uext4_version());

    uext4_mkfs_options options;
    memset(&options, 0, sizeof options);
    options.size = 64 << 20;
    options.label = "example";
    must(uext4_mkfs(argv[1], &options, sizeof options), "mkfs");

    uext4_volume *volume;
    must(uext4_open(argv[1], "noatime", &volume), "open");
    must(uext4_mkdir(volume, NULL, "/etc", 0755), "mkdir");
    must(uext4_mkdir(volume, NULL, "/etc/ssl", 0700), "mkdir");
    write_file(volume, "/etc/hostname", "alpha");
    write_file(volume, "/etc/motd.new", "be kind");
    must(uext4_rename(volume, NULL, "/etc/motd.new", NULL, "/etc/motd", 0), "rename");
    must(uext4_symlink(volume, "hostname", NULL, "/etc/name"), "symlink");
    must(uext4_setxattr(volume, NULL, "/etc/motd", 0, "user.colour", "blue", 4), "setxattr");
    must(uext4_close(volume), "close");

    must(uext4_open(argv[1], "ro", &volume), "open");
    read_file(volume, "/etc/name"); /* through the link */
    read_file(volume, "/etc/motd");
    char value[16];
    int64_t length = must(uext4_getxattr(volume, NULL, "/etc/motd", 0, "user.colour", value,
                                         sizeof value), "getxattr");
    printf("user.colour: %.*s\n", (int)length, value);
    uext4_inode *root;
    must(uext4_lookup(volume, NULL, "/", 0, &root), "lookup");
    list(volume, root, 0);
    uext4_inode_free(root);
    char *stats = uext4_stats(volume);
    printf("%.16s...\n", stats);
    uext4_string_free(stats);
    must(uext4_close(volume), "close");

    check(argv[1]);
    return 0;
}
