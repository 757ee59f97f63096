//! A request, taken apart and handed to the [`Handler`]; the answer, put into bytes.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{
    AccessIn, AttrOut, BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn,
    ForgetOne, FsyncIn, GetattrIn, GetxattrIn, GetxattrOut, InHeader, IoctlIn, IoctlOut, LinkIn,
    LseekIn, LseekOut, MkdirIn, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn,
    SetxattrExt, SetxattrIn, StatxIn, WriteIn, WriteOut,
};
use crate::dir_buffer::DirBuffer;
use crate::flags::FSYNC_FDATASYNC;
use crate::handler::{Answer, Caller, Handler};
use crate::opcode::Opcode;

/// A request in its parts.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    /// The structure that its kind begins with.
    pub(crate) op: &'a [u8],
    /// What follows: names, values, data.
    pub(crate) data: &'a [u8],
}

/// Kinds that bring no data and may be answered with much: on a ring their answer is written where
/// the data of others lies.
pub(crate) fn answers_in_place(opcode: u32) -> bool {
    matches!(
        Opcode::from_number(opcode),
        Some(
            Opcode::Read
                | Opcode::Readdir
                | Opcode::Readdirplus
                | Opcode::Readlink
                | Opcode::Listxattr
        )
    )
}

/// Whether a request keeps its thread busy for long without sleeping: others need not wait for it.
pub(crate) fn is_long(request: &Request<'_>) -> bool {
    const LONG: u32 = 64 << 10;
    match Opcode::from_number(request.header.opcode) {
        Some(Opcode::Write) => request.data.len() >= LONG as usize,
        Some(Opcode::Read) => parse::<ReadIn>(request.op).is_ok_and(|read| read.size >= LONG),
        Some(Opcode::BatchForget | Opcode::Fallocate | Opcode::Ioctl | Opcode::Syncfs) => true,
        _ => false,
    }
}

/// The node of a request that is on an open regular file, which the kernel therefore knows.
pub(crate) fn regular_file(header: &InHeader) -> Option<u64> {
    let is_on_one = matches!(
        Opcode::from_number(header.opcode),
        Some(
            Opcode::Read
                | Opcode::Write
                | Opcode::Release
                | Opcode::Fsync
                | Opcode::Fallocate
                | Opcode::Lseek
                | Opcode::CopyFileRange
                | Opcode::CopyFileRange64
        )
    );
    is_on_one.then_some(header.nodeid)
}

/// Has `handler` answer a request. The answer's bytes are put into `out`, and their number is
/// returned; `None` for what the kernel awaits no answer of.
pub(crate) fn serve(
    handler: &impl Handler,
    request: &Request<'_>,
    out: &mut [u8],
) -> Option<Answer<usize>> {
    let Some(opcode) = Opcode::from_number(request.header.opcode) else {
        return Some(Err(Errno::NOSYS));
    };
    match opcode {
        Opcode::Forget => {
            if let Ok(forget) = parse::<ForgetIn>(request.op) {
                let node = (request.header.nodeid, forget.nlookup);
                handler.forget(&mut std::iter::once(node));
            }
            None
        }
        Opcode::BatchForget => {
            let (some, _) = request.data.as_chunks::<{ size_of::<ForgetOne>() }>();
            let count = parse::<BatchForgetIn>(request.op).map_or(0, |batch| batch.count);
            let some = some.iter().take(count as usize);
            let pair = |one: &[u8; 16]| {
                let one: ForgetOne = zerocopy::transmute!(*one);
                (one.nodeid, one.nlookup)
            };
            handler.forget(&mut some.map(pair));
            None
        }
        // A request that is under way is not given up: it changes something or is short.
        Opcode::Interrupt | Opcode::NotifyReply => None,
        _ => Some(answer(handler, opcode, request, out)),
    }
}

fn answer(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    match opcode {
        Opcode::Read
        | Opcode::Write
        | Opcode::Open
        | Opcode::Release
        | Opcode::Flush
        | Opcode::Fsync
        | Opcode::Fallocate
        | Opcode::Lseek
        | Opcode::CopyFileRange
        | Opcode::CopyFileRange64
        | Opcode::Ioctl => of_file(handler, opcode, request, out),
        Opcode::Opendir
        | Opcode::Readdir
        | Opcode::Readdirplus
        | Opcode::Releasedir
        | Opcode::Fsyncdir => of_directory(handler, opcode, request, out),
        Opcode::Setxattr | Opcode::Getxattr | Opcode::Listxattr | Opcode::Removexattr => {
            of_xattr(handler, opcode, request, out)
        }
        Opcode::Getattr
        | Opcode::Setattr
        | Opcode::Statx
        | Opcode::Readlink
        | Opcode::Access
        | Opcode::Statfs
        | Opcode::Syncfs
        | Opcode::Destroy => of_inode(handler, opcode, request, out),
        _ => of_name(handler, opcode, request, out),
    }
}

fn of_name(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    let (caller, node, op) = (caller(request), request.header.nodeid, request.op);
    let mut names = Names(request.data);
    match opcode {
        Opcode::Lookup => put(out, &handler.lookup(caller, node, names.next()?)?),
        Opcode::Symlink => {
            let (name, target) = (names.next()?, names.next()?);
            put(out, &handler.symlink(caller, node, name, target)?)
        }
        Opcode::Mknod => put(out, &handler.mknod(caller, node, names.next()?, &parse(op)?)?),
        Opcode::Mkdir => {
            let MkdirIn { mode, umask } = parse(op)?;
            put(out, &handler.mkdir(caller, node, names.next()?, (mode, umask))?)
        }
        Opcode::Unlink => handler.unlink(caller, node, names.next()?).map(|()| 0),
        Opcode::Rmdir => handler.rmdir(caller, node, names.next()?).map(|()| 0),
        Opcode::Rename | Opcode::Rename2 => {
            let (to, flags) = match opcode {
                Opcode::Rename => (parse::<RenameIn>(op)?.newdir, 0),
                _ => parse::<Rename2In>(op).map(|rename| (rename.newdir, rename.flags))?,
            };
            let (name, new_name) = (names.next()?, names.next()?);
            handler.rename(caller, (node, name), (to, new_name), flags).map(|()| 0)
        }
        Opcode::Link => {
            let LinkIn { oldnodeid } = parse(op)?;
            put(out, &handler.link(caller, oldnodeid, node, names.next()?)?)
        }
        Opcode::Create => {
            let new: CreateIn = parse(op)?;
            let (entry, open) = handler.create(caller, node, names.next()?, &new)?;
            put_both(out, &entry, &open)
        }
        Opcode::Tmpfile => {
            let (entry, open) = handler.tmpfile(caller, node, &parse(op)?)?;
            put_both(out, &entry, &open)
        }
        _ => Err(Errno::NOSYS),
    }
}

fn of_inode(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    let (caller, node, op) = (caller(request), request.header.nodeid, request.op);
    match opcode {
        Opcode::Getattr => {
            parse::<GetattrIn>(op)?;
            put::<AttrOut>(out, &handler.getattr(caller, node)?)
        }
        Opcode::Setattr => put(out, &handler.setattr(caller, node, &parse::<SetattrIn>(op)?)?),
        Opcode::Statx => put(out, &handler.statx(caller, node, &parse::<StatxIn>(op)?)?),
        Opcode::Readlink => put_bytes(out, &handler.readlink(caller, node)?),
        Opcode::Access => {
            let AccessIn { mask, .. } = parse(op)?;
            handler.access(caller, node, mask).map(|()| 0)
        }
        Opcode::Statfs => put(out, &handler.statfs(caller, node)?),
        Opcode::Syncfs => handler.syncfs(caller).map(|()| 0),
        _ => {
            handler.destroy();
            Ok(0)
        }
    }
}

fn of_file(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    let (caller, node, op) = (caller(request), request.header.nodeid, request.op);
    match opcode {
        Opcode::Read => {
            let read: ReadIn = parse(op)?;
            let out = out.get_mut(..read.size as usize).ok_or(Errno::INVAL)?;
            handler.read(caller, node, &read, out)
        }
        Opcode::Write => {
            let write: WriteIn = parse(op)?;
            let data = request.data.get(..write.size as usize).ok_or(Errno::IO)?;
            let size = handler.write(caller, node, &write, data)?;
            put(out, &WriteOut { size, padding: 0 })
        }
        Opcode::Open => {
            let OpenIn { flags, .. } = parse(op)?;
            put(out, &handler.open(caller, node, flags)?)
        }
        Opcode::Release => handler.release(caller, node, &parse::<ReleaseIn>(op)?).map(|()| 0),
        Opcode::Flush => handler.flush(caller, node, parse::<FlushIn>(op)?.fh).map(|()| 0),
        Opcode::Fsync => {
            let FsyncIn { fh, fsync_flags, .. } = parse(op)?;
            let data_only = fsync_flags & FSYNC_FDATASYNC != 0;
            handler.fsync(caller, node, fh, data_only).map(|()| 0)
        }
        Opcode::Fallocate => {
            handler.fallocate(caller, node, &parse::<FallocateIn>(op)?).map(|()| 0)
        }
        Opcode::Lseek => {
            let offset = handler.lseek(caller, node, &parse::<LseekIn>(op)?)?;
            put(out, &LseekOut { offset })
        }
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
            let copied = handler.copy_file_range(caller, node, &parse::<CopyFileRangeIn>(op)?)?;
            if opcode == Opcode::CopyFileRange64 {
                return put(out, &LseekOut { offset: copied });
            }
            let size = u32::try_from(copied).map_err(|_| Errno::IO)?;
            put(out, &WriteOut { size, padding: 0 })
        }
        _ => {
            let ioctl: IoctlIn = parse(op)?;
            let data = request.data.get(..ioctl.in_size as usize).unwrap_or_default();
            let (result, bytes) = handler.ioctl(caller, node, &ioctl, data)?;
            let len = bytes.len().min(ioctl.out_size as usize);
            let head = put(out, &IoctlOut { result, ..IoctlOut::default() })?;
            Ok(head + put_bytes(&mut out[head..], &bytes[..len])?)
        }
    }
}

fn of_directory(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    let (caller, node, op) = (caller(request), request.header.nodeid, request.op);
    match opcode {
        Opcode::Opendir => {
            let OpenIn { flags, .. } = parse(op)?;
            put(out, &handler.opendir(caller, node, flags)?)
        }
        Opcode::Releasedir => {
            handler.releasedir(caller, node, parse::<ReleaseIn>(op)?.fh).map(|()| 0)
        }
        Opcode::Fsyncdir => {
            let FsyncIn { fh, fsync_flags, .. } = parse(op)?;
            let data_only = fsync_flags & FSYNC_FDATASYNC != 0;
            handler.fsyncdir(caller, node, fh, data_only).map(|()| 0)
        }
        _ => {
            let read: ReadIn = parse(op)?;
            let out = out.get_mut(..read.size as usize).ok_or(Errno::INVAL)?;
            let mut list = DirBuffer::new(out);
            match opcode {
                Opcode::Readdir => handler.readdir(caller, node, &read, &mut list)?,
                _ => handler.readdirplus(caller, node, &read, &mut list)?,
            }
            Ok(list.len())
        }
    }
}

fn of_xattr(
    handler: &impl Handler,
    opcode: Opcode,
    request: &Request<'_>,
    out: &mut [u8],
) -> Answer<usize> {
    let (caller, node, op) = (caller(request), request.header.nodeid, request.op);
    let mut names = Names(request.data);
    match opcode {
        Opcode::Setxattr => {
            let SetxattrIn { size, flags } = parse(op)?;
            let more = op.get(size_of::<SetxattrIn>()..).unwrap_or_default();
            // Kernels without SETXATTR_EXT end here.
            let more = parse::<SetxattrExt>(more).map_or(0, |more| more.setxattr_flags);
            let name = names.next()?;
            let value = names.0.get(..size as usize).ok_or(Errno::INVAL)?;
            handler.setxattr(caller, node, (name, value), flags, more).map(|()| 0)
        }
        Opcode::Removexattr => handler.removexattr(caller, node, names.next()?).map(|()| 0),
        _ => {
            let GetxattrIn { size, .. } = parse(op)?;
            let value = match opcode {
                Opcode::Getxattr => handler.getxattr(caller, node, names.next()?)?,
                _ => handler.listxattr(caller, node)?,
            };
            let len = u32::try_from(value.len()).map_err(|_| Errno::RANGE)?;
            match size {
                0 => put(out, &GetxattrOut { size: len, padding: 0 }),
                size if len > size => Err(Errno::RANGE),
                _ => put_bytes(out, &value),
            }
        }
    }
}

fn caller(request: &Request<'_>) -> Caller {
    let InHeader { uid, gid, pid, .. } = request.header;
    Caller { uid, gid, pid }
}

/// The structure that begins `bytes`. A shorter one is of an older kernel or no request at all.
pub(crate) fn parse<T: FromBytes>(bytes: &[u8]) -> Answer<T> {
    T::read_from_prefix(bytes).map(|(value, _)| value).map_err(|_| Errno::INVAL)
}

fn put<T: IntoBytes + Immutable>(out: &mut [u8], value: &T) -> Answer<usize> {
    put_bytes(out, value.as_bytes())
}

fn put_both<T, U>(out: &mut [u8], first: &T, second: &U) -> Answer<usize>
where
    T: IntoBytes + Immutable,
    U: IntoBytes + Immutable,
{
    let len = put(out, first)?;
    Ok(len + put(&mut out[len..], second)?)
}

fn put_bytes(out: &mut [u8], bytes: &[u8]) -> Answer<usize> {
    out.get_mut(..bytes.len()).ok_or(Errno::RANGE)?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Strings that end with a zero byte, one after the other.
struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    fn next(&mut self) -> Answer<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::connection::Notifier;
    use crate::handler::{Offer, Wanted};

    /// Notes what it is asked for.
    #[derive(Default)]
    struct Noting(Mutex<Vec<String>>);

    impl Noting {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Handler for Noting {
        fn init(&self, _offer: &Offer, _notifier: &Notifier) -> Wanted {
            unreachable!("no session begins")
        }

        fn forget(&self, nodes: &mut dyn Iterator<Item = (u64, u64)>) {
            self.note(format!("forget {:?}", nodes.collect::<Vec<_>>()));
        }

        fn rename(
            &self,
            _caller: Caller,
            from: (u64, &[u8]),
            to: (u64, &[u8]),
            flags: u32,
        ) -> Answer<()> {
            self.note(format!("rename {from:?} {to:?} {flags}"));
            Ok(())
        }

        fn setxattr(
            &self,
            _caller: Caller,
            _node: u64,
            (name, value): (&[u8], &[u8]),
            flags: u32,
            more: u32,
        ) -> Answer<()> {
            self.note(format!("setxattr {name:?} {value:?} {flags} {more}"));
            Ok(())
        }

        fn getxattr(&self, _caller: Caller, _node: u64, _name: &[u8]) -> Answer<Vec<u8>> {
            Ok(b"value".to_vec())
        }
    }

    fn ask(handler: &Noting, opcode: Opcode, op: &[u8], data: &[u8]) -> Option<Answer<Vec<u8>>> {
        let header = InHeader { opcode: opcode as u32, nodeid: 7, ..InHeader::default() };
        let mut out = [0; 64];
        let answer = serve(handler, &Request { header, op, data }, &mut out);
        answer.map(|answer| answer.map(|len| out[..len].to_vec()))
    }

    /// Fault models: names cut at the wrong place; the longer form of SETXATTR taken for the
    /// shorter, or what lies behind the shorter taken for flags.
    #[test]
    fn requests_are_taken_apart() {
        let handler = Noting::default();
        let rename = Rename2In { newdir: 9, flags: 1, padding: 0 };
        ask(&handler, Opcode::Rename2, rename.as_bytes(), b"a\0bc\0").unwrap().unwrap();
        let short = SetxattrIn { size: 2, flags: 1 };
        ask(&handler, Opcode::Setxattr, short.as_bytes(), b"n\0vwx").unwrap().unwrap();
        let mut long = short.as_bytes().to_vec();
        long.extend_from_slice(SetxattrExt { setxattr_flags: 1, padding: 0 }.as_bytes());
        ask(&handler, Opcode::Setxattr, &long, b"n\0vw").unwrap().unwrap();
        let noted = handler.0.into_inner().unwrap();
        assert_eq!(noted[0], "rename (7, [97]) (9, [98, 99]) 1");
        assert_eq!(noted[1], "setxattr [110] [118, 119] 1 0");
        assert_eq!(noted[2], "setxattr [110] [118, 119] 1 1");
    }

    /// Fault model: a forget for each part of a batch, or for more parts than it has.
    #[test]
    fn a_batch_of_forgets_is_one_call_and_has_no_answer() {
        let handler = Noting::default();
        let one = |nodeid| ForgetOne { nodeid, nlookup: 2 };
        let mut data = one(3).as_bytes().to_vec();
        data.extend_from_slice(one(4).as_bytes());
        let batch = BatchForgetIn { count: 1000, dummy: 0 };
        assert!(ask(&handler, Opcode::BatchForget, batch.as_bytes(), &data).is_none());
        let one = BatchForgetIn { count: 1, dummy: 0 };
        assert!(ask(&handler, Opcode::BatchForget, one.as_bytes(), &data).is_none());
        let noted = handler.0.into_inner().unwrap();
        assert_eq!(noted, ["forget [(3, 2), (4, 2)]", "forget [(3, 2)]"]);
    }

    /// Fault model: a panic, or an answer, for a request that is cut short.
    #[test]
    fn what_is_cut_short_is_refused() {
        let handler = Noting::default();
        let value = SetxattrIn { size: 9, flags: 0 };
        for (opcode, op, data) in [
            (Opcode::Rename2, &b"1234"[..], &b"a\0b\0"[..]),
            (Opcode::Unlink, b"", b"no end"),
            (Opcode::Setxattr, value.as_bytes(), b"n\0short"),
            (Opcode::Getattr, b"", b""),
        ] {
            assert_eq!(ask(&handler, opcode, op, data), Some(Err(Errno::INVAL)), "{opcode:?}");
        }
        assert!(handler.0.into_inner().unwrap().is_empty());
    }

    #[test]
    fn the_length_of_a_value_is_told_and_obeyed() {
        let handler = Noting::default();
        let get = |size| {
            let op = GetxattrIn { size, padding: 0 };
            ask(&handler, Opcode::Getxattr, op.as_bytes(), b"n\0").unwrap()
        };
        assert_eq!(get(0), Ok(GetxattrOut { size: 5, padding: 0 }.as_bytes().to_vec()));
        assert_eq!(get(4), Err(Errno::RANGE));
        assert_eq!(get(5), Ok(b"value".to_vec()));
    }
}
