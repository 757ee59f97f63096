/* Several threads on one volume: on files and directories of their own, and on shared ones. */
#include "check.h"
#include <pthread.h>

#define THREADS 6
#define FILES 40

static uext4_volume *volume;
static uext4_file *shared;

static void *work(void *number)
{
    int me = (int)(size_t)number;
    char path[64], buf[4096], back[4096];
    snprintf(path, sizeof path, "/d%d", me);
    MUST(uext4_mkdir(volume, NULL, path, 0700));
    for (int n = 0; n < FILES; n++) {
        uext4_file *file;
        memset(buf, 'a' + (me + n) % 26, sizeof buf);
        snprintf(path, sizeof path, "/d%d/f%d", me, n);
        MUST(uext4_file_open(volume, NULL, path, UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600, &file));
        MUST(uext4_file_pwrite(file, buf, sizeof buf, 0));
        if (n % 8 == 0)
            MUST(uext4_file_sync(file, 0));
        EXPECT(uext4_file_pread(file, back, sizeof back, 0) == sizeof back);
        EXPECT(memcmp(buf, back, sizeof buf) == 0);
        MUST(uext4_file_close(file));
        /* One file of all, and one name that all want to make. */
        MUST(uext4_file_append(shared, &buf, 1, NULL));
        MUST(uext4_file_open(volume, NULL, "/once", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600,
                             &file));
        MUST(uext4_file_close(file));
        int removed = uext4_unlink(volume, NULL, "/once");
        EXPECT(removed == 0 || removed == -ENOENT);
        /* The text of a failure is the thread's own. */
        snprintf(path, sizeof path, "/none%d", me);
        FAILS(uext4_unlink(volume, NULL, path), ENOENT, path);
        char *stats = uext4_stats(volume);
        EXPECT(stats != NULL);
        uext4_string_free(stats);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    MUST(uext4_open(argv[1], NULL, &volume));
    MUST(uext4_file_open(volume, NULL, "shared", UEXT4_OPEN_WRITE | UEXT4_OPEN_CREATE, 0600,
                         &shared));
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++)
        EXPECT(pthread_create(&threads[n], NULL, work, (void *)n) == 0);
    for (size_t n = 0; n < THREADS; n++)
        EXPECT(pthread_join(threads[n], NULL) == 0);
    EXPECT(uext4_file_size(shared) == THREADS * FILES);
    MUST(uext4_file_close(shared));
    MUST(uext4_close(volume));
    uext4_report *report;
    uext4_counts counts;
    MUST(uext4_fsck(argv[1], 2, &report));
    MUST(uext4_report_counts(report, &counts, sizeof counts));
    /* root, lost+found, and those of the threads. */
    EXPECT(counts.clean && counts.directories == THREADS + 2);
    uext4_report_free(report);
    return 0;
}
