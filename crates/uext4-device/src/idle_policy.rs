//! The scheduling policy for work that may wait.

use std::io;
use std::marker::PhantomData;
use std::thread;

/// While this lives, the thread that made it runs under `SCHED_IDLE` (sched(7)): it gives way to
/// all others, and a processor that runs only such threads counts as idle.
#[derive(Debug)]
#[must_use = "the policy ends when this is dropped"]
pub struct IdlePolicy {
    // Of this thread.
    _not_send: PhantomData<*const ()>,
}

impl IdlePolicy {
    /// Gives way to others.
    ///
    /// # Errors
    /// None is known for a thread that [`IdlePolicy::can_be_left`].
    pub fn enter() -> io::Result<Self> {
        set(libc::SCHED_IDLE)?;
        Ok(Self { _not_send: PhantomData })
    }

    /// Whether this process may leave the policy again: an ordinary user may not, unless
    /// `RLIMIT_NICE` says so. Also `false` under any policy but the usual one, which somebody has
    /// chosen.
    #[must_use]
    pub fn can_be_left() -> bool {
        // Tried by a thread that is not needed any more.
        let tries = || current() == libc::SCHED_OTHER && Self::enter().is_ok_and(Self::leave);
        thread::Builder::new().spawn(tries).is_ok_and(|thread| thread.join().unwrap_or(false))
    }

    fn leave(self) -> bool {
        drop(self);
        current() == libc::SCHED_OTHER
    }
}

impl Drop for IdlePolicy {
    fn drop(&mut self) {
        // Where it fails, `can_be_left` has said so.
        let _ = set(libc::SCHED_OTHER);
    }
}

/// By the kernel's call: musl has a function of that name that always fails, as POSIX means a
/// process by its first argument and Linux a thread.
fn set(policy: libc::c_int) -> io::Result<()> {
    // The kernel's structure of parameters has one field, the priority.
    let priority: libc::c_int = 0;
    let this_thread: libc::pid_t = 0;
    // SAFETY: the address is of a value that outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, this_thread, policy, &raw const priority)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current() -> libc::c_int {
    let this_thread: libc::pid_t = 0;
    // SAFETY: takes no address.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, this_thread) };
    // Policies are small; a failure is -1.
    policy.try_into().unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_of_one_thread_and_ends() {
        if !IdlePolicy::can_be_left() {
            eprintln!("skipped: this process may not leave SCHED_IDLE");
            return;
        }
        thread::spawn(|| {
            let policy = IdlePolicy::enter().unwrap();
            assert_eq!(current(), libc::SCHED_IDLE);
            let other = thread::scope(|scope| scope.spawn(|| ()).join());
            other.unwrap();
            drop(policy);
            assert_eq!(current(), libc::SCHED_OTHER);
        })
        .join()
        .unwrap();
        assert_eq!(current(), libc::SCHED_OTHER);
    }
}
