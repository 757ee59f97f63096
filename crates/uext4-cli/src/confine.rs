//! What the daemon of a mount gives up before it answers the first request.
//!
//! Threat: an image or a program on the mount makes a thread of the daemon run the attacker's code.
//! That thread has the image and the connection to the kernel, and is to have nothing else: no
//! other file, no program, no network, no other process, no mount. With an image on a network block
//! device it has the port of that server, and sockets; with one of Ceph, sockets.
//!
//! What: a [`Confinement`] is Landlock, for the calling thread and those that it starts: no file
//! can be opened but a few, no TCP port used, no signal sent to others; and they lose rights of
//! root that open what Landlock leaves open. [`calls`] is seccomp, for all threads: system calls
//! that no mount needs fail with `EPERM`. Both set no_new_privs. What must be done outside
//! afterwards, to unmount, is another process's: see [`crate::keeper`].
//!
//! Not covered: requests of io_uring pass seccomp by, so that a socket of another kind than TCP can
//! be had through a ring. What was open before stays open: the image, standard error in the
//! foreground, the socket of the service manager. The system's log can be written to. Threads of
//! librados, of an image of Ceph, are there before: seccomp holds for them, Landlock does not.
//!
//! Invariants: a kernel that lacks one of them, or a part of it, goes on without; the log says so
//! at its level of debugging.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::Path;
use std::thread;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use uext4_fuse::mountinfo;

/// Rights are asked for up to this version. Later ones would take connecting to /dev/log away.
const VERSION: ABI = ABI::V6;

/// The files that a mount opens while it is served, ready to be all that is left.
pub(crate) struct Confinement {
    /// `None`: not on this kernel.
    rules: Option<RulesetCreated>,
}

impl Confinement {
    /// Rules for a mount that writes to `images`, an image or its overlay, and a journal that is
    /// elsewhere, and that reads `base`. All are opened again by way of /proc. Servers of network
    /// block devices are reached again at `ports`.
    ///
    /// # Errors
    /// No descriptor or no memory is left: rules made of what could be opened would be too narrow.
    pub(crate) fn new<'a>(
        images: impl IntoIterator<Item = &'a Path>,
        base: Option<&Path>,
        ports: &[u16],
    ) -> io::Result<Self> {
        match rules(images, base, ports) {
            Ok(rules) => Ok(Self { rules: Some(rules) }),
            Err(error) => match shortage(error.as_ref()) {
                Some(shortage) => Err(shortage),
                None => {
                    tracing::debug!("mount: no Landlock: {error}");
                    Ok(Self { rules: None })
                }
            },
        }
    }

    /// Calls `work` on a thread that is confined, and so are the threads that it starts.
    ///
    /// # Errors
    /// What the system says of a new thread.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let starter = thread::Builder::new().name("uext4-start".to_owned());
            let starter = starter.spawn_scoped(scope, || {
                self.enter();
                work()
            })?;
            Ok(starter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Confines the calling thread, and those that it starts from now on.
    pub(crate) fn enter(&self) {
        if let Err(error) = drop_rights() {
            tracing::debug!("mount: rights of root are kept: {error}");
        }
        if let Some(Err(error)) = self.rules.as_ref().map(|rules| restrict(rules.try_clone())) {
            tracing::debug!("mount: no Landlock: {error}");
        }
    }

    /// Confines the thread that has mounted, and those that it starts from now on. The mount's
    /// device has its read-ahead set.
    pub(crate) fn enter_mounted(&self, device: Option<(u32, u32)>) {
        let Some(rules) = &self.rules else { return self.enter() };
        let with_device = || -> Result<RulesetCreated, Box<dyn Error>> {
            let device = device.ok_or("no device")?;
            let (bdi, connection) = (mountinfo::bdi(device), mountinfo::connection(device));
            let mut rules = rules.try_clone()?;
            // The read-ahead, and the limits of the connection, where they are to be seen.
            for place in [
                format!("/sys/devices/virtual/bdi/{bdi}"),
                format!("/sys/fs/fuse/connections/{connection}"),
            ] {
                if let Ok(place) = PathFd::new(place) {
                    let rights = AccessFs::ReadFile | AccessFs::WriteFile;
                    rules = rules.add_rule(PathBeneath::new(place, rights))?;
                }
            }
            Ok(rules)
        };
        // A mount works with what the kernel has set.
        match with_device() {
            Ok(rules) => Self { rules: Some(rules) }.enter(),
            Err(_) => self.enter(),
        }
    }
}

fn restrict(rules: io::Result<RulesetCreated>) -> Result<(), Box<dyn Error>> {
    let status = rules?.restrict_self()?.ruleset;
    match status {
        RulesetStatus::FullyEnforced => {}
        _ => tracing::debug!("mount: Landlock of this kernel: {status:?}"),
    }
    Ok(())
}

fn rules<'a>(
    images: impl IntoIterator<Item = &'a Path>,
    base: Option<&Path>,
    ports: &[u16],
) -> Result<RulesetCreated, Box<dyn Error>> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile.into();
    let own = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let places = [
        // The groups of a caller, the table of mounts.
        (Path::new("/proc"), read),
        // How many processors there are for this process.
        (Path::new("/sys/devices/system"), read),
        (Path::new("/sys/fs/cgroup"), read),
        // What the kernel's side of FUSE can do.
        (Path::new("/sys/module/fuse"), read),
        // Each worker has its own clone of the connection.
        (Path::new("/dev/fuse"), own),
    ];
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?;
    let images = images.into_iter().map(|image| (image, own));
    let base = base.map(|base| (base, read));
    for (path, rights) in places.into_iter().chain(images).chain(base) {
        match PathFd::new(path) {
            Ok(place) => rules = rules.add_rule(PathBeneath::new(place, rights))?,
            // What is not there is not needed either.
            Err(error) if shortage(&error).is_none() => {}
            Err(error) => return Err(error.into()),
        }
    }
    for port in ports {
        rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    Ok(rules)
}

/// The error beneath others, if it says that something has run out.
fn shortage(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let errno = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    match errno {
        Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
            Some(io::Error::from_raw_os_error(errno))
        }
        _ => error.source().and_then(shortage),
    }
}

/// Takes system calls that no mount needs from every thread of the process. With a network, sockets
/// of the Internet stay: a server is reached again by new ones.
pub(crate) fn calls(has_network: bool) {
    for program in [never(has_network), no_clone3()] {
        let done = program.and_then(|program| Ok(seccompiler::apply_filter_all_threads(&program)?));
        if let Err(error) = done {
            tracing::debug!("mount: no seccomp: {error}");
        }
    }
}

/// Rights that a daemon of root has no use for. /proc/kcore, the kernel's memory, is among what
/// they open.
fn drop_rights() -> rustix::io::Result<()> {
    let unused = CapabilitySet::SYS_RAWIO
        | CapabilitySet::SYS_MODULE
        | CapabilitySet::SYS_BOOT
        | CapabilitySet::SYS_TIME
        | CapabilitySet::SYS_CHROOT
        | CapabilitySet::SYS_TTY_CONFIG
        | CapabilitySet::SYS_PACCT
        | CapabilitySet::SYSLOG
        | CapabilitySet::MKNOD
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::SETPCAP
        | CapabilitySet::SETFCAP
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::NET_BIND_SERVICE;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective -= unused;
    sets.permitted -= unused;
    sets.inheritable -= unused;
    rustix::thread::set_capabilities(None, sets)
}

/// System calls that fail whatever their arguments are.
const NEVER: &[libc::c_long] = &[
    // Programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Code and settings of the kernel.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Mounts and name spaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // Files by number rather than by path.
    libc::SYS_open_by_handle_at,
    // Other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
];

/// Name spaces that clone(2) would make.
const NAME_SPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The filter of what is refused.
fn never(has_network: bool) -> Result<BpfProgram, Box<dyn Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        NEVER.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_iopl, libc::SYS_ioperm].map(|call| (call, Vec::new())));
    // Sockets of this machine alone: the system's log is one.
    let kinds: &[libc::c_int] = match has_network {
        true => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
        false => &[libc::AF_UNIX],
    };
    let other = kinds.iter().map(|kind| {
        let kind = u64::from(kind.unsigned_abs());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, kind)
    });
    let other = SeccompRule::new(other.collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![other]);
    let flags = (0..32).map(|bit| 1_u64 << bit);
    let flags = flags.filter(|flag| u64::from(NAME_SPACES.cast_unsigned()) & flag != 0);
    let clone: Result<_, _> =
        flags.map(|flag| first_argument(SeccompCmpOp::MaskedEq(flag), flag)).collect();
    rules.insert(libc::SYS_clone, clone?);
    program(rules, libc::EPERM)
}

/// clone3(2) hides its flags from a filter. A program that finds it missing uses clone(2).
fn no_clone3() -> Result<BpfProgram, Box<dyn Error>> {
    program([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)
}

fn first_argument(how: SeccompCmpOp, value: u64) -> seccompiler::Result<SeccompRule> {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Dword, how, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: libc::c_int,
) -> Result<BpfProgram, Box<dyn Error>> {
    let refused = SeccompAction::Errno(errno.unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, machine)?.try_into()?)
}

#[cfg(test)]
mod tests;
