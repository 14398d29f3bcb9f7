//! fork, vfork and posix_spawn, from any thread at any time.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::collector::Collector;
use super::module::{self, Module};
use super::{Outcome, Scratch, failed};

/// How a child ends that found everything right.
const RIGHT: i32 = 7;

/// Seconds after which a child is taken for one that hangs, and ends. Sync: set before the first round.
pub static CHILD_SECONDS: AtomicU32 = AtomicU32::new(60);

/// A child that hangs must not be waited for forever.
fn limit_time() {
    // SAFETY: no preconditions.
    unsafe { libc::alarm(CHILD_SECONDS.load(Ordering::Relaxed)) };
}

/// What a child does: checks what it inherited, allocates, collects, and makes a thread where it may.
fn child(gc: &Collector, head: *mut c_void, seed: u64, makes_thread: bool) -> i32 {
    limit_time();
    let more = gc.chain(seed + 500);
    gc.collect();
    let result = gc
        .check(head, seed, "")
        .and_then(|()| {
            gc.crowd(
                usize::from(makes_thread),
                |_| {
                    let own = gc.chain(seed + 900);
                    gc.collect();
                    gc.check(own, seed + 900, "")
                },
                || {
                    gc.collect();
                    Ok(())
                },
            )
        })
        .and_then(|()| gc.check(more, seed + 500, ""));
    if result.is_ok() { RIGHT } else { 1 }
}

/// Waits for a child and says whether it found everything right.
fn outcome(pid: libc::pid_t) -> Result<(), Outcome> {
    let mut status = 0;
    loop {
        // SAFETY: a child of our own.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(failed(error));
        }
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == RIGHT {
        return Ok(());
    }
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return Err(Outcome::Failed("a child hung".into()));
    }
    Err(Outcome::Failed(format!("a child failed (status {status:#x})")))
}

/// Forks with the C library's function; the child uses the heap, and makes a thread.
pub fn forked(gc: &Collector, head: *mut c_void, seed: u64) -> Result<(), Outcome> {
    forked_and(gc, head, seed, true)
}

fn forked_and(gc: &Collector, head: *mut c_void, seed: u64, makes_thread: bool) -> Result<(), Outcome> {
    // SAFETY: the child calls the library, which handles forks, and ends by `_exit`.
    unsafe {
        match libc::fork() {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => {
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &none, null_mut());
                libc::_exit(child(gc, head, seed, makes_thread))
            }
            pid => outcome(pid),
        }
    }
}

/// Forks from several threads at once while another collects.
fn from_any_thread(
    gc: &Collector,
    fork: impl Fn(&Collector, *mut c_void, u64) -> Result<(), Outcome> + Sync,
) -> Result<(), Outcome> {
    gc.while_collecting(|| {
        gc.crowd(
            2,
            |number| {
                let seed = (number as u64 + 1) << 20;
                let head = gc.chain(seed);
                for _ in 0..3 {
                    fork(gc, head, seed)?;
                    gc.churn();
                }
                gc.check(head, seed, "what a forking thread's stack points to")
            },
            || {
                let head = gc.chain(1);
                fork(gc, head, 1)
            },
        )
    })
}

/// `GC_set_handle_fork(1)`: the library handles every fork.
pub fn handled(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    from_any_thread(gc, forked)
}

/// Threads fork while others load and unload objects: a child walks the loader's list in each of its cycles, whatever was
/// being done to the list when it came into being. Its heap is large enough for several markers.
///
/// The child makes no thread, and its heap must not make one either. glibc keeps what it knows of thread-local storage as the fork
/// found it, in the middle of a change, and its pthread_create then ends the process with "Inconsistency detected by ld.so" and
/// status 127: 26 of 8850 children of a program that does nothing but dlopen, fork and pthread_create (glibc 2.36).
pub fn beside_loading(gc: &Collector, scratch: &Scratch) -> Result<(), Outcome> {
    const LOADING: usize = 2;
    const FORKING: usize = 2;
    /// More than one marker's work.
    const LONG_BYTES: usize = 4 << 20;
    let paths: Vec<_> = (0..LOADING).map(|i| scratch.file(&format!("beside-{i}.so"))).collect();
    for path in &paths {
        module::write(path, 64).map_err(failed)?;
    }
    let forking = AtomicUsize::new(FORKING);
    gc.crowd(
        LOADING + FORKING,
        |number| {
            let seed = (number as u64 + 1) << 20;
            let head = gc.chain(seed);
            let long = std::hint::black_box((gc.GC_malloc)(LONG_BYTES));
            if let Some(path) = paths.get(number) {
                while forking.load(Ordering::Relaxed) > 0 {
                    drop(Module::load(path).map_err(Outcome::Failed)?);
                }
            } else {
                let result = (0..4).try_for_each(|_| forked_and(gc, head, seed, false));
                forking.fetch_sub(1, Ordering::Relaxed);
                result?;
            }
            std::hint::black_box(long);
            gc.check(head, seed, "what a thread's stack points to")
        },
        || Ok(()),
    )
}

/// `GC_set_handle_fork(0)`: the child of a plain fork execs, as it must on libgc.
pub fn not_handled(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    from_any_thread(gc, |_, _, _| {
        // SAFETY: the child calls only what is safe after a fork of a threaded process.
        match unsafe { libc::fork() } {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => exec(),
            pid => outcome(pid),
        }
    })
}

/// `GC_set_handle_fork(-1)`: the program announces a fork by system call itself, and the child uses the heap.
pub fn announced(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    from_any_thread(gc, |gc, head, seed| {
        (gc.GC_atfork_prepare)();
        // The C library's own locks are not handled by a system call, so the child touches the heap alone.
        // SAFETY: the fork is announced, and the child ends by `_exit`.
        let pid = unsafe { libc::syscall(libc::SYS_fork) } as libc::pid_t;
        match pid {
            -1 => {
                (gc.GC_atfork_parent)();
                Err(failed(std::io::Error::last_os_error()))
            }
            0 => {
                (gc.GC_atfork_child)();
                limit_time();
                gc.churn();
                let fine = gc.check(head, seed, "").is_ok();
                // SAFETY: ends the child.
                unsafe { libc::_exit(if fine { RIGHT } else { 1 }) }
            }
            pid => {
                (gc.GC_atfork_parent)();
                outcome(pid)
            }
        }
    })
}

const SHELL: &std::ffi::CStr = c"/bin/sh";
const COMMAND: [&std::ffi::CStr; 3] = [c"sh", c"-c", c"exit 7"];

/// Becomes a program that ends with [`RIGHT`].
fn exec() -> ! {
    let arguments = [COMMAND[0].as_ptr(), COMMAND[1].as_ptr(), COMMAND[2].as_ptr(), null()];
    let environment = [null()];
    // SAFETY: terminated texts in terminated lists.
    unsafe {
        libc::execve(SHELL.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        libc::_exit(1)
    }
}

/// vfork and exec, while others allocate and collect.
pub fn vforked(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    from_any_thread(gc, |_, _, _| {
        // By its name, since the C library may be asked for another one by then. The child only execs.
        #[allow(deprecated)]
        // SAFETY: the child calls execve and `_exit` alone.
        match unsafe { libc::vfork() } {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => exec(),
            pid => outcome(pid),
        }
    })
}

/// posix_spawn, while others allocate and collect.
pub fn spawned(gc: &Collector, _: &Scratch) -> Result<(), Outcome> {
    from_any_thread(gc, |_, _, _| {
        let arguments = COMMAND.map(|word| word.as_ptr().cast_mut());
        let arguments = [arguments[0], arguments[1], arguments[2], null_mut()];
        let environment: [*mut libc::c_char; 1] = [null_mut()];
        let mut pid = 0;
        // SAFETY: terminated texts in terminated lists.
        let error = unsafe {
            libc::posix_spawn(&mut pid, SHELL.as_ptr(), null(), null(), arguments.as_ptr(), environment.as_ptr())
        };
        if error == 0 { outcome(pid) } else { Err(failed(std::io::Error::from_raw_os_error(error))) }
    })
}
