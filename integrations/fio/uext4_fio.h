/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the engine's C part calls in its Rust part (src/abi.rs). Functions that return int or
 * int64_t return a negative errno on failure.
 */
#ifndef UEXT4_FIO_H
#define UEXT4_FIO_H

#include <stddef.h>
#include <stdint.h>

/* An opened image, shared by all jobs of the process. */
struct uext4_session;
/* An open file in it, of one job. */
struct uext4_file;

/* Flags of uext4_fio_open. */
#define UEXT4_CREATE	1	/* make the file if it is missing */
#define UEXT4_DIRECT	2	/* past the page cache */

/* What uext4_fio_allocate does to a range. */
enum uext4_allocate {
	UEXT4_ALLOCATE = 0,		/* allocate, extend the file */
	UEXT4_ALLOCATE_KEEP_SIZE = 1,	/* allocate, keep its size */
	UEXT4_PUNCH_HOLE = 2,		/* make a hole */
};

/*
 * Opens the image, or joins those who have it open with the same options. On failure, or if there
 * is something to tell, one line is put into message.
 */
int uext4_fio_attach(const char *image, const char *options, struct uext4_session **session,
		     char *message, size_t message_len);
/* Leaves it; the last one closes the image. */
int uext4_fio_detach(struct uext4_session *session, char *message, size_t message_len);
/* Closes whatever is still open: for the end of the process. */
int uext4_fio_close_all(char *message, size_t message_len);

int uext4_fio_size(const struct uext4_session *session, const char *path, uint64_t *size);
int uext4_fio_unlink(const struct uext4_session *session, const char *path);
int uext4_fio_open(const struct uext4_session *session, const char *path, int flags,
		   struct uext4_file **file);
int uext4_fio_close(struct uext4_file *file);

int64_t uext4_fio_read(const struct uext4_file *file, void *buf, size_t len, uint64_t offset);
int64_t uext4_fio_write(const struct uext4_file *file, const void *buf, size_t len,
			uint64_t offset);
/* As with O_DSYNC. */
int64_t uext4_fio_write_durably(const struct uext4_file *file, const void *buf, size_t len,
				uint64_t offset);
int uext4_fio_sync(const struct uext4_file *file, int data_only);
/* Writes dirty pages of the file back and drops all. */
int uext4_fio_invalidate(const struct uext4_file *file);
int uext4_fio_allocate(const struct uext4_file *file, int what, uint64_t offset, uint64_t len);
int uext4_fio_truncate(const struct uext4_file *file, uint64_t size);

/* Queued direct requests of one job; used by one thread at a time. */
struct uext4_queue;

enum uext4_op {
	UEXT4_READ = 0,
	UEXT4_WRITE = 1,
	UEXT4_WRITE_DURABLE = 2,
};

struct uext4_done {
	uint64_t tag;
	int64_t result;		/* bytes, or a negative errno */
};

/* The memory stays until the queue is freed; the bytes of a request are the queue's meanwhile. */
int uext4_fio_queue_new(const struct uext4_session *session, size_t depth, void *memory,
			size_t len, struct uext4_queue **queue, char *message,
			size_t message_len);
/* Waits for what is in it. */
void uext4_fio_queue_free(struct uext4_queue *queue);
/* -EAGAIN if it is full. The request's bytes begin at `from` of the memory. */
int uext4_fio_queue_push(struct uext4_queue *queue, const struct uext4_file *file, int op,
			 uint64_t offset, size_t from, size_t len, uint64_t tag);
int uext4_fio_queue_submit(struct uext4_queue *queue);
/* Waits for at least `at_least`; returns how many it has put into done. */
int uext4_fio_queue_reap(struct uext4_queue *queue, size_t at_least, struct uext4_done *done,
			 size_t most);

#endif
