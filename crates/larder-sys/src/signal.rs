//! Signals: masks, handlers, and sending one to a thread.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

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

/// Whether a signal that the calling thread masks waits for it, or for any thread of the process.
pub fn waits(signal: i32) -> bool {
    let mut waiting = 0u64;
    // SAFETY: asks only, with room for the kernel's set.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, KERNEL_SET) };
    waiting & (1 << (signal - 1)) != 0
}

/// A handler with the three arguments of `SA_SIGINFO`.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Defines a [`Handler`] that aligns its stack, then calls a function with the same arguments.
///
/// The kernel aligns the stack as for any call. QEMU's emulator of user programs leaves it eight bytes off (7.2, Debian 12's): there the first
/// aligned store of a vector register in a handler is a fault.
#[macro_export]
macro_rules! handler {
    ($(#[$meta:meta])* $visible:vis fn $name:ident => $body:path) => {
        $(#[$meta])*
        #[unsafe(naked)]
        $visible extern "C" fn $name(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "and rsp, -16",
                "call {body}",
                "mov rsp, rbp",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                body = sym $body,
            )
        }
    };
}

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

/// Masks, for the calling thread, every signal but that one and those of faults; returns the mask before.
pub fn mask_all_but(signal: i32) -> Mask {
    let mut mask = Mask::all_but_faults();
    mask.remove(signal);
    mask.set()
}

/// Takes a signal out of the calling thread's mask; returns the mask before.
pub fn unblock(signal: i32) -> Mask {
    let bit = 1u64 << (signal - 1);
    // SAFETY: both sets are valid; the kernel's is the first word of the C library's.
    unsafe {
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const bit, &raw mut old, KERNEL_SET);
        Mask(old)
    }
}

/// What handles a signal now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handling {
    /// The handler's address, or `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// Whether the handler takes three arguments.
    pub has_context: bool,
}

impl Handling {
    /// Calls the handler, if it is one.
    ///
    /// # Safety
    /// The handler was installed for this signal, and the arguments are those of a handler that runs now.
    pub unsafe fn call(self, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        if self.handler == libc::SIG_DFL || self.handler == libc::SIG_IGN {
            return;
        }
        // As the kernel does, all three arguments for every handler: one that takes a single one does not look at the others' registers,
        // and the interposed calls' own handler looks at them whatever the client's takes.
        // SAFETY: the caller's promise.
        unsafe { core::mem::transmute::<usize, Handler>(self.handler)(signal, info, context) };
    }
}

/// What handles the signal now, as the kernel knows it: the C library's function may be interposed, and then says what the
/// client asked for.
pub fn handling(signal: i32) -> Handling {
    /// The kernel's `sigaction` on x86-64.
    #[repr(C)]
    #[derive(Default)]
    struct Action {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    const _: () = assert!(size_of::<Action>() == 24 + KERNEL_SET);
    let mut action = Action::default();
    // SAFETY: asks only, with room for the answer.
    unsafe {
        let none = ptr::null::<Action>();
        libc::syscall(libc::SYS_rt_sigaction, signal, none, &raw mut action, KERNEL_SET)
    };
    Handling { handler: action.handler, has_context: action.flags & libc::SA_SIGINFO as u64 != 0 }
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
    /// A stack of which the kernel says nothing while a handler runs there: it was set up with SS_AUTODISARM.
    pub fn disarmed(low: usize, high: usize) -> Self {
        Self { low, high }
    }

    /// The stack pointer that was interrupted when the thread entered this stack.
    ///
    /// The kernel's frame at the top of the stack holds a `ucontext` that names the stack itself; it is looked for from the
    /// top down to `from`. Other memory that names the stack (what `sigaltstack` returned to somebody) is told apart by what the
    /// kernel saves beside it: the code segment of user programs, and where on this stack the vector registers are. Below that frame there
    /// may be what is left of others, in words that later frames did not write: with any stack pointer.
    ///
    /// # Safety
    /// `[from, high)` is the calling thread's stack, in use.
    pub unsafe fn interrupted(self, from: usize) -> Option<usize> {
        let mut at = (self.high / 8 * 8).checked_sub(size_of::<libc::ucontext_t>().next_multiple_of(8))?;
        while at >= from {
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
            at -= 8;
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
    /// The kernel does not let us, by this errno: a sandbox forbids the calls.
    Refused(i32),
}

/// What a signal of [`send`] carries.
static OURS: u8 = 0;

/// Whether [`send`] ever had to use the call that says only which process sent.
///
/// Sync: set before such a signal is sent, which orders it for the handler.
static PLAIN: AtomicBool = AtomicBool::new(false);

/// Who sent a signal, as far as a handler's argument tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// [`send`] did.
    Here,
    /// Somebody else.
    Other,
    /// It does not tell: signals that the kernel may not queue any more (RLIMIT_SIGPENDING) arrive without a sender.
    Unsaid,
}

/// Who sent the signal.
///
/// # Safety
/// `info` is what the kernel gave to a handler.
pub unsafe fn sender(info: *const libc::siginfo_t) -> Sender {
    // SAFETY: the caller's promise; signals with these codes have a value, or the number of a process.
    unsafe {
        match (*info).si_code {
            libc::SI_QUEUE if (*info).si_value().sival_ptr == (&raw const OURS).cast_mut().cast() => Sender::Here,
            libc::SI_USER if (*info).si_pid() == 0 => Sender::Unsaid,
            libc::SI_TKILL if PLAIN.load(Ordering::Relaxed) && (*info).si_pid() == libc::getpid() => Sender::Unsaid,
            _ => Sender::Other,
        }
    }
}

/// Sends a signal to one thread of this process, in a way that [`sender`] tells apart; 0 asks only whether it is
/// there.
pub fn send(tid: i32, signal: i32) -> Result<(), SendError> {
    /// `siginfo_t` as the kernel has it for queued signals.
    #[repr(C)]
    struct Queued {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        pid: i32,
        uid: u32,
        value: *const u8,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());
    // SAFETY: the structure is whole; neither call takes another pointer.
    let r = unsafe {
        let pid = libc::getpid();
        let info = Queued {
            signal,
            errno: 0,
            code: libc::SI_QUEUE,
            padding: 0,
            pid,
            uid: libc::getuid(),
            value: &raw const OURS,
            rest: [0; 12],
        };
        let queued = signal != 0 && libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) == 0;
        if queued {
            0
        } else {
            if signal != 0 && crate::memory::errno() != libc::ESRCH {
                // A sandbox allows only the older call.
                PLAIN.store(true, Ordering::Relaxed);
            }
            libc::syscall(libc::SYS_tgkill, pid, tid, signal)
        }
    };
    if r == 0 {
        return Ok(());
    }
    Err(match crate::memory::errno() {
        libc::EAGAIN => SendError::Again,
        libc::ESRCH => SendError::Gone,
        errno => SendError::Refused(errno),
    })
}

#[cfg(test)]
mod tests {
    use core::arch::naked_asm;
    use core::ptr;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::cell::Cell;

    std::thread_local! {
        /// What the handler's body was called with, and how far its stack was from an aligned one.
        static SEEN: Cell<(i32, usize, usize, usize)> = const { Cell::new((0, 0, 0, 99)) };
    }

    #[unsafe(naked)]
    extern "C" fn body(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        naked_asm!("lea rcx, [rsp + 8]", "and ecx, 15", "jmp {}", sym note)
    }

    extern "C" fn note(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, off: usize) {
        SEEN.set((number, info.addr(), context.addr(), off));
    }

    handler!(fn aligned => body);

    /// Calls the handler with a stack that is so many bytes off.
    #[unsafe(naked)]
    extern "C" fn call(number: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, off: usize) {
        naked_asm!(
            "push rbx",
            "mov rbx, rcx",
            "sub rsp, rbx",
            "call {aligned}",
            "add rsp, rbx",
            "pop rbx",
            "ret",
            aligned = sym aligned,
        )
    }

    /// What a handler found on an alternate stack: the stack pointer that the kernel saved, and what [`super::AlternateStack::interrupted`] says
    /// with the remains of another frame below, whose stack pointer was written over.
    static FOUND: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

    extern "C" fn look(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let stack = super::alternate_stack_in_use().expect("the handler runs on one");
        // SAFETY: plain data.
        let mut remains: libc::ucontext_t = unsafe { ptr::read(context) };
        remains.uc_mcontext.gregs[libc::REG_RSP as usize] = 0x20;
        let remains = std::hint::black_box(&mut remains);
        // SAFETY: this stack, from the remains on.
        let found = unsafe { stack.interrupted(ptr::from_mut(remains).addr()) };
        FOUND[0].store(context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize, Ordering::Relaxed);
        FOUND[1].store(found.unwrap_or(0), Ordering::Relaxed);
    }

    #[test]
    fn remains_of_frames_are_not_taken_for_the_one_at_the_top_of_the_alternate_stack() {
        // A thread of its own: its stack for signals is nobody else's.
        std::thread::spawn(|| {
            let mut stack = vec![0_u8; 1 << 16];
            // SAFETY: the stack outlives its use, and the handler has the signature of SA_SIGINFO.
            unsafe {
                let own = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
                assert_eq!(libc::sigaltstack(&own, ptr::null_mut()), 0);
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = look as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGURG, &action, ptr::null_mut()), 0);
                assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGURG), 0);
                let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
                assert_eq!(libc::sigaltstack(&none, ptr::null_mut()), 0);
            }
            let [saved, found] = FOUND.each_ref().map(|word| word.load(Ordering::Relaxed));
            assert!(saved != 0);
            assert_eq!(found, saved);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_handler_aligns_its_stack_and_passes_its_arguments_on() {
        for off in [0, 8] {
            call(7, ptr::without_provenance_mut(16), ptr::without_provenance_mut(32), off);
            assert_eq!(SEEN.get(), (7, 16, 32, 0), "{off} bytes off");
        }
    }
}
