/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * uext4 as an external ioengine of fio.
 *
 * Files are files in an ext4 image that this process has open, once for all of its jobs. To fio
 * the engine has no disk (FIO_DISKLESSIO), or it would lay files out on the host; so sizes are
 * found in setup() and files are laid out in prepopulate_file(), by the rules that fio has for its
 * own layout (fio's filesetup.c).
 *
 * A job is synchronous unless it has direct=1 and iodepth above 1, and gets the engine flags of
 * its kind in init(): fio keeps them by job.
 *
 * fio's jobs must be threads: the image is opened before they start and has threads of its own,
 * which a forked process lacks.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fio.h"
#include "optgroup.h"

#include "uext4_fio.h"

#define MESSAGE_LEN	1024

struct uext4_options {
	void *pad;		/* fio keeps the job here */
	char *image;
	char *mount_opts;
	unsigned int falloc;
};

/* What a job has. */
struct uext4_job {
	struct uext4_session *session;
	/* Of a queued job, else NULL: */
	struct uext4_queue *queue;
	struct uext4_done *done;
	struct io_u **pushed;	/* not submitted yet */
	unsigned int nr_pushed;
	size_t memory_len;
};

static struct fio_option options[] = {
	{
		.name	= "image",
		.lname	= "Image",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct uext4_options, image),
		.help	= "Image file or block device with an ext4 file system",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "mount_opts",
		.lname	= "Mount options",
		.type	= FIO_OPT_STR_STORE,
		.off1	= offsetof(struct uext4_options, mount_opts),
		.help	= "Mount options of uext4, separated by commas",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= "uext4_falloc",
		.lname	= "Allocate instead of transferring",
		.type	= FIO_OPT_BOOL,
		.off1	= offsetof(struct uext4_options, falloc),
		.help	= "As ioengine=falloc: writes allocate, reads allocate and keep the size",
		.def	= "0",
		.category = FIO_OPT_C_ENGINE,
		.group	= FIO_OPT_G_INVALID,
	},
	{
		.name	= NULL,
	},
};

/* Says a line once: with many jobs the same thing is wrong with each of them. */
static void complain(const char *line)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char last[MESSAGE_LEN];
	bool news;

	pthread_mutex_lock(&lock);
	news = strncmp(last, line, sizeof(last) - 1) != 0;
	if (news)
		snprintf(last, sizeof(last), "%s", line);
	pthread_mutex_unlock(&lock);
	if (news)
		log_err("fio: uext4: %s\n", line);
}

/* What a job asks for that the engine has not got; NULL if nothing. */
static const char *refusal(struct thread_data *td)
{
	struct uext4_options *eo = td->eo;

	if (!td->o.use_thread)
		return "jobs share one open image: set thread=1 (--thread)";
	if (!eo->image || !*eo->image)
		return "image= names no image";
	if (td->o.fill_device)
		return "fill_device= is not supported";
	if (td->o.fsync_on_close)
		return "fsync_on_close= is not supported; end_fsync= is";
	if (td->o.zone_mode == ZONE_MODE_ZBD)
		return "zonemode=zbd is not supported";
	return NULL;
}

/* Opens the image with the first job, and finds the sizes of the job's files. */
static int uext4_setup(struct thread_data *td)
{
	struct uext4_options *eo = td->eo;
	const char *refused = refusal(td);
	char message[MESSAGE_LEN] = "";
	struct uext4_job *job;
	struct fio_file *f;
	unsigned int i;

	if (refused) {
		complain(refused);
		return 1;
	}
	job = calloc(1, sizeof(*job));
	if (!job)
		return 1;
	if (uext4_fio_attach(eo->image, eo->mount_opts ? eo->mount_opts : "", &job->session,
			     message, sizeof(message))) {
		complain(message);
		free(job);
		return 1;
	}
	if (message[0])
		complain(message);
	td->io_ops_data = job;

	for_each_file(td, f, i) {
		uint64_t size = 0;
		int ret = uext4_fio_size(job->session, f->file_name, &size);

		if (ret && ret != -ENOENT) {
			snprintf(message, sizeof(message), "%s: %s", f->file_name, strerror(-ret));
			complain(message);
			return 1;
		}
		/* Whatever the host has of that name. */
		f->filetype = FIO_TYPE_FILE;
		f->real_file_size = size;
		fio_file_set_size_known(f);
	}
	return 0;
}

static bool is_queued(struct thread_data *td)
{
	struct uext4_options *eo = td->eo;

	return td->o.odirect && td->o.iodepth > 1 && !eo->falloc && (td_read(td) || td_write(td));
}

/* Which of the two kinds of engine it is to this job. */
static int uext4_init(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;
	unsigned long long kind = is_queued(td) ? FIO_ASYNCIO_SETS_ISSUE_TIME : FIO_SYNCIO;

	td->flags |= kind << TD_ENG_FLAG_SHIFT;
	if (!is_queued(td))
		return 0;
	job->done = calloc(td->o.iodepth, sizeof(*job->done));
	job->pushed = calloc(td->o.iodepth, sizeof(*job->pushed));
	return !job->done || !job->pushed;
}

/* The queue, in the thread that will use it; fio has its buffers by now. */
static int uext4_post_init(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;
	char message[MESSAGE_LEN] = "";
	int ret;

	if (!is_queued(td))
		return 0;
	ret = uext4_fio_queue_new(job->session, td->o.iodepth, td->orig_buffer, job->memory_len,
				  &job->queue, message, sizeof(message));
	if (ret) {
		complain(message);
		td_verror(td, -ret, "making the queue");
		return 1;
	}
	return 0;
}

/* Pages for all buffers of the job. */
static int uext4_iomem_alloc(struct thread_data *td, size_t len)
{
	struct uext4_job *job = td->io_ops_data;
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 1;
	td->orig_buffer = memory;
	job->memory_len = len;
	return 0;
}

/* fio does this before cleanup(): the queue ends with its memory. */
static void uext4_iomem_free(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;

	if (job->queue)
		uext4_fio_queue_free(job->queue);
	job->queue = NULL;
	munmap(td->orig_buffer, job->memory_len);
}

/* The last job closes the image; if that fails the job fails. */
static void uext4_cleanup(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;
	char message[MESSAGE_LEN] = "";
	int ret;

	if (!job)
		return;
	ret = uext4_fio_detach(job->session, message, sizeof(message));
	if (ret) {
		complain(message);
		td_verror(td, -ret, "closing the image");
	}
	free(job->done);
	free(job->pushed);
	free(job);
	td->io_ops_data = NULL;
}

/* Jobs that fio gave up before they ran never come to cleanup(). */
static void __attribute__((destructor)) uext4_end(void)
{
	char message[MESSAGE_LEN] = "";

	if (uext4_fio_close_all(message, sizeof(message)))
		fprintf(stderr, "fio: uext4: %s\n", message);
}

static struct uext4_session *session_of(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;

	return job->session;
}

static int uext4_open_file(struct thread_data *td, struct fio_file *f)
{
	struct uext4_file *file;
	int flags = 0, ret;

	if ((td_write(td) || td_trim(td) || td->o.create_on_open) && td->o.allow_create &&
	    !read_only)
		flags |= UEXT4_CREATE;
	if (td->o.odirect)
		flags |= UEXT4_DIRECT;
	ret = uext4_fio_open(session_of(td), f->file_name, flags, &file);
	if (ret) {
		char what[FIO_VERROR_SIZE];

		snprintf(what, sizeof(what), "open(%s)", f->file_name);
		td_verror(td, -ret, what);
		return 1;
	}
	FILE_SET_ENG_DATA(f, file);
	return 0;
}

static int uext4_close_file(struct thread_data fio_unused *td, struct fio_file *f)
{
	struct uext4_file *file = FILE_ENG_DATA(f);

	FILE_SET_ENG_DATA(f, NULL);
	return file ? -uext4_fio_close(file) : 0;
}

static int uext4_unlink_file(struct thread_data *td, struct fio_file *f)
{
	return -uext4_fio_unlink(session_of(td), f->file_name);
}

static int uext4_get_file_size(struct thread_data *td, struct fio_file *f)
{
	uint64_t size;
	int ret = uext4_fio_size(session_of(td), f->file_name, &size);

	if (ret) {
		td_verror(td, -ret, "get_file_size");
		return 1;
	}
	f->real_file_size = size;
	fio_file_set_size_known(f);
	return 0;
}

/* fallocate= of the layout. Only keep's failures are errors to fio; others it mentions. */
static int reserve(struct thread_data *td, struct fio_file *f, struct uext4_file *file)
{
	int ret = 0;

	switch (td->o.fallocate_mode) {
	case FIO_FALLOCATE_NONE:
		break;
	case FIO_FALLOCATE_NATIVE:
	case FIO_FALLOCATE_POSIX:
		ret = uext4_fio_allocate(file, UEXT4_ALLOCATE, 0, f->real_file_size);
		break;
	case FIO_FALLOCATE_KEEP_SIZE:
		ret = uext4_fio_allocate(file, UEXT4_ALLOCATE_KEEP_SIZE, 0, f->real_file_size);
		break;
	case FIO_FALLOCATE_TRUNCATE:
		ret = uext4_fio_truncate(file, f->real_file_size);
		break;
	}
	/* A file system that cannot allocate ahead is no reason to stop. */
	return ret == -EOPNOTSUPP ? 0 : ret;
}

/* Writes the whole file with what fio fills buffers with. */
static int fill(struct thread_data *td, struct fio_file *f, struct uext4_file *file)
{
	uint64_t offset = 0, bs = td->o.max_bs[DDIR_WRITE];
	int64_t done = 0;
	char *buf = malloc(bs);

	if (!buf)
		return -ENOMEM;
	while (offset < f->real_file_size && !td->terminate) {
		if (bs > f->real_file_size - offset)
			bs = f->real_file_size - offset;
		fill_io_buffer(td, buf, bs, bs);
		done = uext4_fio_write(file, buf, bs, offset);
		if (done <= 0)
			break;
		offset += done;
	}
	free(buf);
	if (done < 0)
		return done;
	return td->o.create_fsync ? uext4_fio_sync(file, 0) : 0;
}

/*
 * Lays a file out if it is shorter than the job wants it. fio does the same on the host: files that
 * are read or overwritten are written in full, others are made and fallocated.
 */
static int uext4_lay_out(struct thread_data *td, struct fio_file *f)
{
	uint64_t wanted = f->io_size + f->file_offset;
	bool full = td_read(td) || (td_write(td) && td->o.overwrite && !td->o.file_append);
	bool fresh = td_write(td) && !td->o.overwrite && !td->o.file_append;
	struct uext4_file *file;
	int ret;

	if (wanted <= f->real_file_size)
		return 0;
	f->real_file_size = wanted;
	if (td->o.create_on_open)
		return 0;
	if (read_only) {
		complain("refusing to lay out files due to --readonly");
		return 1;
	}
	if (full || fresh) {
		ret = uext4_fio_unlink(session_of(td), f->file_name);
		if (ret && ret != -ENOENT) {
			td_verror(td, -ret, "unlink");
			return 1;
		}
	}
	ret = uext4_fio_open(session_of(td), f->file_name,
			     td->o.allow_create ? UEXT4_CREATE : 0, &file);
	if (ret) {
		td_verror(td, -ret, "open");
		return 1;
	}
	ret = reserve(td, f, file);
	if (!ret && full)
		ret = uext4_fio_truncate(file, f->real_file_size);
	if (!ret && full)
		ret = fill(td, f, file);
	if (ret) {
		uext4_fio_close(file);
		td_verror(td, -ret, "layout");
		return 1;
	}
	ret = uext4_fio_close(file);
	if (ret) {
		td_verror(td, -ret, "close");
		return 1;
	}
	return 0;
}

/* sync= of the job: O_SYNC has all bits of O_DSYNC and one more. */
static bool is_dsync(struct thread_data *td)
{
	return (td->o.sync_io & O_SYNC) == O_DSYNC;
}

static bool is_sync(struct thread_data *td)
{
	return (td->o.sync_io & O_SYNC) == O_SYNC;
}

/* Bytes that were transferred, or a negative errno. */
static int64_t transfer(struct thread_data *td, struct io_u *io_u, struct uext4_file *file)
{
	struct uext4_options *eo = td->eo;
	int64_t done;
	int ret;

	if (eo->falloc) {
		ret = uext4_fio_allocate(file, io_u->ddir == DDIR_READ ? UEXT4_ALLOCATE_KEEP_SIZE :
					 UEXT4_ALLOCATE, io_u->offset, io_u->xfer_buflen);
		return ret ? ret : (int64_t)io_u->xfer_buflen;
	}
	if (io_u->ddir == DDIR_READ)
		return uext4_fio_read(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
	if (is_dsync(td))
		return uext4_fio_write_durably(file, io_u->xfer_buf, io_u->xfer_buflen,
					       io_u->offset);
	done = uext4_fio_write(file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
	if (done > 0 && is_sync(td)) {
		ret = uext4_fio_sync(file, 0);
		if (ret)
			return ret;
	}
	return done;
}

/* Takes over what came of a request: bytes, or a negative errno. */
static void settle(struct io_u *io_u, int64_t result)
{
	if (result < 0)
		io_u->error = -result;
	else
		io_u->resid = io_u->xfer_buflen - result;
}

/* Does a request at once. */
static enum fio_q_status do_now(struct thread_data *td, struct io_u *io_u)
{
	struct uext4_file *file = FILE_ENG_DATA(io_u->file);
	int64_t ret;

	switch (io_u->ddir) {
	case DDIR_READ:
	case DDIR_WRITE:
		settle(io_u, transfer(td, io_u, file));
		return FIO_Q_COMPLETED;
	case DDIR_TRIM:
		ret = uext4_fio_allocate(file, UEXT4_PUNCH_HOLE, io_u->offset, io_u->xfer_buflen);
		break;
	case DDIR_SYNC:
		ret = uext4_fio_sync(file, 0);
		break;
	case DDIR_DATASYNC:
	case DDIR_SYNC_FILE_RANGE:
		ret = uext4_fio_sync(file, 1);
		break;
	default:
		ret = -EINVAL;
	}
	if (ret < 0)
		io_u->error = -ret;
	return FIO_Q_COMPLETED;
}

static enum fio_q_status push(struct thread_data *td, struct io_u *io_u)
{
	struct uext4_job *job = td->io_ops_data;
	int op = UEXT4_READ, ret;

	if (io_u->ddir == DDIR_WRITE)
		op = is_dsync(td) ? UEXT4_WRITE_DURABLE : UEXT4_WRITE;
	ret = uext4_fio_queue_push(job->queue, FILE_ENG_DATA(io_u->file), op, io_u->offset,
				   (char *)io_u->xfer_buf - td->orig_buffer, io_u->xfer_buflen,
				   (uintptr_t)io_u);
	if (ret == -EAGAIN)
		return FIO_Q_BUSY;
	if (ret) {
		io_u->error = -ret;
		return FIO_Q_COMPLETED;
	}
	job->pushed[job->nr_pushed++] = io_u;
	return FIO_Q_QUEUED;
}

static enum fio_q_status uext4_queue(struct thread_data *td, struct io_u *io_u)
{
	struct uext4_job *job = td->io_ops_data;
	bool transfers = io_u->ddir == DDIR_READ ||
			 (io_u->ddir == DDIR_WRITE && !is_sync(td));

	fio_ro_check(td, io_u);
	if (!job->queue)
		return do_now(td, io_u);
	if (transfers)
		return push(td, io_u);
	/* What is not queued goes behind what was: fio commits and comes again. */
	if (job->nr_pushed)
		return FIO_Q_BUSY;
	if (fio_fill_issue_time(td))
		fio_gettime(&io_u->issue_time, NULL);
	return do_now(td, io_u);
}

/* Starts what was pushed. The clock of each runs from then on, as with libaio. */
static int uext4_commit(struct thread_data *td)
{
	struct uext4_job *job = td->io_ops_data;
	struct timespec now;
	unsigned int i;
	int ret;

	if (!job->nr_pushed)
		return 0;
	ret = uext4_fio_queue_submit(job->queue);
	if (ret)
		return ret;
	if (fio_fill_issue_time(td)) {
		fio_gettime(&now, NULL);
		for (i = 0; i < job->nr_pushed; i++) {
			job->pushed[i]->issue_time = now;
			io_u_queued(td, job->pushed[i]);
		}
		/* Only used for iolog. */
		if (td->o.read_iolog_file)
			td->last_issue = now;
	}
	io_u_mark_submit(td, job->nr_pushed);
	job->nr_pushed = 0;
	return 0;
}

static int uext4_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			   const struct timespec fio_unused *t)
{
	struct uext4_job *job = td->io_ops_data;

	/* A job that polls asks even if nothing is ever queued. */
	if (!job->queue)
		return 0;
	return uext4_fio_queue_reap(job->queue, min, job->done, max);
}

static struct io_u *uext4_event(struct thread_data *td, int event)
{
	struct uext4_job *job = td->io_ops_data;
	struct io_u *io_u = (struct io_u *)(uintptr_t)job->done[event].tag;

	settle(io_u, job->done[event].result);
	return io_u;
}

/* Before a job, with invalidate=1: what is cached of its file goes. */
static int uext4_invalidate(struct thread_data fio_unused *td, struct fio_file *f)
{
	if (!FILE_ENG_DATA(f))
		return 0;
	return uext4_fio_invalidate(FILE_ENG_DATA(f));
}

struct ioengine_ops ioengine = {
	.name			= "uext4",
	.version		= FIO_IOOPS_VERSION,
	.flags			= FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_NOFILEHASH | FIO_NO_OFFLOAD,
	.setup			= uext4_setup,
	.init			= uext4_init,
	.post_init		= uext4_post_init,
	.cleanup		= uext4_cleanup,
	.iomem_alloc		= uext4_iomem_alloc,
	.iomem_free		= uext4_iomem_free,
	.queue			= uext4_queue,
	.commit			= uext4_commit,
	.getevents		= uext4_getevents,
	.event			= uext4_event,
	.open_file		= uext4_open_file,
	.close_file		= uext4_close_file,
	.invalidate		= uext4_invalidate,
	.unlink_file		= uext4_unlink_file,
	.get_file_size		= uext4_get_file_size,
	.prepopulate_file	= uext4_lay_out,
	.option_struct_size	= sizeof(struct uext4_options),
	.options		= options,
};
