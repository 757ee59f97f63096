//! What a thread waits for, by the functions of the kernel that it sleeps in.
//!
//! What: a table of functions of Linux, of which the innermost that is known names the cause. A
//! stack without any is named by its innermost function that says something. What the loop device
//! does with the file below it is work of the device, whatever that file's own file system calls.

/// What a sleeping thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nothing of the run: work, or the clock.
    Idle,
    /// This, by its name in the profile.
    Wait(String),
    /// A lock, by its name.
    Lock(String),
    /// A lock or condition of a program, which the kernel does not know.
    Futex,
}

/// Sleeps that are no waits for the run.
const IDLE: &[&str] = &[
    "rescuer_thread",
    "do_nanosleep",
    "hrtimer_nanosleep",
    "do_sys_poll",
    "do_poll",
    "do_select",
    "ep_poll",
    "do_epoll_wait",
    "do_wait",
    "kernel_wait4",
    "do_sigtimedwait",
    "fuse_dev_do_read",
    "io_wq_worker",
    "pipe_read",
    "anon_pipe_read",
    "fifo_pipe_read",
    // The writer of a pipe waits for its reader, not for the file system.
    "pipe_write",
    "anon_pipe_write",
    "fifo_pipe_write",
    "unix_stream_read_generic",
    "unix_stream_sendmsg",
    "kthread_worker_fn",
];

/// Loops of threads of the kernel that are idle while they sleep in these themselves. What they
/// call is work, and often leaves no other function that the kernel shows.
const IDLE_INNERMOST: &[&str] = &["worker_thread", "kjournald2"];

/// A handle that reserves credits for another one waits until fewer are reserved.
const RESERVED: &str = "journal: reserved credits";
/// A handle waits for the next transaction: the running one is being closed, or has no credits left
/// for it and will be.
const LOCKED_OR_FULL: &str = "journal: transaction locked or full";

/// Functions and what is waited for in them. The same words stand for the same in the engine.
const KNOWN: &[(&str, &str)] = &[
    // It sleeps itself only until reserved credits are given back; for all else it calls others.
    ("add_transaction_credits", RESERVED),
    // One sleep for two reasons, which no stack tells apart.
    ("wait_transaction_locked", LOCKED_OR_FULL),
    ("wait_transaction_switching", "journal: transaction locked"),
    // While updates are barred (freezing, resizing), or a transaction is being switched.
    ("start_this_handle", "journal: barred or switching"),
    ("jbd2_log_wait_commit", "journal: commit"),
    ("jbd2_complete_transaction", "journal: commit"),
    ("jbd2_journal_wait_updates", "journal: open handles"),
    ("do_get_write_access", "journal: block of a commit"),
    ("jbd2_journal_get_write_access", "journal: block of a commit"),
    ("ext4_fc_commit", "journal: fast commit"),
    ("folio_wait_writeback", "writeback of data"),
    ("__filemap_fdatawait_range", "writeback of data"),
    ("wb_wait_for_completion", "writeback of data"),
    ("writeback_wait_folios", "writeback of data"),
    ("balance_dirty_pages", "dirty limit"),
    ("balance_dirty_pages_ratelimited_flags", "dirty limit"),
    ("inode_dio_wait", "direct I/O"),
    ("__iomap_dio_rw", "direct I/O"),
    ("io_cqring_wait", "direct I/O"),
    ("read_events", "direct I/O"),
    ("do_io_getevents", "direct I/O"),
    ("blkdev_issue_flush", "device: flush"),
    ("__wait_on_buffer", "device: I/O"),
    ("ext4_read_bh", "device: I/O"),
    ("__ext4_find_entry", "device: I/O"),
    ("ext4_wait_block_bitmap", "device: I/O"),
    ("blkdev_direct_IO", "device: I/O"),
    ("__blkdev_direct_IO_simple", "device: I/O"),
    ("blk_mq_get_request", "device: queue"),
    ("__folio_lock", "lock: a page"),
    ("folio_lock", "lock: a page"),
    ("__lock_buffer", "lock: a buffer"),
    ("blk_mq_get_tag", "device: queue"),
    ("rq_qos_wait", "device: queue"),
    ("wbt_wait", "device: queue"),
    ("blk_throtl_bio", "device: limit"),
    ("request_wait_answer", "answer of the daemon"),
    ("fuse_get_req", "answer of the daemon"),
];

/// The same, of functions that many others wait in: where none of those is known.
const VAGUE: &[(&str, &str)] = &[
    ("submit_bio_wait", "device: I/O"),
    ("folio_wait_bit", "device: I/O"),
    ("folio_wait_bit_common", "device: I/O"),
    ("wait_on_bit_io", "device: I/O"),
    ("io_schedule", "device: I/O"),
    // A commit that waits for its blocks sleeps in functions that are not shown.
    ("jbd2_journal_commit_transaction", "device: I/O or j_checkpoint_mutex"),
];

/// Whatever it waits for in there, it waits for space in the log, as the engine counts it.
const LOG_SPACE: &[&str] = &["__jbd2_log_wait_for_space", "jbd2_log_do_checkpoint"];

/// Functions of the loop device, below which its file is.
const LOOP: &[&str] = &["loop_", "lo_", "do_req_filebacked"];
/// What it calls of its file to flush it.
const FLUSH_OF_FILE: &[&str] = &["vfs_fsync", "vfs_fsync_range"];

/// Functions in which a lock is waited for.
const LOCKING: &[&str] = &[
    "rwsem_down_read_slowpath",
    "rwsem_down_write_slowpath",
    "__mutex_lock",
    "__mutex_lock_slowpath",
    "__down_common",
    "percpu_down_write",
    "__percpu_down_read",
    "percpu_rwsem_wait",
    "bit_spin_lock",
];

const DIRECTORY: &str = "i_rwsem of a directory";
/// Two directories: the order of all comes first.
const RENAME: &str = "i_rwsem of a directory or s_vfs_rename_mutex";

/// Locks by the function that takes them, and sleeps itself for nothing else. Most kernels show no
/// function of the scheduler, to which those of [`LOCKING`] belong: it is the innermost one then.
/// Where a function takes two, or has the one that takes the other inlined, both are named. As of
/// Linux 6.18.
const LOCKS: &[(&str, &str)] = &[
    ("ext4_map_blocks", "i_data_sem"),
    ("ext4_da_map_blocks", "i_data_sem"),
    ("ext4_truncate", "i_data_sem"),
    ("ext4_buffered_write_iter", "i_rwsem"),
    ("ext4_file_write_iter", "i_rwsem"),
    ("ext4_dio_write_iter", "i_rwsem"),
    // The second one only where it does more than allocate.
    ("ext4_fallocate", "i_rwsem or invalidate_lock"),
    ("do_truncate", "i_rwsem"),
    // An image that lies there.
    ("shmem_file_write_iter", "i_rwsem of a file of tmpfs"),
    ("vfs_unlink", "i_rwsem"),
    ("vfs_rename", "i_rwsem"),
    ("lock_two_nondirectories", "i_rwsem"),
    ("path_openat", DIRECTORY),
    ("open_last_lookups", DIRECTORY),
    ("lookup_slow", DIRECTORY),
    ("walk_component", DIRECTORY),
    ("do_unlinkat", DIRECTORY),
    ("filename_unlinkat", DIRECTORY),
    ("filename_create", DIRECTORY),
    ("do_rmdir", DIRECTORY),
    ("filename_rmdir", DIRECTORY),
    ("vfs_rmdir", DIRECTORY),
    ("lock_two_directories", DIRECTORY),
    ("lock_rename", RENAME),
    ("do_renameat2", RENAME),
    ("filename_renameat2", RENAME),
    ("ext4_orphan_add", "s_orphan_lock"),
    ("ext4_orphan_del", "s_orphan_lock"),
    ("ext4_writepages", "s_writepages_rwsem"),
    ("__ext4_new_inode", "alloc_sem of a group"),
    ("ext4_init_inode_table", "alloc_sem of a group"),
    ("vm_mmap_pgoff", "mmap_lock"),
    ("__vm_munmap", "mmap_lock"),
    ("do_mprotect_pkey", "mmap_lock"),
    ("lock_mm_and_find_vma", "mmap_lock"),
    ("madvise_lock", "mmap_lock"),
    ("do_madvise", "mmap_lock"),
    ("madvise_do_behavior", "mmap_lock"),
];

/// Locks by a function that sleeps for other things, too.
const LOCKS_AMONG_OTHERS: &[(&str, &str)] =
    &[("jbd2_journal_commit_transaction", "j_checkpoint_mutex")];

/// Functions that say nothing of the cause.
const GENERIC: &[&str] = &[
    "__schedule",
    "schedule",
    "schedule_timeout",
    "schedule_preempt_disabled",
    "io_schedule",
    "io_schedule_timeout",
    "wait_for_completion",
    "__wait_for_common",
    "wait_for_completion_io",
    "bit_wait",
    "bit_wait_io",
    "__wait_on_bit",
    "out_of_line_wait_on_bit",
    "down_read",
    "down_write",
    "down_write_nested",
    "mutex_lock",
    "preempt_schedule",
    "__cond_resched",
];

/// The cause of a sleep in these functions, the innermost first; `None` where nothing is told.
pub(super) fn of(stack: &[&str]) -> Option<Cause> {
    if let Some(cause) = below_the_block_layer(stack) {
        return Some(cause);
    }
    if stack.iter().any(|name| LOG_SPACE.contains(&base(name))) {
        return Some(Cause::Wait("journal: log space".to_owned()));
    }
    let innermost = stack.iter().map(|name| base(name)).find(|name| !GENERIC.contains(name));
    if innermost.is_some_and(|name| IDLE_INNERMOST.contains(&name)) {
        return Some(Cause::Idle);
    }
    if let Some((_, lock)) = LOCKS.iter().find(|(taker, _)| Some(*taker) == innermost) {
        return Some(Cause::Lock((*lock).to_owned()));
    }
    for (at, function) in stack.iter().map(|function| base(function)).enumerate() {
        if IDLE.contains(&function) || function.starts_with("fuse_uring_") {
            return Some(Cause::Idle);
        }
        if function.contains("futex") {
            return Some(Cause::Futex);
        }
        if LOCKING.contains(&function) {
            return Some(Cause::Lock(lock(&stack[at + 1..])));
        }
        if let Some(cause) = found(KNOWN, function) {
            return Some(cause);
        }
    }
    if let Some(cause) = stack.iter().find_map(|function| found(VAGUE, base(function))) {
        return Some(cause);
    }
    Some(Cause::Wait(format!("in {}", innermost?)))
}

/// The cause of a sleep in the file of a loop device.
fn below_the_block_layer(stack: &[&str]) -> Option<Cause> {
    let is_loop = |name: &&&str| LOOP.iter().any(|known| base(name).starts_with(known));
    stack.iter().find(is_loop)?;
    let flushes = stack.iter().any(|name| FLUSH_OF_FILE.contains(&base(name)));
    let cause = if flushes { "device: flush" } else { "device: I/O" };
    Some(Cause::Wait(cause.to_owned()))
}

/// What a table says of a function.
fn found(table: &[(&str, &str)], function: &str) -> Option<Cause> {
    let (_, cause) = table.iter().find(|(known, _)| *known == function)?;
    Some(Cause::Wait((*cause).to_owned()))
}

/// The name of the lock that is taken in these functions.
fn lock(callers: &[&str]) -> String {
    let callers = || callers.iter().map(|function| base(function));
    let all = || LOCKS.iter().chain(LOCKS_AMONG_OTHERS);
    let known = callers().find_map(|name| all().find(|(caller, _)| *caller == name));
    match known {
        Some((_, lock)) => (*lock).to_owned(),
        None => {
            let caller = callers().find(|name| !GENERIC.contains(name) && !LOCKING.contains(name));
            format!("a lock in {}", caller.unwrap_or("the kernel"))
        }
    }
}

/// A function without what the compiler has added to its name.
fn base(function: &str) -> &str {
    function.split('.').next().unwrap_or(function)
}

/// The functions in the text of `/proc/PID/stack`, the innermost first.
pub(super) fn parse_stack(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(function_of)
        .take_while(|name| *name != "do_syscall_64" && *name != "ret_from_fork")
        .collect()
}

/// The function of a line: `[<0>] name+0x8a/0xd0`.
fn function_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("] ")?;
    rest.split('+').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDITS: &str = "\
[<0>] wait_transaction_locked+0x8a/0xd0
[<0>] add_transaction_credits+0xd9/0x340
[<0>] start_this_handle+0xfd/0x520
[<0>] jbd2__journal_start+0xf8/0x200
[<0>] ext4_writepages+0x10/0x20
[<0>] do_syscall_64+0x5d/0x90
[<0>] entry_SYSCALL_64_after_hwframe+0x76/0x7e
";

    fn cause(functions: &[&str]) -> Option<Cause> {
        of(functions)
    }

    #[test]
    fn the_innermost_known_function_names_the_cause() {
        let stack = parse_stack(CREDITS);
        assert_eq!(stack.len(), 5);
        assert_eq!(of(&stack), Some(Cause::Wait(LOCKED_OR_FULL.into())));
        assert_eq!(of(&stack[1..]), Some(Cause::Wait(RESERVED.into())));
        let barrier = Cause::Wait("journal: barred or switching".into());
        assert_eq!(of(&stack[2..]), Some(barrier));
        let commit = ["jbd2_log_wait_commit", "ext4_fsync_journal", "ext4_sync_file"];
        assert_eq!(cause(&commit), Some(Cause::Wait("journal: commit".into())));
        let flush = ["submit_bio_wait", "blkdev_issue_flush", "ext4_sync_file"];
        assert_eq!(cause(&flush), Some(Cause::Wait("device: flush".into())));
        let data = ["folio_wait_bit", "folio_wait_writeback", "ext4_sync_file"];
        assert_eq!(cause(&data), Some(Cause::Wait("writeback of data".into())));
        let read = ["folio_wait_bit", "filemap_read"];
        assert_eq!(cause(&read), Some(Cause::Wait("device: I/O".into())));
        assert_eq!(cause(&["do_nanosleep", "hrtimer_nanosleep"]), Some(Cause::Idle));
        let written = ["anon_pipe_write", "vfs_write", "ksys_write"];
        assert_eq!(cause(&written), Some(Cause::Idle));
        // The process that started the daemon of a mount.
        assert_eq!(cause(&["unix_stream_read_generic", "sock_recvmsg"]), Some(Cause::Idle));
        assert_eq!(cause(&["futex_do_wait", "__futex_wait"]), Some(Cause::Futex));
    }

    #[test]
    fn a_flush_is_told_only_below_the_block_layer() {
        let commit = "jbd2_log_wait_commit";
        let of_a_program = [commit, "ext4_sync_file", "vfs_fsync_range", "do_fsync"];
        assert_eq!(cause(&of_a_program), Some(Cause::Wait("journal: commit".into())));
        let unknown = ["schedule", "something_new", "vfs_fsync_range", "do_fsync"];
        assert_eq!(cause(&unknown), Some(Cause::Wait("in something_new".into())));
        // The file system below the loop device has a journal of its own.
        let of_its_file = [commit, "ext4_sync_file", "vfs_fsync_range", "loop_process_work"];
        assert_eq!(cause(&of_its_file), Some(Cause::Wait("device: flush".into())));
        let inlined = ["folio_wait_writeback", "vfs_fsync", "lo_req_flush.isra.0", "worker"];
        assert_eq!(cause(&inlined), Some(Cause::Wait("device: flush".into())));
        let written = ["balance_dirty_pages", "ext4_file_write_iter", "lo_rw_aio"];
        assert_eq!(cause(&written), Some(Cause::Wait("device: I/O".into())));
        assert_eq!(cause(&["worker_thread", "kthread"]), Some(Cause::Idle));
    }

    #[test]
    fn locks_are_named_by_who_takes_them_and_unknown_waits_by_their_function() {
        let known = ["rwsem_down_write_slowpath", "down_write", "ext4_map_blocks", "x"];
        assert_eq!(cause(&known), Some(Cause::Lock("i_data_sem".into())));
        let unknown = ["__mutex_lock.constprop.0", "some_path"];
        assert_eq!(cause(&unknown), Some(Cause::Lock("a lock in some_path".into())));
        // As kernels show it: what belongs to the scheduler is left out.
        let shown = ["path_openat", "do_filp_open", "do_sys_openat2"];
        assert_eq!(cause(&shown), Some(Cause::Lock("i_rwsem of a directory".into())));
        // One of two: which one is not told.
        let either = ["ext4_fallocate", "vfs_fallocate", "ksys_fallocate"];
        assert_eq!(cause(&either), Some(Cause::Lock("i_rwsem or invalidate_lock".into())));
        let renamed = ["do_renameat2", "__x64_sys_renameat2"];
        assert_eq!(cause(&renamed), Some(Cause::Lock(RENAME.into())));
        let both = ["lock_two_directories", "lock_rename", "do_renameat2"];
        assert_eq!(cause(&both), Some(Cause::Lock(DIRECTORY.into())));
        // It waits for memory here, and has the lock already.
        let has_it = ["ext4_ext_truncate", "ext4_truncate", "ext4_setattr"];
        assert_eq!(cause(&has_it), Some(Cause::Wait("in ext4_ext_truncate".into())));
        let frozen = ["percpu_rwsem_wait", "ext4_writepages", "do_writepages"];
        assert_eq!(cause(&frozen), Some(Cause::Lock("s_writepages_rwsem".into())));
        let other = ["jbd2_journal_commit_transaction", "kjournald2"];
        let io_or_lock = Cause::Wait("device: I/O or j_checkpoint_mutex".into());
        assert_eq!(cause(&other), Some(io_or_lock));
        let of_space = ["jbd2_log_wait_commit", "jbd2_log_do_checkpoint", "x"];
        assert_eq!(cause(&of_space), Some(Cause::Wait("journal: log space".into())));
        let strange = ["schedule", "something_new", "ext4_x"];
        assert_eq!(cause(&strange), Some(Cause::Wait("in something_new".into())));
        assert_eq!(cause(&["schedule"]), None);
        assert_eq!(cause(&[]), None);
    }
}
