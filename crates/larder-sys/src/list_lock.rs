//! The lock of the loader's list, in the child of a fork.
//!
//! A walk over the loader's list (`dl_iterate_phdr`) takes a lock that dlopen and dlclose hold while they change the list.
//! The C library gives the loader's other locks back in the child of a fork, but not this one: if another thread held it,
//! every walk in the child waits for a thread that is not there. So the child gives it back itself, for which it must know
//! where it is. It is the one mutex in the loader's data that the calling thread owns once more in a walk inside a walk.
//!
//! dlclose may have held it, which unmaps an object before it takes it from the list. An object that is listed and not
//! mapped when the child begins stays listed in it for ever; [`is_gone`] names it. There is one at most, since the loader lets
//! one thread at a time close.
//!
//! And a thread that is suspended on its own must not have the lock, which every cycle takes: [`may_be_held_by`].

use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::loader;
use crate::memory::{KeepErrno, errno};
use crate::thread::tid;

/// `pthread_mutex_t` of the C library, as its ABI fixes it.
#[repr(C)]
struct Mutex {
    lock: i32,
    count: u32,
    owner: i32,
    users: u32,
    kind: i32,
}

/// `PTHREAD_MUTEX_RECURSIVE_NP`.
const RECURSIVE: i32 = 1;

/// Where it is; null where it was not found. Sync: written at initialisation, a hint to nobody else.
static LOCK: AtomicPtr<Mutex> = AtomicPtr::new(ptr::null_mut());
/// The name, by its address, of the object that is listed and not mapped; null without one.
///
/// Sync: written by the only thread of a child.
static GONE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Calls `f` with every place in the loader's data where a mutex of the calling thread seems to be, and how often it is held.
fn for_each_own_mutex(mut f: impl FnMut(*mut Mutex, u32)) {
    // SAFETY: no preconditions.
    let base = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    let own = tid();
    loader::for_each_object(|object| {
        if base == 0 || object.base != base {
            return true;
        }
        object.writable_ranges(|low, high| {
            for at in (low.next_multiple_of(8)..high.saturating_sub(size_of::<Mutex>())).step_by(8) {
                let mutex = ptr::with_exposed_provenance_mut::<Mutex>(at);
                // SAFETY: mapped and readable; other threads may write to what is not the calling thread's mutex, of which
                // the comparison then tells.
                let seen = unsafe { mutex.read_volatile() };
                if seen.lock > 0 && seen.count > 0 && (seen.owner, seen.users, seen.kind) == (own, 1, RECURSIVE) {
                    f(mutex, seen.count);
                }
            }
        });
        false
    });
}

/// Looks for the lock. Without the C library's loader there is none to be found.
pub fn find() {
    let (mut outer, mut found) = ([(ptr::null_mut(), 0); 4], ptr::null_mut());
    let mut known = 0;
    for_each_own_mutex(|mutex, count| {
        if let Some(place) = outer.get_mut(known) {
            *place = (mutex, count);
            known += 1;
        }
    });
    loader::with_objects_held(|| {
        for_each_own_mutex(|mutex, count| {
            if outer.contains(&(mutex, count - 1)) {
                found = mutex;
            }
        });
    });
    LOCK.store(found, Ordering::Relaxed);
}

/// Gives the lock back that a thread of the parent may have held.
///
/// # Safety
/// The calling thread is the only one of a fork's child.
pub unsafe fn after_fork_in_child() {
    // SAFETY: `find` found a mutex there, and the loader is never unmapped.
    let Some(mutex) = (unsafe { LOCK.load(Ordering::Relaxed).as_mut() }) else { return };
    if mutex.lock == 0 {
        return;
    }
    *mutex = Mutex { lock: 0, count: 0, owner: 0, users: 0, kind: mutex.kind };
    let mut gone = ptr::null_mut();
    loader::for_each_listed(|name, headers| {
        if !headers.is_null() && !is_mapped(headers.addr()) {
            gone = name.cast_mut();
        }
    });
    GONE.store(gone, Ordering::Relaxed);
}

/// Whether a thread that stands still may hold the lock: it does, or somebody else is just taking it or giving it back. False where the lock was
/// not found.
pub fn may_be_held_by(thread: i32) -> bool {
    let mutex = LOCK.load(Ordering::Relaxed);
    if mutex.is_null() {
        return false;
    }
    // SAFETY: `find` found a mutex there, and the loader is never unmapped. Other threads write to it; what a thread wrote that stands still is
    // seen, since whoever asks has seen that it does.
    let seen = unsafe { mutex.read_volatile() };
    seen.lock != 0 && (seen.owner == thread || seen.owner == 0)
}

/// Runs `f` with the lock, if nobody else has it now. Where the lock was not found, `f` has to take it itself in any case, and may wait.
pub fn try_with<R>(f: impl FnOnce() -> R) -> Option<R> {
    let mutex = LOCK.load(Ordering::Relaxed).cast::<libc::pthread_mutex_t>();
    if mutex.is_null() {
        return Some(f());
    }
    // SAFETY: `find` found a mutex of the C library's there, which is never unmapped, and it is recursive.
    if unsafe { libc::pthread_mutex_trylock(mutex) } != 0 {
        return None;
    }
    let result = f();
    // SAFETY: taken above.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    Some(result)
}

/// Whether the page of an address is mapped.
fn is_mapped(address: usize) -> bool {
    const PAGE: usize = larder_units::PAGE.0;
    let _errno = KeepErrno::new();
    let mut resident = 0;
    // SAFETY: the kernel looks at addresses alone, and writes one byte.
    let r = unsafe { libc::mincore(ptr::without_provenance_mut(address & !(PAGE - 1)), 1, &mut resident) };
    r == 0 || errno() != libc::ENOMEM
}

/// Whether the listed object of this name, by the name's address, is not mapped any more.
pub(crate) fn is_gone(name: *const c_char) -> bool {
    !name.is_null() && ptr::eq(GONE.load(Ordering::Relaxed), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Forks while another thread is inside a walk, as it is while the loader unmaps an object.
    #[test]
    fn a_child_walks_the_list_that_another_thread_held() {
        find();
        assert!(!LOCK.load(Ordering::Relaxed).is_null());
        let (held, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loader::with_objects_held(|| {
                    held.wait();
                    done.wait();
                })
            });
            held.wait();
            // SAFETY: the child makes system calls and walks the list.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: a child that waits for ever is ended; it is alone.
                unsafe {
                    libc::alarm(900);
                    after_fork_in_child();
                    let mut objects = 0;
                    loader::for_each_object(|_| {
                        objects += 1;
                        true
                    });
                    libc::_exit(if objects > 1 { 7 } else { 1 });
                }
            }
            let mut status = 0;
            // SAFETY: a child of our own.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            done.wait();
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7), "status {status:#x}");
        });
    }

    #[test]
    fn a_lock_that_another_thread_has_is_not_waited_for() {
        find();
        let (held, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loader::with_objects_held(|| {
                    held.wait();
                    assert_eq!(try_with(|| 1), Some(1), "its own");
                    done.wait();
                })
            });
            held.wait();
            assert_eq!(try_with(|| 2), None);
            done.wait();
        });
    }

    #[test]
    fn what_is_mapped_is_told_from_what_is_not() {
        let local = 0;
        assert!(is_mapped((&raw const local).addr()));
        // SAFETY: a mapping of our own, which nobody uses.
        unsafe {
            let at = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert!(is_mapped(at.addr()));
            libc::munmap(at, 4096);
            assert!(!is_mapped(at.addr()));
        }
    }
}
