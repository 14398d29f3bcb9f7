//! `mprotect` and SIGSEGV, as in the thesis (5.2): a write to a protected page raises a signal, whose handler makes the
//! page writable and remembers it.
//!
//! | step | handler, on the thread that wrote | `fetch`, which makes clean |
//! |---|---|---|
//! | 1 | makes the page (and its neighbours, see below) writable | takes the bits of the bitmap and sets them to 0 |
//! | 2 | sets the page's bit | protects those pages |
//! | 3 | returns; the write is done again | tells them |
//!
//! A write between the handler's two steps finds its page writable, and the bit comes later: the page is not protected
//! before its bit was taken, so nothing is lost. The handler masks every signal but faults: a stopped thread is never
//! between its steps, so the last `fetch`, in a stopped world, misses no bit. If `fetch` takes a bit and a second thread's
//! late handler makes the page writable again, that handler sets the bit once more. Were a thread stopped between its steps, another one's write
//! to the page, which is writable, would be missed.
//!
//! **Neighbours** (thesis 5.2.1): pages beside the written one that hold nothing yet will be written soon, so they are made
//! writable with it, in one call. Whoever watches says by [`set_neighbours`] which these are; they count as written.
//!
//! **The client's handler.** Faults elsewhere are passed on to whatever handler was installed when the watch began: with
//! its mask and its three arguments, or to the default action. A handler that the client installs while a watch is on
//! replaces ours, and the next write kills it; `larder run` and programs that do so should use another kind. A fault in the range
//! may be raised just before the watch ends and handled after it: the instruction is tried again, and only a second fault there is the client's.
//!
//! Each protected run is a mapping of its own to the kernel, which allows 65530 of them: where `mprotect` is refused, the
//! whole range is made writable and counts as written. At once, if need be: that only joins mappings, while a piece of a mapping is one more.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use larder_units::{Bytes, PAGE};

use super::WatchError;
use crate::memory::{self, KeepErrno};
use crate::signal::Mask;
use crate::tls;

/// First and one past the last address of the watched range; equal while there is none. Sync: written by `attach`, before any page is
/// protected.
static LOW: AtomicUsize = AtomicUsize::new(0);
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// A bit for each page of the range: it was written. Sync: see the module.
static BITS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Everything counts as written. Sync: the handler sets it after it has made everything writable; `begin` clears it.
static ALL: AtomicBool = AtomicBool::new(false);
/// The complement of the end of what is watched now: an object may begin there, and where the runtime is linked into the program its
/// data are roots. Sync: written by `begin`, before pages are protected.
static HIDDEN_END: AtomicUsize = AtomicUsize::new(!0);
/// How often watching has ended. Sync: `undo` adds, before `HIDDEN_END` says so.
static ENDINGS: AtomicUsize = AtomicUsize::new(0);
/// The client's choice for SIGSEGV, in one of two places, so that a handler never reads what is being written.
///
/// Sync: `begin` writes the place that is not in use, then switches with Release; the handler reads with Acquire.
static PREVIOUS: Actions = Actions(UnsafeCell::new([const { MaybeUninit::zeroed() }; 2]));
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Sync: a setting, made before the first watch.
static NEIGHBOURS: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Given the address of a page that is being written: the range of pages, this one included, that are to be made
/// writable with it. Called in the handler, on any thread.
pub type Neighbours = fn(page: usize) -> (usize, usize);

/// Says which pages are made writable together. Without it each page is alone.
pub fn set_neighbours(f: Neighbours) {
    NEIGHBOURS.store(f as *mut (), Ordering::Relaxed);
}

struct Actions(UnsafeCell<[MaybeUninit<libc::sigaction>; 2]>);
// SAFETY: see `PREVIOUS`.
unsafe impl Sync for Actions {}

impl Actions {
    fn place(&self, at: usize) -> *mut libc::sigaction {
        // SAFETY: one of the two.
        unsafe { self.0.get().cast::<libc::sigaction>().add(at) }
    }
}

/// Bits of one word of the bitmap.
const WORD: usize = u64::BITS as usize;

/// The watch of this kind; there is one in a process.
pub struct Protection(());

impl Protection {
    pub fn attach(low: usize, high: usize) -> Result<Self, WatchError> {
        let bytes = Bytes((high - low) / PAGE.0 / 8 + size_of::<u64>());
        let bits = memory::map_lazy(bytes).map_err(|_| WatchError::of("mmap"))?;
        BITS.store(bits.as_ptr().cast(), Ordering::Relaxed);
        LOW.store(low, Ordering::Relaxed);
        HIGH.store(high, Ordering::Relaxed);
        Ok(Self(()))
    }

    pub fn begin(&mut self, low: usize, high: usize) -> Result<(), WatchError> {
        ALL.store(false, Ordering::Relaxed);
        for_each_run(low, high, true, &mut |_, _| {});
        install()?;
        HIDDEN_END.store(!high, Ordering::Relaxed);
        protect(low, high, libc::PROT_READ)
    }

    pub fn fetch(
        &mut self,
        low: usize,
        high: usize,
        clean: bool,
        f: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WatchError> {
        if ALL.load(Ordering::Acquire) {
            f(low, high);
            return Ok(());
        }
        // What lies beyond was never protected: all of it may have been written.
        let end = end().clamp(low, high);
        let mut failed = None;
        for_each_run(low, end, clean, &mut |from, to| {
            if clean && let Err(e) = protect(from, to, libc::PROT_READ) {
                failed = Some(e);
            }
            f(from, to);
        });
        if let Some(e) = failed {
            return Err(e);
        }
        if end < high {
            if clean {
                // First: the handler settles faults below it.
                HIDDEN_END.store(!high, Ordering::Relaxed);
                protect(end, high, libc::PROT_READ)?;
            }
            f(end, high);
        }
        Ok(())
    }

    pub fn end(&mut self, low: usize, high: usize) {
        undo(low, high);
    }
}

/// Makes the range writable, and ends all noticing.
pub fn undo(low: usize, high: usize) {
    if make_all_writable(low, high).is_err() {
        crate::die!("cannot make {} of the heap writable again (mprotect)", Bytes(high - low));
    }
    ENDINGS.fetch_add(1, Ordering::Relaxed);
    HIDDEN_END.store(!0, Ordering::Relaxed);
}

impl Drop for Protection {
    fn drop(&mut self) {
        let bytes = Bytes((HIGH.load(Ordering::Relaxed) - LOW.load(Ordering::Relaxed)) / PAGE.0 / 8 + size_of::<u64>());
        LOW.store(0, Ordering::Relaxed);
        HIGH.store(0, Ordering::Relaxed);
        // SAFETY: the mapping that `attach` made; nothing is protected any more, so no handler uses it.
        unsafe { memory::unmap(BITS.swap(ptr::null_mut(), Ordering::Relaxed).cast(), bytes) };
    }
}

/// The end of what is watched now; 0 for nothing.
fn end() -> usize {
    !HIDDEN_END.load(Ordering::Relaxed)
}

fn protect(low: usize, high: usize, protection: i32) -> Result<(), WatchError> {
    super::in_pieces(low, high, &mut |low, high| protect_at_once(low, high, protection))
}

fn protect_at_once(low: usize, high: usize, protection: i32) -> Result<(), WatchError> {
    let protection = protection | memory::code_protection();
    // SAFETY: a range that its owner has given to be watched.
    let r = unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(low), high - low, protection) };
    if r == 0 { Ok(()) } else { Err(WatchError::of("mprotect")) }
}

/// Makes all that is watched writable, also where there may be no more mappings than there are.
fn make_all_writable(low: usize, high: usize) -> Result<(), WatchError> {
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    protect(low, high, writable).or_else(|_| protect_at_once(low, high, writable))
}

fn word(at: usize) -> &'static AtomicU64 {
    // SAFETY: `attach` mapped a word for each 64 pages of the range, and `at` comes from an address in it.
    unsafe { &*BITS.load(Ordering::Relaxed).add(at) }
}

/// Calls `f` for each run of pages whose bits are set; takes the bits of a run away first if `take` says so.
fn for_each_run(low: usize, high: usize, take: bool, f: &mut dyn FnMut(usize, usize)) {
    let base = LOW.load(Ordering::Relaxed);
    let (mut page, last) = ((low - base) / PAGE.0, (high - base) / PAGE.0);
    let mut run = (page, page);
    while page < last {
        let within = page % WORD;
        let n = (WORD - within).min(last - page);
        let mask = (u64::MAX >> (WORD - n)) << within;
        let mut bits = word(page / WORD).load(Ordering::Acquire) & mask;
        if take && bits != 0 {
            // Acquire: what the handler did before it set them.
            bits = word(page / WORD).fetch_and(!mask, Ordering::AcqRel) & mask;
        }
        for i in within..within + n {
            if bits >> i & 1 == 1 {
                let at = page - within + i;
                if run.1 != at {
                    if run.0 < run.1 {
                        f(base + run.0 * PAGE.0, base + run.1 * PAGE.0);
                    }
                    run = (at, at);
                }
                run.1 = at + 1;
            }
        }
        page += n;
    }
    if run.0 < run.1 {
        f(base + run.0 * PAGE.0, base + run.1 * PAGE.0);
    }
}

/// Puts our handler in front of the client's, unless it is there.
fn install() -> Result<(), WatchError> {
    // SAFETY: plain structures, initialised before use; the place that is written is not in use.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &mut now);
        if now.sa_sigaction == on_fault as *const () as usize {
            return Ok(());
        }
        // Of the mask the kernel knows one word. The C library leaves in the others what was on the stack, which may look like an
        // object's address.
        let mask = (&raw const now.sa_mask).cast::<u64>().read();
        now.sa_mask = core::mem::zeroed();
        (&raw mut now.sa_mask).cast::<u64>().write(mask);
        let free = 1 - IN_USE.load(Ordering::Relaxed);
        PREVIOUS.place(free).write(now);
        IN_USE.store(free, Ordering::Release);
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        // On the alternate stack where the thread has one: a client's handler for stack overflow needs it.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_NODEFER;
        action.sa_mask = *Mask::all_but_faults().as_raw();
        if libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()) != 0 {
            return Err(WatchError::of("sigaction(SIGSEGV)"));
        }
    }
    Ok(())
}

crate::handler! {
    /// See the module. No other signal may come between its steps, whoever installs it.
    pub(super) fn on_fault => faulted
}

extern "C" fn faulted(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let _errno = KeepErrno::new();
    // SAFETY: the kernel passes a valid structure.
    let (at, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    /// Of SIGSEGV: the page is there and may not be used so.
    const SEGV_ACCERR: i32 = 2;
    let low = LOW.load(Ordering::Relaxed);
    if code == SEGV_ACCERR && (low..end()).contains(&at) {
        note_write(at & !(PAGE.0 - 1));
        return;
    }
    if code == SEGV_ACCERR && (low..HIGH.load(Ordering::Relaxed)).contains(&at) && !is_second(at) {
        return;
    }
    pass_on(signal, info, context);
}

/// Whether the calling thread had a fault at this address, and none elsewhere, since the watch last ended. The first may have come just before
/// that, and goes away when the instruction is tried again; given to the client, it would take our handler away, or the process.
fn is_second(at: usize) -> bool {
    // In disguise, since a thread's own data are roots.
    let this = !(at ^ ENDINGS.load(Ordering::Relaxed) << 48);
    tls::with(|t| t.late_fault.replace(this)) == this
}

fn note_write(page: usize) {
    let f = NEIGHBOURS.load(Ordering::Relaxed);
    let (mut low, mut high) = (page, page + PAGE.0);
    if !f.is_null() {
        // SAFETY: only `set_neighbours` stores here.
        (low, high) = unsafe { core::mem::transmute::<*mut (), Neighbours>(f)(page) };
    }
    if protect(low, high, libc::PROT_READ | libc::PROT_WRITE).is_err() {
        let base = LOW.load(Ordering::Relaxed);
        // The watch may have ended meanwhile, and then everything is writable.
        let end = end().max(base);
        if make_all_writable(base, end).is_err() {
            crate::die!("cannot make a page of the heap writable (mprotect): raise vm.max_map_count");
        }
        ALL.store(true, Ordering::Release);
        return;
    }
    let base = LOW.load(Ordering::Relaxed);
    for at in (low..high).step_by(PAGE.0) {
        let number = (at - base) / PAGE.0;
        // Release: after the page was made writable, see the module.
        word(number / WORD).fetch_or(1 << (number % WORD), Ordering::Release);
    }
}

/// Does with a fault of the client's what would be done if this handler were not there.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the place in use is not written; the structures are the kernel's and the C library's.
    unsafe {
        let previous = PREVIOUS.place(IN_USE.load(Ordering::Acquire)).read();
        if previous.sa_sigaction == libc::SIG_DFL || previous.sa_sigaction == libc::SIG_IGN {
            // The instruction faults again and takes the default action, as a fault that is ignored does.
            libc::sigaction(libc::SIGSEGV, &previous, ptr::null_mut());
            return;
        }
        let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        let client = (&raw const previous.sa_mask).cast::<u64>().read();
        *(&raw mut mask).cast::<u64>() |=
            client | if previous.sa_flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
        libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
        if previous.sa_flags & libc::SA_SIGINFO != 0 {
            let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                core::mem::transmute(previous.sa_sigaction);
            f(signal, info, context);
        } else {
            let f: extern "C" fn(i32) = core::mem::transmute(previous.sa_sigaction);
            f(signal);
        }
    }
}
