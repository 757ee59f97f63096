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
int uext4_fio_sync(const struct uext4_file *file, int data_only);
int uext4_fio_allocate(const struct uext4_file *file, int what, uint64_t offset, uint64_t len);
int uext4_fio_truncate(const struct uext4_file *file, uint64_t size);

#endif
