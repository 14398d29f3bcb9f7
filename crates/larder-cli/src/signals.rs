//! The signals that the tool takes while a program runs: it passes on what was sent to it, and learns of children's ends.
//!
//! Signals that are ignored stay ignored through an exec, and what starts the tool may count on it: a service manager, for one, ignores
//! SIGPIPE for a service that would die of a lost connection. The tool has a use of its own for three signals ([`Ignored`]), and gives
//! them to the program as it found them.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Passed on to the program when somebody sends them to the tool.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Runs before `main`: there Rust's runtime has the process ignore SIGPIPE, and nobody can tell any more what was before.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_IGNORED: extern "C" fn() = note_ignored;

/// A signal that may have been ignored when the tool was started.
struct Ignored {
    signal: libc::c_int,
    /// Whether it was.
    ///
    /// Sync: `Relaxed`, since it is written before there is a second thread.
    was: AtomicBool,
}

static IGNORED: [Ignored; 3] = [
    // Rust's runtime ignores it.
    Ignored { signal: libc::SIGPIPE, was: AtomicBool::new(false) },
    // Where it is ignored the kernel forgets how children ended, and nobody can wait for them.
    Ignored { signal: libc::SIGCHLD, was: AtomicBool::new(false) },
    // It would end the tool, and leave the program alone, where a log grows longer than files may be (`ulimit -f`). Ignored, the write fails.
    Ignored { signal: libc::SIGXFSZ, was: AtomicBool::new(false) },
];

extern "C" fn note_ignored() {
    for Ignored { signal, was } in &IGNORED {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: the structure is ours, and is read only where the call filled it in.
        unsafe {
            if libc::sigaction(*signal, std::ptr::null(), action.as_mut_ptr()) == 0 {
                was.store(action.assume_init().sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
            }
        }
    }
}

/// Has the kernel keep children until they are waited for, whatever the tool was started with, and let writes fail. Call it before the first child.
pub fn prepare() {
    // SAFETY: neither action runs code of ours.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Makes the three signals what they were when the tool was started. For a child between fork and exec: it makes system calls alone.
pub fn give_back() {
    for Ignored { signal, was } in &IGNORED {
        let action = if was.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: neither action runs code of ours.
        unsafe { libc::signal(*signal, action) };
    }
}

/// These signals, blocked and readable from a file; the old mask comes back on drop.
pub struct Signals {
    file: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks them in this thread. Call it while there is no other, and before the program is started.
    pub fn take() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are ours and are initialised by the calls before they are read.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in FORWARDED.into_iter().chain([libc::SIGCHLD]) {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let file = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            let file = OwnedFd::from_raw_fd(file);
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Signals { file, before: before.assume_init() })
        }
    }

    /// The mask that the program shall start with: the one from before.
    pub fn mask_before(&self) -> libc::sigset_t {
        self.before
    }

    /// Waits until a signal came or the time is over, and passes on to `program` what is for it.
    pub fn wait(&self, program: libc::pid_t, milliseconds: i32) {
        let mut wait = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element, which is ours.
        unsafe { libc::poll(&mut wait, 1, milliseconds) };
        while let Some(signal) = self.next() {
            let number = signal.ssi_signo as libc::c_int;
            // What the terminal sends (a positive code, from the kernel) it sends to the program too, which is in the same
            // group; passed on as well, the program would see it twice. What the program itself sent is no news to it.
            if number != libc::SIGCHLD && signal.ssi_code <= 0 && signal.ssi_pid != program as u32 {
                // SAFETY: the program was not waited for yet, so the number is still its own.
                unsafe { libc::kill(program, number) };
            }
        }
    }

    fn next(&self) -> Option<libc::signalfd_siginfo> {
        let mut signal = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let wanted = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is ours and has the length that is named.
        let got = unsafe { libc::read(self.file.as_raw_fd(), signal.as_mut_ptr().cast(), wanted) };
        // SAFETY: the kernel writes whole structures, so this one is complete.
        (got == wanted as isize).then(|| unsafe { signal.assume_init() })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `before` was filled in by the call that blocked.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
