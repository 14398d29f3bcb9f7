//! Signals: masks, handlers, and sending one to a thread.

use core::ptr;

/// The signal by which glibc cancels a thread. Its functions leave it out of every set that they make or apply.
const SIGCANCEL: u32 = 32;
/// Bytes of a set of signals, as the kernel counts.
const KERNEL_SET: usize = 8;

/// Selector of the code segment in which 64-bit programs run (`__USER_CS`).
const USER_CODE: u16 = 0x33;

/// A set of signals.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

impl Mask {
    /// Every signal.
    pub fn all() -> Self {
        // SAFETY: a sigset_t is plain data and sigfillset initialises it.
        unsafe {
            let mut set = core::mem::zeroed();
            libc::sigfillset(&mut set);
            Self(set)
        }
    }

    /// Every signal except those that an instruction raises: masking these would turn a fault into silent death.
    ///
    /// Cancellation is masked too: a thread that is parked where it may be cancelled at once (in poll, say) would leave
    /// the handler by unwinding, in the middle of a stop, and keep the handler's mask.
    pub fn all_but_faults() -> Self {
        let mut set = Self::all();
        // SAFETY: the first word of a set holds the signals 1 to 64, in order.
        unsafe { *(&raw mut set.0).cast::<u64>() |= 1 << (SIGCANCEL - 1) };
        for s in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT] {
            set.remove(s);
        }
        set
    }

    /// Takes a signal out of the set.
    pub fn remove(&mut self, signal: i32) {
        // SAFETY: the set is initialised.
        unsafe { libc::sigdelset(&mut self.0, signal) };
    }

    /// Makes this the calling thread's mask; returns the old one.
    pub fn set(&self) -> Mask {
        // The system call, because pthread_sigmask leaves cancellation alone.
        // SAFETY: both sets are valid and longer than the kernel's.
        unsafe {
            let mut old: libc::sigset_t = core::mem::zeroed();
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.0, &raw mut old, KERNEL_SET);
            Mask(old)
        }
    }

    /// The underlying set.
    pub fn as_raw(&self) -> &libc::sigset_t {
        &self.0
    }
}

/// A handler with the three arguments of `SA_SIGINFO`.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler that runs with `masked` blocked and restarts interrupted calls (`SA_RESTART`).
///
/// # Safety
/// The handler is async-signal-safe.
pub unsafe fn install(signal: i32, handler: Handler, masked: &Mask) -> bool {
    // SAFETY: the action is fully initialised; the caller vouches for the handler.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        action.sa_mask = masked.0;
        libc::sigaction(signal, &action, ptr::null_mut()) == 0
    }
}

/// Takes a signal out of the calling thread's mask.
pub fn unblock(signal: i32) {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set = core::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
    }
}

/// The alternate signal stack that the calling thread runs on.
#[derive(Clone, Copy, Debug)]
pub struct AlternateStack {
    low: usize,
    /// One past its highest address.
    pub high: usize,
}

/// The alternate stack that the caller's frames are on, or `None` on an ordinary stack.
pub fn alternate_stack_in_use() -> Option<AlternateStack> {
    // SAFETY: asks only; the structure is plain data.
    let stack = unsafe {
        let mut stack: libc::stack_t = core::mem::zeroed();
        if libc::sigaltstack(ptr::null(), &mut stack) != 0 {
            return None;
        }
        stack
    };
    let low = stack.ss_sp.addr();
    (stack.ss_flags & libc::SS_ONSTACK != 0).then_some(AlternateStack { low, high: low + stack.ss_size })
}

impl AlternateStack {
    /// The stack pointer that was interrupted when the thread entered this stack.
    ///
    /// The kernel's frame at the top of the stack holds a `ucontext` that names the stack itself; it is looked for from
    /// `from` upward. Other memory that names the stack (what `sigaltstack` returned to somebody) is told apart by what the
    /// kernel saves beside it: the code segment of user programs, and where on this stack the vector registers are.
    ///
    /// # Safety
    /// `[from, high)` is the calling thread's stack, in use.
    pub unsafe fn interrupted(self, from: usize) -> Option<usize> {
        let mut at = from.next_multiple_of(8);
        while at + size_of::<libc::ucontext_t>() <= self.high {
            // SAFETY: the context would end inside the stack; any bytes are a valid one.
            let context = unsafe { &*ptr::with_exposed_provenance::<libc::ucontext_t>(at) };
            let saved = &context.uc_mcontext;
            if context.uc_stack.ss_sp.addr() == self.low
                && context.uc_stack.ss_size == self.high - self.low
                && saved.gregs[libc::REG_CSGSFS as usize] as u16 == USER_CODE
                && (self.low..self.high).contains(&vector_registers(saved))
            {
                let sp = saved.gregs[libc::REG_RSP as usize] as usize;
                // A frame of a handler that was interrupted while it ran here names this stack too.
                if !(self.low..self.high).contains(&sp) {
                    return Some(sp);
                }
            }
            at += 8;
        }
        None
    }
}

/// Where the kernel saved the vector registers. C libraries name the field differently; it follows the general registers.
fn vector_registers(saved: &libc::mcontext_t) -> usize {
    // SAFETY: the field is part of the context, which the caller holds.
    unsafe { (&raw const saved.gregs).add(1).cast::<usize>().read() }
}

/// Why a signal could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no such thread (any more).
    Gone,
    /// The kernel's queue is full; try again.
    Again,
}

/// Sends a signal to one thread of this process.
pub fn send(tid: i32, signal: i32) -> Result<(), SendError> {
    // SAFETY: tgkill takes no pointers.
    let r = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
    if r == 0 {
        return Ok(());
    }
    if crate::memory::errno() == libc::EAGAIN { Err(SendError::Again) } else { Err(SendError::Gone) }
}
