//! What options that are compared change.

/// A word of a variant, and what it changes.
const OPTIONS: &[(&str, &str)] = &[
    (
        "dioread_lock",
        "a buffered write allocates written extents, and its blocks are mapped in the transaction \
         that makes them. Without it (dioread_nolock, the default) they are unwritten first, and \
         each range is converted by a handle of its own once its data is on the device: a handle \
         that has its credits reserved beforehand",
    ),
    (
        "dioread_nolock",
        "a buffered write allocates unwritten extents, which a handle of its own converts once the \
         data is on the device",
    ),
    (
        "mb_optimize_scan=0",
        "the allocator looks at one group after the other, not at a list by size",
    ),
    ("mb_optimize_scan=1", "the allocator has lists of groups by the size of their free extents"),
    (
        "writeback=unwritten",
        "delayed data is mapped before it is written, as unwritten extents that a reserved handle \
         converts afterwards, as the kernel does by default",
    ),
    ("writeback=ordered", "delayed data is mapped first, and the commit writes it"),
    (
        "journal_join=herd",
        "handles that wait for credits are all woken at each opportunity and try again, instead of \
         one by one in the order of their arrival",
    ),
    (
        "journal_credits=worst",
        "each handle asks for the credits of the worst tree, instead of those of the tree as it is",
    ),
    (
        "checkpoint=inline",
        "the thread that finds no room in the log frees it itself, instead of a thread in the \
         background",
    ),
    ("fsync_batch=rescan", "each sync of a file makes writeback passes of its own"),
    ("dio_completion=deferred", "queued direct overwrites complete on a worker thread"),
    ("dio_completion=inline", "queued direct overwrites complete where they are reaped"),
    ("dax_overwrite=journal", "each overwrite of a mapped file starts a handle"),
    ("mb_reserve=off", "each allocation searches the groups: there are no preallocations"),
    ("mb_trylock=0", "allocations wait for a busy group instead of taking another"),
    ("mb_stream_goal=global", "all streams share one goal"),
    ("mb_free=global", "all frees take one lock"),
    (
        "nodelalloc",
        "blocks are allocated when they are written to the cache, not when to the device",
    ),
    ("noatime", "reads change no times"),
    ("io_uring", "requests are made by io_uring"),
    ("libaio", "requests are made by libaio, through fio"),
];

/// What each option of a variant changes, as far as it is known.
pub(super) fn changes(variant: &str) -> Vec<(&str, Option<&'static str>)> {
    let of = |word| OPTIONS.iter().find(|(known, _)| *known == word).map(|(_, what)| *what);
    variant.split(',').filter(|word| !word.is_empty()).map(|word| (word, of(word))).collect()
}
